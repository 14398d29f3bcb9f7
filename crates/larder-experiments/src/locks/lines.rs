//! Threads that only put beside threads that only take, through one queue, in a window of fixed time.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::load::{Load, Spent};
use crate::window::Outcome;

/// What a taker leaves at.
const END: u64 = u64::MAX;

const WAITING: u32 = 0;
const RUNNING: u32 = 1;
const OVER: u32 = 2;

#[derive(Default)]
#[repr(align(128))]
struct Slot(AtomicU64);

/// Runs `each` threads that put and as many that take until the window is over and something was taken; counts what each of the latter took. Afterwards
/// each taker gets one message to leave at, behind all others.
pub fn run(each: usize, window: Duration, put: &(dyn Fn(u64) + Sync), take: &(dyn Fn() -> u64 + Sync)) -> Outcome {
    // Sync of all: ORDER lines.phase; counts and `ready` are Relaxed, since a number is the whole message.
    let phase = AtomicU32::new(WAITING);
    let ready = AtomicUsize::new(0);
    let slots: Vec<Slot> = (0..each).map(|_| Slot::default()).collect();
    let begin = || {
        ready.fetch_add(1, Ordering::Relaxed);
        // ORDER lines.phase: Acquire, with the store below.
        while phase.load(Ordering::Acquire) == WAITING {
            thread::yield_now();
        }
    };
    let puts = |value: u64| {
        begin();
        while phase.load(Ordering::Relaxed) == RUNNING {
            put(value);
        }
    };
    let takes = |slot: &Slot| {
        begin();
        let mut count = 0;
        while take() != END {
            count += 1;
            slot.0.store(count, Ordering::Relaxed);
        }
    };
    let (puts, takes) = (&puts, &takes);
    // Small stacks, as in a window of one kind of threads.
    let small = || thread::Builder::new().stack_size(256 << 10);
    const MANY: &str = "the system has no more threads: use fewer";
    thread::scope(|scope| {
        for slot in &slots {
            small().spawn_scoped(scope, move || takes(slot)).expect(MANY);
        }
        let producers: Vec<_> =
            (0..each as u64).map(|value| small().spawn_scoped(scope, move || puts(value)).expect(MANY)).collect();
        while ready.load(Ordering::Relaxed) < 2 * each {
            thread::yield_now();
        }
        let (before, load) = (Spent::now(), Load::now());
        let start = Instant::now();
        // ORDER lines.phase: Release, with the load above.
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
        producers.into_iter().for_each(|producer| producer.join().expect("a producer ends with the window"));
        (0..each).for_each(|_| put(END));
        Outcome { counts, wall, spent, clean }
    })
}
