//! Roots: exact ones, and words that may be references.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::Cycle;
use crate::handles::Keep;
use crate::host::{Host, RootVisitor};
use crate::space::{GRANULE, LARGEST_SMALL, rounded};
use crate::young::{FREE, KEPT, hole_at, unmake_hole};

/// Calls a function with each root.
pub(super) struct Each<F>(pub F);

impl<F: FnMut(&AtomicUsize)> RootVisitor for Each<F> {
    fn slot(&mut self, slot: *mut usize) {
        // SAFETY: a visitor gets valid, aligned slots, and the world is stopped.
        (self.0)(unsafe { AtomicUsize::from_ptr(slot) });
    }
}

impl<H: Host> Cycle<'_, H> {
    /// Every exact root that keeps what it refers to, in an order that a collection does not change.
    pub(super) fn each_root(&mut self, each: impl FnMut(&AtomicUsize)) {
        let mut visitor = Each(each);
        self.heap.host.roots(&mut visitor);
        for thread in self.threads.iter() {
            // SAFETY: the thread is stopped.
            for local in unsafe { &mut *thread.locals.get() }.as_mut_slice() {
                visitor.slot(local);
            }
            let mut frame = thread.frames.get();
            // SAFETY: the thread is stopped; the frames that it linked, and their slots, are valid until it unlinks them.
            while let Some(linked) = unsafe { frame.as_ref() } {
                for i in 0..linked.count {
                    // SAFETY: as above.
                    visitor.slot(unsafe { linked.slots.add(i) });
                }
                frame = linked.previous;
            }
        }
        for entry in self.tables.handles.as_mut_slice() {
            if matches!(entry.keep, Some(Keep::Strong | Keep::Pinned)) {
                visitor.slot(&mut entry.value);
            }
        }
    }

    /// Every watched object that is dead and was not taken by the host yet.
    pub(super) fn each_ready(&mut self, each: impl FnMut(&AtomicUsize)) {
        let mut visitor = Each(each);
        let taken = self.tables.taken;
        for dead in &mut self.tables.ready.as_mut_slice()[taken..] {
            visitor.slot(&mut dead.object);
        }
    }

    /// Lists the objects that pins and ambiguous roots keep where they are.
    pub(super) fn list_pinned(&mut self) {
        self.own.pinned.clear();
        for i in 0..self.tables.handles.len() {
            let entry = self.tables.handles.as_slice()[i];
            let at = entry.value & !H::TAG_MASK;
            if entry.keep == Some(Keep::Pinned) && self.heap.space.contains(at) {
                self.pin(at);
            }
        }
        for i in 0..self.tables.ambiguous.len() {
            let [from, to] = self.tables.ambiguous.as_slice()[i];
            self.look_through(from, to);
        }
        if self.heap.config.ambiguous_stacks {
            for thread in self.threads.iter() {
                self.look_through(thread.stack_pointer.get().expose_provenance(), thread.stack_base.get().addr());
            }
        }
    }

    /// Looks through a range outside of the heap for words that may be references.
    fn look_through(&mut self, from: usize, to: usize) {
        for at in (from.next_multiple_of(8)..to & !7).step_by(8) {
            // SAFETY: a registered range, or a stopped thread's stack from its published pointer to its base. Volatile: the
            // words belong to code that knows nothing of this.
            let word = unsafe { core::ptr::with_exposed_provenance::<usize>(at).read_volatile() };
            if let Some(object) = self.object_at(word) {
                self.pin(object);
            }
        }
    }

    /// Lists an object that is kept where it is. There is room for twice as many as there can be objects, but more words than that may
    /// refer to them.
    fn pin(&mut self, object: usize) {
        if !self.own.pinned.try_push(object) {
            self.own.pinned.sort_and_dedup();
            self.own.pinned.push(object);
        }
    }

    /// The object that an ambiguous address is in, if it is in one.
    fn object_at(&self, at: usize) -> Option<usize> {
        let heap = self.heap;
        if !heap.space.contains(at) {
            return None;
        }
        if heap.space.is_large(at) {
            return heap.large.find_object(at).map(|object| object.start);
        }
        let floor = if heap.space.is_young(at) {
            let block = heap.young.block_of(at);
            if heap.young.state(block) == FREE {
                return None;
            }
            let extent = heap.young.extent(heap.young.span_of(block));
            if !extent.contains(&at) {
                return None;
            }
            self.note_starts(extent.clone());
            extent.start
        } else {
            if !heap.old.extent().contains(&at) {
                return None;
            }
            at.saturating_sub(LARGEST_SMALL).max(heap.old.extent().start)
        };
        let object = heap.space.last_start(at, floor)?;
        (at < object + self.size_of(object)).then_some(object)
    }

    /// Notes where the objects of a young span begin, if that was not done in this collection.
    fn note_starts(&self, extent: core::ops::Range<usize>) {
        let space = &self.heap.space;
        if space.starts_in(extent.clone()).next().is_none() {
            self.walk(extent, |object, _| space.set_start(object));
        }
    }

    /// An object's size, whose forwarding word is the host's.
    pub(super) fn size_of(&self, object: usize) -> usize {
        size_of_object(self.heap, object)
    }

    /// Calls `f` with every object of a young span, dead or alive, and its size.
    pub(super) fn walk(&self, extent: core::ops::Range<usize>, mut f: impl FnMut(usize, usize)) {
        let space = &self.heap.space;
        let mut at = extent.start;
        while at < extent.end {
            match hole_at(space, at) {
                Some(length) => at += length,
                None => {
                    let size = self.size_of(at);
                    f(at, size);
                    at += size;
                }
            }
        }
        debug_assert_eq!(at, extent.end, "larder: a walk over a block did not end at its end");
    }

    /// Turns what is not marked in a young span into holes, and forgets marks and starts.
    pub(super) fn sweep_span(&self, extent: core::ops::Range<usize>) {
        let space = &self.heap.space;
        let mut dead_from = None;
        let mut at = extent.start;
        while at < extent.end {
            let hole = hole_at(space, at);
            let size = hole.unwrap_or_else(|| self.size_of(at));
            if hole.is_some() {
                unmake_hole(space, at);
            }
            if hole.is_none() && space.is_marked(at) {
                self.end_hole(dead_from.take(), at);
            } else {
                dead_from = dead_from.or(Some(at));
            }
            at += size;
        }
        self.end_hole(dead_from, at);
        for region in space.regions(extent) {
            region.marks.store(0, Ordering::Relaxed);
            region.starts.store(0, Ordering::Relaxed);
        }
    }

    fn end_hole(&self, from: Option<usize>, to: usize) {
        if let Some(from) = from {
            if self.heap.config.poison {
                self.heap.space.fill(from..to, crate::POISON);
            }
            crate::young::make_hole(&self.heap.space, from..to);
            self.heap.young.offer(from..to);
        }
    }

    /// Keeps the blocks of pinned young objects.
    pub(super) fn keep_pinned_blocks(&mut self) {
        let heap = self.heap;
        for &object in self.own.pinned.as_slice() {
            if heap.space.is_young(object) {
                heap.young.keep(heap.young.block_of(object));
            }
        }
        let kept = heap.young.spans(KEPT).count();
        crate::stats::Counters::add(&heap.counters.kept_blocks, kept);
    }
}

/// As [`Cycle::size_of`].
#[inline(always)]
pub(super) fn size_of_object<H: Host>(heap: &crate::Heap<H>, object: usize) -> usize {
    let word = heap.space.word(object + heap.host.forwarding_word()).load(Ordering::Relaxed);
    debug_assert!(object.is_multiple_of(GRANULE));
    // SAFETY: the caller found an object here, in a stopped world, and it has not moved.
    rounded(unsafe { heap.host.size(heap.space.pointer(object), word) })
}
