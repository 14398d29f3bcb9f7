//! What the heap says about addresses and objects, while cycles come between.

use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use larder_fixed::options::Options;
use larder_fixed::{allocate, allocate_many, cycle, free, init, kind, object, stats};

use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{WITHOUT_SEQUENCES, beside, crowd, dies_in_child, in_child, pattern};

/// Runs `body` in a registered thread while another one collects, `cycles` times.
fn while_cycles_go_on(cycles: u64, body: impl Fn() + Send + 'static) {
    let over = Arc::new(AtomicBool::new(false));
    let seen = over.clone();
    let worker = crowd::spawn(move || {
        while !seen.load(Ordering::Relaxed) {
            body();
        }
    });
    for _ in 0..cycles {
        assert!(cycle::collect());
        larder_sys::thread::yield_now();
    }
    over.store(true, Ordering::Relaxed);
    worker.join();
}

/// The answer takes several loads; the thread may be stopped between any two of them, for a whole cycle.
#[test]
fn an_object_is_allocated_across_a_stop() {
    in_child("an_object_is_allocated_across_a_stop", &[], || {
        init(&Options::default());
        let roots = Words::roots(1);
        // SAFETY: in a root at once.
        roots.set(0, unsafe { allocate(kind::NORMAL, 100) }.expose_provenance());
        while_cycles_go_on(1500, move || {
            for _ in 0..1000 {
                let at = roots.get(0);
                assert_eq!(object::base(at + 50), Some(at), "in cycle {}", cycle::number());
            }
        });
    });
}

#[test]
fn a_second_free_stops_the_process() {
    dies_in_child("a_second_free_stops_the_process", &[], "GC_free", || {
        init(&Options::default());
        // SAFETY: that it is freed twice is the test.
        unsafe {
            let at = allocate(kind::NORMAL, 100);
            free(at);
            free(at);
        }
    });
}

#[test]
fn freeing_the_middle_of_an_object_stops_the_process() {
    dies_in_child("freeing_the_middle_of_an_object_stops_the_process", &[], "not the address of an object", || {
        init(&Options::default());
        // SAFETY: that it is no base is the test.
        unsafe { free(allocate(kind::NORMAL, 100).add(16)) };
    });
}

/// Where most frees of a block change one byte and nothing else.
fn frees_inside(bytes: usize, offset: usize) {
    init(&Options::default());
    // SAFETY: the last free's address is no base, which is the test.
    unsafe {
        let objects: Vec<_> = (0..300).map(|_| allocate(kind::NORMAL, bytes)).collect();
        // The first free in a block counts what is left.
        objects.iter().step_by(2).for_each(|&at| free(at));
        free(objects[151].add(offset));
    }
}

#[test]
fn freeing_the_next_granule_of_an_object_stops_the_process() {
    let name = "freeing_the_next_granule_of_an_object_stops_the_process";
    dies_in_child(name, &[], "not the address of an object", || frees_inside(100, 16));
}

#[test]
fn freeing_the_next_word_of_an_object_stops_the_process() {
    let name = "freeing_the_next_word_of_an_object_stops_the_process";
    dies_in_child(name, &[], "not the address of an object", || frees_inside(15, 8));
}

/// Such objects lie across blocks.
#[test]
fn freeing_the_middle_of_a_long_object_stops_the_process() {
    let name = "freeing_the_middle_of_a_long_object_stops_the_process";
    dies_in_child(name, &[], "not the address of an object", || frees_inside(12_000, 4096));
}

/// Objects that hold no pointers do not keep each other, so a cycle in the middle of making the list must not find them
/// in the list only.
#[test]
fn many_pointer_free_objects_survive_a_cycle_in_the_middle() {
    in_child("many_pointer_free_objects_survive_a_cycle_in_the_middle", &[], || {
        init(&Options { collect_every: Some(1), ..Options::default() });
        verifier::watch(Rules::EXACT);
        // Where cycles run beside the program, many lists are made during one.
        let mut lists = 0;
        while lists < 400 || cycle::number() <= 40 {
            lists += 1;
            // SAFETY: looked at before anything else is allocated.
            let mut at = unsafe { allocate_many(kind::POINTER_FREE, 30) };
            let mut count = 0;
            while !at.is_null() {
                assert_eq!(object::base(at.addr()), Some(at.addr()), "object {count} of the list");
                count += 1;
                // SAFETY: the first word is the link to the next.
                at = unsafe { at.cast::<*mut u8>().read() };
            }
            // 30 bytes and one for the pointer past the end take cells of 32.
            assert_eq!(count, 4096 / 32);
        }
    });
}

