//! The pool of free runs: who may give blocks, who gets them, what is coalesced, what goes back to the kernel.
//!
//! Runs are kept in bins by length (exact up to 62 blocks, one bin for all longer ones), linked through the records of
//! their first blocks; first and last record carry the length, so neighbours are found and merged in constant time. A
//! run remembers whether its content is known to be zero (fresh from the kernel, or discarded).

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use larder_sync::lock::Lock;
use larder_sys::memory;
use larder_units::{BLOCK, Blocks, Bytes};

use crate::block::{Block, NONE, State};
use crate::space::Space;

/// Bins: run lengths 1..=62, and 63 for everything longer.
const BINS: usize = 64;
/// Runs of one length that are looked at for one with memory behind it, where others will do.
const LOOKS: usize = 16;

/// A run of blocks that was taken.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// First block.
    pub first: usize,
    /// Its length.
    pub blocks: Blocks,
    /// Whether its content is known to be zero.
    pub zero: bool,
}

impl Run {
    /// Takes the meaning from every record of a run that was in use: a stale address into it is an address of nothing then. The caller has
    /// taken it out of every list, and holds the lock under which its records stay as they are; so whoever looks through the table under that
    /// lock, in a stopped world, finds no later block of a run that is gone.
    pub fn retire(self, space: &Space) -> Self {
        for index in self.first..self.first + self.blocks.0 {
            // SAFETY: the run lies below the frontier.
            let block = unsafe { space.block(index) };
            block.frees_until_look.set(0);
            block.set_state(State::Untouched);
        }
        self
    }
}

/// Which end of a longer run is taken: what is taken from one end stays apart from what is taken from the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The first blocks.
    Low,
    /// The last ones.
    High,
}

/// What a run is kept apart for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptFor {
    /// Objects without pointers.
    PointerFree,
    /// Others.
    Pointers,
}

/// Free runs of one space.
pub struct Pool {
    /// Guards everything below and every record in state `Free`. Rank: after the locks of the classes.
    lock: Lock,
    /// First run of each bin, as a block index.
    ///
    /// Sync: `lock`.
    bins: [AtomicUsize; BINS],
    /// Free blocks whose content still costs memory.
    ///
    /// Sync: written under `lock`, read by anyone as a statistic.
    resident: AtomicUsize,
    /// Free blocks that were given back to the kernel.
    ///
    /// Sync: as `resident`.
    discarded: AtomicUsize,
    /// First block of each run that is kept apart, and its length. Counted in `discarded`.
    ///
    /// Sync: written under `lock`.
    apart: [[AtomicUsize; 2]; PLACES],
    /// Whether the one that comes after may be used.
    ///
    /// Sync: written under `lock`.
    is_next_ready: AtomicBool,
}

/// The places of [`Pool::kept_apart`]: for objects without pointers, for these when that is used up, and for others.
const NOW: usize = 0;
const NEXT: usize = 1;
const OTHERS: usize = 2;
const PLACES: usize = 3;

impl KeptFor {
    fn place(self) -> usize {
        match self {
            Self::PointerFree => NOW,
            Self::Pointers => OTHERS,
        }
    }
}

const EMPTY: usize = NONE as usize;

impl Pool {
    /// A pool without runs.
    pub const fn new() -> Self {
        Self {
            lock: Lock::new(),
            bins: [const { AtomicUsize::new(EMPTY) }; BINS],
            resident: AtomicUsize::new(0),
            discarded: AtomicUsize::new(0),
            apart: [const { [const { AtomicUsize::new(0) }; 2] }; PLACES],
            is_next_ready: AtomicBool::new(false),
        }
    }

    /// The pool's lock, for the collector (which takes it while the world is stopped) and for fork.
    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// Free blocks that still have memory behind them.
    pub fn resident(&self) -> Blocks {
        Blocks(self.resident.load(Ordering::Relaxed))
    }

    /// Free blocks without memory behind them.
    pub fn discarded(&self) -> Blocks {
        Blocks(self.discarded.load(Ordering::Relaxed))
    }

