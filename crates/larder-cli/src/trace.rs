//! A timeline of every cycle for Perfetto: JSON in Chrome's trace format, which ui.perfetto.dev opens as it is.
//!
//! The file is one array that is written while the program runs, whole events at a time; viewers accept one whose end is missing,
//! so it can be opened before the program has ended, or after the tool was killed. Each process has three tracks, and within
//! each the slices lie apart or in one another:
//!
//! | track | slices |
//! |---|---|
//! | pauses | what the program sees: each stop, and in it the time to stop |
//! | cycles | each cycle, and in it its phases ([`larder_events::PhaseKind`]) |
//! | before a cycle | what a concurrent cycle needs before it begins, which may overlap with the end of the one before |
//!
//! Counters: the heap, live bytes, markers at work, and written pages that were found.

use std::cmp::Reverse;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use larder_events::{Cause, Cycle, CycleRecord, Phase, PhaseKind};
use larder_units::Nanos;
use serde_json::{Map, Value, json};

use crate::exit::Failure;

/// The tracks of a process, as the format's numbers of threads.
const TRACKS: [(u32, &str); 3] = [(PAUSES, "pauses"), (CYCLES, "cycles"), (BEFORE, "before a cycle")];
const PAUSES: u32 = 1;
const CYCLES: u32 = 2;
const BEFORE: u32 = 3;

/// The file of `--trace`.
pub struct Trace {
    path: PathBuf,
    file: File,
    /// Whole events that are not written yet.
    waiting: String,
    /// Whether there was an event yet. A pipe could not tell by its length.
    has_events: bool,
    failure: Option<std::io::Error>,
}

