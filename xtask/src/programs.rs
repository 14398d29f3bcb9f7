//! `cargo xtask programs`: the C and C++ programs of `crates/larder-gc/tests/c`, compiled once against libgc's own headers
//! and run on a staged Larder, with restartable sequences and without, with cycles beside the program that watch its writes by
//! userfaultfd and by mprotect, and on the stock library. They must also compile against the staged headers.
//!
//! Each program is a test: it exits with 0 when everything is right. Its first line may say what it wants of us,
//! `// xtask: FACT, FACT`:
//!
//! | fact | meaning |
//! |---|---|
//! | `larder-only` | it shows what Larder does and libgc does not: it is not run on the stock library |
//! | `larder-headers` | it is compiled against the staged headers alone, since libgc has no such names; implies `larder-only` |
//! | `archive` | it is also linked to the static archive, that of C++'s operators too, against the staged headers, and run |
//! | `calls write to the heap` | it has system calls write to objects, which fail where mprotect watches them and nothing is preloaded: it is not run so |
//! | `under larder run` | it is started by the tool, which preloads; implies `larder-only` |

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::clients::{PROGRAM_LIMIT, find, last_words, wait_limited};
use crate::stage;
use crate::tally::Tally;
use crate::workspace::Workspace;

/// The stock library has races of its own: with threads that end, one run in fourteen of `threads` fails there.
const STOCK_ATTEMPTS: usize = 5;
/// What turns restartable sequences off in glibc 2.35 and later.
pub const WITHOUT_RSEQ: &str = "glibc.pthread.rseq=0";
/// As crates/larder-gc/tests/c/README.md has them. At -O0 a dead variable stays on the stack and keeps its object.
const FLAGS: &[&str] = &["-Wall", "-Wextra", "-O1", "-Wno-deprecated-declarations", "-pthread"];

#[derive(Args)]
pub struct Options {
    /// Run only this program; may be given more than once
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Build the library that the programs run on with debug assertions; leaves the stock library and the archive out
    #[arg(long)]
    assertions: bool,
}

/// Stages Larder and runs the programs that the options name.
pub fn programs(workspace: &Workspace, options: &Options) -> Result<()> {
    let staged = stage::for_task(workspace, options.assertions)?;
    let mut programs = load(workspace)?;
    if let Some(unknown) = options.only.iter().find(|name| programs.iter().all(|program| program.name != **name)) {
        bail!("there is no program {unknown} in crates/larder-gc/tests/c");
    }
    programs.retain(|program| options.only.is_empty() || options.only.contains(&program.name));
    let ways = if options.assertions { &On::LARDER[..] } else { &On::ALL };
    let tally = run_programs(workspace, &staged, &programs, ways)?;
    tally.conclude()
}

/// Runs every program on the library staged in `staged`.
pub fn run_all(workspace: &Workspace, staged: &Path) -> Result<Tally> {
    run_programs(workspace, staged, &load(workspace)?, &On::ALL)
}

/// Runs every program twice on the library staged in `staged`, which has debug assertions: as it is, and with cycles beside it.
pub fn run_all_asserting(workspace: &Workspace, staged: &Path) -> Result<Tally> {
    run_programs(workspace, staged, &load(workspace)?, &[On::Larder, On::Uffd])
}

/// One C or C++ file.
#[derive(Debug)]
struct Program {
    name: String,
    source: PathBuf,
    wants: Wants,
}

/// What the first line of a program says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wants {
    larder_only: bool,
    larder_headers: bool,
    archive: bool,
    calls_write: bool,
    under_the_tool: bool,
}

impl Program {
    fn is_cpp(&self) -> bool {
        self.source.extension().is_some_and(|extension| extension == "cc")
    }

    fn runs_on_stock(&self) -> bool {
        !(self.wants.larder_only || self.wants.larder_headers || self.wants.under_the_tool)
    }

    /// Those of the ways in which it is run.
    fn ways(&self, ways: &[On]) -> Vec<On> {
        let is_for_it = |on: &On| match on {
            On::Larder | On::WithoutRseq | On::Uffd => true,
            On::Mprotect => !self.wants.calls_write,
            On::Archive => self.wants.archive,
            On::Stock => self.runs_on_stock(),
        };
        ways.iter().copied().filter(is_for_it).collect()
    }
}

fn load(workspace: &Workspace) -> Result<Vec<Program>> {
    let folder = workspace.root().join("crates/larder-gc/tests/c");
    let mut programs = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let source = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
        if source.extension().is_none_or(|extension| extension != "c" && extension != "cc") {
            continue;
        }
        let text = fs::read_to_string(&source).with_context(|| format!("cannot read {}", source.display()))?;
        let wants = wants(&text).with_context(|| source.display().to_string())?;
        let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        programs.push(Program { name, source, wants });
    }
    ensure!(!programs.is_empty(), "{} holds no C program", folder.display());
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(programs)
}

