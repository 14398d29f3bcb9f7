//! Hazard pointers whose fast path has no fence (Michael's, with the fence moved as in "Fast Non-intrusive Memory Reclamation
//! for Highly-Concurrent Data Structures", ISMM'16).
//!
//! A reader publishes the pointer that it is about to follow, and looks whether it is still the current one; whoever has
//! taken something out looks at what is published before it frees. That is Dekker's pattern, and readers are many, so they
//! take the light half of the [asymmetric fence](crate::asymmetric) and reclaiming takes the heavy one.
//!
//! **When to use:** to read through a pointer that others replace, where a delayed reader must not keep everything from
//! being freed. **When not:** for long lists in which each step publishes, where an epoch is cheaper. **Progress:** protecting
//! is lock-free; a bag holds at most [`BAG`] retired objects more than are protected. **Cost:** a store, two loads; reclaiming
//! costs one system call per [`BAG`] objects. **Forks:** a child must not use a domain of its parent's.

extern crate std;

use crate::asymmetric;
use crate::atomic::{AtomicBool, AtomicPtr, Ordering};
use crate::step;
use core::ptr;
use std::boxed::Box;
use std::sync::Mutex;
use std::vec::Vec;

/// A bag that holds this many retired objects reclaims.
pub const BAG: usize = if cfg!(loom) { 1 } else { 128 };

/// One published pointer. On lines of its own: readers write, reclaimers read.
#[repr(align(128))]
struct Record {
    /// Sync: `hazard.dekker`.
    protected: AtomicPtr<()>,
    /// Whether a [`Hazard`] has it. Sync: `hazard.busy`.
    busy: AtomicBool,
    /// Sync: written before the record is published, then never.
    next: *mut Record,
}

struct Retired {
    object: *mut (),
    free: unsafe fn(*mut ()),
}

// SAFETY: whoever retired it has promised that any thread may free it.
unsafe impl Send for Retired {}

/// Readers, and what they must not lose.
pub struct Domain {
    /// Records; they stay until the domain goes. Sync: `hazard.records`.
    records: AtomicPtr<Record>,
    /// What bags left behind that were dropped while readers still looked. Sync: the lock.
    orphans: Mutex<Vec<Retired>>,
}

// SAFETY: records are shared by their atomics, and freed by the domain's owner alone.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

/// One pointer that its owner may publish.
pub struct Hazard<'a> {
    record: &'a Record,
}

/// What one thread has retired and not freed yet.
pub struct Bag<'a> {
    domain: &'a Domain,
    retired: Vec<Retired>,
}

impl Domain {
    /// A domain without readers. Registers the process for the asymmetric fence.
    pub fn new() -> Self {
        asymmetric::init();
        Self { records: AtomicPtr::new(ptr::null_mut()), orphans: Mutex::new(Vec::new()) }
    }

    fn each(&self, mut look: impl FnMut(&Record) -> bool) -> bool {
        // ORDER hazard.records: Acquire, with the compare-and-swap in `hazard`. No model: loom does not watch how a record is made,
        // and the fences of `hazard.dekker` bring the list itself.
        let mut record = self.records.load(Ordering::Acquire);
        // SAFETY: records live as long as the domain.
        while let Some(this) = unsafe { record.as_ref() } {
            if look(this) {
                return true;
            }
            record = this.next;
        }
        false
    }

    /// A pointer to publish: one that somebody has given back, or a new one.
    pub fn hazard(&self) -> Hazard<'_> {
        let mut found: Option<*const Record> = None;
        self.each(|record| {
            // ORDER hazard.busy: Acquire, with the store in `Hazard::drop`.
            let mine = !record.busy.swap(true, Ordering::Acquire);
            if mine {
                found = Some(record);
            }
            mine
        });
        if let Some(record) = found {
            // SAFETY: records live as long as the domain.
            return Hazard { record: unsafe { &*record } };
        }
        // ORDER hazard.records: Relaxed; the compare-and-swap decides.
        let mut head = self.records.load(Ordering::Relaxed);
        let record = Box::into_raw(Box::new(Record {
            protected: AtomicPtr::new(ptr::null_mut()),
            busy: AtomicBool::new(true),
            next: head,
        }));
        loop {
            // ORDER hazard.records: Release, with the load in `each`. Weaker, a reclaimer could read an unmade record.
            match self.records.compare_exchange(head, record, Ordering::Release, Ordering::Relaxed) {
                // SAFETY: it lives as long as the domain.
                Ok(_) => return Hazard { record: unsafe { &*record } },
                Err(now) => {
                    head = now;
                    // SAFETY: not published yet.
                    unsafe { (*record).next = head };
                }
            }
        }
    }

    /// A bag for one thread.
    pub fn bag(&self) -> Bag<'_> {
        Bag { domain: self, retired: Vec::new() }
    }
}

