//! What a library without the standard library must bring itself.

/// Ends the process by one line on standard error when an invariant is broken: nothing unwinds into the program. Once in each
/// library that is built without the standard library.
///
/// The precompiled core library refers to the personality routine and the unwinder even though every profile aborts on a panic.
/// Both names are local to the library, so that a program's own runtime never meets them. `freestanding!(unwinds)` leaves the
/// unwinder out: where the library throws, or is an archive, in which the name would be the whole program's.
#[macro_export]
macro_rules! freestanding {
    () => {
        $crate::freestanding!(unwinds);
        core::arch::global_asm!(
            ".weak _Unwind_Resume",
            ".hidden _Unwind_Resume",
            ".type _Unwind_Resume, @function",
            "_Unwind_Resume:",
            "ud2",
        );
    };
    (unwinds) => {
        $crate::panics_by_one_line!();
        core::arch::global_asm!(
            ".weak rust_eh_personality",
            ".hidden rust_eh_personality",
            ".type rust_eh_personality, @function",
            "rust_eh_personality:",
            "ud2",
        );
    };
}

/// The panic handler of [`freestanding`].
#[cfg(not(feature = "std"))]
#[macro_export]
#[doc(hidden)]
macro_rules! panics_by_one_line {
    () => {
        #[panic_handler]
        fn stop(info: &core::panic::PanicInfo<'_>) -> ! {
            $crate::die!("{info}")
        }
    };
}

/// The standard library's.
#[cfg(feature = "std")]
#[macro_export]
#[doc(hidden)]
macro_rules! panics_by_one_line {
    () => {
        extern crate std as _;
    };
}
