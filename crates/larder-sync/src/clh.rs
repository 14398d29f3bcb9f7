//! The CLH queue lock with parking (the notes' "waiting policies for locks").
//!
//! Each thread looks at the node of the one before it, and keeps that node when it goes on. The notes let a waiter leave its
//! name in the node, to be unparked by; here the node is itself a word to sleep on, which nobody else uses until the waiter
//! has taken it over, so nothing can be freed under a wake.
//!
//! **When to use:** strict order of arrival, for threads that keep a [`Place`] anyway. **When not:** with more threads than
//! processors: the hand-over is direct, and a sleeper is waited for. **Progress and fairness:** first in, first out. **Cost:** one
//! exchange to arrive, one to release; 8 bytes a lock, a node a lock and a place. **Cancellation:** as for the other locks.

extern crate std;

use crate::atomic::{AtomicPtr, Ordering};
use crate::spin::Patience;
use crate::step;
use crate::waiter::{Cell, MESSAGE};
use core::ptr::NonNull;
use std::boxed::Box;

const RELEASED: u32 = MESSAGE;
/// How long a waiter looks before it sleeps.
const WAIT_NS: u64 = 2 * crate::spin::SLEEP_AND_WAKE_NS;

#[repr(align(128))]
struct Node {
    cell: Cell,
}

fn fresh() -> NonNull<Node> {
    NonNull::from(Box::leak(Box::new(Node { cell: Cell::new() })))
}

/// A lock in strict order of arrival.
pub struct ClhLock {
    /// The node of whoever came last. Sync: `clh.queue`.
    tail: AtomicPtr<Node>,
}

/// What a thread brings to queue up: a node, which it exchanges at each acquisition.
pub struct Place(NonNull<Node>);

// SAFETY: the node belongs to the place while it is not in a queue.
unsafe impl Send for Place {}

/// Proof that a [`ClhLock`] is held; releases it when dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct ClhGuard<'a> {
    place: &'a mut Place,
    mine: NonNull<Node>,
}

impl ClhLock {
    /// A free lock.
    pub fn new() -> Self {
        let node = fresh();
        // SAFETY: nobody else knows the node.
        unsafe { Cell::tell(NonNull::from(&node.as_ref().cell), RELEASED) };
        Self { tail: AtomicPtr::new(node.as_ptr()) }
    }

    /// Takes the lock in the order of arrival.
    pub fn lock<'a>(&'a self, place: &'a mut Place) -> ClhGuard<'a> {
        let mine = place.0;
        // SAFETY: a place's node is not in a queue, so nobody else uses it.
        unsafe { mine.as_ref() }.cell.reset();
        // ORDER clh.queue: Release, so that the next one finds the node reset; Acquire, so that this one finds the node before
        // it reset.
        let before = self.tail.swap(mine.as_ptr(), step::order("clh.queue: AcqRel", Ordering::AcqRel));
        // SAFETY: the tail is never null.
        let before = unsafe { NonNull::new_unchecked(before) };
        // SAFETY: only this thread waits on it, and it belongs to this thread once it is released.
        unsafe { before.as_ref() }.cell.wait(Patience::for_nanos(WAIT_NS));
        place.0 = before;
        ClhGuard { place, mine }
    }
}

impl Default for ClhLock {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for ClhLock {
    fn drop(&mut self) {
        // ORDER clh.queue: Relaxed; nobody else has the lock.
        let tail = self.tail.load(Ordering::Relaxed);
        // SAFETY: made by `fresh`; nobody holds the lock or waits, so it is in no place.
        drop(unsafe { Box::from_raw(tail) });
    }
}

impl Place {
    /// A place for one thread; it may be used for any lock, one at a time.
    pub fn new() -> Self {
        Self(fresh())
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: made by `fresh`, and in no queue.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Drop for ClhGuard<'_> {
    fn drop(&mut self) {
        let _ = &self.place;
        // SAFETY: it is alive until the next one has read the message, and only the holder tells it anything.
        unsafe {
            let cell = NonNull::new_unchecked(&raw mut (*self.mine.as_ptr()).cell);
            Cell::tell(cell, RELEASED);
        }
    }
}
