//! Disclaim functions: a client's function that is asked about each dead object of a kind before its memory is used
//! again (libgc's `gc_disclaim.h`).
//!
//! libgc asks while it sweeps. Here the cycle finds the dead objects in the stopped world, marks them, so that no sweep
//! takes them, and asks after the resume; an object that the function gives up is then freed explicitly, in the same
//! cycle. With *mark from all* also what dead objects of the kind refer to is marked, before finalizers are looked at,
//! so that the function may follow the object's pointers; a chain of dead objects then takes a cycle for each.
//!
//! In libgc an object that waits to be asked about is not marked. Weak tables rely on it: who finds such an object in one marks it under
//! the allocation lock, and so saves it, and the function asks whether it is marked before it takes it out. Here [`is_waiting`] and
//! [`save`] make it look like that.
//!
//! A heap without such kinds pays one load in each cycle.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use larder_blocks::block::Block;
use larder_sys::vector::Vector;
use larder_threads::defer;
use larder_trace::Marker;

use crate::epochs::Epochs;
use crate::heap::HEAP;
use crate::view::View;
use crate::{kind, large, lock, object, refill, stats};

/// Returns 0 where the object may be reclaimed, anything else to keep it for another cycle. Called with the allocation
/// lock held, on the collecting thread, with the world running; it must not make the object reachable again.
pub type DisclaimFn = unsafe extern "C" fn(object: *mut c_void) -> c_int;

struct Entry {
    /// Null, or a `DisclaimFn`. Sync: written under the allocation lock; read in a stopped world and by the collector.
    f: AtomicPtr<()>,
    /// Sync: as `f`.
    mark_from_all: AtomicBool,
}

static ENTRIES: [Entry; kind::MAX] =
    [const { Entry { f: AtomicPtr::new(core::ptr::null_mut()), mark_from_all: AtomicBool::new(false) } }; kind::MAX];
/// Whether any kind has a function. Sync: only ever set; under the allocation lock.
static ANY: AtomicBool = AtomicBool::new(false);

struct Guarded(UnsafeCell<Vector<usize>>);
// SAFETY: used by the collecting thread only, of which there is one at a time.
unsafe impl Sync for Guarded {}

/// The dead objects of this cycle, or the last, by address. Sync: the collecting thread; its memory is mapped and unmapped in a stopped
/// world only.
static DEAD: Guarded = Guarded(UnsafeCell::new(Vector::new()));

/// What others see of [`DEAD`] while there is somebody left to ask about.
struct Waiting {
    /// The first entry. Sync: written in a stopped world.
    first: AtomicPtr<AtomicUsize>,
    /// How many, 0 when none waits. Sync: `disclaim.waiting`.
    count: AtomicUsize,
}

static WAITING: Waiting = Waiting { first: AtomicPtr::new(core::ptr::null_mut()), count: AtomicUsize::new(0) };

/// In an entry, beside the address: the object is not waiting any more, because it was marked or asked about.
const SETTLED: usize = 1;

/// Sets the function that is asked about the objects of a kind.
pub fn register(kind: usize, f: DisclaimFn, mark_from_all: bool) {
    lock::with(|| {
        ENTRIES[kind].mark_from_all.store(mark_from_all, Ordering::Relaxed);
        ENTRIES[kind].f.store(f as *mut (), Ordering::Release);
        ANY.store(true, Ordering::Release);
    });
}

fn function(kind: usize) -> Option<DisclaimFn> {
    let f = ENTRIES[kind].f.load(Ordering::Acquire);
    // SAFETY: only `register` stores here.
    (!f.is_null()).then(|| unsafe { core::mem::transmute::<*mut (), DisclaimFn>(f) })
}

/// Whether any kind has a function.
pub(crate) fn is_used() -> bool {
    ANY.load(Ordering::Acquire)
}

/// Calls `f` for each allocated object that is not marked, of those kinds with a function for which `wanted` says yes.
///
/// # Safety
/// In a cycle, in the stopped world; the caller holds the locks of all classes and of the large objects.
unsafe fn for_each_dead(wanted: impl Fn(&Entry) -> bool, mut f: impl FnMut(usize)) {
    let epochs = Epochs::now();
    let is_wanted = |kind: usize| function(kind).is_some() && wanted(&ENTRIES[kind]);
    let mut look_at = |b: &'static Block| {
        let start = HEAP.space.address_of(HEAP.space.index_of(b));
        for cell in 0..b.cells.get() as usize {
            // SAFETY: a cell of the block.
            if epochs.is_unmarked(unsafe { b.mark(cell) }.load(Ordering::Relaxed)) {
                f(start + cell * b.cell.get() as usize);
            }
        }
    };
    for kind in (0..kind::count()).filter(|&kind| is_wanted(kind)) {
        // SAFETY: the caller's promise.
        unsafe { refill::for_each_block(kind, &mut look_at) };
    }
    // SAFETY: the caller's promise.
    unsafe {
        large::for_each(|b| {
            if is_wanted(b.kind.get() as usize) {
                look_at(b);
            }
        });
    }
}

