//! When a concurrent cycle begins, how long its memory is cleaned, and when it has been overtaken.
//!
//! The thesis (5.2) begins when less than 15 % of the heap is free, and lets each allocating thread mark in proportion. Here
//! a cycle has the budget of a stop cycle, and begins so early that at the rates seen last it has ended when the budget
//! is used up.

use larder_units::{Bytes, Nanos, PAGE};

use crate::group::GroupFacts;

/// What is known when a cycle has ended.
#[derive(Clone, Copy, Debug)]
pub struct StartFacts {
    /// Bytes that may be allocated until the next cycle should have ended.
    pub budget: Bytes,
    /// Bytes that were allocated from the request for the last concurrent cycle until its end; `None` before the first.
    pub allocated_meanwhile: Option<Bytes>,
    /// Bytes that the cycle before found live, and the one that has ended: the next will take longer in proportion.
    pub live: [Bytes; 2],
    /// The last concurrent cycle did not end by itself: the program allocated faster than it marked.
    pub overtaken: bool,
}

/// What is allocated meanwhile differs from cycle to cycle; so much more, in tenths, is expected than the last time.
const CAUTION_TENTHS: usize = 15;
/// ... and so much after a cycle that was overtaken, whose own figure is too small.
const CAUTION_OVERTAKEN_TENTHS: usize = 30;
/// A cycle begins after this share of its budget at the earliest, in tenths: else cycles would follow one another.
const EARLIEST_TENTHS: usize = 3;
/// ... or this one, after a cycle that was overtaken.
const EARLIEST_OVERTAKEN_TENTHS: usize = 1;
/// ... and after this share at the latest: a program may change its ways.
const LATEST_TENTHS: usize = 8;
/// Where nothing is known yet.
const FIRST_TENTHS: usize = 5;

/// Bytes allocated since the last cycle after which the next one begins.
pub fn start_after(facts: StartFacts) -> Bytes {
    let tenths = |n: usize| facts.budget.0 / 10 * n;
    let Some(meanwhile) = facts.allocated_meanwhile else { return Bytes(tenths(FIRST_TENTHS)) };
    let [before, now] = facts.live.map(|bytes| bytes.0.max(1));
    let grown = (meanwhile.0 as u128 * now as u128 / before as u128).min(facts.budget.0 as u128) as usize;
    let (caution, earliest) = if facts.overtaken {
        (CAUTION_OVERTAKEN_TENTHS, EARLIEST_OVERTAKEN_TENTHS)
    } else {
        (CAUTION_TENTHS, EARLIEST_TENTHS)
    };
    let expected = grown.saturating_mul(caution) / 10;
    Bytes(facts.budget.0.saturating_sub(expected).clamp(tenths(earliest), tenths(LATEST_TENTHS)))
}

/// Bytes allocated since the last cycle at which a cycle under way is overtaken, and ends in a stopped world.
///
/// A quarter beyond the budget, or a sixteenth of what lives where that is more: the heap is larger by that share in the worst case, and no
/// maximum is passed, since memory that is refused ends the cycle as well. Who asks for a budget that is small beside what lives wants little
/// garbage, but not a pause: to mark everything while a quarter of such a budget is allocated, a thread would have to mark a hundred bytes for
/// each of its own. And [`LEAST_ROOM`].
pub fn overtaken_at(budget: Bytes, live: Bytes) -> Bytes {
    Bytes(budget.0.saturating_add((budget.0 / 4).max(live.0 / 16).max(LEAST_ROOM.0)))
}

/// What two busy threads allocate in the milliseconds in which the marker thread waits for a CPU.
const LEAST_ROOM: Bytes = Bytes::mib(4);

/// What the program allocates before it makes way for a marker thread that was asked for: about as long as it takes to wake one that has a CPU.
pub const UNYIELDING: Bytes = Bytes(256 << 10);

/// How often a CPU is given away for a marker thread that does not get on.
pub const MAKES_WAY_EVERY: Nanos = Nanos(200_000);

