//! The allocation lock, in libgc's sense: it guards roots, finalizers and links, and no cycle runs while it is held.
//!
//! The collector holds it from before the stop until links are cleared. A holder must not allocate.
//!
//! Order of locks: loader, cycle, allocation, registry, classes, large objects, pool.

use core::ffi::c_void;

use larder_sync::lock::Lock;
use larder_sys::unwind::{self, Function, Unwound};
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

/// Runs a client's `f(argument)` with the lock held. Where it is unwound, the lock is given back.
///
/// # Safety
/// As for the call of `f`.
pub unsafe fn call(f: Function, argument: *mut c_void) -> *mut c_void {
    acquire();
    // SAFETY: the caller's promise.
    let result = unsafe { unwind::call::<Held>(f, argument) };
    // SAFETY: taken above.
    unsafe { release() };
    result
}

/// A client's function runs with the lock.
struct Held;

impl Unwound for Held {
    fn unwound() {
        // SAFETY: `call` took it.
        unsafe { release() };
    }
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