/// Reads the first line.
fn wants(text: &str) -> Result<Wants> {
    let mut wants = Wants::default();
    let Some(facts) = text.lines().next().and_then(|line| line.strip_prefix("// xtask: ")) else { return Ok(wants) };
    for fact in facts.split(", ") {
        match fact {
            "larder-only" => wants.larder_only = true,
            "larder-headers" => wants.larder_headers = true,
            "archive" => wants.archive = true,
            "calls write to the heap" => wants.calls_write = true,
            "under larder run" => wants.under_the_tool = true,
            _ => bail!("`{fact}` is none of the facts that xtask/src/programs.rs has"),
        }
    }
    Ok(wants)
}

fn run_programs(workspace: &Workspace, staged: &Path, programs: &[Program], ways: &[On]) -> Result<Tally> {
    let output = workspace.scratch("programs")?;
    let compiler = match compiler(&output) {
        Ok(compiler) => compiler,
        Err(why) => {
            println!("SKIPPED {} programs of crates/larder-gc/tests/c: {why}", programs.len());
            let skipped = programs.iter().map(|program| program.ways(ways).len()).sum();
            return Ok(Tally::skipped(skipped));
        }
    };
    let stock = stock();
    if stock.is_none() && ways.contains(&On::Stock) {
        println!("SKIPPED all programs on the stock library: there is no libgc.so.1 (apt-get install libgc1)");
    }
    let bench = Bench { staged, output: &output, stock: stock.as_deref(), c: compiler, cpp: cpp_compiler(), ways };
    let mut tally = Tally::default();
    for program in programs {
        tally += bench.test(program)?;
    }
    Ok(tally)
}

/// The C compiler, if it finds libgc's headers; otherwise what is missing, and how to get it.
fn compiler(output: &Path) -> Result<String, String> {
    let chosen = env::var("CC").ok().filter(|compiler| !compiler.is_empty());
    let found = chosen.or_else(|| ["cc", "gcc", "clang"].into_iter().find(|name| find(name).is_some()).map(Into::into));
    let Some(compiler) = found else { return Err("there is no C compiler (apt-get install gcc libc6-dev)".into()) };
    let probe = output.join("probe.c");
    fs::write(&probe, "#include <gc/gc.h>\n").map_err(|error| format!("cannot write {}: {error}", probe.display()))?;
    let status = Command::new(&compiler).arg("-fsyntax-only").arg(&probe).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(compiler),
        Ok(_) => Err(format!("{compiler} finds no gc/gc.h (apt-get install libgc-dev)")),
        Err(error) => Err(format!("{compiler} cannot be started: {error}")),
    }
}

fn cpp_compiler() -> Option<String> {
    let chosen = env::var("CXX").ok().filter(|compiler| !compiler.is_empty());
    chosen.or_else(|| ["c++", "g++", "clang++"].into_iter().find(|name| find(name).is_some()).map(Into::into))
}

/// The folder of the stock library.
pub fn stock() -> Option<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"].map(PathBuf::from);
    folders.into_iter().find(|folder| folder.join("libgc.so.1").exists())
}

/// What programs are compiled with and run on.
struct Bench<'a> {
    staged: &'a Path,
    output: &'a Path,
    stock: Option<&'a Path>,
    c: String,
    cpp: Option<String>,
    ways: &'a [On],
}

/// One way to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    Larder,
    WithoutRseq,
    Uffd,
    Mprotect,
    Archive,
    Stock,
}

impl On {
    /// Those on the shared library that is tested.
    const LARDER: [Self; 4] = [Self::Larder, Self::WithoutRseq, Self::Uffd, Self::Mprotect];
    const ALL: [Self; 6] = [Self::Larder, Self::WithoutRseq, Self::Uffd, Self::Mprotect, Self::Archive, Self::Stock];

    /// What is added to the program's name.
    fn suffix(self) -> &'static str {
        match self {
            Self::Larder => "",
            Self::WithoutRseq => ", without rseq",
            Self::Uffd => ", with cycles beside it, by uffd",
            Self::Mprotect => ", with cycles beside it, by mprotect",
            Self::Archive => ", from the archive",
            Self::Stock => ", on the stock library",
        }
    }
}

