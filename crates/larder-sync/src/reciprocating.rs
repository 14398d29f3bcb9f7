//! A lock whose admission is last in, first out within a group, with bounded bypass ("Reciprocating Locks", PPoPP'25): the
//! answer to the notes' question for a LIFO lock in constant time.
//!
//! Arriving threads push themselves onto a stack by one exchange. When the lock's group is served, the holder takes the
//! whole stack as the next group by one exchange, and its members pass the lock down the stack, newest first. So a new
//! arrival never overtakes a group, and no thread overtakes another more than once per group.
//!
//! The hand-over is direct, so one that sleeps is waited for: with more threads than processors [`RawReciprocating`] alone
//! does some 100,000 hand-overs a second. `ReciprocatingMutex` is the same as the line before a lock
//! [in turns](crate::turns), which hands over about once in half a millisecond.
//!
//! **When to use:** where the newest waiter, still looking, should go first, and starvation must be impossible. **When not:**
//! where the order of arrival matters ([`FairMutex`](crate::fair)); for throughput alone ([`Mutex`](crate::mutex)). **Progress
//! and fairness:** each waiter is bypassed by each other thread at most once before its own group is served, and once
//! within it; each of these is a turn (without turns: a critical section). **Cost:** arriving and releasing are one
//! exchange each whatever the number of waiters; 24 bytes, in turns 48. **Cancellation:** a thread must not be cancelled
//! while it waits.
//!
//! # Who is next
//!
//! `arrivals` is null (free), HELD (held, nobody came since), or the last arrival. The holder keeps two words: `below`,
//! whom it will pass the lock to, or null; and `end`, what its group's last member found below itself. That one sees
//! `below == end` and knows that there is nobody. A thread that got a free lock through the slow path leaves its own element
//! in `arrivals`; its address is then the `end` of the next group, and is compared and never read. The element's address
//! must not come up twice while that lasts, so a guard of the lock without turns stays on its thread.

use crate::atomic::{AtomicPtr, Ordering};
use crate::spin::Patience;
use crate::step;
use crate::waiter::{Cell, MESSAGE};
use core::ptr::{self, NonNull};

const GRANTED: u32 = MESSAGE;
/// How long a waiter looks before it sleeps.
const WAIT_NS: u64 = 2 * crate::spin::SLEEP_AND_WAKE_NS;

#[repr(align(128))]
struct Element {
    /// The end of the group. Sync: `cell.tell`.
    end: AtomicPtr<Element>,
    cell: Cell,
}

/// A lock with groups of last-in-first-out admission, without data. See the [module](self).
pub struct RawReciprocating {
    /// Sync: `reciprocating.hold`.
    arrivals: AtomicPtr<Element>,
    /// Sync: this lock.
    below: AtomicPtr<Element>,
    /// Sync: this lock.
    end: AtomicPtr<Element>,
}

// SAFETY: elements are read only while their threads wait.
unsafe impl Send for RawReciprocating {}
// SAFETY: as above.
unsafe impl Sync for RawReciprocating {}

fn held() -> *mut Element {
    ptr::without_provenance_mut(1)
}

impl RawReciprocating {
    const_unless_loom! {
        /// A free lock.
        pub fn new() -> Self {
            Self {
                arrivals: AtomicPtr::new(ptr::null_mut()),
                below: AtomicPtr::new(ptr::null_mut()),
                end: AtomicPtr::new(ptr::null_mut()),
            }
        }
    }

    /// Takes the lock if it is free; says whether it did.
    #[inline]
    pub fn try_lock(&self) -> bool {
        // ORDER reciprocating.hold: Acquire, with the compare-and-swap in `unlock`. Weaker, this critical section could miss
        // what the last one wrote.
        let order = step::order("reciprocating.hold: Acquire", Ordering::Acquire);
        let taken = self.arrivals.compare_exchange(ptr::null_mut(), held(), order, Ordering::Relaxed).is_ok();
        if taken {
            self.begin(ptr::null_mut(), held());
        }
        taken
    }

    /// Takes the lock; waits while another thread holds it.
    #[inline]
    pub fn lock(&self) {
        if !self.try_lock() {
            self.lock_slow();
        }
    }

