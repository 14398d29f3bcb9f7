//! `cargo xtask clients`: real programs on a libgc folder, compared with what they print on the stock library.
//!
//! Each folder in `tests/clients/` is one workload:
//!
//! | file | what it is |
//! |---|---|
//! | `run [THREADS]` | starts it; prints the same on standard output for every number of threads |
//! | `expected.txt` | what it prints on the stock library |
//! | `client.txt` | what it needs, one fact a line; see [`Client`] |

use std::env;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};

use crate::group::Group;
use crate::stage;
use crate::tally::Tally;
use crate::workspace::Workspace;

/// Seconds after which a client is stopped. Those whose collections are forced take more than a minute on a quiet machine.
const LIMIT_SECONDS: u64 = 1800;

#[derive(Args)]
pub struct Options {
    /// The folder with the libgc.so.1 to run on; Larder is built and staged when this is not given
    #[arg(long, value_name = "DIR")]
    lib: Option<PathBuf>,
    /// Build the library that the programs run on with debug assertions
    #[arg(long, conflicts_with = "lib")]
    assertions: bool,
    /// The numbers of threads to run with
    #[arg(long, value_delimiter = ',', default_value = "1,2,8,64")]
    threads: Vec<usize>,
    /// Make Larder collect at every Nth refill; 0 takes each client's own number
    #[arg(long, value_name = "N")]
    stress: Option<u64>,
    /// How to run them
    #[arg(long, value_enum, default_value = "plain")]
    manner: Manner,
    /// Run only this client; may be given more than once
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Stop a run that takes longer than so many seconds
    #[arg(long, value_name = "S", default_value_t = LIMIT_SECONDS)]
    timeout_s: u64,
}

/// Runs the clients that the options name.
pub fn clients(workspace: &Workspace, options: &Options) -> Result<()> {
    let lib = match &options.lib {
        Some(lib) => lib.clone(),
        None => stage::for_task(workspace, options.assertions)?.join("lib"),
    };
    let mut session = Session::new(workspace, &lib)?;
    session.limit = Duration::from_secs(options.timeout_s);
    session.manner = options.manner;
    session.keep_only(&options.only)?;
    let mut tally = Tally::default();
    for client in &session.clients {
        for threads in client.distinct(&options.threads) {
            let stress = options.stress.map(|every| if every == 0 { client.stress } else { every });
            tally += session.run_and_report(client, threads, stress);
        }
    }
    tally.conclude()
}

/// How a client is run. Its output must be the same in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Manner {
    /// On the library's path alone.
    #[default]
    Plain,
    /// With cycles beside it, on the library's path alone.
    Beside,
    /// By the tool, `larder run --concurrent`, which also preloads.
    Tool,
    /// With as much heap as its `limits` say (GC_MAXIMUM_HEAP_SIZE).
    Heap,
    /// With as much address space as its `limits` say (ulimit -v).
    Address,
    /// In a control group with little memory, where one can be made.
    Group,
}

impl Manner {
    /// What is added to a line about a run.
    fn words(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Beside => ", concurrent",
            Self::Tool => ", larder run --concurrent",
            Self::Heap => ", limited heap",
            Self::Address => ", limited address space",
            Self::Group => ", control group with little memory",
        }
    }
}

/// The pause that is wanted of concurrent cycles: in one that is longer a small heap would be marked in one stop.
const PAUSE: &str = "10us";

/// Runs every client of the session at each of these numbers of threads, with the client's own stress where wanted.
pub fn run_all(session: &Session, threads: &[usize], stressed: bool) -> Tally {
    let mut tally = Tally::default();
    for client in &session.clients {
        for threads in client.distinct(threads) {
            tally += session.run_and_report(client, threads, stressed.then_some(client.stress));
        }
    }
    tally
}

