//! One buffer: its pair of frontier and limit, and what its size is decided by.

use core::sync::atomic::{AtomicUsize, Ordering};

use larder_percpu::sequence::Slot;
use larder_policy::labs::{Share, Sizes};
use larder_sync::region::fillings::Fillings;
use larder_sync::region::{self, Pair};
use larder_units::Bytes;

/// A buffer of a thread, a processor, or a level. A thread's is part of what the host keeps about the thread.
///
/// All zero is a buffer that was never filled.
#[repr(C, align(64))]
pub struct Lab {
    /// Frontier and limit; see [`region`] for what they mean together.
    ///
    /// Sync: as [`Slot`] for buffers of threads and processors; `region.publish` for those of levels.
    pub slot: Slot,
    /// Bytes that the next refill asks for; 0 before the first. Sync: advisory, by whoever filled the buffer; stopped world.
    size: AtomicUsize,
    /// Refills since the last stop. Sync: as `size`.
    refills: AtomicUsize,
    /// Bytes obtained since the last stop. Sync: as `size`.
    bytes: AtomicUsize,
    /// The average share of what the buffers of its level obtain, as [`Share`]. Sync: stopped world.
    share: AtomicUsize,
    /// Of a processor's buffer that was barred: its limit. Sync: stopped world. Of a thread's, where objects come from a shared level:
    /// what that level's frontier is guessed to be. Sync: owner thread. No buffer is both.
    remembered: AtomicUsize,
    /// Of a level's buffer: how often it was filled since the last stop.
    pub(crate) fillings: Fillings,
}

const _: () = assert!(size_of::<Lab>() == 64 && core::mem::offset_of!(Lab, slot) == 0);

impl Lab {
    /// A buffer that was never filled.
    pub const fn new() -> Self {
        Self {
            slot: Slot::new(),
            size: AtomicUsize::new(0),
            refills: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            share: AtomicUsize::new(0),
            remembered: AtomicUsize::new(0),
            fillings: Fillings::new(),
        }
    }

    /// First half of closing a buffer on which sequences commit by plain stores: no sequence that begins from here on takes
    /// anything. Says whether it was open.
    pub(crate) fn bar(&self) -> bool {
        let limit = self.slot.limit.load(Ordering::Relaxed);
        self.remembered.store(limit, Ordering::Relaxed);
        // ORDER lab.bar: before the barrier between the halves.
        self.slot.limit.store(0, Ordering::Relaxed);
        limit != 0
    }

    /// Second half, when all sequences that began before were aborted: what was left.
    pub(crate) fn barred(&self, stamp: usize) -> Option<(usize, usize)> {
        // ORDER lab.bar: behind the barrier between the halves.
        let left = [self.slot.frontier.load(Ordering::Relaxed), self.remembered.load(Ordering::Relaxed)];
        self.slot.frontier.store(stamp, Ordering::Relaxed);
        (region::rest(left) != 0).then_some((left[0], left[1]))
    }

    /// Where a thread remembers what the frontier of the level was that it last took an object from.
    pub(crate) fn guess(&self) -> *mut usize {
        self.remembered.as_ptr()
    }

    /// What the buffer has left: a hint while others use it.
    pub fn rest(&self) -> Bytes {
        Bytes(region::rest(self.slot.load()))
    }

    /// What the next refill asks for.
    pub fn size(&self, sizes: Sizes) -> Bytes {
        match self.size.load(Ordering::Relaxed) {
            0 => sizes.first(),
            size => Bytes(size),
        }
    }

    /// Whether it was filled since the last stop.
    pub(crate) fn is_in_use(&self) -> bool {
        self.refills.load(Ordering::Relaxed) != 0
    }

    /// The words that a refill by `bytes` changes, and to what.
    pub(crate) fn after_refill(&self, sizes: Sizes, bytes: Bytes) -> [(&AtomicUsize, usize); 3] {
        [
            (&self.size, sizes.after_refill(self.size(sizes)).0),
            (&self.refills, self.refills.load(Ordering::Relaxed) + 1),
            (&self.bytes, self.bytes.load(Ordering::Relaxed) + bytes.0),
        ]
    }

    /// Notes a refill, where nothing keeps others from noting one at the same time: one of them may be lost.
    pub(crate) fn note_refill(&self, sizes: Sizes, bytes: Bytes) {
        for (word, value) in self.after_refill(sizes, bytes) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Notes that its thread allocated, though from another buffer.
    pub(crate) fn note_use(&self) {
        self.refills.store(self.refills.load(Ordering::Relaxed).max(1), Ordering::Relaxed);
    }

    /// What was obtained since the last stop.
    pub(crate) fn obtained(&self) -> Bytes {
        Bytes(self.bytes.load(Ordering::Relaxed))
    }

    /// The sizes after a collection, in a stopped world. `all` is what the buffers of the level obtained together.
    pub(crate) fn after_collection(&self, sizes: Sizes, all: Bytes) {
        if self.size.load(Ordering::Relaxed) == 0 && !self.is_in_use() {
            return;
        }
        let last = Share::of(self.obtained(), all);
        let share = Share(self.share.load(Ordering::Relaxed) as u32).averaged_with(last);
        self.share.store(share.0 as usize, Ordering::Relaxed);
        self.size.store(sizes.after_collection(self.size(sizes), share, all).0, Ordering::Relaxed);
        self.refills.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

impl Pair for Lab {
    fn load(&self) -> [usize; 2] {
        self.slot.load()
    }

    fn compare_exchange(&self, old: [usize; 2], new: [usize; 2]) -> bool {
        self.slot.compare_exchange(old, new)
    }
}
