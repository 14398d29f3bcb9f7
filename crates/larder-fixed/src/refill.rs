//! Refill: the next free run of a block becomes the buffer of an index. The sweep is what finds runs.
//!
//! Each class has a lock and, for each kind, a list of its blocks. After a cycle a list's cursor stands at its head;
//! refills move it forward, looking in each block for runs of cells that are not marked with the present epoch. So the
//! sweep is lazy and complete, and a cycle need not touch any list: the first refill that sees a new epoch resets
//! the cursor.
//!
//! **The mark byte says everything.** It holds the epoch in which the cell was last found live or handed out. A cell is
//! allocated when that is the present epoch; a refill writes the epoch to all cells of its run, a stop writes 0 to those
//! that a buffer did not hand out. So a conservative word that points to a free cell is known to, mark bytes are never
//! cleared in a cycle, and a block is empty when no byte is the epoch. Two more values, for even and odd epochs, mark cells
//! that wait in a list of explicitly freed cells, which count as taken until the next cycle; such a byte that the sweep
//! has not seen for two cycles means the same again, and its cell waits for one more cycle.
//!
//! A thread here defers stops (see `larder_threads::defer`), so a run is always either in its block or in a buffer when
//! the world stands still. Threads that are not registered are never stopped; they keep the class's lock, which the
//! collector takes, until their run is installed.

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicU8, Ordering};

use larder_blocks::block::{Block, NONE, State};
use larder_blocks::class::{CLASSES, COUNT, Class};
use larder_blocks::pool::Run;
use larder_blocks::space::Place;
use larder_lab::{Installed, slot_offset};
use larder_sync::intake::{self, Intake};
use larder_sync::lock::{Lock, LockGuard};
use larder_threads::{REGISTRY, defer};
use larder_units::Blocks;

use crate::heap::{HEAP, freed_mark};
use crate::inject::{Point, point};
use crate::{cycle, kind, shelf};

/// Longest run, in bytes, that one refill takes: it is cleared at once, and should stay in a first-level cache until it
/// is used.
const LONGEST_RUN: usize = 16 * 1024;
/// Bytes of short runs that one refill takes at least, as far as there are any.
const ENOUGH: usize = LONGEST_RUN / 4 * 3;
/// Runs that a list keeps aside because their buffer was filled by somebody else meanwhile.
const SIDELINE: usize = 4;
/// `previous` of a block that was taken in a signal handler and is in no list yet.
pub(crate) const ORPHAN: u32 = NONE - 1;
/// `previous` of the first block of a list.
const FIRST: u32 = NONE;

/// The blocks of one class and kind.
struct List {
    /// The epoch for which the fields below are right.
    epoch: u8,
    sidelined: u8,
    head: u32,
    /// The next block to look at.
    cursor: u32,
    /// The block that is being swept, and its next cell to look at.
    current: u32,
    position: u32,
    /// Cells that were freed explicitly, linked through their first word.
    freed: usize,
    /// Ready runs without a buffer.
    sideline: [[usize; 2]; SIDELINE],
}

struct Central {
    /// Guards the lists of the class and the list fields of their blocks. Rank: after the registry, before the pool.
    lock: Lock,
    /// Sync: `lock`.
    lists: UnsafeCell<[List; kind::MAX]>,
}

// SAFETY: the lists are used under `lock` only.
unsafe impl Sync for Central {}

static CENTRALS: [Central; COUNT] = [const {
    Central {
        lock: Lock::new(),
        lists: UnsafeCell::new(
            [const {
                List {
                    epoch: 0,
                    sidelined: 0,
                    head: NONE,
                    cursor: NONE,
                    current: NONE,
                    position: 0,
                    freed: 0,
                    sideline: [[0; 2]; SIDELINE],
                }
            }; kind::MAX],
        ),
    }
}; COUNT];

/// Blocks that were taken without a lock, in signal handlers; linked through `next`. Sync: its own; emptied in a stopped
/// world.
static ORPHANS: Intake = Intake::new();
const _: () = assert!(intake::END == NONE);

