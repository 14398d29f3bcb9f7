//! All of Linux that Larder touches: memory, signals, CPUs, the restartable-sequence area.
//!
//! Thin and typed: each function is one system call or one reading of what the kernel or the loader published.
//! It holds no protocol of its own (those live above, where they are modelled) and never touches the process's
//! malloc.

#![cfg_attr(not(test), no_std)]

pub mod apart;
pub mod arena;
pub mod arguments;
pub mod cgroup;
pub mod clock;
pub mod control_block;
pub mod cpus;
pub mod env;
pub mod freestanding;
pub mod hint;
pub mod huge;
pub mod list_lock;
pub mod loader;
pub mod membarrier;
pub mod memory;
pub mod numa;
pub mod pagemap;
pub mod red_zone;
pub mod report;
pub mod rseq_area;
pub mod scheduling;
pub mod signal;
pub mod specific;
pub mod thread;
pub mod tls;
pub mod topology;
pub mod unwind;
pub mod vector;
pub mod watch;
