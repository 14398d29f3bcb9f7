//! How large allocation buffers are, and whom they belong to (VEE'05, sections 4 and 5.2; HAB, section II).
//!
//! Sizes are multiples of [`STEP`]. The paper's text on the growth factor and the initial size is lost in the copies that
//! we know; what stands here was chosen for the reasons given.

use larder_units::Bytes;

/// The unit of sizes: whatever is obtained for a buffer is a multiple of this, except at the end of a space.
pub const STEP: Bytes = Bytes(1024);

/// The smallest buffer that the paper measures.
pub const LEAST: Bytes = Bytes(4 << 10);

/// The largest buffer that the paper measures.
pub const MOST: Bytes = Bytes(512 << 10);

/// Objects above this part of a buffer come from the space directly, so that refilling never abandons more than this.
///
/// An eighth: with more, a buffer of 4 KiB would be refilled for objects that two of fill it; with less, it would serve none
/// above 256 bytes.
pub const DIRECT_PART: usize = 8;

/// How the sizes of the buffers of one level follow what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// They do not.
    Fixed,
    /// Each refill makes the buffer half again as large; each collection halves it.
    ///
    /// Half again: a buffer that is refilled once between two collections becomes smaller (3/4), one that is refilled twice
    /// becomes larger (9/8). So sizes settle where a buffer is filled once or twice between collections, and what a
    /// collection finds unused in it is less than what it has used. Twice would settle at one refill, half of which is unused.
    Adaptive,
    /// At each collection a buffer gets a size with which it would be refilled so many times until the next, by its
    /// average share of what was allocated.
    Share {
        /// Refills wanted between two collections.
        target_refills: u32,
    },
}

/// What happens near the end of a space, where less is left than all buffers together would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NearEnd {
    /// Buffers get smaller, so that each owner gets some of what is left.
    Shrink,
    /// Buffers are given out at full size as long as there is room; who gets none allocates object by object. This is what the
    /// paper measured.
    Singly,
}

/// The sizes of the buffers of one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// How they change.
    pub sizing: Sizing,
    /// What a buffer begins with; the size, where it is fixed.
    pub initial: Bytes,
    /// Bounds of the others.
    pub least: Bytes,
    /// Bounds of the others.
    pub most: Bytes,
}

/// A part of a whole, in 65536ths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(pub u32);

impl Share {
    const ONE: u64 = 1 << 16;

    /// `part / whole`.
    pub const fn of(part: Bytes, whole: Bytes) -> Self {
        if whole.0 == 0 {
            return Self(0);
        }
        let share = part.0 as u128 * Self::ONE as u128 / whole.0 as u128;
        Self(if share > Self::ONE as u128 { Self::ONE as u32 } else { share as u32 })
    }

    /// The exponential average: half of what it was and half of what was seen last, so that a thread which stops
    /// allocating has a sixteenth of its share after four collections.
    pub const fn averaged_with(self, last: Self) -> Self {
        Self(((self.0 as u64 + last.0 as u64) / 2) as u32)
    }

    /// This part of `whole`, rounded down.
    pub const fn part_of(self, whole: Bytes) -> Bytes {
        Bytes((self.0 as u128 * whole.0 as u128 / Self::ONE as u128) as usize)
    }
}

impl Sizes {
    /// Buffers of one size.
    pub const fn fixed(size: Bytes) -> Self {
        Self { sizing: Sizing::Fixed, initial: size, least: size, most: size }
    }

    /// The default: adaptive, from the smallest that the paper measures to the largest.
    ///
    /// They begin with the smallest: a thread that allocates once has wasted little, and one that goes on has a large buffer
    /// after a dozen refills.
    pub const fn adaptive() -> Self {
        Self { sizing: Sizing::Adaptive, initial: LEAST, least: LEAST, most: MOST }
    }

    /// By share, with a target of 50 refills: then a collection finds half a buffer of fifty unused, one per cent.
    pub const fn by_share() -> Self {
        Self { sizing: Sizing::Share { target_refills: 50 }, initial: LEAST, least: LEAST, most: MOST }
    }

    /// What a buffer that has never been filled is given.
    pub const fn first(self) -> Bytes {
        self.clamped(self.initial)
    }

    /// The size of the next filling, after a refill.
    pub const fn after_refill(self, size: Bytes) -> Bytes {
        match self.sizing {
            Sizing::Fixed | Sizing::Share { .. } => self.clamped(size),
            Sizing::Adaptive => self.clamped(Bytes(size.0.saturating_add(size.0 / 2))),
        }
    }

