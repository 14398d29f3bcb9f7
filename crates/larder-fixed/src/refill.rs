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
//! cleared in a cycle, and a block is empty when no byte is the epoch. A cell that is freed explicitly gets 0; its block is swept once
//! more if the sweep was through with it, and returned where nothing is left in it.
//!
//! A thread here defers stops (see `larder_threads::defer`), so a run is always either in its block or in a buffer when
//! the world stands still. Threads that are not registered are never stopped; they keep the class's lock, which the
//! collector takes, until their run is installed.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use larder_blocks::block::{Block, NONE, State};
use larder_blocks::class::{CLASSES, COUNT, Class};
use larder_blocks::owners::{self, Origin, Release};
use larder_blocks::pool::Run;
use larder_blocks::space::Place;
use larder_lab::{Installed, slot_offset};
use larder_sync::intake::{self, Intake};
use larder_sync::lock::{Lock, LockGuard};
use larder_sys::memory::{self, ReserveError};
use larder_sys::{hint, thread};
use larder_threads::{REGISTRY, defer};
use larder_units::{Blocks, Bytes};

use crate::epochs::Epochs;
use crate::heap::HEAP;
use crate::inject::{Point, point};
use crate::stats::count_freed;
use crate::{concurrent, cycle, kind, pacing, sharing, shelf, untold};

/// Longest run, in bytes, that one refill takes: it is cleared at once, and should stay in a first-level cache until it
/// is used.
const LONGEST_RUN: usize = 16 * 1024;
/// Bytes of short runs that one refill takes at least, as far as there are any.
const ENOUGH: usize = LONGEST_RUN / 4 * 3;
/// Runs that a list keeps aside because their buffer was filled by somebody else meanwhile.
const SIDELINE: usize = 4;
/// `previous` of a block that was taken in a signal handler and is in no list yet.
pub(crate) const ORPHAN: u32 = NONE - 1;
/// `swept` of a block that was swept and is to be swept again; above all epochs. The epoch in which that was so is in `again`.
const AGAIN: u8 = 254;
/// `previous` of the first block of a list.
const FIRST: u32 = NONE;

/// The blocks of one class and kind.
struct List {
    /// The list was used: zeroed memory holds no list.
    ready: bool,
    /// The epoch for which the fields below are right.
    epoch: u8,
    sidelined: u8,
    head: u32,
    /// The next block to look at.
    cursor: u32,
    /// The block that is being swept, and its next cell to look at.
    current: u32,
    position: u32,
    /// Swept blocks in which cells were freed explicitly, to be swept again; linked through `size`.
    again: u32,
    /// Ready runs without a buffer.
    sideline: [[usize; 2]; SIDELINE],
}

/// The lists of one owner and class.
struct Central(UnsafeCell<[List; kind::MAX]>);

// SAFETY: the lists are used under the lock of the owner and class only.
unsafe impl Sync for Central {}

/// The first owner's lists, and in the setting all-shared the only ones.
static CENTRALS: [Central; COUNT] = [const { Central(UnsafeCell::new([const { List::UNUSED }; kind::MAX])) }; COUNT];
/// Address of the other owners' lists, zeroed until they are used; 0 where blocks have no owners.
///
/// Sync: written once, at initialisation.
static OTHERS: AtomicUsize = AtomicUsize::new(0);

/// How many owners have locks of their own; others share one with whoever has the same remainder.
const STRIPES: usize = 8;

/// The locks of an owner, on lines of their own.
#[repr(align(128))]
struct Stripe([Lock; COUNT]);

/// Guard the lists of owners and classes, and the list fields of their blocks. Rank: after the registry, before the pool.
static LOCKS: [Stripe; STRIPES] = [const { Stripe([const { Lock::new() }; COUNT]) }; STRIPES];

fn lock_of(owner: usize, class: usize) -> &'static Lock {
    &LOCKS[owner % STRIPES].0[class]
}

/// The locks that are in use.
fn locks() -> impl Iterator<Item = &'static Lock> {
    LOCKS[..if sharing::is_used() { STRIPES } else { 1 }].iter().flat_map(|stripe| &stripe.0)
}

