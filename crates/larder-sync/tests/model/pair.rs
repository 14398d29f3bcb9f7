//! A pair for models: loom has no wide atomics.

use larder_sync::region::Pair;
use larder_sync::step;
use loom::sync::atomic::{AtomicU64, Ordering};

/// The pair in one word. Loading reads it twice, so that it tears as two loads do.
pub struct Packed(AtomicU64);

fn pack(pair: [usize; 2]) -> u64 {
    (pair[0] as u64) << 32 | pair[1] as u64
}

impl Packed {
    pub fn new(pair: [usize; 2]) -> Self {
        Self(AtomicU64::new(pack(pair)))
    }

    /// The frontier alone, in one load.
    #[allow(dead_code, reason = "each test file is a crate of its own and uses what it needs")]
    pub fn frontier(&self) -> usize {
        (self.0.load(Ordering::Relaxed) >> 32) as usize
    }

    /// The limit alone.
    #[allow(dead_code, reason = "each test file is a crate of its own and uses what it needs")]
    pub fn limit(&self) -> usize {
        (self.0.load(Ordering::Relaxed) & u64::from(u32::MAX)) as usize
    }

    /// Replaces the frontier alone, whatever the limit is, or says what it is. `limit` is what that was lately: with it, nothing is loaded
    /// before the exchange, as with the instruction.
    #[allow(dead_code, reason = "each test file is a crate of its own and uses what it needs")]
    pub fn compare_exchange_frontier(&self, old: usize, new: usize, limit: usize) -> Result<(), usize> {
        let success = step::order("region.publish: the guessed take", Ordering::AcqRel);
        let mut limit = limit;
        loop {
            match self.0.compare_exchange(pack([old, limit]), pack([new, limit]), success, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) if (now >> 32) as usize == old => limit = (now & u64::from(u32::MAX)) as usize,
                Err(now) => return Err((now >> 32) as usize),
            }
        }
    }

    /// Stores without looking what was there.
    #[allow(dead_code, reason = "each test file is a crate of its own and uses what it needs")]
    pub fn store(&self, pair: [usize; 2]) {
        self.0.store(pack(pair), Ordering::Relaxed);
    }
}

impl Pair for Packed {
    fn load(&self) -> [usize; 2] {
        let first = self.0.load(Ordering::Relaxed) >> 32;
        let second = self.0.load(Ordering::Relaxed) & u64::from(u32::MAX);
        [first as usize, second as usize]
    }

    fn compare_exchange(&self, old: [usize; 2], new: [usize; 2]) -> bool {
        let (success, new) = (step::order("region.publish", Ordering::AcqRel), pack(new));
        if step::kept("region: both words are compared") {
            return self.0.compare_exchange(pack(old), new, success, Ordering::Relaxed).is_ok();
        }
        // What comparing the first word alone does: it looks only there, and stores what it had made of both.
        let seen = self.0.load(Ordering::Relaxed);
        seen >> 32 == old[0] as u64 && self.0.compare_exchange(seen, new, success, Ordering::Relaxed).is_ok()
    }
}
