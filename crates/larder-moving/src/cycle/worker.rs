//! What one collector has of its own: entries that wait, buffers it copies into, slots it has found.

use core::ops::Range;

use larder_sync::worklist::Entry;
use larder_sys::memory::ReserveError;

use super::ahead::Ahead;
use crate::config::OLDEST;
use crate::list::List;

/// Private entries. The newest are taken first; the oldest, which stand for the most work, are given away.
pub(crate) struct Pending {
    entries: List<Entry>,
    /// Entries below it were given away.
    bottom: usize,
}

/// Pieces into which large objects are split, so that several collectors scan one.
const PIECE: usize = 16 << 10;
/// A collector that has more private entries than this, when its public part is empty, gives half of them away.
const SHARE_ABOVE: usize = 8;
/// Most entries that are given away at once.
const SHARE_MOST: usize = 256;

impl Pending {
    #[inline(always)]
    pub fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    #[inline(always)]
    pub fn pop(&mut self) -> Option<Entry> {
        if self.entries.len() > self.bottom {
            return self.entries.pop();
        }
        self.entries.truncate(0);
        self.bottom = 0;
        None
    }

    /// Gives the oldest entries away until `give` refuses; returns how many.
    pub fn share(&mut self, mut give: impl FnMut(Entry) -> bool) -> usize {
        let have = self.entries.len() - self.bottom;
        if have <= SHARE_ABOVE {
            return 0;
        }
        let mut given = 0;
        while given < (have / 2).min(SHARE_MOST) && give(self.entries.as_slice()[self.bottom]) {
            self.bottom += 1;
            given += 1;
        }
        // What was given away is cut off when as much is left, so that the list does not wander.
        let left = self.entries.len() - self.bottom;
        if self.bottom > left {
            let bottom = self.bottom;
            self.entries.as_mut_slice().copy_within(bottom.., 0);
            self.entries.truncate(left);
            self.bottom = 0;
        }
        given
    }
}

/// What a collector did; added to the heap's counters after each phase.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    pub copied: usize,
    pub promoted: usize,
    pub objects: usize,
    pub marked: usize,
}

/// A collector's own.
pub(crate) struct Worker {
    pub pending: Pending,
    /// Slots that wait for their referents. Empty between phases.
    pub ahead: Ahead,
    /// For each age, what is left of the survivor block that it fills.
    pub survivors: [Range<usize>; OLDEST as usize + 1],
    /// What is left of its buffer in the old generation; kept from one young collection to the next.
    pub old: Range<usize>,
    /// Weak slots of objects that were found.
    pub weak: List<usize>,
    /// Ephemerons of objects that were found, whose keys were not found yet.
    pub ephemerons: List<[usize; 2]>,
    /// Slots of old objects that refer to young ones, where the barrier is precise.
    pub remembered: List<usize>,
    pub tally: Tally,
}

impl Worker {
    /// For a heap with room for so many objects and slots: then no list can be too short.
    pub fn new(objects: usize, slots: usize) -> Result<Self, ReserveError> {
        Ok(Self {
            pending: Pending { entries: List::with_capacity(objects)?, bottom: 0 },
            ahead: Ahead::new(),
            survivors: [const { 0..0 }; OLDEST as usize + 1],
            old: 0..0,
            weak: List::with_capacity(slots)?,
            ephemerons: List::with_capacity(objects)?,
            remembered: List::with_capacity(slots)?,
            tally: Tally::default(),
        })
    }

    /// The addresses of a large object, which ends at `end`, that its entry stands for: one piece from `part - 1` on. What is
    /// behind the piece is another entry, which another collector takes if it is idle.
    pub fn next_piece(&mut self, object: usize, part: usize, end: usize) -> Range<usize> {
        let from = object + part - 1;
        let to = end.min(from + PIECE);
        if to < end {
            self.pending.push([object, to - object + 1]);
        }
        from..to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_half_is_given_away_and_nothing_is_lost() {
        let mut pending = Pending { entries: List::with_capacity(1000).unwrap(), bottom: 0 };
        let mut given = vec![];
        let mut popped = vec![];
        for n in 0..1000 {
            pending.push([n, 0]);
            if n % 20 == 19 {
                let before = given.len();
                pending.share(|entry| {
                    let taken = given.len() < before + 8;
                    if taken {
                        given.push(entry[0]);
                    }
                    taken
                });
            }
            if n % 3 == 0 {
                popped.extend(pending.pop().map(|entry| entry[0]));
            }
        }
        assert!(given.is_sorted() && given.len() > 200);
        while let Some([n, _]) = pending.pop() {
            popped.push(n);
        }
        assert_eq!(pending.bottom, 0);
        let mut all = [given, popped].concat();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
    }
}
