//! Finalizers, in four orders.

use core::ffi::{c_int, c_void};
use core::ptr;

use larder_fixed::finalization::{self, FinalizerFn, Order};
use larder_fixed::object;

use crate::alloc::out_of_memory_slow;
use crate::callbacks::{GC_get_toggleref_func, abort};
use crate::data::GC_find_leak;

const SUCCESS: c_int = 0;
const NO_MEMORY: c_int = 2;

/// Where a caller wants to know the finalizer that there was.
pub type OldFinalizer = *mut Option<FinalizerFn>;

/// Registers, replaces or removes an object's finalizer.
///
/// # Safety
/// `old` and `old_data` are null or places for the results.
pub unsafe fn register(
    object: *mut c_void,
    finalizer: Option<FinalizerFn>,
    data: *mut c_void,
    old: OldFinalizer,
    old_data: *mut *mut c_void,
    order: Order,
) {
    if GC_find_leak.is_set() {
        return;
    }
    let previous = if object::is_heap_pointer(object.addr()) {
        finalization::register(object.addr(), finalizer, data.expose_provenance(), order)
    } else {
        // What is not in the heap never dies; libgc ignores the call but answers it.
        Ok((None, 0))
    };
    match previous {
        Ok((finalizer, data)) => {
            // SAFETY: null or the caller's places.
            unsafe {
                if !old.is_null() {
                    *old = finalizer;
                }
                if !old_data.is_null() {
                    *old_data = ptr::with_exposed_provenance_mut(data);
                }
            }
        }
        // The results stay unchanged, which is how the caller can tell.
        Err(_) => _ = out_of_memory_slow(size_of::<[usize; 4]>()),
    }
}

macro_rules! register_function {
    ($(#[$doc:meta])* $name:ident => $order:expr) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            object: *mut c_void,
            finalizer: Option<FinalizerFn>,
            data: *mut c_void,
            old: OldFinalizer,
            old_data: *mut *mut c_void,
        ) {
            // SAFETY: null or the caller's places.
            unsafe { register(object, finalizer, data, old, old_data, $order) }
        }
    };
}

register_function! {
    /// Registers a finalizer that runs before those of the objects that its object refers to.
    GC_register_finalizer => Order::Normal
}
register_function! {
    /// As [`GC_register_finalizer`], but pointers from the object to itself do not keep it.
    GC_register_finalizer_ignore_self => Order::IgnoreSelf
}
register_function! {
    /// Registers a finalizer that runs when its object is unreachable, whatever else is.
    GC_register_finalizer_no_order => Order::NoOrder
}
register_function! {
    /// Registers a finalizer that runs when not even another finalizer can reach its object.
    GC_register_finalizer_unreachable => Order::Unreachable
}
/// Whether [`GC_invoke_finalizers`] has something to do.
#[unsafe(no_mangle)]
pub extern "C" fn GC_should_invoke_finalizers() -> c_int {
    c_int::from(finalization::ready() != 0)
}

/// Runs the finalizers that wait, on this thread; returns how many.
#[unsafe(no_mangle)]
pub extern "C" fn GC_invoke_finalizers() -> c_int {
    c_int::try_from(finalization::invoke()).unwrap_or(c_int::MAX)
}

/// Runs all finalizers, those of reachable objects too.
#[unsafe(no_mangle)]
pub extern "C" fn GC_finalize_all() {
    finalization::finalize_all();
}

/// Registers an object whose reference the client makes strong or weak before each cycle, by the function of
/// `GC_set_toggleref_func`; without one nothing happens.
#[unsafe(no_mangle)]
pub extern "C" fn GC_toggleref_add(object: *mut c_void, is_strong: c_int) -> c_int {
    if GC_get_toggleref_func().is_none() {
        return SUCCESS;
    }
    let Some(base) = object::base(object.addr()).filter(|&base| base == object.addr()) else {
        abort(c"Bad arg to GC_toggleref_add: not the start of an object")
    };
    match finalization::add_toggle(base, is_strong != 0) {
        Ok(()) => SUCCESS,
        Err(_) => {
            out_of_memory_slow(size_of::<usize>());
            NO_MEMORY
        }
    }
}
