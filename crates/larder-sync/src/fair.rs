//! A mutex in order of arrival that passes over who does not run (MCS with eviction, the notes' "Preemption tolerant MCS
//! locks"), in turns.
//!
//! A queue in order of arrival stands still when the thread at its head has lost its processor. Here the holder looks, when
//! it releases, whether the next one runs ([`sched`](crate::sched)). If not, it tells it that it is *evicted*, and looks at
//! the one behind it. An evicted thread that runs again queues up again at the end. After [`EVICTIONS`] evictions it is
//! served in turn, whatever it does. A thread that sleeps is not passed over: it is woken, and the lock is its own.
//!
//! That is [`RawFifoLock`], which hands itself over at every release. `FairMutex` is the same queue as the line before a
//! lock [in turns](crate::turns): who is next in it may take the lock again and again for half a millisecond. With
//! critical sections of some nanoseconds that is many times as fast ("Locks and queues" in docs/performance.md), most of all
//! where the queue alone wakes one thread after the other; over some turns each thread's share is the same.
//!
//! **When to use:** where each thread should get as much as every other, and in order of arrival. **When not:** where the next
//! critical section must be the next thread's even if both run (`RawFifoLock`, through `lock_api::Mutex`); for throughput
//! alone ([`Mutex`](crate::mutex)). **Progress and fairness:** nobody overtakes the first in the line but the thread whose turn
//! it is; in the line, no thread that runs is overtaken by a later one, and one that loses its processor is overtaken at
//! most by the queues it was evicted from, `EVICTIONS` times. With `n` waiters one waits for at most about `n` half
//! milliseconds, or `n` critical sections if these are longer. **Cost:** uncontended, one compare-and-swap each way; 40 bytes
//! (`RawFifoLock`: 16); a waiter lies on its thread's stack. **Cancellation:** a thread must not be cancelled while it waits.
//!
//! # The queue
//!
//! `tail` is null for a free lock, OWNED for one with no waiters, or the last waiter. Waiters link towards the tail. The
//! first of them is linked from the lock itself, as in the K42 form of the queue: an owner takes its own node out of the
//! queue when it gets the lock, so that the node can lie on the stack of a function that has returned since, and releasing
//! needs nothing but the lock. `next` belongs to the owner, and to the one waiter that found OWNED.

use crate::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use crate::sched::{Ignorant, Running, RunningOracle};
use crate::spin::{Patience, await_link};
use crate::step;
use crate::waiter::{Cell, MESSAGE};
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

/// After this many evictions a waiter is served in turn.
pub const EVICTIONS: u32 = 8;

const GRANTED: u32 = MESSAGE;
const EVICTED: u32 = MESSAGE + 1;

/// How long a waiter looks before it sleeps, in nanoseconds: as long as the 2700 `pause` instructions that lock libraries
/// use (69 us on AMD's family 26).
const WAIT_NS: u64 = 69_000;

#[repr(align(128))]
struct Node {
    /// Who came next. Sync: `fair.link`.
    next: AtomicPtr<Node>,
    /// Sync: `fair.link`, as published with the node.
    mark: AtomicUsize,
    /// Sync: as `mark`.
    evictions: AtomicU32,
    cell: Cell,
}

/// A queue lock whose holder asks `O` whether the next one runs; without data. See the [module](self).
pub struct RawQueueLock<O> {
    /// Sync: `fair.hold`.
    tail: AtomicPtr<Node>,
    /// The first waiter. Sync: `fair.link`, else the lock.
    next: AtomicPtr<Node>,
    oracle: PhantomData<fn() -> O>,
}

// SAFETY: nodes are reached only while their threads wait.
unsafe impl<O> Send for RawQueueLock<O> {}
// SAFETY: as above.
unsafe impl<O> Sync for RawQueueLock<O> {}

fn owned() -> *mut Node {
    ptr::without_provenance_mut(1)
}

impl<O: RunningOracle> RawQueueLock<O> {
    const_unless_loom! {
        /// A free lock.
        pub fn new() -> Self {
            Self {
                tail: AtomicPtr::new(ptr::null_mut()),
                next: AtomicPtr::new(ptr::null_mut()),
                oracle: PhantomData,
            }
        }
    }

