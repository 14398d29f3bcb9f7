//! HotSpot's log of collections: `-Xlog:gc,safepoint:file=FILE:timenanos`, and more where `gc*` and other decorations were asked for.
//!
//! A collection's line says how long its work took, and the line of the safepoint that it was done in, which follows, how long the
//! program stood: from the request to the resume, which is what we call a pause. One safepoint can have several collections.

/// What a stop collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The young generation; with G1, perhaps some of the old one.
    Young,
    /// The whole heap.
    Full,
    /// Something else: a step of a concurrent cycle.
    Other,
}

/// A safepoint in which something was collected.
#[derive(Clone, Debug, PartialEq)]
pub struct Stop {
    /// When its last collection was logged, by the clock of `System.nanoTime`: before the program went on. (The safepoint's own line
    /// may be written after that.)
    pub at_ns: u64,
    /// The greatest of what was collected.
    pub kind: Kind,
    /// What the collections say that they took, in milliseconds.
    pub work_ms: f64,
    /// From the request to the resume, in milliseconds.
    pub pause_ms: f64,
}

/// What a log says about a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Collections {
    /// Stops that collected the young generation only.
    pub young: usize,
    /// Stops that collected everything.
    pub full: usize,
    /// Other stops.
    pub other: usize,
    /// All of these, from request to resume.
    pub pause_ms: f64,
    /// Of that, the work.
    pub work_ms: f64,
    /// Of `pause_ms`, the stops that collected the young generation only.
    pub young_pause_ms: f64,
    /// The longest pause that collected the young generation only.
    pub longest_young_ms: f64,
    /// The longest pause.
    pub longest_ms: f64,
    /// How long concurrent cycles took that ended then. The program runs meanwhile, and has fewer CPUs.
    pub concurrent_ms: f64,
}

/// The stops of a log, and the concurrent cycles: when they ended, and how long they took.
#[derive(Default)]
pub struct Log {
    stops: Vec<Stop>,
    cycles: Vec<(u64, f64)>,
}

impl Log {
    /// Reads a log. What it does not know it leaves out: the virtual machine writes much more.
    pub fn read(text: &str) -> Self {
        let mut log = Self::default();
        // The collections since the last safepoint.
        let mut open: Option<Stop> = None;
        for (at_ns, said) in text.lines().filter_map(line) {
            if let Some(total) = safepoint_ns(said) {
                log.stops.extend(open.take().map(|stop| Stop { pause_ms: total / 1e6, ..stop }));
            } else if let Some((what, ms)) = collection(said) {
                if what.starts_with("Concurrent Mark Cycle") || what.starts_with("Concurrent Undo Cycle") {
                    log.cycles.push((at_ns, ms));
                } else if what.starts_with("Pause ") {
                    let (before, kind) = (open.take(), kind_of(what));
                    open = Some(Stop {
                        at_ns,
                        kind: before.as_ref().map_or(kind, |stop| greater(stop.kind, kind)),
                        work_ms: before.map_or(0.0, |stop| stop.work_ms) + ms,
                        pause_ms: 0.0,
                    });
                }
            }
        }
        log
    }

    /// What happened between two points in time, both by the clock of `System.nanoTime`.
    pub fn between(&self, begun_ns: u64, ended_ns: u64) -> Collections {
        let inside = |at: u64| (begun_ns..=ended_ns).contains(&at);
        let mut sum = Collections::default();
        for stop in self.stops.iter().filter(|stop| inside(stop.at_ns)) {
            match stop.kind {
                Kind::Young => {
                    sum.young += 1;
                    sum.young_pause_ms += stop.pause_ms;
                    sum.longest_young_ms = sum.longest_young_ms.max(stop.pause_ms);
                }
                Kind::Full => sum.full += 1,
                Kind::Other => sum.other += 1,
            }
            sum.pause_ms += stop.pause_ms;
            sum.work_ms += stop.work_ms;
            sum.longest_ms = sum.longest_ms.max(stop.pause_ms);
        }
        sum.concurrent_ms = self.cycles.iter().filter(|(at, _)| inside(*at)).map(|(_, ms)| ms).sum();
        sum
    }
}

/// The time of a line in nanoseconds, and what it says behind its decorations.
fn line(text: &str) -> Option<(u64, &str)> {
    let (time, mut rest) = text.strip_prefix('[')?.split_once(']')?;
    let at_ns = time.trim().strip_suffix("ns")?.parse().ok()?;
    while let Some((_, behind)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        rest = behind;
    }
    Some((at_ns, rest.trim()))
}

