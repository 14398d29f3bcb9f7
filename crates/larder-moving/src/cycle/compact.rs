//! Compaction of the old generation: sliding, in parallel, without a word in the objects.
//!
//! What begins in one region stays together and in order. A region's record says where its first marked object goes; an
//! object's new address is that and the live granules of its region below it: one addition and one population count.
//!
//! 1. **Plan**: the regions in order, one thread. A region with a pinned object keeps all of its objects where they are;
//!    the others slide towards the beginning, around those regions, and fill the gaps between them as far as a whole
//!    region's objects fit. Objects never slide upwards: what begins in a region ends before the first object of a later
//!    pinned region, so it fits in front of it unless it goes behind an earlier one, which lies below it too.
//! 2. **Roots** get the new addresses.
//! 3. **Move and adjust**, in parallel: stripes are claimed in order of addresses. Before a stripe is moved, the stripes that it is
//!    moved over must have been moved away: the collector waits for those. They were claimed earlier, and the lowest that
//!    is not moved yet waits for nobody, so this ends. When a stripe has been moved, which lets those behind it go on, the same
//!    collector gives the slots of its objects, at their new places, the new addresses of what they refer to: the objects are in its
//!    cache by then. So memory is read and written once, where a pass of its own would do it twice. Young and large objects, which
//!    stay, are adjusted in the same phase.
//! 4. **Forget**, in parallel: what the records say is cleared, when nobody asks them any more.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use larder_sync::parker::Event;
use larder_sys::hint;

use super::{Cycle, Worker};
use crate::heap::Heap;
use crate::host::{Host, Visitor};
use crate::list::Table;
use crate::space::{Bits, GRANULE, HAS_PIN, REGION, Region, SPILL, TARGET};
use crate::stats::Counters;
use crate::young::FROM;

/// What one collector moves at a time. Longer than any small object, so that what begins in one stripe ends in the next at
/// the latest.
const STRIPE: usize = 128 << 10;

/// Gives slots the new addresses of what they refer to.
struct Adjuster<'a, H: Host> {
    heap: &'a Heap<H>,
    worker: &'a mut Worker,
}

