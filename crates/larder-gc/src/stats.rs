//! What the collector has done, in libgc's numbers.

use core::ffi::{c_int, c_ulong, c_void};
use core::mem::MaybeUninit;
use core::ptr;

use larder_fixed::stats::{self, Snapshot, add_allocated, add_freed};
use larder_fixed::{cycle, lock};
use larder_units::{BLOCK, Nanos};

use crate::data::{GC_gc_no, GC_non_gc_bytes, GC_parallel, Word};
use crate::debug::held;
use crate::init::is_ready;

/// Nobody has begun to measure.
const NOT_MEASURED: usize = usize::MAX;
/// The total pause when measuring began.
static MEASURED_FROM_NS: Word = Word::new(NOT_MEASURED);
// Sync: both written by the collecting thread under the allocation lock; statistics.
static RECLAIMED_LAST: Word = Word::new(0);
static RECLAIMED_BEFORE: Word = Word::new(0);

/// Refreshes the variables that show counters.
pub fn publish() {
    GC_gc_no.set(cycle::number() as usize);
    GC_parallel.set(markers_but_one() as c_int);
}

/// Notes what a cycle found dead.
pub fn note_reclaimed(bytes: usize) {
    RECLAIMED_BEFORE.set(RECLAIMED_BEFORE.get().wrapping_add(RECLAIMED_LAST.get()));
    RECLAIMED_LAST.set(bytes);
}

/// The heap's numbers as clients know them: room that the heap may take counts as room that it has, as in libgc, where
/// [`GC_expand_hp`](crate::collect::GC_expand_hp) and the initial size take memory at once. Programs divide by the heap's size, and expand it until it is
/// large enough.
pub fn snapshot() -> Snapshot {
    let mut s = stats::snapshot();
    let room = if is_ready() { s.promised.max(BLOCK.0).saturating_sub(s.unmapped) } else { 0 };
    let more = room.saturating_sub(s.heap);
    s.heap += more;
    s.free += more;
    s
}

/// Bytes allocated in all.
pub fn total_allocated() -> usize {
    let s = snapshot();
    s.total_before_cycle as usize + s.bytes_since_cycle
}

fn markers_but_one() -> usize {
    snapshot().markers.saturating_sub(1)
}

/// Sets the number that uncollectable objects are counted in. What is not collected counts as live anyway, so that pacing
/// needs no other number.
#[unsafe(no_mangle)]
pub extern "C" fn GC_set_non_gc_bytes(bytes: usize) {
    GC_non_gc_bytes.set(bytes);
}

/// Bytes in uncollectable objects, beside what the client set.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_non_gc_bytes() -> usize {
    GC_non_gc_bytes.get()
}

/// The number of cycles so far.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_gc_no() -> usize {
    GC_gc_no.get()
}

/// The number of markers but one.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_parallel() -> c_int {
    markers_but_one() as c_int
}

/// Bytes in the heap, without what was given back to the kernel.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_heap_size() -> usize {
    snapshot().heap
}

/// Bytes in the heap that are free, at least.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_free_bytes() -> usize {
    snapshot().free
}

/// Bytes that were given back to the kernel.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_unmapped_bytes() -> usize {
    snapshot().unmapped
}

/// Bytes allocated since the last cycle.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_bytes_since_gc() -> usize {
    snapshot().bytes_since_cycle
}

/// Bytes freed by `GC_free` since the last cycle, and by `GC_debug_free`, which leaves most to the next one.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_expl_freed_bytes_since_gc() -> usize {
    snapshot().freed_since_cycle + held()
}

/// Bytes allocated in all.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_total_bytes() -> usize {
    total_allocated()
}

/// Bytes that the kernel gave to the heap.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_obtained_from_os_bytes() -> usize {
    let s = snapshot();
    s.heap + s.unmapped
}

/// Bytes in allocated blocks.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_memory_use() -> usize {
    let s = snapshot();
    s.heap.saturating_sub(s.free)
}

