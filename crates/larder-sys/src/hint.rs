//! Hints to the processor and the compiler: they change speed only.

/// Asks for the cache line at `address`, to be written soon. Any address is fine.
#[inline(always)]
pub fn prefetch_to_write(address: usize) {
    // SAFETY: as below.
    unsafe {
        core::arch::asm!("prefetchw byte ptr [{}]", in(reg) address, options(nostack, preserves_flags, nomem));
    }
}

/// Asks for the cache line at `address`, to be read soon. Any address is fine.
#[inline(always)]
pub fn prefetch(address: usize) {
    // SAFETY: a prefetch of any address has no effect but on caches.
    unsafe {
        core::arch::asm!("prefetcht0 byte ptr [{}]", in(reg) address, options(nostack, preserves_flags, nomem));
    }
}

/// Asks for the cache line at `address`, to be read somewhat later: into the second cache.
#[inline(always)]
pub fn prefetch_early(address: usize) {
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prefetcht1 byte ptr [{}]", in(reg) address, options(nostack, preserves_flags, nomem));
    }
}

/// The same word, of which the compiler does not know that it is: what is done with it does not wait for what else it could be taken from.
#[inline(always)]
pub fn apart(mut word: usize) -> usize {
    // SAFETY: does nothing.
    unsafe {
        core::arch::asm!("/* {} */", inout(reg) word, options(nostack, preserves_flags, nomem));
    }
    word
}

/// True. What depends on it is laid out of the way of what does not, which then has no branch that is taken.
#[cold]
#[inline(always)]
pub fn unusual() -> bool {
    true
}
