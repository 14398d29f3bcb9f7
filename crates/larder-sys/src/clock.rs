//! The monotonic clock.

use larder_units::Nanos;

/// Now, on `CLOCK_MONOTONIC`. Safe in signal handlers and while threads are stopped.
pub fn now() -> Nanos {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// Now, on `CLOCK_REALTIME`: for people and file headers, never for durations.
pub fn wall() -> Nanos {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut t) };
    Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}
