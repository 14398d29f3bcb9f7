//! The kernel's clocks.

use larder_units::Nanos;

/// Now, on `CLOCK_MONOTONIC`. Safe in signal handlers and while threads are stopped.
pub fn now() -> Nanos {
    read(libc::CLOCK_MONOTONIC)
}

/// How long the calling thread has had a CPU: a system call. Safe where `now` is.
pub fn of_thread() -> Nanos {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Now, on `CLOCK_REALTIME`: for people and file headers, never for durations.
pub fn wall() -> Nanos {
    read(libc::CLOCK_REALTIME)
}

fn read(clock: libc::clockid_t) -> Nanos {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is valid for the call.
    unsafe { libc::clock_gettime(clock, &mut t) };
    Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}
