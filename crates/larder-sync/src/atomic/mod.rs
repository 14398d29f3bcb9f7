//! Atomics, from the one place that a model can replace.
//!
//! Under `cfg(loom)` these are loom's, which explore interleavings and stale reads; otherwise they are `core`'s. The
//! protocols of this crate and of `larder-threads` import from here and have models. Other crates above import `core`'s.
//! loom treats a `SeqCst` access as `AcqRel`, so a protocol that needs a total order says so with `fence(SeqCst)`, which
//! loom does model.
//!
//! In a model, a thread that takes signals may be interrupted before each access, and at each compiler fence: that is
//! where a handler may run.

#[cfg(not(loom))]
pub use core::hint::spin_loop;
#[cfg(not(loom))]
pub use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence,
};

#[cfg(loom)]
mod model;
#[cfg(loom)]
pub use model::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence, spin_loop,
};
