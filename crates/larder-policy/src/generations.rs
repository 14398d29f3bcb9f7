//! How large the young generation is, when objects are promoted for want of room, and when all of the heap is collected.
//!
//! VEE'05 says only that the young generation's size is adjusted to the number of allocating threads; how is ours.

use larder_units::{Bytes, Nanos};

/// What the limits of the next young cycle depend on.
#[derive(Clone, Copy, Debug)]
pub struct YoungFacts {
    /// The young generation: eden and room for two sets of survivors.
    pub size: Bytes,
    /// What survived the collection that has just been, pinned blocks included.
    pub survived: Bytes,
}

/// What the survivors of one collection may take of the young generation, one in so many, before the rest is promoted early. There
/// must be room for two sets, that of the last collection and that of the next, so eden has six eighths.
///
/// With two halves, eden had four, and collections came half as often again: that cost more than it saved where much survives,
/// and where little does the survivors' half lay idle.
const SURVIVOR_PART: usize = 8;

/// How much of the young generation may be used, survivors included, before it is collected.
///
/// All but the room for the next survivors. When so much survived (pinned, mostly, or for want of room in the old generation) that
/// less than an eighth is left, an eighth is allowed all the same: collections would follow one another otherwise.
pub fn young_limit(facts: YoungFacts) -> Bytes {
    let part = facts.size.0 / SURVIVOR_PART;
    Bytes((facts.size.0 - part).max(facts.survived.0 + part))
}

/// How much may survive into the young generation before the rest is promoted whatever its age.
pub fn survivor_limit(size: Bytes) -> Bytes {
    Bytes(size.0 / SURVIVOR_PART)
}

/// How much address space a young generation of this size needs: when the old generation is full, everything that is used may
/// survive, in blocks that are not quite full.
pub fn young_reserve(size: Bytes) -> Bytes {
    Bytes(size.0 / 4 * 9)
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
    /// Owners of allocation buffers that filled theirs since the collection before: the allocating threads, or, where buffers belong to
    /// processors, those.
    pub owners: usize,
    /// The size of their buffers.
    pub buffer: Bytes,
}

/// The share of time, one in so many, that young collections should take.
const COST: u64 = 20;
/// Below a share of one in so many, a smaller young generation would do.
const CHEAP: u64 = 100;
/// Buffers that each owner should be able to take between two collections, so that what is left unused in the last one is little.
const BUFFERS_AN_OWNER: usize = 4;

/// The young generation's size from now on.
///
/// It doubles while collections take more than 5 % of the time, and shrinks by an eighth while they take less than 1 %; it
/// is never below what has four buffers in eden for each owner: the paper's rule, by allocating threads, where those have buffers. A
/// thousand threads that share the buffers of two CPUs need no more room than two threads.
pub fn young_size(facts: SizeFacts) -> Bytes {
    let cycle = facts.pause.0 + facts.since_last.0;
    let by_cost = if facts.pause.0.saturating_mul(COST) > cycle {
        facts.size.0.saturating_mul(2)
    } else if facts.pause.0.saturating_mul(CHEAP) < cycle {
        facts.size.0 - facts.size.0 / 8
    } else {
        facts.size.0
    };
    let buffers = facts.owners.saturating_mul(BUFFERS_AN_OWNER).saturating_mul(facts.buffer.0);
    let by_owners = buffers.saturating_mul(SURVIVOR_PART) / (SURVIVOR_PART - 2);
    Bytes(by_cost.max(by_owners).clamp(facts.least.0, facts.most.0.max(facts.least.0)))
}

/// What decides whether all of the heap is collected.
#[derive(Clone, Copy, Debug)]
pub struct OldFacts {
    /// What the old generation has handed out, large objects included.
    pub used: Bytes,
    /// What was live at the end of the last full collection; zero before the first.
    pub live: Bytes,
    /// Below this it is not collected for having grown, however much garbage there may be.
    pub least: Bytes,
    /// The most that it may have.
    pub limit: Bytes,
    /// The young generation: what the next young collection promotes is seldom more than half of it.
    pub young: Bytes,
}

/// How large the old generation may become before a collection looks for garbage in it, where nobody says: one in so many of its
/// limit.
const IDLE_SHARE: usize = 8;

/// [`OldFacts::least`] for a heap whose limit is `limit`, and of which `asked` is wanted; zero where nobody says.
pub fn least_old(asked: Bytes, limit: Bytes) -> Bytes {
    Bytes(if asked.0 == 0 { limit.0 / IDLE_SHARE } else { asked.0.min(limit.0) })
}

