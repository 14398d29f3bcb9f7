//! The C door of `larder-percpu`: the functions of `larder_cs.h`, which documents them.
//!
//! It holds no logic. [`paper`] has the interface of VEE'05, one transaction for each thread; [`handles`] the one with
//! domains and handles.

#![no_std]
// The names are the paper's.
#![allow(non_snake_case)]

mod handles;
mod paper;

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
    ".weak _Unwind_Resume",
    ".hidden _Unwind_Resume",
    ".type _Unwind_Resume, @function",
    "_Unwind_Resume:",
    "ud2",
);
