//! The main locks and queues under shuttle's schedulers: PCT, which is unfair, and one that picks at random. More threads and rounds
//! than loom can explore; a thread that is never woken is a deadlock, one that waits without giving way never ends.
#![cfg(all(loom, shuttle))]

mod schedules;

use std::sync::Arc;

use larder_sync::biased::BiasedRwLock;
use larder_sync::clh::{ClhLock, Place};
use larder_sync::fair::{RawMcsLock, RawQueueLock};
use larder_sync::lock::Lock;
use larder_sync::loom::cell::UnsafeCell;
use larder_sync::loom::sync::atomic::{AtomicUsize, Ordering};
use larder_sync::loom::thread;
use larder_sync::mutex::{Condvar, RawMutex};
use larder_sync::parker::Parker;
use larder_sync::phase_fair::RawPhaseFair;
use larder_sync::queue::{BoundedQueue, TicketQueue};
use larder_sync::reciprocating::RawReciprocating;
use larder_sync::restrict::Restriction;
use larder_sync::sched::{Running, RunningOracle};
use larder_sync::step;
use larder_sync::turns::TurnLock;
use schedules::run;

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

/// A lock as the models use it: take it, run, release it.
trait Excludes: Send + Sync + 'static {
    fn fresh() -> Self;
    fn with(&self, f: &mut dyn FnMut());
}

macro_rules! raw {
    ($($lock:ty = $new:expr;)*) => { $(
        impl Excludes for $lock {
            fn fresh() -> Self {
                $new
            }
            fn with(&self, f: &mut dyn FnMut()) {
                self.lock();
                f();
                // SAFETY: locked above.
                unsafe { self.unlock() };
            }
        }
    )* };
}
raw! {
    RawMutex = Self::new();
    RawMcsLock = Self::new();
    RawQueueLock<Nobody> = Self::new();
    RawReciprocating = Self::new();
    TurnLock<RawQueueLock<Nobody>> = Self::with_line(RawQueueLock::new());
    TurnLock<RawReciprocating> = Self::with_line(RawReciprocating::new());
}

impl Excludes for Lock {
    fn fresh() -> Self {
        Self::new()
    }
    fn with(&self, f: &mut dyn FnMut()) {
        self.lock_raw();
        f();
        // SAFETY: locked above.
        unsafe { self.unlock_raw() };
    }
}

/// Two places before a lock of its own.
struct Restricted(Restriction, Lock);

impl Excludes for Restricted {
    fn fresh() -> Self {
        Self(Restriction::new(2), Lock::new())
    }
    fn with(&self, f: &mut dyn FnMut()) {
        self.0.enter();
        self.1.lock_raw();
        f();
        // SAFETY: entered and locked above.
        unsafe { self.0.leave(|| self.1.unlock_raw()) };
    }
}

struct Guarded<L> {
    lock: L,
    number: UnsafeCell<usize>,
}

// SAFETY: `number` is used under `lock` only; the cell finds two at once.
unsafe impl<L: Sync> Sync for Guarded<L> {}
// SAFETY: as above.
unsafe impl<L: Send> Send for Guarded<L> {}

/// `threads` threads increment `times` times each; none is lost, and all end.
fn increments_are_not_lost<L: Excludes>(threads: usize, times: usize) {
    run(move || {
        let guarded = Arc::new(Guarded { lock: L::fresh(), number: UnsafeCell::new(0) });
        let all: Vec<_> = (0..threads)
            .map(|_| {
                let guarded = guarded.clone();
                thread::spawn(move || {
                    for _ in 0..times {
                        // SAFETY: under the lock.
                        let mut add = || guarded.number.with_mut(|number| unsafe { *number += 1 });
                        guarded.lock.with(&mut add);
                    }
                })
            })
            .collect();
        all.into_iter().for_each(|thread| thread.join().unwrap());
        // SAFETY: all threads have ended.
        guarded.number.with(|number| assert_eq!(unsafe { *number }, threads * times));
    });
}

macro_rules! locks {
    ($($name:ident: $lock:ty;)*) => { $(
        #[test]
        fn $name() {
            increments_are_not_lost::<$lock>(6, 4);
            increments_are_not_lost::<$lock>(12, 2);
        }
    )* };
}
locks! {
    the_lock_of_slow_paths: Lock;
    mutex: RawMutex;
    mcs: RawMcsLock;
    fifo_that_evicts_whom_it_can: RawQueueLock<Nobody>;
    reciprocating: RawReciprocating;
    fair_in_turns: TurnLock<RawQueueLock<Nobody>>;
    reciprocating_in_turns: TurnLock<RawReciprocating>;
    restricted: Restricted;
}

/// The models find what is left out.
#[test]
#[should_panic(expected = "deadlock")]
fn a_mutex_that_wakes_nobody_is_found() {
    step::without("mutex: the wake", || increments_are_not_lost::<RawMutex>(6, 4));
}

#[test]
fn clh() {
    run(|| {
        let guarded = Arc::new(Guarded { lock: ClhLock::new(), number: UnsafeCell::new(0) });
        let add = |guarded: Arc<Guarded<ClhLock>>| {
            move || {
                let mut place = Place::new();
                for _ in 0..3 {
                    let _held = guarded.lock.lock(&mut place);
                    // SAFETY: under the lock.
                    guarded.number.with_mut(|number| unsafe { *number += 1 });
                }
            }
        };
        let all: Vec<_> = (0..8).map(|_| thread::spawn(add(guarded.clone()))).collect();
        all.into_iter().for_each(|thread| thread.join().unwrap());
        // SAFETY: all threads have ended.
        guarded.number.with(|number| assert_eq!(unsafe { *number }, 24));
    });
}

