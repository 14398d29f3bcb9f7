//! What a marker is asked to scan: libgc's descriptors (`gc_mark.h`), since client mark procedures push them.
//!
//! | low bits | meaning |
//! |---|---|
//! | `..000` | the first `descriptor` bytes, conservatively (a length) |
//! | `..100` | the same, but interior pointers count whatever the policy: stacks and registers |
//! | `...01` | a bitmap: the highest bit stands for the first word, and so on down |
//! | `...10` | a mark procedure: `environment << 8 | procedure << 2 | 2` |
//! | `...11` | the descriptor is in the object: at `descriptor - 3` bytes from its base, or, negative, in its type |

use core::sync::atomic::{Ordering, fence};

/// A piece of work: where, and how to scan it. The layout is libgc's `GC_ms_entry`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Entry {
    /// First byte.
    pub start: *mut u8,
    /// See the module.
    pub descriptor: usize,
}

impl Entry {
    /// An entry for what begins at the address.
    #[inline(always)]
    pub fn at(start: usize, descriptor: usize) -> Self {
        Self { start: core::ptr::with_exposed_provenance_mut(start), descriptor }
    }

    /// The words of a length and, above all lengths that there are, its tag.
    #[inline(always)]
    pub fn words(self) -> usize {
        self.descriptor.rotate_right(3)
    }

    /// The first word.
    #[inline(always)]
    pub fn first(self) -> *const usize {
        self.start.cast::<usize>().cast_const()
    }
}

/// A client's mark procedure: scans the object at `start` and pushes what it refers to from `stack + 1` on; returns the
/// new top. Called on marker threads while the world is stopped.
pub type MarkProc =
    unsafe extern "C" fn(start: *mut usize, stack: *mut Entry, limit: *mut Entry, environment: usize) -> *mut Entry;

/// Mask of the tag.
pub const TAG: usize = 3;
/// A length.
pub const LENGTH: usize = 0;
/// A bitmap.
pub const BITMAP: usize = 1;
/// A mark procedure.
pub const PROC: usize = 2;
/// The descriptor is found through the object.
pub const PER_OBJECT: usize = 3;
/// With `LENGTH`: interior pointers always count.
pub const STACK: usize = 4;

/// How many mark procedures there can be (libgc's `GC_MAX_MARK_PROCS`).
pub const MAX_PROCS: usize = 1 << 6;

/// libgc's `GC_INDIR_PER_OBJ_BIAS`.
const INDIRECT_BIAS: isize = 16;

/// Finds the descriptor of an object whose kind says `PER_OBJECT`. Zero (scan nothing) while the object is not
/// initialised.
///
/// # Safety
/// `object` is the base of an allocated object that has the word, or the type pointer, where `descriptor` says.
pub unsafe fn resolve(object: *mut u8, descriptor: usize) -> usize {
    // ORDER births.zero: Acquire, with the fence of whoever has made the object's cell zero before it could be found.
    fence(Ordering::Acquire);
    let offset = (descriptor as isize) & !(TAG as isize);
    // SAFETY: the caller's promise.
    unsafe {
        if offset >= 0 {
            return object.offset(offset).cast::<usize>().read();
        }
        let kind = object.cast::<*mut u8>().read();
        if kind.is_null() {
            return 0;
        }
        kind.offset(-offset - INDIRECT_BIAS).cast::<usize>().read()
    }
}