fn central(owner: usize, class: usize) -> &'static Central {
    if owner == 0 {
        return &CENTRALS[class];
    }
    let at = OTHERS.load(Ordering::Relaxed) + ((owner - 1) * COUNT + class) * size_of::<Central>();
    // SAFETY: `map_lists` mapped as many, and there are owners only after it. Zeroes are lists that are not ready.
    unsafe { &*ptr::with_exposed_provenance::<Central>(at) }
}

/// Maps the lists of all owners but the first; what is not used costs no memory.
pub(crate) fn map_lists() -> Result<(), ReserveError> {
    let at = memory::map_lazy(Bytes((owners::MOST - 1) * COUNT * size_of::<Central>()))?;
    OTHERS.store(at.as_ptr().expose_provenance(), Ordering::Relaxed);
    Ok(())
}

/// Every owner and class whose lists may hold something.
fn centrals() -> impl Iterator<Item = (usize, &'static Central)> {
    let owners = if sharing::is_used() { HEAP.owners.figures().owners.max(1) } else { 1 };
    (0..owners).flat_map(|owner| (0..COUNT).map(move |class| (owner, central(owner, class))))
}

/// Whose lists a block is in: what nobody owns is in the first owner's.
fn list_owner(b: &Block) -> usize {
    if b.owner.get() == NONE { 0 } else { b.owner.get() as usize }
}

/// Blocks that were taken without a lock, in signal handlers; linked through `next`. Sync: its own; emptied in a stopped
/// world.
static ORPHANS: Intake = Intake::new();
const _: () = assert!(intake::END == NONE);

/// An owner's class, locked.
struct Locked {
    owner: usize,
    class: usize,
    guard: LockGuard<'static>,
}

impl Locked {
    fn new(owner: usize, class: usize) -> Self {
        Self { owner, class, guard: lock_of(owner, class).lock() }
    }

    fn list(&mut self, kind: usize) -> &mut List {
        let _ = &self.guard;
        // SAFETY: the guard holds the lock, and the borrow of `self` makes this the only reference.
        unsafe { &mut (*central(self.owner, self.class).0.get())[kind] }.made_ready()
    }
}

fn block(index: u32) -> &'static Block {
    // SAFETY: indices in lists are below the frontier.
    unsafe { HEAP.space.block(index as usize) }
}

/// Eight mark bytes of a block at once; reading eight atomic bytes one by one would cost several times as much.
///
/// Under the class's lock bytes change in one way only: a free that needs no lock clears one. Then this reads the old value or
/// the new, both of which are right: the cell is found now or by a later sweep.
fn bytes_of(marks: &[AtomicU8], at: usize) -> u64 {
    let p = marks[at..at + 8].as_ptr();
    let bytes;
    // SAFETY: eight bytes of the slice. One load, which Rust has no name for: others store single bytes meanwhile, and it need not be
    // aligned.
    unsafe {
        asm!("mov {bytes}, qword ptr [{p}]", bytes = out(reg) bytes, p = in(reg) p, options(nostack, readonly, preserves_flags));
    }
    bytes
}

/// Two block indices in one word.
fn pair(low: u32, high: u32) -> usize {
    low as usize | (high as usize) << 32
}

const LOW: u64 = 0x0101_0101_0101_0101;

/// First cell from `from` on that is not (or, with `live`, is) taken. Under the lock of a class the epochs do not change; without it the
/// answer is a hint.
fn find(marks: &[AtomicU8], from: usize, live: bool) -> usize {
    let epochs = Epochs::now();
    let mut at = from;
    let [young, old] = [epochs.young, epochs.old].map(|epoch| LOW * u64::from(epoch));
    while at < marks.len() {
        if !live && at + 8 <= marks.len() {
            let bytes = bytes_of(marks, at);
            if bytes == young || bytes == old {
                at += 8;
                continue;
            }
        }
        if epochs.is_allocated(marks[at].load(Ordering::Relaxed)) == live {
            return at;
        }
        at += 1;
    }
    marks.len()
}

/// Cells whose byte is the epoch.
fn count(marks: &[AtomicU8], epoch: u8) -> usize {
    let same = LOW * u64::from(epoch);
    let whole = marks.len() / 8 * 8;
    let words = (0..whole).step_by(8).map(|at| {
        let x = bytes_of(marks, at) ^ same;
        // The highest bit of a byte says whether any of its bits is set; no carry leaves a byte.
        let other = ((x & !(LOW << 7)) + (LOW * 0x7F)) | x;
        8 - (other & LOW << 7).count_ones() as usize
    });
    words.sum::<usize>() + marks[whole..].iter().filter(|m| m.load(Ordering::Relaxed) == epoch).count()
}