impl Bench<'_> {
    /// Compiles and runs one program in every way that it is for.
    fn test(&self, program: &Program) -> Result<Tally> {
        let mut tally = Tally::default();
        let ways = program.ways(self.ways);
        if program.is_cpp() && self.cpp.is_none() {
            println!("SKIPPED {}: there is no C++ compiler (apt-get install g++)", program.name);
            return Ok(Tally::skipped(ways.len()));
        }
        let mut faults = vec![self.compile(program, On::Larder)?];
        if !program.wants.larder_headers {
            faults.push(self.compile_against_staged_headers(program)?);
        }
        if ways.contains(&On::Archive) {
            faults.push(self.compile(program, On::Archive)?);
        }
        let faults: Vec<_> = faults.into_iter().flatten().collect();
        for why in &faults {
            tally.fail(format!("{} does not compile: {why}", program.source.display()));
        }
        if !faults.is_empty() {
            return Ok(tally);
        }
        for on in ways {
            if on == On::Stock && self.stock.is_none() {
                tally.skipped += 1;
            } else {
                tally += self.run(program, on)?;
            }
        }
        Ok(tally)
    }

    fn compiler_of(&self, program: &Program) -> Command {
        let c = || self.c.clone();
        let mut command = Command::new(if program.is_cpp() { self.cpp.clone().unwrap_or_else(c) } else { c() });
        command.args(FLAGS);
        command
    }

    fn binary(&self, program: &Program, on: On) -> PathBuf {
        self.output.join(if on == On::Archive { format!("{}-archive", program.name) } else { program.name.clone() })
    }

    /// Compiles one program; says what went wrong, if something did.
    fn compile(&self, program: &Program, on: On) -> Result<Option<String>> {
        let mut command = self.compiler_of(program);
        let lib = self.staged.join("lib");
        if program.wants.larder_headers || on == On::Archive {
            command.arg("-I").arg(self.staged.join("include"));
        }
        command.arg(&program.source).arg("-o").arg(self.binary(program, on));
        // By their files, so that no other libgc is linked.
        if on == On::Archive {
            if program.is_cpp() {
                command.arg("-static-libstdc++").arg(lib.join("libgccpp.a"));
            }
            command.arg(lib.join("liblarder_gc.a"));
        } else {
            if program.is_cpp() {
                command.arg(lib.join("libgccpp.so.1"));
            }
            command.arg(lib.join("libgc.so.1"));
        }
        self.succeeds(program, command)
    }

    /// Whether a program that was written for libgc's headers compiles with ours.
    fn compile_against_staged_headers(&self, program: &Program) -> Result<Option<String>> {
        let mut command = self.compiler_of(program);
        command.arg("-I").arg(self.staged.join("include")).arg("-fsyntax-only").arg(&program.source);
        Ok(self.succeeds(program, command)?.map(|why| format!("with the staged headers: {why}")))
    }

    fn succeeds(&self, program: &Program, mut command: Command) -> Result<Option<String>> {
        let errors = self.output.join(format!("{}.cc.err", program.name));
        command.stderr(File::create(&errors).with_context(|| format!("cannot create {}", errors.display()))?);
        let status = command.status().with_context(|| format!("cannot start {:?}", command.get_program()))?;
        Ok((!status.success()).then(|| last_words(&errors)))
    }

    fn run(&self, program: &Program, on: On) -> Result<Tally> {
        let binary = self.binary(program, on);
        let mut command = if program.wants.under_the_tool {
            let mut tool = Command::new(self.staged.join("bin/larder"));
            tool.args(["run", "--quiet", "--"]).arg(&binary);
            tool
        } else {
            Command::new(&binary)
        };
        let lib = self.staged.join("lib");
        let path = if on == On::Stock { self.stock.unwrap_or(&lib) } else { &lib };
        command
            .env("LD_LIBRARY_PATH", path)
            .env("LARDER_LIB", &lib)
            .env_remove("LD_PRELOAD")
            .env_remove("GLIBC_TUNABLES");
        match on {
            On::WithoutRseq => command.env("GLIBC_TUNABLES", WITHOUT_RSEQ),
            // Where the machine does not offer it, the library says so, and its cycles stop the program.
            On::Uffd => command.env("LARDER_CONCURRENT", "1").env("LARDER_WATCH", "uffd"),
            On::Mprotect => command.env("LARDER_CONCURRENT", "1").env("LARDER_WATCH", "mprotect"),
            On::Larder | On::Archive | On::Stock => &mut command,
        };
        let what = format!("{}{}", program.name, on.suffix());
        let errors = self.output.join(format!("{}.err", what.replace([',', ' '], "-")));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let start = Instant::now();
        let mut attempts = if on == On::Stock { STOCK_ATTEMPTS } else { 1 };
        let status = loop {
            let file = File::create(&errors).with_context(|| format!("cannot create {}", errors.display()))?;
            attempts -= 1;
            // One that hangs on the stock library is tried again, which must not take hours.
            let limit = if attempts > 0 { PROGRAM_LIMIT / 10 } else { PROGRAM_LIMIT };
            let status = wait_limited(command.stderr(file), limit)?;
            if attempts == 0 || status.is_some_and(|status| status.success()) {
                break status;
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        Ok(match status {
            Some(status) if status.success() => {
                println!("ok      {what} ({seconds:.1} s)");
                Tally::passed(1)
            }
            Some(status) => Tally::failed(format!("{what} ({seconds:.1} s): {status}; {}", last_words(&errors))),
            None => {
                let limit = PROGRAM_LIMIT.as_secs();
                Tally::failed(format!("{what}: stopped after {limit} s; {}", last_words(&errors)))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every function and variable of the interface occurs in a program, and in the page that says its state.
    #[test]
    fn every_name_of_the_interface_is_used() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository");
        let folder = fs::read_dir(root.join("crates/larder-gc/tests/c")).expect("the folder of the programs");
        let texts: Vec<_> =
            folder.map(|entry| fs::read_to_string(entry.expect("an entry").path()).expect("text")).collect();
        let words: std::collections::HashSet<_> =
            texts.iter().flat_map(|text| text.split(|c: char| !c.is_alphanumeric() && c != '_')).collect();
        let names = include_str!("../exports.txt").lines().filter(|line| !line.starts_with('#'));
        let missing: Vec<_> =
            names.filter_map(|line| line.split(' ').next_back()).filter(|name| !words.contains(name)).collect();
        assert_eq!(missing, [""; 0]);
        let page = fs::read_to_string(root.join("docs/libgc.md")).expect("the page about the interface");
        let unsaid: Vec<_> = include_str!("../exports.txt")
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split(' ').next_back())
            .filter(|name| !page.contains(&format!("`{name}`")))
            .collect();
        assert_eq!(unsaid, [""; 0]);
    }

    /// Every variable that libgc 8.2.2 documents (`README.environment`) has its line in the page about the interface, and each
    /// program that a line names has the variable in it.
    #[test]
    fn every_variable_of_the_environment_is_shown() {
        const NAMES: &str = "INITIAL_HEAP_SIZE MAXIMUM_HEAP_SIZE LOOP_ON_ABORT PRINT_STATS LOG_FILE ONLY_LOG_TO_FILE \
            PRINT_VERBOSE_STATS DUMP_REGULARLY COLLECT_AT_MALLOC BACKTRACES PRINT_ADDRESS_MAP NPROCS MARKERS NO_BLACKLIST_WARNING \
            LARGE_ALLOC_WARN_INTERVAL IGNORE_GCJ_INFO PRINT_BACK_HEIGHT RETRY_SIGNALS USE_GETWRITEWATCH DISABLE_INCREMENTAL \
            ENABLE_INCREMENTAL PAUSE_TIME_TARGET FULL_FREQUENCY FREE_SPACE_DIVISOR UNMAP_THRESHOLD FORCE_UNMAP_ON_GCOLLECT \
            FIND_LEAK FINDLEAK_DELAY_FREE ABORT_ON_LEAK ALL_INTERIOR_POINTERS DONT_GC USE_ENTIRE_HEAP TRACE";
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository");
        let page = fs::read_to_string(root.join("docs/libgc.md")).expect("the page about the interface");
        for name in NAMES.split_whitespace().map(|name| format!("GC_{name}")) {
            let quoted = format!("`{name}`");
            let line = page.lines().find(|line| line.split('|').nth(1).is_some_and(|cell| cell.contains(&quoted)));
            let line = line.unwrap_or_else(|| panic!("docs/libgc.md has no line for {name}"));
            let [_, _, effect, shown, _] = line.split('|').collect::<Vec<_>>()[..] else {
                panic!("three cells: {line}")
            };
            let programs: Vec<_> = shown.split('`').skip(1).step_by(2).collect();
            assert!(!programs.is_empty() || effect.trim().starts_with("no effect"), "nothing shows {name}");
            let has = |program: &&str| {
                let source = root.join("crates/larder-gc/tests/c").join(format!("{program}.c"));
                fs::read_to_string(source).expect("a program that the page names").contains(&format!("\"{name}\""))
            };
            assert!(programs.is_empty() || programs.iter().any(has), "no program that the page names has {name}");
        }
    }

    #[test]
    fn the_first_line_tells_what_a_program_wants() {
        let nothing = Wants::default();
        assert_eq!(wants("/* words */\n").expect("no facts"), nothing);
        assert_eq!(wants("// xtask: larder-only\n").expect("a fact"), Wants { larder_only: true, ..nothing });
        let both = Wants { larder_only: true, under_the_tool: true, ..nothing };
        assert_eq!(wants("// xtask: larder-only, under larder run\n").expect("two facts"), both);
        assert_eq!(wants("// xtask: archive\n").expect("a fact"), Wants { archive: true, ..nothing });
        assert!(wants("// xtask: on the moon\n").is_err());
    }
}
