//! `cargo xtask test`: every test that CI runs, and their counts in one line at the end.

use std::env;

use anyhow::Result;

use crate::apps;
use crate::clients::{self, Manner, Session};
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

    tally += beside(workspace)?;
    tally += toolkit(workspace)?;
    tally += models(workspace)?;
    tally += critical_sections::test(workspace)?;

    if has_doors {
        println!("== C programs");
        tally += programs::run_all(workspace, &staged)?;
        println!("== C programs, with debug assertions in the library");
        let asserting = stage::for_task(workspace, true)?;
        tally += programs::run_all_asserting(workspace, &asserting)?;
        println!("== programs of apps/gc");
        tally += apps::run_all(&staged)?;
        tally += apps::run_measured(workspace, &staged)?;
        let mut session = Session::new(workspace, &staged.join("lib"))?;
        println!("== C programs of larder_cs.h");
        tally += critical_sections::programs(workspace, &staged)?;
        tally += faults::run(&staged, faults::SHORT)?;
        println!("== C programs of larder_vm.h");
        tally += vm::run_all(workspace, &staged)?;
        println!("== client programs");
        tally += clients::run_all(&session, THREADS, false);
        println!("== client programs, with forced collections");
        tally += clients::run_all(&session, STRESS_THREADS, true);
        println!("== client programs, with cycles beside them all the time");
        session.manner = Manner::Beside;
        tally += clients::run_all(&session, STRESS_THREADS, true);
        println!("== client programs, by larder run --concurrent, and with little heap, address space and memory");
        for manner in [Manner::Tool, Manner::Heap, Manner::Address, Manner::Group] {
            session.manner = manner;
            tally += clients::run_all(&session, STRESS_THREADS, false);
        }
    } else {
        println!("SKIPPED C programs and client programs: the workspace has no larder-gc or no larder-cli yet");
        tally.skipped += 1;
    }

    tally.conclude()
}

/// How cycles learn of writes when the fixed heap's tests run with cycles beside the program. What the machine does not offer is skipped.
/// A write barrier is the program's own: `hiding` and the programs of `apps/gc` have it.
/// Each with the number of young cycles between two full ones.
const WATCHES: &[(&str, &str)] = &[("uffd", "0"), ("uffd", "5"), ("mprotect", "0")];
/// Those tests: what they ask for holds in every mode. (`points` counts on it that no cycle runs but those that it asks for, and `concurrent` says itself
/// how they run.)
const BESIDE: &[&str] = &["fork", "fuzz", "memory", "objects", "sharing", "smoke", "structures", "threads", "turnover"];

/// The fixed heap's tests again, with a cycle under way beside the program all the time (`larder_testkit::beside`).
fn beside(workspace: &Workspace) -> Result<Tally> {
    let mut tally = Tally::default();
    if !workspace.has("larder-testkit") {
        return Ok(tally);
    }
    for (watch, young) in WATCHES {
        println!("== the fixed heap's tests with cycles beside the program, {watch}, {young} in a row young");
        let mut tests = workspace.cargo_test();
        tests.args(["--package", "larder-testkit"]);
        BESIDE.iter().for_each(|test| {
            tests.args(["--test", test]);
        });
        tally += count(tests.env("LARDER_TEST_WATCH", watch).env("LARDER_TEST_YOUNG", young))?;
    }
    Ok(tally)
}

/// The tests of what `larder-sync` offers to other programs, with its feature `std`, in a target folder of their own:
/// everything else is built without.
fn toolkit(workspace: &Workspace) -> Result<Tally> {
    if !workspace.has("larder-sync") {
        return Ok(Tally::default());
    }
    let mut tests = workspace.cargo_test();
    tests
        .args(["--package", "larder-sync", "--features", "std"])
        .env("CARGO_TARGET_DIR", workspace.target().join("toolkit"));
    count(&mut tests)
}

/// The models: integration tests named `loom_*`, which explore everything, and `shuttle_*`, which run the same code with more
/// threads under an unfair scheduler, by the same schedules each time.
fn models(workspace: &Workspace) -> Result<Tally> {
    let mut tally = explore(workspace, "loom", None)?;
    tally += explore(workspace, "shuttle", None)?;
    Ok(tally)
}

/// Runs each shuttle model by so many schedules that no other run has seen.
pub fn search_schedules(workspace: &Workspace, schedules: usize) -> Result<Tally> {
    explore(workspace, "shuttle", Some(schedules))
}

/// Runs the models of one explorer, with flags and a target folder of its own, so that the flags do not make cargo build
/// everything else anew.
fn explore(workspace: &Workspace, explorer: &str, schedules: Option<usize>) -> Result<Tally> {
    let mut tally = Tally::default();
    let ours = if explorer == "shuttle" { "--cfg loom --cfg shuttle" } else { "--cfg loom" };
    let flags = format!("{} {ours}", env::var("RUSTFLAGS").unwrap_or_default());
    for package in workspace.with_tests_named(&format!("{explorer}_")) {
        let mut models = workspace.cargo_test();
        models
            .args(["--package", package, "--release", "--test", &format!("{explorer}_*")])
            .env("RUSTFLAGS", flags.trim())
            .env("CARGO_TARGET_DIR", workspace.target().join(explorer))
            // Link-time optimization costs more than it saves here.
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .envs(schedules.map(|schedules| ("SHUTTLE_ITERATIONS", schedules.to_string())));
        tally += count(&mut models)?;
    }
    Ok(tally)
}