    fn bin(n: usize) -> usize {
        n.min(BINS - 1)
    }

    fn count(&self, zero: bool) -> &AtomicUsize {
        if zero { &self.discarded } else { &self.resident }
    }

    /// Puts a run into its bin. The caller holds the lock.
    fn link(&self, space: &Space, run: Run) {
        debug_assert_ne!(run.blocks.0, 0, "a run has blocks");
        // SAFETY: the run lies below the frontier.
        let (first, last) = unsafe { (space.block(run.first), space.block(run.first + run.blocks.0 - 1)) };
        for end in [first, last] {
            end.blocks.set(run.blocks.0 as u32);
            end.head.set(run.first as u32);
            end.size.set(usize::from(run.zero));
            end.set_state(State::Free);
        }
        let bin = &self.bins[Self::bin(run.blocks.0)];
        let next = bin.load(Ordering::Relaxed) as u32;
        first.previous.set(NONE);
        first.next.set(next);
        if next != NONE {
            // SAFETY: a bin holds indices of the table.
            unsafe { space.block(next as usize) }.previous.set(run.first as u32);
        }
        bin.store(run.first, Ordering::Relaxed);
        let c = self.count(run.zero);
        c.store(c.load(Ordering::Relaxed) + run.blocks.0, Ordering::Relaxed);
    }

    /// Takes a run out of its bin. The caller holds the lock.
    fn unlink(&self, space: &Space, first: &Block) -> Run {
        let run = Run {
            first: space.index_of(first),
            blocks: Blocks(first.blocks.get() as usize),
            zero: first.size.get() == 1,
        };
        let (previous, next) = (first.previous.get(), first.next.get());
        // SAFETY: links are indices of the table.
        unsafe {
            if previous == NONE {
                self.bins[Self::bin(run.blocks.0)].store(next as usize, Ordering::Relaxed);
            } else {
                space.block(previous as usize).next.set(next);
            }
            if next != NONE {
                space.block(next as usize).previous.set(previous);
            }
        }
        let c = self.count(run.zero);
        c.store(c.load(Ordering::Relaxed) - run.blocks.0, Ordering::Relaxed);
        run
    }

    /// Takes `n` blocks out of the shortest run that is long enough; `None` when there is none.
    pub fn take(&self, space: &Space, n: Blocks) -> Option<Run> {
        self.take_from(space, n, End::Low)
    }

    /// As [`Pool::take`], from that end of the run.
    pub fn take_from(&self, space: &Space, n: Blocks, end: End) -> Option<Run> {
        if self.resident().0 + self.discarded().0 < n.0 {
            return None;
        }
        self.take_shortest(space, n, end, |_| true, usize::MAX)
    }

    /// Keeps a run of never used blocks apart: whoever wants to lie beside others of its kind has it by [`take_apart`](Self::take_apart). What was
    /// kept so far goes into the pool.
    pub fn keep_apart(&self, space: &Space, run: Run, kept_for: KeptFor) {
        let _guard = self.lock.lock();
        self.keep(space, kept_for.place(), run);
    }

    /// Keeps one for when what is kept apart for objects without pointers is used up, from [`next_is_ready`](Self::next_is_ready) on.
    pub fn keep_next(&self, space: &Space, run: Run) {
        let _guard = self.lock.lock();
        self.is_next_ready.store(false, Ordering::Relaxed);
        self.keep(space, NEXT, run);
    }

    /// The run that comes next may be used, if one is kept.
    pub fn next_is_ready(&self) {
        let _guard = self.lock.lock();
        self.is_next_ready.store(true, Ordering::Relaxed);
    }

    fn keep(&self, space: &Space, place: usize, run: Run) {
        self.join(space, place);
        self.set_apart(place, [run.first, run.blocks.0]);
        self.discarded.store(self.discarded.load(Ordering::Relaxed) + run.blocks.0, Ordering::Relaxed);
    }

