//! Model of `condvar.waiting`: whoever changes something under the lock and notifies afterwards wakes who waits for it.
#![cfg(loom)]

mod model;

use larder_sync::mutex::{Condvar, RawMutex};
use larder_sync::step;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

struct Shared {
    /// How many tokens there are; loom watches who looks.
    tokens: lock_api::Mutex<RawMutex, UnsafeCell<usize>>,
    more: Condvar,
}

// SAFETY: the cell is touched under the lock only; loom checks that.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Arc<Self> {
        let tokens = lock_api::Mutex::from_raw(RawMutex::new(), UnsafeCell::new(0));
        Arc::new(Self { tokens, more: Condvar::new() })
    }

    fn put(&self, tokens: usize) {
        let guard = self.tokens.lock();
        // SAFETY: the lock is held.
        guard.with_mut(|there| unsafe { *there += tokens });
    }

    fn take(&self) {
        let mut guard = self.tokens.lock();
        // SAFETY: the lock is held, here and below.
        while guard.with(|there| unsafe { *there }) == 0 {
            self.more.wait(&mut guard);
        }
        guard.with_mut(|there| unsafe { *there -= 1 });
    }
}

fn one_waits_for_another() {
    model::explore(3, || {
        let shared = Shared::new();
        let waiter = {
            let shared = shared.clone();
            thread::spawn(move || shared.take())
        };
        shared.put(1);
        // After the lock was released: whoever waits has been counted before.
        shared.more.notify_one();
        waiter.join().unwrap();
    });
}

#[test]
fn a_notification_after_the_lock_is_not_lost() {
    one_waits_for_another();
}

#[test]
fn two_wait_and_each_is_notified() {
    model::explore(2, || {
        let shared = Shared::new();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || shared.take())
            })
            .collect();
        for _ in 0..2 {
            shared.put(1);
            shared.more.notify_one();
        }
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

#[test]
fn two_wait_and_all_are_notified() {
    model::explore(2, || {
        let shared = Shared::new();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || shared.take())
            })
            .collect();
        shared.put(2);
        shared.more.notify_all();
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

/// Two waiters, one notification for two tokens: shows that the models notice who is forgotten.
#[test]
#[should_panic(expected = "deadlock")]
fn one_notification_for_two_forgets_one() {
    model::explore(2, || {
        let shared = Shared::new();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || shared.take())
            })
            .collect();
        shared.put(2);
        shared.more.notify_one();
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_waiter_that_is_not_counted_is_not_notified() {
    step::without("condvar: who waits is counted", one_waits_for_another);
}
