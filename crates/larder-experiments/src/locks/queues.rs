//! Bounded queues: each thread puts a message and takes one, so that nobody waits for ever when the window is over; and some
//! threads put while as many take.

use std::hint::black_box;

use crossbeam_queue::ArrayQueue;
use larder_sync::queue::{BoundedQueue, TicketQueue};

use crate::Options;
use crate::lines;
use crate::study::{Contender, Study};
use crate::window::{self, Outcome};

/// The most threads of either kind.
const MOST_EACH: usize = 128;

/// How many threads use a queue, and what they do.
#[derive(Clone, Copy)]
enum Shape {
    /// Each puts a message and takes one.
    Both(usize),
    /// So many put, and as many take.
    Lines(usize),
}

fn messages(shape: Shape, options: &Options, put: &(dyn Fn(u64) + Sync), take: &(dyn Fn() -> u64 + Sync)) -> Outcome {
    match shape {
        Shape::Both(threads) => window::run(threads, options.window(), &|_| {
            move |seed: &mut u64| {
                put(*seed);
                black_box(take());
            }
        }),
        Shape::Lines(each) => lines::run(each, options.window(), put, take),
    }
}

/// Every queue of `capacity` slots.
fn contenders<'a>(capacity: usize, options: &'a Options, shape: fn(usize) -> Shape) -> [Contender<'a>; 4] {
    [
        Contender {
            name: "crossbeam-channel",
            run: Box::new(move |threads| {
                let (sender, receiver) = crossbeam_channel::bounded(capacity);
                // Both ends live until the window is over, so neither call can fail.
                let put = |value| sender.send(value).unwrap_or(());
                messages(shape(threads), options, &put, &|| receiver.recv().unwrap_or(0))
            }),
            log: None,
        },
        Contender {
            name: "ArrayQueue, yielding",
            run: Box::new(move |threads| {
                let queue = ArrayQueue::new(capacity);
                let put = |mut value| {
                    while let Err(back) = queue.push(value) {
                        value = back;
                        std::thread::yield_now();
                    }
                };
                let take = || {
                    loop {
                        match queue.pop() {
                            Some(value) => return value,
                            None => std::thread::yield_now(),
                        }
                    }
                };
                messages(shape(threads), options, &put, &take)
            }),
            log: None,
        },
        Contender {
            name: "BoundedQueue",
            run: Box::new(move |threads| {
                let queue = BoundedQueue::with_capacity(capacity);
                messages(shape(threads), options, &|value| queue.put(value), &|| queue.take())
            }),
            log: None,
        },
        Contender {
            name: "TicketQueue",
            run: Box::new(move |threads| {
                let queue = TicketQueue::with_capacity(capacity);
                messages(shape(threads), options, &|value| queue.put(value), &|| queue.take())
            }),
            log: None,
        },
    ]
}

pub fn studies(options: &Options) -> Vec<Study> {
    let says = "How many messages pass by a second of processor time.";
    let both = |capacity: usize| {
        // Each thread has one message under way at most; with more threads than slots all could wait to put.
        let points: Vec<usize> = options.threads().filter(|&threads| threads < capacity).collect();
        let name = format!("queues of {capacity} slots, each thread puts one and takes one");
        let contenders = contenders(capacity, options, Shape::Both);
        Study::over(name, says, "threads", &points, "messages", options, &contenders)
    };
    let lines = |capacity: usize| {
        let points: Vec<usize> = options.threads().filter(|&each| each <= MOST_EACH).collect();
        let name = format!("queues of {capacity} slots, some threads put and as many take");
        let contenders = contenders(capacity, options, Shape::Lines);
        Study::over(name, says, "threads of either kind", &points, "messages", options, &contenders)
    };
    [16, 1024].into_iter().flat_map(|capacity| [both(capacity), lines(capacity)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    #[test]
    fn everybody_leaves_and_what_was_taken_is_counted() {
        for each in [1, 3, 40] {
            let queue = BoundedQueue::with_capacity(16);
            let puts = AtomicU64::new(0);
            let put = |value| {
                puts.fetch_add(1, Ordering::Relaxed);
                queue.put(value);
            };
            let outcome = lines::run(each, Duration::from_millis(10), &put, &|| queue.take());
            assert_eq!(outcome.counts.len(), each);
            let (taken, put) = (outcome.counts.iter().sum::<u64>(), puts.load(Ordering::Relaxed));
            assert!(taken + each as u64 <= put, "{taken} of {put}");
            assert!(queue.try_take().is_err(), "something was left");
        }
    }
}
