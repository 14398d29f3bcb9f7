#![doc = include_str!("README.md")]

use crate::atomic::{AtomicUsize, Ordering, fence};
use crate::line::Line;
use core::fmt;

mod ring;
mod watermark;
use ring::Ring;
pub use watermark::Watermark;

/// One piece of work: two words, for instance an object and the part of it to scan.
pub type Entry = [usize; 2];

/// What a thief came away with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Steal {
    /// The deque was empty.
    Empty,
    /// Another thread took the entry that was aimed at; there may be more.
    Retry,
    /// This entry now belongs to the caller alone.
    Taken(Entry),
}

/// A Chase-Lev deque of two-word entries in memory that others provide: the public part of a marker's work list.
///
/// Always true: `top <= bottom + 1` and `bottom - top <= capacity`, as differences of counters that wrap; the entries
/// are those of the indices in `top..bottom`, each at its index modulo the capacity; `top` never goes back; only the
/// owner writes `bottom`.
pub struct Deque {
    /// The index of the oldest entry.
    ///
    /// Sync: `deque.take`: thieves, and the owner for the last entry, move it up with a compare-and-swap, by as many as they take.
    top: Line<AtomicUsize>,
    /// The index after the newest entry; one lower while the owner takes that.
    ///
    /// Sync: `deque.publish`: the owner writes it, always with Release.
    bottom: Line<AtomicUsize>,
    /// Sync: `deque.attach` for where the slots are, `deque.publish` and `deque.recycle` for what they hold.
    ring: Line<Ring>,
}

impl Deque {
    const_unless_loom! {
        /// A deque without memory: empty to thieves and full to its owner.
        pub fn new() -> Self {
            Self {
                top: Line(AtomicUsize::new(0)),
                bottom: Line(AtomicUsize::new(0)),
                ring: Line(Ring::new()),
            }
        }
    }

    /// Gives the deque its memory.
    ///
    /// # Safety
    /// `slots` points to `capacity` pairs of words, a power of two, that are valid for reads and writes and used by
    /// nobody else for as long as the deque is used. The deque is empty and not yet shared with other threads.
    pub unsafe fn attach(&self, slots: *mut Entry, capacity: usize) {
        assert!(capacity.is_power_of_two(), "larder: the capacity of a deque is a power of two");
        // SAFETY: the caller's promise, and the power of two was just checked.
        unsafe { self.ring.attach(slots, capacity) };
    }

