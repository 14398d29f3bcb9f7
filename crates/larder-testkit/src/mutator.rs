//! What a mutator of a test does: objects that only its stack keeps, garbage, and a look at each in the end.

use core::ptr;

use larder_fixed::{allocate, kind, object};

use crate::pattern;

/// Bytes of what [`life`] returns.
pub const RESULT: usize = 200;

/// A fresh object with the pattern `id`.
pub fn object_of(id: u64, bytes: usize) -> *mut u8 {
    // SAFETY: the caller's frame keeps the object.
    unsafe {
        let at = allocate(kind::NORMAL, bytes);
        assert!(!at.is_null());
        assert_eq!(pattern::first_set(at, object::size(at.addr())), None);
        pattern::fill(at, 0, bytes, id);
        at
    }
}

/// Stops the test if there is no object at `at`, or not as [`object_of`] made it.
pub fn check(at: *const u8, bytes: usize, id: u64) {
    assert_eq!(object::base(at.addr()), Some(at.addr()), "object of thread {id}");
    let object = ptr::with_exposed_provenance(at.expose_provenance());
    // SAFETY: alive, as was just seen.
    unsafe { pattern::check(object, 0, bytes, id) };
}

/// Makes objects, checks them, and returns one more, of [`RESULT`] bytes.
#[inline(never)]
pub fn life(id: u64) -> *mut u8 {
    let mut own = [ptr::null_mut(); 6];
    for (i, o) in own.iter_mut().enumerate() {
        *o = object_of(id * 8 + i as u64, 40 + 300 * i);
    }
    for _ in 0..40 {
        core::hint::black_box(object_of(id, 120));
    }
    for (i, o) in own.iter().enumerate() {
        check(*o, 40 + 300 * i, id * 8 + i as u64);
    }
    core::hint::black_box(&own);
    object_of(id, RESULT)
}
