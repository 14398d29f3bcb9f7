//! What `larder run` reads from the processes under it: the summary, and the log while the program runs.
//!
//! The program here is a shell that puts events files, prepared by the test, where a process would have written its own.

mod support;

use std::fs;
use std::path::Path;
use std::process::Output;

use larder_events::{Cause, Counter, CycleRecord, FILE_BYTES, Identity, IndexKind, Writer};
use larder_units::{Bytes, Nanos};
use support::{Folder, larder, stderr};

/// An events file with a cycle for each pause, in milliseconds.
fn prepare(path: &Path, pid: u32, program: &str, pauses_ms: &[u64]) {
    let mut memory = vec![0u64; FILE_BYTES / 8];
    // SAFETY: zeroed, aligned, large enough, and alive as long as the writer.
    let writer = unsafe { Writer::new(memory.as_mut_ptr().cast()) };
    writer.initialise(Identity {
        pid,
        index: IndexKind::ConcurrencyId,
        start_monotonic: Nanos(1_000_000_000),
        start_realtime: Nanos(1_700_000_000_000_000_000),
        program: program.as_bytes(),
    });
    for (number, pause) in (1..).zip(pauses_ms) {
        let mut cycle = CycleRecord::new(number, Cause::Budget);
        cycle.start = Nanos(1_000_000_000 * (number + 1));
        cycle.pause = Nanos(pause * 1_000_000);
        cycle.time_to_stop = Nanos(50_000);
        cycle.total = cycle.pause;
        cycle.live = Bytes::mib(3);
        cycle.heap = Bytes::mib(8);
        cycle.allocated = Bytes::mib(10);
        cycle.buffer_waste = Bytes::mib(1);
        writer.publish(&cycle);
    }
    writer.counter(Counter::AllocatedBytes).store(64 << 20, std::sync::atomic::Ordering::Relaxed);
    // SAFETY: the same memory, as bytes.
    let bytes = unsafe { std::slice::from_raw_parts(memory.as_ptr().cast::<u8>(), FILE_BYTES) };
    fs::write(path, bytes).unwrap();
}

/// A pid that no process has: beyond the largest that Linux gives.
const NOBODY: u32 = 5_000_000;

/// Runs a shell that installs the files; copying and renaming is what makes a file appear whole.
fn run_installing(folder: &Folder, files: &[&str], options: &[&str], then: &str) -> Output {
    let mut script = String::from("set -e; ");
    for file in files {
        let path = folder.path(file);
        script += &format!(
            "cp {0} $LARDER_EVENTS_DIR/x; mv $LARDER_EVENTS_DIR/x $LARDER_EVENTS_DIR/{file}; ",
            path.display()
        );
    }
    script += then;
    larder(folder).arg("run").args(options).args(["--", "sh", "-c", &script]).output().unwrap()
}

#[test]
fn the_summary_has_the_figures_of_the_file() {
    let folder = Folder::new();
    prepare(&folder.path("a.larder"), NOBODY, "churn", &[1, 2, 3, 40]);
    let text = stderr(&run_installing(&folder, &["a.larder"], &[], ":"));
    for part in [
        "larder: churn (pid 5000000)",
        "mm_cid",
        "4 (4 budget)",
        "p50 2.00 ms, p99 40.0 ms, longest 40.0 ms",
        "p50 0.050 ms, longest 0.050 ms",
        "64.0 MiB, 15.8 MiB/s",
        "3.0 MiB, 8.0 MiB at the last collection",
        "4.0 MiB taken back unused at stops (6.2 % of what was allocated)",
    ] {
        assert!(text.contains(part), "no '{part}' in\n{text}");
    }
}

#[test]
fn several_processes_have_a_line_each_and_a_total() {
    let folder = Folder::new();
    prepare(&folder.path("a.larder"), NOBODY, "first", &[1, 1]);
    prepare(&folder.path("b.larder"), NOBODY + 1, "second", &[9]);
    let text = stderr(&run_installing(&folder, &["a.larder", "b.larder"], &[], ":"));
    let figures = |name: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in\n{text}"));
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert!(text.starts_with("larder: 2 processes used the heap"), "{text}");
    assert_eq!(figures("first (5000000)")[2], "2");
    assert_eq!(figures("second (5000001)")[2], "1");
    assert_eq!(figures("total")[..2], ["total", "3"]);
    assert!(figures("total").contains(&"9.00".to_owned()), "{text}");
}

#[test]
fn the_log_is_written_while_the_program_runs() {
    let folder = Folder::new();
    prepare(&folder.path("a.larder"), NOBODY, "churn", &[1, 2]);
    let log = folder.path("log.json");
    // The program itself waits for the second line, so it must be there before the program's end.
    let wait = format!(
        "for i in $(seq 200); do [ \"$(wc -l < {0})\" -ge 2 ] && exit 5; sleep 0.05; done; exit 6",
        log.display()
    );
    let output = run_installing(&folder, &["a.larder"], &["--quiet", "--log", log.to_str().unwrap()], &wait);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[1]["pid"], NOBODY);
    assert_eq!(lines[1]["cycle"], 2);
    assert_eq!(lines[1]["cause"], "budget");
    assert_eq!(lines[1]["pause_ns"], 2_000_000);
    assert_eq!(lines[1]["start_unix_ns"], 1_700_000_002_000_000_000u64);
    assert_eq!(lines[1]["live_bytes"], 3 << 20);
}

#[test]
fn more_processes_than_files_can_be_open_are_all_counted() {
    let folder = Folder::new();
    prepare(&folder.path("a.larder"), NOBODY, "many", &[1]);
    let script = format!(
        "for i in $(seq 900); do ln -s {} $LARDER_EVENTS_DIR/$i.larder; done",
        folder.path("a.larder").display()
    );
    let tool = larder(&folder);
    let limited = "ulimit -n 600 && exec \"$0\" run -- sh -c \"$1\"";
    let mut shell = std::process::Command::new("sh");
    shell.env("LARDER_LIB", folder.path("lib")).args(["-c", limited]).arg(tool.get_program()).arg(script);
    let text = stderr(&shell.output().unwrap());
    assert!(text.starts_with("larder: 900 processes used the heap"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("total                        900"), "{text}");
}

#[test]
fn a_damaged_file_is_named_and_the_rest_is_read() {
    let folder = Folder::new();
    prepare(&folder.path("a.larder"), NOBODY, "churn", &[1]);
    fs::write(folder.path("b.larder"), b"short").unwrap();
    let text = stderr(&run_installing(&folder, &["a.larder", "b.larder"], &[], ":"));
    assert!(text.contains("b.larder: 5 bytes long"), "{text}");
    assert!(text.contains("churn (pid 5000000)"), "{text}");
}

#[test]
fn the_folder_for_events_is_gone_afterwards() {
    let folder = Folder::new();
    let output =
        larder(&folder).args(["run", "--quiet", "--", "sh", "-c", "echo $LARDER_EVENTS_DIR"]).output().unwrap();
    let path = support::stdout(&output);
    assert!(path.trim().starts_with('/') && !Path::new(path.trim()).exists(), "{path}");
}
