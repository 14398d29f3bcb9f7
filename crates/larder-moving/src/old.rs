//! The old generation: one range, filled from its beginning, compacted by sliding.
//!
//! Buffers are cut off at its end. They begin and end at region boundaries, so the start bits of a region have one writer,
//! and a collector that fills a buffer shares no card with objects that were there before the collection.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::space::{REGION, Space};

pub(crate) struct Old {
    range: Range<usize>,
    /// The end of what was handed out.
    ///
    /// Sync: moved up by compare-and-swap; set in a stopped world.
    end: AtomicUsize,
    /// Bytes that large objects and old buffers may use together. Sync: a setting.
    limit: usize,
    /// Bytes of large objects. Sync: `charge`.
    large: AtomicUsize,
}

impl Old {
    pub fn new(range: Range<usize>, limit: usize) -> Self {
        Self { end: AtomicUsize::new(range.start), range, limit, large: AtomicUsize::new(0) }
    }

    /// Memory for a buffer, a whole number of regions, at least `least` bytes and `most` if there is room for it.
    pub fn obtain(&self, least: usize, most: usize) -> Option<Range<usize>> {
        let (least, most) = (least.next_multiple_of(REGION), most.next_multiple_of(REGION));
        // Relaxed throughout: what is handed out is the caller's alone, and its content is published by others.
        let mut end = self.end.load(Ordering::Relaxed);
        loop {
            let limit = (self.range.start + self.limit.saturating_sub(self.large.load(Ordering::Relaxed)))
                .min(self.range.end)
                / REGION
                * REGION;
            let room = limit.saturating_sub(end);
            if room < least {
                return None;
            }
            let taken = room.min(most);
            match self.end.compare_exchange_weak(end, end + taken, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(end..end + taken),
                Err(now) => end = now,
            }
        }
    }

    /// Takes the rest of a buffer back if it is the end of what was handed out; says whether it was.
    pub fn give_back(&self, rest: Range<usize>) -> bool {
        let from = rest.start.next_multiple_of(REGION);
        from < rest.end && self.end.compare_exchange(rest.end, from, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// What was handed out.
    pub fn extent(&self) -> Range<usize> {
        self.range.start..self.end.load(Ordering::Relaxed)
    }

    /// Sets the end after a compaction, and gives the memory behind it back.
    pub fn cut(&self, space: &Space, end: usize) {
        let end = end.next_multiple_of(REGION);
        let before = self.end.swap(end, Ordering::Relaxed);
        if before > end {
            space.discard(end..before);
        }
    }

    /// Counts a large object, if it fits under the limit.
    pub fn charge(&self, bytes: usize) -> bool {
        let small = self.extent();
        let room = self.limit.saturating_sub(small.end - small.start);
        self.large
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |large| {
                large.checked_add(bytes).filter(|&sum| sum <= room)
            })
            .is_ok()
    }

    /// A large object of so many bytes is gone.
    pub fn refund(&self, bytes: usize) {
        self.large.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes handed out, large objects included.
    pub fn used(&self) -> usize {
        let small = self.extent();
        small.end - small.start + self.large.load(Ordering::Relaxed)
    }

    /// The most that there may be.
    pub fn limit(&self) -> usize {
        self.limit
    }
}
