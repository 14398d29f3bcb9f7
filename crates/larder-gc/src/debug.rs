//! Debug allocation: the plain functions under other names.
//!
//! libgc puts a header before such an object and a guard after it, and checks them in each cycle. Here
//! [`GC_debug_header_size`] is 0 and nothing is checked: programs find the user's pointer from the base by that size,
//! so they work.

use core::ffi::{c_char, c_int, c_void};

use larder_fixed::kind;

use crate::alloc::{GC_free, GC_strdup, GC_strndup, allocate_or_exhausted};
use crate::data::GC_debug_header_size;
use crate::kinds::GC_generic_or_special_malloc;
use crate::pointer_check::GC_ptr_store_and_dirty;
use crate::realloc::GC_realloc;
use crate::roots::GC_register_displacement;

/// The bytes before the user's part of an object: none.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_debug_header_size() -> usize {
    GC_debug_header_size
}

macro_rules! debug_malloc {
    ($($name:ident => $kind:expr,)*) => {
        $(
            /// Allocates as the function without `debug` in its name does.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name(bytes: usize, _file: *const c_char, _line: c_int) -> *mut c_void {
                allocate_or_exhausted($kind, bytes)
            }
        )*
    };
}

debug_malloc! {
    GC_debug_malloc => kind::NORMAL,
    GC_debug_malloc_atomic => kind::POINTER_FREE,
    GC_debug_malloc_uncollectable => kind::UNCOLLECTABLE,
    GC_debug_malloc_atomic_uncollectable => kind::POINTER_FREE_UNCOLLECTABLE,
    GC_debug_malloc_stubborn => kind::NORMAL,
    GC_debug_malloc_ignore_off_page => kind::NORMAL,
    GC_debug_malloc_atomic_ignore_off_page => kind::POINTER_FREE,
}

/// Allocates an object of the kind of another one.
#[unsafe(no_mangle)]
pub extern "C" fn GC_debug_generic_or_special_malloc(
    bytes: usize,
    kind: c_int,
    _file: *const c_char,
    _line: c_int,
) -> *mut c_void {
    GC_generic_or_special_malloc(bytes, kind)
}

/// Stands in for `malloc`.
#[unsafe(no_mangle)]
pub extern "C" fn GC_debug_malloc_replacement(bytes: usize) -> *mut c_void {
    allocate_or_exhausted(kind::NORMAL, bytes)
}

/// Stands in for `realloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_debug_realloc_replacement(object: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: passed on as they came.
    unsafe { GC_realloc(object, bytes) }
}

/// Changes an object's size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_debug_realloc(
    object: *mut c_void,
    bytes: usize,
    _file: *const c_char,
    _line: c_int,
) -> *mut c_void {
    // SAFETY: passed on as they came.
    unsafe { GC_realloc(object, bytes) }
}

/// Frees an object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_debug_free(object: *mut c_void) {
    // SAFETY: passed on as it came.
    unsafe { GC_free(object) }
}

/// Copies a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_debug_strdup(text: *const c_char, _file: *const c_char, _line: c_int) -> *mut c_char {
    // SAFETY: passed on as it came.
    unsafe { GC_strdup(text) }
}

/// Copies the beginning of a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_debug_strndup(
    text: *const c_char,
    most: usize,
    _file: *const c_char,
    _line: c_int,
) -> *mut c_char {
    // SAFETY: passed on as they came.
    unsafe { GC_strndup(text, most) }
}

/// Makes a pointer that many bytes into an object count.
#[unsafe(no_mangle)]
pub extern "C" fn GC_debug_register_displacement(bytes: usize) {
    GC_register_displacement(bytes);
}

/// Stores a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_debug_ptr_store_and_dirty(into: *mut c_void, value: *const c_void) {
    // SAFETY: passed on as they came.
    unsafe { GC_ptr_store_and_dirty(into, value) }
}

/// Exists for old clients.
#[unsafe(no_mangle)]
pub extern "C" fn GC_debug_change_stubborn(_object: *const c_void) {}

/// Tells of a change in an object: nothing needs to know.
#[unsafe(no_mangle)]
pub extern "C" fn GC_debug_end_stubborn_change(_object: *const c_void) {}
