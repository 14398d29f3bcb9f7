//! Many threads: stops with threads that allocate, wait, come and go.

mod mini;

use larder_lab::{Lowest, Processors};
use larder_moving::{Barrier, Collection, Config};
use larder_percpu::Level;
use larder_policy::labs::Sizes;
use larder_units::Bytes;
use mini::*;
use std::io::Write;
use std::sync::Barrier as Meeting;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Makes and drops lists, keeps one, and checks it; returns a number that depends on what was found.
fn churn(vm: &Vm<'_>, seed: u64, rounds: u64) -> u64 {
    vm.scope(|vm| {
        let kept = vm.local(0);
        let mut sum = 0;
        for round in 0..rounds {
            let node = make(vm, Kind::Strong, 2, 8 + (round % 40) as usize).unwrap();
            set_number(node, seed * 1_000_000 + round);
            if round % 16 == 0 {
                set(vm, node, 0, vm.get(kept));
                vm.set(kept, node);
            }
            if round % 512 == 511 {
                let (mut at, mut expected) = (vm.get(kept), round / 16 * 16);
                while at != 0 {
                    assert_eq!(number(at), seed * 1_000_000 + expected);
                    sum += number(at);
                    (at, expected) = (get(at, 0), expected.wrapping_sub(16));
                }
                vm.set(kept, 0);
                // The next list begins at a multiple of 16 again; its last number is this round's.
                let node = make(vm, Kind::Strong, 1, 8).unwrap();
                set_number(node, seed * 1_000_000 + round + 1 - 16);
                vm.set(kept, 0);
            }
        }
        sum
    })
}

#[test]
fn threads_that_allocate_do_not_disturb_each_other() {
    let sizes = |kib: usize| Sizes::fixed(Bytes(kib << 10));
    let shapes = [
        buffers(Lowest::Threads, 4),
        buffers(Lowest::Processors(Processors::ConcurrencyIds), 16),
        buffers(Lowest::Processors(Processors::Cpus), 4),
        buffers(Lowest::Flip(Processors::ConcurrencyIds), 32),
        larder_lab::Config { sequences: false, ..buffers(Lowest::Threads, 8) },
        buffers(Lowest::Threads, 4).under(Level::Package, sizes(32)),
        buffers(Lowest::Threads, 4).under(Level::Core, sizes(16)).under(Level::Package, sizes(64)),
        buffers(Lowest::Nobody, 4).under(Level::Process, sizes(16)),
        larder_lab::Config::by_concurrency_id(),
    ];
    for (i, buffers) in shapes.into_iter().enumerate() {
        let barrier = if i % 2 == 0 { Barrier::ConditionalCards } else { Barrier::StoreBuffer };
        let heap = heap(Config { barrier, buffers, ..small() });
        let sums: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|seed| {
                    let heap = &heap;
                    scope.spawn(move || churn(&heap.attach().unwrap(), seed, 4096))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(heap.stats().buffers + heap.buffers().level_statistics(0).map_or(0, |level| level.refills) > 20);
        let alone = mini::heap(small());
        let vm = alone.attach().unwrap();
        assert_eq!(sums, (0..8).map(|seed| churn(&vm, seed, 4096)).collect::<Vec<_>>());
        assert!(heap.stats().young_collections > 3, "{:?}", heap.stats());
    }
}

/// A thread that panics ends the test: others would wait for it at a meeting.
struct EndsTheTest;

/// Has panics say why at once. What a test prints is shown when it has ended, and this one would never.
fn say_panics_at_once() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        _ = writeln!(std::io::stderr(), "{panic}");
        before(panic);
    }));
}

impl Drop for EndsTheTest {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::exit(101);
        }
    }
}

