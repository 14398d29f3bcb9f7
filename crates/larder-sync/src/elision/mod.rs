//! Lock elision: a critical section run as a transaction of the processor's, without taking the lock, where that is possible.
//!
//! A lock says that sections may not overlap; what must not overlap are conflicting accesses. A transaction finds these out by
//! itself: it commits if nobody else touched what it touched, and leaves no trace otherwise. Then the section runs under
//! the lock after all.
//!
//! | backend | what it does |
//! |---|---|
//! | [`Never`] (the default) | nothing; elision costs nothing, and every section takes the lock |
//! | [`Rtm`] | Intel's restricted transactional memory, where the processor really has it |
//! | [`Mock`] | runs sections as if a transaction had succeeded, or says that it failed, as a test wants it |
//!
//! [`Elided`] has a mutex behind it, and *subscribes* to it first: the transaction reads the lock's word, and gives up if it is
//! held. [`ElidedRw`] is the notes' form with a reader-writer lock ("TLE-RW"): who tries a transaction holds the
//! lock to read, who runs the section plainly holds it to write. Nobody subscribes, a plain section does not abort the
//! transactions beside it but waits for them, and a group of readers is a group of transactions.
//!
//! **When to use:** short sections that seldom touch the same data, on a processor with transactions. **When not:** with
//! system calls, allocation or much data inside; elsewhere it is the lock and nothing more. **Progress and fairness:** the
//! lock's, after at most [`ATTEMPTS`] tries. **Cost:** none with `Never`; else a begin and a commit, and a wasted section for each
//! abort. **Panics:** a section that panics inside a transaction is undone, and panics again under the lock.
//!
//! # Why the subscription comes first
//!
//! Reading the lock at the end only ("lazy subscription") would let a transaction run beside a section that holds the lock
//! and has not finished, on data that is half changed. It may then do what no section ever does, such as overwrite the
//! lock's own word, read that as free, and commit. So it is not offered; `tests/elision.rs` replays the notes' example, "A
//! simple lazy subscription pathology".

mod backend;
mod rtm;
pub use backend::{Abort, Backend, Mock, Never};
pub use rtm::Rtm;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use lock_api::{RawMutex, RawRwLock};

/// A section is tried as a transaction this often at most.
pub const ATTEMPTS: u32 = 3;
/// After a failure that would repeat itself, so many sections do not try.
const SKIPPED: u32 = 16;

/// What became of the sections of one lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Sections that ran as transactions.
    pub elided: u64,
    /// Sections that took the lock.
    pub locked: u64,
    /// Transactions that came to nothing.
    pub aborted: u64,
}

/// Counters of a lock, and how long not to try. Sync: counts and a hint, Relaxed.
struct History {
    elided: AtomicU64,
    locked: AtomicU64,
    aborted: AtomicU64,
    skip: AtomicU32,
}

// ORDER elision.count: every access of this impl is Relaxed; numbers that order nothing.
impl History {
    const fn new() -> Self {
        Self {
            elided: AtomicU64::new(0),
            locked: AtomicU64::new(0),
            aborted: AtomicU64::new(0),
            skip: AtomicU32::new(0),
        }
    }

    /// Whether a section is to try; one that is not uses up one of those that do not.
    fn tries(&self) -> bool {
        let skip = self.skip.load(Ordering::Relaxed);
        if skip != 0 {
            self.skip.store(skip - 1, Ordering::Relaxed);
        }
        skip == 0
    }

    /// Notes an abort; whether to try again.
    fn after(&self, abort: Abort, attempt: u32) -> bool {
        self.aborted.fetch_add(1, Ordering::Relaxed);
        match abort {
            // It will be free again, and the next section may be luckier.
            Abort::Held => false,
            Abort::Conflict => attempt < ATTEMPTS,
            Abort::Hopeless => {
                self.skip.store(SKIPPED, Ordering::Relaxed);
                false
            }
        }
    }

