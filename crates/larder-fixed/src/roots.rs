//! Roots: static data, registered ranges, thread-local storage, and what clients push during a cycle.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};

use larder_sys::arena::Arena;
use larder_sys::list_lock;
use larder_sys::loader::{self, Object};
use larder_sys::pagemap::Pagemap;
use larder_threads::Thread;
use larder_trace::{Entry, Interior, Marker, Objects};
use larder_units::Bytes;

use crate::epochs::Epochs;
use crate::view::View;

/// A range of addresses, `[low, high)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    low: usize,
    high: usize,
}

/// Ranges in memory of their own that only grows.
struct Ranges {
    at: *mut Range,
    used: usize,
    capacity: usize,
}

impl Ranges {
    const fn new() -> Self {
        Self { at: core::ptr::null_mut(), used: 0, capacity: 0 }
    }

    fn as_slice(&self) -> &[Range] {
        if self.used == 0 {
            return &[];
        }
        // SAFETY: `used` entries are initialised.
        unsafe { core::slice::from_raw_parts(self.at, self.used) }
    }

    fn push(&mut self, arena: &mut Arena, range: Range) {
        if range.low >= range.high || self.as_slice().contains(&range) {
            return;
        }
        if self.used == self.capacity {
            // The old array stays in the arena: doubling wastes at most as much again.
            let capacity = (self.capacity * 2).max(64);
            let Ok(at) = arena.allocate(Bytes(capacity * size_of::<Range>()), Bytes(16)) else {
                larder_sys::die!("cannot remember {} root ranges: out of memory", capacity);
            };
            let at = at.as_ptr().cast::<Range>();
            if self.used > 0 {
                // SAFETY: the old entries are initialised, the new array is larger.
                unsafe { core::ptr::copy_nonoverlapping(self.at, at, self.used) };
            }
            (self.at, self.capacity) = (at, capacity);
        }
        // SAFETY: `used` is below the capacity.
        unsafe { self.at.add(self.used).write(range) };
        self.used += 1;
    }

    /// Takes out every range that lies in `[cut.low, cut.high)` as a whole.
    fn remove_inside(&mut self, cut: Range) {
        let mut kept = 0;
        for i in 0..self.used {
            let r = self.as_slice()[i];
            if r.low < cut.low || cut.high < r.high {
                // SAFETY: `kept` is not beyond `i`, which is below the capacity.
                unsafe { self.at.add(kept).write(r) };
                kept += 1;
            }
        }
        self.used = kept;
    }
}

struct Roots {
    arena: Arena,
    registered: Ranges,
    excluded: Ranges,
}

impl Roots {
    /// Calls `f(low, high)` for each part of a range that is not excluded.
    fn for_each_part(&self, range: Range, f: &mut impl FnMut(usize, usize)) {
        let Range { mut low, high } = range;
        // Excluded ranges are few; they need not be sorted, since each pass takes the lowest that is left.
        while low < high {
            let cut = self.excluded.as_slice().iter().filter(|e| e.high > low && e.low < high).min_by_key(|e| e.low);
            let Some(cut) = cut else { return f(low, high) };
            if cut.low > low {
                f(low, cut.low);
            }
            low = cut.high;
        }
    }
}

struct Guarded(UnsafeCell<Roots>);
// SAFETY: used under the allocation lock only.
unsafe impl Sync for Guarded {}

static ROOTS: Guarded =
    Guarded(UnsafeCell::new(Roots { arena: Arena::new(), registered: Ranges::new(), excluded: Ranges::new() }));

fn with_roots<R>(f: impl FnOnce(&mut Roots) -> R) -> R {
    // SAFETY: the lock makes this the only reference.
    crate::lock::with(|| f(unsafe { &mut *ROOTS.0.get() }))
}

/// A client's choice which objects' data are roots, as `GC_register_has_static_roots_callback` has it.
pub type StaticFilter = unsafe extern "C" fn(*const c_char, *mut c_void, usize) -> c_int;

