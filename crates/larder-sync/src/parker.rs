//! One word to sleep on: an event that happens again and again, and is counted.
//!
//! A waiter reads the count, looks at whatever it waits for, and sleeps only while the count has not moved; whoever
//! changes that thing moves the count afterwards. No wake is lost between the look and the sleep, because the kernel
//! compares the count again before it puts the thread to sleep.
//!
//! ```
//! use larder_sync::atomic::{AtomicBool, Ordering};
//! use larder_sync::parker::Event;
//!
//! static OPENED: Event = Event::new();
//! static OPEN: AtomicBool = AtomicBool::new(false);
//!
//! let opener = std::thread::spawn(|| {
//!     OPEN.store(true, Ordering::Relaxed);
//!     OPENED.bump_and_wake_all();
//! });
//! loop {
//!     let seen = OPENED.current();
//!     if OPEN.load(Ordering::Relaxed) {
//!         break;
//!     }
//!     OPENED.wait(seen);
//! }
//! # opener.join().unwrap();
//! ```
//!
//! Not for a condition that changes often while nobody waits: each bump is a write to one shared word and a system
//! call. Count the sleepers beside it in that case, as [`termination`](crate::termination) does.

use crate::atomic::Ordering;
use crate::futex::{Deadline, Word};
use crate::step;
use core::fmt;

/// An event that happens again and again; threads sleep until it has happened once more.
///
/// The count has 32 bits. A waiter that holds on to a count while the event happens exactly 2^32 times takes the new
/// count for the old one.
pub struct Event {
    /// How often the event has happened, modulo 2^32.
    ///
    /// Sync: `event.happen`.
    count: Word,
}

impl Event {
    const_unless_loom! {
        /// An event that has not happened yet.
        pub fn new() -> Self {
            Self { count: Word::new(0) }
        }
    }

    /// How often the event has happened. Read it before looking at what is waited for.
    #[inline]
    pub fn current(&self) -> u32 {
        // ORDER event.happen: Acquire, with the additions in `bump_and_wake_all` and `bump_and_wake`. Weaker, a caller
        // could read the new count, miss the change behind it, and sleep until the next one.
        self.count.load(step::order("event.happen: Acquire", Ordering::Acquire))
    }

    /// Sleeps until the count is no longer `seen`.
    ///
    /// A signal does not end the wait. Safe to call from a handler.
    pub fn wait(&self, seen: u32) {
        while self.current() == seen {
            self.count.wait(seen);
        }
    }

    /// Sleeps until the count is no longer `seen`, or for no reason.
    #[cfg(any(feature = "std", loom))]
    pub(crate) fn wait_once(&self, seen: u32) {
        if self.current() == seen {
            self.count.wait(seen);
        }
    }

    /// Sleeps as [`Event::wait`] does, for at most `nanos` nanoseconds; returns whether the count has moved. In a model,
    /// `u64::MAX` is a time that never passes, and any other has passed when others have run.
    pub fn wait_timeout(&self, seen: u32, nanos: u64) -> bool {
        if self.current() != seen {
            return true;
        }
        let deadline = Deadline::after(nanos);
        loop {
            let late = self.count.wait_before(seen, deadline);
            if self.current() != seen {
                return true;
            }
            if late {
                return false;
            }
        }
    }

    /// Lets the event happen, and wakes everybody who waits for it.
    pub fn bump_and_wake_all(&self) {
        self.bump_and_wake(u32::MAX);
    }

    /// Lets the event happen and wakes nobody: [`Event::pass_on`] does, some time later. Returns how often it has
    /// happened now.
    pub fn bump(&self) -> u32 {
        // ORDER event.happen: Release, with the load in `current`. Weaker, a waiter could see the new count before the
        // change that it stands for.
        self.count.fetch_add(1, step::order("event.happen: Release", Ordering::Release)).wrapping_add(1)
    }

    /// Lets the event happen, and wakes at most `n` of those who sleep, longest first.
    ///
    /// The others sleep on although the count has moved, until a later wake or a signal reaches them. Threads that had
    /// read the count but were not asleep yet return as well and are not counted.
    pub fn bump_and_wake(&self, n: u32) {
        self.bump();
        self.count.wake(n);
    }

    /// As [`Event::bump_and_wake`], but wakes nobody who waits for what happens after this, as long as there are others: for an event of which each wake is
    /// for somebody, and for which threads of real-time priorities wait.
    pub fn bump_and_wake_earlier(&self, n: u32) {
        self.wake_earlier(n, self.bump());
    }

