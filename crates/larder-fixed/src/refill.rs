//! Refill: the next free run of a block becomes the buffer of an index. The sweep is what finds runs.
//!
//! Each class has, in a few parts, a lock and, for each kind, a list of its blocks. After a cycle a list's cursor stands at its head;
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

use core::num::NonZeroUsize;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use larder_blocks::block::{Block, NONE, State};
use larder_blocks::class::{self, CLASSES};
use larder_blocks::owners::{Origin, Release};
use larder_blocks::pool::{End, KeptFor, Run};
use larder_blocks::space::Place;
use larder_lab::{Installed, slot_offset};
use larder_sync::intake::{self, Intake};
use larder_sys::hint;
use larder_threads::defer::Brief;
use larder_threads::{REGISTRY, defer};
use larder_units::Blocks;

use crate::epochs::{Epochs, may_be_freed_alone};
use crate::heap::HEAP;
use crate::inject::{Point, point};
use crate::stats::count_freed;
use crate::{concurrent, cycle, kind, large, pacing, sharing, shelf, untold};

mod lists;
mod marks;

use lists::{AGAIN, LONGEST_RUN, List, Locked, block, home, parts};
pub(crate) use lists::{ORPHAN, for_each_block, lock_all, map_owners_lists, map_parts, unlock_all};
use marks::{count_taken, fill, find};
pub(crate) use marks::{find_byte, mark_all};

/// Bytes of short runs that one refill takes at least, as far as there are any.
const ENOUGH: usize = LONGEST_RUN / 4 * 3;
/// Blocks that were taken without a lock, in signal handlers; linked through `next`. Sync: its own; emptied in a stopped
/// world.
static ORPHANS: Intake = Intake::new();
const _: () = assert!(intake::END == NONE);

/// Turns a run of blocks into one block of a class and kind, all of whose cells are free.
/// It goes into the lists of an owner, or of a part where that is `NONE`.
fn format(run: Run, class: usize, kind: usize, owner: u32, part: usize) -> &'static Block {
    let c = &CLASSES[class];
    // SAFETY: the run was just taken and is nobody else's.
    let b = unsafe { HEAP.space.block(run.first) };
    b.kind.set(kind as u8);
    b.class.set(class as u8);
    b.cell.set(c.cell);
    b.reciprocal.set(c.reciprocal);
    debug_assert!(c.may_be_long(run.blocks.0), "{} blocks for cells of {} bytes", run.blocks.0, c.cell);
    b.cells.set(c.cells_in(run.blocks.0) as u32);
    b.blocks.set(run.blocks.0 as u32);
    b.swept.set(0);
    b.size.set(0);
    b.owner.set(owner);
    b.set_part(part);
    b.frees_until_look.set(0);
    b.descriptor.set(kind::descriptor(kind, c.cell as usize));
    b.marks.set(HEAP.space.marks_of(run.first, c.mark_shift));
    // SAFETY: the mark bytes of this block.
    fill(unsafe { b.all_marks() }, 0);
    add_tails(b, run);
    b.set_state(State::Small);
    b
}

/// Makes the later blocks of a run tails of the first. If something was ever freed explicitly in one of them, it was in the first.
pub(crate) fn add_tails(b: &Block, run: Run) {
    for i in 1..run.blocks.0 {
        // SAFETY: a block of the run.
        let tail = unsafe { HEAP.space.block(run.first + i) };
        if tail.was_freed_in() {
            b.note_free();
        }
        tail.head.set(run.first as u32);
        tail.set_state(State::Tail);
    }
}

/// Marks a run's cells as handed out.
fn claim(b: &Block, from: usize, cells: usize) {
    // ORDER births.zero: Release, with the fence in `descriptor::resolve`: a marker beside the program that sees one of these marks sees zeroes, where they
    // have to be there before, or what was written since.
    fence(Ordering::Release);
    debug_assert!(b.state() == State::Small && !has_cell(b, from, cells, true), "a run that is claimed was free");
    // ORDER block.freed: Acquire, with the stores of marks in `free_alone` and `free_cell`, for the note of the free.
    fence(Ordering::Acquire);
    set_marks(b, from, cells, concurrent::birth_mark(b, cells * b.cell.get() as usize));
}

