//! `liblarder_locks.so` under pthread programs that know nothing of it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const LOCKS: [&str; 7] = ["mutex", "fair", "fifo", "mcs", "restricted-mcs", "reciprocating", "lock"];

/// The library: staged, or built beside this test.
fn library() -> Option<PathBuf> {
    let staged = std::env::var_os("LARDER_STAGE").map(|stage| PathBuf::from(stage).join("lib"));
    let built = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
    let folders = staged.into_iter().chain([built.clone(), built.with_file_name("release")]);
    let found = folders.map(|folder| folder.join("liblarder_locks.so")).find(|path| path.is_file());
    if found.is_none() {
        eprintln!("SKIPPED: liblarder_locks.so is not built (cargo build -p larder-locks)");
    }
    found
}

fn under(library: &Path, lock: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library).env("LARDER_LOCK", lock).env("LARDER_LOCK_SUMMARY", "1");
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_program_finds_what_pthreads_promise() {
    let Some(library) = library() else { return };
    let program = std::env::temp_dir().join(format!("larder-mutexes-{}", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mutexes.c");
    let compiled = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).status();
    let Ok(status) = compiled else {
        eprintln!("SKIPPED: there is no C compiler (apt-get install gcc libc6-dev)");
        return;
    };
    assert!(status.success());
    for lock in LOCKS {
        let output = under(&library, lock, &program).output().unwrap();
        let said = stderr(&output);
        assert!(output.status.success() && output.stdout == b"all good\n", "{lock}: {said}");
        let summary = said.lines().last().unwrap_or("");
        assert!(summary.starts_with(&format!("larder: {lock}: ")), "{summary}");
        // Four mutexes are static, and those that were destroyed have given their object back.
        let mutexes: u32 = summary.split(' ').nth(2).unwrap().parse().unwrap();
        assert!((4..=8).contains(&mutexes), "{summary}");
    }
    std::fs::remove_file(program).unwrap();
}

/// The words of a condition have other places in later versions of glibc.
#[test]
fn shared_conditions_are_the_c_librarys_wherever_it_keeps_their_flags() {
    let Some(library) = library() else { return };
    let at = |name: &str| std::env::temp_dir().join(format!("larder-{name}-{}", std::process::id()));
    let (program, later) = (at("conditions"), at("later.so"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/later_conditions.c");
    let compile =
        |arguments: &[&str], to: &Path| Command::new("cc").args(arguments).arg("-o").arg(to).arg(source).status();
    let Ok(status) = compile(&["-O1", "-pthread"], &program) else {
        eprintln!("SKIPPED: there is no C compiler (apt-get install gcc libc6-dev)");
        return;
    };
    let as_library = ["-O1", "-DLIBRARY", "-shared", "-fPIC", "-nostdlib", "-ffreestanding"];
    assert!(status.success() && compile(&as_library, &later).unwrap().success());
    let mut both = library.into_os_string();
    both.push(":");
    both.push(&later);
    let output = under(Path::new(&both), "mutex", &program).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    std::fs::remove_file(program).unwrap();
    std::fs::remove_file(later).unwrap();
}

/// GNU sort with threads, and xz with threads: mutexes and condition variables of programs that others wrote.
#[test]
fn real_programs_give_the_same_output() {
    let Some(library) = library() else { return };
    let mut numbers = 0x2545_f491_u64;
    let text: String = (0..100_000)
        .map(|_| {
            numbers = numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            format!("{}\n", numbers >> 20)
        })
        .collect();
    let filter = |mut command: Command| {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let mut input = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The program may close its end first; what it prints decides.
                let _ = input.write_all(text.as_bytes());
                drop(input);
            });
            child.wait_with_output().unwrap()
        })
    };
    for program in [&["sort", "--parallel=8", "-n", "-S", "8M"][..], &["xz", "-0", "-T4", "--block-size=65536", "-c"]] {
        if Command::new(program[0]).arg("--version").output().is_err() {
            eprintln!("SKIPPED {}: it is not installed", program[0]);
            continue;
        }
        let mut plain = Command::new(program[0]);
        plain.args(&program[1..]);
        let wanted = filter(plain).stdout;
        assert!(!wanted.is_empty());
        for lock in LOCKS {
            let mut command = under(&library, lock, program[0]);
            command.args(&program[1..]);
            let output = filter(command);
            assert!(output.status.success(), "{program:?} with {lock}: {}", stderr(&output));
            assert_eq!(output.stdout, wanted, "{program:?} with {lock}");
            let said = stderr(&output);
            assert!(said.contains(&format!("larder: {lock}: ")) && !said.contains(" 0 mutexes"), "{program:?}: {said}");
        }
    }
}

#[test]
fn an_unknown_lock_is_named() {
    let Some(library) = library() else { return };
    let output = under(&library, "nonsense", "true").output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(
        stderr(&output),
        "larder: LARDER_LOCK is \"nonsense\", which is no lock: set it to mutex, fair, fifo, mcs, restricted-mcs, reciprocating or lock\n"
    );
}
