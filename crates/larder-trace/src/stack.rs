//! A marker's private work: a stack of entries in address space that is reserved once and touched as needed.
//!
//! The newest entries are popped from the top; the oldest, which stand for the most work, are given to the public part
//! from the bottom. When even the reservation is full, entries are dropped and the overflow is remembered: the heap is
//! then walked for marked objects once more (as libgc does).

use larder_sync::worklist::Watermark;
use larder_sys::memory::{self, ReserveError};
use larder_units::Bytes;

use crate::descriptor::Entry;

/// Entries that a stack can hold: 256 MiB of address space, of which only what is used costs memory.
const CAPACITY: usize = 16 << 20;
/// Entries up to which a stack keeps its memory between cycles: 1 MiB. What lies in the last of these places says whether a stack was deeper; see
/// [`Stack::trim`].
const KEPT: usize = 64 << 10;

/// A marker's private entries.
pub struct Stack {
    entries: *mut Entry,
    capacity: usize,
    bottom: usize,
    top: usize,
    /// Entries below the bottom may be public: see [`Stack::share_below`].
    shares_below: bool,
    /// Entries were dropped.
    pub(crate) overflowed: bool,
}

// SAFETY: the memory behind `entries` belongs to this stack alone.
unsafe impl Send for Stack {}

/// A stack's ends. See [`Stack::cursor`].
#[derive(Clone, Copy)]
pub struct Cursor {
    bottom: *mut Entry,
    top: *mut Entry,
    end: *mut Entry,
}

impl Cursor {
    /// Adds an entry if `wanted`, without a branch on that. Nothing happens and the answer is false where there is no room.
    #[inline(always)]
    pub fn push_if(&mut self, entry: Entry, wanted: bool) -> bool {
        if self.top == self.end {
            return !wanted;
        }
        // SAFETY: below the end.
        unsafe {
            self.top.write(entry);
            self.top = self.top.add(usize::from(wanted));
        }
        true
    }

    /// Takes the newest entry.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<Entry> {
        if self.top == self.bottom {
            return None;
        }
        // SAFETY: above the bottom.
        unsafe {
            self.top = self.top.sub(1);
            Some(self.top.read())
        }
    }

    /// The newest entry but `n`, which stays.
    #[inline(always)]
    pub fn nth_newest(&self, n: usize) -> Option<&Entry> {
        // SAFETY: above the bottom.
        self.is_above(n).then(|| unsafe { &*self.top.sub(n + 1) })
    }

    /// Whether there is no entry.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.top == self.bottom
    }

    /// Whether there are several entries, of which the oldest is of more words.
    #[inline(always)]
    pub fn begins_with_longer(&self, words: usize) -> bool {
        // SAFETY: above the bottom.
        self.is_above(1) && unsafe { (*self.bottom).words() > words }
    }

    /// Whether there are more entries than `n`.
    #[inline(always)]
    pub fn is_above(&self, n: usize) -> bool {
        self.top > self.bottom.wrapping_add(n)
    }
}

impl Stack {
    /// A stack without memory: everything overflows.
    pub const fn new() -> Self {
        Self { entries: core::ptr::null_mut(), capacity: 0, bottom: 0, top: 0, shares_below: false, overflowed: false }
    }

    /// Reserves the stack's address space, less where that is refused. `limit` bounds the entries.
    pub fn reserve(&mut self, limit: usize) -> Result<(), ReserveError> {
        if self.capacity != 0 {
            return Ok(());
        }
        let mut capacity = CAPACITY.min(limit);
        loop {
            match memory::map_lazy(Bytes(capacity * size_of::<Entry>())) {
                Ok(at) => {
                    self.entries = at.as_ptr().cast();
                    self.capacity = capacity;
                    return Ok(());
                }
                Err(e) if capacity <= 4096 => return Err(e),
                Err(_) => capacity /= 4,
            }
        }
    }

    /// Adds an entry; remembers an overflow where there is no room.
    #[inline(always)]
    pub fn push(&mut self, entry: Entry) {
        if self.top == self.capacity {
            return self.make_room(entry);
        }
        // SAFETY: `top` is inside the reservation.
        unsafe { self.entries.add(self.top).write(entry) };
        self.top += 1;
    }

