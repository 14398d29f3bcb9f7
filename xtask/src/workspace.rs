//! The workspace as cargo sees it, and how tasks start cargo.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cargo_metadata::{Metadata, MetadataCommand, Package, TargetKind};

/// The workspace's metadata, read once when a task starts.
pub struct Workspace {
    metadata: Metadata,
    target: PathBuf,
    /// What every cargo is started with beside this program's own environment.
    settings: Vec<(&'static str, OsString)>,
}

impl Workspace {
    /// Reads the metadata of the workspace that this program belongs to.
    pub fn load() -> Result<Self> {
        // Cargo sets the variable for `cargo run`; the compiled-in path serves a program that is started directly.
        let own_folder = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let manifest = Path::new(&own_folder).join("Cargo.toml");
        let metadata = MetadataCommand::new()
            .manifest_path(&manifest)
            .no_deps()
            .exec()
            .with_context(|| format!("cargo metadata failed for {}", manifest.display()))?;
        let target = metadata.target_directory.as_std_path().to_owned();
        Ok(Self { metadata, target, settings: Vec::new() })
    }

    /// The same workspace, but what its cargo builds for release has debug assertions and overflow checks, and lies in a target
    /// folder of its own, so that neither form makes cargo build the other anew.
    pub fn asserting(&self) -> Self {
        let target = self.target.join("assertions");
        let settings = vec![
            ("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true".into()),
            ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true".into()),
            ("CARGO_TARGET_DIR", target.clone().into()),
        ];
        Self { metadata: self.metadata.clone(), target, settings }
    }

    /// The repository's folder.
    pub fn root(&self) -> &Path {
        self.metadata.workspace_root.as_std_path()
    }

    /// Where cargo puts what it builds; follows `CARGO_TARGET_DIR`.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// A folder under the target folder for what a task itself leaves behind, created when missing.
    pub fn scratch(&self, name: &str) -> Result<PathBuf> {
        let folder = self.target().join("xtask").join(name);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(folder)
    }

    /// The packages of the workspace.
    pub fn packages(&self) -> Vec<&Package> {
        self.metadata.workspace_packages()
    }

    /// Whether the workspace has a package of this name.
    pub fn has(&self, package: &str) -> bool {
        self.packages().iter().any(|candidate| candidate.name == package)
    }

    /// The packages with integration tests whose names begin with `prefix`.
    pub fn with_tests_named(&self, prefix: &str) -> Vec<&str> {
        self.packages()
            .into_iter()
            .filter(|package| package.targets.iter().any(|target| target.is_test() && target.name.starts_with(prefix)))
            .map(|package| package.name.as_str())
            .collect()
    }

    /// `--exclude` arguments for every shared object.
    ///
    /// They are `no_std`, and built alone: together with other crates cargo unifies features, which brings in `std`, and its panic
    /// handler in place of their own (`larder_sys::freestanding`).
    pub fn exclude_shared_objects(&self) -> Vec<String> {
        self.packages()
            .into_iter()
            .filter(|package| package.targets.iter().any(|target| target.kind.contains(&TargetKind::CDyLib)))
            .flat_map(|package| ["--exclude".to_owned(), package.name.to_string()])
            .collect()
    }

    /// Cargo, started in the repository's folder.
    pub fn cargo(&self) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(self.root()).envs(self.settings.iter().map(|(name, value)| (name, value)));
        command
    }

    /// `cargo test`, which kills a test program that runs for longer than any does, and goes on with the others.
    ///
    /// A test that hangs is then a failure that names its program; the line before it names the test.
    pub fn cargo_test(&self) -> Command {
        self.cargo_test_under(&[])
    }

    /// The same, with test programs started by a program like valgrind.
    pub fn cargo_test_under(&self, starter: &[&str]) -> Command {
        let words: Vec<String> = LIMIT.iter().chain(starter).map(|word| format!("{word:?}")).collect();
        let mut command = self.cargo();
        command.args(["test", "--no-fail-fast", "--config"]);
        command.arg(format!(r#"target."cfg(unix)".runner = [{}]"#, words.join(", ")));
        command
    }
}

/// What starts test programs: `timeout` is in coreutils. In the foreground, so that an interrupt reaches the test. Longer than a test's
/// own limits (`larder_testkit::in_child` has half an hour), which name it.
const LIMIT: [&str; 4] = ["timeout", "--foreground", "--signal=KILL", "60m"];

/// Runs `command` and fails with its command line when it does.
pub fn run(command: &mut Command) -> Result<()> {
    let line = line_of(command);
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// The command line as a person would type it, for messages.
pub fn line_of(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
