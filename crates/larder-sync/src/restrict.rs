//! Concurrency restriction around any lock ("Avoiding Scalability Collapse by Restricting Concurrency", Euro-Par'19).
//!
//! A lock that hands itself over in order of arrival collapses when its next owner sleeps or has lost its processor: each
//! critical section then costs a context switch. [`ConcurrencyRestricted`] lets a few threads at a time go for the lock
//! (two unless told otherwise: an owner and one to follow), and lets the others sleep in front of it. Those who are in
//! keep the lock busy without a system call. About every millisecond the eldest sleeper gets the place of a thread that
//! leaves.
//!
//! **When to use:** around a lock that is worth having for its own sake (in order of arrival, from another crate) where
//! more threads than processors may want it. **When not:** around [`Mutex`](crate::mutex), which does this itself; around a
//! lock that is hardly ever contended: each acquisition costs two more compare-and-swaps. **Progress and fairness:** the last
//! thread that leaves wakes the newest sleeper, so the lock does not idle while somebody wants it; with `n` sleepers one is
//! passed over for about `n` milliseconds of contention. The inner lock's order holds among those who are in. **Cancellation:**
//! as for the mutex, a thread must not be cancelled while it waits.
//!
//! # The word
//!
//! | bits | meaning |
//! |---|---|
//! | 0-2 | places taken |
//! | 3 | the holder's list is not empty |
//! | 7 and up | the sleeper that came last, of those that no holder has taken over yet |
//!
//! The list belongs to the holder of the inner lock. A thread sleeps only if it found all places taken, by a
//! compare-and-swap that would have failed otherwise; and whoever leaves while somebody sleeps, as the last one, gives its
//! place away instead. So sleepers never have all places free before them.

use crate::atomic::{AtomicPtr, Ordering};
use crate::spin::Patience;
use crate::step;
use crate::waiter::{MESSAGE, Passive, Turn, Turns, Waiter, current_cpu};
use core::ptr::{self, NonNull};

const PLACES: usize = 7;
const PASSIVE: usize = 8;
const FLAGS: usize = PLACES | PASSIVE;
const _: () = assert!(align_of::<Waiter>() > FLAGS);

/// The waiter has a place.
const COME: u32 = MESSAGE;

/// The most places: one less than fit into the word, for a thread that took the lock by trying.
pub const MAX_PLACES: usize = PLACES - 1;

/// Admits a few threads at a time to a lock; see the [module](self). The lock is the caller's.
pub struct Restriction {
    /// Sync: `restrict.push`; what is admitted is ordered by the inner lock.
    word: AtomicPtr<Waiter>,
    /// Sync: the inner lock.
    passive: Passive,
    /// Sync: the inner lock.
    turns: Turns,
    places: usize,
}

// SAFETY: waiters are reached only while their threads wait.
unsafe impl Send for Restriction {}
// SAFETY: as above.
unsafe impl Sync for Restriction {}

fn flags(word: *mut Waiter) -> usize {
    word.addr() & FLAGS
}

fn chain(word: *mut Waiter) -> *mut Waiter {
    word.map_addr(|bits| bits & !FLAGS)
}

impl Restriction {
    const_unless_loom! {
        /// Admits at most `places` threads at a time, of 1 to [`MAX_PLACES`].
        pub fn new(places: usize) -> Self {
            assert!(places >= 1 && places <= MAX_PLACES, "a restriction has 1 to 6 places");
            Self { word: AtomicPtr::new(ptr::null_mut()), passive: Passive::new(), turns: Turns::new(), places }
        }
    }

    /// Takes a place; sleeps while there is none. The caller goes for the inner lock next.
    #[inline]
    pub fn enter(&self) {
        // ORDER restrict.push: Relaxed, here and in `enter_slow`; a place orders nothing.
        let word = self.word.load(Ordering::Relaxed);
        if flags(word) & PLACES >= self.places || !self.change(word, word.map_addr(|bits| bits + 1)) {
            self.enter_slow();
        }
    }

    /// Takes a place even if there is none: the caller holds the inner lock already, so there is one such at most.
    pub fn enter_holding(&self) {
        loop {
            // ORDER restrict.push: Relaxed; see `enter`.
            let word = self.word.load(Ordering::Relaxed);
            if self.change(word, word.map_addr(|bits| bits + 1)) {
                return;
            }
        }
    }

