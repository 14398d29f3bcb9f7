//! `larder`: runs unmodified libgc programs on Larder, and says what the heap did and what the machine offers.
//!
//! The tool never links a heap: the library goes into the program by the loader's path, and what it did is read from the
//! events file that each process writes ([`larder_events`]). Standard output belongs to the program that runs; everything that the
//! tool says about it goes to standard error.

// They panic where nobody reads; `say` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod say;

mod demo;
mod doctor;
mod exit;
mod experiment;
mod faults;
mod follow;
mod launch;
mod libexec;
mod library;
mod locks;
mod program;
mod results;
mod signals;
mod summary;
mod trace;

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use exit::Failure;
use follow::Records;
use trace::Trace;

#[derive(Parser)]
#[command(name = "larder", version, about = "Runs libgc programs on Larder, unmodified, and says what their heap did")]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run a program with Larder in the place of libgc
    Run(RunArguments),
    /// Say what this machine offers, and what follows from it
    Doctor {
        /// Print JSON, for other programs
        #[arg(long, conflicts_with = "self_test")]
        json: bool,
        #[command(flatten)]
        self_test: faults::SelfTest,
    },
    /// Make a timeline and a log of events files that programs have left in a folder
    Trace(TraceArguments),
    /// Try one line of the fault matrix in this process, which must have the library on the loader's path
    #[command(hide = true)]
    FaultLine(faults::LineArguments),
    /// Compile a small N-body simulation and compare Larder with the installed libgc on it
    Demo(demo::DemoArguments),
    /// Measure locks, queues and ways of waiting, and compare them with others
    Locks(locks::LocksArguments),
    /// Run a paper's experiments here, and draw its figures
    Experiment(experiment::ExperimentArguments),
}

/// Arguments of `larder run`.
#[derive(Args)]
#[command(after_help = "\
The program's exit status is passed on; 128 plus the signal's number if a signal ended it. 127: the program was not found. \
126: it cannot run on Larder. 125: larder itself failed.\n\n\
Environment: LARDER_LIB names the folder with libgc.so.1 where it is not the one that came with this command.")]
struct RunArguments {
    /// Write one JSON line for each collection to FILE while the program runs
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Write a timeline of all collections to FILE while the program runs: open it in https://ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Collect beside the program: it is stopped only shortly, at the beginning and at the end of each collection, and once between if need be
    #[arg(long)]
    concurrent: bool,
    /// With --concurrent: how long a stop should last at most, like 500us or 2ms
    #[arg(long, value_name = "TIME", requires = "concurrent", value_parser = pause_goal)]
    pause: Option<String>,
    /// With --concurrent: let N young collections come between two full ones; a young one traces what was allocated since the last, and
    /// what was written
    #[arg(long, value_name = "N", requires = "concurrent")]
    young: Option<u32>,
    /// Print no summary
    #[arg(long, short)]
    quiet: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM ARGS")]
    command: Vec<OsString>,
}

/// Arguments of `larder trace`.
#[derive(Args)]
struct TraceArguments {
    /// What LARDER_EVENTS_DIR was while the programs ran
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Write the timeline to FILE: open it in https://ui.perfetto.dev
    #[arg(value_name = "FILE")]
    trace: PathBuf,
    /// Write one JSON line for each collection to LOG as well
    #[arg(long, value_name = "LOG")]
    log: Option<PathBuf>,
}

fn main() -> ExitCode {
    signals::prepare();
    let command = match Command::try_parse() {
        Ok(command) => command,
        Err(error) => {
            // What was asked for, like help, goes to standard output. Nobody may be there to read it.
            let _ = error.print();
            // clap's status would be taken for the program's.
            return ExitCode::from(if error.use_stderr() { exit::TOOL } else { 0 });
        }
    };
    let result = match command.action {
        Action::Run(arguments) => run(&arguments),
        Action::Doctor { self_test, .. } if self_test.is_wanted() => faults::self_test(&self_test),
        Action::Doctor { json, .. } => doctor::print(json).map(|()| 0),
        Action::FaultLine(arguments) => faults::try_line(&arguments),
        Action::Trace(arguments) => trace_folder(&arguments),
        Action::Demo(arguments) => demo::run(&arguments),
        Action::Locks(arguments) => locks::run(&arguments),
        Action::Experiment(arguments) => experiment::run(&arguments),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            note!("{}", failure.message);
            ExitCode::from(failure.status)
        }
    }
}

/// Creates the files that are wanted.
fn records(log: Option<&Path>, trace: Option<&Path>) -> Result<Records, Failure> {
    let records =
        Records { log: log.map(follow::Log::create).transpose()?, trace: trace.map(Trace::create).transpose()? };
    // A pipe or a terminal takes both.
    if let (Some(log), Some(trace)) = (log, trace)
        && let (Ok(log), Ok(trace)) = (std::fs::metadata(log), std::fs::metadata(trace))
        && log.is_file()
        && (log.dev(), log.ino()) == (trace.dev(), trace.ino())
    {
        return Err(Failure::tool(
            "the log and the trace are one file, in which each would write over the other: name two",
        ));
    }
    Ok(records)
}

/// What `larder run --trace` does while a program runs, afterwards.
fn trace_folder(arguments: &TraceArguments) -> Result<u8, Failure> {
    let folder = arguments.folder.display();
    let entries = std::fs::read_dir(&arguments.folder)
        .map_err(|error| Failure::tool(format!("{folder}: {error}: name the folder of events files")))?;
    let nothing =
        || Failure::tool(format!("{folder}: no events files are there: run programs with LARDER_EVENTS_DIR={folder}"));
    // Before a trace from another time is emptied.
    if !entries.flatten().any(|entry| follow::is_events_file(&entry.path())) {
        return Err(nothing());
    }
    let records = records(arguments.log.as_deref(), Some(&arguments.trace))?;
    let mut follower = follow::Follower::new(&arguments.folder, follow::Keep::Files, records);
    follower.look();
    if follower.finish().is_empty() { Err(nothing()) } else { Ok(0) }
}

/// Checks a time as the library reads it.
fn pause_goal(text: &str) -> Result<String, String> {
    let digits = text.strip_suffix("ms").or_else(|| text.strip_suffix("us")).unwrap_or_default();
    match digits.parse::<u32>() {
        // A number may have a sign here, and not in the library.
        Ok(1..) if !digits.starts_with('+') => Ok(text.to_owned()),
        _ => Err("give a number with its unit, like 500us or 2ms".to_owned()),
    }
}

fn run(arguments: &RunArguments) -> Result<u8, Failure> {
    let path = program::find(&arguments.command[0])?;
    if let Some(note) = program::check(&path)?
        && !arguments.quiet
    {
        note!("{note}");
    }
    let library = library::find()?;
    let records = records(arguments.log.as_deref(), arguments.trace.as_deref())?;
    // In the environment of the program, and so of its children.
    let mut settings = Vec::new();
    if arguments.concurrent {
        settings.push(("LARDER_CONCURRENT", "1"));
    }
    if let Some(pause) = &arguments.pause {
        settings.push(("LARDER_PAUSE", pause));
    }
    let young = arguments.young.map(|most| most.to_string());
    if let Some(most) = &young {
        settings.push(("LARDER_YOUNG", most));
    }
    let outcome = launch::run(&path, &arguments.command, &library, &settings, records, launch::Output::Inherited)?;
    if !arguments.quiet {
        say::error(&summary::text(&outcome));
    }
    Ok(outcome.status)
}
