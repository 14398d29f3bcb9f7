//! Waiting, locking, sharing work and agreeing that none is left: what threads of the runtime do to one another.
//!
//! Every module here is a protocol between threads and nothing else: no policy, no heap, no thread registry.
//!
//! - [`atomic`]: atomics that loom can replace; all protocols of this crate use them, and have models.
//! - [`lock`]: a mutex of four bytes.
//! - [`parker`]: one word to sleep on.
//! - [`spin`], [`ticks`]: how long to look before sleeping, in time.
//! - [`mutex`]: the mutex for other programs, which restricts how many threads circulate over it.
//! - [`worklist`]: the public part of a marker's work list, from which other markers steal.
//! - [`termination`]: how markers agree that nothing is left to mark, without a shared counter.
//! - [`asymmetric`]: a fence whose frequent half is free.
//! - [`gate`]: keeps threads out, and waits until those inside have left.
//! - [`forward`]: the word that says where a moving collection copied an object.
//! - [`safepoint`]: stopping threads that poll.
//! - [`intake`]: a list to which anybody adds and from which one takes everything.
//! - [`waiting`]: a set of numbers that wait, each once, until somebody takes them.
//! - [`region`]: a region that many take from and one refills, without a lock.
//! - [`phase_fair`]: a reader-writer lock in alternating phases.
//! - `clh`, `hazard` (with the feature `std`): a queue lock for threads that keep a place; hazard pointers without a fence.
//! - `biased`, `queue` (with `std`): a reader-writer lock biased to readers; bounded queues; `fairness`: how fairly a lock was admitted to.
//! - `elision` (with `std`): critical sections as transactions, where a processor has them.
//! - `clock`, [`random`]: a clock that never goes back; random numbers.
//!
//! Nothing here allocates, unwinds on purpose, or calls back into its caller with a lock held. Everything may run while
//! signals arrive, and nothing changes `errno`.
//!
//! # Models
//!
//! The protocols are explored by the models under `tests/loom_*.rs`:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p larder-sync -p larder-threads --release --test 'loom_*'
//! ```
//!
//! The models run the shipped code. What they replace are the atomics and the kernel's futex queue. [`worklist`] names
//! the orderings that loom cannot show, and nothing here models the system call of [`asymmetric`], which
//! `tests/asymmetric.rs` tries on the real kernel.
//!
//! A model may leave out one step of a protocol, and must fail then: see `mutants` and [`step`]. Signals, which stop
//! threads, have a model of their own (`signals`, under loom only).
//!
//! loom explores everything, of two to four threads. More threads, for longer, and unfairly scheduled (who loses a
//! priority may not run again before all others wait for it) are tried by shuttle, on the same code, at random:
//!
//! ```text
//! RUSTFLAGS="--cfg loom --cfg shuttle" cargo test -p larder-sync --release --test 'shuttle_*'
//! ```
//!
//! loom looks for a race with the last access of a word only, so a thread's own load can hide another's. Where that
//! mattered, the code avoids such a load and says so.

#![cfg_attr(not(any(test, feature = "std", loom)), no_std)]

/// Declares a constructor that is `const`, except under loom, whose atomics register themselves when they are made.
#[macro_export]
macro_rules! const_unless_loom {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident($($arguments:tt)*) -> $result:ty $body:block) => {
        $(#[$attribute])*
        #[cfg(not(loom))]
        $visibility const fn $name($($arguments)*) -> $result $body

        $(#[$attribute])*
        #[cfg(loom)]
        $visibility fn $name($($arguments)*) -> $result $body
    };
}

/// The methods of `lock_api::RawMutex` by the type's own of the same names.
#[cfg(any(feature = "std", loom))]
macro_rules! own_methods {
    () => {
        #[inline]
        fn lock(&self) {
            Self::lock(self);
        }

        #[inline]
        fn try_lock(&self) -> bool {
            Self::try_lock(self)
        }

        #[inline]
        unsafe fn unlock(&self) {
            // SAFETY: the caller's promise.
            unsafe { Self::unlock(self) };
        }

        fn is_locked(&self) -> bool {
            Self::is_locked(self)
        }
    };
}

pub mod asymmetric;
pub mod atomic;
#[cfg(any(feature = "std", loom))]
pub mod biased;
#[cfg(any(feature = "std", loom))]
pub mod clh;
#[cfg(not(loom))]
pub mod clock;
#[cfg(all(feature = "std", not(loom)))]
pub mod elision;
pub mod fair;
#[cfg(any(test, feature = "std"))]
pub mod fairness;
pub mod forward;
pub mod gate;
#[cfg(any(feature = "std", loom))]
pub mod hazard;
pub mod intake;
pub mod lock;
pub mod mutex;
pub mod parker;
pub mod phase_fair;
pub mod phases;
#[cfg(any(feature = "std", loom))]
pub mod queue;
pub mod random;
pub mod reciprocating;
pub mod region;
pub mod restrict;
pub mod safepoint;
pub mod sched;
pub mod spin;
pub mod step;
pub mod termination;
pub mod ticks;
#[cfg(any(feature = "std", loom))]
pub mod turns;
pub mod waiting;
pub mod worklist;

/// The asymmetric fence by the name that others know it by.
pub use asymmetric as asymmetric_fence;

#[cfg(any(feature = "std", loom))]
mod cell;
#[cfg(not(loom))]
mod errno;
#[cfg(any(feature = "std", loom))]
mod event_count;
mod futex;
mod line;
mod waiter;

#[cfg(loom)]
#[doc(hidden)]
pub mod mutants;
#[cfg(loom)]
#[doc(hidden)]
pub mod signals;

#[cfg(all(loom, not(shuttle)))]
#[doc(hidden)]
pub use loom;
#[cfg(all(loom, shuttle))]
#[doc(hidden)]
#[path = "unfair.rs"]
pub mod loom;

/// Declares a static of the process. Under loom, whose objects live for one execution, each execution has its own.
#[macro_export]
macro_rules! process_static {
    ($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;) => {
        $crate::process_static! { @ $(#[$attribute])* () $name: $type = $value; }
    };
    ($(#[$attribute:meta])* pub static $name:ident: $type:ty = $value:expr;) => {
        $crate::process_static! { @ $(#[$attribute])* (pub) $name: $type = $value; }
    };
    (@ $(#[$attribute:meta])* ($($visibility:tt)*) $name:ident: $type:ty = $value:expr;) => {
        #[cfg(not(loom))]
        $(#[$attribute])*
        $($visibility)* static $name: $type = $value;

        #[cfg(loom)]
        $crate::loom::lazy_static! {
            $(#[$attribute])*
            $($visibility)* static ref $name: $type = $value;
        }
    };
}
