//! A futex for loom: the word, and a queue that stands for the kernel's.
//!
//! The kernel compares the word and enters the sleeper into its queue under the lock that a wake takes as well, so a
//! value stored before a wake is either seen by the comparison or followed by a wake that finds the sleeper. A mutex,
//! and a condition variable for each sleep, say the same. A sleeper that nobody wakes ends the model with "deadlock".
//!
//! The mutex orders a little more than the interface promises: a sleeper sees what its waker did before the wake even
//! if it does not look at the word. Callers always look at the word, with `Acquire`.

use crate::atomic::AtomicU32;
use crate::loom::sync::atomic::Ordering;
use crate::loom::sync::{Condvar, Mutex};
use crate::signals::{self, POISON, Queue};
use core::ops::Deref;
use std::sync::Arc;

/// A word that threads can sleep on.
pub(crate) struct Word {
    /// Sync: by the protocol of whoever owns the word.
    value: AtomicU32,
    /// The sleepers. Sync: the mutex, which stands for the lock of the kernel's queue.
    queue: Queue,
}

impl Deref for Word {
    type Target = AtomicU32;
    fn deref(&self) -> &AtomicU32 {
        &self.value
    }
}

/// When a wait gives up. A model has no clock: a deadline has passed when it is asked for, or never comes.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    never: bool,
}

impl Deadline {
    /// The moment that passes when other threads have had a chance to run; the longest time never does.
    pub(crate) fn after(nanos: u64) -> Self {
        Self { never: nanos == u64::MAX }
    }
}

impl Word {
    /// A word with this value and no sleepers.
    pub(crate) fn new(value: u32) -> Self {
        Self { value: AtomicU32::new(value), queue: Arc::new(Mutex::default()) }
    }

    /// Sleeps once if the word still is `expected`; ends for a signal, too.
    pub(crate) fn wait(&self, expected: u32) {
        signals::look();
        let mut queue = self.queue.lock().expect(POISON);
        // Relaxed, as the kernel's own read: the lock of the queue decides the race with a wake. And not an access of the
        // thread's, so no signal comes between.
        if self.value.peek(Ordering::Relaxed) == expected {
            let bed = Arc::new(Condvar::new());
            if signals::lie_down(&self.queue, &bed) {
                queue.push_back(bed.clone());
                queue = bed.wait(queue).expect(POISON);
                // A condition variable may return for no reason; who does not sleep must not take a wake.
                queue.retain(|other| !Arc::ptr_eq(other, &bed));
            }
        }
        drop(queue);
        signals::get_up();
    }

    /// Gives the other threads a chance to run, then says that the deadline has passed, if it ever does.
    pub(crate) fn wait_before(&self, expected: u32, deadline: Deadline) -> bool {
        if deadline.never {
            self.wait(expected);
            return false;
        }
        crate::loom::thread::yield_now();
        true
    }

    /// Wakes at most `sleepers` of those that sleep on this word, longest first.
    pub(crate) fn wake(&self, sleepers: u32) {
        self.waker().wake(sleepers);
    }

    /// As [`Word::wake`], whose order is that in which they fell asleep.
    pub(crate) fn wake_earlier(&self, sleepers: u32, _latest: u32) {
        self.wake(sleepers);
    }

    /// What wakes sleepers on this word even when the word itself is gone.
    pub(crate) fn waker(&self) -> Waker {
        Waker(self.queue.clone())
    }
}

/// Wakes sleepers on a word that may be gone.
pub(crate) struct Waker(Queue);

impl Waker {
    /// As [`Word::wake`].
    pub(crate) fn wake(self, sleepers: u32) {
        if std::thread::panicking() {
            return;
        }
        let mut queue = self.0.lock().expect(POISON);
        for _ in 0..sleepers {
            let Some(bed) = queue.pop_front() else { break };
            bed.notify_one();
        }
    }
}
