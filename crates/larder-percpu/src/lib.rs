//! Restartable sequences on per-CPU memory: no lock, no atomic read-modify-write, no thread-local cache.
//!
//! A sequence is a few instructions whose last one is a store, the commit. The kernel restarts it from its beginning
//! when the thread was preempted, migrated or interrupted by a signal before the commit (VEE'05 calls this MP-RCS; on
//! Linux it is rseq). So each sequence runs as if it were alone on its CPU, and a thread that was stopped by a signal
//! never holds a half-made one.
//!
//! This is the only crate with assembly beside the register spill in `larder-sys`.

#![cfg_attr(not(test), no_std)]

pub mod ground;
pub mod sequence;

pub use ground::Ground;
