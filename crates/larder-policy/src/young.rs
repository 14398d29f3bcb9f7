//! Whether the next cycle of the fixed heap is a young one, which traces what was handed out since the last, or a full one.
//!
//! A young cycle leaves every survivor of an earlier one alone, the dead ones too. So a full cycle comes after a number of young
//! ones, as in libgc (`GC_set_full_freq`), and before what young ones have let through makes the heap larger than full cycles alone
//! would.

use larder_units::Bytes;

/// What is known when a cycle has ended.
#[derive(Clone, Copy, Debug)]
pub struct YoungFacts {
    /// Young cycles that may come between two full ones; 0 where none is wanted.
    pub most: usize,
    /// Young cycles since the last full one.
    pub since_full: usize,
    /// Bytes that the last full cycle found live.
    pub live_after_full: Bytes,
    /// Bytes that may be allocated after a full cycle before the next is due.
    pub budget_after_full: Bytes,
    /// Bytes that are taken for live now: what young cycles found is added, old objects that died are not taken away.
    pub live: Bytes,
}

/// However little is live, young cycles may let so much through: less would be next to nothing beside the least budget.
const LEAST_LET_THROUGH: Bytes = Bytes::mib(1);

/// Whether the next cycle is young.
///
/// While cycles are full the heap is at most what is live and one budget. With young ones it is at most what was live, one budget of
/// what they let through, and one that is being allocated. Where a budget is more than what is live, as in small heaps, that would be twice as much as with full
/// cycles, which are soon done there: no more may be let through than is live, and what the next one lets through, as much as the others in the mean, counts.
pub fn next_is_young(facts: YoungFacts) -> bool {
    let let_through = facts.live.saturating_sub(facts.live_after_full);
    let is_soon_done = facts.budget_after_full > facts.live_after_full;
    let (expected, most) = if is_soon_done {
        let each = let_through.0 / facts.since_full.max(1);
        (Bytes(let_through.0 + each), facts.budget_after_full.min(facts.live_after_full.max(LEAST_LET_THROUGH)))
    } else {
        (let_through, facts.budget_after_full)
    };
    facts.since_full < facts.most && expected < most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_cycles_come_after_many_young_ones_and_when_much_was_let_through() {
        let table = [
            // most, since, live after full, budget after full, live now (MiB) -> young
            (0, 0, 100, 30, 100, false),
            (19, 0, 100, 30, 100, true),
            (19, 18, 100, 30, 100, true),
            (19, 19, 100, 30, 100, false),
            (1, 0, 100, 30, 100, true),
            (1, 1, 100, 30, 100, false),
            // Old objects may be dead for so much.
            (19, 3, 100, 30, 129, true),
            (19, 3, 100, 30, 130, false),
            // A small heap, and a very small one.
            (19, 1, 10, 30, 14, true),
            (19, 1, 10, 30, 15, false),
            (19, 9, 10, 30, 18, true),
            (19, 9, 10, 30, 19, false),
            (19, 1, 0, 6, 0, true),
            (19, 1, 0, 6, 1, false),
            // Objects were freed explicitly.
            (19, 3, 100, 30, 10, true),
            // No full cycle yet.
            (19, 0, 0, 0, 10, false),
        ];
        for (most, since_full, live_after_full, budget_after_full, live, expected) in table {
            let [live_after_full, budget_after_full, live] = [live_after_full, budget_after_full, live].map(Bytes::mib);
            let facts = YoungFacts { most, since_full, live_after_full, budget_after_full, live };
            assert_eq!(next_is_young(facts), expected, "{facts:?}");
        }
    }
}