/// A class, locked.
struct Locked {
    class: usize,
    guard: LockGuard<'static>,
}

impl Locked {
    fn new(class: usize) -> Self {
        Self { class, guard: CENTRALS[class].lock.lock() }
    }

    fn list(&mut self, kind: usize) -> &mut List {
        let _ = &self.guard;
        // SAFETY: the guard holds the class's lock, and the borrow of `self` makes this the only reference.
        unsafe { &mut (*CENTRALS[self.class].lists.get())[kind] }
    }
}

fn block(index: u32) -> &'static Block {
    // SAFETY: indices in lists are below the frontier.
    unsafe { HEAP.space.block(index as usize) }
}

/// A block's mark bytes as plain bytes, to look at eight at a time.
///
/// Bytes do not change under the class's lock, with one exception: `free` in a signal handler that cannot have the lock
/// clears one. Then this reads the old value or the new, both of which are right: the cell is found now or by a later sweep.
/// Reading eight atomic bytes one by one would cost several times as much.
fn bytes_of(marks: &[AtomicU8], at: usize) -> u64 {
    let p = marks[at..at + 8].as_ptr().cast::<u64>();
    // SAFETY: eight bytes of the slice.
    unsafe { p.read_unaligned() }
}

const LOW: u64 = 0x0101_0101_0101_0101;

/// First cell from `from` on whose byte is not (or, with `live`, is) one of the bytes that mean "taken".
fn find(marks: &[AtomicU8], from: usize, epoch: u8, live: bool) -> usize {
    let freed = freed_mark(epoch);
    let mut at = from;
    let same = LOW * u64::from(epoch);
    while at < marks.len() {
        if at + 8 <= marks.len() {
            let x = bytes_of(marks, at) ^ same;
            if !live && x == 0 {
                at += 8;
                continue;
            }
        }
        let b = marks[at].load(Ordering::Relaxed);
        if (b == epoch || b == freed) == live {
            return at;
        }
        at += 1;
    }
    marks.len()
}

impl List {
    /// Makes the list's fields right for the present epoch.
    fn renew(&mut self, epoch: u8) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.cursor = self.head;
            self.current = NONE;
            self.freed = 0;
            // Sidelined runs were retired at the stop.
            self.sidelined = 0;
        }
    }

    /// The next free run of the class in this list's blocks, `(block, first cell, cells)`.
    fn next_run(&mut self, epoch: u8, class: &Class) -> Option<(&'static Block, usize, usize)> {
        let most = (LONGEST_RUN / class.cell as usize).max(1);
        loop {
            if self.current == NONE {
                if self.cursor == NONE {
                    return None;
                }
                let b = block(self.cursor);
                point(Point::SweepNextBlock);
                self.current = self.cursor;
                self.position = 0;
                self.cursor = b.next.get();
                if b.swept.get() == epoch {
                    self.current = NONE;
                    continue;
                }
            }
            let b = block(self.current);
            // SAFETY: blocks in lists are `Small`.
            let marks = unsafe { b.all_marks() };
            let from = find(marks, self.position as usize, epoch, false);
            if from == marks.len() {
                b.swept.set(epoch);
                self.current = NONE;
                continue;
            }
            let to = find(&marks[..marks.len().min(from + most)], from, epoch, true);
            self.position = to as u32;
            return Some((b, from, to - from));
        }
    }

    fn link(&mut self, index: u32) {
        let b = block(index);
        b.previous.set(FIRST);
        b.next.set(self.head);
        if self.head != NONE {
            block(self.head).previous.set(index);
        }
        self.head = index;
    }

    fn unlink(&mut self, index: u32) {
        let b = block(index);
        let (previous, next) = (b.previous.get(), b.next.get());
        if previous == FIRST {
            self.head = next;
        } else {
            block(previous).next.set(next);
        }
        if next != NONE {
            block(next).previous.set(previous);
        }
        if self.cursor == index {
            self.cursor = next;
        }
        if self.current == index {
            self.current = NONE;
        }
    }
}

