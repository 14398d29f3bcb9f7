//! Large objects: runs of blocks, one object each.

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use larder_blocks::block::{Block, NONE, State};
use larder_blocks::pool::Run;
use larder_sync::lock::Lock;
use larder_threads::defer;
use larder_units::{BLOCK, Bytes};

use crate::epochs::Epochs;
use crate::heap::HEAP;
use crate::inject::{Point, point};
use crate::pacing::Shortage;
use crate::{concurrent, cycle, kind, refill};

/// The list of large objects. Rank of the lock: after the classes, before the pool.
pub(crate) static LOCK: Lock = Lock::new();

struct Head(UnsafeCell<u32>);
// SAFETY: used under `LOCK` only, or in a stopped world by the collector, who holds it.
unsafe impl Sync for Head {}
static HEAD: Head = Head(UnsafeCell::new(NONE));

/// What the last cycle found dead is in the list yet.
///
/// Sync: set in a stopped world; cleared under `LOCK`, before the cycle's lock is given back. A hint to who has not that lock.
static UNSWEPT: AtomicBool = AtomicBool::new(false);

/// How many there are. Sync: `LOCK`; a hint to others.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// How many large objects there are, more or less.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

fn block(index: u32) -> &'static Block {
    // SAFETY: indices in the list are below the frontier.
    unsafe { HEAP.space.block(index as usize) }
}

/// Puts an object's first block into the list. The caller holds `LOCK`.
fn link(index: u32) {
    // SAFETY: the caller holds the lock.
    let head = unsafe { &mut *HEAD.0.get() };
    COUNT.store(count() + 1, Ordering::Relaxed);
    let b = block(index);
    b.previous.set(NONE);
    b.next.set(*head);
    if *head != NONE {
        block(*head).previous.set(index);
    }
    *head = index;
}

/// The caller holds `LOCK`.
fn unlink(index: u32) {
    // SAFETY: the caller holds the lock.
    let head = unsafe { &mut *HEAD.0.get() };
    COUNT.store(count() - 1, Ordering::Relaxed);
    let b = block(index);
    let (previous, next) = (b.previous.get(), b.next.get());
    if previous == NONE {
        *head = next;
    } else {
        block(previous).next.set(next);
    }
    if next != NONE {
        block(next).previous.set(previous);
    }
}

/// A block that was taken in a signal handler enters the list. World stopped, the collector holds `LOCK`.
pub(crate) fn adopt(index: u32) {
    link(index);
}

/// The size of a large object for a request, if there is such a number.
pub(crate) fn size_for(bytes: usize) -> Option<usize> {
    bytes.checked_add(HEAP.round.load(Ordering::Relaxed)).map(|n| n & !15)
}

/// Allocates a large object; null when memory is exhausted even after cycles.
#[cold]
pub(crate) fn allocate(kind: usize, bytes: usize) -> *mut u8 {
    let Some(size) = size_for(bytes) else { return ptr::null_mut() };
    let blocks = Bytes(size).to_blocks_rounded_up();
    if blocks.0 > HEAP.space.reserved().0 {
        return ptr::null_mut();
    }
    if defer::is_deferring() {
        return HEAP.grow_in_handler(blocks).map_or(ptr::null_mut(), |run| {
            let at = publish(run, kind, size);
            refill::adopt_later(run.first as u32);
            at
        });
    }
    cycle::collect_if_stressed();
    concurrent::attend(size);
    // Whoever goes for a cycle that is not due has the group's files read, and takes the cycle's locks, before that turns out.
    if HEAP.cycle_due() {
        cycle::collect_due();
    }
    let mut shortage = Shortage::of(Bytes(size));
    loop {
        if let Some(at) = take(kind, size) {
            return at;
        }
        if !shortage.collect() {
            return ptr::null_mut();
        }
    }
}

/// Makes an object of a free run, without a cycle. `size` is a multiple of 16, and not 0.
pub(crate) fn take(kind: usize, size: usize) -> Option<*mut u8> {
    let (run, zero) = {
        let _deferral = defer::enter();
        let (run, zero) = refill::take_blocks_of_large(Bytes(size).to_blocks_rounded_up())?;
        if !zero {
            let at = HEAP.space.address_of(run.first);
            concurrent::about_to_write(at, at + size);
        }
        (run, zero)
    };
    point(Point::LargeTaken);
    if !zero && kind::cleared(kind) {
        // Nobody knows the run yet, so this thread may be stopped while it clears, and before.
        concurrent::about_to_clear(HEAP.space.address_of(run.first), HEAP.space.address_of(run.first) + size);
        // SAFETY: the run is ours.
        unsafe {
            ptr::write_bytes(ptr::with_exposed_provenance_mut::<u8>(HEAP.space.address_of(run.first)), 0, size);
        }
    }
    let _deferral = defer::enter();
    let _guard = LOCK.lock();
    point(Point::LargeLocked);
    let at = publish(run, kind, size);
    link(run.first as u32);
    Some(at)
}

