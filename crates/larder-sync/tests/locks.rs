//! The public locks under storms: 256 threads on whatever processors there are, delayed at random.
#![cfg(not(loom))]

mod storm;

use larder_sync::mutex::{Condvar, Mutex};
use lock_api::RawMutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const THREADS: usize = 256;
const ROUNDS: usize = 64;

const WITH_IDLERS: bool = true;
const WITHOUT_IDLERS: bool = false;

/// Two words that are equal outside of critical sections, deliberately not atomic.
#[derive(Default)]
struct Pair(u64, u64);

/// With `idlers`, some threads run only when nobody else wants to. Locks that hand over to whoever is next, running or not, would
/// spend minutes on that: 255 threads wait while the one that has the lock has no processor.
fn pairs_stay_equal<R: RawMutex + Send + Sync>(idlers: bool) {
    let pair = lock_api::Mutex::<R, Pair>::new(Pair::default());
    let tries = AtomicUsize::new(0);
    let rounds = AtomicUsize::new(0);
    let work = |thread, may_end: &dyn Fn() -> bool| {
        let mut made = 0;
        while made < ROUNDS && !may_end() {
            let round = made;
            let tried = ((thread + round) % 5 == 0).then(|| pair.try_lock()).flatten();
            if tried.is_some() {
                // ORDER test.count: Relaxed; the join of the threads orders it before its reader.
                tries.fetch_add(1, Ordering::Relaxed);
            }
            let mut guard = tried.unwrap_or_else(|| pair.lock());
            assert_eq!(guard.0, guard.1, "two threads were inside");
            guard.0 += 1;
            if round % 32 == 0 {
                std::thread::yield_now();
            }
            guard.1 += 1;
            made += 1;
        }
        // ORDER test.count: Relaxed, as above.
        rounds.fetch_add(made, Ordering::Relaxed);
    };
    if idlers {
        storm::rages_over_idlers(THREADS, work)
    } else {
        storm::rages(THREADS, |thread| work(thread, &|| false))
    }
    let (guard, rounds) = (pair.lock(), rounds.load(Ordering::Relaxed));
    assert_eq!((guard.0, guard.1), (rounds as u64, rounds as u64));
    let idle = if idlers { THREADS / 64 } else { 0 };
    assert!(rounds >= (THREADS - idle) * ROUNDS, "only {rounds} rounds");
}

fn a_failed_try_leaves_it_held<R: RawMutex + Send + Sync>() {
    let lock = lock_api::Mutex::<R, ()>::new(());
    let guard = lock.lock();
    assert!(lock.try_lock().is_none());
    assert!(lock.is_locked(), "a failed try released the lock");
    drop(guard);
    assert!(!lock.is_locked());
    assert!(lock.try_lock().is_some());
}

macro_rules! every_mutex {
    ($($name:ident: $raw:ty, $idlers:ident;)*) => { $(
        mod $name {
            #[test]
            fn pairs_stay_equal() {
                super::pairs_stay_equal::<$raw>(super::$idlers);
            }
            #[test]
            fn a_failed_try_leaves_it_held() {
                super::a_failed_try_leaves_it_held::<$raw>();
            }
        }
    )* };
}

every_mutex! {
    mutex: larder_sync::mutex::RawMutex, WITH_IDLERS;
    restricted_mcs: larder_sync::restrict::ConcurrencyRestricted<larder_sync::fair::RawMcsLock>, WITH_IDLERS;
    restricted_parking_lot: larder_sync::restrict::ConcurrencyRestricted<parking_lot::RawMutex>, WITH_IDLERS;
    fair: larder_sync::fair::RawFairMutex, WITH_IDLERS;
    fifo: larder_sync::fair::RawFifoLock, WITH_IDLERS;
    mcs: larder_sync::fair::RawMcsLock, WITHOUT_IDLERS;
    reciprocating: larder_sync::reciprocating::RawReciprocating, WITHOUT_IDLERS;
    reciprocating_in_turns: larder_sync::reciprocating::RawReciprocatingMutex, WITH_IDLERS;
}

/// Every thread takes what it was given, whoever notifies.
#[test]
fn a_condition_variable_loses_no_notification() {
    let baton = Mutex::new(0_usize);
    let changed = Condvar::new();
    let threads = 64;
    let laps = 20;
    storm::rages(threads, |thread| {
        for _ in 0..laps {
            let mut holder = baton.lock();
            while *holder % threads != thread {
                changed.wait(&mut holder);
            }
            *holder += 1;
            drop(holder);
            changed.notify_all();
        }
    });
    assert_eq!(*baton.lock(), threads * laps);
}

#[test]
fn one_notification_wakes_one_that_waits() {
    let tokens = Mutex::new(0_usize);
    let more = Condvar::new();
    storm::rages(64, |thread| {
        for _ in 0..50 {
            if thread % 2 == 0 {
                *tokens.lock() += 1;
                more.notify_one();
            } else {
                let mut tokens = tokens.lock();
                while *tokens == 0 {
                    more.wait(&mut tokens);
                }
                *tokens -= 1;
            }
        }
    });
    assert_eq!(*tokens.lock(), 0);
}

#[test]
fn a_wait_with_a_limit_says_that_nothing_came() {
    let lock = Mutex::new(());
    let never = Condvar::new();
    let mut guard = lock.lock();
    assert!(!never.wait_for(&mut guard, Duration::from_millis(1)));
    assert!(lock.is_locked(), "the lock was not taken again");
}

/// What docs/locks.md says.
#[test]
fn locks_are_as_small_as_documented() {
    use larder_sync::{biased, clh, fair, mutex, phase_fair, reciprocating, restrict};
    assert_eq!(size_of::<mutex::RawMutex>(), 56);
    assert_eq!(size_of::<fair::RawFairMutex>(), 40);
    assert_eq!(size_of::<fair::RawFifoLock>(), 16);
    assert_eq!(size_of::<reciprocating::RawReciprocatingMutex>(), 48);
    assert_eq!(size_of::<restrict::ConcurrencyRestricted<fair::RawMcsLock>>(), 16 + 56);
    assert_eq!(size_of::<clh::ClhLock>(), 8);
    assert_eq!(size_of::<phase_fair::RawPhaseFair>(), 80);
    assert_eq!(size_of::<biased::BiasedRwLock<phase_fair::RawPhaseFair>>(), 80 + 16);
}
