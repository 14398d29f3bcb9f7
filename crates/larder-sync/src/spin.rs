//! How long to look before going to sleep: a budget in time, not in `pause` instructions, whose length differs three to
//! one between processors.
//!
//! The rule is Karlin's: spin for about as long as the sleep and the wake would cost, so that the worst case is twice
//! the best. A spinner that finds that it has lost its processor stops at once (the notes' inverted schedctl). Linux tells
//! nobody that a preemption is about to come, but two looks that are far apart tell that one has been: others want this
//! processor, the owner perhaps among them.
//!
//! ```
//! use larder_sync::spin::{Patience, SLEEP_AND_WAKE_NS};
//!
//! let mut patience = Patience::for_nanos(SLEEP_AND_WAKE_NS);
//! let mut looks = 0;
//! while patience.spin() {
//!     looks += 1;
//! }
//! assert!(looks < 1_000_000, "it ends");
//! ```
//!
//! **When to use:** around a look at a word that another running thread is about to change. **When not:** for a condition
//! that may take longer than a sleep and wake, or without something to sleep on afterwards. **Cost:** a look costs one `pause`
//! and one read of the time-stamp counter.

use crate::atomic::{Ordering, spin_loop};
use crate::ticks;

/// What a sleep and a wake through the kernel cost together, about: half a futex round trip between two threads, with
/// some reserve (8.8 us on a 2-vCPU EPYC guest, Linux 6.18).
pub const SLEEP_AND_WAKE_NS: u64 = 10_000;

/// Two looks further apart than this had a preemption between them. An interrupt handler takes less.
const LOST_CPU_NS: u64 = 50_000;

/// A budget for looking.
pub struct Patience {
    nanos: u64,
    /// The moment at which the budget is spent; 0 before the first look.
    until: u64,
    last: u64,
    lost_cpu: u64,
}

impl Patience {
    /// A budget of this many nanoseconds, which begin with the first look.
    #[inline]
    pub fn for_nanos(nanos: u64) -> Self {
        Self { nanos, until: 0, last: 0, lost_cpu: 0 }
    }

    /// No budget at all.
    #[inline]
    pub fn none() -> Self {
        Self::for_nanos(0)
    }

    /// Waits for a moment and says whether to look again; false as well when the thread has just lost its processor.
    #[inline]
    pub fn spin(&mut self) -> bool {
        self.spin_for(1)
    }

    /// As [`Patience::spin`], with the looks this many `pause` instructions apart.
    #[inline]
    pub fn spin_for(&mut self, pauses: u32) -> bool {
        if self.nanos == 0 {
            return false;
        }
        if cfg!(loom) {
            // One look more, and after others have run.
            self.nanos = 0;
            spin_loop();
            return true;
        }
        for _ in 0..pauses {
            spin_loop();
        }
        let now = ticks::now();
        if self.until == 0 {
            self.until = now.wrapping_add(ticks::of_nanos(self.nanos)) | 1;
            self.lost_cpu = ticks::of_nanos(LOST_CPU_NS);
            self.last = now;
            return true;
        }
        let apart = now.wrapping_sub(self.last);
        self.last = now;
        apart < self.lost_cpu && (self.until.wrapping_sub(now) as i64) > 0
    }
}

/// Waits until a thread that has announced itself has stored its address here: a few instructions, unless it lost its
/// processor just there. Then this thread gives its own away, because there is nothing to sleep on yet.
pub(crate) fn await_link<T>(link: &crate::atomic::AtomicPtr<T>, order: Ordering) -> core::ptr::NonNull<T> {
    let mut patience = Patience::for_nanos(SLEEP_AND_WAKE_NS);
    let mut looks = 0;
    loop {
        if cfg!(loom) {
            // A model ends by "deadlock" only where threads sleep.
            looks += 1;
            assert!(looks < 50, "the link never comes");
        }
        if let Some(linked) = core::ptr::NonNull::new(link.load(order)) {
            return linked;
        }
        if !patience.spin() {
            give_way();
        }
    }
}

/// Lets another thread have the processor.
#[cfg(not(loom))]
pub(crate) fn give_way() {
    // SAFETY: always allowed, and it cannot fail on Linux.
    unsafe { libc::sched_yield() };
}

/// Lets another thread run.
#[cfg(loom)]
pub(crate) fn give_way() {
    crate::loom::thread::yield_now();
}
