//! Termination as it is usually written: a counter of idle markers behind a lock.
//!
//! The thesis (section 3.4.3) shows that this is what keeps a collector from scaling, and replaces it; it is kept here so that the
//! effect can be measured. The interface is [`Termination`](super::Termination)'s, and what callers owe is the same.
//!
//! **Why it is right.** A marker is counted as idle or not under the lock, so while the lock is held and all are idle, nobody is
//! busy, nobody changes a list, and `all_empty` reads what the last busy marker left: it took the lock afterwards. A sleeper
//! announces itself under the lock after it has looked at the lists under the same lock; whoever announces work takes the lock after
//! the push. So either the sleeper saw the push, or the announcer sees the sleeper and moves the bell, whose count the sleeper
//! had read before.

use crate::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::lock::Lock;
use crate::parker::Event;
use core::fmt;

/// How the markers of a round agree that nothing is left to mark, by a shared counter.
pub struct Counted {
    /// Guards the next four.
    guard: Lock,
    /// Markers in this round. Sync: `guard`.
    markers: AtomicUsize,
    /// How many of them are idle. Sync: `guard`.
    idle: AtomicUsize,
    /// How many sleep, or are about to, or have just woken. Sync: `guard`.
    sleepers: AtomicUsize,
    /// Whether the round is over. Sync: written under `guard`; `counted.done`.
    done: AtomicBool,
    /// Sleepers wait here.
    bell: Event,
}

impl Counted {
    const_unless_loom! {
        /// Between rounds: no markers, not done.
        pub fn new() -> Self {
            Self {
                guard: Lock::new(),
                markers: AtomicUsize::new(0),
                idle: AtomicUsize::new(0),
                sleepers: AtomicUsize::new(0),
                done: AtomicBool::new(false),
                bell: Event::new(),
            }
        }
    }

    /// Starts a round of `markers` markers, all of them busy. Call it while no thread is in any other call.
    pub fn begin(&self, markers: usize) {
        let _guard = self.guard.lock();
        // All Relaxed, here and below: the lock orders them.
        self.markers.store(markers, Ordering::Relaxed);
        self.idle.store(0, Ordering::Relaxed);
        self.sleepers.store(0, Ordering::Relaxed);
        self.done.store(false, Ordering::Relaxed);
    }

    /// A marker has nothing private and found nothing to steal.
    pub fn become_idle(&self) {
        let _guard = self.guard.lock();
        self.idle.store(self.idle.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// A marker is about to try to steal. It must come before the attempt.
    pub fn become_busy(&self) {
        let _guard = self.guard.lock();
        self.idle.store(self.idle.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }

    /// Says whether the round is over; ends it where that is so.
    pub fn detect(&self, all_empty: impl Fn() -> bool) -> bool {
        if self.is_done() {
            return true;
        }
        let _guard = self.guard.lock();
        self.detect_locked(&all_empty)
    }

    fn detect_locked(&self, all_empty: &impl Fn() -> bool) -> bool {
        if self.done.load(Ordering::Relaxed) {
            return true;
        }
        if self.idle.load(Ordering::Relaxed) < self.markers.load(Ordering::Relaxed) || !all_empty() {
            return false;
        }
        // ORDER counted.done: Release, with the load in `is_done`: whoever sees it sees all that was marked, since each marker took
        // the lock when it became idle.
        self.done.store(true, Ordering::Release);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.bell.bump_and_wake_all();
        }
        true
    }

    /// Whether the round is over.
    #[inline]
    pub fn is_done(&self) -> bool {
        // ORDER counted.done: Acquire, with the store in `detect_locked`.
        self.done.load(Ordering::Acquire)
    }

    /// Lets an idle marker sleep until work is announced or the round is over; it may also return for no reason.
    pub fn sleep(&self, all_empty: impl Fn() -> bool) {
        let seen = self.bell.current();
        {
            let _guard = self.guard.lock();
            if self.detect_locked(&all_empty) || !all_empty() {
                return;
            }
            self.sleepers.store(self.sleepers.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        self.bell.wait(seen);
        let _guard = self.guard.lock();
        self.sleepers.store(self.sleepers.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }

    /// A busy marker has put `pieces` pieces of work into a public list: wakes as many sleepers.
    pub fn announce_work(&self, pieces: usize) {
        let _guard = self.guard.lock();
        if self.sleepers.load(Ordering::Relaxed) > 0 && pieces > 0 {
            self.bell.bump_and_wake(u32::try_from(pieces).unwrap_or(u32::MAX));
        }
    }
}

impl Default for Counted {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counted").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}
