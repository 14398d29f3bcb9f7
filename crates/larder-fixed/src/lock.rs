//! The allocation lock, in libgc's sense: it guards roots, finalizers and links, and no cycle runs while it is held.
//!
//! The collector holds it from before the stop until links are cleared. A holder must not allocate.
//!
//! Order of locks: loader, cycle, allocation, registry, classes, large objects, pool.

use larder_sync::lock::Lock;

pub(crate) static ALLOCATION: Lock = Lock::new();

/// Runs `f` with the lock held.
pub fn with<R>(f: impl FnOnce() -> R) -> R {
    let _guard = ALLOCATION.lock();
    f()
}

/// Takes the lock.
pub fn acquire() {
    ALLOCATION.lock_raw();
}

/// Gives the lock back.
///
/// # Safety
/// The caller holds it.
pub unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { ALLOCATION.unlock_raw() };
}
