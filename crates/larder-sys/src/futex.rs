//! The futex system call, private to the process.

use core::sync::atomic::AtomicU32;

/// Sleeps while `word` holds `expected`. Returns on a wake, at once when the value differs, and on a signal: the
/// caller loops.
pub fn wait(word: &AtomicU32, expected: u32) {
    // SAFETY: the address is valid for the call; no timeout.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            core::ptr::null::<libc::timespec>(),
        );
    }
}

/// As [`wait`], for at most `nanos` nanoseconds.
pub fn wait_timeout(word: &AtomicU32, expected: u32, nanos: u64) {
    let t = libc::timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
    // SAFETY: the address and the time are valid for the call.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, expected, &t);
    }
}

/// Wakes at most `count` sleepers on `word`; returns how many there were.
pub fn wake(word: &AtomicU32, count: u32) -> usize {
    let count = count.min(i32::MAX as u32);
    // SAFETY: the address is only used as a key.
    let n =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, count) };
    n.max(0) as usize
}