/// Cells that are taken. The caller as for [`find`].
fn count_taken(marks: &[AtomicU8]) -> usize {
    let Epochs { old, young, new, .. } = Epochs::now();
    let apart = |mark: u8, others: &[u8]| if others.contains(&mark) { 0 } else { count(marks, mark) };
    count(marks, young) + apart(old, &[young]) + apart(new, &[young, old])
}

impl List {
    /// All zeroes, which take no place in the library's file and no memory.
    const UNUSED: Self = Self { ready: false, head: 0, cursor: 0, current: 0, again: 0, ..Self::EMPTY };
    const EMPTY: Self = Self {
        ready: true,
        epoch: 0,
        sidelined: 0,
        head: NONE,
        cursor: NONE,
        current: NONE,
        position: 0,
        again: NONE,
        sideline: [[0; 2]; SIDELINE],
    };

    fn made_ready(&mut self) -> &mut Self {
        if !self.ready {
            *self = Self::EMPTY;
        }
        self
    }

    /// Has a swept block swept again.
    fn sweep_again(&mut self, index: u32, epoch: u8) {
        let b = block(index);
        b.swept.set(AGAIN);
        b.again.set(epoch);
        if self.again != NONE {
            let next = block(self.again);
            next.size.set(pair(self.again_links(next).0, index));
        }
        b.size.set(pair(self.again, NONE));
        self.again = index;
    }

    /// The next and previous block of one that is to be swept again.
    fn again_links(&self, b: &Block) -> (u32, u32) {
        (b.size.get() as u32, (b.size.get() >> 32) as u32)
    }

    /// Takes a block out of those to be swept again, if it is one of them: what an earlier epoch left does not count.
    fn forget_again(&mut self, index: u32) {
        let b = block(index);
        if b.swept.get() != AGAIN || b.again.get() != self.epoch {
            return;
        }
        let (next, previous) = self.again_links(b);
        if previous == NONE {
            self.again = next;
        } else {
            let before = block(previous);
            before.size.set(pair(next, self.again_links(before).1));
        }
        if next != NONE {
            let after = block(next);
            after.size.set(pair(self.again_links(after).0, previous));
        }
        b.swept.set(0);
    }