/// Whether any of the cells is taken (or, without `taken`, free).
fn has_cell(b: &Block, from: usize, cells: usize, taken: bool) -> bool {
    // SAFETY: the block is `Small`.
    let marks = unsafe { &b.all_marks()[from..from + cells] };
    find(marks, 0, taken) < cells
}

fn set_marks(b: &Block, from: usize, cells: usize, mark: u8) {
    // SAFETY: the block is `Small`.
    fill(unsafe { &b.all_marks()[from..from + cells] }, mark);
}

fn address(b: &Block, cell: usize) -> usize {
    HEAP.space.address_of(HEAP.space.index_of(b)) + cell * b.cell.get() as usize
}

fn clear(run: [usize; 2]) {
    // SAFETY: the run's cells are free and claimed by this refill.
    unsafe { ptr::write_bytes(ptr::with_exposed_provenance_mut::<u8>(run[0]), 0, run[1] - run[0]) };
}

/// Ends the watch over a run that is about to be written to, and clears it where its kind wants that.
fn make_ready(kind: usize, run: [usize; 2]) {
    concurrent::about_to_write(run[0], run[1]);
    concurrent::about_to_refill(run[0], run[1]);
    if kind::cleared(kind) {
        clear(run);
    }
}

/// Whether cells are made zero before they are claimed, and not after: whoever marks beside the program may come upon a cell as soon as it is claimed, and takes
/// what it holds for its descriptor. Under the lock of the class no cycle begins.
fn is_zero_before_claimed(kind: usize) -> bool {
    kind::names_own_descriptor(kind) && kind::cleared(kind) && Epochs::now().marking()
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
    refill_from_lists(kind, class, registered)
}

/// The first cell of the run that lies uppermost on the current index's shelf; the rest of the run becomes the index's buffer. `None` where there is none,
/// and for threads that a slow path has to see to. Among survivors, and where the program frees, most runs are a cell or two long: this is all
/// that happens then, but for one allocation in [`shelf::MOST_RUNS`]. Has a frame of its own, which the caller clears.
#[inline(never)]
pub(crate) fn from_shelf(kind: usize, class: usize) -> Option<usize> {
    let mut cell = None;
    let brief = defer::briefly(|| {
        let Some(run) = shelf::current(kind, class).and_then(|mut shelf| shelf.pop()) else { return false };
        point(Point::ShelfTaken);
        cell = Some(hand_out(kind, class, run, false, None));
        true
    });
    if brief.pending {
        defer::answer();
    }
    cell
}

