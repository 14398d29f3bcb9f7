//! Metadata from the kernel: a bump allocator over private mappings that never gives anything back.
//!
//! It takes `&mut self`: its owner brings the lock. Memory is zeroed. Owners that need to free keep free lists.

use core::ptr::NonNull;

use larder_units::Bytes;

use crate::memory::{ReserveError, map_lazy};

/// How much is mapped at a time. Untouched pages cost nothing.
const CHUNK: Bytes = Bytes(256 * 1024);

/// A bump allocator for metadata.
pub struct Arena {
    next: *mut u8,
    end: *mut u8,
}

// SAFETY: the two pointers are only used through `&mut self`, and the memory behind them is the arena's alone.
unsafe impl Send for Arena {}

impl Arena {
    /// An arena that holds nothing yet.
    pub const fn new() -> Self {
        Self { next: core::ptr::null_mut(), end: core::ptr::null_mut() }
    }

    /// Zeroed memory of `size` bytes, aligned to `align` (a power of two of at most a page).
    pub fn allocate(&mut self, size: Bytes, align: Bytes) -> Result<NonNull<u8>, ReserveError> {
        let mut at = self.next.map_addr(|a| a.next_multiple_of(align.0));
        if self.next.is_null() || at.addr() + size.0 > self.end.addr() {
            let chunk = Bytes(size.0.max(CHUNK.0)).to_pages_rounded_up().to_bytes();
            at = map_lazy(chunk)?.as_ptr();
            // SAFETY: the end of the mapping just made.
            self.end = unsafe { at.add(chunk.0) };
        }
        // SAFETY: the check above leaves `size` bytes between `at` and `end`.
        self.next = unsafe { at.add(size.0) };
        Ok(NonNull::new(at).expect("a mapping is not null"))
    }

    /// A zeroed `T`. The caller sees to it that all zeroes are a valid `T`, or initialises it.
    pub fn allocate_one<T>(&mut self) -> Result<NonNull<T>, ReserveError> {
        Ok(self.allocate(Bytes(size_of::<T>()), Bytes(align_of::<T>()))?.cast())
    }
}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_zero_and_apart() {
        let mut arena = Arena::new();
        let mut last = 0;
        for i in 1..5000 {
            let p = arena.allocate(Bytes(i % 300 + 1), Bytes(64)).unwrap();
            assert_eq!(p.as_ptr().addr() % 64, 0);
            assert!(p.as_ptr().addr() != last);
            // SAFETY: the piece is this test's own.
            unsafe {
                assert_eq!(*p.as_ptr().add(i % 300), 0);
                core::ptr::write_bytes(p.as_ptr(), 0xff, i % 300 + 1);
            }
            last = p.as_ptr().addr();
        }
        assert!(arena.allocate(Bytes::mib(3), Bytes(16)).is_ok());
    }
}