    /// What a thread that has [bumped](Self::bump), and was told `latest`, left to do of [`Event::bump_and_wake_earlier`].
    pub fn wake_earlier(&self, n: u32, latest: u32) {
        self.count.wake_earlier(n, latest);
    }

    /// Wakes at most `n` of those who sleep, without letting the event happen again: what [`Event::bump`] left to do, or
    /// a woken thread passes the wake on.
    pub fn pass_on(&self, n: u32) {
        self.count.wake(n);
    }

    /// Forgets the parent's sleepers in a fork child: a count read before the fork counts as old.
    ///
    /// # Safety
    /// The calling thread is the only thread of the process.
    pub unsafe fn reset_after_fork(&self) {
        // ORDER event.happen: Relaxed; there is no other thread to order anything against.
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Default for Event {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("current", &self.current()).finish()
    }
}

/// A token that one thread waits for and any thread gives: park and unpark.
///
/// `unpark` leaves the token, `park` takes it and sleeps until it is there. One token at most: a second `unpark` before
/// the next `park` does nothing more. What was done before an `unpark` is seen after the `park` that takes its token; an
/// `unpark` that finds a token there has given nothing, and still what came before it is seen.
///
/// **When to use:** to wait for something that another thread names you for. **When not:** for several waiters
/// ([`Event`]). **Progress and fairness:** no wake is lost; a signal does not end a park. **Cost:** one exchange each, and a system call
/// where somebody sleeps; four bytes. **Cancellation:** a thread that is cancelled in `park` leaves the parker as if it slept.
///
/// The token is taken by an exchange. Taking it by a load and a store loses a wake: the store may reach memory after an
/// `unpark` that came between, and wipe it out (the notes' "A race in LockSupport park()"; `tests/loom_parker.rs` shows it).
///
/// ```
/// use larder_sync::parker::Parker;
///
/// static PARKER: Parker = Parker::new();
/// let other = std::thread::spawn(|| PARKER.unpark());
/// PARKER.park();
/// # other.join().unwrap();
/// ```
pub struct Parker {
    /// Sync: `parker.token`.
    word: Word,
}

const EMPTY: u32 = 0;
const PARKED: u32 = 1;
const TOKEN: u32 = 2;

impl Parker {
    const_unless_loom! {
        /// A parker without a token.
        pub fn new() -> Self {
            Self { word: Word::new(EMPTY) }
        }
    }

    /// Takes the token; sleeps until it is there. One thread at a time may park here.
    pub fn park(&self) {
        self.park_until(None);
    }

    /// As [`Parker::park`], for at most `nanos` nanoseconds; says whether it took the token.
    pub fn park_timeout(&self, nanos: u64) -> bool {
        self.park_until(Some(Deadline::after(nanos)))
    }

    fn take(&self) -> bool {
        // ORDER parker.token: Acquire, with the exchange in `unpark`. Weaker, the caller could miss what it waits for.
        let order = step::order("parker.token: Acquire", Ordering::Acquire);
        if step::kept("parker: the token is taken by an exchange") {
            return self.word.compare_exchange(TOKEN, EMPTY, order, Ordering::Relaxed).is_ok();
        }
        let there = self.word.load(order) == TOKEN;
        if there {
            self.word.store(EMPTY, Ordering::Relaxed);
        }
        there
    }

    fn park_until(&self, deadline: Option<Deadline>) -> bool {
        loop {
            if self.take() {
                return true;
            }
            // ORDER parker.token: Relaxed; it says only that this thread sleeps. It fails if the token has come, and finds
            // PARKED where a thread was cancelled in here.
            match self.word.compare_exchange(EMPTY, PARKED, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) | Err(PARKED) => break,
                Err(_) => {}
            }
        }
        loop {
            let late = match deadline {
                None => {
                    self.word.wait(PARKED);
                    false
                }
                Some(deadline) => self.word.wait_before(PARKED, deadline),
            };
            if self.take() {
                return true;
            }
            // ORDER parker.token: Relaxed; it fails if the token has come meanwhile.
            if late && self.word.compare_exchange(PARKED, EMPTY, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return false;
            }
        }
    }

    /// Leaves the token, and wakes the thread that waits for it.
    pub fn unpark(&self) {
        let waker = self.word.waker();
        // ORDER parker.token: Release, with the exchange in `take`, whether or not there is a token already.
        if self.word.swap(TOKEN, step::order("parker.token: Release", Ordering::Release)) == PARKED {
            waker.wake(1);
        }
    }
}

impl Default for Parker {
    fn default() -> Self {
        Self::new()
    }
}
