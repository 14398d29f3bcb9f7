//! Local allocation buffers (LABs), whatever they are local to.
//!
//! - [`cells`]: the fixed heap's buffers of cells of one size.

#![cfg_attr(not(test), no_std)]

pub mod cells;

pub use cells::{Association, CLASSES, Installed, KINDS, Labs, SLAB, retire_own, slot_offset};