/// Turns a run of blocks into one block of a class and kind, all of whose cells are free.
fn format(run: Run, class: usize, kind: usize) -> &'static Block {
    let c = &CLASSES[class];
    // SAFETY: the run was just taken and is nobody else's.
    let b = unsafe { HEAP.space.block(run.first) };
    b.kind.set(kind as u8);
    b.class.set(class as u8);
    b.cell.set(c.cell);
    b.reciprocal.set(c.reciprocal);
    b.cells.set(c.cells);
    b.blocks.set(c.blocks);
    b.swept.set(0);
    b.size.set(0);
    b.descriptor.set(kind::descriptor(kind, c.cell as usize));
    b.marks.set(HEAP.space.marks_of(run.first, c.mark_shift));
    // SAFETY: the mark bytes of this block.
    for m in unsafe { b.all_marks() } {
        m.store(0, Ordering::Relaxed);
    }
    for i in 1..run.blocks.0 {
        // SAFETY: a block of the run.
        let tail = unsafe { HEAP.space.block(run.first + i) };
        tail.head.set(run.first as u32);
        tail.set_state(State::Tail);
    }
    b.set_state(State::Small);
    b
}

/// Marks a run's cells as handed out.
fn claim(b: &Block, from: usize, cells: usize, epoch: u8) {
    // SAFETY: the block is `Small`.
    for m in unsafe { &b.all_marks()[from..from + cells] } {
        m.store(epoch, Ordering::Relaxed);
    }
}

fn address(b: &Block, cell: usize) -> usize {
    HEAP.space.address_of(HEAP.space.index_of(b)) + cell * b.cell.get() as usize
}

fn clear(run: [usize; 2]) {
    // SAFETY: the run's cells are free and claimed by this refill.
    unsafe { ptr::write_bytes(ptr::with_exposed_provenance_mut::<u8>(run[0]), 0, run[1] - run[0]) };
}

/// Fills the current index's buffer and returns the first cell of the run. `None` when there is no free run and the
/// heap must not grow.
pub(crate) fn refill(kind: usize, class: usize) -> Option<usize> {
    let c = &CLASSES[class];
    let cell = c.cell as usize;
    let _deferral = defer::enter();
    let registered = REGISTRY.current().is_some();
    point(Point::RefillEntered);
    if registered && let Some(run) = shelf::current(kind, class).and_then(|mut shelf| shelf.pop()) {
        point(Point::ShelfTaken);
        return Some(hand_out(kind, class, run, false, None));
    }
    HEAP.refills.fetch_add(1, Ordering::Relaxed);
    let mut locked = Locked::new(class);
    point(Point::RefillLocked);
    let mut epoch = HEAP.epoch();
    let list = locked.list(kind);
    list.renew(epoch);
    let mut zero = false;
    let run = if list.freed != 0 {
        let at = list.freed;
        // SAFETY: cells on the list hold the next one's address in their first word.
        list.freed = unsafe { ptr::with_exposed_provenance::<usize>(at).read() };
        let place = HEAP.space.place(at).expect("a freed cell is in the heap");
        claim(place.block, place.cell, 1, epoch);
        [at, at + cell]
    } else if list.sidelined > 0 {
        list.sidelined -= 1;
        zero = true;
        list.sideline[list.sidelined as usize]
    } else {
        let found = match list.next_run(epoch, c) {
            Some(found) => found,
            None => {
                drop(locked);
                point(Point::BeforeBlocks);
                let (run, fresh) = take_block(Blocks(c.blocks as usize))?;
                point(Point::BlocksTaken);
                locked = Locked::new(class);
                let list = locked.list(kind);
                // Only an unregistered thread can have missed a stop meanwhile.
                epoch = HEAP.epoch();
                list.renew(epoch);
                if let Some(found) = list.next_run(epoch, c) {
                    // Somebody else was faster; the block can wait.
                    HEAP.pool.give(&HEAP.space, run);
                    found
                } else {
                    zero = fresh;
                    format(run, class, kind);
                    let index = run.first as u32;
                    list.link(index);
                    (list.current, list.position) = (index, 0);
                    list.next_run(epoch, c).expect("a new block is free")
                }
            }
        };
        let (b, from, cells) = found;
        point(Point::RunFound);
        claim(b, from, cells, epoch);
        let at = address(b, from);
        // A long block that is swept on does not know any more that its rest is zero; that is what clearing is for.
        [at, at + cells * cell]
    };
    let mut bytes = run[1] - run[0];
    // What the lock and the sweep cost is shared among several short runs.
    let mut more = [[0; 2]; shelf::MOST_RUNS - 1];
    let mut taken = 0;
    if registered {
        let list = locked.list(kind);
        while bytes < ENOUGH && taken < more.len() {
            let Some((b, from, cells)) = list.next_run(epoch, c) else { break };
            claim(b, from, cells, epoch);
            let at = address(b, from);
            more[taken] = [at, at + cells * cell];
            bytes += cells * cell;
            taken += 1;
        }
    }
    HEAP.count_allocated(bytes);
    // An unregistered thread keeps the lock: the collector, who cannot stop it, waits here for the run to be installed.
    let held = if registered {
        drop(locked);
        None
    } else {
        Some(locked)
    };
    point(Point::RunClaimed);
    if taken > 0 {
        let mut shelf = shelf::current(kind, class);
        // The run that was found first is taken off first.
        for &run in more[..taken].iter().rev() {
            if !shelf.as_mut().is_some_and(|shelf| shelf.push(run)) {
                release_locked(class, run[0], run[1]);
            }
        }
        drop(shelf);
        point(Point::RunsShelved);
    }
    Some(hand_out(kind, class, run, zero, held))
}

