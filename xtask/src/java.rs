//! The Java programs of `apps/java`: brothers of those of `apps/vm`, which must print the same checksums with the same arguments.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::clients::{find, limited};
use crate::vm::checksum;
use crate::workspace::Workspace;

/// The programs that have a brother in Java.
pub const PROGRAMS: &[&str] = &["trees", "cache", "warehouse", "compiler", "chat"];
/// A machine that starts quickly: here only results count.
const MACHINE: &[&str] = &["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmn4m", "-Xmx64m"];

/// The compiled programs.
pub struct Java {
    classes: PathBuf,
}

impl Java {
    /// Compiles them into `output`; `None`, and a line that says so, where there is no JDK.
    pub fn compile(workspace: &Workspace, output: &Path) -> Result<Option<Self>> {
        if find("javac").is_none() || find("java").is_none() {
            println!(
                "SKIPPED the programs of apps/java: there is no java and javac (apt-get install openjdk-17-jdk-headless)"
            );
            return Ok(None);
        }
        let folder = workspace.root().join("apps/java");
        let mut sources: Vec<PathBuf> = std::fs::read_dir(&folder)
            .with_context(|| format!("cannot read {}", folder.display()))?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()
            .with_context(|| format!("cannot read {}", folder.display()))?;
        sources.retain(|path| path.extension().is_some_and(|extension| extension == "java"));
        let classes = output.join("java");
        let status = Command::new("javac")
            .args(["-Xlint:all", "-Werror", "-d"])
            .arg(&classes)
            .args(&sources)
            .status()
            .context("cannot start javac")?;
        if !status.success() {
            bail!("javac could not compile {} ({status})", folder.display());
        }
        Ok(Some(Self { classes }))
    }

    /// Runs a program twice in one process; returns the checksum of both, or what went wrong.
    pub fn run(&self, program: &str, sizes: &[&str], threads: &str) -> Result<Result<String, String>> {
        let done = limited()
            .arg("java")
            .args(MACHINE)
            .arg("-cp")
            .arg(&self.classes)
            .arg(class_of(program))
            .args(["--warm", "1", "--threads", threads])
            .args(sizes)
            .stdin(Stdio::null())
            .output()
            .context("cannot start java")?;
        let printed = String::from_utf8_lossy(&done.stdout);
        Ok(match checksum(program, &printed).filter(|_| done.status.success()) {
            Some(sum) => Ok(sum),
            None => Err(format!("{}; {}{}", done.status, String::from_utf8_lossy(&done.stderr).trim(), printed.trim())),
        })
    }
}

/// The class of a program: its name as Java writes it.
fn class_of(program: &str) -> String {
    program[..1].to_uppercase() + &program[1..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_a_source_in_both_languages() {
        let apps = Path::new(env!("CARGO_MANIFEST_DIR")).join("../apps");
        for program in PROGRAMS {
            for source in [format!("vm/{program}.c"), format!("java/{}.java", class_of(program))] {
                assert!(apps.join(&source).is_file(), "{source}");
            }
        }
    }
}
