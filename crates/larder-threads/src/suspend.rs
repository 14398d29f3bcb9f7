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
//!
//! **In a blocking region** a thread may have the signal masked for as long as that lasts. Such a one is not waited for: it stays ASKED, and sleeps where
//! its region ends. Label `suspend.blocked`: the suspender stores ASKED, passes the heavy half of a fence and reads the state; the thread stores
//! `Running`, passes the light half and reads `suspension`. So it is seen to run, and is waited for, or it sees that it was asked.
//!
//! **Wakes.** The handler may have come when the thread had just been woken. It was to pass that wake on to others who wait for the same, or
//! to take a lock and wake the next one when it gives that back. Others would sleep for ever beside a lock that is free, if the thread is
//! resumed by one of them. So who has suspended a thread wakes another one, wherever that may have been ([`wake_others`]).
//!
//! **The C library.** The handler may have come when the thread held a lock of the C library's, malloc's for one. While there is such a thread
//! ([`is_any`]) the runtime makes no threads, for which it would want that lock.

use larder_sync::atomic::Ordering;
use larder_sync::{asymmetric, step};
use larder_sys::list_lock;
use larder_sys::memory::KeepErrno;

use crate::ground::signal::Mask;
use crate::place::Place;
use crate::record::{Thread, ThreadState};
use crate::registry::REGISTRY;
use crate::{blocking, client, stop};

const NONE: u32 = 0;
const ASKED: u32 = 1;
const ASLEEP: u32 = 2;
/// The thread has asked itself: it is where it chose to be.
const ASKED_BY_ITSELF: u32 = 3;
const ASLEEP_BY_ITSELF: u32 = 4;

/// How long the suspender sleeps before it looks whether the thread has died, and sends again. In a model nobody dies.
const RECHECK_NS: u64 = if cfg!(loom) { u64::MAX } else { 50_000_000 };
/// How long before it looks whether the thread is in a blocking region; each further look waits twice as long.
const FIRST_LOOK_NS: u64 = if cfg!(loom) { 1 } else { 2_000_000 };

/// Sleeps, if somebody asked this thread to. From the stop signal's handler, or when a slow path was left; everything
/// live on its stacks lies in `place`.
pub(crate) fn sleep_if_asked(thread: &Thread, place: Place) {
    // ORDER suspend.asked: Acquire, with the exchange in `suspend`; nothing is read on its strength but the word itself.
    let words = match thread.suspension.load(Ordering::Acquire) {
        NONE => return,
        ASKED_BY_ITSELF => [ASKED_BY_ITSELF, ASLEEP_BY_ITSELF],
        _ => [ASKED, ASLEEP],
    };
    stop::sleep_by_request(thread, place, &thread.suspension, &thread.suspension_changed, words, Ordering::Release);
}

/// Whether the thread, which has just become visible as running, was asked to sleep. Its light half of the fence came before.
#[inline]
pub(crate) fn is_asked(thread: &Thread) -> bool {
    // ORDER suspend.resumed: Acquire, with the exchange in `resume`, where it has come and gone meanwhile.
    thread.suspension.load(Ordering::Acquire) == ASKED
}

/// Sleeps, in a blocking region, because the calling thread was asked to, with signals masked as in [`suspend_self`].
pub(crate) fn sleep_in_region(thread: &Thread) {
    let _errno = KeepErrno::new();
    let mask = Mask::all_but_faults().set();
    sleep_if_asked(thread, thread.place());
    mask.set();
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

/// Suspends a thread until [`resume`], and returns once it stands still, or stays in a blocking region until then. False where the thread is not
/// registered, or is suspended already. The caller holds the allocation lock, and is not the thread itself. When it has given its locks
/// back it calls [`wake_others`].
pub fn suspend(pthread: usize) -> bool {
    with_thread(pthread, |thread| {
        let word = &thread.suspension;
        let mut patience = FIRST_LOOK_NS;
        // ORDER suspend.asked: Release, with the load in `sleep_if_asked`.
        if word.compare_exchange(NONE, ASKED, Ordering::Release, Ordering::Relaxed).is_err() {
            return false;
        }
        // Relaxed: see there.
        REGISTRY.suspended.fetch_add(1, Ordering::Relaxed);
        // A thread that is gone is found so below.
        client::send(thread);
        loop {
            let seen = thread.suspension_changed.current();
            // ORDER suspend.asleep: Acquire, with the exchange in `sleep_if_asked`.
            if word.load(Ordering::Acquire) != ASKED {
                return true;
            }
            if thread.suspension_changed.wait_timeout(seen, patience) {
                continue;
            }
            if step::kept("suspend.blocked: the suspender's fence") {
                // Between the exchange above and the load of the state: the thread stores its state and then reads the word (see `stop::obstacle_after_fence`).
                asymmetric::heavy();
            }
            if thread.state() == ThreadState::Blocked {
                return true;
            }
            patience = patience.saturating_mul(2).min(RECHECK_NS);
            if patience < RECHECK_NS {
                continue;
            }
            // Relaxed: looked at again above.
            let answered = || word.load(Ordering::Relaxed) != ASKED;
            client::keep_ours();
            if !client::send_again(thread, answered) {
                // It ended without telling anybody.
                forget(thread);
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
        thread.suspension.store(ASKED_BY_ITSELF, Ordering::Relaxed);
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
        uncount(was);
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
    matches!(thread.suspension.load(Ordering::Acquire), ASLEEP | ASLEEP_BY_ITSELF)
}

/// Whether some thread was suspended by another one, and may hold a lock of the C library's. The caller holds the lock under which threads of the runtime are
/// made, as whoever suspends one does: the answer is good until it is given back.
pub fn is_any() -> bool {
    // Relaxed: see there.
    REGISTRY.suspended.load(Ordering::Relaxed) > 0
}

/// Wakes others who wait for the registry's lock, or for the end of a stop, in case that one who was suspended has got their wake. The caller holds no lock.
pub fn wake_others() {
    REGISTRY.wake_another();
    stop::wake_another();
}

/// The thread is not suspended. For a record whose thread has ended, and for the one thread of a fork's child. The caller holds the
/// registry's lock.
pub(crate) fn forget(thread: &Thread) {
    // Relaxed: nobody sleeps.
    uncount(thread.suspension.swap(NONE, Ordering::Relaxed));
}

/// The word of a thread was this, and it is suspended no more.
fn uncount(was: u32) {
    if was == ASKED || was == ASLEEP {
        // Relaxed: see there.
        REGISTRY.suspended.fetch_sub(1, Ordering::Relaxed);
    }
}