/// Whether threads make way for the marker thread. With more than a few for each CPU, the next one is hardly ever the marker thread, and finds
/// nothing of its own in the caches: 64 threads on two CPUs took nearly twice as long (docs/performance.md, "Making way").
pub fn makes_way(threads: usize, usable_cpus: usize) -> bool {
    threads <= THREADS_FOR_A_CPU * usable_cpus
}

const THREADS_FOR_A_CPU: usize = 4;

/// What is known about a cycle that would stop the program.
#[derive(Clone, Copy, Debug)]
pub struct WholeFacts {
    /// How long the last full cycle marked, and the bytes of objects and roots that it looked at; `None` before the first.
    pub last: Option<(Nanos, Bytes)>,
    /// Bytes of objects and roots that there are now.
    pub now: Bytes,
    /// The longest pause that is wanted.
    pub goal: Nanos,
}

/// Whether a cycle in one stop is as short as is wanted: then that is done, since it is less work. Marking may take half of the pause;
/// the other half is for stopping the threads, and for a cycle that takes longer than the last one.
pub fn is_short_in_one_stop(facts: WholeFacts) -> bool {
    facts.last.is_some_and(|(took, bytes)| {
        let expected = u128::from(took.0) * facts.now.0 as u128 / bytes.0.max(1) as u128;
        expected <= u128::from(facts.goal.0 / 2)
    })
}

/// What is known of a cycle that was overtaken, or ended by itself.
#[derive(Clone, Copy, Debug)]
pub struct EndedFacts {
    /// The longest of its stops.
    pub longest: Nanos,
    /// Bytes of objects and roots that it looked at.
    pub bytes: Bytes,
    /// How long the last cycle took that stopped the program all the time, and the bytes that it looked at; `None` before the first.
    pub whole: Option<(Nanos, Bytes)>,
    /// What [`backoff`] said the last time.
    pub last: u32,
    /// The longest pause that is wanted.
    pub goal: Nanos,
    /// There are many threads for each CPU: see [`makes_way`].
    pub is_crowded: bool,
}

/// The most cycles in a row that are done in one stop, and how many times as many as before.
const LONGEST_BACKOFF: u32 = 16;
const BACKOFF_GROWS: u32 = 2;
/// As much longer than the pause that is wanted may a stop be that is chosen.
const BEARABLE: u128 = 8;
/// The same of many threads that allocate a budget before the marker thread has had a CPU: so each of them waits for one as long as for such a stop.
const LONGEST_BACKOFF_OF_MANY: u32 = 256;
const BACKOFF_OF_MANY_GROWS: u32 = 4;
const BEARABLE_FOR_MANY: u128 = 32;

/// How many cycles are done in one stop before another is tried beside the program: one, or twice as many as the last time, after a cycle that was overtaken and
/// did not spare the program half of the stop that a whole cycle is. None where its stops were as short as is wanted, and that of a whole cycle is not; and none
/// where that is so long that anything else is better. With many threads four times as many, and longer stops are chosen.
pub fn backoff(facts: EndedFacts) -> u32 {
    let Some(whole) = facts.whole_stop() else { return 0 };
    let [longest, goal] = [facts.longest, facts.goal].map(|time| u128::from(time.0));
    let is_spared = whole > goal && (longest * 2 <= whole || longest <= goal);
    let (bearable, grows, most) = if facts.is_crowded {
        (BEARABLE_FOR_MANY, BACKOFF_OF_MANY_GROWS, LONGEST_BACKOFF_OF_MANY)
    } else {
        (BEARABLE, BACKOFF_GROWS, LONGEST_BACKOFF)
    };
    if is_spared || whole > goal * bearable {
        return 0;
    }
    (facts.last * grows).clamp(1, most)
}

/// The same after a cycle in which objects had to wait for the final stop, since mark procedures scan them, or types say how: none, unless that stop took three
/// quarters of a whole cycle, and longer than is wanted. However long that is: the next one would wait for the same objects.
pub fn backoff_in_vain(facts: EndedFacts) -> u32 {
    let longest = u128::from(facts.longest.0);
    let is_in_vain = facts.longest > facts.goal && facts.whole_stop().is_some_and(|whole| longest * 4 >= whole * 3);
    if is_in_vain { (facts.last * BACKOFF_GROWS).clamp(1, LONGEST_BACKOFF) } else { 0 }
}

