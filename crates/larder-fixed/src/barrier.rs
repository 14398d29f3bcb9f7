//! A software write barrier, for clients that call it at every store of a pointer into the heap (thesis 5.2.2).
//!
//! Two algorithms, which 5.4 of the thesis leaves to be compared:
//!
//! - **Incremental update.** A store marks the card on which it was made: 256 bytes, finer than the page. Marked cards are scanned
//!   again, as written pages are: beside the program, and what is left in the final stop.
//! - **Snapshot at the beginning.** A store hands the word that it overwrites to the marker, unless that is marked. So what was
//!   reachable when the cycle began is marked, whatever the program does since, and the final stop finds nearly nothing to do. It
//!   keeps more: an object that dies while the cycle marks is found by the next one, in every case. The word that is stored is handed over, too:
//!   what the program has taken out of a disappearing link, or out of a word that hides an address, was in no snapshot.
//!
//! [`store`] is the barrier. [`written`] tells of stores that were made without it, to an object that the caller still holds: it
//! marks cards in both algorithms, and a snapshot with marked cards is again an incremental update.
//!
//! Where an object is given up explicitly, or words of it are cleared by the runtime, a snapshot takes the words first
//! ([`vanishes`]).
//!
//! The barrier is off outside of cycles and costs a load then. In [`store`] the test and the store are one to a stop (the thread
//! defers it), so no store belongs to the time before the snapshot by its test and to the time after by its effect.

use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use larder_sys::memory::{self, ReserveError};
use larder_threads::defer;
use larder_trace::{Interior, Marked, Objects};
use larder_units::{BLOCK, Bytes};

use crate::epochs::Epochs;
use crate::heap::HEAP;
use crate::view::View;
use crate::{concurrent, object};

/// Bytes of a card. A card is inside one block.
pub(crate) const CARD: usize = 256;
const _: () = assert!(BLOCK.0.is_multiple_of(CARD));
/// Cards that are looked at together.
const TOGETHER: usize = size_of::<u64>();

/// Which algorithm is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// See the module.
    IncrementalUpdate,
    /// See the module.
    Snapshot,
}

const OFF: u32 = 0;
const UPDATE: u32 = 1;
const SNAPSHOT: u32 = 2;

/// Sync: written in a stopped world.
static ACTIVE: AtomicU32 = AtomicU32::new(OFF);
/// A byte for each card of the reserved range, not 0 where something was written; null before the first use.
///
/// Sync: written once, before `ACTIVE` is anything but off. A byte: label `barrier.card`.
static CARDS: AtomicPtr<AtomicU8> = AtomicPtr::new(core::ptr::null_mut());

/// Reserves the cards.
pub(crate) fn set_up() -> Result<(), ReserveError> {
    if CARDS.load(Ordering::Relaxed).is_null() {
        let cards = HEAP.space.reserved().to_bytes().0 / CARD;
        CARDS.store(memory::map_lazy(Bytes(cards))?.as_ptr().cast(), Ordering::Relaxed);
    }
    Ok(())
}

/// Begins or ends the barrier. World stopped.
pub(crate) fn activate(algorithm: Option<Algorithm>) {
    let active = match algorithm {
        None => OFF,
        Some(Algorithm::IncrementalUpdate) => UPDATE,
        Some(Algorithm::Snapshot) => SNAPSHOT,
    };
    ACTIVE.store(active, Ordering::Relaxed);
}

/// The cards of `[0, span)` of the heap.
fn cards() -> &'static [AtomicU8] {
    let at = CARDS.load(Ordering::Relaxed);
    // SAFETY: `set_up` has mapped a byte for each card of the reserved range.
    unsafe { core::slice::from_raw_parts(at, if at.is_null() { 0 } else { HEAP.space.span() / CARD }) }
}

/// Marks no card. The barrier is off.
pub(crate) fn forget() {
    let cards = cards();
    // SAFETY: the mapping is this module's; a whole number of pages from its beginning.
    unsafe {
        memory::discard(cards.as_ptr().cast_mut().cast(), Bytes(cards.len()).to_pages_rounded_up().to_bytes());
    }
}

