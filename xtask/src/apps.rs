//! `cargo xtask apps`: the thesis's programs of `apps/gc`, at their small sizes, on a staged Larder, with restartable
//! sequences, without, in each setting of block sharing, and with optimizations left out, with the software barrier in its forms, and on the stock library, with several numbers of threads.
//!
//! Those that scripts measure run shortly, on both libraries. Those of `apps/vm` follow: see [`vm`].
//!
//! Each checks itself; what is checked here is that they print their line, and that its checksum is the same everywhere.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

use crate::clients::{find, limited};
use crate::java;
use crate::programs::{WITHOUT_RSEQ, stock};
use crate::stage;
use crate::tally::Tally;
use crate::vm;
use crate::workspace::Workspace;

/// The programs, as `stage` compiles them into `apps/`.
pub const PROGRAMS: &[&str] = &["matmul", "bh-st", "bh-pt", "cky", "cube", "unfair", "throughput"];
/// Those of them that there are with a software write barrier, too (`apps/gc/barrier.h`).
const SOFT: &[&str] = &["bh-pt", "cky", "cube"];
/// What is compiled besides: a server, which `larder experiment` measures.
const SERVERS: &[&str] = &["cache"];
/// What `apps/gc/compare`, `pauses` and the documents measure, with arguments with which each is done in a moment.
const MEASURED: &[(&str, &[&str])] = &[
    ("churn", &["3", "20000"]),
    ("trees", &["3", "20000", "8"]),
    ("ring", &["5", "500", "1024"]),
    ("nbody", &["3", "200", "2"]),
    ("idle", &["8", "1024", "5"]),
    ("come_and_go", &["100", "10"]),
    ("marking", &["tree", "2", "2"]),
    ("marking", &["shared", "2", "2"]),
    ("kinds", &["typed", "tree", "5000", "32", "2"]),
    ("kinds", &["gcj", "list", "5000", "100", "2"]),
    ("kinds", &["proc", "tree", "5000", "40", "2"]),
    ("kinds", &["uncollectable", "array", "5000", "32", "2"]),
    ("calls", &["all", "20000", "3"]),
    ("long", &["objects", "2", "20"]),
    ("long", &["freed", "9", "20"]),
    ("long", &["sizes", "3", "30", "atomic"]),
    ("long", &["vectors", "4", "5"]),
    ("strewn", &["graph", "5000", "256", "3", "1", "2"]),
    ("strewn", &["buckets", "5000", "300", "4", "0", "2"]),
    ("shapes", &["pairs", "8000", "2"]),
    ("shapes", &["values", "8000", "2"]),
    ("shapes", &["structs", "8000", "2"]),
    ("shapes", &["symbols", "8000", "2"]),
    ("shapes", &["double", "8000", "2"]),
    ("shapes", &["records", "8000", "2"]),
    ("shapes", &["pages", "8000", "2"]),
    ("shapes", &["rows", "8000", "2"]),
    ("shapes", &["rings", "8000", "2"]),
    ("shapes", &["parents", "8000", "2"]),
    ("shapes", &["types", "8000", "2"]),
    ("shapes", &["owner", "8000", "2"]),
    ("shapes", &["syntax", "8000", "2"]),
    ("shapes", &["map", "8000", "2"]),
    ("shapes", &["hash", "8000", "2"]),
    ("shapes", &["vectors", "8000", "2"]),
    ("shapes", &["blocks", "8000", "2"]),
    ("shapes", &["closures", "8000", "2"]),
    ("shapes", &["strings", "8000", "2"]),
    ("shapes", &["tags", "8000", "2"]),
    ("sets", &["1010", "250", "10000"]),
    ("short", &["2", "4", "100"]),
    ("cache", &["2", "4", "1", "100", "5"]),
];
/// One, and more than a small machine has.
const THREADS: &[&str] = &["1", "2", "5"];

