//! The thesis's work list (section 3.4.2): one stack, whose lower part is public.
//!
//! A watermark lies between bottom and top. What is above belongs to the owner, who pushes and pops there without a lock; what is below
//! is public, and thieves take the entry at the bottom under the lock. When either part is empty, the owner moves the watermark to
//! the centre. Only the ends are here: the entries are the owner's stack, by number.

use crate::atomic::{AtomicU64, Ordering};
use crate::lock::Lock;
use core::fmt;

/// Where the public part of a stack begins and ends.
///
/// Always true: `bottom <= mark`; entries below the mark are touched under the lock only, entries from the mark on by the owner only;
/// only the owner moves the mark, only thieves move the bottom, except when the owner finds the whole stack empty and both become 0.
pub struct Watermark {
    /// Guards the ends and the public entries.
    guard: Lock,
    /// `bottom << 32 | mark`, in one word, so that a glance without the lock sees two ends that belong together.
    ///
    /// Sync: written under `guard`; `watermark.glance`.
    ends: AtomicU64,
}

impl Watermark {
    const_unless_loom! {
        /// Of an empty stack.
        pub fn new() -> Self {
            Self { guard: Lock::new(), ends: AtomicU64::new(0) }
        }
    }

    fn ends(&self) -> (usize, usize) {
        // ORDER watermark.glance: Acquire, with the store in `set`, for readers without the lock, as `Deque::len`.
        let both = self.ends.load(Ordering::Acquire);
        ((both >> 32) as usize, both as u32 as usize)
    }

    fn set(&self, bottom: usize, mark: usize) {
        // ORDER watermark.glance: Release, with the load in `ends`.
        self.ends.store((bottom as u64) << 32 | mark as u64, Ordering::Release);
    }

    /// Moves the watermark to the centre between bottom and `top`, the number of the first entry above the stack, and returns it: the
    /// owner's entries begin there. A single entry is the owner's. `None` where there is none at all: everything begins at 0 again.
    ///
    /// # Safety
    /// The caller is the owner, its entries up to `top` are written, and `top` is below 2^32.
    pub unsafe fn centre(&self, top: usize) -> Option<usize> {
        let _guard = self.guard.lock();
        let (bottom, _) = self.ends();
        if bottom == top {
            self.set(0, 0);
            return None;
        }
        let mark = bottom + (top - bottom) / 2;
        self.set(bottom, mark);
        Some(mark)
    }

    /// Takes the entry at the bottom of the public part: `read` gets its number, and reads it while the lock is held.
    pub fn steal<T>(&self, read: impl FnOnce(usize) -> T) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let _guard = self.guard.lock();
        let (bottom, mark) = self.ends();
        if bottom == mark {
            return None;
        }
        let entry = read(bottom);
        self.set(bottom + 1, mark);
        Some(entry)
    }

    /// Whether the public part was empty a moment ago.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Public entries a moment ago.
    pub fn len(&self) -> usize {
        let (bottom, mark) = self.ends();
        mark - bottom
    }
}

impl Default for Watermark {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watermark").field("len", &self.len()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_owner_keeps_the_upper_half_and_thieves_take_from_the_bottom() {
        let w = Watermark::new();
        // SAFETY: this thread is the only one.
        unsafe {
            assert_eq!(w.centre(0), None);
            assert_eq!(w.centre(10), Some(5));
            assert_eq!(w.steal(|i| i), Some(0));
            assert_eq!(w.steal(|i| i), Some(1));
            assert_eq!(w.len(), 3);
            // The private part is used up: half of 2..5 comes back.
            assert_eq!(w.centre(5), Some(3));
            assert_eq!(w.steal(|i| i), Some(2));
            assert_eq!(w.steal(|i| i), None);
            assert_eq!(w.centre(5), Some(4));
            assert_eq!(w.steal(|i| i), Some(3));
            // The last one is the owner's.
            assert_eq!(w.centre(5), Some(4));
            assert!(w.is_empty());
            // It was taken: everything begins anew.
            assert_eq!(w.centre(4), None);
            assert_eq!(w.centre(4), Some(2));
        }
    }
}
