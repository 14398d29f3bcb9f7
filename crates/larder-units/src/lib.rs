//! Units of memory and time as types, so that a number cannot lose its meaning on the way.
//!
//! Conversions are named and say how they round. This crate holds no `unsafe` code and imports nothing.

#![no_std]
#![forbid(unsafe_code)]

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// Bytes in one kernel page on x86-64.
pub const PAGE: Bytes = Bytes(4096);
/// Bytes in one granule: the alignment of every object, and the step of the small size classes.
pub const GRANULE: Bytes = Bytes(16);
/// Bytes in one block: the unit of the fixed heap.
///
/// 16 KiB: large enough that a refill amortises its lock over hundreds of small objects, small enough that
/// fifty size classes cost a small program less than a megabyte.
pub const BLOCK: Bytes = Bytes(16 * 1024);

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub usize);

        impl $name {
            /// Nothing.
            pub const ZERO: Self = Self(0);

            /// The difference, or zero where `other` is larger.
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }
    };
}

unit! {
    /// A number of bytes.
    Bytes
}
unit! {
    /// A number of kernel pages of [`PAGE`] bytes.
    Pages
}
unit! {
    /// A number of granules of [`GRANULE`] bytes.
    Granules
}
unit! {
    /// A number of blocks of [`BLOCK`] bytes.
    Blocks
}

impl Bytes {
    /// Smallest number of whole pages that holds `self`.
    pub const fn to_pages_rounded_up(self) -> Pages {
        Pages(self.0.div_ceil(PAGE.0))
    }

    /// Smallest number of whole granules that holds `self`.
    pub const fn to_granules_rounded_up(self) -> Granules {
        Granules(self.0.div_ceil(GRANULE.0))
    }

    /// Smallest number of whole blocks that holds `self`.
    pub const fn to_blocks_rounded_up(self) -> Blocks {
        Blocks(self.0.div_ceil(BLOCK.0))
    }

    /// `n` mebibytes.
    pub const fn mib(n: usize) -> Self {
        Self(n << 20)
    }
}

impl Pages {
    /// The bytes that these pages hold.
    pub const fn to_bytes(self) -> Bytes {
        Bytes(self.0 * PAGE.0)
    }
}

impl Granules {
    /// The bytes that these granules hold.
    pub const fn to_bytes(self) -> Bytes {
        Bytes(self.0 * GRANULE.0)
    }
}

impl Blocks {
    /// The bytes that these blocks hold.
    pub const fn to_bytes(self) -> Bytes {
        Bytes(self.0 * BLOCK.0)
    }
}

impl fmt::Display for Bytes {
    /// Writes with a binary unit and one decimal: `1.5 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut unit = 0;
        let mut scaled = self.0 as f64;
        while scaled >= 1024.0 && unit + 1 < UNITS.len() {
            scaled /= 1024.0;
            unit += 1;
        }
        if unit == 0 { write!(f, "{} B", self.0) } else { write!(f, "{scaled:.1} {}", UNITS[unit]) }
    }
}

/// A duration, or a moment on the monotonic clock, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Time from `earlier` to `self`, or zero where the clock did not advance.
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Whole milliseconds, rounded down.
    pub const fn to_millis_rounded_down(self) -> u64 {
        self.0 / 1_000_000
    }
}

impl fmt::Display for Nanos {
    /// Writes with the unit that keeps three digits before the point: `1.25 ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000 => write!(f, "{} ns", self.0),
            1_000..1_000_000 => write!(f, "{:.2} us", self.0 as f64 / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.2} ms", self.0 as f64 / 1e6),
            _ => write!(f, "{:.2} s", self.0 as f64 / 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn conversions_round_up_at_their_edges() {
        assert_eq!(Bytes(0).to_blocks_rounded_up(), Blocks(0));
        assert_eq!(Bytes(1).to_blocks_rounded_up(), Blocks(1));
        assert_eq!(BLOCK.to_blocks_rounded_up(), Blocks(1));
        assert_eq!(Bytes(BLOCK.0 + 1).to_blocks_rounded_up(), Blocks(2));
        assert_eq!(Bytes(17).to_granules_rounded_up(), Granules(2));
        assert_eq!(Bytes(4097).to_pages_rounded_up().to_bytes(), Bytes(8192));
    }

    #[test]
    fn display_picks_the_unit() {
        assert_eq!(format!("{}", Bytes(1023)), "1023 B");
        assert_eq!(format!("{}", Bytes(1536 * 1024)), "1.5 MiB");
        assert_eq!(format!("{}", Nanos(999)), "999 ns");
        assert_eq!(format!("{}", Nanos(1_250_000)), "1.25 ms");
    }

    #[test]
    fn since_never_underflows() {
        assert_eq!(Nanos(5).since(Nanos(9)), Nanos(0));
    }
}
