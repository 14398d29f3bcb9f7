//! Disappearing links: words that are cleared when an object dies. Long links wait until no finalizer can bring it
//! back.

use core::ffi::{c_int, c_void};

use larder_fixed::finalization::{self, Moved, NoMemory, Registered};
use larder_fixed::object;

use crate::alloc::out_of_memory_slow;
use crate::callbacks::abort;
use crate::data::GC_find_leak;

const SUCCESS: c_int = 0;
const DUPLICATE: c_int = 1;
const NO_MEMORY: c_int = 2;
const UNIMPLEMENTED: c_int = 3;
const NOT_FOUND: c_int = 4;

type Link = *mut *mut c_void;

fn result(registered: Result<Registered, NoMemory>) -> c_int {
    match registered {
        Ok(Registered::New) => SUCCESS,
        Ok(Registered::Duplicate) => DUPLICATE,
        Err(NoMemory) => {
            out_of_memory_slow(size_of::<[usize; 2]>());
            NO_MEMORY
        }
    }
}

fn moved(moved: Moved) -> c_int {
    match moved {
        Moved::Done => SUCCESS,
        Moved::Duplicate => DUPLICATE,
        Moved::NotFound => NOT_FOUND,
    }
}

fn is_usable(link: Link) -> bool {
    !link.is_null() && link.is_aligned()
}

/// Registers a link that lies in the object that it depends on.
#[unsafe(no_mangle)]
pub extern "C" fn GC_register_disappearing_link(link: Link) -> c_int {
    match object::base(link.addr()) {
        Some(base) if is_usable(link) => register(link, base),
        _ => abort(c"Bad arg to GC_register_disappearing_link"),
    }
}

/// Registers a link that is cleared when `object` becomes unreachable.
#[unsafe(no_mangle)]
pub extern "C" fn GC_general_register_disappearing_link(link: Link, object: *const c_void) -> c_int {
    if !is_usable(link) {
        abort(c"Bad arg to GC_general_register_disappearing_link");
    }
    register(link, object.addr())
}

fn register(link: Link, object: usize) -> c_int {
    if GC_find_leak.is_set() {
        return UNIMPLEMENTED;
    }
    result(finalization::register_link(link.addr(), object))
}

/// Forgets a link; returns whether there was one.
#[unsafe(no_mangle)]
pub extern "C" fn GC_unregister_disappearing_link(link: Link) -> c_int {
    c_int::from(is_usable(link) && finalization::unregister_link(link.addr()))
}

/// Moves a registered link to another place.
#[unsafe(no_mangle)]
pub extern "C" fn GC_move_disappearing_link(from: Link, to: Link) -> c_int {
    if !is_usable(to) {
        abort(c"Bad new_link arg to GC_move_disappearing_link");
    }
    if !is_usable(from) {
        return NOT_FOUND;
    }
    moved(finalization::move_link(from.addr(), to.addr()))
}

/// Registers a link that is cleared when `object` is gone for good.
#[unsafe(no_mangle)]
pub extern "C" fn GC_register_long_link(link: Link, object: *const c_void) -> c_int {
    if !is_usable(link) {
        abort(c"Bad arg to GC_register_long_link");
    }
    if GC_find_leak.is_set() {
        return UNIMPLEMENTED;
    }
    result(finalization::register_long_link(link.addr(), object.addr()))
}

/// Forgets a long link; returns whether there was one.
#[unsafe(no_mangle)]
pub extern "C" fn GC_unregister_long_link(link: Link) -> c_int {
    c_int::from(is_usable(link) && finalization::unregister_long_link(link.addr()))
}

/// Moves a registered long link to another place.
#[unsafe(no_mangle)]
pub extern "C" fn GC_move_long_link(from: Link, to: Link) -> c_int {
    if !is_usable(to) {
        abort(c"Bad new_link arg to GC_move_long_link");
    }
    if !is_usable(from) {
        return NOT_FOUND;
    }
    moved(finalization::move_long_link(from.addr(), to.addr()))
}