    /// The size after a collection. `share` is the buffer's average share of `allocated`, which is what all buffers of the
    /// level took since the last collection.
    pub const fn after_collection(self, size: Bytes, share: Share, allocated: Bytes) -> Bytes {
        match self.sizing {
            Sizing::Fixed => self.clamped(size),
            Sizing::Adaptive => self.clamped(Bytes(size.0 / 2)),
            Sizing::Share { target_refills } => {
                let refills = if target_refills == 0 { 1 } else { target_refills as usize };
                self.clamped(Bytes(share.part_of(allocated).0 / refills))
            }
        }
    }

    /// Within the bounds, a multiple of [`STEP`] (rounded down) and at least that.
    const fn clamped(self, size: Bytes) -> Bytes {
        let (least, most) = match self.sizing {
            Sizing::Fixed => (self.initial.0, self.initial.0),
            _ => (self.least.0, self.most.0),
        };
        let size = if size.0 < least {
            least
        } else if size.0 > most {
            most
        } else {
            size.0
        };
        let whole = size - size % STEP.0;
        Bytes(if whole == 0 { STEP.0 } else { whole })
    }
}

/// The size of an upper level's buffer of about `size`: the next multiple of what is wanted by the level below, so that it
/// leaves no tail there (HAB, section II). A `below` that does not fit at all does not matter.
pub const fn multiple(size: Bytes, below: Bytes) -> Bytes {
    if below.0 == 0 || below.0 > size.0 {
        return size;
    }
    Bytes(size.0.div_ceil(below.0) * below.0)
}

/// How much of a space is still free, and how many share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that nobody has obtained.
    pub left: Bytes,
    /// Buffers that were filled since the last collection, those of this refill included.
    pub sharers: usize,
}

/// What a refill asks for, of a buffer that would like `size`, for an object of `object` bytes: at least, at most.
///
/// `Shrink` never asks for more than half of an even share of what is left, and takes what it can get from one object on:
/// so each owner can be refilled again and again, with less each time, and all come to the end at about the same time. Below
/// [`STEP`] it is the paper's last phase, in which objects come from the space one by one.
pub const fn wish(near_end: NearEnd, size: Bytes, object: Bytes, room: Room) -> (Bytes, Bytes) {
    let size = if size.0 < object.0 { object } else { size };
    match near_end {
        NearEnd::Singly => (size, size),
        NearEnd::Shrink => {
            let sharers = if room.sharers == 0 { 1 } else { room.sharers };
            let even = room.left.0 / (2 * sharers);
            let even = even - even % STEP.0;
            let most = if even < STEP.0 { STEP.0 } else { even };
            let most = if most > size.0 { size.0 } else { most };
            (object, Bytes(if most < object.0 { object.0 } else { most }))
        }
    }
}

/// Whether an object is too large for buffers of this size, so that it comes from the space directly.
pub const fn is_direct(object: Bytes, size: Bytes) -> bool {
    object.0 > size.0 / DIRECT_PART
}

/// Whom the lowest buffers belong to, where that can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// To threads.
    Threads,
    /// To processors: CPUs or concurrency ids.
    Processors,
}

/// How many threads are few enough for buffers of their own, as large as `first` to begin with, in a space of `room`, where processors have them
/// otherwise: a few for each CPU, or as many as leave fifteen sixteenths of the space to others.
pub const fn few_threads(cpus: usize, room: Bytes, first: Bytes) -> usize {
    const FOR_EACH_CPU: usize = 4;
    const SHARE: usize = 16;
    let (by_cpus, by_room) = (FOR_EACH_CPU * cpus, room.0 / SHARE / if first.0 == 0 { 1 } else { first.0 });
    if by_room > by_cpus { by_room } else { by_cpus }
}

/// Whom the buffers belong to where threads have their own while they are at most `few`, and processors have them beyond. With a thread for each
/// CPU, an owner of either kind has one buffer, and a thread's is found by fewer instructions. In between they stay where they are, so that a
/// thread that comes and goes does not flip them.
pub const fn side_by_number(now: Side, threads: usize, few: usize) -> Side {
    match now {
        Side::Threads if threads > few => Side::Processors,
        Side::Processors if threads <= few / 2 => Side::Threads,
        side => side,
    }
}

/// What the decision to flip is made from, at a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlipFacts {
    /// What the collection found unused in the lowest buffers.
    pub unused: Bytes,
    /// The largest size that one of them had since the last collection.
    pub largest: Bytes,
    /// How many processors there are: CPUs, or, where buffers go by concurrency id, ids in use.
    pub processors: usize,
    /// Threads that allocated since the last collection.
    pub allocating_threads: usize,
}

