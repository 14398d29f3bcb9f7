//! A clock that never goes back, for all threads together, and that does not become a hot spot (the notes' "Mitigating the
//! Java nanoTime coherence hotspot").
//!
//! Every value that is returned is, or was, in one shared word that only grows. So a thread that reads the clock after it has
//! seen what another did after reading it gets no smaller value, whatever the processors' counters say. The word is written
//! once per *granule* at most: a reader that finds less than a granule passed returns what is there.
//!
//! **When to use:** time stamps that threads compare. **When not:** for calendar time, or differences smaller than the
//! granularity. **Cost:** a read of the counter and one load; with a granularity of 0, every read writes the shared word. **Error:**
//! behind by at most a granule, and the rate is that of the first 10 ms: about 10 us a second against `CLOCK_MONOTONIC`.
//! **Forks, suspend:** the counter goes on in a child; where it stops in suspend, so does this clock.

use crate::line::Line;
use crate::ticks;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// Binary places of the rate.
const PLACES: u32 = 32;
/// How long [`MonotonicClock::new`] compares the counter with the kernel's clock.
const COMPARED_NS: u64 = 10_000_000;

/// A clock that never goes back. See the [module](self).
pub struct MonotonicClock {
    /// The largest value returned, in nanoseconds. Sync: `clock.largest`.
    largest: Line<AtomicU64>,
    granularity: u64,
    start: u64,
    /// Nanoseconds per tick, with 32 binary places.
    rate: u64,
}

impl MonotonicClock {
    /// A clock that begins at 0 now, and moves in granules of at least this long. Busy for 10 ms: it compares the
    /// processor's counter with the kernel's clock.
    pub fn new(granularity: Duration) -> Self {
        let (ticks_before, nanos_before) = (ticks::now(), ticks::monotonic_ns());
        let (mut ticks, mut nanos) = (ticks_before, nanos_before);
        while nanos - nanos_before < COMPARED_NS {
            core::hint::spin_loop();
            (ticks, nanos) = (ticks::now(), ticks::monotonic_ns());
        }
        let passed = ticks.wrapping_sub(ticks_before).max(1);
        Self {
            largest: Line(AtomicU64::new(0)),
            granularity: u64::try_from(granularity.as_nanos()).unwrap_or(u64::MAX),
            start: ticks_before,
            rate: (u128::from(nanos - nanos_before) << PLACES).div_ceil(u128::from(passed)) as u64,
        }
    }

    /// Nanoseconds since the clock was made; never less than any value that was returned before.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        // ORDER clock.largest: Relaxed; one word, whose order all threads agree on, and a thread that has seen what followed
        // a read finds that value or a later one.
        let largest = self.largest.load(Ordering::Relaxed);
        // Negative where this processor's counter is behind the one the clock was made on.
        let ticks = (ticks::now().wrapping_sub(self.start) as i64).max(0) as u64;
        let now = ((u128::from(ticks) * u128::from(self.rate)) >> PLACES) as u64;
        if now < largest.saturating_add(self.granularity) && (self.granularity != 0 || now <= largest) {
            return largest;
        }
        // ORDER clock.largest: Relaxed, as above.
        self.largest.fetch_max(now, Ordering::Relaxed).max(now)
    }
}
