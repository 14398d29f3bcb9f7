//! Settings that may change while the program runs.
//!
//! Sync: all of them: plain values, read when a cycle or a refill is decided on; `Relaxed`, since nothing is published
//! through them.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use larder_units::Bytes;

pub(crate) static FREE_SPACE_DIVISOR: AtomicUsize = AtomicUsize::new(3);
pub(crate) static MAX_HEAP: AtomicUsize = AtomicUsize::new(0);
pub(crate) static INITIAL_HEAP: AtomicUsize = AtomicUsize::new(0);
pub(crate) static MARKERS: AtomicUsize = AtomicUsize::new(0);
pub(crate) static DISABLED: AtomicU32 = AtomicU32::new(0);
pub(crate) static COLLECT_EVERY: AtomicU64 = AtomicU64::new(0);
pub(crate) static FINALIZE_ON_DEMAND: AtomicBool = AtomicBool::new(false);
pub(crate) static JAVA_FINALIZATION: AtomicBool = AtomicBool::new(false);
pub(crate) static MAIN_STACK_BASE: AtomicPtr<AtomicPtr<u8>> = AtomicPtr::new(core::ptr::null_mut());

/// Finalizers run only when the client invokes them.
pub fn set_finalize_on_demand(on: bool) {
    FINALIZE_ON_DEMAND.store(on, Ordering::Relaxed);
}

/// Finalizers run once, in no order, and objects that they reach are kept.
pub fn set_java_finalization(on: bool) {
    JAVA_FINALIZATION.store(on, Ordering::Relaxed);
}

/// Names the variable that holds the main thread's stack base; it is read at every cycle.
pub fn set_main_stack_base_variable(variable: &'static AtomicPtr<u8>) {
    MAIN_STACK_BASE.store(core::ptr::from_ref(variable).cast_mut(), Ordering::Relaxed);
}

pub(crate) fn max_heap() -> Bytes {
    Bytes(MAX_HEAP.load(Ordering::Relaxed))
}
