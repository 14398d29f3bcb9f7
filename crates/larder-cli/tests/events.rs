//! What `larder run` reads from the processes under it: the summary, and the log while the program runs.
//!
//! The program here is a shell that puts events files, prepared by the test, where a process would have written its own.

mod support;
#[path = "support/timeline.rs"]
mod timeline;

use std::fs;
use std::path::Path;
use std::process::Output;

use larder_events::{Cause, Counter, CycleRecord, FILE_BYTES, Identity, IndexKind, Phase, PhaseKind, Writer};
use larder_units::{Bytes, Nanos};
use support::{Folder, larder, stderr};
use timeline::Timeline;

/// Memory that an events file is prepared in.
struct Prepared {
    memory: Vec<u64>,
    writer: Writer,
}

impl Prepared {
    fn new(pid: u32, program: &str) -> Self {
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
        Prepared { memory, writer }
    }

    fn write(&self, path: &Path) {
        // SAFETY: the same memory, as bytes.
        let bytes = unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast::<u8>(), FILE_BYTES) };
        fs::write(path, bytes).unwrap();
    }
}

/// An events file with a cycle for each pause, in milliseconds.
fn prepare(path: &Path, pid: u32, program: &str, pauses_ms: &[u64]) {
    let file = Prepared::new(pid, program);
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
        file.writer.publish(&cycle, &[]);
    }
    file.writer.counter(Counter::AllocatedBytes).store(64 << 20, std::sync::atomic::Ordering::Relaxed);
    file.write(path);
}

/// The phases of the cycle that `prepare_concurrent` makes: kind, beginning and end in nanoseconds after 2 s, amount.
const PHASES: [(PhaseKind, u64, u64, u64); 8] = [
    (PhaseKind::Watch, 0, 900_000, 4096),
    (PhaseKind::StopThreads, 1_000_000, 1_020_001, 2),
    (PhaseKind::StartStop, 1_000_000, 1_100_003, 2),
    (PhaseKind::Clean, 4_000_000, 5_000_000, 70),
    (PhaseKind::Beside, 1_100_003, 5_000_000, 123),
    (PhaseKind::Wait, 5_000_000, 6_000_007, 0),
    (PhaseKind::Written, 6_100_000, 6_200_000, 5),
    (PhaseKind::Stop, 6_000_007, 6_500_009, 3),
];
const AT: u64 = 2_000_000_000;

