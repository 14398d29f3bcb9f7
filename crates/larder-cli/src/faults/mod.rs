//! The fault matrix: what programs do that breaks collectors, one line for each, tried on this machine.
//!
//! `larder doctor --self-test` starts each line in a process of its own, in each of the ways in which the library is used, and
//! this tool is then the client: it loads `libgc.so.1` from the loader's path, as any program does. A line is tried in
//! rounds, and keeps what it needs to know whether the library did well: objects that were in use are still as they
//! were made, calls returned what they must, and nothing hung.
//!
//! | module | lines |
//! |---|---|
//! | [`roots`] | roots that appear and vanish |
//! | [`signals`] | signals that are blocked, handled, or come in great numbers |
//! | [`forks`] | fork, vfork and posix_spawn |
//! | [`limits`] | memory that is limited, and kernels that refuse |

mod collector;
mod forks;
mod limits;
mod module;
mod roots;
mod signals;

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;

use crate::exit::Failure;
use crate::launch::{self, LIBRARY_PATH, make_folder};
use crate::library::{self, Library, PRELOAD_NAME};
use crate::say;
use collector::Collector;

/// Why a round did not pass.
#[derive(Debug)]
pub enum Outcome {
    /// The library did wrong.
    Failed(String),
    /// This machine does not offer what the line needs.
    Skipped(String),
}

/// Anything that failed, as a line's failure.
fn failed(error: io::Error) -> Outcome {
    Outcome::Failed(error.to_string())
}

/// A folder for a line's files.
pub struct Scratch(PathBuf);

impl Scratch {
    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// One round of a line.
type Round = fn(&Collector, &Scratch) -> Result<(), Outcome>;
/// What is done in the new process before it becomes the client: system calls alone.
type Prepare = fn() -> io::Result<()>;

struct Line {
    name: &'static str,
    round: Round,
    /// What `GC_set_handle_fork` gets.
    fork_handling: i32,
    prepare: Option<Prepare>,
    /// One round takes seconds, so one is enough.
    slow: bool,
}

const fn line(name: &'static str, round: Round) -> Line {
    Line { name, round, fork_handling: 1, prepare: None, slow: false }
}

const fn prepared(name: &'static str, round: Round, prepare: Prepare) -> Line {
    Line { prepare: Some(prepare), ..line(name, round) }
}

const LINES: &[Line] = &[
    line("dlopen-and-dlclose", roots::modules_come_and_go),
    line("late-thread-local-storage", roots::late_thread_local_storage),
    line("destructors-at-thread-exit", roots::destructors_at_thread_exit),
    line("fibers", roots::fibers),
    line("raw-clone", roots::raw_clone),
    line("timer-threads", roots::timer_threads),
    line("name-look-up-threads", roots::name_look_up_threads),
    line("foreign-threads", roots::foreign_threads),
    line("alternate-stacks", signals::alternate_stacks),
    line("signals-blocked-around-fork", signals::blocked_around_fork),
    Line { slow: true, ..line("signals-blocked-for-long", signals::blocked_for_long) },
    line("own-handlers", signals::own_handlers),
    prepared("own-handlers-unqueued", signals::own_handlers, limits::limit_queued_signals),
    prepared("own-handlers-unnamed", signals::own_handlers, limits::refuse_signal_values),
    line("restarted-calls", signals::calls_are_restarted),
    line("signal-storm", signals::signal_storm),
    line("allocation-in-handlers", signals::allocation_in_handlers),
    line("fork-handled", forks::handled),
    Line { fork_handling: 0, ..line("fork-not-handled", forks::not_handled) },
    Line { fork_handling: -1, ..line("fork-announced", forks::announced) },
    line("fork-beside-loading", forks::beside_loading),
    line("fork-with-handlers", signals::handlers_around_fork),
    line("vfork", forks::vforked),
    line("posix-spawn", forks::spawned),
    line("maximum-heap", limits::maximum_heap),
    prepared("address-space-limit", limits::address_space, limits::limit_address_space),
    prepared("overcommit-off", limits::committed_memory, limits::limit_committed_memory),
    line("control-group-limit", limits::control_group),
    prepared("no-proc", limits::ordinary_use, limits::hide_proc),
    prepared("refused-calls", limits::ordinary_use, limits::refuse_calls),
    prepared("refused-membarrier", limits::ordinary_use, limits::refuse_membarrier),
];

/// How the library comes into the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By the loader's path alone.
    Path,
    /// The same, and the C library registers no restartable sequences.
    WithoutRseq,
    /// As `larder run` has it.
    Run,
    /// Both.
    RunWithoutRseq,
}

impl Way {
    const ALL: [Self; 4] = [Self::Path, Self::WithoutRseq, Self::Run, Self::RunWithoutRseq];

