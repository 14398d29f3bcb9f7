//! Clients that handle the stop signal themselves.
//!
//! A program may install a handler of its own for SIGPWR, before the heap begins or after. The stop's handler must be the one that
//! the kernel calls, so every stop looks, takes the signal back where it was taken, and remembers the client's handler. The stop's
//! handler calls it for every signal that no stop has sent.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::ground::signal::{self, Handling, Mask};
use crate::stop;

/// The client's handler; 0 for none.
///
/// Sync: written where the signal is taken back, by the collector, before it sends; a handler that reads the older value
/// calls the client's older handler.
static HANDLER: AtomicUsize = AtomicUsize::new(0);
/// Whether it takes three arguments. Sync: as `HANDLER`.
static HAS_CONTEXT: AtomicBool = AtomicBool::new(false);

fn own() -> usize {
    stop::on_signal as *const () as usize
}

/// Remembers what handled the signal, if that was the client.
pub(crate) fn note(found: Handling) {
    if found.handler != own() {
        HAS_CONTEXT.store(found.has_context, Ordering::Relaxed);
        // Zero is the default action, which is nobody's handler.
        HANDLER.store(found.handler, Ordering::Relaxed);
    }
}

/// Takes the stop signal back, if the client has taken it. True where it had.
pub(crate) fn keep_ours() -> bool {
    let found = signal::handling(stop::signal());
    if found.handler == own() {
        return false;
    }
    note(found);
    // SAFETY: the stop's own handler.
    unsafe { signal::install(stop::signal(), stop::on_signal, &Mask::all_but_faults()) };
    true
}

/// Calls the client's handler for a signal that no stop has sent.
///
/// # Safety
/// The arguments are those of the stop's handler, which runs now.
pub(crate) unsafe fn pass_on(number: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let handler = HANDLER.load(Ordering::Relaxed);
    // SAFETY: the caller's promise.
    unsafe {
        if handler != 0 && !signal::was_sent_here(info) {
            Handling { handler, has_context: HAS_CONTEXT.load(Ordering::Relaxed) }.call(number, info, context);
        }
    }
}
