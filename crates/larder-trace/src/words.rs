//! Words that a marker has found and not looked up yet: a short stack, newest first.
//!
//! How many addresses an object holds is hard to foresee, so no branch may depend on it: the addresses among an object's words are
//! written to the top at once, with whatever is behind them, and the top moves by their number. So marking goes on from word to
//! word, not from object to object, and each step is the same.

/// Words that there is room for.
pub const WORDS: usize = 4096;

/// The ends of the stack, to be kept in registers. It lies in memory of its marker's.
#[derive(Clone, Copy)]
pub struct Words {
    start: *mut usize,
    top: *mut usize,
}

impl Words {
    /// An empty stack.
    ///
    /// # Safety
    /// The memory has room for [`WORDS`] words, and nobody else uses it while the stack is used.
    pub unsafe fn new(at: *mut usize) -> Self {
        Self { start: at, top: at }
    }

    /// How many words there are.
    #[inline(always)]
    pub fn len(&self) -> usize {
        // SAFETY: both are in the stack's memory, or one past its end.
        unsafe { self.top.offset_from_unsigned(self.start) }
    }

    /// Whether there is none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.top == self.start
    }

    /// Takes the newest word.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: above the start, so it was written before the top was moved over it.
        unsafe {
            self.top = self.top.sub(1);
            Some(self.top.read())
        }
    }

    /// Where new words are written.
    #[inline(always)]
    pub fn top(&self) -> *mut usize {
        self.top
    }

    /// Adds words that were written to the top.
    ///
    /// # Safety
    /// So many were, inside the stack's memory.
    #[inline(always)]
    pub unsafe fn grow(&mut self, n: usize) {
        // SAFETY: the caller's promise.
        self.top = unsafe { self.top.add(n) };
    }

    /// All words, the oldest first.
    #[inline(always)]
    pub fn all(&self) -> &[usize] {
        // SAFETY: what is below the top was written, and nobody else uses it.
        unsafe { core::slice::from_raw_parts(self.start, self.len()) }
    }

    /// As [`Words::all`], to be changed.
    #[inline(always)]
    pub fn all_mut(&mut self) -> &mut [usize] {
        // SAFETY: as in `all`.
        unsafe { core::slice::from_raw_parts_mut(self.start, self.len()) }
    }

    /// Forgets the oldest words.
    pub fn drop_oldest(&mut self, n: usize) {
        let n = n.min(self.len());
        // SAFETY: both ranges are inside the stack.
        unsafe {
            core::ptr::copy(self.start.add(n), self.start, self.len() - n);
            self.top = self.top.sub(n);
        }
    }

    /// The newest `N` words, the newest last; `None` where there are fewer.
    #[inline(always)]
    pub fn newest<const N: usize>(&mut self) -> Option<&mut [usize; N]> {
        self.all_mut().last_chunk_mut()
    }

    /// Takes the newest `N` words, the newest last, or all of them where there are fewer; and how many they were.
    #[inline(always)]
    pub fn take_newest<const N: usize>(&mut self) -> ([usize; N], usize) {
        let (mut taken, n) = ([0; N], self.len().min(N));
        // SAFETY: the words above `top - n` were written.
        unsafe {
            self.top = self.top.sub(n);
            core::ptr::copy_nonoverlapping(self.top, taken.as_mut_ptr(), n);
        }
        (taken, n)
    }

    /// Forgets the newest words; there are as many.
    #[inline(always)]
    pub fn drop_newest(&mut self, n: usize) {
        debug_assert!(n <= self.len());
        // SAFETY: not below the start.
        self.top = unsafe { self.top.sub(n) };
    }

    /// Forgets all words.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.top = self.start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_comes_first_and_the_oldest_can_be_dropped() {
        let mut memory = [0; WORDS];
        // SAFETY: room for as many, used by this stack alone.
        let mut words = unsafe { Words::new(memory.as_mut_ptr()) };
        assert!(words.is_empty() && words.pop().is_none());
        for n in 1..=WORDS {
            // SAFETY: there is room for as many.
            unsafe {
                words.top().write(n);
                words.grow(1);
            }
        }
        words.drop_oldest(WORDS - 3);
        assert_eq!(words.all(), [WORDS - 2, WORDS - 1, WORDS]);
        assert_eq!(words.pop(), Some(WORDS));
        assert_eq!(words.take_newest::<4>(), ([WORDS - 2, WORDS - 1, 0, 0], 2));
        // SAFETY: they were written before, and are in their places still.
        unsafe { words.grow(2) };
        assert_eq!(words.take_newest::<1>(), ([WORDS - 1], 1));
        words.drop_oldest(7);
        assert!(words.is_empty());
    }
}
