//! A set of numbers that wait: any thread lets one wait for what it has just done, any thread takes some and does what they wait for.
//!
//! Many threads do something for the same number, and it waits once. Who finds that it waits already relies on whoever will take it; and that is right,
//! since each of the two looks after a fence: a thread that saw the number wait has done its part before the one that took it looks.
//!
//! **Progress:** wait-free. **Cost:** a fence for each call that adds; an atomic operation where a number did not wait yet, and for each word of the set from
//! which some are taken.

use crate::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use crate::step;

/// Numbers in a word.
const IN_A_WORD: usize = u64::BITS as usize;

/// Numbers below 64 times `WORDS` that wait.
pub struct Waiting<const WORDS: usize> {
    /// A bit for each.
    ///
    /// Sync: `waiting.take`.
    bits: [AtomicU64; WORDS],
    /// How many wait, modulo 2^64: off by as many as threads are between a bit and the count.
    ///
    /// Sync: a thread that has let a number wait has counted it.
    count: AtomicUsize,
    /// No word from this one on has bits. Sync: raised before a bit is set.
    used: AtomicUsize,
}

/// Numbers that were taken: those of the bits, counted from `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The number of the lowest bit.
    pub first: usize,
    /// A bit for each number.
    pub bits: u64,
    /// The end of the set lies between these and those that were taken before.
    pub wrapped: bool,
}

impl<const WORDS: usize> Waiting<WORDS> {
    /// Numbers from this one on cannot wait.
    pub const END: usize = WORDS * IN_A_WORD;

    const_unless_loom! {
        /// Nothing waits.
        pub fn new() -> Self {
            #[cfg(not(loom))]
            let bits = [const { AtomicU64::new(0) }; WORDS];
            #[cfg(loom)]
            let bits = core::array::from_fn(|_| AtomicU64::new(0));
            Self { bits, count: AtomicUsize::new(0), used: AtomicUsize::new(0) }
        }
    }

    /// Lets these numbers wait for what the caller did before. Each is below [`Self::END`].
    #[inline(always)]
    pub fn add(&self, numbers: &[usize]) {
        if numbers.is_empty() {
            return;
        }
        if step::kept("waiting: the fence of who adds") {
            // ORDER waiting.take: SeqCst, between what the caller did and the look at the bits, with the fence in `take`. Weaker, the bit could be one
            // that was taken already, by somebody who does not see what was done.
            fence(Ordering::SeqCst);
        }
        for &number in numbers {
            let (word, bit) = (&self.bits[number / IN_A_WORD], 1 << (number % IN_A_WORD));
            // ORDER waiting.take: Relaxed, as the fence does the work.
            if word.load(Ordering::Relaxed) & bit == 0 {
                self.begin(word, bit, number / IN_A_WORD);
            }
        }
    }

    #[cold]
    fn begin(&self, word: &AtomicU64, bit: u64, place: usize) {
        // ORDER waiting.take: Relaxed; who does not see it yet leaves the bit to this thread, which does.
        if self.used.load(Ordering::Relaxed) <= place {
            // ORDER waiting.take: Relaxed, as above.
            self.used.fetch_max(place + 1, Ordering::Relaxed);
        }
        // ORDER waiting.take: Relaxed, as the fence in `add` does the work.
        if word.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            // ORDER waiting.take: Relaxed; a count.
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a number waits. What the caller let wait is seen, unless somebody has taken it, or is about to take and then sees that there was more.
    #[inline]
    pub fn any(&self) -> bool {
        // ORDER waiting.take: Relaxed; a count.
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Takes at most `most` numbers that lie in one word, beginning with `*from` and going on at the beginning behind the end; `*from` is the number behind the last
    /// of them afterwards. `None` where no number waits.
    pub fn take(&self, from: &mut usize, most: u32) -> Option<Taken> {
        if !self.any() {
            return None;
        }
        // ORDER waiting.take: Relaxed, as in `begin`.
        let used = self.used.load(Ordering::Relaxed);
        let begin = (*from / IN_A_WORD).min(used);
        // The word of `from` once more in the end, for the numbers below.
        let around =
            (begin..used).map(|place| (place, false)).chain((0..used.min(begin + 1)).map(|place| (place, true)));
        for (place, wrapped) in around {
            let word = &self.bits[place];
            let is_first = !wrapped && place == *from / IN_A_WORD;
            // ORDER waiting.take: Relaxed; a guess.
            let waiting =
                word.load(Ordering::Relaxed) & if is_first { u64::MAX << (*from % IN_A_WORD) } else { u64::MAX };
            let rest = (0..most).fold(waiting, |rest, _| rest & rest.wrapping_sub(1));
            let wanted = waiting & !rest;
            if wanted == 0 {
                continue;
            }
            // ORDER waiting.take: Relaxed, as the fence does the work.
            let bits = wanted & word.fetch_and(!wanted, Ordering::Relaxed);
            if bits == 0 {
                continue;
            }
            if step::kept("waiting: the fence of who takes") {
                // ORDER waiting.take: SeqCst, between the bits and the caller's look, with the fence in `add`.
                fence(Ordering::SeqCst);
            }
            // ORDER waiting.take: Relaxed; a count.
            self.count.fetch_sub(bits.count_ones() as usize, Ordering::Relaxed);
            *from = (place + 1) * IN_A_WORD - bits.leading_zeros() as usize;
            return Some(Taken { first: place * IN_A_WORD, bits, wrapped });
        }
        None
    }

    /// Forgets all numbers. Nobody else adds or takes meanwhile.
    pub fn clear(&self) {
        // ORDER waiting.take: Relaxed, all of them: the caller is alone.
        let used = self.used.swap(0, Ordering::Relaxed);
        self.bits[..used].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.count.store(0, Ordering::Relaxed);
    }
}

impl<const WORDS: usize> Default for Waiting<WORDS> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn numbers(taken: Taken) -> Vec<usize> {
        (0..IN_A_WORD).filter(|bit| taken.bits >> bit & 1 != 0).map(|bit| taken.first + bit).collect()
    }

    #[test]
    fn numbers_are_taken_in_their_order_and_around_the_end() {
        let waiting = Waiting::<3>::new();
        assert!(!waiting.any() && waiting.take(&mut 77, 8).is_none());
        waiting.add(&[5, 63, 64, 70, 71, 130, 5, 71]);
        let mut from = 6;
        let take = |most, from: &mut usize| waiting.take(from, most).map(|taken| (numbers(taken), taken.wrapped));
        assert_eq!(take(8, &mut from), Some((vec![63], false)));
        assert_eq!(from, 64);
        assert_eq!(take(2, &mut from), Some((vec![64, 70], false)));
        waiting.add(&[65]);
        assert_eq!(take(2, &mut from), Some((vec![71], false)));
        assert_eq!(take(2, &mut from), Some((vec![130], false)));
        assert_eq!(take(2, &mut from), Some((vec![5], true)));
        // The word of the last one, but below it.
        from = 67;
        assert_eq!(take(2, &mut from), Some((vec![65], true)));
        assert_eq!(take(2, &mut from), None);
        waiting.add(&[191, 0]);
        from = 192;
        assert_eq!(take(64, &mut from), Some((vec![0], true)));
        waiting.clear();
        assert!(!waiting.any() && take(64, &mut 0).is_none());
    }
}
