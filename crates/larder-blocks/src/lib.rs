//! The fixed heap's ground: one reserved address range, a table of block records, mark tables, and the pool of free runs.
//!
//! Everything about an address is found by arithmetic: the block index is `(address - base) / BLOCK`, the record is
//! that index's entry of the table, an object's mark byte is at `index << shift` plus its cell number in one of four
//! mark tables. Huge objects are runs of blocks in the same range. Thesis 2.2.1 (BIBOP): all objects in a block have one
//! size and kind.
//!
//! This crate must never decide when to collect or whose turn it is; it only keeps the ground in order.

#![cfg_attr(not(test), no_std)]

pub mod block;
pub mod class;
pub mod owners;
pub mod pool;
pub mod space;

pub use block::{Block, State};
pub use space::Space;
