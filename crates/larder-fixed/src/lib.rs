//! The fixed heap: objects never move; garbage is found by marking, conservatively or by descriptor.
//!
//! An allocation is one restartable sequence on a buffer of the current concurrency id ([`allocate`](mod@allocate)). A refill takes
//! the next free run of a block, sweeping it on the way ([`refill`]). A cycle stops the world, marks in parallel, resumes,
//! and leaves all sweeping to later refills ([`cycle`]).
//!
//! There is one heap in a process; its state lives in statics of this crate.

#![cfg_attr(not(test), no_std)]

pub mod ablation;
mod aftermath;
pub mod allocate;
pub mod barrier;
pub mod concurrent;
pub mod cycle;
mod dirty;
pub mod disclaim;
mod epochs;
pub mod events;
pub mod finalization;
pub mod fork;
mod gate;
pub mod generations;
pub mod grey;
mod group;
pub mod heap;
pub mod hooks;
pub mod inject;
pub mod kind;
pub mod large;
pub mod lock;
pub mod object;
pub mod options;
mod own_threads;
pub mod pacing;
pub mod path;
pub mod refill;
pub mod roots;
pub mod settings;
pub mod sharing;
mod shelf;
mod stacks;
pub mod stats;
pub mod threads;
mod timeline;
mod untold;
mod view;

pub use allocate::{allocate, allocate_aligned, allocate_from_buffer, allocate_many, allocate_slow, free};
pub use heap::{init, is_initialised};
