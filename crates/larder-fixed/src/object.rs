//! Questions about objects.

use core::sync::atomic::{Ordering, fence};

use larder_blocks::State;
use larder_blocks::space::Place;
use larder_threads::defer;

use crate::heap::HEAP;
use crate::inject::{Point, point};

/// Whether the object there is allocated.
pub(crate) fn is_allocated(place: &Place) -> bool {
    // A cycle between reading the mark and reading the epochs would make a live object look free.
    let _deferral = defer::enter();
    let mut epochs = crate::cycle::epochs();
    loop {
        // SAFETY: a place is a cell of its block.
        let mark = unsafe { place.block.mark(place.cell) }.load(Ordering::Relaxed);
        point(Point::MarkRead);
        // ORDER cycle.epochs: Acquire, with the fence in `set_epochs`: who reads a mark of a cycle sees its epochs.
        fence(Ordering::Acquire);
        // A thread that is not registered does not defer: it looks again when a cycle has begun or ended meanwhile.
        let now = crate::cycle::epochs();
        if now == epochs {
            return mark == now.0 || mark == now.1;
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
    match place(base) {
        Some(p) if p.block.state() == State::Large => p.block.size.get(),
        Some(p) => p.block.cell.get() as usize,
        None => 0,
    }
}

/// Kind of the object at `base`; 0 where there is no object.
pub fn kind_of(base: usize) -> usize {
    place(base).map_or(0, |p| p.block.kind.get() as usize)
}

/// Whether `address` points into the heap.
pub fn is_heap_pointer(address: usize) -> bool {
    place(address).is_some()
}

/// Whether the object at `base` is marked in the present cycle, or, between cycles, allocated.
pub fn is_marked(base: usize) -> bool {
    let (_, new) = crate::cycle::epochs();
    // SAFETY: a place is a cell of its block.
    place(base).is_some_and(|p| unsafe { p.block.mark(p.cell) }.load(Ordering::Relaxed) == new)
}

/// Marks the object at `base`. From a push-other-roots or mark procedure.
pub fn set_mark(base: usize) {
    let (_, new) = crate::cycle::epochs();
    if let Some(p) = place(base) {
        // SAFETY: a place is a cell of its block.
        unsafe { p.block.mark(p.cell) }.store(new, Ordering::Relaxed);
    }
}

/// Takes the mark of the object at `base` back. In a cycle, from the procedures named at [`set_mark`].
pub fn clear_mark(base: usize) {
    let (old, new) = crate::cycle::epochs();
    if old == new {
        return;
    }
    if let Some(p) = place(base) {
        // SAFETY: a place is a cell of its block.
        unsafe { p.block.mark(p.cell) }.store(old, Ordering::Relaxed);
    }
}

/// Calls `f(base, size)` for every allocated object. The caller holds the allocation lock; `f` must not allocate.
///
/// Other threads may allocate meanwhile: their new objects may or may not be seen.
pub fn for_each_reachable(f: &mut dyn FnMut(usize, usize)) {
    for index in 0..HEAP.space.frontier().0 {
        // SAFETY: below the frontier.
        let b = unsafe { HEAP.space.block(index) };
        let start = HEAP.space.address_of(index);
        let (cells, size) = match b.state() {
            State::Small => (b.cells.get() as usize, b.cell.get() as usize),
            State::Large => (1, b.size.get()),
            _ => continue,
        };
        for cell in 0..cells {
            let p = Place { block: b, base: start + cell * size, cell };
            if is_allocated(&p) {
                f(p.base, size);
            }
        }
    }
}
