//! Allocation by kind number, lists of objects, and kinds and mark procedures of the client's own.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr;

use larder_fixed::allocate::SMALL;
use larder_fixed::allocate_many;
use larder_fixed::kind::{self, MarkProc};

use crate::alloc::{allocate_or_exhausted, allocate_uncollectable, out_of_memory_slow, warn_of_no_memory};
use crate::callbacks::abort;
use crate::data::empty_lists;
use crate::object::extra_byte;

/// A kind number from a client, checked.
pub fn known(kind: c_int) -> usize {
    match usize::try_from(kind) {
        Ok(kind) if kind < kind::MAX => kind,
        _ => abort(c"Bad object kind"),
    }
}

/// Allocates an object of a kind.
#[unsafe(no_mangle)]
pub extern "C" fn GC_generic_malloc(bytes: usize, kind: c_int) -> *mut c_void {
    allocate_or_exhausted(known(kind), bytes)
}

/// As [`GC_generic_malloc`]; the client's promise to keep a pointer near the start is not needed.
#[unsafe(no_mangle)]
pub extern "C" fn GC_generic_malloc_ignore_off_page(bytes: usize, kind: c_int) -> *mut c_void {
    allocate_or_exhausted(known(kind), bytes)
}

/// As [`GC_generic_malloc`].
#[unsafe(no_mangle)]
pub extern "C" fn GC_malloc_kind(bytes: usize, kind: c_int) -> *mut c_void {
    allocate_or_exhausted(known(kind), bytes)
}

/// As [`GC_generic_malloc`]: there are no thread-local lists to go round.
#[unsafe(no_mangle)]
pub extern "C" fn GC_malloc_kind_global(bytes: usize, kind: c_int) -> *mut c_void {
    allocate_or_exhausted(known(kind), bytes)
}

/// Allocates an object of whatever kind, counted where it is not collected.
pub fn allocate_any(kind: usize, bytes: usize) -> *mut c_void {
    if kind::uncollectable(kind) { allocate_uncollectable(kind, bytes) } else { allocate_or_exhausted(kind, bytes) }
}

/// Allocates an object that lives until `GC_free`.
#[unsafe(no_mangle)]
pub extern "C" fn GC_generic_malloc_uncollectable(bytes: usize, kind: c_int) -> *mut c_void {
    let kind = match known(kind) {
        kind::POINTER_FREE => kind::POINTER_FREE_UNCOLLECTABLE,
        kind::NORMAL => kind::UNCOLLECTABLE,
        other => other,
    };
    allocate_any(kind, bytes)
}

/// Allocates an object of the same kind as another one, whose kind `GC_get_kind_and_size` told.
#[unsafe(no_mangle)]
pub extern "C" fn GC_generic_or_special_malloc(bytes: usize, kind: c_int) -> *mut c_void {
    allocate_any(known(kind), bytes)
}

/// Stores a list of new objects, linked through their first words and otherwise as their kind wants; null without
/// memory.
///
/// Unlike everywhere else, `bytes` includes the byte that pointers past the end need: `gc_inline.h` counts in whole
/// cells.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_generic_malloc_many(bytes: usize, kind: c_int, into: *mut *mut c_void) {
    let list = list_of(known(kind), bytes.saturating_sub(extra_byte()));
    // SAFETY: the caller's place for the result.
    unsafe { *into = list };
}

/// A list of objects of a known kind; null without memory, after a warning, but for large ones, which are allocated as any other. As in libgc the
/// client's function is not asked: what it returns would be taken for a list.
fn list_of(kind: usize, bytes: usize) -> *mut c_void {
    // SAFETY: a known kind.
    let list = unsafe { allocate_many(kind, bytes) };
    if !list.is_null() {
        return list.cast();
    }
    if bytes > SMALL {
        return out_of_memory_slow(bytes);
    }
    warn_of_no_memory();
    ptr::null_mut()
}

/// Returns a list of new objects, linked through their first words; null without memory.
#[unsafe(no_mangle)]
pub extern "C" fn GC_malloc_many(bytes: usize) -> *mut c_void {
    list_of(kind::NORMAL, bytes)
}

/// Returns an array of free lists for [`GC_new_kind`]. The heap keeps none, so it is always the same one, and empty.
#[unsafe(no_mangle)]
pub extern "C" fn GC_new_free_list() -> *mut *mut c_void {
    empty_lists()
}

/// As [`GC_new_free_list`].
#[unsafe(no_mangle)]
pub extern "C" fn GC_new_free_list_inner() -> *mut *mut c_void {
    empty_lists()
}

/// Makes a kind whose objects are scanned by `descriptor`, to which the object's size is added where `add_size` is
/// not 0. Under the allocation lock, which the caller may hold.
#[unsafe(no_mangle)]
pub extern "C" fn GC_new_kind(lists: *mut *mut c_void, descriptor: usize, add_size: c_int, clear: c_int) -> c_uint {
    let _ = lists;
    match kind::new_kind(descriptor, add_size != 0, clear != 0) {
        Some(kind) => kind as c_uint,
        None => abort(c"Too many kinds"),
    }
}

/// As [`GC_new_kind`], for a caller that holds the allocation lock.
#[unsafe(no_mangle)]
pub extern "C" fn GC_new_kind_inner(
    lists: *mut *mut c_void,
    descriptor: usize,
    add_size: c_int,
    clear: c_int,
) -> c_uint {
    GC_new_kind(lists, descriptor, add_size, clear)
}

/// Registers a mark procedure and returns its index for `GC_MAKE_PROC`. Under the allocation lock, which the caller may hold.
#[unsafe(no_mangle)]
pub extern "C" fn GC_new_proc(procedure: MarkProc) -> c_uint {
    match kind::new_proc(procedure) {
        Some(index) => index as c_uint,
        None => abort(c"Too many mark procedures"),
    }
}

/// As [`GC_new_proc`], for a caller that holds the allocation lock.
#[unsafe(no_mangle)]
pub extern "C" fn GC_new_proc_inner(procedure: MarkProc) -> c_uint {
    GC_new_proc(procedure)
}

/// Would print a free list; the heap keeps none.
#[unsafe(no_mangle)]
pub extern "C" fn GC_print_free_list(kind: c_int, granules: usize) {
    crate::log_line!("Free list of kind {kind}, {granules} granules: Larder keeps no free lists");
}

/// Clears a part of the dead stack, next to the caller's frame; the argument is returned.
#[unsafe(no_mangle)]
pub extern "C" fn GC_clear_stack(argument: *mut c_void) -> *mut c_void {
    larder_sys::thread::clear_dead_frames();
    argument
}

/// Does nothing with its argument, which the compiler therefore keeps until here.
#[unsafe(no_mangle)]
pub extern "C" fn GC_noop1(word: usize) {
    core::hint::black_box(ptr::without_provenance::<u8>(word));
}