    fn name(self) -> &'static str {
        match self {
            Self::Path => "on the library path",
            Self::WithoutRseq => "without rseq",
            Self::Run => "under larder run",
            Self::RunWithoutRseq => "under larder run, without rseq",
        }
    }

    fn is_preloaded(self) -> bool {
        matches!(self, Self::Run | Self::RunWithoutRseq)
    }

    fn is_without_rseq(self) -> bool {
        matches!(self, Self::WithoutRseq | Self::RunWithoutRseq)
    }
}

/// How much is tried.
#[derive(Args)]
pub struct SelfTest {
    /// Try the fault matrix on this machine: what programs do that breaks collectors
    #[arg(long)]
    self_test: bool,
    /// Try each line so many times
    #[arg(long, value_name = "N", default_value = "3", requires = "self_test",
          value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Stop a line after so many seconds, whatever is left of its rounds
    #[arg(long, value_name = "S", default_value = "60", requires = "self_test")]
    seconds: u64,
    /// Take a process for one that hangs so many seconds after its line's time is over
    #[arg(long, value_name = "S", default_value = "120", requires = "self_test")]
    patience: u64,
    /// Let other threads allocate and collect all the time
    #[arg(long, requires = "self_test")]
    load: bool,
    /// Try so many lines at a time: a load as well, and less time for all of them
    #[arg(long, value_name = "N", default_value = "1", requires = "self_test")]
    jobs: std::num::NonZeroUsize,
    /// Try only this line; may be given more than once
    #[arg(long, value_name = "NAME", requires = "self_test")]
    line: Vec<String>,
}

impl SelfTest {
    /// Whether it was asked for.
    pub fn is_wanted(&self) -> bool {
        self.self_test
    }
}

/// A line as the new process gets it.
#[derive(Args)]
pub struct LineArguments {
    name: String,
    rounds: u32,
    seconds: u64,
    load: u8,
    patience: u64,
}

/// Whether `larder run`'s object is in this process.
fn is_preloaded() -> bool {
    std::env::var_os("LD_PRELOAD").is_some_and(|list| list.to_string_lossy().contains(PRELOAD_NAME))
}

/// How a line's process says that the machine does not offer what it needs.
const SKIPPED: u8 = 77;

/// Tries one line in this process, and says why it failed.
pub fn try_line(arguments: &LineArguments) -> Result<u8, Failure> {
    let Some(line) = LINES.iter().find(|line| line.name == arguments.name) else { return Ok(2) };
    // Half of it: a child that hangs ends before this process is taken for one that does.
    forks::CHILD_SECONDS.store((arguments.patience / 2).clamp(1, 3600) as u32, Ordering::Relaxed);
    let result = make_folder(&std::env::temp_dir()).map_err(failed).and_then(|folder| {
        let scratch = Scratch(folder);
        let result = Collector::load(line.fork_handling)
            .map_err(Outcome::Failed)
            .and_then(|collector| rounds(line, &collector, &scratch, arguments));
        let _ = std::fs::remove_dir_all(&scratch.0);
        result
    });
    let (said, status) = match result {
        Ok(rounds) => (rounds.to_string(), 0),
        Err(Outcome::Failed(why)) => (why, 1),
        Err(Outcome::Skipped(why)) => (why, SKIPPED),
    };
    say::print(&format!("{said}\n")).map(|()| status)
}

fn rounds(line: &Line, gc: &Collector, scratch: &Scratch, arguments: &LineArguments) -> Result<u32, Outcome> {
    let begun = Instant::now();
    let most = if line.slow { arguments.rounds.min(1) } else { arguments.rounds };
    let many = || {
        for round in 0..most {
            (line.round)(gc, scratch)?;
            if begun.elapsed().as_secs() >= arguments.seconds {
                return Ok(round + 1);
            }
        }
        Ok(most)
    };
    if arguments.load == 0 {
        return many();
    }
    let done = std::sync::atomic::AtomicBool::new(false);
    let mut result = Ok(0);
    gc.crowd(
        2,
        |number| {
            let seed = 0x10_0000_0000 + number as u64;
            let head = gc.chain(seed);
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                gc.churn();
            }
            gc.check(head, seed, "what a busy thread's stack points to")
        },
        || {
            result = many();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        },
    )?;
    result
}

/// Tries the lines that were asked for, prints how each went, and returns the exit status.
pub fn self_test(wanted: &SelfTest) -> Result<u8, Failure> {
    if let Some(unknown) = wanted.line.iter().find(|name| LINES.iter().all(|line| line.name != **name)) {
        let names: Vec<_> = LINES.iter().map(|line| line.name).collect();
        return Err(Failure::tool(format!("there is no line {unknown}; there are {}", names.join(", "))));
    }
    let library = library::find()?;
    let is_wanted = |line: &&Line| wanted.line.is_empty() || wanted.line.iter().any(|name| name == line.name);
    let runs: Vec<_> = LINES.iter().filter(is_wanted).flat_map(|line| Way::ALL.map(|way| (line, way))).collect();
    let next = AtomicUsize::new(0);
    let tally = Mutex::new([0; 3]);
    std::thread::scope(|scope| {
        for _ in 0..wanted.jobs.get().min(runs.len()) {
            scope.spawn(|| {
                while let Some((line, way)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begun = Instant::now();
                    let result = start(line, *way, &library, wanted);
                    // Held while a line is printed: lines come whole, and the counts are those of the lines above.
                    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                    tally[report(line, *way, begun.elapsed(), &result)] += 1;
                }
            });
        }
    });
    let [passed, bad, skipped] = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    say::print(&format!("{passed} passed, {bad} failed, {skipped} skipped\n"))?;
    Ok(u8::from(bad > 0))
}

