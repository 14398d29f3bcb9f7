//! The marking engine: work lists, stealing, splitting of large objects, termination, weak links and finalizers.
//!
//! Thesis chapter 3: every marker has a work list of its own, whose public part others steal from; large objects are
//! split into pieces (SLO); termination is found by per-marker words without a shared counter (NSB, in
//! `larder_sync::termination`); marks are bytes, set without locks (the thesis used test-and-compare&swap on bits: a byte
//! store can be lost to nobody, and marking an object twice only scans it twice).
//!
//! The engine is generic over the heap ([`Objects`]): it knows neither blocks nor kinds.

#![cfg_attr(not(test), no_std)]

pub mod cells;
pub mod crew;
mod described;
pub mod descriptor;
mod ending;
pub mod finalize;
mod guess;
mod hot;
pub mod links;
pub mod marker;
mod objects;
pub mod public;
pub mod stack;
mod table;
pub mod toggle;
pub mod volley;
mod walk;
pub mod window;
mod words;

pub use descriptor::Entry;
pub use hot::PIECE;
pub use marker::Marker;
pub use objects::{Grey, Interior, Marked, Objects, Visit};
