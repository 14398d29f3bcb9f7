//! The C door of `larder-percpu`: the functions of `larder_cs.h`, which documents them.
//!
//! It holds no logic. [`paper`] has the interface of VEE'05, one transaction for each thread; [`handles`] the one with
//! domains and handles.

#![no_std]
// The names are the paper's.
#![allow(non_snake_case)]

mod handles;
mod paper;

larder_sys::freestanding!();
