//! The gate between collectors and forks, and the masks under which it is passed.

use larder_sync::gate::{Gate, Inside};
use larder_sys::loader;
use larder_sys::signal::{Mask, mask_all_but};
use larder_threads::{blocking, stop};

use crate::inject::{Point, point};

/// Threads in a cycle are inside; a fork closes the gate.
///
/// A child must not inherit the loader's list held by a collector that it does not have; so a fork lets every collector
/// out first, and new ones wait outside. A thread that waits for the list is not inside: who forks may hold it, in a walk.
///
/// Sync: its own.
static GATE: Gate = Gate::new_open();

/// The mask of a thread that closes the gate, from before it does until it defers or has opened it again: a client's handler
/// that collected meanwhile would wait before the gate that its own thread closed. The stop signal is open, whatever the
/// program blocks around a fork: a collector inside may wait for this thread's answer.
///
/// Every signal but the stop signal and those of faults is blocked. Returns the mask of before.
pub(crate) fn mask() -> Mask {
    mask_all_but(stop::signal())
}

/// Waits until no cycle is under way, and keeps new ones out. The caller has [`mask`].
pub(crate) fn keep_collectors_out() {
    GATE.close();
    point(Point::GateClosed);
}

/// Undoes [`keep_collectors_out`]. The caller has [`mask`].
pub(crate) fn let_collectors_in() {
    point(Point::GateOpens);
    GATE.open();
}

/// Runs `f` while no cycle is under way.
pub(crate) fn without_collectors<R>(f: impl FnOnce() -> R) -> R {
    let outside = mask();
    keep_collectors_out();
    let result = f();
    let_collectors_in();
    outside.set();
    result
}

/// Runs `f` with the loader's list held and inside the gate, every signal but those of faults blocked: nobody else can stop the world
/// then, so nobody waits for this thread to answer, and a client's handler must not allocate on a thread that holds every lock of the
/// heap. The caller has [`mask`].
///
/// The list comes first. A thread that waited for it inside would keep a fork waiting whose own thread holds the list. Where the gate is closed the
/// list is given back before the wait; a child that begins in this moment gives it back itself (`list_lock`).
///
/// Until it is inside, the thread is blocked: who has the list is mostly a collector, who would have to wake it to hear that it stands still. Inside,
/// nobody stops the world before it runs again.
pub(crate) fn with_objects_inside<R>(f: impl FnOnce() -> R) -> R {
    let mut f = Some(f);
    blocking::region(|| {
        loop {
            GATE.wait_until_open();
            let (mask, entry, result) = loader::with_objects_held(|| {
                let mask = Mask::all_but_faults().set();
                let entry = GATE.try_enter();
                let result = entry.as_ref().and_then(|_| f.take()).map(blocking::active_region);
                (mask, entry, result)
            });
            mask.set();
            drop(entry);
            if let Some(result) = result {
                return result;
            }
        }
    })
}

/// Passes the gate that a fork closes.
pub(crate) fn pass_gate() -> Inside<'static> {
    GATE.enter()
}

/// In a child of fork: the gate is open, and nobody is inside.
///
/// # Safety
/// The calling thread is the only one of the process, and not inside.
pub(crate) unsafe fn reset_after_fork() {
    // SAFETY: the caller's promise.
    unsafe { GATE.reset_after_fork(false) };
}
