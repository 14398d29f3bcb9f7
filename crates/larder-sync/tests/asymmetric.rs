//! The asymmetric fence on the real kernel: of two threads that each write and then read, one sees the other.
#![cfg(not(loom))]

use larder_sync::asymmetric;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const ROUNDS: usize = 20_000;

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
fn missed_by_both(light: fn(), heavy: fn()) -> usize {
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

#[test]
fn both_sides_never_miss_the_other() {
    asymmetric::init();
    assert_eq!(missed_by_both(asymmetric::light, asymmetric::heavy), 0);
}

/// Shows that the test above can fail: two light halves promise nothing. Not run by default, because a loaded machine
/// may keep the threads from colliding.
#[test]
#[ignore = "depends on two processors being free"]
fn two_light_halves_miss_one_another() {
    asymmetric::init();
    assert_ne!(missed_by_both(asymmetric::light, asymmetric::light), 0);
}

/// A child inherits the registration, so a heavy half that relies on it works there, with and without another `init`.
#[test]
fn a_fork_child_passes_the_heavy_half() {
    asymmetric::init();
    // SAFETY: the child makes system calls only, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            asymmetric::heavy();
            asymmetric::init();
            asymmetric::heavy();
            libc::_exit(7);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert!(
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7,
            "the child's heavy half failed: {status:#x}"
        );
    }
}