/// Whether the old generation should be collected now.
///
/// When it has doubled since the last time, and `least` is used: that keeps memory in proportion to what lives. Or when the next young
/// collection could fill it and a tenth of what is there was promoted since the last time (else there is nothing to gain). With
/// `least` at the limit only the latter is left: the old generation has a fixed size and is collected when it is nearly full.
pub fn full_is_due(facts: OldFacts) -> bool {
    let grown = facts.used.0.saturating_sub(facts.live.0);
    let doubled = grown >= facts.live.0 && facts.used.0 >= facts.least.0;
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
    let wanted =
        if full { facts.live.0.saturating_mul(2).max(facts.least.0).saturating_sub(facts.used.0) } else { promoted.0 };
    Bytes(wanted.min(facts.limit.0.saturating_sub(facts.used.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_is_for_copies_unless_pins_take_it() {
        let table = [(8, 0, 7), (8, 1, 7), (8, 6, 7), (8, 7, 8), (8, 9, 10)];
        for (size, survived, limit) in table {
            let facts = YoungFacts { size: Bytes::mib(size), survived: Bytes::mib(survived) };
            assert_eq!(young_limit(facts), Bytes::mib(limit), "{facts:?}");
        }
        assert_eq!(survivor_limit(Bytes::mib(8)), Bytes::mib(1));
        // Two fifths of it are what may be used.
        assert!(young_reserve(Bytes::mib(8)).0 * 2 / 5 >= Bytes::mib(7).0);
    }

    #[test]
    fn the_young_generation_follows_its_cost_and_its_owners() {
        let table = [
            // size, pause us, since us, owners -> size (MiB); between 4 and 64, buffers of 64 KiB
            (8, 1000, 9_000, 1, 16),
            (8, 1000, 19_000, 1, 8),
            (8, 1000, 50_000, 1, 8),
            (8, 1000, 200_000, 1, 7),
            (4, 1000, 200_000, 1, 4),
            (64, 1000, 2_000, 1, 64),
            (8, 1000, 50_000, 48, 16),
            (8, 1000, 50_000, 1000, 64),
            (8, 0, 0, 0, 8),
        ];
        for (size, pause, since, owners, expected) in table {
            let facts = SizeFacts {
                size: Bytes::mib(size),
                least: Bytes::mib(4),
                most: Bytes::mib(64),
                pause: Nanos(pause * 1000),
                since_last: Nanos(since * 1000),
                owners,
                buffer: Bytes(64 << 10),
            };
            assert_eq!(young_size(facts), Bytes::mib(expected), "{facts:?}");
        }
    }

    #[test]
    fn memory_is_ready_for_what_comes_next() {
        let table = [
            // used, live, least, promoted (MiB), full -> ahead; of 256
            (10, 10, 32, 3, false, 3),
            (10, 10, 32, 3, true, 22),
            (10, 10, 256, 3, true, 246),
            (100, 100, 32, 0, true, 100),
            (200, 200, 32, 0, true, 56),
            (254, 200, 32, 8, false, 2),
            (256, 200, 32, 8, false, 0),
        ];
        for (used, live, least, promoted, full, ahead) in table {
            let mib = Bytes::mib;
            let facts =
                OldFacts { used: mib(used), live: mib(live), least: mib(least), limit: mib(256), young: mib(8) };
            assert_eq!(old_ahead(facts, mib(promoted), full), mib(ahead), "{facts:?}");
        }
    }

    #[test]
    fn a_full_collection_is_due_when_it_has_something_to_gain() {
        let table = [
            // used, live, least (MiB) -> due; of 256
            (0, 0, 32, false),
            (31, 0, 32, false),
            (32, 0, 32, true),
            (63, 32, 32, false),
            (64, 32, 32, true),
            (64, 32, 256, false),
            (251, 32, 256, false),
            (252, 32, 256, true),
            (251, 200, 32, false),
            (252, 200, 32, true),
            (252, 240, 32, false),
            (252, 252, 256, false),
        ];
        for (used, live, least, due) in table {
            let facts = OldFacts {
                used: Bytes::mib(used),
                live: Bytes::mib(live),
                least: Bytes::mib(least),
                limit: Bytes::mib(256),
                young: Bytes::mib(8),
            };
            assert_eq!(full_is_due(facts), due, "{facts:?}");
        }
    }

    #[test]
    fn the_old_generation_is_fixed_or_a_share_of_its_limit() {
        let table = [(0, 256, 32), (10, 256, 10), (256, 256, 256), (300, 256, 256)];
        for (asked, limit, least) in table {
            assert_eq!(least_old(Bytes::mib(asked), Bytes::mib(limit)), Bytes::mib(least), "{asked} of {limit}");
        }
    }
}
