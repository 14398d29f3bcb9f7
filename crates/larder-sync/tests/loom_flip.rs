//! Model of a flip during allocation (VEE'05, section 5.2): two threads allocate by functions of the thread set while a stop
//! retires all buffers, flips to the processor set, and makes what was obtained before invalid.
//!
//! Signals come before any access of a fast path, and abort it, as the kernel does with a sequence; slow paths mask them,
//! which is what deferral amounts to. Closing and comparing is the shipped code of `larder_sync::region`.
#![cfg(loom)]

mod model;
#[path = "model/pair.rs"]
mod pair;

use larder_sync::region::{self, Pair};
use larder_sync::{process_static, signals, step};
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use pair::Packed;
use std::sync::Arc;

const THREADS: usize = 2;
/// The processor's buffer, behind those of the threads.
const PROCESSOR: usize = THREADS;
const PIECES: usize = 16;
/// How many pieces a refill brings.
const REFILL: usize = 2;

struct World {
    /// Buffers of the threads and of the processor.
    buffers: [Packed; THREADS + 1],
    by_processor: AtomicBool,
    stop: AtomicBool,
    parked: AtomicUsize,
    /// Threads that allocate no more.
    gone: AtomicUsize,
    epoch: AtomicUsize,
    /// The next piece of the space, and the epoch in which each was obtained.
    top: AtomicUsize,
    epochs: [AtomicUsize; PIECES],
    taken: [AtomicUsize; PIECES],
}

process_static! {
    static WORLD: World = World {
        buffers: std::array::from_fn(|_| Packed::new([0, 0])),
        by_processor: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        parked: AtomicUsize::new(0),
        gone: AtomicUsize::new(0),
        epoch: AtomicUsize::new(0),
        top: AtomicUsize::new(0),
        epochs: std::array::from_fn(|_| AtomicUsize::new(0)),
        taken: std::array::from_fn(|_| AtomicUsize::new(0)),
    };
}

loom::thread_local! {
    static ABORTED: std::cell::Cell<bool> = std::cell::Cell::new(false);
}

/// The stop's signal.
fn park() {
    ABORTED.with(|aborted| aborted.set(true));
    WORLD.parked.fetch_add(1, Ordering::AcqRel);
    while WORLD.stop.load(Ordering::Acquire) {
        thread::yield_now();
    }
}

/// The bump sequence: 0 when the buffer has nothing. Signals come between its steps, none between the last test and the commit.
fn take(buffer: usize) -> usize {
    loop {
        ABORTED.with(|aborted| aborted.set(false));
        signals::look();
        let seen = WORLD.buffers[buffer].load();
        signals::look();
        if ABORTED.with(std::cell::Cell::get) && step::kept("flip: the abort") {
            continue;
        }
        if region::rest(seen) < 2 {
            return 0;
        }
        // The processor runs one thread at a time: that another one came between aborts as well.
        let next = [seen[0] + 2, seen[1]];
        if buffer == PROCESSOR {
            if !WORLD.buffers[buffer].compare_exchange(seen, next) {
                continue;
            }
        } else {
            WORLD.buffers[buffer].store(next);
        }
        return used(seen[0]);
    }
}

/// The piece is this thread's from here on. It must be of the present epoch.
fn used(at: usize) -> usize {
    let piece = (at - 2) / 2;
    let (obtained, now) = (WORLD.epochs[piece].load(Ordering::Relaxed), WORLD.epoch.load(Ordering::Relaxed));
    assert_eq!(obtained, now, "memory from before the stop");
    assert_eq!(WORLD.taken[piece].fetch_add(1, Ordering::Relaxed), 0, "piece {piece} was taken twice");
    at
}

/// The slow path: refills whatever the buffers belong to now.
fn allocate_slow(me: usize) -> usize {
    // A thread that does not defer can be stopped between any two of these steps.
    let mut at = 0;
    while at == 0 {
        let buffer = if WORLD.by_processor.load(Ordering::Relaxed) { PROCESSOR } else { me };
        let seen = WORLD.buffers[buffer].load();
        if region::rest(seen) >= 2 {
            at = take(buffer);
            continue;
        }
        let first = WORLD.top.fetch_add(REFILL, Ordering::Relaxed);
        assert!(first + REFILL <= PIECES, "the model's space is too small");
        let epoch = WORLD.epoch.load(Ordering::Relaxed);
        (first..first + REFILL).for_each(|piece| WORLD.epochs[piece].store(epoch, Ordering::Relaxed));
        let start = 2 * first + 2;
        // A collection inside the refill: what follows must see it.
        signals::mask(false);
        signals::mask(true);
        if WORLD.buffers[buffer].compare_exchange(seen, [start + 2, start + 2 * REFILL]) {
            at = used(start);
        }
    }
    at
}

fn mutator(me: usize, objects: usize) {
    for _ in 0..objects {
        // The function of the set that was in use in the beginning.
        if take(me) == 0 {
            signals::mask(true);
            allocate_slow(me);
            signals::mask(false);
        }
    }
    signals::mask(true);
    WORLD.gone.fetch_add(1, Ordering::AcqRel);
}

fn explore(preemptions: usize, objects: usize) {
    model::explore(preemptions, move || {
        let targets = Arc::new(Mutex::new(Vec::new()));
        let handles: Vec<_> = (0..THREADS)
            .map(|me| {
                let targets = targets.clone();
                thread::spawn(move || {
                    targets.lock().unwrap().push(signals::take_with(park));
                    mutator(me, objects);
                })
            })
            .collect();
        // A thread must be known before it can be stopped.
        while targets.lock().unwrap().len() < THREADS {
            thread::yield_now();
        }
        WORLD.stop.store(true, Ordering::Release);
        targets.lock().unwrap().iter().for_each(|target| signals::send(target));
        while WORLD.parked.load(Ordering::Acquire) + WORLD.gone.load(Ordering::Acquire) < THREADS {
            thread::yield_now();
        }
        for buffer in &WORLD.buffers {
            let stamp = if step::kept("flip: a new closed pair") { 16 } else { 0 };
            if step::kept("flip: all buffers are retired") {
                region::close(buffer, stamp);
            }
        }
        WORLD.epoch.fetch_add(1, Ordering::Relaxed);
        WORLD.by_processor.store(true, Ordering::Relaxed);
        WORLD.stop.store(false, Ordering::Release);
        handles.into_iter().for_each(|handle| handle.join().unwrap());
    });
}

#[test]
fn a_flip_comes_at_any_moment() {
    explore(2, 2);
}

/// What an uninterrupted fast path would commit after the flip belongs to the old epoch.
#[test]
#[should_panic]
fn a_sequence_that_is_not_aborted() {
    step::without("flip: the abort", || explore(2, 2));
}

#[test]
#[should_panic]
fn buffers_that_are_not_retired() {
    step::without("flip: all buffers are retired", || explore(2, 3));
}

/// A refill that read a closed pair before the stop finds the same after it.
#[test]
#[should_panic]
fn a_stop_that_leaves_the_same_closed_pair() {
    step::without("flip: a new closed pair", || explore(2, 2));
}