    fn change(&self, from: *mut Waiter, to: *mut Waiter) -> bool {
        // ORDER restrict.push: Relaxed; see `enter`.
        self.word.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn enter_slow(&self) {
        let waiter = Waiter::new();
        loop {
            // ORDER restrict.push: Relaxed; see `enter`.
            let word = self.word.load(Ordering::Relaxed);
            if flags(word) & PLACES < self.places {
                if self.change(word, word.map_addr(|bits| bits + 1)) {
                    return;
                }
                continue;
            }
            // ORDER restrict.push: Relaxed; the compare-and-swap publishes both.
            waiter.next.store(chain(word), Ordering::Relaxed);
            waiter.cpu.store(current_cpu(), Ordering::Relaxed);
            let me = ptr::from_ref(&waiter).cast_mut().map_addr(|bits| bits | flags(word));
            // ORDER restrict.push: Release, with the exchange in `take_over`. Weaker, the holder could read an old `next`.
            let order = step::order("restrict.push: Release", Ordering::Release);
            if self.word.compare_exchange(word, me, order, Ordering::Relaxed).is_ok() {
                // Whoever told this thread has left its place to it.
                waiter.cell.wait(Patience::none());
                return;
            }
        }
    }

    /// Leaves: gives the place back or away, and calls `unlock`, which releases the inner lock.
    ///
    /// # Safety
    /// The calling thread has a place and holds the inner lock.
    pub unsafe fn leave(&self, unlock: impl FnOnce()) {
        let mut looked = false;
        loop {
            // ORDER restrict.push: Relaxed; see `enter`.
            let word = self.word.load(Ordering::Relaxed);
            if !chain(word).is_null() || flags(word) & PASSIVE != 0 {
                let due = !looked && !matches!(self.turns.look(), Turn::No | Turn::Wake);
                looked = true;
                let last = flags(word) & PLACES == 1;
                if (due || last) && step::kept("restrict: the wake") {
                    // SAFETY: the caller holds the inner lock.
                    if let Some(waiter) = unsafe { self.take(due) } {
                        unlock();
                        // SAFETY: out of the list, and waiting.
                        unsafe { Waiter::tell(waiter, COME) };
                        return;
                    }
                    continue;
                }
            }
            if self.change(word, word.map_addr(|bits| bits - 1)) {
                unlock();
                return;
            }
        }
    }

    /// Takes a waiter out: the eldest, or a new one. Clears PASSIVE if the list is empty.
    ///
    /// # Safety
    /// The caller holds the inner lock.
    unsafe fn take(&self, eldest: bool) -> Option<NonNull<Waiter>> {
        // ORDER restrict.push: Relaxed; the compare-and-swap decides.
        let mut word = self.word.load(Ordering::Relaxed);
        let mut taken = None;
        loop {
            if let Some(newest) = NonNull::new(chain(word)) {
                let rest = ptr::without_provenance_mut(flags(word) | PASSIVE);
                // ORDER restrict.push: Acquire, with the compare-and-swap in `enter_slow`. Weaker, `next` could be an old one.
                let order = step::order("restrict.push: Acquire", Ordering::Acquire);
                match self.word.compare_exchange(word, rest, order, Ordering::Relaxed) {
                    // SAFETY: the chain is out of the word, and the caller holds the lock.
                    Ok(_) => unsafe { self.passive.prepend_chain(newest) },
                    Err(now) => {
                        word = now;
                        continue;
                    }
                }
                word = rest;
            }
            if taken.is_none() {
                // SAFETY: the caller holds the lock.
                taken = unsafe { if eldest { self.passive.pop_eldest() } else { self.passive.pop_new(current_cpu()) } };
            }
            if !self.passive.is_empty()
                || flags(word) & PASSIVE == 0
                || self.change(word, word.map_addr(|bits| bits & !PASSIVE))
            {
                return taken;
            }
            // ORDER restrict.push: Relaxed; see above.
            word = self.word.load(Ordering::Relaxed);
        }
    }
}

/// A lock that few threads at a time go for; see the [module](self).
#[cfg(feature = "std")]
pub struct ConcurrencyRestricted<L> {
    restriction: Restriction,
    inner: L,
}

#[cfg(feature = "std")]
impl<L> ConcurrencyRestricted<L> {
    const_unless_loom! {
        /// Restricts `inner`, which nobody holds, to `places` threads at a time.
        pub fn with_places(inner: L, places: usize) -> Self {
            Self { restriction: Restriction::new(places), inner }
        }
    }
}

// SAFETY: the inner lock excludes; the restriction only delays.
#[cfg(feature = "std")]
unsafe impl<L: lock_api::RawMutex> lock_api::RawMutex for ConcurrencyRestricted<L> {
    #[cfg(not(loom))]
    #[allow(clippy::declare_interior_mutable_const, reason = "the interface asks for it")]
    const INIT: Self = Self::with_places(L::INIT, 2);
    #[cfg(loom)]
    const INIT: Self = panic!("a model makes its locks by `with_places`");

    type GuardMarker = L::GuardMarker;

    #[inline]
    fn lock(&self) {
        self.restriction.enter();
        self.inner.lock();
    }

    #[inline]
    fn try_lock(&self) -> bool {
        let taken = self.inner.try_lock();
        if taken {
            self.restriction.enter_holding();
        }
        taken
    }

    #[inline]
    unsafe fn unlock(&self) {
        // SAFETY: `lock` and `try_lock` have taken a place; the caller holds the inner lock.
        unsafe { self.restriction.leave(|| self.inner.unlock()) };
    }

    fn is_locked(&self) -> bool {
        self.inner.is_locked()
    }
}
