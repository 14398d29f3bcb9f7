//! Locks and events under many real threads and the real kernel.
#![cfg(not(loom))]

use larder_sync::lock::Lock;
use larder_sync::parker::Event;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A number under a lock, deliberately not atomic.
struct Guarded {
    lock: Lock,
    number: UnsafeCell<u64>,
}

// SAFETY: the tests touch `number` only under `lock`.
unsafe impl Sync for Guarded {}

#[test]
fn counter_of_64_threads_is_exact() {
    const THREADS: u64 = 64;
    const ROUNDS: u64 = 2_000;
    let guarded = Guarded { lock: Lock::new(), number: UnsafeCell::new(0) };
    let tries_that_won = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (guarded, tries_that_won) = (&guarded, &tries_that_won);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let tried = (thread + round).is_multiple_of(3).then(|| guarded.lock.try_lock()).flatten();
                    if tried.is_some() {
                        // ORDER test.count: Relaxed; the join of the threads orders it before its reader.
                        tries_that_won.fetch_add(1, Ordering::Relaxed);
                    }
                    let guard = tried.unwrap_or_else(|| guarded.lock.lock());
                    // SAFETY: the lock is held.
                    unsafe { *guarded.number.get() += 1 };
                    if round.is_multiple_of(64) {
                        thread::yield_now();
                    }
                    drop(guard);
                }
            });
        }
    });
    // SAFETY: all threads have ended.
    assert_eq!(unsafe { *guarded.number.get() }, THREADS * ROUNDS);
    assert!(!guarded.lock.is_locked());
}

#[test]
fn a_failed_try_leaves_the_lock_held() {
    let lock = Lock::new();
    let guard = lock.lock();
    assert!(lock.try_lock().is_none());
    assert!(!lock.try_lock_raw());
    assert!(lock.is_locked(), "a failed try released the lock");
    drop(guard);
    assert!(!lock.is_locked());
}

#[test]
fn waiting_leaves_errno_alone() {
    let event = Event::new();
    // SAFETY: the location is valid in every thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above, and only this thread writes it.
    unsafe { errno.write(libc::EXDEV) };
    assert!(!event.wait_timeout(event.current(), 1_000_000));
    // SAFETY: as above.
    assert_eq!(unsafe { errno.read() }, libc::EXDEV);
}

#[test]
fn a_timeout_is_neither_early_nor_a_false_alarm() {
    let event = Event::new();
    let wanted = Duration::from_millis(20);
    let start = Instant::now();
    assert!(!event.wait_timeout(event.current(), wanted.as_nanos() as u64));
    assert!(start.elapsed() >= wanted);
    let seen = event.current();
    event.bump_and_wake_all();
    assert!(event.wait_timeout(seen, 0));
    assert!(event.wait_timeout(seen, u64::MAX));
}

#[test]
fn a_count_from_before_a_fork_is_old() {
    let event = Event::new();
    let seen = event.current();
    // SAFETY: no other thread knows the event.
    unsafe { event.reset_after_fork() };
    event.wait(seen);
    let lock = Lock::new();
    lock.lock_raw();
    // SAFETY: no other thread knows the lock, and there is no guard.
    unsafe { lock.reset_after_fork() };
    assert!(lock.try_lock().is_some());
}

extern "C" fn ignore(_signal: libc::c_int) {}

/// A wait that is hit by signals goes on; it ends with the event.
#[test]
fn signals_do_not_end_a_wait() {
    // SAFETY: the handler does nothing, and no other test of this file uses the signal. Without SA_RESTART, the futex
    // call returns EINTR.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let event = Event::new();
    let happened = AtomicBool::new(false);
    let waiter = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let seen = event.current();
            // SAFETY: always allowed.
            // ORDER test.waiter: Release, with the load below; whoever sees it knows that `seen` has been read.
            waiter.store(unsafe { libc::pthread_self() } as usize, Ordering::Release);
            event.wait(seen);
            // ORDER event.happen: Relaxed; the wait acquired it.
            assert!(happened.load(Ordering::Relaxed), "a signal ended the wait");
        });
        let thread = loop {
            // ORDER test.waiter: Acquire, with the store above.
            match waiter.load(Ordering::Acquire) {
                0 => thread::yield_now(),
                thread => break thread,
            }
        };
        for _ in 0..200 {
            // SAFETY: the thread waits for the event and so has not ended.
            unsafe { libc::pthread_kill(thread as libc::pthread_t, libc::SIGUSR1) };
            thread::yield_now();
        }
        // ORDER event.happen: Relaxed; the bump publishes it.
        happened.store(true, Ordering::Relaxed);
        event.bump_and_wake_all();
    });
}

/// The kernel wakes threads of real-time priorities first. One that begins to wait between an event and the wake that belongs to it has no part in that.
#[test]
fn a_wake_is_not_taken_by_a_thread_of_high_priority_that_came_later() {
    static EVENT: Event = Event::new();
    let id = |thread: &AtomicUsize| loop {
        match thread.load(Ordering::Acquire) {
            0 => thread::yield_now(),
            id => break id,
        }
    };
    let sleeps = |thread: usize| {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('S')
    };
    let wait = |seen: u32, real_time: bool, at: &AtomicUsize| {
        // SAFETY: plain calls about the calling thread.
        let refused = unsafe {
            let priority = libc::sched_param { sched_priority: 1 };
            let refused = real_time && libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) != 0;
            at.store(libc::gettid() as usize, Ordering::Release);
            refused
        };
        EVENT.wait(seen);
        refused
    };
    let (early, late) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let first = scope.spawn(|| wait(0, false, &early));
        let first_id = id(&early);
        while !sleeps(first_id) {
            thread::yield_now();
        }
        let latest = EVENT.bump();
        let (wait, late) = (&wait, &late);
        let second = scope.spawn(move || wait(latest, true, late));
        let second_id = id(late);
        while !sleeps(second_id) {
            thread::yield_now();
        }
        EVENT.wake_earlier(1, latest);
        first.join().unwrap();
        assert!(sleeps(second_id), "it waits for what has not happened yet");
        EVENT.bump_and_wake_earlier(1);
        if second.join().unwrap() {
            eprintln!("SKIPPED in part: this process may not have threads of real-time priorities");
        }
    });
}
