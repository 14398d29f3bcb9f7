//! How far a range is mapped, where the address space is limited (`ulimit -v`).
//!
//! The kernel counts what is mapped, accessible or not. A range that is mapped as a whole at the start would take from the program what
//! the heap may never need: stacks of threads, malloc. So there the range's addresses are only chosen at the start, far from where the
//! kernel places mappings by itself, and its beginning is mapped. The rest follows in place, as blocks are taken. Everything about an
//! address is found by the same arithmetic as elsewhere. Something that lies in the way, which somebody has put there by its address,
//! ends the heap.
//!
//! A program may limit itself after the range was reserved as a whole, and then all of it counts. What of it was never made accessible is given
//! back when that is noticed, and the range goes on as one that is mapped as it is needed.
//!
//! One thread at a time maps, with signals blocked: an allocation in a handler may need more as well, and would wait for its own thread.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use larder_sync::lock::Lock;
use larder_sys::memory::{self, Access, KeepErrno};
use larder_sys::signal::Mask;
use larder_sys::thread;
use larder_units::{BLOCK, Blocks, Bytes, PAGE};

use super::{BLOCK_SHIFT, Space, TOGETHER};

/// How much of the range is mapped at a time.
pub(super) const GROWTH_STEP: Bytes = Bytes(TOGETHER * BLOCK.0);
/// The part of the limit that is mapped at the start, and the most: for what a program does that uses up all the rest.
const FIRST_SHARE: usize = 32;
const MOST_AT_FIRST: Bytes = Bytes::mib(64);
/// How far below a mapping that the kernel places the range begins: the others lie beside one another, and never come so far.
const DISTANCES: [usize; 3] = [16 << 40, 8 << 40, 1 << 40];

/// How far the range is mapped.
pub(super) struct Growth {
    /// Sync: written before any other thread uses the heap, or under `lock`; `growth.on`.
    on: AtomicBool,
    /// Blocks that are mapped, from the first.
    ///
    /// Sync: written under `lock`; it only grows. Relaxed: when the call returns that maps, memory is there for every thread.
    mapped: AtomicUsize,
    /// Somebody relies on all of the range being mapped, so that it stays. Sync: written under `lock`.
    stays: AtomicBool,
    /// Held by who maps, and over a fork.
    lock: Lock,
    /// The thread that forks, by its thread pointer; it holds `lock`, and handlers that it runs meanwhile may allocate.
    ///
    /// Sync: written under `lock`. Relaxed: a thread that finds itself here has written that.
    forks: AtomicUsize,
}

impl Growth {
    pub(super) const fn new() -> Self {
        Self {
            on: AtomicBool::new(false),
            mapped: AtomicUsize::new(0),
            stays: AtomicBool::new(false),
            lock: Lock::new(),
            forks: AtomicUsize::new(0),
        }
    }

    /// Before any other thread uses the heap.
    pub(super) fn begin(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// From here on the range is mapped as it is needed, if `give_back` gives back all but what it then returns. It is called where whoever
    /// begins to make memory accessible sees that already, and waits.
    pub(super) fn begin_late(&self, give_back: impl FnOnce() -> Option<Blocks>) -> bool {
        self.exclusive(|| {
            if self.is_on() || self.stays.load(Ordering::Relaxed) {
                return false;
            }
            self.on.store(true, Ordering::Relaxed);
            // ORDER growth.on: full, with the fence in `Space::commit_to`: between this and the number of those who make memory accessible.
            // Who is not seen by its number sees this, and waits in `grow`.
            fence(Ordering::SeqCst);
            match give_back() {
                Some(mapped) => self.mapped.store(mapped.0, Ordering::Relaxed),
                None => self.on.store(false, Ordering::Relaxed),
            }
            self.is_on()
        })
    }

    /// A range that is mapped as a whole stays so.
    pub(super) fn stay(&self) {
        self.exclusive(|| self.stays.store(true, Ordering::Relaxed));
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub(super) fn mapped(&self) -> Blocks {
        Blocks(self.mapped.load(Ordering::Relaxed))
    }

    /// Sees to it that `goal` blocks are mapped, by `map(have, goal)`, which does all of it or nothing.
    pub(super) fn grow(&self, goal: Blocks, map: impl FnOnce(Blocks, Blocks) -> bool) -> bool {
        if self.mapped() >= goal {
            return true;
        }
        self.exclusive(|| {
            let have = self.mapped();
            // Nothing was given back after all, and everything is mapped.
            if have >= goal || !self.is_on() {
                return true;
            }
            let done = map(have, goal);
            if done {
                self.mapped.store(goal.0, Ordering::Relaxed);
            }
            done
        })
    }

    /// Calls `f` with nobody else and no handler meanwhile.
    fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        let _errno = KeepErrno::new();
        let mask = Mask::all_but_faults().set();
        let guard = (!self.is_forking()).then(|| self.lock.lock());
        let result = f();
        drop(guard);
        mask.set();
        result
    }

    /// Whether the calling thread is between `before_fork` and what follows it.
    fn is_forking(&self) -> bool {
        self.forks.load(Ordering::Relaxed) == thread::thread_pointer().addr()
    }

    pub(super) fn before_fork(&self) {
        let mask = Mask::all_but_faults().set();
        self.lock.lock_raw();
        self.forks.store(thread::thread_pointer().addr(), Ordering::Relaxed);
        mask.set();
    }

    /// # Safety
    /// The calling thread called `before_fork`.
    pub(super) unsafe fn after_fork_in_parent(&self) {
        let mask = Mask::all_but_faults().set();
        self.forks.store(0, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.lock.unlock_raw() };
        mask.set();
    }

    /// # Safety
    /// The calling thread called `before_fork` and is the only one of the child.
    pub(super) unsafe fn reset_after_fork(&self) {
        let mask = Mask::all_but_faults().set();
        self.forks.store(0, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.lock.reset_after_fork() };
        mask.set();
    }
}

impl Space {
    /// Chooses a range of `size` bytes, a multiple of [`GROWTH_STEP`], and maps its beginning: `first` bytes or, where there are not so
    /// many, the least.
    pub(super) fn reserve_as_needed(&self, size: Bytes, first: Bytes) -> bool {
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
    pub(super) fn map_to(&self, end: usize) -> bool {
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
}

/// What is mapped under such a limit beyond what is used already.
pub(super) fn first_share(limit: Bytes) -> Bytes {
    Bytes(limit.0 / FIRST_SHARE).min(MOST_AT_FIRST)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{STANDS, Stand};
    use super::super::{MARK_SHIFTS, METADATA};
    use super::*;
    use crate::block::State;
    use std::sync::{Mutex, MutexGuard, PoisonError};

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
            let name =
                "space::growth::tests::a_range_that_was_reserved_as_a_whole_goes_on_as_one_that_is_mapped_as_needed";
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
}
