//! Copies of what was scanned of large objects.
//!
//! The unit of what was written is a page, and a program that writes all over a table of pointers has written to each of its pages before the
//! marker thread has looked at the first: every round of cleaning, and the final stop, would look up all of its words again, although hardly any
//! has changed. So a round that scans a page of a large object scans a copy of it. The next one looks up the words that differ from the copy, and brings
//! that up to date.
//!
//! **Why nothing live is lost.** A word of a copy is zero, or was looked up after it was copied; so it led to an object that is marked, or to none. An
//! object that came to be there since was born marked, or lay in a buffer then, where cells have marks like any others: copies are made once objects are born
//! marked, and no refill is under way that began before. So an equal word need not be looked up again, whoever wrote it. What is freed explicitly
//! keeps its memory while the cycle marks, or is born marked.
//!
//! A copy costs as much memory as its page. Pages that hardly refer to anything are scanned as fast as they are copied and have none; nor have small objects,
//! whose pages are written most often when they are new, and then once.

use core::sync::atomic::{AtomicUsize, Ordering};

use larder_sys::memory::{map_lazy, unmap};
use larder_sys::vector::Vector;
use larder_trace::{Interior, Marker, Objects};
use larder_units::{Bytes, PAGE};

use crate::inject::{Point, point};
use crate::view::View;

/// Words of a page.
const WORDS: usize = PAGE.0 / size_of::<usize>();
/// As many addresses make a page worth a copy.
const ENOUGH: usize = WORDS / 16;
/// Pages of a mapping.
const TOGETHER: usize = 256;

/// A page, and where its copy is.
#[derive(Clone, Copy)]
struct Copied {
    page: usize,
    copy: usize,
}

/// The copies of one cycle.
pub(crate) struct Copies {
    /// Sorted by page, but for those that came in this round, which are the last.
    pages: Vector<Copied>,
    sorted: usize,
    /// Mappings of [`TOGETHER`] pages.
    mappings: Vector<usize>,
    are_allowed: bool,
    /// As many copies may be made.
    room: usize,
    /// Sync: markers of the final stop count.
    compared: AtomicUsize,
}

/// Copies that are made no more, for several markers.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    /// Sorted by page.
    pages: &'a [Copied],
    compared: &'a AtomicUsize,
}

