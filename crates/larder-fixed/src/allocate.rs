//! Allocation: the fast path, and what it falls back to.
//!
//! The fast path is a table look-up and one restartable sequence on the buffer of the current concurrency id, for every
//! size up to [`SMALL`]: no lock, no atomic read-modify-write, no thread-local cache. Cells are cleared when the buffer is
//! filled.

use core::ptr;
use core::sync::atomic::Ordering;

use larder_blocks::State;
use larder_blocks::class::{BY_GRANULES, CLASSES, LARGEST};
use larder_blocks::space::Place;
use larder_lab::slot_offset;
use larder_policy::pacing;
use larder_sys::memory::KeepErrno;
use larder_sys::thread;
use larder_threads::defer::{self, Brief};
use larder_units::{BLOCK, Bytes};

use crate::heap::HEAP;
use crate::pacing::Shortage;
use crate::{concurrent, cycle, hooks, kind, large, object, refill};

/// Largest request, in bytes, that comes from a buffer.
pub const SMALL: usize = 32 * 1024;

const _: () = assert!(SMALL + 16 == LARGEST);

/// For each size in granules: the slot's offset in its kind's part of the slab (high half) and the cell in bytes (low).
static CELLS: [u32; LARGEST / 16 + 1] = {
    let mut table = [0; LARGEST / 16 + 1];
    let mut g = 0;
    while g < table.len() {
        let class = BY_GRANULES[g] as usize;
        table[g] = (slot_offset(0, class) as u32) << 16 | CLASSES[class].cell;
        g += 1;
    }
    table
};

/// The class of a small request.
#[inline(always)]
pub(crate) fn class_of(bytes: usize) -> usize {
    BY_GRANULES[(bytes + HEAP.round.load(Ordering::Relaxed)) >> 4] as usize
}

/// Allocates an object of at least `bytes` bytes, aligned to 16, cleared unless its kind says otherwise. Null when memory
/// is exhausted even after a cycle.
///
/// Any thread; in a signal handler too, whatever it interrupted. A thread that is not registered never collects, and
/// what it holds is not a root.
///
/// # Safety
/// `kind` is a kind that exists. The object is kept only by what the collector can see: registered stacks, static data,
/// registered ranges, and other objects.
#[inline(always)]
pub unsafe fn allocate(kind: usize, bytes: usize) -> *mut u8 {
    // SAFETY: the caller's promise, for both.
    unsafe {
        let at = allocate_from_buffer(kind, bytes);
        if at.is_null() { allocate_slow(kind, bytes) } else { at }
    }
}

/// The fast path of [`allocate`] alone: null where [`allocate_slow`] has to do it.
///
/// # Safety
/// As for [`allocate`].
#[inline(always)]
pub unsafe fn allocate_from_buffer(kind: usize, bytes: usize) -> *mut u8 {
    // ORDER heap.sequences: Acquire, with the store in `init`: below the limit, sequences are set up.
    if bytes >= HEAP.sequence_limit.load(Ordering::Acquire) {
        return ptr::null_mut();
    }
    let granules = (bytes + HEAP.round.load(Ordering::Relaxed)) >> 4;
    // SAFETY: the limit is at most one byte beyond `SMALL`, and what is added at most a granule.
    let entry = unsafe { *CELLS.get_unchecked(granules) };
    let offset = slot_offset(kind, 0) + (entry >> 16) as usize;
    // SAFETY: the offset and the cell belong together, by the table; sequences are set up.
    let at = unsafe { HEAP.labs.take(offset, (entry & 0xffff) as usize) };
    ptr::with_exposed_provenance_mut(at)
}

/// Allocates where the buffer was empty, the object is large, or the heap does not exist yet.
///
/// # Safety
/// As for [`allocate`].
#[cold]
#[inline(never)]
pub unsafe fn allocate_slow(kind: usize, bytes: usize) -> *mut u8 {
    let from_shelf = || {
        // What else a slow path sees to was seen to by the one that took the run.
        let may = bytes <= SMALL && !concurrent::wants_attention() && !cycle::is_stressed();
        may.then(|| refill::from_shelf(kind, class_of(bytes))).flatten()
    };
    let at = match from_shelf() {
        Some(at) => ptr::with_exposed_provenance_mut(at),
        None => allocate_below(kind, bytes),
    };
    // What the frames below have left in the dead part of the stack would be taken for live in a client's frames to come, which do not
    // write all of their words.
    thread::clear_nearest_dead_frames();
    at
}

