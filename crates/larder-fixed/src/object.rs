//! Questions about objects.

use core::sync::atomic::{Ordering, fence};

use larder_blocks::State;
use larder_blocks::space::Place;
use larder_threads::defer;

use crate::epochs::Epochs;
use crate::heap::HEAP;
use crate::inject::{Point, point};
use crate::{disclaim, kind, large};

/// Whether the object there is allocated.
#[inline]
pub(crate) fn is_allocated(place: &Place) -> bool {
    looks_allocated(place) || {
        // A cycle that has begun and was given up between two of the loads leaves the epochs as they were: "no" is asked again where there is none.
        let _deferral = defer::enter();
        looks_allocated(place)
    }
}

/// As [`is_allocated`]; yes is right, and so is no where stops are deferred.
#[inline]
fn looks_allocated(place: &Place) -> bool {
    let mut epochs = Epochs::now();
    loop {
        // SAFETY: a place is a cell of its block.
        let mark = unsafe { place.block.mark(place.cell) }.load(Ordering::Relaxed);
        point(Point::MarkRead);
        // ORDER cycle.epochs: Acquire, with the fence in `Epochs::begin`: who reads a mark of a cycle sees its epochs.
        fence(Ordering::Acquire);
        // A cycle between reading the mark and reading the epochs would make a live object look free: where one has begun or ended meanwhile, the
        // mark is read again.
        let now = Epochs::now();
        if now == epochs {
            return now.is_allocated(mark);
        }
        epochs = now;
        // ORDER cycle.epochs: as above, for the mark that is read next.
        fence(Ordering::Acquire);
    }
}

fn place(address: usize) -> Option<Place> {
    HEAP.space.place(address)
}

/// The base of the allocated object that contains `address`. Any thread, in a signal handler, during a cycle.
pub fn base(address: usize) -> Option<usize> {
    place(address).filter(is_allocated).map(|p| p.base)
}

/// Usable bytes of the object at `base`: its whole cell. 0 where there is no object.
pub fn size(base: usize) -> usize {
    place(base).map_or(0, |p| size_at(&p))
}

/// Usable bytes of the allocated object that contains `address`; 0 where there is none.
pub fn size_around(address: usize) -> usize {
    place(address).filter(is_allocated).map_or(0, |p| size_at(&p))
}

fn size_at(place: &Place) -> usize {
    match place.block.state() {
        State::Large => place.block.size.get(),
        _ => place.block.cell.get() as usize,
    }
}

/// Bytes that count as allocated for the object at `base`: its cell's, or whole blocks; 0 where there is none.
pub(crate) fn counted(base: usize) -> usize {
    match place(base) {
        Some(p) if p.block.state() == State::Large => large::counted(p.block),
        Some(p) => size_at(&p),
        None => 0,
    }
}

/// Makes the object at `base` at least so many bytes long without moving it, where it is a large one of an elementary kind whose last block has room.
/// Whether it is; what is new of it is cleared as a new object is.
///
/// # Safety
/// The object is allocated, and nobody else changes its length or frees it meanwhile.
pub unsafe fn extend(base: usize, bytes: usize) -> bool {
    place(base).is_some_and(|p| {
        let is_elementary = (p.block.kind.get() as usize) < kind::ELEMENTARY;
        is_elementary && p.block.state() == State::Large && p.base == base && large::extend(p.block, bytes)
    })
}

/// Kind of the object at `base`; 0 where there is no object.
pub fn kind_of(base: usize) -> usize {
    place(base).map_or(0, |p| p.block.kind.get() as usize)
}

/// A cell, or a large object, whether or not it is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its first byte.
    pub base: usize,
    /// Its bytes.
    pub size: usize,
    /// Its kind.
    pub kind: usize,
    /// Whether it is allocated; in a cycle, see [`for_each_in_cycle`], whether it is marked.
    pub is_live: bool,
}

/// What contains `address`: also a cell whose object was freed, as long as its block has not changed.
pub fn cell(address: usize) -> Option<Found> {
    let p = place(address)?;
    Some(Found { base: p.base, size: size(p.base), kind: p.block.kind.get() as usize, is_live: is_allocated(&p) })
}

