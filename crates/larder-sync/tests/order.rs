//! Who is admitted next: threads come one after the other and fall asleep, and are let in in the order that each lock
//! promises.
#![cfg(not(loom))]

use larder_sync::fair::{RawFairMutex, RawFifoLock};
use larder_sync::mutex::RawMutex;
use larder_sync::phase_fair::RawPhaseFair;
use larder_sync::reciprocating::{RawReciprocating, RawReciprocatingMutex};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::{self, Scope};

/// Starts a thread, and returns when it sleeps.
fn comes_and_sleeps<'scope>(scope: &'scope Scope<'scope, '_>, work: impl FnOnce() + Send + 'scope) {
    // Sync: the number is the whole message, Relaxed. Leaked, because the thread may outlive this call.
    let id: &'static AtomicI32 = Box::leak(Box::new(AtomicI32::new(0)));
    scope.spawn(move || {
        // SAFETY: always allowed.
        id.store(unsafe { libc::gettid() }, Ordering::Relaxed);
        work();
    });
    loop {
        let id = id.load(Ordering::Relaxed);
        let stat = std::fs::read_to_string(format!("/proc/self/task/{id}/stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses.
        if id != 0 && stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('S') {
            return;
        }
        thread::yield_now();
    }
}

/// The order in which threads 1 to 4 are admitted that came in this order to a held lock; when the first of them is in, 5
/// comes.
fn order_of<R: lock_api::RawMutex + Send + Sync>() -> Vec<u32> {
    let lock = lock_api::Mutex::<R, Vec<u32>>::new(Vec::new());
    let lock = &lock;
    thread::scope(|scope| {
        let guard = lock.lock();
        for number in 1..=4 {
            comes_and_sleeps(scope, move || {
                let mut order = lock.lock();
                order.push(number);
                if order.len() == 1 {
                    comes_and_sleeps(scope, || lock.lock().push(5));
                }
            });
        }
        drop(guard);
    });
    lock.lock().clone()
}

#[test]
fn the_fair_mutex_admits_in_the_order_of_arrival() {
    assert_eq!(order_of::<RawFairMutex>(), [1, 2, 3, 4, 5]);
    assert_eq!(order_of::<RawFifoLock>(), [1, 2, 3, 4, 5]);
}

/// The newest first; but who comes when the group is being served waits until it has been: nobody is bypassed by it.
#[test]
fn the_reciprocating_mutex_admits_the_newest_of_the_group() {
    assert_eq!(order_of::<RawReciprocating>(), [4, 3, 2, 1, 5]);
    // The first to come is at the head already, and no group of the line.
    assert_eq!(order_of::<RawReciprocatingMutex>(), [1, 4, 3, 2, 5]);
}

#[test]
fn the_mutex_admits_everybody() {
    let mut order = order_of::<RawMutex>();
    order.sort_unstable();
    assert_eq!(order, [1, 2, 3, 4, 5]);
}

/// Two readers and a writer wait for a writer: the readers are next, whenever they came, and then the writer.
#[test]
fn phases_alternate() {
    let lock = RawPhaseFair::new();
    let order = Mutex::new(Vec::new());
    let (lock, order) = (&lock, &order);
    let log = |name| order.lock().unwrap().push(name);
    thread::scope(|scope| {
        lock.lock_exclusive();
        comes_and_sleeps(scope, move || {
            lock.lock_exclusive();
            log("writer");
            // SAFETY: locked above.
            unsafe { lock.unlock_exclusive() };
        });
        for _ in 0..2 {
            comes_and_sleeps(scope, move || {
                lock.lock_shared();
                log("reader");
                // SAFETY: locked above.
                unsafe { lock.unlock_shared() };
            });
        }
        // SAFETY: locked above.
        unsafe { lock.unlock_exclusive() };
    });
    assert_eq!(*order.lock().unwrap(), ["reader", "reader", "writer"]);
}
