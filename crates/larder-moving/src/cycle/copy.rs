//! The young collection: parallel copying.
//!
//! Every young object that roots and remembered slots lead to is copied, into a survivor block of the next age or, when
//! it is old enough or too much survives, into the old generation; its forwarding word says where it went
//! ([`larder_sync::forward`]). Each collector copies into blocks and buffers of its own. Objects in kept blocks are
//! marked where they are.

use core::sync::atomic::{AtomicUsize, Ordering};

use larder_policy::generations::survivor_limit;
use larder_sync::forward::{self, Found};
use larder_sync::worklist::Entry;
use larder_sys::hint;
use larder_units::Bytes;

use super::roots::size_of_object;
use super::{Cycle, Worker};
use crate::config::{Barrier, OLD_BUFFER, OLDEST};
use crate::gang::Tracer;
use crate::heap::Heap;
use crate::host::{Host, Part, Visitor};
use crate::list::List;
use crate::space::{BLOCK, CARD, LARGEST_SMALL, REGION, rounded};
use crate::stats::Counters;
use crate::young::{self, FROM, KEPT, TO};

/// Cards, and remembered slots, that a collector claims at a time.
const CARDS_AT_ONCE: usize = 32;
const SLOTS_AT_ONCE: usize = 256;

/// How far behind the end of a survivor block's copies the next lines are asked for: some ten small objects.
const AHEAD: usize = 512;

/// What the collectors of one young collection share.
struct Shared<'a> {
    cards: &'a [u32],
    next_card: AtomicUsize,
    slots: &'a [usize],
    next_slot: AtomicUsize,
    /// Survivor blocks taken, and the number from which on objects are promoted early.
    survivor_blocks: AtomicUsize,
    most_survivor_blocks: usize,
}

/// One collector of a young collection.
struct Copier<'a, H: Host> {
    heap: &'a Heap<H>,
    worker: &'a mut Worker,
    shared: &'a Shared<'a>,
    /// Nobody else copies meanwhile.
    alone: bool,
}

