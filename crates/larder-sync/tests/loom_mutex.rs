//! Models of `mutex.hold`, `mutex.push`, `cell.tell`: exclusion, no waiter forgotten, hand-over; and the mutants.
#![cfg(loom)]

mod model;

use larder_sync::mutex::RawMutex;
use larder_sync::step;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

struct Guarded {
    lock: RawMutex,
    number: UnsafeCell<usize>,
}

// SAFETY: the models touch `number` only under `lock`; loom checks that they do.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn new() -> Self {
        Self { lock: RawMutex::new(), number: UnsafeCell::new(0) }
    }

    fn increment(&self) {
        self.lock.lock();
        // SAFETY: the lock is held.
        self.number.with_mut(|number| unsafe { *number += 1 });
        // SAFETY: the lock is held.
        unsafe { self.lock.unlock() };
    }
}

fn increments_are_not_lost(threads: usize, times: usize, preemptions: usize) {
    model::explore(preemptions, move || {
        let guarded = Arc::new(Guarded::new());
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let guarded = guarded.clone();
                thread::spawn(move || (0..times).for_each(|_| guarded.increment()))
            })
            .collect();
        (0..times).for_each(|_| guarded.increment());
        for other in others {
            other.join().unwrap();
        }
        guarded.lock.lock();
        // SAFETY: the lock is held.
        guarded.number.with(|number| assert_eq!(unsafe { *number }, threads * times));
        // SAFETY: the lock is held.
        unsafe { guarded.lock.unlock() };
        assert!(!guarded.lock.is_locked());
    });
}

#[test]
fn two_threads_twice_each() {
    increments_are_not_lost(2, 2, 3);
}

#[test]
fn three_threads_once_each() {
    increments_are_not_lost(3, 1, 3);
}

/// Four threads reach the chain of two that a holder takes over, and the list.
#[test]
fn four_threads_once_each() {
    increments_are_not_lost(4, 1, 2);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_lock_that_is_taken_relaxed() {
    step::without("mutex.hold: Acquire", || increments_are_not_lost(2, 2, 3));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_lock_that_is_released_relaxed() {
    step::without("mutex.hold: Release", || increments_are_not_lost(2, 2, 3));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_waiter_that_is_pushed_relaxed() {
    step::without("mutex.push: Release", || increments_are_not_lost(4, 1, 2));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_chain_that_is_taken_over_relaxed() {
    step::without("mutex.push: Acquire", || increments_are_not_lost(4, 1, 2));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_message_that_is_read_relaxed() {
    step::without("cell.tell: Acquire", || increments_are_not_lost(3, 1, 3));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_message_that_is_written_relaxed() {
    step::without("cell.tell: Release", || increments_are_not_lost(3, 1, 3));
}

#[test]
#[should_panic(expected = "deadlock")]
fn the_release_that_wakes_nobody() {
    step::without("mutex: the wake", || increments_are_not_lost(3, 1, 3));
}

#[test]
#[should_panic(expected = "deadlock")]
fn the_heir_that_does_not_resign() {
    step::without("mutex: the heir resigns", || increments_are_not_lost(2, 2, 3));
}

#[test]
#[should_panic(expected = "deadlock")]
fn the_message_that_wakes_nobody() {
    step::without("cell: the wake", || increments_are_not_lost(3, 1, 3));
}
