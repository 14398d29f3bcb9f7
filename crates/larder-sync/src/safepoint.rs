//! Stopping threads that look for it: each polls a word of its own, and a thread in a blocking region is not waited for.
//!
//! Each thread has one word, and every change of it is one read-modify-write, so that the order of changes of that word
//! decides every race; no fence is needed.
//!
//! | bit | name | set by | meaning |
//! |---|---|---|---|
//! | 0 | SAFE | the thread | it does not touch what a stop protects: it is blocked, or parked in a stop |
//! | 1 | STOP | who stops | a stop is wanted, or is on |
//! | 2 | PARKED | the thread | it wants to leave the safe state, and sleeps until the stop is over |
//!
//! | a thread that becomes safe | who stops |
//! |---|---|
//! | 1. sets SAFE; if STOP was set, it was counted: 2. subtracts itself from `missing`; the last one rings | 1. sets STOP in every word, and counts those without SAFE |
//! | | 2. adds the count to `missing`, and sleeps until that is 0 |
//! | to leave: 3. takes SAFE away if STOP is not set, else sets PARKED and sleeps until SAFE is gone | 3. clears STOP in every word, and SAFE and PARKED where PARKED is set; rings |
//!
//! A parked thread is running from the moment when who stopped has cleared its word, whenever it wakes: the next stop waits
//! for it. So stops that follow one another without a pause do not keep it from ever going on.
//!
//! A thread is counted exactly if its SAFE came after its STOP, because both are changes of one word; so `missing`, which
//! may be below zero for a while, is 0 exactly when every counted thread has arrived.
//!
//! The words are polled with an ordinary load, which may be late but not for ever. Threads join and leave the set under
//! a lock of the caller's, which who stops holds from the request to the end of the stop.

use crate::atomic::{AtomicU32, Ordering};
use crate::parker::Event;
use crate::step;

/// Set by the thread: it may be taken as stopped.
const SAFE: u32 = 1;
/// Set by who stops.
const STOP: u32 = 2;

/// Set by the thread: it waits for the end of a stop.
const PARKED: u32 = 4;

/// One thread's word. Zero while the thread runs and nobody wants it to stop.
#[repr(transparent)]
pub struct Status(AtomicU32);

impl Status {
    const_unless_loom! {
        /// The word of a thread that is safe: it joins so, and leaves the safe state to begin.
        pub fn new_safe() -> Self {
            Self(AtomicU32::new(SAFE))
        }
    }

    /// Whether the thread should call [`Safepoint::stop_here`].
    #[inline(always)]
    pub fn wants_stop(&self) -> bool {
        // ORDER safepoint.poll: Relaxed; `stop_here` decides by read-modify-writes.
        self.0.load(Ordering::Relaxed) != 0
    }

    /// In a child of fork: the word of a thread that the child does not have is that of one that has not joined.
    ///
    /// # Safety
    /// The calling thread is the only one of the process, and the word is not its own.
    pub unsafe fn reset_after_fork(&self) {
        // ORDER safepoint.poll: Relaxed; there is no other thread to order anything against.
        self.0.store(SAFE, Ordering::Relaxed);
    }

    /// Whether the thread is safe. For assertions.
    pub fn is_safe(&self) -> bool {
        // ORDER safepoint.poll: Relaxed; nothing is concluded from it.
        self.0.load(Ordering::Relaxed) & SAFE != 0
    }
}

/// What the threads of one set and those who stop them share.
pub struct Safepoint {
    /// Threads that were counted and have not arrived: a number that may pass through "minus some", and so wraps.
    ///
    /// Sync: `safepoint.arrive`.
    missing: AtomicU32,
    /// Happens when the last thread arrives. Sync: its own.
    arrived: Event,
    /// Happens when a stop is over. Sync: its own.
    over: Event,
}

impl Safepoint {
    const_unless_loom! {
        /// No stop.
        pub fn new() -> Self {
            Self { missing: AtomicU32::new(0), arrived: Event::new(), over: Event::new() }
        }
    }

