//! The reserved range and its tables.

mod growth;

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use larder_sys::memory::{self, ReserveError};
use larder_sys::{huge, numa, thread};
use larder_units::{BLOCK, Blocks, Bytes, Nanos, PAGE};

use self::growth::{GROWTH_STEP, Growth, first_share};
use crate::block::{Block, State};
use crate::class;

/// log2 of [`BLOCK`].
pub const BLOCK_SHIFT: u32 = BLOCK.0.trailing_zeros();
/// Mark tables by log2 of their bytes for each block.
const MARK_SHIFTS: [u8; 4] = [6, 8, 9, 10];
/// Bytes of records and marks that are reserved for each block.
const METADATA: usize = size_of::<Block>() + (1 << 6) + (1 << 8) + (1 << 9) + (1 << 10);
/// How much of the range is made accessible at a time; untouched pages cost nothing but a promise.
const COMMIT_STEP: Bytes = Bytes::mib(16);
/// From here on steps ask for huge pages. A heap that is smaller is no faster with them, and each costs memory that may not be used.
const HUGE_FROM: Bytes = Bytes::mib(64);
/// And from here on behind the tables, of which a huge page serves up to 512 MiB: in a smaller heap most of it would not be used.
const HUGE_TABLES_FROM: Bytes = Bytes::mib(256);
/// From here on pages come before they are written. A program that reads new memory first would have the kernel map a page of zeroes and replace it, which
/// interrupts the other CPUs. A smaller heap may never write them.
const AHEAD_FROM: Bytes = Bytes::mib(16);
/// So many bytes come at a time, beyond what is taken: what a stop may have to wait for, and what may never be used.
const AHEAD: Bytes = Bytes(128 << 10);
/// Who takes so much at once may write little of it: that step does not ask.
const SPARSE: Bytes = huge::HUGE_PAGE;
/// Where a huge page took long, that is looked into again when the heap is so many times as large: four or five times until it has a gigabyte.
const SLOW_TIMES: usize = 2;
/// So much longer than quick ones the last huge pages may have taken where one thread alone waits for them.
const LATEST: Nanos = Nanos(8 * huge::QUICK.0);
/// Where few huge pages are free, that is looked into again when the heap is larger by such a part.
const UNTIL_NEXT_LOOK: usize = 16;
/// Bytes for a block, at most, in tables that are backed with huge pages: a heap of many sizes writes all of their pages anyway, and would not
/// of larger ones.
const DENSE: usize = 1 << 9;
/// How long who waits for commits sleeps between two looks.
const LOOK_AGAIN: Nanos = Nanos(50_000);
/// Blocks whose records and marks are made accessible together.
const TOGETHER: usize = 256;
/// The smallest range that is worth starting with.
const SMALLEST: Bytes = Bytes::mib(16);

/// One reserved address range with its block table and mark tables.
///
/// Sync: the addresses are written once by `reserve`, before any other thread uses the heap; `frontier` and `committed`
/// only grow, by compare-and-swap, so that a nested allocation in a signal handler can take fresh blocks without a lock.
pub struct Space {
    base: AtomicUsize,
    table: AtomicUsize,
    marks: [AtomicUsize; 4],
    reserved: AtomicUsize,
    /// First block that was never handed out.
    frontier: AtomicUsize,
    /// Accessible bytes from `base`.
    committed: AtomicUsize,
    /// Threads that are making memory accessible. Sync: each counts itself; `space.commits`.
    commits: AtomicUsize,
    /// Whether the tables are made accessible with the blocks, not at once: where the kernel counts memory before it is
    /// touched (overcommit off, `ulimit -d`), tables for the whole range would be more than there is.
    ///
    /// Sync: as the addresses.
    in_steps: AtomicBool,
    /// Bytes from `base` up to which steps ask for huge pages.
    ///
    /// Sync: a setting; `Relaxed`.
    huge_until: AtomicUsize,
    /// By how much longer than quick ones the last huge pages took that nobody but one thread waited for, in nanoseconds. Sync: a hint; `Relaxed`.
    huge_late: AtomicU64,
    /// Whether steps ask for none at the moment. Sync: a hint; `Relaxed`.
    small_pages: AtomicBool,
    /// The part of the last step that asked, in bytes from `base`, behind which no huge page has come yet: who moves its beginning has one come.
    ///
    /// Sync: hints; `Relaxed`.
    huge_ahead: [AtomicUsize; 2],
    /// Bytes from `base` below which steps do not ask once more, since a huge page took long and small ones did not. Sync: a hint; `Relaxed`.
    huge_again: AtomicUsize,
    /// Bytes from `base` below which huge pages may take long, since small ones did as well. Sync: a hint; `Relaxed`.
    huge_anyway: AtomicUsize,
    /// Bytes from `base` below which pages have come behind what was never used before. Sync: a hint; `Relaxed`.
    there: AtomicUsize,
    /// Whether steps ask behind the tables alone. Sync: a hint; `Relaxed`.
    huge_tables_alone: AtomicBool,
    /// Whether huge pages were asked for behind the tables.
    ///
    /// Sync: who sets it asks; `Relaxed`.
    huge_tables: AtomicBool,
    /// Whether the tables' pages are taken from all nodes in turn. Sync: as the addresses.
    spread: AtomicBool,
    /// How far the range is mapped, where that is not all at once.
    growth: Growth,
}

