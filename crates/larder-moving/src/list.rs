//! A growable list in address space of its own: for the tables and stacks of the collector, which has no allocator.
//!
//! All of the room is reserved at the beginning and costs memory only where it was used.

use core::mem::size_of;

use larder_sys::memory::{self, ReserveError};
use larder_units::{Bytes, PAGE};

/// A list of plain values with a bound that was chosen when it was made.
pub(crate) struct List<T: Copy> {
    items: *mut T,
    len: usize,
    capacity: usize,
    /// The longest that it was since its memory was last given back.
    longest: usize,
}

// SAFETY: the memory behind `items` belongs to this list alone.
unsafe impl<T: Copy + Send> Send for List<T> {}
// SAFETY: as above; `&List` only reads.
unsafe impl<T: Copy + Sync> Sync for List<T> {}

impl<T: Copy> List<T> {
    /// An empty list with room for `capacity` values.
    pub fn with_capacity(capacity: usize) -> Result<Self, ReserveError> {
        let capacity = capacity.max(1);
        let items = memory::map_lazy(Bytes(capacity * size_of::<T>()).to_pages_rounded_up().to_bytes())?;
        Ok(Self { items: items.as_ptr().cast(), len: 0, capacity, longest: 0 })
    }

    /// A list without room, to stand for one that is used elsewhere meanwhile.
    pub const fn nowhere() -> Self {
        Self { items: core::ptr::dangling_mut(), len: 0, capacity: 0, longest: 0 }
    }

    /// Adds a value, or says that there is no room.
    #[inline(always)]
    pub fn try_push(&mut self, value: T) -> bool {
        if self.len == self.capacity {
            return false;
        }
        // SAFETY: below the capacity.
        unsafe { self.items.add(self.len).write(value) };
        self.len += 1;
        true
    }

    /// Adds a value to a list whose bound cannot be reached, or is an error of the process.
    #[inline(always)]
    pub fn push(&mut self, value: T) {
        if !self.try_push(value) {
            larder_sys::die!("a table of the moving heap is full ({} entries): make the heap larger", self.capacity);
        }
    }

    /// Takes the newest value.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        self.longest = self.longest.max(self.len);
        self.len -= 1;
        // SAFETY: below the old length.
        Some(unsafe { self.items.add(self.len).read() })
    }

    /// The values.
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: the first `len` values are written.
        unsafe { core::slice::from_raw_parts(self.items, self.len) }
    }

    /// The values, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and the list is borrowed whole.
        unsafe { core::slice::from_raw_parts_mut(self.items, self.len) }
    }

    /// Puts the values in order and keeps one of each.
    pub fn sort_and_dedup(&mut self)
    where
        T: Ord,
    {
        self.as_mut_slice().sort_unstable();
        let mut kept = 0;
        for i in 0..self.len {
            let values = self.as_mut_slice();
            if kept == 0 || values[i] != values[kept - 1] {
                values[kept] = values[i];
                kept += 1;
            }
        }
        self.truncate(kept);
    }

    /// How many there are.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Forgets the values from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.longest = self.longest.max(self.len);
        self.len = self.len.min(len);
    }

    /// Forgets all values, and gives memory back that only an exceptional collection needs.
    pub fn clear(&mut self) {
        const KEPT: usize = 256 << 10;
        self.truncate(0);
        let used = Bytes(self.longest * size_of::<T>()).to_pages_rounded_up().to_bytes().0;
        if used > KEPT {
            // SAFETY: whole pages of this list, which holds nothing.
            unsafe { memory::discard(self.items.cast::<u8>().add(KEPT), Bytes(used - KEPT)) };
        }
        self.longest = 0;
    }
}

impl<T: Copy> Drop for List<T> {
    fn drop(&mut self) {
        if self.capacity == 0 {
            return;
        }
        // SAFETY: the mapping is this list's own.
        unsafe {
            memory::unmap(self.items.cast(), Bytes(self.capacity * size_of::<T>()).to_pages_rounded_up().to_bytes())
        };
    }
}

/// A fixed table of values that are valid when all zero, in memory that is touched as needed.
pub(crate) struct Table<T> {
    items: *mut T,
    len: usize,
}

// SAFETY: a table is a shared slice of `T`.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Table<T> {}

/// Types of which all zeroes are a value.
///
/// # Safety
/// That is so.
pub(crate) unsafe trait Zero {}
// SAFETY: atomics of integers.
unsafe impl Zero for core::sync::atomic::AtomicU8 {}
// SAFETY: as above.
unsafe impl Zero for core::sync::atomic::AtomicU32 {}

impl<T: Zero> Table<T> {
    /// `len` zeroes.
    pub fn zeroed(len: usize) -> Result<Self, ReserveError> {
        const { assert!(align_of::<T>() <= PAGE.0) };
        let items = memory::map_lazy(Bytes(len.max(1) * size_of::<T>()).to_pages_rounded_up().to_bytes())?;
        Ok(Self { items: items.as_ptr().cast(), len })
    }
}

impl<T> core::ops::Deref for Table<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: mapped for `len` values, which are valid because they are zero or were written.
        unsafe { core::slice::from_raw_parts(self.items, self.len) }
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this table's own.
        unsafe {
            memory::unmap(self.items.cast(), Bytes(self.len.max(1) * size_of::<T>()).to_pages_rounded_up().to_bytes())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_last_in_first_out_and_knows_its_bound() {
        let mut list = List::with_capacity(3).unwrap();
        for n in 0..3 {
            assert!(list.try_push(n));
        }
        assert!(!list.try_push(9));
        assert_eq!((list.pop(), list.as_slice()), (Some(2), &[0, 1][..]));
        assert!(list.try_push(0));
        list.sort_and_dedup();
        assert_eq!(list.as_slice(), [0, 1]);
        list.truncate(1);
        assert_eq!(list.len(), 1);
        list.clear();
        assert_eq!(list.pop(), None);
    }

    #[test]
    fn a_list_that_was_long_gives_its_memory_back_and_works_again() {
        let mut list = List::with_capacity(1 << 20).unwrap();
        for n in 0..1usize << 20 {
            list.push(n);
        }
        list.clear();
        for n in 0..1usize << 20 {
            list.push(!n);
        }
        assert_eq!(list.as_slice()[777_777], !777_777);
    }
}
