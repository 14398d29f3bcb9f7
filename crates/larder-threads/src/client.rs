//! Clients that handle the stop signal themselves.
//!
//! A program may install a handler of its own for SIGPWR, before the heap begins or after. The stop's handler must be the one that
//! the kernel calls, so every stop looks, takes the signal back where it was taken, and remembers the client's handler. The stop's
//! handler calls it for every signal that no stop has sent. Under `larder run` the kernel never learns of such a handler ([`replace`]);
//! by library path alone, a stop's signal that is under way when the client installs one arrives there.
//!
//! Signals say who sent them, but not where the kernel may queue no more of them (RLIMIT_SIGPENDING), nor where a sandbox refuses the
//! call that carries a value. There they are counted ([`Signals`]): one that was sent to the thread and has not been taken by its
//! handler is the one that the handler runs for. That a stop has ended does not mean that its signal was taken: a thread that went into
//! a blocking region meanwhile was answered for, and may have been sent the next stop's before the handler's first instruction.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use larder_sync::spin::Patience;

use crate::ground::signal::{self, Handling, Mask, SendError, Sender};
use crate::record::Thread;
use crate::{silent, stop};

/// Signals of ours to one thread. Equal signals that wait for a thread together are one, so fewer may arrive than were sent. All zeroes:
/// none was sent.
#[derive(Default)]
pub(crate) struct Signals {
    /// How many were about to be sent. Sync: whoever holds the registry's lock writes, before the system call, which orders it for the
    /// handler.
    begun: AtomicU32,
    /// How many the kernel has been given. Sync: as `begun`, after the call; `client.sent`.
    sent: AtomicU32,
    /// How many the handler has accounted for. Sync: owner thread, in the handler alone.
    taken: AtomicU32,
}

