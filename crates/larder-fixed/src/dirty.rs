//! From pages that were written to what must be scanned again.
//!
//! The rule of incremental update: a marked object on a written page may refer to an object that nobody has seen, so what
//! it has on that page is scanned again. An object that is not marked is not: whoever marks it later scans it later. A cell
//! that was born marked lies on a page that was written by whoever filled it.
//!
//! While a cycle marks beside the program no block gets another class or kind, so a record that says `Small` or `Large`
//! can be read at leisure; one that is published meanwhile is seen by the next look, since whoever uses it writes to it.

use core::sync::atomic::Ordering;

use larder_blocks::block::{Block, State};
use larder_blocks::space::BLOCK_SHIFT;
use larder_trace::descriptor::{BITMAP, LENGTH, PER_OBJECT, TAG};
use larder_trace::{Entry, Interior, Marker};
use larder_units::{BLOCK, PAGE};

use crate::epochs::Epochs;
use crate::heap::HEAP;
use crate::kind;
use crate::refill::find_byte;
use crate::view::View;

/// Pushes what marked objects have in `[low, high)`, which lies below the frontier and is a whole number of pages; what it has of large ones is given to
/// `large`, which knows of their copies. Returns how many of the pages nobody watches: those of free blocks, and of objects without pointers.
pub(crate) fn push<'m>(
    marker: &mut Marker<'m, View>,
    mut large: impl FnMut(&mut Marker<'m, View>, usize, usize),
    new: u8,
    low: usize,
    high: usize,
) -> usize {
    let (mut at, mut unwatched) = (low, 0);
    while at < high {
        let index = (at - HEAP.space.base()) >> BLOCK_SHIFT;
        // SAFETY: below the frontier.
        let b = head(unsafe { HEAP.space.block(index) });
        let start = HEAP.space.address_of(HEAP.space.index_of(b));
        // Of a run that is not published yet, this block alone.
        let mut end = HEAP.space.address_of(index + 1);
        if matches!(b.state(), State::Small | State::Large) {
            end = end.max(start + b.blocks.get() as usize * BLOCK.0);
        }
        let end = end.min(high);
        match b.state() {
            State::Small if b.descriptor.get() != 0 => push_cells(marker, new, b, start, at, end),
            // SAFETY: the object's mark byte.
            State::Large if b.descriptor.get() != 0 && unsafe { b.mark(0) }.load(Ordering::Relaxed) == new => {
                let descriptor = b.descriptor.get();
                if descriptor & TAG == LENGTH {
                    large(marker, at.max(start), end.min(start + (descriptor & !7)));
                } else {
                    push_object(marker, b, start, descriptor, at, end);
                }
            }
            State::Small | State::Large if b.descriptor.get() != 0 => {}
            _ => unwatched += end - at,
        }
        at = end;
    }
    unwatched / PAGE.0
}

/// What the marked cells of a block have in `[low, high)`.
fn push_cells(marker: &mut Marker<'_, View>, new: u8, b: &'static Block, start: usize, low: usize, high: usize) {
    let size = b.cell.get() as usize;
    let descriptor = b.descriptor.get();
    // Objects that are scanned as a whole are taken together as long as they follow one another.
    let plain = descriptor & TAG == LENGTH && descriptor == size;
    let end = ((high - start).div_ceil(size)).min(b.cells.get() as usize);
    // SAFETY: the block is `Small`.
    let marks = unsafe { &b.all_marks()[..end] };
    let mut cell = find_byte(marks, ((low - start) / size).min(end), new, true);
    while cell < end {
        let base = start + cell * size;
        cell = if plain {
            let next = find_byte(marks, cell + 1, new, false);
            marker.push_range(base.max(low), (start + next * size).min(high), Interior::AsConfigured);
            next
        } else {
            push_object(marker, b, base, descriptor, low, high);
            cell + 1
        };
        cell = find_byte(marks, cell, new, true);
    }
}

/// The first block of the run in which a block lies.
pub(crate) fn head(b: &'static Block) -> &'static Block {
    // SAFETY: a tail's head is a block of the table.
    if b.state() == State::Tail { unsafe { HEAP.space.block(b.head.get() as usize) } } else { b }
}

/// Whether a run, of which this is the first block, holds objects without pointers, or is one.
pub(crate) fn is_pointer_free(b: &'static Block) -> bool {
    matches!(b.state(), State::Small | State::Large) && b.descriptor.get() == 0
}

/// Whether a run in use, of which this is the first block, holds something that is marked. While a cycle marks beside the program.
pub(crate) fn has_marked(b: &'static Block) -> bool {
    // SAFETY: blocks in use stay what they are, and the record of a run has its marks before its tails say where it begins.
    find_byte(unsafe { b.all_marks() }, 0, Epochs::now().new, true) < b.cells.get() as usize
}

/// What one object has in `[low, high)`; all of it where its parts cannot be told apart.
fn push_object(marker: &mut Marker<'_, View>, b: &Block, base: usize, descriptor: usize, low: usize, high: usize) {
    match descriptor & TAG {
        LENGTH => marker.push_range(base.max(low), (base + (descriptor & !7)).min(high), Interior::AsConfigured),
        BITMAP => marker.push(Entry::at(base, descriptor)),
        // It is put aside where it is not to be looked up beside the program.
        PER_OBJECT if kind::cleared(b.kind.get() as usize) => marker.push(Entry::at(base, descriptor)),
        // A cell that was just claimed may still hold what another object has left there.
        _ => marker.push_unless_beside(Entry::at(base, descriptor)),
    }
}
