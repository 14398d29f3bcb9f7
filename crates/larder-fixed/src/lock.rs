//! The allocation lock, in libgc's sense: it guards roots, finalizers and links, and no cycle runs while it is held.
//!
//! The collector holds it from before the stop until links are cleared. A holder must not allocate.
//!
//! Order of locks: loader, cycle, allocation, registry, classes, large objects, pool.

use larder_sync::lock::Lock;
use larder_threads::defer;

pub(crate) static ALLOCATION: Lock = Lock::new();

/// Runs `f` with the lock held. An allocation in a signal handler that interrupts it does not collect.
pub fn with<R>(f: impl FnOnce() -> R) -> R {
    acquire();
    let result = f();
    // SAFETY: taken above.
    unsafe { release() };
    result
}

/// Takes the lock.
pub fn acquire() {
    // Ended by `release`.
    core::mem::forget(defer::lock(&ALLOCATION));
}

/// Gives the lock back.
///
/// # Safety
/// The calling thread took it with [`acquire`].
pub unsafe fn release() {
    // SAFETY: the caller's promise; the deferral was forgotten in `acquire`.
    unsafe {
        ALLOCATION.unlock_raw();
        drop(defer::Deferral::resume());
    }
}
