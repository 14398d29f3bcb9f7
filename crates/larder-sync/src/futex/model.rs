//! A futex for loom: the word, and a queue that stands for the kernel's.
//!
//! The kernel compares the word and enters the sleeper into its queue under the lock that a wake takes as well, so a
//! value stored before a wake is either seen by the comparison or followed by a wake that finds the sleeper. A mutex
//! and a condition variable say the same. A sleeper that nobody wakes ends the model with "deadlock".
//!
//! The mutex orders a little more than the interface promises: a sleeper sees what its waker did before the wake even
//! if it does not look at the word. Callers always look at the word, with `Acquire`.

use crate::atomic::{AtomicU32, Ordering};
use core::ops::Deref;
use loom::sync::{Condvar, Mutex};

/// A word that threads can sleep on.
pub(crate) struct Word {
    /// Sync: by the protocol of whoever owns the word.
    value: AtomicU32,
    /// Sync: a mutex; stands for the lock of the kernel's queue.
    queue: Mutex<()>,
    /// Sync: a condition variable on `queue`; stands for the sleepers.
    bell: Condvar,
}

impl Deref for Word {
    type Target = AtomicU32;
    fn deref(&self) -> &AtomicU32 {
        &self.value
    }
}

/// A deadline that has passed when it is asked for, because a model has no clock.
#[derive(Clone, Copy)]
pub(crate) struct Deadline;

impl Deadline {
    /// The moment that passes when other threads have had a chance to run.
    pub(crate) fn after(_nanos: u64) -> Self {
        Self
    }
}

impl Word {
    /// A word with this value and no sleepers.
    pub(crate) fn new(value: u32) -> Self {
        Self { value: AtomicU32::new(value), queue: Mutex::new(()), bell: Condvar::new() }
    }

    /// Sleeps once if the word still is `expected`.
    pub(crate) fn wait(&self, expected: u32) {
        let queue = self.queue.lock().expect("a model does not poison its queue");
        // Relaxed, as the kernel's own read: the lock of the queue decides the race with a wake.
        if self.value.load(Ordering::Relaxed) == expected {
            drop(self.bell.wait(queue).expect("a model does not poison its queue"));
        }
    }

    /// Gives the other threads a chance to run, then says that the deadline has passed.
    pub(crate) fn wait_before(&self, _expected: u32, _deadline: Deadline) -> bool {
        loom::thread::yield_now();
        true
    }

    /// Wakes at most `sleepers` of those that sleep on this word.
    pub(crate) fn wake(&self, sleepers: u32) {
        let queue = self.queue.lock().expect("a model does not poison its queue");
        if sleepers as usize >= MOST_THREADS {
            self.bell.notify_all();
        } else {
            for _ in 0..sleepers {
                self.bell.notify_one();
            }
        }
        drop(queue);
    }
}

/// More threads than a loom model can have.
const MOST_THREADS: usize = 8;