/// An object's place: its block's record, the first byte, and its cell number.
#[derive(Clone, Copy)]
pub struct Place {
    /// The record of the block (of its first block).
    pub block: &'static Block,
    /// Address of the object.
    pub base: usize,
    /// Number of its cell; 0 for a large object.
    pub cell: usize,
}

impl Space {
    /// A space that holds nothing: no address is inside.
    pub const fn new() -> Self {
        Self {
            base: AtomicUsize::new(0),
            table: AtomicUsize::new(0),
            marks: [const { AtomicUsize::new(0) }; 4],
            reserved: AtomicUsize::new(0),
            frontier: AtomicUsize::new(0),
            committed: AtomicUsize::new(0),
            commits: AtomicUsize::new(0),
            in_steps: AtomicBool::new(false),
            huge_until: AtomicUsize::new(0),
            small_pages: AtomicBool::new(false),
            huge_ahead: [const { AtomicUsize::new(0) }; 2],
            huge_again: AtomicUsize::new(0),
            huge_late: AtomicU64::new(0),
            huge_anyway: AtomicUsize::new(0),
            there: AtomicUsize::new(0),
            huge_tables_alone: AtomicBool::new(false),
            huge_tables: AtomicBool::new(false),
            spread: AtomicBool::new(false),
            growth: Growth::new(),
        }
    }

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

    /// Reserves up to `wanted` bytes for objects and what their tables need; halves its wish until the kernel agrees
    /// (containers). Where the address space is limited (`ulimit -v`), a range as long as the limit is mapped as it is needed:
    /// see [`growth`]. Returns what it got.
    ///
    /// `spread` has the tables' pages taken from all memory nodes in turn (the thesis's balanced mark bitmaps, 3.4.3): all markers
    /// write marks of all objects, wherever these lie. The objects' own pages lie where they are touched first: a block is
    /// touched by the thread that took it.
    pub fn reserve(&self, wanted: Bytes, spread: bool) -> Result<Bytes, ReserveError> {
        self.spread.store(spread, Ordering::Relaxed);
        let limit = memory::address_space_limit();
        if let Some(limit) = limit {
            let size = Bytes((wanted.0.min(limit.0) & !(GROWTH_STEP.0 - 1)).max(SMALLEST.0));
            if self.reserve_as_needed(size, first_share(limit)) {
                return Ok(size);
            }
        }
        // Should that fail: the program needs most of it for itself, for libraries, stacks and malloc.
        let mut size = limit.map_or(wanted, |limit| Bytes(wanted.0.min(limit.0 / 4)));
        loop {
            size = Bytes((size.0 & !(GROWTH_STEP.0 - 1)).max(SMALLEST.0));
            match self.try_reserve(size) {
                Ok(()) => return Ok(size),
                Err(e) if size == SMALLEST => return Err(e),
                Err(_) => size = Bytes(size.0 / 2),
            }
        }
    }

