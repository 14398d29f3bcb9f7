//! A reader-writer lock biased towards readers ("BRAVO", ATC'19): readers leave their mark in a table that all locks of
//! the process share, and do not touch the lock.
//!
//! While a lock is biased, a reader writes the lock's address into a slot that depends on the thread and the lock, and
//! looks whether the bias still stands. A writer takes the inner lock, revokes the bias, and waits until no slot names the
//! lock. Readers are many: they take the light half of the [asymmetric fence](crate::asymmetric). After a revocation the bias
//! stays away for nine times as long as that took, so writers slow one another down by a tenth at most.
//!
//! **When to use:** read nearly always, by several threads at a time. **When not:** where a write must be quick: it
//! looks through the table (4096 words) when it finds a bias. **Progress and fairness:** the inner lock's; a writer that
//! waits for readers sleeps. **Cost:** a read is one compare-and-swap each way on a line that others rarely
//! use; a bias revoked costs some microseconds. **Guards** stay on their thread. **Cancellation:** as for the inner lock.

extern crate std;

use crate::asymmetric;
use crate::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::event_count::EventCount;
use crate::line::Line;
use crate::spin::{Patience, SLEEP_AND_WAKE_NS};
use crate::{process_static, step, ticks};
use lock_api::RawRwLock;
use std::sync::Once;

/// Slots of the table. Two in a model, so that three threads share one.
const SLOTS: usize = if cfg!(loom) { 2 } else { 4096 };
/// A revocation keeps the bias away for this many times its own length.
const INHIBIT: u64 = 9;

/// Locks that are read, by address. A slot on a line of its own would be 512 KiB; neighbours are threads apart in the hash.
struct Table([AtomicUsize; SLOTS]);

impl Table {
    #[cfg(not(loom))]
    const fn new() -> Self {
        Self([const { AtomicUsize::new(0) }; SLOTS])
    }

    #[cfg(loom)]
    fn new() -> Self {
        Self(core::array::from_fn(|_| AtomicUsize::new(0)))
    }
}

process_static! {
    /// Sync: `biased.dekker`.
    static VISIBLE: Table = Table::new();
}
process_static! {
    /// A reader has left while somebody revoked. Sync: its own.
    static LEFT: Line<EventCount> = Line(EventCount::new());
}
/// Before the first bias, the process is registered for the fence.
static REGISTERED: Once = Once::new();

/// A reader-writer lock biased towards readers around `L`, without data. See the [module](self).
pub struct BiasedRwLock<L> {
    /// Sync: `biased.dekker`.
    bias: AtomicBool,
    /// Tick before which the bias does not come back. Sync: the inner lock.
    inhibited_until: AtomicU64,
    inner: L,
}

/// The calling thread's number, which the address of a thread-local word is.
#[cfg(not(loom))]
fn thread_number() -> usize {
    std::thread_local! {
        static WORD: u8 = const { 0 };
    }
    WORD.with(|word| core::ptr::from_ref(word).addr())
}

impl<L> BiasedRwLock<L> {
    const_unless_loom! {
        /// A lock without bias around `inner`, which nobody holds.
        pub fn around(inner: L) -> Self {
            Self { bias: AtomicBool::new(false), inhibited_until: AtomicU64::new(0), inner }
        }
    }

    fn name(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    #[cfg(not(loom))]
    fn slot(&self) -> &'static AtomicUsize {
        let mixed = (thread_number() ^ self.name().rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &VISIBLE.0[mixed >> (usize::BITS - SLOTS.trailing_zeros())]
    }

    /// By the thread's number in the model alone: an address is not the same in each execution.
    #[cfg(loom)]
    fn slot(&self) -> &'static AtomicUsize {
        let id = std::format!("{:?}", crate::loom::thread::current().id());
        let even = id.trim_end_matches(')').ends_with(['0', '2', '4', '6', '8']);
        let slot: *const AtomicUsize = &VISIBLE.0[usize::from(!even)];
        // SAFETY: the table lives as long as the execution.
        unsafe { &*slot }
    }
}

