//! What kind of pages is behind blocks, and when it comes: huge ones in a large heap, where they are to be had quickly, and small ones before they are
//! written.

use core::ops::Range;
use core::sync::atomic::Ordering;

use larder_sys::{huge, memory};
use larder_units::{Blocks, Bytes, Nanos, PAGE};

use super::{BLOCK_SHIFT, Space};

/// From here on steps ask for huge pages. A heap that is smaller is no faster with them, and each costs memory that may not be used.
pub(super) const HUGE_FROM: Bytes = Bytes::mib(64);
/// And from here on behind the tables, of which a huge page serves up to 512 MiB: in a smaller heap most of it would not be used.
const HUGE_TABLES_FROM: Bytes = Bytes::mib(256);
/// From here on pages come before they are written. A program that reads new memory first would have the kernel map a page of zeroes and replace it, which
/// interrupts the other CPUs. A smaller heap may never write them.
const AHEAD_FROM: Bytes = Bytes::mib(16);
/// So many bytes come at a time, beyond what is taken: what a stop may have to wait for, and what may never be used.
const AHEAD: Bytes = Bytes(128 << 10);
/// Who takes so much at once may write little of it: that step does not ask.
pub(super) const SPARSE: Bytes = huge::HUGE_PAGE;
/// Where a huge page took long, that is looked into again when the heap is so many times as large: four or five times until it has a gigabyte.
const SLOW_TIMES: usize = 2;
/// So much longer than quick ones the last huge pages may have taken where one thread alone waits for them.
const LATEST: Nanos = Nanos(8 * huge::QUICK.0);
/// Where few huge pages are free, that is looked into again when the heap is larger by such a part.
const UNTIL_NEXT_LOOK: usize = 16;
/// Bytes for a block, at most, in tables that are backed with huge pages: a heap of many sizes writes all of their pages anyway, and would not
/// of larger ones.
const DENSE: usize = 1 << 9;

impl Space {
    /// From now on, memory that is made accessible in the first `bytes` of the range is backed with huge pages where many are free; nowhere, unless
    /// this was said.
    pub fn ask_for_huge_pages(&self, bytes: Bytes) {
        self.huge_until.store(bytes.0, Ordering::Relaxed);
    }

    /// From now on huge pages are for the tables, and for what is taken by [`take_fresh_in_huge_pages`](Self::take_fresh_in_huge_pages).
    pub fn leave_objects_in_small_pages(&self) {
        self.huge_tables_alone.store(true, Ordering::Relaxed);
    }

    /// Whether [`leave_objects_in_small_pages`](Self::leave_objects_in_small_pages) was called.
    pub fn leaves_objects_in_small_pages(&self) -> bool {
        self.huge_tables_alone.load(Ordering::Relaxed)
    }

    /// Has steps ask for no huge pages until it is called with `false`.
    pub fn prefer_small_pages(&self, small: bool) {
        // Seldom changed, and others read the line.
        if self.small_pages.load(Ordering::Relaxed) != small {
            self.small_pages.store(small, Ordering::Relaxed);
        }
    }

    /// Has memory come behind blocks that were just taken, of which so many are written soon; in a small heap, and where they are a long run, it comes when
    /// they are written.
    pub fn back(&self, first: usize, n: Blocks, soon: Blocks) {
        let run = first << BLOCK_SHIFT..(first + n.0) << BLOCK_SHIFT;
        let [ahead, last] = [0, 1].map(|end: usize| self.huge_ahead[end].load(Ordering::Relaxed));
        if run.len() < SPARSE.0 && ahead < run.end && run.start < last {
            self.have_huge_pages_behind(run, huge::time_to_have);
        } else if run.len() < SPARSE.0 && run.start >= AHEAD_FROM.0 && run.end > self.there.load(Ordering::Relaxed) {
            self.have_pages_ahead(run.start..(first + soon.0) << BLOCK_SHIFT);
        }
    }

