//! "atomic fetch-and-add vs compare-and-swap": one counter that all threads add to.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Options;
use crate::study::{Contender, Study};
use crate::window::{self, Outcome};

#[repr(align(128))]
struct Counter(AtomicU64);

fn measured(threads: usize, options: &Options, add: impl Fn(&AtomicU64) + Copy + Sync) -> Outcome {
    // Sync: Relaxed, all; the number is the whole message.
    let counter = Counter(AtomicU64::new(0));
    window::run(threads, options.window(), &|_| {
        let counter = &counter.0;
        // Sixteen at a time, so that the window's own count costs little.
        move |_: &mut u64| (0..16).for_each(|_| add(counter))
    })
}

fn compare_and_swap(counter: &AtomicU64, pause: bool) {
    let mut seen = counter.load(Ordering::Relaxed);
    while let Err(now) = counter.compare_exchange_weak(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed) {
        seen = now;
        if pause {
            std::hint::spin_loop();
        }
    }
}

pub fn studies(options: &Options) -> Vec<Study> {
    let contenders = [
        Contender {
            name: "fetch-and-add",
            run: Box::new(|threads| {
                measured(threads, options, |counter| {
                    counter.fetch_add(1, Ordering::Relaxed);
                })
            }),
            log: None,
        },
        Contender {
            name: "compare-and-swap",
            run: Box::new(|threads| measured(threads, options, |counter| compare_and_swap(counter, false))),
            log: None,
        },
        Contender {
            name: "compare-and-swap, pausing",
            run: Box::new(|threads| measured(threads, options, |counter| compare_and_swap(counter, true))),
            log: None,
        },
    ];
    vec![Study::new(
        "one counter: fetch-and-add against compare-and-swap".to_owned(),
        "Operations are sixteen additions. A loop that fails goes round and holds on to the line: look at the fairness as \
         well as at the rate.",
        "sixteen additions",
        options,
        &contenders,
    )]
}