impl<H: Host> Cycle<'_, H> {
    /// A full collection, after the young one.
    pub(super) fn compact_all(&mut self) {
        let heap = self.heap;
        self.mark_all();
        let end = self.plan();
        self.adjust_roots();
        self.move_and_adjust();
        self.forget_records();
        let behind = heap.old.cut(end);
        if heap.config.poison {
            heap.space.fill(behind, crate::POISON);
        }
        heap.young.withdraw();
        for span in heap.young.spans(FROM) {
            self.sweep_span(heap.young.extent(span));
        }
        heap.old.refund(heap.large.sweep(&heap.space, false));
        // Buffers of before are gone.
        self.each_worker(|worker| worker.old = 0..0);
    }

    /// Decides where everything goes; returns the end of what will be used.
    fn plan(&mut self) -> usize {
        let space = &self.heap.space;
        for &object in self.own.pinned.as_slice() {
            if space.is_old(object) {
                space.region(object).0.target.fetch_or(HAS_PIN, Ordering::Relaxed);
            }
        }
        let extent = self.heap.old.extent();
        // Extents of the pinned regions so far, and how many of them the sliding end has passed.
        let obstacles = &mut self.own.obstacles;
        obstacles.clear();
        let mut passed = 0;
        let mut to = self.heap.old.next_start();
        for (i, region) in space.regions(extent.clone()).iter().enumerate() {
            region.starts.store(0, Ordering::Relaxed);
            let live = region.live.load(Ordering::Relaxed);
            let target = region.target.load(Ordering::Relaxed);
            if live == 0 {
                region.target.store(0, Ordering::Relaxed);
                continue;
            }
            let spill = (target & !HAS_PIN) >> SPILL;
            let at = extent.start + i * REGION;
            if target & HAS_PIN != 0 {
                let first = at + live.trailing_zeros() as usize * GRANULE;
                let last = at + (64 - live.leading_zeros() as usize + spill as usize) * GRANULE;
                obstacles.push([first, last]);
                continue;
            }
            let bytes = (live.count_ones() as usize + spill as usize) * GRANULE;
            while let Some(&[first, last]) = obstacles.as_slice().get(passed) {
                if to + bytes <= first {
                    break;
                }
                to = last;
                passed += 1;
            }
            debug_assert!(to <= at + live.trailing_zeros() as usize * GRANULE, "larder: sliding goes down");
            region.target.store(to as u64 | spill << SPILL, Ordering::Relaxed);
            to += bytes;
        }
        obstacles.as_slice().last().map_or(to, |&[_, last]| to.max(last))
    }

    /// Updates every root, and forgets what was known of slots in old objects.
    fn adjust_roots(&mut self) {
        let heap = self.heap;
        let space = &heap.space;
        let extent = heap.old.extent();
        // What cards and lists say is about old addresses.
        for range in [extent.clone(), heap.large.extent()] {
            space.take_dirty(range, |_| ());
        }
        // SAFETY: the world is stopped.
        unsafe { (*heap.remembered.get()).clear() };
        self.each_worker(|worker| worker.remembered.clear());

        let forward = |slot: &AtomicUsize| {
            let value = slot.load(Ordering::Relaxed);
            let at = value & !H::TAG_MASK;
            if space.contains(at) {
                slot.store(heap.forwarded(at) | value & H::TAG_MASK, Ordering::Relaxed);
            }
        };
        self.each_root(forward);
        self.each_ready(forward);
        for entry in self.tables.handles.as_mut_slice() {
            let at = entry.value & !H::TAG_MASK;
            if entry.keep == Some(crate::handles::Keep::Weak) && space.contains(at) {
                entry.value = heap.forwarded(at) | entry.value & H::TAG_MASK;
            }
        }
        for watched in self.tables.finalizers.as_mut_slice() {
            watched.object = heap.forwarded(watched.object & !H::TAG_MASK) | watched.object & H::TAG_MASK;
        }
    }

    /// Moves what is to be moved, sets start bits for the new places, and updates every slot of what was marked.
    fn move_and_adjust(&mut self) {
        let heap = self.heap;
        let extent = heap.old.extent();
        let stripes = stripes(extent.end - extent.start);
        let done = &self.own.done;
        for flag in &done[..stripes] {
            flag.store(0, Ordering::Relaxed);
        }
        let order = Order { done, changed: Event::new() };
        let moved = AtomicUsize::new(0);
        let young = heap.young.blocks();
        // Stripes of old objects, then young spans, then all large objects in one piece.
        heap.gang.run_pieces(self.collectors(self.own.traced[1]), stripes + young + 1, &|me, piece| {
            // SAFETY: collector `me` alone, in a phase.
            let worker = unsafe { (*heap.workers[me].get()).as_mut() }.expect("as many workers as collectors");
            let mut adjuster = Adjuster { heap, worker };
            if piece < stripes {
                moved.fetch_add(heap.move_stripe(extent.clone(), piece, &order), Ordering::Relaxed);
                order.set(piece);
                heap.each_moved(extent.clone(), piece, |object| adjuster.adjust(object));
            } else if piece < stripes + young {
                let block = piece - stripes;
                if heap.young.state(block) == FROM && heap.young.span_of(block) == block {
                    heap.space.marks_in(heap.young.extent(block)).for_each(|object| adjuster.adjust(object));
                }
            } else {
                let marked = heap.large.objects().filter(|object| heap.large.is_marked(object.start));
                marked.for_each(|object| adjuster.adjust(object.start));
            }
            adjuster.settle_all();
        });
        Counters::add(&heap.counters.compacted_bytes, moved.into_inner());
        // SAFETY: the world is stopped.
        let remembered = unsafe { &mut *heap.remembered.get() };
        self.each_worker(|worker| heap.take_remembered(remembered, worker));
    }

    /// Clears what the records of old regions say of this compaction.
    fn forget_records(&mut self) {
        let heap = self.heap;
        let extent = heap.old.extent();
        let stripes = stripes(extent.end - extent.start);
        heap.gang.run_pieces(self.collectors(self.own.traced[1]), stripes, &|_, stripe| {
            for region in heap.space.regions(stripe_of(extent.clone(), stripe)) {
                region.marks.store(0, Ordering::Relaxed);
                region.live.store(0, Ordering::Relaxed);
                region.target.store(0, Ordering::Relaxed);
            }
        });
    }
}

