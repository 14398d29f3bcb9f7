//! Models of `safepoint.arrive` and `safepoint.over`: while the world is stopped no thread touches what the stop
//! protects, whatever it was doing when the stop was requested, and nobody sleeps for ever.
#![cfg(loom)]

mod model;

use larder_sync::safepoint::{Safepoint, Status};
use larder_sync::step;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

struct Shared {
    safepoint: Safepoint,
    status: [Status; 2],
    /// What thread `i` writes while it is not safe, and who stops while it stands.
    heap: [UnsafeCell<u32>; 2],
}

// SAFETY: loom checks the accesses to the cells.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn touch(&self, i: usize) -> u32 {
        // SAFETY: the protocol that is modelled keeps the others away.
        self.heap[i].with_mut(|heap| unsafe {
            *heap += 1;
            *heap
        })
    }

    /// A thread that works, polls, is blocked, works, and ends.
    fn mutate(&self, i: usize) {
        self.safepoint.leave(&self.status[i]);
        self.touch(i);
        if self.status[i].wants_stop() {
            self.safepoint.stop_here(&self.status[i]);
        }
        self.touch(i);
        self.safepoint.become_safe(&self.status[i]);
    }

    fn stop(&self, threads: usize) {
        let counted = self.status[..threads].iter().map(|status| self.safepoint.request(status)).sum();
        self.safepoint.wait(counted);
        for i in 0..threads {
            self.touch(i);
        }
        self.status[..threads].iter().for_each(|status| self.safepoint.release(status));
        self.safepoint.announce();
    }
}

fn stops(threads: usize, stops: usize, preemptions: usize) {
    model::explore(preemptions, move || {
        let shared = Arc::new(Shared {
            safepoint: Safepoint::new(),
            status: [Status::new_safe(), Status::new_safe()],
            heap: [UnsafeCell::new(0), UnsafeCell::new(0)],
        });
        let mutators: Vec<_> = (0..threads)
            .map(|i| {
                let shared = shared.clone();
                thread::spawn(move || shared.mutate(i))
            })
            .collect();
        for _ in 0..stops {
            shared.stop(threads);
        }
        for mutator in mutators {
            mutator.join().unwrap();
        }
        for i in 0..threads {
            assert_eq!(shared.touch(i), 2 + stops as u32 + 1);
        }
    });
}

#[test]
fn one_thread_and_a_stop() {
    stops(1, 1, 4);
}

#[test]
fn one_thread_and_two_stops() {
    stops(1, 2, 3);
}

#[test]
fn two_threads_and_a_stop() {
    stops(2, 1, 2);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn becoming_safe_without_release_is_caught() {
    step::without("safepoint: Release of who becomes safe", || stops(1, 1, 3));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn finding_a_safe_thread_without_acquire_is_caught() {
    step::without("safepoint: Acquire of who stops", || stops(1, 1, 3));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn arriving_without_release_is_caught() {
    step::without("safepoint.arrive: Release", || stops(1, 1, 3));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn waiting_without_acquire_is_caught() {
    step::without("safepoint.arrive: Acquire", || stops(1, 1, 3));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn leaving_without_acquire_is_caught() {
    step::without("safepoint.over: Acquire", || stops(1, 1, 3));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn resuming_without_release_is_caught() {
    step::without("safepoint.over: Release", || stops(1, 1, 3));
}
