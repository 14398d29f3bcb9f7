//! The end of a watch of pages: by the marker thread from the heap's beginning upwards, and, ahead of it, by who is about to write.
//!
//! Memory that a cycle found dead is written first afterwards. Each first write to a page that is still protected costs a fault, and
//! while somebody changes protection in the same address space, an interruption of all other CPUs with it. To end the watch takes the marker thread
//! milliseconds, before which it has to get a CPU: so a refill ends it where its run lies, a chunk at a time. Where the program hardly writes to what is
//! older, that is all: the rest stays watched until the next cycle (`larder_policy::concurrent::leaves_watch`).

use core::cell::UnsafeCell;
use core::convert::Infallible;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use larder_sync::lock::Lock;
use larder_sys::memory::KeepErrno;
use larder_sys::watch::{Ender, Watch};

use super::protected;
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
}

struct Guarded(UnsafeCell<Option<Range>>);
// SAFETY: used with `LOCK` held.
unsafe impl Sync for Guarded {}

static RANGE: Guarded = Guarded(UnsafeCell::new(None));
/// Guards `RANGE`; who has it keeps the watch from being given up. Waited for by the marker thread, and by the collector in a stopped world: who
/// has it is not stopped.
static LOCK: Lock = Lock::new();
/// Bytes of `RANGE`; none where there is none. Sync: a hint, written with the lock held.
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Chunks that somebody has taken, a bit each. Sync: claims.
static TAKEN: [AtomicU64; CHUNKS / 64] = [const { AtomicU64::new(0) }; CHUNKS / 64];

fn range() -> Option<Range> {
    // SAFETY: the callers hold the lock.
    unsafe { *RANGE.0.get() }
}

fn set(range: Option<Range>) {
    // SAFETY: the callers hold the lock.
    unsafe { *RANGE.0.get() = range };
    BYTES.store(range.map_or(0, |range| range.bytes), Ordering::Relaxed);
}

/// From here on the watch of so many bytes from the heap's beginning is no longer wanted, if that is not so already. False, and nothing done, for a watch of
/// a kind that ends in one step.
pub(super) fn begin(watch: &Watch, bytes: usize) -> bool {
    let Some(ender) = watch.ender() else { return false };
    let _guard = LOCK.lock();
    if range().is_none() {
        TAKEN.iter().for_each(|chunks| chunks.store(0, Ordering::Relaxed));
        set(Some(Range { ender, bytes }));
    }
    true
}

/// The watch is wanted after all. What has been ended of it counts as written.
pub(super) fn cancel() {
    let _guard = LOCK.lock();
    set(None);
}

/// Ends what is left. The caller is the marker thread; afterwards nobody else uses the watch.
pub(super) fn complete() {
    let Some(range) = ({
        let _guard = LOCK.lock();
        range()
    }) else {
        return;
    };
    let chunks = range.bytes.div_ceil(1 << shift(range.bytes));
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
}

/// The size of a chunk of so many bytes, as a shift.
fn shift(bytes: usize) -> u32 {
    bytes.div_ceil(CHUNKS).next_power_of_two().trailing_zeros().max(LEAST_SHIFT)
}

/// The chunks in which `[low, high)` lies, offsets below `bytes`.
fn chunks(low: usize, high: usize, bytes: usize) -> core::ops::RangeInclusive<usize> {
    low >> shift(bytes)..=(high - 1) >> shift(bytes)
}

/// Whether a chunk is the caller's to end.
fn take(chunk: usize) -> bool {
    // Relaxed: a claim; what the kernel does orders itself.
    TAKEN[chunk / 64].fetch_or(1 << (chunk % 64), Ordering::Relaxed) & 1 << (chunk % 64) == 0
}

impl Range {
    fn end(&self, from: usize, to: usize) {
        let shift = shift(self.bytes);
        let (low, high) = (from << shift, (to << shift).min(self.bytes));
        _ = protected::for_each_part([low, high], protected::LEAST_LEFT_WRITABLE, |is_protected, from, to| {
            if is_protected {
                let base = HEAP.space.base();
                self.ender.end(base + from, base + to);
                protected::clear(from, to);
            }
            Ok::<(), Infallible>(())
        });
    }
}

/// The caller, who defers stops or is not stopped at all, is about to write to a part of the heap for which no cycle needs to know.
#[inline(always)]
pub(crate) fn about_to_write(low: usize, high: usize) {
    let base = HEAP.space.base();
    let (low, bytes) = (low.wrapping_sub(base), BYTES.load(Ordering::Relaxed));
    if low < bytes {
        end_around(low, high - base, bytes);
    }
}

#[cold]
#[inline(never)]
fn end_around(low: usize, high: usize, bytes: usize) {
    let is_taken = |chunk: usize| TAKEN[chunk / 64].load(Ordering::Relaxed) & 1 << (chunk % 64) != 0;
    if chunks(low, high.min(bytes), bytes).all(is_taken) {
        return;
    }
    // Where another thread does the same, this one's faults are not worth waiting for.
    let Some(_guard) = LOCK.try_lock() else { return };
    let Some(range) = range() else { return };
    // Not every slow path keeps it.
    let _errno = KeepErrno::new();
    if low < range.bytes {
        for chunk in chunks(low, high.min(range.bytes), range.bytes) {
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