/// One workload; the facts come from its `client.txt`.
#[derive(Debug, PartialEq, Eq)]
pub struct Client {
    pub name: String,
    folder: PathBuf,
    /// `program NAME`: the program, or shared library, that must load the library under test; on the PATH, or a whole path. `opens`, in its place: the
    /// workload opens the library while it runs, and fails where that is none of a folder of LD_LIBRARY_PATH.
    program: Option<String>,
    /// `needs COMMAND PACKAGE`, repeated: a command, and the Debian package that brings it.
    needs: Vec<(String, String)>,
    /// `threads one`: the program has one thread, so its number is not varied. Otherwise `threads many`.
    has_threads: bool,
    /// `stress N`: a collection at every Nth refill gives 200 to 2000 cycles.
    pub stress: u64,
    /// `limits HEAP ADDRESS`, both in MiB: with so much heap, or so much address space, the workload still has what it needs.
    limits: Option<[u64; 2]>,
    /// `group MIB`: with so much memory in its control group it still has what it needs, where that is not [`GROUP_MIB`].
    group: u64,
}

impl Client {
    fn load(folder: &Path) -> Result<Self> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = folder.join("client.txt");
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Self::parse(name, folder.to_owned(), &text).with_context(|| file.display().to_string())
    }

    fn parse(name: String, folder: PathBuf, text: &str) -> Result<Self> {
        let mut client = Self {
            name,
            folder,
            program: None,
            needs: Vec::new(),
            has_threads: true,
            stress: 0,
            limits: None,
            group: GROUP_MIB,
        };
        let mut opens = false;
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["program", program] => client.program = Some(program.to_owned()),
                ["opens"] => opens = true,
                ["needs", command, package] => client.needs.push((command.to_owned(), package.to_owned())),
                ["threads", "one"] => client.has_threads = false,
                ["threads", "many"] => client.has_threads = true,
                ["stress", every] => client.stress = every.parse().with_context(|| format!("in `{line}`"))?,
                ["limits", heap, address] => {
                    let number = |word: &str| word.parse().with_context(|| format!("in `{line}`"));
                    client.limits = Some([number(heap)?, number(address)?]);
                }
                ["group", mib] => client.group = mib.parse().with_context(|| format!("in `{line}`"))?,
                _ => {
                    bail!(
                        "`{line}` is not program, opens, needs, threads, stress, limits or group as xtask/src/clients.rs has them"
                    )
                }
            }
        }
        ensure!(
            client.program.is_some() != opens,
            "one line, `program NAME` or `opens`, says which program must load the library, or that the workload sees to it"
        );
        ensure!(client.stress > 0, "no line `stress N` says at how many refills to force a collection");
        Ok(client)
    }

    /// The packages that are missing here.
    fn missing(&self) -> Vec<&str> {
        let missing = self.needs.iter().filter(|(command, _)| find(command).is_none() && library(command).is_none());
        let mut packages: Vec<_> = missing.map(|(_, package)| package.as_str()).collect();
        packages.dedup();
        packages
    }

    /// The numbers of threads that make a difference to this client.
    pub fn distinct(&self, threads: &[usize]) -> Vec<usize> {
        if self.has_threads { threads.to_vec() } else { vec![1] }
    }
}

/// How one run ended.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    AsExpected,
    /// Why it failed, and where its output lies.
    Failed(String),
    Skipped(String),
}

/// The clients, the library to run them on, and where their output goes.
pub struct Session {
    pub clients: Vec<Client>,
    lib: PathBuf,
    output: PathBuf,
    limit: Duration,
    pub manner: Manner,
}