/// Makes a claimed run the current index's buffer, less its first cell, which is the caller's.
fn hand_out(kind: usize, class: usize, run: [usize; 2], zero: bool, held: Option<Locked>) -> usize {
    let cell = CLASSES[class].cell as usize;
    if !zero && kind::cleared(kind) {
        clear(run);
    }
    point(Point::RunCleared);
    let rest = [run[0] + cell, run[1]];
    if rest[0] < rest[1] {
        // SAFETY: the rest is ready, ours, and a whole number of cells.
        let installed = unsafe { HEAP.labs.install(slot_offset(kind, class), cell, rest) };
        if installed == Installed::No {
            let mut locked = held.unwrap_or_else(|| Locked::new(class));
            let epoch = HEAP.epoch();
            put_aside(locked.list(kind), rest, epoch);
        }
    }
    point(Point::RunInstalled);
    run[0]
}

/// Keeps a run for the next comer, or returns it to its block.
fn put_aside(list: &mut List, run: [usize; 2], epoch: u8) {
    if list.epoch == epoch && (list.sidelined as usize) < SIDELINE {
        list.sideline[list.sidelined as usize] = run;
        list.sidelined += 1;
    } else {
        release(run[0], run[1]);
    }
}

/// Gives cells that were claimed but not handed out back to their block.
pub(crate) fn release(from: usize, to: usize) {
    let place = HEAP.space.place(from).expect("a run lies in a block");
    let cells = (to - from) / place.block.cell.get() as usize;
    claim(place.block, place.cell, cells, 0);
}

/// As [`release`], for a thread that gives its own buffers back while others may sweep the block.
pub(crate) fn release_locked(class: usize, from: usize, to: usize) {
    let _locked = Locked::new(class);
    release(from, to);
}

/// A free run of blocks, and whether it is known to be zero: from the pool, from blocks that turn out to be empty, or
/// fresh.
pub(crate) fn take_block(n: Blocks) -> Option<(Run, bool)> {
    if let Some(run) = HEAP.take_blocks(n) {
        return Some((run, run.zero));
    }
    // Before the heap grows, blocks of other classes are looked at: each cycle's garbage is found before new memory.
    while cycle::census(n) {
        if let Some(run) = HEAP.take_blocks(n) {
            return Some((run, run.zero));
        }
    }
    HEAP.grow(n).map(|run| (run, true))
}