    /// Takes `n` blocks that were never used, whole huge pages, which are asked for behind them, also where steps do so for the tables alone. `None` where
    /// these are not there for the asking. The second number is that of the blocks before the first that are the caller's as well.
    pub fn take_fresh_in_huge_pages(&self, n: Blocks) -> Option<(usize, Blocks)> {
        let (size, known) = (n.to_bytes(), self.frontier().to_bytes().0);
        let most = known + size.0 + huge::HUGE_PAGE.0;
        if !self.may_ask_for_huge_pages(most) || known < self.huge_again.load(Ordering::Relaxed) {
            return None;
        }
        if !huge::are_free(size) {
            // A look takes a while.
            self.huge_again.store(known + known / UNTIL_NEXT_LOOK, Ordering::Relaxed);
            return None;
        }
        let (from, first) = self.take_aligned(n, huge::HUGE_PAGE.to_blocks_rounded_up())?;
        // SAFETY: the range lies in our reservation. Where the kernel knows no huge pages, small ones will come.
        unsafe { huge::prefer(core::ptr::with_exposed_provenance_mut(self.address_of(first)), size) };
        Some((first, Blocks(first - from)))
    }

    /// Has huge pages come behind blocks that [`take_fresh_in_huge_pages`](Self::take_fresh_in_huge_pages) took and nobody has written yet. Where they take
    /// long, the next is had in small ones, if there is a next; where these take less than half as long, or there is none, the rest is left to small ones,
    /// and no more are asked for until the heap is larger. Nobody waits for them here but the caller, who is blocked, so that a single slow one is no reason.
    pub fn have_huge_pages(&self, first: usize, n: Blocks) {
        self.have_huge_pages_in(first << BLOCK_SHIFT..(first + n.0) << BLOCK_SHIFT, huge::time_to_have);
    }

    fn have_huge_pages_in(&self, run: Range<usize>, time_to_have: unsafe fn(*mut u8) -> Nanos) {
        let page = |at: usize| core::ptr::with_exposed_provenance_mut::<u8>(self.base() + at);
        let mut pages = run.clone().step_by(huge::HUGE_PAGE.0);
        while let Some(at) = pages.next() {
            // SAFETY: blocks that were taken are accessible.
            let took = unsafe { time_to_have(page(at)) };
            // One of a hundred takes milliseconds: the host finds the memory for a hundred others.
            let late = self.huge_late.load(Ordering::Relaxed) + took.0;
            self.huge_late.store(late.saturating_sub(huge::QUICK.0), Ordering::Relaxed);
            if late <= LATEST.0 || at < self.huge_anyway.load(Ordering::Relaxed) {
                continue;
            }
            self.huge_late.store(0, Ordering::Relaxed);
            if pages.next().is_none() {
                self.huge_again.store(SLOW_TIMES * at, Ordering::Relaxed);
            } else if self.gives_huge_pages_up(at, took, run.end, time_to_have) {
                return;
            }
        }
    }

    /// A huge page at `at` took so long. Has the next one in small pages, and does without huge ones up to `until`, and until the heap is larger, if these take less
    /// than half as long; whether it does. Nobody has written what is behind, which is accessible.
    fn gives_huge_pages_up(
        &self,
        at: usize,
        took: Nanos,
        until: usize,
        time_to_have: unsafe fn(*mut u8) -> Nanos,
    ) -> bool {
        let page = |at: usize| core::ptr::with_exposed_provenance_mut(self.base() + at);
        let next = at + huge::HUGE_PAGE.0;
        // SAFETY: accessible, and inside our reservation.
        let took_small = unsafe {
            huge::refuse(page(next), Bytes(until - next));
            time_to_have(page(next))
        };
        if took_small.0 <= took.0 / 2 {
            self.huge_again.store(SLOW_TIMES * at, Ordering::Relaxed);
            return true;
        }
        self.huge_anyway.store(SLOW_TIMES * at, Ordering::Relaxed);
        let behind = next + huge::HUGE_PAGE.0;
        // SAFETY: as above.
        unsafe { huge::prefer(page(behind), Bytes(until - behind)) };
        false
    }

