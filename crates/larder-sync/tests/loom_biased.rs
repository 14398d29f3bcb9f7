//! Models of `biased.*`: a writer is alone, readers see the last writer, nobody waits for ever, a try does not wait.
#![cfg(loom)]

mod model;

use larder_sync::biased::BiasedRwLock;
use larder_sync::phase_fair::RawPhaseFair;
use larder_sync::step;
use lock_api::RawRwLock;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

struct Guarded {
    lock: BiasedRwLock<RawPhaseFair>,
    number: UnsafeCell<usize>,
}

// SAFETY: the models touch `number` only under `lock`; loom checks that they do.
unsafe impl Sync for Guarded {}

impl Guarded {
    /// With the bias set, which the first reader does.
    fn biased() -> Arc<Self> {
        let guarded = Arc::new(Self { lock: BiasedRwLock::around(RawPhaseFair::new()), number: UnsafeCell::new(0) });
        guarded.read();
        guarded
    }

    fn look(&self) -> usize {
        // SAFETY: the lock is held.
        self.number.with(|number| unsafe { *number })
    }

    fn read(&self) -> usize {
        self.lock.lock_shared();
        let number = self.look();
        // SAFETY: the lock is held.
        unsafe { self.lock.unlock_shared() };
        number
    }

    fn change(&self) {
        // SAFETY: the lock is held.
        self.number.with_mut(|number| unsafe { *number += 1 });
        // SAFETY: the lock is held.
        unsafe { self.lock.unlock_exclusive() };
    }

    fn write(&self) {
        self.lock.lock_exclusive();
        self.change();
    }
}

/// `readers` threads read `times` times, one writes once.
fn readers_and_a_writer(readers: usize, times: usize, preemptions: usize) {
    model::explore(preemptions, move || {
        let guarded = Guarded::biased();
        let readers: Vec<_> = (0..readers)
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
        guarded.write();
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(guarded.read(), 1);
        assert!(guarded.lock.try_lock_exclusive(), "somebody was left inside");
    });
}

#[test]
fn a_reader_reads_twice_around_a_writer() {
    readers_and_a_writer(1, 2, 3);
}

/// The first and the third thread of a model have one slot in the table.
#[test]
fn two_readers_share_a_slot_with_who_writes() {
    readers_and_a_writer(2, 1, 2);
}

/// A reader's mark may be taken, before it has looked whether the bias stands, by another that came by the inner lock: that
/// lock is the first one's from then on.
fn a_mark_is_taken_before_the_look() {
    model::explore(3, || {
        let guarded = Guarded::biased();
        // The second thread's slot is the other one.
        thread::spawn(|| ()).join().unwrap();
        let reader = {
            let guarded = guarded.clone();
            thread::spawn(move || guarded.read())
        };
        guarded.write();
        assert_eq!(guarded.read(), 1);
        assert!(reader.join().unwrap() <= 1);
        assert!(guarded.lock.try_lock_exclusive(), "somebody was left inside");
    });
}

#[test]
fn a_lock_that_was_left_to_a_reader_is_released() {
    a_mark_is_taken_before_the_look();
}

#[test]
#[should_panic(expected = "somebody was left inside")]
fn a_lock_that_was_left_to_nobody_is_found() {
    step::without("biased: the lock that was left", a_mark_is_taken_before_the_look);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn left_to_relaxed() {
    step::without("biased.left_to: Acquire", a_mark_is_taken_before_the_look);
}

#[test]
fn a_try_to_write_does_not_wait_for_a_reader() {
    model::explore(3, || {
        let guarded = Guarded::biased();
        guarded.lock.lock_shared();
        let writer = {
            let guarded = guarded.clone();
            thread::spawn(move || assert!(!guarded.lock.try_lock_exclusive(), "a writer beside a reader"))
        };
        writer.join().unwrap();
        assert_eq!(guarded.look(), 0);
        // SAFETY: taken above.
        unsafe { guarded.lock.unlock_shared() };
        assert!(guarded.lock.try_lock_exclusive(), "somebody was left inside");
        guarded.change();
    });
}

#[test]
fn a_try_to_write_and_a_reader_meet() {
    model::explore(3, || {
        let guarded = Guarded::biased();
        let reader = {
            let guarded = guarded.clone();
            thread::spawn(move || guarded.read())
        };
        let written = guarded.lock.try_lock_exclusive();
        if written {
            guarded.change();
        }
        assert!(reader.join().unwrap() <= usize::from(written));
        assert_eq!(guarded.read(), usize::from(written));
    });
}

macro_rules! mutants {
    ($($name:ident: $step:literal, $readers:literal, $times:literal, $preemptions:literal => $sign:literal;)*) => { $(
        #[test]
        #[should_panic(expected = $sign)]
        fn $name() {
            step::without($step, || readers_and_a_writer($readers, $times, $preemptions));
        }
    )* };
}

mutants! {
    reader_without_its_half: "biased: the light half", 1, 2, 3 => "Causality violation";
    writer_without_its_half: "biased: the heavy half", 1, 2, 3 => "Causality violation";
    bias_read_relaxed: "biased.dekker: Acquire", 2, 2, 3 => "Causality violation";
    bias_set_relaxed: "biased.dekker: Release", 2, 2, 3 => "Causality violation";
    left_relaxed: "biased.leave: Release", 1, 2, 3 => "Causality violation";
    left_unseen: "biased.leave: Acquire", 1, 2, 3 => "Causality violation";
}
