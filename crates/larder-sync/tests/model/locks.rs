//! A number under any lock, for models.

use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// A lock as the models use it.
pub trait Excludes: Send + Sync + 'static {
    fn fresh() -> Self;
    fn acquire(&self);
    /// Takes the lock if it is free.
    fn attempt(&self) -> bool;
    /// Releases the lock, which the caller holds.
    fn release(&self);
}

struct Guarded<L> {
    lock: L,
    number: UnsafeCell<usize>,
}

// SAFETY: the models touch `number` only under `lock`; loom checks that they do.
unsafe impl<L: Sync> Sync for Guarded<L> {}

impl<L: Excludes> Guarded<L> {
    fn increment(&self) {
        self.lock.acquire();
        // SAFETY: the lock is held.
        self.number.with_mut(|number| unsafe { *number += 1 });
        self.lock.release();
    }
}

/// `threads` threads increment `times` times each; none is lost, and all end.
pub fn increments_are_not_lost<L: Excludes>(threads: usize, times: usize, preemptions: usize) {
    super::model::explore(preemptions, move || {
        let guarded = Arc::new(Guarded { lock: L::fresh(), number: UnsafeCell::new(0) });
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
        assert!(guarded.lock.attempt(), "the lock was left held");
        // SAFETY: the lock is held.
        guarded.number.with(|number| assert_eq!(unsafe { *number }, threads * times));
        guarded.lock.release();
    });
}