impl<H: Host> Cycle<'_, H> {
    /// Collects the young generation.
    pub(super) fn copy_young(&mut self) {
        let heap = self.heap;
        heap.large.clear_marks();
        self.list_pinned();
        self.keep_pinned_blocks();

        // Before anything is copied, so that no collector cleans a card that another one marks.
        self.own.cards.clear();
        for range in [heap.old.extent(), heap.large.extent()] {
            heap.space.take_dirty(range, |card| self.own.cards.push(card as u32));
        }
        Counters::add(&heap.counters.dirty_cards, self.own.cards.len());
        self.each_worker(|worker| {
            // A fresh region: the cards of what was promoted before are another matter.
            worker.old.start = worker.old.start.next_multiple_of(REGION).min(worker.old.end);
        });

        // SAFETY: the world is stopped; the list is this thread's until it is put back.
        let remembered = unsafe { &mut *heap.remembered.get() };
        // Taken out of `own`, which the closures below borrow whole.
        let cards = core::mem::replace(&mut self.own.cards, List::nowhere());
        let shared = Shared {
            cards: cards.as_slice(),
            next_card: AtomicUsize::new(0),
            slots: remembered.as_slice(),
            next_slot: AtomicUsize::new(0),
            survivor_blocks: AtomicUsize::new(0),
            most_survivor_blocks: survivor_limit(Bytes(self.own.young_size)).0 / BLOCK,
        };
        // SAFETY: between phases the workers are the collecting thread's.
        let first = unsafe { (*heap.workers[0].get()).as_mut() }.expect("a heap has one collector at least");
        let mut copier = Copier { heap, worker: first, shared: &shared, alone: true };
        for i in 0..self.own.pinned.len() {
            copier.found_in_place(self.own.pinned.as_slice()[i]);
        }
        self.each_root(|slot| copier.visit_soon(slot));
        self.each_ready(|slot| copier.visit_soon(slot));
        self.trace_copies(&shared);
        self.settle_ephemerons(
            |at| heap.young_now(at),
            |cycle, value| {
                cycle.copier(&shared, |copier| copier.visit(value));
                cycle.trace_copies(&shared);
            },
        );
        self.clear_weak(|at| heap.young_now(at));
        self.ready_finalizers(
            |at| heap.young_now(at),
            |cycle, object| {
                cycle.copier(&shared, |copier| copier.visit(object));
            },
        );
        self.trace_copies(&shared);
        self.settle_ephemerons(
            |at| heap.young_now(at),
            |cycle, value| {
                cycle.copier(&shared, |copier| copier.visit(value));
                cycle.trace_copies(&shared);
            },
        );
        self.clear_weak(|at| heap.young_now(at));
        self.own.cards = cards;

        remembered.clear();
        let mut moved = 0;
        let mut promoted = 0;
        self.each_worker(|worker| {
            heap.take_remembered(remembered, worker);
            for survivors in &mut worker.survivors {
                if survivors.end != 0 {
                    heap.young.close_block(survivors.start, survivors.end);
                }
                *survivors = 0..0;
            }
            let tally = core::mem::take(&mut worker.tally);
            Counters::add(&heap.counters.copied_bytes, tally.copied);
            Counters::add(&heap.counters.promoted_bytes, tally.promoted);
            Counters::add(&heap.counters.moved_objects, tally.objects);
            moved += tally.copied + tally.promoted;
            promoted += tally.promoted;
        });
        self.own.traced[0] = moved;
        self.own.promoted = promoted;
        for span in heap.young.spans(KEPT) {
            self.sweep_span(heap.young.extent(span));
        }
        self.own.kept = heap.young.flip(|freed| {
            young::forget(&heap.space, freed.clone());
            if heap.config.poison {
                heap.space.fill(freed, crate::POISON);
            }
        });
        heap.old.refund(heap.large.sweep(&heap.space, true));
    }

    fn copier(&mut self, shared: &Shared<'_>, f: impl FnOnce(&mut Copier<'_, H>)) {
        // SAFETY: between phases the workers are the collecting thread's.
        let worker = unsafe { (*self.heap.workers[0].get()).as_mut() }.expect("a heap has one collector at least");
        f(&mut Copier { heap: self.heap, worker, shared, alone: true });
    }

    /// Copies until nobody finds anything.
    fn trace_copies(&mut self, shared: &Shared<'_>) {
        let heap = self.heap;
        heap.gang.trace(self.collectors(self.own.traced[0]), &|me, tracing| {
            // SAFETY: collector `me` alone, in a phase.
            let worker = unsafe { (*heap.workers[me].get()).as_mut() }.expect("as many workers as collectors");
            let mut copier = Copier { heap, worker, shared, alone: tracing.is_alone() };
            tracing.work(&mut copier, Copier::take_shared);
        });
    }

    /// Calls `f` with each collector's own, between phases.
    pub(super) fn each_worker(&mut self, mut f: impl FnMut(&mut Worker)) {
        for worker in &self.heap.workers {
            // SAFETY: between phases the workers are the collecting thread's.
            if let Some(worker) = unsafe { &mut *worker.get() } {
                f(worker);
            }
        }
    }
}

impl<H: Host> Heap<H> {
    /// Where an object is after copying; `None` if it was not found.
    pub(super) fn young_now(&self, at: usize) -> Option<usize> {
        if self.space.is_young(at) {
            return match self.young.state(self.young.block_of(at)) {
                FROM => match forward::look(self.space.word(at + self.host.forwarding_word())) {
                    Found::Moved(to) => Some(to),
                    Found::Here(_) => None,
                },
                KEPT => self.space.is_marked(at).then_some(at),
                _ => Some(at),
            };
        }
        let dead = self.space.is_large(at) && !self.large.is_old(at) && !self.large.is_marked(at);
        (!dead).then_some(at)
    }

