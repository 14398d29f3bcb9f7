//! Finds the programs that the tool starts to measure something. They link heaps and locks, which the tool itself never does.

use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// The program of this name: of the installation, or beside this one in a cargo target folder.
pub fn find(name: &str) -> Result<PathBuf, Failure> {
    let executable = std::env::current_exe().map_err(|error| {
        Failure::tool(format!("cannot tell where this executable is, and {name} beside it: {error}"))
    })?;
    let beside = executable.parent().unwrap_or(Path::new("/"));
    let installed = beside.join("../libexec/larder").join(name);
    [installed.clone(), beside.join(name)].into_iter().find(|path| path.is_file()).ok_or_else(|| {
        Failure::tool(format!(
            "{} was not found: install Larder as a whole (`cargo xtask stage DIR`, then DIR/bin/larder), or build it beside \
             this command (`cargo build --release -p larder-experiments -p larder-cli`)",
            installed.display()
        ))
    })
}
