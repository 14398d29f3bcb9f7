//! `gc_backptr.h`: what refers to an object, and a path from an object to a root.
//!
//! Debian's build of libgc leaves these functions out; one that has them notes, while it marks, where it found each debug
//! object. Here the heap searches when it is asked ([`larder_fixed::path`]), so that every object has an answer.

use core::ffi::{c_int, c_void};
use core::ptr::with_exposed_provenance_mut;

use larder_fixed::object::{self, Found};
use larder_fixed::path::{self, Hidden, Referrer};
use larder_fixed::stats;
use larder_sys::clock;

use crate::debug::{Debugged, Facts, HEADER};
use crate::init::is_ready;
use crate::log_line;
use crate::print::Text;

/// `GC_ref_kind`.
const UNREFERENCED: c_int = 0;
const NO_SPACE: c_int = 1;
const FROM_ROOT: c_int = 2;
const FROM_REGISTER: c_int = 3;
const FROM_HEAP: c_int = 4;
const BY_FINALIZER: c_int = 5;

/// Stores what refers to the object that contains `address`: a root's address, or an object's user pointer and how far
/// into it the reference lies. Returns which of them it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_get_back_ptr_info(
    address: *mut c_void,
    base_into: *mut *mut c_void,
    offset_into: *mut usize,
) -> c_int {
    let hidden = Hidden::of(address.addr());
    if !is_ready() || !is_in_object(hidden) {
        return NO_SPACE;
    }
    let mut first = None;
    path::find(hidden, &mut |referrer| {
        first.get_or_insert(referrer);
    });
    let (kind, base, offset) = match first {
        None => (UNREFERENCED, 0, 0),
        Some(Referrer::Root(at)) => (FROM_ROOT, at, 0),
        Some(Referrer::Nameless) => (FROM_REGISTER, 0, 0),
        Some(Referrer::Finalizer) => (BY_FINALIZER, 0, 0),
        Some(Referrer::Object(base, offset)) => {
            let header = object::cell(base).and_then(|found| Debugged::of(&found)).map_or(0, |_| HEADER);
            (FROM_HEAP, base + header, offset.saturating_sub(header))
        }
    };
    // SAFETY: null or the caller's places for the results.
    unsafe {
        if !base_into.is_null() {
            *base_into = with_exposed_provenance_mut(base);
        }
        if !offset_into.is_null() {
            *offset_into = offset;
        }
    }
    kind
}

/// A number that the clock and a multiplication make hard to foresee, below `limit`.
fn random(limit: usize) -> usize {
    let time = clock::now().0;
    let mixed = (time ^ time >> 17).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 16) as usize % limit.max(1)
}

/// An address in the heap, not necessarily in an object; null while there is no heap.
#[unsafe(no_mangle)]
pub extern "C" fn GC_generate_random_heap_address() -> *mut c_void {
    let (low, high) = stats::used_range();
    with_exposed_provenance_mut(if low == high { 0 } else { low + random(high - low) })
}

/// The address of a random object that the last cycle kept or that is newer; null where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn GC_generate_random_valid_address() -> *mut c_void {
    let [pointers, other] = object::bytes_in_use();
    // Objects count by their bytes, as if an address had been drawn from their memory.
    let mut left = random(pointers + other);
    let mut chosen = 0;
    object::for_each_reachable(&mut |base, size| {
        if chosen == 0 && left < size {
            chosen = base + left;
        }
        left = left.saturating_sub(size);
    });
    with_exposed_provenance_mut(chosen)
}

/// Collects, and prints the path from a root to a random object.
#[unsafe(no_mangle)]
pub extern "C" fn GC_generate_random_backtrace() {
    crate::collect::GC_gcollect();
    print_random();
}

/// Prints the path from a root to a random object.
pub fn print_random() {
    match choose() {
        None => log_line!("No object to choose a backtrace of"),
        Some(hidden) => print_path(hidden),
    }
}

/// A random address. Its own frame: the address is not left in that of who searches.
#[inline(never)]
fn choose() -> Option<Hidden> {
    let address = GC_generate_random_valid_address();
    if address.is_null() {
        return None;
    }
    log_line!("\n****Chosen address {address:p} in object");
    Some(Hidden::of(address.addr()))
}

/// Whether an object contains the address. Its own frame, as above.
#[inline(never)]
fn is_in_object(hidden: Hidden) -> bool {
    object::base(hidden.address()).is_some()
}

/// Prints the path from a root to the object that contains an address.
#[unsafe(no_mangle)]
pub extern "C" fn GC_print_backtrace(address: *mut c_void) {
    print_path(Hidden::of(address.addr()));
}

/// Prints the object that contains an address, or that there is none. Its own frame, as above.
#[inline(never)]
fn print_target(hidden: Hidden) -> bool {
    let address = hidden.address();
    match object::base(address) {
        None => log_line!("{address:#x} is in no object"),
        Some(base) => {
            print_object(base);
            return true;
        }
    }
    false
}

fn print_path(hidden: Hidden) {
    if !print_target(hidden) {
        return;
    }
    let found = path::find(hidden, &mut |referrer| match referrer {
        Referrer::Root(at) => log_line!("Reachable from root at {at:#x}\n"),
        Referrer::Nameless => log_line!("Reachable by itself or from a thread's record\n"),
        Referrer::Finalizer => log_line!("Reachable from a finalizer that waits to run\n"),
        Referrer::Object(base, offset) => {
            log_line!("Reachable from offset {offset} in object:");
            print_object(base);
        }
    });
    if !found {
        log_line!("Not reachable from any root\n");
    }
}

fn print_object(base: usize) {
    let Some(found) = object::cell(base) else { return };
    let Found { size, kind, .. } = found;
    match Debugged::of(&found).map(|debugged| debugged.facts()) {
        Some(Facts { user, file, line, size }) => log_line!("{user:#x} ({}:{line}, sz= {size})", Text(file)),
        None => log_line!("{base:#x} (sz= {size}, kind= {kind})"),
    }
}
