//! Model of `waiting.take`: what was done for a number is seen by whoever takes it, or it waits once more.
#![cfg(loom)]

mod model;

use larder_sync::atomic::{AtomicUsize, Ordering};
use larder_sync::step;
use larder_sync::waiting::Waiting;
use loom::thread;
use std::sync::Arc;

struct Shared {
    waiting: Waiting<1>,
    /// What is done for number 0, by each thread.
    done: [AtomicUsize; 2],
}

/// Takes what waits; counts what it finds done.
fn take(shared: &Shared, from: &mut usize) {
    while let Some(taken) = shared.waiting.take(from, 8) {
        assert_eq!((taken.first, taken.bits), (0, 1));
        for done in &shared.done {
            // ORDER waiting.take: Relaxed, as the fences do the work.
            if done.load(Ordering::Relaxed) == 1 {
                done.store(2, Ordering::Relaxed);
            }
        }
    }
}

fn nothing_is_left() {
    model::explore(3, || {
        let shared = Arc::new(Shared { waiting: Waiting::new(), done: std::array::from_fn(|_| AtomicUsize::new(0)) });
        let threads: Vec<_> = (0..2)
            .map(|me| {
                let shared = shared.clone();
                thread::spawn(move || {
                    // ORDER waiting.take: Relaxed, as the fences do the work.
                    shared.done[me].store(1, Ordering::Relaxed);
                    shared.waiting.add(&[0]);
                    // Who has nothing else takes what waits, its own or another's.
                    take(&shared, &mut 0);
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(!shared.waiting.any());
        // ORDER waiting.take: Relaxed; both threads have ended.
        assert!(
            shared.done.iter().all(|done| done.load(Ordering::Relaxed) == 2),
            "something was done, and nobody saw it"
        );
    });
}

#[test]
fn what_was_done_is_seen() {
    nothing_is_left();
}

#[test]
#[should_panic(expected = "nobody saw it")]
fn who_adds_without_a_fence_takes_an_old_bit_for_a_new_one() {
    step::without("waiting: the fence of who adds", nothing_is_left);
}

#[test]
#[should_panic(expected = "nobody saw it")]
fn who_takes_without_a_fence_misses_what_was_done() {
    step::without("waiting: the fence of who takes", nothing_is_left);
}
