//! How objects begin that are made while a cycle marks beside the program.

use core::sync::atomic::{AtomicBool, AtomicIsize, AtomicU32, Ordering};

use larder_blocks::Block;

use super::Way;
use crate::barrier::Algorithm;
use crate::epochs::{Cycle, Epochs};
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
/// Bytes that were born marked since the last cycle ended while others were not, less those that were marked in this one and then freed
/// explicitly. Sync: a statistic.
static UNSEEN: AtomicIsize = AtomicIsize::new(0);

/// Chooses how objects begin that are made while a cycle marks. Before the first cycle.
pub fn set_births(births: Births) {
    CHOSEN.store(births as u32, Ordering::Relaxed);
}

/// A cycle of that way begins; says how objects begin in it. World stopped.
pub(super) fn begin(way: Way, young: bool) -> Births {
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
    if !young {
        // They are traced like all others.
        count_anew();
    }
    births
}

/// Objects are born marked from here on. By the marker thread.
pub(super) fn are_marked_now() {
    MARKED_NOW.store(true, Ordering::Relaxed);
}

/// A cycle has ended, or looks at everything there is. World stopped.
pub(crate) fn count_anew() {
    UNSEEN.store(0, Ordering::Relaxed);
}

/// Bytes that are marked although no marker marked them, and objects were not born marked yet; less than nothing if more was marked and then freed
/// explicitly.
pub(super) fn unseen() -> isize {
    UNSEEN.load(Ordering::Relaxed)
}

/// So many bytes with that mark are freed explicitly. The caller defers stops.
#[inline]
pub(crate) fn count_lost_mark(mark: u8, bytes: usize) {
    let epochs = Epochs::now();
    // What a young cycle finds is estimated from what there was, and from what was freed.
    if epochs.cycle == Cycle::Full && epochs.is_marked(mark) {
        UNSEEN.fetch_sub(bytes as isize, Ordering::Relaxed);
    }
}

/// The mark byte of objects that are handed out now in a block, so many bytes. The caller holds the lock of a class, or of the large objects, or
/// defers stops: until then the epochs stay.
#[inline]
pub(crate) fn birth_mark(b: &Block, bytes: usize) -> u8 {
    let epochs = Epochs::now();
    if epochs.young == epochs.new || epochs.marking() && MARKED_NOW.load(Ordering::Relaxed) {
        return epochs.new;
    }
    if b.was_freed_in() || epochs.marking() && is_never_born_unmarked(b.kind.get() as usize) {
        UNSEEN.fetch_add(bytes as isize, Ordering::Relaxed);
        return epochs.new;
    }
    epochs.young
}

/// See the module above. What names its own descriptor and is not zero before it is made cannot be looked at before.
fn is_never_born_unmarked(kind: usize) -> bool {
    kind::uncollectable(kind) || (kind::names_own_descriptor(kind) && !kind::cleared(kind))
}