    /// The calling thread, whose word this is, stands still for the stop that is wanted, if one is.
    #[cold]
    pub fn stop_here(&self, own: &Status) {
        self.become_safe(own);
        self.leave(own);
    }

    /// The calling thread will not touch what a stop protects until it has called [`Safepoint::leave`].
    pub fn become_safe(&self, own: &Status) {
        // ORDER safepoint.arrive: Release, with the Acquire of who stops, in `request` or `wait`. Weaker, who stops could
        // miss what this thread wrote.
        let before = own.0.fetch_or(SAFE, step::order("safepoint: Release of who becomes safe", Ordering::Release));
        debug_assert!(before & SAFE == 0, "larder: a safe thread became safe");
        if before & STOP != 0 {
            // ORDER safepoint.arrive: Release, with the Acquire in `wait`; each subtraction continues the release
            // sequence of those before it.
            let release = step::order("safepoint.arrive: Release", Ordering::Release);
            if self.missing.fetch_sub(1, release) == 1 {
                self.arrived.bump_and_wake_all();
            }
        }
    }

    /// Ends the safe state; sleeps while a stop is on.
    pub fn leave(&self, own: &Status) {
        // ORDER safepoint.over: Acquire, with the Release in `release`. Weaker, this thread could miss what was changed during
        // the stop.
        let acquire = step::order("safepoint.over: Acquire", Ordering::Acquire);
        loop {
            let seen = self.over.current();
            let word = own.0.load(acquire);
            if word & SAFE == 0 {
                return;
            }
            if word & STOP == 0 {
                if own.0.compare_exchange(word, 0, acquire, Ordering::Relaxed).is_ok() {
                    return;
                }
                continue;
            }
            // ORDER safepoint.over: Relaxed; it tells who stops that this thread waits, and nothing else.
            let relaxed = Ordering::Relaxed;
            if word & PARKED == 0 && own.0.compare_exchange(word, word | PARKED, relaxed, relaxed).is_err() {
                continue;
            }
            // A bump after `seen` was read ends the wait, and it comes after this word was cleared.
            self.over.wait(seen);
        }
    }

    /// Wants the thread of this word to stop; returns 1 if it has to be waited for, 0 if it is safe already.
    ///
    /// One thread at a time requests, and the word's thread does not leave the set until [`Safepoint::release`].
    pub fn request(&self, word: &Status) -> u32 {
        // ORDER safepoint.arrive: Acquire, with the Release in `become_safe`, for threads that are safe already.
        let acquire = step::order("safepoint: Acquire of who stops", Ordering::Acquire);
        u32::from(word.0.fetch_or(STOP, acquire) & SAFE == 0)
    }

    /// Sleeps until as many threads as were counted have arrived.
    pub fn wait(&self, counted: u32) {
        // ORDER safepoint.arrive: Relaxed; the load below decides.
        self.missing.fetch_add(counted, Ordering::Relaxed);
        loop {
            let seen = self.arrived.current();
            // ORDER safepoint.arrive: Acquire, with the subtractions in `become_safe`.
            if self.missing.load(step::order("safepoint.arrive: Acquire", Ordering::Acquire)) == 0 {
                return;
            }
            self.arrived.wait(seen);
        }
    }

    /// The stop is over for the thread of this word; [`Safepoint::announce`] follows when it is over for all.
    pub fn release(&self, word: &Status) {
        // ORDER safepoint.over: Relaxed; the compare-and-swap decides.
        let mut now = word.0.load(Ordering::Relaxed);
        loop {
            let next = if now & PARKED != 0 { 0 } else { now & !STOP };
            // ORDER safepoint.over: Release, with the accesses in `leave`.
            let release = step::order("safepoint.over: Release", Ordering::Release);
            match word.0.compare_exchange(now, next, release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(newer) => now = newer,
            }
        }
    }

    /// Wakes those who sleep in [`Safepoint::leave`].
    pub fn announce(&self) {
        self.over.bump_and_wake_all();
    }
}

impl Default for Safepoint {
    fn default() -> Self {
        Self::new()
    }
}
