//! Allocation: the plain functions, strings, and alignment.
//!
//! The fast path is `larder_fixed::allocate`, which is inlined here: a restartable sequence, and no question whether
//! the collector is initialised, because the heap's slow path asks that. All that the door adds is the test for null.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use larder_fixed::{allocate_aligned, allocate_from_buffer, allocate_slow, hooks, kind, object, stats};
use larder_units::GRANULE;

use crate::callbacks::{memory_exhausted, warn};
use crate::data::GC_non_gc_bytes;

/// Warns that memory is exhausted.
#[cold]
pub fn warn_of_no_memory() {
    let text = c"GC Warning: Out of Memory! Heap size: %lu MiB. Returning NULL!\n";
    warn(text.as_ptr(), stats::snapshot().heap >> 20);
}

/// The client decides what to return where memory is exhausted. `errno` says why, as after `malloc`.
#[cold]
#[inline(never)]
pub fn out_of_memory_slow(bytes: usize) -> *mut c_void {
    warn_of_no_memory();
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    memory_exhausted(bytes)
}

/// Allocates `bytes` of `kind`, or returns what the client's out-of-memory function returns.
#[inline(always)]
pub fn allocate_or_exhausted(kind: usize, bytes: usize) -> *mut c_void {
    // SAFETY: `kind` is one that the heap knows; any thread may allocate.
    let p = unsafe { allocate_from_buffer(kind, bytes) };
    // In tail position, so that the fast path saves no register.
    if p.is_null() { allocate_slow_or_exhausted(kind, bytes) } else { p.cast() }
}

/// As [`allocate_or_exhausted`], and whether the object is new: what the client's function returns is the client's.
pub fn allocate_or_told(kind: usize, bytes: usize) -> (*mut c_void, bool) {
    // SAFETY: as in `allocate_or_exhausted`.
    let mut p = unsafe { allocate_from_buffer(kind, bytes) };
    if p.is_null() {
        // SAFETY: as in `allocate_or_exhausted`.
        p = unsafe { allocate_slow(kind, bytes) };
    }
    if p.is_null() { (out_of_memory_slow(bytes), false) } else { (p.cast(), true) }
}

#[cold]
#[inline(never)]
fn allocate_slow_or_exhausted(kind: usize, bytes: usize) -> *mut c_void {
    // SAFETY: as in `allocate_or_exhausted`.
    let p = unsafe { allocate_slow(kind, bytes) };
    if p.is_null() { out_of_memory_slow(bytes) } else { p.cast() }
}

/// As [`allocate_or_exhausted`], for a kind whose bytes `GC_non_gc_bytes` counts.
pub fn allocate_uncollectable(kind: usize, bytes: usize) -> *mut c_void {
    if hooks::UNCOLLECTABLE_FREED.get().is_none() {
        hooks::UNCOLLECTABLE_FREED.set(Some(uncount));
    }
    let (p, is_new) = allocate_or_told(kind, bytes);
    if is_new {
        GC_non_gc_bytes.add(object::size(p.addr()));
    }
    p
}

/// An object that was counted in `GC_non_gc_bytes` is freed. Where the client has set that to 0, nothing is taken from it.
unsafe extern "C" fn uncount(bytes: usize) {
    if GC_non_gc_bytes.get() != 0 {
        GC_non_gc_bytes.add(bytes.wrapping_neg());
    }
}

/// Allocates zeroed memory that is searched for pointers.
#[unsafe(no_mangle)]
pub extern "C" fn GC_malloc(bytes: usize) -> *mut c_void {
    allocate_or_exhausted(kind::NORMAL, bytes)
}

/// Allocates memory that holds no pointers.
#[unsafe(no_mangle)]
pub extern "C" fn GC_malloc_atomic(bytes: usize) -> *mut c_void {
    allocate_or_exhausted(kind::POINTER_FREE, bytes)
}

/// Allocates zeroed memory that is searched for pointers and lives until `GC_free`.
#[unsafe(no_mangle)]
pub extern "C" fn GC_malloc_uncollectable(bytes: usize) -> *mut c_void {
    allocate_uncollectable(kind::UNCOLLECTABLE, bytes)
}

