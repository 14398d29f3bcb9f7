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

/// A panic is a broken invariant: one line on standard error, then abort. Nothing unwinds into the program.
#[panic_handler]
fn stop(info: &core::panic::PanicInfo<'_>) -> ! {
    larder_sys::die!("{info}")
}

// The precompiled core library refers to the personality routine and the unwinder even though every profile aborts on
// panic. Both names are local to this library, so that a program's own runtime never meets them.
core::arch::global_asm!(
    ".weak rust_eh_personality",
    ".hidden rust_eh_personality",
    ".type rust_eh_personality, @function",
    "rust_eh_personality:",
    "ud2",
);
// In the static archive the name would be the whole program's, whose exceptions need the compiler's own.
#[cfg(not(feature = "archive"))]
core::arch::global_asm!(
    ".weak _Unwind_Resume",
    ".hidden _Unwind_Resume",
    ".type _Unwind_Resume, @function",
    "_Unwind_Resume:",
    "ud2",
);
