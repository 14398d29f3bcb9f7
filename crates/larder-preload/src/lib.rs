//! libc calls that `larder run` interposes, by LD_PRELOAD. It holds no state and needs no heap: in a program that never
//! loads `libgc.so.1` it changes nothing but what is said below.
//!
//! `libgc.so.1` itself exports no libc names, so that it works on the library path alone; what needs a libc name is
//! here.

#![no_std]

use core::ffi::c_int;

#[panic_handler]
fn stop(info: &core::panic::PanicInfo<'_>) -> ! {
    larder_sys::die!("{info}")
}

// The precompiled core library refers to both even though every profile aborts on panic.
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
