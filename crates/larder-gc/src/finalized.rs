//! `GC_finalized_malloc`: objects that come with their finalizer.
//!
//! libgc gives them a kind of their own whose objects are finalized as they are swept. Here the word before the
//! object holds the closure, as there, and an ordinary unordered finalizer on the whole calls it: what the client
//! sees differs only in that the memory is reclaimed a cycle later.

use core::ffi::c_void;
use core::ptr;

use larder_fixed::finalization::{FinalizerFn, Order};
use larder_fixed::{kind, roots};

use crate::alloc::allocate_or_exhausted;
use crate::finalize::register;

/// The word before the object.
const HEADER: usize = size_of::<*const Closure>();

/// What is to be called, and with what.
#[repr(C)]
pub struct Closure {
    finalizer: Option<FinalizerFn>,
    data: *mut c_void,
}

/// Prepares for [`GC_finalized_malloc`]: pointers to its objects are one word into a cell.
#[unsafe(no_mangle)]
pub extern "C" fn GC_init_finalized_malloc() {
    crate::init::GC_init();
    roots::register_displacement(HEADER);
}

/// Allocates an object that `closure` finalizes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_finalized_malloc(bytes: usize, closure: *const Closure) -> *mut c_void {
    let base = allocate_or_exhausted(kind::NORMAL, bytes.saturating_add(HEADER));
    if base.is_null() {
        return base;
    }
    // SAFETY: the first word of the new object; nobody wants to know an old finalizer.
    unsafe {
        *base.cast::<*const Closure>() = closure;
        register(base, Some(run), closure.cast_mut().cast(), ptr::null_mut(), ptr::null_mut(), Order::NoOrder);
        base.byte_add(HEADER)
    }
}

unsafe extern "C" fn run(base: *mut c_void, closure: *mut c_void) {
    // SAFETY: registered above with a closure that the client keeps valid, and kept alive as the finalizer's data
    // where it is in the heap.
    unsafe {
        let closure = &*closure.cast::<Closure>();
        if let Some(finalizer) = closure.finalizer {
            finalizer(base.byte_add(HEADER), closure.data);
        }
    }
}