    /// Makes the list's fields right for the present epoch.
    fn renew(&mut self, epoch: u8) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.cursor = self.head;
            self.current = NONE;
            self.again = NONE;
            // Sidelined runs were retired at the stop.
            self.sidelined = 0;
        }
    }

    /// The next free run of the class in this list's blocks, `(block, first cell, cells)`.
    fn next_run(&mut self, epoch: u8, class: &Class) -> Option<(&'static Block, usize, usize)> {
        let most = (LONGEST_RUN / class.cell as usize).max(1);
        loop {
            if self.current == NONE && self.again != NONE {
                self.current = self.again;
                self.position = 0;
                self.forget_again(self.current);
            }
            if self.current == NONE {
                if self.cursor == NONE {
                    return None;
                }
                let b = block(self.cursor);
                point(Point::SweepNextBlock);
                self.current = self.cursor;
                self.position = 0;
                self.cursor = b.next.get();
                if self.cursor != NONE {
                    // It will be swept soon, after a few refills.
                    hint::prefetch(block(self.cursor).marks.get());
                }
                // What is to be swept again was swept, and its turn comes.
                if b.swept.get() == epoch {
                    self.current = NONE;
                    continue;
                }
            }
            let b = block(self.current);
            // SAFETY: blocks in lists are `Small`.
            let marks = unsafe { b.all_marks() };
            let from = find(marks, self.position as usize, false);
            if from == marks.len() {
                b.swept.set(epoch);
                self.current = NONE;
                continue;
            }
            let to = find(&marks[..marks.len().min(from + most)], from, true);
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
        self.forget_again(index);
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
fn format(run: Run, class: usize, kind: usize, owner: u32) -> &'static Block {
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
    b.owner.set(owner);
    b.frees_until_look.set(0);
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
fn claim(b: &Block, from: usize, cells: usize) {
    debug_assert!(b.state() == State::Small && !has_cell(b, from, cells, true), "a run that is claimed was free");
    set_marks(b, from, cells, concurrent::birth_mark(b.kind.get() as usize));
}

/// Whether any of the cells is taken (or, without `taken`, free).
fn has_cell(b: &Block, from: usize, cells: usize, taken: bool) -> bool {
    // SAFETY: the block is `Small`.
    let marks = unsafe { &b.all_marks()[from..from + cells] };
    find(marks, 0, taken) < cells
}

fn set_marks(b: &Block, from: usize, cells: usize, mark: u8) {
    // SAFETY: the block is `Small`.
    for m in unsafe { &b.all_marks()[from..from + cells] } {
        m.store(mark, Ordering::Relaxed);
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
    let _deferral = defer::enter();
    let registered = REGISTRY.current().is_some();
    point(Point::RefillEntered);
    if registered && let Some(run) = shelf::current(kind, class).and_then(|mut shelf| shelf.pop()) {
        point(Point::ShelfTaken);
        return Some(hand_out(kind, class, run, false, None));
    }
    let cell = refill_from_lists(kind, class, registered);
    // What these frames have left in the dead part of the stack would be taken for live in a client's frames to come, which do not write
    // all of their words.
    thread::clear_nearest_dead_frames();
    cell
}

/// As [`refill`], from the blocks' lists, in a deferral. Has a frame of its own.
#[inline(never)]
fn refill_from_lists(kind: usize, class: usize, registered: bool) -> Option<usize> {
    let c = &CLASSES[class];
    let cell = c.cell as usize;
    let owner = sharing::current();
    let lists = owner.unwrap_or(0);
    let mut origin = Origin::New;
    let mut locked = Locked::new(lists, class);
    point(Point::RefillLocked);
    let mut epoch = HEAP.epoch();
    let list = locked.list(kind);
    list.renew(epoch);
    let mut zero = false;
    let run = if list.sidelined > 0 {
        list.sidelined -= 1;
        zero = true;
        // Nothing stays behind: where the runtime is linked into the program, its data are roots.
        core::mem::take(&mut list.sideline[list.sidelined as usize])
    } else {
        let found = match list.next_run(epoch, c) {
            Some(found) => found,
            None => {
                drop(locked);
                point(Point::BeforeBlocks);
                let (run, fresh) = take_block(owner, Blocks(c.blocks as usize), &mut origin)?;
                point(Point::BlocksTaken);
                locked = Locked::new(lists, class);
                let list = locked.list(kind);
                // Only an unregistered thread can have missed a stop meanwhile.
                epoch = HEAP.epoch();
                list.renew(epoch);
                if let Some(found) = list.next_run(epoch, c) {
                    // Somebody else was faster; the block can wait.
                    sharing::give(owner.map_or(NONE, |owner| owner as u32), run, Release::Unused);
                    origin = Origin::New;
                    found
                } else {
                    zero = fresh;
                    format(run, class, kind, owner.map_or(NONE, |owner| owner as u32));
                    let index = run.first as u32;
                    list.link(index);
                    (list.current, list.position) = (index, 0);
                    list.next_run(epoch, c).expect("a new block is free")
                }
            }
        };
        let (b, from, cells) = found;
        point(Point::RunFound);
        claim(b, from, cells);
        let at = address(b, from);
        // A long block that is swept on does not know any more that its rest is zero; that is what clearing is for.
        [at, at + cells * cell]
    };
    let mut bytes = run[1] - run[0];
    // What the lock and the sweep cost is shared among several short runs.
    let mut more = [[0; 2]; shelf::MOST_RUNS - 1];
    let mut taken = 0;
    // Without shelves, where buffers belong to threads, the further runs would only be given back.
    if registered && !HEAP.labs.by_thread() {
        let list = locked.list(kind);
        while bytes < ENOUGH && taken < more.len() {
            let Some((b, from, cells)) = list.next_run(epoch, c) else { break };
            claim(b, from, cells);
            let at = address(b, from);
            more[taken] = [at, at + cells * cell];
            bytes += cells * cell;
            taken += 1;
        }
    }
    untold::count_refill(bytes);
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
        shelf::expect(more[0]);
        point(Point::RunsShelved);
    }
    let mut cell = 0;
    sharing::measured(origin, c.blocks as usize, || cell = hand_out(kind, class, run, zero, held));
    Some(cell)
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
            // The lists in which the run's block is, so that its next comer is of the same owner.
            let place = HEAP.space.place(run[0]).expect("a run lies in a block");
            let mut locked = held.unwrap_or_else(|| Locked::new(list_owner(place.block), class));
            let epoch = HEAP.epoch();
            put_aside(locked.list(kind), rest, epoch);
        }
    }
    point(Point::RunInstalled);
    run[0]
}

