//! Suspending one thread at a client's wish (libgc's `GC_suspend_thread`), apart from stopping the world.
//!
//! A suspended thread sleeps inside the stop signal's handler, with its stack pointer published, and is parked: a collector
//! claims it (see [`crate::stop`]), and neither signals it nor waits for it.
//!
//! | step | who suspends (holds the allocation lock and the registry's) | thread |
//! |---|---|---|
//! | 1 | `suspension` becomes ASKED; sends the stop signal | |
//! | 2 | sleeps while `suspension` is ASKED | handler, not in a slow path: parks, `suspension` becomes ASLEEP, wakes |
//! | 3 | goes on | sleeps while `suspension` is ASLEEP |
//! | 4 | who resumes: `suspension` becomes NONE, wakes | leaves as from a stop, returns from the handler |
//!
//! A thread that waits for one of the two locks does not defer, so it answers. A thread that holds one is not found,
//! because the suspender has them. A thread that suspends itself sleeps in a blocking region, with signals masked.

use larder_sync::atomic::{AtomicU32, Ordering};
use larder_sys::list_lock;

use crate::ground::signal::Mask;
use crate::place::Place;
use crate::record::{Thread, ThreadState};
use crate::registry::REGISTRY;
use crate::{blocking, client, stop};

const NONE: u32 = 0;
const ASKED: u32 = 1;
const ASLEEP: u32 = 2;

/// How long the suspender sleeps before it looks whether the thread has died, and sends again.
const RECHECK_NS: u64 = 50_000_000;

/// Sleeps, if somebody asked this thread to. From the stop signal's handler, or when a slow path was left; everything
/// live on its stacks lies in `place`.
pub(crate) fn sleep_if_asked(thread: &Thread, place: Place) {
    // ORDER suspend.asked: Acquire, with the exchange in `suspend`; nothing is read on its strength but the word itself.
    if thread.suspension.load(Ordering::Acquire) == NONE {
        return;
    }
    stop::sleep_by_request(
        thread,
        place,
        &thread.suspension,
        &thread.suspension_changed,
        [ASKED, ASLEEP],
        Ordering::Release,
    );
}

/// Calls `f` with the record of the thread whose `pthread_t` this is, if it is registered and has not ended. Nobody
/// registers or ends meanwhile.
fn with_thread<R>(pthread: usize, f: impl FnOnce(&'static Thread) -> R) -> Option<R> {
    let guard = REGISTRY.lock();
    let mut found = None;
    guard.for_each(|thread| {
        let lives = matches!(thread.state(), ThreadState::Running | ThreadState::Blocked);
        if lives && thread.pthread.load(Ordering::Relaxed) == pthread {
            found = Some(thread);
        }
    });
    found.map(f)
}

/// Suspends a thread until [`resume`], and returns once it stands still. False where the thread is not registered, or is
/// suspended already. The caller holds the allocation lock, and is not the thread itself.
pub fn suspend(pthread: usize) -> bool {
    with_thread(pthread, |thread| {
        let word = &thread.suspension;
        // ORDER suspend.asked: Release, with the load in `sleep_if_asked`.
        if word.compare_exchange(NONE, ASKED, Ordering::Release, Ordering::Relaxed).is_err() {
            return false;
        }
        // A thread that is gone is found so below.
        client::send(thread);
        loop {
            let seen = thread.suspension_changed.current();
            // ORDER suspend.asleep: Acquire, with the exchange in `sleep_if_asked`.
            if word.load(Ordering::Acquire) != ASKED {
                return true;
            }
            if thread.suspension_changed.wait_timeout(seen, RECHECK_NS) {
                continue;
            }
            // Relaxed: looked at again above.
            let answered = || word.load(Ordering::Relaxed) != ASKED;
            client::keep_ours();
            if !client::send_again(thread, answered) {
                // It ended without telling anybody.
                word.store(NONE, Ordering::Relaxed);
                return false;
            }
        }
    })
    .unwrap_or(false)
}

/// Suspends the calling thread until somebody else resumes it. False where it is not registered. It holds no lock.
///
/// Signals wait meanwhile, as they do for a thread that another one suspends. It is a blocking region, because a stop's may wait as well: where the
/// thread was signalled just before, the collector answers for it.
pub fn suspend_self() -> bool {
    let Some(thread) = REGISTRY.current() else { return false };
    let mask = Mask::all_but_faults().set();
    blocking::region(|| {
        // Relaxed: read by this thread next; whoever resumes it only compares.
        thread.suspension.store(ASKED, Ordering::Relaxed);
        sleep_if_asked(thread, thread.place());
    });
    mask.set();
    true
}

/// Lets a suspended thread go on; false where there is no such thread.
pub fn resume(pthread: usize) -> bool {
    with_thread(pthread, |thread| {
        // ORDER suspend.resumed: Release, with the load in `sleep_if_asked`.
        let was = thread.suspension.swap(NONE, Ordering::Release);
        thread.suspension_changed.bump_and_wake_all();
        was != NONE
    })
    .unwrap_or(false)
}

/// Whether a registered thread is suspended.
pub fn is_suspended(pthread: usize) -> bool {
    // Relaxed: a snapshot for the caller.
    with_thread(pthread, |thread| thread.suspension.load(Ordering::Relaxed) != NONE).unwrap_or(false)
}

/// Whether a thread that is suspended may hold the lock of the loader's list.
pub fn may_hold_list(pthread: usize) -> bool {
    with_thread(pthread, |thread| is_asleep(thread) && list_lock::may_be_held_by(thread.tid())).unwrap_or(false)
}

/// Whether the thread sleeps at a client's wish, with its place published. The caller holds the registry's lock, which whoever resumes it
/// needs.
pub(crate) fn is_asleep(thread: &Thread) -> bool {
    // ORDER suspend.asleep: Acquire, with the exchange in `sleep_if_asked`.
    thread.suspension.load(Ordering::Acquire) == ASLEEP
}

/// No thread is suspended. For a record that is used anew, and for the one thread of a fork's child.
pub(crate) fn forget(suspension: &AtomicU32) {
    suspension.store(NONE, Ordering::Relaxed);
}