/// Whom the buffers belong to after a collection (section 5.2): it begins with threads; when what is unused in their buffers
/// exceeds the largest buffer times the number of processors, buffers flip to processors, and back when it exceeds the
/// largest buffer times the number of allocating threads.
pub const fn next_side(now: Side, facts: FlipFacts) -> Side {
    let owners = match now {
        Side::Threads => facts.processors,
        Side::Processors => facts.allocating_threads,
    };
    if facts.unused.0 <= facts.largest.0.saturating_mul(owners) {
        return now;
    }
    match now {
        Side::Threads => Side::Processors,
        Side::Processors => Side::Threads,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: fn(usize) -> Bytes = |n| Bytes(n << 10);

    #[test]
    fn fixed_sizes_do_not_move() {
        for size in [4, 16, 64, 128, 512].map(KIB) {
            let sizes = Sizes::fixed(size);
            assert_eq!(sizes.first(), size);
            assert_eq!(sizes.after_refill(size), size);
            assert_eq!(sizes.after_collection(size, Share(7), KIB(100_000)), size);
        }
        assert_eq!(Sizes::fixed(Bytes(10)).first(), STEP, "nothing smaller than a step");
    }

    #[test]
    fn adaptive_sizes_grow_at_refills_and_halve_at_collections() {
        let sizes = Sizes::adaptive();
        for (size, refilled, collected) in
            [(4, 6, 4), (6, 9, 4), (9, 13, 4), (64, 96, 32), (400, 512, 200), (512, 512, 256)]
        {
            assert_eq!(sizes.after_refill(KIB(size)), KIB(refilled), "refill of {size} KiB");
            assert_eq!(sizes.after_collection(KIB(size), Share(0), KIB(0)), KIB(collected), "collection at {size} KiB");
        }
    }

    /// What the doc comment says about where sizes settle.
    #[test]
    fn one_refill_a_collection_shrinks_and_two_grow() {
        let sizes = Sizes::adaptive();
        let after = |refills: usize| {
            let mut size = KIB(64);
            for _ in 0..8 {
                for _ in 0..refills {
                    size = sizes.after_refill(size);
                }
                size = sizes.after_collection(size, Share(0), KIB(0));
            }
            size
        };
        assert_eq!(after(0), LEAST);
        assert!(after(1) < KIB(16), "{}", after(1));
        assert!(after(2) > KIB(128), "{}", after(2));
        assert_eq!(after(9), KIB(256));
    }

    #[test]
    fn shares_become_sizes() {
        let sizes = Sizes::by_share();
        for (part, whole, expected) in [(1, 1, 512), (1, 2, 512), (1, 20, 51), (1, 100, 10), (1, 1000, 4), (0, 1, 4)] {
            let share = Share::of(KIB(part), KIB(whole));
            // 50 MiB between collections: a share of 1/20 is 2.5 MiB, and a fiftieth of that 51 KiB.
            assert_eq!(sizes.after_collection(KIB(64), share, KIB(50 << 10)), KIB(expected), "{part} of {whole}");
        }
        assert_eq!(Share::of(KIB(3), KIB(0)), Share(0));
        assert_eq!(Share::of(KIB(3), KIB(2)), Share(1 << 16));
    }

    #[test]
    fn a_share_is_forgotten_by_halves() {
        let mut share = Share::of(KIB(1), KIB(1));
        for _ in 0..4 {
            share = share.averaged_with(Share(0));
        }
        assert_eq!(share, Share(1 << 12));
    }

    /// Every size that any policy gives lies in its bounds and is a multiple of the step, whatever it is asked.
    #[test]
    fn sizes_stay_in_their_bounds() {
        let all = [Sizes::adaptive(), Sizes::by_share(), Sizes { least: KIB(1), most: KIB(64), ..Sizes::adaptive() }];
        let edges = [0, 1, 1023, 4096, 5000, 1 << 19, (1 << 19) + 1, 1 << 40, usize::MAX];
        for sizes in all {
            for size in edges.map(Bytes) {
                for share in [0, 1, 1 << 15, 1 << 16, u32::MAX].map(Share) {
                    for next in [sizes.after_refill(size), sizes.after_collection(size, share, size), sizes.first()] {
                        assert!(next >= sizes.least && next <= sizes.most && next.0 % STEP.0 == 0, "{next:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn upper_levels_are_multiples() {
        for (size, below, expected) in
            [(1024, 64, 1024), (1000, 64, 1024), (64, 64, 64), (64, 100, 64), (512, 0, 512), (100, 96, 192)]
        {
            assert_eq!(multiple(KIB(size), KIB(below)), KIB(expected), "{size} over {below}");
        }
    }

    #[test]
    fn wishes_shrink_near_the_end() {
        let wish = |near_end, size, object, left, sharers| {
            let (least, most) = wish(near_end, KIB(size), Bytes(object), Room { left: KIB(left), sharers });
            (least.0, most.0 >> 10)
        };
        assert_eq!(wish(NearEnd::Shrink, 64, 24, 4096, 2), (24, 64), "far from the end");
        assert_eq!(wish(NearEnd::Shrink, 64, 24, 200, 2), (24, 50));
        assert_eq!(wish(NearEnd::Shrink, 64, 24, 200, 1000), (24, 1), "not below a step");
        assert_eq!(wish(NearEnd::Shrink, 64, 24, 0, 0), (24, 1));
        assert_eq!(wish(NearEnd::Shrink, 4, 8 << 10, 0, 1), (8 << 10, 8), "the object decides");
        assert_eq!(wish(NearEnd::Singly, 64, 24, 200, 1000), (64 << 10, 64));
    }

    /// Shrinking buffers use a space up: as long as a step is left for everybody, nobody is turned away, and what an owner gets
    /// is never more than half of an even share.
    #[test]
    fn shrinking_buffers_come_to_the_end_together() {
        for sharers in [1, 2, 64, 1000] {
            let (mut left, mut given) = (KIB(4096), 0);
            while left.0 >= STEP.0 {
                let (least, most) = super::wish(NearEnd::Shrink, KIB(64), Bytes(24), Room { left, sharers });
                assert!(least <= most && most.0 >= STEP.0);
                assert!(most == STEP || most.0 * 2 * sharers <= left.0, "{most:?} of {left:?}");
                left = left.saturating_sub(most);
                given += 1;
            }
            assert!(given >= sharers, "{given} buffers for {sharers}");
        }
    }

    #[test]
    fn large_objects_are_direct() {
        assert!(!is_direct(Bytes(512), KIB(4)));
        assert!(is_direct(Bytes(513), KIB(4)));
    }

    #[test]
    fn threads_have_their_own_while_they_are_few() {
        use Side::{Processors, Threads};
        for (cpus, room, first, few) in [
            (1, 0, 4, 4),
            (2, 4096, 4, 64),
            (2, 4096, 64, 8),
            (2, 8192, 4, 128),
            (64, 4096, 4, 256),
            (2, 4096, 0, 262_144),
        ] {
            assert_eq!(few_threads(cpus, KIB(room), KIB(first)), few, "{cpus} CPUs, {first} KiB in {room}");
        }
        for (now, threads, few, next) in [
            (Threads, 1, 4, Threads),
            (Threads, 4, 4, Threads),
            (Threads, 5, 4, Processors),
            (Threads, 1000, 64, Processors),
            (Processors, 65, 64, Processors),
            (Processors, 33, 64, Processors),
            (Processors, 32, 64, Threads),
            (Processors, 0, 8, Threads),
        ] {
            assert_eq!(side_by_number(now, threads, few), next, "{now:?}, {threads} threads, {few} are few");
            assert_eq!(side_by_number(next, threads, few), next, "no flip back by the same facts");
        }
    }

    #[test]
    fn flips_at_the_papers_thresholds() {
        let facts = |unused, processors, allocating_threads| FlipFacts {
            unused: KIB(unused),
            largest: KIB(64),
            processors,
            allocating_threads,
        };
        use Side::{Processors, Threads};
        for (now, facts, next) in [
            (Threads, facts(64 * 8, 8, 200), Threads),
            (Threads, facts(64 * 8 + 1, 8, 200), Processors),
            (Threads, facts(0, 8, 0), Threads),
            (Processors, facts(64 * 8, 8, 200), Processors),
            (Processors, facts(64 * 2, 8, 2), Processors),
            (Processors, facts(64 * 2 + 1, 8, 2), Threads),
            (Processors, facts(1, 8, 0), Threads),
        ] {
            assert_eq!(next_side(now, facts), next, "{now:?} {facts:?}");
        }
    }

    /// A state that flips at once back and forth would be a defect: what is unused in one collection cannot ask for both.
    #[test]
    fn no_facts_flip_both_ways_unless_both_bounds_are_exceeded() {
        for unused in 0..64 {
            for processors in 1..8 {
                for threads in 0..8 {
                    let facts =
                        FlipFacts { unused: KIB(unused), largest: KIB(8), processors, allocating_threads: threads };
                    let both = next_side(Side::Threads, facts) == Side::Processors
                        && next_side(Side::Processors, facts) == Side::Threads;
                    assert_eq!(both, unused > 8 * processors.max(threads));
                }
            }
        }
    }
}