    /// Adds what a collector has remembered to the heap's list.
    pub(super) fn take_remembered(&self, list: &mut List<usize>, worker: &mut Worker) {
        // A slot that was stored to often is there as often.
        worker.remembered.sort_and_dedup();
        for &slot in worker.remembered.as_slice() {
            // Cards help a list out that is full.
            if !list.try_push(slot) {
                self.space.dirty(slot);
            }
        }
        worker.remembered.clear();
    }

    /// A slot of an old or large object refers to a young one: the next young collection has to look at it.
    #[inline(always)]
    pub(super) fn note_young_reference(&self, worker: &mut Worker, slot: usize) {
        if self.config.barrier == Barrier::StoreBuffer {
            worker.remembered.push(slot);
        } else {
            self.space.dirty(slot);
        }
    }
}

impl<H: Host> Copier<'_, H> {
    /// As [`Self::visit`], before this collector has nothing left to do.
    #[inline(always)]
    fn visit_soon(&mut self, slot: &AtomicUsize) {
        let space = &self.heap.space;
        let value = slot.load(Ordering::Relaxed);
        let at = value & !H::TAG_MASK;
        if !space.is_young(at) || self.heap.young.state(self.heap.young.block_of(at)) != FROM {
            return self.visit(slot);
        }
        hint::prefetch(at);
        hint::prefetch(at + 32);
        if let Some([slot, value]) = self.worker.ahead.push([slot.as_ptr().expose_provenance(), value]) {
            self.settle(slot, value);
        }
    }

    /// Does what an entry of the queue stands for: a slot, and the reference that was found there.
    #[inline(always)]
    fn settle(&mut self, slot: usize, value: usize) {
        // SAFETY: a root, or a slot of an object that was shown in this phase and does not move again.
        let slot = unsafe { AtomicUsize::from_ptr(core::ptr::with_exposed_provenance_mut(slot)) };
        let at = value & !H::TAG_MASK;
        let now = self.evacuated(at);
        self.refer(slot, value, now);
    }

    /// Sees to it that a slot refers to where its object is now.
    #[inline(always)]
    fn visit(&mut self, slot: &AtomicUsize) {
        let value = slot.load(Ordering::Relaxed);
        let at = value & !H::TAG_MASK;
        let space = &self.heap.space;
        if !space.is_young(at) {
            if space.is_large(at) && self.heap.large.mark(at, true) {
                self.worker.pending.push([at, 1]);
            }
            return;
        }
        let now = self.current(at);
        self.refer(slot, value, now);
    }

    /// Lets a slot that held `value` refer to where its object is now.
    #[inline(always)]
    fn refer(&mut self, slot: &AtomicUsize, value: usize, now: usize) {
        let space = &self.heap.space;
        if now != value & !H::TAG_MASK {
            // Relaxed: several collectors may write the same value; who reads it next is ordered after the phase.
            slot.store(now | value & H::TAG_MASK, Ordering::Relaxed);
        }
        let slot = slot.as_ptr().addr();
        if space.is_young(now) && slot < space.young.start && slot >= space.old.start {
            self.heap.note_young_reference(self.worker, slot);
        }
    }

    /// Where a young object is, after it was copied if it had to be.
    #[inline(always)]
    fn current(&mut self, at: usize) -> usize {
        let heap = self.heap;
        let block = heap.young.block_of(at);
        match heap.young.state(block) {
            FROM => {}
            KEPT => {
                self.found_in_place(at);
                return at;
            }
            _ => {
                debug_assert_eq!(heap.young.state(block), TO, "larder: a reference into a free block");
                return at;
            }
        }
        self.evacuated(at)
    }

    /// Where an object is that must leave its block, after it was copied if nobody had done that.
    #[inline(always)]
    fn evacuated(&mut self, at: usize) -> usize {
        let heap = self.heap;
        let word = heap.space.word(at + heap.host.forwarding_word());
        match forward::look(word) {
            Found::Moved(to) => to,
            Found::Here(seen) => self.evacuate(at, word, seen, heap.young.age(heap.young.block_of(at))),
        }
    }

    fn evacuate(&mut self, at: usize, word: &AtomicUsize, seen: usize, age: u8) -> usize {
        let heap = self.heap;
        // SAFETY: an object of this heap, and `seen` is its own word.
        let size = rounded(unsafe { heap.host.size(heap.space.pointer(at), seen) });
        let (to, promoted) = self.place(size, age);
        // All but the forwarding word, which others change.
        if heap.host.forwarding_word() == 0 {
            heap.space.copy(at + 8, to + 8, size - 8);
        } else {
            heap.space.copy(at, to, 8);
            heap.space.copy(at + 16, to + 16, size - 16);
        }
        heap.space.word(to + heap.host.forwarding_word()).store(seen, Ordering::Relaxed);
        if self.alone {
            forward::leave(word, to);
        }
        let winner = if self.alone { to } else { forward::offer(word, seen, to) };
        if winner != to {
            self.take_back(to, promoted, age);
            return winner;
        }
        if promoted {
            heap.space.set_start(to);
            self.worker.tally.promoted += size;
        } else {
            self.worker.tally.copied += size;
        }
        self.worker.tally.objects += 1;
        self.worker.pending.push([to, 0]);
        to
    }

    /// Room for a copy, and whether it is in the old generation.
    #[inline(always)]
    fn place(&mut self, size: usize, age: u8) -> (usize, bool) {
        let older = (age + 1).min(OLDEST);
        if older < self.heap.config.tenure {
            let survivors = &mut self.worker.survivors[older as usize];
            if survivors.end - survivors.start >= size {
                let to = survivors.start;
                survivors.start += size;
                // Where two collectors copy, each copy's last store is a locked instruction, which waits for those before it.
                hint::prefetch_to_write(to + AHEAD);
                return (to, false);
            }
        }
        self.place_slow(size, older)
    }

    #[cold]
    fn place_slow(&mut self, size: usize, older: u8) -> (usize, bool) {
        let room = self.shared.survivor_blocks.load(Ordering::Relaxed) < self.shared.most_survivor_blocks;
        if older < self.heap.config.tenure
            && room
            && let Some(to) = self.survive(size, older)
        {
            return (to, false);
        }
        // Old enough, or too much survives. If the old generation is full, the young one has address space for everything.
        if let Some(to) = self.promote(size) {
            return (to, true);
        }
        match self.survive(size, older) {
            Some(to) => (to, false),
            None => larder_sys::die!(
                "no room to copy an object of {size} bytes in a young collection: pinned objects hold too many blocks"
            ),
        }
    }

    fn survive(&mut self, size: usize, older: u8) -> Option<usize> {
        let young = &self.heap.young;
        let survivors = &mut self.worker.survivors[older as usize];
        if survivors.end - survivors.start < size {
            let block = young.take_survivor_block(older)?;
            self.shared.survivor_blocks.fetch_add(1, Ordering::Relaxed);
            if survivors.end != 0 {
                young.close_block(survivors.start, survivors.end);
            }
            *survivors = block;
        }
        let to = survivors.start;
        survivors.start += size;
        Some(to)
    }

    fn promote(&mut self, size: usize) -> Option<usize> {
        let buffer = &mut self.worker.old;
        if buffer.end - buffer.start < size {
            let fresh = self.heap.old.obtain_for_copies(size, OLD_BUFFER.0)?;
            self.heap.old.give_back(buffer.clone());
            *buffer = fresh;
        }
        let to = buffer.start;
        buffer.start += size;
        Some(to)
    }

    /// Another collector's copy counts: this one's place is free again. It was the last of its buffer.
    #[cold]
    fn take_back(&mut self, to: usize, promoted: bool, age: u8) {
        if promoted {
            self.worker.old.start = to;
        } else {
            self.worker.survivors[(age + 1).min(OLDEST) as usize].start = to;
        }
    }

    /// An object that stays where it is was found.
    fn found_in_place(&mut self, at: usize) {
        let space = &self.heap.space;
        if space.is_young(at) {
            if space.mark_start(at) {
                self.worker.pending.push([at, 0]);
            }
        } else if space.is_large(at) && self.heap.large.mark(at, true) {
            self.worker.pending.push([at, 1]);
        }
    }

    /// Scans dirty cards and remembered slots until there are no more.
    fn take_shared(&mut self) {
        let shared = self.shared;
        // Relaxed: a number is a claim.
        loop {
            let first = shared.next_card.fetch_add(CARDS_AT_ONCE, Ordering::Relaxed);
            let Some(rest) = shared.cards.get(first..).filter(|rest| !rest.is_empty()) else { break };
            for &card in &rest[..rest.len().min(CARDS_AT_ONCE)] {
                self.scan_card(self.heap.space.card_at(card as usize));
            }
        }
        loop {
            let first = shared.next_slot.fetch_add(SLOTS_AT_ONCE, Ordering::Relaxed);
            let Some(rest) = shared.slots.get(first..).filter(|rest| !rest.is_empty()) else { break };
            for &slot in &rest[..rest.len().min(SLOTS_AT_ONCE)] {
                self.visit_remembered(slot);
            }
        }
    }

    fn visit_remembered(&mut self, slot: usize) {
        let heap = self.heap;
        // A large object that is young is scanned whole if it is found; if not, it must not keep anything.
        if heap.space.is_old(slot) || heap.large.find_object(slot).is_some_and(|object| heap.large.is_old(object.start))
        {
            self.visit_soon(heap.space.word(slot));
        }
    }

    fn scan_card(&mut self, from: usize) {
        let heap = self.heap;
        let to = from + CARD;
        if heap.space.is_large(from) {
            if let Some(object) = heap.large.find_object(from)
                && heap.large.is_old(object.start)
            {
                self.scan_part(object.start, from, to.min(object.end));
            }
            return;
        }
        // The object that reaches into the card from below, and those that begin in it.
        let floor = from.saturating_sub(LARGEST_SMALL).max(heap.space.old.start);
        if let Some(first) = heap.space.last_start(from, floor)
            && first < from
            && first + size_of_object(heap, first) > from
        {
            self.scan_part(first, from, to);
        }
        for object in heap.space.starts_in(from..to) {
            self.scan_part(object, from, to);
        }
    }

    fn scan_part(&mut self, object: usize, from: usize, to: usize) {
        let heap = self.heap;
        // SAFETY: an object of this heap that does not move in this phase.
        unsafe {
            heap.host.scan_part(heap.space.pointer(object), from, to, &mut Part { inner: self, from, to });
        }
    }
}