    /// Takes the lock if it is free; says whether it did.
    #[inline]
    pub fn try_lock(&self) -> bool {
        // ORDER fair.hold: Acquire, with the compare-and-swaps of `unlock`. Weaker, this critical section could miss what
        // the last one wrote.
        let order = step::order("fair.hold: Acquire", Ordering::Acquire);
        self.tail.compare_exchange(ptr::null_mut(), owned(), order, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock; waits while another thread holds it.
    #[inline]
    pub fn lock(&self) {
        if !self.try_lock() {
            self.lock_slow(WAIT_NS, O::YIELDING_NS);
        }
    }

    /// As [`RawQueueLock::lock`], for a thread that others let in after some 100 us at the earliest if not at once: it sleeps soon.
    #[cfg(any(feature = "std", loom))]
    pub(crate) fn lock_in_line(&self) {
        if !self.try_lock() {
            self.lock_slow(crate::spin::SLEEP_AND_WAKE_NS, 0);
        }
    }

    /// Whether somebody held the lock a moment ago. It orders nothing.
    pub fn is_locked(&self) -> bool {
        // ORDER fair.hold: Relaxed; a snapshot that guards no data.
        !self.tail.load(Ordering::Relaxed).is_null()
    }

    #[cold]
    fn lock_slow(&self, looking_ns: u64, yielding_ns: u64) {
        let node = Node {
            next: AtomicPtr::new(ptr::null_mut()),
            mark: AtomicUsize::new(0),
            evictions: AtomicU32::new(0),
            cell: Cell::new(),
        };
        let me = ptr::from_ref(&node).cast_mut();
        let mut evictions = 0;
        loop {
            let mark = O::mark();
            // ORDER fair.link: Relaxed; the exchange and the link publish them.
            node.mark.store(mark, Ordering::Relaxed);
            node.evictions.store(evictions, Ordering::Relaxed);
            // ORDER fair.hold: Acquire, as in `try_lock`, where the lock turns out to be free; Release, so that who comes
            // next finds `next` empty before it links itself there.
            let previous = self.tail.swap(me, step::order("fair.hold: AcqRel", Ordering::AcqRel));
            if previous.is_null() {
                break;
            }
            let link = if previous == owned() {
                &self.next
            } else {
                // SAFETY: its thread cannot go on before it is linked here: the owner that takes the node out waits for it.
                unsafe { &(*previous).next }
            };
            // ORDER fair.link: Release, with the loads in `adopt` and `unlock`. Weaker, the holder could read an old node.
            link.store(me, step::order("fair.link: Release", Ordering::Release));
            let patience = Patience::for_nanos(looking_ns);
            if node.cell.wait_yielding(patience, yielding_ns, || O::looks(mark)) == GRANTED {
                break;
            }
            evictions += 1;
            node.cell.reset();
            // ORDER fair.link: Relaxed; nobody knows the node now.
            node.next.store(ptr::null_mut(), Ordering::Relaxed);
            if self.try_lock() {
                return;
            }
        }
        self.adopt(&node);
    }

    /// Takes the caller's node, which is at the head, out of the queue. The caller holds the lock.
    fn adopt(&self, node: &Node) {
        let order = step::order("fair.link: Acquire", Ordering::Acquire);
        // ORDER fair.link: Acquire, with the store in `lock_slow`.
        let mut next = node.next.load(order);
        if next.is_null() {
            // Before the tail says OWNED: whoever finds that links itself here.
            // ORDER fair.link: Relaxed; the compare-and-swap publishes it.
            self.next.store(ptr::null_mut(), Ordering::Relaxed);
            let me = ptr::from_ref(node).cast_mut();
            // ORDER fair.hold: Release, with the exchange in `lock_slow`: the store above comes before its link.
            let publish = step::order("fair.adopt: Release", Ordering::Release);
            if self.tail.compare_exchange(me, owned(), publish, Ordering::Relaxed).is_ok() {
                return;
            }
            // ORDER fair.link: Acquire, as above.
            next = await_link(&node.next, order).as_ptr();
        }
        // ORDER fair.link: Relaxed; only this thread uses it until the lock is released.
        self.next.store(next, Ordering::Relaxed);
    }

    /// Releases the lock.
    ///
    /// # Safety
    /// The calling thread holds the lock, or has been given it by the thread that does.
    #[inline]
    pub unsafe fn unlock(&self) {
        // ORDER fair.link: Acquire, with the store in `lock_slow`.
        let order = step::order("fair.link: Acquire", Ordering::Acquire);
        let mut next = NonNull::new(self.next.load(order));
        if next.is_none() {
            // ORDER fair.hold: Release, with `try_lock`. Weaker, the next critical section could miss what this one wrote.
            let release = step::order("fair.hold: Release", Ordering::Release);
            if self.tail.compare_exchange(owned(), ptr::null_mut(), release, Ordering::Relaxed).is_ok() {
                return;
            }
            next = Some(await_link(&self.next, order));
        }
        if let Some(next) = next {
            // SAFETY: the caller's promise.
            unsafe { self.pass_on(next) };
        }
    }

    /// # Safety
    /// The caller holds the lock; `next` is its first waiter.
    unsafe fn pass_on(&self, mut next: NonNull<Node>) {
        // ORDER fair.link: Relaxed; this thread still holds the lock.
        self.next.store(ptr::null_mut(), Ordering::Relaxed);
        loop {
            // SAFETY: it waits until it is told something.
            let node = unsafe { next.as_ref() };
            let cell = NonNull::from(&node.cell);
            // ORDER fair.link: Relaxed; the link that led here published them.
            let patient = node.evictions.load(Ordering::Relaxed) < EVICTIONS && !node.cell.sleeps();
            // SAFETY: its thread waits.
            let evict = patient && unsafe { O::is_running(node.mark.load(Ordering::Relaxed)) } == Running::No;
            if !evict {
                // SAFETY: alive, and only the holder tells it anything.
                unsafe { Cell::tell(cell, GRANTED) };
                return;
            }
            // ORDER fair.link: Acquire, with the store in `lock_slow`.
            let order = step::order("fair.link: Acquire", Ordering::Acquire);
            let mut behind = NonNull::new(node.next.load(order));
            if behind.is_none() {
                // ORDER fair.hold: Release, as in `unlock`: the last one evicted leaves a free lock.
                let release = step::order("fair.evict: Release", Ordering::Release);
                if self.tail.compare_exchange(next.as_ptr(), ptr::null_mut(), release, Ordering::Relaxed).is_ok() {
                    // SAFETY: alive, and out of the queue.
                    unsafe { Cell::tell(cell, EVICTED) };
                    return;
                }
                behind = Some(await_link(&node.next, order));
            }
            if step::kept("fair: tell the evicted") {
                // SAFETY: alive, and out of the queue: its link has been read.
                unsafe { Cell::tell(cell, EVICTED) };
            }
            let Some(behind) = behind else { return };
            next = behind;
        }
    }
}

impl<O: RunningOracle> Default for RawQueueLock<O> {
    fn default() -> Self {
        Self::new()
    }
}

/// The queue lock that evicts nobody: MCS, spin then park, with direct hand-over. For comparison, and to restrict.
pub type RawMcsLock = RawQueueLock<Ignorant>;

/// A queue lock that passes over who does not run, and hands itself over at every release; without data.
#[cfg(all(feature = "std", not(loom)))]
pub type RawFifoLock = RawQueueLock<crate::sched::ByProcessor>;

/// A mutex that threads have in turns, in order of arrival past those that do not run; without data.
#[cfg(all(feature = "std", not(loom)))]
pub type RawFairMutex = crate::turns::TurnLock<RawFifoLock>;
/// A mutex that threads have in turns, in order of arrival past those that do not run. See the [module](self).
#[cfg(all(feature = "std", not(loom)))]
pub type FairMutex<T> = lock_api::Mutex<RawFairMutex, T>;
/// Proof that the current thread holds a [`FairMutex`].
#[cfg(all(feature = "std", not(loom)))]
pub type FairMutexGuard<'a, T> = lock_api::MutexGuard<'a, RawFairMutex, T>;

// SAFETY: the lock is held by whoever the tail or a GRANTED names, one at a time.
#[cfg(all(feature = "std", not(loom)))]
unsafe impl<O: RunningOracle> lock_api::RawMutex for RawQueueLock<O> {
    #[allow(clippy::declare_interior_mutable_const, reason = "the interface asks for it")]
    const INIT: Self = Self::new();

    type GuardMarker = lock_api::GuardSend;

    own_methods!();
}
