//! Threads of the heap's own, the markers: whether it may make some.
//!
//! In a child of fork it may not, where the parent had threads of the program's beside the one that forked. One of them may have been
//! inside dlopen, and what the C library knows of thread-local storage is then, in the child, for ever in the middle of a change.
//! `pthread_create` ends such a process ("Inconsistency detected by ld.so", status 127). A child that makes no thread would never
//! notice, so the heap must not make one for it; once a thread of the program's has been made there, the heap may, too. libgc marks
//! with one thread in every child.
//!
//! Nor may it while a thread is suspended by another one (`GC_suspend_thread`): that may hold a lock of the C library's, malloc's for one, which
//! `pthread_create` takes. libgc makes its markers when the program begins.

use core::sync::atomic::{AtomicBool, Ordering};

use larder_sys::thread;
use larder_threads::suspend;
use larder_trace::crew::CREW;

use crate::concurrent;

/// Sync: written in a child that has one thread, and to false by whoever made a thread; a reader that sees the old value makes a
/// marker later.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);
/// Sync: written by the thread that forks, which holds all locks of the heap, and read by it in the child.
static WITH_OTHERS: AtomicBool = AtomicBool::new(false);

/// How many there are. Exact while a collector, or who forks, keeps others from making them.
pub(crate) fn count() -> usize {
    CREW.helpers() + concurrent::own_threads()
}

/// Before fork.
pub(crate) fn before_fork() {
    // Relaxed: the same thread reads it.
    WITH_OTHERS.store(thread::count().is_none_or(|all| all > 1 + count()), Ordering::Relaxed);
}

/// After fork, in the child. What forbids threads in a process forbids them in its children.
pub(crate) fn after_fork_in_child() {
    // Relaxed: there is one thread.
    if WITH_OTHERS.load(Ordering::Relaxed) {
        FORBIDDEN.store(true, Ordering::Relaxed);
    }
}

/// The program has made a thread.
pub(crate) fn program_made_one() {
    // Relaxed: see there. Read first, since every new thread comes here.
    if FORBIDDEN.load(Ordering::Relaxed) {
        FORBIDDEN.store(false, Ordering::Relaxed);
    }
}

/// Whether the heap may make a thread. The answer is good while the caller is [prepared](crate::cycle::prepared).
pub(crate) fn are_allowed() -> bool {
    // Relaxed: see there.
    !FORBIDDEN.load(Ordering::Relaxed) && !suspend::is_any()
}
