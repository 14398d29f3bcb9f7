//! Figures about the heap. Any thread, no lock; they are of one moment each, not of one moment together.

use core::ops::Range;
use core::sync::atomic::Ordering;

use larder_sys::tls;
use larder_units::Bytes;

use crate::heap::HEAP;
use crate::{cycle, pacing, settings, untold};

/// See the fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// Bytes held from the kernel.
    pub heap: usize,
    /// Bytes of it that hold no object, as far as is known: blocks in the pool, and what the next sweep will find.
    pub free: usize,
    /// Bytes given back to the kernel and not taken again.
    pub unmapped: usize,
    /// Bytes handed out since the last cycle (buffers count when they are filled).
    pub bytes_since_cycle: usize,
    /// Bytes handed out before the last cycle.
    pub total_before_cycle: u64,
    /// Bytes freed explicitly since the last cycle.
    pub freed_since_cycle: usize,
    /// Bytes that the last cycle found live.
    pub live: usize,
    /// Cycles so far.
    pub cycles: u64,
    /// The most markers that a cycle will have.
    pub markers: usize,
    /// Time of all pauses, in nanoseconds.
    pub paused_ns: u64,
    /// Bytes after which the next cycle is due.
    pub budget: usize,
    /// Bytes that the heap was told to grow to before a cycle is due, at initialisation or later; 0 where nobody asked.
    pub promised: usize,
}

/// Counts bytes that the client allocated outside of the heap on behalf of collected objects.
pub fn add_allocated(bytes: usize) {
    HEAP.count_allocated(bytes);
}

/// Counts bytes that the client freed.
pub fn add_freed(bytes: usize) {
    HEAP.freed.fetch_add(bytes, Ordering::Relaxed);
}

/// Bytes that a thread counts by itself before it tells: the figure is that much behind for each other thread.
const UNTOLD: usize = 1 << u16::BITS;

const _: () = assert!(larder_blocks::class::LARGEST < UNTOLD);

/// Counts the bytes of a cell that was freed explicitly: two instructions, where the sum fits.
#[inline(always)]
pub(crate) fn count_freed(bytes: usize) {
    let is_told = tls::with(|t| {
        let (untold, is_told) = t.freed.get().overflowing_add(bytes as u16);
        t.freed.set(untold);
        is_told
    });
    if is_told {
        tell(UNTOLD);
    }
}

#[cold]
fn tell(bytes: usize) {
    HEAP.freed.fetch_add(bytes, Ordering::Relaxed);
}

/// Adds what the calling thread has counted to what all have. A handler may come between: what it counts stays with the thread.
pub(crate) fn tell_freed() {
    tell(tls::with(|t| t.freed.replace(0)).into());
}

/// Reads all figures.
pub fn snapshot() -> Snapshot {
    let heap = HEAP.settled_size().0;
    let (live, since) = (HEAP.live.load(Ordering::Relaxed), HEAP.handed_out_since_cycle());
    let freed = HEAP.freed.load(Ordering::Relaxed) + tls::with(|t| usize::from(t.freed.get()));
    Snapshot {
        heap,
        // What was freed explicitly was in use when the last cycle ended, or was handed out since.
        free: heap.saturating_sub((live + since).saturating_sub(freed)),
        unmapped: HEAP.pool.discarded().to_bytes().0,
        bytes_since_cycle: since,
        total_before_cycle: HEAP.total.load(Ordering::Relaxed),
        freed_since_cycle: freed,
        live,
        cycles: cycle::number(),
        markers: if crate::is_initialised() { pacing::markers() } else { 1 },
        paused_ns: cycle::paused().0,
        budget: HEAP.budget.load(Ordering::Relaxed),
        promised: settings::INITIAL_HEAP.load(Ordering::Relaxed),
    }
}

/// Bounds `[low, high)` of every address that an object could ever have.
pub fn plausible_bounds() -> (usize, usize) {
    let low = HEAP.space.base();
    (low, low + HEAP.space.reserved().to_bytes().0)
}

/// Largest heap that the reservation allows.
pub fn reserved() -> Bytes {
    HEAP.space.reserved().to_bytes()
}

/// Refills of buffers since the start.
pub fn refills() -> u64 {
    HEAP.counts.refills.load(Ordering::Relaxed) + untold::refills()
}

/// Whether buffers belong to threads because restartable sequences are not available.
pub fn by_thread() -> bool {
    HEAP.labs.by_thread()
}

/// What a dump says about one block, or one large object.
#[derive(Clone, Copy, Debug)]
pub struct BlockFacts {
    /// Its first address.
    pub start: usize,
    /// Kind of its objects.
    pub kind: usize,
    /// Bytes of a cell.
    pub size: usize,
    /// Cells that are allocated, or lie in a buffer.
    pub live: usize,
    /// All its cells.
    pub cells: usize,
}

/// Calls `f` for every block that holds or held objects. Other threads may change them meanwhile.
pub fn for_each_block(f: &mut dyn FnMut(BlockFacts)) {
    let mut of: Option<BlockFacts> = None;
    crate::object::for_each_cell(&mut |place, size, is_allocated| {
        let start = HEAP.space.address_of(HEAP.space.index_of(place.block));
        if of.is_none_or(|facts| facts.start != start) {
            of.take().into_iter().for_each(&mut *f);
            of = Some(BlockFacts { start, kind: place.block.kind.get() as usize, size, live: 0, cells: 0 });
        }
        if let Some(facts) = &mut of {
            facts.cells += 1;
            facts.live += usize::from(is_allocated);
        }
    });
    of.into_iter().for_each(f);
}

/// Bytes of the heap from the first address that was ever used to the last.
pub fn used_range() -> (usize, usize) {
    let low = HEAP.space.base();
    (low, low + HEAP.space.frontier().to_bytes().0)
}

/// Bytes of free blocks: with memory behind them, and given back to the kernel.
pub fn pool_bytes() -> [usize; 2] {
    [HEAP.pool.resident(), HEAP.pool.discarded()].map(|blocks| blocks.to_bytes().0)
}

/// The blocks that are kept for objects without pointers, by number from the heap's beginning, those that are prepared for when they are used up, and those for
/// other objects. For a verifier, in a stopped world.
pub fn kept_apart() -> [Range<usize>; 3] {
    HEAP.pool.kept_apart()
}
