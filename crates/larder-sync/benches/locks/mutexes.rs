//! MutexBench: a critical section of 4 steps on a shared word, and a non-critical section of none, or of up to 250.

use std::cell::UnsafeCell;
use std::hint::black_box;

use larder_sync::fair::{FairMutex, RawMcsLock};
use larder_sync::reciprocating::ReciprocatingMutex;
use larder_sync::restrict::ConcurrencyRestricted;

use crate::window::{self, Options, Outcome, compare, step};

/// Steps in the critical section.
const CRITICAL: usize = 4;

/// A lock without data.
pub trait Bare: Sync {
    fn fresh() -> Self;
    fn with(&self, section: impl FnOnce());
}

impl Bare for std::sync::Mutex<()> {
    fn fresh() -> Self {
        Self::new(())
    }
    #[inline]
    fn with(&self, section: impl FnOnce()) {
        let _guard = self.lock().unwrap();
        section();
    }
}

impl<R: lock_api::RawMutex + Sync> Bare for lock_api::Mutex<R, ()>
where
    R: Send,
{
    fn fresh() -> Self {
        Self::new(())
    }
    #[inline]
    fn with(&self, section: impl FnOnce()) {
        let _guard = self.lock();
        section();
    }
}

struct Shared<L> {
    lock: L,
    word: Word,
}

#[repr(align(128))]
struct Word(UnsafeCell<u64>);

// SAFETY: the word is touched only under the lock.
unsafe impl<L: Sync> Sync for Shared<L> {}

fn measure<L: Bare>(threads: usize, other_steps: u64, options: &Options) -> Outcome {
    let shared = Shared { lock: L::fresh(), word: Word(UnsafeCell::new(1)) };
    let shared = &shared;
    window::run(threads, options.window, &move |_, seed| {
        shared.lock.with(|| {
            // SAFETY: the lock is held.
            let word = unsafe { &mut *shared.word.0.get() };
            for _ in 0..CRITICAL {
                step(word);
            }
        });
        if other_steps != 0 {
            let times = ((u128::from(step(seed)) * u128::from(other_steps)) >> 64) as u64;
            for _ in 0..times {
                step(seed);
            }
            black_box(*seed);
        }
        true
    })
}

pub fn run(options: &Options) {
    type Ours = larder_sync::mutex::Mutex<()>;
    type Theirs = parking_lot::Mutex<()>;
    for &threads in &options.threads {
        for (name, other) in [("mutex", 0), ("mutex-250", 250)] {
            if !options.wants(name) {
                continue;
            }
            compare(
                &format!("{name}: non-critical section of up to {other} steps"),
                threads,
                options,
                &[
                    ("std", &|| measure::<std::sync::Mutex<()>>(threads, other, options)),
                    ("parking_lot", &|| measure::<Theirs>(threads, other, options)),
                    ("larder Mutex", &|| measure::<Ours>(threads, other, options)),
                ],
            );
        }
        if options.wants("restriction") {
            compare(
                "restriction: MCS, spin then park, empty non-critical section",
                threads,
                options,
                &[
                    ("MCS", &|| measure::<lock_api::Mutex<RawMcsLock, ()>>(threads, 0, options)),
                    ("restricted MCS", &|| {
                        measure::<lock_api::Mutex<ConcurrencyRestricted<RawMcsLock>, ()>>(threads, 0, options)
                    }),
                ],
            );
        }
        for (name, other) in [("fair", 0), ("fair-250", 250)] {
            if !options.wants(name) {
                continue;
            }
            compare(
                &format!("{name}: non-critical section of up to {other} steps"),
                threads,
                options,
                &[
                    ("parking_lot FairMutex", &|| measure::<parking_lot::FairMutex<()>>(threads, other, options)),
                    ("larder FairMutex", &|| measure::<FairMutex<()>>(threads, other, options)),
                    ("larder ReciprocatingMutex", &|| measure::<ReciprocatingMutex<()>>(threads, other, options)),
                ],
            );
        }
    }
}
