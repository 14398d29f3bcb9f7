//! `cargo xtask stage DIR`: the release build, laid out as it would be installed.
//!
//! Everything that measures or tests the doors starts from such a folder:
//!
//! | path | what it is |
//! |---|---|
//! | `lib/libgc.so.1`, `lib/libgc.so` | the `gc.h` door |
//! | `lib/libgccpp.so.1`, `lib/libgccpp.so` | C++'s operators new and delete on it |
//! | `lib/liblarder_gc.a`, `lib/libgc.a` | the door as a static archive |
//! | `lib/libgccpp.a` | the operators as one, before it on the command line |
//! | `lib/pkgconfig/bdw-gc.pc`, `lib/cmake/BDWgc/` | how pkg-config and CMake find them, wherever the folder is |
//! | `lib/liblarder_cs.so`, `lib/liblarder_cs.a` | restartable critical sections for C |
//! | `lib/liblarder_locks.so` | puts one of our locks under a pthread program's mutexes |
//! | `lib/liblarder_vm.so`, `lib/liblarder_vm.a` | the moving heap for language implementers |
//! | `lib/larder-preload.so` | what `larder run` interposes |
//! | `include/` | the C headers |
//! | `bin/larder` | the tool |
//! | `libexec/larder/` | the programs that the tool starts to measure |
//! | `share/larder/apps/` | the C programs of `apps/gc`, as source |
//! | `apps/` | the thesis's programs among them, compiled, where there is a C compiler |
//! | `apps/vm/` | programs of the moving heap that also exist in Java, compiled |
//!
//! With `--assertions` it is the shared objects of the `gc.h` door, `larder-preload.so`, the headers and the tool alone; what a program
//! loads has debug assertions and overflow checks.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::workspace::{Workspace, run};

/// The programs of larder-experiments.
const EXPERIMENTS: &[&str] = &["larder-labs", "larder-locks", "thesis"];

/// Builds for release and fills `dir`.
pub fn stage(workspace: &Workspace, dir: &Path) -> Result<()> {
    if !workspace.has("larder-cli") {
        bail!("the workspace has no package larder-cli, which builds bin/larder: add crates/larder-cli");
    }
    run(workspace.cargo().args(["build", "--release", "--package", "larder-cli"]))?;
    stage_library(workspace, dir)?;

    let lib = dir.join("lib");
    install(&build_archive(workspace)?, &lib.join("liblarder_gc.a"))?;
    link("liblarder_gc.a", &lib.join("libgc.a"))?;
    if workspace.has("larder-gccpp") {
        install(&build_operators_archive(workspace)?, &lib.join("libgccpp.a"))?;
    }
    let packaging = workspace.root().join("packaging");
    copy_folder(&packaging.join("pkgconfig"), &lib.join("pkgconfig"))?;
    copy_folder(&packaging.join("cmake"), &lib.join("cmake"))?;
    if workspace.has("larder-locks") {
        run(workspace.cargo().args(["build", "--release", "--package", "larder-locks"]))?;
        install(&workspace.target().join("release/liblarder_locks.so"), &lib.join("liblarder_locks.so"))?;
    }
    if workspace.has("larder-cs") {
        let shared = build_critical_sections(workspace)?;
        install(&shared, &lib.join("liblarder_cs.so"))?;
        install(&shared.with_extension("a"), &lib.join("liblarder_cs.a"))?;
    }
    if workspace.has("larder-experiments") {
        run(workspace.cargo().args(["build", "--release", "--package", "larder-experiments", "--bins"]))?;
        for program in EXPERIMENTS {
            let built = workspace.target().join("release").join(program);
            install(&built, &dir.join("libexec/larder").join(program))?;
        }
    }
    if workspace.has("larder-vm") {
        let shared = build_door(workspace, "larder-vm", "liblarder_vm.so")?;
        install(&shared, &lib.join("liblarder_vm.so"))?;
        install(&shared.with_extension("a"), &lib.join("liblarder_vm.a"))?;
    }
    install(&workspace.target().join("release/larder"), &dir.join("bin/larder"))?;
    copy_folder(&workspace.root().join("apps/gc"), &dir.join("share/larder/apps"))?;
    if crate::apps::compile(workspace, &lib, &dir.join("apps"))?.is_none() {
        println!(
            "note: {} stays empty: there is no C compiler (apt-get install gcc libc6-dev)",
            dir.join("apps").display()
        );
    }
    println!("staged in {}", dir.display());
    Ok(())
}

