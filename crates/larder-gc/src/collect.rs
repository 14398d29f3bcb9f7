//! Collecting on request, not at all, or a little.

use core::ffi::c_int;

use larder_fixed::{cycle, pacing};

use crate::callbacks::{StopFn, stop_function};
use crate::data::GC_dont_gc;
use crate::init::{GC_init, sync_now};
use crate::settings;

/// Collects: stops the world, marks, resumes it, and runs finalizers unless they are on demand. Gives free memory back where
/// `GC_set_force_unmap_on_gcollect` says so, and gives up when the client's stop function says so.
#[unsafe(no_mangle)]
pub extern "C" fn GC_gcollect() {
    GC_init();
    // The heap looks whether it may collect before it asks for the client's variables.
    sync_now();
    cycle::try_collect(stop_function(), settings::force_unmap());
}

/// Collects, and gives all free memory back to the kernel.
#[unsafe(no_mangle)]
pub extern "C" fn GC_gcollect_and_unmap() {
    GC_init();
    sync_now();
    cycle::collect_and_unmap();
}

/// Collects unless `stop` returns something other than 0 meanwhile; returns whether a cycle was completed.
#[unsafe(no_mangle)]
pub extern "C" fn GC_try_to_collect(stop: StopFn) -> c_int {
    GC_init();
    sync_now();
    c_int::from(cycle::try_collect(Some(stop), settings::force_unmap()))
}

/// Prevents collections, explicit ones too, until as many calls of [`GC_enable`].
#[unsafe(no_mangle)]
pub extern "C" fn GC_disable() {
    GC_dont_gc.add(1);
    sync_now();
}

/// Undoes one [`GC_disable`].
#[unsafe(no_mangle)]
pub extern "C" fn GC_enable() {
    GC_dont_gc.add(-1);
    sync_now();
}

/// Whether collections are prevented.
#[unsafe(no_mangle)]
pub extern "C" fn GC_is_disabled() -> c_int {
    c_int::from(GC_dont_gc.is_set())
}

/// Makes the heap larger; returns 1, or 0 where that was not possible.
#[unsafe(no_mangle)]
pub extern "C" fn GC_expand_hp(bytes: usize) -> c_int {
    GC_init();
    c_int::from(pacing::expand(bytes))
}
