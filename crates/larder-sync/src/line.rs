//! A value on cache lines of its own.

use core::ops::Deref;

/// Holds `T` on cache lines that nothing else shares.
///
/// 128 bytes, not 64: the adjacent-line prefetcher of x86-64 processors fetches lines in pairs, so a neighbour one line
/// away still costs transfers.
#[repr(align(128))]
pub(crate) struct Line<T>(pub(crate) T);

impl<T> Deref for Line<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
