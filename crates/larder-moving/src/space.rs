//! The reserved range of a heap, the records of its regions, and its cards.
//!
//! One reservation holds the old generation, the large objects and the young generation, in this order of addresses, so
//! that "is it young" and "is it in the heap" are one comparison each:
//!
//! | part | unit | found by |
//! |---|---|---|
//! | old | [`REGION`] of 1 KiB with a record of 32 bytes | object-start bits |
//! | large | page of 4 KiB | page map |
//! | young | block of 32 KiB | block table |
//!
//! The whole range is readable and writable from the beginning; the kernel gives it memory where it is touched.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use larder_sys::huge;
use larder_sys::memory::{self, ReserveError};
use larder_units::Bytes;

use crate::list::{Table, Zero};

/// Alignment and step of every object's size.
pub(crate) const GRANULE: usize = 16;
/// What one region record describes: as many granules as a word has bits.
pub(crate) const REGION: usize = 64 * GRANULE;
/// What one card describes. HotSpot's size; two to a region.
pub(crate) const CARD: usize = 512;
/// Unit of the young generation.
pub(crate) const BLOCK: usize = 32 << 10;
/// Objects above this are large: they are never moved. A quarter of a block, so that a survivor block's tail is at most
/// that.
pub(crate) const LARGEST_SMALL: usize = 8 << 10;
/// Unit of large objects.
pub(crate) const LARGE_PAGE: usize = 4096;

/// A generation of this size or more asks for huge pages: a smaller one is walked through without them.
const HUGE_FROM: Bytes = Bytes::mib(16);

/// A card without a store since it was last scanned. Zero, so that a fresh table costs no memory.
const CLEAN: u8 = 0;
const DIRTY: u8 = 1;

/// What is known of 1 KiB.
///
/// | field | old | young |
/// |---|---|---|
/// | `starts` | an object begins at this granule | the same, during a collection that has ambiguous roots |
/// | `marks` | the object that begins here was found | the same, in kept blocks and full collections |
/// | `live` | granules of marked objects that begin here, cut off at the region's end | a hole begins here |
/// | `target` | see below | - |
///
/// `target` has, in a full collection, in bits 0..48 the address to which the region's first marked object goes, in bits
/// 48..62 the granules by which its last marked object reaches beyond it, and in bit 63 whether an object that begins here
/// is pinned.
///
/// Sync: `starts` of old regions by the owner of the buffer they are in, by read-modify-writes where that is no thread
/// (`old.starts`, at the accesses); all else in a stopped world, where collectors set bits by read-modify-writes and phases are ordered by the gang.
pub(crate) struct Region {
    pub starts: AtomicU64,
    pub marks: AtomicU64,
    pub live: AtomicU64,
    pub target: AtomicU64,
}

// SAFETY: four integers.
unsafe impl Zero for Region {}

/// Shift and flag of [`Region::target`].
pub(crate) const SPILL: u32 = 48;
pub(crate) const HAS_PIN: u64 = 1 << 63;
pub(crate) const TARGET: u64 = (1 << SPILL) - 1;

/// Sets bits; says whether none of them was set. `alone`: no other thread changes the word meanwhile, so it takes no atomic
/// instruction.
#[inline(always)]
fn claim(word: &AtomicU64, bits: u64, alone: bool) -> bool {
    // Relaxed: a mark is a claim; what is marked is handed on by the work lists.
    let before = word.load(Ordering::Relaxed);
    if before & bits != 0 {
        return false;
    }
    if alone {
        word.store(before | bits, Ordering::Relaxed);
        return true;
    }
    word.fetch_or(bits, Ordering::Relaxed) & bits == 0
}

/// The reserved range and its side tables.
pub(crate) struct Space {
    mapping: *mut u8,
    mapped: usize,
    base: usize,
    pub old: Range<usize>,
    pub large: Range<usize>,
    pub young: Range<usize>,
    regions: Table<Region>,
    cards: Table<AtomicU8>,
}

// SAFETY: the mapping is shared memory whose words are only accessed as atomics, or copied in a stopped world.
unsafe impl Send for Space {}
// SAFETY: as above.
unsafe impl Sync for Space {}

/// Bytes up to whole granules, at least one.
#[inline(always)]
pub(crate) const fn rounded(bytes: usize) -> usize {
    let up = (bytes + (GRANULE - 1)) & !(GRANULE - 1);
    if up == 0 { GRANULE } else { up }
}

