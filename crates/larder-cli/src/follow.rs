//! Reads the events of every process under a program while they run.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use larder_events::{Cause, Counter, Cycle, CycleRecord, FILE_SUFFIX, IndexKind, OpenError, Phase, PhaseKind, Reader};
use larder_units::{Bytes, Nanos};
use serde_json::json;

use crate::exit::Failure;
use crate::trace::{self, Trace};

/// Leading bits of a time by which it is told from others: percentiles are right to one part in a thousand.
const BITS: u32 = 11;
/// Files that stay open for processes that seem to have ended, where the kernel does not tell. Beyond, the tool closes them, since its own number of
/// open files is limited; below it does not, since a process in another pid namespace only seems to have ended.
const OPEN_FILES: usize = 256;

/// The file of `--log`.
pub struct Log {
    path: PathBuf,
    file: BufWriter<File>,
    failure: Option<std::io::Error>,
}

impl Log {
    /// Creates or empties the file.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create(path)
            .map_err(|error| Failure::tool(format!("the log {} cannot be written: {error}", path.display())))?;
        Ok(Log { path: path.to_owned(), file: BufWriter::new(file), failure: None })
    }

    fn line(&mut self, line: &serde_json::Value) {
        if self.failure.is_none()
            && let Err(error) = writeln!(self.file, "{line}")
        {
            self.failure = Some(error);
        }
    }

    fn flush(&mut self) {
        if self.failure.is_none()
            && let Err(error) = self.file.flush()
        {
            self.failure = Some(error);
        }
    }
}

/// Where what is read goes, beside the sums.
#[derive(Default)]
pub struct Records {
    /// The file of `--log`.
    pub log: Option<Log>,
    /// The file of `--trace`.
    pub trace: Option<Trace>,
}

/// Times of many cycles: percentiles, and exactly the mean and the longest one.
///
/// A process has few different times where it has few cycles, and a program may have many thousands of such processes.
#[derive(Clone, Default)]
pub struct Times {
    /// How many took so long, by the longest time with the same leading bits.
    counts: BTreeMap<u64, u64>,
    count: u64,
    sum: Nanos,
    longest: Nanos,
}

impl Times {
    fn record(&mut self, time: Nanos) {
        let below = (u64::BITS - time.0.leading_zeros()).saturating_sub(BITS);
        *self.counts.entry(time.0 | ((1 << below) - 1)).or_default() += 1;
        self.count += 1;
        self.sum = Nanos(self.sum.0.saturating_add(time.0));
        self.longest = self.longest.max(time);
    }

    /// Takes in the times of another process.
    pub fn add(&mut self, other: &Times) {
        other.counts.iter().for_each(|(&time, count)| *self.counts.entry(time).or_default() += count);
        self.count += other.count;
        self.sum = Nanos(self.sum.0.saturating_add(other.sum.0));
        self.longest = self.longest.max(other.longest);
    }

    /// The time that `percent` of the cycles did not exceed.
    pub fn percentile(&self, percent: f64) -> Nanos {
        let wanted = (percent * self.count as f64 / 100.0).ceil().max(1.0) as u64;
        let mut counted = 0;
        let found = self.counts.iter().find(|(_, count)| {
            counted += **count;
            counted >= wanted
        });
        found.map_or(self.longest, |(&time, _)| Nanos(time).min(self.longest))
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The mean of all.
    pub fn mean(&self) -> Nanos {
        Nanos(self.sum.0.checked_div(self.count).unwrap_or(0))
    }

    /// The longest one.
    pub fn longest(&self) -> Nanos {
        self.longest
    }
}

/// What one process did with the heap.
#[derive(Clone)]
pub struct ProcessSummary {
    /// In the process's own pid namespace.
    pub pid: u32,
    /// Its program's name.
    pub program: String,
    /// How its buffers were chosen.
    pub index: IndexKind,
    /// Cycles, those that were missed included.
    pub cycles: u64,
    /// Cycles by cause, in the order of [`Cause::ALL`].
    pub by_cause: [u64; Cause::ALL.len()],
    /// Cycles that were overwritten before they could be read.
    pub missed: u64,
    /// Cycles that marked beside the program.
    pub concurrent: u64,
    /// Those of them that were young: survivors of earlier ones were left alone.
    pub young: u64,
    /// Those whose marking was cut short: the program overtook them, or asked for a collection.
    pub cut_short: u64,
    /// Written pages that they scanned again beside the program.
    pub pages_cleaned: u64,
    /// Written pages that they left to their final stops.
    pub pages_left: u64,
    /// What running threads saw; of a cycle that marked beside the program, both stops.
    pub pauses: Times,
    /// Those of the stops that begin a cycle beside the program.
    pub first_stops: Times,
    /// Those of the stops in which cycles end: of one that stops the program all the time, its only one.
    pub last_stops: Times,
    /// From the request until all had stopped.
    pub stops: Times,
    /// From the start of the heap until the last sign of life.
    pub ran: Nanos,
    /// Handed out.
    pub allocated: Bytes,
    /// Live at the last cycle.
    pub live: Bytes,
    /// The most that a cycle found live.
    pub most_live: Bytes,
    /// Found live, over all cycles: what the markers went through.
    pub marked: Bytes,
    /// Time that this took: from the last answer until everything is decided, over all cycles.
    pub marking: Nanos,
    /// The counters at the end, in the order of [`Counter::ALL`].
    pub counters: Vec<u64>,
    /// The heap at the last cycle, or at the process's exit where there was no cycle.
    pub heap: Bytes,
    /// Taken back unused from buffers, over all cycles.
    pub buffer_waste: Bytes,
    /// Given back to the kernel, over all cycles.
    pub returned: Bytes,
}

/// Whether a path is named like the events file of a process.
pub fn is_events_file(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(FILE_SUFFIX.as_bytes())
}

/// Whose folder it is that is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Somebody's, who may read the files again.
    Files,
    /// Ours: a file goes when its process has ended, with the memory that it takes.
    Nothing,
}

