//! Finds Larder's `libgc.so.1`, and builds it where the tool runs from a cargo target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::exit::Failure;

/// The name under which the loader looks for it.
pub const FILE_NAME: &str = "libgc.so.1";
/// The object beside it with the libc calls that `run` interposes.
pub const PRELOAD_NAME: &str = "larder-preload.so";
/// What cargo calls that one.
const BUILT_PRELOAD_NAME: &str = "liblarder_preload.so";
/// Names the library's folder.
pub const FOLDER_VARIABLE: &str = "LARDER_LIB";
/// What cargo calls the library that it builds.
const BUILT_NAME: &str = "liblarder_gc.so";
/// Where a library built by cargo is laid out, inside the profile's folder.
const STAGE: &str = "larder-stage/lib";

/// Our library, ready to go into a program.
#[derive(Debug, Clone)]
pub struct Library {
    /// The folder that holds [`FILE_NAME`], absolute.
    pub folder: PathBuf,
}

/// The library of the environment, of the installation, or of the cargo target folder, in this order.
pub fn find() -> Result<Library, Failure> {
    if let Some(folder) = named_folder() {
        return ready(&folder).ok_or_else(|| {
            Failure::tool(format!(
                "{FOLDER_VARIABLE} is {}, which holds no {FILE_NAME}: set it to the folder that does, or unset it",
                folder.display()
            ))
        });
    }
    let executable = std::env::current_exe().map_err(|error| {
        Failure::tool(format!("cannot tell where this executable is: {error}: set {FOLDER_VARIABLE}"))
    })?;
    let beside = executable.parent().unwrap_or(Path::new("/"));
    if let Some(library) = ready(&beside.join("../lib")) {
        return Ok(library);
    }
    if let Some(profile) = profile_folder(beside) {
        let staged = profile.join(STAGE);
        let workspace = workspace(profile);
        // Through `cargo run` the sources may have changed, and cargo finds out quickest.
        let through_cargo = std::env::var_os("CARGO").is_some();
        if let Some(workspace) = &workspace
            && (through_cargo || !staged.join(FILE_NAME).exists())
        {
            return build(workspace, profile, &staged);
        }
        if let Some(library) = ready(&staged) {
            return Ok(library);
        }
    }
    Err(Failure::tool(format!(
        "{FILE_NAME} was not found in {}: install Larder as a whole (`cargo xtask stage DIR`, then DIR/bin/larder), or set \
         {FOLDER_VARIABLE} to the folder that holds it",
        beside.join("../lib").display()
    )))
}

/// Where [`find`] would find the library now, without building anything.
pub fn find_built() -> Option<Library> {
    if let Some(folder) = named_folder() {
        return ready(&folder);
    }
    let executable = std::env::current_exe().ok()?;
    let beside = executable.parent()?;
    ready(&beside.join("../lib")).or_else(|| ready(&profile_folder(beside)?.join(STAGE)))
}

/// The folder of the environment. An empty name is none.
fn named_folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

fn ready(folder: &Path) -> Option<Library> {
    let folder = fs::canonicalize(folder).ok()?;
    folder.join(FILE_NAME).is_file().then_some(Library { folder })
}

/// The profile's folder in a cargo target folder that `folder` is, or is the `deps` of.
fn profile_folder(folder: &Path) -> Option<&Path> {
    let profile = if folder.ends_with("deps") { folder.parent()? } else { folder };
    let is_target = |folder: &Path| folder.join("CACHEDIR.TAG").exists();
    // With `--target TRIPLE` there is one more folder between.
    let parent = profile.parent()?;
    (is_target(parent) || parent.parent().is_some_and(is_target)).then_some(profile)
}

/// The workspace that has our library's sources: above the manifest that cargo names, the executable, or the current folder.
fn workspace(profile: &Path) -> Option<PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let starts = [manifest, Some(profile.to_owned()), std::env::current_dir().ok()];
    let has_sources = |folder: &&Path| folder.join("crates/larder-gc/Cargo.toml").is_file();
    starts.into_iter().flatten().find_map(|start| start.ancestors().find(has_sources).map(Path::to_owned))
}

/// Builds the library for release, whatever this tool was built for, and lays it out as the loader wants it.
fn build(workspace: &Path, profile: &Path, staged: &Path) -> Result<Library, Failure> {
    // The target folder is the one that cargo marked.
    let target = profile.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists()).unwrap_or(profile);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    note!("bringing the library up to date (cargo build --release -p larder-gc -p larder-preload)");
    let status = Command::new(&cargo)
        .args(["build", "--release", "-p", "larder-gc", "-p", "larder-preload", "--target-dir"])
        .arg(target)
        .current_dir(workspace)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(|error| {
            Failure::tool(format!("{}: {error}: install cargo, or set {FOLDER_VARIABLE}", cargo.to_string_lossy()))
        })?;
    if !status.success() {
        return Err(Failure::tool(format!(
            "the library could not be built ({status}): see cargo's messages above, or set {FOLDER_VARIABLE} to a folder with {FILE_NAME}"
        )));
    }
    for (built, name) in [(BUILT_NAME, FILE_NAME), (BUILT_PRELOAD_NAME, PRELOAD_NAME)] {
        let built = target.join("release").join(built);
        stage(&built, staged, name).map_err(|error| {
            Failure::tool(format!("{} could not be copied to {}: {error}", built.display(), staged.display()))
        })?;
    }
    ready(staged).ok_or_else(|| Failure::tool(format!("{} vanished after it was built", staged.display())))
}

/// Copies under another name and renames, so that a program that runs on the old one keeps it.
fn stage(built: &Path, staged: &Path, name: &str) -> std::io::Result<()> {
    fs::create_dir_all(staged)?;
    let fresh = staged.join(format!("{name}.{}", std::process::id()));
    fs::copy(built, &fresh)?;
    fs::rename(&fresh, staged.join(name))
}