    /// Counts a section that holds the lock, alone: without an atomic addition, which costs as much as a lock.
    fn count_locked(&self) {
        self.locked.store(self.locked.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn statistics(&self) -> Statistics {
        Statistics {
            elided: self.elided.load(Ordering::Relaxed),
            locked: self.locked.load(Ordering::Relaxed),
            aborted: self.aborted.load(Ordering::Relaxed),
        }
    }
}

/// A mutex whose sections run as transactions where they can. See the [module](self).
///
/// ```
/// use larder_sync::elision::{Elided, Never};
/// use larder_sync::mutex::RawMutex;
///
/// static LOCK: Elided<RawMutex, Never> = Elided::new(RawMutex::new(), Never);
/// assert_eq!(LOCK.run(|| 6 * 7), 42);
/// assert_eq!(LOCK.statistics().locked, 1);
/// ```
pub struct Elided<L, B> {
    lock: L,
    backend: B,
    history: History,
}

impl<L: RawMutex, B: Backend> Elided<L, B> {
    /// Elides `lock`, which is not used otherwise.
    pub const fn new(lock: L, backend: B) -> Self {
        Self { lock, backend, history: History::new() }
    }

    /// Runs the section; no other section of this lock overlaps it in effect. It may begin several times, and only the last
    /// time counts.
    pub fn run<R>(&self, mut section: impl FnMut() -> R) -> R {
        if B::POSSIBLE && self.history.tries() {
            for attempt in 1.. {
                match self.backend.attempt(|| !self.lock.is_locked(), &mut section) {
                    Ok(result) => {
                        // ORDER elision.count: Relaxed; a count. Outside of the transaction, which would conflict here.
                        self.history.elided.fetch_add(1, Ordering::Relaxed);
                        return result;
                    }
                    Err(abort) if !self.history.after(abort, attempt) => break,
                    Err(_) => {}
                }
            }
        }
        self.lock.lock();
        // Also when the section panics.
        let _unlock = AtEnd(|| {
            // SAFETY: locked above.
            unsafe { self.lock.unlock() };
        });
        self.history.count_locked();
        section()
    }

    /// What became of the sections so far.
    pub fn statistics(&self) -> Statistics {
        self.history.statistics()
    }

    /// The lock, to be looked at.
    pub fn raw(&self) -> &L {
        &self.lock
    }
}

/// A reader-writer lock whose readers are transactions. See the [module](self).
pub struct ElidedRw<L, B> {
    lock: L,
    backend: B,
    history: History,
}

impl<L: RawRwLock, B: Backend> ElidedRw<L, B> {
    /// Elides `lock`, which is not used otherwise.
    pub const fn new(lock: L, backend: B) -> Self {
        Self { lock, backend, history: History::new() }
    }

    /// As [`Elided::run`].
    pub fn run<R>(&self, mut section: impl FnMut() -> R) -> R {
        if B::POSSIBLE && self.history.tries() {
            self.lock.lock_shared();
            let leave = AtEnd(|| {
                // SAFETY: locked above.
                unsafe { self.lock.unlock_shared() };
            });
            for attempt in 1.. {
                // Nobody runs the section plainly while this thread is in to read.
                match self.backend.attempt(|| true, &mut section) {
                    Ok(result) => {
                        // ORDER elision.count: Relaxed; a count.
                        self.history.elided.fetch_add(1, Ordering::Relaxed);
                        return result;
                    }
                    Err(abort) if !self.history.after(abort, attempt) => break,
                    Err(_) => {}
                }
            }
            drop(leave);
        }
        self.lock.lock_exclusive();
        let _unlock = AtEnd(|| {
            // SAFETY: locked above.
            unsafe { self.lock.unlock_exclusive() };
        });
        self.history.count_locked();
        section()
    }

    /// What became of the sections so far.
    pub fn statistics(&self) -> Statistics {
        self.history.statistics()
    }

    /// The lock, to be looked at.
    pub fn raw(&self) -> &L {
        &self.lock
    }
}

/// Does something when it is dropped.
struct AtEnd<F: FnMut()>(F);

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