impl Space {
    /// Reserves a heap of these parts; each is rounded up to blocks.
    pub fn reserve(old: usize, large: usize, young: usize) -> Result<Self, ReserveError> {
        let up = |bytes: usize| bytes.div_ceil(BLOCK) * BLOCK;
        let (old, large, young) = (up(old), up(large), up(young));
        let size = old + large + young;
        let mapped = size + BLOCK;
        let mapping = memory::map_lazy(Bytes(mapped))?.as_ptr();
        let base = mapping.expose_provenance().next_multiple_of(BLOCK);
        let regions = Table::zeroed(size / REGION)?;
        let cards = Table::zeroed(size / CARD)?;
        let young_at = base + old + large;
        // Large objects may never be written to their end.
        for (at, bytes) in [(base, old), (young_at, young)] {
            if bytes >= HUGE_FROM.0 {
                // SAFETY: inside the mapping just made.
                unsafe { huge::ask_unless_slow(core::ptr::with_exposed_provenance_mut(at), Bytes(bytes)) };
            }
        }
        Ok(Self {
            mapping,
            mapped,
            base,
            old: base..base + old,
            large: base + old..young_at,
            young: young_at..young_at + young,
            regions,
            cards,
        })
    }

    /// The word at an aligned address of the range.
    #[inline(always)]
    pub fn word(&self, at: usize) -> &AtomicUsize {
        debug_assert!((self.base..self.young.end).contains(&at) && at.is_multiple_of(8), "{at:#x}");
        // SAFETY: the whole range is mapped for as long as `self`, and its words are accessed as atomics while shared.
        unsafe { &*core::ptr::with_exposed_provenance::<AtomicUsize>(at) }
    }

