//! Errors that a cycle finds: debug objects whose edges were written over, and, in the leak-finding mode, objects that
//! became unreachable without having been freed.
//!
//! The cycle calls [`look`] while the world is stopped. It only takes notes: printing waits until the world runs
//! ([`report`]), on the thread that collected. A leaked object is kept until it was reported, then freed.
//!
//! The messages are libgc's. libgc notes at most 40 leaks in a cycle and 20 damaged objects, and forgets others; here all
//! are reported.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use larder_fixed::object::{self, Found};
use larder_fixed::{hooks, kind, lock};
use larder_sys::env::is_set;
use larder_sys::vector::Vector;

use crate::callbacks::abort;
use crate::data::{Function, GC_find_leak, Int};
use crate::debug::{self, Debugged, Facts, public_kind};
use crate::error_line;
use crate::print::Text;

/// An object that nobody freed.
#[derive(Clone, Copy)]
struct Leak {
    base: usize,
    size: usize,
    kind: usize,
    debugged: Option<Facts>,
}

/// A place that was written over.
#[derive(Clone, Copy)]
struct Smash {
    place: usize,
    facts: Facts,
}

struct Notes {
    leaks: Vector<Leak>,
    smashes: Vector<Smash>,
}

struct Guarded(UnsafeCell<Notes>);
// SAFETY: used under the allocation lock, which the collector holds in a cycle.
unsafe impl Sync for Guarded {}

/// Sync: the allocation lock.
static NOTES: Guarded = Guarded(UnsafeCell::new(Notes { leaks: Vector::new(), smashes: Vector::new() }));
/// A thread prints. Sync: taken and given back by [`Int::set_if_zero`] and a store.
static PRINTING: Int = Int::new(0);
/// Whether the check at exit is registered.
static AT_EXIT: Int = Int::new(0);

/// A client's function that describes an object in at most [`DESCRIPTION`] bytes.
pub type DescribeFn = unsafe extern "C" fn(*mut c_void, *mut c_char);
/// `GC_TYPE_DESCR_LEN`.
const DESCRIPTION: usize = 40;
static DESCRIBE: [Function<DescribeFn>; kind::MAX] = [const { Function::none() }; kind::MAX];

fn with_notes<R>(f: impl FnOnce(&mut Notes) -> R) -> R {
    // SAFETY: the lock makes this the only reference.
    lock::with(|| f(unsafe { &mut *NOTES.0.get() }))
}

/// Looks for errors in each cycle from now on.
pub fn watch() {
    hooks::MARKED.set(Some(look));
    hooks::AFTER_CYCLE.set(Some(crate::progress::after_cycle));
}

/// Looks for leaks in each cycle from now on, and once more when the program ends.
pub fn watch_leaks() {
    watch();
    if AT_EXIT.set_if_zero() {
        // SAFETY: the library is never unloaded.
        unsafe { libc::atexit(at_exit) };
    }
}

extern "C" fn at_exit() {
    if GC_find_leak.is_set() {
        crate::collect::GC_gcollect();
    }
}

/// Notes the errors that this cycle shows. In the stopped world, with everything marked that is reachable.
unsafe extern "C" fn look() {
    // SAFETY: the collecting thread holds the allocation lock.
    let notes = unsafe { &mut *NOTES.0.get() };
    let leaks_wanted = GC_find_leak.is_set();
    debug::forget_held();
    let earlier = notes.leaks.as_slice().len();
    object::for_each_in_cycle(&mut |found| {
        let debugged = Debugged::of(&found);
        // Who writes to what it has freed is told in the leak-finding mode, as by libgc.
        let is_checked = |debugged: &Debugged| leaks_wanted || (found.is_live && !debugged.is_freed());
        if let Some(debugged) = debugged.filter(is_checked)
            && let Some(place) = debugged.smashed()
        {
            // Without memory for a note the next cycle finds it again.
            _ = notes.smashes.push(Smash { place, facts: debugged.facts() });
        }
        if found.is_live || !leaks_wanted || debugged.is_some_and(|debugged| debugged.is_freed()) {
            return;
        }
        // Noted by an earlier cycle, and about to be printed and freed by another thread.
        let known = notes.leaks.as_slice()[..earlier].iter().any(|leak| leak.base == found.base);
        let Found { base, size, kind, .. } = found;
        let debugged = debugged.map(|debugged| debugged.facts());
        if known || notes.leaks.push(Leak { base, size, kind: public_kind(kind), debugged }).is_ok() {
            object::set_mark(base);
        }
    });
}