/// Stages in the folder that tasks share, with debug assertions or without, and returns it.
pub fn for_task(workspace: &Workspace, assertions: bool) -> Result<PathBuf> {
    let staged = workspace.scratch(if assertions { "stage-assertions" } else { "stage" })?;
    if assertions {
        stage_asserting(workspace, &staged)?
    } else {
        stage(workspace, &staged)?
    }
    Ok(staged)
}

/// Fills `dir` with what a program that links libgc loads, built for release with debug assertions, and with the tool, which is built
/// without: it has no heap. For tests, and for who looks for a defect; everything else of [`stage`] is left out.
pub fn stage_asserting(workspace: &Workspace, dir: &Path) -> Result<()> {
    run(workspace.cargo().args(["build", "--release", "--package", "larder-cli"]))?;
    install(&workspace.target().join("release/larder"), &dir.join("bin/larder"))?;
    stage_library(&workspace.asserting(), dir)?;
    println!("staged with debug assertions in {}", dir.display());
    Ok(())
}

/// Stages the `gc.h` door as a shared object, what goes with it at run time, and the headers.
fn stage_library(workspace: &Workspace, dir: &Path) -> Result<()> {
    let lib = dir.join("lib");
    install(&build_library(workspace)?, &lib.join("libgc.so.1"))?;
    link("libgc.so.1", &lib.join("libgc.so"))?;
    if workspace.has("larder-gccpp") {
        install(&build_operators(workspace, &lib.join("libgc.so.1"))?, &lib.join("libgccpp.so.1"))?;
        link("libgccpp.so.1", &lib.join("libgccpp.so"))?;
    }
    if workspace.has("larder-preload") {
        run(workspace.cargo().args(["build", "--release", "--package", "larder-preload"]))?;
        let preload = workspace.target().join("release/liblarder_preload.so");
        install(&preload, &lib.join("larder-preload.so"))?;
    }
    copy_folder(&workspace.root().join("include"), &dir.join("include"))
}

/// Builds the `gc.h` door for release and returns the path of the shared object.
pub fn build_library(workspace: &Workspace) -> Result<PathBuf> {
    if !workspace.has("larder-gc") {
        bail!("the workspace has no package larder-gc, which builds libgc.so.1: add crates/larder-gc");
    }
    // Alone, so that no other package's features are unified into the library.
    run(workspace.cargo().args(["build", "--release", "--package", "larder-gc"]))?;
    let library = workspace.target().join("release/liblarder_gc.so");
    if !library.is_file() {
        bail!("larder-gc built no {}: its crate-type must contain \"cdylib\"", library.display());
    }
    Ok(library)
}

/// Builds the `gc.h` door for release as an archive of objects, and returns its path.
fn build_archive(workspace: &Workspace) -> Result<PathBuf> {
    let arguments =
        ["rustc", "--release", "--package", "larder-gc", "--features", "archive", "--crate-type", "staticlib"];
    run(workspace.cargo().args(arguments))?;
    built(workspace, "larder-gc", "liblarder_gc.a")
}

/// Builds C++'s operators for release as an archive, and returns its path.
///
/// A Rust library is an archive, too, and has the crate's own object alone: whatever it had of other crates would be in the door's as well, and
/// no program could be linked to both. Link-time optimization would leave no object in it.
fn build_operators_archive(workspace: &Workspace) -> Result<PathBuf> {
    let arguments =
        ["rustc", "--release", "--package", "larder-gccpp", "--features", "archive", "--crate-type", "rlib"];
    run(workspace.cargo().args(arguments).env("CARGO_PROFILE_RELEASE_LTO", "off"))?;
    built(workspace, "larder-gccpp", "liblarder_gccpp.rlib")
}

/// The path of what was built for release, if it was.
fn built(workspace: &Workspace, package: &str, name: &str) -> Result<PathBuf> {
    let path = workspace.target().join("release").join(name);
    if !path.is_file() {
        bail!("{package} built no {}", path.display());
    }
    Ok(path)
}