/// Threads take old objects from one another's buffers by turns, where these do not belong to them, and keep them through a compaction.
#[test]
fn old_objects_come_from_the_buffers_of_whoever_has_them() {
    const THREADS: usize = 64;
    const OBJECTS: u64 = 200;
    say_panics_at_once();
    let sizes = |kib: usize| Sizes::fixed(Bytes(kib << 10));
    // One buffer of 32 KiB on each CPU.
    let by_processor = 1.5 + larder_sys::cpus::allowed() as f64 / 32.0;
    for (old_buffers, most_mib) in [
        (buffers(Lowest::Threads, 32), 4.0),
        (buffers(Lowest::Processors(Processors::ConcurrencyIds), 32), by_processor),
        (buffers(Lowest::Processors(Processors::Cpus), 32), by_processor),
        (larder_lab::Config { sequences: false, ..buffers(Lowest::Threads, 32) }, 4.0),
        (buffers(Lowest::Threads, 4).under(Level::Core, sizes(16)).under(Level::Process, sizes(64)), by_processor),
        (buffers(Lowest::Nobody, 4).under(Level::Process, sizes(64)), 1.5),
    ] {
        let by_thread = old_buffers.lowest == Lowest::Threads && old_buffers.upper[0].is_none();
        let heap = heap(Config { old_buffers, old: Bytes::mib(64), ..small() });
        let meeting = Meeting::new(THREADS + 1);
        std::thread::scope(|scope| {
            for seed in 0..THREADS as u64 {
                let (heap, meeting) = (&heap, &meeting);
                scope.spawn(move || {
                    let _ends = EndsTheTest;
                    let mut vm = heap.attach().unwrap();
                    let kept = vm.local(0);
                    // Every second object is garbage at once, so that a compaction slides.
                    let more = |vm: &mut Vm<'_>, from: u64| {
                        for n in from..from + OBJECTS {
                            let node = make_old(vm, Kind::Strong, 1, 8 + (n % 5) as usize * 8).unwrap();
                            assert!(payload(node).iter().all(|&byte| byte == 0), "an object is not zero");
                            set_number(node, seed * 1_000_000 + n);
                            if n % 2 == 0 {
                                set(vm, node, 0, vm.get(kept));
                                vm.set(kept, node);
                            }
                            // Others run in between.
                            if n % 50 == 0 {
                                vm.blocking(std::thread::yield_now);
                            }
                        }
                    };
                    let check = |vm: &Vm<'_>, count: u64| {
                        let mut at = vm.get(kept);
                        for n in (0..count).step_by(2).collect::<Vec<_>>().into_iter().rev() {
                            assert_eq!(number(at), seed * 1_000_000 + n);
                            at = get(at, 0);
                        }
                        assert_eq!(at, 0);
                    };
                    more(&mut vm, 0);
                    check(&vm, OBJECTS);
                    // Everybody has a list, and nobody has left.
                    vm.blocking(|| meeting.wait());
                    vm.blocking(|| meeting.wait());
                    // After a full collection.
                    check(&vm, OBJECTS);
                    more(&mut vm, OBJECTS);
                    vm.blocking(|| meeting.wait());
                    vm.blocking(|| meeting.wait());
                    check(&vm, 2 * OBJECTS);
                });
            }
            let _ends = EndsTheTest;
            let mut vm = heap.attach().unwrap();
            vm.blocking(|| meeting.wait());
            let stats = heap.stats();
            // 12 800 objects of 48 bytes in the mean are 0.6 MiB; 64 buffers of 32 KiB are two.
            let mib = stats.old_bytes as f64 / (1 << 20) as f64;
            // Whoever comes while the common buffer is refilled, by a thread that waits for a CPU, has a region for the object at worst.
            let passed_on = heap.old_buffers().level_statistics(0).map_or(0, |level| level.passed_on);
            let by_nobody = heap.config().old_buffers.lowest == Lowest::Nobody;
            let most_mib = most_mib + if by_nobody { passed_on as f64 / 1024.0 } else { 0.0 };
            assert!(mib < most_mib, "{mib} MiB of {most_mib} for {:?}", heap.config().old_buffers);
            assert!(!by_thread || stats.old_buffers >= THREADS as u64, "{stats:?}");
            // Buffers stay open over a young collection, and are closed by a full one.
            let taken = stats.old_buffers;
            vm.collect(Collection::Young);
            make_old(&vm, Kind::Strong, 0, 8).unwrap();
            assert!(heap.stats().old_buffers <= taken + 1);
            vm.collect(Collection::Full);
            let left = heap.stats().old_bytes;
            assert!(left < stats.old_bytes * 2 / 3, "{left} of {}", stats.old_bytes);
            vm.blocking(|| meeting.wait());
            vm.blocking(|| meeting.wait());
            vm.collect(Collection::Full);
            vm.blocking(|| meeting.wait());
        });
        assert_eq!(heap.stats().full_collections, 2);
    }
}