fn readers_and_writers<R: lock_api::RawRwLock + Send + Sync + 'static>(fresh: fn() -> R) {
    run(move || {
        let lock = Arc::new(lock_api::RwLock::from_raw(fresh(), [0; 2]));
        let reader = |lock: Arc<lock_api::RwLock<R, [usize; 2]>>| {
            move || {
                for _ in 0..3 {
                    let pair = lock.read();
                    let first = pair[0];
                    thread::yield_now();
                    assert_eq!(first, pair[1], "a writer came between");
                }
            }
        };
        let writer = |lock: Arc<lock_api::RwLock<R, [usize; 2]>>| {
            move || {
                for _ in 0..3 {
                    let mut pair = lock.write();
                    pair[0] += 1;
                    thread::yield_now();
                    pair[1] += 1;
                }
            }
        };
        let readers: Vec<_> = (0..5).map(|_| thread::spawn(reader(lock.clone()))).collect();
        let writers: Vec<_> = (0..3).map(|_| thread::spawn(writer(lock.clone()))).collect();
        readers.into_iter().chain(writers).for_each(|thread| thread.join().unwrap());
        assert_eq!(*lock.read(), [9, 9]);
    });
}

#[test]
fn phase_fair() {
    readers_and_writers(RawPhaseFair::new);
}

#[test]
fn biased() {
    readers_and_writers(|| BiasedRwLock::around(RawPhaseFair::new()));
}

/// So many threads put numbers, and as many take them: each comes out once.
fn each_comes_out_once<Q: Send + Sync + 'static>(
    threads: usize,
    fresh: impl Fn() -> Q + Send + Sync + 'static,
    put: fn(&Q, usize),
    take: fn(&Q) -> usize,
) {
    run(move || {
        let queue = Arc::new(fresh());
        let producers: Vec<_> = (0..threads)
            .map(|n| {
                let queue = queue.clone();
                thread::spawn(move || (0..3).for_each(|m| put(&queue, 3 * n + m)))
            })
            .collect();
        let consumers: Vec<_> = (0..threads)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || (0..3).map(|_| take(&queue)).collect::<Vec<_>>())
            })
            .collect();
        producers.into_iter().for_each(|thread| thread.join().unwrap());
        let mut all: Vec<_> = consumers.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..3 * threads), "a value was lost or came twice");
    });
}

fn bounded(threads: usize, slots: usize) {
    each_comes_out_once(
        threads,
        move || BoundedQueue::with_capacity(slots),
        |queue, n| queue.put(n),
        |queue| queue.take(),
    );
}

fn tickets(threads: usize, slots: usize) {
    each_comes_out_once(
        threads,
        move || TicketQueue::with_capacity(slots),
        |queue, n| queue.put(n),
        |queue| queue.take(),
    );
}

#[test]
fn bounded_queue() {
    bounded(4, 2);
    bounded(8, 2);
    bounded(5, 4);
}

#[test]
fn ticket_queue() {
    tickets(4, 2);
    tickets(8, 1);
    tickets(8, 2);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_queue_whose_sleepers_do_not_pass_on_is_found() {
    step::without("events: who slept passes on", || bounded(8, 2));
}

/// Some take tokens, and as many put them; each put is followed by one notification.
#[test]
fn condition_variable() {
    run(|| {
        let shared = Arc::new((lock_api::Mutex::<RawMutex, usize>::from_raw(RawMutex::new(), 0), Condvar::new()));
        let putting = |shared: Arc<(lock_api::Mutex<RawMutex, usize>, Condvar)>| {
            move || {
                for _ in 0..3 {
                    *shared.0.lock() += 1;
                    shared.1.notify_one();
                }
            }
        };
        let taking = |shared: Arc<(lock_api::Mutex<RawMutex, usize>, Condvar)>| {
            move || {
                for _ in 0..3 {
                    let mut tokens = shared.0.lock();
                    while *tokens == 0 {
                        shared.1.wait(&mut tokens);
                    }
                    *tokens -= 1;
                }
            }
        };
        let takers: Vec<_> = (0..5).map(|_| thread::spawn(taking(shared.clone()))).collect();
        let putters: Vec<_> = (0..5).map(|_| thread::spawn(putting(shared.clone()))).collect();
        putters.into_iter().chain(takers).for_each(|thread| thread.join().unwrap());
        assert_eq!(*shared.0.lock(), 0);
    });
}

/// A token goes round; each also gets one too many now and then, which makes no difference.
#[test]
fn parkers() {
    const AROUND: usize = 6;
    run(|| {
        let parkers: Arc<Vec<Parker>> = Arc::new((0..AROUND).map(|_| Parker::new()).collect());
        let turn = Arc::new(AtomicUsize::new(0));
        let hop = |me: usize, parkers: Arc<Vec<Parker>>, turn: Arc<AtomicUsize>| {
            move || {
                for lap in 0..3 {
                    // ORDER parker.token: Relaxed; the token brings it.
                    while turn.load(Ordering::Relaxed) != lap * AROUND + me {
                        parkers[me].park();
                    }
                    turn.store(lap * AROUND + me + 1, Ordering::Relaxed);
                    parkers[(me + 1) % AROUND].unpark();
                    parkers[(me + 3) % AROUND].unpark();
                }
            }
        };
        let all: Vec<_> = (0..AROUND).map(|me| thread::spawn(hop(me, parkers.clone(), turn.clone()))).collect();
        all.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(turn.load(Ordering::Relaxed), 3 * AROUND);
    });
}