/// Whether a list may have sidelined runs: a stop looks through the lists only then. Sync: set under the lock of a class; the collector,
/// which has all of them, reads and clears.
static SIDELINED: AtomicBool = AtomicBool::new(false);

/// Keeps a run for the next comer, or returns it to its block.
fn put_aside(list: &mut List, run: [usize; 2], epoch: u8) {
    if list.epoch == epoch && (list.sidelined as usize) < SIDELINE {
        list.sideline[list.sidelined as usize] = run;
        list.sidelined += 1;
        SIDELINED.store(true, Ordering::Relaxed);
    } else {
        release(run[0], run[1]);
    }
}

/// Gives cells that were claimed but not handed out back to their block.
pub(crate) fn release(from: usize, to: usize) {
    let place = HEAP.space.place(from).expect("a run lies in a block");
    let cells = (to - from) / place.block.cell.get() as usize;
    debug_assert!(
        place.base == from && place.block.state() == State::Small && !has_cell(place.block, place.cell, cells, false),
        "a run that is given back was claimed"
    );
    set_marks(place.block, place.cell, cells, 0);
}

/// As [`release`], for a thread that gives its own buffers back while others may sweep the block.
pub(crate) fn release_locked(class: usize, from: usize, to: usize) {
    let place = HEAP.space.place(from).expect("a run lies in a block");
    let _locked = Locked::new(list_owner(place.block), class);
    release(from, to);
}

/// A free run of blocks for an owner, and whether it is known to be zero.
fn take_block(owner: Option<usize>, n: Blocks, origin: &mut Origin) -> Option<(Run, bool)> {
    let Some(owner) = owner else { return take_shared_blocks(n) };
    let (run, from) = sharing::take(owner, n)?;
    *origin = from;
    Some((run, run.zero))
}

/// A free run of blocks for nobody, and whether it is known to be zero: from the pool, from blocks that turn out to be empty,
/// from owners, fresh, or put together from neighbours in the pool.
pub(crate) fn take_shared_blocks(n: Blocks) -> Option<(Run, bool)> {
    if let Some(run) = HEAP.take_blocks(n) {
        return Some((run, run.zero));
    }
    // Before the heap grows, blocks of other classes are looked at: each cycle's garbage is found before new memory.
    while pacing::census(n) {
        if let Some(run) = HEAP.take_blocks(n) {
            return Some((run, run.zero));
        }
    }
    if sharing::is_used() && HEAP.owners.free().0 >= n.0 {
        // Owners' free blocks are no reason to grow: together they may be long enough.
        HEAP.owners.give_all(&HEAP.space, &HEAP.pool);
        if let Some(run) = HEAP.take_blocks(n) {
            return Some((run, run.zero));
        }
    }
    HEAP.grow(n).map(|run| (run, true)).or_else(|| {
        let run = HEAP.take_merged_blocks(n)?;
        Some((run, run.zero))
    })
}

/// Looks whether a block is empty, and gives it to the pool if so. Called by the census; the block may change meanwhile.
pub(crate) fn reclaim_if_empty(index: usize) -> bool {
    let b = block(index as u32);
    let is_empty = || {
        // SAFETY: the caller and the checks around see that the block is `Small`.
        b.state() == State::Small && find(unsafe { b.all_marks() }, 0, true) == b.cells.get() as usize
    };
    if !is_empty() || b.previous.get() == ORPHAN {
        return false;
    }
    point(Point::CensusCandidate);
    let (class, kind, owner) = (b.class.get() as usize, b.kind.get() as usize, b.owner.get());
    let mut locked = Locked::new(if owner == NONE { 0 } else { owner as usize }, class);
    // An unregistered thread can have missed a cycle meanwhile: what was allocated since bears another epoch than the one
    // that the first look asked for.
    let epoch = HEAP.epoch();
    let list = locked.list(kind);
    list.renew(epoch);
    // Between the look and the lock the block may have got a run, another class, or be on its way there.
    let same = b.state() == State::Small
        && (b.class.get() as usize, b.kind.get() as usize, b.owner.get()) == (class, kind, owner);
    if !same || !is_empty() || b.previous.get() == ORPHAN || cycle::is_marking_beside() {
        return false;
    }
    list.unlink(index as u32);
    let run = retire_block(b);
    drop(locked);
    sharing::give(owner, run, Release::Collected);
    true
}

