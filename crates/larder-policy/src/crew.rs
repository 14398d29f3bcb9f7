//! How many threads mark.

use larder_units::Bytes;

/// What the number of markers depends on.
#[derive(Clone, Copy, Debug)]
pub struct CrewFacts {
    /// CPUs that the process can really use: affinity mask cut by the cgroup quota.
    pub usable_cpus: usize,
    /// What the client asked for (`GC_MARKERS`, `GC_NPROCS`, `GC_set_markers_count`), if it did.
    pub asked: Option<usize>,
    /// As much as the next cycle will trace: what the last one did, or what is expected of the first. Of the fixed heap by [`traced`],
    /// [`traced_by_first`] and [`traced_by_next`].
    pub traced: Bytes,
}

/// What an object costs to find and to mark, in bytes of long ranges that are scanned in that time: some 10 ns. Its own size hardly
/// matters: where it is large and scanned it is a long range, and a leaf is not read at all.
const OBJECT: usize = 32;

/// As much as a cycle traced that marked so many objects and scanned so many bytes of long ranges (roots, and objects that are split).
pub fn traced(objects: usize, long: Bytes) -> Bytes {
    Bytes(long.0.saturating_add(objects.saturating_mul(OBJECT)))
}

/// As much as the first cycle may trace, where so much was allocated: nobody knows how much of it lives, nor how large objects are. A
/// marker too many costs the first cycle some microseconds; one too few, half of its time.
pub fn traced_by_first(allocated: Bytes) -> Bytes {
    Bytes(allocated.0 / 2)
}

/// What the last cycle found.
#[derive(Clone, Copy, Debug)]
pub struct Last {
    /// As much as it traced.
    pub traced: Bytes,
    /// What it found live.
    pub live: Bytes,
    /// What the one before it found live.
    pub live_before: Bytes,
    /// What was allocated between the two.
    pub allocated: Bytes,
}

/// As much as the next cycle may trace, where so much was allocated since the last: of that as much lives on as of what was allocated before it, and
/// is like what was there. A heap that grows to twice its size from cycle to cycle would have the markers of the one before each time.
pub fn traced_by_next(last: Last, allocated: Bytes) -> Bytes {
    let grown = last.live.saturating_sub(last.live_before).0.min(last.allocated.0) as u128;
    let will_grow = allocated.0 as u128 * grown / last.allocated.0.max(1) as u128;
    let traced = last.traced.0 as u128;
    Bytes((traced + traced * will_grow / last.live.0.max(1) as u128).min(usize::MAX as u128) as usize)
}

/// Work for one marker: about half a millisecond. Waking a thread costs a tenth of that, and on a machine that is busy
/// with other things much more; libgc wakes all its markers for every cycle, which its users measure as loss.
const WORTH_A_MARKER: Bytes = Bytes::mib(1);

/// The most markers that any heap of this process will have.
pub fn most_markers(facts: CrewFacts) -> usize {
    // More than 16 share one memory bus; beyond, the work lists' stealing costs more than it brings (untried here).
    facts.asked.unwrap_or(facts.usable_cpus).clamp(1, 16)
}

/// Markers for the next cycle.
pub fn markers(facts: CrewFacts) -> usize {
    (facts.traced.0 / WORTH_A_MARKER.0).clamp(1, most_markers(facts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_heaps_have_one_marker_and_quotas_count() {
        let table = [
            // cpus, asked, traced MiB -> markers
            (8, None, 0, 1),
            (8, None, 1, 1),
            (8, None, 3, 3),
            (8, None, 1000, 8),
            (2, None, 1000, 2),
            (8, Some(1), 1000, 1),
            (2, Some(4), 1000, 4),
            (8, Some(4), 0, 1),
            (256, None, 100_000, 16),
        ];
        for (usable_cpus, asked, traced, expected) in table {
            let facts = CrewFacts { usable_cpus, asked, traced: Bytes::mib(traced) };
            assert_eq!(markers(facts), expected, "{facts:?}");
        }
    }

    #[test]
    fn objects_count_by_number_and_long_ranges_by_length() {
        let markers = |traced| markers(CrewFacts { usable_cpus: 8, asked: None, traced });
        // 6 MiB of matrix rows, which are leaves; as much of small nodes; one long array; what the first cycle may find.
        assert_eq!(markers(traced(1500, Bytes(80 << 10))), 1);
        assert_eq!(markers(traced(196_608, Bytes(0))), 6);
        assert_eq!(markers(traced(1, Bytes::mib(6))), 6);
        assert_eq!(markers(traced_by_first(Bytes::mib(6))), 3);
        assert_eq!(markers(traced_by_first(Bytes::mib(1))), 1);
    }

    #[test]
    fn a_heap_that_grows_is_expected_to_grow_on() {
        let expected = |live_before, live, allocated, since| {
            let [live_before, live, allocated, since] = [live_before, live, allocated, since].map(Bytes::mib);
            traced_by_next(Last { traced: Bytes(live.0 / 4), live, live_before, allocated }, since)
        };
        // Before, then, allocated between, allocated since.
        assert_eq!(expected(0, 6, 6, 10), Bytes::mib(4), "all lives");
        assert_eq!(expected(4, 6, 8, 8), Bytes::mib(2), "a quarter of it");
        assert_eq!(expected(6, 6, 8, 80), Bytes(6 << 18), "as much dies");
        assert_eq!(expected(8, 6, 8, 80), Bytes(6 << 18), "more dies");
        assert_eq!(expected(0, 6, 2, 6), Bytes::mib(3), "it has grown by more than was counted");
        assert_eq!(expected(0, 0, 0, 80), Bytes(0), "nothing is known");
    }
}
