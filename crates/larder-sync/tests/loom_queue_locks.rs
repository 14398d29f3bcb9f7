//! Models of `fair.*`, `reciprocating.*`, `turns.*` and `restrict.*`: exclusion, no waiter forgotten, eviction; and the mutants.
#![cfg(loom)]

#[path = "model/locks.rs"]
mod locks;
mod model;

use larder_sync::fair::{RawMcsLock, RawQueueLock};
use larder_sync::lock::Lock;
use larder_sync::reciprocating::RawReciprocating;
use larder_sync::restrict::Restriction;
use larder_sync::sched::{Running, RunningOracle};
use larder_sync::step;
use larder_sync::turns::TurnLock;
use locks::{Excludes, increments_are_not_lost};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use std::sync::Arc;

/// Says that nobody runs: everybody is evicted as often as may be.
struct Nobody;

impl RunningOracle for Nobody {
    fn mark() -> usize {
        0
    }
    fn looks(_mark: usize) {}
    unsafe fn is_running(_mark: usize) -> Running {
        Running::No
    }
}

macro_rules! excludes {
    ($($lock:ty),*) => { $(
        impl Excludes for $lock {
            fn fresh() -> Self {
                Self::new()
            }
            fn acquire(&self) {
                self.lock();
            }
            fn attempt(&self) -> bool {
                self.try_lock()
            }
            fn release(&self) {
                // SAFETY: the models release what they hold.
                unsafe { self.unlock() };
            }
        }
    )* };
}
excludes!(RawMcsLock, RawQueueLock<Nobody>, RawReciprocating);

/// Locks in turns, over each kind of line.
macro_rules! excludes_in_turns {
    ($($line:ty),*) => { $(
        impl Excludes for TurnLock<$line> {
            fn fresh() -> Self {
                Self::with_line(<$line>::new())
            }
            fn acquire(&self) {
                self.lock();
            }
            fn attempt(&self) -> bool {
                self.try_lock()
            }
            fn release(&self) {
                // SAFETY: the models release what they hold.
                unsafe { self.unlock() };
            }
        }
    )* };
}
excludes_in_turns!(RawMcsLock, RawQueueLock<Nobody>, RawReciprocating);

/// One place before a lock that needs none: only the restriction's waiting is explored.
struct Restricted {
    restriction: Restriction,
    lock: Lock,
}

impl Excludes for Restricted {
    fn fresh() -> Self {
        Self { restriction: Restriction::new(1), lock: Lock::new() }
    }
    fn acquire(&self) {
        self.restriction.enter();
        self.lock.lock_raw();
    }
    fn attempt(&self) -> bool {
        let taken = self.lock.try_lock_raw();
        if taken {
            self.restriction.enter_holding();
        }
        taken
    }
    fn release(&self) {
        // SAFETY: the models release what they hold.
        unsafe { self.restriction.leave(|| self.lock.unlock_raw()) };
    }
}

#[test]
fn mcs() {
    increments_are_not_lost::<RawMcsLock>(2, 2, 3);
    increments_are_not_lost::<RawMcsLock>(3, 1, 2);
}

#[test]
fn mcs_that_evicts_whom_it_can() {
    increments_are_not_lost::<RawQueueLock<Nobody>>(2, 2, 2);
    increments_are_not_lost::<RawQueueLock<Nobody>>(3, 1, 2);
}

#[test]
fn reciprocating() {
    increments_are_not_lost::<RawReciprocating>(2, 2, 3);
    increments_are_not_lost::<RawReciprocating>(3, 1, 3);
}

/// Four threads reach a group of two behind another.
#[test]
fn reciprocating_groups() {
    increments_are_not_lost::<RawReciprocating>(4, 1, 2);
}

#[test]
fn turns() {
    increments_are_not_lost::<TurnLock<RawMcsLock>>(2, 2, 3);
    increments_are_not_lost::<TurnLock<RawMcsLock>>(3, 1, 2);
    increments_are_not_lost::<TurnLock<RawQueueLock<Nobody>>>(3, 1, 2);
    increments_are_not_lost::<TurnLock<RawReciprocating>>(3, 1, 2);
}

