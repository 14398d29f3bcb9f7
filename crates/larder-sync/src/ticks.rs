//! Time in ticks: what a spinning thread reads between two looks, so it must cost less than a look.
//!
//! On x86-64 a tick is one of the time-stamp counter (10 ns to read, where `clock_gettime` takes 23 ns); elsewhere it is
//! a nanosecond. How long a tick is, is found out beside the program's work: the first question notes the time, and any
//! question a millisecond later knows the rate. Until then a tick counts as 0.4 ns, which is good enough for a spin.
//!
//! Not for time that people read: see `clock`, which starts from a finished calibration.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Ticks now. They may differ between processors by what the firmware left, so compare them on one thread.
#[cfg(not(loom))]
#[inline]
pub fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has the instruction, and no kernel that runs threads forbids it.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        monotonic_ns()
    }
}

/// A model has no clock.
#[cfg(loom)]
pub fn now() -> u64 {
    0
}

/// `CLOCK_MONOTONIC` in nanoseconds.
#[cfg(not(loom))]
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a writable timespec. The call cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How many ticks last this many nanoseconds, about.
#[cfg(not(loom))]
#[inline]
pub fn of_nanos(nanos: u64) -> u64 {
    // ORDER ticks.rate: Relaxed, with the store in `rate_slow`; the rate is the whole message.
    let mut rate = RATE.load(Ordering::Relaxed);
    if rate == 0 {
        rate = rate_slow();
    }
    ((u128::from(nanos) * u128::from(rate)) >> RATE_BITS) as u64
}

/// A model has no clock.
#[cfg(loom)]
pub fn of_nanos(_nanos: u64) -> u64 {
    0
}

/// The rate has this many binary places.
#[cfg(not(loom))]
const RATE_BITS: u32 = 20;
/// 2.5 ticks a nanosecond: the guess until the rate is known.
#[cfg(not(loom))]
const GUESS: u64 = if cfg!(target_arch = "x86_64") { (5 << RATE_BITS) / 2 } else { 1 << RATE_BITS };
/// The rate is taken over at least this long, which bounds its error to about one in ten thousand.
#[cfg(not(loom))]
const LONG_ENOUGH_NS: u64 = 1_000_000;

/// Ticks per nanosecond, with `RATE_BITS` binary places; 0 until it is known. Sync: `ticks.rate`.
#[cfg(not(loom))]
static RATE: AtomicU64 = AtomicU64::new(0);
/// 0: nobody has noted the beginning; 1: somebody is at it; 2: noted. Sync: `ticks.beginning`.
#[cfg(not(loom))]
static NOTED: AtomicU32 = AtomicU32::new(0);
/// Sync: `ticks.beginning`.
#[cfg(not(loom))]
static BEGINNING: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

#[cfg(not(loom))]
#[cold]
fn rate_slow() -> u64 {
    // ORDER ticks.beginning: Acquire, with the store of 2 below: then both words of the beginning are there.
    match NOTED.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Acquire) {
        Ok(_) => {
            // ORDER ticks.beginning: Relaxed; the store that follows publishes both.
            BEGINNING[0].store(now(), Ordering::Relaxed);
            BEGINNING[1].store(monotonic_ns(), Ordering::Relaxed);
            // ORDER ticks.beginning: Release, with the load above.
            NOTED.store(2, Ordering::Release);
            GUESS
        }
        Err(2) => {
            // ORDER ticks.beginning: Relaxed; the Acquire above found 2.
            let nanos = monotonic_ns() - BEGINNING[1].load(Ordering::Relaxed);
            if nanos < LONG_ENOUGH_NS {
                return GUESS;
            }
            let ticks = now().wrapping_sub(BEGINNING[0].load(Ordering::Relaxed));
            let rate = ((u128::from(ticks) << RATE_BITS) / u128::from(nanos)).max(1) as u64;
            // ORDER ticks.rate: Relaxed, with the load in `of_nanos`.
            RATE.store(rate, Ordering::Relaxed);
            rate
        }
        Err(_) => GUESS,
    }
}
