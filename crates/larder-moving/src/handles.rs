//! Handles: roots that belong to no thread. And finalizers.

use core::cell::UnsafeCell;

use larder_sync::lock::Lock;
use larder_sys::memory::ReserveError;

use crate::list::List;

/// What a handle does for its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Keeps it.
    Strong,
    /// Does not; reads as 0 when the object has died.
    Weak,
    /// Keeps it, and where it is: its address does not change.
    Pinned,
}

/// A root that lives until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Handle(pub u32);

#[derive(Clone, Copy)]
pub(crate) struct Entry {
    /// The reference. Of a free entry: the number of the next free one.
    pub value: usize,
    /// `None` when the entry is free.
    pub keep: Option<Keep>,
}

/// An object whose end the host wants to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finalizer {
    pub object: usize,
    pub token: usize,
}

/// Handles that a heap can have at a time.
const MOST: usize = 1 << 24;
/// Ranges of words that may be references.
const RANGES: usize = 1 << 20;
const NONE: usize = usize::MAX;

pub(crate) struct Tables {
    pub handles: List<Entry>,
    free: usize,
    /// Registered, in the order of registration.
    pub finalizers: List<Finalizer>,
    /// Dead, to be taken by the host; roots until then. Taken from the front: `taken` were.
    pub ready: List<Finalizer>,
    pub taken: usize,
    /// Ranges outside of the heap that may hold references.
    pub ambiguous: List<[usize; 2]>,
}

/// Sync: `lock`; collectors hold it during a stop.
pub(crate) struct Handles {
    lock: Lock,
    tables: UnsafeCell<Tables>,
}

// SAFETY: `tables` is used under `lock`.
unsafe impl Sync for Handles {}
// SAFETY: as above.
unsafe impl Send for Handles {}

impl Handles {
    pub fn new() -> Result<Self, ReserveError> {
        Ok(Self {
            lock: Lock::new(),
            tables: UnsafeCell::new(Tables {
                handles: List::with_capacity(MOST)?,
                free: NONE,
                finalizers: List::with_capacity(MOST)?,
                ready: List::with_capacity(MOST)?,
                taken: 0,
                ambiguous: List::with_capacity(RANGES)?,
            }),
        })
    }

    /// Calls `f` under the lock. A mutator in it does not reach a safepoint, so nobody who stops the world waits for it long.
    pub fn with<R>(&self, f: impl FnOnce(&mut Tables) -> R) -> R {
        let _guard = self.lock.lock();
        // SAFETY: the lock is held.
        f(unsafe { &mut *self.tables.get() })
    }
}

impl Tables {
    pub fn add(&mut self, value: usize, keep: Keep) -> Handle {
        let entry = Entry { value, keep: Some(keep) };
        if self.free == NONE {
            self.handles.push(entry);
            return Handle(self.handles.len() as u32 - 1);
        }
        let number = self.free;
        let place = &mut self.handles.as_mut_slice()[number];
        self.free = place.value;
        *place = entry;
        Handle(number as u32)
    }

    pub fn entry(&mut self, handle: Handle) -> &mut Entry {
        match self.handles.as_mut_slice().get_mut(handle.0 as usize) {
            Some(entry) if entry.keep.is_some() => entry,
            _ => larder_sys::die!("handle {} was released, or never was", handle.0),
        }
    }

    pub fn release(&mut self, handle: Handle) {
        let next = self.free;
        *self.entry(handle) = Entry { value: next, keep: None };
        self.free = handle.0 as usize;
    }

    /// Forgets the dead objects that the host has taken. Without this, a host that never takes the last one would fill the list.
    pub fn forget_taken(&mut self) {
        let left = self.ready.len() - self.taken;
        self.ready.as_mut_slice().copy_within(self.taken.., 0);
        self.ready.truncate(left);
        self.taken = 0;
    }

    /// The next dead object whose end somebody wants to know.
    pub fn next_ready(&mut self) -> Option<Finalizer> {
        let next = self.ready.as_slice().get(self.taken).copied();
        match next {
            Some(_) => self.taken += 1,
            None => {
                self.ready.clear();
                self.taken = 0;
            }
        }
        next
    }
}