/// Marks what dead objects refer to, for the kinds that want that.
///
/// # Safety
/// As for [`for_each_dead`], with everything marked that the roots reach.
pub(crate) unsafe fn mark_from_dead(marker: &mut Marker<'_, View>) {
    /// Objects after which they are marked from: as many as fit into the nearest cache.
    const BATCH: usize = 256;
    let view = marker.heap();
    let mut pushed = 0;
    // SAFETY: the caller's promise.
    unsafe {
        for_each_dead(
            |entry| entry.mark_from_all.load(Ordering::Relaxed),
            |object| {
                if let Some(entry) = view.entry_of(object) {
                    marker.push(entry);
                    pushed += 1;
                    if pushed % BATCH == 0 {
                        marker.drain(|_| {});
                    }
                }
            },
        );
    }
    marker.drain(|_| {});
}

/// Lists the dead objects, and keeps them until [`ask`] has asked about them. One for which there is no room in the list
/// is kept until the next cycle.
///
/// # Safety
/// As for [`for_each_dead`], after finalizers were queued.
pub(crate) unsafe fn keep_dead(view: View) {
    // SAFETY: this is the collecting thread.
    let dead = unsafe { &mut *DEAD.0.get() };
    dead.clear();
    // SAFETY: the caller's promise.
    unsafe {
        for_each_dead(
            |_| true,
            |object| {
                _ = dead.push(object);
                view.set_mark(object);
            },
        );
    }
    let dead = dead.as_mut_slice();
    dead.sort_unstable();
    WAITING.first.store(dead.as_mut_ptr().cast(), Ordering::Relaxed);
    // ORDER disclaim.waiting: Release, with the loads in `waiting`: who sees the number sees the entries.
    WAITING.count.store(dead.len(), Ordering::Release);
}

/// The objects that wait, or have waited in this cycle.
fn waiting() -> &'static [AtomicUsize] {
    // ORDER disclaim.waiting: Acquire, with the store in `keep_dead`.
    match WAITING.count.load(Ordering::Acquire) {
        0 => &[],
        // SAFETY: the entries are mapped, and used as atomics only, until the next cycle's `keep_dead`, in a stopped world. The callers are
        // not stopped while they look: they are the collector, or defer.
        count => unsafe { core::slice::from_raw_parts(WAITING.first.load(Ordering::Relaxed), count) },
    }
}

/// Calls `f` with the entry of the object at `base`, if it is one of those that wait or have waited.
fn with_entry<R>(base: usize, f: impl FnOnce(&AtomicUsize) -> R) -> Option<R> {
    if WAITING.count.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let _deferral = defer::enter();
    let entries = waiting();
    let found = entries.binary_search_by_key(&base, |entry| entry.load(Ordering::Relaxed) & !SETTLED);
    found.ok().map(|at| f(&entries[at]))
}

/// Whether the object at `base` is dead and its function has not been asked yet. The caller is registered, or holds the allocation lock.
pub(crate) fn is_waiting(base: usize) -> bool {
    with_entry(base, |entry| entry.load(Ordering::Relaxed) & SETTLED == 0).unwrap_or(false)
}

/// Keeps the object at `base` for another cycle, if it waits; its function is not asked then. The caller holds the allocation lock.
pub(crate) fn save(base: usize) {
    with_entry(base, |entry| entry.store(base | SETTLED, Ordering::Relaxed));
}

/// Asks about the objects of [`keep_dead`], and frees those that are given up. By the collecting thread, with the world
/// running; it holds the cycle lock and not the allocation lock.
pub(crate) fn ask() {
    for entry in waiting() {
        let base = entry.load(Ordering::Relaxed) & !SETTLED;
        let Some(f) = function(object::kind_of(base)) else { continue };
        let given_up = lock::with(|| {
            if entry.load(Ordering::Relaxed) & SETTLED != 0 {
                return false;
            }
            // SAFETY: the client's function, with an object of its kind.
            let keep = unsafe { f(with_exposed_provenance_mut(base)) };
            entry.store(base | SETTLED, Ordering::Relaxed);
            keep == 0
        });
        if given_up {
            let bytes = object::counted(base);
            // SAFETY: the object is dead, and its client has given it up.
            unsafe { crate::free(with_exposed_provenance_mut(base)) };
            // Nobody freed it explicitly, as far as the statistic goes.
            stats::tell_freed();
            HEAP.freed.fetch_sub(bytes.min(HEAP.freed.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }
    WAITING.count.store(0, Ordering::Relaxed);
}
