#![doc = include_str!("../README.md")]
#![cfg_attr(not(any(test, feature = "std")), no_std)]

pub mod areas;
pub mod domain;
pub mod ground;
pub mod locked;
pub mod paper;
pub mod sequence;
pub mod statistics;
pub mod structures;
pub mod study;
pub mod transaction;
pub mod word;

pub use crate::areas::{By, Mode, Options};
pub use domain::{Domain, Exclusive};
pub use ground::Ground;
pub use larder_sys::topology::Level;
pub use locked::Busy;
pub use statistics::Statistics;
pub use transaction::{Interfered, NotStored, Transaction};
pub use word::{Area, Guarded32, Guarded64, GuardedPair, Open64, OpenPair};
