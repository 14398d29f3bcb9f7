//! Local allocation buffers (LABs), whatever they are local to.
//!
//! - [`cells`]: the fixed heap's buffers of cells of one size.
//! - The rest: buffers of bytes over a space that gives chunks, for heaps whose objects lie one behind the other.
//!
//! # Buffers of bytes
//!
//! A buffer is a pair (frontier, limit). An allocation adds its size to the frontier; when the limit is reached, the buffer is
//! given another chunk. Whom buffers belong to, how large they are, and what lies between them and the space are values in
//! a [`Config`]; the code is one:
//!
//! | association | the index of its buffers | the fast path |
//! |---|---|---|
//! | thread | zero, on the thread's own slot | the bump sequence; without sequences one `cmpxchg16b` |
//! | concurrency id, CPU | what the kernel keeps in the rseq area | the same bump sequence |
//! | core, cache, package, node, process, groups of CPUs | the CPU, through a map | the level sequence, one `lock cmpxchg` |
//!
//! - [`source`]: what the space below must do. [`bump_space`]: the simplest one.
//! - [`config`]: associations and how they stack.
//! - [`buffers`]: the fast paths, and what happens when they take nothing.
//! - `refill`: of a processor's buffer in a transaction (VEE'05, section 5.1), of levels without a lock (HAB).
//! - `stop`: retiring, sizing and flipping while the world stands still (VEE'05, section 5.2).
//! - [`functions`]: allocation functions for one size and one way; [`shape`]: the sequences as data.
//! - [`counters`]: what all of it did.
//!
//! ```
//! use larder_lab::{Buffers, BumpSpace, ChunkSource, Config, Lab};
//!
//! let mut memory = vec![0u64; 1 << 17];
//! let range = memory.as_mut_ptr_range();
//! // SAFETY: the memory outlives the space.
//! let space = unsafe { BumpSpace::new(range.start.expose_provenance(), range.end.expose_provenance(), true) };
//! let buffers = Buffers::new(space, Config::by_concurrency_id());
//! buffers.set_up().unwrap();
//!
//! let mine = Lab::new(); // one for each thread
//! // SAFETY: set up; the sizes are multiples of 8; nobody stops this thread.
//! let (first, second) = unsafe { (buffers.allocate(&mine, 24), buffers.allocate(&mine, 40)) };
//! assert!(first != 0 && second != 0 && first != second);
//!
//! // A collection: everybody stands still, the buffers give back what they have, the space begins anew.
//! // SAFETY: this is the only thread, and nothing of the space is used after it.
//! let retired = unsafe {
//!     let retired = buffers.retire_all(|each| each(&mine), None);
//!     buffers.source().reset();
//!     retired
//! };
//! assert_eq!(retired.partly_used, 1);
//! ```

#![cfg_attr(not(test), no_std)]

pub mod buffers;
pub mod bump_space;
pub mod cells;
pub mod config;
pub mod counters;
pub mod functions;
pub mod lab;
pub mod shape;
pub mod source;

mod level;
mod refill;
mod sideline;
mod stop;

pub use buffers::{Buffers, LARGEST_OBJECT, Ready, SetUpError, WORD, Way};
pub use bump_space::BumpSpace;
pub use cells::{Association, CLASSES, Installed, KINDS, Labs, SLAB, retire_own, slot_offset};
pub use config::{Config, Lowest, Processors, Selection, UPPER, Upper};
pub use counters::{LevelStatistics, Statistics};
pub use functions::{AllocationFunction, Function, SPECIALISED, Site, function};
pub use lab::Lab;
pub use larder_percpu::sequence::{Near, bump_near};
pub use shape::{Owners, Shape};
pub use source::{Chunk, ChunkSource, Point, Request, Why};
pub use stop::Retired;
