//! Files for what took long to measure: opened before, so that one which cannot be written is known of in time.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// A file that is to be written at the end. What was in it stays until then; one that was not there goes again where there is nothing to write.
pub struct ResultFile {
    path: PathBuf,
    file: File,
    is_fresh: bool,
}

impl ResultFile {
    /// Opens the file, or creates an empty one.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let is_fresh = !path.exists();
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file =
            file.map_err(|error| Failure::tool(format!("cannot write {}: {error}: name another", path.display())))?;
        Ok(ResultFile { path: path.to_owned(), file, is_fresh })
    }

    /// Puts the content in the place of what was there.
    pub fn write(mut self, content: &str) -> Result<(), Failure> {
        self.is_fresh = false;
        // A pipe or a terminal has no length.
        let _ = self.file.set_len(0);
        let written = self.file.write_all(content.as_bytes());
        written.map_err(|error| Failure::tool(format!("cannot write {}: {error}", self.path.display())))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ResultFile {
    fn drop(&mut self) {
        if self.is_fresh {
            let _ = fs::remove_file(&self.path);
        }
    }
}
