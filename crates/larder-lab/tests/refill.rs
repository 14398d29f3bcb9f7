//! Refills of lowest buffers, with everything that may come between (VEE'05, section 5.1): interference, benign and not,
//! collections inside a refill, and other threads and migration at each numbered point.

#[path = "../../larder-percpu/tests/unregistered/mod.rs"]
mod unregistered;
mod world;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use larder_lab::{Config, Lowest, Point, Processors, Way};
use larder_percpu::Level;
use larder_policy::labs::Sizes;
use larder_units::Bytes;
use world::{World, at_points, pin, random};

const KIB: fn(usize) -> Sizes = |n| Sizes::fixed(Bytes(n << 10));

fn by_cpu() -> Config {
    Config::new(Lowest::Processors(Processors::Cpus), KIB(4))
}

fn by_thread() -> Config {
    Config::new(Lowest::Threads, KIB(4))
}

/// False where the machine has no sequences; then there is nothing to interfere with.
fn has_processors(world: &World) -> bool {
    let has = world.buffers.way() == Way::Processor;
    if !has {
        println!("skipped: no restartable sequences here");
    }
    has
}

/// Two threads on one CPU: B begins its refill while A has its chunk. A's interference is benign, so it reopens and
/// commits; B's is not, so its chunk is sidelined, and the next refill takes it.
#[test]
fn benign_interference_reopens_and_other_sidelines() {
    let world = World::new(by_cpu(), 1 << 20, 3);
    if !has_processors(&world) {
        return;
    }
    let (a_has_chunk, wait_for_a) = mpsc::channel();
    let (b_has_begun, wait_for_b) = mpsc::channel();
    let (a_is_done, wait_for_end) = mpsc::channel();
    thread::scope(|scope| {
        let world = &world;
        scope.spawn(move || {
            pin(0);
            let _hook = at_points(|point| {
                if point == Point::Obtained {
                    a_has_chunk.send(()).unwrap();
                    wait_for_b.recv().unwrap();
                }
            });
            assert!(world.allocate(&world.members[0], 24));
            a_is_done.send(()).unwrap();
        });
        scope.spawn(move || {
            pin(0);
            wait_for_a.recv().unwrap();
            let mut first = true;
            let _hook = at_points(|point| {
                if point == Point::Begun && std::mem::take(&mut first) {
                    b_has_begun.send(()).unwrap();
                    wait_for_end.recv().unwrap();
                }
            });
            assert!(world.allocate(&world.members[1], 24));
        });
    });
    let did = world.buffers.statistics();
    assert_eq!((did.transactions_failed, did.transactions_reopened, did.transactions_invalid), (2, 1, 1));
    assert_eq!((did.transactions_succeeded, did.labs), (1, 2));
    assert_eq!((did.sidelined, did.sidelined_bytes, did.sideline_used), (1, 4096, 0));
    // The next refill on that CPU takes the chunk from the sideline.
    pin(0);
    (0..200).for_each(|_| assert!(world.allocate(&world.members[2], 24)));
    let did = world.buffers.statistics();
    assert_eq!((did.sideline_used, did.labs, did.transactions_succeeded), (1, 2, 2));
    let retired = world.collect(0);
    assert_eq!(retired.partly_used, 1);
}

/// A chunk that is still on the sideline at a stop is discarded and counted.
#[test]
fn a_stop_discards_what_is_sidelined() {
    let world = World::new(by_cpu(), 1 << 20, 2);
    if !has_processors(&world) {
        return;
    }
    pin(0);
    let mut first = true;
    let hook = at_points(|point| {
        if point == Point::Obtained && std::mem::take(&mut first) {
            // The same thread refills the same buffer, as a handler would.
            assert!(world.allocate(&world.members[1], 24));
        }
    });
    assert!(world.allocate(&world.members[0], 24));
    drop(hook);
    world.collect(0);
    let did = world.buffers.statistics();
    assert_eq!((did.sidelined, did.sideline_unused, did.sideline_unused_bytes), (1, 1, 4096));
    assert_eq!((did.partly_used, did.collections_by_processors), (1, 1));
}

/// A collection inside a refill: what was obtained before it is dropped, and the object comes from the new epoch.
#[test]
fn a_collection_inside_a_refill_drops_what_was_obtained_before() {
    for config in [by_cpu(), by_thread(), Config { sequences: false, ..by_thread() }] {
        let world = World::new(config, 1 << 20, 1);
        let mut first = true;
        let hook = at_points(|point| {
            if point == Point::Obtained && std::mem::take(&mut first) {
                // The chunk in the refill's hands is what is neither object nor rest.
                world.collect(4096);
            }
        });
        assert!(world.allocate(&world.members[0], 24));
        assert!(world.allocate(&world.members[0], 24));
        drop(hook);
        let did = world.buffers.statistics();
        assert_eq!((did.dropped, did.dropped_bytes, did.sidelined), (1, 4096, 0), "{:?}", config.lowest);
        let used = world.space().used();
        assert_eq!(used, Bytes(4096), "the second buffer is the first of the new epoch");
        world.collect(24);
    }
}

/// A collection before the chunk is obtained, inside `obtain`: the chunk is good, but the buffer is not the one that was
/// read, so it goes by the sideline.
#[test]
fn a_collection_inside_obtain_keeps_the_new_chunk() {
    for config in [by_cpu(), by_thread(), by_thread().under(Level::Process, KIB(64))] {
        let world = std::sync::Arc::new(World::new(config, 1 << 20, 1));
        assert!(world.allocate(&world.members[0], 24));
        let inner = world.clone();
        // The level's mark is closed by the stop as well; its tail was given back before.
        *world.space().inside.lock().unwrap() = Some(Box::new(move || _ = inner.collect(64 << 10)));
        (0..6000).for_each(|_| assert!(world.allocate(&world.members[0], 24)));
        let did = world.buffers.statistics();
        assert_eq!((did.dropped, did.collections_by_threads + did.collections_by_processors), (0, 1));
        world.collect(64 << 10);
    }
}