impl EndedFacts {
    /// How long a whole cycle would have stopped the program, in nanoseconds, as far as is known.
    fn whole_stop(&self) -> Option<u128> {
        self.whole.map(|(took, of)| u128::from(took.0) * self.bytes.0 as u128 / of.0.max(1) as u128)
    }
}

/// What a program allocated in a time.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// So many bytes.
    pub bytes: Bytes,
    /// In so many nanoseconds.
    pub in_time: Nanos,
}

impl Rate {
    /// Whether this is less than a quarter of `other`: a cycle that was overtaken then would not be now. Where threads are many, the rate of one
    /// cycle may be twice that of the next.
    pub fn is_calm_beside(self, other: Self) -> bool {
        4 * self.bytes.0 as u128 * u128::from(other.in_time.0) < other.bytes.0 as u128 * u128::from(self.in_time.0)
    }
}

/// What the next cycle may find alive: what this one has found, or what was expected before, of which a thirty-second is forgotten with each cycle.
///
/// What a cycle finds alive contains what was made and died while it marked, which differs from cycle to cycle. After a cycle that the program asked for, nothing
/// was expected before.
pub fn expected_live(before: Bytes, found: Bytes) -> Bytes {
    found.max(Bytes(before.0 - before.0 / 32))
}

/// Memory that a heap with concurrent cycles is going to want until the next one has ended: what that may find alive, and what may be allocated
/// until then. What goes back after a cycle that found little is wanted again by the next one, and to touch memory for the first time costs more than to
/// allocate in it.
pub fn wanted_memory(expected_live: Bytes, budget: Bytes) -> Bytes {
    Bytes(expected_live.0.saturating_add(overtaken_at(budget, expected_live).0))
}

/// What is known of the program's writes when a cycle has ended.
#[derive(Clone, Copy, Debug)]
pub struct WriteFacts {
    /// Pages that were watched.
    pub watched: usize,
    /// Pages that were found written, once for each time.
    pub written: usize,
    /// Bytes that were allocated while the cycle ran: pages of them are among those that were found written.
    pub meanwhile: Bytes,
    /// Bytes that may be allocated until the next cycle should have ended.
    pub budget: Bytes,
}

/// As much longer takes a first write to a watched page than to end the watch of it.
const FAULT_OVER_END: usize = 6;

/// Whether pages stay watched after a cycle until somebody writes to them: where it costs less than to end the watch of all and to begin it
/// anew with the next one, if the program goes on writing to as many for each byte that it allocates.
pub fn leaves_watch(facts: WriteFacts) -> bool {
    let old = facts.written.saturating_sub(facts.meanwhile.0 / PAGE.0);
    let expected = old as u128 * facts.budget.0 as u128 / facts.meanwhile.0.max(1) as u128;
    expected * (FAULT_OVER_END as u128) < facts.watched as u128
}

/// Whether what was made while a cycle traced is looked for in one more short stop and beside the program, rather than in the final stop: where
/// it is more than an eighth of the pause that is wanted may mark, if all of it is alive.
pub fn is_worth_a_second_look(made: Bytes, goal: Nanos) -> bool {
    made.0 as u64 / MARKED_IN_A_NS > goal.0 / 8
}

/// Bytes that a marker marks in a nanosecond, about.
const MARKED_IN_A_NS: u64 = 1;

/// Bytes of stacks that the first stop of a cycle scans; other threads' stacks are looked at one at a time afterwards.
///
/// The threads that run have been stopped anyway, and to stop one again costs it more than to have a short stack scanned. Half of the
/// pause that is wanted, at [`SCANNED_IN_A_NS`].
pub fn stacks_at_once(goal: Nanos) -> Bytes {
    Bytes((goal.0 / 2).saturating_mul(SCANNED_IN_A_NS) as usize)
}