/// The last figure of `Safepoint "NAME", ..., Total: N ns`.
fn safepoint_ns(said: &str) -> Option<f64> {
    said.strip_prefix("Safepoint \"")?.rsplit_once("Total: ")?.1.strip_suffix(" ns")?.parse().ok()
}

/// What `GC(N) WHAT ... 1.234ms` says, with the milliseconds. Lines of a collection's beginning have none.
fn collection(said: &str) -> Option<(&str, f64)> {
    let (number, what) = said.strip_prefix("GC(")?.split_once(") ")?;
    number.parse::<u64>().ok()?;
    let (what, last) = what.rsplit_once(' ')?;
    Some((what, last.strip_suffix("ms")?.parse().ok()?))
}

fn kind_of(what: &str) -> Kind {
    match what {
        _ if what.starts_with("Pause Young") => Kind::Young,
        _ if what.starts_with("Pause Full") => Kind::Full,
        _ => Kind::Other,
    }
}

fn greater(one: Kind, other: Kind) -> Kind {
    match (one, other) {
        (Kind::Full, _) | (_, Kind::Full) => Kind::Full,
        (Kind::Young, _) | (_, Kind::Young) => Kind::Young,
        _ => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OpenJDK 17.0.15, `-XX:+UseParallelGC -Xlog:gc,safepoint:file=gc.log:timenanos`.
    const PARALLEL: &str = "\
[43307555691000ns] Using Parallel
[43307555778606ns] GC(0) Pause Young (Allocation Failure) 3M->2M(27M) 2.852ms
[43307555805112ns] Safepoint \"ParallelGCFailedAllocation\", Time since last: 70372927 ns, Reaching safepoint: 4266 ns, Cleanup: 27992 ns, At safepoint: 2875819 ns, Total: 2908077 ns
[43307555905112ns] Safepoint \"ICBufferFull\", Time since last: 3372927 ns, Reaching safepoint: 4266 ns, Cleanup: 992 ns, At safepoint: 5819 ns, Total: 11077 ns
[43307798854438ns] GC(16) Pause Full (Ergonomics) 24M->13M(27M) 18.417ms
[43307798904633ns] Safepoint \"ParallelGCFailedAllocation\", Time since last: 4967818 ns, Reaching safepoint: 79168 ns, Cleanup: 1882 ns, At safepoint: 18489745 ns, Total: 18570795 ns
[43307806158825ns] GC(17) Pause Young (Allocation Failure) 16M->14M(27M) 1.321ms
[43307806190633ns] Safepoint \"ParallelGCFailedAllocation\", Time since last: 7253000 ns, Reaching safepoint: 3025 ns, Cleanup: 6119 ns, At safepoint: 1390000 ns, Total: 1399144 ns
";

    /// The same with `-Xlog:gc*,safepoint` and tags: both collections of `System.gc()` in one safepoint.
    const WITH_TAGS: &str = "\
[42961983767981ns][gc,start    ] GC(14) Pause Young (System.gc())
[42961986837782ns][gc,heap     ] GC(14) PSYoungGen: 5539K(7168K)->928K(7168K) Eden: 4515K(6144K)->0K(6144K) From: 1024K(1024K)->928K(1024K)
[42961986881497ns][gc          ] GC(14) Pause Young (System.gc()) 19M->15M(263M) 3.113ms
[42961986889269ns][gc,cpu      ] GC(14) User=0.00s Sys=0.00s Real=0.00s
[42961986914446ns][gc,start    ] GC(15) Pause Full (System.gc())
[42961986920686ns][gc,phases,start] GC(15) Marking Phase
[42961988460960ns][gc,phases      ] GC(15) Marking Phase 1.539ms
[42961992406105ns][gc             ] GC(15) Pause Full (System.gc()) 15M->1M(263M) 5.491ms
[42961992414187ns][gc,cpu         ] GC(15) User=0.01s Sys=0.00s Real=0.01s
[42961992437551ns][safepoint      ] Safepoint \"ParallelGCSystemGC\", Time since last: 13520004 ns, Reaching safepoint: 6049 ns, Cleanup: 6670 ns, At safepoint: 8707587 ns, Total: 8720306 ns
";

    /// `-XX:+UseG1GC`: a concurrent cycle.
    const G1: &str = "\
[43305947054100ns] GC(14) Pause Young (Concurrent Start) (G1 Evacuation Pause) 20M->17M(36M) 1.523ms
[43305947066159ns] Safepoint \"G1CollectForAllocation\", Time since last: 5241115 ns, Reaching safepoint: 1532 ns, Cleanup: 1812 ns, At safepoint: 1644730 ns, Total: 1648074 ns
[43305947088006ns] GC(15) Concurrent Mark Cycle
[43305970903512ns] GC(18) Pause Young (Normal) (G1 Evacuation Pause) 23M->20M(36M) 1.807ms
[43305970920512ns] Safepoint \"G1CollectForAllocation\", Time since last: 6376706 ns, Reaching safepoint: 68021 ns, Cleanup: 2514 ns, At safepoint: 1828493 ns, Total: 1899028 ns
[43306013013956ns] GC(15) Pause Remark 20M->20M(36M) 0.454ms
[43306013029780ns] Safepoint \"G1PauseRemark\", Time since last: 2673271 ns, Reaching safepoint: 79588 ns, Cleanup: 3546 ns, At safepoint: 471702 ns, Total: 554836 ns
[43306028766895ns] GC(15) Pause Cleanup 20M->20M(36M) 0.039ms
[43306028777090ns] Safepoint \"G1PauseCleanup\", Time since last: 1837666 ns, Reaching safepoint: 87280 ns, Cleanup: 2053 ns, At safepoint: 52519 ns, Total: 141852 ns
[43306029168097ns] GC(15) Concurrent Mark Cycle 82.072ms
";

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn pauses_are_from_the_safepoints_and_only_those_that_collected() {
        let all = Log::read(PARALLEL).between(0, u64::MAX);
        assert_eq!((all.young, all.full, all.other), (2, 1, 0));
        assert!(near(all.pause_ms, 2.908077 + 18.570795 + 1.399144), "{all:?}");
        assert!(near(all.work_ms, 2.852 + 18.417 + 1.321), "{all:?}");
        assert!(near(all.young_pause_ms, 2.908077 + 1.399144), "{all:?}");
        assert!(near(all.longest_young_ms, 2.908077) && near(all.longest_ms, 18.570795), "{all:?}");
        assert_eq!(all.concurrent_ms, 0.0);
    }

    #[test]
    fn what_was_collected_before_the_measured_run_does_not_count() {
        let log = Log::read(PARALLEL);
        // The run began between the full collection's line and its safepoint's.
        let measured = log.between(43307798854500, 43307900000000);
        assert_eq!((measured.young, measured.full), (1, 0));
        assert!(near(measured.pause_ms, 1.399144));
        assert_eq!(log.between(43307798854438, 43307798854438).full, 1);
        assert_eq!(log.between(1, 2), Collections::default());
    }

    #[test]
    fn two_collections_in_one_safepoint_are_one_full_stop() {
        let log = Log::read(WITH_TAGS);
        let stop = Stop { at_ns: 42961992406105, kind: Kind::Full, work_ms: 3.113 + 5.491, pause_ms: 8.720306 };
        assert_eq!(log.stops, [stop]);
    }

    #[test]
    fn a_concurrent_cycle_has_stops_of_its_own_and_takes_time_beside_the_program() {
        let all = Log::read(G1).between(0, u64::MAX);
        assert_eq!((all.young, all.full, all.other), (2, 0, 2));
        assert!(near(all.concurrent_ms, 82.072) && near(all.longest_young_ms, 1.899028), "{all:?}");
        assert!(near(all.pause_ms, 1.648074 + 1.899028 + 0.554836 + 0.141852), "{all:?}");
    }

    #[test]
    fn lines_of_other_forms_are_left_out() {
        for text in [
            "",
            "[0.123s] GC(0) Pause Young (Allocation Failure) 3M->2M(27M) 2.852ms",
            "[12ns] GC(x) Pause Young (Allocation Failure) 3M->2M(27M) 2.852ms",
            "[12ns] GC(0) Pause Young (Allocation Failure) 3M->2M(27M) soon",
            "[12ns] Safepoint \"ParallelGCFailedAllocation\", Total: 1 ns",
            "OpenJDK 64-Bit Server VM warning: something",
        ] {
            assert!(Log::read(text).stops.is_empty(), "{text}");
        }
        // Cut off: a collection without its safepoint.
        assert!(Log::read(PARALLEL.split_inclusive('\n').nth(1).unwrap()).stops.is_empty());
    }
}