/// As [`refill`], from the blocks' lists, in a deferral. Has a frame of its own.
#[inline(never)]
fn refill_from_lists(kind: usize, class: usize, registered: bool) -> Option<usize> {
    let c = &CLASSES[class];
    let cell = c.cell as usize;
    let owner = sharing::current();
    let parts = if owner.is_some() { 1 } else { parts() };
    let lists = owner.unwrap_or_else(|| home(class));
    let mut origin = Origin::New;
    let mut locked = if owner.is_some() { Locked::new(lists, class) } else { Locked::near(lists, class, parts) };
    point(Point::RefillLocked);
    let mut zero = false;
    let (first, mut looked_at) = (locked.owner, 1);
    // How long the new block is to be, once one is wanted.
    let mut length = None;
    let run = loop {
        // Only an unregistered thread can have missed a stop between two locks.
        let epoch = HEAP.epoch();
        let list = locked.list(kind);
        list.renew(epoch);
        if let Some(run) = list.take_sidelined() {
            zero = true;
            break run;
        }
        let found = match list.next_run(epoch, class) {
            Some(found) => found,
            None => {
                // Owners' free runs are as long as blocks are at most.
                let have = || if owner.is_some() { c.blocks as usize } else { list.blocks() };
                let n = *length.get_or_insert_with(|| Blocks(c.length_after(have())));
                drop(locked);
                point(Point::BeforeBlocks);
                let (run, fresh) = if looked_at == parts {
                    match take_block(owner, n, kind, &mut origin) {
                        Some(taken) => taken,
                        // Survivors may lie in every long run.
                        None if owner.is_none() && n.0 > c.shortest() => {
                            take_block(None, Blocks(c.shortest()), kind, &mut origin)?
                        }
                        None => return None,
                    }
                } else if let Some(run) = HEAP.pool.take_resident_soon(&HEAP.space, n, End::Low) {
                    // A block of its own rather than what others have left, or are freeing just now: the heap need not grow for it.
                    (run, false)
                } else {
                    locked = Locked::new((first + looked_at) % parts, class);
                    looked_at += 1;
                    continue;
                };
                point(Point::BlocksTaken);
                locked = Locked::new(lists, class);
                let list = locked.list(kind);
                let epoch = HEAP.epoch();
                list.renew(epoch);
                if let Some(found) = list.next_run(epoch, class) {
                    // Somebody else was faster; the block can wait.
                    sharing::give(owner.map_or(NONE, |owner| owner as u32), run, Release::Unused);
                    origin = Origin::New;
                    found
                } else {
                    zero = fresh;
                    format(run, class, kind, owner.map_or(NONE, |owner| owner as u32), lists);
                    list.begin(run.first as u32);
                    list.next_run(epoch, class).expect("a new block is free")
                }
            }
        };
        let (b, from, cells) = found;
        point(Point::RunFound);
        let at = address(b, from);
        if !zero && is_zero_before_claimed(kind) {
            make_ready(kind, [at, at + cells * cell]);
            zero = true;
        }
        claim(b, from, cells);
        // A long block that is swept on does not know any more that its rest is zero; that is what clearing is for.
        break [at, at + cells * cell];
    };
    let mut bytes = run[1] - run[0];
    // What the lock and the sweep cost is shared among several short runs.
    let mut more = [[0; 2]; shelf::MOST_RUNS - 1];
    let mut taken = 0;
    // Without shelves, where buffers belong to threads, the further runs would only be given back.
    if registered && !HEAP.labs.by_thread() {
        let epoch = HEAP.epoch();
        let list = locked.list(kind);
        while bytes < ENOUGH && taken < more.len() {
            let Some((b, from, cells)) = list.next_run(epoch, class) else { break };
            let at = address(b, from);
            if is_zero_before_claimed(kind) {
                make_ready(kind, [at, at + cells * cell]);
            }
            claim(b, from, cells);
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
        if kind::cleared(kind) && Epochs::now().marking() && !is_zero_before_claimed(kind) {
            // They may have been born marked, and lie on pages that are scanned once more: what dead objects have left there would keep others, and
            // those the ones that died after them, for as long as there are such runs.
            more[..taken].iter().for_each(|&run| make_ready(kind, run));
        }
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
#[inline]
fn hand_out(kind: usize, class: usize, run: [usize; 2], zero: bool, held: Option<Locked>) -> usize {
    let cell = CLASSES[class].cell as usize;
    if !zero {
        make_ready(kind, run);
    }
    point(Point::RunCleared);
    let rest = [run[0] + cell, run[1]];
    if rest[0] < rest[1] {
        // SAFETY: the rest is ready, ours, and a whole number of cells.
        let installed = unsafe { HEAP.labs.install(slot_offset(kind, class), cell, rest) };
        if installed == Installed::No {
            put_aside(kind, class, rest, held);
        }
    }
    point(Point::RunInstalled);
    run[0]
}

/// Keeps a ready run for the next comer, or gives it back: somebody else has filled the buffer meanwhile.
#[cold]
#[inline(never)]
fn put_aside(kind: usize, class: usize, run: [usize; 2], held: Option<Locked>) {
    // The lists in which the run's block is, so that its next comer is of the same owner.
    let place = HEAP.space.place(run[0]).expect("a run lies in a block");
    let mut locked = held.unwrap_or_else(|| Locked::new(place.block.lists(), class));
    let epoch = HEAP.epoch();
    if !locked.list(kind).put_aside(run, epoch) {
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
    let _locked = Locked::new(place.block.lists(), class);
    release(from, to);
}

/// A free run of blocks for an owner's objects of a kind, and whether it is known to be zero; then it has memory behind it, but for a small heap's.
fn take_block(owner: Option<usize>, n: Blocks, kind: usize, origin: &mut Origin) -> Option<(Run, bool)> {
    // What has no pointers is not watched by cycles beside the program: the more of it lies together, the fewer parts they watch.
    let (end, kept_for) =
        if kind::is_pointer_free(kind) { (End::High, KeptFor::PointerFree) } else { (End::Low, KeptFor::Pointers) };
    let run = match owner {
        None => match take_free_blocks(n, end) {
            Some(run) => run,
            None => match HEAP.grow_apart(n, kept_for) {
                Some(run) => return Some((run, true)),
                None => HEAP.take_merged_blocks(n)?,
            },
        },
        Some(owner) => {
            let (run, from) = sharing::take(owner, n)?;
            *origin = from;
            run
        }
    };
    if run.zero {
        HEAP.space.have_pages_behind(run.first, run.blocks);
    }
    Some((run, run.zero))
}

/// A free run of blocks for a large object, and whether it is known to be zero: free ones, fresh, or put together from neighbours in the pool.
pub(crate) fn take_blocks_of_large(n: Blocks) -> Option<(Run, bool)> {
    let run = take_free_blocks(n, End::Low).or_else(|| HEAP.grow(n)).or_else(|| HEAP.take_merged_blocks(n))?;
    Some((run, run.zero))
}

/// A free run of blocks for nobody: from the pool, from blocks that turn out to be empty, or from owners.
fn take_free_blocks(n: Blocks, end: End) -> Option<Run> {
    if let Some(run) = HEAP.take_blocks(n, end) {
        return Some(run);
    }
    if large::sweep()
        && let Some(run) = HEAP.take_blocks(n, end)
    {
        return Some(run);
    }
    // Before the heap grows, blocks of other classes are looked at: each cycle's garbage is found before new memory.
    while pacing::census(n) {
        if let Some(run) = HEAP.take_blocks(n, end) {
            return Some(run);
        }
    }
    if sharing::is_used() && HEAP.owners.free().0 >= n.0 {
        // Owners' free blocks are no reason to grow: together they may be long enough.
        HEAP.owners.give_all(&HEAP.space, &HEAP.pool);
        return HEAP.take_blocks(n, end);
    }
    None
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
    let (class, kind, owner, lists) = (b.class.get() as usize, b.kind.get() as usize, b.owner.get(), b.lists());
    let mut locked = Locked::new(lists, class);
    // An unregistered thread can have missed a cycle meanwhile: what was allocated since bears another epoch than the one
    // that the first look asked for.
    let epoch = HEAP.epoch();
    let list = locked.list(kind);
    list.renew(epoch);
    // Between the look and the lock the block may have got a run, another class, or be on its way there.
    let same = b.state() == State::Small
        && (b.class.get() as usize, b.kind.get() as usize, b.owner.get(), b.lists()) == (class, kind, owner, lists);
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
    let run = Run { first: HEAP.space.index_of(b), blocks: Blocks(b.blocks.get() as usize), zero: false };
    if b.was_freed_in() {
        // Each block may be used by itself next.
        // SAFETY: blocks of the run.
        (1..run.blocks.0).for_each(|i| unsafe { HEAP.space.block(run.first + i) }.note_free());
    }
    run.retire(&HEAP.space)
}

/// In `frees_until_look`, of a block whose objects the client counts: [`free_alone`] does not free them, [`free_counted`] does. Two bits, so that neither
/// takes what was counted beyond 0 for frees that are left.
const COUNTED: u16 = 0b11 << 14;
const _: () = {
    let mut class = 0;
    while class < class::COUNT {
        assert!(CLASSES[class].cells < 1 << COUNTED.trailing_zeros());
        class += 1;
    }
};

/// Frees one cell as [`free_alone`] does, in a block whose objects the client counts; the caller tells the client.
#[inline(always)]
pub(crate) fn free_counted(b: &Block, cell: usize) -> Brief {
    alone(b, cell, |left| (COUNTED + 2..=COUNTED + class::MOST_CELLS as u16).contains(&left))
}

/// Frees one cell explicitly without a lock, if nothing but its mark changes thereby: the sweep has not been through with its block, and
/// it is not worth a look yet whether the block is empty. False where that may not be so, the cell is not allocated, or the block holds
/// no cells.
///
/// Another thread may be sweeping the block: it finds the cell free or not, and then the next sweep does. Two that free in one block at
/// once may count as one, so that the block is looked at later, or both beyond 0, as who counts while a sweep ends: then the next free looks.
#[inline(always)]
pub(crate) fn free_alone(b: &Block, cell: usize) -> Brief {
    // Signed: the uppermost bit is one of `COUNTED`.
    alone(b, cell, |left| left as i16 > 1)
}

/// As [`free_alone`], where `may` finds no need for a look in `frees_until_look`.
#[inline(always)]
fn alone(b: &Block, cell: usize, may: impl FnOnce(u16) -> bool) -> Brief {
    // No cycle begins or ends in here. Threads that are never stopped go the long way, and handlers that interrupted a slow path.
    defer::briefly(|| {
        if !may(b.frees_until_look.get()) && hint::unusual() {
            return false;
        }
        // SAFETY: frees are counted in `Small` blocks alone, and the caller's cell is below `cells`.
        let mark = unsafe { b.mark(cell) };
        if !may_be_freed_alone(mark.load(Ordering::Relaxed)) {
            return false;
        }
        let bytes = b.cell.get() as usize;
        debug_assert!(b.was_freed_in(), "the free that began to count said so");
        // Read anew: with what was compared in a register it would take three instructions, and not one.
        b.frees_until_look.set(b.frees_until_look.get().wrapping_sub(1));
        point(Point::FreeAlone);
        // ORDER block.emptied: Release, with the lock of the class: while the byte is set nobody gives the block another use, and
        // what was written to its record before is not written to that of the next. The record is not read behind it either.
        // ORDER block.freed: Release, with the fence in `claim`.
        mark.store(0, Ordering::Release);
        count_freed(bytes);
        true
    })
}

/// Frees one cell explicitly.
pub(crate) fn free_cell(place: &Place) {
    let b = place.block;
    // SAFETY: the place is a cell of the block.
    let mark = unsafe { b.mark(place.cell) };
    let bytes = b.cell.get() as usize;
    count_freed(bytes);
    b.note_free();
    let class = b.class.get() as usize;
    let owner = b.lists();
    if defer::is_deferring() {
        // The interrupted code may hold a lock: the cell is found by the next sweep.
        concurrent::count_lost_mark(mark.load(Ordering::Relaxed), bytes);
        // ORDER block.freed: Release, with the fence in `claim`.
        mark.store(0, Ordering::Release);
        return;
    }
    let _deferral = defer::enter();
    point(Point::FreeEntered);
    let mut locked = Locked::new(owner, class);
    point(Point::FreeLocked);
    let epoch = HEAP.epoch();
    let list = locked.list(b.kind.get() as usize);
    list.renew(epoch);
    concurrent::count_lost_mark(mark.load(Ordering::Relaxed), bytes);
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
    // Frees without the lock may have counted beyond 0, several at once.
    if (2..=class::MOST_CELLS as u16).contains(&(left & !COUNTED)) {
        b.frees_until_look.set(left - 1);
        return None;
    }
    // SAFETY: the block is `Small`.
    let marks = unsafe { b.all_marks() };
    let live = count_taken(marks);
    if live > 0 || b.previous.get() == ORPHAN || cycle::is_marking_beside() {
        let counted = if kind::uncollectable(b.kind.get() as usize) { COUNTED } else { 0 };
        b.frees_until_look.set(live as u16 | counted);
        return None;
    }
    list.unlink(index);
    Some(retire_block(b))
}

/// The next cell of the block that nested allocations of a kind and class share; 0 where there is none. It and those behind it are
/// claimed, as a buffer's are.
///
/// Sync: label `refill.reserve`. Threads that come here are registered and defer stops, and every stop of a cycle empties it. Each block is
/// fresh, so no address comes twice.
static RESERVE: [[AtomicUsize; class::COUNT]; kind::MAX] =
    [const { [const { AtomicUsize::new(0) }; class::COUNT] }; kind::MAX];

/// Whether `RESERVE` may hold something. Sync: set before a cell is put there; cleared in a stopped world.
static HAS_RESERVE: AtomicBool = AtomicBool::new(false);

/// Allocates a cell in a signal handler that interrupted a slow path, without any lock: behind the one that such a handler got
/// last, or from a fresh block. A handler that took a block for each of its objects could take longer than until the next signal, and
/// the code that it interrupted would never go on.
#[cold]
pub(crate) fn nested(kind: usize, class: usize) -> *mut u8 {
    // A thread that no stop waits for could put cells there behind the back of the one that empties it.
    if REGISTRY.current().is_none() {
        return nested_fresh(kind, class, false);
    }
    match take_reserved(kind, class) {
        Some(cell) => ptr::with_exposed_provenance_mut(cell),
        None => nested_fresh(kind, class, true),
    }
}

/// A cell of the shared block.
fn take_reserved(kind: usize, class: usize) -> Option<usize> {
    let reserve = &RESERVE[kind][class];
    // ORDER refill.reserve: Acquire, with the Release in `nested_fresh`: the block's record is read below.
    let mut cell = reserve.load(Ordering::Acquire);
    loop {
        let place = HEAP.space.place(NonZeroUsize::new(cell)?.get())?;
        let is_last = place.cell + 1 == place.block.cells.get() as usize;
        let next = if is_last { 0 } else { cell + place.block.cell.get() as usize };
        match reserve.compare_exchange_weak(cell, next, Ordering::Relaxed, Ordering::Acquire) {
            Ok(_) => return Some(cell),
            Err(now) => cell = now,
        }
    }
}

/// The first cell of a fresh block, whose others are the next such handlers' if it is shared. What another one put there meanwhile is found
/// by the sweep after the next cycle, as is the rest of a block that is not shared.
#[inline(never)]
fn nested_fresh(kind: usize, class: usize, shared: bool) -> *mut u8 {
    let c = &CLASSES[class];
    let Some(run) = HEAP.grow_in_handler(Blocks(c.shortest())) else { return ptr::null_mut() };
    let epoch = HEAP.epoch();
    // Before the block can be seen: no census may take it for an empty one of a list.
    block(run.first as u32).previous.set(ORPHAN);
    let b = format(run, class, kind, NONE, 0);
    b.set_swept(epoch);
    let cells = if shared { b.cells.get() as usize } else { 1 };
    claim(b, 0, cells);
    adopt_later(run.first as u32);
    HEAP.count_allocated(cells * c.cell as usize);
    if cells > 1 {
        HAS_RESERVE.store(true, Ordering::Relaxed);
        // ORDER refill.reserve: Release, with the loads in `take_reserved`.
        RESERVE[kind][class].store(address(b, 1), Ordering::Release);
    }
    ptr::with_exposed_provenance_mut(address(b, 0))
}

/// Returns what nested allocations did not take to the blocks, and how many bytes that is.
///
/// # Safety
/// The world is stopped and the caller holds the locks of all classes.
unsafe fn retire_reserve_in_stopped_world() -> usize {
    if !HAS_RESERVE.swap(false, Ordering::Relaxed) {
        return 0;
    }
    let mut bytes = 0;
    for reserve in RESERVE.iter().flatten() {
        let from = reserve.swap(0, Ordering::Relaxed);
        if from != 0 {
            let block = HEAP.space.place(from).expect("a reserve lies in a block").block;
            let to = address(block, block.cells.get() as usize);
            bytes += to - from;
            release(from, to);
        }
    }
    bytes
}

/// Leaves a block for the next cycle to put into its list.
pub(crate) fn adopt_later(index: u32) {
    let b = block(index);
    b.previous.set(ORPHAN);
    ORPHANS.add(index, |next| b.next.set(next));
}

/// In a fork child: nobody holds them.
///
/// # Safety
/// The caller is the only thread of the process.
pub(crate) unsafe fn reset_after_fork() {
    // SAFETY: the caller's promise, for both.
    unsafe {
        lists::reset_locks_after_fork();
        shelf::reset_after_fork();
    }
}

/// Returns what shelves and the reserve of handlers hold to the blocks, and how many bytes that is. A shelf's runs are claimed and not
/// cleared yet: a marker that came upon them would take what the memory held before for an object, and for its descriptor.
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
        bytes + retire_reserve_in_stopped_world()
    }
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
    // SAFETY: the caller's promise.
    unsafe {
        lists::take_all_sidelined(epoch, |[from, to]| {
            bytes += to - from;
            release(from, to);
        });
    }
    let mut at = ORPHANS.take_all();
    while at != NONE {
        let b = block(at);
        let next = b.next.get();
        if b.state() == State::Large {
            crate::large::adopt(at);
        } else {
            // SAFETY: the caller's promise.
            unsafe { lists::adopt(b.class.get() as usize, b.kind.get() as usize, at) };
        }
        at = next;
    }
    bytes
}

/// Clears the mark bytes of free cells in a block, so that no byte of an old epoch can be mistaken for a new one after
/// the epochs have started over.
pub(crate) fn forget_old_epochs(index: usize) {
    let b = block(index as u32);
    if b.state() != State::Small {
        return;
    }
    let class = b.class.get() as usize;
    let mut locked = Locked::new(b.lists(), class);
    if b.state() != State::Small || b.class.get() as usize != class || b.lists() != locked.owner {
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
