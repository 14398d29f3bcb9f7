//! libc calls that `larder run` interposes, by LD_PRELOAD.
//!
//! Blocking calls mark the thread, so that a stop need not wake it ([`calls`], [`locks`]); handlers are wrapped, since they
//! are mutators wherever they run ([`handlers`]); masks leave the stop signal open, and who waits for signals does not get it ([`masks`]); `vfork` is a fork, and
//! children of clone that share their parent's thread-local storage are told from it ([`children`]). It needs no heap and holds no state of the runtime,
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

use core::ffi::c_int;

larder_sys::freestanding!();

/// `vfork` as `fork`.
///
/// A child of vfork runs on its parent's memory and thread-local storage, but the kernel does not keep its restartable
/// sequences: its index is its parent's, which another thread may be using at the same moment, and nothing aborts what
/// it interrupts. An allocation there could be handed out twice. POSIX allows such a child nothing but exec and `_exit`;
/// programs that do more are safe with a copy of their own.
#[unsafe(no_mangle)]
pub extern "C" fn vfork() -> c_int {
    // SAFETY: fork has no preconditions.
    unsafe { libc::fork() }
}

/// The same under its other name.
#[unsafe(no_mangle)]
pub extern "C" fn __vfork() -> c_int {
    vfork()
}
