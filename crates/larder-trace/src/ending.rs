//! How the markers of a round find out that nothing is left: by a word of each (NSB), or by the counter that this replaced.

use core::sync::atomic::{AtomicBool, Ordering};

use larder_sync::termination::{Counted, Termination};

/// Both ways, of which a round uses one.
pub(crate) struct Ending {
    words: Termination,
    counter: Counted,
    /// The present round counts. Sync: written before the round begins.
    counts: AtomicBool,
}

impl Ending {
    pub const fn new() -> Self {
        Self { words: Termination::new(), counter: Counted::new(), counts: AtomicBool::new(false) }
    }

    #[inline]
    fn counts(&self) -> bool {
        self.counts.load(Ordering::Relaxed)
    }

    /// Starts a round: see [`Termination::begin`].
    pub fn begin(&self, markers: usize, counts: bool) {
        self.counts.store(counts, Ordering::Relaxed);
        if counts { self.counter.begin(markers) } else { self.words.begin(markers) }
    }

    /// See [`Termination::become_idle`].
    pub fn become_idle(&self, me: usize) {
        if self.counts() { self.counter.become_idle() } else { self.words.become_idle(me) }
    }

    /// See [`Termination::become_busy`].
    pub fn become_busy(&self, me: usize) {
        if self.counts() { self.counter.become_busy() } else { self.words.become_busy(me) }
    }

    /// See [`Termination::detect`].
    pub fn detect(&self, all_empty: impl Fn() -> bool) -> bool {
        if self.counts() { self.counter.detect(all_empty) } else { self.words.detect(all_empty) }
    }

    /// See [`Termination::is_done`].
    pub fn is_done(&self) -> bool {
        if self.counts() { self.counter.is_done() } else { self.words.is_done() }
    }

    /// See [`Termination::interrupt`]. Not for a round that counts: only rounds beside the program are interrupted, and they leave no
    /// optimization out.
    pub fn interrupt(&self) {
        debug_assert!(!self.counts());
        self.words.interrupt();
    }

    /// See [`Termination::sleep`].
    pub fn sleep(&self, me: usize, all_empty: impl Fn() -> bool) {
        if self.counts() { self.counter.sleep(all_empty) } else { self.words.sleep(me, all_empty) }
    }

    /// See [`Termination::announce_work`].
    pub fn announce_work(&self, pieces: usize) {
        if self.counts() { self.counter.announce_work(pieces) } else { self.words.announce_work(pieces) }
    }
}
