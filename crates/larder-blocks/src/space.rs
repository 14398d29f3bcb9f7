//! The reserved range and its tables.

mod growth;
mod pages;

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use larder_sys::huge::HUGE_PAGE;
use larder_sys::memory::{self, ReserveError};
use larder_sys::{numa, thread};
use larder_units::{BLOCK, Blocks, Bytes, Nanos, PAGE};

use self::growth::{GROWTH_STEP, Growth, first_share};
use self::pages::{HUGE_FROM, SPARSE};
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
/// How long who waits for commits sleeps between two looks.
const LOOK_AGAIN: Nanos = Nanos(50_000);
/// Blocks whose records and marks are made accessible together, where the kernel counts memory before it is touched.
const TOGETHER: usize = 256;
/// The same elsewhere: huge pages of the tables lie in one step of theirs, so that they may come. A multiple of [`TOGETHER`].
const FAR_TOGETHER: usize = HUGE_PAGE.0 >> MARK_SHIFTS[0];
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
    /// Blocks whose records and marks are made accessible together, with the first of them; 0 where all that is mapped is accessible. Never
    /// those of the whole range at once: they would be more than there is where the kernel counts memory before it is touched
    /// (overcommit off, `ulimit -d`), and a program that locks all that is mapped (`mlockall`) would fill a tenth of the range.
    ///
    /// Sync: as the addresses.
    together: AtomicUsize,
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
            together: AtomicUsize::new(0),
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
        let tables = match memory::reserve(Bytes(blocks * METADATA), PAGE) {
            Ok(t) => t,
            Err(e) => {
                // SAFETY: the reservation was just made and nobody knows of it.
                unsafe { memory::unmap(heap.as_ptr(), size) };
                return Err(e);
            }
        };
        let together = if memory::is_counted_untouched() { TOGETHER } else { FAR_TOGETHER };
        self.together.store(together, Ordering::Relaxed);
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

    /// Whether memory is asked for in small steps, because the kernel counts it before it is touched.
    pub fn is_committed_in_steps(&self) -> bool {
        self.together.load(Ordering::Relaxed) == TOGETHER
    }

    /// Makes the records and marks of the blocks from `have` to `goal` accessible, and those of a few more, whose records tell
    /// that they were never used. Up to `have` that was done. `as_needed`: no more of the tables is mapped than belongs to a small step.
    fn commit_tables(&self, have: usize, goal: usize, as_needed: bool) -> bool {
        let together = match self.together.load(Ordering::Relaxed) {
            0 => return true,
            _ if as_needed => TOGETHER,
            together => together,
        };
        let blocks = self.reserved.load(Ordering::Relaxed);
        let until = |end: usize| ((end >> BLOCK_SHIFT) + TOGETHER).next_multiple_of(together).min(blocks);
        let (from, to) = ((have >> BLOCK_SHIFT) & !(together - 1), until(goal));
        if have > 0 && !as_needed && until(have) == to {
            return true;
        }
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
        let first = self.take_unbacked(n)?;
        self.back(first, n, n);
        Some(first)
    }

    /// The same without memory behind them: [`back`](Self::back) has it come.
    pub fn take_unbacked(&self, n: Blocks) -> Option<usize> {
        self.take_aligned(n, Blocks(1)).map(|(_, first)| first)
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
        if self.is_limited_below(end) {
            return false;
        }
        self.commits.fetch_add(1, Ordering::Relaxed);
        // ORDER space.commits: full, with the fence in `settled_span`. ORDER growth.on: full, with the one in `begin_late`.
        fence(Ordering::SeqCst);
        let done = self.commit_counted(end, run);
        // Checked, for a fork in a handler that interrupted this: the child has forgotten the number.
        // ORDER space.commits: Release, with the load in `settled_span`.
        let _ = self.commits.fetch_update(Ordering::Release, Ordering::Relaxed, |n| n.checked_sub(1));
        done
    }

    /// Whether the address space is limited to less than `end` bytes, and the kernel does not say so: all of the range is mapped, and stays so
    /// ([`keep_mapped`](Self::keep_mapped)).
    fn is_limited_below(&self, end: usize) -> bool {
        !self.growth.is_on() && memory::address_space_limit().is_some_and(|limit| limit.0 < end)
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
                if !self.commit_tables(have, goal.next_multiple_of(BLOCK.0), as_needed) {
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

    /// The cell that begins at `address` if the block there is the first of a run of cells, which only the record's other fields say: the
    /// caller looks for one that is not 0 in such a record alone ([`Block::frees_until_look`]). `None` inside of a cell, and outside of the
    /// space.
    #[inline(always)]
    pub fn cell_in_first_block(&self, address: usize) -> Option<(&'static Block, usize)> {
        let offset = address.wrapping_sub(self.base());
        let index = offset >> BLOCK_SHIFT;
        if index >= self.frontier.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: below the frontier.
        let block = unsafe { self.block(index) };
        let cell = class::cell_beginning_at(offset % BLOCK.0, block.reciprocal.get())?;
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
}
