//! How large the young generation is, when objects are promoted for want of room, and when all of the heap is collected.
//!
//! VEE'05 says only that the young generation's size is adjusted to the number of allocating threads; how is ours.

use larder_units::{Bytes, Nanos};

/// What the limits of the next young cycle depend on.
#[derive(Clone, Copy, Debug)]
pub struct YoungFacts {
    /// The young generation, both halves.
    pub size: Bytes,
    /// What survived the collection that has just been, pinned blocks included.
    pub survived: Bytes,
}

/// A share of each half that survivors may take at the next collection before the rest is promoted early.
///
/// A half: with more, so little would be left to allocate from that collections come twice as often, and what survives
/// twice is seldom garbage soon.
const SURVIVOR_SHARE: usize = 2;

/// How much of the young generation may be used, survivors included, before it is collected.
///
/// One half: the other is for the survivors' copies. When so much survived (pinned, mostly) that less than a quarter of
/// the half is left, a quarter is allowed all the same: collections would follow one another otherwise.
pub fn young_limit(facts: YoungFacts) -> Bytes {
    let half = facts.size.0 / 2;
    Bytes(half.max(facts.survived.0 + half / 4))
}

/// How much may survive into the young generation before the rest is promoted whatever its age.
pub fn survivor_limit(size: Bytes) -> Bytes {
    Bytes(size.0 / 2 / SURVIVOR_SHARE)
}

/// What the young generation's size depends on.
#[derive(Clone, Copy, Debug)]
pub struct SizeFacts {
    /// Its size now.
    pub size: Bytes,
    /// The sizes between which it may be chosen.
    pub least: Bytes,
    /// See `least`.
    pub most: Bytes,
    /// How long the last young collection stopped the program.
    pub pause: Nanos,
    /// From the end of the collection before to its beginning.
    pub since_last: Nanos,
    /// Threads that took a buffer since the collection before.
    pub allocating_threads: usize,
    /// The size of their buffers.
    pub buffer: Bytes,
}

/// The share of time, one in so many, that young collections should take.
const COST: u64 = 20;
/// Below a share of one in so many, a smaller young generation would do.
const CHEAP: u64 = 100;
/// Buffers that each allocating thread should be able to take between two collections, so that what is left unused in the
/// last one is little.
const BUFFERS_A_THREAD: usize = 4;

/// The young generation's size from now on.
///
/// It doubles while collections take more than 5 % of the time, and shrinks by an eighth while they take less than 1 %; it
/// is never below what gives each allocating thread four buffers.
pub fn young_size(facts: SizeFacts) -> Bytes {
    let cycle = facts.pause.0 + facts.since_last.0;
    let by_cost = if facts.pause.0.saturating_mul(COST) > cycle {
        facts.size.0.saturating_mul(2)
    } else if facts.pause.0.saturating_mul(CHEAP) < cycle {
        facts.size.0 - facts.size.0 / 8
    } else {
        facts.size.0
    };
    let by_threads =
        facts.allocating_threads.saturating_mul(BUFFERS_A_THREAD).saturating_mul(facts.buffer.0).saturating_mul(2);
    Bytes(by_cost.max(by_threads).clamp(facts.least.0, facts.most.0.max(facts.least.0)))
}

/// What decides whether all of the heap is collected.
#[derive(Clone, Copy, Debug)]
pub struct OldFacts {
    /// What the old generation has handed out, large objects included.
    pub used: Bytes,
    /// What was live at the end of the last full collection; zero before the first.
    pub live: Bytes,
    /// The most that it may have.
    pub limit: Bytes,
    /// The young generation: what the next young collection may promote at most is half of it.
    pub young: Bytes,
}

/// Below this share of its limit the old generation is not collected, however much garbage there may be: one in so many.
const IDLE_SHARE: usize = 8;

/// Whether the old generation should be collected now.
///
/// When it has doubled since the last time, and an eighth of the limit is used at least; or when the next young
/// collection could fill it and a tenth of what is there was promoted since the last time (else there is nothing to gain).
pub fn full_is_due(facts: OldFacts) -> bool {
    let grown = facts.used.0.saturating_sub(facts.live.0);
    let doubled = grown >= facts.live.0 && facts.used.0 >= facts.limit.0 / IDLE_SHARE;
    let nearly_full = facts.used.0 + facts.young.0 / 2 >= facts.limit.0 && grown >= facts.used.0 / 10;
    grown > 0 && (doubled || nearly_full)
}

