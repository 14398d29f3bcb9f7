//! Names that must exist, or the loader refuses the program, but whose meaning Larder does not have.
//!
//! Each stops the program with one line that names it, so that nobody mistakes silence for success.

use core::ffi::{c_int, c_void};

/// Stops the process with a line that names the function.
#[macro_export]
macro_rules! unimplemented_function {
    ($name:literal, $why:literal) => {
        larder_sys::die!(concat!($name, " is not implemented yet; ", $why))
    };
}

/// Reclaims objects through a function of the client's instead of silently.
#[unsafe(no_mangle)]
pub extern "C" fn GC_register_disclaim_proc(_kind: c_int, _disclaim: *mut c_void, _mark_from_all: c_int) {
    unimplemented_function!("GC_register_disclaim_proc", "GC_register_finalizer_no_order does a similar service")
}

/// Registers an object whose reference is made strong or weak by a function of the client's.
#[unsafe(no_mangle)]
pub extern "C" fn GC_toggleref_add(_object: *mut c_void, _is_strong: c_int) -> c_int {
    unimplemented_function!("GC_toggleref_add", "GC_general_register_disappearing_link makes a weak reference")
}

/// Stops one thread until `GC_resume_thread`.
#[unsafe(no_mangle)]
pub extern "C" fn GC_suspend_thread(_thread: *mut c_void) {
    unimplemented_function!("GC_suspend_thread", "GC_stop_world_external stops all threads")
}

/// Resumes a thread after `GC_suspend_thread`.
#[unsafe(no_mangle)]
pub extern "C" fn GC_resume_thread(_thread: *mut c_void) {
    unimplemented_function!("GC_resume_thread", "GC_start_world_external resumes all threads")
}

/// Whether an address lies in a root range that was found by the collector and is forgotten at the next cycle.
#[unsafe(no_mangle)]
pub extern "C" fn GC_is_tmp_root(_address: *mut c_void) -> c_int {
    unimplemented_function!("GC_is_tmp_root", "it asks about libgc's own table of ranges")
}
