//! The words that live in a domain's areas, and who may write them.
//!
//! One-shot sequences write no token, so a transaction does not notice them. The types keep the two apart:
//!
//! | type | written by | a transaction commits it by |
//! |---|---|---|
//! | [`Guarded32`], [`Guarded64`], [`GuardedPair`] | transactions only | `store` and `compare_store` |
//! | [`Open64`], [`OpenPair`] | one-shot sequences too | `compare_store` only, which compares what the sequences change |
//!
//! All of them are shared words that a body may read while another thread commits: reading is a relaxed load, and a body
//! may see values that do not belong together before its commit fails.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What a domain's areas may hold.
///
/// # Safety
/// All bytes zero are a valid value, the one that an area has before anybody touches it, and it needs no drop. It is
/// shared between threads that read it at any time, so every part that changes is a word of this module or an atomic.
pub unsafe trait Area: Sync {}

// SAFETY: nothing is in it.
unsafe impl Area for () {}
// SAFETY: arrays of areas.
unsafe impl<T: Area, const N: usize> Area for [T; N] {}

macro_rules! word {
    ($(#[$doc:meta])* $name:ident, $atomic:ident, $value:ty) => {
        $(#[$doc])*
        #[repr(transparent)]
        pub struct $name(pub(crate) $atomic);

        impl $name {
            /// A word outside of any area, for tests and statics.
            pub const fn new(value: $value) -> Self {
                Self($atomic::new(value))
            }

            /// The word as it is now. It may change at once, unless a transaction's commit shows that it did not.
            #[inline(always)]
            pub fn load(&self) -> $value {
                // Relaxed: the area's content is ordered by its index, that is by the scheduler; a take-over by membarrier.
                self.0.load(Ordering::Relaxed)
            }
        }

        // SAFETY: an atomic; zero is a value.
        unsafe impl Area for $name {}
    };
}

word! {
    /// 32 bits that only transactions write.
    Guarded32, AtomicU32, u32
}
word! {
    /// 64 bits that only transactions write.
    Guarded64, AtomicU64, u64
}
word! {
    /// 64 bits that one-shot sequences and transactions write.
    Open64, AtomicU64, u64
}

macro_rules! pair {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[repr(C, align(16))]
        pub struct $name(pub(crate) [AtomicU64; 2]);

        impl $name {
            /// A pair outside of any area, for tests and statics.
            pub const fn new(value: [u64; 2]) -> Self {
                Self([AtomicU64::new(value[0]), AtomicU64::new(value[1])])
            }

            /// Both words, one after the other: they may not belong together. The compare forms look at both at once.
            #[inline(always)]
            pub fn load(&self) -> [u64; 2] {
                // Relaxed: as for single words.
                [self.0[0].load(Ordering::Relaxed), self.0[1].load(Ordering::Relaxed)]
            }
        }

        // SAFETY: atomics; zero is a value.
        unsafe impl Area for $name {}
    };
}

pair! {
    /// Two words that only transactions write.
    GuardedPair
}
pair! {
    /// Two words that one-shot sequences and transactions write.
    OpenPair
}

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// A word, of whatever kind.
pub trait Word: Sealed {
    /// What it holds.
    type Value: Copy + PartialEq;
    /// Its address and size, for the commits.
    #[doc(hidden)]
    fn place(&self) -> Place;
    /// The value as two words.
    #[doc(hidden)]
    fn to_words(value: Self::Value) -> [u64; 2];
}

/// A word that only transactions write, so that a transaction may store to it without comparing.
pub trait GuardedWord: Word {}

/// A word's address, by its size.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub enum Place {
    /// 4 bytes.
    Small(*mut u32),
    /// 8 bytes.
    Whole(*mut u64),
    /// 16 bytes.
    Pair(*mut u64),
}

macro_rules! implement {
    ($name:ident, $value:ty, $value_name:ident, $place:expr, $words:expr) => {
        impl Sealed for $name {}
        impl Word for $name {
            type Value = $value;
            #[inline(always)]
            fn place(&self) -> Place {
                let place: fn(&Self) -> Place = $place;
                place(self)
            }
            #[inline(always)]
            fn to_words($value_name: $value) -> [u64; 2] {
                $words
            }
        }
    };
}

implement!(Guarded32, u32, value, |w| Place::Small(w.0.as_ptr()), [u64::from(value), 0]);
implement!(Guarded64, u64, value, |w| Place::Whole(w.0.as_ptr()), [value, 0]);
implement!(Open64, u64, value, |w| Place::Whole(w.0.as_ptr()), [value, 0]);
implement!(GuardedPair, [u64; 2], value, |w| Place::Pair(w.0[0].as_ptr()), value);
implement!(OpenPair, [u64; 2], value, |w| Place::Pair(w.0[0].as_ptr()), value);

impl GuardedWord for Guarded32 {}
impl GuardedWord for Guarded64 {}
impl GuardedWord for GuardedPair {}
