//! Waiting for a condition that others make true often, and that nobody waits for most of the time.
//!
//! The waiter counts itself and looks once more; whoever makes the condition true looks at the count afterwards. That is
//! Dekker's pattern, and the [asymmetric fence](crate::asymmetric) puts its cost on the waiter, which is about to
//! sleep anyway.
//!
//! An event count has waiters of one of two kinds. Where each waits for something else ([`EventCount::wait_for`]) all are
//! woken ([`EventCount::notify_all`]), and each stays on the count until it is content. Where one of them is enough
//! ([`EventCount::wait_and_pass_on`], [`EventCount::notify_one`]), whoever wakes a waiter takes it off the count, so that nobody wakes for it again while it is on its way: it takes
//! some 50 us until it runs, in which others may notify a thousand times. A waiter that returns from its sleep, for whatever
//! reason, looks, and counts itself anew before it sleeps again. *Nobody sleeps that is not counted or woken:* whoever
//! subtracts lets the event happen afterwards, so a waiter that read the event before it counted itself either sleeps
//! already, and is one of those that the wake may end the sleep of, or does not fall asleep. A waiter that does not need to
//! sleep after all leaves its count behind, which costs one wake of nobody.

use crate::asymmetric;
use crate::atomic::{AtomicU32, Ordering};
use crate::parker::Event;
use crate::spin::{Patience, give_way};
use crate::step;

pub(crate) struct EventCount {
    /// Sync: its own.
    event: Event,
    /// Threads that sleep, or will, and (of the second kind) that nobody wakes yet; at least. Sync: `events.dekker`.
    sleepers: AtomicU32,
}

impl EventCount {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Self { event: Event::new(), sleepers: AtomicU32::new(0) }
        }
    }

    /// Waits until `attempt` gives something; [`EventCount::notify_all`] follows each change.
    pub(crate) fn wait_for<R>(&self, patience: Patience, mut attempt: impl FnMut() -> Option<R>) -> R {
        if let Some(result) = look(patience, &mut attempt) {
            return result;
        }
        self.count_me();
        let result = loop {
            let seen = self.event.current();
            if let Some(result) = attempt() {
                break result;
            }
            self.event.wait(seen);
        };
        // ORDER events.dekker: Relaxed; a count that is too high costs a wake.
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// Waits until `attempt` gives something, as one of several that the same may content; [`EventCount::notify_one`]
    /// follows each change. Who has slept asks afterwards whether there is `more`, and wakes another one if so: its own wake
    /// may have been the last of several, the others of which came too early to be of use.
    pub(crate) fn wait_and_pass_on<R>(
        &self,
        patience: Patience,
        mut attempt: impl FnMut() -> Option<R>,
        more: impl FnOnce() -> bool,
    ) -> R {
        if let Some(result) = look(patience, &mut attempt) {
            return result;
        }
        let result = loop {
            let before = self.event.current();
            self.count_me();
            let seen = if step::kept("events: the event before the count") { before } else { self.event.current() };
            if let Some(result) = attempt() {
                break result;
            }
            self.event.wait_once(seen);
            // Without counting itself and the fence, which it needs only to sleep again.
            if let Some(result) = attempt() {
                break result;
            }
        };
        if step::kept("events: who slept passes on") && more() {
            self.notify_one();
        }
        result
    }

    fn count_me(&self) {
        // ORDER events.dekker: Relaxed, with the load in `is_waited_for`; the halves of the fence order it.
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        if step::kept("events: the heavy half") {
            // Between the count and the look: who notifies makes the condition true and then reads the count.
            asymmetric::heavy();
        }
    }

    #[inline]
    fn is_waited_for(&self) -> bool {
        if step::kept("events: the light half") {
            // Between the caller's change and the count: a waiter counts itself and then looks.
            asymmetric::light();
        }
        // ORDER events.dekker: Relaxed, with the addition in `count_me`.
        self.sleepers.load(Ordering::Relaxed) != 0
    }

    /// After a change that may content any waiter.
    #[inline]
    pub(crate) fn notify_all(&self) {
        if self.is_waited_for() {
            self.event.bump_and_wake_all();
        }
    }

    /// After a change that contents one waiter.
    #[inline]
    pub(crate) fn notify_one(&self) {
        if self.is_waited_for() {
            self.notify_one_slow();
        }
    }

    #[cold]
    fn notify_one_slow(&self) {
        // ORDER events.dekker: Relaxed, here and below; the count is the whole message.
        let mut sleepers = self.sleepers.load(Ordering::Relaxed);
        while sleepers != 0 {
            match self.sleepers.compare_exchange_weak(sleepers, sleepers - 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return self.event.bump_and_wake(1),
                Err(now) => sleepers = now,
            }
        }
    }
}

/// Attempts again and again while there is patience, and gives the processor away now and then: who makes the condition true may
/// be waiting for this very processor, since the kernel likes to put who is woken beside its waker. Two threads of one processor
/// that looked for all of their patience and slept passed a quarter as many messages.
fn look<R>(mut patience: Patience, attempt: &mut impl FnMut() -> Option<R>) -> Option<R> {
    loop {
        let result = stay(attempt);
        // In a model, others run before the second look; more of the same only makes it longer.
        if result.is_some() || cfg!(loom) || !patience.spin() {
            return result;
        }
        give_way();
    }
}

/// Attempts until the processor should be given away.
pub(crate) fn stay<R>(attempt: &mut impl FnMut() -> Option<R>) -> Option<R> {
    let mut pauses = 1;
    let mut patience = Patience::for_nanos(STAY_NS);
    loop {
        let result = attempt();
        if result.is_some() || !patience.spin_for(pauses) {
            return result;
        }
        pauses = (pauses * 2).min(PAUSES);
    }
}

/// Pauses between two looks of a waiter, at most: 0.8 to 1.6 us. Its looks take lines from those who work.
const PAUSES: u32 = 32;
/// How long a waiter looks before it gives its processor away, and again after that. (300 and 3000 ns: no difference beyond the
/// noise; Xeon, Sapphire Rapids, 2 CPUs, 2026-11-22.)
const STAY_NS: u64 = 1_000;