struct Process {
    path: PathBuf,
    reader: Reader,
    start_monotonic: Nanos,
    start_realtime: Nanos,
    next: u64,
    /// Sums over the records that were read.
    sums: ProcessSummary,
    /// The last moment at which the process was seen, on the monotonic clock.
    seen: Nanos,
}

/// Follows all events files of one folder.
pub struct Follower {
    folder: PathBuf,
    keep: Keep,
    records: Records,
    /// Files that are there and were opened, or can never be.
    known: HashSet<PathBuf>,
    /// Those that are looked at.
    processes: Vec<Process>,
    /// Those that have ended, with the times at which they started.
    ended: Vec<(Nanos, ProcessSummary)>,
}

impl Follower {
    /// Nothing is read yet.
    pub fn new(folder: &Path, keep: Keep, records: Records) -> Self {
        let (known, processes, ended) = (HashSet::new(), Vec::new(), Vec::new());
        Follower { folder: folder.to_owned(), keep, records, known, processes, ended }
    }

    /// Reads what is new.
    pub fn look(&mut self) {
        // Many files at once come in bunches, so that those of processes that ended are closed in between.
        while self.open_new_files() == OPEN_FILES {
            self.read_open_files();
        }
        self.read_open_files();
        if let Some(log) = &mut self.records.log {
            log.flush();
        }
        if let Some(trace) = &mut self.records.trace {
            trace.flush();
        }
    }

    fn read_open_files(&mut self) {
        let mut open = self.processes.len();
        for mut process in std::mem::take(&mut self.processes) {
            // Asked before the file is read, so that nothing comes after.
            let life = process.life();
            process.look(life, &mut self.records);
            let close = match life {
                Life::Over => true,
                Life::Unseen => open > OPEN_FILES,
                Life::Seen | Life::Elsewhere => false,
            };
            if !close {
                self.processes.push(process);
                continue;
            }
            open -= 1;
            // A name that is free again may be the next file's, of a process that comes to have the number or that executes another program.
            if life == Life::Over && self.keep == Keep::Nothing && fs::remove_file(&process.path).is_ok() {
                self.known.remove(&process.path);
            }
            self.ended.push((process.start_monotonic, process.finish()));
        }
    }

    /// Opens at most [`OPEN_FILES`] files that were not known, and says how many.
    fn open_new_files(&mut self) -> usize {
        let Ok(entries) = fs::read_dir(&self.folder) else { return 0 };
        let mut opened = 0;
        for path in entries.flatten().map(|entry| entry.path()) {
            if !is_events_file(&path) || self.known.contains(&path) {
                continue;
            }
            match Reader::open(&path) {
                Ok(reader) => {
                    self.known.insert(path.clone());
                    if let Some(trace) = &mut self.records.trace {
                        trace.process(reader.header().pid, &reader.program());
                    }
                    self.processes.push(Process::new(path, reader));
                    opened += 1;
                    if opened == OPEN_FILES {
                        break;
                    }
                }
                Err(OpenError::NotReady(_)) => {}
                Err(error) => {
                    note!("{error}");
                    self.known.insert(path);
                }
            }
        }
        opened
    }

    /// The sums, by the time at which the processes started.
    pub fn finish(mut self) -> Vec<ProcessSummary> {
        if let Some(trace) = &mut self.records.trace {
            trace.finish();
        }
        if let Some(log) = &mut self.records.log
            && let Some(error) = log.failure.take()
        {
            // The program's own end matters more than the log, so this is said and not returned.
            note!("the log {} is not complete: {error}", log.path.display());
        }
        self.ended.extend(self.processes.into_iter().map(|process| (process.start_monotonic, process.finish())));
        self.ended.sort_by_key(|(start, _)| *start);
        self.ended.into_iter().map(|(_, summary)| summary).collect()
    }
}