impl Session {
    /// A session over every client of the repository, on the library in the folder `lib`.
    pub fn new(workspace: &Workspace, lib: &Path) -> Result<Self> {
        let lib = lib.canonicalize().with_context(|| format!("there is no folder {}", lib.display()))?;
        ensure!(lib.join("libgc.so.1").is_file(), "{} holds no libgc.so.1 to run on", lib.display());
        let all = workspace.root().join("tests/clients");
        let mut clients = Vec::new();
        for entry in fs::read_dir(&all).with_context(|| format!("cannot read {}", all.display()))? {
            let folder = entry.with_context(|| format!("cannot read {}", all.display()))?.path();
            if folder.join("run").is_file() {
                clients.push(Client::load(&folder)?);
            }
        }
        clients.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self {
            clients,
            lib,
            output: workspace.scratch("clients")?,
            limit: Duration::from_secs(LIMIT_SECONDS),
            manner: Manner::Plain,
        })
    }

    fn keep_only(&mut self, names: &[String]) -> Result<()> {
        if let Some(unknown) = names.iter().find(|name| self.clients.iter().all(|client| client.name != **name)) {
            let all: Vec<_> = self.clients.iter().map(|client| client.name.as_str()).collect();
            bail!("there is no client {unknown}; there are {}", all.join(", "));
        }
        self.clients.retain(|client| names.is_empty() || names.contains(&client.name));
        Ok(())
    }

    /// Runs one client once, prints a line, and counts it.
    pub fn run_and_report(&self, client: &Client, threads: usize, stress: Option<u64>) -> Tally {
        let start = Instant::now();
        let outcome = self.run(client, threads, stress).unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        let seconds = start.elapsed().as_secs_f64();
        let mut what = format!("{}, threads: {threads}", client.name);
        what += self.manner.words();
        if let Some(every) = stress {
            what += &format!(", refills between forced collections: {every}");
        }
        match outcome {
            Outcome::AsExpected => {
                println!("ok      {what} ({seconds:.1} s)");
                Tally::passed(1)
            }
            Outcome::Failed(why) => Tally::failed(format!("{what} ({seconds:.1} s): {why}")),
            Outcome::Skipped(why) => {
                println!("SKIPPED {what}: {why}");
                Tally::skipped(1)
            }
        }
    }

    fn run(&self, client: &Client, threads: usize, stress: Option<u64>) -> Result<Outcome> {
        let missing = client.missing();
        if !missing.is_empty() {
            let packages = missing.join(" ");
            let what = if missing.len() == 1 { "package" } else { "packages" };
            let verb = if missing.len() == 1 { "is" } else { "are" };
            let why = format!("{what} {packages} {verb} not installed (apt-get install {packages})");
            return Ok(Outcome::Skipped(why));
        }
        if let Some(why) = self.loads_another_library(client)? {
            return Ok(Outcome::Failed(why));
        }

        let kind = if stress.is_some() { "-stress" } else { "" };
        let stem = self.output.join(format!("{}-{threads}{kind}", client.name));
        let (out, err) = (stem.with_extension("out"), stem.with_extension("err"));
        let create = |path: &Path| File::create(path).with_context(|| format!("cannot create {}", path.display()));
        let Some(mut command) = self.command(client) else {
            return Ok(Outcome::Skipped("its client.txt has no line `limits HEAP ADDRESS`".to_owned()));
        };
        let group = match self.manner {
            Manner::Group => match Group::create("clients", client.group << 20) {
                Ok(group) => Some(group),
                Err(why) => {
                    return Ok(Outcome::Skipped(format!("no control group with memory can be made here: {why}")));
                }
            },
            _ => None,
        };
        if let Some(group) = &group {
            command = Command::new("sh");
            command.args(["-c", "echo 0 > \"$1\" && shift && exec \"$@\"", "sh"]);
            command.arg(group.folder().join("cgroup.procs")).arg(client.folder.join("run"));
        }
        command.arg(threads.to_string()).stdin(Stdio::null()).stdout(create(&out)?).stderr(create(&err)?);
        self.use_library(&mut command);
        if let Some(every) = stress {
            command.env("LARDER_COLLECT_EVERY", every.to_string());
        }
        let Some(status) = wait_limited(&mut command, self.limit)? else {
            let limit = self.limit.as_secs();
            return Ok(Outcome::Failed(format!("stopped after {limit} s; its output is in {}", out.display())));
        };
        if !status.success() {
            return Ok(Outcome::Failed(format!("{status}; {}", last_words(&err))));
        }
        let expected = client.folder.join("expected.txt");
        let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        Ok(match difference(&read(&expected)?, &read(&out)?) {
            None => Outcome::AsExpected,
            Some(difference) => {
                let files = format!("compare {} with {}", expected.display(), out.display());
                Outcome::Failed(format!("{difference}; {}; {files}", last_words(&err)))
            }
        })
    }

    /// What starts the client, but for its arguments; `None` where its limits are not known.
    fn command(&self, client: &Client) -> Option<Command> {
        let program = client.folder.join("run");
        let mut command = Command::new(&program);
        match self.manner {
            Manner::Plain | Manner::Group => {}
            Manner::Beside => _ = command.env("LARDER_CONCURRENT", "1").env("LARDER_PAUSE", PAUSE),
            Manner::Tool => {
                // A staged library has the tool beside it.
                command = Command::new(self.lib.with_file_name("bin").join("larder"));
                command.args(["run", "--quiet", "--concurrent", "--pause", PAUSE, "--"]).arg(&program);
                command.env("LARDER_LIB", &self.lib);
            }
            Manner::Heap => _ = command.env("GC_MAXIMUM_HEAP_SIZE", format!("{}M", client.limits?[0])),
            Manner::Address => {
                command = Command::new("sh");
                command.args(["-c", "ulimit -v \"$1\" && shift && exec \"$@\"", "sh"]);
                command.arg((client.limits?[1] * 1024).to_string()).arg(&program);
            }
        }
        Some(command)
    }

    fn use_library(&self, command: &mut Command) {
        command.env("LD_LIBRARY_PATH", &self.lib).env_remove("LD_PRELOAD");
    }

    /// Why the client's program would not run on the library under test, if so: a pass on another one would show nothing.
    fn loads_another_library(&self, client: &Client) -> Result<Option<String>> {
        let Some(name) = &client.program else { return Ok(None) };
        let Some(program) = find(name).or_else(|| library(name)) else {
            return Ok(Some(format!("its program {name} is not on the PATH")));
        };
        // A library is shown to the loader, which can be started as a program.
        let is_library = name.contains(".so");
        let mut command = Command::new(if is_library { LOADER.as_ref() } else { program.as_path() });
        if is_library {
            command.arg(&program);
        }
        self.use_library(&mut command);
        // The loader then lists what it loads, and does not run the program.
        let output = command.env("LD_TRACE_LOADED_OBJECTS", "1").stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot start {}", program.display()))?;
        let listed = String::from_utf8_lossy(&output.stdout);
        let ours = self.lib.join("libgc.so.1");
        let loaded = listed.lines().find_map(|line| line.trim().strip_prefix("libgc.so.1 => "));
        Ok(match loaded.and_then(|rest| rest.split(" (").next()) {
            Some(path) if Path::new(path) == ours => None,
            Some(path) => Some(format!("{} loads {path} instead of {}", program.display(), ours.display())),
            None => Some(format!("{} does not load libgc.so.1", program.display())),
        })
    }
}

