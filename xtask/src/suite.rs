//! `cargo xtask test`: every test that CI runs, and their counts in one line at the end.

use std::env;

use anyhow::Result;

use crate::apps;
use crate::clients::{self, Session};
use crate::critical_sections;
use crate::faults;
use crate::programs;
use crate::stage;
use crate::tally::{Tally, count};
use crate::vm;
use crate::workspace::Workspace;

/// One thread, as many as a small machine has, and more.
const THREADS: &[usize] = &[1, 2, 8, 64];
/// Collections are forced with a few threads: enough to interrupt each other, few enough to take turns on two processors.
const STRESS_THREADS: &[usize] = &[8];

/// Runs the unit and integration tests, the models, the C programs, the fault matrix, and the client programs.
pub fn test(workspace: &Workspace) -> Result<()> {
    let mut tally = Tally::default();

    // First, because integration tests may use what is staged.
    let has_doors = workspace.has("larder-gc") && workspace.has("larder-cli");
    let staged = workspace.scratch("stage")?;
    if has_doors {
        stage::stage(workspace, &staged)?;
    }

    let mut tests = workspace.cargo_test();
    tests.arg("--workspace").args(workspace.exclude_shared_objects());
    tally += count(tests.env("LARDER_STAGE", &staged))?;

    tally += toolkit(workspace)?;
    tally += models(workspace)?;
    tally += critical_sections::test(workspace)?;

    if has_doors {
        println!("== C programs");
        tally += programs::run_all(workspace, &staged)?;
        println!("== programs of apps/gc");
        tally += apps::run_all(&staged)?;
        let session = Session::new(workspace, &staged.join("lib"))?;
        println!("== C programs of larder_cs.h");
        tally += critical_sections::programs(workspace, &staged)?;
        tally += faults::run(&staged, faults::SHORT)?;
        println!("== C programs of larder_vm.h");
        tally += vm::run_all(workspace, &staged)?;
        println!("== client programs");
        tally += clients::run_all(&session, THREADS, false);
        println!("== client programs, with forced collections");
        tally += clients::run_all(&session, STRESS_THREADS, true);
    } else {
        println!("SKIPPED C programs and client programs: the workspace has no larder-gc or no larder-cli yet");
        tally.skipped += 1;
    }

    println!("{tally}");
    tally.verdict()
}

/// The tests of what `larder-sync` offers to other programs, with its feature `std`, in a target folder of their own:
/// everything else is built without.
fn toolkit(workspace: &Workspace) -> Result<Tally> {
    if !workspace.has("larder-sync") {
        return Ok(Tally::default());
    }
    let mut tests = workspace.cargo();
    tests
        .args(["test", "--package", "larder-sync", "--features", "std", "--no-fail-fast"])
        .env("CARGO_TARGET_DIR", workspace.target().join("toolkit"));
    count(&mut tests)
}

/// The loom models: integration tests named `loom_*`, built with `--cfg loom` in a target folder of their own, so that
/// the flag does not make cargo build everything else anew.
fn models(workspace: &Workspace) -> Result<Tally> {
    let mut tally = Tally::default();
    let flags = format!("{} --cfg loom", env::var("RUSTFLAGS").unwrap_or_default());
    for package in workspace.with_tests_named("loom_") {
        let mut models = workspace.cargo_test();
        models
            .args(["--package", package, "--release", "--test", "loom_*"])
            .env("RUSTFLAGS", flags.trim())
            .env("CARGO_TARGET_DIR", workspace.target().join("loom"))
            // Link-time optimization costs more than it saves here.
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        tally += count(&mut models)?;
    }
    Ok(tally)
}