/// What is known of a process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    /// It runs.
    Seen,
    /// Its file has a writer, and there is no process of its number: it is in another pid namespace, or has left its memory to a child.
    Elsewhere,
    /// There is no process of its number, and the kernel does not tell whether its file has a writer.
    Unseen,
    /// It has ended.
    Over,
}

impl Process {
    fn new(path: PathBuf, reader: Reader) -> Self {
        let sums = ProcessSummary {
            pid: reader.header().pid,
            program: reader.program(),
            index: reader.index_kind(),
            cycles: 0,
            by_cause: [0; Cause::ALL.len()],
            missed: 0,
            concurrent: 0,
            young: 0,
            cut_short: 0,
            pages_cleaned: 0,
            pages_left: 0,
            pauses: Times::default(),
            first_stops: Times::default(),
            last_stops: Times::default(),
            stops: Times::default(),
            ran: Nanos::default(),
            allocated: Bytes::ZERO,
            live: Bytes::ZERO,
            most_live: Bytes::ZERO,
            marked: Bytes::ZERO,
            marking: Nanos::default(),
            counters: Vec::new(),
            heap: Bytes::ZERO,
            buffer_waste: Bytes::ZERO,
            returned: Bytes::ZERO,
        };
        let (start_monotonic, start_realtime) = (reader.header().start_monotonic, reader.header().start_realtime);
        Process { path, reader, start_monotonic, start_realtime, next: 0, sums, seen: start_monotonic }
    }

    fn life(&self) -> Life {
        let is_there = || Path::new("/proc").join(self.sums.pid.to_string()).exists();
        match self.reader.is_abandoned() {
            Some(true) => Life::Over,
            _ if is_there() => Life::Seen,
            Some(false) => Life::Elsewhere,
            None => Life::Unseen,
        }
    }

    fn look(&mut self, life: Life, records: &mut Records) {
        let found = self.reader.cycles_since(self.next);
        self.seen = self.seen.max(Nanos(self.reader.counter(Counter::SampledNs)));
        if life == Life::Seen {
            self.seen = self.seen.max(monotonic_now());
        }
        self.next = found.next;
        self.sums.missed += found.missed;
        self.sums.cycles += found.missed + found.records.len() as u64;
        if found.missed > 0 {
            if let Some(log) = &mut records.log {
                log.line(&json!({"pid": self.sums.pid, "program": self.sums.program, "missed": found.missed}));
            }
            if let (Some(trace), Some(first)) = (&mut records.trace, found.records.first()) {
                trace.missed(self.sums.pid, first.record.began(), found.missed);
            }
        }
        for cycle in &found.records {
            self.add(&cycle.record);
            if let Some(log) = &mut records.log {
                log.line(&self.json(cycle));
            }
            if let Some(trace) = &mut records.trace {
                trace.cycle(self.sums.pid, cycle);
            }
        }
    }

    fn add(&mut self, cycle: &CycleRecord) {
        let sums = &mut self.sums;
        if let Some(cause) = cycle.cause() {
            sums.by_cause[cause as usize] += 1;
        }
        sums.pauses.record(cycle.pause);
        sums.last_stops.record(cycle.pause);
        if cycle.marked_beside.0 > 0 {
            sums.pauses.record(cycle.start_pause);
            sums.first_stops.record(cycle.start_pause);
            sums.concurrent += 1;
            sums.young += u64::from(cycle.young != 0);
            sums.cut_short += u64::from(cycle.hurried != 0);
            sums.pages_cleaned += cycle.pages_cleaned;
            sums.pages_left += cycle.pages_left;
        }
        sums.stops.record(cycle.time_to_stop);
        sums.allocated += cycle.allocated;
        sums.live = cycle.live;
        sums.most_live = sums.most_live.max(cycle.live);
        sums.marked += cycle.live;
        sums.marking = Nanos(sums.marking.0 + cycle.mark.0);
        sums.heap = cycle.heap;
        sums.buffer_waste += cycle.buffer_waste;
        sums.returned += cycle.returned;
        self.seen = self.seen.max(Nanos(cycle.start.0.saturating_add(cycle.total.0)));
    }

