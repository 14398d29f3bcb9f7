//! Questions about objects: base, size, kind, marks.

use core::ffi::{c_int, c_void};
use core::ptr;

use larder_fixed::object;

use crate::data::GC_all_interior_pointers;
use crate::debug::public_kind;

/// A function that is shown every reachable object: its base, its size, and the client's data.
pub type ReachableFn = unsafe extern "C" fn(*mut c_void, usize, *mut c_void);

/// The byte that each object has beyond what was asked for, so that a pointer past the end keeps it: 1 where all
/// interior pointers count, 0 where not. The variable may change: an object may have been allocated with or without it.
pub fn extra_byte() -> usize {
    usize::from(GC_all_interior_pointers.is_set())
}

/// The base of the object that an address lies in, null where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn GC_base(address: *mut c_void) -> *mut c_void {
    object::base(address.addr()).map_or(ptr::null_mut(), |base| address.with_addr(base))
}

/// Whether an address lies in the heap.
#[unsafe(no_mangle)]
pub extern "C" fn GC_is_heap_ptr(address: *const c_void) -> c_int {
    c_int::from(object::is_heap_pointer(address.addr()))
}

/// The size of the cell of an object, the extra byte included: 0 for an address that is in no object.
#[unsafe(no_mangle)]
pub extern "C" fn GC_size(object: *const c_void) -> usize {
    object::size_around(object.addr())
}

/// The kind of an object, and its size where `size` is not null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_get_kind_and_size(object: *const c_void, size: *mut usize) -> c_int {
    let base = object.addr();
    if !size.is_null() {
        // SAFETY: the caller's place for the size.
        unsafe { *size = object::size(base) };
    }
    public_kind(object::kind_of(base)) as c_int
}

/// The cell size for a request of `bytes` bytes, as far as libgc's table goes.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_size_map_at(bytes: c_int) -> usize {
    const LARGEST: usize = 2048;
    match usize::try_from(bytes) {
        Ok(bytes) if bytes <= LARGEST => object::size_for(bytes),
        _ => usize::MAX,
    }
}

/// Whether an object is marked. The caller holds the allocation lock.
#[unsafe(no_mangle)]
pub extern "C" fn GC_is_marked(object: *const c_void) -> c_int {
    c_int::from(object::is_marked(object.addr()))
}

/// Marks an object without marking what it refers to. The caller holds the allocation lock.
#[unsafe(no_mangle)]
pub extern "C" fn GC_set_mark_bit(object: *const c_void) {
    object::set_mark(object.addr());
}

/// Clears an object's mark. The caller holds the allocation lock.
#[unsafe(no_mangle)]
pub extern "C" fn GC_clear_mark_bit(object: *const c_void) {
    object::clear_mark(object.addr());
}

/// Shows every reachable object to `f`. The caller holds the allocation lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_enumerate_reachable_objects_inner(f: ReachableFn, data: *mut c_void) {
    object::for_each_reachable(&mut |base, size| {
        // SAFETY: the client's function, with the object that it expects.
        unsafe { f(ptr::with_exposed_provenance_mut(base), size, data) }
    });
}