    fn set_apart(&self, place: usize, run: [usize; 2]) {
        for (word, value) in self.apart[place].iter().zip(run) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Takes `n` blocks of what is kept apart for such objects.
    pub fn take_apart(&self, space: &Space, n: Blocks, kept_for: KeptFor) -> Option<Run> {
        // A glance, without the lock.
        if self.kept_apart().iter().all(|kept| kept.len() < n.0) {
            return None;
        }
        let _guard = self.lock.lock();
        let kept = self.kept_apart();
        let (place, next) = (kept_for.place(), &kept[NEXT]);
        let mut now = &kept[place];
        if place == NOW && now.len() < n.0 && next.len() >= n.0 && self.is_next_ready.load(Ordering::Relaxed) {
            self.join(space, NOW);
            self.set_apart(NEXT, [0, 0]);
            now = next;
        }
        let left = now.len().checked_sub(n.0)?;
        self.set_apart(place, [now.start + n.0, left]);
        self.discarded.store(self.discarded.load(Ordering::Relaxed) - n.0, Ordering::Relaxed);
        Some(Run { first: now.start, blocks: n, zero: true })
    }

    /// The blocks that are kept apart for objects without pointers, those that come after them, and those for others. The caller keeps others from
    /// taking some.
    pub fn kept_apart(&self) -> [Range<usize>; PLACES] {
        [NOW, NEXT, OTHERS].map(|place| {
            let [first, length] = [0, 1].map(|i: usize| self.apart[place][i].load(Ordering::Relaxed));
            first..first + length
        })
    }

    /// What is kept apart goes into the pool: memory is short.
    pub fn join_apart(&self, space: &Space) {
        let _guard = self.lock.lock();
        for place in 0..PLACES {
            self.join(space, place);
        }
    }

    fn join(&self, space: &Space, place: usize) {
        let kept = self.kept_apart()[place].clone();
        let (first, length) = (kept.start, kept.len());
        if length > 0 {
            self.set_apart(place, [0, 0]);
            self.discarded.store(self.discarded.load(Ordering::Relaxed) - length, Ordering::Relaxed);
            self.give_locked(space, Run { first, blocks: Blocks(length), zero: true });
        }
    }

    /// As [`Pool::take_from`], of the runs that have memory behind them, if there is one: every one is looked at.
    pub fn take_resident(&self, space: &Space, n: Blocks, end: End) -> Option<Run> {
        self.take_resident_among(space, n, end, usize::MAX)
    }

    /// As [`Pool::take_resident`], if a few of each length are enough to find one: a heap that gave much memory back has thousands of short runs without any.
    pub fn take_resident_soon(&self, space: &Space, n: Blocks, end: End) -> Option<Run> {
        self.take_resident_among(space, n, end, LOOKS)
    }

    fn take_resident_among(&self, space: &Space, n: Blocks, end: End, looks: usize) -> Option<Run> {
        if self.resident() < n {
            return None;
        }
        self.take_shortest(space, n, end, |first| first.size.get() != 1, looks)
    }

    /// Takes `n` blocks out of the shortest run that is long enough and fits; of each length but the longest, so many are looked at.
    fn take_shortest(
        &self,
        space: &Space,
        n: Blocks,
        end: End,
        fits: impl Fn(&Block) -> bool,
        looks: usize,
    ) -> Option<Run> {
        let _guard = self.lock.lock();
        for bin in Self::bin(n.0)..BINS {
            let mut left = if bin < BINS - 1 { looks } else { usize::MAX };
            let mut at = self.bins[bin].load(Ordering::Relaxed);
            // In the last bin (and only there) runs differ in length: take the shortest that fits.
            let mut best: Option<&Block> = None;
            while at != EMPTY && left > 0 {
                left -= 1;
                // SAFETY: a bin holds indices of the table.
                let first = unsafe { space.block(at) };
                let length = first.blocks.get() as usize;
                if length >= n.0 && fits(first) && best.is_none_or(|b| length < b.blocks.get() as usize) {
                    best = Some(first);
                    if bin < BINS - 1 {
                        break;
                    }
                }
                at = first.next.get() as usize;
            }
            if let Some(first) = best {
                let mut run = self.unlink(space, first);
                if run.blocks.0 > n.0 {
                    let mut rest = Run { blocks: run.blocks - n, ..run };
                    match end {
                        End::Low => rest.first += n.0,
                        End::High => run.first += rest.blocks.0,
                    }
                    self.link(space, rest);
                    run.blocks = n;
                }
                self.claim(space, run);
                return Some(run);
            }
        }
        None
    }

    /// Marks a run's records as taken, so that a neighbour that becomes free does not merge with it.
    fn claim(&self, space: &Space, run: Run) {
        debug_assert_ne!(run.blocks.0, 0, "a run has blocks");
        // SAFETY: the run lies below the frontier.
        unsafe {
            space.block(run.first).set_state(State::Untouched);
            space.block(run.first + run.blocks.0 - 1).set_state(State::Untouched);
        }
    }

    /// Gives a run back; merges it with free neighbours. What was in use is retired before.
    pub fn give(&self, space: &Space, run: Run) {
        let _guard = self.lock.lock();
        self.give_locked(space, run);
    }

    fn give_locked(&self, space: &Space, mut run: Run) {
        debug_assert!(
            // SAFETY: the run lies below the frontier.
            (run.first..run.first + run.blocks.0).all(|i| unsafe { space.block(i) }.state() == State::Untouched),
            "a run that is given back is retired"
        );
        // A long run that is zero stays apart from one that is not: merging would forget what need not be cleared.
        if run.first > 0 {
            // SAFETY: the block before is in the table.
            let before = unsafe { space.block(run.first - 1) };
            if before.state() == State::Free && (before.size.get() == 1) == run.zero {
                // SAFETY: the last record of a free run names its first.
                let head = unsafe { space.block(before.head.get() as usize) };
                let left = self.unlink(space, head);
                self.claim(space, left);
                run.first = left.first;
                run.blocks += left.blocks;
            }
        }
        let end = run.first + run.blocks.0;
        if end < space.frontier().0 {
            // SAFETY: below the frontier.
            let after = unsafe { space.block(end) };
            if after.state() == State::Free && (after.size.get() == 1) == run.zero {
                let right = self.unlink(space, after);
                self.claim(space, right);
                run.blocks += right.blocks;
            }
        }
        self.link(space, run);
    }

    /// Takes `n` blocks out of neighbouring runs that were kept apart, because one is zero and the other is not: the last resort before
    /// the space is grown for a large object. What is left of the last of them stays what it was.
    pub fn take_merging(&self, space: &Space, n: Blocks) -> Option<Run> {
        if let Some(run) = self.take(space, n) {
            return Some(run);
        }
        if self.resident().0 + self.discarded().0 < n.0 {
            return None;
        }
        let _guard = self.lock.lock();
        let end = space.frontier().0;
        // Where the free neighbours begin, and how many blocks they are.
        let (mut from, mut length) = (0, 0);
        let mut at = 0;
        while at < end {
            // SAFETY: below the frontier.
            let first = unsafe { space.block(at) };
            let blocks = match first.state() {
                State::Free | State::Small | State::Large | State::Owned => (first.blocks.get() as usize).max(1),
                _ => 1,
            };
            at += blocks;
            if first.state() != State::Free {
                (from, length) = (at, 0);
                continue;
            }
            length += blocks;
            if length >= n.0 {
                return Some(self.take_neighbours(space, from, n));
            }
        }
        None
    }

    /// Takes the first `n` blocks of free runs that are neighbours. The caller holds the lock, and they have as many.
    fn take_neighbours(&self, space: &Space, from: usize, n: Blocks) -> Run {
        let mut taken = Run { first: from, blocks: Blocks(0), zero: true };
        while taken.blocks.0 < n.0 {
            // SAFETY: the first record of a free run.
            let run = self.unlink(space, unsafe { space.block(from + taken.blocks.0) });
            self.claim(space, run);
            let used = run.blocks.0.min(n.0 - taken.blocks.0);
            if used < run.blocks.0 {
                self.link(space, Run { first: run.first + used, blocks: run.blocks - Blocks(used), zero: run.zero });
            }
            taken.zero &= run.zero;
            taken.blocks += Blocks(used);
        }
        taken
    }

    /// Gives memory of free runs back to the kernel until at most `keep` blocks of the pool are resident. Returns what
    /// it gave back. The world runs; a run that is being discarded is out of the pool meanwhile.
    pub fn discard(&self, space: &Space, keep: Blocks) -> Bytes {
        let mut given = Blocks(0);
        for bin in (0..BINS).rev() {
            loop {
                let run = {
                    let _guard = self.lock.lock();
                    // Under the lock: others take runs meanwhile, and a surplus of nothing is no run.
                    if self.resident().0 <= keep.0 {
                        return given.to_bytes();
                    }
                    let mut at = self.bins[bin].load(Ordering::Relaxed);
                    let mut found = None;
                    while at != EMPTY {
                        // SAFETY: a bin holds indices of the table.
                        let first = unsafe { space.block(at) };
                        if first.size.get() != 1 {
                            found = Some(first);
                            break;
                        }
                        at = first.next.get() as usize;
                    }
                    let Some(first) = found else { break };
                    let mut run = self.unlink(space, first);
                    let surplus = self.resident().0 + run.blocks.0 - keep.0;
                    if surplus < run.blocks.0 {
                        let rest = Run { first: run.first, blocks: run.blocks - Blocks(surplus), zero: false };
                        self.link(space, rest);
                        run.first += rest.blocks.0;
                        run.blocks = Blocks(surplus);
                    }
                    self.claim(space, run);
                    run
                };
                // SAFETY: the run was just taken out of the pool; its content is garbage.
                unsafe {
                    memory::discard(
                        core::ptr::with_exposed_provenance_mut(space.address_of(run.first)),
                        Bytes(run.blocks.0 * BLOCK.0),
                    );
                }
                given += run.blocks;
                self.give(space, Run { zero: true, ..run });
            }
        }
        given.to_bytes()
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        let s = Space::new();
        s.reserve(Bytes::mib(64), false).unwrap();
        s
    }

    fn write(space: &Space, run: Run) {
        for i in 0..run.blocks.0 {
            let at = core::ptr::with_exposed_provenance_mut::<u8>(space.address_of(run.first + i));
            // SAFETY: the run is this test's own.
            unsafe { at.write(1) };
        }
    }

    #[test]
    fn neighbours_merge_and_the_best_fit_is_split() {
        let (s, p) = (space(), Pool::new());
        let first = s.take_fresh(Blocks(100)).unwrap();
        for i in [1usize, 3, 2, 0] {
            p.give(&s, Run { first: first + i * 10, blocks: Blocks(10), zero: false });
        }
        assert_eq!(p.resident(), Blocks(40));
        let run = p.take(&s, Blocks(40)).unwrap();
        assert_eq!(run.first, first);
        assert!(p.take(&s, Blocks(1)).is_none());
        p.give(&s, run);
        p.give(&s, Run { first: first + 50, blocks: Blocks(5), zero: false });
        assert_eq!(p.take(&s, Blocks(5)).unwrap().first, first + 50);
        assert_eq!(p.take(&s, Blocks(6)).unwrap().first, first);
        assert_eq!(p.resident(), Blocks(34));
    }

    #[test]
    fn discarding_keeps_what_it_is_told_and_the_rest_reads_as_zero() {
        let (s, p) = (space(), Pool::new());
        let first = s.take_fresh(Blocks(64)).unwrap();
        let run = Run { first, blocks: Blocks(64), zero: false };
        write(&s, run);
        p.give(&s, run);
        assert_eq!(p.discard(&s, Blocks(10)), Blocks(54).to_bytes());
        assert_eq!((p.resident(), p.discarded()), (Blocks(10), Blocks(54)));
        let zero = p.take(&s, Blocks(54)).unwrap();
        assert!(zero.zero);
        for i in 0..54 {
            let at = core::ptr::with_exposed_provenance::<u8>(s.address_of(zero.first + i));
            // SAFETY: the run is this test's own.
            assert_eq!(unsafe { at.read() }, 0);
        }
        p.give(&s, zero);
        assert_eq!(p.take_merging(&s, Blocks(64)).unwrap().blocks, Blocks(64));
    }

    #[test]
    fn what_is_kept_apart_goes_to_who_asks_for_it_until_it_is_wanted() {
        let (s, p) = (space(), Pool::new());
        let first = s.take_fresh(Blocks(40)).unwrap();
        assert!(p.take_apart(&s, Blocks(1), KeptFor::PointerFree).is_none());
        p.keep_apart(&s, Run { first, blocks: Blocks(10), zero: true }, KeptFor::PointerFree);
        assert_eq!((p.discarded(), p.take(&s, Blocks(1)).is_none()), (Blocks(10), true));
        let run = p.take_apart(&s, Blocks(4), KeptFor::PointerFree).unwrap();
        assert_eq!((run.first, run.blocks, run.zero, p.discarded()), (first, Blocks(4), true, Blocks(6)));
        assert!(p.take_apart(&s, Blocks(7), KeptFor::PointerFree).is_none());
        // The next one: the rest of this one is everybody's.
        p.keep_apart(&s, Run { first: first + 20, blocks: Blocks(20), zero: true }, KeptFor::PointerFree);
        assert_eq!(p.discarded(), Blocks(26));
        assert_eq!(p.take_from(&s, Blocks(2), End::High).unwrap().first, first + 8);
        assert_eq!(p.take_from(&s, Blocks(2), End::Low).unwrap().first, first + 4);
        assert!(p.take(&s, Blocks(3)).is_none());
        p.join_apart(&s);
        assert_eq!((p.take(&s, Blocks(20)).unwrap().first, p.discarded()), (first + 20, Blocks(2)));
        assert!(p.take_apart(&s, Blocks(1), KeptFor::PointerFree).is_none());
    }

    #[test]
    fn each_kind_has_what_is_kept_for_it() {
        let (s, p) = (space(), Pool::new());
        let first = s.take_fresh(Blocks(60)).unwrap();
        p.keep_apart(&s, Run { first, blocks: Blocks(10), zero: true }, KeptFor::Pointers);
        assert!(p.take_apart(&s, Blocks(1), KeptFor::PointerFree).is_none());
        p.keep_apart(&s, Run { first: first + 20, blocks: Blocks(10), zero: true }, KeptFor::PointerFree);
        p.keep_next(&s, Run { first: first + 40, blocks: Blocks(20), zero: true });
        p.next_is_ready();
        assert_eq!(p.take_apart(&s, Blocks(4), KeptFor::Pointers).unwrap().first, first);
        assert_eq!(p.take_apart(&s, Blocks(4), KeptFor::PointerFree).unwrap().first, first + 20);
        // What comes next is not for these.
        assert!(p.take_apart(&s, Blocks(7), KeptFor::Pointers).is_none());
        assert_eq!(p.discarded(), Blocks(32));
        assert_eq!(p.kept_apart(), [first + 24..first + 30, first + 40..first + 60, first + 4..first + 10]);
        p.join_apart(&s);
        assert_eq!((p.kept_apart(), p.discarded()), ([0..0, 0..0, 0..0], Blocks(32)));
        assert_eq!(p.take(&s, Blocks(20)).unwrap().first, first + 40);
    }

    #[test]
    fn what_comes_next_is_kept_until_it_is_ready() {
        let (s, p) = (space(), Pool::new());
        let first = s.take_fresh(Blocks(40)).unwrap();
        p.keep_apart(&s, Run { first, blocks: Blocks(10), zero: true }, KeptFor::PointerFree);
        p.keep_next(&s, Run { first: first + 20, blocks: Blocks(20), zero: true });
        assert_eq!((p.discarded(), p.take(&s, Blocks(1)).is_none()), (Blocks(30), true));
        assert!(p.take_apart(&s, Blocks(11), KeptFor::PointerFree).is_none());
        p.next_is_ready();
        assert_eq!(p.take_apart(&s, Blocks(4), KeptFor::PointerFree).unwrap().first, first);
        // What is left is everybody's.
        assert_eq!(p.take_apart(&s, Blocks(11), KeptFor::PointerFree).unwrap().first, first + 20);
        assert_eq!((p.take(&s, Blocks(6)).unwrap().first, p.discarded()), (first + 4, Blocks(9)));
        assert_eq!(p.kept_apart(), [first + 31..first + 40, 0..0, 0..0]);
        p.keep_next(&s, Run { first: first + 10, blocks: Blocks(10), zero: true });
        assert!(
            p.take_apart(&s, Blocks(10), KeptFor::PointerFree).is_none(),
            "the next one is not ready because the last one was"
        );
        p.join_apart(&s);
        assert_eq!(
            (p.take(&s, Blocks(9)).unwrap().first, p.take(&s, Blocks(10)).unwrap().first),
            (first + 31, first + 10)
        );
        assert_eq!(p.discarded(), Blocks(0));
    }

    #[test]
    fn what_was_given_back_to_the_kernel_is_not_resident() {
        let (s, p) = (space(), Pool::new());
        let first = s.take_fresh(Blocks(100)).unwrap();
        // The shorter run, which would be taken first, has no memory behind it.
        p.give(&s, Run { first, blocks: Blocks(2), zero: true });
        p.give(&s, Run { first: first + 10, blocks: Blocks(5), zero: false });
        assert_eq!(p.take_resident(&s, Blocks(1), End::Low).unwrap().first, first + 10);
        assert!(p.take_resident(&s, Blocks(5), End::Low).is_none());
        assert_eq!(p.take_resident_soon(&s, Blocks(4), End::Low).unwrap().first, first + 11);
        assert!(p.take_resident(&s, Blocks(1), End::Low).is_none());
        assert_eq!(p.take(&s, Blocks(1)).unwrap().first, first);
    }

    #[test]
    fn behind_many_runs_without_memory_none_is_looked_for() {
        let (s, p) = (space(), Pool::new());
        let first = s.take_fresh(Blocks(100)).unwrap();
        p.give(&s, Run { first, blocks: Blocks(1), zero: false });
        for i in 1..=LOOKS {
            assert!(p.take_resident_soon(&s, Blocks(2), End::Low).is_none());
            p.give(&s, Run { first: first + 2 * i, blocks: Blocks(1), zero: true });
        }
        assert!(p.take_resident_soon(&s, Blocks(1), End::Low).is_none());
        // A longer one is.
        p.give(&s, Run { first: first + 90, blocks: Blocks(2), zero: false });
        assert_eq!(p.take_resident_soon(&s, Blocks(1), End::Low).unwrap().first, first + 90);
        assert_eq!(p.take_resident(&s, Blocks(1), End::Low).unwrap().first, first + 91);
        assert_eq!(p.take_resident(&s, Blocks(1), End::Low).unwrap().first, first);
    }

    #[test]
    fn random_taking_and_giving_never_overlaps() {
        let (s, p) = (space(), Pool::new());
        let total = 2000;
        let first = s.take_fresh(Blocks(total)).unwrap();
        p.give(&s, Run { first, blocks: Blocks(total), zero: true });
        let mut owner = vec![0u32; first + total];
        let mut held: Vec<Run> = Vec::new();
        let mut seed = 12345u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize
        };
        for step in 1..20_000u32 {
            if random() % 2 == 0 || held.is_empty() {
                if let Some(run) = p.take(&s, Blocks(random() % 90 + 1)) {
                    for o in &mut owner[run.first..run.first + run.blocks.0] {
                        assert_eq!(*o, 0, "block handed out twice in step {step}");
                        *o = step;
                    }
                    held.push(run);
                }
            } else {
                let run = held.swap_remove(random() % held.len());
                owner[run.first..run.first + run.blocks.0].fill(0);
                p.give(&s, Run { zero: random() % 2 == 0, ..run });
            }
            let free = p.resident().0 + p.discarded().0;
            assert_eq!(free + held.iter().map(|r| r.blocks.0).sum::<usize>(), total);
        }
        for run in held {
            p.give(&s, run);
        }
        assert_eq!(p.take_merging(&s, Blocks(total)).unwrap().first, first);
    }

