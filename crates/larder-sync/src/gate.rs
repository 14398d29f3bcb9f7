//! A gate: threads go in and out, and whoever closes it waits until nobody is inside.
//!
//! | step | who goes in | who closes |
//! |---|---|---|
//! | 1 | adds itself to `inside` | sets `closed` |
//! | 2 | full fence | full fence |
//! | 3 | reads `closed`; leaves again if it is set | reads `inside`; sleeps until it is 0 |
//! | 4 | to leave: subtracts itself from `inside` | |
//! | 5 | full fence, if it was the last one | |
//! | 6 | reads `closed`; rings if it is set | |
//!
//! Steps 1 to 3 are Dekker's pattern: at least one of the two reads sees the other's write, so either the thread turns
//! round or the closer waits for it. Steps 4 to 6 against 1 to 3 of the closer are the same pattern once more: either the
//! last one out sees the gate closed and rings, or the closer sees that it is out and does not sleep.
//!
//! A thread that finds the gate closed does not touch `inside` again before it opens: its leaving would ring, and two
//! such threads would wake each other without end.

use crate::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use crate::parker::Event;
use crate::spin::{Patience, SLEEP_AND_WAKE_NS};
use crate::step;

/// A gate that threads pass, and that one closes behind the last of them.
pub struct Gate {
    /// Threads that are inside, or about to find the gate closed. Sync: `gate.dekker` and `gate.out`.
    inside: AtomicU32,
    /// Sync: `gate.dekker` and `gate.open`.
    closed: AtomicBool,
    /// Happens when the last one leaves a closed gate, and when it opens. Sync: its own.
    changed: Event,
}

/// A stay inside; ends when dropped.
#[must_use = "the stay ends when this is dropped"]
pub struct Inside<'a>(&'a Gate);

impl Gate {
    const_unless_loom! {
        /// A gate that is open.
        pub fn new_open() -> Self {
            Self { inside: AtomicU32::new(0), closed: AtomicBool::new(false), changed: Event::new() }
        }
    }

    const_unless_loom! {
        /// A gate that is closed.
        pub fn new_closed() -> Self {
            Self { inside: AtomicU32::new(0), closed: AtomicBool::new(true), changed: Event::new() }
        }
    }

    /// Goes in, unless the gate is closed.
    pub fn try_enter(&self) -> Option<Inside<'_>> {
        // ORDER gate.dekker: Relaxed, with the load of `inside` in `close`; the fences order it.
        self.inside.fetch_add(1, Ordering::Relaxed);
        let inside = Inside(self);
        if step::kept("gate: the fence of who goes in") {
            // Between the addition and the load: `close` sets `closed` and then reads `inside`.
            fence(Ordering::SeqCst);
        }
        // ORDER gate.open: Acquire, with the store in `open`. Weaker, this thread could miss what was made ready before
        // the gate opened.
        (!self.closed.load(step::order("gate.open: Acquire", Ordering::Acquire))).then_some(inside)
    }

    /// Goes in, sleeping while the gate is closed.
    pub fn enter(&self) -> Inside<'_> {
        loop {
            self.wait_until_open();
            if let Some(inside) = self.try_enter() {
                return inside;
            }
        }
    }

    /// Sleeps while the gate is closed. It may be closed again when this returns.
    pub fn wait_until_open(&self) {
        loop {
            let seen = self.changed.current();
            // ORDER gate.open: Relaxed; `try_enter` decides.
            if !self.closed.load(Ordering::Relaxed) {
                return;
            }
            self.changed.wait(seen);
        }
    }

    /// Closes the gate and waits until everybody is out. A second thread that closes waits until it was opened.
    ///
    /// The caller is not inside.
    pub fn close(&self) {
        loop {
            let seen = self.changed.current();
            // ORDER gate.open: Acquire, with the store in `open`: what the last one did who had closed it is seen.
            if !self.closed.swap(true, Ordering::Acquire) {
                break;
            }
            self.changed.wait(seen);
        }
        if step::kept("gate: the fence of who closes") {
            // Between the exchange and the load: a thread adds itself to `inside` (or subtracts itself) and then reads
            // `closed`.
            fence(Ordering::SeqCst);
        }
        let mut patience = Patience::for_nanos(SLEEP_AND_WAKE_NS);
        loop {
            let seen = self.changed.current();
            // ORDER gate.out: Acquire, with the subtraction in `Inside::drop`. Weaker, the caller could miss what was
            // written inside.
            if self.inside.load(step::order("gate.out: Acquire", Ordering::Acquire)) == 0 {
                return;
            }
            if !patience.spin() {
                self.changed.wait(seen);
            }
        }
    }

    /// Opens the gate. The caller has closed it, or it was made closed.
    pub fn open(&self) {
        // ORDER gate.open: Release, with the accesses in `try_enter` and `close`. An exchange, because loom would let the
        // one in `close` of a second closer, which changes nothing, come after a store that it was before.
        self.closed.swap(false, step::order("gate.open: Release", Ordering::Release));
        self.changed.bump_and_wake_all();
    }

    /// Makes the gate closed or open in a fork child, with nobody inside.
    ///
    /// # Safety
    /// The calling thread is the only thread of the process and is not inside.
    pub unsafe fn reset_after_fork(&self, closed: bool) {
        // ORDER gate.open, gate.dekker: Relaxed; there is no other thread to order anything against.
        self.inside.store(0, Ordering::Relaxed);
        self.closed.store(closed, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.changed.reset_after_fork() };
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // ORDER gate.out: Release, with the load in `close`.
        if self.0.inside.fetch_sub(1, step::order("gate.out: Release", Ordering::Release)) == 1 {
            if step::kept("gate: the fence of the last one out") {
                // Between the subtraction and the load: `close` sets `closed` and then reads `inside`.
                fence(Ordering::SeqCst);
            }
            // ORDER gate.dekker: Relaxed, with the exchange in `close`; the fences order it.
            if self.0.closed.load(Ordering::Relaxed) {
                self.0.changed.bump_and_wake_all();
            }
        }
    }
}