/// Looks whether a block is empty, and gives it to the pool if so. Called by the census; the block may change meanwhile.
pub(crate) fn reclaim_if_empty(index: usize) -> bool {
    let b = block(index as u32);
    let is_empty = |epoch| {
        // SAFETY: the caller and the checks around see that the block is `Small`.
        b.state() == State::Small && find(unsafe { b.all_marks() }, 0, epoch, true) == b.cells.get() as usize
    };
    if !is_empty(HEAP.epoch()) || b.previous.get() == ORPHAN {
        return false;
    }
    point(Point::CensusCandidate);
    let (class, kind) = (b.class.get() as usize, b.kind.get() as usize);
    let mut locked = Locked::new(class);
    // An unregistered thread can have missed a cycle meanwhile: what was allocated since bears another epoch than the one
    // that the first look asked for.
    let epoch = HEAP.epoch();
    let list = locked.list(kind);
    list.renew(epoch);
    // Between the look and the lock the block may have got a run, another class, or be on its way there.
    let same = b.state() == State::Small && b.class.get() as usize == class && b.kind.get() as usize == kind;
    if !same || !is_empty(epoch) || b.previous.get() == ORPHAN {
        return false;
    }
    list.unlink(index as u32);
    let run = Run { first: index, blocks: Blocks(b.blocks.get() as usize), zero: false };
    b.set_state(State::Untouched);
    drop(locked);
    HEAP.pool.give(&HEAP.space, run);
    true
}

/// Frees one cell explicitly.
pub(crate) fn free_cell(place: &Place) {
    let b = place.block;
    // SAFETY: the place is a cell of the block.
    let mark = unsafe { b.mark(place.cell) };
    HEAP.freed.fetch_add(b.cell.get() as usize, Ordering::Relaxed);
    let class = b.class.get() as usize;
    if defer::is_deferring() && CENTRALS[class].lock.is_locked() {
        // The interrupted code may hold the lock: the cell is found by the next sweep.
        mark.store(0, Ordering::Relaxed);
        return;
    }
    let _deferral = defer::enter();
    point(Point::FreeEntered);
    let mut locked = Locked::new(class);
    point(Point::FreeLocked);
    let epoch = HEAP.epoch();
    let list = locked.list(b.kind.get() as usize);
    list.renew(epoch);
    if b.swept.get() == epoch {
        // The sweep is past it: hand it out again from the list.
        // SAFETY: the cell is free now, and holds at least a word.
        unsafe { ptr::with_exposed_provenance_mut::<usize>(place.base).write(list.freed) };
        list.freed = place.base;
        mark.store(freed_mark(epoch), Ordering::Relaxed);
    } else {
        mark.store(0, Ordering::Relaxed);
    }
    point(Point::FreeDone);
}

/// Allocates a cell in a signal handler that interrupted a slow path: from a fresh block, without any lock. The rest of
/// the block is found by the sweep after the next cycle.
pub(crate) fn nested(kind: usize, class: usize) -> *mut u8 {
    let c = &CLASSES[class];
    let Some(run) = HEAP.grow(Blocks(c.blocks as usize)) else { return ptr::null_mut() };
    let epoch = HEAP.epoch();
    // Before the block can be seen: no census may take it for an empty one of a list.
    block(run.first as u32).previous.set(ORPHAN);
    let b = format(run, class, kind);
    b.swept.set(epoch);
    claim(b, 0, 1, epoch);
    adopt_later(run.first as u32);
    HEAP.count_allocated(c.cell as usize);
    ptr::with_exposed_provenance_mut(address(b, 0))
}

/// Leaves a block for the next cycle to put into its list.
pub(crate) fn adopt_later(index: u32) {
    let b = block(index);
    b.previous.set(ORPHAN);
    ORPHANS.add(index, |next| b.next.set(next));
}

