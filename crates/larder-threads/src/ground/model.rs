//! The stand-in for Linux in a model.
//!
//! A thread gets signals from the moment in which it asks for its id, which is when it registers. Its handler runs
//! before any access of its own to an atomic or to its thread-local block, at compiler fences, and in waits on futexes.

use std::sync::{Arc, Mutex};

use larder_sync::signals::{self, Target};
use larder_sys::memory::ReserveError;

larder_sync::loom::lazy_static! {
    /// The threads that have an id; a thread's is its place.
    static ref TARGETS: Mutex<Vec<Arc<Target>>> = Mutex::default();
}

/// The calling thread's id.
pub(crate) fn tid() -> i32 {
    let known = tls::with(|t| t.tid.get());
    if known != 0 {
        return known;
    }
    let target = signals::take_with(|| crate::stop::take_signal(|| None));
    let mut targets = TARGETS.lock().expect("no thread panics here");
    targets.push(target);
    targets.len() as i32
}

/// Calls `f` with an address that stands for the stack pointer.
pub(crate) fn with_registers_spilled<F: FnOnce(usize) -> R, R>(f: F) -> R {
    f(1)
}

/// Records, which loom wants to be made one by one; they live as long as the execution.
#[derive(Default)]
#[allow(clippy::vec_box, reason = "a record that is known must not move")]
pub(crate) struct Arena(Vec<Box<crate::record::Thread>>);

impl Arena {
    /// No records.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A record; `T` is `Thread`.
    pub(crate) fn allocate_one<T>(&mut self) -> Result<std::ptr::NonNull<T>, ReserveError> {
        self.0.push(Box::default());
        Ok(std::ptr::NonNull::from(self.0.last_mut().expect("pushed above").as_mut()).cast())
    }
}

/// The runtime's thread-local block.
pub(crate) mod tls {
    use larder_sync::signals;
    pub(crate) use larder_sys::tls::ThreadBlock;

    larder_sync::loom::thread_local! {
        static BLOCK: ThreadBlock = unmet();
    }

    fn unmet() -> ThreadBlock {
        // SAFETY: all zeroes are a block that the runtime has not met.
        unsafe { std::mem::MaybeUninit::zeroed().assume_init() }
    }

    /// The calling thread's block.
    pub(crate) fn with<R>(f: impl FnOnce(&ThreadBlock) -> R) -> R {
        if std::thread::panicking() {
            // A guard that is dropped after the model has failed.
            return f(&unmet());
        }
        signals::look();
        BLOCK.with(f)
    }
}

/// What sleeping threads leave behind.
pub(crate) mod red_zone {
    pub(crate) use larder_sys::red_zone::Asleep;

    /// There is none.
    pub(crate) fn find_c_library() {}

    /// No thread of a model sleeps in one.
    pub(crate) unsafe fn asleep(_: *const libc::c_void) -> Option<Asleep> {
        None
    }
}

/// Signals, of which there is only one.
pub(crate) mod signal {
    use larder_sync::signals;
    pub(crate) use larder_sys::signal::{AlternateStack, Handler, Handling, SendError, Sender};

    /// All signals or none.
    pub(crate) struct Mask(bool);

    impl Mask {
        /// Every signal.
        pub(crate) fn all_but_faults() -> Self {
            Self(true)
        }

        /// Makes this the calling thread's mask; returns the old one.
        pub(crate) fn set(&self) -> Self {
            Self(signals::mask(self.0))
        }
    }

    /// Sends the signal; 0 asks only. No thread of a model is gone before it has unregistered.
    pub(crate) fn send(tid: i32, signal: i32) -> Result<(), SendError> {
        if signal != 0 {
            let target = super::TARGETS.lock().expect("no thread panics here")[tid as usize - 1].clone();
            signals::send(&target);
        }
        Ok(())
    }

    /// Asked for signals that do not name their sender, of which a model has none.
    pub(crate) fn waits(_: i32) -> bool {
        false
    }

    /// Opens the signal; returns the mask of before.
    pub(crate) fn unblock(_: i32) -> Mask {
        Mask(signals::mask(false))
    }

    /// The same: there are no other signals.
    pub(crate) fn mask_all_but(signal: i32) -> Mask {
        unblock(signal)
    }

    /// No client of a model handles signals.
    pub(crate) fn handling(_: i32) -> Handling {
        Handling { handler: crate::stop::on_signal as *const () as usize, has_context: true }
    }

    /// As above: every signal is a stop's.
    pub(crate) unsafe fn sender(_: *const libc::siginfo_t) -> Sender {
        Sender::Here
    }

    /// Does nothing: a thread of a model has its handler from the beginning.
    pub(crate) unsafe fn install(_: i32, _: Handler, _: &Mask) -> bool {
        true
    }

    /// No thread of a model has an alternate stack.
    pub(crate) fn alternate_stack_in_use() -> Option<AlternateStack> {
        None
    }
}
