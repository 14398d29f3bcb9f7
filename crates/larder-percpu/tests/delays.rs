//! Delays at the numbered points inside the sequences, and everything else between them: the windows in which something can
//! go wrong become thousands of times wider.
//!
//! Inside a sequence only a loop may delay. Between sequences threads yield, sleep, get signals, and move.

#[path = "storm/workload.rs"]
mod workload;

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use larder_percpu::sequence::table::{DELAYS, restarts};
use workload::{World, crowd, every_way, handle, pin};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Six threads for each CPU, with the given loops at the three points.
fn delayed(delays: [u32; 3], rounds: usize) {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    for options in every_way() {
        let world = World::new(options);
        handle(libc::SIGUSR1);
        for (place, loops) in DELAYS.iter().zip(delays) {
            place.store(loops, Ordering::Relaxed);
        }
        let cpus = larder_sys::cpus::possible();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20 {
                    world.take_over();
                    thread::yield_now();
                }
            });
            crowd(6 * larder_sys::cpus::allowed(), |i| {
                let round = Cell::new(i);
                let between = || {
                    round.set(round.get() + 1);
                    match round.get() % 16 {
                        0 => _ = pin(round.get() / 16 % cpus),
                        1 => thread::sleep(Duration::from_nanos(1)),
                        // SAFETY: handled.
                        2 => _ = unsafe { libc::raise(libc::SIGUSR1) },
                        3 | 4 => thread::yield_now(),
                        _ => {}
                    }
                };
                for _ in 0..rounds {
                    world.work(&between);
                }
            });
        });
        DELAYS.iter().for_each(|place| place.store(0, Ordering::Relaxed));
        world.settle();
    }
    let all: Vec<_> = restarts().filter(|(_, n)| *n > 0).collect();
    eprintln!("{delays:?}: restarts {all:?}");
}

#[test]
fn after_arming() {
    delayed([2000, 0, 0], 2000);
}

#[test]
fn when_the_area_is_known() {
    delayed([0, 2000, 0], 2000);
}

#[test]
fn before_the_commit() {
    delayed([0, 0, 2000], 2000);
}

/// Some of everything, and a long loop before the commit now and then: longer than many a time slice.
#[test]
fn everywhere() {
    delayed([300, 300, 300], 2000);
    delayed([0, 0, 100_000], 100);
}