impl Known<'_> {
    /// As [`Copies::push`].
    pub(crate) fn push(&self, marker: &mut Marker<'_, View>, low: usize, high: usize) {
        if self.pages.is_empty() {
            return marker.push_range(low, high, Interior::AsConfigured);
        }
        for_each_page(low, high, |page, low, high| {
            if !self.compare(marker, page, low, high) {
                marker.push_range(low, high, Interior::AsConfigured);
            }
        });
    }

    /// Looks up what differs from the page's copy. False where there is none.
    fn compare(&self, marker: &mut Marker<'_, View>, page: usize, low: usize, high: usize) -> bool {
        let Ok(found) = self.pages.binary_search_by_key(&page, |copied| copied.page) else { return false };
        point(Point::BeforeComparing);
        push_differences(marker, self.pages[found].copy, low, high);
        self.compared.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// Calls `f` with the number of each page in which `[low, high)` lies, and the part of that there.
fn for_each_page(low: usize, high: usize, mut f: impl FnMut(usize, usize, usize)) {
    let mut at = low;
    while at < high {
        let page = at / PAGE.0;
        let end = high.min((page + 1) * PAGE.0);
        f(page, at, end);
        at = end;
    }
}

impl Copies {
    pub(super) const fn new() -> Self {
        Self {
            pages: Vector::new(),
            sorted: 0,
            mappings: Vector::new(),
            are_allowed: false,
            room: 0,
            compared: AtomicUsize::new(0),
        }
    }

    /// From here on copies may be made in this cycle: objects are born marked, and nobody is about to hand out any that are not.
    pub(super) fn allow(&mut self) {
        self.are_allowed = true;
    }

    /// Whether that was said.
    pub(super) fn are_allowed(&self) -> bool {
        self.are_allowed
    }

    /// Written pages are going to be pushed, each once. `most`: bytes that all copies of the cycle may take.
    pub(super) fn begin_round(&mut self, most: impl FnOnce() -> Bytes) {
        if self.are_allowed && self.room == 0 {
            self.room = most().0 / PAGE.0;
        }
    }

    /// They have been.
    pub(super) fn end_round(&mut self) {
        self.pages.as_mut_slice().sort_unstable_by_key(|copied| copied.page);
        self.sorted = self.pages.as_slice().len();
    }

    /// How often a page was compared with its copy in this cycle.
    pub(super) fn compared(&self) -> usize {
        self.compared.load(Ordering::Relaxed)
    }

    /// No more are made in this cycle.
    pub(super) fn make_no_more(&mut self) -> Known<'_> {
        self.room = 0;
        self.known()
    }

    /// Those of earlier rounds.
    fn known(&self) -> Known<'_> {
        Known { pages: &self.pages.as_slice()[..self.sorted], compared: &self.compared }
    }

    /// Gives the memory back. Nothing that was pushed is left to be scanned.
    pub(super) fn clear(&mut self) {
        for &mapping in self.mappings.as_slice() {
            // SAFETY: one of `map`'s, of which nobody knows any more.
            unsafe { unmap(core::ptr::with_exposed_provenance_mut(mapping), Bytes(TOGETHER * PAGE.0)) };
        }
        self.mappings.clear();
        self.pages.clear();
        (self.sorted, self.are_allowed, self.room) = (0, false, 0);
        self.compared.store(0, Ordering::Relaxed);
    }

    /// Pushes what a large object has in `[low, high)`, which was written: a round calls it once for each page at most.
    pub(crate) fn push(&mut self, marker: &mut Marker<'_, View>, low: usize, high: usize) {
        if self.room == 0 {
            return self.known().push(marker, low, high);
        }
        for_each_page(low, high, |page, low, high| {
            if !self.known().compare(marker, page, low, high) {
                let from = self.copy(marker, page, low, high).map_or(low, |copy| copy + low % PAGE.0);
                marker.push_range(from, from + (high - low), Interior::AsConfigured);
            }
        });
    }

    /// Copies `[low, high)` of a page, if that is worth it and there is room.
    fn copy(&mut self, marker: &Marker<'_, View>, page: usize, low: usize, high: usize) -> Option<usize> {
        let made = self.pages.as_slice().len();
        if made >= self.room {
            return None;
        }
        if made == self.mappings.as_slice().len() * TOGETHER {
            self.map()?;
        }
        let copy = self.mappings.as_slice()[made / TOGETHER] + made % TOGETHER * PAGE.0;
        let range = marker.heap().range();
        let mut addresses = 0;
        for (word, copied) in words(low, high).iter().zip(words(copy + low % PAGE.0, copy + PAGE.0)) {
            let word = word.load(Ordering::Relaxed);
            addresses += usize::from(range.contains(word));
            copied.store(word, Ordering::Relaxed);
        }
        if addresses < ENOUGH || self.pages.push(Copied { page, copy }).is_err() {
            // The next page's words take the place of these, as far as they are copied.
            words(copy, copy + PAGE.0).iter().for_each(|copied| copied.store(0, Ordering::Relaxed));
            return None;
        }
        point(Point::PageCopied);
        Some(copy)
    }

    fn map(&mut self) -> Option<()> {
        let size = Bytes(TOGETHER * PAGE.0);
        let mapping = map_lazy(size).ok()?;
        if self.mappings.push(mapping.as_ptr().expose_provenance()).is_err() {
            // SAFETY: just made, and nobody knows of it.
            unsafe { unmap(mapping.as_ptr(), size) };
            return None;
        }
        Some(())
    }
}

/// Looks up the words of `[low, high)` that are not in the copy of their page, which has them afterwards.
fn push_differences(marker: &mut Marker<'_, View>, copy: usize, low: usize, high: usize) {
    const STEP: usize = 8;
    let (now, before) = (words(low, high), words(copy + low % PAGE.0, copy + PAGE.0));
    for (now, before) in now.chunks(STEP).zip(before.chunks(STEP)) {
        let pairs = || now.iter().zip(before);
        // Most words are the same. Each is read once more where one is not; what it is then counts.
        let differs = |difference, (now, before): (&AtomicUsize, &AtomicUsize)| {
            difference | (now.load(Ordering::Relaxed) ^ before.load(Ordering::Relaxed))
        };
        if pairs().fold(0, differs) == 0 {
            continue;
        }
        for (now, before) in pairs() {
            let word = now.load(Ordering::Relaxed);
            if word != before.load(Ordering::Relaxed) {
                before.store(word, Ordering::Relaxed);
                marker.word(word, Interior::AsConfigured);
            }
        }
    }
}

/// The words of a range of an object's or of a copy's page, which others may be writing to.
fn words<'a>(low: usize, high: usize) -> &'a [AtomicUsize] {
    let low = low.next_multiple_of(size_of::<usize>());
    let n = high.saturating_sub(low) / size_of::<usize>();
    // SAFETY: aligned and mapped: objects stay what they are while a cycle marks, and copies until it is over. Nobody else has a reference that
    // is not to an atomic; the program's own writes are seen whole or not at all, as by any marker beside it.
    unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(low), n) }
}