    /// Takes the last figures from the file and lets go of it.
    fn finish(self) -> ProcessSummary {
        let mut sums = self.sums;
        let counter = |counter| Bytes(self.reader.counter(counter) as usize);
        // A process brings its counters up to date at each cycle and when it exits, so they know what came after the last
        // cycle. One that ended without its exit handlers (a signal, _exit) has only the cycles' figures.
        sums.allocated = sums.allocated.max(counter(Counter::AllocatedBytes));
        sums.buffer_waste = sums.buffer_waste.max(counter(Counter::BufferWasteBytes));
        sums.returned = sums.returned.max(counter(Counter::ReturnedBytesTotal));
        if sums.cycles == 0 {
            sums.heap = counter(Counter::HeapBytes);
        }
        sums.ran = self.seen.since(self.start_monotonic);
        sums.counters = Counter::ALL.iter().map(|&counter| self.reader.counter(counter)).collect();
        sums
    }

    fn json(&self, whole: &Cycle) -> serde_json::Value {
        let cycle = &whole.record;
        let unix = self.start_realtime.0.saturating_add(cycle.start.since(self.start_monotonic).0);
        json!({
            "pid": self.sums.pid,
            "program": self.sums.program,
            "cycle": cycle.number,
            "cause": cycle.cause().map_or("unknown", Cause::name),
            "start_ns": cycle.start.0,
            "start_unix_ns": unix,
            "stop_ns": cycle.time_to_stop.0,
            "mark_ns": cycle.mark.0,
            "pause_ns": cycle.pause.0,
            "total_ns": cycle.total.0,
            "threads": cycle.threads,
            "threads_blocked": cycle.threads_blocked,
            "markers": cycle.markers,
            "roots_bytes": cycle.roots.0,
            "live_bytes": cycle.live.0,
            "heap_bytes": cycle.heap.0,
            "allocated_bytes": cycle.allocated.0,
            "buffer_waste_bytes": cycle.buffer_waste.0,
            "returned_bytes": cycle.returned.0,
            "marked_objects": cycle.marked_objects,
            "finalizable": cycle.finalizable,
            "links_cleared": cycle.links_cleared,
            "concurrent_ns": cycle.marked_beside.0,
            "start_pause_ns": cycle.start_pause.0,
            "cleaning_rounds": cycle.cleaning_rounds,
            "pages_cleaned": cycle.pages_cleaned,
            "pages_left": cycle.pages_left,
            "pages_compared": cycle.pages_compared,
            "objects_by_block": cycle.objects_by_block,
            "unwritten_stack_bytes": cycle.unwritten_stacks.0,
            "young": cycle.young != 0,
            "cut_short": cycle.hurried != 0,
            "helps": cycle.helps,
            "helped_bytes": cycle.bytes_helped,
            "began_ns": cycle.began().0,
            "markers_beside": cycle.markers_beside,
            "pages_found": cycle.pages_cleaned + cycle.pages_left,
            "phases": trace::in_order(whole).into_iter().map(phase_json).collect::<Vec<_>>(),
        })
    }
}

fn phase_json((kind, phase): (PhaseKind, &Phase)) -> serde_json::Value {
    let mut json = json!({"phase": kind.name(), "start_ns": phase.start.0, "ns": phase.took.0});
    if !kind.unit().is_empty() {
        json[kind.unit()] = phase.amount.into();
    }
    json
}

fn monotonic_now() -> Nanos {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times that were drawn by lot, with those of all sizes, against the sorted list.
    #[test]
    fn percentiles_are_right_to_a_thousandth() {
        let mut state = 1u64;
        let mut sorted: Vec<u64> = (0..10_000)
            .map(|n| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state >> (n % 64)
            })
            .collect();
        let (mut few, mut times) = (Times::default(), Times::default());
        assert!(times.is_empty() && times.percentile(50.0) == Nanos(0) && times.mean() == Nanos(0));
        sorted.iter().take(100).for_each(|&time| few.record(Nanos(time >> 10)));
        assert_eq!(few.mean().0, sorted.iter().take(100).map(|time| time >> 10).sum::<u64>() / 100);
        let (left, right) = sorted.split_at(5_000);
        left.iter().for_each(|&time| times.record(Nanos(time)));
        let mut others = Times::default();
        right.iter().for_each(|&time| others.record(Nanos(time)));
        times.add(&others);
        sorted.sort_unstable();
        for (percent, place) in [(0.0, 0), (25.0, 2_499), (50.0, 4_999), (99.0, 9_899), (99.9, 9_989), (100.0, 9_999)] {
            let (found, exact) = (times.percentile(percent).0, sorted[place]);
            assert!(found >= exact && found - exact <= exact / 1000, "{percent}: {found}, exactly {exact}");
        }
        assert_eq!(times.longest().0, sorted[9_999]);
    }

    /// A histogram with an array of counters took 90 KB for each process.
    #[test]
    fn one_cycle_takes_one_counter() {
        let mut times = Times::default();
        (0..1000).for_each(|_| times.record(Nanos(123_456_789)));
        assert_eq!((times.counts.len(), times.percentile(50.0)), (1, Nanos(123_456_789)));
    }
}