/// What [`allocate_slow`] does, in frames that it clears. To be stopped in by tests at each of its instructions.
#[doc(hidden)]
#[inline(never)]
pub fn allocate_below(kind: usize, bytes: usize) -> *mut u8 {
    if !crate::is_initialised() {
        initialise();
    }
    if bytes > SMALL {
        let _errno = KeepErrno::new();
        return large::allocate(kind, bytes);
    }
    let class = class_of(bytes);
    if HEAP.labs.by_thread() {
        // SAFETY: offset and cell belong together.
        let at = unsafe { HEAP.labs.take_own(slot_offset(kind, class), CLASSES[class].cell as usize) };
        if at != 0 {
            return ptr::with_exposed_provenance_mut(at);
        }
    }
    // Programs allocate between a call that failed and their look at why.
    let _errno = KeepErrno::new();
    if defer::is_deferring() {
        return refill::nested(kind, class);
    }
    cycle::collect_if_stressed();
    concurrent::attend(0);
    HEAP.prepare_apart();
    let mut shortage = Shortage::of(Bytes(CLASSES[class].cell as usize));
    loop {
        // A thread that waited for the end of one cycle may find the next one due: many that did not look again would each
        // take memory beyond the budget.
        let mut tries = 0;
        while HEAP.cycle_due() && tries < MOST_WAITS && cycle::collect_due() {
            tries += 1;
        }
        if let Some(at) = refill::refill(kind, class) {
            return ptr::with_exposed_provenance_mut(at);
        }
        // One cycle for each such cell would be one for each object.
        let just_collected = || {
            let (since, live) = (HEAP.handed_out_since_cycle(), HEAP.live.load(Ordering::Relaxed));
            pacing::makes_do_with_larger_cells(Bytes(since), Bytes(live))
        };
        if shortage.cycles > 0 || just_collected() {
            let at = allocate_elsewhere(kind, class);
            if !at.is_null() {
                return at;
            }
        }
        // The heap must not grow any more: a cycle may free something.
        if !shortage.collect() {
            return ptr::null_mut();
        }
    }
}

/// A cell for a class that gets no block any more, since the heap is at its maximum and survivors lie in every long run: one of a larger
/// class, or blocks of the object's own, of which fewer need to lie side by side. Null where there is none of these either.
#[cold]
#[inline(never)]
fn allocate_elsewhere(kind: usize, class: usize) -> *mut u8 {
    for (larger, of) in CLASSES.iter().enumerate().skip(class + 1) {
        let (offset, cell) = (slot_offset(kind, larger), of.cell as usize);
        // SAFETY: offset and cell belong together; without sequences buffers belong to threads.
        let mut at = unsafe {
            if HEAP.labs.by_thread() { HEAP.labs.take_own(offset, cell) } else { HEAP.labs.take(offset, cell) }
        };
        if at == 0 {
            at = refill::refill(kind, larger).unwrap_or(0);
        }
        if at != 0 {
            return ptr::with_exposed_provenance_mut(at);
        }
    }
    if CLASSES[class].blocks == 1 {
        return ptr::null_mut();
    }
    large::take(kind, CLASSES[class].cell as usize).unwrap_or(ptr::null_mut())
}

/// Cycles that one allocation lasts out before it goes on in any case.
const MOST_WAITS: usize = 8;

#[cold]
fn initialise() {
    let _errno = KeepErrno::new();
    match hooks::INITIALISE.get() {
        // SAFETY: the door set it for this.
        Some(f) => unsafe { f() },
        None => crate::heap::init(&crate::options::Options::default()),
    }
}