/// Takes the locks of all classes: nobody, registered or not, is inside a refill then.
pub(crate) fn lock_all() {
    for c in &CENTRALS {
        c.lock.lock_raw();
    }
}

/// Gives them back.
///
/// # Safety
/// The caller took them with [`lock_all`].
pub(crate) unsafe fn unlock_all() {
    for c in &CENTRALS {
        // SAFETY: the caller's promise.
        unsafe { c.lock.unlock_raw() };
    }
}

/// In a fork child: nobody holds them.
///
/// # Safety
/// The caller is the only thread of the process.
pub(crate) unsafe fn reset_after_fork() {
    for c in &CENTRALS {
        // SAFETY: the caller's promise.
        unsafe { c.lock.reset_after_fork() };
    }
    // SAFETY: the caller's promise.
    unsafe { shelf::reset_after_fork() };
}

/// Returns what buffers and sidelines hold to the blocks, and adopts orphans. Returns the bytes returned.
///
/// # Safety
/// The world is stopped and the caller holds the locks of all classes.
pub(crate) unsafe fn retire_in_stopped_world() -> usize {
    let mut bytes = 0;
    let slabs = |f: &mut dyn FnMut(*mut u8)| {
        // The collector holds the registry's lock; records do not change.
        crate::cycle::for_each_thread(|t| {
            if !t.buffers().is_null() {
                f(t.buffers());
            }
        });
    };
    // SAFETY: the world is stopped.
    unsafe {
        HEAP.labs.retire_all(kind::count(), slabs, |_, from, to| {
            bytes += to - from;
            release(from, to);
        });
    }
    // SAFETY: the world is stopped.
    unsafe {
        shelf::empty_in_stopped_world(|run| {
            bytes += run[1] - run[0];
            release(run[0], run[1]);
        });
    }
    let epoch = HEAP.epoch();
    for c in &CENTRALS {
        // SAFETY: the caller holds the lock.
        let lists = unsafe { &mut *c.lists.get() };
        for list in &mut lists[..kind::count()] {
            if list.epoch == epoch {
                for run in &list.sideline[..list.sidelined as usize] {
                    bytes += run[1] - run[0];
                    release(run[0], run[1]);
                }
                list.sidelined = 0;
            }
        }
    }
    let mut at = ORPHANS.take_all();
    while at != NONE {
        let b = block(at);
        let next = b.next.get();
        if b.state() == State::Large {
            crate::large::adopt(at);
        } else {
            // SAFETY: the caller holds the lock.
            let lists = unsafe { &mut *CENTRALS[b.class.get() as usize].lists.get() };
            lists[b.kind.get() as usize].link(at);
        }
        at = next;
    }
    bytes
}

/// Calls `f` for every block of a kind.
///
/// # Safety
/// The world is stopped and the caller holds the locks of all classes.
pub(crate) unsafe fn for_each_block(kind: usize, mut f: impl FnMut(&'static Block)) {
    for c in &CENTRALS {
        // SAFETY: the caller holds the lock.
        let mut at = unsafe { (&(*c.lists.get()))[kind].head };
        while at != NONE {
            let b = block(at);
            at = b.next.get();
            f(b);
        }
    }
}

/// Clears the mark bytes of free cells in a block, so that no byte of an old epoch can be mistaken for a new one after
/// the epochs have started over.
pub(crate) fn forget_old_epochs(index: usize) {
    let b = block(index as u32);
    if b.state() != State::Small {
        return;
    }
    let class = b.class.get() as usize;
    let _locked = Locked::new(class);
    if b.state() != State::Small || b.class.get() as usize != class {
        return;
    }
    let epoch = HEAP.epoch();
    // SAFETY: the block is `Small`.
    for m in unsafe { b.all_marks() } {
        let v = m.load(Ordering::Relaxed);
        if v != epoch && v != freed_mark(epoch) {
            m.store(0, Ordering::Relaxed);
        }
    }
}