    #[test]
    fn discarding_while_others_take_and_give_harms_no_run() {
        use std::sync::atomic::{AtomicBool, AtomicU32};
        const TOTAL: usize = 200;
        let (s, p) = (space(), Pool::new());
        let first = s.take_fresh(Blocks(TOTAL)).unwrap();
        p.give(&s, Run { first, blocks: Blocks(TOTAL), zero: true });
        let owner: Vec<AtomicU32> = (0..first + TOTAL).map(|_| AtomicU32::new(0)).collect();
        let over = AtomicBool::new(false);
        let own = |run: Run, from: u32, to: u32| {
            for (i, o) in owner.iter().enumerate().skip(run.first).take(run.blocks.0) {
                assert_eq!(o.swap(to, Ordering::Relaxed), from, "block {i} is another's");
            }
        };
        std::thread::scope(|scope| {
            let takers: Vec<_> = (1..=4u32)
                .map(|me| {
                    let (s, p, own) = (&s, &p, &own);
                    scope.spawn(move || {
                        let mut held: Vec<Run> = Vec::new();
                        for round in 0..100_000 {
                            let n = Blocks((round * 7 + me as usize) % 12 + 1);
                            if let Some(run) = p.take(s, n) {
                                own(run, 0, me);
                                // SAFETY: below the frontier.
                                unsafe { s.block(run.first) }.set_state(State::Large);
                                held.push(run);
                            }
                            if held.len() > 5 {
                                let run = held.remove(0);
                                // SAFETY: below the frontier.
                                let state = unsafe { s.block(run.first) }.state();
                                assert_eq!(state, State::Large, "others leave it alone");
                                own(run, me, 0);
                                p.give(s, Run { zero: false, ..run }.retire(s));
                            }
                        }
                        for run in held {
                            own(run, me, 0);
                            p.give(s, run.retire(s));
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // One more than is wanted: others take it in the meantime.
                    p.discard(&s, p.resident().saturating_sub(Blocks(1)));
                }
            });
            let ended: Vec<_> = takers.into_iter().map(|taker| taker.join()).collect();
            over.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(Result::is_ok), "no taker found its run in other hands");
        });
        assert_eq!(p.resident() + p.discarded(), Blocks(TOTAL));
        assert_eq!(p.take_merging(&s, Blocks(TOTAL)).unwrap().first, first);
    }

    #[test]
    fn places_are_found_for_interior_addresses_only_of_used_blocks() {
        let s = space();
        let i = s.take_fresh(Blocks(2)).unwrap();
        // SAFETY: below the frontier.
        let b = unsafe { s.block(i) };
        let c = &crate::class::CLASSES[2];
        b.cell.set(c.cell);
        b.reciprocal.set(c.reciprocal);
        b.cells.set(c.cells);
        assert!(s.place(s.address_of(i)).is_none());
        b.set_state(State::Small);
        let p = s.place(s.address_of(i) + 48 * 7 + 47).unwrap();
        assert_eq!((p.cell, p.base), (7, s.address_of(i) + 48 * 7));
        assert!(s.place(s.address_of(i) + BLOCK.0 - 1).is_none(), "the tail of a block holds no object");
        assert!(s.place(s.base() + s.span()).is_none() && s.place(0).is_none());
    }
}