/// More than nearly any client needs, also where many CPUs have buffers, and less than the largest takes where there is more.
const GROUP_MIB: u64 = 192;

/// The dynamic loader.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// Where a library lies.
fn library(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"].map(PathBuf::from);
    folders.into_iter().map(|folder| folder.join(name)).find(|file| name.contains(".so") && file.is_file())
}

/// Where the command lies on the PATH, or by its whole path.
pub fn find(command: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(command)).find(|file| file.is_file())
}

/// After so long a test's program is taken for one that hangs: none takes a hundredth of it on a quiet machine, but it may share its CPUs with
/// many others.
pub const PROGRAM_LIMIT: Duration = Duration::from_secs(20 * 60);

/// `timeout` with [`PROGRAM_LIMIT`]: the command that is to be run comes next.
pub fn limited() -> Command {
    let mut command = Command::new("timeout");
    command.arg(PROGRAM_LIMIT.as_secs().to_string());
    command
}

/// Runs `command`; `None` if it took longer than `limit` and was killed, with all that it had started.
pub fn wait_limited(command: &mut Command, limit: Duration) -> Result<Option<ExitStatus>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.process_group(0).spawn().with_context(|| format!("cannot start {program}"))?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().with_context(|| format!("cannot wait for {program}"))? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["-s", "KILL", "--", &group]).status();
            let _ = child.kill();
            child.wait().with_context(|| format!("cannot wait for {program}"))?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// The first line in which the two texts differ.
