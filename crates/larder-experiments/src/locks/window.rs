//! A window of fixed time in which threads count what they do.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::load::{Load, Spent};

/// What one window gave.
pub struct Outcome {
    /// Operations of each thread inside the window.
    pub counts: Vec<u64>,
    pub wall: Duration,
    /// What the process took of the machine in the window.
    pub spent: Spent,
    /// Whether other processes and the host took at most 2 % of the machine in the window.
    pub clean: bool,
}

impl Outcome {
    pub fn operations(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn per_second(&self) -> f64 {
        self.operations() as f64 / self.wall.as_secs_f64()
    }

    pub fn per_cpu_second(&self) -> f64 {
        self.operations() as f64 / self.spent.cpu.as_secs_f64().max(1e-9)
    }
}

const WAITING: u32 = 0;
const RUNNING: u32 = 1;
const OVER: u32 = 2;

#[derive(Default)]
#[repr(align(128))]
struct Slot(AtomicU64);

/// Runs `threads` threads that each call what `prepare(thread)` makes, again and again, with a seed of their own, until the
/// window is over and one has done something. Every thread is ready before it begins.
pub fn run<F: FnMut(&mut u64)>(threads: usize, window: Duration, prepare: &(dyn Fn(usize) -> F + Sync)) -> Outcome {
    // Sync of all: ORDER window.phase; counts and `ready` are Relaxed, since a number is the whole message.
    let phase = AtomicU32::new(WAITING);
    let ready = AtomicUsize::new(0);
    let slots: Vec<Slot> = (0..threads).map(|_| Slot::default()).collect();
    thread::scope(|scope| {
        for (thread, slot) in slots.iter().enumerate() {
            let (phase, ready) = (&phase, &ready);
            let work = move || {
                let mut operation = prepare(thread);
                let mut seed = 0x9e37_79b9_7f4a_7c15 ^ ((thread as u64 + 1) << 17);
                ready.fetch_add(1, Ordering::Relaxed);
                // ORDER window.phase: Acquire, with the store below.
                while phase.load(Ordering::Acquire) == WAITING {
                    thread::yield_now();
                }
                let mut count = 0;
                while phase.load(Ordering::Relaxed) == RUNNING {
                    operation(&mut seed);
                    count += 1;
                    slot.0.store(count, Ordering::Relaxed);
                }
            };
            // Small stacks: there may be hundreds of threads, and an address space limit.
            thread::Builder::new()
                .stack_size(256 << 10)
                .spawn_scoped(scope, work)
                .unwrap_or_else(|error| stop(&format!("cannot start {threads} threads: {error}: use fewer")));
        }
        while ready.load(Ordering::Relaxed) < threads {
            thread::yield_now();
        }
        let (before, load) = (Spent::now(), Load::now());
        let start = Instant::now();
        // ORDER window.phase: Release, with the load above.
        phase.store(RUNNING, Ordering::Release);
        thread::sleep(window);
        // On a loaded machine no thread may have had a processor in it; that would be a figure for nothing.
        while slots.iter().all(|slot| slot.0.load(Ordering::Relaxed) == 0) {
            thread::yield_now();
        }
        let counts = slots.iter().map(|slot| slot.0.load(Ordering::Relaxed)).collect();
        let (wall, spent) = (start.elapsed(), Spent::since(before));
        let clean = load.is_clean_since(spent.cpu);
        phase.store(OVER, Ordering::Relaxed);
        Outcome { counts, wall, spent, clean }
    })
}

/// Ends the program with one line.
pub fn stop(message: &str) -> ! {
    eprintln!("larder-locks: {message}");
    std::process::exit(1)
}

/// One step of Marsaglia's xor-shift: the work of sections.
#[inline]
pub fn step(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// Works outside for a number of steps that is drawn from 0 to below `bound`.
#[inline]
pub fn outside(seed: &mut u64, bound: u64) {
    if bound != 0 {
        let times = ((u128::from(step(seed)) * u128::from(bound)) >> 64) as u64;
        for _ in 0..times {
            step(seed);
        }
        std::hint::black_box(*seed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_is_counted() {
        let outcome = run(3, Duration::from_millis(30), &|_| |seed: &mut u64| outside(seed, 100));
        assert_eq!(outcome.counts.len(), 3);
        assert!(outcome.operations() > 0 && outcome.wall >= Duration::from_millis(30));
        assert!(outcome.per_cpu_second() > 0.0);
    }

    /// On a loaded machine a short window passed before any thread had a processor.
    #[test]
    fn a_window_in_which_nothing_was_done_goes_on() {
        for _ in 0..20 {
            let outcome = run(1, Duration::ZERO, &|_| |seed: &mut u64| outside(seed, 100));
            assert!(outcome.operations() > 0);
        }
    }
}
