//! What transactions did, as in the paper's Table 2.

use core::sync::atomic::Ordering;

use crate::areas::Core;

/// Counts of one domain's transactions since it was made.
///
/// Success costs nothing to count: each index's token is the number of transactions that began there, and all that can go
/// wrong is counted when it does. While transactions are open they count as successes.
///
/// In C it is `struct cs_statistics`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Transactions begun, reopened ones included.
    pub begun: u64,
    /// Those that ended without having met interference.
    pub succeeded: u64,
    /// Those of which a commit met interference.
    pub failed: u64,
    /// Those that were begun again by `reopen`.
    pub reopened: u64,
    /// Those that were given up by `invalidate`.
    pub invalid: u64,
    /// Those that were left without failing, by drop, `invalidate`, or `reopen`.
    pub abandoned: u64,
    /// Take-overs.
    pub taken_over: u64,
    /// Operations of any sort that were done under a lock.
    pub by_lock: u64,
}

impl Statistics {
    /// Sums up the counts of every index. Exact when no transaction is under way.
    pub fn of(core: &Core) -> Self {
        let mut sum = Self { by_lock: core.by_lock(), ..Self::default() };
        let mut tokens = 0;
        for index in 0..core.areas() {
            let header = core.header(index);
            // Relaxed: counters.
            let word = |w: &core::sync::atomic::AtomicU64| w.load(Ordering::Relaxed);
            tokens += word(&header.token);
            sum.failed += word(&header.failed);
            sum.reopened += word(&header.reopened);
            sum.invalid += word(&header.invalid);
            sum.abandoned += word(&header.abandoned);
            sum.taken_over += word(&header.taken);
        }
        sum.begun = tokens.saturating_sub(sum.taken_over);
        sum.succeeded = sum.begun.saturating_sub(sum.failed + sum.abandoned);
        sum
    }
}

impl core::fmt::Display for Statistics {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "transactions: {} succeeded, {} failed, {} reopened, {} invalid, {} abandoned; {} take-overs; {} by lock",
            self.succeeded, self.failed, self.reopened, self.invalid, self.abandoned, self.taken_over, self.by_lock
        )
    }
}
