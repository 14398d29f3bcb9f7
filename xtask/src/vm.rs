//! The C programs of the moving heap: those of `apps/vm`, in every setting and beside their brothers in Java, the tests of
//! `larder_vm.h`, and the program that the porting guide is made of.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::clients::{find, limited};
use crate::java::{self, Java};
use crate::tally::Tally;
use crate::workspace::Workspace;

/// The programs of `apps/vm`, at sizes that take well under a second.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("trees", &["200000", "12"]),
    ("cache", &["200000", "4000"]),
    ("warehouse", &["6000", "500"]),
    ("compiler", &["60"]),
    ("stores", &["1000000"]),
    ("chat", &["2", "10"]),
];
/// Settings of the heap. Checksums must not depend on them.
const SETTINGS: &[&str] = &[
    "",
    "--barrier cards --association thread --collectors 1",
    "--barrier stores --association cpu --tenure 1 --young-kib 1024 --least-old 256 --warm",
    "--association flip --buffer-kib 64 --tenure 6 --young-kib 512 --most-young-kib 4096",
    "--level process --level-kib 128 --buffer-kib 8 --young-kib 2048",
    "--association thread --level core --level-kib 32 --level package --level process --by-share --near-end singly",
    "--level core --level-sizing adaptive --level-kib 64 --level process --level-sizing share --young-kib 2048",
    "--association nobody --level core --level-kib 32 --level process --level-kib 256 --young-kib 2048",
    "--verify --young-kib 512 --every 20",
    "--verify --young-kib 512 --every 7 --barrier stores --association thread",
    "--null --young-kib 524288",
];
const THREADS: &[&str] = &["1", "5"];

/// Compiles and runs everything against the library in `staged`.
pub fn run_all(workspace: &Workspace, staged: &Path) -> Result<Tally> {
    if !workspace.has("larder-vm") {
        return Ok(Tally::default());
    }
    let Some(compiler) = ["cc", "gcc", "clang"].into_iter().find(|name| find(name).is_some()) else {
        println!("SKIPPED the programs of larder_vm.h: there is no C compiler (apt-get install gcc libc6-dev)");
        return Ok(Tally::skipped(PROGRAMS.len() + 3));
    };
    let output = workspace.scratch("vm")?;
    let guide = output.join("porting.c");
    fs::write(&guide, listing(workspace)?).with_context(|| format!("cannot write {}", guide.display()))?;
    let mut tally = Tally::default();
    let tests = ["interface.c", "layout.c"].map(|name| workspace.root().join("crates/larder-vm/tests/c").join(name));
    for source in [guide].into_iter().chain(tests) {
        tally += match compile(compiler, &source, staged, &output)? {
            Ok(binary) => one(&binary, &[])?.1,
            Err(failed) => failed,
        };
    }
    let java = Java::compile(workspace, &output)?;
    if java.is_none() {
        tally.skipped += java::PROGRAMS.len();
    }
    for (program, sizes) in PROGRAMS {
        let source = workspace.root().join(format!("apps/vm/{program}.c"));
        match compile(compiler, &source, staged, &output)? {
            Ok(binary) => {
                let java = java.as_ref().filter(|_| java::PROGRAMS.contains(program));
                tally += settings(program, &binary, sizes, java)?;
            }
            Err(failed) => tally += failed,
        }
    }
    Ok(tally)
}

/// The C blocks of the porting guide, one after the other.
fn listing(workspace: &Workspace) -> Result<String> {
    let guide = workspace.root().join("docs/porting.md");
    let text = fs::read_to_string(&guide).with_context(|| format!("cannot read {}", guide.display()))?;
    Ok(blocks(&text))
}

fn blocks(text: &str) -> String {
    let mut code = String::new();
    let mut inside = false;
    for line in text.lines() {
        match (inside, line) {
            (false, "```c") => inside = true,
            (true, "```") => inside = false,
            (true, line) => code.extend([line, "\n"]),
            (false, _) => {}
        }
    }
    code
}

fn compile(compiler: &str, source: &Path, staged: &Path, output: &Path) -> Result<Result<PathBuf, Tally>> {
    let binary = output.join(source.file_stem().context("a source file has a name")?);
    let done = Command::new(compiler)
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
        .arg(staged.join("include"))
        .arg(source)
        .arg("-o")
        .arg(&binary)
        .arg(staged.join("lib/liblarder_vm.so"))
        .arg(format!("-Wl,-rpath,{}", staged.join("lib").display()))
        .output()
        .with_context(|| format!("cannot start {compiler}"))?;
    if done.status.success() {
        return Ok(Ok(binary));
    }
    let errors = String::from_utf8_lossy(&done.stderr);
    Ok(Err(Tally::failed(format!("{} does not compile: {}", source.display(), errors.trim()))))
}

/// Runs a program once: what it printed, and how it went.
fn one(binary: &Path, arguments: &[&str]) -> Result<(String, Tally)> {
    let name = format!("{} {}", binary.file_name().unwrap_or_default().to_string_lossy(), arguments.join(" "));
    let done = limited()
        .arg(binary)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", binary.display()))?;
    let printed = String::from_utf8_lossy(&done.stdout).into_owned();
    if done.status.success() {
        return Ok((printed, Tally::passed(1)));
    }
    let errors = String::from_utf8_lossy(&done.stderr);
    Ok((printed, Tally::failed(format!("{}: {}; {}", name.trim(), done.status, errors.trim()))))
}

/// Runs a program in every setting, and in Java, and compares its checksums.
fn settings(program: &str, binary: &Path, sizes: &[&str], java: Option<&Java>) -> Result<Tally> {
    let mut tally = Tally::default();
    for threads in THREADS {
        let mut first: Option<String> = None;
        for setting in SETTINGS {
            let mut arguments = sizes.to_vec();
            arguments.extend(["--threads", threads]);
            arguments.extend(setting.split_whitespace());
            let (printed, how) = one(binary, &arguments)?;
            let sum = checksum(program, &printed);
            let differs = how.failures() == 0 && (sum.is_none() || first.is_some() && first != sum);
            if differs {
                tally.fail(format!("{program} {}: {sum:?} where {first:?} was before", arguments.join(" ")));
            } else {
                tally += how;
            }
            first = first.or(sum);
        }
        if let Some(java) = java {
            match java.run(program, sizes, threads)? {
                Ok(sum) if first.as_ref() == Some(&sum) => tally.passed += 1,
                other => {
                    let sizes = sizes.join(" ");
                    tally.fail(format!("{program} {sizes} in Java, {threads} threads: {other:?}, {first:?} in C"));
                }
            }
        }
    }
    println!("ok      {program}: {} runs", tally.passed);
    Ok(tally)
}

/// The checksum in a program's line.
pub fn checksum(program: &str, printed: &str) -> Option<String> {
    let mut words = printed.split_whitespace();
    let named = words.next()? == format!("program={program}");
    words.find_map(|word| word.strip_prefix("checksum=")).filter(|_| named).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listing_is_what_is_between_the_fences_of_c() {
        assert_eq!(blocks("a\n```c\nint x;\n```\nb\n```sh\nls\n```\n```c\nint y;\n```\n"), "int x;\nint y;\n");
    }

    #[test]
    fn the_checksum_is_found_by_its_key() {
        assert_eq!(checksum("trees", "program=trees threads=1 checksum=12ab seconds=1\n"), Some("12ab".into()));
        assert_eq!(checksum("trees", "program=chat checksum=12ab"), None);
        assert_eq!(checksum("trees", ""), None);
    }
}
