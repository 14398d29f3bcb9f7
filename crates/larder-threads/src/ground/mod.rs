//! What the stop protocol stands on: Linux, or in a model its stand-in.
//!
//! This is the whole seam between the two: the runtime's thread-local block, the thread's id, its signals and their mask,
//! and where records come from. Everything else that waits or orders is `larder-sync`'s.

#[cfg(not(loom))]
mod linux;
#[cfg(loom)]
mod model;

#[cfg(not(loom))]
pub(crate) use linux::{Arena, red_zone, signal, tid, tls, with_registers_spilled};
#[cfg(loom)]
pub(crate) use model::{Arena, red_zone, signal, tid, tls, with_registers_spilled};
