//! The allocation lock, the stopped world, libraries, and dumps.

use core::ffi::{CStr, c_char, c_int, c_void};

use larder_fixed::stats::snapshot;
use larder_fixed::{finalization, lock, threads};

use crate::data::{GC_gc_no, GC_greatest_plausible_heap_addr, GC_least_plausible_heap_addr};
use crate::log_line;
use crate::stats::total_allocated;

/// A function of the client's that is called with an argument of its own.
pub type ClientFn = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// Calls `f` with the allocation lock held: no cycle is under way until its links are cleared, and no other holder runs.
/// Other threads go on allocating meanwhile, slow paths included, since allocation does not take this lock. `f` must not
/// allocate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_call_with_alloc_lock(f: ClientFn, argument: *mut c_void) -> *mut c_void {
    // SAFETY: the client's function, with what it expects.
    lock::with(|| unsafe { f(argument) })
}

/// Takes the allocation lock.
#[unsafe(no_mangle)]
pub extern "C" fn GC_alloc_lock() {
    lock::acquire();
}

/// Releases the allocation lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_alloc_unlock() {
    // SAFETY: the caller took it.
    unsafe { lock::release() }
}

/// Stops all other threads until [`GC_start_world_external`].
#[unsafe(no_mangle)]
pub extern "C" fn GC_stop_world_external() {
    crate::init::GC_init();
    threads::stop_world();
}

/// Undoes [`GC_stop_world_external`].
#[unsafe(no_mangle)]
pub extern "C" fn GC_start_world_external() {
    threads::start_world();
}

/// As `dlopen`: cycles and the loader do not get into each other's way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_dlopen(path: *const c_char, mode: c_int) -> *mut c_void {
    // SAFETY: passed on as they came.
    unsafe { libc::dlopen(path, mode) }
}

/// Writes the collector's state to the log, under a name or the number of the last cycle.
pub fn dump(name: Option<&CStr>) {
    match name {
        Some(name) => log_line!("*** Larder dump {}", name.to_str().unwrap_or("(not UTF-8)")),
        None => log_line!("*** Larder dump, collection #{}", GC_gc_no.get()),
    }
    let s = snapshot();
    log_line!("heap {} bytes, free {}, unmapped {}", s.heap, s.free, s.unmapped);
    log_line!("allocated {} bytes, {} since the last collection", total_allocated(), s.bytes_since_cycle);
    dump_bounds();
    dump_finalization();
}

fn dump_bounds() {
    log_line!("from {:#x} to {:#x}", GC_least_plausible_heap_addr.get(), GC_greatest_plausible_heap_addr.get());
}

fn dump_finalization() {
    log_line!("finalizers that wait to run: {}", finalization::ready());
}

/// Writes the collector's state to the log.
#[unsafe(no_mangle)]
pub extern "C" fn GC_dump() {
    dump(None);
}

/// Writes the collector's state to the log under a name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_dump_named(name: *const c_char) {
    // SAFETY: null or the caller's C string.
    dump((!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }));
}

/// Writes the bounds of the heap to the log.
#[unsafe(no_mangle)]
pub extern "C" fn GC_dump_regions() {
    dump_bounds();
}

/// Writes the number of finalizers that wait to the log.
#[unsafe(no_mangle)]
pub extern "C" fn GC_dump_finalization() {
    dump_finalization();
}