/// An events file with one concurrent cycle.
fn prepare_concurrent(path: &Path, pid: u32) {
    let file = Prepared::new(pid, "server");
    let mut cycle = CycleRecord::new(1, Cause::Budget);
    cycle.begun = Nanos(AT + 1_000_000);
    cycle.start_pause = Nanos(100_003);
    cycle.start = Nanos(AT + 6_000_007);
    cycle.time_to_stop = Nanos(90_000);
    cycle.pause = Nanos(500_002);
    cycle.total = Nanos(700_000);
    (cycle.markers, cycle.markers_beside, cycle.helps, cycle.bytes_helped) = (4, 2, 6, 777);
    (cycle.marked_beside, cycle.pages_cleaned, cycle.pages_left) = (Nanos(4_000_000), 70, 5);
    (cycle.live, cycle.heap) = (Bytes::mib(3), Bytes::mib(8));
    let phases = PHASES.map(|(kind, start, end, amount)| Phase {
        code: kind as u64,
        start: Nanos(AT + start),
        took: Nanos(end - start),
        amount,
    });
    file.writer.publish(&cycle, &phases);
    file.write(path);
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
        "for i in $(seq 12000); do [ \"$(wc -l < {0})\" -ge 2 ] && exit 5; sleep 0.05; done; exit 6",
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
fn a_trace_has_each_cycle_with_its_phases_and_the_log_has_the_same() {
    let folder = Folder::new();
    prepare(&folder.path("a.larder"), NOBODY, "churn", &[1, 2]);
    prepare_concurrent(&folder.path("b.larder"), NOBODY + 1);
    let (trace, log) = (folder.path("trace.json"), folder.path("log.json"));
    let options = ["--quiet", "--trace", trace.to_str().unwrap(), "--log", log.to_str().unwrap()];
    let output = run_installing(&folder, &["a.larder", "b.larder"], &options, ":");
    assert!(output.status.success(), "{}", stderr(&output));
    let timeline = Timeline::read(&fs::read_to_string(&trace).unwrap());
    timeline.check();
    let stops = timeline.slices(NOBODY, "stop cycle");
    assert_eq!(stops.len(), 2);
    assert_eq!((stops[1].start, stops[1].end), (3_000_000_000, 3_002_000_000));

    let server = NOBODY + 1;
    let cycles = timeline.slices(server, "concurrent cycle");
    assert_eq!((cycles[0].start, cycles[0].end), (AT + 1_000_000, AT + 6_700_007));
    for (name, value) in [("pages_found", 75), ("helps", 6), ("helped_bytes", 777), ("markers_beside", 2)] {
        assert_eq!(cycles[0].args[name], value, "{name}");
    }
    for (kind, start, end, amount) in PHASES {
        let slices = timeline.slices(server, kind.name());
        assert_eq!((slices.len(), slices[0].start, slices[0].end), (1, AT + start, AT + end), "{}", kind.name());
        if !kind.unit().is_empty() {
            assert_eq!(slices[0].args[kind.unit()], amount, "{}", kind.name());
        }
    }
    let pauses = timeline.slices(server, "pause");
    assert_eq!(pauses.iter().map(|pause| pause.end - pause.start).collect::<Vec<_>>(), [100_003, 500_002]);
    let stops = timeline.slices(server, "time to stop");
    assert_eq!(stops.iter().map(|stop| stop.end - stop.start).collect::<Vec<_>>(), [20_001, 90_000]);
    assert_eq!(timeline.counter(server, "written pages"), [70, 5]);
    assert_eq!(timeline.counter(server, "heap"), [8 << 20]);
    assert_eq!(timeline.counter(server, "live"), [3 << 20]);
    assert_eq!(timeline.counter(server, "markers"), [2, 4, 0]);

    let log = fs::read_to_string(&log).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let line = lines.into_iter().find(|line| line["pid"] == server).unwrap();
    assert_eq!(line["began_ns"], AT + 1_000_000);
    assert_eq!((&line["pages_found"], &line["markers_beside"]), (&75.into(), &2.into()));
    let phases = line["phases"].as_array().unwrap();
    assert_eq!(phases.len(), PHASES.len());
    assert_eq!(
        phases[4],
        serde_json::json!({"phase": "clean", "start_ns": AT + 4_000_000, "ns": 1_000_000, "pages": 70})
    );
}

#[test]
fn a_trace_can_be_read_while_the_program_runs() {
    let folder = Folder::new();
    prepare(&folder.path("a.larder"), NOBODY, "churn", &[1, 2]);
    let (trace, copy) = (folder.path("trace.json"), folder.path("copy.json"));
    let wait = format!(
        "for i in $(seq 12000); do grep -q 'stop cycle' {0} && cp {0} {1} && exit 5; sleep 0.05; done; exit 6",
        trace.display(),
        copy.display()
    );
    let output = run_installing(&folder, &["a.larder"], &["--quiet", "--trace", trace.to_str().unwrap()], &wait);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    // Whole events, and only the end of the array is missing.
    let text = fs::read_to_string(&copy).unwrap();
    assert!(serde_json::from_str::<serde_json::Value>(&text).is_err(), "the program has ended");
    let timeline = Timeline::read(&(text + "]"));
    timeline.check();
    assert_eq!(timeline.slices(NOBODY, "stop cycle").len(), 2);
}

#[test]
fn a_trace_may_go_into_a_pipe() {
    let folder = Folder::new();
    prepare(&folder.path("1.larder"), NOBODY, "first", &[1, 2]);
    prepare(&folder.path("2.larder"), NOBODY + 1, "second", &[3]);
    let second = folder.path("2.larder");
    let install = format!(
        "sleep 0.3; cp {} $LARDER_EVENTS_DIR/x; mv $LARDER_EVENTS_DIR/x $LARDER_EVENTS_DIR/2.larder",
        second.display()
    );
    let output = run_installing(&folder, &["1.larder"], &["--quiet", "--trace", "/dev/stdout"], &install);
    let timeline = Timeline::read(&support::stdout(&output));
    timeline.check();
    assert_eq!(timeline.slices(NOBODY, "pause").len(), 2);
    assert_eq!(timeline.slices(NOBODY + 1, "pause").len(), 1);
}

#[test]
fn files_that_were_left_become_a_trace() {
    let folder = Folder::new();
    let events = folder.path("events");
    fs::create_dir(&events).unwrap();
    let trace = folder.path("trace.json");
    let make = || larder(&folder).arg("trace").args([&events, &trace]).output().unwrap();
    let output = make();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("run programs with LARDER_EVENTS_DIR="), "{}", stderr(&output));
    assert!(!trace.exists(), "a trace from another time would be lost");
    prepare_concurrent(&events.join("a.larder"), NOBODY);
    assert!(make().status.success());
    let timeline = Timeline::read(&fs::read_to_string(&trace).unwrap());
    timeline.check();
    assert_eq!(timeline.slices(NOBODY, "concurrent cycle").len(), 1);
}