/// Builds libgccpp for release and returns the path of the shared object, which asks the loader for `libgc.so.1`.
pub fn build_operators(workspace: &Workspace, library: &Path) -> Result<PathBuf> {
    // By its file, so that no other libgc is found; kept although nothing on the command line before it needs it.
    let library = library.canonicalize().with_context(|| format!("cannot find {}", library.display()))?;
    let linked = ["-Wl,--no-as-needed".into(), library.display().to_string(), "-Wl,--as-needed".into()];
    let mut command = workspace.cargo();
    command.args(["rustc", "--release", "--package", "larder-gccpp", "--"]);
    linked.iter().for_each(|argument| {
        command.arg("-C").arg(format!("link-arg={argument}"));
    });
    run(&mut command)?;
    Ok(workspace.target().join("release/liblarder_gccpp.so"))
}

/// Builds the door of the critical sections for release and returns the path of the shared object; the static library
/// lies beside it.
pub fn build_critical_sections(workspace: &Workspace) -> Result<PathBuf> {
    build_door(workspace, "larder-cs", "liblarder_cs.so")
}

/// Builds a door for release and returns the path of its shared object; the static library lies beside it.
pub fn build_door(workspace: &Workspace, package: &str, library: &str) -> Result<PathBuf> {
    run(workspace.cargo().args(["build", "--release", "--package", package]))?;
    Ok(workspace.target().join("release").join(library))
}

/// Copies one file under a new name and renames it into place.
///
/// A program that runs with the old library keeps it mapped; writing over it in place would crash that program.
fn install(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().context("a staged file lies in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let new = to.with_extension("new");
    fs::copy(from, &new).with_context(|| format!("cannot copy {} to {}", from.display(), new.display()))?;
    fs::rename(&new, to).with_context(|| format!("cannot rename {} to {}", new.display(), to.display()))
}

fn link(target: &str, at: &Path) -> Result<()> {
    if at.is_symlink() || at.exists() {
        fs::remove_file(at).with_context(|| format!("cannot replace {}", at.display()))?;
    }
    std::os::unix::fs::symlink(target, at).with_context(|| format!("cannot create the link {}", at.display()))
}

/// Copies the folder `from` over `to`. What else lies in `to` stays: it may be a folder like `/usr/local/include`.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    if !from.is_dir() {
        println!("note: {} does not exist, so {} stays empty", from.display(), to.display());
        return Ok(());
    }
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry.with_context(|| format!("cannot read {}", from.display()))?;
        let (source, copy) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_folder(&source, &copy)?;
        } else {
            fs::copy(&source, &copy).with_context(|| format!("cannot copy {}", source.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Which versions CMake takes ours for, of those that a project may ask for.
    #[test]
    fn cmake_finds_the_versions_that_are_compatible() {
        const WANTED: &[(&str, bool)] = &[
            ("", true),
            ("8", true),
            ("8.2", true),
            ("8.2.2 EXACT", true),
            ("8.2 EXACT", false),
            ("8.2.3", false),
            ("7.6", true),
            ("9", false),
            ("8.0...8.1", false),
            ("8.0...8.2.2", true),
            ("8.0...<8.2.2", false),
            ("8.0...8.9", true),
            ("8.3...8.9", false),
            ("7.6...8.9", true),
            ("8.0...<9", true),
            ("8.0...9", true),
        ];
        let folder = std::env::temp_dir().join(format!("larder-cmake-{}", std::process::id()));
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("in the repository").join("packaging");
        let staged = folder.join("lib/cmake/BDWgc");
        copy_folder(&packaging.join("cmake/BDWgc"), &staged).expect("the files of packaging");
        // A script may look for packages, and declare no targets.
        fs::write(staged.join("BDWgcConfig.cmake"), "").expect("a file of our own");
        let script = folder.join("find.cmake");
        for &(wanted, found) in WANTED {
            let text = format!(
                "find_package(BDWgc {wanted} QUIET CONFIG PATHS {} NO_DEFAULT_PATH)\nmessage(\"${{BDWgc_FOUND}}\")\n",
                folder.display()
            );
            fs::write(&script, text).expect("a file of our own");
            let Ok(output) = Command::new("cmake").arg("-P").arg(&script).output() else {
                println!("SKIPPED: there is no CMake (apt-get install cmake)");
                break;
            };
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}");
            assert_eq!(said.trim() == "1", found, "find_package(BDWgc {wanted}): {said}");
        }
        fs::remove_dir_all(folder).expect("a folder of our own");
    }
}
