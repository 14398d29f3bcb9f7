//! Model of `intake.add`: what is added is taken once, with its contents.
#![cfg(loom)]

mod model;

use larder_sync::intake::{END, Intake};
use larder_sync::step;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

const ELEMENTS: usize = 4;

struct Shared {
    intake: Intake,
    /// The link of each element; loom reports a reader that comes too early.
    next: [UnsafeCell<u32>; ELEMENTS],
}

// SAFETY: loom checks the accesses to the cells; that is what the model is for.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn add(&self, element: usize) {
        // SAFETY: the element is this thread's until it is added.
        self.intake.add(element as u32, |next| self.next[element].with_mut(|link| unsafe { *link = next }));
    }

    fn take_all(&self, taken: &mut [u32; ELEMENTS]) {
        let mut at = self.intake.take_all();
        while at != END {
            taken[at as usize] += 1;
            // SAFETY: taken, so this thread's.
            at = self.next[at as usize].with(|link| unsafe { *link });
        }
    }
}

fn everything_is_taken_once() {
    model::explore(3, || {
        let shared = Arc::new(Shared { intake: Intake::new(), next: std::array::from_fn(|_| UnsafeCell::new(END)) });
        let threads: Vec<_> = (0..2)
            .map(|me| {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.add(2 * me);
                    shared.add(2 * me + 1);
                })
            })
            .collect();
        let mut taken = [0; ELEMENTS];
        shared.take_all(&mut taken);
        for thread in threads {
            thread.join().unwrap();
        }
        shared.take_all(&mut taken);
        assert_eq!(taken, [1; ELEMENTS], "an element was lost or taken twice");
    });
}

#[test]
fn two_threads_add_while_one_takes() {
    everything_is_taken_once();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_element_added_without_release_is_read_too_early() {
    step::without("intake.add: Release", everything_is_taken_once);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_element_taken_without_acquire_is_read_too_early() {
    step::without("intake.add: Acquire", everything_is_taken_once);
}

#[test]
#[should_panic(expected = "an element was lost")]
fn an_element_with_an_old_link_loses_another() {
    step::without("intake: link again after a lost race", everything_is_taken_once);
}
