//! Atomics, from the one place that a model can replace.
//!
//! Under `cfg(loom)` these are loom's, which explore interleavings and stale reads; otherwise they are `core`'s. The
//! protocols of this crate import from here and have models. Crates above import `core`'s for their own protocols, which
//! have no loom models yet; of this module they use the fence. loom treats a `SeqCst` access as `AcqRel`, so a protocol that needs a total order
//! says so with `fence(SeqCst)`, which loom does model.

#[cfg(not(loom))]
pub use core::hint::spin_loop;
#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(loom)]
pub use loom::hint::spin_loop;
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