#[test]
fn a_thousand_threads_mostly_asleep() {
    const THREADS: usize = 1000;
    let heap =
        heap(Config { young: Bytes::mib(8), most_young: Bytes::mib(8), verify: false, poison: false, ..small() });
    let (meeting, done) = (Meeting::new(THREADS + 1), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for seed in 0..THREADS as u64 {
            let (heap, meeting, done) = (&heap, &meeting, &done);
            std::thread::Builder::new()
                .stack_size(64 << 10)
                .spawn_scoped(scope, move || {
                    let mut vm = heap.attach().unwrap();
                    let kept = vm.local(make(&vm, Kind::Strong, 0, 8).unwrap());
                    set_number(vm.get(kept), seed);
                    // All are attached, and asleep here while the collections below run.
                    vm.blocking(|| meeting.wait());
                    vm.blocking(|| meeting.wait());
                    churn(&vm, seed, 300);
                    assert_eq!(number(vm.get(kept)), seed);
                    done.fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
        }
        let mut vm = heap.attach().unwrap();
        vm.blocking(|| meeting.wait());
        for round in 0..6 {
            vm.collect(if round == 3 { Collection::Full } else { Collection::Young });
        }
        vm.blocking(|| meeting.wait());
    });
    assert_eq!(done.into_inner(), THREADS);
}

#[test]
fn threads_come_and_go_while_others_collect() {
    let heap = heap(small());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let collector = scope.spawn(|| {
            let vm = heap.attach().unwrap();
            let mut n = 0;
            // The others may be done before this thread has a CPU.
            while n == 0 || !stop.load(Ordering::Relaxed) {
                vm.collect(if n % 4 == 3 { Collection::Full } else { Collection::Young });
                n += 1;
            }
        });
        for wave in 0..20 {
            std::thread::scope(|scope| {
                for seed in 0..10 {
                    let heap = &heap;
                    scope.spawn(move || {
                        let vm = heap.attach().unwrap();
                        churn(&vm, wave * 10 + seed, 200);
                    });
                }
            });
        }
        stop.store(true, Ordering::Relaxed);
        collector.join().unwrap();
    });
    let vm = heap.attach().unwrap();
    vm.collect(Collection::Full);
    assert_eq!(heap.stats().marked_bytes, {
        vm.collect(Collection::Full);
        heap.stats().marked_bytes
    });
}

#[test]
fn a_loop_that_polls_is_stopped_and_one_that_blocks_is_not_waited_for() {
    let heap = heap(small());
    let (running, go_on) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let vm = heap.attach().unwrap();
            running.fetch_add(1, Ordering::Relaxed);
            while !go_on.load(Ordering::Relaxed) {
                vm.poll();
            }
        });
        scope.spawn(|| {
            let mut vm = heap.attach().unwrap();
            vm.blocking(|| {
                running.fetch_add(1, Ordering::Relaxed);
                while !go_on.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            });
        });
        while running.load(Ordering::Relaxed) < 2 {
            std::thread::yield_now();
        }
        let vm = heap.attach().unwrap();
        (0..10).for_each(|_| vm.collect(Collection::Young));
        go_on.store(true, Ordering::Relaxed);
    });
    assert_eq!(heap.stats().young_collections, 10);
}

#[test]
fn when_all_threads_are_out_of_memory_each_is_told() {
    let heap = heap(Config { old: Bytes::mib(1), verify: false, ..small() });
    let out = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut vm = heap.attach().unwrap();
                let head = vm.local(0);
                while let Ok(node) = make(&vm, Kind::Strong, 1, 200) {
                    set(&vm, node, 0, vm.get(head));
                    vm.set(head, node);
                }
                out.fetch_add(1, Ordering::Relaxed);
                vm.blocking(|| {
                    while out.load(Ordering::Relaxed) < 16 {
                        std::thread::yield_now();
                    }
                });
            });
        }
    });
    assert_eq!(out.into_inner(), 16);
}

/// What the young generation has room for is four buffers for each owner: of 64 threads, or of the processors that they run on.
#[test]
fn the_young_generation_grows_with_the_owners_of_buffers() {
    let size_after = |lowest| {
        let young = Bytes::mib(8);
        let heap = heap(Config { young, most_young: Bytes::mib(64), buffers: buffers(lowest, 64), ..small() });
        let done = Meeting::new(65);
        std::thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    let mut vm = heap.attach().unwrap();
                    make(&vm, Kind::Strong, 0, 100).unwrap();
                    vm.blocking(|| {
                        done.wait();
                        done.wait();
                    });
                });
            }
            let vm = heap.attach().unwrap();
            done.wait();
            vm.collect(Collection::Young);
            done.wait();
        });
        heap.stats().young_bytes
    };
    assert!(size_after(Lowest::Threads) >= 64 * 4 * (64 << 10));
    // It may have doubled for what the one collection cost.
    let cpus = larder_sys::cpus::possible() as u64;
    let by_id = size_after(Lowest::Processors(Processors::ConcurrencyIds));
    assert!(by_id <= 16 << 20 || cpus >= 64, "{by_id}");
}
