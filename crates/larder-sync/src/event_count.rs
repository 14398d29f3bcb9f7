//! Waiting for a condition that others make true often, and that nobody waits for most of the time.
//!
//! The waiter counts itself and looks once more; whoever makes the condition true looks at the count afterwards. That is
//! Dekker's pattern, and the [asymmetric fence](crate::asymmetric) puts its cost on the waiter, which is about to
//! sleep anyway.

use crate::asymmetric;
use crate::atomic::{AtomicU32, Ordering};
use crate::parker::Event;
use crate::spin::Patience;
use crate::step;

pub(crate) struct EventCount {
    /// Sync: its own.
    event: Event,
    /// Threads that may sleep. Sync: `events.dekker`.
    sleepers: AtomicU32,
}

impl EventCount {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Self { event: Event::new(), sleepers: AtomicU32::new(0) }
        }
    }

    /// Waits until `attempt` gives something.
    pub(crate) fn wait_for<R>(&self, patience: Patience, attempt: impl FnMut() -> Option<R>) -> R {
        self.wait_and_pass_on(patience, attempt, || false)
    }

    /// As [`EventCount::wait_for`]. Who has slept asks afterwards whether there is `more`, and wakes another one if so: its
    /// own wake may have been the last of several, the others of which came too early to be of use.
    pub(crate) fn wait_and_pass_on<R>(
        &self,
        mut patience: Patience,
        mut attempt: impl FnMut() -> Option<R>,
        more: impl FnOnce() -> bool,
    ) -> R {
        loop {
            if let Some(result) = attempt() {
                return result;
            }
            if !patience.spin() {
                break;
            }
        }
        // ORDER events.dekker: Relaxed, with the load in `notify`; the halves of the fence order it.
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        if step::kept("events: the heavy half") {
            // Between the count and the look: who notifies makes the condition true and then reads the count.
            asymmetric::heavy();
        }
        let result = loop {
            let seen = self.event.current();
            if let Some(result) = attempt() {
                break result;
            }
            self.event.wait(seen);
        };
        // ORDER events.dekker: Relaxed; a count that is too high costs a wake.
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        if step::kept("events: who slept passes on") && more() {
            self.notify(1);
        }
        result
    }

    /// After the condition has become true for `n` threads.
    #[inline]
    pub(crate) fn notify(&self, n: u32) {
        if step::kept("events: the light half") {
            // Between the caller's change and the count: a waiter counts itself and then looks.
            asymmetric::light();
        }
        // ORDER events.dekker: Relaxed, with the addition in `wait_for`.
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.event.bump_and_wake(n);
        }
    }
}