/// Which stripes were moved.
struct Order<'a> {
    /// Sync: `compact.done`.
    done: &'a Table<AtomicU32>,
    changed: Event,
}

impl Order<'_> {
    fn set(&self, stripe: usize) {
        // ORDER compact.done: Release, with the load in `wait`. Weaker, what was in the stripe could be overwritten before it
        // was read.
        self.done[stripe].store(1, Ordering::Release);
        self.changed.bump_and_wake_all();
    }

    fn wait(&self, stripe: usize) {
        loop {
            let seen = self.changed.current();
            // ORDER compact.done: Acquire, with the store in `set`.
            if self.done[stripe].load(Ordering::Acquire) != 0 {
                return;
            }
            self.changed.wait(seen);
        }
    }
}

/// How many stripes a range may have.
pub(crate) fn stripes(bytes: usize) -> usize {
    bytes.div_ceil(STRIPE)
}

/// The addresses of a stripe.
fn stripe_of(extent: Range<usize>, stripe: usize) -> Range<usize> {
    let from = extent.start + stripe * STRIPE;
    from..extent.end.min(from + STRIPE)
}

impl<H: Host> Heap<H> {
    /// Where a marked object will be.
    #[inline(always)]
    fn forwarded(&self, at: usize) -> usize {
        if !self.space.is_old(at) {
            return at;
        }
        let (region, bit) = self.space.region(at);
        debug_assert!(
            region.marks.load(Ordering::Relaxed) & bit != 0,
            "larder: a live slot refers to {at:#x}, which was not found"
        );
        let target = region.target.load(Ordering::Relaxed);
        if target & HAS_PIN != 0 {
            return at;
        }
        (target & TARGET) as usize + (region.live.load(Ordering::Relaxed) & (bit - 1)).count_ones() as usize * GRANULE
    }

    /// Moves what begins in a stripe; returns the bytes that were moved.
    fn move_stripe(&self, extent: Range<usize>, stripe: usize, order: &Order<'_>) -> usize {
        let space = &self.space;
        let Range { start: from, end } = stripe_of(extent.clone(), stripe);
        let regions = space.regions(from..end);
        // Where the stripe goes, if that is somewhere else.
        let mut over: Option<Range<usize>> = None;
        for (i, region) in regions.iter().enumerate() {
            if let Some((to, bytes)) = goes(region) {
                let first = from + i * REGION + region.live.load(Ordering::Relaxed).trailing_zeros() as usize * GRANULE;
                // The first object of a region may stay while others close up to it.
                let stays = to == first && region.live.load(Ordering::Relaxed).count_zeros() == 0;
                if !stays {
                    over = Some(over.map_or(to, |over| over.start)..to + bytes);
                }
            }
        }
        if let Some(over) = over {
            // One stripe more, because the last object of the one before reaches into it.
            let first = ((over.start - extent.start) / STRIPE).saturating_sub(1);
            let last = (over.end - 1 - extent.start) / STRIPE;
            for below in first..(last + 1).min(stripe) {
                order.wait(below);
            }
        }
        let mut moved = 0;
        for (i, region) in regions.iter().enumerate() {
            let at = from + i * REGION;
            let marks = region.marks.load(Ordering::Relaxed);
            match goes(region) {
                None => {
                    // Pinned, or empty.
                    region.starts.fetch_or(marks, Ordering::Relaxed);
                }
                Some((to, _)) => {
                    let live = region.live.load(Ordering::Relaxed);
                    for bit in Bits(marks) {
                        let below = (live & ((1 << bit) - 1)).count_ones() as usize;
                        let (region, bit) = space.region(to + below * GRANULE);
                        region.starts.fetch_or(bit, Ordering::Relaxed);
                    }
                    moved += self.move_runs(at, to, live, spill(region));
                }
            }
        }
        moved
    }

