//! The young generation: blocks that are allocated from, or hold survivors of one age.
//!
//! The paper's young generation is a pair of contiguous semispaces; here it is a list of blocks. Mutators fill all that policy lets
//! them (`larder_policy::generations`: eden, and what the last survivors have left of their room); a collection copies what lives into
//! free blocks, as far as there is room for survivors and into the old generation beyond, and frees the rest. A block that holds a
//! pinned object is kept where it is and counts as used.
//!
//! All objects of a survivor block have survived equally many collections, so ages cost a byte for each block and nothing
//! in objects. Blocks that were taken together, for a buffer longer than a block, are a *span*, known by its first block. Buffers fill a
//! span to its last byte, so one as long as two blocks takes two; what keeps objects from reaching into the next span is
//! [`Young::may_join`]. (A gap of a granule did that before: where buffers do not shrink, it cost a third of the young generation with
//! buffers of 64 KiB, and half of it with 32 KiB.)

use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use larder_sync::lock::Lock;
use larder_sys::memory::ReserveError;

use crate::config::OLDEST;
use crate::list::{List, Table};
use crate::space::{BLOCK, GRANULE, Space, rounded};

/// States of a block.
pub(crate) const FREE: u8 = 0;
/// Holds objects; during a copying collection: they are to be evacuated.
pub(crate) const FROM: u8 = 1;
/// During a collection: holds what was copied.
pub(crate) const TO: u8 = 2;
/// During a collection: holds a pinned object; what lives in it is marked where it is.
pub(crate) const KEPT: u8 = 3;

/// What changes under the lock.
struct Taking {
    /// The span from which chunks are cut: its first block, and what is left. Empty when `at == end`.
    first: usize,
    at: usize,
    end: usize,
    /// Where the search for free blocks begins.
    rover: usize,
    /// Blocks that mutators may still take until the next collection.
    quota: usize,
    /// Blocks that are not free.
    used: usize,
    /// Holes between objects that stay where they are, which a buffer may fill.
    holes: List<[usize; 2]>,
}

/// Shorter holes stay holes.
const SHORTEST_BUFFER: usize = 512;

pub struct Young {
    range: Range<usize>,
    /// Sync: under `lock`, or in a stopped world.
    states: Table<AtomicU8>,
    /// Collections that the block's objects have survived, at most `OLDEST`. Sync: as `states`.
    ages: Table<AtomicU8>,
    /// The first block of the block's span. Sync: as `states`.
    firsts: Table<AtomicU32>,
    /// Of a span's first block: granules of the span that are objects and holes. Sync: as `states`.
    filled: Table<AtomicU32>,
    lock: Lock,
    /// Sync: `lock`.
    taking: UnsafeCell<Taking>,
}

// SAFETY: `taking` is used under `lock` only.
unsafe impl Sync for Young {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Young {}

impl Young {
    pub fn new(range: Range<usize>) -> Result<Self, ReserveError> {
        let blocks = (range.end - range.start) / BLOCK;
        let holes = List::with_capacity(blocks * (BLOCK / SHORTEST_BUFFER))?;
        Ok(Self {
            range,
            states: Table::zeroed(blocks)?,
            ages: Table::zeroed(blocks)?,
            firsts: Table::zeroed(blocks)?,
            filled: Table::zeroed(blocks)?,
            lock: Lock::new(),
            taking: UnsafeCell::new(Taking { first: 0, at: 0, end: 0, rover: 0, quota: 0, used: 0, holes }),
        })
    }

    fn with<R>(&self, f: impl FnOnce(&mut Taking) -> R) -> R {
        let _guard = self.lock.lock();
        // SAFETY: the lock is held.
        f(unsafe { &mut *self.taking.get() })
    }

    /// Number of the block of an address.
    #[inline(always)]
    pub fn block_of(&self, at: usize) -> usize {
        (at - self.range.start) / BLOCK
    }

    pub fn block_at(&self, block: usize) -> usize {
        self.range.start + block * BLOCK
    }

