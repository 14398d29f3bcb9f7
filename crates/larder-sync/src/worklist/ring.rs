//! The memory of a deque: a ring of slots that others provide.

use crate::worklist::Entry;

pub(super) use place::{Ring, Slot};

impl Ring {
    /// Writes `entry` to the slot of `index`.
    #[inline]
    pub(super) fn write(&self, index: usize, entry: Entry) {
        use crate::atomic::Ordering::Relaxed;
        let slot: &Slot = self.slot(index);
        // ORDER deque.publish: Relaxed, with the loads in `read`; the Release store to `bottom` that follows publishes
        // both words, and `deque.recycle` keeps them behind the last reads of the slot.
        slot[0].store(entry[0], Relaxed);
        slot[1].store(entry[1], Relaxed);
    }

    /// Reads the slot of `index`. The two words belong together only if the index is still in the deque afterwards.
    #[inline]
    pub(super) fn read(&self, index: usize) -> Entry {
        use crate::atomic::Ordering::Relaxed;
        let slot: &Slot = self.slot(index);
        // ORDER deque.publish: Relaxed, with the stores in `write`; the Acquire load of `bottom` came before.
        [slot[0].load(Relaxed), slot[1].load(Relaxed)]
    }
}

#[cfg(not(loom))]
mod place {
    use crate::atomic::{AtomicPtr, AtomicUsize, Ordering};
    use crate::worklist::Entry;
    use core::ptr;

    /// One entry as it lies in shared memory. Each word is atomic; the pair is not.
    pub(in crate::worklist) type Slot = [AtomicUsize; 2];

    const _: () = assert!(size_of::<Slot>() == size_of::<Entry>() && align_of::<Slot>() == align_of::<Entry>());

    /// Where the slots are: null and 0, or a pointer to `capacity` slots, a power of two, that the deque may use for as
    /// long as it lives.
    pub(in crate::worklist) struct Ring {
        /// Sync: `deque.attach`: written once, before the deque is shared.
        slots: AtomicPtr<Slot>,
        /// Sync: `deque.attach`: as `slots`.
        capacity: AtomicUsize,
    }

    impl Ring {
        pub(in crate::worklist) const fn new() -> Self {
            Self { slots: AtomicPtr::new(ptr::null_mut()), capacity: AtomicUsize::new(0) }
        }

        /// # Safety
        /// As for `Deque::attach`.
        pub(in crate::worklist) unsafe fn attach(&self, slots: *mut Entry, capacity: usize) {
            // ORDER deque.attach: Relaxed, with the loads in `capacity` and `slot`; whatever shares the deque
            // afterwards orders it, and a thief has also seen a Release store to `bottom` that came later.
            self.slots.store(slots.cast::<Slot>(), Ordering::Relaxed);
            self.capacity.store(capacity, Ordering::Relaxed);
        }

        #[inline]
        pub(in crate::worklist) fn capacity(&self) -> usize {
            // ORDER deque.attach: Relaxed, with the stores in `attach`.
            self.capacity.load(Ordering::Relaxed)
        }

        /// The slot of `index`; only for an index that has been in the deque or is about to be.
        #[inline]
        pub(super) fn slot(&self, index: usize) -> &Slot {
            let mask = self.capacity().wrapping_sub(1);
            debug_assert!(self.capacity() != 0, "larder: a deque without memory has no entries");
            // ORDER deque.attach: Relaxed, with the stores in `attach`.
            let slots = self.slots.load(Ordering::Relaxed);
            // SAFETY: an index enters the deque only through a `push` that found room, so the ring is attached; its
            // caller vouched for `capacity` slots for as long as the deque lives, and the mask stays below a power of
            // two.
            unsafe { &*slots.add(index & mask) }
        }
    }
}

/// Under loom, slots are objects that the model keeps, so the memory handed in is not used.
#[cfg(loom)]
mod place {
    use crate::atomic::AtomicUsize;
    use crate::worklist::Entry;
    use std::sync::OnceLock;

    /// One entry as it lies in shared memory. Each word is atomic; the pair is not.
    pub(in crate::worklist) type Slot = [AtomicUsize; 2];

    /// The slots, once they are attached.
    pub(in crate::worklist) struct Ring {
        /// Sync: set once, before the deque is shared.
        slots: OnceLock<Box<[Slot]>>,
    }

    impl Ring {
        pub(in crate::worklist) fn new() -> Self {
            Self { slots: OnceLock::new() }
        }

        /// # Safety
        /// As for `Deque::attach`, except that `slots` is not used.
        pub(in crate::worklist) unsafe fn attach(&self, _slots: *mut Entry, capacity: usize) {
            let slots = (0..capacity).map(|_| [AtomicUsize::new(0), AtomicUsize::new(0)]).collect();
            assert!(self.slots.set(slots).is_ok(), "a deque is attached once");
        }

        pub(in crate::worklist) fn capacity(&self) -> usize {
            self.slots.get().map_or(0, |slots| slots.len())
        }

        pub(super) fn slot(&self, index: usize) -> &Slot {
            let slots = self.slots.get().expect("a deque without memory has no entries");
            &slots[index & (slots.len() - 1)]
        }
    }
}
