//! Forks that the program announces itself: `GC_set_handle_fork` and the three `GC_atfork_*` functions.
//!
//! The heap registers handlers with `pthread_atfork` when it is initialised, so a `fork` of the C library needs nothing
//! from here. libgc's contract is that a program which chose -1 or 0 calls the three functions around a fork that runs no
//! such handlers: a system call of its own, for example. Such a program may also use `fork`, and then
//! both would take the heap's locks, the second time for ever. So there are handlers of this module, too, registered after
//! the heap's and therefore called before them: where the forking thread has announced the fork, they take the
//! announcement back, and the heap's handlers do the work.

use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, Ordering};

use larder_fixed::fork;
use larder_sys::thread::thread_pointer;

use crate::data::Int;
use crate::init::{GC_init, is_ready};

/// What the program chose: 1 for the handlers alone, which is the first value; 0 or -1 for its own calls.
static CHOICE: Int = Int::new(1);
/// The thread that holds the heap's locks because of [`GC_atfork_prepare`], by its thread pointer, which is the same in
/// the child; null when there is none.
///
/// Sync: that thread alone stores its own address, and takes it back; another thread only learns that it is not meant.
static ANNOUNCED_BY: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Takes the calling thread's announcement back. False where it made none.
fn withdraw() -> bool {
    // Relaxed: only the thread's own store makes the two equal.
    let own = ANNOUNCED_BY.load(Ordering::Relaxed) == thread_pointer();
    if own {
        // Relaxed: as above.
        ANNOUNCED_BY.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
    own
}

/// Before a fork of the C library, and before the heap's own handler.
extern "C" fn before_fork() {
    if withdraw() {
        // SAFETY: `GC_atfork_prepare` on this thread called `prepare`.
        unsafe { fork::parent() };
    }
}

/// Registers the handler, where the program has chosen to announce its forks. After the heap was initialised.
pub fn install() {
    if CHOICE.get() <= 0 {
        // SAFETY: the handler lives as long as the process: the library is never unloaded (`-z nodelete`).
        unsafe { libc::pthread_atfork(Some(before_fork), None, None) };
    }
}

/// Chooses who handles a fork, before initialisation: 1, handlers of `pthread_atfork`; -1 or 0, the program, by calling
/// `GC_atfork_prepare`, `GC_atfork_parent` and `GC_atfork_child` around it. A `fork` of the C library is handled with
/// every choice.
#[unsafe(no_mangle)]
pub extern "C" fn GC_set_handle_fork(value: c_int) {
    if !is_ready() {
        // As libgc has it, any other negative number counts as 1.
        CHOICE.set(if value >= -1 { value } else { 1 });
    }
}

/// Before a fork that the program announces: takes every lock of the heap. Otherwise does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn GC_atfork_prepare() {
    GC_init();
    if CHOICE.get() <= 0 {
        fork::prepare();
        // Relaxed: read by this thread only, see `withdraw`.
        ANNOUNCED_BY.store(thread_pointer(), Ordering::Relaxed);
    }
}

/// After it, in the parent.
#[unsafe(no_mangle)]
pub extern "C" fn GC_atfork_parent() {
    if withdraw() {
        // SAFETY: `GC_atfork_prepare` on this thread called `prepare`.
        unsafe { fork::parent() };
    }
}

/// After it, in the child.
#[unsafe(no_mangle)]
pub extern "C" fn GC_atfork_child() {
    if withdraw() {
        // SAFETY: `GC_atfork_prepare` on this thread called `prepare`, in the parent; the child has no other thread.
        unsafe { fork::child() };
    }
}
