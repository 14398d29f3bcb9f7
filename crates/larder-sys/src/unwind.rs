//! Calls of functions that may not return, because they are unwound: a client's function throws an exception, calls `pthread_exit`, or is
//! cancelled.
//!
//! The unwinder passes through our frames, which have no place to land in: the builds' panics abort, so no value of ours is dropped there,
//! and what an exception passes is declared `extern "C"` and not `"C-unwind"`, which would put a stop into each frame. What has to be put right
//! nevertheless is done by a personality routine, which the unwinder calls when it leaves the frame of [`call`]. It
//! goes on then; nothing is paid for that in calls that return.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};

/// A function of a client's with its argument, as C passes them.
pub type Function = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// What is to be done where a call is unwound.
pub trait Unwound {
    /// The call's frame is left, and frames further out will do their cleanup. Everything that is still in use of the stack lies above the
    /// caller's frame. It may wait, and does not unwind itself.
    fn unwound();
}

/// Calls `f(argument)` and returns its result. Where it is unwound instead, `U` is told.
///
/// # Safety
/// As for the call of `f`.
#[unsafe(naked)]
pub unsafe extern "C" fn call<U: Unwound>(f: Function, argument: *mut c_void) -> *mut c_void {
    naked_asm!(
        ".cfi_startproc",
        // Relative to the program counter, in four bytes.
        ".cfi_personality 0x1b, {personality}",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        personality = sym personality::<U>,
    )
}

/// What the unwinder asks when it comes to the frame of [`call`]. There is nothing to catch.
extern "C" fn personality<U: Unwound>(
    _version: c_int,
    actions: c_int,
    _class: u64,
    _exception: *mut c_void,
    _context: *mut c_void,
) -> c_int {
    const CLEANUP_PHASE: c_int = 2;
    const CONTINUE: c_int = 8;
    if actions & CLEANUP_PHASE != 0 {
        U::unwound();
    }
    CONTINUE
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;
    use core::sync::atomic::{AtomicU32, Ordering};

    static UNWOUND: AtomicU32 = AtomicU32::new(0);

    struct Counted;

    impl Unwound for Counted {
        fn unwound() {
            UNWOUND.fetch_add(1, Ordering::Relaxed);
        }
    }

    unsafe extern "C" fn twice(argument: *mut c_void) -> *mut c_void {
        argument.wrapping_byte_add(argument.addr())
    }

    unsafe extern "C" fn end(argument: *mut c_void) -> *mut c_void {
        // SAFETY: nothing in this thread needs to be left in order.
        unsafe { libc::pthread_exit(argument) }
    }

    extern "C" fn ends(argument: *mut c_void) -> *mut c_void {
        // SAFETY: the function takes any argument.
        unsafe { call::<Counted>(end, argument) }
    }

    #[test]
    fn a_call_that_ends_its_thread_is_told_and_one_that_returns_is_not() {
        // SAFETY: the function takes any argument.
        let result = unsafe { call::<Counted>(twice, ptr::without_provenance_mut(21)) };
        assert_eq!((result.addr(), UNWOUND.load(Ordering::Relaxed)), (42, 0));
        let (mut thread, mut result) = (0, ptr::null_mut());
        // SAFETY: a thread of our own, which is joined.
        unsafe {
            assert_eq!(libc::pthread_create(&mut thread, ptr::null(), ends, ptr::without_provenance_mut(5)), 0);
            assert_eq!(libc::pthread_join(thread, &mut result), 0);
        }
        assert_eq!((result.addr(), UNWOUND.load(Ordering::Relaxed)), (5, 1));
    }
}