/// Compiles every program into `into`, and those of `apps/vm` that have brothers in Java into its folder `vm`, linked to the
/// libraries in `lib`. `None` where there is no C compiler.
pub fn compile(workspace: &Workspace, lib: &Path, into: &Path) -> Result<Option<()>> {
    let Some(compiler) = compiler() else { return Ok(None) };
    // By its file, so that no other libgc is linked.
    let libgc = lib.join("libgc.so.1").display().to_string();
    let soft = SOFT.iter().map(|program| format!("{program}-soft"));
    for program in PROGRAMS.iter().chain(SERVERS).map(|program| (*program).to_owned()).chain(soft) {
        let link = [libgc.as_str(), "-Wl,-rpath,$ORIGIN/../lib", "-lm"];
        compile_one(workspace, &compiler, &format!("apps/gc/{program}.c"), &into.join(&program), &link)?;
    }
    if !workspace.has("larder-vm") {
        return Ok(Some(()));
    }
    let folder = format!("-L{}", lib.display());
    for program in java::PROGRAMS {
        let link = [folder.as_str(), "-llarder_vm", "-Wl,-rpath,$ORIGIN/../../lib"];
        compile_one(workspace, &compiler, &format!("apps/vm/{program}.c"), &into.join("vm").join(program), &link)?;
    }
    Ok(Some(()))
}

fn compiler() -> Option<String> {
    let named = env::var("CC").ok().filter(|name| !name.is_empty());
    named.or_else(|| ["cc", "gcc", "clang"].into_iter().find(|name| find(name).is_some()).map(Into::into))
}

