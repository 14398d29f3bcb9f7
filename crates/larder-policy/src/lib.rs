//! Decisions as pure functions: facts in, decision out. No clock, no global, no atomics, no `unsafe`.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod ablation;
pub mod backing;
pub mod concurrent;
pub mod crew;
pub mod generations;
pub mod group;
pub mod labs;
pub mod pacing;
pub mod sharing;
pub mod young;