    /// Empties the deque in a child of fork, in whatever state its owner and its thieves have left it: an owner in the middle of
    /// `pop` has moved `bottom`, and will not move it back.
    ///
    /// # Safety
    /// The calling thread is the only one of the process.
    #[cfg(not(loom))]
    pub unsafe fn reset_after_fork(&self) {
        // ORDER deque.owner: Relaxed, both; this thread is the only one.
        self.bottom.store(self.top.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Adds an entry at the bottom, or returns it when the deque is full.
    ///
    /// # Safety
    /// The calling thread is the owner: no other thread is in `push` or `pop` of this deque, and the last one that was
    /// happens before this call.
    #[inline]
    pub unsafe fn push(&self, e: Entry) -> Result<(), Entry> {
        let bottom = self.own_bottom();
        // ORDER deque.recycle: Acquire, with the compare-and-swaps on `top`. Weaker, the entry could be written to a
        // slot that its last thief has yet to read.
        let top = self.top.load(Ordering::Acquire);
        if bottom.wrapping_sub(top) >= self.ring.capacity() {
            return Err(e);
        }
        self.ring.write(bottom, e);
        // ORDER deque.publish: Release, with the loads of `bottom` in `steal` and `is_empty`. Weaker, a thief could
        // read the slot before the entry is in it, or follow the entry to memory that is not written yet.
        self.bottom.store(bottom.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// Takes the newest entry.
    ///
    /// # Safety
    /// As for [`Deque::push`].
    #[inline]
    pub unsafe fn pop(&self) -> Option<Entry> {
        // SAFETY: the caller's promise.
        unsafe { self.pop_with::<true>() }
    }

    /// `pop`, with or without its fence, so that the model can show what the fence forbids.
    ///
    /// # Safety
    /// As for [`Deque::push`].
    #[inline]
    pub(crate) unsafe fn pop_with<const FENCED: bool>(&self) -> Option<Entry> {
        let bottom = self.own_bottom();
        // ORDER deque.glance: Relaxed, with the compare-and-swaps on `top`. `top` only grows, so an old value can at
        // worst hide that the deque is empty, which is found out below.
        if bottom == self.top.load(Ordering::Relaxed) {
            return None;
        }
        let newest = bottom.wrapping_sub(1);
        // ORDER deque.publish: Release, with the loads of `bottom` in `steal` and `is_empty`: a thief that reads this
        // value still sees the entries below it.
        self.bottom.store(newest, Ordering::Release);
        if FENCED {
            // ORDER deque.last: SeqCst, between the store to `bottom` above and the load of `top` below, with the fence
            // in
            // `steal`. Without it, a thief could find the old `bottom` and this owner the old `top`, and both take the
            // entry.
            fence(Ordering::SeqCst);
        }
        // ORDER deque.last: Relaxed, with the compare-and-swaps on `top`; the fence before it does the work.
        let top = self.top.load(Ordering::Relaxed);
        let others = newest.wrapping_sub(top) as isize;
        if others > 0 {
            // Older entries lie between any thief and this one.
            return Some(self.ring.read(newest));
        }
        let mut entry = None;
        if others == 0 {
            // The last entry: whoever moves `top` past it has it. The slot is ours to read: only an owner writes slots.
            if self.advance_top(top) {
                entry = Some(self.ring.read(newest));
            }
        }
        // ORDER deque.publish: Release, as every store to `bottom`. No thief succeeds by this value, because nothing is
        // below it that has not been taken; it is Release so that a reader never has to ask which store it has read.
        self.bottom.store(bottom, Ordering::Release);
        entry
    }

    /// Takes the oldest entry. Any thread may call it, the owner as well.
    #[inline]
    pub fn steal(&self) -> Steal {
        // ORDER deque.take: Acquire, with the compare-and-swaps on `top`. Weaker, the fence below would order only what
        // this thief has seen itself, not what the thieves before it have done, and an old `bottom` could be found
        // above a new `top`.
        let top = self.top.load(Ordering::Acquire);
        // ORDER deque.last: SeqCst, between the load of `top` above and the load of `bottom` below, with the fence in
        // `pop`.
        fence(Ordering::SeqCst);
        // ORDER deque.publish: Acquire, with the stores to `bottom` in `push` and `pop`. Weaker, the slot could be read
        // before its entry is in it.
        let bottom = self.bottom.load(Ordering::Acquire);
        if bottom.wrapping_sub(top) as isize <= 0 {
            return Steal::Empty;
        }
        // Perhaps torn, if the owner reuses the slot meanwhile; then `top` has moved and the words are thrown away.
        let entry = self.ring.read(top);
        if self.advance_top(top) { Steal::Taken(entry) } else { Steal::Retry }
    }

    /// Takes the oldest entries, up to as many as `out` has room for, and returns how many. Any thread may call it, the owner as well.
    ///
    /// One compare-and-swap for all of them: entries that stand for little work are worth stealing so.
    ///
    /// # Safety
    /// Nobody calls [`Deque::pop`], ever: its owner takes all entries but the last without asking thieves, of whom one may be taking several.
    #[inline]
    pub unsafe fn steal_many(&self, out: &mut [Entry]) -> usize {
        loop {
            // ORDER deque.take: Acquire, with the compare-and-swaps on `top`. No fence follows: without `pop`, `bottom` only grows, and an old
            // one hides entries at worst.
            let top = self.top.load(Ordering::Acquire);
            // ORDER deque.publish: Acquire, with the stores to `bottom` in `push`, as in `steal`.
            let bottom = self.bottom.load(Ordering::Acquire);
            let there = bottom.wrapping_sub(top) as isize;
            if there <= 0 || out.is_empty() {
                return 0;
            }
            let n = out.len().min(there as usize);
            for (i, entry) in out[..n].iter_mut().enumerate() {
                // Perhaps torn, as in `steal`.
                *entry = self.ring.read(top.wrapping_add(i));
            }
            if self.advance_top_by(top, n) {
                return n;
            }
            core::hint::spin_loop();
        }
    }

    /// Says whether the deque holds no entry.
    ///
    /// A true answer was right at some moment of the call, except that the owner may just be taking the last entry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of entries a moment ago.
    #[inline]
    pub fn len(&self) -> usize {
        // `top` first: it only grows, so what is counted as absent has been taken or is being taken.
        //
        // ORDER deque.take: Acquire, with the compare-and-swaps on `top`. Weaker, `bottom` could be the older of the
        // two.
        let top = self.top.load(Ordering::Acquire);
        // ORDER deque.publish: Acquire, with the stores to `bottom`, so that whoever acts on the answer sees what led
        // to it.
        let bottom = self.bottom.load(Ordering::Acquire);
        let entries = bottom.wrapping_sub(top) as isize;
        // An old `top` with a new `bottom` may look like more entries than there is room for.
        entries.clamp(0, self.ring.capacity() as isize) as usize
    }

    /// The owner's reading of `bottom`, which nobody else writes.
    #[cfg(not(loom))]
    #[inline]
    fn own_bottom(&self) -> usize {
        // ORDER deque.owner: Relaxed, with this owner's own stores.
        self.bottom.load(Ordering::Relaxed)
    }

    /// As above, for loom: it looks for a race with the last access of a word only, and an ordinary load by the owner
    /// would hide the thieves' loads from the owner's next store.
    #[cfg(loom)]
    fn own_bottom(&self) -> usize {
        // SAFETY: only the owner, which calls this, writes `bottom`; loom checks it.
        unsafe { self.bottom.unsync_load() }
    }

    /// Moves `top` from `top` to the next index; says whether this thread was the one.
    #[inline]
    fn advance_top(&self, top: usize) -> bool {
        self.advance_top_by(top, 1)
    }

    /// The same, `n` indices further.
    #[inline]
    fn advance_top_by(&self, top: usize, n: usize) -> bool {
        // ORDER deque.take: Release, with the Acquire loads of `top` in `steal` and `len`.
        // ORDER deque.recycle: Release, with the load of `top` in `push`. Weaker, the owner could write the next entry
        // to the slot before this thread has read it. Each success continues the release sequences of those before it,
        // so one load acquires all of them. Relaxed on failure: what was read is thrown away.
        self.top.compare_exchange(top, top.wrapping_add(n), Ordering::Release, Ordering::Relaxed).is_ok()
    }
}

impl Default for Deque {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Deque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deque").field("len", &self.len()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn deque_without_memory_is_empty_and_full() {
        let deque = Deque::new();
        assert!(deque.is_empty());
        assert_eq!(deque.steal(), Steal::Empty);
        // SAFETY: this thread is the only one.
        unsafe {
            assert_eq!(deque.pop(), None);
            assert_eq!(deque.push([1, 2]), Err([1, 2]));
        }
    }

    #[test]
    fn owner_takes_the_newest_and_thieves_the_oldest() {
        let deque = Deque::new();
        let mut slots = [[0; 2]; 4];
        // SAFETY: the slots outlive the deque's use, and this thread is the only one.
        unsafe {
            deque.attach(slots.as_mut_ptr(), slots.len());
            for word in 0..4 {
                assert_eq!(deque.push([word, !word]), Ok(()));
            }
            assert_eq!(deque.push([4, !4]), Err([4, !4]));
            assert_eq!(deque.len(), 4);
            assert_eq!(deque.pop(), Some([3, !3]));
            assert_eq!(deque.steal(), Steal::Taken([0, !0]));
            assert_eq!(deque.push([5, !5]), Ok(()));
            assert_eq!(deque.push([6, !6]), Ok(()));
            assert_eq!(deque.push([7, !7]), Err([7, !7]));
            assert_eq!(deque.steal(), Steal::Taken([1, !1]));
            assert_eq!(deque.pop(), Some([6, !6]));
            assert_eq!(deque.pop(), Some([5, !5]));
            assert_eq!(deque.pop(), Some([2, !2]));
            assert_eq!(deque.pop(), None);
            assert!(deque.is_empty());
        }
    }

    #[test]
    fn a_fork_in_the_middle_of_pop_loses_no_later_entry() {
        let deque = Deque::new();
        let mut slots = [[0; 2]; 4];
        // SAFETY: the slots outlive the deque's use, and this thread is the only one.
        unsafe {
            deque.attach(slots.as_mut_ptr(), slots.len());
            deque.push([1, 1]).unwrap();
            assert_eq!(deque.steal(), Steal::Taken([1, 1]));
            // What `pop` has stored when it finds that a thief was quicker.
            // ORDER deque.owner: Relaxed; this thread is the only one.
            deque.bottom.store(deque.top.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
            deque.reset_after_fork();
            deque.push([2, 2]).unwrap();
            assert_eq!((deque.len(), deque.steal()), (1, Steal::Taken([2, 2])));
        }
    }

    #[test]
    fn indices_wrap_past_the_largest_number() {
        let deque = Deque::new();
        let mut slots = [[0; 2]; 2];
        // ORDER deque.owner: Relaxed; this thread is the only one.
        deque.top.store(usize::MAX, Ordering::Relaxed);
        deque.bottom.store(usize::MAX, Ordering::Relaxed);
        // SAFETY: the slots outlive the deque's use, and this thread is the only one.
        unsafe {
            deque.attach(slots.as_mut_ptr(), slots.len());
            for round in 0..4 {
                assert_eq!(deque.push([round, 1]), Ok(()));
                assert_eq!(deque.push([round, 2]), Ok(()));
                assert_eq!(deque.push([round, 3]), Err([round, 3]));
                assert_eq!(deque.len(), 2);
                assert_eq!(deque.steal(), Steal::Taken([round, 1]));
                assert_eq!(deque.pop(), Some([round, 2]));
                assert_eq!(deque.pop(), None);
            }
        }
    }
}
