//! Dekker's pattern: two threads that each write their own word, and then read the other's.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// How often they meet.
pub const ROUNDS: usize = 20_000;

/// Lets two threads start each round within some hundred nanoseconds of one another, so that they do collide.
#[derive(Default)]
struct Start(AtomicUsize);

impl Start {
    fn wait(&self, round: usize) {
        // ORDER test.start: AcqRel, with the load below; it keeps the rounds apart and nothing more.
        self.0.fetch_add(1, Ordering::AcqRel);
        let mut looks = 0;
        // ORDER test.start: Acquire, with the addition above.
        while self.0.load(Ordering::Acquire) < 2 * (round + 1) {
            looks += 1;
            if looks % 4096 == 0 {
                thread::yield_now();
            }
        }
    }
}

/// A word on cache lines of its own: the last round that its thread has entered.
#[derive(Default)]
#[repr(align(128))]
struct Entered(AtomicUsize);

/// The number of rounds in which both threads missed the other's store.
pub fn missed_by_both(light: fn(), heavy: fn()) -> usize {
    let words = [Entered::default(), Entered::default()];
    let start = Start::default();
    let side = |mine: usize, fence: fn()| -> Vec<bool> {
        let play = |round| {
            start.wait(round);
            // Whoever arrives last is ahead; a delay that differs from round to round lets the stores meet.
            for step in 0..(round * (1 + 2 * mine)) % 97 {
                black_box(step);
            }
            // ORDER asymmetric.dekker: Relaxed; the halves do the work.
            words[mine].0.store(round + 1, Ordering::Relaxed);
            fence();
            words[1 - mine].0.load(Ordering::Relaxed) <= round
        };
        (0..ROUNDS).map(play).collect()
    };
    let (frequent, rare) = thread::scope(|scope| {
        let rare = scope.spawn(|| side(1, heavy));
        (side(0, light), rare.join().unwrap())
    });
    frequent.iter().zip(&rare).filter(|&(&frequent, &rare)| frequent && rare).count()
}
