//! "Mitigating the Java nanoTime coherence hotspot": how often all threads together can read a clock that never goes back, by its
//! granularity.

use std::hint::black_box;
use std::time::Duration;

use larder_sync::clock::MonotonicClock;

use crate::Options;
use crate::study::{Contender, Study};
use crate::window::{self, Outcome};

/// Reads that count as one operation, so that the window's own count costs little.
const READS: u64 = 16;

fn monotonic(threads: usize, options: &Options, granularity: Duration) -> Outcome {
    let clock = MonotonicClock::new(granularity);
    window::run(threads, options.window(), &|_| {
        let clock = &clock;
        let mut last = 0;
        move |_: &mut u64| {
            for _ in 0..READS {
                let now = clock.now_ns();
                if now < last {
                    window::stop("MonotonicClock went back");
                }
                last = now;
            }
        }
    })
}

fn kernels(threads: usize, options: &Options) -> Outcome {
    window::run(threads, options.window(), &|_| {
        |_: &mut u64| {
            for _ in 0..READS {
                let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                // SAFETY: a writable timespec.
                unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
                black_box(time);
            }
        }
    })
}

pub fn studies(options: &Options) -> Vec<Study> {
    let ours = |name, nanos| Contender {
        name,
        run: Box::new(move |threads| monotonic(threads, options, Duration::from_nanos(nanos))),
        log: None,
    };
    let kernels = Contender { name: "clock_gettime", run: Box::new(|threads| kernels(threads, options)), log: None };
    let contenders = [
        kernels,
        ours("MonotonicClock, every read", 0),
        ours("MonotonicClock, 1 us", 1_000),
        ours("MonotonicClock, 1 ms", 1_000_000),
    ];
    vec![Study::new(
        "clocks, by their granularity".to_owned(),
        "Operations are sixteen reads. With a granularity of 0 every read writes one shared word, as the clock that the notes \
         repair; each granule is written once.",
        "sixteen reads",
        options,
        &contenders,
    )]
}
