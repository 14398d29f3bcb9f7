//! Roots: registered ranges, loaded libraries, displacements; and what a client may push in a cycle.

use core::ffi::{c_char, c_int, c_void};

use larder_fixed::kind::Entry;
use larder_fixed::roots;

use crate::init::GC_init;

/// A function that says whether a library's data is searched.
pub type StaticFilter = unsafe extern "C" fn(*const c_char, *mut c_void, usize) -> c_int;

/// Adds a range that is searched for pointers in each cycle. One that is empty, or that ends before it begins, is none: libgc
/// takes it without a word, and programs compute such ranges from symbols of the linker.
#[unsafe(no_mangle)]
pub extern "C" fn GC_add_roots(low: *mut c_void, high: *mut c_void) {
    GC_init();
    if low < high {
        roots::add(low.addr(), high.addr());
    }
}

/// Removes every registered range that lies in the given one as a whole.
#[unsafe(no_mangle)]
pub extern "C" fn GC_remove_roots(low: *mut c_void, high: *mut c_void) {
    if low < high {
        roots::remove(low.addr(), high.addr());
    }
}

/// Removes all registered ranges. The data of the program and of libraries stays, unless `GC_no_dls` is set: libgc on Linux finds
/// it anew at each cycle.
#[unsafe(no_mangle)]
pub extern "C" fn GC_clear_roots() {
    GC_init();
    roots::clear();
}

/// Keeps a range from being searched as static data, or as part of a range of [`GC_add_roots`].
#[unsafe(no_mangle)]
pub extern "C" fn GC_exclude_static_roots(low: *mut c_void, high: *mut c_void) {
    if low < high {
        GC_init();
        roots::exclude(low.addr(), high.addr());
    }
}

/// Forgets the ranges of [`GC_exclude_static_roots`].
#[unsafe(no_mangle)]
pub extern "C" fn GC_clear_exclusion_table() {
    roots::clear_exclusions();
}

/// Sets the function that decides about each library's data; null for no such function.
#[unsafe(no_mangle)]
pub extern "C" fn GC_register_has_static_roots_callback(filter: Option<StaticFilter>) {
    roots::set_static_filter(filter);
}

/// Makes a pointer that many bytes into an object count, where not all interior pointers do.
#[unsafe(no_mangle)]
pub extern "C" fn GC_register_displacement(bytes: usize) {
    roots::register_displacement(bytes);
}

/// Searches a range. Only from `GC_push_other_roots` or a mark procedure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_push_all(low: *mut c_void, high: *mut c_void) {
    // SAFETY: called in a cycle with a readable range, as `gc_mark.h` says.
    unsafe { roots::push_all(low.addr(), high.addr()) }
}

/// Searches a range as a stack: interior pointers count. Only from `GC_push_other_roots` or a mark procedure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_push_all_eager(low: *mut c_void, high: *mut c_void) {
    // SAFETY: called in a cycle with a readable range, as `gc_mark.h` says.
    unsafe { roots::push_all_eager(low.addr(), high.addr()) }
}

/// Searches a range, or only what changed in it. Only from `GC_push_other_roots` or a mark procedure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_push_conditional(low: *mut c_void, high: *mut c_void, all: c_int) {
    // SAFETY: called in a cycle with a readable range, as `gc_mark.h` says.
    unsafe { roots::push_conditional(low.addr(), high.addr(), all != 0) }
}

/// Would push libgc's finalizer tables. The heap searches its own before it asks the client.
#[unsafe(no_mangle)]
pub extern "C" fn GC_push_finalizer_structures() {}

/// Marks an object that a mark procedure found, and queues it to be scanned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_mark_and_push(
    object: *mut c_void,
    top: *mut Entry,
    limit: *mut Entry,
    source: *mut *mut c_void,
) -> *mut Entry {
    // SAFETY: called by a mark procedure with what it was given.
    unsafe { roots::mark_and_push(object.addr(), top, limit, source.cast()) }
}

/// Whether an address lies in static data that cycles find by themselves, in contrast to a range of [`GC_add_roots`].
#[unsafe(no_mangle)]
pub extern "C" fn GC_is_tmp_root(address: *mut c_void) -> c_int {
    c_int::from(roots::is_static_data(address.addr()))
}