impl<L: RawRwLock> BiasedRwLock<L> {
    /// Goes in by a mark; false if the bias does not stand.
    #[inline]
    fn mark(&self) -> bool {
        // ORDER biased.dekker: Relaxed; the look after the fence decides.
        if !self.bias.load(Ordering::Relaxed) {
            return false;
        }
        let slot = self.slot();
        // ORDER biased.dekker: Relaxed; the light half puts it before the look.
        if slot.compare_exchange(0, self.name(), Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        if step::kept("biased: the light half") {
            asymmetric::light();
        }
        // ORDER biased.dekker: Acquire, with the store of `true`, made by a reader that the last writer let in: this reader
        // sees what that one wrote.
        if self.bias.load(step::order("biased.dekker: Acquire", Ordering::Acquire)) {
            return true;
        }
        // If another reader with this slot took the mark, it went in by the inner lock and left that to this thread, which is
        // in: whoever has no mark to take releases the inner lock.
        !self.unmark(slot) && step::kept("biased: the lock that was left")
    }

    /// Takes one mark of this lock back, if the slot has one. It may be another thread's with the same slot, which then finds
    /// none and releases the inner lock in this one's stead: readers are interchangeable.
    #[inline]
    fn unmark(&self, slot: &AtomicUsize) -> bool {
        // ORDER biased.dekker: Release, with the load in `revoke`: the reads come before the writes that follow.
        let leave = step::order("biased.leave: Release", Ordering::Release);
        // ORDER biased.left_to: Acquire where there is none, with the Release of the reader that took it: in `mark`, this thread
        // reads under that one's hold of the inner lock, and sees what the last writer wrote.
        let left_to = step::order("biased.left_to: Acquire", Ordering::Acquire);
        let marked = slot.compare_exchange(self.name(), 0, leave, left_to).is_ok();
        if marked {
            LEFT.notify_all();
        }
        marked
    }

    /// Takes the bias away and looks whether a slot names this lock; `wait` says whether to wait until none does. False if
    /// one does. The caller holds the inner lock to write.
    #[cold]
    fn revoke(&self, wait: bool) -> bool {
        let start = ticks::now();
        // ORDER biased.dekker: Relaxed; the heavy half puts it before the looks.
        self.bias.store(false, Ordering::Relaxed);
        if step::kept("biased: the heavy half") {
            asymmetric::heavy();
        }
        for slot in &VISIBLE.0 {
            // ORDER biased.leave: Acquire, with the compare-and-swap in `unmark`.
            let order = step::order("biased.leave: Acquire", Ordering::Acquire);
            let gone = || (slot.load(order) != self.name()).then_some(());
            if gone().is_some() {
                continue;
            }
            if !wait {
                // ORDER biased.dekker: Release, as in `lock_shared`. No writer is in but this thread, which has written nothing.
                self.bias.store(true, Ordering::Release);
                return false;
            }
            LEFT.wait_for(Patience::for_nanos(SLEEP_AND_WAKE_NS), gone);
        }
        let end = ticks::now();
        // ORDER biased.inhibit: Relaxed; the inner lock orders it.
        self.inhibited_until.store(end.wrapping_add(INHIBIT * end.wrapping_sub(start)), Ordering::Relaxed);
        true
    }
}

// SAFETY: a writer holds the inner lock to write and has found no mark after it revoked the bias; a reader has either
// the inner lock to read, or a mark that it left before it found the bias standing.
unsafe impl<L: RawRwLock> RawRwLock for BiasedRwLock<L> {
    #[cfg(not(loom))]
    #[allow(clippy::declare_interior_mutable_const, reason = "the interface asks for it")]
    const INIT: Self = Self::around(L::INIT);
    #[cfg(loom)]
    const INIT: Self = panic!("a model makes its locks by `around`");

    type GuardMarker = lock_api::GuardNoSend;

    #[inline]
    fn lock_shared(&self) {
        if self.mark() {
            return;
        }
        self.inner.lock_shared();
        // ORDER biased.inhibit: Relaxed; the inner lock, which is held to read, orders it after the last writer.
        if !self.bias.load(Ordering::Relaxed)
            && ticks::now().wrapping_sub(self.inhibited_until.load(Ordering::Relaxed)) as i64 >= 0
        {
            REGISTERED.call_once(asymmetric::init);
            // ORDER biased.dekker: Release, with the loads in `mark`. No writer is in, because this thread reads.
            self.bias.store(true, step::order("biased.dekker: Release", Ordering::Release));
        }
    }

    #[inline]
    fn try_lock_shared(&self) -> bool {
        self.mark() || self.inner.try_lock_shared()
    }

    #[inline]
    unsafe fn unlock_shared(&self) {
        if !self.unmark(self.slot()) {
            // SAFETY: the caller reads, and has no mark.
            unsafe { self.inner.unlock_shared() };
        }
    }

    #[inline]
    fn lock_exclusive(&self) {
        self.inner.lock_exclusive();
        // ORDER biased.dekker: Relaxed; readers set it under the inner lock only.
        if self.bias.load(Ordering::Relaxed) {
            self.revoke(true);
        }
    }

    fn try_lock_exclusive(&self) -> bool {
        if !self.inner.try_lock_exclusive() {
            return false;
        }
        // ORDER biased.dekker: Relaxed, as above.
        if self.bias.load(Ordering::Relaxed) && !self.revoke(false) {
            // SAFETY: taken above.
            unsafe { self.inner.unlock_exclusive() };
            return false;
        }
        true
    }

    #[inline]
    unsafe fn unlock_exclusive(&self) {
        // SAFETY: the caller writes.
        unsafe { self.inner.unlock_exclusive() };
    }

    fn is_locked(&self) -> bool {
        let name = self.name();
        // ORDER biased.dekker: Relaxed; a snapshot.
        self.inner.is_locked() || VISIBLE.0.iter().any(|slot| slot.load(Ordering::Relaxed) == name)
    }
}

impl<L> Drop for BiasedRwLock<L> {
    /// Takes back the marks of guards that were forgotten, so that a lock that comes to this address later does not wait for
    /// them.
    fn drop(&mut self) {
        // ORDER biased.dekker: Relaxed, all; nobody else has the lock.
        if self.bias.load(Ordering::Relaxed) {
            for slot in &VISIBLE.0 {
                let _ = slot.compare_exchange(self.name(), 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}
