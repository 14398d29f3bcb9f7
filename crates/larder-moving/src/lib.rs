//! The generational moving heap, for language implementers.
//!
//! A young generation collected by parallel copying, an old generation collected by parallel mark-compact, large objects
//! apart (VEE'05, section 4). The host tells where references are ([`Host`]); the heap moves objects and updates them.
//!
//! | to read | about |
//! |---|---|
//! | [`Host`], [`Mutator`] | the interface, in both directions |
//! | [`Config`] | what can be chosen |
//! | [`sequence`], [`Functions`] | what a compiler may inline, or call |
//! | `space`, `young`, `old`, `large` | where objects are |
//! | `cycle` | collections: `copy`, `mark`, `compact`, `weak`, and `verify`, which looks after them |
//!
//! It must never use the process's allocator, nor run code of the host's other than [`Host`]'s functions.
//!
//! Several heaps may live in a process. A thread that is attached to several reaches the safepoints of one in a blocking region of the
//! others: two threads that collect both could otherwise wait for one another. The child of a fork may use those heaps that its thread
//! forked by [`Mutator::fork`], and no others.

#![cfg_attr(not(test), no_std)]

mod config;
mod cycle;
mod fork;
mod functions;
mod gang;
mod handles;
mod heap;
mod host;
mod large;
mod list;
mod mutator;
mod old;
pub mod sequence;
mod source;
mod space;
mod stats;
mod thread;
mod young;

pub use config::{Barrier, Config, CreateError, OLD_BUFFER};
pub use functions::{ClassFunction, Functions, Site};
pub use handles::{Handle, Keep};
pub use heap::{Heap, OutOfMemory, Owned};
pub use host::{Collection, Host, RootVisitor, Visitor};
pub use larder_lab::Way;
pub use mutator::{Local, Mutator};
pub use source::{OldSource, YoungSource};
pub use stats::Stats;
pub use thread::{Frame, Thread};

/// What freed memory is filled with where that was asked for: no address, and odd, so that it looks like no object.
pub(crate) const POISON: u8 = 0xdb;
