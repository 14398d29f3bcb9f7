//! Which threads there are, how they are stopped and resumed, and where their stacks lie.
//!
//! Threads run arbitrary code and are stopped by a signal. A thread in the allocator's slow path defers the stop until
//! it leaves ([`defer`]); a thread in a blocking region is not signalled at all ([`blocking`]); everyone else parks in
//! the handler ([`stop`]) on one futex word that resumes all at once.
//!
//! There is one registry in a process, since a signal handler can only find it by name.

//!
//! The models under `tests/loom_*.rs` run this code with a stand-in for Linux (module `ground`): a thread's handler may run
//! between any two of its steps.

#![cfg_attr(not(any(test, loom)), no_std)]

pub mod blocking;
mod client;
pub mod defer;
mod ground;
pub mod interposed;
pub mod look;
mod place;
pub mod record;
pub mod registry;
mod silent;
pub mod stop;
pub mod suspend;

pub use record::{Thread, ThreadState};
pub use registry::{REGISTRY, Registry};
