//! Queues, reader-writer locks, clock, parker and hazard pointers under many threads.
#![cfg(not(loom))]

mod storm;

use larder_sync::biased::BiasedRwLock;
use larder_sync::clh::{ClhLock, Place};
use larder_sync::clock::MonotonicClock;
use larder_sync::hazard::Domain;
use larder_sync::parker::Parker;
use larder_sync::phase_fair::RawPhaseFair;
use larder_sync::queue::{BoundedQueue, PutError, TakeError, TicketQueue};
use lock_api::RawRwLock;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const THREADS: usize = 256;

fn readers_see_whole_pairs<R: RawRwLock + Send + Sync>() {
    let pair = lock_api::RwLock::<R, (u64, u64)>::new((0, 0));
    let writes = AtomicU64::new(0);
    storm::rages(THREADS, |thread| {
        for round in 0..100 {
            if (thread + round) % 10 == 0 {
                let guard = if round % 20 == 0 { pair.try_write() } else { Some(pair.write()) };
                let Some(mut guard) = guard else { continue };
                guard.0 += 1;
                std::thread::yield_now();
                guard.1 += 1;
                // ORDER test.count: Relaxed; the join orders it.
                writes.fetch_add(1, Ordering::Relaxed);
            } else {
                let guard = if round % 3 == 0 { pair.try_read() } else { Some(pair.read()) };
                let Some(guard) = guard else { continue };
                assert_eq!(guard.0, guard.1, "a reader saw half a write");
            }
        }
    });
    let pair = pair.try_write().expect("nobody is in");
    assert_eq!(*pair, (writes.load(Ordering::Relaxed), writes.load(Ordering::Relaxed)));
}

#[test]
fn phase_fair_readers_see_whole_pairs() {
    readers_see_whole_pairs::<RawPhaseFair>();
}

#[test]
fn biased_readers_see_whole_pairs() {
    readers_see_whole_pairs::<BiasedRwLock<RawPhaseFair>>();
    readers_see_whole_pairs::<BiasedRwLock<parking_lot::RawRwLock>>();
}

#[test]
fn one_thread_reads_a_biased_lock_twice() {
    let lock = lock_api::RwLock::<BiasedRwLock<RawPhaseFair>, ()>::new(());
    for _ in 0..3 {
        let (one, two) = (lock.read(), lock.read());
        assert!(lock.is_locked() && lock.try_write().is_none() || !lock.is_locked_exclusive());
        drop(one);
        drop(two);
        assert!(lock.try_write().is_some(), "a reader was left behind");
    }
}

#[test]
fn a_try_to_write_under_a_biased_reader_returns() {
    let lock = lock_api::RwLock::<BiasedRwLock<RawPhaseFair>, ()>::new(());
    drop(lock.read());
    let reader = lock.read();
    assert!(lock.try_write().is_none());
    drop(reader);
    assert!(lock.try_write().is_some());
}

#[test]
fn a_forgotten_reader_does_not_hold_the_next_lock_at_its_address() {
    let mut lock = lock_api::RwLock::<BiasedRwLock<RawPhaseFair>, ()>::new(());
    drop(lock.read());
    std::mem::forget(lock.read());
    lock = lock_api::RwLock::new(());
    drop(lock.read());
    assert!(lock.try_write().is_some());
}

/// Each value is put once and taken once, and values of one producer come in order to a consumer.
fn values_are_conserved(put: impl Fn(u64) + Sync, take: impl Fn() -> u64 + Sync) {
    const EACH: u64 = 100;
    let sum = AtomicU64::new(0);
    storm::rages(THREADS, |thread| {
        let mut last = vec![0_u64; THREADS];
        for value in 1..=EACH {
            if thread % 2 == 0 {
                put((thread as u64) << 32 | value);
            } else {
                let taken = take();
                let (producer, value) = ((taken >> 32) as usize, taken & 0xffff_ffff);
                assert!(value > last[producer], "a producer's values came out of order");
                last[producer] = value;
                // ORDER test.count: Relaxed; the join orders it.
                sum.fetch_add(taken, Ordering::Relaxed);
            }
        }
    });
    let wanted: u64 = (0..THREADS as u64).step_by(2).map(|thread| (thread << 32) * EACH + EACH * (EACH + 1) / 2).sum();
    assert_eq!(sum.load(Ordering::Relaxed), wanted, "a value was lost or came twice");
}

#[test]
fn bounded_queue_conserves_values() {
    for capacity in [2, 16] {
        let queue = BoundedQueue::with_capacity(capacity);
        values_are_conserved(|value| queue.put(value), || queue.take());
        assert_eq!(queue.try_take(), Err(TakeError::Empty));
    }
}

#[test]
fn ticket_queue_conserves_values() {
    for capacity in [1, 16] {
        let queue = TicketQueue::with_capacity(capacity);
        values_are_conserved(|value| queue.put(value), || queue.take());
    }
}

#[test]
fn a_queue_is_full_and_empty_and_drops_what_is_left() {
    let value = std::sync::Arc::new(());
    let queue = BoundedQueue::with_capacity(1);
    assert_eq!(queue.capacity(), 2);
    assert_eq!(queue.try_take(), Err(TakeError::Empty));
    assert!(queue.try_put(value.clone()).is_ok() && queue.try_put(value.clone()).is_ok());
    assert!(matches!(queue.try_put(value.clone()), Err(PutError::Full(_))));
    drop(queue);
    let queue = TicketQueue::with_capacity(2);
    queue.put(value.clone());
    drop(queue);
    assert_eq!(std::sync::Arc::strong_count(&value), 1, "a queue kept a value");
}