/// On the staged Larder, where there is one: the phases of real cycles.
#[test]
fn a_program_that_is_marked_beside_has_a_timeline() {
    let Some(stage) = std::env::var_os("LARDER_STAGE") else { return };
    let stage = Path::new(&stage);
    let folder = Folder::new();
    let cache = folder.path("cache");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../apps/gc/cache.c");
    let compiler = std::process::Command::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .args([&cache, &source, Path::new("-I"), &stage.join("include"), &stage.join("lib/libgc.so.1")])
        .arg("-lm")
        .status();
    match compiler {
        Ok(status) => assert!(status.success()),
        Err(_) => {
            eprintln!("SKIPPED: no C compiler is installed (apt-get install gcc libc6-dev)");
            return;
        }
    }
    // A cycle begins to mark beside the program when its thread gets a CPU for it, and the program's time is the clock's.
    let mut seconds = 1;
    while cycles_beside(&folder, stage, &cache, seconds) == 0 {
        seconds *= 2;
        assert!(seconds < 300, "no cycle marked beside the program");
    }
}

/// Runs the program, compares its trace with its log, and says how many cycles marked beside it.
fn cycles_beside(folder: &Folder, stage: &Path, cache: &Path, seconds: u32) -> usize {
    let (trace, log) = (folder.path("trace.json"), folder.path("log.json"));
    let output = support::larder_with(&stage.join("lib"))
        // The program calls the barrier, which works on every kernel.
        .env("LARDER_WATCH", "barrier")
        .env("LARDER_MARKERS_BESIDE", "2")
        .args(["run", "--concurrent", "--quiet", "--trace"])
        .args([&trace, Path::new("--log"), &log, cache])
        .args(["2", "24", &seconds.to_string(), "4000", "30"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let timeline = Timeline::read(&fs::read_to_string(&trace).unwrap());
    timeline.check();
    let log = fs::read_to_string(&log).unwrap();
    let mut concurrent = 0;
    for line in log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()) {
        let pid = line["pid"].as_u64().unwrap() as u32;
        let is_concurrent = line["concurrent_ns"].as_u64().unwrap() > 0;
        concurrent += usize::from(is_concurrent);
        assert_eq!(line["markers_beside"], if is_concurrent { 2 } else { 0 }, "{line}");
        let name = if is_concurrent { "concurrent cycle" } else { "stop cycle" };
        let cycles = timeline.slices(pid, name);
        let cycle = cycles.iter().find(|cycle| cycle.args["cycle"] == line["cycle"]).expect("each line has its slice");
        let phases: Vec<_> =
            line["phases"].as_array().unwrap().iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
        let wanted: &[&str] = match is_concurrent {
            true => {
                &["census", "watch", "start_stop", "static_data", "trace", "mark_beside", "wait", "written", "stop"]
            }
            false => {
                &["stop_threads", "retire", "roots", "mark", "links_and_finalizers", "stop", "sweep", "return_memory"]
            }
        };
        for phase in wanted {
            assert!(phases.contains(phase), "{phase} is missing in {line}");
        }
        let rounds = phases.iter().filter(|phase| **phase == "clean").count();
        assert_eq!(line["cleaning_rounds"], rounds, "{line}");
        let pages = |phase: &str| -> u64 {
            let phases = line["phases"].as_array().unwrap().iter();
            phases.filter(|p| p["phase"] == phase).map(|p| p["pages"].as_u64().unwrap()).sum()
        };
        assert_eq!(line["pages_cleaned"], pages("clean"), "{line}");
        assert_eq!(line["pages_left"], pages("written"), "{line}");
        assert_eq!(cycle.start, line["began_ns"].as_u64().unwrap());
    }
    concurrent
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
    // A row for each of some, and one for all others.
    assert_eq!(text.lines().filter(|line| line.starts_with("many (")).count(), 32, "{text}");
    assert!(text.contains("\nand 868 others, "), "{text}");
}

#[test]
fn more_running_processes_than_the_program_may_open_files_are_all_counted() {
    let folder = Folder::new();
    // The process with this number runs as long as the machine does.
    prepare(&folder.path("a.larder"), 1, "many", &[1]);
    let script = format!(
        "exec 9<> {0}; for i in $(seq 100); do ln -s {0} $LARDER_EVENTS_DIR/$i.larder; done; sleep 1; ulimit -Sn >&2",
        folder.path("a.larder").display()
    );
    let tool = larder(&folder);
    let limited = "ulimit -Sn 50 && exec \"$0\" run -- sh -c \"$1\"";
    let mut shell = std::process::Command::new("sh");
    shell.env("LARDER_LIB", folder.path("lib")).args(["-c", limited]).arg(tool.get_program()).arg(script);
    let text = stderr(&shell.output().unwrap());
    assert!(text.starts_with("50\nlarder: 100 processes used the heap"), "{text}");
}

/// A process that has ended costs nothing any more: its file is gone, whatever its number is used for since, and no descriptor is left. One that
/// still writes keeps its file, in another pid namespace too, where nobody has its number.
#[test]
fn files_of_processes_that_have_ended_go_while_the_program_runs() {
    let folder = Folder::new();
    prepare(&folder.path("1.larder"), NOBODY, "ended", &[1]);
    prepare(&folder.path("2.larder"), 1, "reused", &[2]);
    prepare(&folder.path("3.larder"), NOBODY + 1, "elsewhere", &[3]);
    prepare(&folder.path("4.larder"), NOBODY, "again", &[4]);
    let wait = "exec 9<> $PREPARED/3.larder; ln -s $PREPARED/3.larder $LARDER_EVENTS_DIR; \
        left() { ls $LARDER_EVENTS_DIR | tr '\\n' ' '; }; \
        wait_for() { for i in $(seq 12000); do [ \"$(left)\" = \"$1\" ] && return; sleep 0.05; done; left; exit 6; }; \
        wait_for '3.larder '; \
        cp $PREPARED/4.larder $LARDER_EVENTS_DIR/x; mv $LARDER_EVENTS_DIR/x $LARDER_EVENTS_DIR/1.larder; \
        wait_for '3.larder '; \
        ls -l /proc/$PPID/fd | grep -c '[.]larder'; exit 5";
    let script = format!("PREPARED={}; {wait}", folder.0.display());
    let output = run_installing(&folder, &["1.larder", "2.larder"], &[], &script);
    let text = stderr(&output);
    assert_eq!((output.status.code(), support::stdout(&output).as_str()), (Some(5), "1\n"), "{text}");
    for line in ["larder: 4 processes used the heap", "\nended (", "\nreused (", "\nelsewhere (", "\nagain ("] {
        assert!(text.contains(line), "no '{line}' in\n{text}");
    }
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
