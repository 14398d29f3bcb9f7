//! `GC_realloc`, by libgc's rules: stay in place while the new size fits, for a large object into its last block, and is at least half of the old one.

use core::ffi::c_void;
use core::ptr;

use larder_fixed::{barrier, kind, object, roots};

use crate::alloc::{GC_free, GC_malloc, allocate_or_exhausted, allocate_uncollectable};
use crate::callbacks::abort;
use crate::data::GC_non_gc_bytes;
use crate::object::extra_byte;

/// Changes an object's size, moving it where it must; null without memory, and then the object is untouched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_realloc(old: *mut c_void, bytes: usize) -> *mut c_void {
    if old.is_null() {
        return GC_malloc(bytes);
    }
    if bytes == 0 {
        // SAFETY: the caller gives the object up.
        unsafe { GC_free(old) };
        return ptr::null_mut();
    }
    let Some(base) = object::base(old.addr()) else { abort(c"Bad argument to GC_realloc: not an object") };
    // An aligned object begins inside of its cell, and has what is left of it.
    let inside = old.addr() - base;
    let (size, kind) = (object::size(base) - inside, object::kind_of(base));
    if bytes.saturating_add(extra_byte()) <= size && bytes >= size / 2 {
        if !kind::is_pointer_free(kind) {
            barrier::vanishes(old.addr() + bytes, old.addr() + size);
            // A later growth within the cell must show zeroes, and what was cut off must keep nothing alive.
            // SAFETY: the object has `size` bytes and is the caller's.
            unsafe { ptr::write_bytes(old.cast::<u8>().add(bytes), 0, size - bytes) };
        }
        return old;
    }
    // One that grows a little at a time would be copied each time, and its garbage bring cycles.
    // SAFETY: the object is the caller's.
    if inside == 0 && bytes > size / 2 && unsafe { object::extend(base, bytes) } {
        if kind::uncollectable(kind) {
            GC_non_gc_bytes.add(object::size(base) - size);
        }
        return old;
    }
    // Moving frees it.
    if inside != 0 && !roots::is_valid_displacement(inside) {
        abort(c"Bad argument to GC_realloc: inside of an object, and not at its start");
    }
    let new = if kind::uncollectable(kind) {
        allocate_uncollectable(kind, bytes)
    } else {
        allocate_or_exhausted(kind, bytes)
    };
    if object::base(new.addr()) != Some(new.addr()) {
        // Nothing, or what the client's function has for this case.
        return new;
    }
    // SAFETY: both objects have that many bytes, they are different ones, and the old one is the caller's to give up.
    unsafe {
        ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast(), bytes.min(size));
        barrier::written(new.addr());
        GC_free(old);
    }
    new
}