/// Prints what cycles have noted, and frees leaked objects. Without any lock.
///
/// # Safety
/// Callable by a thread that holds no lock of the library.
pub unsafe extern "C" fn report() {
    if !PRINTING.set_if_zero() {
        return;
    }
    let smashes = with_notes(|notes| core::mem::take(&mut notes.smashes));
    let count = with_notes(|notes| notes.leaks.as_slice().len());
    if !smashes.as_slice().is_empty() {
        error_line!("GC_check_heap_block: found {} smashed heap objects:", smashes.as_slice().len());
        smashes.as_slice().iter().for_each(|smash| debug::print_smashed("", smash.place, &smash.facts));
    }
    if count > 0 {
        error_line!("Found {count} leaked objects:");
    }
    for at in 0..count {
        let leak = with_notes(|notes| notes.leaks.as_slice()[at]);
        print_leak(&leak);
        // SAFETY: nobody can reach the object any more.
        unsafe { larder_fixed::free(ptr::with_exposed_provenance_mut(leak.base)) };
    }
    let errors = count + smashes.as_slice().len();
    with_notes(|notes| {
        let newer: usize = notes.leaks.as_slice().len() - count;
        let mut rest = Vector::new();
        for at in 0..newer {
            _ = rest.push(notes.leaks.as_slice()[count + at]);
        }
        notes.leaks.clear();
        notes.leaks = rest;
    });
    let mut smashes = smashes;
    smashes.clear();
    PRINTING.set(0);
    if errors > 0 && is_set(c"GC_ABORT_ON_LEAK") {
        abort(c"Leaked or smashed objects encountered");
    }
}

fn print_leak(leak: &Leak) {
    let Some(Facts { user, file, line, size }) = leak.debugged else {
        let what = if matches!(leak.kind, kind::POINTER_FREE | kind::POINTER_FREE_UNCOLLECTABLE) {
            "atomic"
        } else {
            "composite"
        };
        return error_line!("object at {:#x} of appr. {} bytes ({what})", leak.base, leak.size);
    };
    let file = Text(file);
    let mut description = [0; DESCRIPTION + 1];
    if let Some(describe) = DESCRIBE.get(leak.kind).and_then(Function::get) {
        // SAFETY: the client's function, with an object of its kind and room for what it may write.
        unsafe { describe(ptr::with_exposed_provenance_mut(user), description.as_mut_ptr()) };
        description[DESCRIPTION] = 0;
        return error_line!("{user:#x} ({file}:{line}, sz= {size}, {})", Text(description.as_ptr()));
    }
    let kind = match leak.kind {
        kind::POINTER_FREE => "PTRFREE",
        kind::NORMAL => "NORMAL",
        kind::UNCOLLECTABLE => "UNCOLLECTABLE",
        kind::POINTER_FREE_UNCOLLECTABLE => "ATOMIC_UNCOLLECTABLE",
        other => return error_line!("{user:#x} ({file}:{line}, sz= {size}, kind= {other})"),
    };
    error_line!("{user:#x} ({file}:{line}, sz= {size}, {kind})");
}

/// Registers how objects of a kind are described in leak reports.
#[unsafe(no_mangle)]
pub extern "C" fn GC_register_describe_type_fn(kind: c_int, describe: Option<DescribeFn>) {
    if let Some(place) = usize::try_from(kind).ok().and_then(|kind| DESCRIBE.get(kind)) {
        place.set(describe);
    }
}
