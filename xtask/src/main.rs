//! The project's tasks, each one command: `cargo xtask stage|check|test|programs|apps|clients|soak`.
//!
//! Whatever CI does is a task here, so that one command on a developer's machine does the same. A task that needs more
//! than the Rust toolchain says what is missing and how to get it.

#![forbid(unsafe_code)]

mod apps;
mod check;
mod clients;
mod critical_sections;
mod faults;
mod group;
mod java;
mod programs;
mod soak;
mod stage;
mod suite;
mod tally;
mod vm;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's tasks")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build for release and lay out the libraries, the headers and the tool in DIR, a folder of its own or a prefix like
    /// /usr/local
    #[command(visible_alias = "install")]
    Stage {
        /// The folder to fill; it is created where it does not exist
        dir: PathBuf,
        /// Stage libgc.so.1 and what goes with it at run time alone, with debug assertions and overflow checks
        #[arg(long)]
        assertions: bool,
    },
    /// Check the import rule, format, lints, the library's exports, sequences, vectors, `no_std` and mentioned paths
    Check {
        /// The checks to make; all of them when none is named
        parts: Vec<check::Part>,
    },
    /// Run every test that CI runs, and end with their counts
    Test,
    /// Compile and run the C and C++ programs of crates/larder-gc/tests/c
    Programs(programs::Options),
    /// Run the thesis's programs of apps/gc, and those of apps/vm and apps/java, at small sizes and compare their checksums
    Apps,
    /// Run the client programs of tests/clients and compare what they print
    Clients(clients::Options),
    /// Run client programs and soak tests over and over, with varying threads and collection stress
    Soak(soak::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = Workspace::load().and_then(|workspace| match arguments.task {
        Task::Stage { dir, assertions: true } => stage::stage_asserting(&workspace, &dir),
        Task::Stage { dir, assertions: false } => stage::stage(&workspace, &dir),
        Task::Check { parts } => check::check(&workspace, &parts),
        Task::Test => suite::test(&workspace),
        Task::Programs(options) => programs::programs(&workspace, &options),
        Task::Apps => apps::apps(&workspace),
        Task::Clients(options) => clients::clients(&workspace, &options),
        Task::Soak(options) => soak::soak(&workspace, &options),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