/// The run of an empty block, or of a large object, that is in no list any more. The caller holds the lock of its class, or that of large
/// objects.
pub(crate) fn retire_block(b: &Block) -> Run {
    Run { first: HEAP.space.index_of(b), blocks: Blocks(b.blocks.get() as usize), zero: false }.retire(&HEAP.space)
}

/// Frees one cell explicitly without a lock, if nothing but its mark changes thereby: the sweep has not been through with its block, and
/// it is not worth a look yet whether the block is empty. False where that may not be so, or the cell is not allocated.
///
/// Another thread may be sweeping the block: it finds the cell free or not, and then the next sweep does. Two that free in one block at
/// once may count as one: the block is looked at later.
#[inline(always)]
pub(crate) fn free_alone(place: &Place) -> bool {
    let b = place.block;
    // No cycle begins or ends in here. Threads that are never stopped go the long way, and handlers that interrupted a slow path.
    let freed = defer::briefly(|| {
        let epochs = Epochs::now();
        let left = b.frees_until_look.get();
        if left <= 1 || b.swept.get() == epochs.young || epochs.marking() {
            return 0;
        }
        // SAFETY: the place is a cell of the block.
        let mark = unsafe { b.mark(place.cell) };
        if !epochs.is_unmarked(mark.load(Ordering::Relaxed)) {
            return 0;
        }
        let bytes = b.cell.get() as usize;
        b.frees_until_look.set(left - 1);
        point(Point::FreeAlone);
        // ORDER block.emptied: Release, with the lock of the class: while the byte is set nobody gives the block another use, and
        // what was written to its record before is not written to that of the next. The record is not read behind it either.
        mark.store(0, Ordering::Release);
        bytes
    });
    match freed {
        None | Some(0) => false,
        Some(bytes) => {
            count_freed(bytes);
            true
        }
    }
}

/// Frees one cell explicitly.
pub(crate) fn free_cell(place: &Place) {
    let b = place.block;
    // SAFETY: the place is a cell of the block.
    let mark = unsafe { b.mark(place.cell) };
    count_freed(b.cell.get() as usize);
    let class = b.class.get() as usize;
    let owner = list_owner(b);
    if defer::is_deferring() {
        // The interrupted code may hold a lock: the cell is found by the next sweep.
        mark.store(0, Ordering::Relaxed);
        return;
    }
    let _deferral = defer::enter();
    point(Point::FreeEntered);
    let mut locked = Locked::new(owner, class);
    point(Point::FreeLocked);
    let epoch = HEAP.epoch();
    let list = locked.list(b.kind.get() as usize);
    list.renew(epoch);
    mark.store(0, Ordering::Relaxed);
    let emptied = freed_in_block(list, b, epoch);
    drop(locked);
    if let Some(run) = emptied {
        sharing::give(b.owner.get(), run, Release::Explicit);
    }
    point(Point::FreeDone);
}

/// A cell of a block was freed explicitly: the block is swept again, or returned where nothing is left in it. The list is the block's,
/// locked and renewed.
///
/// Whether anything is left is looked at after as many frees as cells were found then: the block is returned by the free that
/// empties it, and most frees do not look.
fn freed_in_block(list: &mut List, b: &'static Block, epoch: u8) -> Option<Run> {
    let index = HEAP.space.index_of(b) as u32;
    if b.swept.get() == epoch {
        list.sweep_again(index, epoch);
    }
    let left = b.frees_until_look.get();
    if left > 1 {
        b.frees_until_look.set(left - 1);
        return None;
    }
    // SAFETY: the block is `Small`.
    let marks = unsafe { b.all_marks() };
    let live = count_taken(marks);
    if live > 0 || b.previous.get() == ORPHAN || cycle::is_marking_beside() {
        b.frees_until_look.set(live as u16);
        return None;
    }
    list.unlink(index);
    Some(retire_block(b))
}

