//! Objects whose first word points to a structure that holds their descriptor in its second word: `gc_gcj.h`.

use core::ffi::{c_char, c_int, c_void};

use larder_fixed::kind::{self, MarkProc};

use crate::alloc::allocate_or_told;
use crate::callbacks::abort;
use crate::data::{GC_gcj_debug_kind, GC_gcj_kind};
use crate::debug::{self, Place};
use crate::env;

/// `GC_DS_PER_OBJECT`.
const PER_OBJECT: usize = 3;
/// `GC_INDIR_PER_OBJ_BIAS`.
const INDIRECT_BIAS: isize = 16;
/// Where the descriptor lies in the structure that the first word points to.
const DESCRIPTOR_OFFSET: isize = size_of::<usize>() as isize;

/// `GC_MAKE_PROC`: the descriptor of a mark procedure, tag 2 in the low bits, then six bits of index.
const fn procedure_descriptor(index: usize, environment: usize) -> usize {
    (((environment << 6) | index) << 2) | 2
}

/// Makes the two kinds, and `procedure` the one of the given index, which is reserved or was returned by `GC_new_proc`. Once; later calls
/// change nothing.
#[unsafe(no_mangle)]
pub extern "C" fn GC_init_gcj_malloc(index: c_int, procedure: MarkProc) {
    crate::init::GC_init();
    if GC_gcj_kind.is_set() {
        return;
    }
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    if !kind::set_proc(index, procedure) {
        abort(c"GC_init_gcj_malloc: bad index");
    }
    let by_structure = ((-DESCRIPTOR_OFFSET - INDIRECT_BIAS) as usize) | PER_OBJECT;
    let by_procedure = procedure_descriptor(index, 1);
    // Two threads that come here together make four kinds instead of two, and use the same two of them.
    let new = |descriptor| {
        // Conservatively over the whole length, where the client's descriptions are not to be believed.
        if env::ignores_gcj() { kind::new_kind(0, true, true) } else { kind::new_kind(descriptor, false, true) }
    };
    match (new(by_structure), new(by_procedure)) {
        (Some(plain), Some(debug)) => {
            GC_gcj_kind.set(plain as c_int);
            GC_gcj_debug_kind.set(debug as c_int);
        }
        _ => abort(c"Too many kinds"),
    }
}

/// The number of a gcj kind, which exists once the kinds were made.
fn known(kind: c_int) -> usize {
    match usize::try_from(kind) {
        Ok(kind) if kind >= kind::FIRST_CLIENT => kind,
        _ => abort(c"GC_gcj_malloc was called before GC_init_gcj_malloc"),
    }
}

/// Allocates an object of a gcj kind and stores its structure's address.
///
/// # Safety
/// `structure` holds a descriptor in its second word for as long as the object lives.
unsafe fn allocate(kind: c_int, bytes: usize, structure: *mut c_void) -> *mut c_void {
    let (object, is_new) = allocate_or_told(known(kind), bytes);
    if is_new {
        // SAFETY: the first word of the new object. A cycle before this store sees zero there, which the marker skips.
        unsafe { *object.cast::<*mut c_void>() = structure };
    }
    object
}

/// Allocates an object described by the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_gcj_malloc(bytes: usize, structure: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { allocate(GC_gcj_kind.get(), bytes, structure) }
}

/// As [`GC_gcj_malloc`]; the client's promise to keep a pointer near the start is not needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_gcj_malloc_ignore_off_page(bytes: usize, structure: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { allocate(GC_gcj_kind.get(), bytes, structure) }
}

/// Allocates an object that is always marked by the procedure of [`GC_init_gcj_malloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_debug_gcj_malloc(
    bytes: usize,
    structure: *mut c_void,
    file: *const c_char,
    line: c_int,
) -> *mut c_void {
    let kind = known(GC_gcj_debug_kind.get());
    // SAFETY: the caller's promise.
    unsafe { debug::gcj_malloc(kind, bytes, structure, Place { file, line }) }
}
