//! Cache lines: a value on lines of its own, and a line that is asked for before it is written.

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

/// Asks for a word's line as for writing, so that a look before a write does not transfer it twice.
#[inline(always)]
pub(crate) fn fetch_to_write<T>(word: &T) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    // SAFETY: it changes nothing but the cache, and processors without it take it for no operation.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) core::ptr::from_ref(word), options(nostack, preserves_flags, readonly));
    }
    let _ = word;
}
