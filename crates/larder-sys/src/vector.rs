//! A vector in memory of its own from the kernel: for what must be listed while the world is stopped, when neither the
//! process's allocator nor the heap can be asked.

use core::ptr::{self, NonNull};

use larder_units::Bytes;

use crate::memory::{ReserveError, map_lazy, unmap};

/// Entries of the first mapping.
const FIRST: usize = 512;

/// Values in a row. Its owner brings the lock.
///
/// Invariant: `at` is a mapping with room for `capacity` values, of which the first `used` are written; or `capacity` is 0.
pub struct Vector<T: Copy> {
    at: NonNull<T>,
    used: usize,
    capacity: usize,
}

// SAFETY: the vector owns its values.
unsafe impl<T: Copy + Send> Send for Vector<T> {}

impl<T: Copy> Vector<T> {
    /// An empty vector, which has no memory yet.
    pub const fn new() -> Self {
        Self { at: NonNull::dangling(), used: 0, capacity: 0 }
    }

    fn mapped(capacity: usize) -> Bytes {
        Bytes(capacity * size_of::<T>()).to_pages_rounded_up().to_bytes()
    }

    /// Adds a value at the end. On failure the vector is as it was.
    pub fn push(&mut self, value: T) -> Result<(), ReserveError> {
        if self.used == self.capacity {
            let capacity = (self.capacity * 2).max(FIRST);
            let larger = map_lazy(Self::mapped(capacity))?.cast::<T>();
            // SAFETY: the first `used` values are written, and the new mapping is larger.
            unsafe { ptr::copy_nonoverlapping(self.at.as_ptr(), larger.as_ptr(), self.used) };
            self.release();
            (self.at, self.capacity) = (larger, capacity);
        }
        // SAFETY: `used` is below the capacity.
        unsafe { self.at.add(self.used).write(value) };
        self.used += 1;
        Ok(())
    }

    /// The values.
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: the first `used` values are written; a dangling pointer is fine for none.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.used) }
    }

    /// The values, to be changed or put in order.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and the vector is borrowed alone.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.used) }
    }

    /// Takes the last value.
    pub fn pop(&mut self) -> Option<T> {
        let last = self.as_slice().last().copied();
        self.used -= usize::from(last.is_some());
        last
    }

    /// Forgets all values and gives the memory back.
    pub fn clear(&mut self) {
        self.release();
        *self = Self::new();
    }

    fn release(&self) {
        if self.capacity > 0 {
            // SAFETY: the invariant: the whole mapping, which is replaced or forgotten by the caller.
            unsafe { unmap(self.at.as_ptr().cast(), Self::mapped(self.capacity)) };
        }
    }
}

impl<T: Copy> Default for Vector<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_in_order_while_it_grows() {
        let mut v = Vector::new();
        assert_eq!(v.as_slice(), []);
        assert_eq!(v.pop(), None);
        for i in 0..10 * FIRST {
            v.push(i).unwrap();
        }
        assert!(v.as_slice().iter().copied().eq(0..10 * FIRST));
        v.as_mut_slice()[3] = 4;
        assert_eq!(v.as_slice()[2..5], [2, 4, 4]);
        assert_eq!(v.pop(), Some(10 * FIRST - 1));
        v.clear();
        assert_eq!(v.as_slice(), []);
        v.push(7).unwrap();
        assert_eq!(v.as_slice(), [7]);
        v.clear();
    }
}
