//! When to collect, and what memory to keep.

use larder_units::Bytes;

/// What is known about the heap after a cycle.
#[derive(Clone, Copy, Debug)]
pub struct HeapFacts {
    /// Bytes that the last cycle found live; 0 before the first.
    pub live: Bytes,
    /// Bytes of roots that every cycle scans: static data and stacks.
    pub roots: Bytes,
    /// Threads that a cycle may have to stop.
    pub threads: usize,
    /// libgc's `free_space_divisor`: larger means less memory and more cycles. 3 by default.
    pub free_space_divisor: usize,
    /// Heap size that the client asked for at the start or by `GC_expand_hp`.
    pub initial: Bytes,
    /// Largest heap that the client allows; 0 for none.
    pub max: Bytes,
}

/// What every budget contains, however little is live.
///
/// 5.75 MiB: a cycle over a small heap costs about a tenth of a millisecond, mostly to stop threads and to scan static data,
/// so this bounds collection to a few percent of the time that so much of small objects take to allocate, and stays well
/// inside a second-level plus third-level cache. libgc collects such heaps every few hundred kilobytes.
pub const LEAST_BUDGET: Bytes = Bytes(5888 << 10);

/// Where the share passes this, the heap leaves the second-level cache: marking it becomes as slow per byte as marking a large
/// one, while a cycle's other costs are still a good part of the whole. From here on the share counts twice ...
const DOUBLED_FROM: Bytes = Bytes::mib(4);

/// ... for so much of it.
const DOUBLED: Bytes = Bytes::mib(8);

/// What each further thread adds to the constant: to stop a thread and to let it go on takes about 15 microseconds of
/// CPU time, in which it would have allocated about so much.
const THREAD_BUDGET: Bytes = Bytes(24 * 1024);

/// Threads that are stopped in the time of one small cycle.
const SMALL_CROWD: usize = 128;

/// The share from which on nothing is left of the constant but half of what a crowd adds.
const FADED: Bytes = Bytes::mib(64);

/// What is traced may be allocated so many times with a divisor of 1: libgc's own figure.
const SHARE: usize = 2;

/// The smallest step when a maximum leaves hardly any room: more would be no limit, less would be no progress.
const LEAST_STEP: Bytes = Bytes(256 * 1024);

/// Bytes that may be allocated until the next cycle begins.
///
/// The rule is libgc's: with divisor `d` a collection is due after allocating about `2 / d` of what must be traced (live
/// data, and the roots, which cost as much to scan), so that tracing costs a constant factor per allocated byte. To that
/// comes a constant for what a cycle costs whatever it traces; it fades as the share grows, since then it would only be
/// memory. Half of what a crowd adds stays, since each thread is stopped in every cycle. (All of it would leave 1000 threads with 264 MiB hardly
/// below nine tenths of the memory that they take on libgc.)
pub fn budget(facts: HeapFacts) -> Bytes {
    let traced = facts.live.0 + facts.roots.0;
    let share = traced.saturating_mul(SHARE) / facts.free_space_divisor.max(1);
    let doubled = share.saturating_sub(DOUBLED_FROM.0).min(DOUBLED.0);
    let crowd = facts.threads.saturating_sub(SMALL_CROWD) * THREAD_BUDGET.0;
    let fading = (LEAST_BUDGET.0 + doubled + crowd / 2) / 100 * (100 - share.min(FADED.0) / (FADED.0 / 100));
    let wanted = share.saturating_add(fading + crowd / 2).max(facts.initial.0.saturating_sub(facts.live.0));
    if facts.max.0 == 0 {
        return Bytes(wanted);
    }
    // Blocks that hold few survivors take room as well. Where they take more, the heap finds no block before the cycle is due, and has one then.
    let room = facts.max.0.saturating_sub(facts.live.0);
    Bytes(wanted.min((room / 4 * 3).max(LEAST_STEP.0)))
}

