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
use crate::event_count::EventCount;
use crate::line::Line;
use crate::spin::{Patience, SLEEP_AND_WAKE_NS};
use crate::ticks;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use lock_api::RawRwLock;
use std::sync::OnceLock;

/// Slots of the table.
const SLOTS: usize = 4096;
/// A revocation keeps the bias away for this many times its own length.
const INHIBIT: u64 = 9;

/// Locks that are read, by address. A slot on a line of its own would be 512 KiB; neighbours are threads apart in the hash.
/// Sync: `biased.dekker`.
static VISIBLE: [AtomicUsize; SLOTS] = [const { AtomicUsize::new(0) }; SLOTS];
/// A reader has left while somebody revoked. Sync: its own.
static LEFT: OnceLock<Line<EventCount>> = OnceLock::new();

fn left() -> &'static EventCount {
    LEFT.get_or_init(|| {
        asymmetric::init();
        Line(EventCount::new())
    })
}

/// A reader-writer lock biased towards readers around `L`, without data. See the [module](self).
pub struct BiasedRwLock<L> {
    /// Sync: `biased.dekker`.
    bias: AtomicBool,
    /// Tick before which the bias does not come back. Sync: the inner lock.
    inhibited_until: AtomicU64,
    inner: L,
}

/// The calling thread's number, which the address of a thread-local word is.
fn thread_number() -> usize {
    std::thread_local! {
        static WORD: u8 = const { 0 };
    }
    WORD.with(|word| core::ptr::from_ref(word).addr())
}

impl<L: RawRwLock> BiasedRwLock<L> {
    fn name(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    fn slot(&self) -> &'static AtomicUsize {
        let mixed = (thread_number() ^ self.name().rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &VISIBLE[mixed >> (usize::BITS - SLOTS.trailing_zeros())]
    }

    /// Leaves the mark; false if the bias does not stand.
    #[inline]
    fn mark(&self) -> bool {
        // ORDER biased.dekker: Relaxed; the look after the fence decides.
        if !self.bias.load(Ordering::Relaxed) {
            return false;
        }
        let slot = self.slot();
        // ORDER biased.dekker: Acquire, with the Release of `bias` in `lock_shared`: this reader sees what the last writer
        // wrote. The light half puts it before the look.
        if slot.compare_exchange(0, self.name(), Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        asymmetric::light();
        // ORDER biased.dekker: Acquire, with the store of `true`, made by a reader that the last writer let in.
        if self.bias.load(Ordering::Acquire) {
            return true;
        }
        self.unmark(slot);
        false
    }

    /// Takes one mark of this lock back, if the slot has one. It may be another thread's with the same slot, which then finds
    /// none and releases the inner lock in this one's stead: readers are interchangeable.
    #[inline]
    fn unmark(&self, slot: &AtomicUsize) -> bool {
        // ORDER biased.dekker: Release, with the load in `revoke`: the reads come before the writes that follow.
        let marked = slot.compare_exchange(self.name(), 0, Ordering::Release, Ordering::Relaxed).is_ok();
        if marked {
            left().notify(u32::MAX);
        }
        marked
    }

    /// Waits until no slot names this lock. The caller holds the inner lock to write.
    #[cold]
    fn revoke(&self) {
        let start = ticks::now();
        // ORDER biased.dekker: Relaxed; the heavy half puts it before the looks.
        self.bias.store(false, Ordering::Relaxed);
        asymmetric::heavy();
        for slot in &VISIBLE {
            // ORDER biased.dekker: Acquire, with the compare-and-swap in `unmark`.
            let gone = || (slot.load(Ordering::Acquire) != self.name()).then_some(());
            if gone().is_none() {
                left().wait_for(Patience::for_nanos(SLEEP_AND_WAKE_NS), gone);
            }
        }
        let end = ticks::now();
        // ORDER biased.inhibit: Relaxed; the inner lock orders it.
        self.inhibited_until.store(end.wrapping_add(INHIBIT * end.wrapping_sub(start)), Ordering::Relaxed);
    }
}

// SAFETY: a writer holds the inner lock to write and has found no mark after it revoked the bias; a reader has either
// the inner lock to read, or a mark that it left before it found the bias standing.
unsafe impl<L: RawRwLock> RawRwLock for BiasedRwLock<L> {
    #[allow(clippy::declare_interior_mutable_const, reason = "the interface asks for it")]
    const INIT: Self = Self { bias: AtomicBool::new(false), inhibited_until: AtomicU64::new(0), inner: L::INIT };

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
            left();
            // ORDER biased.dekker: Release, with the loads in `mark`. No writer is in, because this thread reads.
            self.bias.store(true, Ordering::Release);
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
            self.revoke();
        }
    }

    fn try_lock_exclusive(&self) -> bool {
        if !self.inner.try_lock_exclusive() {
            return false;
        }
        // ORDER biased.dekker: Relaxed, as above.
        if self.bias.load(Ordering::Relaxed) {
            self.revoke();
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
        self.inner.is_locked() || VISIBLE.iter().any(|slot| slot.load(Ordering::Relaxed) == name)
    }
}
