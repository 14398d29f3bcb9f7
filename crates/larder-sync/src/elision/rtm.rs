//! Intel's restricted transactional memory.
//!
//! Many processors that had it lost it by microcode: they report that transactions always abort, or abort them without saying
//! so. So there is an [`Rtm`] only where the processor says that it has transactions, does not say that they always abort, and
//! has just committed one. AMD's never had it.
//!
//! A begin returns twice, like `setjmp`; but when it returns the second time all memory and all registers are as they were
//! the first time, so the compiler's view of the code stays right.

use super::backend::{Abort, Backend};

/// Transactions of the processor's, where it really has them.
#[derive(Clone, Copy, Debug)]
pub struct Rtm(());

/// The status of a begin that is in the transaction.
#[cfg(target_arch = "x86_64")]
const STARTED: u32 = u32::MAX;
/// Bits of the status after an abort.
#[cfg(target_arch = "x86_64")]
const EXPLICIT: u32 = 1;
#[cfg(target_arch = "x86_64")]
const RETRY: u32 = 2;
#[cfg(target_arch = "x86_64")]
const CONFLICT: u32 = 4;

#[cfg(target_arch = "x86_64")]
impl Rtm {
    /// The processor's transactions, or nothing where it has none that commit.
    pub fn new() -> Option<Self> {
        use core::arch::x86_64::{__cpuid, __cpuid_count};
        const RTM: u32 = 1 << 11;
        const ALWAYS_ABORTS: u32 = 1 << 11;
        #[allow(unused_unsafe, reason = "safe from Rust 1.94 on")]
        // SAFETY: every x86-64 processor has the instruction.
        let has = unsafe {
            __cpuid(0).eax >= 7 && {
                let leaf = __cpuid_count(7, 0);
                leaf.ebx & RTM != 0 && leaf.edx & ALWAYS_ABORTS == 0
            }
        };
        let rtm = Self(());
        // An interrupt may spoil one.
        (has && (0..100).any(|_| rtm.attempt(|| true, || ()).is_ok())).then_some(rtm)
    }

    /// # Safety
    /// The processor has transactions, and no other code relies on being inside of none.
    #[inline(always)]
    unsafe fn begin() -> u32 {
        let status;
        // SAFETY: the caller's promise. All that the second return changes is the register named here.
        unsafe {
            core::arch::asm!(
                "mov eax, -1",
                "xbegin 2f",
                "2:",
                out("eax") status,
            );
        }
        status
    }

    /// # Safety
    /// The thread is in a transaction.
    #[inline(always)]
    unsafe fn end() {
        // SAFETY: the caller's promise.
        unsafe { core::arch::asm!("xend") };
    }

    /// Goes back to the begin, which returns [`EXPLICIT`].
    ///
    /// # Safety
    /// The processor has transactions.
    #[inline(always)]
    unsafe fn abort() {
        // SAFETY: the caller's promise; outside of a transaction it does nothing.
        unsafe { core::arch::asm!("xabort 1") };
    }
}

#[cfg(target_arch = "x86_64")]
impl Backend for Rtm {
    const POSSIBLE: bool = true;

    #[inline]
    fn attempt<R>(&self, free: impl FnOnce() -> bool, section: impl FnOnce() -> R) -> Result<R, Abort> {
        /// A section that panics is undone: it will panic again under the lock.
        struct Undo;
        impl Drop for Undo {
            fn drop(&mut self) {
                // SAFETY: there is an `Rtm`.
                unsafe { Rtm::abort() };
            }
        }
        // SAFETY: there is an `Rtm`.
        match unsafe { Self::begin() } {
            STARTED => {
                let undo = Undo;
                if !free() {
                    // SAFETY: as above.
                    unsafe { Self::abort() };
                }
                let result = section();
                core::mem::forget(undo);
                // SAFETY: begun above.
                unsafe { Self::end() };
                Ok(result)
            }
            status if status & EXPLICIT != 0 => Err(Abort::Held),
            status if status & (RETRY | CONFLICT) != 0 => Err(Abort::Conflict),
            _ => Err(Abort::Hopeless),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Rtm {
    /// Nothing: only x86-64 processors have it.
    pub fn new() -> Option<Self> {
        None
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Backend for Rtm {
    const POSSIBLE: bool = false;

    fn attempt<R>(&self, _free: impl FnOnce() -> bool, _section: impl FnOnce() -> R) -> Result<R, Abort> {
        Err(Abort::Hopeless)
    }
}
