//! A fork takes every lock of the heap, so that its child finds nothing in the middle of a change.

use core::sync::atomic::Ordering;

use larder_threads::{REGISTRY, defer};
use larder_trace::crew::CREW;

use super::{AGAIN, COMING, CYCLE, PREPARE};
use crate::heap::{self, HEAP};
use crate::{aftermath, concurrent, events, finalization, gate, large, lock, own_threads, refill, settings};

/// Before fork: no cycle is under way, and this thread holds every lock of the heap.
pub(crate) fn before_fork() {
    let mask = gate::mask();
    gate::keep_collectors_out();
    PREPARE.lock_raw();
    CYCLE.lock_raw();
    lock::acquire();
    own_threads::before_fork();
    mask.set();
    REGISTRY.before_fork();
    refill::lock_all();
    large::LOCK.lock_raw();
    HEAP.owners.lock_all();
    HEAP.pool.lock().lock_raw();
    HEAP.space.before_fork();
}

/// After fork, in the parent.
///
/// # Safety
/// The calling thread called `before_fork`.
pub(crate) unsafe fn after_fork_in_parent() {
    let mask = gate::mask();
    // SAFETY: all were taken by `before_fork`.
    unsafe {
        HEAP.space.after_fork_in_parent();
        HEAP.pool.lock().unlock_raw();
        HEAP.owners.unlock_all();
        large::LOCK.unlock_raw();
        refill::unlock_all();
        REGISTRY.after_fork_in_parent();
        lock::release();
        CYCLE.unlock_raw();
        PREPARE.unlock_raw();
    }
    AGAIN.bump_and_wake_all();
    gate::let_collectors_in();
    mask.set();
}

/// After fork, in the child.
///
/// # Safety
/// The calling thread called `before_fork` and is the only one of the child.
pub(crate) unsafe fn after_fork_in_child() {
    let mask = gate::mask();
    // Its record is used again for another thread.
    if REGISTRY.current().is_none_or(|own| !core::ptr::eq(own, settings::MAIN.load(Ordering::Relaxed))) {
        settings::MAIN.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
    // SAFETY: we are alone.
    unsafe {
        HEAP.space.reset_after_fork();
        HEAP.pool.lock().reset_after_fork();
        heap::reset_growth_after_fork();
        HEAP.owners.reset_after_fork();
        large::LOCK.reset_after_fork();
        refill::reset_after_fork();
        REGISTRY.after_fork_in_child();
        lock::ALLOCATION.reset_after_fork();
        // The stay that `lock::acquire` began in `before_fork`.
        drop(defer::Deferral::resume());
        CYCLE.reset_after_fork();
        COMING.store(false, Ordering::Relaxed);
        PREPARE.reset_after_fork();
        gate::reset_after_fork();
        AGAIN.reset_after_fork();
        aftermath::reset_after_fork();
        CREW.reset_after_fork();
        concurrent::after_fork_in_child();
    }
    finalization::after_fork_in_child();
    own_threads::after_fork_in_child();
    mask.set();
    events::after_fork_in_child();
}
