//! Checked pointer arithmetic: for programs whose compiler or preprocessor inserts these calls.

use core::ffi::c_void;

use larder_fixed::{barrier, kind, object, roots};

use crate::callbacks::abort;
use crate::data::{
    GC_all_interior_pointers, GC_is_valid_displacement_print_proc, GC_is_visible_print_proc, GC_same_obj_print_proc,
};
use crate::error_line;

pub type SameObjectPrinter = unsafe extern "C" fn(*mut c_void, *mut c_void);
pub type PointerPrinter = unsafe extern "C" fn(*mut c_void);

/// The first `GC_same_obj_print_proc`.
pub unsafe extern "C" fn not_the_same(p: *mut c_void, q: *mut c_void) {
    error_line!("GC_same_obj test failed: {p:p} and {q:p} are not in the same object");
    abort(c"GC_same_obj test failed")
}

/// The first `GC_is_valid_displacement_print_proc`.
pub unsafe extern "C" fn invalid_displacement(p: *mut c_void) {
    error_line!("GC_is_valid_displacement test failed: {p:p} not valid");
    abort(c"GC_is_valid_displacement test failed")
}

/// The first `GC_is_visible_print_proc`.
pub unsafe extern "C" fn not_visible(p: *mut c_void) {
    error_line!("GC_is_visible test failed: {p:p} not GC-visible");
    abort(c"GC_is_visible test failed")
}

/// Checks that two addresses lie in the same object, or neither in the heap; returns the first.
#[unsafe(no_mangle)]
pub extern "C" fn GC_same_obj(p: *mut c_void, q: *mut c_void) -> *mut c_void {
    if object::base(p.addr()) != object::base(q.addr())
        && let Some(report) = GC_same_obj_print_proc.get()
    {
        // SAFETY: the client's function or ours, which takes any two addresses.
        unsafe { report(p, q) }
    }
    p
}

/// Checks that an address in the heap keeps an object: that it lies in one, and, where not all interior pointers count, at
/// its start or a registered distance from it. Returns it.
#[unsafe(no_mangle)]
pub extern "C" fn GC_is_valid_displacement(p: *mut c_void) -> *mut c_void {
    let is_valid = |base| roots::displacement_is_valid(p.addr() - base);
    if object::is_heap_pointer(p.addr())
        && !object::base(p.addr()).is_some_and(is_valid)
        && let Some(report) = GC_is_valid_displacement_print_proc.get()
    {
        // SAFETY: the client's function or ours, which takes any address.
        unsafe { report(p) }
    }
    p
}

/// Checks that a pointer stored at a place is seen: that the place is aligned and, if it lies in the heap, that it lies in
/// an object that is scanned. Returns it. Other places may be on a stack or in a registered range; like libgc with threads,
/// this errs on the side of success.
#[unsafe(no_mangle)]
pub extern "C" fn GC_is_visible(p: *mut c_void) -> *mut c_void {
    let hidden = || {
        object::is_heap_pointer(p.addr())
            && object::base(p.addr()).is_none_or(|base| kind::is_pointer_free(object::kind_of(base)))
    };
    if (!p.cast::<*mut c_void>().is_aligned() || hidden())
        && let Some(report) = GC_is_visible_print_proc.get()
    {
        // SAFETY: the client's function or ours, which takes any address.
        unsafe { report(p) }
    }
    p
}

/// The pointer moved by `bytes`, checked.
fn moved(from: *mut c_void, bytes: isize) -> *mut c_void {
    let to = GC_same_obj(from.wrapping_byte_offset(bytes), from);
    if GC_all_interior_pointers.is_set() { to } else { GC_is_valid_displacement(to) }
}

/// Adds bytes to a pointer and returns the sum, checked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_pre_incr(pointer: *mut *mut c_void, bytes: isize) -> *mut c_void {
    // SAFETY: the caller's pointer variable.
    unsafe {
        *pointer = moved(*pointer, bytes);
        *pointer
    }
}

/// Adds bytes to a pointer, checked, and returns what it was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_post_incr(pointer: *mut *mut c_void, bytes: isize) -> *mut c_void {
    // SAFETY: the caller's pointer variable.
    unsafe {
        let was = *pointer;
        *pointer = moved(was, bytes);
        was
    }
}

/// Stores a pointer, and tells a cycle that marks beside the program where `LARDER_WATCH` has chosen the barrier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_ptr_store_and_dirty(into: *mut c_void, value: *const c_void) {
    // SAFETY: the caller's place.
    unsafe { barrier::store(into.cast(), value.expose_provenance()) };
}

/// Tells of a change in an object (named by its base) or in a word (by its address), as [`GC_ptr_store_and_dirty`] does. The
/// caller keeps what it stored until this returns.
#[unsafe(no_mangle)]
pub extern "C" fn GC_end_stubborn_change(object: *const c_void) {
    barrier::written(object.addr());
}

/// Exists for old clients.
#[unsafe(no_mangle)]
pub extern "C" fn GC_change_stubborn(_object: *const c_void) {}
