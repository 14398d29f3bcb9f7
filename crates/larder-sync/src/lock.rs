//! A mutex of four bytes that sleeps in the kernel.
//!
//! The word has three states, after Drepper, "Futexes are tricky" (2011), mutex 2:
//!
//! | value | meaning |
//! |---|---|
//! | 0 | free |
//! | 1 | held, and nobody has gone to sleep since it was taken from free |
//! | 2 | held, and somebody may sleep |
//!
//! Taking and releasing a lock nobody wants is one atomic instruction each and no system call. A thread that finds it
//! held looks a few more times and then sleeps: its holder may have been descheduled, and with more threads than
//! processors a long spin only keeps it off the processor. A sleeper takes the lock to 2 when it wakes, because it
//! cannot know whether others sleep; the price is one wake too many per burst.
//!
//! The lock is not fair and not recursive, and it knows neither its holder nor its rank. A handler must not take a lock
//! that the code it interrupts may hold: mask the signal, or defer it, around the critical section. Waiting itself is
//! safe while signals arrive.
//!
//! ```
//! use larder_sync::lock::Lock;
//!
//! static LOCK: Lock = Lock::new();
//! let guard = LOCK.lock();
//! assert!(LOCK.try_lock().is_none());
//! drop(guard);
//! assert!(LOCK.try_lock().is_some());
//! ```

use crate::atomic::{Ordering, spin_loop};
use crate::futex::Word;
use core::fmt;
use core::marker::PhantomData;

const FREE: u32 = 0;
const HELD: u32 = 1;
const HELD_WITH_SLEEPERS: u32 = 2;

/// How often a thread looks at a held lock before it sleeps.
///
/// A `pause` is 40 to 140 cycles, so this is 1 to 2 microseconds: a short critical section ends within it, and a sleep
/// and wake through the kernel cost several times as much.
const LOOKS_BEFORE_SLEEP: u32 = if cfg!(loom) { 1 } else { 40 };

/// A mutex of four bytes that sleeps in the kernel. It guards no value of its own.
pub struct Lock {
    /// Sync: `lock.hold`, from each release to the next acquisition.
    word: Word,
}

/// Proof that the current thread holds a [`Lock`]; releases it when dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard<'a> {
    lock: &'a Lock,
    /// Keeps the guard on the thread that locked, because callers reason about which thread holds what.
    _stays_on_its_thread: PhantomData<*const ()>,
}

impl Lock {
    const_unless_loom! {
        /// A free lock.
        pub fn new() -> Self {
            Self { word: Word::new(FREE) }
        }
    }

    /// Takes the lock, sleeping while another thread holds it.
    #[inline]
    pub fn lock(&self) -> LockGuard<'_> {
        self.lock_raw();
        LockGuard { lock: self, _stays_on_its_thread: PhantomData }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<LockGuard<'_>> {
        // A closure, because a guard made before the outcome is known would release somebody else's lock.
        self.try_lock_raw().then(|| LockGuard { lock: self, _stays_on_its_thread: PhantomData })
    }

    /// Takes the lock without a guard; [`Lock::unlock_raw`] releases it.
    #[inline]
    pub fn lock_raw(&self) {
        if !self.try_lock_raw() {
            self.lock_slow();
        }
    }

    /// Takes the lock without a guard if it is free; says whether it did.
    #[inline]
    pub fn try_lock_raw(&self) -> bool {
        // ORDER lock.hold: Acquire, with the swap in `unlock_raw`. Weaker, this critical section could miss what the
        // last one wrote. Relaxed on failure: nothing is concluded from a held lock.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Releases the lock and wakes one sleeper, if there may be any.
    ///
    /// # Safety
    /// The calling thread holds the lock.
    #[inline]
    pub unsafe fn unlock_raw(&self) {
        // ORDER lock.hold: Release, with the compare-and-swap in `try_lock_raw` and the swap in `lock_slow`. Weaker,
        // the next critical section could miss what this one wrote.
        if self.word.swap(FREE, Ordering::Release) == HELD_WITH_SLEEPERS {
            self.word.wake(1);
        }
    }

    /// Wakes a sleeper, if there is one, whoever holds the lock. For who knows of a thread that may have got the wake of a release and does not
    /// come for the lock, since a signal's handler keeps it: the others would sleep on beside a lock that is free. The caller does not hold it.
    pub fn wake_another(&self) {
        self.word.wake(1);
    }

    /// Says whether somebody held the lock a moment ago. For assertions and reports; it orders nothing.
    pub fn is_locked(&self) -> bool {
        // ORDER lock.glance: Relaxed, with every write to the word; a snapshot that guards no data.
        self.word.load(Ordering::Relaxed) != FREE
    }

    /// Makes the lock free in a fork child, whatever it was: its holder and its sleepers do not exist there.
    ///
    /// # Safety
    /// The calling thread is the only thread of the process, holds no guard of this lock, and has repaired, or will not
    /// use, whatever the lock guarded.
    pub unsafe fn reset_after_fork(&self) {
        // ORDER lock.glance: Relaxed; there is no other thread to order anything against.
        self.word.store(FREE, Ordering::Relaxed);
    }

    #[cold]
    fn lock_slow(&self) {
        let mut state = self.look();
        if state == FREE {
            if self.try_lock_raw() {
                return;
            }
            state = HELD;
        }
        loop {
            // A sleeper marks the lock before it sleeps, so that its holder knows; a thread that was woken marks it as
            // well, because others may sleep on.
            //
            // ORDER lock.hold: Acquire, with the swap in `unlock_raw`, whose FREE this may take.
            if state != HELD_WITH_SLEEPERS && self.word.swap(HELD_WITH_SLEEPERS, Ordering::Acquire) == FREE {
                return;
            }
            self.word.wait(HELD_WITH_SLEEPERS);
            state = self.look();
        }
    }

    /// Looks at the word until the lock is free, or somebody sleeps on it, or the budget is spent.
    fn look(&self) -> u32 {
        let mut looks = LOOKS_BEFORE_SLEEP;
        loop {
            // ORDER lock.glance: Relaxed, with every write to the word; whoever acts on it does so by an Acquire
            // read-modify-write.
            let state = self.word.load(Ordering::Relaxed);
            if state != HELD || looks == 0 {
                return state;
            }
            looks -= 1;
            spin_loop();
        }
    }
}

impl Default for Lock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("is_locked", &self.is_locked()).finish()
    }
}

impl Drop for LockGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a guard exists only while its thread holds the lock, and it cannot leave that thread.
        unsafe { self.lock.unlock_raw() };
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Lock>() == 4);