/// What a client wants of the budget besides.
#[derive(Clone, Copy, Debug)]
pub struct Adjustments {
    /// Bytes of the heap, as large as it is now, that are not live.
    pub unused: Bytes,
    /// Collect before the heap grows (libgc's `GC_dont_expand`).
    pub dont_expand: bool,
    /// Do not collect before the heap, as large as it is, is used up (`GC_use_entire_heap`).
    pub use_entire_heap: bool,
    /// The smallest budget (`GC_set_min_bytes_allocd`).
    pub least: Bytes,
}

/// The budget as the client wants it. Not to expand wins over using everything, and the smallest step over both.
pub fn adjusted(budget: Bytes, wanted: Adjustments) -> Bytes {
    let mut bytes = budget.0;
    if wanted.use_entire_heap {
        bytes = bytes.max(wanted.unused.0);
    }
    if wanted.dont_expand {
        bytes = bytes.min(wanted.unused.0.max(LEAST_STEP.0));
    }
    Bytes(bytes.max(wanted.least.0))
}

/// As much may be allocated until the next cycle, where `allocated` came before this one, of what the heap has room for at once, and so much was expected
/// `before`.
///
/// One object may be longer than the budget, and a program that makes one such object after the other touches each for the first time where the memory
/// of the last has gone back to the kernel: that takes ten times as long as to clear it. A sixteenth is forgotten with each cycle.
/// (libgc gives back what six cycles have not used.)
pub fn expected_allocation(before: Bytes, allocated: Bytes) -> Bytes {
    allocated.max(Bytes(before.0 - before.0 / 16))
}

/// Free memory to keep behind the pool after a cycle; the rest goes back to the kernel.
///
/// The next budget, or what is expected where that is more, will be wanted soon; half as much again is slack for blocks that fill unevenly.
pub fn resident_to_keep(budget: Bytes, expected: Bytes) -> Bytes {
    let wanted = budget.max(expected);
    Bytes(wanted.0.saturating_add(wanted.0 / 2))
}

/// Whether a heap of `size` bytes, of which so much is live, has so much more than what it is to `keep` free that memory goes back. An eighth of what is live
/// counts for blocks with few survivors. And a quarter more is no reason, where some is kept: what swings by so much would go back and come again, and to give
/// it back cuts the longest runs.
pub fn has_too_much(size: Bytes, live: Bytes, keep: Bytes) -> bool {
    let needed = live.0.saturating_add(live.0 / 8).saturating_add(keep.0);
    size.0 > needed.saturating_add(if keep.0 > 0 { needed / 4 } else { 0 })
}

/// What counts against the budget where `allocated` bytes were handed out since the last cycle and `freed` were freed explicitly:
/// what is left of them, but an eighth at least where the heap has `grown`, since what was freed was not all found again then. A heap that goes
/// on with what is freed has nothing to gain by a cycle. libgc has the same eighth, and looks at it where it finds no block.
pub fn net_allocation(allocated: Bytes, freed: Bytes, grown: bool) -> Bytes {
    let least = if grown { Bytes(allocated.0 / 8) } else { Bytes(0) };
    allocated.saturating_sub(freed).max(least)
}

/// Whether so much more than the budget was allocated that nobody may go on with a cycle merely on its way.
pub fn is_overdue(since: Bytes, budget: Bytes) -> bool {
    since.0 > budget.0.saturating_add(budget.0 / 64)
}

/// So small a part of what is alive may be allocated between two cycles of a heap that must not grow, where there is more of it than a smallest step: a cycle traces
/// all of it again. Twice as much refused more objects of a heap that is nine tenths alive and has cells for all of them after a cycle.
const LIVE_BETWEEN: usize = 64;

/// Whether an object whose class has no cell left, in a heap that must not grow, takes a larger cell without a cycle before, where so little was
/// allocated since the last one: that cycle, which found so much alive, has just found what there is.
pub fn makes_do_with_larger_cells(since: Bytes, live: Bytes) -> bool {
    since < LEAST_STEP.max(Bytes(live.0 / LIVE_BETWEEN))
}

/// Cycles for a request that finds no memory, in any case: the first frees what is dead, the second what the first one's finalizers let go.
const SURE_CYCLES: usize = 2;

