//! Weak slots, ephemerons and finalizers: what is done when everything that is strongly reachable was found.
//!
//! In this order: ephemerons whose keys were found keep their values, until no more are; weak slots and weak handles
//! whose referents were not found are cleared; watched objects that were not found become ready, and are kept with all
//! that they refer to; what was found by that has its ephemerons and weak slots looked at.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::Cycle;
use crate::handles::Keep;
use crate::host::Host;
use crate::stats::Counters;

/// The word at an address that a visitor showed.
fn word(at: usize) -> &'static AtomicUsize {
    // SAFETY: a slot of a live object, in a stopped world; the reference does not outlive the look at it.
    unsafe { AtomicUsize::from_ptr(core::ptr::with_exposed_provenance_mut(at)) }
}

impl<H: Host> Cycle<'_, H> {
    /// Keeps the values of ephemerons whose keys are found. `now` says where an object is, if it was found; `keep` visits a
    /// value's slot and all that it leads to.
    ///
    /// Each round looks at every ephemeron whose key was not found yet: with chains of them the time grows with the square
    /// of their length.
    pub(super) fn settle_ephemerons(
        &mut self,
        now: impl Fn(usize) -> Option<usize>,
        mut keep: impl FnMut(&mut Self, &AtomicUsize),
    ) {
        loop {
            let mut kept = false;
            for i in 0..self.heap.workers.len() {
                let mut at = 0;
                // One at a time: `keep` finds more ephemerons, which go to the end of these lists.
                while let Some([key, value]) = self.ephemeron(i, at) {
                    let slot = word(key);
                    if let Some(key_now) = self.referent(slot, &now) {
                        self.update(key, key_now);
                        self.drop_ephemeron(i, at);
                        keep(self, word(value));
                        kept = true;
                    } else {
                        at += 1;
                    }
                }
            }
            if !kept {
                return;
            }
        }
    }

    fn ephemeron(&self, worker: usize, at: usize) -> Option<[usize; 2]> {
        // SAFETY: between phases the workers are the collecting thread's.
        unsafe { (*self.heap.workers[worker].get()).as_ref() }?.ephemerons.as_slice().get(at).copied()
    }

    fn drop_ephemeron(&mut self, worker: usize, at: usize) {
        // SAFETY: as in `ephemeron`.
        if let Some(worker) = unsafe { (*self.heap.workers[worker].get()).as_mut() } {
            let last = worker.ephemerons.len() - 1;
            worker.ephemerons.as_mut_slice().swap(at, last);
            worker.ephemerons.truncate(last);
        }
    }

    /// Where the referent of a slot is, if it was found; a word that is no reference counts as found.
    fn referent(&self, slot: &AtomicUsize, now: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        let at = slot.load(Ordering::Relaxed) & !H::TAG_MASK;
        if self.heap.space.contains(at) { now(at) } else { Some(at) }
    }

    /// Lets a slot that keeps nothing refer to where its referent is now.
    fn update(&mut self, slot_at: usize, now: usize) {
        let space = &self.heap.space;
        let slot = word(slot_at);
        slot.store(now | slot.load(Ordering::Relaxed) & H::TAG_MASK, Ordering::Relaxed);
        if space.is_young(now) && slot_at < space.young.start && slot_at >= space.old.start {
            // SAFETY: between phases the workers are the collecting thread's.
            if let Some(worker) = unsafe { (*self.heap.workers[0].get()).as_mut() } {
                self.heap.note_young_reference(worker, slot_at);
            }
        }
    }

    /// Clears ephemerons, weak slots and weak handles whose referents were not found, and updates the others.
    pub(super) fn clear_weak(&mut self, now: impl Fn(usize) -> Option<usize>) {
        for i in 0..self.heap.workers.len() {
            let mut at = 0;
            while let Some([key, value]) = self.ephemeron(i, at) {
                word(key).store(0, Ordering::Relaxed);
                word(value).store(0, Ordering::Relaxed);
                at += 1;
            }
            // SAFETY: between phases the workers are the collecting thread's.
            let Some(worker) = (unsafe { &mut *self.heap.workers[i].get() }) else { continue };
            worker.ephemerons.clear();
            while let Some(slot) = worker.weak.pop() {
                match self.referent(word(slot), &now) {
                    Some(at) => self.update(slot, at),
                    None => word(slot).store(0, Ordering::Relaxed),
                }
            }
        }
        for entry in self.tables.handles.as_mut_slice() {
            let at = entry.value & !H::TAG_MASK;
            if entry.keep == Some(Keep::Weak) && self.heap.space.contains(at) {
                entry.value = now(at).map_or(0, |now| now | entry.value & H::TAG_MASK);
            }
        }
    }

    /// Watched objects that were not found become ready; `keep` visits the word that refers to them from now on.
    pub(super) fn ready_finalizers(
        &mut self,
        now: impl Fn(usize) -> Option<usize>,
        mut keep: impl FnMut(&mut Self, &AtomicUsize),
    ) {
        self.tables.forget_taken();
        let before = self.tables.ready.len();
        let mut kept = 0;
        for i in 0..self.tables.finalizers.len() {
            let mut watched = self.tables.finalizers.as_slice()[i];
            let at = watched.object & !H::TAG_MASK;
            // What is no address in the heap, a small number of the host's for instance, does not die.
            let found = if self.heap.space.contains(at) { now(at) } else { Some(at) };
            match found {
                Some(at) => {
                    watched.object = at | watched.object & H::TAG_MASK;
                    self.tables.finalizers.as_mut_slice()[kept] = watched;
                    kept += 1;
                }
                None => self.tables.ready.push(watched),
            }
        }
        self.tables.finalizers.truncate(kept);
        // After all were asked for: one watched object may be what another refers to.
        for i in before..self.tables.ready.len() {
            let slot = AtomicUsize::new(self.tables.ready.as_slice()[i].object);
            keep(self, &slot);
            self.tables.ready.as_mut_slice()[i].object = slot.into_inner();
        }
        Counters::add(&self.heap.counters.finalized, self.tables.ready.len() - before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Collection, Visitor};
    use crate::{Config, Heap};
    use larder_units::Bytes;

    /// Objects of one granule without references.
    struct Atoms;

    // SAFETY: that is so.
    unsafe impl Host for Atoms {
        unsafe fn size(&self, _: *mut u8, _: usize) -> usize {
            16
        }

        unsafe fn scan<V: Visitor>(&self, _: *mut u8, _: &mut V) {}
    }

    /// The host takes as many as die and is always some behind, so it never finds the list empty.
    #[test]
    fn dead_objects_that_were_taken_are_forgotten_though_others_wait() {
        const BEHIND: usize = 5;
        let young = Bytes(512 << 10);
        let config = Config { young, most_young: young, old: Bytes::mib(1), collectors: 1, ..Config::default() };
        let heap = Heap::create(config, Atoms).unwrap();
        let vm = heap.attach().unwrap();
        for round in 0..100 {
            for n in 0..10 {
                vm.watch(vm.allocate(16).unwrap().expose_provenance(), 10 * round + n);
            }
            vm.collect(if round % 2 == 0 { Collection::Young } else { Collection::Full });
            for n in 0..10 - if round == 0 { BEHIND } else { 0 } {
                let token = (10 * round + n).saturating_sub(if round == 0 { 0 } else { BEHIND });
                assert_eq!(vm.next_dead().map(|(_, token)| token), Some(token));
            }
            let kept = heap.handles.with(|tables| tables.ready.len());
            assert!(kept <= 10 + BEHIND, "{kept} dead objects, of which {BEHIND} were not taken");
        }
    }
}