impl Trace {
    /// Creates or empties the file.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let mut file = File::create(path)
            .map_err(|error| Failure::tool(format!("the trace {} cannot be written: {error}", path.display())))?;
        let failure = file.write_all(b"[").err();
        Ok(Trace { path: path.to_owned(), file, waiting: String::new(), has_events: false, failure })
    }

    fn event(&mut self, event: &Value) {
        // Only the first event follows the bracket.
        self.waiting += if self.has_events { ",\n" } else { "\n" };
        self.has_events = true;
        self.waiting += &event.to_string();
    }

    /// Names a process and its tracks.
    pub fn process(&mut self, pid: u32, program: &str) {
        self.event(&json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": program}}));
        for (track, name) in TRACKS {
            self.event(&json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": track, "args": {"name": name}}));
            let place = json!({"sort_index": track});
            self.event(&json!({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": track, "args": place}));
        }
    }

    /// Says that cycles were overwritten before they could be read, all before `at`.
    pub fn missed(&mut self, pid: u32, at: Nanos, cycles: u64) {
        self.event(&json!({
            "ph": "i", "s": "p", "name": "cycles that were not read", "pid": pid, "tid": CYCLES, "ts": micros(at),
            "args": {"cycles": cycles},
        }));
    }

    /// Draws a cycle.
    pub fn cycle(&mut self, pid: u32, cycle: &Cycle) {
        let record = &cycle.record;
        let end = after(record.start, record.total);
        self.pauses(pid, cycle);
        let name = match (record.begun.0 > 0, record.young != 0) {
            (false, _) => "stop cycle",
            (true, false) => "concurrent cycle",
            (true, true) => "young cycle",
        };
        self.slice((pid, CYCLES), name, record.began(), end, cycle_args(record));
        for (kind, phase) in in_order(cycle) {
            let track = if matches!(kind, PhaseKind::Census | PhaseKind::Watch) { BEFORE } else { CYCLES };
            self.slice((pid, track), kind.name(), phase.start, phase.end(), phase_args(kind, phase));
            if matches!(kind, PhaseKind::Clean | PhaseKind::Written) {
                self.counter(pid, "written pages", phase.end(), "pages", phase.amount);
            }
        }
        if record.begun.0 > 0 {
            self.counter(pid, "markers", after(record.begun, record.start_pause), "threads", record.markers_beside);
        }
        self.counter(pid, "markers", record.start, "threads", u64::from(record.markers));
        self.counter(pid, "markers", after(record.start, record.pause), "threads", 0);
        self.counter(pid, "heap", end, "bytes", record.heap.0 as u64);
        self.counter(pid, "live", end, "bytes", record.live.0 as u64);
    }

    fn pauses(&mut self, pid: u32, cycle: &Cycle) {
        let record = &cycle.record;
        let mut pause = |start: Nanos, took: Nanos, time_to_stop: Nanos| {
            self.slice((pid, PAUSES), "pause", start, after(start, took), json!({"cycle": record.number}));
            let stopped = after(start, time_to_stop.min(took));
            self.slice((pid, PAUSES), "time to stop", start, stopped, json!({}));
        };
        if record.begun.0 > 0 {
            let is_stop = |phase: &&Phase| phase.kind() == Some(PhaseKind::StopThreads) && phase.start == record.begun;
            let time_to_stop = cycle.phases.iter().find(is_stop).map_or(Nanos(0), |phase| phase.took);
            pause(record.begun, record.start_pause, time_to_stop);
        }
        pause(record.start, record.pause, record.time_to_stop);
    }

    fn slice(&mut self, (pid, track): (u32, u32), name: &str, start: Nanos, end: Nanos, args: Value) {
        let took = micros(end.since(start));
        self.event(&json!({
            "ph": "X", "name": name, "pid": pid, "tid": track, "ts": micros(start), "dur": took, "args": args,
        }));
    }

    fn counter(&mut self, pid: u32, name: &str, at: Nanos, unit: &str, value: u64) {
        let args = Map::from_iter([(unit.to_owned(), json!(value))]);
        self.event(&json!({"ph": "C", "name": name, "pid": pid, "ts": micros(at), "args": args}));
    }

    /// Writes what is waiting.
    pub fn flush(&mut self) {
        if self.failure.is_none()
            && let Err(error) = self.file.write_all(self.waiting.as_bytes())
        {
            self.failure = Some(error);
        }
        self.waiting.clear();
    }

    /// Ends the array.
    pub fn finish(&mut self) {
        self.waiting += "\n]\n";
        self.flush();
        if let Some(error) = self.failure.take() {
            // The program's own end matters more than its trace, so this is said and not returned.
            note!("the trace {} is not complete: {error}", self.path.display());
        }
    }
}

/// The phases of known kinds in the order in which they began, enclosing ones first.
pub fn in_order(cycle: &Cycle) -> Vec<(PhaseKind, &Phase)> {
    let mut phases: Vec<_> = cycle.phases.iter().filter_map(|phase| Some((phase.kind()?, phase))).collect();
    phases.sort_by_key(|(_, phase)| (phase.start, Reverse(phase.end())));
    phases
}

fn after(start: Nanos, took: Nanos) -> Nanos {
    Nanos(start.0.saturating_add(took.0))
}

/// The format's unit, to the nanosecond.
fn micros(time: Nanos) -> f64 {
    time.0 as f64 / 1000.0
}

fn phase_args(kind: PhaseKind, phase: &Phase) -> Value {
    if kind.unit().is_empty() {
        json!({})
    } else {
        Map::from_iter([(kind.unit().to_owned(), phase.amount.into())]).into()
    }
}

fn cycle_args(record: &CycleRecord) -> Value {
    let mut args = json!({
        "cycle": record.number,
        "cause": record.cause().map_or("unknown", Cause::name),
        "threads": record.threads,
        "threads_blocked": record.threads_blocked,
        "markers": record.markers,
        "live_bytes": record.live.0,
        "heap_bytes": record.heap.0,
        "allocated_bytes": record.allocated.0,
        "marked_objects": record.marked_objects,
    });
    if record.begun.0 > 0 {
        args["markers_beside"] = record.markers_beside.into();
        args["cleaning_rounds"] = record.cleaning_rounds.into();
        args["pages_found"] = (record.pages_cleaned + record.pages_left).into();
        args["pages_cleaned"] = record.pages_cleaned.into();
        args["pages_left"] = record.pages_left.into();
        args["pages_compared"] = record.pages_compared.into();
        args["helps"] = record.helps.into();
        args["helped_bytes"] = record.bytes_helped.into();
        args["young"] = (record.young != 0).into();
        args["cut_short"] = (record.hurried != 0).into();
    }
    args
}
