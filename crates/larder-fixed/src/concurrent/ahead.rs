//! Pages of blocks that a refill is about to write to, while a cycle watches them: all of a block's are made writable by one call.
//!
//! What a cycle found alive lies scattered, and so do the free cells between: a thread that allocates while a cycle marks writes to page after page
//! that is protected. A fault for each costs more than a call for the four of a block, in which the kernel does what the faults would have it do. It
//! tells no other CPU, unlike an end of the watch. Pages of the block that nobody writes to afterwards count as written. Blocks that are not protected
//! ([`protected`]) cost nothing.

use core::sync::atomic::{AtomicUsize, Ordering};

use larder_blocks::space::BLOCK_SHIFT;
use larder_sys::memory::{self, KeepErrno};
use larder_units::{BLOCK, Bytes};

use super::protected;
use crate::heap::HEAP;
use crate::inject::{Point, point};

/// Bytes from the heap's beginning that a cycle watches; none outside of cycles. Sync: a hint.
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes from the heap's beginning of which pages were protected at some time: beyond them none is. Sync: a hint.
static EVER: AtomicUsize = AtomicUsize::new(0);
/// Blocks of a large object that are made writable at once: no stop waits until all of a long one are.
const AT_ONCE: usize = 64;

/// So many bytes from the heap's beginning are watched, in a cycle or until the next one.
pub(super) fn watched(bytes: usize) {
    // Relaxed: who misses it has faults.
    EVER.fetch_max(bytes, Ordering::Relaxed);
}

/// A cycle watches so many bytes from the heap's beginning.
pub(super) fn begin(bytes: usize) {
    // Relaxed: who misses it has faults.
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

/// The caller is about to clear `[low, high)`, whole blocks but for the end of the last, which are its own: each page is going to be written, and so counts, also where
/// young cycles go on watching.
pub(crate) fn about_to_clear(low: usize, high: usize) {
    let base = HEAP.space.base();
    let (mut low, high) = (low - base, (high - base).min(EVER.load(Ordering::Relaxed)));
    while low < high {
        let end = high.min(low + AT_ONCE * BLOCK.0);
        make_writable(low, end);
        low = end;
    }
}

/// The blocks in which `[low, high)` lies: whole ones, so that it is known of each what it is, and further runs of a block lie behind the first.
#[cold]
#[inline(never)]
fn make_writable(low: usize, high: usize) {
    // Not every slow path keeps it.
    let _errno = KeepErrno::new();
    let (mut block, end) = (low >> BLOCK_SHIFT, ((high - 1) >> BLOCK_SHIFT) + 1);
    while block < end {
        let from = block;
        while block < end && protected::take(block) {
            block += 1;
        }
        if from < block {
            point(Point::BeforeMadeWritable);
            let at = core::ptr::with_exposed_provenance_mut(HEAP.space.base() + from * BLOCK.0);
            let bytes = Bytes((block - from) * BLOCK.0);
            // Without their bits they count as written, and so they have to be, each page of them, for the kernel as well.
            // SAFETY: whole blocks in use, which stay mapped.
            unsafe {
                if !memory::back(at, bytes) {
                    memory::write_to_each_page(at, bytes);
                }
            }
        }
        block += 1;
    }
}