/// A thread that does not have the turn wants the lock back while another waits at the head.
fn nobody_overtakes_the_head() {
    model::explore(3, || {
        let shared = Arc::new((TurnLock::with_line(RawMcsLock::new()), AtomicBool::new(false)));
        assert!(shared.0.try_lock());
        let other = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.0.lock();
                shared.1.store(true, Ordering::Relaxed);
                // SAFETY: locked above.
                unsafe { shared.0.unlock() };
            })
        };
        while !shared.0.is_awaited() {
            thread::yield_now();
        }
        // SAFETY: locked above.
        unsafe { shared.0.unlock() };
        if shared.0.try_lock() {
            assert!(shared.1.load(Ordering::Relaxed), "the head was overtaken");
            // SAFETY: locked above.
            unsafe { shared.0.unlock() };
        }
        other.join().unwrap();
    });
}

#[test]
fn the_head_is_next() {
    nobody_overtakes_the_head();
}

#[test]
#[should_panic(expected = "the head was overtaken")]
fn who_takes_again_out_of_turn_overtakes() {
    step::without("turns: again only in one's turn", nobody_overtakes_the_head);
}

#[test]
fn restricted() {
    increments_are_not_lost::<Restricted>(2, 2, 3);
    increments_are_not_lost::<Restricted>(3, 1, 2);
    increments_are_not_lost::<Restricted>(4, 1, 1);
}

macro_rules! mutants {
    ($($name:ident: $step:literal, $lock:ty, $threads:literal, $times:literal, $preemptions:literal => $sign:literal;)*) => { $(
        #[test]
        #[should_panic(expected = $sign)]
        fn $name() {
            step::without($step, || increments_are_not_lost::<$lock>($threads, $times, $preemptions));
        }
    )* };
}

mutants! {
    fair_taken_relaxed: "fair.hold: Acquire", RawMcsLock, 2, 2, 3 => "Causality violation";
    fair_released_relaxed: "fair.hold: Release", RawMcsLock, 2, 2, 3 => "Causality violation";
    fair_exchanged_relaxed: "fair.hold: AcqRel", RawMcsLock, 2, 2, 3 => "Causality violation";
    fair_linked_relaxed: "fair.link: Release", RawMcsLock, 3, 1, 2 => "Causality violation";
    fair_link_read_relaxed: "fair.link: Acquire", RawMcsLock, 3, 1, 2 => "Causality violation";
    fair_adopted_relaxed: "fair.adopt: Release", RawMcsLock, 3, 1, 3 => "the link never comes";
    fair_evicted_relaxed: "fair.evict: Release", RawQueueLock<Nobody>, 3, 1, 3 => "Causality violation";
    fair_evicted_is_not_told: "fair: tell the evicted", RawQueueLock<Nobody>, 3, 1, 2 => "deadlock";
    reciprocating_taken_relaxed: "reciprocating.hold: Acquire", RawReciprocating, 2, 2, 3 => "Causality violation";
    reciprocating_released_relaxed: "reciprocating.hold: Release", RawReciprocating, 2, 2, 3 => "Causality violation";
    reciprocating_exchanged_relaxed: "reciprocating.hold: AcqRel", RawReciprocating, 2, 2, 3 => "Causality violation";
    reciprocating_end_unseen: "reciprocating: the end of the group", RawReciprocating, 3, 1, 3 => "the end of a group is nobody";
    turns_taken_relaxed: "turns.hold: Acquire", TurnLock<RawMcsLock>, 2, 2, 3 => "Causality violation";
    turns_released_relaxed: "turns.hold: Release", TurnLock<RawMcsLock>, 2, 2, 3 => "Causality violation";
    turns_taken_idle_relaxed: "turns.idle: Acquire", TurnLock<RawMcsLock>, 2, 1, 3 => "Causality violation";
    turns_taken_impatient_relaxed: "turns.impatient: Acquire", TurnLock<RawMcsLock>, 2, 1, 3 => "Causality violation";
    turns_head_unpublished: "turns.head: Release", TurnLock<RawMcsLock>, 2, 1, 3 => "deadlock";
    turns_head_unread: "turns.head: Acquire", TurnLock<RawMcsLock>, 2, 1, 3 => "deadlock";
    turns_impatience_in_vain: "turns: the impatient head is served", TurnLock<RawMcsLock>, 2, 1, 3 => "deadlock";
    restrict_pushed_relaxed: "restrict.push: Release", Restricted, 4, 1, 2 => "Causality violation";
    restrict_taken_over_relaxed: "restrict.push: Acquire", Restricted, 4, 1, 2 => "Causality violation";
    restrict_wakes_nobody: "restrict: the wake", Restricted, 2, 2, 3 => "deadlock";
    told_relaxed: "cell.tell: Release", RawReciprocating, 2, 1, 3 => "Causality violation";
    read_relaxed: "cell.tell: Acquire", RawReciprocating, 2, 1, 3 => "Causality violation";
}
