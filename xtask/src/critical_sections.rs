//! The tests of `larder-percpu` and `larder-cs` that need more than `cargo test`: the C programs of `larder_cs.h` and the
//! C examples, and the tests with delays inside the sequences.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow};

use crate::clients::{PROGRAM_LIMIT, find, last_words, wait_limited};
use crate::tally::{Tally, count};
use crate::workspace::Workspace;

/// Turns restartable sequences on or off in glibc 2.35 and later.
const TUNABLES: [(&str, &str); 2] = [("glibc.pthread.rseq=1", "with rseq"), ("glibc.pthread.rseq=0", "without rseq")];
/// How the programs are compiled, and what is defined for that.
const FORMS: [(&str, &[&str]); 2] = [("inlined", &[]), ("called", &["-DCS_NO_INLINE"])];
/// A C library that registers no area for sequences; Rust links it statically.
const MUSL: &str = "x86_64-unknown-linux-musl";
const HANDLER_TEST: &str = "a_handler_with_a_transaction_of_its_own_fails_the_outer_one";
/// Where the programs are; each exits with 0 when everything is right.
const FOLDERS: [&str; 2] = ["crates/larder-cs/tests/c", "crates/larder-percpu/examples/c"];

/// The tests with delay loops at the numbered points of the sequences, in a target folder of their own: the loops are a
/// feature, and everything else is built without. And the crate's tests in a process without rseq.
pub fn test(workspace: &Workspace) -> Result<Tally> {
    if !workspace.has("larder-percpu") {
        return Ok(Tally::default());
    }
    let mut tally = Tally::default();
    let mut delayed = workspace.cargo_test();
    delayed
        .args(["--package", "larder-percpu", "--features", "inject", "--test", "delays", "--test", "storm"])
        .env("CARGO_TARGET_DIR", workspace.target().join("inject"));
    tally += count(&mut delayed)?;
    let mut without = workspace.cargo_test();
    without
        .args(["--package", "larder-percpu", "--test", "transactions", "--test", "structures", "--test", "storm"])
        .env("GLIBC_TUNABLES", TUNABLES[1].0);
    tally += count(&mut without)?;
    tally += elsewhere(workspace)?;
    Ok(tally)
}

/// The tests where there are no restartable sequences for other reasons: in emulators, and with another C library.
fn elsewhere(workspace: &Workspace) -> Result<Tally> {
    let mut tally = Tally::default();
    for (emulator, arguments, tests, skipped) in [
        (
            "valgrind",
            &["-q", "--error-exitcode=1", "--fair-sched=yes"][..],
            &["transactions", "structures", "strangers"][..],
            &[][..],
        ),
        // It enters handlers with a stack that is not aligned, so those that use vector registers crash.
        ("qemu-x86_64", &[], &["transactions", "structures", "strangers"], &[HANDLER_TEST]),
    ] {
        if find(emulator).is_none() {
            println!("SKIPPED tests under {emulator}: it is not installed (apt-get install valgrind qemu-user)");
            tally.skipped += 1;
            continue;
        }
        let mut command = workspace.cargo_test_under(&[&[emulator], arguments].concat());
        command.args(["--package", "larder-percpu"]);
        command.args(tests.iter().flat_map(|test| ["--test", test]));
        command.arg("--").args(skipped.iter().flat_map(|test| ["--skip", test]));
        tally += count(&mut command)?;
    }
    let installed = Command::new("rustc")
        .current_dir(workspace.root())
        .args(["--print", "target-libdir", "--target", MUSL])
        .output()
        .is_ok_and(|printed| Path::new(String::from_utf8_lossy(&printed.stdout).trim()).exists());
    if !installed {
        println!("SKIPPED tests with musl: its target is not installed (rustup target add {MUSL})");
        tally.skipped += 1;
        return Ok(tally);
    }
    let mut musl = workspace.cargo_test();
    musl.args(["--package", "larder-percpu", "--target", MUSL]);
    musl.args(["transactions", "structures", "strangers", "storm"].iter().flat_map(|test| ["--test", test]));
    tally += count(&mut musl)?;
    Ok(tally)
}