/// The five common numbers at once. Null where one is not wanted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_get_heap_usage_safe(
    heap: *mut usize,
    free: *mut usize,
    unmapped: *mut usize,
    since_cycle: *mut usize,
    total: *mut usize,
) {
    let s = lock::with(snapshot);
    let results = [
        (heap, s.heap),
        (free, s.free),
        (unmapped, s.unmapped),
        (since_cycle, s.bytes_since_cycle),
        (total, s.total_before_cycle as usize + s.bytes_since_cycle),
    ];
    for (place, value) in results {
        if !place.is_null() {
            // SAFETY: the caller's place for this number.
            unsafe { *place = value };
        }
    }
}

/// `struct GC_prof_stats_s`.
#[repr(C)]
struct Profile {
    heap_full: usize,
    free_full: usize,
    unmapped: usize,
    since_cycle: usize,
    before_cycle: usize,
    non_gc: usize,
    cycle: usize,
    markers_but_one: usize,
    reclaimed_since_cycle: usize,
    reclaimed_before_cycle: usize,
    freed_since_cycle: usize,
    from_kernel: usize,
}

impl From<Snapshot> for Profile {
    fn from(s: Snapshot) -> Self {
        Self {
            heap_full: s.heap + s.unmapped,
            free_full: s.free + s.unmapped,
            unmapped: s.unmapped,
            since_cycle: s.bytes_since_cycle,
            before_cycle: s.total_before_cycle as usize,
            non_gc: GC_get_non_gc_bytes(),
            cycle: GC_get_gc_no(),
            markers_but_one: markers_but_one(),
            reclaimed_since_cycle: RECLAIMED_LAST.get(),
            reclaimed_before_cycle: RECLAIMED_BEFORE.get(),
            freed_since_cycle: s.freed_since_cycle + held(),
            from_kernel: s.heap + s.unmapped,
        }
    }
}

/// Fills the first `bytes` bytes of a `struct GC_prof_stats_s`; what a newer header has beyond is set to -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_get_prof_stats(into: *mut c_void, bytes: usize) -> usize {
    let profile = lock::with(snapshot).into();
    // SAFETY: the caller's buffer of so many bytes.
    unsafe { copy(profile, into.cast(), bytes) }
}

/// As [`GC_get_prof_stats`], for a caller that holds the allocation lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_get_prof_stats_unsafe(into: *mut c_void, bytes: usize) -> usize {
    // SAFETY: the caller's buffer of so many bytes.
    unsafe { copy(snapshot().into(), into.cast(), bytes) }
}

/// # Safety
/// `into` has room for `bytes` bytes.
unsafe fn copy(profile: Profile, into: *mut MaybeUninit<u8>, bytes: usize) -> usize {
    let known = bytes.min(size_of::<Profile>());
    // SAFETY: both have that many bytes, and the caller's buffer `bytes`.
    unsafe {
        ptr::copy_nonoverlapping((&raw const profile).cast(), into, known);
        ptr::write_bytes(into.add(known), 0xff, bytes - known);
    }
    known
}

/// Begins to measure the time that cycles take, unless it is measured already.
#[unsafe(no_mangle)]
pub extern "C" fn GC_start_performance_measurement() {
    if MEASURED_FROM_NS.get() == NOT_MEASURED {
        MEASURED_FROM_NS.set(cycle::paused().0 as usize);
    }
}

/// The time that cycles took since measuring began, in milliseconds; 0 if it has not.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_full_gc_total_time() -> c_ulong {
    cycle::paused().since(Nanos(MEASURED_FROM_NS.get() as u64)).to_millis_rounded_down()
}

/// Adds to the bytes allocated since the last cycle, as if the heap had handed them out.
#[unsafe(no_mangle)]
pub extern "C" fn GC_incr_bytes_allocd(bytes: usize) {
    add_allocated(bytes);
}

/// Adds to the bytes freed explicitly since the last cycle.
#[unsafe(no_mangle)]
pub extern "C" fn GC_incr_bytes_freed(bytes: usize) {
    add_freed(bytes);
}