/// Allocates several objects at once: a list linked through the first word, everything else cleared. As many as fit
/// into a page, at least one. Null when memory is exhausted.
///
/// # Safety
/// As for [`allocate`]; the client keeps the head of the list where the collector sees it.
pub unsafe fn allocate_many(kind: usize, bytes: usize) -> *mut u8 {
    if bytes > SMALL {
        // SAFETY: the caller's promise.
        return unsafe { allocate(kind, bytes) };
    }
    let class = class_of(bytes);
    let cell = CLASSES[class].cell as usize;
    let wanted = (MANY / cell).max(1);
    if !kind::scans_all_words(kind) {
        // SAFETY: the caller's promise.
        return unsafe { allocate_apart(kind, bytes, wanted) };
    }
    let mut head: *mut u8 = ptr::null_mut();
    let mut made = 0;
    while made < wanted {
        let (first, cells) = match take_linked(slot_offset(kind, class), cell, wanted - made) {
            Some(taken) => taken,
            // SAFETY: the caller's promise.
            None => (unsafe { allocate(kind, bytes) }, 1),
        };
        if first.is_null() {
            break;
        }
        if !head.is_null() {
            // A cycle that marks may have begun, or begun to let objects be born marked, since those were made: nobody would scan these for those.
            // SAFETY: the first word of the last of the new cells, which are this thread's.
            unsafe { crate::barrier::store(first.add((cells - 1) * cell).cast(), head.expose_provenance()) };
        }
        head = first;
        made += cells;
    }
    head
}

/// Bytes of the objects of one list.
const MANY: usize = 4096;

/// Up to `wanted` cells that lie in the current buffer one behind the other, linked in this order, and how many they are. No stop comes before
/// they are linked: then the first keeps the others.
fn take_linked(offset: usize, cell: usize, wanted: usize) -> Option<(*mut u8, usize)> {
    if HEAP.labs.by_thread() {
        return None;
    }
    let mut taken = None;
    let brief = defer::briefly(|| {
        let mut cells = wanted;
        while cells > 0 {
            // SAFETY: offset and cell belong together, and this is a number of such cells; who has a thread record is initialised.
            let at = unsafe { HEAP.labs.take(offset, cells * cell) };
            if at == 0 {
                cells /= 2;
                continue;
            }
            let last = at + (cells - 1) * cell;
            for this in (at..=last).step_by(cell) {
                let next = if this == last { 0 } else { this + cell };
                // SAFETY: the first word of a cell that was just taken.
                unsafe { ptr::with_exposed_provenance_mut::<usize>(this).write(next) };
            }
            taken = Some((ptr::with_exposed_provenance_mut(at), cells));
            return true;
        }
        false
    });
    if brief.pending {
        defer::answer();
    }
    taken
}

/// As [`allocate_many`], of a kind whose objects do not keep what their first words refer to.
///
/// # Safety
/// As there.
unsafe fn allocate_apart(kind: usize, bytes: usize, wanted: usize) -> *mut u8 {
    // They do not keep one another alive, and a cycle may come between two allocations: until the list is complete, this frame keeps them all.
    let mut cells = [ptr::null_mut::<u8>(); MANY / 16];
    let mut made = 0;
    while made < wanted {
        // SAFETY: the caller's promise.
        cells[made] = unsafe { allocate(kind, bytes) };
        if cells[made].is_null() {
            break;
        }
        made += 1;
    }
    core::hint::black_box(&mut cells);
    let mut head: *mut u8 = ptr::null_mut();
    for &at in &cells[..made] {
        // As in `allocate_many`.
        // SAFETY: a fresh object holds at least one word.
        unsafe { crate::barrier::store(at.cast(), head.expose_provenance()) };
        head = at;
    }
    // Nor do they stay where a later frame of the client's may lie.
    cells.fill(ptr::null_mut());
    core::hint::black_box(&cells);
    head
}