/// Prints how a line went, and returns whether it passed (0), failed (1) or was skipped (2).
fn report(line: &Line, way: Way, took: Duration, result: &Result<String, Outcome>) -> usize {
    let (what, seconds) = (format!("{}, {}", line.name, way.name()), took.as_secs_f64());
    let (text, place) = match result {
        Ok(rounds) => (format!("ok      {what} ({rounds} rounds, {seconds:.1} s)\n"), 0),
        Err(Outcome::Failed(why)) => (format!("FAILED  {what} ({seconds:.1} s): {why}\n"), 1),
        Err(Outcome::Skipped(why)) => (format!("SKIPPED {what}: {why}\n"), 2),
    };
    // The counts at the end say whether standard output can be written.
    let _ = say::print(&text);
    place
}

/// Tries a line in a process of its own; returns its rounds.
fn start(line: &Line, way: Way, library: &Library, wanted: &SelfTest) -> Result<String, Outcome> {
    let own = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(own);
    command.args(["fault-line", line.name]);
    command.args([wanted.rounds.to_string(), wanted.seconds.to_string(), u8::from(wanted.load).to_string()]);
    command.arg(wanted.patience.to_string());
    let path = launch::library_path(library).map_err(|failure| Outcome::Failed(failure.message))?;
    command.env(LIBRARY_PATH, path).env_remove("LD_PRELOAD").env_remove("GLIBC_TUNABLES");
    if way.is_without_rseq() {
        command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    }
    if way.is_preloaded()
        && let Some(list) = launch::preload_list(library)
    {
        command.env("LD_PRELOAD", list);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    if let Some(prepare) = line.prepare {
        // SAFETY: `prepare` makes system calls alone.
        unsafe { command.pre_exec(prepare) };
    }
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) if line.prepare.is_some() => {
            return Err(Outcome::Skipped(format!("this machine does not let us set that up: {error}")));
        }
        Err(error) => return Err(failed(error)),
    };
    let limit = Duration::from_secs(wanted.seconds.saturating_add(wanted.patience));
    let (status, output, errors) = wait(child, limit)?;
    let said = output.trim().to_owned();
    let how = match (status.code(), status.signal()) {
        (Some(0), _) => return Ok(said),
        (Some(code), _) if code == i32::from(SKIPPED) => return Err(Outcome::Skipped(said)),
        (Some(_), _) if !said.is_empty() => said,
        (Some(code), _) => format!("ended with {code}"),
        (None, signal) => format!("ended by signal {}", signal.unwrap_or(0)),
    };
    Err(Outcome::Failed(with_last_words(&how, &errors)))
}

/// A failure with the last line that the process or a child of its wrote to standard error: the loader, for one, says there why it
/// ends a process with status 127.
fn with_last_words(how: &str, errors: &str) -> String {
    match errors.lines().rfind(|text| !text.trim().is_empty()) {
        Some(last) => format!("{how}; last words: {last}"),
        None => format!("{how}; nothing on standard error"),
    }
}

/// Waits for the process and all that it says; one that takes too long is ended, with what it started.
fn wait(mut child: Child, limit: Duration) -> Result<(ExitStatus, String, String), Outcome> {
    fn reader(pipe: Option<impl io::Read + Send + 'static>) -> std::thread::JoinHandle<String> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }
    let (output, errors) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if begun.elapsed() > limit {
            // SAFETY: the group that this child began.
            unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
            let _ = child.wait();
            return Err(Outcome::Failed(format!("hung: ended after {} s", limit.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Ok((status, output.join().unwrap_or_default(), errors.join().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_carries_the_last_words() {
        let errors = "one\nInconsistency detected by ld.so\n\n";
        assert_eq!(
            with_last_words("a child failed (status 0x7f00)", errors),
            "a child failed (status 0x7f00); last words: Inconsistency detected by ld.so"
        );
        assert_eq!(with_last_words("ended with 1", " \n"), "ended with 1; nothing on standard error");
    }

    #[test]
    fn lines_have_names_of_their_own() {
        for (i, line) in LINES.iter().enumerate() {
            assert!(LINES[..i].iter().all(|other| other.name != line.name), "{}", line.name);
        }
    }
}
