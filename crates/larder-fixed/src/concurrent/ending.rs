//! The end of a watch of pages: by the marker thread from the heap's beginning upwards, and, ahead of it, by who is about to write.
//!
//! Memory that a cycle found dead is written first afterwards. Each first write to a page that is still protected costs a fault, and
//! while somebody changes protection in the same address space, an interruption of all other CPUs with it. To end the watch takes the marker thread
//! milliseconds, before which it has to get a CPU: so a refill ends it where its run lies, a chunk at a time. Where the program hardly writes to what is
//! older, that is all: the rest stays watched until the next cycle (`larder_policy::concurrent::leaves_watch`).

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use larder_sync::lock::Lock;
use larder_sys::watch::{Ender, Watch};

use crate::heap::HEAP;

/// As many chunks as the range has at most.
const CHUNKS: usize = 4096;
/// A chunk's bytes, as a shift, at least: a fraction of what it takes to get a thread a CPU.
const LEAST_SHIFT: u32 = 19;
/// Chunks that the marker thread takes at a time.
const AT_ONCE: usize = 4;

/// What is being ended.
#[derive(Clone, Copy)]
struct Range {
    ender: Ender,
    /// Bytes from the heap's beginning.
    bytes: usize,
    shift: u32,
}

struct Guarded(UnsafeCell<Option<Range>>);
// SAFETY: used with `LOCK` held.
unsafe impl Sync for Guarded {}

static RANGE: Guarded = Guarded(UnsafeCell::new(None));
/// Guards `RANGE`; who has it keeps the watch from being given up. Waited for by the marker thread, and by the collector in a stopped world: who
/// has it is not stopped.
static LOCK: Lock = Lock::new();
/// Bytes and shift of `RANGE`; no bytes where there is none. Sync: hints, written with the lock held.
static BYTES: AtomicUsize = AtomicUsize::new(0);
static SHIFT: AtomicU32 = AtomicU32::new(LEAST_SHIFT);
/// Chunks that somebody has taken, a bit each. Sync: claims.
static TAKEN: [AtomicU64; CHUNKS / 64] = [const { AtomicU64::new(0) }; CHUNKS / 64];

fn range() -> Option<Range> {
    // SAFETY: the callers hold the lock.
    unsafe { *RANGE.0.get() }
}

fn set(range: Option<Range>) {
    // SAFETY: the callers hold the lock.
    unsafe { *RANGE.0.get() = range };
    if let Some(range) = range {
        SHIFT.store(range.shift, Ordering::Relaxed);
    }
    BYTES.store(range.map_or(0, |range| range.bytes), Ordering::Relaxed);
}

/// From here on the watch of so many bytes from the heap's beginning is no longer wanted. Does nothing if it is ending already, or is of a kind that ends
/// in one step.
pub(super) fn begin(watch: &Watch, bytes: usize) {
    let _guard = LOCK.lock();
    if range().is_some() {
        return;
    }
    let Some(ender) = watch.ender() else { return };
    let mut shift = LEAST_SHIFT;
    while bytes > CHUNKS << shift {
        shift += 1;
    }
    TAKEN.iter().for_each(|chunks| chunks.store(0, Ordering::Relaxed));
    set(Some(Range { ender, bytes, shift }));
}

/// The watch is wanted after all. What has been ended of it counts as written.
pub(super) fn cancel() {
    let _guard = LOCK.lock();
    set(None);
}

/// Ends what is left; false if there is nothing to end in chunks. The caller is the marker thread; afterwards nobody else uses the watch.
pub(super) fn complete() -> bool {
    let Some(range) = ({
        let _guard = LOCK.lock();
        range()
    }) else {
        return false;
    };
    let chunks = range.bytes.div_ceil(1 << range.shift);
    let mut chunk = 0;
    while chunk < chunks {
        let mut until = chunk;
        while until < chunks.min(chunk + AT_ONCE) && take(until) {
            until += 1;
        }
        range.end(chunk, until);
        // What follows was taken by somebody else, if this was not.
        chunk = until.max(chunk + 1);
    }
    cancel();
    true
}

/// Whether a chunk is the caller's to end.
fn take(chunk: usize) -> bool {
    // Relaxed: a claim; what the kernel does orders itself.
    TAKEN[chunk / 64].fetch_or(1 << (chunk % 64), Ordering::Relaxed) & 1 << (chunk % 64) == 0
}

impl Range {
    fn end(&self, from: usize, to: usize) {
        if from < to {
            let base = HEAP.space.base();
            self.ender.end(base + (from << self.shift), base + (to << self.shift).min(self.bytes));
        }
    }
}

/// Ends the watch of `[low, high)`, which is all in one system call, whoever has ended it there before. The caller is the marker thread.
pub(super) fn end_part(low: usize, high: usize) {
    let range = {
        let _guard = LOCK.lock();
        range()
    };
    if let Some(range) = range
        && low < high
    {
        range.ender.end(low, high);
    }
}

/// The caller, who defers stops or is not stopped at all, is about to write to a part of the heap for which no cycle needs to know.
#[inline(always)]
pub(crate) fn about_to_write(low: usize, high: usize) {
    if low.wrapping_sub(HEAP.space.base()) < BYTES.load(Ordering::Relaxed) {
        end_around(low, high);
    }
}

#[cold]
#[inline(never)]
fn end_around(low: usize, high: usize) {
    let base = HEAP.space.base();
    let chunks = |high: usize, shift: u32| (low - base) >> shift..=(high - 1 - base) >> shift;
    let is_taken = |chunk: usize| TAKEN[chunk / 64].load(Ordering::Relaxed) & 1 << (chunk % 64) != 0;
    let hinted = chunks(high, SHIFT.load(Ordering::Relaxed));
    if *hinted.end() < CHUNKS && hinted.into_iter().all(is_taken) {
        return;
    }
    // Where another thread does the same, this one's faults are not worth waiting for.
    let Some(_guard) = LOCK.try_lock() else { return };
    let Some(range) = range() else { return };
    let last = high.min(base + range.bytes);
    if low < last {
        for chunk in chunks(last, range.shift) {
            if take(chunk) {
                range.end(chunk, chunk + 1);
            }
        }
    }
}

/// In a child of fork: the parent's watch is not this process's.
///
/// # Safety
/// The calling thread is the only one of the process.
pub(super) unsafe fn reset_after_fork() {
    // SAFETY: the caller's promise.
    unsafe { LOCK.reset_after_fork() };
    set(None);
}
