//! Fork: the child has one thread, a consistent heap, and no helpers.

use larder_sys::{list_lock, loader};

use crate::cycle;

extern "C" fn before() {
    cycle::before_fork();
}

extern "C" fn in_parent() {
    // SAFETY: the C library calls the three handlers on the forking thread, this one after `before`.
    unsafe { cycle::after_fork_in_parent() };
}

extern "C" fn in_child() {
    // SAFETY: as above, in the child, which has only this thread.
    unsafe {
        list_lock::after_fork_in_child();
        cycle::after_fork_in_child();
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
