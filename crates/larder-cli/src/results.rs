//! Files for what took long to measure: opened before, so that one which cannot be written is known of in time.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// A file that is to be written at the end. What was in it stays until then; one that was not there is not there before, so that nothing is left of a
/// tool that is ended by a signal.
pub struct ResultFile {
    path: PathBuf,
    /// Where something was there: a pipe may be opened once only.
    file: Option<File>,
}

fn opened(path: &Path) -> Result<File, Failure> {
    let file = File::options().write(true).create(true).truncate(false).open(path);
    file.map_err(|error| Failure::tool(format!("cannot write {}: {error}: name another", path.display())))
}

impl ResultFile {
    /// Opens the file, or finds out that it can be created.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        // A link that leads nowhere stays.
        let is_fresh = path.symlink_metadata().is_err();
        let file = opened(path)?;
        if is_fresh {
            let _ = fs::remove_file(path);
        }
        Ok(ResultFile { path: path.to_owned(), file: (!is_fresh).then_some(file) })
    }

    /// Puts the content in the place of what was there.
    pub fn write(self, content: &str) -> Result<(), Failure> {
        let mut file = self.file.map_or_else(|| opened(&self.path), Ok)?;
        // A pipe or a terminal has no length.
        let _ = file.set_len(0);
        let written = file.write_all(content.as_bytes());
        written.map_err(|error| Failure::tool(format!("cannot write {}: {error}", self.path.display())))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_is_there_when_it_is_written_and_an_old_one_keeps_its_content_until_then() {
        let folder = std::env::temp_dir().join(format!("larder-results-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (new, old) = (folder.join("new"), folder.join("old"));
        fs::write(&old, "what was there, and longer").unwrap();
        let files = [&new, &old].map(|path| ResultFile::open(path).unwrap());
        assert!(!new.exists(), "a tool that is killed now would leave an empty file");
        assert_eq!(fs::read_to_string(&old).unwrap(), "what was there, and longer");
        for file in files {
            file.write("text").unwrap();
        }
        assert_eq!([new, old].map(|path| fs::read_to_string(path).unwrap()), ["text", "text"]);
        assert!(ResultFile::open(&folder).is_err_and(|failure| failure.message.contains("cannot write")));
        fs::remove_dir_all(&folder).unwrap();
    }
}