/// Cycles for one request, in any case. A heap with room for little more than what lives, whose threads go on all the same, gets so many for each
/// request that fails: a second, where a cycle takes 10 ms.
const MOST_CYCLES: usize = 100;

/// Whether a request that finds no memory after so many cycles tries one more. `taken`: what was handed out since it began the last one.
///
/// Where that is as much as the request wants, the cycle freed enough, and others were faster: a thread that loses its CPU as its cycle ends finds
/// a small heap used up again, and again after the next. Where it is less, memory is exhausted, or lies in pieces that are too short.
pub fn another_cycle_may_help(cycles: usize, wanted: Bytes, taken: Bytes) -> bool {
    cycles < SURE_CYCLES || cycles < MOST_CYCLES && taken >= wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_for_long_objects_is_kept_as_long_as_they_come() {
        let mib = Bytes::mib;
        let mut expected = Bytes(0);
        for (allocated, kept) in [(16, 24), (16, 24), (500, 750), (6, 703), (6, 659), (600, 900)] {
            expected = expected_allocation(expected, mib(allocated));
            assert_eq!(resident_to_keep(mib(6), expected).0 >> 20, kept, "{allocated}");
        }
        (0..80).for_each(|_| expected = expected_allocation(expected, mib(1)));
        assert_eq!(resident_to_keep(mib(6), expected), mib(9));
        assert_eq!(resident_to_keep(Bytes(usize::MAX), Bytes(0)), Bytes(usize::MAX));
    }

    #[test]
    fn memory_goes_back_where_there_is_a_quarter_too_much() {
        for (size, live, keep, too_much) in [
            (100, 0, 80, false),
            (101, 0, 80, true),
            (150, 80, 30, false),
            (151, 80, 30, true),
            (90, 80, 0, false),
            (91, 80, 0, true),
            (usize::MAX, usize::MAX, usize::MAX, false),
        ] {
            assert_eq!(has_too_much(Bytes(size), Bytes(live), Bytes(keep)), too_much, "{size} {live} {keep}");
        }
    }

    #[test]
    fn cycles_go_on_while_others_take_what_they_free() {
        for (cycles, wanted, taken, another) in [
            (0, 100, 0, true),
            (1, 100, 0, true),
            (2, 100, 0, false),
            (2, 100, 99, false),
            (2, 100, 100, true),
            (99, 100, 5000, true),
            (100, 100, 5000, false),
        ] {
            assert_eq!(another_cycle_may_help(cycles, Bytes(wanted), Bytes(taken)), another, "{cycles} {taken}");
        }
    }

    #[test]
    fn what_was_freed_does_not_count_but_for_an_eighth_where_the_heap_grew() {
        for (allocated, freed, net, of_grown) in [
            (0, 0, 0, 0),
            (800, 0, 800, 800),
            (800, 300, 500, 500),
            (800, 700, 100, 100),
            (800, 790, 10, 100),
            (800, 4000, 0, 100),
        ] {
            let net_of = |grown| net_allocation(Bytes(allocated), Bytes(freed), grown);
            assert_eq!([net_of(false), net_of(true)], [Bytes(net), Bytes(of_grown)], "{freed} of {allocated}");
        }
    }

    #[test]
    fn a_larger_cell_is_taken_without_a_cycle_shortly_after_one() {
        for (live, most) in [(Bytes(0), LEAST_STEP), (Bytes::mib(16), LEAST_STEP), (Bytes::mib(192), Bytes::mib(3))] {
            for (since, larger) in [(Bytes(0), true), (Bytes(most.0 - 1), true), (most, false)] {
                assert_eq!(makes_do_with_larger_cells(since, live), larger, "{since} of {live}");
            }
        }
    }

    #[test]
    fn a_client_may_want_the_whole_heap_used_or_not_grown() {
        let plain = Adjustments { unused: Bytes::mib(50), dont_expand: false, use_entire_heap: false, least: Bytes(1) };
        let cases = [
            (10, plain, 10),
            (10, Adjustments { use_entire_heap: true, ..plain }, 50),
            (80, Adjustments { use_entire_heap: true, ..plain }, 80),
            (80, Adjustments { dont_expand: true, ..plain }, 50),
            (10, Adjustments { dont_expand: true, ..plain }, 10),
            (80, Adjustments { dont_expand: true, use_entire_heap: true, ..plain }, 50),
            (10, Adjustments { least: Bytes::mib(20), ..plain }, 20),
        ];
        for (budget, wanted, expected) in cases {
            assert_eq!(adjusted(Bytes::mib(budget), wanted), Bytes::mib(expected), "{budget} {wanted:?}");
        }
        // A full heap still makes progress.
        let full = Adjustments { unused: Bytes(0), dont_expand: true, ..plain };
        assert_eq!(adjusted(Bytes::mib(10), full), LEAST_STEP);
    }

    const NOTHING: HeapFacts = HeapFacts {
        live: Bytes(0),
        roots: Bytes(0),
        threads: 1,
        free_space_divisor: 3,
        initial: Bytes(0),
        max: Bytes(0),
    };

    #[test]
    fn budgets() {
        let mib = Bytes::mib;
        let table = [
            // live, roots, divisor, initial, max -> budget
            (0, 0, 3, 0, 0, LEAST_BUDGET),
            (300, 0, 3, 0, 0, mib(200)),
            (290, 10, 3, 0, 0, mib(200)),
            (300, 0, 1, 0, 0, mib(600)),
            (0, 0, 3, 384, 0, mib(384)),
            (100, 0, 3, 384, 0, mib(284)),
            (0, 0, 3, 0, 4, mib(3)),
            (60, 0, 3, 0, 64, mib(3)),
            (64, 0, 3, 0, 64, LEAST_STEP),
            (300, 0, 0, 0, 0, mib(600)),
        ];
        for (live, roots, d, initial, max, expected) in table {
            let facts = HeapFacts {
                live: mib(live),
                roots: mib(roots),
                threads: 1,
                free_space_divisor: d,
                initial: mib(initial),
                max: mib(max),
            };
            // The constant fades in hundredths of itself.
            let difference = budget(facts).0.abs_diff(expected.0);
            assert!(difference <= LEAST_BUDGET.0 / 100, "{facts:?}: {} for {expected}", budget(facts));
        }
    }

    #[test]
    fn more_live_data_never_makes_a_budget_smaller() {
        let mut last = 0;
        for live in 0..400 {
            let now = budget(HeapFacts { live: Bytes::mib(live), ..NOTHING }).0;
            assert!(now >= last && now <= last + Bytes::mib(3).0 + LEAST_BUDGET.0 * usize::from(live == 0));
            last = now;
        }
    }

    #[test]
    fn a_crowd_of_threads_is_stopped_less_often_while_the_heap_is_small() {
        let with = |threads, live| budget(HeapFacts { threads, live, ..NOTHING }).0;
        assert_eq!(with(64, Bytes(0)), with(1, Bytes(0)));
        assert!(with(1000, Bytes(0)) > with(1, Bytes(0)) + Bytes::mib(20).0);
        let more = with(1000, Bytes::mib(300)) - with(1, Bytes::mib(300));
        assert!(more > Bytes::mib(9).0 && more < Bytes::mib(12).0, "half of it stays: {more}");
    }

    #[test]
    fn a_cycle_is_overdue_a_little_beyond_the_budget() {
        assert!(!is_overdue(Bytes::mib(64), Bytes::mib(64)) && !is_overdue(Bytes::mib(65), Bytes::mib(64)));
        assert!(is_overdue(Bytes::mib(66), Bytes::mib(64)) && !is_overdue(Bytes(usize::MAX), Bytes(usize::MAX)));
    }

    #[test]
    fn a_budget_never_overflows_and_is_never_zero() {
        let huge = HeapFacts { live: Bytes(usize::MAX / 2), ..NOTHING };
        assert!(budget(huge).0 > 0);
        assert!(budget(HeapFacts { max: Bytes(1), ..NOTHING }).0 > 0);
    }
}
