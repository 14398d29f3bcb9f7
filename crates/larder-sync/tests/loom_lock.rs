//! Model of `lock.hold`: mutual exclusion, and no sleeper is forgotten.
#![cfg(loom)]

mod model;

use larder_sync::lock::Lock;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// A number under a lock.
struct Guarded {
    lock: Lock,
    number: UnsafeCell<usize>,
}

// SAFETY: the tests touch `number` only under `lock`; loom checks that they do.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn new() -> Self {
        Self { lock: Lock::new(), number: UnsafeCell::new(0) }
    }

    fn increment(&self) {
        let guard = self.lock.lock();
        // SAFETY: the lock is held.
        self.number.with_mut(|number| unsafe { *number += 1 });
        drop(guard);
    }

    fn number(&self) -> usize {
        let _guard = self.lock.lock();
        // SAFETY: the lock is held.
        self.number.with(|number| unsafe { *number })
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
        assert_eq!(guarded.number(), threads * times);
        assert!(!guarded.lock.is_locked());
    });
}

#[test]
fn two_threads_twice_each() {
    increments_are_not_lost(2, 2, 4);
}

#[test]
fn three_threads_once_each() {
    increments_are_not_lost(3, 1, 3);
}

#[test]
fn a_failed_try_does_not_release_the_lock() {
    model::explore(3, || {
        let guarded = Arc::new(Guarded::new());
        let other = {
            let guarded = guarded.clone();
            thread::spawn(move || guarded.increment())
        };
        if let Some(guard) = guarded.lock.try_lock() {
            assert!(guarded.lock.try_lock().is_none());
            assert!(guarded.lock.is_locked());
            // SAFETY: the lock is held.
            guarded.number.with_mut(|number| unsafe { *number += 1 });
            drop(guard);
        } else {
            guarded.increment();
        }
        other.join().unwrap();
        assert_eq!(guarded.number(), 2);
    });
}
