//! `gc_disclaim.h`: functions that are asked before dead objects of a kind are reclaimed, and objects that come with
//! their finalizer, which are built on them.

use core::ffi::{c_int, c_void};

use larder_fixed::disclaim::{self, DisclaimFn};
use larder_fixed::finalization::FinalizerFn;
use larder_fixed::{kind, roots};

use crate::alloc::allocate_or_exhausted;
use crate::callbacks::abort;
use crate::data::{GC_find_leak, Int};
use crate::kinds::known;

/// Sets the function that is asked about dead objects of a kind: anything but 0 keeps the object for another cycle. With
/// `mark_from_all`, what such objects refer to is kept for the function to see. Nothing happens in the leak-finding
/// mode.
#[unsafe(no_mangle)]
pub extern "C" fn GC_register_disclaim_proc(kind: c_int, ask: Option<DisclaimFn>, mark_from_all: c_int) {
    let Some(ask) = ask else { abort(c"Bad arg to GC_register_disclaim_proc") };
    crate::init::GC_init();
    if !GC_find_leak.is_set() {
        disclaim::register(known(kind), ask, mark_from_all != 0);
    }
}

/// The word before an object of [`GC_finalized_malloc`]: the address of its closure, plus one.
const HEADER: usize = size_of::<usize>();
/// What tells a closure from the link of a list of free cells.
const TAG: usize = 1;

/// The kind of such objects, 0 until it is made. Sync: set once, by whoever has [`MAKING`].
static KIND: Int = Int::new(0);
static MAKING: Int = Int::new(0);

/// What is to be called, and with what.
#[repr(C)]
pub struct Closure {
    finalizer: Option<FinalizerFn>,
    data: *mut c_void,
}

/// Prepares for [`GC_finalized_malloc`]. Any number of times, from any thread.
#[unsafe(no_mangle)]
pub extern "C" fn GC_init_finalized_malloc() {
    crate::init::GC_init();
    if !MAKING.set_if_zero() {
        while !KIND.is_set() {
            larder_sys::thread::yield_now();
        }
        return;
    }
    roots::register_displacement(HEADER);
    // The closure itself may lie in the heap, and then keeps its object by this pointer only.
    roots::register_displacement(TAG);
    let Some(kind) = kind::new_kind(0, true, true) else { abort(c"Too many kinds") };
    GC_register_disclaim_proc(kind as c_int, Some(finalize), 1);
    KIND.set(kind as c_int);
}

/// Allocates an object that `closure` finalizes when it is reclaimed.
#[unsafe(no_mangle)]
pub extern "C" fn GC_finalized_malloc(bytes: usize, closure: *const Closure) -> *mut c_void {
    if !KIND.is_set() {
        GC_init_finalized_malloc();
    }
    let base = allocate_or_exhausted(KIND.get() as usize, bytes.saturating_add(HEADER));
    if base.is_null() {
        return base;
    }
    // SAFETY: the first word of the new object.
    unsafe {
        *base.cast::<*const Closure>() = closure.wrapping_byte_add(TAG);
        base.byte_add(HEADER)
    }
}

/// Asked about a dead object: finalizes it, and gives it up.
unsafe extern "C" fn finalize(base: *mut c_void) -> c_int {
    // SAFETY: an object of the kind; a closure that the client keeps valid, and that marking from the object has kept where
    // it is in the heap.
    unsafe {
        let closure = base.cast::<*const Closure>().read();
        if closure.addr() & TAG != 0
            && let Closure { finalizer: Some(f), data } = closure.wrapping_byte_sub(TAG).read()
        {
            f(base.byte_add(HEADER), data);
        }
    }
    0
}
