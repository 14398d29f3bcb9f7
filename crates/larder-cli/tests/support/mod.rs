//! What the tests of the tool share: a folder, a stand-in for the library, and ways to run the tool.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that goes away with the test.
pub struct Folder(pub PathBuf);

impl Folder {
    /// A new one.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("larder-cli-test-{}-{unique}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// The path of `name` inside.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The tool, with a library folder whose library no program under test loads.
pub fn larder(folder: &Folder) -> Command {
    let library = folder.path("lib");
    fs::create_dir_all(&library).unwrap();
    fs::write(library.join("libgc.so.1"), b"").unwrap();
    larder_with(&library)
}

/// The tool, with the library in `folder`.
pub fn larder_with(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.env("LARDER_LIB", folder).env_remove("LD_LIBRARY_PATH").env_remove("GLIBC_TUNABLES");
    command
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
