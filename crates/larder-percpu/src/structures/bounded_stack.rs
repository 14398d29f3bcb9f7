//! A stack of pointers for each index, with room for so many.

use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::areas::{By, Options};
use crate::domain::Domain;
use crate::locked::Busy;
use crate::word::{Area, Open64};

/// What a stack's area holds.
#[repr(C)]
pub struct Words<const N: usize> {
    count: Open64,
    words: [Open64; N],
}

// SAFETY: words; all zero is an empty stack.
unsafe impl<const N: usize> Area for Words<N> {}

/// The current index's stack has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl core::fmt::Display for Full {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the stack of the current index is full: keep the pointers elsewhere")
    }
}

impl core::error::Error for Full {}

/// A stack of up to `N` pointers for each index. What they point to is never touched, so it may be unmapped memory.
///
/// A batch takes or puts many in one sequence. Longer batches are aborted more often; 64 pointers take some 50 ns.
pub struct BoundedStack<T, const N: usize> {
    domain: Domain<Words<N>>,
    pointers: PhantomData<*mut T>,
}

impl<T, const N: usize> BoundedStack<T, N> {
    /// An empty stack.
    pub const fn new(by: By) -> Self {
        Self { domain: Domain::new(by), pointers: PhantomData }
    }

    /// An empty stack, with options.
    pub const fn with(options: Options) -> Self {
        Self { domain: Domain::with(options), pointers: PhantomData }
    }

    /// Puts a pointer onto the current index's stack.
    #[inline(always)]
    pub fn push(&self, pointer: NonNull<T>) -> Result<(), Full> {
        // SAFETY: the area is a stack for N words.
        let put = unsafe { self.domain.core().stack_push(0, pointer.as_ptr().expose_provenance(), N) };
        if put { Ok(()) } else { Err(Full) }
    }

    /// Takes the pointer that was put last onto the current index's stack.
    #[inline(always)]
    pub fn pop(&self) -> Option<NonNull<T>> {
        // SAFETY: as in `push`.
        let word = unsafe { self.domain.core().stack_pop(0) };
        NonNull::new(core::ptr::with_exposed_provenance_mut(word))
    }

    /// Puts as many of the pointers as there is room for, from the first on; says how many.
    pub fn push_many(&self, pointers: &[NonNull<T>]) -> usize {
        for pointer in pointers {
            pointer.as_ptr().expose_provenance();
        }
        // SAFETY: a pointer that is not null has the representation of a word; it was exposed.
        let words = unsafe { core::slice::from_raw_parts(pointers.as_ptr().cast::<usize>(), pointers.len()) };
        // SAFETY: as in `push`.
        unsafe { self.domain.core().stack_push_many(0, words, N) }
    }

    /// Takes up to as many pointers as `into` has room for, the last first, all from one index; says how many.
    pub fn pop_many(&self, into: &mut [Option<NonNull<T>>]) -> usize {
        // SAFETY: an optional pointer is a word, 0 for `None`, and no word of a stack is 0.
        let words = unsafe { core::slice::from_raw_parts_mut(into.as_mut_ptr().cast::<usize>(), into.len()) };
        // SAFETY: as in `push`.
        unsafe { self.domain.core().stack_pop_many(0, words) }
    }

    /// Takes an index's pointers, also one that other threads use now; `each` gets them, the oldest first.
    ///
    /// `each` runs while the index is closed and signals are masked: it should be short.
    pub fn take(&self, index: usize, mut each: impl FnMut(NonNull<T>)) -> Result<usize, Busy> {
        self.domain.take_over(index, |stack| {
            let count = stack.count.load() as usize;
            for word in &stack.words[..count] {
                if let Some(pointer) = NonNull::new(core::ptr::with_exposed_provenance_mut(word.load() as usize)) {
                    each(pointer);
                }
            }
            stack.store(&stack.count, 0);
            count
        })
    }

    /// As [`take`](Self::take), for every index that has any.
    pub fn take_all(&self, mut each: impl FnMut(NonNull<T>)) -> Result<usize, Busy> {
        let mut count = 0;
        for index in 0..self.domain.areas() {
            if self.domain.area(index).count.load() != 0 {
                count += self.take(index, &mut each)?;
            }
        }
        Ok(count)
    }

    /// The domain below.
    pub fn domain(&self) -> &Domain<Words<N>> {
        &self.domain
    }
}

// SAFETY: the stack hands pointers from one thread to another and touches nothing behind them.
unsafe impl<T: Send, const N: usize> Sync for BoundedStack<T, N> {}
// SAFETY: as above.
unsafe impl<T: Send, const N: usize> Send for BoundedStack<T, N> {}
