//! Storms: many threads, affinity flips, handlers that use the same structures, membarriers, take-overs and forks, all at
//! once; afterwards each element is in exactly one place.

#[path = "storm/workload.rs"]
mod workload;

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use larder_percpu::Options;
use workload::{World, crowd, every_way, handle, pin};

/// Handlers find the world by a static: one storm at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `threads` threads of `rounds` each in a storm.
fn storm(options: Options, threads: usize, rounds: usize) {
    let world = World::new(options);
    handle(libc::SIGUSR1);
    let cpus = larder_sys::cpus::possible();
    let over = AtomicBool::new(false);
    let forks = AtomicUsize::new(0);
    thread::scope(|scope| {
        // Membarriers and take-overs.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                larder_sys::membarrier::abort_sequences();
                world.take_over();
                thread::yield_now();
            }
        });
        // Forks, whose children work on what they inherited. One at least, even if this thread gets no CPU before the others are done.
        scope.spawn(|| {
            loop {
                // SAFETY: the child uses the world and ends, without the standard library.
                unsafe {
                    let child = libc::fork();
                    if child == 0 {
                        // No signal is on its way to the child; nobody else is there to hold anything.
                        for _ in 0..20 {
                            world.work(&|| {});
                        }
                        world.take_over();
                        libc::_exit(7);
                    }
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                    assert_eq!(libc::WEXITSTATUS(status), 7, "a child that works on what it inherited");
                }
                forks.fetch_add(1, Ordering::Relaxed);
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        crowd(threads, |i| {
            let round = Cell::new(0usize);
            let between = || {
                round.set(round.get() + 1);
                match (i + round.get()) % 131 {
                    0 => _ = pin((i + round.get() / 131) % cpus),
                    // SAFETY: handled; the signal arrives before `raise` returns.
                    1 => _ = unsafe { libc::raise(libc::SIGUSR1) },
                    2 => thread::yield_now(),
                    _ => {}
                }
            };
            // SAFETY: the thread lives while its timer does, which is deleted below.
            let timer = (i < 8).then(|| unsafe { timer(larder_sys::thread::tid()) });
            for _ in 0..rounds {
                world.work(&between);
            }
            if let Some(timer) = timer {
                // SAFETY: made above.
                unsafe { libc::timer_delete(timer) };
            }
        });
        over.store(true, Ordering::Relaxed);
    });
    world.settle();
    let (handled, forks) = (world.handled.load(Ordering::Relaxed), forks.load(Ordering::Relaxed));
    eprintln!("{:?}, {threads} threads: {handled} handlers, {forks} forks", world.mode());
    assert!(handled > 0 && forks > 0);
}

/// Sends the thread SIGUSR1 every 500 microseconds, wherever it is.
unsafe fn timer(tid: i32) -> libc::timer_t {
    // SAFETY: the records are initialised; the caller deletes the timer.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGUSR1;
        event.sigev_notify_thread_id = tid;
        let mut timer = std::mem::zeroed();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
        let every = libc::timespec { tv_sec: 0, tv_nsec: 500_000 };
        let time = libc::itimerspec { it_interval: every, it_value: every };
        assert_eq!(libc::timer_settime(timer, 0, &time, std::ptr::null_mut()), 0);
        timer
    }
}

fn in_every_way(threads: usize, rounds: usize) {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    for options in every_way() {
        storm(options, threads, rounds);
    }
}

#[test]
fn two_threads() {
    in_every_way(2, 20_000);
}

#[test]
fn six_threads_for_each_cpu() {
    in_every_way(6 * larder_sys::cpus::allowed(), 4000);
}

#[test]
fn sixty_four_threads() {
    in_every_way(64, 700);
}

#[test]
fn a_thousand_threads() {
    in_every_way(1000, 40);
}
