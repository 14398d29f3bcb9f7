//! The reserved range and its tables.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use larder_sys::memory::{self, Access, ReserveError};
use larder_sys::{huge, numa, thread};
use larder_units::{BLOCK, Blocks, Bytes, Nanos, PAGE};

use crate::block::{Block, State};
use crate::class;
use crate::growth::Growth;

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
/// Who takes so much at once may write little of it: that step does not ask.
const SPARSE: Bytes = huge::HUGE_PAGE;
/// The largest mark tables that are backed with huge pages: a heap of many sizes writes all of their pages anyway, and would not of larger ones.
const DENSE: usize = 1 << 9;
/// How long who waits for commits sleeps between two looks.
const LOOK_AGAIN: Nanos = Nanos(50_000);
/// Blocks whose records and marks are made accessible together.
const TOGETHER: usize = 256;
/// The smallest range that is worth starting with.
const SMALLEST: Bytes = Bytes::mib(16);
/// Where the address space is limited: how much of the range is mapped at a time.
const GROWTH_STEP: Bytes = Bytes(TOGETHER * BLOCK.0);
/// There, the part of the limit that is mapped at the start, and the most: for what a program does that uses up all the rest.
const FIRST_SHARE: usize = 32;
const MOST_AT_FIRST: Bytes = Bytes::mib(64);
/// There, how far below a mapping that the kernel places the range begins: the others lie beside one another, and never come so far.
const DISTANCES: [usize; 3] = [16 << 40, 8 << 40, 1 << 40];

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

    /// Reserves up to `wanted` bytes for objects and what their tables need; halves its wish until the kernel agrees
    /// (containers). Where the address space is limited (`ulimit -v`), a range as long as the limit is mapped as it is needed:
    /// see the module `growth`. Returns what it got.
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

    /// Chooses a range of `size` bytes, a multiple of [`GROWTH_STEP`], and maps its beginning: `first` bytes or, where there are not so
    /// many, the least.
    fn reserve_as_needed(&self, size: Bytes, first: Bytes) -> bool {
        let Ok(near) = memory::reserve(PAGE, PAGE) else { return false };
        // SAFETY: the mapping was just made and nobody knows of it.
        unsafe { memory::unmap(near.as_ptr(), PAGE) };
        self.growth.begin(true);
        for distance in DISTANCES {
            let Some(base) = near.as_ptr().addr().checked_sub(distance) else { continue };
            let base = base & !(Bytes::mib(2).0 - 1);
            // A step between the objects and their tables, which nobody maps.
            self.lay_out(base, base + size.0 + GROWTH_STEP.0, size.0 / BLOCK.0);
            if self.map_to(first.0.max(1)) || self.map_to(1) {
                return true;
            }
        }
        self.growth.begin(false);
        self.lay_out(0, 0, 0);
        false
    }

    /// Where the address space has become limited since the range was reserved, all of which counts: gives back what was never made
    /// accessible, but for a share as at the start, and maps it from here on as it is needed. False where there is nothing to give back, or not now.
    pub fn give_back_unused(&self) -> bool {
        if self.growth.is_on() || self.base() == 0 {
            return false;
        }
        let Some(limit) = memory::address_space_limit() else { return false };
        self.growth.begin_late(|| self.unmap_unused(first_share(limit)))
    }

    /// Unmaps what lies further from what was made accessible than `share`. Returns the blocks that stay; `None` where somebody is making
    /// memory accessible.
    fn unmap_unused(&self, share: Bytes) -> Option<Blocks> {
        // ORDER space.commits: Acquire, with the store in `commit_to`: what was made accessible before is seen.
        if self.commits.load(Ordering::Acquire) != 0 {
            return None;
        }
        let all = self.reserved.load(Ordering::Relaxed);
        // A step at least: the tables' first parts are mapped with it.
        let used = (self.committed.load(Ordering::Relaxed) + share.0).max(1);
        let keep = (used.next_multiple_of(GROWTH_STEP.0) >> BLOCK_SHIFT).min(all);
        let ahead = (keep + TOGETHER).min(all);
        let unmap = |(at, each): (usize, usize), from: usize| {
            if from < all {
                // SAFETY: nobody uses that part: whoever wants to waits for the lock that the caller has.
                unsafe {
                    let at = core::ptr::with_exposed_provenance_mut(at + from * each);
                    memory::unmap(at, Bytes((all - from) * each));
                }
            }
        };
        unmap((self.base(), BLOCK.0), keep);
        self.tables().for_each(|table| unmap(table, ahead));
        Some(Blocks(keep))
    }

    /// All of a range that is mapped now stays mapped.
    pub fn keep_mapped(&self) {
        self.growth.stay();
    }

    /// Whether the range is mapped as it is needed.
    pub fn is_mapped_as_needed(&self) -> bool {
        self.growth.is_on()
    }

    /// Bytes of the range that are mapped, accessible or not.
    pub fn mapped(&self) -> Bytes {
        if self.growth.is_on() { self.growth.mapped().to_bytes() } else { self.reserved().to_bytes() }
    }

    /// Sees to it that the range is mapped up to `end` bytes.
    fn map_to(&self, end: usize) -> bool {
        let (end, all) = (end.next_multiple_of(GROWTH_STEP.0) >> BLOCK_SHIFT, self.reserved.load(Ordering::Relaxed));
        self.growth.grow(Blocks(end.min(all)), |have, goal| self.map_blocks(have, goal))
    }

    /// Maps the blocks from `have` to `goal`, with their records and marks, and those of a few more: all of it, or nothing.
    fn map_blocks(&self, have: Blocks, goal: Blocks) -> bool {
        let all = self.reserved.load(Ordering::Relaxed);
        let ahead = |blocks: usize| if blocks == 0 { 0 } else { (blocks + TOGETHER).min(all) };
        let part = |(at, each): (usize, usize), from: usize, to: usize| (at + from * each, Bytes((to - from) * each));
        let tables = || self.tables().map(|table| part(table, ahead(have.0), ahead(goal.0)));
        let objects = part((self.base(), BLOCK.0), have.0, goal.0);
        if memory::map_at(objects.0, objects.1, Access::Reserved).is_err() {
            return false;
        }
        let unmap = |(at, size): (usize, Bytes)| {
            // SAFETY: what was just mapped, of which nobody knows.
            unsafe { memory::unmap(core::ptr::with_exposed_provenance_mut(at), size) };
        };
        for (n, (at, size)) in tables().enumerate() {
            // At the end of the range there are no more.
            if size.0 > 0 && memory::map_at(at, size, Access::Lazy).is_err() {
                unmap(objects);
                tables().take(n).for_each(unmap);
                return false;
            }
            // SAFETY: it was just mapped.
            unsafe { self.spread_tables(at, size) };
        }
        true
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
        let mut first = self.frontier.load(Ordering::Relaxed);
        loop {
            let end = first.checked_add(n.0).filter(|&e| e <= self.reserved.load(Ordering::Relaxed))?;
            if !self.commit_to(end << BLOCK_SHIFT, n.to_bytes()) {
                return None;
            }
            // ORDER space.frontier: Release, with the Acquire in `frontier()`: whoever walks the table up to it sees
            // zeroed or published records.
            match self.frontier.compare_exchange_weak(first, end, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Some(first),
                Err(now) => first = now,
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
            if !as_needed && have >= HUGE_FROM.0 && goal <= self.huge_until.load(Ordering::Relaxed) && run < SPARSE {
                self.ask_for_huge_pages_behind(have, goal);
            }
            self.committed.fetch_max(goal, Ordering::Relaxed);
            have = self.committed.load(Ordering::Relaxed);
        }
        true
    }

    /// Asks for huge pages behind a part of the range that was just made accessible, and behind the tables' parts that nobody has written yet.
    #[cold]
    fn ask_for_huge_pages_behind(&self, have: usize, goal: usize) {
        // SAFETY: the range lies in our reservation.
        let asked =
            unsafe { huge::ask(core::ptr::with_exposed_provenance_mut(self.base() + have), Bytes(goal - have)) };
        if !asked || have < HUGE_TABLES_FROM.0 || self.huge_tables.swap(true, Ordering::Relaxed) {
            return;
        }
        let (blocks, used) = (self.reserved.load(Ordering::Relaxed), have >> BLOCK_SHIFT);
        let dense = self.marks.iter().zip(MARK_SHIFTS).filter(|(_, shift)| 1 << shift <= DENSE);
        let tables = dense.map(|(table, shift)| (table.load(Ordering::Relaxed), 1 << shift));
        for (at, each) in core::iter::once((self.table(), size_of::<Block>())).chain(tables) {
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
}

/// What is mapped under such a limit beyond what is used already.
fn first_share(limit: Bytes) -> Bytes {
    Bytes(limit.0 / FIRST_SHARE).min(MOST_AT_FIRST)
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
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Where a thread stands still before it makes memory accessible.
    struct Stand {
        /// It stands there.
        taken: AtomicBool,
        /// It may go on.
        go: AtomicBool,
    }

    impl Stand {
        const fn new() -> Self {
            Self { taken: AtomicBool::new(false), go: AtomicBool::new(false) }
        }

        fn wait_until_taken(&self) {
            while !self.taken.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
    }

    std::thread_local! {
        static STANDS: Cell<Option<&'static Stand>> = const { Cell::new(None) };
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

    /// A space as under a limited address space. One at a time, and unmapped at the end: two ranges in a process may be chosen so that they overlap.
    struct AsNeeded {
        space: Space,
        _alone: MutexGuard<'static, ()>,
    }

    impl AsNeeded {
        /// Of so many steps, of which one is mapped.
        fn new(steps: usize) -> Self {
            static ONE: Mutex<()> = Mutex::new(());
            let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
            let space = Space::new();
            assert!(space.reserve_as_needed(Bytes(steps * GROWTH_STEP.0), Bytes(1)));
            assert_eq!(space.mapped(), GROWTH_STEP);
            Self { space, _alone: alone }
        }
    }

    impl std::ops::Deref for AsNeeded {
        type Target = Space;
        fn deref(&self) -> &Space {
            &self.space
        }
    }

    impl Drop for AsNeeded {
        fn drop(&mut self) {
            let blocks = self.reserved();
            let all = blocks.to_bytes().0 + GROWTH_STEP.0 + blocks.0 * METADATA;
            // SAFETY: the range is this test's own.
            unsafe { memory::unmap(core::ptr::with_exposed_provenance_mut(self.base()), Bytes(all)) };
        }
    }

    /// Takes blocks one by one until there are no more, and writes to each.
    fn take_all(space: &Space) -> usize {
        let mut taken = 0;
        while let Some(block) = space.take_fresh(Blocks(1)) {
            // SAFETY: the block was just taken, and is below `reserved`.
            unsafe {
                core::ptr::with_exposed_provenance_mut::<usize>(space.address_of(block)).write(block);
                assert_eq!(space.block(block).state(), State::Untouched);
                for shift in MARK_SHIFTS {
                    let mark = core::ptr::with_exposed_provenance_mut::<u8>(space.marks_of(block, shift));
                    assert_eq!(mark.replace(1), 0);
                }
            }
            taken += 1;
        }
        taken
    }

    #[test]
    fn a_range_that_is_mapped_as_it_is_needed_grows_in_place_to_its_end() {
        let space = AsNeeded::new(9);
        assert_eq!(space.reserved(), Blocks(9 * TOGETHER));
        assert_eq!(space.take_fresh(Blocks(1)), Some(0));
        assert!(space.mapped().0 < space.reserved().to_bytes().0 / 2);
        assert_eq!(
            std::thread::scope(|s| {
                let threads: Vec<_> = (0..4).map(|_| s.spawn(|| take_all(&space))).collect();
                threads.into_iter().map(|t| t.join().unwrap()).sum::<usize>()
            }),
            9 * TOGETHER - 1
        );
        assert_eq!(space.mapped(), space.reserved().to_bytes());
    }

    #[test]
    fn what_lies_in_the_way_of_a_range_ends_it_and_is_left_alone() {
        let space = AsNeeded::new(8);
        let mark = space.marks_of(4 * TOGETHER, 8);
        for (way, most) in [(mark, 3), (space.address_of(6 * TOGETHER), 6)] {
            memory::map_at(way, PAGE, Access::Lazy).unwrap();
            let at = core::ptr::with_exposed_provenance_mut::<u8>(way);
            // SAFETY: the page is this test's own.
            unsafe { at.write(7) };
            take_all(&space);
            assert_eq!((space.frontier(), space.mapped()), (Blocks(most * TOGETHER), Bytes(most * GROWTH_STEP.0)));
            // SAFETY: as above.
            unsafe {
                assert_eq!(at.read(), 7);
                memory::unmap(at, PAGE);
            }
        }
        // What was mapped before the obstacle was found is not in the way now.
        take_all(&space);
        assert_eq!(space.frontier(), space.reserved());
    }

    #[test]
    fn a_thread_that_forks_can_take_what_is_not_mapped_yet() {
        let space = AsNeeded::new(4);
        space.before_fork();
        assert_eq!(space.take_fresh(Blocks(TOGETHER + 1)), Some(0));
        // SAFETY: after `before_fork`; a process without another thread that uses this space is like a child.
        unsafe {
            space.after_fork_in_parent();
            space.before_fork();
            space.reset_after_fork();
        }
        std::thread::scope(|s| s.spawn(|| assert_eq!(take_all(&space), 3 * TOGETHER - 1)).join().unwrap());
    }

    /// Gives back what is not used, as where a limit is found.
    fn give_back(space: &Space) -> bool {
        space.growth.begin_late(|| space.unmap_unused(Bytes(0)))
    }

    /// In a process of its own: other tests would map something in what is given back, and end the range there.
    #[test]
    fn a_range_that_was_reserved_as_a_whole_goes_on_as_one_that_is_mapped_as_needed() {
        const ALONE: &str = "LARDER_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "space::tests::a_range_that_was_reserved_as_a_whole_goes_on_as_one_that_is_mapped_as_needed";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let run = child.args([name, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
            let said = String::from_utf8_lossy(&run.stdout);
            assert!(
                run.status.success() && said.contains("1 passed"),
                "{said}{}",
                String::from_utf8_lossy(&run.stderr)
            );
            return;
        }
        const TAKEN: usize = 4096;
        let space = Space::new();
        space.reserve(Bytes::mib(4096), false).unwrap();
        let given_back = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while let Some(block) = space.take_fresh(Blocks(1)).filter(|&block| block < TAKEN) {
                        // SAFETY: the block was just taken, and is below `reserved`.
                        unsafe {
                            core::ptr::with_exposed_provenance_mut::<usize>(space.address_of(block)).write(block);
                            assert_eq!(space.block(block).state(), State::Untouched);
                        }
                    }
                });
            }
            while !given_back.load(Ordering::Relaxed) {
                given_back.store(give_back(&space), Ordering::Relaxed);
            }
        });
        assert!(!give_back(&space), "there is nothing more to give back");
        assert!(space.frontier().0 >= TAKEN, "{} blocks were had", space.frontier().0);
        assert!(space.mapped().0 < space.reserved().to_bytes().0 / 8, "{} are mapped", space.mapped());
    }

    #[test]
    fn nothing_is_given_back_that_a_thread_is_about_to_make_accessible_or_somebody_relies_on() {
        static SPACE: Space = Space::new();
        static STAND: Stand = Stand::new();
        SPACE.reserve(Bytes::mib(256), false).unwrap();
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| {
                STANDS.set(Some(&STAND));
                SPACE.take_fresh(Blocks(1)).unwrap()
            });
            STAND.wait_until_taken();
            assert!(!give_back(&SPACE) && !SPACE.is_mapped_as_needed());
            STAND.go.store(true, Ordering::SeqCst);
            assert_eq!(taker.join().unwrap(), 0);
        });
        SPACE.keep_mapped();
        assert!(!give_back(&SPACE));
        assert_eq!(SPACE.mapped(), Bytes::mib(256));
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
            if asks_where_it_should() {
                return;
            }
        }
        panic!("huge pages were free, and not asked for");
    }

    /// False where the first step that should have asked did not.
    fn asks_where_it_should() -> bool {
        let space: &'static Space = Box::leak(Box::new(Space::new()));
        space.reserve(Bytes::mib(512), false).unwrap();
        let asks = |at: usize| flags_at(at).iter().any(|flag| flag == "hg");
        let take_up_to = |bytes: Bytes| {
            while space.frontier().to_bytes() < bytes {
                space.take_fresh(Blocks(16)).unwrap();
            }
        };
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
        true
    }
}
