//! Pages of a block that a refill is about to write to, while a cycle watches them: all of the block's are made writable by one call.
//!
//! What a cycle found alive lies scattered, and so do the free cells between: a thread that allocates while a cycle marks writes to page after page
//! that is protected. A fault for each costs more than a call for the four of a block, in which the kernel does what the faults would have it do. It
//! tells no other CPU, unlike an end of the watch. Pages of the block that nobody writes to afterwards count as written.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use larder_blocks::space::BLOCK_SHIFT;
use larder_sys::memory;
use larder_units::{BLOCK, Bytes, PAGE};

use crate::heap::HEAP;
use crate::inject::{Point, point};

/// Blocks that have a bit of their own: 16 GiB. Of two that share one only the first is made writable by a call.
const BITS: usize = 1 << 20;
/// A bit each for the blocks that were made writable since pages were made clean. Sync: claims.
static DONE: [AtomicU64; BITS / 64] = [const { AtomicU64::new(0) }; BITS / 64];
/// Bytes from the heap's beginning that a cycle watches; none outside of cycles. Sync: a hint.
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// A cycle has made pages clean below so many bytes from the heap's beginning, for the first time or once more.
pub(super) fn made_clean(bytes: usize) {
    // Relaxed: who misses it has faults.
    let blocks = Bytes(bytes).to_blocks_rounded_up().0.min(BITS);
    DONE[..blocks.div_ceil(64)].iter().for_each(|done| done.store(0, Ordering::Relaxed));
    BYTES.store(bytes, Ordering::Relaxed);
}

/// No cycle watches any more.
pub(super) fn over() {
    BYTES.store(0, Ordering::Relaxed);
}

/// The caller, who defers stops or is not stopped at all, is about to hand out cells in `[low, high)` of a block.
#[inline(always)]
pub(crate) fn about_to_refill(low: usize, high: usize) {
    let base = HEAP.space.base();
    if low.wrapping_sub(base) < BYTES.load(Ordering::Relaxed) {
        make_writable(low - base, high - base);
    }
}

/// From the first page of `[low, high)` to the end of the block in which it ends: further runs of a block lie behind the first.
#[cold]
#[inline(never)]
fn make_writable(low: usize, high: usize) {
    let block = (high - 1) >> BLOCK_SHIFT;
    let (done, bit) = (&DONE[block / 64 % DONE.len()], 1 << (block % 64));
    let (from, to) = (low & !(PAGE.0 - 1), (block + 1) * BLOCK.0);
    // One page is one fault.
    if to - from > PAGE.0 && done.load(Ordering::Relaxed) & bit == 0 && done.fetch_or(bit, Ordering::Relaxed) & bit == 0
    {
        point(Point::BeforeMadeWritable);
        let at = core::ptr::with_exposed_provenance_mut(HEAP.space.base() + from);
        // SAFETY: whole pages of blocks in use, which stay mapped.
        unsafe { memory::back(at, Bytes(to - from)) };
    }
}
