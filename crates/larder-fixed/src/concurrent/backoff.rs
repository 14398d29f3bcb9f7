//! Cycles that stop the program for a while, where others spared it nothing.
//!
//! Many threads for each CPU may allocate a whole budget before the marker thread has had one. What is left to the final stop is then all of
//! the marking, and what the cycle cost besides, above all a fault for each page that was written while it lasted, was for nothing. So it is where most objects
//! are scanned by a client's mark procedures.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use larder_policy::concurrent::{self as policy, EndedFacts, Rate};
use larder_threads::REGISTRY;
use larder_units::{Bytes, Nanos};

use super::pause_goal;
use crate::{generations, pacing};

/// A cycle was due before the marker thread had begun it. Sync: the collector writes, with the cycle lock held; cleared when that cycle ends.
static CAME_LATE: AtomicBool = AtomicBool::new(false);
/// Objects waited for the final stop of the cycle that ends, since they are not to be scanned beside the program. Sync: in a stopped world.
static WAITED: AtomicBool = AtomicBool::new(false);
/// Cycles that stop the program until the next one is tried beside it. Sync: written in a stopped world, or read as a statistic that decides what the
/// next cycle is.
static LEFT: AtomicU32 = AtomicU32::new(0);
/// How many they were at first. Sync: in a stopped world.
static LAST: AtomicU32 = AtomicU32::new(0);
/// How long the last cycle took that stopped the program all the time, in nanoseconds, and the bytes of objects and roots that it looked at; 0 before
/// the first. Sync: in a stopped world.
static WHOLE_NS: AtomicU64 = AtomicU64::new(0);
static WHOLE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Bytes that the program allocated before a cycle that was overtaken, and in how many nanoseconds. Sync: in a stopped world.
static RATE_BYTES: AtomicUsize = AtomicUsize::new(0);
static RATE_NS: AtomicU64 = AtomicU64::new(0);
/// When the last cycle ended. Sync: in a stopped world.
static ENDED_NS: AtomicU64 = AtomicU64::new(0);

/// A cycle of which the collector knows these things is about to end.
pub(crate) struct Ended {
    /// When its stop, the last one, was asked for, and what time it is.
    pub stop: [Nanos; 2],
    /// The longest of its short stops before that; none where it was not concurrent.
    pub before: Option<Nanos>,
    /// It was overtaken: nobody asked for its end.
    pub overtaken: bool,
    /// Bytes of objects and roots that it looked at.
    pub bytes: Bytes,
    /// Bytes allocated since the one before.
    pub allocated: Bytes,
}

/// A cycle was asked for, and is due before it has begun.
pub(super) fn came_late() {
    CAME_LATE.store(true, Ordering::Relaxed);
}

/// Objects waited for the final stop that is under way: nobody scans them beside the program.
pub(super) fn some_waited() {
    WAITED.store(true, Ordering::Relaxed);
}

/// Whether the next cycle is one that stops the program.
pub(super) fn is_on() -> bool {
    LEFT.load(Ordering::Relaxed) > 0 && !generations::is_on()
}

/// A full cycle ends. World stopped.
pub(crate) fn cycle_ends(ended: &Ended) {
    let longest = ended.stop[1].since(ended.stop[0]);
    let came_late = CAME_LATE.swap(false, Ordering::Relaxed);
    let since = ended.stop[0].since(Nanos(ENDED_NS.swap(ended.stop[1].0, Ordering::Relaxed)));
    let rate = Rate { bytes: ended.allocated, in_time: since };
    if ended.before.is_none() {
        WHOLE_NS.store(longest.0, Ordering::Relaxed);
        WHOLE_BYTES.store(ended.bytes.0, Ordering::Relaxed);
    }
    let whole = Bytes(WHOLE_BYTES.load(Ordering::Relaxed));
    let facts = EndedFacts {
        longest: longest.max(ended.before.unwrap_or_default()),
        bytes: ended.bytes,
        whole: (whole.0 > 0).then(|| (Nanos(WHOLE_NS.load(Ordering::Relaxed)), whole)),
        last: LAST.load(Ordering::Relaxed),
        goal: pause_goal(),
        is_crowded: !policy::makes_way(REGISTRY.count() as usize, pacing::usable_cpus()),
    };
    let in_vain = if WAITED.swap(false, Ordering::Relaxed) { policy::backoff_in_vain(facts) } else { 0 };
    if came_late || ended.overtaken || in_vain > 0 {
        let backoff = if in_vain > 0 { in_vain } else { policy::backoff(facts) };
        LEFT.store(backoff, Ordering::Relaxed);
        LAST.store(backoff, Ordering::Relaxed);
        RATE_BYTES.store(rate.bytes.0, Ordering::Relaxed);
        RATE_NS.store(rate.in_time.0, Ordering::Relaxed);
    } else if ended.before.is_some() {
        LAST.store(0, Ordering::Relaxed);
    } else if LEFT.load(Ordering::Relaxed) > 0 {
        let then =
            Rate { bytes: Bytes(RATE_BYTES.load(Ordering::Relaxed)), in_time: Nanos(RATE_NS.load(Ordering::Relaxed)) };
        if rate.is_calm_beside(then) {
            LEFT.store(0, Ordering::Relaxed);
            LAST.store(0, Ordering::Relaxed);
        } else {
            LEFT.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
