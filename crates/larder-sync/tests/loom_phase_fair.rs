//! Models of `phase.*` and of hazard pointers: writers alone, readers see the last writer, nobody forgotten; and mutants.
#![cfg(loom)]

mod model;

use larder_sync::phase_fair::RawPhaseFair;
use larder_sync::step;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

struct Guarded {
    lock: RawPhaseFair,
    number: UnsafeCell<usize>,
}

// SAFETY: the models touch `number` only under `lock`; loom checks that they do.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn write(&self) {
        self.lock.lock_exclusive();
        // SAFETY: the lock is held.
        self.number.with_mut(|number| unsafe { *number += 1 });
        // SAFETY: the lock is held.
        unsafe { self.lock.unlock_exclusive() };
    }

    fn read(&self) -> usize {
        self.lock.lock_shared();
        // SAFETY: the lock is held.
        let number = self.number.with(|number| unsafe { *number });
        // SAFETY: the lock is held.
        unsafe { self.lock.unlock_shared() };
        number
    }
}

/// One thread writes `writes` times, the others read as often; the first thread does what `last` says.
fn readers_and_writers(readers: usize, writers: usize, times: usize, preemptions: usize) {
    model::explore(preemptions, move || {
        let guarded = Arc::new(Guarded { lock: RawPhaseFair::new(), number: UnsafeCell::new(0) });
        let mut others: Vec<_> = (0..readers)
            .map(|_| {
                let guarded = guarded.clone();
                thread::spawn(move || {
                    let mut last = 0;
                    for _ in 0..times {
                        let now = guarded.read();
                        assert!(now >= last, "a reader went back");
                        last = now;
                    }
                })
            })
            .collect();
        for _ in 1..writers {
            let guarded = guarded.clone();
            others.push(thread::spawn(move || (0..times).for_each(|_| guarded.write())));
        }
        (0..times).for_each(|_| guarded.write());
        for other in others {
            other.join().unwrap();
        }
        assert!(guarded.lock.try_lock_exclusive(), "the lock was left held");
        // SAFETY: the lock is held.
        guarded.number.with(|number| assert_eq!(unsafe { *number }, writers * times));
        // SAFETY: the lock is held.
        unsafe { guarded.lock.unlock_exclusive() };
        assert!(!guarded.lock.is_locked());
    });
}

#[test]
fn one_reader_and_one_writer_twice() {
    readers_and_writers(1, 1, 2, 3);
}

#[test]
fn two_readers_and_one_writer() {
    readers_and_writers(2, 1, 1, 3);
}

#[test]
fn one_reader_and_two_writers() {
    readers_and_writers(1, 2, 1, 2);
}

#[test]
fn three_readers_and_one_writer() {
    readers_and_writers(3, 1, 1, 2);
}

macro_rules! mutants {
    ($($name:ident: $step:literal, $readers:literal, $writers:literal, $times:literal, $preemptions:literal => $sign:literal;)*) => { $(
        #[test]
        #[should_panic(expected = $sign)]
        fn $name() {
            step::without($step, || readers_and_writers($readers, $writers, $times, $preemptions));
        }
    )* };
}

mutants! {
    read_relaxed: "phase.read: Acquire", 1, 1, 2, 3 => "Causality violation";
    released_relaxed: "phase.read: Release", 1, 1, 2, 3 => "Causality violation";
    departed_relaxed: "phase.drain: AcqRel", 1, 1, 2, 3 => "Causality violation";
    drained_relaxed: "phase.drain: Acquire", 1, 1, 2, 3 => "Causality violation";
    flagged_relaxed: "phase.flag: AcqRel", 1, 1, 2, 4 => "deadlock";
    pushed_relaxed: "phase.push: Release", 3, 1, 1, 3 => "Causality violation";
    bounced_relaxed: "phase.push: Acquire", 1, 1, 1, 3 => "Causality violation";
    swapped_relaxed: "phase.swap: AcqRel", 1, 1, 1, 3 => "Causality violation";
    the_writer_is_not_woken: "phase: the last reader wakes the writer", 1, 1, 2, 3 => "deadlock";
    readers_do_not_help: "phase: readers help", 3, 1, 1, 3 => "deadlock";
}