    fn try_reserve(&self, size: Bytes) -> Result<(), ReserveError> {
        let blocks = size.0 / BLOCK.0;
        let heap = memory::reserve(size, Bytes::mib(2))?;
        let lazily = || {
            if memory::is_counted_untouched() { None } else { memory::map_lazy(Bytes(blocks * METADATA)).ok() }
        };
        let in_steps = || {
            self.in_steps.store(true, Ordering::Relaxed);
            memory::reserve(Bytes(blocks * METADATA), PAGE)
        };
        let tables = match lazily().map_or_else(in_steps, Ok) {
            Ok(t) => t,
            Err(e) => {
                // SAFETY: the reservation was just made and nobody knows of it.
                unsafe { memory::unmap(heap.as_ptr(), size) };
                return Err(e);
            }
        };
        // SAFETY: the mapping was just made.
        unsafe { self.spread_tables(tables.as_ptr().expose_provenance(), Bytes(blocks * METADATA)) };
        self.lay_out(heap.as_ptr().expose_provenance(), tables.as_ptr().addr(), blocks);
        Ok(())
    }

    /// Notes where everything lies.
    fn lay_out(&self, base: usize, tables: usize, blocks: usize) {
        let mut at = tables;
        self.table.store(at, Ordering::Relaxed);
        at += blocks * size_of::<Block>();
        for (table, shift) in self.marks.iter().zip(MARK_SHIFTS) {
            table.store(at, Ordering::Relaxed);
            at += blocks << shift;
        }
        self.base.store(base, Ordering::Relaxed);
        self.reserved.store(blocks, Ordering::Relaxed);
    }

    /// Has the pages of a part of the tables taken from all nodes in turn, where that is wanted. A kernel without nodes, and a sandbox that
    /// forbids it, leave them where they are touched first.
    ///
    /// # Safety
    /// The page-aligned range is a mapping of the caller's.
    unsafe fn spread_tables(&self, at: usize, size: Bytes) {
        if self.spread.load(Ordering::Relaxed) {
            // SAFETY: the caller's promise.
            unsafe { numa::interleave(core::ptr::with_exposed_provenance_mut(at), size) };
        }
    }

    /// The tables, with what each has for a block.
    fn tables(&self) -> impl Iterator<Item = (usize, usize)> {
        let address = |table: &AtomicUsize| table.load(Ordering::Relaxed);
        let marks = self.marks.iter().zip(MARK_SHIFTS).map(move |(table, shift)| (address(table), 1usize << shift));
        core::iter::once((address(&self.table), size_of::<Block>())).chain(marks)
    }

    /// Whether memory is asked for in steps, because the kernel counts it before it is touched.
    pub fn is_committed_in_steps(&self) -> bool {
        self.in_steps.load(Ordering::Relaxed)
    }

    /// Makes the records and marks of the blocks from `have` to `goal` accessible, and those of a few more, whose records tell
    /// that they were never used.
    fn commit_tables(&self, have: usize, goal: usize) -> bool {
        let blocks = self.reserved.load(Ordering::Relaxed);
        let (from, to) = (
            (have >> BLOCK_SHIFT) & !(TOGETHER - 1),
            ((goal >> BLOCK_SHIFT) + TOGETHER).next_multiple_of(TOGETHER).min(blocks),
        );
        self.tables().all(|(table, each)| {
            let at = table + from * each;
            // SAFETY: the range lies in the reservation of the tables; committing keeps content.
            unsafe { memory::commit(core::ptr::with_exposed_provenance_mut(at), Bytes((to - from) * each)) }.is_ok()
        })
    }

    /// Address of the first block.
    #[inline(always)]
    pub fn base(&self) -> usize {
        self.base.load(Ordering::Relaxed)
    }

    /// Bytes from `base` to the end of the last block that was ever handed out.
    #[inline(always)]
    pub fn span(&self) -> usize {
        self.frontier.load(Ordering::Relaxed) << BLOCK_SHIFT
    }

    /// Address of the block table, for markers that keep it in a register.
    #[inline(always)]
    pub fn table(&self) -> usize {
        self.table.load(Ordering::Relaxed)
    }

    /// Blocks that were ever handed out.
    pub fn frontier(&self) -> Blocks {
        Blocks(self.frontier.load(Ordering::Acquire))
    }

    /// Blocks that the range could hold.
    pub fn reserved(&self) -> Blocks {
        Blocks(self.reserved.load(Ordering::Relaxed))
    }