/// Whether so many bytes of a sleeping thread's stack are watched, so that the final stop of a cycle need not scan them again: to ask the
/// kernel which pages of a stack were written takes 0.6 to 1.2 us, however long it is, and to scan 16 KiB with some pointers 3 us and more. Beside
/// the program it costs about 10 us, and the first write to each page a fault.
pub fn is_worth_watching(stack: Bytes) -> bool {
    stack >= Bytes(16 << 10)
}

/// Whether the stack of a thread that runs is watched as well: for that the thread is stopped once more, and then pays for a fault on each page
/// that it writes.
pub fn is_watched_although_it_runs(stack: Bytes) -> bool {
    stack >= Bytes(64 << 10)
}

/// Bytes of a stack that a marker scans in a nanosecond, about.
const SCANNED_IN_A_NS: u64 = 2;

/// What a thread that allocates is asked to mark, once the budget is used up and the cycle has not ended.
///
/// The thesis's rule (5.2) for what is left: `live` bytes are to be marked while the `room` between budget and the point of
/// being overtaken is allocated, so each byte that is allocated pays for `live / room` marked ones. At least as much as was
/// allocated, and at most [`MOST_HELP`]: nobody is kept longer than that takes.
pub fn help(allocated: Bytes, live: Bytes, room: Bytes) -> Bytes {
    let share = (live.0 as u128 * allocated.0 as u128 / room.0.max(1) as u128).min(MOST_HELP.0 as u128) as usize;
    Bytes(share.max(allocated.0).min(MOST_HELP.0))
}

/// About half a millisecond of marking.
const MOST_HELP: Bytes = Bytes(512 << 10);

/// What the number of markers beside the program depends on.
#[derive(Clone, Copy, Debug)]
pub struct CrewFacts {
    /// CPUs that the process can really use.
    pub usable_cpus: usize,
    /// The most markers that the client wants at all, if it said so.
    pub most: Option<usize>,
    /// Live at the end of the last cycle: about what the next one traces.
    pub live: Bytes,
    /// Live at the end of the cycle before.
    pub live_before: Bytes,
    /// Bytes that may be allocated until the next cycle should have ended.
    pub budget: Bytes,
    /// Bytes that were allocated from the request for the last concurrent cycle until its end, and how many markers it had; `None` before the first.
    pub meanwhile: Option<(Bytes, usize)>,
}

/// Tracing so much is worth another marker: several milliseconds of one.
pub const WORTH_A_MARKER_BESIDE: Bytes = Bytes::mib(8);

/// Markers for the next concurrent cycle.
///
/// The program wants its CPUs: a quarter of them marks, rounded up. Where that many would not be done before the budget is used
/// up, even if the cycle began at the earliest point, as many as will: half of the CPUs at most. The marking rate of one
/// and the program's rate of allocation come in as what was allocated while the last cycle ran.
pub fn markers(facts: CrewFacts) -> usize {
    let least = facts.usable_cpus.div_ceil(4);
    let most = (facts.usable_cpus / 2).max(least);
    let needed = facts.meanwhile.map_or(0, |(allocated, markers)| {
        let [before, now] = [facts.live_before, facts.live].map(|live| live.0.max(1) as u128);
        let by_one = allocated.0 as u128 * markers as u128 * now / before * CAUTION_TENTHS as u128 / 10;
        let room = (facts.budget.0 / 10 * (10 - EARLIEST_TENTHS)).max(1) as u128;
        by_one.div_ceil(room).min(most as u128) as usize
    });
    let worth = facts.live.0 / WORTH_A_MARKER_BESIDE.0;
    needed.clamp(least, most).min(worth).min(facts.most.unwrap_or(usize::MAX)).max(1)
}

/// Memory for copies of what rounds of cleaning have scanned, in a heap where so much is alive: a sixteenth of it, or [`LEAST_COPIES`]; and a quarter of
/// what the control group has left at most.
pub fn copies(live: Bytes, group: Option<GroupFacts>) -> Bytes {
    let room = group.map_or(Bytes(usize::MAX), |group| Bytes(group.room().0 / 4));
    Bytes(live.0 / 16).max(LEAST_COPIES).min(room)
}

