//! Young cycles: concurrent cycles in which what survived an earlier one keeps its mark (sticky mark bits), and only what was handed out
//! since is traced. An option; see [`set_young_cycles`].
//!
//! **Why nothing live is lost.** When a cycle ends, everything that can be reached is marked. An object that was handed out since can
//! be reached from a root, from another such object, or from a survivor that was written since. Roots are scanned in every cycle. So
//! the watch goes on between cycles: a survivor on a written page is scanned again, by the same rule by which a full cycle scans
//! marked objects on written pages ([`crate::dirty`]). A young cycle is therefore a concurrent cycle that begins with the marks, and
//! the watch, that the last one has left.
//!
//! (What is handed out in a block in which something was freed explicitly bears the mark of survivors from its birth: see "Words that are older" in
//! [`crate::concurrent`]. A number that happens to be the address of a free cell is no reference to the object that is handed out there later. A full
//! cycle takes it for one; a young one may not look at it.)
//!
//! **The watch is whole** if it was on when the last cycle ended and no written page was forgotten since. A number counts its
//! beginnings; it is odd while there is no watch:
//!
//! | who | what |
//! |---|---|
//! | the marker thread | makes the number odd; ends the watch, or makes pages clean whose content no cycle looks at; begins; makes it even |
//! | a cycle that ends, in the stopped world | notes the number |
//! | the marker thread, in the stopped world in which a cycle begins | the watch is whole if the number is the noted one, and even |
//!
//! A stop cycle may come at any point of the first line. If it notes an odd number, or one before the last, the next cycle is full.
//!
//! **Dead survivors** stay until a full cycle, with all that they refer to when they are written. When that comes is policy
//! ([`larder_policy::young`]). An explicit collection is full, and so is every cycle that stops the program.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use larder_policy::young::{self as policy, YoungFacts};
use larder_units::Bytes;

use crate::epochs::Cycle;
use crate::heap::HEAP;
use crate::{concurrent, pacing};

/// See [`set_young_cycles`]. Sync: a setting.
static MOST: AtomicUsize = AtomicUsize::new(0);
/// Young cycles since the last full one. Sync: written in a stopped world; a statistic that decides what the next one is.
static SINCE_FULL: AtomicUsize = AtomicUsize::new(0);
/// Young cycles so far. Sync: a statistic.
static COMPLETED: AtomicU64 = AtomicU64::new(0);
/// Bytes that the last full cycle found live, and its budget. Sync: as `SINCE_FULL`.
static LIVE_AFTER_FULL: AtomicUsize = AtomicUsize::new(0);
static BUDGET_AFTER_FULL: AtomicUsize = AtomicUsize::new(0);
/// Counts beginnings and ends of the watch; odd while there is none. Sync: the marker thread writes; `generations.watch`.
static WATCH: AtomicU64 = AtomicU64::new(1);
/// What `WATCH` was when the last cycle ended; 0 where that one was given up. Sync: written in a stopped world.
static NOTED: AtomicU64 = AtomicU64::new(0);

/// Lets so many young cycles come between two full ones, where cycles are concurrent and writes are watched in a way that cleans pages
/// while the program runs; 0 for none.
///
/// The watch goes on between cycles then: the first write to each page after a cycle costs a fault.
pub fn set_young_cycles(most: usize) {
    MOST.store(most, Ordering::Relaxed);
    concurrent::look_after_watch();
    pacing::renew_budget();
}

/// What [`set_young_cycles`] has set.
pub fn young_cycles() -> usize {
    MOST.load(Ordering::Relaxed)
}

/// Young cycles so far.
pub fn completed() -> u64 {
    COMPLETED.load(Ordering::Relaxed)
}

/// Whether cycles may be young.
pub(crate) fn is_on() -> bool {
    MOST.load(Ordering::Relaxed) > 0 && concurrent::watches_between_cycles()
}

/// Whether the next cycle is a young one, if it begins beside the program.
pub(crate) fn next_is_young() -> bool {
    is_on()
        && is_whole()
        && policy::next_is_young(YoungFacts {
            most: MOST.load(Ordering::Relaxed),
            since_full: SINCE_FULL.load(Ordering::Relaxed),
            live_after_full: Bytes(LIVE_AFTER_FULL.load(Ordering::Relaxed)),
            budget_after_full: Bytes(BUDGET_AFTER_FULL.load(Ordering::Relaxed)),
            live: Bytes(HEAP.live.load(Ordering::Relaxed)),
        })
}

/// Whether every page that was written since the last cycle ended is told by the watch.
pub(crate) fn is_whole() -> bool {
    let now = WATCH.load(Ordering::Relaxed);
    now.is_multiple_of(2) && now == NOTED.load(Ordering::Relaxed)
}

/// Of the bytes that are taken for live, those that the next budget is for: what young cycles let through does not make it larger.
pub(crate) fn without_let_through(live: Bytes) -> Bytes {
    let is_full = SINCE_FULL.load(Ordering::Relaxed) == 0;
    if is_full { live } else { live.min(Bytes(LIVE_AFTER_FULL.load(Ordering::Relaxed))) }
}

/// The watch ends, or forgets pages. By the marker thread.
pub(crate) fn watch_ends() {
    if WATCH.load(Ordering::Relaxed).is_multiple_of(2) {
        WATCH.fetch_add(1, Ordering::Relaxed);
    }
}

/// The watch is on, over the whole heap. By the marker thread.
pub(crate) fn watch_has_begun() {
    if !WATCH.load(Ordering::Relaxed).is_multiple_of(2) {
        // ORDER generations.watch: Release, with the load in `cycle_ended`: who reads the number resumes a world that is watched.
        WATCH.fetch_add(1, Ordering::Release);
    }
}

/// A cycle has ended, which found `live` bytes. World stopped. Says whether what is handed out from here on is to be told from what
/// survived.
pub(crate) fn cycle_ended(kind: Cycle, live: Bytes) -> bool {
    if kind == Cycle::Young {
        COMPLETED.fetch_add(1, Ordering::Relaxed);
        SINCE_FULL.fetch_add(1, Ordering::Relaxed);
    } else {
        SINCE_FULL.store(0, Ordering::Relaxed);
        LIVE_AFTER_FULL.store(live.0, Ordering::Relaxed);
        BUDGET_AFTER_FULL.store(pacing::budget(live).0, Ordering::Relaxed);
    }
    let apart = is_on();
    // ORDER generations.watch: Acquire, with the addition in `watch_has_begun`.
    let watch = WATCH.load(Ordering::Acquire);
    NOTED.store(if apart { watch } else { 0 }, Ordering::Relaxed);
    apart
}

/// A cycle was given up: the next one is full. World stopped.
pub(crate) fn given_up() {
    NOTED.store(0, Ordering::Relaxed);
}

/// In a child of fork, which has no watch.
pub(crate) fn after_fork_in_child() {
    watch_ends();
    given_up();
}