/// Compiles every program against the staged library and runs it with rseq and without: once with the header's inlined forms, and
/// once with the library's functions.
pub fn programs(workspace: &Workspace, staged: &Path) -> Result<Tally> {
    let output = workspace.scratch("critical-sections")?;
    let sources = sources(workspace)?;
    let Some(compiler) = compiler() else {
        println!("SKIPPED {} C programs: there is no C compiler (apt-get install gcc libc6-dev)", sources.len());
        return Ok(Tally::skipped(TUNABLES.len() * FORMS.len() * sources.len()));
    };
    let (headers, library) = (staged.join("include"), staged.join("lib/liblarder_cs.so"));
    let mut tally = Tally::default();
    for source in &sources {
        for (form, defined) in FORMS {
            tally += match compile(compiler, source, &headers, &library, defined, &output.join(form))? {
                Ok(binary) => run_with_and_without(&binary, form, staged)?,
                Err(why) => Tally::failed(format!("{} does not compile: {why}", source.display())),
            };
        }
    }
    Ok(tally)
}

/// The C programs that have inlined forms, for those who look at their instructions; none where there is no compiler.
pub fn compiled(workspace: &Workspace, library: &Path) -> Result<Vec<PathBuf>> {
    let Some(compiler) = compiler() else { return Ok(vec![]) };
    let output = workspace.scratch("critical-sections")?.join("check");
    let headers = workspace.root().join("include");
    let mut sources = sources(workspace)?;
    // The paper's interface has none.
    sources.retain(|source| fs::read_to_string(source).is_ok_and(|text| text.contains("csx")));
    let compiled = sources.into_iter().map(|source| {
        let made = compile(compiler, &source, &headers, library, FORMS[0].1, &output)?;
        made.map_err(|why| anyhow!("{} does not compile: {why}", source.display()))
    });
    compiled.collect()
}

fn compiler() -> Option<&'static str> {
    ["cc", "gcc", "clang"].into_iter().find(|name| find(name).is_some())
}

fn sources(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let mut sources = Vec::new();
    for folder in FOLDERS {
        let folder = workspace.root().join(folder);
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let source = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
            if source.extension().is_some_and(|extension| extension == "c") {
                sources.push(source);
            }
        }
    }
    sources.sort();
    Ok(sources)
}

/// The binary, or the compiler's last words.
fn compile(
    compiler: &str,
    source: &Path,
    headers: &Path,
    library: &Path,
    defined: &[&str],
    output: &Path,
) -> Result<Result<PathBuf, String>> {
    fs::create_dir_all(output).with_context(|| format!("cannot create {}", output.display()))?;
    let binary = output.join(source.file_stem().unwrap_or_default());
    let errors = binary.with_extension("err");
    let status = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-O2", "-pthread"])
        .args(defined)
        .arg("-I")
        .arg(headers)
        .arg(source)
        .arg("-o")
        .arg(&binary)
        .arg(library)
        .stderr(File::create(&errors).with_context(|| format!("cannot create {}", errors.display()))?)
        .status()
        .with_context(|| format!("cannot start {compiler}"))?;
    Ok(if status.success() { Ok(binary) } else { Err(last_words(&errors)) })
}

fn run_with_and_without(binary: &Path, form: &str, staged: &Path) -> Result<Tally> {
    let name = binary.file_name().unwrap_or_default().to_string_lossy();
    let errors = binary.with_extension("err");
    let file = || File::create(&errors).with_context(|| format!("cannot create {}", errors.display()));
    let mut tally = Tally::default();
    for (tunable, how) in TUNABLES {
        let mut command = Command::new(binary);
        command.env("LD_LIBRARY_PATH", staged.join("lib")).env("GLIBC_TUNABLES", tunable);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file()?);
        match wait_limited(&mut command, PROGRAM_LIMIT)? {
            Some(status) if status.success() => {
                println!("ok      {name}, {form}, {how}");
                tally.passed += 1;
            }
            Some(status) => tally.fail(format!("{name}, {form}, {how}: {status}; {}", last_words(&errors))),
            None => tally.fail(format!("{name}, {form}, {how}: stopped after {} s", PROGRAM_LIMIT.as_secs())),
        }
    }
    Ok(tally)
}