    /// Has pages come behind a run that was just taken, in bytes from `base`, and behind what is taken next.
    #[cold]
    fn have_pages_ahead(&self, run: Range<usize>) {
        let until = (run.end + AHEAD.0).min(self.committed.load(Ordering::Relaxed));
        let from = self.there.fetch_max(until, Ordering::Relaxed).max(run.start);
        if from < until {
            self.have_pages(from, until);
        }
    }

    /// Has pages come behind blocks that are the caller's and whose content is zero, since their memory went back to the kernel. Not in a small heap, where
    /// they may never be written.
    pub fn have_pages_behind(&self, first: usize, n: Blocks) {
        let end = (first + n.0) << BLOCK_SHIFT;
        // The last blocks before the frontier were most likely just taken there, and have come.
        if self.span() >= AHEAD_FROM.0 && end != self.span() {
            self.have_pages(first << BLOCK_SHIFT, end);
        }
    }

    /// The same behind blocks that were never used, are taken one behind the other, and whose first ones have them: many pages at a time.
    pub fn have_pages_in_turn(&self, first: usize, n: Blocks) {
        let at_once = AHEAD.to_blocks_rounded_up().0;
        let (from, until) = (first.next_multiple_of(at_once), (first + n.0).next_multiple_of(at_once));
        if self.span() >= AHEAD_FROM.0 && from < until {
            let until = (until << BLOCK_SHIFT).min(self.committed.load(Ordering::Relaxed));
            self.have_pages(from << BLOCK_SHIFT, until);
        }
    }

    /// From one number of bytes from `base` to another, both of whole pages.
    fn have_pages(&self, from: usize, until: usize) {
        // SAFETY: below what is accessible, which stays so while somebody has the blocks.
        unsafe { memory::back(core::ptr::with_exposed_provenance_mut(self.base() + from), Bytes(until - from)) };
    }

