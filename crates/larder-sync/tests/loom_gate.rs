//! Models of `gate.dekker`, `gate.open` and `gate.out`: nobody is inside a gate that was closed, and nobody waits for
//! ever.
#![cfg(loom)]

mod model;

use larder_sync::gate::Gate;
use larder_sync::step;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// What the gate keeps apart: those inside read, whoever closed it writes. loom reports a race.
struct Guarded {
    gate: Gate,
    value: UnsafeCell<u32>,
    /// What each thread inside writes for whoever closes.
    reports: [UnsafeCell<u32>; 2],
}

// SAFETY: loom checks the accesses to the cells; that is what the models are for.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn new(gate: Gate) -> Arc<Self> {
        Arc::new(Self { gate, value: UnsafeCell::new(0), reports: [UnsafeCell::new(0), UnsafeCell::new(0)] })
    }

    /// Work inside, as thread `me`.
    fn work(&self, me: usize) -> u32 {
        // SAFETY: `me` names this thread only.
        self.reports[me].with_mut(|report| unsafe { *report += 1 });
        // SAFETY: inside the gate nobody writes.
        self.value.with(|value| unsafe { *value })
    }

    /// Work of whoever has closed the gate.
    fn change(&self) -> u32 {
        // SAFETY: nobody is inside.
        self.value.with_mut(|value| unsafe { *value += 1 });
        // SAFETY: as above.
        self.reports.iter().map(|report| report.with(|report| unsafe { *report })).sum()
    }
}

/// The marking crew: a gate that is opened for one round, in which `helpers` may take part or come too late.
fn a_round(helpers: usize) {
    model::explore(if helpers > 1 { 2 } else { 3 }, move || {
        let shared = Guarded::new(Gate::new_closed());
        let threads: Vec<_> = (0..helpers)
            .map(|me| {
                let shared = shared.clone();
                thread::spawn(move || {
                    if let Some(_inside) = shared.gate.try_enter() {
                        assert_eq!(shared.work(me), 1, "inside before the round was set up");
                    }
                })
            })
            .collect();
        shared.change();
        shared.gate.open();
        shared.gate.close();
        shared.change();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_helper_takes_part_or_comes_too_late() {
    a_round(1);
}

#[test]
fn two_helpers_take_part_or_come_too_late() {
    a_round(2);
}

#[test]
fn a_second_round_is_not_mixed_up_with_the_first() {
    model::explore(3, || {
        let shared = Guarded::new(Gate::new_closed());
        let helper = {
            let shared = shared.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    if let Some(_inside) = shared.gate.try_enter() {
                        assert_eq!(shared.work(0) % 2, 1, "the work of no round");
                    }
                }
            })
        };
        for _ in 0..2 {
            shared.change();
            shared.gate.open();
            shared.gate.close();
            shared.change();
        }
        helper.join().unwrap();
    });
}

/// A fork: an open gate that is closed and opened again, while `collectors` go in.
fn a_fork(collectors: usize, forks: usize) {
    model::explore(if collectors + forks > 2 { 2 } else { 3 }, move || {
        let shared = Guarded::new(Gate::new_open());
        let threads: Vec<_> = (0..collectors)
            .map(|me| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let _inside = shared.gate.enter();
                    shared.work(me);
                })
            })
            .collect();
        let others: Vec<_> = (1..forks)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.gate.close();
                    shared.change();
                    shared.gate.open();
                })
            })
            .collect();
        shared.gate.close();
        shared.change();
        shared.gate.open();
        for thread in threads.into_iter().chain(others) {
            thread.join().unwrap();
        }
        shared.gate.close();
        assert_eq!(shared.change(), collectors as u32);
    });
}

#[test]
fn a_collector_and_a_fork_take_turns() {
    a_fork(1, 1);
}

#[test]
fn two_collectors_and_a_fork_take_turns() {
    a_fork(2, 1);
}

#[test]
fn a_collector_and_two_forks_take_turns() {
    a_fork(1, 2);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_fence_of_who_goes_in_both_are_there() {
    step::without("gate: the fence of who goes in", || a_fork(1, 1));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_fence_of_who_closes_both_are_there() {
    step::without("gate: the fence of who closes", || a_fork(1, 1));
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_fence_of_the_last_one_out_the_closer_sleeps_for_ever() {
    step::without("gate: the fence of the last one out", || a_fork(1, 1));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_gate_opened_without_release_shows_a_round_that_is_not_ready() {
    step::without("gate.open: Release", || a_round(1));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_gate_entered_without_acquire_shows_a_round_that_is_not_ready() {
    step::without("gate.open: Acquire", || a_round(1));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn leaving_without_release_hides_what_was_written_inside() {
    step::without("gate.out: Release", || a_round(1));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn closing_without_acquire_misses_what_was_written_inside() {
    step::without("gate.out: Acquire", || a_round(1));
}
