//! Reader-writer locks: a share of the operations writes.

use std::hint::black_box;

use larder_sync::biased::BiasedRwLock;
use larder_sync::phase_fair::RawPhaseFair;

use crate::Options;
use crate::study::{Contender, Study};
use crate::window::{self, Outcome, step};

fn measured<R: lock_api::RawRwLock + Send + Sync>(threads: usize, writes: u64, options: &Options) -> Outcome {
    let lock = lock_api::RwLock::<R, u64>::new(1);
    window::run(threads, options.window(), &|_| {
        let lock = &lock;
        move |seed: &mut u64| {
            if step(seed) >> 54 < writes {
                step(&mut lock.write());
            } else {
                black_box(*lock.read());
            }
        }
    })
}

fn std_measured(threads: usize, writes: u64, options: &Options) -> Outcome {
    let lock = std::sync::RwLock::new(1);
    window::run(threads, options.window(), &|_| {
        let lock = &lock;
        move |seed: &mut u64| {
            if step(seed) >> 54 < writes {
                if let Ok(mut guard) = lock.write() {
                    step(&mut guard);
                }
            } else if let Ok(guard) = lock.read() {
                black_box(*guard);
            }
        }
    })
}

pub fn studies(options: &Options) -> Vec<Study> {
    let study = |writes: u64| {
        let contenders = [
            Contender { name: "std", run: Box::new(move |threads| std_measured(threads, writes, options)), log: None },
            Contender {
                name: "parking_lot",
                run: Box::new(move |threads| measured::<parking_lot::RawRwLock>(threads, writes, options)),
                log: None,
            },
            Contender {
                name: "PhaseFairRwLock",
                run: Box::new(move |threads| measured::<RawPhaseFair>(threads, writes, options)),
                log: None,
            },
            Contender {
                name: "BiasedRwLock over PhaseFair",
                run: Box::new(move |threads| measured::<BiasedRwLock<RawPhaseFair>>(threads, writes, options)),
                log: None,
            },
        ];
        Study::new(
            format!("reader-writer locks, {writes} of 1024 operations write"),
            "How often a lock is taken to read or to write by a second of processor time.",
            "operations",
            options,
            &contenders,
        )
    };
    [0, 10, 100, 512].into_iter().map(study).collect()
}