/// Allocates memory that holds no pointers and lives until `GC_free`.
#[unsafe(no_mangle)]
pub extern "C" fn GC_malloc_atomic_uncollectable(bytes: usize) -> *mut c_void {
    allocate_uncollectable(kind::POINTER_FREE_UNCOLLECTABLE, bytes)
}

/// As [`GC_malloc`]: stubborn objects exist in name only.
#[unsafe(no_mangle)]
pub extern "C" fn GC_malloc_stubborn(bytes: usize) -> *mut c_void {
    allocate_or_exhausted(kind::NORMAL, bytes)
}

/// As [`GC_malloc`]. The client's promise to keep a pointer near the start would allow the heap to ignore others; it
/// need not.
#[unsafe(no_mangle)]
pub extern "C" fn GC_malloc_ignore_off_page(bytes: usize) -> *mut c_void {
    allocate_or_exhausted(kind::NORMAL, bytes)
}

/// As [`GC_malloc_atomic`], with the promise of [`GC_malloc_ignore_off_page`].
#[unsafe(no_mangle)]
pub extern "C" fn GC_malloc_atomic_ignore_off_page(bytes: usize) -> *mut c_void {
    allocate_or_exhausted(kind::POINTER_FREE, bytes)
}

/// Frees an object. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_free(object: *mut c_void) {
    // SAFETY: the caller passes null or the base of an object that it uses no more.
    unsafe { larder_fixed::free(object.cast()) }
}

/// Allocates zeroed memory at an address that is a multiple of `align`, which need not be a power of two: libgc takes what a program
/// computes, `sizeof` of a structure for one. Up to a granule all objects are taken for aligned.
///
/// libgc refuses alignments above half a block; the heap has no such limit.
#[unsafe(no_mangle)]
pub extern "C" fn GC_memalign(align: usize, bytes: usize) -> *mut c_void {
    if align <= GRANULE.0 {
        return GC_malloc(bytes);
    }
    // SAFETY: a known kind, and not 0.
    let p = unsafe { allocate_aligned(kind::NORMAL, bytes, align) };
    if p.is_null() { out_of_memory_slow(bytes) } else { p.cast() }
}

/// As `posix_memalign`, from the collected heap. Without memory the place for the result gets null, as in libgc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_posix_memalign(into: *mut *mut c_void, align: usize, bytes: usize) -> c_int {
    if !align.is_power_of_two() || align < size_of::<*mut c_void>() {
        return libc::EINVAL;
    }
    let p = GC_memalign(align, bytes);
    // SAFETY: the caller's place for the result.
    unsafe { *into = p };
    if p.is_null() { libc::ENOMEM } else { 0 }
}

/// Copies `length` bytes into a new pointer-free object and ends them with a zero; null and `ENOMEM` without memory.
///
/// # Safety
/// `text` is readable for `length` bytes.
pub unsafe fn copy_text(text: *const c_char, length: usize) -> *mut c_char {
    let copy = GC_malloc_atomic(length.saturating_add(1)).cast::<c_char>();
    if copy.is_null() {
        // SAFETY: the address of this thread's errno.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        return copy;
    }
    // SAFETY: `length` bytes are readable by the caller's promise, `length + 1` are the new object's.
    unsafe {
        ptr::copy_nonoverlapping(text, copy, length);
        *copy.add(length) = 0;
    }
    copy
}

/// Copies a string into a new pointer-free object. Null gives null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_strdup(text: *const c_char) -> *mut c_char {
    if text.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the caller passes a C string, which is readable for its length.
    unsafe { copy_text(text, libc::strlen(text)) }
}

/// Copies at most `most` bytes of a string into a new pointer-free object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_strndup(text: *const c_char, most: usize) -> *mut c_char {
    // SAFETY: the caller passes text that is readable up to its end or for `most` bytes.
    unsafe { copy_text(text, libc::strnlen(text, most)) }
}