/// The stop that comes exactly between reading the pair and the commit must be seen even where the pair was closed before: each
/// stop leaves another closed pair.
#[test]
fn two_stops_do_not_leave_the_same_pair() {
    let world = World::new(by_thread(), 1 << 20, 1);
    world.collect(0);
    let before = world.members[0].lab.slot.load();
    world.collect(0);
    let after = world.members[0].lab.slot.load();
    assert_ne!(before, after);
    assert_eq!((before[1], after[1]), (0, 0), "both are closed");
}

/// One thread's chunks follow one another, so each rest becomes the beginning of the next buffer.
#[test]
fn a_chunk_that_follows_the_rest_is_merged() {
    let world = World::new(by_thread(), 1 << 20, 1);
    let mut state = 1;
    for _ in 0..5000 {
        assert!(world.allocate(&world.members[0], 8 * (1 + random(&mut state) as usize % 40)));
    }
    let did = world.buffers.statistics();
    assert!(did.merged > 100, "{did:?}");
    assert_eq!((did.abandoned_bytes, did.direct), (0, 0));
    assert_eq!(world.space().rests(), []);
    world.collect(0);
}

#[test]
fn large_objects_come_from_the_space() {
    let world = World::new(by_thread(), 1 << 20, 1);
    // The second one is too large for a buffer, but fits into the rest of one.
    for bytes in [512, 520, 4096, 100_000] {
        assert!(world.allocate(&world.members[0], bytes));
    }
    let did = world.buffers.statistics();
    assert_eq!((did.direct, did.direct_bytes, did.labs), (2, 104_096, 1));
    assert!(!world.allocate(&world.members[0], 2 << 20), "more than there is");
    world.collect(0);
}

/// With `Singly`, who finds no buffer allocates one by one; with `Shrink` buffers become smaller first. Both use a space up.
#[test]
fn a_space_is_used_up_to_its_last_word() {
    use larder_policy::labs::NearEnd::{Shrink, Singly};
    for (near_end, is_single) in [(Singly, true), (Shrink, false)] {
        let config = Config { near_end, sizes: KIB(64), ..by_thread() };
        let world = World::new(config, 160 << 10, 1);
        while world.allocate(&world.members[0], 24) {}
        let did = world.buffers.statistics();
        assert!(world.space().used().0 > (160 << 10) - 24);
        assert_eq!(did.singly > 1000, is_single, "{near_end:?}: {} singly", did.singly);
        let waste = world.collect(0).unused;
        assert!(waste.0 < 24, "{waste} left in the buffer");
    }
}

/// A thread whose registration was undone has no index, and sequences refuse it: it allocates by the slow paths, beside a thread
/// that has one.
#[test]
fn a_thread_without_registration_allocates() {
    let ids = Config::new(Lowest::Processors(Processors::ConcurrencyIds), KIB(4));
    let shapes = [
        by_cpu(),
        ids,
        by_thread(),
        ids.under(Level::Process, KIB(16)),
        by_thread().under(Level::Core, KIB(16)),
        Config::new(Lowest::Nobody, KIB(4)).under(Level::Core, KIB(16)),
    ];
    for config in shapes {
        let world = World::new(config, 4 << 20, 2);
        thread::scope(|scope| {
            scope.spawn(|| {
                if world.buffers.way() != Way::ThreadAlone {
                    assert!(unregistered::unregister());
                }
                (0..3000).for_each(|i| assert!(world.allocate(&world.members[0], 8 * (1 + i % 60))));
                // SAFETY: this thread's.
                unsafe { world.buffers.retire_own(&world.members[0].lab) };
            });
            (0..3000).for_each(|i| assert!(world.allocate(&world.members[1], 8 * (1 + i % 60))));
        });
        world.collect(0);
    }
}

/// At every numbered point another thread allocates on the same CPU, or the thread itself moves to the other one, or both.
#[test]
fn others_may_come_between_at_every_point() {
    let shapes = [
        by_cpu(),
        by_thread(),
        by_cpu().under(Level::Process, KIB(16)),
        by_thread().under(Level::Core, KIB(16)).under(Level::Process, KIB(64)),
        Config::new(Lowest::Nobody, KIB(4)).under(Level::Core, KIB(16)),
    ];
    let cpus = larder_sys::cpus::allowed().min(2);
    let passed: [AtomicUsize; 12] = std::array::from_fn(|_| AtomicUsize::new(0));
    for config in shapes {
        let world = World::new(config, 4 << 20, 2);
        for at in Point::ALL {
            for (moves, others) in [(true, false), (false, true), (true, true)] {
                pin(0);
                let mut turn = 0;
                let hook = at_points(|point| {
                    passed[point as usize].fetch_add(1, Ordering::Relaxed);
                    if point != at || turn == 4 {
                        return;
                    }
                    turn += 1;
                    if others {
                        thread::scope(|scope| {
                            scope.spawn(|| {
                                pin(0);
                                (0..50).for_each(|_| assert!(world.allocate(&world.members[1], 104)));
                            });
                        });
                    }
                    if moves {
                        pin(turn % cpus);
                    }
                });
                (0..300).for_each(|_| assert!(world.allocate(&world.members[0], 72)));
                drop(hook);
            }
            world.collect(0);
        }
    }
    // Benign interference has a test of its own: whoever comes between here also takes something.
    for point in Point::ALL.into_iter().filter(|&point| point != Point::Reopened) {
        assert_ne!(passed[point as usize].load(Ordering::Relaxed), 0, "nobody came by {point:?}");
    }
}
