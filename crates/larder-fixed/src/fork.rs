//! Fork: the child has one thread, a consistent heap, and no helpers.
//!
//! But for a fork in a signal handler that interrupted the library in a slow path, which may hold any of its locks, and for which a collector may be waiting: a
//! program that runs another one when a signal comes does that. Nothing is waited for then. The heap of such a child is what it happens to be; it allocates in its
//! handler, as handlers there do, and is never collected, like a child of vfork.

use core::sync::atomic::{AtomicUsize, Ordering};

use larder_sys::{list_lock, loader, tls};
use larder_threads::defer;

use crate::cycle;

/// The thread that holds every lock of the heap for a fork, by its thread block; 0 while none does.
///
/// Sync: written with the locks held. Relaxed: only a thread's own store makes it the thread's own.
static HOLDER: AtomicUsize = AtomicUsize::new(0);
/// How many forks of its handlers are under way. Sync: the thread in `HOLDER`.
static OF_HANDLERS: AtomicUsize = AtomicUsize::new(0);

fn is_holder() -> bool {
    HOLDER.load(Ordering::Relaxed) == tls::block().addr()
}

extern "C" fn before() {
    if !defer::is_deferring() {
        cycle::before_fork();
        HOLDER.store(tls::block().addr(), Ordering::Relaxed);
    } else if is_holder() {
        // Who holds them defers.
        OF_HANDLERS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether the fork that has ended on the calling thread is one for which it holds the locks, which it is about to give back.
fn ends_holding() -> bool {
    if !is_holder() {
        return false;
    }
    if OF_HANDLERS.load(Ordering::Relaxed) > 0 {
        OF_HANDLERS.fetch_sub(1, Ordering::Relaxed);
        return false;
    }
    HOLDER.store(0, Ordering::Relaxed);
    true
}

extern "C" fn in_parent() {
    if ends_holding() {
        // SAFETY: the C library calls the three handlers on the forking thread, this one after `before`, which took the locks.
        unsafe { cycle::after_fork_in_parent() };
    }
}

extern "C" fn in_child() {
    // SAFETY: as above, in the child, which has only this thread.
    unsafe {
        list_lock::after_fork_in_child();
        if ends_holding() {
            cycle::after_fork_in_child();
        }
    }
}

/// Registers the handlers with the C library.
pub(crate) fn install() {
    list_lock::find();
    loader::find();
    // SAFETY: the handlers live as long as the process: the library is never unloaded (`-z nodelete`).
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

/// libgc's `GC_atfork_prepare`, for programs that fork without the C library's handlers.
pub fn prepare() {
    before();
}

/// libgc's `GC_atfork_parent`.
///
/// # Safety
/// The calling thread called [`prepare`].
pub unsafe fn parent() {
    in_parent();
}

/// libgc's `GC_atfork_child`.
///
/// # Safety
/// The calling thread called [`prepare`] and is the only one of the child.
pub unsafe fn child() {
    in_child();
}
