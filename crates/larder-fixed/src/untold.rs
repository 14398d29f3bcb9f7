//! What refills have handed out and not told the heap yet.
//!
//! When a cycle is due is asked in every slow path of an allocation. If every refill added to the figure that answers it, its line would move from
//! CPU to CPU with each of them. So an index counts by itself, and tells as much as
//! the budget does not feel.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use larder_sys::memory::{self, ReserveError};
use larder_units::Bytes;

use crate::heap::HEAP;

/// What an index counts by itself.
///
/// Sync: statistics. Whoever has the index adds; two may at once, where one of them lost its CPU in the middle.
#[repr(C, align(128))]
struct Untold(AtomicU64);

/// Bytes are counted in the low half of the word and refills above: every refill costs one addition.
const REFILL: u64 = 1 << 32;

fn bytes_in(word: u64) -> usize {
    word as u32 as usize
}

/// Address of the counters, one for each index. 0 where buffers belong to threads.
///
/// Sync: written once, at initialisation.
static COUNTERS: AtomicUsize = AtomicUsize::new(0);
/// Bytes that an index keeps to itself.
///
/// Sync: the collector writes; whatever others read is right.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// Bytes that an index keeps to itself where the budget is large: some refills.
const MOST: usize = 64 * 1024;
/// All indices together keep such a part of the budget.
const PART: usize = 16;

/// Reserves the counters; those of indices that are not used cost no memory.
pub(crate) fn set_up() -> Result<(), ReserveError> {
    let n = HEAP.labs.indices();
    if n > 0 {
        let at = memory::map_lazy(Bytes(n * size_of::<Untold>()))?;
        COUNTERS.store(at.as_ptr().expose_provenance(), Ordering::Relaxed);
    }
    Ok(())
}

/// The budget is so much now.
pub(crate) fn heed_budget(budget: Bytes) {
    LIMIT.store((budget.0 / PART / HEAP.labs.indices().max(1)).min(MOST), Ordering::Relaxed);
}

fn counters() -> &'static [Untold] {
    let at = COUNTERS.load(Ordering::Relaxed);
    let n = if at == 0 { 0 } else { HEAP.labs.indices() };
    // SAFETY: `set_up` mapped as many zeroes there, which are counters, and nothing unmaps them.
    unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(at.max(align_of::<Untold>())), n) }
}

/// Counts a refill of the current index, and the bytes that it took. The caller defers stops.
#[inline]
pub(crate) fn count_refill(bytes: usize) {
    let Some(own) = HEAP.labs.current_index().and_then(|index| counters().get(index)) else {
        HEAP.counts.refills.fetch_add(1, Ordering::Relaxed);
        return HEAP.count_allocated(bytes);
    };
    let more = REFILL + bytes as u64;
    if bytes_in(own.0.fetch_add(more, Ordering::Relaxed) + more) >= LIMIT.load(Ordering::Relaxed) {
        own.tell();
    }
}

impl Untold {
    #[cold]
    fn tell(&self) {
        // A reader between the two counts less than there is for a moment.
        let word = self.0.swap(0, Ordering::Relaxed);
        HEAP.count_allocated(bytes_in(word));
        HEAP.counts.refills.fetch_add(word / REFILL, Ordering::Relaxed);
    }
}

/// Has every index tell what it kept. In a stopped world.
pub(crate) fn tell_all() {
    for own in counters() {
        if own.0.load(Ordering::Relaxed) > 0 {
            own.tell();
        }
    }
}

/// Bytes that were not told yet.
pub(crate) fn bytes() -> usize {
    counters().iter().map(|own| bytes_in(own.0.load(Ordering::Relaxed))).sum()
}

/// Refills that were not told yet.
pub(crate) fn refills() -> u64 {
    counters().iter().map(|own| own.0.load(Ordering::Relaxed) / REFILL).sum()
}