/// Data segments of libraries are not roots. Sync: a setting.
static NO_LIBRARIES: AtomicBool = AtomicBool::new(false);
/// The program's own data segments are not roots where those of libraries are not. Sync: a setting.
static NO_PROGRAM: AtomicBool = AtomicBool::new(false);
/// Sync: a setting; the function is code.
static FILTER: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Largest displacement, in bytes, that can be registered, plus one.
const DISPLACEMENTS: usize = 4096;
/// 1 where a pointer so far into an object counts. Sync: only ever set; a cycle under way may or may not see it.
static VALID: [AtomicU8; DISPLACEMENTS] = [const { AtomicU8::new(0) }; DISPLACEMENTS];
/// The first of these, a bit for each. Sync: as `VALID`.
static NEAR_VALID: AtomicU64 = AtomicU64::new(1);
/// A displacement beyond the table was registered: all such count. Sync: as `VALID`.
static FAR_VALID: AtomicBool = AtomicBool::new(false);

/// Whether this displacement was registered; 0 never needs to be.
#[inline]
pub fn is_valid_displacement(displacement: usize) -> bool {
    match VALID.get(displacement) {
        Some(v) => v.load(Ordering::Relaxed) != 0,
        None => FAR_VALID.load(Ordering::Relaxed),
    }
}

/// Those below 64 that were registered, and 0, a bit for each.
pub fn near_displacements() -> u64 {
    NEAR_VALID.load(Ordering::Relaxed)
}

/// Whether a pointer `displacement` bytes into an object in the heap keeps it.
pub fn displacement_is_valid(displacement: usize) -> bool {
    displacement == 0 || crate::heap::HEAP.round.load(Ordering::Relaxed) > 15 || is_valid_displacement(displacement)
}

/// Pointers so many bytes into an object keep it, also when interior pointers do not count.
pub fn register_displacement(displacement: usize) {
    if displacement < u64::BITS as usize {
        NEAR_VALID.fetch_or(1 << displacement, Ordering::Relaxed);
    }
    match VALID.get(displacement) {
        Some(v) => v.store(1, Ordering::Relaxed),
        None => FAR_VALID.store(true, Ordering::Relaxed),
    }
}

/// The words of `[low, high)` are roots.
pub fn add(low: usize, high: usize) {
    with_roots(|r| r.registered.push(&mut r.arena, Range { low: low.next_multiple_of(8), high: high & !7 }));
}

/// Ranges that lie in `[low, high)` as a whole are not registered roots any more.
pub fn remove(low: usize, high: usize) {
    with_roots(|r| r.registered.remove_inside(Range { low, high }));
}

/// No range is registered any more. Where libraries' data is turned off, the program's own is no root any more, either.
pub fn clear() {
    NO_PROGRAM.store(true, Ordering::Relaxed);
    with_roots(|r| r.registered.used = 0);
}

/// The words of `[low, high)` are never roots as static data, nor as part of a registered range.
pub fn exclude(low: usize, high: usize) {
    with_roots(|r| r.excluded.push(&mut r.arena, Range { low: low & !7, high: high.next_multiple_of(8) }));
}

/// Forgets what was excluded.
pub fn clear_exclusions() {
    with_roots(|r| r.excluded.used = 0);
}

/// Turns the data segments of libraries off or on as roots.
pub fn set_no_dls(on: bool) {
    NO_LIBRARIES.store(on, Ordering::Relaxed);
}

/// Sets the client's filter.
pub fn set_static_filter(f: Option<StaticFilter>) {
    FILTER.store(f.map_or(core::ptr::null_mut(), |f| f as *mut c_void), Ordering::Release);
}

/// Whether the data of the program, or of a library, is not searched.
fn is_off(program: bool) -> bool {
    NO_LIBRARIES.load(Ordering::Relaxed) && (!program || NO_PROGRAM.load(Ordering::Relaxed))
}

