//! The allocation lock, the stopped world, libraries, and dumps.

use core::ffi::{CStr, c_char, c_int, c_void};

use larder_fixed::finalization::Registration;
use larder_fixed::{finalization, lock, roots, stats, threads};

use crate::data::GC_gc_no;
use crate::init::since_init;
use crate::log_line;
use crate::print::Text;
use crate::stats::snapshot;

/// A function of the client's that is called with an argument of its own.
pub type ClientFn = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// Calls `f` with the allocation lock held: no cycle is under way until its links are cleared, and no other holder runs.
/// Other threads go on allocating meanwhile, slow paths included, since allocation does not take this lock. `f` must not
/// allocate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_call_with_alloc_lock(f: ClientFn, argument: *mut c_void) -> *mut c_void {
    // SAFETY: the client's function, with what it expects.
    unsafe { lock::call(f, argument) }
}

/// Takes the allocation lock.
#[unsafe(no_mangle)]
pub extern "C" fn GC_alloc_lock() {
    lock::acquire_for_client();
}

/// Releases the allocation lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_alloc_unlock() {
    // SAFETY: the caller took it.
    unsafe { lock::release_from_client() }
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

/// Writes the collector's state to the log, under a name or the number of the last cycle, in libgc's form as far as the
/// two heaps have the same parts.
pub fn dump(name: Option<&CStr>) {
    match name {
        Some(name) => log_line!("***GC Dump {}", Text(name.as_ptr())),
        None => log_line!("***GC Dump collection #{}", GC_gc_no.get()),
    }
    log_line!("Time since GC init: {} ms\n", since_init().to_millis_rounded_down());
    log_line!("***Static roots:");
    let mut size = 0;
    roots::for_each_registered(|low, high| {
        size += high - low;
        log_line!("From {low:#x} to {high:#x}");
    });
    let is_complete = roots::try_for_each_static_range(|low, high| {
        size += high - low;
        log_line!("From {low:#x} to {high:#x} (temporary)");
    });
    if !is_complete {
        log_line!("(those of the program and of libraries are not known: the loader's list is in use)");
    }
    log_line!("GC_root_size= {size}\n");
    dump_sections();
    let [free, unmapped] = stats::pool_bytes();
    log_line!("\n***Free blocks:\nFree list 0 (total size {free}):\n\t(unmapped: {unmapped})");
    log_line!("GC_large_free_bytes: {free}\n");
    log_line!("***Blocks in use:\nkind(0=ptrfree,1=normal,2=unc.),size_in_bytes,#_marks_set,#objs");
    let (mut blocks, mut bytes) = (0, 0);
    stats::for_each_block(&mut |block| {
        blocks += 1;
        bytes += block.size * block.cells;
        log_line!("{},{},{},{}", block.kind, block.size, block.live, block.cells);
    });
    log_line!("blocks= {blocks}, bytes= {bytes}\n");
}

fn dump_sections() {
    let s = snapshot();
    let (low, high) = stats::used_range();
    log_line!("***Heap sections:\nTotal heap size: {} ({} unmapped)", s.heap + s.unmapped, s.unmapped);
    log_line!("Section 0 from {low:#x} to {high:#x} 0/{} blacklisted", (high - low) / larder_units::BLOCK.0);
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

/// Writes the blocks of the heap to the log, each with its address.
#[unsafe(no_mangle)]
pub extern "C" fn GC_dump_regions() {
    let (low, high) = stats::used_range();
    log_line!("***Section from {low:#x} to {high:#x}");
    stats::for_each_block(&mut |block| {
        let used = if block.live == 0 { " (free)" } else { "" };
        log_line!("\t{:#x} used for blocks of size {:#x}{used}", block.start, block.size);
    });
}

/// Writes every registered link and every object with a finalizer to the log.
#[unsafe(no_mangle)]
pub extern "C" fn GC_dump_finalization() {
    log_line!("Disappearing (short) links:");
    finalization::for_each_registered(&mut |entry| {
        if let Registration::Link(link, object) = entry {
            log_line!("Object: {object:#x}, link: {link:#x}");
        }
    });
    log_line!("Disappearing long links:");
    finalization::for_each_registered(&mut |entry| {
        if let Registration::LongLink(link, object) = entry {
            log_line!("Object: {object:#x}, link: {link:#x}");
        }
    });
    log_line!("Finalizers:");
    finalization::for_each_registered(&mut |entry| {
        if let Registration::Finalizer(object) = entry {
            log_line!("Finalizable object: {object:#x}");
        }
    });
}