#[test]
fn clh_excludes() {
    struct Shared(ClhLock, UnsafeCell<u64>);
    // SAFETY: the number is touched only under the lock.
    unsafe impl Sync for Shared {}
    let shared = Shared(ClhLock::new(), UnsafeCell::new(0));
    let shared = &shared;
    storm::rages(64, |_| {
        let mut place = Place::new();
        for _ in 0..50 {
            let guard = shared.0.lock(&mut place);
            // SAFETY: the lock is held.
            unsafe { *shared.1.get() += 1 };
            drop(guard);
        }
    });
    // SAFETY: all threads have ended.
    assert_eq!(unsafe { *shared.1.get() }, 64 * 50);
}

#[test]
fn a_baton_goes_round_by_parking() {
    let parkers: Vec<Parker> = (0..64).map(|_| Parker::new()).collect();
    let hops = AtomicUsize::new(0);
    parkers[0].unpark();
    storm::rages(64, |thread| {
        for _ in 0..30 {
            parkers[thread].park();
            // ORDER test.count: Relaxed; the join orders it.
            hops.fetch_add(1, Ordering::Relaxed);
            parkers[(thread + 1) % 64].unpark();
        }
    });
    assert_eq!(hops.load(Ordering::Relaxed), 64 * 30);
}

#[test]
fn hazards_keep_what_is_read() {
    struct Object(u64, u64);
    static FREED: AtomicUsize = AtomicUsize::new(0);
    unsafe fn free(object: *mut ()) {
        // SAFETY: retired once, made by `Box`.
        let mut object = unsafe { Box::from_raw(object.cast::<Object>()) };
        (object.0, object.1) = (0, 0);
        // ORDER test.count: Relaxed; the join orders it.
        FREED.fetch_add(1, Ordering::Relaxed);
    }
    let fresh = |number| Box::into_raw(Box::new(Object(number, !number)));
    let domain = Domain::new();
    let current = AtomicPtr::new(fresh(1));
    storm::rages(64, |thread| {
        let (mut hazard, mut bag) = (domain.hazard(), domain.bag());
        for round in 0..200 {
            if thread % 4 == 0 {
                // ORDER hazard.dekker: AcqRel, with the loads in `protect`.
                let old = current.swap(fresh(round + 2), Ordering::AcqRel);
                // SAFETY: replaced, and retired once.
                unsafe { bag.retire(old, free) };
            } else {
                let object = hazard.protect(&current);
                // SAFETY: protected.
                let object = unsafe { &*object };
                assert_eq!(object.0, !object.1, "read after it was freed");
            }
        }
    });
    drop(domain);
    assert_eq!(FREED.load(Ordering::Relaxed), 16 * 200, "each replaced object is freed once");
    // SAFETY: nobody reads any more.
    drop(unsafe { Box::from_raw(current.into_inner()) });
}

/// A destructor that panics has run, and does not run again when the bag goes; those behind it are not forgotten.
#[test]
fn what_panics_while_it_is_freed_is_freed_once() {
    static FREED: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
    unsafe fn free(object: *mut ()) {
        // SAFETY: retired once, made by `Box`.
        let number = *unsafe { Box::from_raw(object.cast::<usize>()) };
        // ORDER test.count: Relaxed; one thread.
        FREED[number].fetch_add(1, Ordering::Relaxed);
        assert_ne!(number, 1, "as it should");
    }
    let domain = Domain::new();
    let mut bag = domain.bag();
    for number in 0..FREED.len() {
        // SAFETY: nobody else has it, and it is retired once.
        unsafe { bag.retire(Box::into_raw(Box::new(number)), free) };
    }
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bag.reclaim())).expect_err("the second one panics");
    drop(bag);
    drop(domain);
    assert_eq!(FREED.each_ref().map(|count| count.load(Ordering::Relaxed)), [1; 3]);
}

#[test]
fn the_clock_never_goes_back() {
    for granularity in [0, 1_000, 1_000_000] {
        let clock = MonotonicClock::new(Duration::from_nanos(granularity));
        let begun = Instant::now();
        let seen = AtomicU64::new(0);
        storm::rages(16, |_| {
            for _ in 0..20_000 {
                // ORDER test.seen: Acquire, with the Release below: what others have seen before.
                let before = seen.load(Ordering::Acquire);
                let now = clock.now_ns();
                assert!(now >= before, "the clock went back by {} ns", before - now);
                seen.fetch_max(now, Ordering::Release);
            }
        });
        // Many processors are through earlier.
        while begun.elapsed() < Duration::from_millis(12) {
            std::thread::yield_now();
        }
        assert!(clock.now_ns() >= 9_000_000, "it moves");
    }
}

/// A billion reads by four threads, each of which sees what another has read now and then.
#[test]
#[ignore = "some ten seconds: cargo test -p larder-sync --features std --release --test toolkit billion -- --ignored"]
fn the_clock_never_goes_back_in_a_billion_reads() {
    const READS: u64 = 250_000_000;
    let clock = MonotonicClock::new(Duration::from_micros(1));
    let seen = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut last = 0;
                for read in 0..READS {
                    if read % 256 == 0 {
                        // ORDER test.seen: Acquire, with the Release below: what others have seen before.
                        last = last.max(seen.load(Ordering::Acquire));
                    }
                    let now = clock.now_ns();
                    assert!(now >= last, "the clock went back by {} ns", last - now);
                    last = now;
                    if read % 256 == 128 {
                        seen.fetch_max(now, Ordering::Release);
                    }
                }
            });
        }
    });
}
