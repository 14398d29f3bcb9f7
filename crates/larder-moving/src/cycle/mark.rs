//! Marking of all of the heap, which begins a full collection.
//!
//! It follows a young collection in the same stop, so the young generation holds survivors only; they are marked where
//! they are.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use larder_sync::worklist::Entry;
use larder_sys::hint;

use super::roots::size_of_object;
use super::{Cycle, Worker};
use crate::gang::Tracer;
use crate::heap::Heap;
use crate::host::{Host, Part, Visitor};
use crate::stats::Counters;

/// One collector that marks.
struct Marker<'a, H: Host> {
    heap: &'a Heap<H>,
    worker: &'a mut Worker,
    /// Nobody else marks meanwhile.
    alone: bool,
}

impl<H: Host> Cycle<'_, H> {
    /// Marks everything that is reachable; clears weak slots and readies finalizers.
    pub(super) fn mark_all(&mut self) {
        let heap = self.heap;
        heap.large.clear_marks();
        self.list_pinned();
        for i in 0..self.own.pinned.len() {
            let object = self.own.pinned.as_slice()[i];
            self.marker(|marker| marker.found(object));
        }
        // SAFETY: between phases the workers are the collecting thread's.
        let worker = unsafe { (*heap.workers[0].get()).as_mut() }.expect("a heap has one collector at least");
        let mut marker = Marker { heap, worker, alone: true };
        self.each_root(|slot| marker.visit_soon(slot));
        self.each_ready(|slot| marker.visit_soon(slot));
        self.trace_marks();
        self.settle_ephemerons(
            |at| heap.marked_now(at),
            |cycle, value| {
                cycle.marker(|marker| marker.visit(value));
                cycle.trace_marks();
            },
        );
        self.clear_weak(|at| heap.marked_now(at));
        self.ready_finalizers(|at| heap.marked_now(at), |cycle, object| cycle.marker(|marker| marker.visit(object)));
        self.trace_marks();
        self.settle_ephemerons(
            |at| heap.marked_now(at),
            |cycle, value| {
                cycle.marker(|marker| marker.visit(value));
                cycle.trace_marks();
            },
        );
        self.clear_weak(|at| heap.marked_now(at));
        let mut marked = 0;
        self.each_worker(|worker| {
            let tally = core::mem::take(&mut worker.tally);
            Counters::add(&heap.counters.marked_bytes, tally.marked);
            marked += tally.marked;
        });
        self.own.traced[1] = marked;
    }

    fn marker(&mut self, f: impl FnOnce(&mut Marker<'_, H>)) {
        // SAFETY: between phases the workers are the collecting thread's.
        let worker = unsafe { (*self.heap.workers[0].get()).as_mut() }.expect("a heap has one collector at least");
        f(&mut Marker { heap: self.heap, worker, alone: true });
    }

    fn trace_marks(&mut self) {
        let heap = self.heap;
        heap.gang.trace(self.collectors(self.own.traced[1]), &|me, tracing| {
            // SAFETY: collector `me` alone, in a phase.
            let worker = unsafe { (*heap.workers[me].get()).as_mut() }.expect("as many workers as collectors");
            tracing.work(&mut Marker { heap, worker, alone: tracing.is_alone() }, |_| ());
        });
    }
}

impl<H: Host> Heap<H> {
    /// The object's address if it was marked.
    pub(super) fn marked_now(&self, at: usize) -> Option<usize> {
        let marked = if self.space.is_large(at) { self.large.is_marked(at) } else { self.space.is_marked(at) };
        marked.then_some(at)
    }
}

impl<H: Host> Marker<'_, H> {
    #[inline(always)]
    fn visit(&mut self, slot: &AtomicUsize) {
        let at = slot.load(Ordering::Relaxed) & !H::TAG_MASK;
        if self.heap.space.contains(at) {
            self.found(at);
        }
    }

    /// As [`Self::visit`], before this collector has nothing left to do.
    #[inline(always)]
    fn visit_soon(&mut self, slot: &AtomicUsize) {
        let space = &self.heap.space;
        let at = slot.load(Ordering::Relaxed) & !H::TAG_MASK;
        if !space.contains(at) {
            return;
        }
        // An object may begin at the end of a line.
        hint::prefetch(at);
        hint::prefetch(at + 32);
        hint::prefetch(core::ptr::from_ref(space.region(at).0).addr());
        if let Some([at, _]) = self.worker.ahead.push([at, 0]) {
            self.found(at);
        }
    }

    #[inline(always)]
    fn found(&mut self, at: usize) {
        let space = &self.heap.space;
        if space.is_old(at) {
            if !space.is_marked(at) {
                let size = size_of_object(self.heap, at);
                if space.mark(at, size, self.alone) {
                    self.worker.tally.marked += size;
                    self.worker.pending.push([at, 0]);
                }
            }
        } else if space.is_young(at) {
            if space.mark_start(at) {
                self.worker.tally.marked += size_of_object(self.heap, at);
                self.worker.pending.push([at, 0]);
            }
        } else if self.heap.large.mark(at, false) {
            self.worker.tally.marked += size_of_object(self.heap, at);
            self.worker.pending.push([at, 1]);
        }
    }
}

impl<H: Host> Visitor for Marker<'_, H> {
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

impl<H: Host> Tracer for Marker<'_, H> {
    #[inline(always)]
    fn take(&mut self, [object, part]: Entry) {
        let heap = self.heap;
        if part == 0 {
            // SAFETY: an object of this heap; nothing moves in this phase.
            unsafe { heap.host.scan(heap.space.pointer(object), self) };
            return;
        }
        let Some(extent) = heap.large.find_object(object) else { return };
        let Range { start: from, end: to } = self.worker.next_piece(object, part, extent.end);
        // SAFETY: as above.
        unsafe {
            heap.host.scan_part(heap.space.pointer(object), from, to, &mut Part { inner: self, from, to });
        }
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<Entry> {
        loop {
            if let Some(entry) = self.worker.pending.pop() {
                return Some(entry);
            }
            let [at, _] = self.worker.ahead.pop()?;
            self.found(at);
        }
    }

    fn share(&mut self, give: impl FnMut(Entry) -> bool) -> usize {
        self.worker.pending.share(give)
    }
}