/// Objects of one thread, freed by many at once so that each block has several freeing threads; then all of them come back.
fn freed_by_many(name: &str, environment: &[(&str, &str)]) {
    const OBJECTS: usize = 20_000;
    const THREADS: usize = 8;
    const BYTES: usize = 40;
    in_child(name, environment, || {
        init(&Options::default());
        verifier::watch(Rules::WITH_FINALIZERS);
        let roots = Words::roots(OBJECTS);
        let mut first = 0;
        // The verifier looks at all of it in each cycle, and where cycles run beside the threads there always is one.
        let (rounds, slack) = if beside::is_asked() { (12, 4 << 20) } else { (30, 1 << 20) };
        for round in 0..rounds {
            for i in 0..OBJECTS {
                // SAFETY: in a root at once; a fresh object.
                unsafe {
                    let at = allocate(kind::NORMAL, BYTES);
                    roots.set(i, at.expose_provenance());
                    assert_eq!(pattern::first_set(at, BYTES), None, "a fresh object is cleared");
                    pattern::fill(at, 0, BYTES, (round * OBJECTS + i) as u64);
                }
            }
            crowd::all(THREADS, move |me| {
                for i in (me..OBJECTS).step_by(THREADS) {
                    let at = ptr::with_exposed_provenance_mut(roots.get(i));
                    // SAFETY: each object is checked and freed by one thread, before its root is gone.
                    unsafe {
                        pattern::check(at, 0, BYTES, (round * OBJECTS + i) as u64);
                        free(at);
                    }
                    // A marker that has read its byte just before may keep it for this cycle.
                    if !beside::is_asked() {
                        assert_eq!(object::base(at.addr()), None, "it was freed");
                    }
                    roots.set(i, 0);
                    if i % 4999 == 0 {
                        cycle::collect();
                    }
                }
            });
            if beside::is_asked() {
                // What is freed while a cycle marks comes back when that has ended, which may take some rounds.
                cycle::collect();
            }
            let heap = stats::snapshot().heap;
            if round == 2 {
                first = heap;
            }
            assert!(round < 2 || heap <= first + slack, "{heap} bytes in round {round}, {first} before");
        }
        assert!(cycle::collect());
    });
}

#[test]
fn what_many_threads_free_in_one_block_comes_back_once() {
    freed_by_many("what_many_threads_free_in_one_block_comes_back_once", &[]);
}

#[test]
fn what_many_threads_free_in_one_block_comes_back_once_without_sequences() {
    freed_by_many("what_many_threads_free_in_one_block_comes_back_once_without_sequences", &[WITHOUT_SEQUENCES]);
}

/// A cell that is freed explicitly is handed out again once, and only when it was freed.
#[test]
fn freed_cells_come_back_once() {
    in_child("freed_cells_come_back_once", &[], || {
        init(&Options::default());
        verifier::watch(Rules::EXACT);
        let n = 4000;
        let roots = Words::roots(n);
        for round in 0..6 {
            for i in 0..n {
                // SAFETY: in a root at once.
                roots.set(i, unsafe { allocate(kind::NORMAL, 56) }.expose_provenance());
            }
            let mut all: Vec<_> = (0..n).map(|i| roots.get(i)).collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), n, "a cell was handed out twice in round {round}");
            if round % 2 == 0 {
                assert!(cycle::collect());
            }
            for i in 0..n {
                let at = ptr::with_exposed_provenance_mut(roots.get(i));
                roots.set(i, 0);
                // SAFETY: nothing refers to it any more.
                unsafe { free(at) };
            }
        }
        assert!(cycle::collect());
    });
}

/// Blocks in which frees were counted hold long objects next, of one block and of several: these are freed as what they are.
#[test]
fn what_lay_in_a_block_before_says_nothing_of_how_its_next_objects_are_freed() {
    in_child("what_lay_in_a_block_before_says_nothing_of_how_its_next_objects_are_freed", &[], || {
        init(&Options::default());
        verifier::watch(Rules::WITH_FINALIZERS);
        const SMALL: usize = 20_000;
        const LONG: [usize; 4] = [9_000, 24_000, 40_000, 100_000];
        let roots = Words::roots(SMALL);
        let take = |i: usize, bytes: usize| {
            // SAFETY: in a root at once; a fresh object.
            unsafe {
                let at = allocate(kind::NORMAL, bytes);
                roots.set(i, at.expose_provenance());
                assert_eq!(pattern::first_set(at, bytes), None, "a fresh object is cleared");
                pattern::fill(at, 0, bytes, i as u64);
            }
        };
        let release = |i: usize, bytes: usize| {
            let at = ptr::with_exposed_provenance_mut(roots.get(i));
            // SAFETY: the object is checked and freed once, with its root.
            unsafe {
                pattern::check(at, 0, bytes, i as u64);
                free(at);
            }
            assert!(beside::is_asked() || object::base(at.addr()).is_none(), "it was freed");
            roots.set(i, 0);
        };
        for round in 0..4 {
            (0..SMALL).for_each(|i| take(i, 48));
            // The first free in a block looks at it and counts from there on; the rest dies in a cycle, while it still counts.
            (0..SMALL).filter(|i| i % 3 == 0).for_each(|i| release(i, 48));
            (0..SMALL).for_each(|i| roots.set(i, 0));
            assert!(cycle::collect() && cycle::collect());
            (0..400).for_each(|i| take(i, LONG[(i + round) % LONG.len()]));
            (0..400).filter(|i| i % 2 == 0).for_each(|i| release(i, LONG[(i + round) % LONG.len()]));
            assert!(cycle::collect());
            (0..400).filter(|i| i % 2 == 1).for_each(|i| release(i, LONG[(i + round) % LONG.len()]));
            assert!(cycle::collect());
        }
    });
}