    /// Whether somebody held the lock a moment ago. It orders nothing.
    pub fn is_locked(&self) -> bool {
        // ORDER reciprocating.hold: Relaxed; a snapshot that guards no data.
        !self.arrivals.load(Ordering::Relaxed).is_null()
    }

    fn begin(&self, below: *mut Element, end: *mut Element) {
        // ORDER reciprocating.hold: Relaxed, both; only the holder uses them.
        self.below.store(below, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
    }

    #[cold]
    fn lock_slow(&self) {
        let element = Element { end: AtomicPtr::new(ptr::null_mut()), cell: Cell::new() };
        let me = ptr::from_ref(&element).cast_mut();
        // ORDER reciprocating.hold: Acquire, as in `try_lock`, where the lock turns out to be free; Release, with the exchange
        // in `unlock`: the holder must see this element as it was made.
        let under = self.arrivals.swap(me, step::order("reciprocating.hold: AcqRel", Ordering::AcqRel));
        if under.is_null() {
            return self.begin(ptr::null_mut(), me);
        }
        let below = if under == held() { ptr::null_mut() } else { under };
        element.cell.wait(Patience::for_nanos(WAIT_NS));
        // ORDER cell.tell: Relaxed; the message has acquired it.
        let end = element.end.load(Ordering::Relaxed);
        if below == end && step::kept("reciprocating: the end of the group") {
            self.begin(ptr::null_mut(), held());
        } else {
            self.begin(below, end);
        }
    }

    /// Releases the lock.
    ///
    /// # Safety
    /// The calling thread holds the lock.
    #[inline]
    pub unsafe fn unlock(&self) {
        // ORDER reciprocating.hold: Relaxed, both; this thread holds the lock.
        let below = self.below.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        if let Some(below) = NonNull::new(below) {
            if cfg!(any(loom, debug_assertions)) {
                assert!(below.as_ptr() != end, "the end of a group is nobody to pass the lock to");
            }
            // SAFETY: a member of this thread's group, which waits for it.
            return unsafe { pass(below, end) };
        }
        // ORDER reciprocating.hold: Release, with `try_lock`. Weaker, the next critical section could miss what this one wrote.
        let order = step::order("reciprocating.hold: Release", Ordering::Release);
        if self.arrivals.compare_exchange(end, ptr::null_mut(), order, Ordering::Relaxed).is_ok() {
            return;
        }
        // ORDER reciprocating.hold: Acquire, with the exchange in `lock_slow`. No model: loom does not watch how an element is made.
        let newest = self.arrivals.swap(held(), Ordering::Acquire);
        if let Some(newest) = NonNull::new(newest) {
            // SAFETY: it waits: `arrivals` was not `end`, so somebody came since this group was formed.
            unsafe { pass(newest, end) };
        }
    }
}

/// # Safety
/// The element's thread waits, and only the caller tells it anything.
unsafe fn pass(element: NonNull<Element>, end: *mut Element) {
    // SAFETY: the caller's promise.
    let (cell, slot) = unsafe { (NonNull::from(&element.as_ref().cell), &element.as_ref().end) };
    // ORDER cell.tell: Relaxed; the message publishes it.
    slot.store(end, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    unsafe { Cell::tell(cell, GRANTED) };
}

impl Default for RawReciprocating {
    fn default() -> Self {
        Self::new()
    }
}

/// A mutex that threads have in turns, with groups of last-in-first-out admission; without data.
#[cfg(all(feature = "std", not(loom)))]
pub type RawReciprocatingMutex = crate::turns::TurnLock<RawReciprocating>;
/// A mutex that threads have in turns, with groups of last-in-first-out admission. See the [module](self).
#[cfg(all(feature = "std", not(loom)))]
pub type ReciprocatingMutex<T> = lock_api::Mutex<RawReciprocatingMutex, T>;

// SAFETY: the lock is held by whoever got a free one or was told, one at a time.
#[cfg(all(feature = "std", not(loom)))]
unsafe impl lock_api::RawMutex for RawReciprocating {
    #[allow(clippy::declare_interior_mutable_const, reason = "the interface asks for it")]
    const INIT: Self = Self::new();

    // See the module's page: the address of an element stands for its thread.
    type GuardMarker = lock_api::GuardNoSend;

    own_methods!();
}