/// As [`allocate`], at a multiple of `align`, which is not 0.
///
/// # Safety
/// As for [`allocate`].
pub unsafe fn allocate_aligned(kind: usize, bytes: usize, align: usize) -> *mut u8 {
    if 16usize.is_multiple_of(align) {
        // SAFETY: the caller's promise.
        return unsafe { allocate(kind, bytes) };
    }
    if larder_units::BLOCK.0.is_multiple_of(align) && bytes > SMALL {
        // Large objects begin on a block.
        // SAFETY: the caller's promise.
        return unsafe { allocate(kind, bytes) };
    }
    // As in libgc: a longer object with the aligned address inside, whose displacement is made valid.
    let Some(padded) = bytes.checked_add(align - 1) else { return ptr::null_mut() };
    // SAFETY: the caller's promise.
    let at = unsafe { allocate(kind, padded) };
    if at.is_null() {
        return at;
    }
    let Some(next) = at.addr().checked_next_multiple_of(align) else { return ptr::null_mut() };
    let aligned = at.with_addr(next);
    crate::roots::register_displacement(aligned.addr() - at.addr());
    aligned
}

/// Frees an object explicitly. Null is ignored; an address that is not the base of an allocated object stops the process
/// with one line.
///
/// # Safety
/// Nobody uses the object any more.
#[inline(always)]
pub unsafe fn free(at: *mut u8) {
    // All calls are in tail position, so that what most frees go through saves no register.
    match HEAP.space.cell_in_first_block(at.addr()).map(|(block, cell)| refill::free_alone(block, cell)) {
        Some(Brief { done: true, pending: false }) => {}
        // SAFETY: the caller's promise.
        Some(Brief { done, pending: true }) => unsafe { answer_and_free(at, done) },
        // SAFETY: the caller's promise.
        _ => unsafe { free_elsewhere(at) },
    }
}

/// Frees what [`free`] does not free by itself: in a later block of a run of cells as it does in the first, and what the client counts.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe fn free_elsewhere(at: *mut u8) {
    let freed = |place: Place| {
        let b = place.block;
        if b.state() == State::Small && kind::uncollectable(b.kind.get() as usize) {
            let brief = refill::free_counted(b, place.cell);
            if brief.done {
                uncount(b.cell.get() as usize);
            }
            return brief;
        }
        let start = HEAP.space.address_of(HEAP.space.index_of(b));
        if place.base - start < BLOCK.0 {
            return Brief { done: false, pending: false };
        }
        refill::free_alone(b, place.cell)
    };
    match HEAP.space.place(at.addr()).filter(|place| place.base == at.addr()).map(freed) {
        Some(Brief { done: true, pending: false }) => {}
        // SAFETY: the caller's promise.
        Some(Brief { done, pending: true }) => unsafe { answer_and_free(at, done) },
        // SAFETY: the caller's promise.
        _ => unsafe { free_slow(at) },
    }
}

/// A stop waits for this thread in the middle of [`free`], which is done with the object, or not.
///
/// # Safety
/// As there.
#[cold]
#[inline(never)]
unsafe fn answer_and_free(at: *mut u8, done: bool) {
    defer::answer();
    if !done {
        // SAFETY: the caller's promise.
        unsafe { free_slow(at) }
    }
}

/// Tells the client of so many bytes that it counts, and that are freed.
fn uncount(bytes: usize) {
    if let Some(freed) = hooks::UNCOLLECTABLE_FREED.get() {
        // SAFETY: the client set it to be called so.
        unsafe { freed(bytes) };
    }
}

/// Frees what is not freed without a lock.
///
/// # Safety
/// As there.
#[cold]
#[inline(never)]
unsafe fn free_slow(at: *mut u8) {
    if at.is_null() {
        return;
    }
    let _errno = KeepErrno::new();
    let place = match HEAP.space.place(at.addr()) {
        // An aligned object begins inside of its cell.
        Some(place) if place.base == at.addr() || crate::roots::is_valid_displacement(at.addr() - place.base) => place,
        _ => larder_sys::die!("GC_free({at:p}): not the address of an object; pass what an allocation returned"),
    };
    if !object::is_allocated(&place) {
        larder_sys::die!("GC_free({at:p}): the object is free already; remove the second free");
    }
    if place.block.descriptor.get() != 0 {
        crate::barrier::vanishes(place.base, place.base + object::size(place.base));
    }
    if kind::uncollectable(place.block.kind.get() as usize) {
        uncount(object::size(place.base));
    }
    match place.block.state() {
        State::Large => large::free(place.block),
        _ => refill::free_cell(&place),
    }
}
