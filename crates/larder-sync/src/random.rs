//! Fast random numbers, and bounded ones without a division (the notes' "A simple PRNG construction idiom" and "PRNG
//! optimizations").
//!
//! The generator counts in steps of an odd constant and mixes the count (Steele, Lea and Flood's SplitMix64 with Stafford's
//! thirteenth mixer). Every seed has a cycle of 2^64, on which each value comes once. A generator that is *coloured* by an
//! address of its thread's needs no seed: two threads that run at once have different addresses.
//!
//! **When to use:** Bernoulli trials, back-off, benchmarks, sampling. **When not:** for anything that an adversary must not
//! guess. **Cost:** about 1 ns a number; a bound costs a multiplication more, where `%` costs a division. `tests/random.rs` has
//! the statistics.
//!
//! ```
//! use larder_sync::random::Random;
//!
//! let mut random = Random::from_seed(7);
//! assert!(random.below(6) < 6);
//! assert!(random.exactly_below(6) < 6);
//! ```

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes a word: every bit of the result depends on every bit of `word`, about one half each.
#[inline]
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A generator of random numbers, for one thread.
#[derive(Clone, Debug)]
pub struct Random {
    count: u64,
    colour: u64,
}

impl Random {
    /// A generator whose numbers follow from the seed.
    #[inline]
    pub const fn from_seed(seed: u64) -> Self {
        Self { count: mix(seed), colour: 0 }
    }

    /// A generator coloured by an address that belongs to the calling thread now: its numbers differ from those of any other
    /// thread with the same seed.
    #[inline]
    pub fn coloured<T>(seed: u64, address: *const T) -> Self {
        Self { count: mix(seed), colour: mix(address.addr() as u64 | 1) }
    }

    /// The next 64 bits.
    #[inline]
    pub const fn next_word(&mut self) -> u64 {
        self.count = self.count.wrapping_add(STEP);
        mix(self.count ^ self.colour)
    }

    /// A number from 0 to below `bound`, by a multiplication. No number is more likely than another by more than one in
    /// 2^64 / `bound`. A bound of 0 gives 0.
    #[inline]
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next_word() as u128 * bound as u128) >> 64) as u64
    }

    /// As [`Random::below`], with every number exactly as likely: draws below the next power of two until one is below
    /// `bound`, fewer than two times on average.
    #[inline]
    pub const fn exactly_below(&mut self, bound: u64) -> u64 {
        if bound < 2 {
            return 0;
        }
        let shift = (bound - 1).leading_zeros();
        loop {
            // The upper bits, because they are the better ones in generators of this kind.
            let number = self.next_word() >> shift;
            if number < bound {
                return number;
            }
        }
    }
}