fn compile_one(workspace: &Workspace, compiler: &str, source: &str, binary: &Path, link: &[&str]) -> Result<()> {
    let folder = binary.parent().context("a program lies in a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    // Renamed into place, because the old one may be running.
    let new = binary.with_extension("new");
    let status = Command::new(compiler)
        .args(["-O2", "-Wall", "-Wextra", "-pthread", "-I"])
        .arg(workspace.root().join("include"))
        .arg(workspace.root().join(source))
        .arg("-o")
        .arg(&new)
        .args(link)
        .status()
        .with_context(|| format!("cannot start {compiler}"))?;
    if !status.success() {
        bail!("{compiler} could not compile {source} ({status})");
    }
    std::fs::rename(&new, binary).with_context(|| format!("cannot create {}", binary.display()))
}

/// Stages Larder and runs the programs.
pub fn apps(workspace: &Workspace) -> Result<()> {
    let staged = stage::for_task(workspace, false)?;
    let mut tally = run_all(&staged)?;
    tally += run_measured(workspace, &staged)?;
    tally += vm::run_all(workspace, &staged)?;
    tally.conclude()
}

/// How the programs with a software barrier run: stopped, and beside the program in both algorithms and as the thesis has it.
const BARRIERS: &[(&str, &[(&str, &str)])] = &[
    ("Larder", &[]),
    ("barrier", &[("LARDER_WATCH", "barrier")]),
    (
        "barrier as in the thesis",
        &[("LARDER_WATCH", "barrier"), ("LARDER_BORN", "unmarked"), ("LARDER_ABLATE", "clean")],
    ),
    ("snapshot", &[("LARDER_WATCH", "snapshot")]),
];

/// A way to run a program: its name, the library's folder, and what is added to the environment.
struct Way {
    name: String,
    lib: PathBuf,
    environment: Vec<(&'static str, String)>,
}

/// Runs every program in every way.
pub fn run_all(staged: &Path) -> Result<Tally> {
    let lib = staged.join("lib");
    let way =
        |name: &str, environment: Vec<(&'static str, String)>| Way { name: name.into(), lib: lib.clone(), environment };
    let mut ways = vec![way("Larder", vec![]), way("without rseq", vec![("GLIBC_TUNABLES", WITHOUT_RSEQ.into())])];
    for sharing in ["page-shared", "all-local", "lps:1", "lps:1.5", "lps:auto"] {
        let owners = vec![("LARDER_SHARING", sharing.into()), ("LARDER_OWNERS", "thread".into())];
        ways.push(way(sharing, owners));
    }
    for left_out in ["balance", "slo,nsb,bmb", "deque", "lazy-sweep,prefetch,markers"] {
        let environment = vec![("LARDER_ABLATE", left_out.into()), ("GC_MARKERS", "3".into())];
        ways.push(way(&format!("without {left_out}"), environment));
    }
    // Cycles come often, so that many of them mark beside these short programs.
    let often = [("LARDER_COLLECT_EVERY", "5")];
    let soft_ways: Vec<Way> = BARRIERS
        .iter()
        .map(|(name, environment)| {
            let beside = [("LARDER_CONCURRENT", if environment.is_empty() { "0" } else { "1" })];
            let all = environment.iter().chain(&beside).chain(&often);
            way(name, all.map(|(name, value)| (*name, (*value).to_owned())).collect())
        })
        .collect();
    match stock() {
        Some(folder) => ways.push(Way { name: "the stock library".into(), lib: folder, environment: vec![] }),
        None => println!("SKIPPED apps on the stock library: there is no libgc.so.1 (apt-get install libgc1)"),
    }
    let mut tally = Tally::default();
    for program in PROGRAMS {
        let mut first = None;
        let mut run = |name: &str, ways: &[Way]| {
            let binary = staged.join("apps").join(name);
            if binary.exists() {
                return run_program(name, &binary, ways, &mut first);
            }
            println!("SKIPPED {name}: it was not compiled (apt-get install gcc libc6-dev)");
            Ok(Tally::skipped(1))
        };
        tally += run(program, &ways)?;
        if SOFT.contains(program) {
            tally += run(&format!("{program}-soft"), &soft_ways)?;
        }
    }
    Ok(tally)
}

/// A program on the library in a folder, and with nothing else of the environment's that changes how it runs.
fn on_library(binary: &Path, lib: &Path) -> Command {
    let mut command = limited();
    command.arg(binary).env_remove("LD_PRELOAD").env_remove("GLIBC_TUNABLES");
    command.env("LD_LIBRARY_PATH", lib).stdin(Stdio::null());
    command
}

fn output_of(command: &mut Command) -> Result<Output> {
    command.output().with_context(|| format!("cannot start {command:?}"))
}

/// `first`: the sum that was printed first.
fn run_program(program: &str, binary: &Path, ways: &[Way], first: &mut Option<String>) -> Result<Tally> {
    let mut tally = Tally::default();
    for way in ways {
        for threads in THREADS {
            let environment = way.environment.iter().map(|(name, value)| (name, value));
            let output = output_of(on_library(binary, &way.lib).args([threads, "ci"]).envs(environment))?;
            let text = String::from_utf8_lossy(&output.stdout);
            let sum = sum_of(program, threads, &text);
            let what = format!("{program}, {threads} threads, {}", way.name);
            let fault = if !output.status.success() {
                Some(format!("{}; {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
            } else if sum.is_none() {
                Some(format!("it printed {text:?}"))
            } else if first.is_some() && *first != sum {
                Some(format!("its sum is {sum:?}, and was {first:?}"))
            } else {
                None
            };
            match fault {
                Some(why) => tally.fail(format!("{what}: {why}")),
                None => tally.passed += 1,
            }
            *first = first.take().or(sum);
        }
    }
    if let Some(way) = ways.first() {
        tally += refuse(program, binary, way)?;
    }
    println!("ok      {program}: {} runs", tally.passed);
    Ok(tally)
}

/// Arguments that every program refuses, and what it says of them.
const REFUSED: &[(&[&str], &str)] = &[
    (&["0"], "THREADS is '0', must be a number from 1 to"),
    (&["two"], "THREADS is 'two', must be a number"),
    (&["2", "large"], "the preset is 'large', must be ci or thesis"),
    (&["2", "ci", "99999999999"], "is '99999999999', must be a number"),
    (&["2", "ci", "4", "4", "4", "4"], "one argument too many"),
];

/// Arguments that are wrong end a program with status 2 and a line that says why; a preset's size that does not fit to a given one is none of them.
fn refuse(program: &str, binary: &Path, way: &Way) -> Result<Tally> {
    let mut tally = Tally::default();
    for (arguments, wanted) in REFUSED {
        let output = output_of(on_library(binary, &way.lib).args(*arguments))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(2) && output.stdout.is_empty() && said.contains(wanted) {
            tally.passed += 1;
        } else {
            tally.fail(format!("{program} {}: {}; {said}", arguments.join(" "), output.status));
        }
    }
    if program == "cky" {
        for least in ["49", "60"] {
            let output = output_of(on_library(binary, &way.lib).args(["2", "ci", "1", least]))?;
            match sum_of(program, "2", &String::from_utf8_lossy(&output.stdout)) {
                Some(_) => tally.passed += 1,
                None => tally.fail(format!("cky, sentences of {least} words at least: {}", output.status)),
            }
        }
    }
    Ok(tally)
}

/// Compiles the programs that are measured, and runs each on both libraries: a line with its name, and the same checksum where it has one.
pub fn run_measured(workspace: &Workspace, staged: &Path) -> Result<Tally> {
    let Some(compiler) = compiler() else {
        println!("SKIPPED the programs that are measured: there is no C compiler (apt-get install gcc libc6-dev)");
        return Ok(Tally::skipped(MEASURED.len()));
    };
    let lib = staged.join("lib");
    let libgc = lib.join("libgc.so.1").display().to_string();
    let mut libraries = vec![("Larder", lib)];
    libraries.extend(stock().map(|folder| ("the stock library", folder)));
    let mut tally = Tally::default();
    for (program, arguments) in MEASURED {
        let binary = staged.join("measured").join(program);
        compile_one(workspace, &compiler, &format!("apps/gc/{program}.c"), &binary, &[&libgc, "-lm"])?;
        let mut first = None;
        for (name, folder) in &libraries {
            let output = output_of(on_library(&binary, folder).args(*arguments))?;
            let text = String::from_utf8_lossy(&output.stdout);
            // One line, or one for each of several measurements.
            let is_its = |line: &str| {
                let first = line.split(' ').next().unwrap_or_default();
                first == *program || first == format!("program={program}")
            };
            let named = text.ends_with('\n') && text.lines().all(is_its);
            let sum = text.split_whitespace().find(|word| word.starts_with("sum=")).map(str::to_owned);
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                tally.fail(format!("{program} on {name}: {}; {}", output.status, said.trim()));
            } else if !named {
                tally.fail(format!("{program} on {name}: it printed {text:?}"));
            } else if first.as_ref().is_some_and(|first| *first != sum) {
                tally.fail(format!("{program} on {name}: {sum:?}, and {first:?} before"));
            } else {
                tally.passed += 1;
            }
            first = first.or(Some(sum));
        }
    }
    println!("ok      the programs that are measured: {} runs", tally.passed);
    Ok(tally)
}

/// The checksum in `PROGRAM T=THREADS sum=SUM time_s=... gc_ms=... ...`; `None` where the line is another one.
fn sum_of(program: &str, threads: &str, output: &str) -> Option<String> {
    let line = output.strip_suffix('\n').filter(|line| !line.contains('\n'))?;
    let rest = line.strip_prefix(&format!("{program} T={threads} sum="))?;
    let mut words = rest.split(' ');
    let sum = words.next().filter(|sum| sum.len() == 16 && sum.chars().all(|c| c.is_ascii_hexdigit()))?;
    for key in ["time_s=", "gc_ms="] {
        words.next()?.strip_prefix(key)?.parse::<f64>().ok()?;
    }
    Some(sum.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_only_as_documented() {
        let line = "cube T=2 sum=95ab55bfe0d72ce4 time_s=0.008 gc_ms=1.611 states=27702\n";
        assert_eq!(sum_of("cube", "2", line).as_deref(), Some("95ab55bfe0d72ce4"));
        assert_eq!(sum_of("cube", "1", line), None);
        assert_eq!(sum_of("cky", "2", line), None);
        assert_eq!(sum_of("cube", "2", &line.replace("gc_ms=", "gc=")), None);
        assert_eq!(sum_of("cube", "2", &line.replace("95ab", "")), None);
    }
}