/// How many bytes behind what the old generation has handed out should have memory from the kernel, so that promotion does
/// not wait for it in a pause: touching a page for the first time takes as long as copying several objects into it.
///
/// `facts` are those after a collection; after a full one `live` is `used`. After a young collection as much as it promoted,
/// because the next may promote as much. After a full one all that will be used before the next is due, if it is there
/// already: what is given back now would be asked for again.
pub fn old_ahead(facts: OldFacts, promoted: Bytes, full: bool) -> Bytes {
    let wanted = if full {
        facts.live.0.saturating_mul(2).max(facts.limit.0 / IDLE_SHARE).saturating_sub(facts.used.0)
    } else {
        promoted.0
    };
    Bytes(wanted.min(facts.limit.0.saturating_sub(facts.used.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_half_is_for_copies_unless_pins_take_it() {
        let table = [(8, 0, 4), (8, 1, 4), (8, 3, 4), (8, 4, 5), (8, 7, 8)];
        for (size, survived, limit) in table {
            let facts = YoungFacts { size: Bytes::mib(size), survived: Bytes::mib(survived) };
            assert_eq!(young_limit(facts), Bytes::mib(limit), "{facts:?}");
        }
        assert_eq!(survivor_limit(Bytes::mib(8)), Bytes::mib(2));
    }

    #[test]
    fn the_young_generation_follows_its_cost_and_its_threads() {
        let table = [
            // size, pause us, since us, threads -> size (MiB); between 4 and 64, buffers of 64 KiB
            (8, 1000, 9_000, 1, 16),
            (8, 1000, 19_000, 1, 8),
            (8, 1000, 50_000, 1, 8),
            (8, 1000, 200_000, 1, 7),
            (4, 1000, 200_000, 1, 4),
            (64, 1000, 2_000, 1, 64),
            (8, 1000, 50_000, 32, 16),
            (8, 1000, 50_000, 1000, 64),
            (8, 0, 0, 0, 8),
        ];
        for (size, pause, since, allocating_threads, expected) in table {
            let facts = SizeFacts {
                size: Bytes::mib(size),
                least: Bytes::mib(4),
                most: Bytes::mib(64),
                pause: Nanos(pause * 1000),
                since_last: Nanos(since * 1000),
                allocating_threads,
                buffer: Bytes(64 << 10),
            };
            assert_eq!(young_size(facts), Bytes::mib(expected), "{facts:?}");
        }
    }

    #[test]
    fn memory_is_ready_for_what_comes_next() {
        let table = [
            // used, live, limit, promoted (MiB), full -> ahead
            (10, 10, 256, 3, false, 3),
            (10, 10, 256, 3, true, 22),
            (100, 100, 256, 0, true, 100),
            (200, 200, 256, 0, true, 56),
            (254, 200, 256, 8, false, 2),
            (256, 200, 256, 8, false, 0),
        ];
        for (used, live, limit, promoted, full, ahead) in table {
            let mib = Bytes::mib;
            let facts = OldFacts { used: mib(used), live: mib(live), limit: mib(limit), young: mib(8) };
            assert_eq!(old_ahead(facts, mib(promoted), full), mib(ahead), "{facts:?}");
        }
    }

    #[test]
    fn a_full_collection_is_due_when_it_has_something_to_gain() {
        let table = [
            // used, live, limit, young (MiB) -> due
            (0, 0, 256, 8, false),
            (31, 0, 256, 8, false),
            (32, 0, 256, 8, true),
            (63, 32, 256, 8, false),
            (64, 32, 256, 8, true),
            (251, 200, 256, 8, false),
            (252, 200, 256, 8, true),
            (252, 240, 256, 8, false),
            (252, 252, 256, 8, false),
        ];
        for (used, live, limit, young, due) in table {
            let facts = OldFacts {
                used: Bytes::mib(used),
                live: Bytes::mib(live),
                limit: Bytes::mib(limit),
                young: Bytes::mib(young),
            };
            assert_eq!(full_is_due(facts), due, "{facts:?}");
        }
    }
}