    /// The pointer to an address of the range.
    #[inline(always)]
    pub fn pointer(&self, at: usize) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(at)
    }

    /// Copies an object. The world is stopped, and the target is the caller's alone. They may overlap.
    #[inline(always)]
    pub fn copy(&self, from: usize, to: usize, bytes: usize) {
        debug_assert!((self.base..self.young.end).contains(&from) && to >= self.base && to + bytes <= self.young.end);
        // SAFETY: both ranges are inside the mapping, and the caller has them to itself.
        unsafe { core::ptr::copy(self.pointer(from), self.pointer(to), bytes) };
    }

    /// Fills a range that is the caller's alone.
    pub fn fill(&self, range: Range<usize>, byte: u8) {
        debug_assert!(range.start >= self.base && range.end <= self.young.end);
        // SAFETY: inside the mapping, and the caller has it to itself.
        unsafe { core::ptr::write_bytes(self.pointer(range.start), byte, range.end - range.start) };
    }

    /// Gives the whole pages of a range back to the kernel; they read as zero afterwards.
    pub fn discard(&self, range: Range<usize>) {
        let (from, to) = (range.start.next_multiple_of(LARGE_PAGE), range.end & !(LARGE_PAGE - 1));
        if from < to {
            // SAFETY: inside the mapping, and the caller has it to itself.
            unsafe { memory::discard(self.pointer(from), Bytes(to - from)) };
        }
    }

    /// Whether the address is in the range at all.
    #[inline(always)]
    pub fn contains(&self, at: usize) -> bool {
        at.wrapping_sub(self.base) < self.young.end - self.base
    }

    /// Whether the address is in the young generation's part.
    #[inline(always)]
    pub fn is_young(&self, at: usize) -> bool {
        at.wrapping_sub(self.young.start) < self.young.end - self.young.start
    }

    /// Whether the address is in the part of large objects.
    #[inline(always)]
    pub fn is_large(&self, at: usize) -> bool {
        at.wrapping_sub(self.large.start) < self.large.end - self.large.start
    }

    /// Whether the address is in the old generation's part.
    #[inline(always)]
    pub fn is_old(&self, at: usize) -> bool {
        at.wrapping_sub(self.old.start) < self.old.end - self.old.start
    }

    /// The record of the region of an address, and the address's bit in it.
    #[inline(always)]
    pub fn region(&self, at: usize) -> (&Region, u64) {
        let offset = at - self.base;
        (&self.regions[offset / REGION], 1 << (offset / GRANULE % 64))
    }

    /// The records of an aligned range.
    pub fn regions(&self, range: Range<usize>) -> &[Region] {
        &self.regions[(range.start - self.base) / REGION..(range.end - self.base).div_ceil(REGION)]
    }

    /// Sets a start bit in a region that only this thread writes.
    #[inline(always)]
    pub fn set_start(&self, at: usize) {
        let (region, bit) = self.region(at);
        // ORDER old.starts: Release, with the Acquire in `last_start`: who finds the bit finds the object's header.
        region.starts.store(region.starts.load(Ordering::Relaxed) | bit, Ordering::Release);
    }

    /// Sets a start bit in a region that other threads may write: in a buffer that does not belong to one thread.
    pub fn set_start_shared(&self, at: usize) {
        let (region, bit) = self.region(at);
        // ORDER old.starts: as in `set_start`.
        region.starts.fetch_or(bit, Ordering::Release);
    }

    /// Claims the object of `bytes` bytes at `at` for the one who finds it first; notes what it covers.
    #[inline(always)]
    pub fn mark(&self, at: usize, bytes: usize, alone: bool) -> bool {
        let (region, bit) = self.region(at);
        if !claim(&region.marks, bit, alone) {
            return false;
        }
        let first = (at / GRANULE % 64) as u32;
        let granules = bytes / GRANULE;
        let inside = granules.min(64 - first as usize);
        let covered = (u64::MAX >> (64 - inside)) << first;
        claim(&region.live, covered, alone);
        if granules > inside {
            // Only the last object of a region reaches beyond it, so this is the only such store.
            region.target.store(((granules - inside) as u64) << SPILL, Ordering::Relaxed);
        }
        true
    }

    /// Claims an object without noting what it covers.
    #[inline(always)]
    pub fn mark_start(&self, at: usize) -> bool {
        let (region, bit) = self.region(at);
        region.marks.load(Ordering::Relaxed) & bit == 0 && region.marks.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Whether the object at `at` was claimed.
    #[inline(always)]
    pub fn is_marked(&self, at: usize) -> bool {
        let (region, bit) = self.region(at);
        region.marks.load(Ordering::Relaxed) & bit != 0
    }

    /// Whether an object begins at `at`.
    pub fn is_start(&self, at: usize) -> bool {
        let (region, bit) = self.region(at);
        at.is_multiple_of(GRANULE) && region.starts.load(Ordering::Relaxed) & bit != 0
    }

    /// The last object start at or before `at`, and not before `floor`.
    pub fn last_start(&self, at: usize, floor: usize) -> Option<usize> {
        let mut index = (at - self.base) / REGION;
        let mut below = u64::MAX >> (63 - (at - self.base) / GRANULE % 64);
        loop {
            // ORDER old.starts: Acquire, with the Release in `set_start` and `set_start_shared`.
            let starts = self.regions[index].starts.load(Ordering::Acquire) & below;
            let region_at = self.base + index * REGION;
            if starts != 0 {
                let found = region_at + (63 - starts.leading_zeros() as usize) * GRANULE;
                return (found >= floor).then_some(found);
            }
            if region_at <= floor {
                return None;
            }
            (index, below) = (index - 1, u64::MAX);
        }
    }

    /// Object starts in `range`, in order.
    pub fn starts_in(&self, range: Range<usize>) -> impl Iterator<Item = usize> {
        self.bits_in(range, |region| region.starts.load(Ordering::Acquire))
    }

    /// Marked objects in `range`, in order.
    pub fn marks_in(&self, range: Range<usize>) -> impl Iterator<Item = usize> {
        self.bits_in(range, |region| region.marks.load(Ordering::Relaxed))
    }

    fn bits_in(&self, range: Range<usize>, word: impl Fn(&Region) -> u64) -> impl Iterator<Item = usize> {
        let first = (range.start - self.base) / REGION;
        let last = (range.end - self.base).div_ceil(REGION);
        (first..last)
            .flat_map(move |index| {
                let at = self.base + index * REGION;
                Bits(word(&self.regions[index])).map(move |bit| at + bit as usize * GRANULE)
            })
            .filter(move |at| range.contains(at))
    }

    /// Index of a card.
    #[inline(always)]
    pub fn card_index(&self, at: usize) -> usize {
        (at - self.base) / CARD
    }

    /// Where a card begins.
    pub fn card_at(&self, index: usize) -> usize {
        self.base + index * CARD
    }

    /// The barrier's address arithmetic: the card of `at` is the byte at this address plus `at / CARD`.
    pub fn card_bias(&self) -> usize {
        self.cards.as_ptr().expose_provenance().wrapping_sub(self.base / CARD)
    }

    /// Marks the card of a slot, if it is not marked.
    ///
    /// Between a mutator's store to the slot and its look at the card there is no fence, and none is needed: cards are read
    /// and cleaned only in a stopped world, and a mutator reaches a safepoint with both behind it. A collector that cleaned
    /// cards beside the program would need a StoreLoad here: the look could otherwise find the old mark, the collector
    /// clean it and read the slot before the store arrives, and the store be forgotten.
    #[inline(always)]
    pub fn dirty(&self, slot: usize) {
        let card = &self.cards[self.card_index(slot)];
        // Relaxed: the stop orders mutators before collectors; among collectors all write the same value.
        if card.load(Ordering::Relaxed) == CLEAN {
            card.store(DIRTY, Ordering::Relaxed);
        }
    }

    /// Marks the card of a slot without looking.
    #[inline(always)]
    pub fn dirty_unconditionally(&self, slot: usize) {
        // Relaxed: as in `dirty`.
        self.cards[self.card_index(slot)].store(DIRTY, Ordering::Relaxed);
    }

    /// Whether the card of a slot is marked.
    pub fn is_dirty(&self, slot: usize) -> bool {
        self.cards[self.card_index(slot)].load(Ordering::Relaxed) == DIRTY
    }

    /// Cleans every dirty card of a range and calls `each` with its index. The world is stopped.
    pub fn take_dirty(&self, range: Range<usize>, mut each: impl FnMut(usize)) {
        let first = self.card_index(range.start);
        let last = (range.end - self.base).div_ceil(CARD);
        let cards = &self.cards[first..last];
        for (i, eight) in cards.chunks(8).enumerate() {
            // Eight at a time by their sum: nearly all are clean. The compiler makes one load of it.
            if eight.iter().all(|card| card.load(Ordering::Relaxed) == CLEAN) {
                continue;
            }
            for (j, card) in eight.iter().enumerate() {
                if card.load(Ordering::Relaxed) != CLEAN {
                    card.store(CLEAN, Ordering::Relaxed);
                    each(first + i * 8 + j);
                }
            }
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: the mapping is this space's own.
        unsafe { memory::unmap(self.mapping, Bytes(self.mapped)) };
    }
}

/// The numbers of the bits that are set, lowest first.
pub(crate) struct Bits(pub u64);

impl Iterator for Bits {
    type Item = u32;
    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        let bit = self.0.trailing_zeros();
        (self.0 != 0).then(|| {
            self.0 &= self.0 - 1;
            bit
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_found_backwards_across_regions() {
        let space = Space::reserve(1 << 20, 1 << 20, 1 << 20).unwrap();
        let at = space.old.start;
        for offset in [0, 48, 1008, 1024 + 512, 10 * 1024] {
            space.set_start(at + offset);
        }
        let before = |offset: usize| space.last_start(at + offset, at).map(|found| found - at);
        assert_eq!(before(0), Some(0));
        assert_eq!(before(47), Some(0));
        assert_eq!(before(48), Some(48));
        assert_eq!(before(1500), Some(1008));
        assert_eq!(before(9 * 1024), Some(1536));
        assert_eq!(space.last_start(at + 9 * 1024, at + 2048), None);
        let all: Vec<usize> = space.starts_in(at + 48..at + 10 * 1024).map(|found| found - at).collect();
        assert_eq!(all, [48, 1008, 1536]);
    }

    #[test]
    fn a_mark_is_won_once_and_covers_its_object() {
        let space = Space::reserve(1 << 20, 1 << 20, 1 << 20).unwrap();
        let at = space.old.start;
        assert!(space.mark(at + 32, 48, true) && !space.mark(at + 32, 48, false));
        assert!(space.mark(at + 1008, 32 + 1024, false));
        let region = &space.regions(at..at + 1024)[0];
        assert_eq!(region.live.load(Ordering::Relaxed), 0b11100 | 1 << 63);
        assert_eq!(region.target.load(Ordering::Relaxed) >> SPILL, 65);
    }

    #[test]
    fn dirty_cards_are_taken_once() {
        let space = Space::reserve(1 << 20, 1 << 20, 1 << 20).unwrap();
        let at = space.old.start;
        for slot in [0, 8, 511, 512, 5000, 5008] {
            space.dirty(at + slot);
        }
        let mut found = vec![];
        space.take_dirty(at..at + (1 << 20), |card| found.push(space.card_at(card) - at));
        assert_eq!(found, [0, 512, 4608]);
        space.take_dirty(at..at + (1 << 20), |_| panic!("they are clean"));
    }
}
