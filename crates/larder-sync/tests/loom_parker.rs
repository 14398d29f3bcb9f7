//! Model of `event.happen`: no wake is lost between the look and the sleep, and who is woken sees why.
#![cfg(loom)]

mod model;

use larder_sync::atomic::{AtomicUsize, Ordering};
use larder_sync::parker::{Event, Parker};
use larder_sync::step;
use loom::thread;
use std::sync::Arc;

struct Mailbox {
    filled: AtomicUsize,
    event: Event,
}

impl Mailbox {
    fn new() -> Self {
        Self { filled: AtomicUsize::new(0), event: Event::new() }
    }

    fn fill(&self) {
        // ORDER event.happen: Relaxed; the bump that follows publishes it.
        self.filled.fetch_add(1, Ordering::Relaxed);
        self.event.bump_and_wake_all();
    }

    fn wait_for(&self, fills: usize) {
        loop {
            let seen = self.event.current();
            // ORDER event.happen: Relaxed; a count read before it acquired what the bump published.
            if self.filled.load(Ordering::Relaxed) >= fills {
                return;
            }
            self.event.wait(seen);
            // ORDER event.happen: Relaxed; `wait` acquired the bump, so at least one fill must be seen.
            assert_ne!(self.filled.load(Ordering::Relaxed), 0, "the count moved ahead of its cause");
        }
    }
}

fn one_waiter_and_fills(fills: usize) {
    model::explore(3, move || {
        let shared = Arc::new(Mailbox::new());
        let fillers: Vec<_> = (0..fills)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || shared.fill())
            })
            .collect();
        shared.wait_for(fills);
        for filler in fillers {
            filler.join().unwrap();
        }
    });
}

#[test]
fn one_waiter_and_two_bumps() {
    one_waiter_and_fills(2);
}

#[test]
fn two_waiters_and_one_bump() {
    model::explore(3, || {
        let shared = Arc::new(Mailbox::new());
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || shared.wait_for(1))
            })
            .collect();
        shared.fill();
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

#[test]
fn two_waiters_are_woken_one_at_a_time() {
    model::explore(3, || {
        let shared = Arc::new(Mailbox::new());
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || shared.wait_for(1))
            })
            .collect();
        // ORDER event.happen: Relaxed; the bumps that follow publish it.
        shared.filled.store(1, Ordering::Relaxed);
        shared.event.bump_and_wake(1);
        shared.event.bump_and_wake(1);
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

/// Shows that a lost wake is noticed: a waiter that reads the count after its look sleeps for ever.
#[test]
#[should_panic(expected = "deadlock")]
fn a_count_read_after_the_look_loses_a_wake() {
    model::explore(3, || {
        let shared = Arc::new(Mailbox::new());
        let filler = {
            let shared = shared.clone();
            thread::spawn(move || shared.fill())
        };
        // ORDER event.happen: Relaxed, and too early, which is the point.
        if shared.filled.load(Ordering::Relaxed) == 0 {
            shared.event.wait(shared.event.current());
        }
        filler.join().unwrap();
    });
}

#[test]
fn a_timeout_returns() {
    model::explore(3, || {
        let shared = Arc::new(Mailbox::new());
        let filler = {
            let shared = shared.clone();
            thread::spawn(move || shared.fill())
        };
        if shared.event.wait_timeout(0, 1) {
            // ORDER event.happen: Relaxed; `wait_timeout` acquired the bump.
            assert_eq!(shared.filled.load(Ordering::Relaxed), 1);
        }
        filler.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_count_that_is_read_relaxed_hides_its_cause() {
    step::without("event.happen: Acquire", || one_waiter_and_fills(2));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_count_that_is_written_relaxed_hides_its_cause() {
    step::without("event.happen: Release", || one_waiter_and_fills(2));
}

/// A token is there already when the thread that waits for a word begins; the word comes with a second unpark.
fn a_word_and_a_stale_token() {
    model::explore(4, || {
        let shared = Arc::new((Parker::new(), AtomicUsize::new(0)));
        shared.0.unpark();
        let other = {
            let shared = shared.clone();
            thread::spawn(move || {
                // ORDER parker.token: Relaxed; the unpark publishes it.
                shared.1.store(1, Ordering::Relaxed);
                shared.0.unpark();
            })
        };
        // ORDER parker.token: Relaxed; the park acquires it.
        while shared.1.load(Ordering::Relaxed) == 0 {
            shared.0.park();
        }
        other.join().unwrap();
    });
}

#[test]
fn a_token_is_not_lost() {
    a_word_and_a_stale_token();
}

/// The race of the notes, "A race in LockSupport park() arising from weak memory models".
#[test]
#[should_panic(expected = "deadlock")]
fn a_token_that_is_taken_by_a_store_wipes_out_the_next_one() {
    step::without("parker: the token is taken by an exchange", a_word_and_a_stale_token);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_token_that_is_taken_relaxed_hides_its_cause() {
    step::without("parker.token: Acquire", a_word_and_a_stale_token);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_token_that_is_left_relaxed_hides_its_cause() {
    step::without("parker.token: Release", a_word_and_a_stale_token);
}

#[test]
fn a_park_with_a_limit_takes_the_token_or_leaves_it() {
    model::explore(3, || {
        let parker = Arc::new(Parker::new());
        let other = {
            let parker = parker.clone();
            thread::spawn(move || parker.unpark())
        };
        let took = parker.park_timeout(1);
        other.join().unwrap();
        assert_ne!(took, parker.park_timeout(1), "one token was left, and taken once");
    });
}
