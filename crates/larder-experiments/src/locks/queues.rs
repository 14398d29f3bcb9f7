//! Bounded queues: each thread puts a message and takes one, so that nobody waits for ever when the window is over.

use std::hint::black_box;

use crossbeam_queue::ArrayQueue;
use larder_sync::queue::{BoundedQueue, TicketQueue};

use crate::Options;
use crate::study::{Contender, Study};
use crate::window::{self, Outcome};

fn messages(threads: usize, options: &Options, put: &(dyn Fn(u64) + Sync), take: &(dyn Fn() -> u64 + Sync)) -> Outcome {
    window::run(threads, options.window(), &|_| {
        move |seed: &mut u64| {
            put(*seed);
            black_box(take());
        }
    })
}

pub fn studies(options: &Options) -> Vec<Study> {
    let study = |capacity: usize| {
        let contenders = [
            Contender {
                name: "crossbeam-channel",
                run: Box::new(move |threads| {
                    let (sender, receiver) = crossbeam_channel::bounded(capacity);
                    // Both ends live until the window is over, so neither call can fail.
                    let put = |value| sender.send(value).unwrap_or(());
                    messages(threads, options, &put, &|| receiver.recv().unwrap_or(0))
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
                    messages(threads, options, &put, &take)
                }),
                log: None,
            },
            Contender {
                name: "BoundedQueue",
                run: Box::new(move |threads| {
                    let queue = BoundedQueue::with_capacity(capacity);
                    messages(threads, options, &|value| queue.put(value), &|| queue.take())
                }),
                log: None,
            },
            Contender {
                name: "TicketQueue",
                run: Box::new(move |threads| {
                    let queue = TicketQueue::with_capacity(capacity);
                    messages(threads, options, &|value| queue.put(value), &|| queue.take())
                }),
                log: None,
            },
        ];
        // Each thread has one message under way at most; with more threads than slots all could wait to put.
        let points: Vec<usize> = options.threads().filter(|&threads| threads < capacity).collect();
        Study::over(
            format!("queues of {capacity} slots, each thread puts one and takes one"),
            "How many messages pass by a second of processor time.",
            "threads",
            &points,
            "messages",
            options,
            &contenders,
        )
    };
    [16, 1024].into_iter().map(study).collect()
}
