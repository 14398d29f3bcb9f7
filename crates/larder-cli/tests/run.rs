//! `larder run`: what it starts and refuses, exit statuses, signals.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use support::{Folder, larder, stderr, stdout};

/// The first 64 bytes of an ELF file without program headers.
fn elf(class: u8, data: u8, machine: u16) -> Vec<u8> {
    let mut header = vec![0; 64];
    header[..4].copy_from_slice(b"\x7fELF");
    (header[4], header[5], header[6]) = (class, data, 1);
    header[16] = 2;
    header[18..20].copy_from_slice(&machine.to_le_bytes());
    header
}

/// Makes an executable file, through another process: a file that is open for writing cannot be started, and a test beside this one
/// could fork just while it is open here.
fn executable(folder: &Folder, name: &str, content: &[u8]) -> PathBuf {
    let (plain, path) = (folder.path("content"), folder.path(name));
    fs::write(&plain, content).unwrap();
    assert!(Command::new("install").args(["-m", "755"]).args([&plain, &path]).status().unwrap().success());
    path
}

const OURS: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };

#[test]
fn exit_status_and_streams_are_the_programs() {
    let folder = Folder::new();
    let output = larder(&folder).args(["run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(stdout(&output), "out\n");
    let text = stderr(&output);
    assert!(text.starts_with("err\nlarder: nothing used the heap"), "{text}");
    assert_eq!(text.lines().count(), 2);
}

#[test]
fn quiet_says_nothing() {
    let folder = Folder::new();
    let output = larder(&folder).args(["run", "--quiet", "true"]).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[test]
fn a_program_ended_by_a_signal_gives_128_and_its_number() {
    let folder = Folder::new();
    let output = larder(&folder).args(["run", "--", "sh", "-c", "kill -KILL $$"]).output().unwrap();
    assert_eq!(output.status.code(), Some(137));
}

#[test]
fn arguments_that_look_like_options_go_to_the_program() {
    let folder = Folder::new();
    let output = larder(&folder).args(["run", "echo", "--log", "-q", "--", "x"]).output().unwrap();
    assert_eq!(stdout(&output), "--log -q -- x\n");
}

#[test]
fn the_library_comes_first_on_the_loaders_path_and_the_rest_stays() {
    let folder = Folder::new();
    let mut command = larder(&folder);
    command.env("LD_LIBRARY_PATH", "/somewhere/else").args(["run", "--", "sh", "-c", "echo $LD_LIBRARY_PATH"]);
    let expected = format!("{}:/somewhere/else\n", folder.path("lib").canonicalize().unwrap().display());
    assert_eq!(stdout(&command.output().unwrap()), expected);
}

#[test]
fn signals_sent_to_the_tool_reach_the_program() {
    for (name, number) in [("TERM", libc::SIGTERM), ("INT", libc::SIGINT), ("HUP", libc::SIGHUP)] {
        let folder = Folder::new();
        let script = format!("trap 'exit 42' {name}; echo ready; while :; do sleep 0.05; done");
        let mut command = larder(&folder);
        command.args(["run", "--quiet", "--", "sh", "-c", &script]).stdout(Stdio::piped());
        // A shell cannot trap what was ignored when it began, as SIGINT is in what a script runs in the background.
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(move || match libc::signal(number, libc::SIG_DFL) {
                libc::SIG_ERR => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        let mut tool = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(tool.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        // SAFETY: the tool is our child and was not waited for.
        unsafe { libc::kill(tool.id() as libc::pid_t, number) };
        assert_eq!(tool.wait().unwrap().code(), Some(42), "{name}");
    }
}

#[test]
fn the_program_starts_with_no_signal_blocked() {
    let folder = Folder::new();
    let output = larder(&folder).args(["run", "--", "grep", "SigBlk", "/proc/self/status"]).output().unwrap();
    assert_eq!(stdout(&output).split_whitespace().last(), Some("0000000000000000"));
}

/// Has the tool started with these signals ignored.
fn ignoring(command: &mut Command, signals: &'static [libc::c_int]) -> std::process::Output {
    // SAFETY: system calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            signals.iter().for_each(|&signal| _ = libc::signal(signal, libc::SIG_IGN));
            Ok(())
        });
    }
    command.output().unwrap()
}

#[test]
fn a_program_is_waited_for_where_the_ends_of_children_are_ignored() {
    let folder = Folder::new();
    let output = ignoring(larder(&folder).args(["run", "--quiet", "--", "sh", "-c", "exit 7"]), &[libc::SIGCHLD]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(7), ""));
}

#[test]
fn signals_that_are_ignored_stay_ignored() {
    let folder = Folder::new();
    for signals in [
        &[][..],
        &[libc::SIGPIPE],
        &[libc::SIGCHLD],
        &[libc::SIGXFSZ],
        &[libc::SIGPIPE, libc::SIGCHLD, libc::SIGXFSZ, libc::SIGTERM],
    ] {
        let show = ["grep", "SigIgn", "/proc/self/status"];
        let alone = ignoring(Command::new(show[0]).args(&show[1..]), signals);
        let under = ignoring(larder(&folder).args(["run", "--quiet", "--"]).args(show), signals);
        assert_eq!(stdout(&under), stdout(&alone), "{signals:?}");
    }
}

#[test]
fn what_nobody_can_read_does_not_change_the_status() {
    let folder = Folder::new();
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let status = larder(&folder).args(["run", "--", "sh", "-c", "exit 7"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(7), "standard error is full");
    let mut tool = larder(&folder);
    tool.args(["run", "--", "sh", "-c", "read line; exit 7"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut tool = tool.spawn().unwrap();
    drop(tool.stderr.take());
    drop(tool.stdin.take());
    assert_eq!(tool.wait().unwrap().code(), Some(7), "nobody reads standard error");
    let status = larder(&folder).args(["run", "no-such-program-anywhere"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(127), "a failure of the tool's own");
    let output = larder(&folder).arg("doctor").stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "standard output is full");
    assert!(stderr(&output).starts_with("larder: standard output cannot be written: "), "{}", stderr(&output));
}

#[test]
fn a_program_with_file_capabilities_is_noted() {
    const NOBODY: u32 = 65534;
    let folder = Folder::new();
    let program = folder.path("program");
    assert!(Command::new("install").args(["-m", "755", "/bin/true"]).arg(&program).status().unwrap().success());
    let given = Command::new("setcap").arg("cap_net_raw+ep").arg(&program).output();
    if !given.is_ok_and(|output| output.status.success()) {
        eprintln!("only root gives capabilities to a file");
        return;
    }
    let mut command = larder(&folder);
    let output = match command.arg("run").arg(&program).uid(NOBODY).gid(NOBODY).output() {
        Ok(output) => output,
        Err(error) => return eprintln!("another user cannot start the tool: {error}"),
    };
    let note = format!("larder: {} has file capabilities", program.display());
    assert!(stderr(&output).starts_with(&note), "{}", stderr(&output));
    // For root the program gains nothing, and the loader heeds library paths.
    let text = stderr(&larder(&folder).arg("run").arg(&program).output().unwrap());
    assert!(!text.contains("capabilities"), "{text}");
}

/// A library's folder with an object to preload, which does nothing.
fn library_with_preload(folder: &Folder, name: &str) -> PathBuf {
    let library = folder.path(name);
    fs::create_dir_all(&library).unwrap();
    fs::write(library.join("libgc.so.1"), b"").unwrap();
    let preload = library.join("larder-preload.so");
    let compiled = Command::new("cc").args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(preload).status();
    assert!(compiled.unwrap().success());
    library
}

#[test]
fn programs_with_the_address_sanitizer_start() {
    let folder = Folder::new();
    let library = library_with_preload(&folder, "lib");
    let (source, program) = (folder.path("main.c"), folder.path("program"));
    fs::write(&source, "int main(void) { return 5; }").unwrap();
    let compiled = Command::new("cc").arg("-fsanitize=address").arg(source).arg("-o").arg(&program).output().unwrap();
    if !compiled.status.success() {
        eprintln!("the compiler has no address sanitizer: {}", stderr(&compiled));
        return;
    }
    let output = support::larder_with(&library).args(["run", "-q"]).arg(program).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(5), ""));
    let mut command = support::larder_with(&library);
    command.env("ASAN_OPTIONS", "color=never").args(["run", "-q", "sh", "-c", "echo $ASAN_OPTIONS"]);
    assert_eq!(stdout(&command.output().unwrap()), "verify_asan_link_order=0:color=never\n");
}

#[test]
fn the_library_may_lie_in_a_folder_with_blanks_in_its_name() {
    let folder = Folder::new();
    let library = library_with_preload(&folder, "a folder");
    let mut command = support::larder_with(&library);
    let output = command.args(["run", "-q", "grep", "-c", "larder-preload", "/proc/self/maps"]).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[test]
fn what_cannot_run_is_refused_with_the_cause() {
    let folder = Folder::new();
    fs::write(folder.path("plain"), b"text").unwrap();
    let fifo = folder.path("fifo");
    assert!(Command::new("mkfifo").args(["-m", "755"]).arg(&fifo).status().unwrap().success());
    let cases: [(PathBuf, i32, &str); 10] = [
        ("no-such-program-anywhere".into(), 127, "not found in PATH"),
        (folder.path("missing"), 127, "No such file"),
        (folder.path("plain"), 126, "not executable"),
        (folder.0.clone(), 126, "is a folder"),
        (fifo, 126, "is no regular file"),
        (executable(&folder, "static", &elf(2, 1, OURS)), 126, "statically linked"),
        (executable(&folder, "narrow", &elf(1, 1, 3)), 126, "32-bit x86"),
        (executable(&folder, "foreign", &elf(2, 1, 243)), 126, "RISC-V"),
        (executable(&folder, "big", &elf(2, 2, 0)), 126, "big-endian"),
        (
            executable(&folder, "orphan", b"#!/no/such/interpreter\n"),
            127,
            "interpreter is missing: /no/such/interpreter",
        ),
    ];
    for (program, status, cause) in cases {
        let output = larder(&folder).arg("run").arg("--").arg(&program).output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{}: {text}", program.display());
        assert!(text.starts_with("larder: ") && text.contains(cause), "{}: {text}", program.display());
    }
}

#[test]
fn scripts_run_with_and_without_an_interpreter_line() {
    let folder = Folder::new();
    let marked = executable(&folder, "marked", b"#!/bin/sh\necho marked \"$@\"\n");
    let bare = executable(&folder, "bare", b"echo bare\n");
    assert_eq!(stdout(&larder(&folder).arg("run").arg(marked).arg("x").output().unwrap()), "marked x\n");
    assert_eq!(stdout(&larder(&folder).arg("run").arg(bare).output().unwrap()), "bare\n");
}

#[test]
fn the_tools_own_failures_have_their_own_status() {
    let folder = Folder::new();
    let output = larder(&folder).args(["run", "--log", "/no/such/folder/log", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("/no/such/folder/log"));
    let output = support::larder_with(&folder.path("nowhere")).args(["run", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("LARDER_LIB"));
}

/// A program may end with 2, too.
#[test]
fn wrong_arguments_are_the_tools_own_failure() {
    let folder = Folder::new();
    for arguments in [
        &["run"][..],
        &["run", "--young", "5", "true"],
        &["run", "--concurrent", "--pause", "+5ms", "true"],
        &["no-such-command"],
        // It would pass.
        &["doctor", "--self-test", "--rounds", "0"],
        &[],
    ] {
        let output = larder(&folder).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        assert!(stderr(&output).contains("Usage: ") || stderr(&output).contains("--help"), "{}", stderr(&output));
    }
    let output = larder(&folder).args(["run", "--no-such-option", "true"]).output().unwrap();
    assert!(stderr(&output).contains("no option of `larder run`"), "{}", stderr(&output));
    let output = larder(&folder).args(["run", "--help"]).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[test]
fn a_log_and_a_trace_are_two_files() {
    let folder = Folder::new();
    let (one, other) = (folder.path("one"), folder.path("other"));
    fs::write(&one, "").unwrap();
    std::os::unix::fs::symlink(&one, &other).unwrap();
    let run = |log: &PathBuf, trace: &PathBuf| {
        larder(&folder)
            .arg("run")
            .arg("--log")
            .arg(log)
            .arg("--trace")
            .arg(trace)
            .args(["-q", "true"])
            .output()
            .unwrap()
    };
    let output = run(&one, &other);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains("name two"), "{}", stderr(&output));
    let output = run(&"/dev/null".into(), &"/dev/null".into());
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[test]
fn a_log_that_may_not_grow_does_not_end_the_tool() {
    let folder = Folder::new();
    let mut shell = Command::new("sh");
    // Of the shell's own children the limit is that of files that they write to.
    shell.args(["-c", "ulimit -f 0; exec \"$0\" run --trace \"$1\" -q sh -c 'exit 7'"]);
    let output = shell
        .arg(larder(&folder).get_program())
        .arg(folder.path("trace"))
        .env("LARDER_LIB", folder.path("lib"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(stderr(&output).contains("is not complete: File too large"), "{}", stderr(&output));
}

/// A tool that was killed cannot remove its folder for events, which is in memory.
#[test]
fn what_a_killed_tool_left_is_removed_by_the_next() {
    let shm = std::path::Path::new("/dev/shm");
    let make = |name: &str| {
        let folder = shm.join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("1.larder"), "").unwrap();
        folder
    };
    let number = std::process::id() % 100_000;
    let [left, fresh, locked, other] =
        ["larder-x", "larder-y", "larder-z", "larder-of-somebody"].map(|name| make(&format!("{name}{number:05}")));
    for folder in [&left, &locked, &other] {
        let two_hours_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
        fs::File::open(folder).unwrap().set_modified(two_hours_ago).unwrap();
    }
    let lock = fs::File::open(&locked).unwrap();
    lock.try_lock().unwrap();
    let folder = Folder::new();
    assert!(larder(&folder).args(["run", "-q", "true"]).status().unwrap().success());
    let there = [&left, &fresh, &locked, &other].map(|folder| folder.exists());
    for folder in [&left, &fresh, &locked, &other] {
        let _ = fs::remove_dir_all(folder);
    }
    assert_eq!(there, [false, true, true, true]);
}

#[test]
fn a_running_tool_has_its_folder_locked() {
    let folder = Folder::new();
    let script = "flock --nonblock $LARDER_EVENTS_DIR true; echo $?";
    let output = larder(&folder).args(["run", "-q", "sh", "-c", script]).output().unwrap();
    assert_eq!(stdout(&output), "1\n", "{}", stderr(&output));
}

#[test]
fn an_empty_name_of_the_librarys_folder_is_none() {
    let folder = Folder::new();
    let alone = folder.path("larder");
    // By another process, as in `executable`.
    assert!(Command::new("install").arg(env!("CARGO_BIN_EXE_larder")).arg(&alone).status().unwrap().success());
    let output = Command::new(alone).args(["run", "true"]).env("LARDER_LIB", "").output().unwrap();
    assert!(stderr(&output).contains("libgc.so.1 was not found in "), "{}", stderr(&output));
}
