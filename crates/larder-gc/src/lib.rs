//! The `gc.h` door: `libgc.so.1` for programs that were linked to libgc, on Larder's fixed heap.
//!
//! It holds no logic. Each function translates the words of `gc.h` into those of `larder-fixed`, checks its arguments
//! as libgc does, and lets no panic out. Its state is what the interface itself makes visible: the variables that
//! clients read and write directly ([`data`]), the functions that they set ([`callbacks`]), and the environment, read
//! when the collector is initialised ([`env`]).
//!
//! Signatures and values are those of Debian's `/usr/include/gc`; the names that exist are those of its library, one
//! for one, and beside them the five of `gc_backptr.h`, which Debian's build leaves out.
//!
//! Nothing here is ever written to standard output, which belongs to the program.

#![no_std]
// The names are libgc's.
#![allow(non_snake_case, non_upper_case_globals)]

mod alloc;
mod backptr;
mod callbacks;
mod collect;
mod data;
mod debug;
mod disclaim;
mod env;
mod errors;
mod finalize;
mod forking;
mod gcj;
mod incremental;
mod init;
mod kinds;
mod links;
mod object;
mod pointer_check;
mod print;
mod progress;
mod realloc;
mod roots;
mod settings;
mod stats;
mod threads;
mod typed;
mod world;

#[cfg(not(feature = "archive"))]
larder_sys::freestanding!();
// The static archive becomes part of programs whose exceptions need the compiler's own unwinder.
#[cfg(feature = "archive")]
larder_sys::freestanding!(unwinds);