    /// The record of a block.
    ///
    /// # Safety
    /// `index` is below `reserved`.
    #[inline(always)]
    pub unsafe fn block(&self, index: usize) -> &'static Block {
        // SAFETY: the table has a record for each block of the range and is never unmapped.
        unsafe { &*core::ptr::with_exposed_provenance::<Block>(self.table() + index * size_of::<Block>()) }
    }

    /// The index of a record of the table.
    #[inline(always)]
    pub fn index_of(&self, block: &Block) -> usize {
        (core::ptr::from_ref(block).addr() - self.table()) / size_of::<Block>()
    }

    /// The address of a block.
    #[inline(always)]
    pub fn address_of(&self, index: usize) -> usize {
        self.base() + (index << BLOCK_SHIFT)
    }

    /// Address of the first mark byte of a block, in the table for `shift`.
    pub fn marks_of(&self, index: usize, shift: u8) -> usize {
        let table = MARK_SHIFTS.iter().position(|&s| s == shift).expect("a class names one of the four tables");
        self.marks[table].load(Ordering::Relaxed) + (index << shift)
    }

    /// Takes `n` blocks that were never used; their content is zero. Safe in a signal handler that interrupted anything.
    pub fn take_fresh(&self, n: Blocks) -> Option<usize> {
        self.take_fresh_for(n, n)
    }

    /// As [`take_fresh`](Self::take_fresh), where only so many of the `n` blocks are written soon.
    pub fn take_fresh_for(&self, n: Blocks, soon: Blocks) -> Option<usize> {
        let first = self.take_unbacked(n)?;
        self.back(first, n, soon);
        Some(first)
    }

    /// The same without memory behind them: [`back`](Self::back) has it come.
    pub fn take_unbacked(&self, n: Blocks) -> Option<usize> {
        self.take_aligned(n, Blocks(1)).map(|(_, first)| first)
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
            let rest = at + huge::HUGE_PAGE.0;
            // SAFETY: as above.
            let took_small = unsafe {
                huge::refuse(page(rest), Bytes(run.end - rest));
                pages.next().map(|next| time_to_have(page(next)))
            };
            if took_small.is_none_or(|took_small| took_small.0 <= took.0 / 2) {
                self.huge_again.store(SLOW_TIMES * at, Ordering::Relaxed);
                return;
            }
            self.huge_anyway.store(SLOW_TIMES * at, Ordering::Relaxed);
            let rest = rest + huge::HUGE_PAGE.0;
            // SAFETY: as above.
            unsafe { huge::prefer(page(rest), Bytes(run.end - rest)) };
        }
    }

    /// Takes `n` blocks that were never used, the first of which has a multiple of `align` as its number; and what is before that. From where on blocks
    /// were taken, and which that first one is.
    fn take_aligned(&self, n: Blocks, align: Blocks) -> Option<(usize, usize)> {
        let mut from = self.frontier.load(Ordering::Relaxed);
        loop {
            let first = from.checked_next_multiple_of(align.0)?;
            let end = first.checked_add(n.0).filter(|&e| e <= self.reserved.load(Ordering::Relaxed))?;
            if !self.commit_to(end << BLOCK_SHIFT, n.to_bytes()) {
                return None;
            }
            // ORDER space.frontier: Release, with the Acquire in `frontier()`: whoever walks the table up to it sees
            // zeroed or published records.
            match self.frontier.compare_exchange_weak(from, end, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Some((from, first)),
                Err(now) => from = now,
            }
        }
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
            // SAFETY: as above.
            let took_small = unsafe {
                huge::refuse(page(next), Bytes(until - next));
                time_to_have(page(next))
            };
            if took_small.0 > took.0 / 2 {
                self.huge_anyway.store(SLOW_TIMES * at, Ordering::Relaxed);
                // SAFETY: as above.
                unsafe { huge::prefer(page(behind), Bytes(until - behind)) };
                continue;
            }
            last.fetch_min(behind, Ordering::Relaxed);
            self.huge_again.store(SLOW_TIMES * at, Ordering::Relaxed);
            return;
        }
    }

    /// As [`Space::span`], when nobody makes memory below it accessible any more: from here on its protection is the caller's. Not in a
    /// stopped world, whose threads may be in the middle of that.
    pub fn settled_span(&self) -> usize {
        let span = self.frontier().to_bytes().0;
        // ORDER space.commits: full, with the fence in `commit_to`: between the frontier, to which memory is accessible, and the
        // number. Who is not seen here counts itself later and then reads that it need not go below the frontier.
        fence(Ordering::SeqCst);
        while self.commits.load(Ordering::Acquire) != 0 {
            thread::sleep(LOOK_AGAIN);
        }
        span
    }

    /// In a child of fork, which has not the threads that were making memory accessible.
    ///
    /// # Safety
    /// The calling thread called [`Space::before_fork`] and is the only one of the child.
    pub unsafe fn reset_after_fork(&self) {
        self.commits.store(0, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.growth.reset_after_fork() };
    }

    /// Before fork: no other thread is about to map something.
    pub fn before_fork(&self) {
        self.growth.before_fork();
    }

    /// After fork, in the parent.
    ///
    /// # Safety
    /// The calling thread called [`Space::before_fork`].
    pub unsafe fn after_fork_in_parent(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.growth.after_fork_in_parent() };
    }

    /// Makes the range accessible up to `end` bytes, for one who takes `run`.
    fn commit_to(&self, end: usize, run: Bytes) -> bool {
        if self.committed.load(Ordering::Relaxed) >= end {
            return true;
        }
        self.give_back_unused();
        self.commits.fetch_add(1, Ordering::Relaxed);
        // ORDER space.commits: full, with the fence in `settled_span`. ORDER growth.on: full, with the one in `begin_late`.
        fence(Ordering::SeqCst);
        let done = self.commit_counted(end, run);
        // Checked, for a fork in a handler that interrupted this: the child has forgotten the number.
        // ORDER space.commits: Release, with the load in `settled_span`.
        let _ = self.commits.fetch_update(Ordering::Release, Ordering::Relaxed, |n| n.checked_sub(1));
        done
    }

    fn commit_counted(&self, end: usize, run: Bytes) -> bool {
        let mut have = self.committed.load(Ordering::Relaxed);
        let as_needed = self.growth.is_on();
        while have < end {
            let all = self.reserved.load(Ordering::Relaxed) << BLOCK_SHIFT;
            let least = if as_needed { GROWTH_STEP } else { COMMIT_STEP };
            let step = least.0.max(have / 8).next_multiple_of(least.0);
            let goal = end.max(have + step).min(all);
            let mut granted = None;
            for goal in [goal, end] {
                if as_needed && !self.map_to(goal) {
                    continue;
                }
                if self.is_committed_in_steps() && !self.commit_tables(have, goal.next_multiple_of(BLOCK.0)) {
                    continue;
                }
                #[cfg(test)]
                tests::about_to_commit();
                // Twice the same range does no harm, so two threads may race here; who protects it waits for both (`settled_span`).
                // SAFETY: the range lies in our reservation; committing keeps content.
                let r = unsafe {
                    memory::commit(
                        core::ptr::with_exposed_provenance_mut(self.base() + have),
                        Bytes((goal - have).next_multiple_of(BLOCK.0)),
                    )
                };
                if r.is_ok() {
                    granted = Some(goal);
                    break;
                }
            }
            let Some(goal) = granted else { return false };
            if !as_needed && have >= HUGE_FROM.0 && self.may_ask_for_huge_pages(goal) && run < SPARSE {
                self.ask_for_huge_pages_behind(have, goal);
            }
            self.committed.fetch_max(goal, Ordering::Relaxed);
            have = self.committed.load(Ordering::Relaxed);
        }
        true
    }

    /// Whether huge pages may be asked for below `end`, in bytes from `base`.
    fn may_ask_for_huge_pages(&self, end: usize) -> bool {
        end <= self.huge_until.load(Ordering::Relaxed) && !self.small_pages.load(Ordering::Relaxed)
    }

    /// Asks for huge pages behind a part of the range that was just made accessible, and behind the tables' parts that nobody has written yet.
    #[cold]
    fn ask_for_huge_pages_behind(&self, have: usize, goal: usize) {
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

    /// Where the object that contains `address` lies, whether or not the object is allocated.
    #[inline(always)]
    pub fn place(&self, address: usize) -> Option<Place> {
        let offset = address.wrapping_sub(self.base());
        if offset >= self.span() {
            return None;
        }
        let mut index = offset >> BLOCK_SHIFT;
        // SAFETY: below the frontier.
        let mut block = unsafe { self.block(index) };
        let mut state = block.state();
        if state == State::Tail {
            index = block.head.get() as usize;
            // SAFETY: a tail's head is a block of the table.
            block = unsafe { self.block(index) };
            state = block.state();
        }
        let start = self.address_of(index);
        match state {
            State::Small => {
                let cell = class::cell_at(address - start, block.reciprocal.get());
                (cell < block.cells.get() as usize).then(|| Place {
                    block,
                    base: start + cell * block.cell.get() as usize,
                    cell,
                })
            }
            State::Large => (address < start + block.size.get()).then_some(Place { block, base: start, cell: 0 }),
            _ => None,
        }
    }

    /// The cell that begins at `address`, and the record of its block, whether or not the cell is allocated. `None` inside of a cell, and
    /// where there are none.
    #[inline(always)]
    pub fn cell_beginning_at(&self, address: usize) -> Option<(&'static Block, usize)> {
        let offset = address.wrapping_sub(self.base());
        let mut index = offset >> BLOCK_SHIFT;
        if index >= self.frontier.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: below the frontier.
        let mut block = unsafe { self.block(index) };
        if block.state() != State::Small {
            if block.state() != State::Tail {
                return None;
            }
            let head = block.head.get() as usize;
            // A record that somebody is just retiring may still say what it was.
            if head > index {
                return None;
            }
            index = head;
            // SAFETY: a tail's head is a block of the table.
            block = unsafe { self.block(index) };
            if block.state() != State::Small {
                return None;
            }
        }
        let cell = class::cell_beginning_at(offset - (index << BLOCK_SHIFT), block.reciprocal.get())?;
        (cell < block.cells.get() as usize).then_some((block, cell))
    }
}