/// The size of the cell that a request of `bytes` bytes gets, or of the large object.
pub fn size_for(bytes: usize) -> usize {
    if bytes > crate::allocate::SMALL {
        return large::size_for(bytes).unwrap_or(usize::MAX);
    }
    larder_blocks::class::CLASSES[crate::allocate::class_of(bytes)].cell as usize
}

/// Calls `f` with every object that was allocated when this cycle began; `is_live` says whether the cycle has marked it.
/// Only in [`crate::hooks::MARKED`], in which the world is stopped.
pub fn for_each_in_cycle(f: &mut dyn FnMut(Found)) {
    let new = Epochs::now().new;
    for_each_cell(&mut |p, size, allocated| {
        // SAFETY: a place is a cell of its block.
        let mark = unsafe { p.block.mark(p.cell) }.load(Ordering::Relaxed);
        if allocated {
            f(Found { base: p.base, size, kind: p.block.kind.get() as usize, is_live: mark == new });
        }
    });
}

/// Bytes of allocated objects that are scanned, and of those that are not. It looks at every block; other threads may
/// allocate meanwhile.
pub fn bytes_in_use() -> [usize; 2] {
    let mut bytes = [0; 2];
    for_each_cell(&mut |p, size, allocated| {
        if allocated {
            bytes[usize::from(p.block.descriptor.get() == 0)] += size;
        }
    });
    bytes
}

/// Whether `address` lies where objects are, or were.
pub fn is_in_reach(address: usize) -> bool {
    address.wrapping_sub(HEAP.space.base()) < HEAP.space.span()
}

/// Whether `address` points into the heap.
pub fn is_heap_pointer(address: usize) -> bool {
    place(address).is_some()
}

/// Whether the object at `base` is marked in the present cycle, or, between cycles, allocated. One that waits to be asked about (see
/// [`crate::disclaim`]) is not marked.
pub fn is_marked(base: usize) -> bool {
    let epochs = Epochs::now();
    place(base).is_some_and(|p| {
        // SAFETY: a place is a cell of its block.
        let mark = unsafe { p.block.mark(p.cell) }.load(Ordering::Relaxed);
        epochs.is_marked(mark) || !epochs.marking() && mark == epochs.young
    }) && !disclaim::is_waiting(base)
}

/// Marks the object at `base`. From a push-other-roots or mark procedure; also under the allocation lock, which keeps an object that
/// waits to be asked about.
pub fn set_mark(base: usize) {
    let epochs = Epochs::now();
    if let Some(p) = place(base) {
        // SAFETY: a place is a cell of its block.
        let mark = unsafe { p.block.mark(p.cell) };
        // What is grey is marked, and has yet to be scanned.
        if !epochs.is_marked(mark.load(Ordering::Relaxed)) {
            mark.store(epochs.new, Ordering::Relaxed);
        }
        disclaim::save(base);
    }
}

/// Takes the mark of the object at `base` back. In a cycle, from the procedures named at [`set_mark`].
pub fn clear_mark(base: usize) {
    let epochs = Epochs::now();
    if !epochs.marking() {
        return;
    }
    if let Some(p) = place(base) {
        // SAFETY: a place is a cell of its block.
        unsafe { p.block.mark(p.cell) }.store(epochs.young, Ordering::Relaxed);
    }
}

/// Calls `f(base, size)` for every allocated object. The caller holds the allocation lock; `f` must not allocate.
///
/// Other threads may allocate meanwhile: their new objects may or may not be seen.
pub fn for_each_reachable(f: &mut dyn FnMut(usize, usize)) {
    for_each_cell(&mut |p, size, allocated| {
        if allocated {
            f(p.base, size);
        }
    });
}

/// Calls `f` with every cell of every block, and every large object, its size, and whether it is allocated.
pub(crate) fn for_each_cell(f: &mut dyn FnMut(Place, usize, bool)) {
    for index in 0..HEAP.space.frontier().0 {
        // SAFETY: below the frontier.
        let block = unsafe { HEAP.space.block(index) };
        let start = HEAP.space.address_of(index);
        let (cells, size) = match block.state() {
            State::Small => (block.cells.get() as usize, block.cell.get() as usize),
            State::Large => (1, block.size.get()),
            _ => continue,
        };
        for cell in 0..cells {
            let place = Place { block, base: start + cell * size, cell };
            let allocated = is_allocated(&place);
            f(place, size, allocated);
        }
    }
}
