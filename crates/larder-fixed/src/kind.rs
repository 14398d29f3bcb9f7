//! Kinds of objects: how they are scanned, cleared, and whether they are collected.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub use larder_trace::descriptor::{Entry, MarkProc};
use larder_trace::descriptor::{MAX_PROCS, PER_OBJECT, TAG};

/// Holds no pointers: never scanned, never cleared.
pub const POINTER_FREE: usize = 0;
/// Scanned conservatively.
pub const NORMAL: usize = 1;
/// Scanned conservatively, and a root until it is freed explicitly.
pub const UNCOLLECTABLE: usize = 2;
/// Holds no pointers, and lives until it is freed explicitly.
pub const POINTER_FREE_UNCOLLECTABLE: usize = 3;
/// Kinds below are scanned whole or not at all.
pub const ELEMENTARY: usize = 4;
/// Scanned by the descriptor in the last word of its cell.
pub const TYPED: usize = 4;
/// The first kind that clients define.
pub const FIRST_CLIENT: usize = 5;
/// How many kinds there can be.
pub const MAX: usize = larder_lab::KINDS;

/// Mark procedures that clients number themselves (libgc's `GC_RESERVED_MARK_PROCS`).
const RESERVED_PROCS: usize = 8;

struct Kind {
    descriptor: AtomicUsize,
    adjust: AtomicBool,
    clear: AtomicBool,
}

const fn kind(descriptor: usize, adjust: bool, clear: bool) -> Kind {
    Kind { descriptor: AtomicUsize::new(descriptor), adjust: AtomicBool::new(adjust), clear: AtomicBool::new(clear) }
}

/// Sync: an entry is written once under the allocation lock, before an object of the kind can exist.
static KINDS: [Kind; MAX] = {
    let mut kinds = [const { kind(0, true, true) }; MAX];
    kinds[POINTER_FREE] = kind(0, false, false);
    kinds[POINTER_FREE_UNCOLLECTABLE] = kind(0, false, false);
    // The last word: minus eight, plus the size.
    kinds[TYPED] = kind((-8isize as usize) | PER_OBJECT, true, true);
    kinds
};

static KINDS_USED: AtomicUsize = AtomicUsize::new(FIRST_CLIENT);
static PROCS_USED: AtomicUsize = AtomicUsize::new(RESERVED_PROCS);

/// Kinds in use.
pub fn count() -> usize {
    KINDS_USED.load(Ordering::Acquire)
}

/// The descriptor of an object of `kind` whose cell is `size` bytes.
pub(crate) fn descriptor(kind: usize, size: usize) -> usize {
    let k = &KINDS[kind];
    let d = k.descriptor.load(Ordering::Relaxed);
    if k.adjust.load(Ordering::Relaxed) { d.wrapping_add(size) } else { d }
}

/// Whether objects of the kind are handed out cleared.
#[inline]
pub(crate) fn cleared(kind: usize) -> bool {
    KINDS[kind].clear.load(Ordering::Relaxed)
}

/// Whether objects of the kind are never scanned.
pub fn is_pointer_free(kind: usize) -> bool {
    let k = &KINDS[kind];
    kind == POINTER_FREE
        || kind == POINTER_FREE_UNCOLLECTABLE
        || (k.descriptor.load(Ordering::Relaxed) == 0 && !k.adjust.load(Ordering::Relaxed))
}

/// Whether objects of the kind are scanned whole, and conservatively.
pub(crate) fn scans_all_words(kind: usize) -> bool {
    let k = &KINDS[kind];
    k.descriptor.load(Ordering::Relaxed) == 0 && k.adjust.load(Ordering::Relaxed)
}

/// Whether objects of the kind are roots until they are freed.
pub const fn uncollectable(kind: usize) -> bool {
    kind == UNCOLLECTABLE || kind == POINTER_FREE_UNCOLLECTABLE
}

/// Whether the descriptor of such an object is found through the object.
#[inline]
pub(crate) fn names_own_descriptor(kind: usize) -> bool {
    KINDS[kind].descriptor.load(Ordering::Relaxed) & TAG == PER_OBJECT
}

/// Defines a kind; `None` when there are too many. Under the allocation lock, which the caller may hold. With `adjust` the object's size is added to the descriptor.
pub fn new_kind(descriptor: usize, adjust: bool, clear: bool) -> Option<usize> {
    crate::lock::with_or_held(|| {
        let n = KINDS_USED.load(Ordering::Relaxed);
        let k = KINDS.get(n)?;
        k.descriptor.store(descriptor, Ordering::Relaxed);
        k.adjust.store(adjust, Ordering::Relaxed);
        k.clear.store(clear, Ordering::Relaxed);
        KINDS_USED.store(n + 1, Ordering::Release);
        Some(n)
    })
}

/// Registers a mark procedure; `None` when there are too many. Under the allocation lock, which the caller may hold.
pub fn new_proc(f: MarkProc) -> Option<usize> {
    crate::lock::with_or_held(|| {
        let n = PROCS_USED.load(Ordering::Relaxed);
        if n >= MAX_PROCS {
            return None;
        }
        larder_trace::marker::set_proc(n, f);
        PROCS_USED.store(n + 1, Ordering::Relaxed);
        Some(n)
    })
}

/// Registers a mark procedure under a number that is reserved for clients to choose, or that [`new_proc`] returned. False where it is neither.
pub fn set_proc(number: usize, f: MarkProc) -> bool {
    let is_known = number < PROCS_USED.load(Ordering::Relaxed);
    if is_known {
        larder_trace::marker::set_proc(number, f);
    }
    is_known
}