    /// Calls `f` with the objects that began in a stripe, where they are now that it was moved.
    #[inline(always)]
    fn each_moved(&self, extent: Range<usize>, stripe: usize, mut f: impl FnMut(usize)) {
        let Range { start: from, end } = stripe_of(extent, stripe);
        for (i, region) in self.space.regions(from..end).iter().enumerate() {
            let to = goes(region).map(|(to, _)| to);
            let live = region.live.load(Ordering::Relaxed);
            for bit in Bits(region.marks.load(Ordering::Relaxed)) {
                f(match to {
                    Some(to) => to + (live & ((1 << bit) - 1)).count_ones() as usize * GRANULE,
                    None => from + i * REGION + bit as usize * GRANULE,
                });
            }
        }
    }

    /// Moves the live granules of the region at `at`, run by run, to `to`; the last run is `spill` granules longer than the
    /// region shows.
    fn move_runs(&self, at: usize, mut to: usize, mut live: u64, spill: usize) -> usize {
        let mut moved = 0;
        while live != 0 {
            let first = live.trailing_zeros();
            let length = (live >> first).trailing_ones();
            let reaches_end = first + length == 64;
            let bytes = (length as usize + if reaches_end { spill } else { 0 }) * GRANULE;
            let from = at + first as usize * GRANULE;
            if from != to {
                self.space.copy(from, to, bytes);
                moved += bytes;
            }
            to += bytes;
            live = if reaches_end { 0 } else { live & (u64::MAX << (first + length)) };
        }
        moved
    }
}

/// Where a region's objects go and how many bytes they are; `None` if it has none that move.
fn goes(region: &Region) -> Option<(usize, usize)> {
    let live = region.live.load(Ordering::Relaxed);
    let target = region.target.load(Ordering::Relaxed);
    if live == 0 || target & HAS_PIN != 0 {
        return None;
    }
    Some(((target & TARGET) as usize, (live.count_ones() as usize + spill(region)) * GRANULE))
}

/// The granules by which a region's last object reaches beyond it.
fn spill(region: &Region) -> usize {
    ((region.target.load(Ordering::Relaxed) & !HAS_PIN) >> SPILL) as usize
}

impl<H: Host> Adjuster<'_, H> {
    fn adjust(&mut self, object: usize) {
        let heap = self.heap;
        // SAFETY: a marked object, where it stays.
        unsafe { heap.host.scan(heap.space.pointer(object), self) };
    }

    /// Updates a slot, in which `value` was found.
    #[inline(always)]
    fn settle(&mut self, slot: usize, value: usize) {
        let now = self.heap.forwarded(value & !H::TAG_MASK) | value & H::TAG_MASK;
        // SAFETY: the slot was shown in this phase, to this collector alone, and nothing moves in it.
        unsafe { *core::ptr::with_exposed_provenance_mut(slot) = now };
    }

    /// Updates the slots that wait.
    fn settle_all(&mut self) {
        while let Some([slot, value]) = self.worker.ahead.pop() {
            self.settle(slot, value);
        }
    }
}

impl<H: Host> Visitor for Adjuster<'_, H> {
    #[inline(always)]
    fn slot(&mut self, slot: *mut usize) {
        // SAFETY: a visitor gets valid, aligned slots of an object, and each object is adjusted by one collector.
        let value = unsafe { *slot };
        let at = value & !H::TAG_MASK;
        let space = &self.heap.space;
        if space.is_old(at) {
            // Where it goes is in its region's record, which is anywhere.
            hint::prefetch(core::ptr::from_ref(space.region(at).0).addr());
            if let Some([slot, value]) = self.worker.ahead.push([slot.expose_provenance(), value]) {
                self.settle(slot, value);
            }
        } else if space.is_young(at) && slot.addr() < space.young.start {
            self.heap.note_young_reference(self.worker, slot.addr());
        }
    }

    fn weak(&mut self, slot: *mut usize) {
        self.slot(slot);
    }

    fn ephemeron(&mut self, key: *mut usize, value: *mut usize) {
        self.slot(key);
        self.slot(value);
    }
}