    /// The stack's ends, to be kept in registers while nobody else uses the stack; [`Stack::put`] brings them back.
    #[inline(always)]
    pub fn cursor(&self) -> Cursor {
        // SAFETY: all are inside the reservation, or one past its end.
        unsafe {
            Cursor {
                bottom: self.entries.add(self.bottom),
                top: self.entries.add(self.top),
                end: self.entries.add(self.capacity),
            }
        }
    }

    /// Ends the use of a cursor.
    #[inline(always)]
    pub fn put(&mut self, cursor: Cursor) {
        // SAFETY: the cursor is this stack's.
        self.top = unsafe { cursor.top.offset_from(self.entries) } as usize;
    }

    #[cold]
    fn make_room(&mut self, entry: Entry) {
        if self.bottom == 0 || self.shares_below {
            self.overflowed = true;
            return;
        }
        let n = self.len();
        // SAFETY: both ranges are inside the reservation.
        unsafe { core::ptr::copy(self.entries.add(self.bottom), self.entries, n) };
        (self.bottom, self.top) = (0, n);
        self.push(entry);
    }

    /// Takes the newest entry.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<Entry> {
        if self.top == self.bottom {
            if !self.shares_below {
                (self.bottom, self.top) = (0, 0);
            }
            return None;
        }
        self.top -= 1;
        // SAFETY: below the old top.
        Some(unsafe { self.entries.add(self.top).read() })
    }

    /// Takes the oldest entry.
    pub fn pop_oldest(&mut self) -> Option<Entry> {
        if self.top == self.bottom {
            return None;
        }
        // SAFETY: between bottom and top.
        let entry = unsafe { self.entries.add(self.bottom).read() };
        self.bottom += 1;
        Some(entry)
    }

    /// Moves the entries to the beginning, if what was given away from the bottom has left as much room there. Otherwise a
    /// stack that is never empty would wander through its whole reservation, and through every cache.
    pub fn settle(&mut self) {
        const WORTH: usize = 256;
        let n = self.len();
        if self.bottom < n.max(WORTH) {
            return;
        }
        // SAFETY: both ranges are inside the reservation and do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(self.entries.add(self.bottom), self.entries, n) };
        (self.bottom, self.top) = (0, n);
    }

    /// Where the entries are; never moves once reserved.
    pub(crate) fn entries(&self) -> *mut Entry {
        self.entries
    }

    /// Moves the bottom to the centre of what is private and what is public below it: the thesis's watermark. False where there is nothing
    /// at all. Until then, nothing may be taken from the bottom in another way.
    ///
    /// # Safety
    /// The watermark is this stack's, and the caller its owner.
    pub(crate) unsafe fn share_below(&mut self, watermark: &Watermark) -> bool {
        // SAFETY: the caller's promise; a stack has fewer than 2^32 entries.
        let bottom = unsafe { watermark.centre(self.top) };
        self.shares_below = bottom.is_some();
        match bottom {
            Some(bottom) => self.bottom = bottom,
            None => (self.bottom, self.top) = (0, 0),
        }
        bottom.is_some()
    }

    /// How many entries there are.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.top - self.bottom
    }

    /// Whether there are as many as there is room for more.
    pub fn is_half_full(&self) -> bool {
        self.len() >= self.capacity / 2
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.top == self.bottom
    }

    /// Remembers that entries were dropped.
    pub fn note_overflow(&mut self) {
        self.overflowed = true;
    }

    /// Whether entries were dropped since the last call.
    pub fn take_overflow(&mut self) -> bool {
        core::mem::take(&mut self.overflowed)
    }

    /// Drops every entry: an aborted cycle. Outside of a round: nothing is public.
    pub fn clear(&mut self) {
        if (self.bottom, self.top) != (0, 0) {
            (self.bottom, self.top) = (0, 0);
        }
    }

    /// Gives the memory of a deep cycle back. The stack is empty.
    ///
    /// How deep it was nobody counts, since entries come and go in registers. But a stack grows entry by entry, and none is null: so it has not been deeper
    /// than what is kept if nothing was written to the last place of that since the last time. What was, the kernel knows.
    pub fn trim(&mut self) {
        debug_assert!(self.is_empty());
        if self.capacity <= KEPT {
            return;
        }
        // SAFETY: inside the reservation, which is ours and reads as zero where nothing was written; a whole number of pages lies above `KEPT`.
        unsafe {
            let last = self.entries.add(KEPT - 1);
            let Entry { start, descriptor } = last.read();
            if start.is_null() && descriptor == 0 {
                return;
            }
            last.write(Entry { start: core::ptr::null_mut(), descriptor: 0 });
            let beyond = Bytes((self.capacity - KEPT) * size_of::<Entry>()).to_pages_rounded_up().to_bytes();
            memory::give_back(self.entries.add(KEPT).cast(), beyond);
        }
    }

    /// The addresses of what is kept between cycles, and of what comes after it. For tests, which ask what memory is there.
    #[doc(hidden)]
    pub fn places(&self) -> [core::ops::Range<usize>; 2] {
        let at = |entries| self.entries.expose_provenance() + entries * size_of::<Entry>();
        let kept = KEPT.min(self.capacity);
        [at(0)..at(kept), at(kept)..at(self.capacity)]
    }
}

