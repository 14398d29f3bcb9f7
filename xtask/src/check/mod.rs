//! `cargo xtask check`: what a reviewer should not have to look for.
//!
//! Every part is made, also after one has failed, so that one run shows all there is to repair.

mod exports;
mod layers;
mod no_std;
mod paths;
mod sequences;
mod vectors;

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::workspace::{Workspace, run};

/// One check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// The import rule between the crates
    Imports,
    /// rustfmt
    Format,
    /// Clippy, with warnings as errors
    Lints,
    /// The symbols of libgc.so.1
    Exports,
    /// The restartable sequences of the libraries
    Sequences,
    /// The marker's vector instructions are no functions
    Vectors,
    /// Runtime crates are no_std
    NoStd,
    /// No file mentions a path outside the repository
    Paths,
}

/// Makes the named checks, or all.
pub fn check(workspace: &Workspace, named: &[Part]) -> Result<()> {
    let parts = if named.is_empty() { Part::value_variants() } else { named };
    let mut failed = Vec::new();
    for &part in parts {
        let name = part.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        println!("== check {name}");
        if let Err(error) = make(workspace, part) {
            println!("{error:#}");
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        bail!("check failed: {}", failed.join(", "));
    }
    println!("all checks passed");
    Ok(())
}

fn make(workspace: &Workspace, part: Part) -> Result<()> {
    match part {
        Part::Imports => all_good(layers::violations(&workspace.packages())),
        Part::Format => run(workspace.cargo().args(["fmt", "--all", "--check"])),
        Part::Lints => lints(workspace),
        Part::Exports => exports::check(workspace),
        Part::Sequences => sequences::check(workspace),
        Part::Vectors => vectors::check(workspace),
        Part::NoStd => all_good(no_std::violations(workspace)?),
        Part::Paths => all_good(paths::violations(workspace)?),
    }
}

/// All crates at once, as editors check them: the shared objects then have the standard library's panic handler.
fn lints(workspace: &Workspace) -> Result<()> {
    let arguments = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"];
    run(workspace.cargo().args(arguments))
}

fn all_good(violations: Vec<String>) -> Result<()> {
    if violations.is_empty() {
        return Ok(());
    }
    bail!("{}", violations.join("\n"))
}