impl Signals {
    /// For a record that is used anew.
    pub(crate) fn forget(&self) {
        [&self.begun, &self.sent, &self.taken].iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// Counts a signal that `send` sends. The caller holds the registry's lock.
    fn count<R>(&self, send: impl FnOnce() -> R) -> R {
        let number = self.begun.load(Ordering::Relaxed).wrapping_add(1);
        self.begun.store(number, Ordering::Relaxed);
        let result = send();
        // ORDER client.sent: Release, with the load in `take`: the kernel has the signal.
        self.sent.store(number, Ordering::Release);
        result
    }

    /// The handler runs for a signal that we have sent, it says.
    fn take_one(&self) {
        self.taken.store(self.taken.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The handler runs for a signal that does not say who sent it: whether we did. `waits` asks whether another one waits for the
    /// thread, which masks it.
    fn take(&self, waits: impl FnOnce() -> bool) -> bool {
        // ORDER client.sent: Acquire, with the store in `count`. Read first: what was begun is never behind it.
        let sent = self.sent.load(Ordering::Acquire);
        let begun = self.begun.load(Ordering::Relaxed);
        let taken = self.taken.load(Ordering::Relaxed);
        let left = begun.wrapping_sub(taken);
        if left == 0 {
            return false;
        }
        // Of several, some may have come as one; that none is left is certain only where all were sent and none waits.
        let may_come = left > 1 && (sent != begun || waits());
        self.taken.store(if may_come { taken.wrapping_add(1) } else { begun }, Ordering::Relaxed);
        true
    }
}

/// Sends the stop signal to a thread. False when it is gone. The caller holds the registry's lock.
///
/// A thread that cannot be signalled is there all the same, and what it alone refers to would be freed: that ends the process.
pub(crate) fn send(thread: &Thread) -> bool {
    thread.signals.count(|| {
        loop {
            match signal::send(thread.tid(), stop::signal()) {
                Ok(()) => return true,
                Err(SendError::Gone) => return false,
                Err(SendError::Again) => larder_sys::thread::yield_now(),
                Err(SendError::Refused(errno)) => larder_sys::die!(
                    "cannot stop thread {} for a collection: the kernel refuses to signal it (tgkill, errno {errno}); does a sandbox \
                     forbid that?",
                    thread.tid()
                ),
            }
        }
    })
}

/// How often a signal that was taken away is sent in a row.
const VOLLEY: u32 = 64;
/// After so long the next one follows: a fraction of what a thread needs from one system call to the next.
const BETWEEN_NS: u64 = 2_000;

/// Sends the stop signal once more, to a thread that has not `answered` for long. False when it is gone. The caller holds the registry's
/// lock.
///
/// A signal that still waits for the thread is enough. Else the thread has taken it away, by `sigwait` or from a descriptor of signals, and may
/// sleep in the same call again, which takes the next one away as well. Of several that follow one another shortly, one may come while the thread
/// is on its way from one call to the next.
pub(crate) fn send_again(thread: &Thread, answered: impl Fn() -> bool) -> bool {
    if silent::is_awaited_by(stop::signal(), thread.tid()) {
        return !is_gone(thread);
    }
    for _ in 0..VOLLEY {
        if answered() {
            break;
        }
        if !send(thread) {
            return false;
        }
        let mut pause = Patience::for_nanos(BETWEEN_NS);
        while pause.spin() {}
    }
    true
}

/// Whether a thread is there no more.
pub(crate) fn is_gone(thread: &Thread) -> bool {
    signal::send(thread.tid(), 0) == Err(SendError::Gone)
}

/// The client's handler; 0 for none.
///
/// Sync: written where the signal is taken back, by the collector, before it sends, or by [`replace`]; a handler that reads the
/// older value calls the client's older handler.
static HANDLER: AtomicUsize = AtomicUsize::new(0);
/// Whether it takes three arguments. Sync: as `HANDLER`.
static HAS_CONTEXT: AtomicBool = AtomicBool::new(false);

fn own() -> usize {
    stop::on_signal as *const () as usize
}

/// Remembers what handled the signal, if that was the client.
pub(crate) fn note(found: Handling) {
    if found.handler != own() {
        set(found);
    }
}

fn set(handling: Handling) {
    HAS_CONTEXT.store(handling.has_context, Ordering::Relaxed);
    // Zero is the default action, which is nobody's handler.
    HANDLER.store(handling.handler, Ordering::Relaxed);
}

fn known() -> Handling {
    Handling { handler: HANDLER.load(Ordering::Relaxed), has_context: HAS_CONTEXT.load(Ordering::Relaxed) }
}

/// What the client has installed for the stop signal, and with `new` from now on that.
#[cfg(not(loom))]
pub(crate) fn replace(new: Option<Handling>) -> Handling {
    let old = known();
    if let Some(new) = new {
        set(new);
    }
    old
}

/// Takes the stop signal back, if the client has taken it.
pub(crate) fn keep_ours() {
    let found = signal::handling(stop::signal());
    if found.handler != own() {
        note(found);
        // SAFETY: the stop's own handler.
        unsafe { signal::install(stop::signal(), stop::on_signal, &Mask::all_but_faults()) };
    }
}

/// Accounts for the signal that the calling thread's handler runs for: whether it is one of ours. Asked once for each run, at its
/// beginning.
///
/// # Safety
/// `info` is what the kernel gave to the stop's handler, which runs now, on the thread with this record.
pub(crate) unsafe fn is_ours(info: *const libc::siginfo_t, thread: Option<&Thread>) -> bool {
    // SAFETY: the caller's promise.
    match (unsafe { signal::sender(info) }, thread) {
        (Sender::Here, thread) => {
            thread.inspect(|thread| thread.signals.take_one());
            true
        }
        (Sender::Other, _) => false,
        (Sender::Unsaid, thread) => thread.is_some_and(|thread| thread.signals.take(|| signal::waits(stop::signal()))),
    }
}

/// Calls the client's handler, for a signal that is not one of ours.
///
/// # Safety
/// The arguments are those of the stop's handler, which runs now.
pub(crate) unsafe fn pass_on(number: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let client = known();
    if client.handler != 0 {
        // SAFETY: the caller's promise.
        unsafe { client.call(number, info, context) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A signal is sent, `n` times.
    fn send(signals: &Signals, n: usize) {
        (0..n).for_each(|_| signals.count(|| ()));
    }

    #[test]
    fn each_signal_sent_is_taken_once() {
        let signals = Signals::default();
        assert!(!signals.take(|| unreachable!("nothing was sent")), "the client's");
        for _ in 0..3 {
            send(&signals, 1);
            assert!(signals.take(|| unreachable!("one alone")));
            assert!(!signals.take(|| false), "the client's");
        }
    }

    #[test]
    fn a_second_signal_sent_before_the_handler_looks_is_taken_too() {
        let signals = Signals::default();
        send(&signals, 2);
        assert!(signals.take(|| true), "the first");
        assert!(signals.take(|| false), "the second");
        assert!(!signals.take(|| false), "the client's");
    }

    #[test]
    fn two_signals_that_came_as_one_are_taken_together() {
        let signals = Signals::default();
        send(&signals, 2);
        assert!(signals.take(|| false));
        assert!(!signals.take(|| false), "the client's");
    }

    #[test]
    fn a_signal_that_is_being_sent_is_expected() {
        let signals = Signals::default();
        send(&signals, 1);
        signals.count(|| assert!(signals.take(|| false), "the first, while the second is under way"));
        assert!(signals.take(|| false), "the second");
        assert!(!signals.take(|| false), "the client's");
    }

    #[test]
    fn signals_that_name_their_sender_are_counted_with_those_that_do_not() {
        let signals = Signals::default();
        send(&signals, 2);
        signals.take_one();
        assert!(signals.take(|| false));
        assert!(!signals.take(|| false), "the client's");
    }
}
