//! Numbers of fillings: by them a region's frontier alone says which filling it is of.
//!
//! A take compares the whole pair, because a frontier may come again: what a filling had left is given back, and another filling of the
//! same region begins there, with another limit. Comparing two words takes twice as long as comparing one. So where takes compare the
//! frontier alone (the level sequences of `larder-percpu`), whoever fills the region puts a number into the upper bits of both words:
//!
//! - Numbers are taken under the region's mark, and none comes twice before they begin anew. So a frontier with a number is part of one
//!   filling only, within a filling the limit does not change, and a take whose compare succeeds had read the limit of the filling that
//!   it takes from. That holds for a frontier that was *guessed*, too: whatever the guess is, the compare says whether it is right.
//! - The limit has the number as well: with the limit of an older filling a guess is refused, without a look at what is there.
//! - What is not open has no number: its limit is 0. A refill that was given up leaves (0, 0): who guesses a frontier of 0, with the limit of a
//!   filling that has come and gone, takes "address" 0, which is none.
//! - When there is no number left, the region is not filled again until they begin anew: when nothing that has read one can commit any
//!   more, which a stop sees to.
//!
//! `tests/loom_guess.rs` has the models.

use crate::atomic::{AtomicUsize, Ordering};
use crate::step;

/// Where the number stands in both words of a pair: above every address.
#[cfg(not(loom))]
pub const NUMBER_SHIFT: u32 = 48;
/// As above; models pack a pair in one word, and their addresses are small.
#[cfg(loom)]
pub const NUMBER_SHIFT: u32 = 16;

/// The highest number.
const MOST: usize = if cfg!(loom) { 3 } else { u16::MAX as usize };

/// How often a region was filled since numbers began. All zero is none.
#[repr(transparent)]
pub struct Fillings(
    /// Sync: changed by who has marked the region; set back in a stopped world.
    AtomicUsize,
);

impl Fillings {
    crate::const_unless_loom! {
        /// None.
        pub fn new() -> Self {
            Self(AtomicUsize::new(0))
        }
    }

    /// The number of a new filling, where both words of a pair have it; `None` where there is none left. The caller has marked the
    /// region.
    pub fn next(&self) -> Option<usize> {
        // Relaxed: no number comes twice, whatever else is seen.
        let number = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        let number = if step::kept("region: fillings have numbers of their own") { number } else { 1 };
        (number <= MOST).then_some(number << NUMBER_SHIFT)
    }

    /// How many there were.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Numbers begin anew. Nothing that has read one can commit any more.
    pub fn begin_anew(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
impl Default for Fillings {
    fn default() -> Self {
        Self::new()
    }
}

/// The address that a word of a numbered pair has below its number.
pub const fn address(word: usize) -> usize {
    word & ((1 << NUMBER_SHIFT) - 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_above_every_address_and_end() {
        let fillings = Fillings::new();
        let first = fillings.next().unwrap();
        assert_eq!((first, address(first | 0x7fff_ffff_fff0)), (1 << 48, 0x7fff_ffff_fff0));
        assert_eq!((2..=usize::from(u16::MAX)).filter_map(|_| fillings.next()).last(), Some(0xffff << 48));
        assert_eq!((fillings.next(), fillings.count()), (None, 0x10000));
        fillings.begin_anew();
        assert_eq!(fillings.next(), Some(first));
    }
}
