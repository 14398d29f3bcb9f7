//! Model of `clh.queue`: exclusion, nodes that move from thread to thread, nobody forgotten; and the mutants.
#![cfg(loom)]

mod model;

use larder_sync::clh::{ClhLock, Place};
use larder_sync::step;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

struct Guarded {
    lock: ClhLock,
    number: UnsafeCell<usize>,
}

// SAFETY: the models touch `number` only under `lock`; loom checks that they do.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn increment(&self, place: &mut Place) {
        let _guard = self.lock.lock(place);
        // SAFETY: the lock is held.
        self.number.with_mut(|number| unsafe { *number += 1 });
    }
}

fn increments_are_not_lost(threads: usize, times: usize, preemptions: usize) {
    model::explore(preemptions, move || {
        let guarded = Arc::new(Guarded { lock: ClhLock::new(), number: UnsafeCell::new(0) });
        let work = move |guarded: &Guarded| {
            let mut place = Place::new();
            (0..times).for_each(|_| guarded.increment(&mut place));
        };
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let guarded = guarded.clone();
                thread::spawn(move || work(&guarded))
            })
            .collect();
        work(&guarded);
        for other in others {
            other.join().unwrap();
        }
        let mut place = Place::new();
        let _guard = guarded.lock.lock(&mut place);
        // SAFETY: the lock is held.
        guarded.number.with(|number| assert_eq!(unsafe { *number }, threads * times));
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

macro_rules! mutants {
    ($($name:ident: $step:literal, $threads:literal, $times:literal => $sign:literal;)*) => { $(
        #[test]
        #[should_panic(expected = $sign)]
        fn $name() {
            step::without($step, || increments_are_not_lost($threads, $times, 3));
        }
    )* };
}

mutants! {
    queued_relaxed: "clh.queue: AcqRel", 2, 2 => "Causality violation";
    told_relaxed: "cell.tell: Release", 2, 2 => "Causality violation";
    read_relaxed: "cell.tell: Acquire", 2, 2 => "Causality violation";
    told_and_not_woken: "cell: the wake", 2, 2 => "deadlock";
}
