//! What a cycle has left to do when the world is resumed: dead large objects, memory for the kernel, and the client's last events.
//!
//! Meanwhile the collector has the cycle's lock and the loader's list, and may lose its CPU to any thread that it has woken. In a program that
//! allocates fast the next cycle is due before it has it back, and everybody waits for those two. So sleepers are woken when all is
//! given back, where what is left takes microseconds ([`Aftermath::is_short`]), and first where it may take longer.
//!
//! The client's events have to come after the wake: a thread that stands still may have a lock that they want, malloc's say. They
//! are told late then ([`postpone_events`]), by the collector or by the next one if that is faster, and always before the next cycle's.

use core::sync::atomic::{AtomicU32, Ordering};

use larder_events::{CycleRecord, PhaseKind};
use larder_policy::group::GroupFacts;
use larder_sync::parker::Event as Bell;
use larder_threads::defer;
use larder_units::{Bytes, Nanos};

use crate::heap::HEAP;
use crate::hooks::{self, Event};
use crate::timeline::Timeline;
use crate::{disclaim, group, large, pacing, refill, sharing};

/// Large objects that are looked through in microseconds.
const FEW_LARGE: usize = 64;
/// Cycles between two times that old epochs are forgotten.
const AGE_EVERY: u64 = 100;

/// What a completed cycle leaves to do.
pub(crate) struct Aftermath {
    /// The cycle's number.
    number: u64,
    /// What stays of free memory, where some goes back to the kernel.
    keep: Option<Bytes>,
    /// The budget as planned, before what the control group has left bounds it.
    next: Bytes,
    /// The control group, where it was looked at.
    group: Option<GroupFacts>,
    /// All of it takes microseconds, and calls no function of the client's.
    pub(crate) is_short: bool,
}

impl Aftermath {
    /// Of the cycle `number`. The world was just resumed; the control group was read before it stopped.
    pub(crate) fn new(number: u64, unmap: bool, next: Bytes, group: Option<GroupFacts>) -> Self {
        let keep = pacing::kept_of_too_much(unmap || group.is_some_and(|facts| facts.is_near()));
        let looks_at_all = disclaim::is_used() || sharing::is_used() || number.is_multiple_of(AGE_EVERY);
        let is_short = !looks_at_all && large::count() <= FEW_LARGE && keep.is_none();
        Self { number, keep, next, group, is_short }
    }

    /// Does it, from `resumed` on. The caller has the cycle's lock.
    pub(crate) fn do_all(&self, record: &mut CycleRecord, timeline: &mut Timeline, resumed: Nanos) {
        pacing::no_finalizer_is_new();
        if disclaim::is_used() {
            disclaim::ask();
        }
        large::sweep();
        if self.number.is_multiple_of(AGE_EVERY) {
            age_epochs();
        }
        sharing::after_cycle();
        let swept = timeline.add(PhaseKind::Sweep, resumed, 0);
        record.returned = self.keep.map_or(Bytes(0), pacing::return_memory);
        timeline.add(PhaseKind::Return, swept, record.returned.0);
        // What went back is the group's, so what is left is asked for anew.
        let group = if record.returned.0 > 0 { self.group.and_then(|_| group::facts(record.live)) } else { self.group };
        pacing::bound_by_group(group, self.next);
    }
}

/// Forgets the bytes of free cells: often enough that no mark byte survives until its epoch comes again.
fn age_epochs() {
    for index in 0..HEAP.space.frontier().0 {
        let _deferral = defer::enter();
        refill::forget_old_epochs(index);
    }
}

/// The last events of a cycle: nothing, what they are after a completed cycle and after one that was given up, or somebody tells them.
const NONE: u32 = 0;
const OF_COMPLETED: u32 = 1;
const OF_GIVEN_UP: u32 = 2;
const BEING_TOLD: u32 = 3;

/// What the client was not told yet. Label `aftermath.late`.
///
/// Sync: who ends a cycle stores, under the cycle's lock; who tells takes it by an exchange.
static LATE: AtomicU32 = AtomicU32::new(NONE);
/// Rings when they are told. Sync: its own.
static TOLD: Bell = Bell::new();
/// The next cycle, and no later one, waits so long for a thread that tells, which has to get a CPU; the client may have suspended it for good.
const PATIENCE: Nanos = Nanos(1_000_000_000);

/// Tells the client that the world runs, and everything that comes behind, when [`tell_late_events`] is called. The caller has the cycle's lock.
pub(crate) fn postpone_events(completed: bool) {
    if hooks::EVENT.get().is_some() {
        LATE.store(if completed { OF_COMPLETED } else { OF_GIVEN_UP }, Ordering::Relaxed);
    }
}

/// Tells the client what was postponed, if nobody else does. The caller holds no lock.
pub(crate) fn tell_late_events() {
    let late = LATE.load(Ordering::Relaxed);
    // ORDER aftermath.late: Acquire, with the exchange below: the client's function sees what it did for the cycle before.
    if !matches!(late, OF_COMPLETED | OF_GIVEN_UP)
        || LATE.compare_exchange(late, BEING_TOLD, Ordering::Acquire, Ordering::Relaxed).is_err()
    {
        return;
    }
    hooks::event(Event::PostStartWorld);
    if late == OF_COMPLETED {
        hooks::event(Event::ReclaimStart);
        hooks::event(Event::ReclaimEnd);
    }
    hooks::event(Event::End);
    // ORDER aftermath.late: Release, with the exchange above and the load in `settle_events`. It fails where the next cycle had no patience.
    if LATE.compare_exchange(BEING_TOLD, NONE, Ordering::Release, Ordering::Relaxed).is_ok() {
        TOLD.bump_and_wake_all();
    }
}

/// Has the client told everything of the cycle before, as a cycle begins. The world runs.
pub(crate) fn settle_events() {
    tell_late_events();
    let seen = TOLD.current();
    // ORDER aftermath.late: Acquire, with the exchange in `tell_late_events`.
    if LATE.load(Ordering::Acquire) == BEING_TOLD {
        TOLD.wait_timeout(seen, PATIENCE.0);
        // Who still tells is not waited for a second time. A failure means that it has, and brings what it did.
        let _ = LATE.compare_exchange(BEING_TOLD, NONE, Ordering::Relaxed, Ordering::Acquire);
    }
}

/// In a fork child: nobody is telling anything.
///
/// # Safety
/// The calling thread is the only one of the process.
pub(crate) unsafe fn reset_after_fork() {
    let _ = LATE.compare_exchange(BEING_TOLD, NONE, Ordering::Relaxed, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    unsafe { TOLD.reset_after_fork() };
}
