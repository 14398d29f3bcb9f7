//! Hints to the processor and the compiler: they change speed only.

/// Asks for the cache line at `address`, to be written soon. Any address is fine.
#[inline(always)]
pub fn prefetch_to_write(address: usize) {
    // SAFETY: as below.
    unsafe {
        core::arch::asm!("prefetchw byte ptr [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

/// Asks for the cache line at `address`, to be read soon. Any address is fine.
#[inline(always)]
pub fn prefetch(address: usize) {
    // SAFETY: a prefetch of any address has no effect but on caches.
    unsafe {
        core::arch::asm!("prefetcht0 byte ptr [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

/// Asks for the cache line at `address`, to be read somewhat later: into the second cache.
#[inline(always)]
pub fn prefetch_early(address: usize) {
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prefetcht1 byte ptr [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

/// True. What depends on it is laid out of the way of what does not, which then has no branch that is taken.
#[cold]
#[inline(always)]
pub fn unusual() -> bool {
    true
}