impl<H: Host> Visitor for Copier<'_, H> {
    #[inline(always)]
    fn slot(&mut self, slot: *mut usize) {
        // SAFETY: a visitor gets valid, aligned slots of an object.
        self.visit_soon(unsafe { AtomicUsize::from_ptr(slot) });
    }

    fn weak(&mut self, slot: *mut usize) {
        self.worker.weak.push(slot.expose_provenance());
    }

    fn ephemeron(&mut self, key: *mut usize, value: *mut usize) {
        self.worker.ephemerons.push([key.expose_provenance(), value.expose_provenance()]);
    }
}

impl<H: Host> Tracer for Copier<'_, H> {
    #[inline(always)]
    fn take(&mut self, [object, part]: Entry) {
        let heap = self.heap;
        if part == 0 {
            // SAFETY: the object was copied, or marked where it stays; its word is the host's.
            unsafe { heap.host.scan(heap.space.pointer(object), self) };
            return;
        }
        let Some(extent) = heap.large.find_object(object) else { return };
        let piece = self.worker.next_piece(object, part, extent.end);
        self.scan_part(object, piece.start, piece.end);
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<Entry> {
        loop {
            if let Some(entry) = self.worker.pending.pop() {
                return Some(entry);
            }
            let [slot, value] = self.worker.ahead.pop()?;
            self.settle(slot, value);
        }
    }

    fn share(&mut self, give: impl FnMut(Entry) -> bool) -> usize {
        self.worker.pending.share(give)
    }
}