/// Allocates a cell in a signal handler that interrupted a slow path: from a fresh block, without any lock. The rest of
/// the block is found by the sweep after the next cycle.
pub(crate) fn nested(kind: usize, class: usize) -> *mut u8 {
    let c = &CLASSES[class];
    let Some(run) = HEAP.grow_in_handler(Blocks(c.blocks as usize)) else { return ptr::null_mut() };
    let epoch = HEAP.epoch();
    // Before the block can be seen: no census may take it for an empty one of a list.
    block(run.first as u32).previous.set(ORPHAN);
    let b = format(run, class, kind, NONE);
    b.swept.set(epoch);
    claim(b, 0, 1);
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
    locks().for_each(Lock::lock_raw);
}

/// Gives them back.
///
/// # Safety
/// The caller took them with [`lock_all`].
pub(crate) unsafe fn unlock_all() {
    // SAFETY: the caller's promise.
    locks().for_each(|lock| unsafe { lock.unlock_raw() });
}

/// In a fork child: nobody holds them.
///
/// # Safety
/// The caller is the only thread of the process.
pub(crate) unsafe fn reset_after_fork() {
    // SAFETY: the caller's promise.
    locks().for_each(|lock| unsafe { lock.reset_after_fork() });
    // SAFETY: the caller's promise.
    unsafe { shelf::reset_after_fork() };
}

/// Returns what shelves hold to the blocks, and how many bytes that is. Such runs are claimed and not cleared yet: a marker that came upon
/// them would take what the memory held before for an object, and for its descriptor.
///
/// # Safety
/// The world is stopped and the caller holds the locks of all classes.
pub(crate) unsafe fn retire_shelves_in_stopped_world() -> usize {
    let mut bytes = 0;
    // SAFETY: the caller's promise.
    unsafe {
        shelf::empty_in_stopped_world(|run| {
            bytes += run[1] - run[0];
            release(run[0], run[1]);
        });
    }
    bytes
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
    bytes += unsafe { retire_shelves_in_stopped_world() };
    let epoch = HEAP.epoch();
    let has_sidelined = SIDELINED.swap(false, Ordering::Relaxed);
    for (_, central) in centrals().filter(|_| has_sidelined) {
        // SAFETY: the caller holds the lock.
        let lists = unsafe { &mut *central.0.get() };
        for list in &mut lists[..kind::count()] {
            if list.ready && list.epoch == epoch {
                for run in &mut list.sideline[..list.sidelined as usize] {
                    let [from, to] = core::mem::take(run);
                    bytes += to - from;
                    release(from, to);
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
            let lists = unsafe { &mut *CENTRALS[b.class.get() as usize].0.get() };
            lists[b.kind.get() as usize].made_ready().link(at);
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
    for (_, central) in centrals() {
        // SAFETY: the caller holds the lock.
        let list = unsafe { &(&(*central.0.get()))[kind] };
        let mut at = if list.ready { list.head } else { NONE };
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
    let mut locked = Locked::new(list_owner(b), class);
    if b.state() != State::Small || b.class.get() as usize != class || list_owner(b) != locked.owner {
        return;
    }
    let (epoch, epochs) = (HEAP.epoch(), Epochs::now());
    let list = locked.list(b.kind.get() as usize);
    list.renew(epoch);
    let is_of_this_epoch = match b.swept.get() {
        AGAIN => b.again.get() == epoch,
        swept => swept == epoch,
    };
    if !is_of_this_epoch {
        // Left by an earlier epoch: it must not be taken for one of this number, when that comes again.
        b.swept.set(0);
    }
    // SAFETY: the block is `Small`.
    for m in unsafe { b.all_marks() } {
        if !epochs.is_allocated(m.load(Ordering::Relaxed)) {
            m.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_an_epoch_are_counted_wherever_they_lie() {
        for n in [0, 1, 7, 8, 9, 64, 1023] {
            for (epoch, other) in [(1, 0), (1, 129), (253, 125), (128, 0), (127, 255)] {
                let marks: Vec<AtomicU8> =
                    (0..n).map(|i| AtomicU8::new(if i % 3 == 0 { epoch } else { other })).collect();
                assert_eq!(count(&marks, epoch), (n as usize).div_ceil(3), "{n} cells, {epoch} and {other}");
            }
        }
    }
}