/// Calls `f(from, to)` for each run of marked cards; with `clean` they are not marked from here on. Returns how many bytes they are.
pub(crate) fn fetch(clean: bool, mut f: impl FnMut(usize, usize)) -> usize {
    let base = HEAP.space.base();
    let cards = cards();
    let mut bytes = 0;
    for (group, together) in cards.chunks(TOGETHER).enumerate() {
        // SAFETY: eight bytes of the slice, which begins on a page; a block has a multiple of eight cards.
        let eight = unsafe { &*together.as_ptr().cast::<AtomicUsize>() };
        // ORDER barrier.card: Relaxed, and Acquire below; a card that is missed here is told next time.
        if eight.load(Ordering::Relaxed) == 0 {
            continue;
        }
        for (i, card) in together.iter().enumerate() {
            // ORDER barrier.card: Acquire, with the stores in `mark_cards`: who takes a card sees what was stored before.
            let marked = if clean { card.swap(0, Ordering::Acquire) } else { card.load(Ordering::Acquire) };
            if marked != 0 {
                let at = base + (group * TOGETHER + i) * CARD;
                f(at, at + CARD);
                bytes += CARD;
            }
        }
    }
    bytes
}

fn mark_cards(low: usize, high: usize) {
    let base = HEAP.space.base();
    let cards = cards();
    for card in (low - base) / CARD..=(high - 1 - base) / CARD {
        if let Some(card) = cards.get(card) {
            // ORDER barrier.card: Release, with the accesses in `fetch`: after what was written.
            card.store(1, Ordering::Release);
        }
    }
}

/// Stores `value` at `place`, a word of a heap object or of anything else, and tells a cycle under way.
///
/// # Safety
/// The caller may write to `place`, which is aligned.
pub unsafe fn store(place: *mut usize, value: usize) {
    // SAFETY: the caller's promise; an atomic, because a marker may read it at this moment.
    let word = unsafe { &*place.cast::<AtomicUsize>() };
    if ACTIVE.load(Ordering::Relaxed) == OFF && CARDS.load(Ordering::Relaxed).is_null() {
        // Nobody has asked for a barrier.
        return word.store(value, Ordering::Relaxed);
    }
    let nested = defer::is_deferring();
    let _deferral = defer::enter();
    match ACTIVE.load(Ordering::Relaxed) {
        SNAPSHOT => {
            hand_over(word.load(Ordering::Relaxed), nested);
            word.store(value, Ordering::Relaxed);
            hand_over(value, nested);
        }
        UPDATE => {
            word.store(value, Ordering::Relaxed);
            if object::is_heap_pointer(place.addr()) {
                mark_cards(place.addr(), place.addr() + size_of::<usize>());
            }
        }
        _ => word.store(value, Ordering::Relaxed),
    }
}

/// The object that begins at `at` was written to, or, where none begins, the word there. The caller still holds what was stored.
pub fn written(at: usize) {
    if ACTIVE.load(Ordering::Relaxed) == OFF {
        return;
    }
    let _deferral = defer::enter();
    match object::cell(at) {
        Some(found) if found.base == at => mark_cards(at, at + found.size),
        Some(_) => mark_cards(at & !7, (at & !7) + size_of::<usize>()),
        None => {}
    }
}

/// The words of `[low, high)`, in an object, are about to be lost by what the runtime does.
pub fn vanishes(low: usize, high: usize) {
    if ACTIVE.load(Ordering::Relaxed) != SNAPSHOT {
        return;
    }
    let nested = defer::is_deferring();
    let _deferral = defer::enter();
    for at in (low.next_multiple_of(8)..high & !7).step_by(8) {
        // SAFETY: the caller's object.
        let word = unsafe { &*core::ptr::with_exposed_provenance::<AtomicUsize>(at) };
        // Relaxed: another thread may write; then either word is one of the snapshot's or was stored by the barrier.
        hand_over(word.load(Ordering::Relaxed), nested);
    }
}

/// Marks the object that an overwritten or a stored word refers to, and gives it to the marker thread to be scanned. In a deferral.
fn hand_over(word: usize, nested: bool) {
    let epochs = Epochs::now();
    if word == 0 || !epochs.marking() {
        return;
    }
    let view = View::new(epochs);
    if let Some(spot) = view.find(word, Interior::AsConfigured)
        && let Some(Marked { bytes, entry }) = view.mark(spot)
    {
        concurrent::hand_over(bytes, (entry.descriptor != 0).then_some(entry), nested);
    }
}