/// Whether `address` lies in data of the program or of a library that a cycle searches, as opposed to a registered range.
/// Takes the allocation lock, which the caller may hold, and without that the loader's list.
pub fn is_static_data(address: usize) -> bool {
    let holds = |r: &Range| (r.low..r.high).contains(&address);
    let is_another = crate::lock::with_or_held(|| {
        // SAFETY: under the lock, and nobody changes them while a client's function runs.
        let r = unsafe { &*ROOTS.0.get() };
        r.registered.as_slice().iter().any(holds) || r.excluded.as_slice().iter().any(holds)
    });
    if is_another {
        return false;
    }
    let mut found = false;
    let mut look = |object: &Object<'_>| static_ranges(object, |low, high| found |= (low..high).contains(&address));
    // The list comes before the lock: who has it may be a collector that waits for the caller.
    if !(crate::lock::is_held() && loader::look_at_object_of(address, &mut look)) {
        loader::for_each_object(|object| {
            look(object);
            true
        });
    }
    found
}

/// Calls `f(low, high)` for each range of static data that cycles search, before exclusions. Takes the loader's list.
pub fn for_each_static_range(mut f: impl FnMut(usize, usize)) {
    loader::for_each_object(|object| {
        static_ranges(object, &mut f);
        true
    });
}

/// As [`for_each_static_range`]. False, without a call, where the caller holds the allocation lock and somebody else the loader's list: the list comes
/// before the lock.
pub fn try_for_each_static_range(f: impl FnMut(usize, usize)) -> bool {
    if crate::lock::is_held() {
        return list_lock::try_with(|| for_each_static_range(f)).is_some();
    }
    for_each_static_range(f);
    true
}

/// Calls `f(low, high)` for each range of one object's static data.
fn static_ranges(object: &Object<'_>, f: impl FnMut(usize, usize)) {
    let own = (&raw const ROOTS).addr();
    let program = object.name.is_empty();
    if !is_off(program) && (program || !object.contains(own)) {
        object.writable_ranges(f);
    }
}

/// Whether a thread was stopped while the C library was replacing its vector of thread-local blocks: it must run on for a moment,
/// since its blocks cannot be found. World stopped, the caller holds the registry's lock.
pub(crate) fn is_a_thread_between_vectors() -> bool {
    let mut found = false;
    // SAFETY: the world is stopped.
    crate::cycle::for_each_thread(|thread| found |= unsafe { is_between_vectors(thread) });
    found
}

/// The same of one thread.
///
/// # Safety
/// The thread stands still, or is this one.
pub(crate) unsafe fn is_between_vectors(thread: &Thread) -> bool {
    let at = thread.thread_pointer();
    // SAFETY: the caller's promise.
    !at.is_null() && !unsafe { loader::has_whole_vector(at) }
}

/// Calls `f(low, high)` for each thread's block of each object's thread-local storage. World stopped, the caller holds the
/// loader's list and the registry's lock.
pub(crate) fn for_each_thread_local(f: impl FnMut(usize, usize)) {
    // SAFETY: the world is stopped.
    unsafe { for_each_thread_local_of(|found| crate::cycle::for_each_thread(found), f) };
}

