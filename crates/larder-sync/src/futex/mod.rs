//! A word that threads can sleep on: the kernel's futex, or its stand-in under loom.
//!
//! This is the whole seam between the protocols above and Linux. A wait may return for no reason, so each caller looks
//! at its word again. No caller may take a return for an ordering: what was written before a wake is seen through the
//! word, by an `Acquire` load.

#[cfg(not(loom))]
mod linux;
#[cfg(loom)]
mod model;

#[cfg(not(loom))]
pub(crate) use linux::{Deadline, Word};
#[cfg(loom)]
pub(crate) use model::{Deadline, Word};