/// Writes the records of an object and marks it allocated. The caller is in a deferral.
fn publish(run: Run, kind: usize, size: usize) -> *mut u8 {
    // SAFETY: the run is the caller's.
    let b = unsafe { HEAP.space.block(run.first) };
    b.kind.set(kind as u8);
    b.cells.set(1);
    b.blocks.set(run.blocks.0 as u32);
    b.size.set(size);
    b.cell.set(0);
    b.descriptor.set(kind::descriptor(kind, size));
    b.marks.set(HEAP.space.marks_of(run.first, 6));
    refill::add_tails(b, run);
    // SAFETY: the first mark byte of the block.
    unsafe { b.mark(0) }.store(concurrent::birth_mark(b, run.blocks.to_bytes().0), Ordering::Relaxed);
    b.set_state(State::Large);
    HEAP.count_allocated(run.blocks.0 * BLOCK.0);
    ptr::with_exposed_provenance_mut(HEAP.space.address_of(run.first))
}

/// Makes a large object longer, where its last block has room for so many bytes; what is new of it is zero, unless its kind says otherwise. Whether
/// it is. The caller has the object, whose kind scans all of it or nothing.
pub(crate) fn extend(b: &'static Block, bytes: usize) -> bool {
    let (kind, old) = (b.kind.get() as usize, b.size.get());
    let Some(size) = size_for(bytes).filter(|&size| size <= counted(b)) else { return false };
    // No stop finds one of the two without the other. A marker beside the program may, and the rest after what was written there, if anything.
    let _deferral = defer::enter();
    if size > old {
        if kind::cleared(kind) {
            let new = HEAP.space.address_of(HEAP.space.index_of(b)) + old;
            // SAFETY: in the object's own run, behind what anybody knows of it.
            unsafe { ptr::write_bytes(ptr::with_exposed_provenance_mut::<u8>(new), 0, size - old) };
        }
        b.size.set(size);
        b.descriptor.set(kind::descriptor(kind, size));
    }
    true
}

/// Bytes that count as allocated for a large object: its blocks, whole.
pub(crate) fn counted(b: &Block) -> usize {
    b.blocks.get() as usize * BLOCK.0
}

/// Frees a large object explicitly.
pub(crate) fn free(b: &'static Block) {
    let index = HEAP.space.index_of(b);
    b.note_free();
    if defer::is_deferring() || b.previous.get() == refill::ORPHAN {
        // The interrupted code may hold the lock, or the object is in no list yet: the next cycle finds it.
        // SAFETY: the first mark byte.
        unsafe { b.mark(0) }.store(0, Ordering::Relaxed);
        return;
    }
    let _deferral = defer::enter();
    let guard = LOCK.lock();
    // What was counted when it was made: the difference would look like garbage, and bring cycles that find none.
    HEAP.freed.fetch_add(counted(b), Ordering::Relaxed);
    if cycle::is_marking_beside() {
        // A marker may be looking at it: the cycle frees it when it ends.
        // SAFETY: the first mark byte.
        let mark = unsafe { b.mark(0) };
        concurrent::count_lost_mark(mark.load(Ordering::Relaxed), counted(b));
        mark.store(0, Ordering::Relaxed);
        return;
    }
    unlink(index as u32);
    let run = refill::retire_block(b);
    drop(guard);
    HEAP.pool.give(&HEAP.space, run);
}

/// A cycle has marked: what it did not mark is dead. World stopped, the collector has the cycle's lock.
pub(crate) fn begin_sweep() {
    UNSWEPT.store(true, Ordering::Relaxed);
}

/// Frees every large object that the last cycle did not mark, if nobody has yet. After the world was resumed. False where there was nothing to do.
///
/// The collector does before it gives the cycle's lock back. It may lose its CPU until then to those that it has woken, who would make the heap
/// grow: so who finds no free run does it, too.
pub(crate) fn sweep() -> bool {
    if !UNSWEPT.load(Ordering::Relaxed) {
        return false;
    }
    let _deferral = defer::enter();
    let _guard = LOCK.lock();
    if !UNSWEPT.load(Ordering::Relaxed) {
        // Somebody was faster.
        return true;
    }
    // Under the lock: the next cycle begins when this is done.
    let epochs = Epochs::now();
    debug_assert!(!epochs.marking(), "what is dead is freed before the next cycle marks");
    // SAFETY: we hold the lock.
    let mut at = unsafe { *HEAD.0.get() };
    while at != NONE {
        let b = block(at);
        let next = b.next.get();
        // SAFETY: the first mark byte.
        if !epochs.is_allocated(unsafe { b.mark(0) }.load(Ordering::Relaxed)) {
            unlink(at);
            // With the list locked: between the two locks `next` could be freed explicitly by its owner.
            HEAP.pool.give(&HEAP.space, refill::retire_block(b));
        }
        at = next;
    }
    UNSWEPT.store(false, Ordering::Relaxed);
    true
}

/// Calls `f` for every large object's block.
///
/// # Safety
/// The world is stopped and the caller holds `LOCK`.
pub(crate) unsafe fn for_each(mut f: impl FnMut(&'static Block)) {
    // SAFETY: the caller's promise.
    let mut at = unsafe { *HEAD.0.get() };
    while at != NONE {
        let b = block(at);
        at = b.next.get();
        f(b);
    }
}
