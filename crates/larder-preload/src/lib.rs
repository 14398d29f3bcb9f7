//! libc calls that `larder run` interposes, by LD_PRELOAD.
//!
//! Blocking calls mark the thread, so that a stop need not wake it ([`calls`], [`locks`]); handlers are wrapped, since they
//! are mutators wherever they run ([`handlers`]); masks leave the stop signal open, and who waits for signals does not get it ([`masks`]); `vfork` is a fork, and children of
//! clone that share their parent's thread-local storage are told from it ([`children`]). It needs no heap and holds no state of the runtime,
//! which it reaches through a table that the runtime puts into [`runtime`]'s anchor. In a program that never loads
//! `libgc.so.1`, and in a thread that is not registered, calls go straight to the C library.
//!
//! `libgc.so.1` itself exports no libc names, so that it works on the library path alone; what needs a libc name is
//! here.

#![no_std]

mod calls;
mod children;
mod handlers;
mod locks;
mod masks;
mod runtime;

larder_sys::freestanding!();
