//! A condition variable for any lock of `lock_api`.

use crate::atomic::{AtomicU32, Ordering};
use crate::parker::Event;
use crate::step;
use core::fmt;
use core::time::Duration;
use lock_api::{MutexGuard, RawMutex};

/// A condition variable: releases a lock, sleeps until notified, and takes the lock again.
///
/// It belongs to no lock, and to any: to this crate's and to others of `lock_api`.
///
/// **When to use:** to wait for a change of what a lock guards. **When not:** without a loop around the wait: a wait may
/// return for no reason. **Progress and fairness:** `notify_one` wakes the thread that has slept longest; a thread that
/// was not asleep yet may return in its place, so nobody may count notifications. **Cost:** a
/// notification that nobody waits for is one load. **Cancellation:** a thread must not be cancelled while it waits.
///
/// ```
/// use larder_sync::mutex::{Condvar, Mutex};
///
/// let ready = Mutex::new(false);
/// let changed = Condvar::new();
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         *ready.lock() = true;
///         changed.notify_one();
///     });
///     let mut guard = ready.lock();
///     while !*guard {
///         changed.wait(&mut guard);
///     }
/// });
/// ```
pub struct Condvar {
    /// Sync: its own.
    notified: Event,
    /// Threads between the beginning and the end of a wait. Sync: `condvar.waiting`.
    waiting: AtomicU32,
}

impl Condvar {
    const_unless_loom! {
        /// A condition variable for which nobody waits.
        pub fn new() -> Self {
            Self { notified: Event::new(), waiting: AtomicU32::new(0) }
        }
    }

    /// Releases the lock, sleeps until a notification, and takes the lock again.
    pub fn wait<R: RawMutex, T: ?Sized>(&self, guard: &mut MutexGuard<'_, R, T>) {
        let seen = self.begin();
        MutexGuard::unlocked(guard, || self.notified.wait(seen));
        self.end();
    }

    /// As [`Condvar::wait`], for at most `timeout`; false when the time has passed without a notification. Taking the
    /// lock again may take longer.
    pub fn wait_for<R: RawMutex, T: ?Sized>(&self, guard: &mut MutexGuard<'_, R, T>, timeout: Duration) -> bool {
        let seen = self.begin();
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let notified = MutexGuard::unlocked(guard, || self.notified.wait_timeout(seen, nanos));
        self.end();
        notified
    }

    /// Wakes one thread that waits, if any does.
    ///
    /// Whoever began to wait under the lock is seen by a thread that has held the lock since, also after it released it.
    pub fn notify_one(&self) {
        self.notify(1);
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.notify(u32::MAX);
    }

    /// Called with the lock held: who takes it next and notifies finds this thread counted, and moves the count that it has
    /// read.
    fn begin(&self) -> u32 {
        let seen = self.notified.current();
        // ORDER condvar.waiting: Relaxed, with the load in `notify`; the lock, which the caller holds and the notifier has
        // held since, orders it.
        if step::kept("condvar: who waits is counted") {
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
        seen
    }

    fn end(&self) {
        // ORDER condvar.waiting: Relaxed; a count that is too high costs a wake.
        if step::kept("condvar: who waits is counted") {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn notify(&self, n: u32) {
        // ORDER condvar.waiting: Relaxed; see `begin`.
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.notified.bump_and_wake_earlier(n);
        }
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condvar").finish_non_exhaustive()
    }
}