    /// Has huge pages come behind a run that was just taken, in bytes from `base`, where they were asked for and what is before it has them. Where one takes
    /// long, and as much in small pages does not, no more are asked for. `time_to_have` is [`huge::time_to_have`].
    #[cold]
    fn have_huge_pages_behind(&self, run: Range<usize>, time_to_have: unsafe fn(*mut u8) -> Nanos) {
        let [ahead, last] = &self.huge_ahead;
        let page = |at: usize| core::ptr::with_exposed_provenance_mut(self.base() + at);
        loop {
            let (before, until) = (ahead.load(Ordering::Relaxed), last.load(Ordering::Relaxed));
            // A long run before this one may never be written.
            let skipped = run.start.saturating_sub(before) & !(huge::HUGE_PAGE.0 - 1);
            let at = before + skipped;
            let next = at + huge::HUGE_PAGE.0;
            if at >= run.end || next > until {
                return;
            }
            if ahead.compare_exchange(before, next, Ordering::Relaxed, Ordering::Relaxed).is_err() {
                continue;
            }
            // SAFETY: the step that was asked for lies in our reservation, and is accessible.
            let took = unsafe { time_to_have(page(at)) };
            let behind = next + huge::HUGE_PAGE.0;
            if took <= huge::QUICK
                || behind > until
                || at < self.huge_anyway.load(Ordering::Relaxed)
                || ahead.compare_exchange(next, behind, Ordering::Relaxed, Ordering::Relaxed).is_err()
            {
                continue;
            }
            if self.gives_huge_pages_up(at, took, until, time_to_have) {
                last.fetch_min(behind, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Whether huge pages may be asked for below `end`, in bytes from `base`.
    pub(super) fn may_ask_for_huge_pages(&self, end: usize) -> bool {
        end <= self.huge_until.load(Ordering::Relaxed) && !self.small_pages.load(Ordering::Relaxed)
    }

    /// Asks for huge pages behind a part of the range that was just made accessible, and behind the tables' parts that nobody has written yet.
    #[cold]
    pub(super) fn ask_for_huge_pages_behind(&self, have: usize, goal: usize) {
        if have < self.huge_again.load(Ordering::Relaxed) {
            return;
        }
        let size = Bytes(goal - have);
        let tables_alone = self.huge_tables_alone.load(Ordering::Relaxed);
        let step = core::ptr::with_exposed_provenance_mut(self.base() + have);
        // SAFETY: the range lies in our reservation.
        let asked = huge::are_free(size) && (tables_alone || unsafe { huge::prefer(step, size) });
        if asked && !tables_alone {
            // `base` is aligned to a huge page.
            self.huge_ahead[0].store(have.next_multiple_of(huge::HUGE_PAGE.0), Ordering::Relaxed);
            self.huge_ahead[1].store(goal, Ordering::Relaxed);
        }
        if !asked || have < HUGE_TABLES_FROM.0 || self.huge_tables.swap(true, Ordering::Relaxed) {
            return;
        }
        let (blocks, used) = (self.reserved.load(Ordering::Relaxed), have >> BLOCK_SHIFT);
        for (at, each) in self.tables().filter(|&(_, each)| each <= DENSE) {
            let start = (at + used * each).next_multiple_of(huge::HUGE_PAGE.0);
            let end = (at + blocks * each) & !(PAGE.0 - 1);
            if start < end {
                // SAFETY: inside the reservation of the tables.
                unsafe { huge::prefer(core::ptr::with_exposed_provenance_mut(start), Bytes(end - start)) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_units::BLOCK;

    use super::*;

    /// The kernel's flags of the mapping that contains an address.
    fn flags_at(at: usize) -> Vec<String> {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let first = line.split(' ').next().unwrap();
            if let Some((low, high)) = first.split_once('-') {
                let end = |text| usize::from_str_radix(text, 16).unwrap();
                inside = (end(low)..end(high)).contains(&at);
            } else if inside && first == "VmFlags:" {
                return line.split_whitespace().skip(1).map(str::to_owned).collect();
            }
        }
        panic!("no mapping at {at:#x}");
    }

    const STEP: Bytes = Bytes::mib(16);

    /// A large heap is backed with huge pages, tables and all; a small one, and what is taken in long runs, is not.
    #[test]
    fn a_large_heap_asks_for_huge_pages() {
        let are_offered = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        // Others may take what is free between a look and a step.
        for _ in 0..100 {
            if !are_offered || !huge::are_free(Bytes(4 * STEP.0)) {
                println!("SKIPPED: this machine has no huge pages to spare");
                return;
            }
            let space: &'static Space = Box::leak(Box::new(Space::new()));
            if asks_where_it_should(space) {
                return;
            }
        }
        panic!("huge pages were free, and not asked for");
    }

    /// A space of which 80 MiB are taken, and its step from 64 MiB on has asked for huge pages: the first is there, the others are not. `None` where
    /// the kernel has none.
    fn with_a_step_that_asked() -> Option<&'static Space> {
        let space: &'static Space = Box::leak(Box::new(Space::new()));
        space.reserve(Bytes::mib(256), false).unwrap();
        take_up_to(space, Bytes::mib(80));
        space.ask_for_huge_pages(Bytes::mib(256));
        // SAFETY: accessible, and nobody else's.
        let knows = unsafe {
            huge::prefer(core::ptr::with_exposed_provenance_mut(space.base() + Bytes::mib(64).0), Bytes::mib(16))
        };
        space.huge_ahead[0].store(Bytes::mib(66).0, Ordering::Relaxed);
        space.huge_ahead[1].store(Bytes::mib(80).0, Ordering::Relaxed);
        if !knows {
            println!("SKIPPED: this kernel has no huge pages");
        }
        knows.then_some(space)
    }

    fn take_up_to(space: &Space, bytes: Bytes) {
        while space.frontier().to_bytes() < bytes {
            space.take_fresh(Blocks(16)).unwrap();
        }
    }

    fn has(at: usize, flag: &str) -> bool {
        flags_at(at).iter().any(|has| has == flag)
    }

    /// Where a huge page takes long, and small ones do not, the heap does without the others until it is twice as large.
    #[test]
    fn a_heap_whose_huge_pages_are_slow_asks_for_no_more() {
        let Some(space) = with_a_step_that_asked() else { return };
        space.have_huge_pages_behind(Bytes::mib(66).0..Bytes::mib(72).0, |at| {
            Nanos(if has(at.addr(), "hg") { 5_000_000 } else { 700_000 })
        });
        let at = |mib| space.base() + Bytes::mib(mib).0;
        assert!(has(at(66), "hg") && has(at(68), "nh") && has(at(79), "nh"));
        take_up_to(space, Bytes::mib(126));
        assert!((68..126).all(|mib| !has(at(mib), "hg")));
        assert_eq!(space.huge_again.load(Ordering::Relaxed), Bytes::mib(132).0);
    }

    /// Where both take long, one piece of small pages is all that it costs to find out.
    #[test]
    fn a_heap_whose_pages_are_all_slow_asks_for_huge_ones() {
        let Some(space) = with_a_step_that_asked() else { return };
        space.have_huge_pages_behind(Bytes::mib(66).0..Bytes::mib(79).0, |_| Nanos(5_000_000));
        let at = |mib| space.base() + Bytes::mib(mib).0;
        assert!((64..80).all(|mib| has(at(mib), if mib / 2 == 34 { "nh" } else { "hg" })));
        assert_eq!(space.huge_ahead[0].load(Ordering::Relaxed), Bytes::mib(80).0);
        let [again, anyway] = [&space.huge_again, &space.huge_anyway].map(|bytes| bytes.load(Ordering::Relaxed));
        assert_eq!((again, anyway), (0, Bytes::mib(132).0));
    }

    /// What lies before a run was taken by another, and may be long and never written.
    #[test]
    fn huge_pages_come_behind_the_run_that_is_taken() {
        let Some(space) = with_a_step_that_asked() else { return };
        let ahead = || space.huge_ahead[0].load(Ordering::Relaxed) >> 20;
        space.have_huge_pages_behind(Bytes::mib(75).0..Bytes::mib(75).0 + 1, |at| {
            assert_eq!(at.addr() % huge::HUGE_PAGE.0, 0);
            Nanos(0)
        });
        assert_eq!(ahead(), 76);
        space.have_huge_pages_behind(Bytes::mib(75).0..Bytes::mib(76).0, |_| panic!("it is there"));
        space.have_huge_pages_behind(Bytes::mib(77).0..Bytes::mib(90).0, |_| Nanos(0));
        assert_eq!(ahead(), 80);
    }

    /// False where the first step that should have asked did not.
    fn asks_where_it_should(space: &'static Space) -> bool {
        space.reserve(Bytes::mib(512), false).unwrap();
        // However long they take here.
        space.huge_anyway.store(usize::MAX, Ordering::Relaxed);
        let asks = |at: usize| has(at, "hg");
        let take_up_to = |bytes: Bytes| take_up_to(space, bytes);
        take_up_to(Bytes(HUGE_FROM.0 + STEP.0));
        assert!(!asks(space.base() + HUGE_FROM.0), "nobody has allowed it");
        space.ask_for_huge_pages(Bytes::mib(192));
        take_up_to(Bytes(HUGE_FROM.0 + 2 * STEP.0));
        let asked = space.base() + HUGE_FROM.0 + STEP.0;
        if !asks(asked) {
            return false;
        }
        assert!(asks(asked + STEP.0 - 1) && !asks(asked - 1));
        let marks_behind = |index: usize| space.marks_of(index, 9) + huge::HUGE_PAGE.0;
        assert!(!asks(marks_behind(space.frontier().0)), "a huge page of marks is more than this heap has");
        space.take_fresh(Blocks((2 * STEP.0) >> BLOCK_SHIFT)).unwrap();
        assert!(!asks(asked + STEP.0), "a long run need not be written");
        take_up_to(Bytes::mib(208));
        assert!(!asks(space.base() + Bytes::mib(200).0), "no farther than it was allowed");
        space.ask_for_huge_pages(Bytes::mib(512));
        take_up_to(HUGE_TABLES_FROM);
        let frontier = space.frontier().0;
        take_up_to(Bytes(HUGE_TABLES_FROM.0 + 4 * STEP.0));
        if !asks(space.address_of(frontier) + 2 * STEP.0) {
            return false;
        }
        assert!(asks(marks_behind(frontier + ((4 * STEP.0) >> BLOCK_SHIFT))), "a large heap's tables have them");
        assert!(!asks(space.marks_of(0, 9)), "but for what may have been written");
        space.leave_objects_in_small_pages();
        take_up_to(Bytes(HUGE_TABLES_FROM.0 + 8 * STEP.0));
        assert!(!asks(space.base() + HUGE_TABLES_FROM.0 + 7 * STEP.0), "nobody wants them any more");
        true
    }

    /// Whether memory has come behind a page.
    fn is_there(at: usize) -> bool {
        let mut entry = [0; 8];
        let file = std::fs::File::open("/proc/self/pagemap").unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut entry, (at / PAGE.0 * 8) as u64).unwrap();
        u64::from_le_bytes(entry) >> 63 != 0
    }

    /// What a heap that is not small takes is there before anybody writes to it, and what it will take next; not so the many pages of one who may need few of them.
    #[test]
    fn pages_come_before_they_are_written() {
        let space: &'static Space = Box::leak(Box::new(Space::new()));
        space.reserve(Bytes::mib(512), false).unwrap();
        let at = |index: usize| space.address_of(index);
        let small = space.take_fresh(Blocks(4)).unwrap();
        space.have_pages_behind(small, Blocks(4));
        assert!((0..4).all(|i| !is_there(at(small + i))), "a small heap may never write them");
        let long = space.take_fresh(Blocks(AHEAD_FROM.0 >> BLOCK_SHIFT)).unwrap();
        assert!(!is_there(at(long)) && !is_there(at(long) + AHEAD_FROM.0 - PAGE.0));
        let run = space.take_fresh(Blocks(3)).unwrap();
        let end = at(run + 3) + AHEAD.0;
        assert!((at(run)..end).step_by(PAGE.0).all(is_there) && !is_there(end) && !is_there(at(run) - PAGE.0));
        // SAFETY: nobody else's.
        unsafe { memory::discard(core::ptr::with_exposed_provenance_mut(at(run)), Bytes(3 * BLOCK.0)) };
        space.have_pages_behind(run + 1, Blocks(1));
        assert_eq!([0, 1, 2].map(|i| is_there(at(run + i))), [false, true, false]);
        // Of a part whose blocks are taken in turn, 128 KiB at a time.
        let at_once = AHEAD.to_blocks_rounded_up().0;
        let part = space.take_unbacked(Blocks(5 * at_once)).unwrap().next_multiple_of(at_once) + 2 * at_once;
        let are_there = || (part - 1..=part + 2 * at_once).map(|block| is_there(at(block))).collect::<Vec<_>>();
        let expected = |n: usize| (0..2 * at_once + 2).map(|block| (1..=n).contains(&block)).collect::<Vec<_>>();
        space.have_pages_in_turn(part - 3, Blocks(3));
        assert_eq!(are_there(), expected(0), "nothing of the next piece was taken");
        space.have_pages_in_turn(part, Blocks(1));
        assert_eq!(are_there(), expected(at_once));
        space.have_pages_in_turn(part + 1, Blocks(at_once - 2));
        assert_eq!(are_there(), expected(at_once));
        space.have_pages_in_turn(part + at_once - 1, Blocks(2));
        assert_eq!(are_there(), expected(2 * at_once));
    }

    fn with_objects_in_small_pages() -> &'static Space {
        let space: &'static Space = Box::leak(Box::new(Space::new()));
        space.reserve(Bytes::mib(512), false).unwrap();
        space.ask_for_huge_pages(Bytes::mib(512));
        space.leave_objects_in_small_pages();
        space
    }

    /// Also where steps ask for none behind objects; and what is skipped is the caller's.
    #[test]
    fn whole_huge_pages_begin_on_one_and_are_asked_for_until_one_is_slow() {
        let space = with_objects_in_small_pages();
        let page = huge::HUGE_PAGE.to_blocks_rounded_up();
        let mut end = space.take_fresh(Blocks(5)).unwrap() + 5;
        for i in 0..20 {
            let Some((first, skipped)) = space.take_fresh_in_huge_pages(page + page) else {
                println!("SKIPPED: this machine has no huge pages to spare");
                return;
            };
            let at = space.address_of(first);
            assert!(at.is_multiple_of(huge::HUGE_PAGE.0) && first - skipped.0 == end && skipped.0 < page.0);
            assert_eq!(space.frontier().0, first + 2 * page.0);
            space.have_huge_pages_in(first << BLOCK_SHIFT..(first + 2 * page.0) << BLOCK_SHIFT, |page| {
                assert!(has(page.addr(), "hg"));
                Nanos(700_000)
            });
            end = space.take_fresh(Blocks(1 + i)).unwrap() + 1 + i;
            assert!(!has(space.address_of(end - 1), "hg"));
        }
        // All pages are slow: then these are no worse. The first one alone is no reason to look.
        let Some((first, _)) = space.take_fresh_in_huge_pages(Blocks(4 * page.0)) else { return };
        let at = first << BLOCK_SHIFT;
        space.have_huge_pages_in(at..at + 4 * huge::HUGE_PAGE.0, |_| Nanos(5_000_000));
        let flags = [0, 1, 2, 3].map(|i| if has(space.base() + at + i * huge::HUGE_PAGE.0, "hg") { 'h' } else { 's' });
        assert_eq!(flags, ['h', 'h', 's', 'h']);
        assert_eq!(space.huge_anyway.swap(0, Ordering::Relaxed), 2 * (at + huge::HUGE_PAGE.0));
        let Some((first, _)) = space.take_fresh_in_huge_pages(Blocks(3 * page.0)) else { return };
        space.have_huge_pages_in(first << BLOCK_SHIFT..(first + 3 * page.0) << BLOCK_SHIFT, |page| {
            Nanos(if has(page.addr(), "hg") { 5_000_000 } else { 700_000 })
        });
        let at = space.address_of(first);
        let flags = [0, 1, 2].map(|i| if has(at + i * huge::HUGE_PAGE.0, "hg") { 'h' } else { 's' });
        assert_eq!(flags, ['h', 's', 's']);
        assert!(space.take_fresh_in_huge_pages(page).is_none(), "they took long");
        take_up_to(space, Bytes(2 * (at - space.base())));
        assert!(space.take_fresh_in_huge_pages(page).is_some(), "the heap is twice as large");
    }

    /// A heap that wants none behind its objects has them behind its tables.
    #[test]
    fn tables_alone_ask_for_huge_pages() {
        let space = with_objects_in_small_pages();
        let have = |at: usize| has(at, "hg");
        // Others may take what is free between a look and a step, and the next step asks again.
        for steps in 0..10 {
            take_up_to(space, Bytes(HUGE_TABLES_FROM.0 + steps * STEP.0));
            assert!(!have(space.base() + HUGE_FROM.0) && !have(space.base() + HUGE_TABLES_FROM.0));
            if space.huge_tables.load(Ordering::Relaxed) {
                let behind = space.frontier().0 + ((4 * STEP.0) >> BLOCK_SHIFT);
                assert!(have(space.marks_of(behind, 9)), "a large heap's tables have them");
                return;
            }
        }
        println!("SKIPPED: this machine has no huge pages to spare");
    }
}
