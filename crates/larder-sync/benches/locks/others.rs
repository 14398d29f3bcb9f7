//! Reader-writer locks, queues, fence and clock.

use std::hint::black_box;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use larder_sync::asymmetric_fence;
use larder_sync::biased::BiasedRwLock;
use larder_sync::clock::MonotonicClock;
use larder_sync::phase_fair::RawPhaseFair;
use larder_sync::queue::{BoundedQueue, TicketQueue};
use larder_sync::random::Random;

use crate::lines;
use crate::window::{self, Options, Outcome, compare, spread, step};

fn read_write<R: lock_api::RawRwLock + Send + Sync>(threads: usize, writes_of_1024: u64, options: &Options) -> Outcome {
    let lock = lock_api::RwLock::<R, u64>::new(1);
    let lock = &lock;
    window::run(threads, options.window, &move |_, seed| {
        if step(seed) >> 54 < writes_of_1024 {
            step(&mut lock.write());
        } else {
            black_box(*lock.read());
        }
        true
    })
}

/// Every thread puts one message and takes one, so that nobody waits for ever when the window is over.
fn messages(threads: usize, options: &Options, put: &(dyn Fn(u64) + Sync), take: &(dyn Fn() -> u64 + Sync)) -> Outcome {
    window::run(threads, options.window, &|_, seed| {
        put(*seed);
        black_box(take());
        true
    })
}

/// The most threads that put, and that take.
const MOST_EACH: usize = 128;

/// Runs threads that put and take.
type Traffic<'a> = &'a dyn Fn(&(dyn Fn(u64) + Sync), &(dyn Fn() -> u64 + Sync)) -> Outcome;

fn queues(title: &str, threads: usize, capacity: usize, options: &Options, traffic: Traffic) {
    compare(
        title,
        threads,
        options,
        &[
            ("crossbeam-channel", &|| {
                let (sender, receiver) = crossbeam_channel::bounded(capacity);
                traffic(&|value| sender.send(value).unwrap(), &|| receiver.recv().unwrap())
            }),
            ("larder BoundedQueue", &|| {
                let queue = BoundedQueue::with_capacity(capacity);
                traffic(&|value| queue.put(value), &|| queue.take())
            }),
            ("larder TicketQueue", &|| {
                let queue = TicketQueue::with_capacity(capacity);
                traffic(&|value| queue.put(value), &|| queue.take())
            }),
        ],
    );
}

pub fn run(options: &Options) {
    for &threads in &options.threads {
        for (name, writes) in [("rwlock-read", 0), ("rwlock-mixed", 100)] {
            if !options.wants(name) {
                continue;
            }
            compare(
                &format!("{name}: {writes} of 1024 operations write"),
                threads,
                options,
                &[
                    ("parking_lot RwLock", &|| read_write::<parking_lot::RawRwLock>(threads, writes, options)),
                    ("larder PhaseFairRwLock", &|| read_write::<RawPhaseFair>(threads, writes, options)),
                    ("larder BiasedRwLock<PhaseFair>", &|| {
                        read_write::<BiasedRwLock<RawPhaseFair>>(threads, writes, options)
                    }),
                ],
            );
        }
        for capacity in [16, 1024] {
            // Each thread has one message under way at most, so more threads than slots could all wait to put.
            if options.wants("queue") && threads < capacity {
                let title = format!("queue: capacity {capacity}, each thread puts one and takes one");
                queues(&title, threads, capacity, options, &|put, take| messages(threads, options, put, take));
            }
            if options.wants("lines") && threads <= MOST_EACH {
                let title = format!("lines: capacity {capacity}, {threads} threads put and as many take");
                queues(&title, threads, capacity, options, &|put, take| lines::run(threads, options.window, put, take));
            }
        }
    }
    if options.wants("single") {
        singles(options);
    }
}

/// What one operation of one thread takes, in nanoseconds.
fn singles(options: &Options) {
    asymmetric_fence::init();
    let clock = MonotonicClock::new(Duration::from_micros(1));
    let mut random = Random::from_seed(3);
    let mut other = random.clone();
    let mut third = random.clone();
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // The loop is inside of the closure, so that a call does not hide what costs less.
    macro_rules! row {
        ($name:literal, $shift:literal, $operation:expr) => {
            ($name, 1 << $shift, Box::new(|times| (0..times).for_each(|_| $operation)))
        };
    }
    type Row<'a> = (&'a str, u32, Box<dyn FnMut(u32) + 'a>);
    let mut rows: Vec<Row> = vec![
        row!("fence(SeqCst)", 20, {
            // Without it, fences that follow one another become one.
            black_box(());
            fence(Ordering::SeqCst)
        }),
        row!("asymmetric_fence::light", 20, {
            black_box(());
            asymmetric_fence::light()
        }),
        // SAFETY: takes no memory.
        row!("raw membarrier", 12, unsafe {
            libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
        }),
        row!("asymmetric_fence::heavy", 12, asymmetric_fence::heavy()),
        // SAFETY: a writable timespec.
        row!("clock_gettime", 18, unsafe {
            libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
        }),
        row!("MonotonicClock, 1 us", 18, {
            black_box(clock.now_ns());
        }),
        row!("random", 20, {
            black_box(random.next_word());
        }),
        row!("random % n", 20, {
            black_box(third.next_word() % black_box(1000));
        }),
        row!("random.below(n)", 20, {
            black_box(other.below(black_box(1000)));
        }),
    ];
    println!("\n## single: one thread, nanoseconds for one operation\n| what | median | range |\n|---|---|---|");
    let mut results: Vec<Vec<f64>> = rows.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.rounds.max(5) {
        for ((_, times, operation), results) in rows.iter_mut().zip(&mut results) {
            let start = Instant::now();
            operation(*times);
            results.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(*times));
        }
    }
    for ((name, ..), results) in rows.iter().zip(results) {
        let (median, low, high) = spread(results);
        println!("| {name} | {median:.2} | {low:.2}-{high:.2} |");
    }
}