impl Default for Stack {
    fn default() -> Self {
        Self::new()
    }
}

const _: () = assert!(CAPACITY < 1 << 32);

#[cfg(test)]
mod tests {
    use super::*;

    use larder_sys::pagemap::Pagemap;

    fn entry(n: usize) -> Entry {
        Entry { start: core::ptr::null_mut(), descriptor: n }
    }

    #[test]
    fn newest_and_oldest_come_from_their_ends_and_overflow_is_remembered() {
        let mut s = Stack::new();
        s.reserve(8192).unwrap();
        for n in 0..8192 {
            s.push(entry(n));
        }
        assert!(!s.take_overflow());
        s.push(entry(9999));
        assert!(s.take_overflow() && !s.take_overflow());
        assert_eq!(s.pop_oldest().unwrap().descriptor, 0);
        assert_eq!(s.pop().unwrap().descriptor, 8191);
        s.push(entry(1));
        s.push(entry(2));
        assert!(!s.take_overflow(), "room at the bottom is used before anything is dropped");
        assert_eq!(s.pop().unwrap().descriptor, 2);
        while s.pop().is_some() {}
        s.trim();
        assert!(s.is_empty());
    }

    #[test]
    fn a_stack_whose_oldest_entries_are_given_away_stays_where_it_is() {
        let mut s = Stack::new();
        s.reserve(8192).unwrap();
        let mut next = 0;
        for _ in 0..100 {
            for _ in 0..600 {
                s.push(entry(next));
                next += 1;
            }
            for old in next - 600..next - 40 {
                assert_eq!(s.pop_oldest().unwrap().descriptor, old);
            }
            s.settle();
            for new in (next - 40..next).rev() {
                assert_eq!(s.pop().unwrap().descriptor, new);
            }
            s.push(entry(next));
            s.pop();
        }
        assert!(!s.take_overflow() && s.is_empty());
    }

    /// Bytes of memory in a range; nothing where the kernel does not say.
    fn memory_in(range: &core::ops::Range<usize>) -> Option<usize> {
        let mut bytes = 0;
        let told = Pagemap::open().ok()?.for_each_filled(range.start, range.end, &mut |from, to| bytes += to - from);
        if told.is_err() {
            eprintln!("SKIPPED: this machine does not tell what is in memory (PAGEMAP_SCAN, Linux 6.7)");
        }
        told.ok().map(|()| bytes)
    }

    #[test]
    fn the_memory_of_what_came_and_went_by_a_cursor_goes_back() {
        let mut s = Stack::new();
        s.reserve(CAPACITY).unwrap();
        let [kept, beyond] = s.places();
        for deep in [4 * KEPT, KEPT + 1] {
            let mut cursor = s.cursor();
            for n in 1..=deep {
                assert!(cursor.push_if(entry(n), true));
            }
            while cursor.pop().is_some() {}
            s.put(cursor);
            let Some(bytes) = memory_in(&beyond) else { return };
            assert!(bytes >= (deep - KEPT) * size_of::<Entry>());
            s.trim();
            assert_eq!(memory_in(&beyond), Some(0));
            assert!(memory_in(&kept) >= Some((KEPT - 1) * size_of::<Entry>()), "it is wanted again");
        }
    }
}