fn difference(expected: &[u8], printed: &[u8]) -> Option<String> {
    if expected == printed {
        return None;
    }
    let (expected, printed) = (String::from_utf8_lossy(expected), String::from_utf8_lossy(printed));
    let (mut expected, mut printed) = (expected.lines(), printed.lines());
    for number in 1.. {
        match (expected.next(), printed.next()) {
            (None, None) => break,
            (want, got) if want == got => {}
            (want, got) => {
                let line = |line: Option<&str>| line.map_or("the end".to_owned(), |text| format!("`{text}`"));
                return Some(format!("line {number} is {}, expected {}", line(got), line(want)));
            }
        }
    }
    Some("the end of the last line differs".to_owned())
}

/// The end of what a run wrote to its standard error.
pub fn last_words(file: &Path) -> String {
    let text = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    match lines.len() {
        0 => "it wrote nothing to its standard error".to_owned(),
        length => format!("its last words: {}", lines[length.saturating_sub(3)..].join(" | ")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn facts_are_read() {
        let text =
            "# words\nprogram neko\nneeds neko neko\nneeds nekoc neko\n\nthreads one\nstress 40\nlimits 32 1024\n";
        let client = Client::parse("n".into(), "f".into(), text).expect("well formed");
        assert_eq!((client.program.as_deref(), client.needs.len(), client.stress), (Some("neko"), 2, 40));
        assert_eq!(client.distinct(&[1, 2, 64]), [1]);
        assert_eq!(client.limits, Some([32, 1024]));
        let client = Client::parse("n".into(), "f".into(), "opens\nstress 2").expect("well formed");
        assert_eq!(client.program, None);
    }

    #[test]
    fn bad_facts_are_named() {
        for text in [
            "program a b\nstress 1",
            "stress 1",
            "program a",
            "program a\nopens\nstress 1",
            "program a\nstress x",
            "program a\nstress 1\nlimits 32",
        ] {
            assert!(Client::parse("n".into(), "f".into(), text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_first_differing_line_is_named() {
        assert_eq!(difference(b"a\nb\n", b"a\nb\n"), None);
        let differs = |printed: &[u8]| difference(b"a\nb\n", printed).expect("they differ");
        assert_eq!(differs(b"a\nc\n"), "line 2 is `c`, expected `b`");
        assert_eq!(differs(b"a\n"), "line 2 is the end, expected `b`");
        assert_eq!(differs(b"a\nb\nc\n"), "line 3 is `c`, expected the end");
        assert_eq!(differs(b"a\nb"), "the end of the last line differs");
    }

    #[test]
    fn a_run_that_hangs_is_killed_with_its_children() {
        let (mut said, end) = std::io::pipe().expect("there are descriptors");
        let mut command = Command::new("sh");
        // The pipe is open until the last of them is gone.
        command.args(["-c", "(sleep 600; echo alive) & wait"]).stdout(end);
        let status = wait_limited(&mut command, Duration::from_millis(50)).expect("sh starts");
        assert_eq!(status, None);
        drop(command);
        let mut text = String::new();
        said.read_to_string(&mut text).expect("the pipe can be read");
        assert_eq!(text, "", "a child lived on");
    }
}
