//! What a running heap says about itself: every counter and event with its name, unit and meaning, and the layout of
//! the file in which a process writes them while a tool reads.
//!
//! The file is one [`Header`] page and a ring of [`CycleRecord`]s with their [`Phase`]s, mapped by both sides. The process finds the folder in
//! the environment variable [`DIRECTORY_VARIABLE`] and creates a file of [`FILE_BYTES`] bytes there, named by
//! [`event_path`]; the file is sparse, so a process that collects ten times costs six pages of memory, not sixteen mebibytes.
//!
//! The writing side needs no std, allocates nothing and takes no lock, so a collector may call it while the world is
//! stopped. The reading side ([`Reader`], feature `std`) is for tools. How the two meet is in [`ring`].
//!
//! This crate must never decide anything: it holds names and bytes, no policy and no clock.

#![cfg_attr(not(feature = "std"), no_std)]

mod counter;
mod path;
mod phase;
#[cfg(feature = "std")]
mod reader;
mod record;
pub mod ring;

pub use counter::{COUNTERS, Counter, CounterDescription, CounterKind};
pub use path::{DIRECTORY_VARIABLE, FILE_SUFFIX, event_path};
pub use phase::{Phase, PhaseKind};
#[cfg(feature = "std")]
pub use reader::{Cycle, CyclesSince, OpenError, Reader};
pub use record::{Cause, CycleRecord};
pub use ring::{
    CAPACITY, FILE_BYTES, HEADER_BYTES, Header, Identity, IndexKind, MAGIC, MOST_PHASES, RECORD_BYTES, VERSION, Writer,
};
