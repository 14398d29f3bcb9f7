//! The old generation: one range, filled from its beginning, compacted by sliding.
//!
//! Buffers are cut off at its end: collectors' for what they promote, and those of threads, processors or whoever else has
//! them, for objects that are old from the beginning. They begin and end at region boundaries, so the start bits of a region
//! belong to one buffer, and a collector that fills one shares no card with objects that were there before the collection.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use larder_units::{Bytes, PAGE};

use crate::space::{GRANULE, REGION, Space};

/// What stays empty at the beginning where every compaction is to move every object: room for 4096 compactions.
pub(crate) const LEAD: usize = 64 << 10;

pub struct Old {
    range: Range<usize>,
    /// The end of what was handed out.
    ///
    /// Sync: moved up by compare-and-swap; set in a stopped world.
    end: AtomicUsize,
    /// Up to here the range has memory from the kernel, or a helper is about to give it some; what mutators have taken since
    /// the last collection not counted. Sync: a stopped world.
    backed: AtomicUsize,
    /// Bytes that large objects and old buffers may use together. Sync: a setting.
    limit: usize,
    /// Bytes of large objects. Sync: `charge`.
    large: AtomicUsize,
    /// Bytes that mutators leave to the next young collection. Sync: set in a stopped world.
    reserved: AtomicUsize,
    /// Bytes at the beginning that the next compaction leaves empty, and a granule more. Sync: a stopped world.
    lead: AtomicUsize,
}

impl Old {
    /// `lead` is 0, or [`LEAD`] in a range that is as much longer.
    pub fn new(range: Range<usize>, limit: usize, lead: usize) -> Self {
        Self {
            end: AtomicUsize::new(range.start + lead),
            backed: AtomicUsize::new(range.start),
            range,
            limit,
            large: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            lead: AtomicUsize::new(lead),
        }
    }

    /// Where a compaction begins to fill the range. With a lead that is a granule lower each time: then every object moves that is
    /// not pinned, nor behind a pinned one without a gap.
    pub fn next_start(&self) -> usize {
        let lead = self.lead.load(Ordering::Relaxed).saturating_sub(GRANULE);
        self.lead.store(lead, Ordering::Relaxed);
        self.range.start + lead
    }

    /// The first region that may be in use.
    fn floor(&self) -> usize {
        self.range.start + self.lead.load(Ordering::Relaxed).next_multiple_of(REGION)
    }

    /// What was handed out, large objects not included.
    fn small(&self) -> usize {
        self.end.load(Ordering::Relaxed).saturating_sub(self.floor())
    }

    /// Memory for a buffer, a whole number of regions, at least `least` bytes and `most` if there is room for it.
    pub fn obtain(&self, least: usize, most: usize) -> Option<Range<usize>> {
        self.obtain_all_but(self.reserved.load(Ordering::Relaxed), least, most)
    }

    /// The same for what a young collection promotes, which may take what was reserved for it.
    pub fn obtain_for_copies(&self, least: usize, most: usize) -> Option<Range<usize>> {
        self.obtain_all_but(0, least, most)
    }

    fn obtain_all_but(&self, reserved: usize, least: usize, most: usize) -> Option<Range<usize>> {
        let (least, most) = (least.next_multiple_of(REGION), most.next_multiple_of(REGION));
        // Relaxed throughout: what is handed out is the caller's alone, and its content is published by others.
        let mut end = self.end.load(Ordering::Relaxed);
        loop {
            let limit = (self.floor() + self.limit.saturating_sub(self.large.load(Ordering::Relaxed) + reserved))
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

    /// What nobody has: a hint while others take.
    pub fn left(&self) -> Bytes {
        Bytes(self.room().saturating_sub(self.reserved.load(Ordering::Relaxed)))
    }

    /// What nobody has, for a collection.
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.used())
    }

    /// Keeps so many bytes for the next young collection. The world is stopped.
    pub fn reserve(&self, bytes: usize) {
        self.reserved.store(bytes, Ordering::Relaxed);
    }

    /// What was handed out.
    pub fn extent(&self) -> Range<usize> {
        self.range.start..self.end.load(Ordering::Relaxed)
    }

    /// Sets the end after a compaction; returns what is behind it and has memory.
    pub fn cut(&self, end: usize) -> Range<usize> {
        let end = end.next_multiple_of(REGION);
        let backed = self.ahead(0).max(self.backed.load(Ordering::Relaxed));
        self.backed.store(backed, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        end..backed
    }

    /// Keeps memory for `ahead` bytes behind the end, and gives the rest back. The world is stopped.
    pub(crate) fn keep(&self, space: &Space, ahead: usize) {
        let keep = self.ahead(ahead);
        let backed = self.backed.load(Ordering::Relaxed);
        if backed > keep {
            space.discard(keep..backed);
            self.backed.store(keep, Ordering::Relaxed);
        }
    }

    /// The pages that have no memory yet among `ahead` bytes behind the end; they count as if they had from now on. The world
    /// is stopped.
    pub fn wanted(&self, ahead: usize) -> Range<usize> {
        let backed = self.ahead(0).max(self.backed.load(Ordering::Relaxed));
        let to = self.ahead(ahead).max(backed);
        self.backed.store(to, Ordering::Relaxed);
        backed..to
    }

    /// The first page that `ahead` bytes behind the end do not reach.
    fn ahead(&self, ahead: usize) -> usize {
        (self.extent().end + ahead).next_multiple_of(PAGE.0).min(self.range.end)
    }

    /// Counts a large object, if it fits under the limit.
    pub fn charge(&self, bytes: usize) -> bool {
        let room = self.limit.saturating_sub(self.small() + self.reserved.load(Ordering::Relaxed));
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
        self.small() + self.large.load(Ordering::Relaxed)
    }

    /// The most that there may be.
    pub fn limit(&self) -> usize {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_behind_the_end_are_asked_for_once_and_given_back_once() {
        let space = Space::reserve(1 << 20, 0, 0).unwrap();
        let start = space.old.start;
        let old = Old::new(space.old.clone(), 1 << 20, 0);
        let at = |range: Range<usize>| (range.start - start) >> 10..(range.end - start) >> 10;
        old.obtain(100 << 10, 100 << 10).unwrap();
        assert_eq!(at(old.wanted(10 << 10)), 100..112);
        assert_eq!(at(old.wanted(10 << 10)), 112..112);
        assert_eq!(at(old.wanted(20 << 10)), 112..120);
        old.obtain(100 << 10, 100 << 10).unwrap();
        assert_eq!(at(old.wanted(4 << 10)), 200..204);
        assert_eq!(at(old.cut(start + (50 << 10))), 50..204);
        space.fill(start + (150 << 10)..start + (160 << 10), 1);
        old.keep(&space, 50 << 10);
        let word = |kib: usize| space.word(start + (kib << 10)).load(Ordering::Relaxed);
        assert_eq!(word(152), 0, "its memory was not given back");
        assert_eq!(at(old.wanted(60 << 10)), 100..112);
        assert_eq!(at(old.wanted(1 << 20)), 112..1024);
        let old = Old::new(space.old.clone(), 1 << 20, 0);
        old.obtain(5 << 10, 5 << 10).unwrap();
        assert_eq!(at(old.cut(start + (2 << 10))), 2..8, "what has memory has whole pages of it");
    }
}
