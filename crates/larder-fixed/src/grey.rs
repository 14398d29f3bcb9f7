//! Objects that are marked and not scanned: grey ones, and the blocks that wait because they have some.
//!
//! Where objects are found in no order, each is a wait for memory and for its page's translation, however early it is asked for. So the marker only
//! marks them there, and lets their blocks wait until nothing else is left. By then a block has many, which are read one behind the other. What is grey
//! bears [`GREY`]; blocks are taken in the order in which they lie. (Go's collector does so, too, with a queue of blocks.)
//!
//! **Nothing is missed.** A marker makes objects grey, and then lets their blocks wait. Who takes a block looks for grey objects in it afterwards: see [`Waiting`].
//!
//! **Beside the program.** A grey object on a page that was written is not scanned when that is asked for, as one that is not marked is not: it is scanned later.
//! Freed, it loses its byte, and nobody finds it. Where marking is interrupted, blocks wait for the final stop.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use larder_blocks::block::{Block, State};
use larder_blocks::class::MOST_CELLS;
use larder_sync::waiting::Waiting;
use larder_sys::hint;
use larder_trace::descriptor::{BITMAP, LENGTH, TAG};
use larder_trace::{Entry, PIECE, Visit};

use crate::concurrent;
use crate::epochs::GREY;
use crate::heap::HEAP;
use crate::refill::find_byte;
use crate::view::LINE;

/// Blocks that are taken at once.
const AT_ONCE: u32 = 8;
/// Bytes of a run that are asked for when its block is taken: the processor foresees where it goes on.
const ASKED_FOR: usize = 4 * LINE;
/// Most runs of grey objects in a block.
const RUNS: usize = MOST_CELLS.div_ceil(2);
const _: () = assert!(MOST_CELLS <= u16::MAX as usize, "a run's end is 16 bits");

type Blocks = Waiting<{ 1 << 16 }>;

/// Blocks that wait, of those that can: 64 GiB. Objects of others are scanned as they are found.
///
/// Sync: its own.
static BLOCKS: Blocks = Blocks::new();
/// Objects that were scanned with others of their blocks, over all cycles. Sync: collectors add in a stopped world; a statistic.
static SCANNED: AtomicU64 = AtomicU64::new(0);
/// See [`leave_what_is_written`]. Sync: set by the marker thread, outside of a round; a hint.
static LEAVES_WRITTEN: AtomicBool = AtomicBool::new(false);

/// So many objects were scanned with others of their blocks, in a cycle.
pub(crate) fn count(objects: usize) {
    SCANNED.fetch_add(objects as u64, Ordering::Relaxed);
}

/// Objects that were found in no order, and scanned with others of their blocks, over all cycles. Any thread.
pub fn scanned_by_block() -> u64 {
    SCANNED.load(Ordering::Relaxed)
}

/// From here on what is grey in blocks that count as written is marked and not scanned, since a round of cleaning will scan it; or no longer. By the
/// marker thread, while no round is open.
pub(crate) fn leave_what_is_written(leave: bool) {
    LEAVES_WRITTEN.store(leave, Ordering::Relaxed);
}

/// Whether objects of the block, of which this is the number and the descriptor, may become grey.
#[inline(always)]
pub(crate) fn may_wait(b: &Block, block: usize, descriptor: usize) -> bool {
    // Large objects have no cells.
    (descriptor != 0) & matches!(descriptor & TAG, LENGTH | BITMAP) & (b.cell.get() != 0) & (block < Blocks::END)
}

/// These blocks have objects that the caller has just made grey. Any marker.
#[inline(always)]
pub(crate) fn wait(blocks: &[usize]) {
    BLOCKS.add(blocks);
}

/// Whether a block waits, as [`Waiting::any`] says it.
pub(crate) fn is_waiting() -> bool {
    BLOCKS.any()
}

/// See [`larder_trace::Objects::take_grey`].
pub(crate) fn take(new: u8, from: &mut usize, push: &mut dyn FnMut(Entry)) -> Option<Visit> {
    let taken = BLOCKS.take(from, AT_ONCE)?;
    let mut visit = Visit { wrapped: taken.wrapped, ..Visit::default() };
    let mut left = taken.bits;
    // What is pushed last is scanned first.
    while left != 0 {
        let bit = left.ilog2();
        left ^= 1 << bit;
        // SAFETY: it had a grey object, so it is below the frontier.
        let b = unsafe { HEAP.space.block(taken.first + bit as usize) };
        if b.state() == State::Small {
            visit.cells += b.cells.get() as usize;
            visit.objects += push_grey(b, taken.first + bit as usize, new, push);
        }
    }
    Some(visit)
}

/// Gives what is grey in a block of cells, of which this is the number, to `push`, from the last object to the first, and marks it as scanned. Returns how many objects it is.
fn push_grey(b: &Block, index: usize, new: u8, push: &mut dyn FnMut(Entry)) -> usize {
    let start = HEAP.space.address_of(index);
    let (size, descriptor) = (b.cell.get() as usize, b.descriptor.get());
    // What counts as written is looked at when that is asked for.
    let is_left = LEAVES_WRITTEN.load(Ordering::Relaxed) && b.blocks.get() == 1 && concurrent::counts_as_written(index);
    // SAFETY: the block is `Small`.
    let marks = unsafe { b.all_marks() };
    let (mut objects, mut n) = (0, 0);
    // Not cleared for each block, of which most have few.
    let mut runs = [const { MaybeUninit::<(u16, u16)>::uninit() }; RUNS];
    let mut first = find_byte(marks, 0, GREY, true);
    while first < marks.len() {
        let end = find_byte(marks, first + 1, GREY, false);
        // Others free objects meanwhile, and no byte but those of these is written.
        marks[first..end].iter().for_each(|mark| mark.store(new, Ordering::Relaxed));
        objects += end - first;
        runs[n].write((first as u16, end as u16));
        n += 1;
        if !is_left {
            let (low, high) = (start + first * size, start + end * size);
            (low..high.min(low + ASKED_FOR)).step_by(LINE).for_each(hint::prefetch);
        }
        first = find_byte(marks, end, GREY, true);
    }
    if is_left {
        return objects;
    }
    // Objects that are scanned as a whole are taken together as long as they follow one another.
    let together = if descriptor == size | LENGTH { (PIECE / size).max(1) } else { 1 };
    for run in runs[..n].iter().rev() {
        // SAFETY: the first `n` were written.
        let (first, end) = unsafe { run.assume_init() };
        let (first, mut end) = (usize::from(first), usize::from(end));
        while first < end {
            let cells = together.min(end - first);
            end -= cells;
            push(Entry::at(start + end * size, if cells == 1 { descriptor } else { (cells * size) | LENGTH }));
        }
    }
    objects
}

/// A cycle was given up, or this is the child of a process that was in the middle of one: nobody waits. World stopped.
pub(crate) fn forget() {
    BLOCKS.clear();
    leave_what_is_written(false);
}
