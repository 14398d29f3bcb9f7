//! `cargo xtask programs`: the C programs of `crates/larder-gc/tests/c`, compiled against libgc's own headers and run on
//! a staged Larder, once with restartable sequences and once without.
//!
//! Each program is a test: it exits with 0 when everything is right. Its first line may say what it wants of us,
//! `// xtask: FACT, FACT`:
//!
//! | fact | meaning |
//! |---|---|
//! | `larder-only` | it shows what Larder does and libgc does not; nothing changes here |
//! | `under larder run` | it is started by the tool, which preloads |

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::clients::{find, last_words, wait_limited};
use crate::stage;
use crate::tally::Tally;
use crate::workspace::Workspace;

/// No program takes a tenth of this on a quiet machine.
const LIMIT: Duration = Duration::from_secs(120);
/// What turns restartable sequences off in glibc 2.35 and later.
const WITHOUT_RSEQ: &str = "glibc.pthread.rseq=0";
/// As crates/larder-gc/tests/c/README.md has them. At -O0 a dead variable stays on the stack and keeps its object.
const FLAGS: &[&str] = &["-Wall", "-Wextra", "-O1", "-Wno-deprecated-declarations", "-pthread"];

#[derive(Args)]
pub struct Options {
    /// Run only this program; may be given more than once
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

/// Stages Larder and runs the programs that the options name.
pub fn programs(workspace: &Workspace, options: &Options) -> Result<()> {
    let staged = workspace.scratch("stage")?;
    stage::stage(workspace, &staged)?;
    let mut programs = load(workspace)?;
    if let Some(unknown) = options.only.iter().find(|name| programs.iter().all(|program| program.name != **name)) {
        bail!("there is no program {unknown} in crates/larder-gc/tests/c");
    }
    programs.retain(|program| options.only.is_empty() || options.only.contains(&program.name));
    let tally = run_programs(workspace, &staged, &programs)?;
    println!("{tally}");
    tally.verdict()
}

/// Runs every program on the library staged in `staged`.
pub fn run_all(workspace: &Workspace, staged: &Path) -> Result<Tally> {
    run_programs(workspace, staged, &load(workspace)?)
}

/// One C file.
#[derive(Debug)]
struct Program {
    name: String,
    source: PathBuf,
    under_the_tool: bool,
}

fn load(workspace: &Workspace) -> Result<Vec<Program>> {
    let folder = workspace.root().join("crates/larder-gc/tests/c");
    let mut programs = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let source = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
        if source.extension().is_none_or(|extension| extension != "c") {
            continue;
        }
        let text = fs::read_to_string(&source).with_context(|| format!("cannot read {}", source.display()))?;
        let under_the_tool = under_the_tool(&text).with_context(|| source.display().to_string())?;
        let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        programs.push(Program { name, source, under_the_tool });
    }
    ensure!(!programs.is_empty(), "{} holds no C program", folder.display());
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(programs)
}

/// Reads the first line: whether the tool shall start the program.
fn under_the_tool(text: &str) -> Result<bool> {
    let Some(facts) = text.lines().next().and_then(|line| line.strip_prefix("// xtask: ")) else { return Ok(false) };
    let mut under_the_tool = false;
    for fact in facts.split(", ") {
        match fact {
            "larder-only" => {}
            "under larder run" => under_the_tool = true,
            _ => bail!("`{fact}` is none of the facts that xtask/src/programs.rs has"),
        }
    }
    Ok(under_the_tool)
}

fn run_programs(workspace: &Workspace, staged: &Path, programs: &[Program]) -> Result<Tally> {
    let output = workspace.scratch("programs")?;
    let compiler = match compiler(&output) {
        Ok(compiler) => compiler,
        Err(why) => {
            println!("SKIPPED {} C programs of crates/larder-gc/tests/c: {why}", programs.len());
            return Ok(Tally { skipped: 2 * programs.len(), ..Tally::default() });
        }
    };
    let mut tally = Tally::default();
    for program in programs {
        if let Some(why) = compile(&compiler, program, staged, &output)? {
            println!("FAILED  {}.c does not compile: {why}", program.name);
            tally.failed += 1;
            continue;
        }
        for with_rseq in [true, false] {
            tally += run_one(program, staged, &output, with_rseq)?;
        }
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

/// Compiles one program against libgc's headers and the staged library; says what went wrong, if something did.
fn compile(compiler: &str, program: &Program, staged: &Path, output: &Path) -> Result<Option<String>> {
    let errors = output.join(format!("{}.cc.err", program.name));
    let mut command = Command::new(compiler);
    command.args(FLAGS).arg(&program.source).arg("-o").arg(output.join(&program.name));
    // By its file, so that no other libgc is linked.
    command.arg(staged.join("lib/libgc.so.1"));
    command.stderr(File::create(&errors).with_context(|| format!("cannot create {}", errors.display()))?);
    let status = command.status().with_context(|| format!("cannot start {compiler}"))?;
    Ok((!status.success()).then(|| last_words(&errors)))
}

fn run_one(program: &Program, staged: &Path, output: &Path, with_rseq: bool) -> Result<Tally> {
    let binary = output.join(&program.name);
    let mut command = if program.under_the_tool {
        let mut tool = Command::new(staged.join("bin/larder"));
        tool.args(["run", "--quiet", "--"]).arg(&binary);
        tool
    } else {
        Command::new(&binary)
    };
    command.env("LD_LIBRARY_PATH", staged.join("lib")).env("LARDER_LIB", staged.join("lib")).env_remove("LD_PRELOAD");
    if with_rseq {
        command.env_remove("GLIBC_TUNABLES");
    } else {
        command.env("GLIBC_TUNABLES", WITHOUT_RSEQ);
    }
    let what = if with_rseq { program.name.clone() } else { format!("{}, without rseq", program.name) };
    let errors = output.join(format!("{}{}.err", program.name, if with_rseq { "" } else { "-without-rseq" }));
    let file = File::create(&errors).with_context(|| format!("cannot create {}", errors.display()))?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    let start = Instant::now();
    let status = wait_limited(&mut command, LIMIT)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(match status {
        Some(status) if status.success() => {
            println!("ok      {what} ({seconds:.1} s)");
            Tally { passed: 1, ..Tally::default() }
        }
        Some(status) => {
            println!("FAILED  {what} ({seconds:.1} s): {status}; {}", last_words(&errors));
            Tally { failed: 1, ..Tally::default() }
        }
        None => {
            println!("FAILED  {what}: stopped after {} s; {}", LIMIT.as_secs(), last_words(&errors));
            Tally { failed: 1, ..Tally::default() }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_tells_how_to_start() {
        assert!(!under_the_tool("/* words */\n").expect("no facts"));
        assert!(!under_the_tool("// xtask: larder-only\n").expect("a fact"));
        assert!(under_the_tool("// xtask: larder-only, under larder run\n").expect("two facts"));
        assert!(under_the_tool("// xtask: on the moon\n").is_err());
    }
}
