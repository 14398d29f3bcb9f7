//! Threads that allocate make way for the marker thread where it wants a CPU and has none.
//!
//! A marker thread that has slept, or was preempted, waits until the time of a thread of the program is over: in such milliseconds the program
//! allocates megabytes, so that cycles were overtaken where threads and CPUs are as many. Whoever comes to a slow path of allocation
//! while a cycle is under way, and sees that the marker thread does not get on, gives its CPU away: to the marker thread, or to one
//! of the few others that may have it before. Whoever is alone on its CPU keeps it.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use larder_policy::concurrent as policy;
use larder_sys::{clock, thread};
use larder_threads::REGISTRY;

use crate::pacing;

/// Bytes allocated since the last cycle from which on way is made. Sync: a statistic that decides when.
static FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Whether the marker thread is at what it counts its steps in, or has yet to get there: marking, alone. Sync: it alone writes; a hint.
static COUNTS: AtomicBool = AtomicBool::new(true);
/// Counts while the marker thread marks. Sync: it alone writes; a hint.
static STEPS: Steps = Steps(AtomicU32::new(0));

/// On a line of its own: it is written all the time.
#[repr(align(128))]
struct Steps(AtomicU32);

/// What the last thread saw there that allocated. Sync: a hint.
static SEEN: AtomicU32 = AtomicU32::new(0);
/// Before that nobody gives a CPU away, in nanoseconds. Sync: a hint.
static NEXT_NS: AtomicU64 = AtomicU64::new(0);

/// A cycle was asked for, when so many bytes were allocated since the last one.
pub(super) fn is_to_be_given(since: usize) {
    FROM.store(since + policy::UNYIELDING.0, Ordering::Relaxed);
}

/// The marker thread gets on with its marking.
pub(super) fn step() {
    STEPS.0.store(STEPS.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// The marker thread is about to mark with helpers, and does not count its steps meanwhile; or is through with that.
pub(super) fn count_steps(counts: bool) {
    COUNTS.store(counts, Ordering::Relaxed);
}

/// Makes way if the marker thread does not get on, by all appearances, and has had time to.
#[inline]
pub(super) fn give(since: usize) {
    if since >= FROM.load(Ordering::Relaxed) {
        give_if_it_stands();
    }
}

/// As [`give`], late in a cycle.
pub(super) fn give_if_it_stands() {
    let steps = STEPS.0.load(Ordering::Relaxed);
    if SEEN.load(Ordering::Relaxed) != steps {
        SEEN.store(steps, Ordering::Relaxed);
    } else if COUNTS.load(Ordering::Relaxed) {
        give_now_and_then();
    }
}

/// Gives the CPU away, if nobody has for a while.
pub(super) fn give_now_and_then() {
    let cpus = pacing::usable_cpus();
    if !policy::makes_way(REGISTRY.count() as usize, cpus) {
        return;
    }
    let now = clock::now();
    if now.0 >= NEXT_NS.load(Ordering::Relaxed) {
        NEXT_NS.store(now.0 + policy::MAKES_WAY_EVERY.0 / cpus as u64, Ordering::Relaxed);
        thread::yield_now();
    }
}