impl Default for Space {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use larder_sys::watch::{Kind, Watch};

    /// Where a thread stands still before it makes memory accessible.
    pub(super) struct Stand {
        /// It stands there.
        taken: AtomicBool,
        /// It may go on.
        pub(super) go: AtomicBool,
    }

    impl Stand {
        pub(super) const fn new() -> Self {
            Self { taken: AtomicBool::new(false), go: AtomicBool::new(false) }
        }

        pub(super) fn wait_until_taken(&self) {
            while !self.taken.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
    }

    std::thread_local! {
        pub(super) static STANDS: Cell<Option<&'static Stand>> = const { Cell::new(None) };
    }

    pub(super) fn about_to_commit() {
        if let Some(stand) = STANDS.get() {
            stand.taken.store(true, Ordering::SeqCst);
            while !stand.go.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
    }

    fn is_writable(at: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| {
            let (low, high) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let end = |text| usize::from_str_radix(text, 16).unwrap();
            (end(low)..end(high)).contains(&at)
        });
        line.unwrap().split(' ').nth(1).unwrap().contains('w')
    }

    /// A thread that lost the race for a step, and came to make the memory accessible only when a watch had protected what others had
    /// taken from it, let writes go unnoticed.
    #[test]
    fn a_late_commit_does_not_undo_a_protection() {
        static SPACE: Space = Space::new();
        static STAND: Stand = Stand::new();
        SPACE.reserve(Bytes::mib(256), false).unwrap();
        let begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let late = scope.spawn(|| {
                STANDS.set(Some(&STAND));
                SPACE.take_fresh(Blocks(1)).unwrap()
            });
            STAND.wait_until_taken();
            assert_eq!(SPACE.take_fresh(Blocks(8)), Some(0));
            let watch = scope.spawn(|| {
                begun.store(true, Ordering::SeqCst);
                let span = SPACE.settled_span();
                assert!(STAND.go.load(Ordering::SeqCst), "it did not wait for the thread that is about to commit");
                let (low, high) = (SPACE.base(), SPACE.base() + span);
                let mut protection = Watch::attach(Kind::Mprotect, low, high).unwrap();
                protection.begin(low, high).unwrap();
                (span, protection)
            });
            while !begun.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            (0..1000).for_each(|_| std::thread::yield_now());
            STAND.go.store(true, Ordering::SeqCst);
            let (block, (span, mut protection)) = (late.join().unwrap(), watch.join().unwrap());
            assert!(block >= 8 && span >= 8 * BLOCK.0);
            assert!(!is_writable(SPACE.base()), "what was protected is writable again");
            protection.end(SPACE.base(), SPACE.base() + span);
        });
    }

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
