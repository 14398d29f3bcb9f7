//! Settings that may change while the program runs.
//!
//! Sync: all of them: plain values, read when a cycle or a refill is decided on; `Relaxed`, since nothing is published
//! through them.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use larder_units::Bytes;

pub(crate) static FREE_SPACE_DIVISOR: AtomicUsize = AtomicUsize::new(3);
pub(crate) static MAX_HEAP: AtomicUsize = AtomicUsize::new(0);
pub(crate) static INITIAL_HEAP: AtomicUsize = AtomicUsize::new(0);
/// Most of what was promised that puts a cycle off: more than this machine has would never be collected.
pub(crate) static MOST_PROMISED: AtomicUsize = AtomicUsize::new(usize::MAX);
pub(crate) static MARKERS: AtomicUsize = AtomicUsize::new(0);
pub(crate) static DISABLED: AtomicU32 = AtomicU32::new(0);
pub(crate) static COLLECT_EVERY: AtomicU64 = AtomicU64::new(0);
pub(crate) static FINALIZE_ON_DEMAND: AtomicBool = AtomicBool::new(false);
pub(crate) static JAVA_FINALIZATION: AtomicBool = AtomicBool::new(false);
pub(crate) static NO_AUTOMATIC: AtomicBool = AtomicBool::new(false);
pub(crate) static KEEP_MEMORY: AtomicBool = AtomicBool::new(false);
pub(crate) static DONT_EXPAND: AtomicBool = AtomicBool::new(false);
pub(crate) static ENTIRE_HEAP: AtomicBool = AtomicBool::new(false);
pub(crate) static LEAST_STEP: AtomicUsize = AtomicUsize::new(1);
pub(crate) static BYTES_PER_FINALIZER: AtomicUsize = AtomicUsize::new(0);
/// The record of the thread whose stack base the client's variable holds; null where that thread is not registered (any more). A child that
/// another thread forked has its process's id in a thread with another stack.
pub(crate) static MAIN: AtomicPtr<larder_threads::Thread> = AtomicPtr::new(core::ptr::null_mut());
/// The main thread's stack, `[low, high)`, as far as it may grow; empty where another thread has initialised the heap.
pub(crate) static MAIN_STACK: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
pub(crate) static MAIN_STACK_BASE: AtomicPtr<AtomicPtr<u8>> = AtomicPtr::new(core::ptr::null_mut());

/// Whether a pointer to anywhere in an object keeps it, from the next cycle on; objects have one byte more than was asked for while it does.
pub fn set_all_interior_pointers(on: bool) {
    crate::heap::HEAP.round.store(15 + usize::from(on), Ordering::Relaxed);
}

/// Finalizers run only when the client invokes them.
pub fn set_finalize_on_demand(on: bool) {
    FINALIZE_ON_DEMAND.store(on, Ordering::Relaxed);
}

/// Finalizers run once, in no order, and objects that they reach are kept.
pub fn set_java_finalization(on: bool) {
    JAVA_FINALIZATION.store(on, Ordering::Relaxed);
}

/// No cycle is due because enough was allocated; it takes a call, or memory that runs out.
pub fn set_automatic(on: bool) {
    NO_AUTOMATIC.store(!on, Ordering::Relaxed);
    crate::pacing::renew_budget();
}

/// Free memory is not given back to the kernel, unless a cycle is asked to.
pub fn set_keep_memory(on: bool) {
    KEEP_MEMORY.store(on, Ordering::Relaxed);
}

/// A cycle is due when the heap, as it is, is used up.
pub fn set_dont_expand(on: bool) {
    if DONT_EXPAND.swap(on, Ordering::Relaxed) != on {
        crate::pacing::renew_budget();
    }
}

/// No cycle is due before the heap, as it is, is used up.
pub fn set_use_entire_heap(on: bool) {
    if ENTIRE_HEAP.swap(on, Ordering::Relaxed) != on {
        crate::pacing::renew_budget();
    }
}

/// The fewest bytes to be allocated between cycles that the heap begins by itself.
pub fn set_least_step(bytes: usize) {
    if LEAST_STEP.swap(bytes, Ordering::Relaxed) != bytes {
        crate::pacing::renew_budget();
    }
}

/// Before the heap grows, a cycle is due if each finalizer that was registered since the last one stands for fewer
/// allocated bytes than this. 0 takes no notice of finalizers.
pub fn set_bytes_per_finalizer(bytes: usize) {
    BYTES_PER_FINALIZER.store(bytes, Ordering::Relaxed);
}

/// Names the variable that holds the main thread's stack base; it is read at every cycle.
pub fn set_main_stack_base_variable(variable: &'static AtomicPtr<u8>) {
    MAIN_STACK_BASE.store(core::ptr::from_ref(variable).cast_mut(), Ordering::Relaxed);
}

pub(crate) fn max_heap() -> Bytes {
    Bytes(MAX_HEAP.load(Ordering::Relaxed))
}