impl Default for Domain {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let orphans = self.orphans.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for retired in core::mem::take(orphans) {
            // SAFETY: no hazard of this domain is left.
            unsafe { (retired.free)(retired.object) };
        }
        // ORDER hazard.records: Relaxed; nobody else has the domain.
        let mut record = self.records.load(Ordering::Relaxed);
        while !record.is_null() {
            // SAFETY: made by `hazard`, and freed here only.
            let this = unsafe { Box::from_raw(record) };
            record = this.next;
        }
    }
}

impl Hazard<'_> {
    /// Reads `source` and publishes what it found; the object is not freed before the next call on this hazard, or its
    /// end. Null is returned as it is.
    pub fn protect<T>(&mut self, source: &AtomicPtr<T>) -> *mut T {
        // ORDER hazard.dekker: Relaxed; the second load decides.
        let mut seen = source.load(Ordering::Relaxed);
        loop {
            // ORDER hazard.dekker: Release, with the load in `reclaim`: what was read through the pointer that is replaced here
            // was read before.
            self.record.protected.store(seen.cast(), step::order("hazard.dekker: Release", Ordering::Release));
            if step::kept("hazard: the light half") {
                // Between the publication and the look: a reclaimer takes the object out and then looks at what is published.
                asymmetric::light();
            }
            // ORDER hazard.dekker: Acquire, with the caller's publication of the object.
            let now = source.load(Ordering::Acquire);
            if now == seen {
                return now;
            }
            seen = now;
        }
    }

    /// Publishes nothing.
    pub fn clear(&mut self) {
        // ORDER hazard.dekker: Release, as in `protect`.
        self.record.protected.store(ptr::null_mut(), step::order("hazard.dekker: Release", Ordering::Release));
    }
}

impl Drop for Hazard<'_> {
    fn drop(&mut self) {
        self.clear();
        // ORDER hazard.busy: Release, with the exchange in `Domain::hazard`.
        self.record.busy.store(false, Ordering::Release);
    }
}

impl Bag<'_> {
    /// Frees the object by `free` once no hazard names it; reclaims when the bag is full.
    ///
    /// # Safety
    /// No thread can find the object any more except through a hazard that names it already; it is retired once; `free` may
    /// run on any thread, and does not use this bag.
    pub unsafe fn retire<T>(&mut self, object: *mut T, free: unsafe fn(*mut ())) {
        self.retired.push(Retired { object: object.cast(), free });
        if self.retired.len() >= BAG {
            self.reclaim();
        }
    }

    /// Frees what no hazard names.
    pub fn reclaim(&mut self) {
        if let Ok(mut orphans) = self.domain.orphans.try_lock() {
            self.retired.append(&mut orphans);
        }
        if step::kept("hazard: the heavy half") {
            // Between taking the objects out and looking at what is published.
            asymmetric::heavy();
        }
        let mut protected = Vec::new();
        self.domain.each(|record| {
            // ORDER hazard.dekker: Acquire, with the stores in `protect` and `clear`. Weaker, a reader's last look could come
            // after the free.
            protected.push(record.protected.load(step::order("hazard.dekker: Acquire", Ordering::Acquire)));
            false
        });
        protected.sort_unstable();
        // Taken out before it is freed: where that panics, it is not freed again.
        for retired in self.retired.extract_if(.., |retired| protected.binary_search(&retired.object).is_err()) {
            // SAFETY: nobody finds it, by the promise of `retire`, and no hazard names it.
            unsafe { (retired.free)(retired.object) };
        }
    }

    /// How many objects wait to be freed.
    pub fn len(&self) -> usize {
        self.retired.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.retired.is_empty()
    }
}

impl Drop for Bag<'_> {
    fn drop(&mut self) {
        // A bag that goes in a panic leaves everything to the domain.
        if !self.retired.is_empty() && !std::thread::panicking() {
            self.reclaim();
        }
        // A lock that a panic has poisoned guards a list that is whole nevertheless.
        let mut orphans = self.domain.orphans.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        orphans.append(&mut self.retired);
    }
}
