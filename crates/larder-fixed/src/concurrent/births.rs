//! How objects begin that are made while a cycle marks beside the program.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use super::Way;
use crate::barrier::Algorithm;
use crate::epochs::Epochs;
use crate::kind;

/// Whether what is made while a cycle marks is marked from its birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Births {
    /// Not while it traces, and from then on.
    Late,
    /// Yes: what dies meanwhile is kept until the next cycle.
    Marked,
    /// No, as in the thesis: the final stop has more to mark.
    Unmarked,
}

/// See [`set_births`]: a [`Births`] as a number. Sync: a setting.
static CHOSEN: AtomicU32 = AtomicU32::new(Births::Late as u32);
/// While a cycle marks beside the program: whether objects are born marked now. Sync: the marker thread writes, in a stopped world where stacks are watched
/// (see [`super::stacks`]); otherwise a refill is right with either value.
static MARKED_NOW: AtomicBool = AtomicBool::new(true);
/// Bytes that were born marked in this cycle while others were not. Sync: a statistic, cleared in the first stop.
static EARLY: AtomicUsize = AtomicUsize::new(0);
/// See [`finds_unmade`]. Sync: the marker thread writes in the first stop.
static FINDS_UNMADE: AtomicBool = AtomicBool::new(false);

/// Chooses how objects begin that are made while a cycle marks. Before the first cycle.
pub fn set_births(births: Births) {
    CHOSEN.store(births as u32, Ordering::Relaxed);
}

/// A cycle of that way begins; says how objects begin in it. World stopped.
pub(super) fn begin(way: Way) -> Births {
    const LATE: u32 = Births::Late as u32;
    const MARKED: u32 = Births::Marked as u32;
    let births = match CHOSEN.load(Ordering::Relaxed) {
        // A snapshot has nobody else who looks at them.
        _ if way == Way::Barrier(Algorithm::Snapshot) => Births::Marked,
        LATE => Births::Late,
        MARKED => Births::Marked,
        _ => Births::Unmarked,
    };
    MARKED_NOW.store(births == Births::Marked, Ordering::Relaxed);
    FINDS_UNMADE.store(births == Births::Unmarked, Ordering::Relaxed);
    EARLY.store(0, Ordering::Relaxed);
    births
}

/// Objects are born marked from here on. By the marker thread.
pub(super) fn are_marked_now() {
    MARKED_NOW.store(true, Ordering::Relaxed);
}

/// Bytes that were born marked in this cycle while others were not.
pub(super) fn early() -> usize {
    EARLY.load(Ordering::Relaxed)
}

/// Whether a marker may come upon an object that names its own descriptor before it is made: where objects are never born marked.
pub(super) fn finds_unmade() -> bool {
    FINDS_UNMADE.load(Ordering::Relaxed)
}

/// The mark byte of objects of a kind, so many bytes, that are handed out now. The caller holds the lock of a class, or of the large objects, or
/// defers stops: until then the epochs stay.
#[inline]
pub(crate) fn birth_mark(kind: usize, bytes: usize) -> u8 {
    let epochs = Epochs::now();
    if !epochs.marking() {
        return epochs.young;
    }
    if MARKED_NOW.load(Ordering::Relaxed) {
        return epochs.new;
    }
    if is_never_born_unmarked(kind) {
        EARLY.fetch_add(bytes, Ordering::Relaxed);
        return epochs.new;
    }
    epochs.young
}

/// See the module above.
fn is_never_born_unmarked(kind: usize) -> bool {
    kind::uncollectable(kind) || (kind::names_own_descriptor(kind) && !finds_unmade())
}