const LEAST_COPIES: Bytes = Bytes::mib(1);

/// A round of cleaning.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Pages that it found written.
    pub found: usize,
    /// How long it took, from asking for pages until what was written was scanned and what it led to was marked.
    pub took: Nanos,
}

/// What is known after a round of cleaning.
#[derive(Clone, Copy, Debug)]
pub struct CleanFacts {
    /// This round.
    pub round: Round,
    /// The one before; `None` after the first.
    pub before: Option<Round>,
    /// Rounds so far, this one included.
    pub rounds: usize,
    /// How long the final stop should take at most.
    pub goal: Nanos,
}

/// Rounds after which another one has never been worth it.
const MOST_ROUNDS: usize = 12;
/// So many pages are scanned in a small part of the time that it takes to stop anybody.
const FEW_PAGES: usize = 32;

/// Whether written memory is scanned once more beside the program: while there is much of it, and it takes less and less time.
///
/// What the next round, or the final stop, will find is about what was written during this round. So a round that took
/// less than half of the goal has left the stop little enough; and rounds that do not become shorter are as short as they
/// will get. Time counts, not pages: a round that finds as many as the one before takes a fraction of it where most of their words are the same.
pub fn cleans_again(facts: CleanFacts) -> bool {
    let Round { found, took } = facts.round;
    if found <= FEW_PAGES || facts.rounds >= MOST_ROUNDS || took.0 <= facts.goal.0 / 2 {
        return false;
    }
    facts.before.is_none_or(|before| found < before.found / 4 * 3 || took.0 < before.took.0 / 4 * 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_begins_as_early_as_the_last_one_needed() {
        let mib = Bytes::mib;
        let table = [
            // budget, allocated meanwhile, live before, live now, overtaken -> start
            (100, None, 0, 0, false, 50),
            // 20 meanwhile, half as much again: 30.
            (100, Some(20), 100, 100, false, 70),
            // Twice as much is live now, so it will take twice as long.
            (100, Some(20), 100, 200, false, 40),
            (100, Some(20), 100, 100, true, 40),
            // Hardly anything: at the latest.
            (100, Some(0), 100, 100, false, 80),
            // Much more than there is: at the earliest.
            (100, Some(90), 100, 100, false, 30),
            (100, Some(90), 1, 100_000, false, 30),
            (100, Some(90), 100, 100, true, 10),
            (100, Some(20), 0, 0, false, 70),
        ];
        for (budget, meanwhile, before, now, overtaken, start) in table {
            let facts = StartFacts {
                budget: mib(budget),
                allocated_meanwhile: meanwhile.map(mib),
                live: [mib(before), mib(now)],
                overtaken,
            };
            let difference = start_after(facts).0.abs_diff(mib(start).0);
            assert!(difference <= mib(1).0, "{facts:?}: {}", start_after(facts));
        }
    }

    #[test]
    fn a_cycle_begins_before_its_budget_is_used_up_and_is_overtaken_after() {
        for budget in [10, 4096, 1 << 20, usize::MAX / 64] {
            let facts = StartFacts {
                budget: Bytes(budget),
                allocated_meanwhile: Some(Bytes(budget)),
                live: [Bytes(1); 2],
                overtaken: false,
            };
            assert!(start_after(facts).0 < budget && overtaken_at(Bytes(budget), Bytes(1)).0 >= budget);
        }
        assert_eq!(overtaken_at(Bytes(usize::MAX), Bytes(1)).0, usize::MAX);
        // A heap of a gigabyte with a budget of 32 MiB has twice as much again until it is overtaken.
        assert_eq!(overtaken_at(Bytes::mib(32), Bytes::mib(1024)), Bytes::mib(96));
        assert_eq!(overtaken_at(Bytes::mib(512), Bytes::mib(1024)), Bytes::mib(640));
    }

    #[test]
    fn memory_is_kept_for_what_the_next_cycle_will_find() {
        for (live, budget, wanted) in [(40, 16, 60), (20, 16, 40), (0, 16, 20), (128, 0, 136)] {
            let mib = Bytes::mib;
            assert_eq!(wanted_memory(mib(live), mib(budget)), mib(wanted));
        }
        assert_eq!(wanted_memory(Bytes(1), Bytes(usize::MAX)), Bytes(usize::MAX));
    }

    #[test]
    fn a_large_live_heap_is_forgotten_slowly() {
        let mut expected = Bytes(0);
        for (found, now) in [(16, 16), (40, 40), (16, 38), (36, 37), (38, 38), (16, 36)] {
            expected = expected_live(expected, Bytes::mib(found));
            assert_eq!(expected.0 >> 20, now);
        }
        // A program that has become small is small after some hundred cycles.
        (0..100).for_each(|_| expected = expected_live(expected, Bytes::mib(1)));
        assert!(expected <= Bytes::mib(3), "{expected}");
    }

    #[test]
    fn pages_stay_watched_where_few_are_written() {
        let table = [
            // watched, written pages; MiB meanwhile, budget -> left
            (10_000, 0, 1, 100, true),
            // Only what was new.
            (10_000, 256, 1, 100, true),
            // A hundred times as much is allocated until the next.
            (10_000, 256 + 16, 1, 100, true),
            (10_000, 256 + 17, 1, 100, false),
            (10_000, 9000, 1, 1, false),
            // Nothing was allocated, so nothing is known.
            (10_000, 1, 0, 100, false),
            (0, 0, 0, 0, false),
        ];
        for (watched, written, meanwhile, budget, left) in table {
            let [meanwhile, budget] = [meanwhile, budget].map(Bytes::mib);
            let facts = WriteFacts { watched, written, meanwhile, budget };
            assert_eq!(leaves_watch(facts), left, "{facts:?}");
        }
    }

    #[test]
    fn a_small_heap_is_marked_in_one_stop() {
        let table = [
            // last: us, KiB; now: KiB; goal: us -> one stop
            (Some((200, 1000)), 1000, 1000, true),
            (Some((500, 1000)), 1000, 1000, true),
            (Some((501, 1000)), 1000, 1000, false),
            // Ten times as much is there now.
            (Some((200, 1000)), 10_000, 1000, false),
            (Some((2000, 10_000)), 1000, 1000, true),
            // Nobody may wait.
            (Some((200, 1000)), 1000, 0, false),
            (Some((0, 0)), 1000, 1000, true),
            (None, 0, 1000, false),
        ];
        for (last, now, goal, expected) in table {
            let last = last.map(|(us, kib): (u64, usize)| (Nanos(us * 1000), Bytes(kib << 10)));
            let facts = WholeFacts { last, now: Bytes(now << 10), goal: Nanos(goal * 1000) };
            assert_eq!(is_short_in_one_stop(facts), expected, "{facts:?}");
        }
    }

    /// A cycle whose longest stop took so many microseconds, of so many MiB, where a whole one took so long for so many; a millisecond is wanted.
    fn ended(longest: u64, bytes: usize, whole: Option<(u64, usize)>, last: u32) -> EndedFacts {
        EndedFacts {
            longest: Nanos(longest * 1000),
            bytes: Bytes::mib(bytes),
            whole: whole.map(|(us, mib)| (Nanos(us * 1000), Bytes::mib(mib))),
            last,
            goal: Nanos(1_000_000),
            is_crowded: false,
        }
    }

    #[test]
    fn cycles_that_spare_the_program_nothing_are_backed_off_from() {
        let table = [
            // longest us, MiB; whole: us, MiB; last -> backoff, of many threads
            (2000, 20, Some((2000, 20)), 0, [1, 1]),
            (2000, 20, Some((2000, 20)), 1, [2, 4]),
            (2000, 20, Some((2000, 20)), 4, [8, 16]),
            (2000, 20, Some((2000, 20)), 16, [16, 64]),
            (2000, 20, Some((2000, 20)), 256, [16, 256]),
            // Of four times as much, a whole one would have taken 8 ms; of five times as much, too long to be chosen, or more.
            (5000, 80, Some((2000, 20)), 2, [4, 8]),
            (9000, 100, Some((2000, 20)), 2, [0, 8]),
            (31000, 320, Some((2000, 20)), 2, [0, 8]),
            (31000, 330, Some((2000, 20)), 2, [0, 0]),
            // Half of it was spared.
            (4000, 80, Some((2000, 20)), 2, [0, 0]),
            // As short as is wanted, and a whole one is not, or is as well.
            (1000, 20, Some((1200, 20)), 2, [0, 0]),
            (900, 20, Some((1000, 20)), 2, [4, 8]),
            (400, 20, Some((1000, 20)), 2, [4, 8]),
            (2000, 20, None, 2, [0, 0]),
        ];
        for (longest, bytes, whole, last, expected) in table {
            for (is_crowded, expected) in [false, true].into_iter().zip(expected) {
                let facts = EndedFacts { is_crowded, ..ended(longest, bytes, whole, last) };
                assert_eq!(backoff(facts), expected, "{facts:?}");
            }
        }
    }

    #[test]
    fn cycles_whose_objects_wait_for_the_stop_are_backed_off_from_however_long_it_is() {
        // As above.
        for (longest, bytes, whole, last, expected) in [
            (40_000, 100, Some((40_000, 100)), 0, 1),
            (30_000, 100, Some((40_000, 100)), 1, 2),
            (60_000, 200, Some((40_000, 100)), 16, 16),
            (29_000, 100, Some((40_000, 100)), 1, 0),
            // As short as is wanted.
            (1000, 100, Some((1000, 100)), 1, 0),
            (40_000, 100, None, 1, 0),
        ] {
            let facts = ended(longest, bytes, whole, last);
            assert_eq!(backoff_in_vain(facts), expected, "{facts:?}");
        }
    }

    #[test]
    fn a_program_that_allocates_a_quarter_as_fast_is_calm() {
        let rate = |mib, ms: u64| Rate { bytes: Bytes::mib(mib), in_time: Nanos(ms * 1_000_000) };
        assert!(rate(10, 41).is_calm_beside(rate(10, 10)) && rate(1, 10).is_calm_beside(rate(10, 10)));
        assert!(!rate(10, 40).is_calm_beside(rate(10, 10)) && !rate(0, 10).is_calm_beside(rate(0, 10)));
    }

    #[test]
    fn stacks_take_half_of_the_first_stop() {
        for (goal_ns, bytes) in [(1_000_000, 1_000_000), (0, 0), (1, 0), (10_000, 10_000), (u64::MAX, usize::MAX - 1)] {
            assert_eq!(stacks_at_once(Nanos(goal_ns)), Bytes(bytes), "{goal_ns} ns");
        }
    }

    #[test]
    fn few_threads_make_way() {
        assert!(makes_way(2, 2) && makes_way(8, 2) && !makes_way(9, 2) && !makes_way(64, 2) && makes_way(64, 16));
    }

    #[test]
    fn what_a_small_part_of_a_pause_can_mark_is_left_to_the_final_stop() {
        for (kib, goal_us, expected) in
            [(0, 1000, false), (100, 1000, false), (150, 1000, true), (150, 2000, false), (1, 0, true)]
        {
            let (made, goal) = (Bytes(kib << 10), Nanos(goal_us * 1000));
            assert_eq!(is_worth_a_second_look(made, goal), expected, "{kib} KiB, {goal_us} us");
        }
    }

    #[test]
    fn long_stacks_are_watched() {
        for (kib, asleep, running) in
            [(0, false, false), (15, false, false), (16, true, false), (63, true, false), (64, true, true)]
        {
            let stack = Bytes(kib << 10);
            assert_eq!((is_worth_watching(stack), is_watched_although_it_runs(stack)), (asleep, running), "{kib} KiB");
        }
    }

    #[test]
    fn who_allocates_pays_for_what_is_left_to_be_marked() {
        let table = [
            // allocated KiB, live MiB, room MiB -> help KiB
            (16, 100, 25, 64),
            (16, 1, 25, 16),
            (16, 0, 25, 16),
            (16, 1000, 10, 512),
            (16, 100, 0, 512),
            (4096, 1, 1, 512),
        ];
        for (allocated, live, room, expected) in table {
            assert_eq!(help(Bytes(allocated << 10), Bytes::mib(live), Bytes::mib(room)), Bytes(expected << 10));
        }
    }

    #[test]
    fn more_markers_where_one_is_too_slow() {
        let table = [
            // cpus, most, live before and now, budget, (meanwhile, markers) -> markers
            (1, None, 1000, 1000, 500, None, 1),
            (2, None, 1000, 1000, 500, None, 1),
            (4, None, 1000, 1000, 500, None, 1),
            (8, None, 1000, 1000, 500, None, 2),
            (64, None, 1000, 1000, 500, None, 16),
            // A small heap.
            (64, None, 20, 20, 500, None, 2),
            (64, None, 1, 1, 500, None, 1),
            // In good time: a quarter.
            (16, None, 1000, 1000, 500, Some((100, 4)), 4),
            // 4 times 300, half as much again, in 350: needs 6.
            (16, None, 1000, 1000, 500, Some((300, 4)), 6),
            // Twice as much is live now; half of the CPUs is the limit.
            (16, None, 1000, 2000, 500, Some((300, 4)), 8),
            (4, None, 1000, 1000, 500, Some((900, 1)), 2),
            // On two the program keeps its other one.
            (2, None, 1000, 1000, 500, Some((900, 1)), 1),
            (16, Some(1), 1000, 1000, 500, Some((900, 1)), 1),
        ];
        for (usable_cpus, most, before, now, budget, meanwhile, expected) in table {
            let facts = CrewFacts {
                usable_cpus,
                most,
                live: Bytes::mib(now),
                live_before: Bytes::mib(before),
                budget: Bytes::mib(budget),
                meanwhile: meanwhile.map(|(allocated, markers)| (Bytes::mib(allocated), markers)),
            };
            assert_eq!(markers(facts), expected, "{facts:?}");
        }
    }

    #[test]
    fn copies_take_a_part_of_what_lives_and_of_what_is_left() {
        let mib = Bytes::mib;
        let with = |used| Some(GroupFacts { limit: mib(1024), used: mib(used), unused: Bytes(0) });
        for (live, group, expected) in
            [(160, None, 10), (1, None, 1), (160, with(400), 10), (160, with(960), 8), (160, with(1020), 0)]
        {
            assert_eq!(copies(mib(live), group), mib(expected), "{live} {group:?}");
        }
    }

    #[test]
    fn cleaning_goes_on_while_it_pays() {
        let table = [
            // found and us, before, rounds, goal us -> again
            ((10_000, 5000), None, 1, 1000, true),
            ((10_000, 5000), Some((20_000, 5000)), 2, 1000, true),
            // It does not become less.
            ((10_000, 5000), Some((11_000, 5500)), 2, 1000, false),
            ((10_000, 5000), Some((9_000, 4500)), 2, 1000, false),
            // As many, but sooner done.
            ((10_000, 5000), Some((10_000, 50_000)), 2, 1000, true),
            // The stop will have little to do.
            ((20, 5000), None, 1, 1000, false),
            ((10_000, 400), None, 1, 1000, false),
            ((10_000, 5000), Some((20_000, 50_000)), 12, 1000, false),
        ];
        let round = |(found, us): (usize, u64)| Round { found, took: Nanos(us * 1000) };
        for (this, before, rounds, goal, again) in table {
            let goal = Nanos(goal * 1000);
            let facts = CleanFacts { round: round(this), before: before.map(round), rounds, goal };
            assert_eq!(cleans_again(facts), again, "{facts:?}");
        }
    }
}
