//! Models of `phases.hand_over`: what belongs to a cycle has one who uses it, whoever begins, offers, takes back, claims and hurries.
#![cfg(loom)]

mod model;

use std::sync::Arc;

use larder_sync::lock::Lock;
use larder_sync::phases::{Claim, Phase, Phases};
use larder_sync::step;
use loom::cell::UnsafeCell;
use loom::thread;

struct Shared {
    phases: Phases,
    cycles: Lock,
    /// What belongs to the cycle. loom reports a race.
    state: UnsafeCell<u32>,
}

// SAFETY: loom checks the accesses to the cell; that is what the models are for.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn use_state(&self) -> u32 {
        // SAFETY: whoever has the cycle.
        self.state.with_mut(|state| unsafe {
            *state += 1;
            *state
        })
    }

    /// The marker thread, for the one cycle that was asked for.
    fn mark(&self, takes_back: Option<Phase>) {
        self.cycles.lock_raw();
        let begins = self.phases.now() == Phase::Asked;
        if begins {
            self.phases.prepare();
            self.use_state();
            self.phases.begin();
        }
        // SAFETY: taken above.
        unsafe { self.cycles.unlock_raw() };
        if !begins {
            return;
        }
        self.use_state();
        if let Some(from) = takes_back {
            if from == Phase::Looking {
                self.phases.offer()
            } else {
                self.phases.ready()
            }
            if !self.phases.take_back(from) {
                return;
            }
            self.use_state();
        }
        self.phases.ready();
    }

    /// Ends whatever is under way; says whether that was a cycle that had begun.
    fn collect(&self) -> bool {
        loop {
            self.cycles.lock_raw();
            let claim = self.phases.claim();
            if claim == Claim::Claimed {
                assert!(self.use_state() >= 3, "the collector has what the marker thread has done");
                self.phases.finished();
            }
            // SAFETY: taken above.
            unsafe { self.cycles.unlock_raw() };
            if claim != Claim::Marking {
                return claim == Claim::Claimed;
            }
            while let Some(seen) = self.phases.hurry() {
                self.phases.wait_until_marked(seen);
            }
        }
    }
}

fn one_cycle(collectors: usize, takes_back: Option<Phase>) {
    model::explore(2, move || {
        let shared = Arc::new(Shared { phases: Phases::new(), cycles: Lock::new(), state: UnsafeCell::new(0) });
        assert!(shared.phases.ask() && !shared.phases.ask());
        let marker = thread::spawn({
            let shared = shared.clone();
            move || shared.mark(takes_back)
        });
        let others: Vec<_> = (1..collectors)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || shared.collect())
            })
            .collect();
        let mut finished = usize::from(shared.collect());
        finished += others.into_iter().map(|other| usize::from(other.join().unwrap())).sum::<usize>();
        marker.join().unwrap();
        assert!(finished <= 1 && shared.phases.now() == Phase::Idle);
    });
}

#[test]
fn a_cycle_has_one_who_ends_it() {
    one_cycle(1, None);
}

#[test]
fn two_collect() {
    one_cycle(2, None);
}

#[test]
fn one_that_is_offered_is_taken_back_or_claimed() {
    one_cycle(1, Some(Phase::Looking));
}

#[test]
fn one_that_is_ready_is_taken_back_or_claimed() {
    one_cycle(1, Some(Phase::Ready));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn one_that_is_handed_over_without_its_content_is_found() {
    step::without("phases: Release", || one_cycle(1, None));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn one_that_two_have_is_found() {
    step::without("phases: taken back if it is still there", || one_cycle(1, Some(Phase::Looking)));
}