/// As [`for_each_thread_local`], of the threads that `threads` names, which is called more than once.
///
/// # Safety
/// These threads stand still, and none is between two vectors of thread-local blocks. The caller holds the loader's list and the
/// registry's lock.
pub(crate) unsafe fn for_each_thread_local_of(
    threads: impl Fn(&mut dyn FnMut(&'static Thread)),
    mut f: impl FnMut(usize, usize),
) {
    loader::for_each_object(|object| {
        let (module, size) = (object.tls_module, object.tls_size());
        if size > 0 {
            threads(&mut |thread| {
                if thread.thread_pointer().is_null() {
                    return;
                }
                // SAFETY: the caller's promise.
                if let Some(at) = unsafe { loader::tls_block_like_own(thread.thread_pointer(), module) } {
                    f(at.addr(), at.addr() + size);
                }
            });
        }
        true
    });
}

/// Calls `f(low, high)` for each registered range. Takes the allocation lock, which the caller may hold.
pub fn for_each_registered(f: impl FnMut(usize, usize)) {
    // SAFETY: under the lock.
    crate::lock::with_or_held(|| unsafe { for_each_registered_locked(f) });
}

/// As [`for_each_registered`].
///
/// # Safety
/// The caller holds the allocation lock.
pub(crate) unsafe fn for_each_registered_locked(mut f: impl FnMut(usize, usize)) {
    // SAFETY: the caller's promise.
    unsafe { &*ROOTS.0.get() }.registered.as_slice().iter().for_each(|r| f(r.low, r.high));
}

/// As [`for_each_registered`], less what is excluded.
///
/// # Safety
/// The caller holds the allocation lock.
pub(crate) unsafe fn for_each_searched_locked(mut f: impl FnMut(usize, usize)) {
    // SAFETY: the caller's promise.
    let roots = unsafe { &*ROOTS.0.get() };
    roots.registered.as_slice().iter().for_each(|&range| roots.for_each_part(range, &mut f));
}

/// Bytes of static data from which on the kernel is asked which pages hold something. Large tables are often used in part: reading
/// a page that nobody wrote costs a fault, once, and its time in every cycle.
const SPARSE: usize = 256 << 10;
/// Empty pages that are worth a range of their own behind them.
const GAP: usize = 64 << 10;
/// The kernel could not be asked, and is not asked again. Sync: only ever set, by collectors.
static CANNOT_ASK: AtomicBool = AtomicBool::new(false);

/// Calls `f` for the parts of a range of static data that may hold anything but zeros, or what the file holds that it was mapped from:
/// neither knows an address of the heap. `pages` is opened once for a cycle, and not kept: a descriptor that stayed
/// open would show a child of fork its parent's memory.
fn for_each_filled(pages: &mut Option<Pagemap>, low: usize, high: usize, mut f: impl FnMut(usize, usize)) {
    if high - low < SPARSE || CANNOT_ASK.load(Ordering::Relaxed) {
        return f(low, high);
    }
    // What is to be scanned and not yet told.
    let mut told = (low, low);
    let mut fill = |from: usize, to: usize| {
        if from > told.1 + GAP {
            f(told.0, told.1);
            told.0 = from;
        }
        told.1 = to.min(high);
    };
    let asked = match pages {
        Some(pages) => pages.for_each_filled(low, high, &mut fill),
        None => Pagemap::open().and_then(|opened| pages.insert(opened).for_each_filled(low, high, &mut fill)),
    };
    if asked.is_err() {
        CANNOT_ASK.store(true, Ordering::Relaxed);
        told.1 = high;
    }
    f(told.0, told.1);
}

/// Pushes registered ranges, static data and thread-local storage; returns how many bytes they are. World stopped, the
/// caller holds the loader's list and the allocation lock.
pub(crate) fn push_all_static(marker: &mut Marker<'_, View>) -> usize {
    let mut bytes = 0;
    let mut push = |low: usize, high: usize| {
        bytes += high.saturating_sub(low);
        marker.push_range(low, high, Interior::AsConfigured);
    };
    for_each_range_of_cycle(&mut push);
    for_each_thread_local(push);
    bytes
}

/// Calls `f(low, high)` for each registered range and for what may hold something of each range of static data, both less what is excluded.
/// The caller holds the loader's list and the allocation lock. The world may run: what is written after the kernel was asked is found by
/// the next call.
pub(crate) fn for_each_range_of_cycle(mut push: impl FnMut(usize, usize)) {
    // SAFETY: the caller holds the allocation lock.
    unsafe { for_each_searched_locked(&mut push) };
    let mut pages = None;
    for_each_static_range_of_cycle(|low, high| for_each_filled(&mut pages, low, high, &mut push));
}

/// Calls `f(low, high)` for each range of static data, less what is excluded. The caller as above.
fn for_each_static_range_of_cycle(mut push: impl FnMut(usize, usize)) {
    // SAFETY: the caller holds the allocation lock.
    let roots = unsafe { &*ROOTS.0.get() };
    let own = (&raw const ROOTS).addr();
    let filter = FILTER.load(Ordering::Acquire);
    loader::for_each_object(|object| {
        let program = object.name.is_empty();
        let off = is_off(program);
        // The runtime's own data are no roots, unless it is linked into the program itself.
        if !off && (program || !object.contains(own)) {
            object.writable_ranges(|low, high| {
                if !filter.is_null() {
                    // SAFETY: only `set_static_filter` stores here.
                    let f = unsafe { core::mem::transmute::<*mut c_void, StaticFilter>(filter) };
                    // SAFETY: the client set it to be called so.
                    let wanted =
                        unsafe { f(object.name.as_ptr(), core::ptr::with_exposed_provenance_mut(low), high - low) };
                    if wanted == 0 {
                        return;
                    }
                }
                roots.for_each_part(Range { low, high }, &mut push);
            });
        }
        true
    });
}

/// Runs `f` on the marker of the collecting thread. Only inside a client's push-other-roots procedure.
fn with_marker(f: impl FnOnce(&mut Marker<'_, View>)) {
    let marker = crate::cycle::PUSHING.load(Ordering::Relaxed);
    // SAFETY: the collecting thread sets it around the call of the client's procedure, and clears it after.
    if let Some(marker) = unsafe { marker.cast::<Marker<'_, View>>().as_mut() } {
        f(marker);
    }
}

/// The words of `[low, high)` are roots of the present cycle.
///
/// # Safety
/// The range is readable; the caller is the client's push-other-roots procedure.
pub unsafe fn push_all(low: usize, high: usize) {
    with_marker(|m| m.push_range(low, high, Interior::AsConfigured));
}

/// The same for a stack: interior pointers count, and the range is scanned before this returns, since its owner may
/// change it after.
///
/// # Safety
/// As for [`push_all`].
pub unsafe fn push_all_eager(low: usize, high: usize) {
    with_marker(|m| m.push_range(low, high, Interior::Always));
}

/// The words of `[low, high)` are roots; with `all` false only those on pages that changed, which a stop-and-mark cycle
/// takes to be all.
///
/// # Safety
/// As for [`push_all`].
pub unsafe fn push_conditional(low: usize, high: usize, _all: bool) {
    // SAFETY: the caller's promise.
    unsafe { push_all(low, high) };
}

/// If `object` may be the address of an object: marks it, and pushes it onto the client's stack if it must be scanned.
/// From a mark procedure.
///
/// # Safety
/// `top` and `limit` are what the procedure got, `top` possibly advanced.
pub unsafe fn mark_and_push(object: usize, top: *mut Entry, limit: *mut Entry, _source: *mut usize) -> *mut Entry {
    let epochs = Epochs::now();
    if !epochs.marking() {
        return top;
    }
    let view = View::new(epochs);
    let Some(spot) = view.find(object, Interior::AsConfigured) else { return top };
    let Some(larder_trace::Marked { bytes, entry }) = view.mark(spot) else { return top };
    crate::cycle::count_marked(bytes);
    if entry.descriptor == 0 {
        return top;
    }
    if top.wrapping_add(1) >= limit {
        // The object stays marked without having been scanned: the heap is walked once more at the end.
        crate::cycle::PROC_OVERFLOW.store(true, Ordering::Relaxed);
        return top;
    }
    let top = top.wrapping_add(1);
    // SAFETY: the caller's promise, and the check above.
    unsafe { top.write(entry) };
    top
}
