//! Checked pointer arithmetic: for programs whose compiler or preprocessor inserts these calls.

use core::ffi::c_void;

use larder_fixed::object;

use crate::callbacks::abort;
use crate::data::{
    GC_all_interior_pointers, GC_is_valid_displacement_print_proc, GC_is_visible_print_proc, GC_same_obj_print_proc,
};

pub type SameObjectPrinter = unsafe extern "C" fn(*mut c_void, *mut c_void);
pub type PointerPrinter = unsafe extern "C" fn(*mut c_void);

/// The first `GC_same_obj_print_proc`.
pub unsafe extern "C" fn not_the_same(_p: *mut c_void, _q: *mut c_void) {
    abort(c"GC_same_obj test failed")
}

/// The first `GC_is_valid_displacement_print_proc`.
pub unsafe extern "C" fn invalid_displacement(_p: *mut c_void) {
    abort(c"GC_is_valid_displacement test failed")
}

/// The first `GC_is_visible_print_proc`.
pub unsafe extern "C" fn not_visible(_p: *mut c_void) {
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

/// Checks that an address in the heap lies in an object; returns it.
#[unsafe(no_mangle)]
pub extern "C" fn GC_is_valid_displacement(p: *mut c_void) -> *mut c_void {
    if object::is_heap_pointer(p.addr())
        && object::base(p.addr()).is_none()
        && let Some(report) = GC_is_valid_displacement_print_proc.get()
    {
        // SAFETY: the client's function or ours, which takes any address.
        unsafe { report(p) }
    }
    p
}

/// Checks that a place is aligned, so that a pointer in it is seen; returns it. libgc also looks for the place on
/// stacks and in roots, and says that it may err on the side of success.
#[unsafe(no_mangle)]
pub extern "C" fn GC_is_visible(p: *mut c_void) -> *mut c_void {
    if !p.cast::<*mut c_void>().is_aligned()
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

/// Stores a pointer. There is no barrier to tell: cycles stop the world.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_ptr_store_and_dirty(into: *mut c_void, value: *const c_void) {
    // SAFETY: the caller's place.
    unsafe { *into.cast::<*const c_void>() = value };
}

/// Tells of a change in an object: nothing needs to know.
#[unsafe(no_mangle)]
pub extern "C" fn GC_end_stubborn_change(_object: *const c_void) {}

/// Exists for old clients.
#[unsafe(no_mangle)]
pub extern "C" fn GC_change_stubborn(_object: *const c_void) {}