    #[inline(always)]
    pub fn state(&self, block: usize) -> u8 {
        self.states[block].load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub fn age(&self, block: usize) -> u8 {
        self.ages[block].load(Ordering::Relaxed)
    }

    /// Finds `n` free blocks in a row and makes them a span.
    fn take_span(&self, taking: &mut Taking, n: usize, state: u8, age: u8) -> Option<usize> {
        let blocks = self.states.len();
        let mut run = 0;
        let mut at = taking.rover;
        // Once round, and the part before the rover again for a run that crosses it; runs do not cross the end.
        for _ in 0..blocks + n {
            if at == blocks {
                (at, run) = (0, 0);
            }
            run = if self.state(at) == FREE { run + 1 } else { 0 };
            at += 1;
            if run == n {
                let first = at - n;
                for block in first..at {
                    self.states[block].store(state, Ordering::Relaxed);
                    self.ages[block].store(age, Ordering::Relaxed);
                    self.firsts[block].store(first as u32, Ordering::Relaxed);
                }
                self.filled[first].store(0, Ordering::Relaxed);
                taking.rover = at;
                taking.used += n;
                return Some(first);
            }
        }
        None
    }

    fn close_current(&self, taking: &mut Taking) {
        if taking.end != 0 {
            self.set_filled(taking.first, taking.at);
        }
        (taking.at, taking.end) = (0, 0);
    }

    fn set_filled(&self, first: usize, end: usize) {
        self.filled[first].store(((end - self.block_at(first)) / GRANULE) as u32, Ordering::Relaxed);
    }

    /// A chunk of at least `least` and at most `most` bytes, not zeroed yet; `None` when it is time to collect.
    pub(crate) fn obtain(&self, space: &Space, least: usize, most: usize) -> Option<Range<usize>> {
        let least = rounded(least);
        let most = rounded(most).max(least);
        self.with(|taking| {
            // Holes first: they are used up at the next collection in any case. One that is too short is given up until then.
            while let Some([from, to]) = taking.holes.pop() {
                if to - from >= least {
                    let end = to.min(from + most);
                    unmake_hole(space, from);
                    if end < to {
                        make_hole(space, end..to);
                    }
                    return Some(from..end);
                }
            }
            if taking.end - taking.at < least {
                let wanted = most.div_ceil(BLOCK).min(taking.quota).max(least.div_ceil(BLOCK));
                let mut n = wanted;
                let first = loop {
                    if n * BLOCK < least || n > taking.quota {
                        return None;
                    }
                    if let Some(first) = self.take_span(taking, n, FROM, 0) {
                        break first;
                    }
                    n -= 1;
                };
                // Not before: who is refused a long chunk asks for a short one next, which the present span may have.
                self.close_current(taking);
                taking.quota -= n;
                taking.first = first;
                taking.at = self.block_at(first);
                taking.end = taking.at + n * BLOCK;
            }
            let start = taking.at;
            taking.at = taking.end.min(start + most);
            Some(start..taking.at)
        })
    }

    /// Whether a buffer may go on at `at`, where a chunk begins: not where a span does, because no object may reach from one span into
    /// the next.
    pub fn may_join(&self, at: usize) -> bool {
        let block = self.block_of(at);
        at != self.block_at(block) || self.span_of(block) != block
    }

    /// Takes the rest of a chunk back: for the next comer if it is the end of what was handed out, else as a hole.
    pub(crate) fn give_back(&self, space: &Space, rest: Range<usize>) {
        if rest.start == rest.end {
            return;
        }
        self.with(|taking| {
            if taking.end != 0 && taking.at == rest.end && rest.start >= self.block_at(taking.first) {
                taking.at = rest.start;
            } else {
                make_hole(space, rest);
            }
        });
    }

    /// A block for survivors of age `age`. Collectors only.
    pub fn take_survivor_block(&self, age: u8) -> Option<Range<usize>> {
        self.with(|taking| {
            let block = self.take_span(taking, 1, TO, age)?;
            let at = self.block_at(block);
            Some(at..at + BLOCK)
        })
    }

    /// A collector is done with a survivor block, of which `rest..end` is left.
    pub fn close_block(&self, rest: usize, end: usize) {
        self.set_filled(self.block_of(end - 1), rest);
    }

    /// Mutators get no more of the present span, nor of holes. The world is stopped.
    pub fn close(&self) {
        self.with(|taking| {
            self.close_current(taking);
            taking.holes.clear();
        });
    }

    /// A hole that a sweep has found may be filled.
    pub fn offer(&self, hole: Range<usize>) {
        if hole.end - hole.start >= SHORTEST_BUFFER {
            self.with(|taking| taking.holes.push([hole.start, hole.end]));
        }
    }

    /// No hole may be filled any more. The world is stopped.
    pub fn withdraw(&self) {
        self.with(|taking| taking.holes.clear());
    }

    /// First blocks of the spans in a state. The world is stopped.
    pub fn spans(&self, state: u8) -> impl Iterator<Item = usize> {
        (0..self.states.len()).filter(move |&block| {
            self.state(block) == state && self.firsts[block].load(Ordering::Relaxed) as usize == block
        })
    }

    /// The span's first block.
    pub fn span_of(&self, block: usize) -> usize {
        self.firsts[block].load(Ordering::Relaxed) as usize
    }

    /// Addresses of a span: where it begins, and one past its last object or hole.
    pub fn extent(&self, first: usize) -> Range<usize> {
        let at = self.block_at(first);
        at..at + self.filled[first].load(Ordering::Relaxed) as usize * GRANULE
    }

    fn blocks_of_span(&self, first: usize) -> impl Iterator<Item = usize> {
        (first..self.states.len()).take_while(move |&block| {
            self.state(block) != FREE && self.firsts[block].load(Ordering::Relaxed) as usize == first
        })
    }

    /// Keeps the span of a block where it is. The world is stopped.
    pub fn keep(&self, block: usize) {
        let first = self.span_of(block);
        if self.state(first) == FROM {
            for block in self.blocks_of_span(first) {
                self.states[block].store(KEPT, Ordering::Relaxed);
            }
        }
    }

    /// After copying: evacuated blocks become free, others one collection older. Calls `free` with each run of blocks that
    /// was freed; returns how many blocks were kept.
    pub fn flip(&self, mut free: impl FnMut(Range<usize>)) -> usize {
        self.with(|taking| {
            taking.used = 0;
            let mut kept = 0;
            for block in 0..self.states.len() {
                match self.state(block) {
                    FROM => {
                        self.states[block].store(FREE, Ordering::Relaxed);
                        free(self.block_at(block)..self.block_at(block + 1));
                    }
                    KEPT => {
                        self.ages[block].store((self.age(block) + 1).min(OLDEST), Ordering::Relaxed);
                        self.states[block].store(FROM, Ordering::Relaxed);
                        taking.used += 1;
                        kept += 1;
                    }
                    TO => {
                        self.states[block].store(FROM, Ordering::Relaxed);
                        taking.used += 1;
                    }
                    _ => {}
                }
            }
            taking.rover = 0;
            kept
        })
    }

    /// Lets mutators take blocks until `limit` blocks are used.
    pub fn allow(&self, limit: usize) {
        self.with(|taking| taking.quota = limit.saturating_sub(taking.used));
    }

    /// Bytes that can be obtained before the next collection, holes not counted.
    pub fn left(&self) -> usize {
        self.with(|taking| taking.end - taking.at + taking.quota * BLOCK)
    }

    /// Blocks that are not free.
    pub fn used(&self) -> usize {
        self.with(|taking| taking.used)
    }

    /// Blocks that there are.
    pub fn blocks(&self) -> usize {
        self.states.len()
    }
}

/// Makes memory that no object is in passable for a walk. The range is the caller's alone.
pub(crate) fn make_hole(space: &Space, range: Range<usize>) {
    debug_assert!(range.start.is_multiple_of(GRANULE) && range.end.is_multiple_of(GRANULE) && range.start < range.end);
    space.word(range.start).store(range.end - range.start, Ordering::Relaxed);
    let (region, bit) = space.region(range.start);
    // Relaxed: read in a stopped world.
    region.live.fetch_or(bit, Ordering::Relaxed);
}

/// Lets a hole be something else. It is the caller's alone.
pub(crate) fn unmake_hole(space: &Space, at: usize) {
    let (region, bit) = space.region(at);
    // Relaxed: as in `make_hole`.
    region.live.fetch_and(!bit, Ordering::Relaxed);
}

/// The length of the hole that begins at `at`, if one does.
pub(crate) fn hole_at(space: &Space, at: usize) -> Option<usize> {
    let (region, bit) = space.region(at);
    (region.live.load(Ordering::Relaxed) & bit != 0).then(|| space.word(at).load(Ordering::Relaxed))
}

/// Forgets holes, marks and starts of a range that is about to be used anew.
pub(crate) fn forget(space: &Space, range: Range<usize>) {
    for region in space.regions(range) {
        for word in [&region.starts, &region.marks, &region.live, &region.target] {
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer takes no more blocks than it is long, and goes on into the next chunk only within a span.
    #[test]
    fn a_buffer_of_two_blocks_takes_two_blocks() {
        let space = Space::reserve(1 << 20, 1 << 20, 32 * BLOCK).unwrap();
        let young = Young::new(space.young.clone()).unwrap();
        young.allow(16);
        let mut last = space.young.start;
        for _ in 0..4 {
            let chunk = young.obtain(&space, 2 * BLOCK, 2 * BLOCK).unwrap();
            assert_eq!(chunk, last..last + 2 * BLOCK);
            assert!(!young.may_join(chunk.start) && young.may_join(chunk.start + BLOCK));
            last = chunk.end;
        }
        assert_eq!((young.used(), young.left()), (8, 8 * BLOCK));
        for n in 0..4 {
            let chunk = young.obtain(&space, BLOCK / 2, BLOCK / 2).unwrap();
            assert_eq!(young.may_join(chunk.start), n % 2 == 1, "two chunks of a block");
        }
        assert_eq!(young.used(), 10);
    }

    /// Near the end of eden objects are asked for one by one, each after a buffer that there is no room for.
    #[test]
    fn a_chunk_that_is_refused_leaves_the_rest_of_a_block_for_shorter_ones() {
        let space = Space::reserve(1 << 20, 1 << 20, 32 * BLOCK).unwrap();
        let young = Young::new(space.young.clone()).unwrap();
        young.allow(1);
        for n in 0..BLOCK / 64 {
            assert_eq!(young.obtain(&space, 2 * BLOCK, 2 * BLOCK), None);
            let at = space.young.start + 64 * n;
            assert_eq!(young.obtain(&space, 64, 64), Some(at..at + 64));
        }
        assert_eq!(young.obtain(&space, 64, 64), None);
    }
}
