//! Allocation functions of one size and one way, and what a flip does to them.

mod mini;

use larder_lab::{Lowest, Processors, SPECIALISED};
use larder_moving::{Collection, Config, Way};
use larder_units::Bytes;
use mini::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// An object of `words` words and one reference, if there is room for it.
fn make_by(vm: &Vm<'_>, function: &larder_moving::ClassFunction<Mini>, number: usize) -> usize {
    let object = vm.allocate_by(function).unwrap().cast::<usize>();
    let words = function.words();
    // SAFETY: a fresh object of so many words.
    let content = unsafe { std::slice::from_raw_parts_mut(object, words) };
    assert!(content.iter().all(|&word| word == 0), "an object is not zero");
    content[0] = header(Kind::Strong, usize::from(words > 1), 8 * words);
    content.iter_mut().skip(2).for_each(|word| *word = number);
    object.expose_provenance()
}

#[test]
fn every_size_has_a_function_in_every_way() {
    let mut without = buffers(Lowest::Threads, 8);
    without.sequences = false;
    let levels = larder_lab::Config::new(Lowest::Nobody, larder_policy::labs::Sizes::fixed(Bytes(8 << 10)))
        .under(larder_percpu::Level::Process, larder_policy::labs::Sizes::fixed(Bytes(32 << 10)));
    for buffers in [
        buffers(Lowest::Threads, 8),
        buffers(Lowest::Processors(Processors::ConcurrencyIds), 8),
        buffers(Lowest::Processors(Processors::Cpus), 8),
        without,
        levels,
    ] {
        let heap = heap(Config { buffers, ..small() });
        let vm = heap.attach().unwrap();
        assert!(heap.class_function(0).is_none() && heap.class_function(SPECIALISED + 1).is_none());
        let classes: Vec<_> = (1..=SPECIALISED).map(|words| heap.class_function(words).unwrap()).collect();
        let kept = vm.local(make(&vm, Kind::Strong, SPECIALISED, 0).unwrap());
        // Several times what the young generation holds.
        for n in 0..400 {
            for (i, class) in classes.iter().enumerate() {
                let object = make_by(&vm, class, n * 100 + i);
                set(&vm, vm.get(kept), i, object);
            }
        }
        let stats = heap.stats();
        assert!(stats.young_collections > 5 && stats.redirected == 0, "{stats:?}");
        for (i, class) in classes.iter().enumerate().skip(2) {
            let object = get(vm.get(kept), i);
            assert_eq!(word(object) >> 32, 8 * class.words());
            assert!(payload(object).chunks(8).all(|word| word == (399 * 100 + i).to_le_bytes()));
        }
    }
}

#[test]
fn a_function_s_slow_path_stops() {
    // Its thread knows no other safepoint: without one there, the collections below would wait for ever.
    for lowest in [Lowest::Threads, Lowest::Processors(Processors::ConcurrencyIds)] {
        let heap =
            heap(Config { buffers: buffers(lowest, 8), young: Bytes::mib(8), most_young: Bytes::mib(8), ..small() });
        let over = AtomicBool::new(false);
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let vm = heap.attach().unwrap();
                let class = heap.class_function(6).unwrap();
                while !over.load(Ordering::Relaxed) {
                    make_by(&vm, &class, 1);
                    made.fetch_add(1, Ordering::Relaxed);
                }
            });
            let mut vm = heap.attach().unwrap();
            for _ in 0..5 {
                let before = made.load(Ordering::Relaxed);
                vm.collect(Collection::Young);
                vm.blocking(|| {
                    while made.load(Ordering::Relaxed) == before {
                        std::thread::yield_now();
                    }
                });
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}

/// Threads that are stopped in functions of the old set, by the only safepoint that they know, go on by the other way.
#[test]
fn threads_stopped_in_the_old_set_are_redirected() {
    const SPINNERS: usize = 2;
    let cpus = larder_sys::cpus::allowed();
    let (young, kib) = (Bytes(((8 * cpus + 32) * 16) << 10), 16);
    let config = Config { young, most_young: young, buffers: buffers(Lowest::Flip(Processors::Cpus), kib), ..small() };
    let heap = heap(config);
    if heap.buffers().processors() == 0 {
        println!("skipped: no restartable sequences here");
        return;
    }
    let sleepers = 2 * cpus + 2;
    let (have_some, may_end) = (Barrier::new(sleepers + SPINNERS + 1), Barrier::new(sleepers + 1));
    let over = AtomicBool::new(false);
    let rounds = [const { AtomicUsize::new(0) }; SPINNERS];
    // Made before the flip, and not changed by it.
    let old = heap.class_function(5).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..sleepers {
            scope.spawn(|| {
                let mut vm = heap.attach().unwrap();
                // A buffer with nearly all of it left.
                make(&vm, Kind::Strong, 0, 8).unwrap();
                vm.blocking(|| have_some.wait());
                vm.blocking(|| may_end.wait());
            });
        }
        for (nth, round) in rounds.iter().enumerate() {
            let (heap, old, over, have_some) = (&heap, &old, &over, &have_some);
            scope.spawn(move || {
                // One that moved, while the other waited for a CPU, would leave more buffers behind than threads allocate: a flip back.
                let usable = mini::cpus();
                move_to(usable[nth % usable.len()]);
                let mut vm = heap.attach().unwrap();
                vm.blocking(|| have_some.wait());
                let kept = vm.local(0);
                let mut length = 0;
                while !over.load(Ordering::Relaxed) {
                    let object = make_by(&vm, old, length);
                    set(&vm, object, 0, vm.get(kept));
                    vm.set(kept, object);
                    length += 1;
                    if length == 500 {
                        let mut at = vm.get(kept);
                        for n in (0..length).rev() {
                            assert!(payload(at).chunks(8).all(|word| word == n.to_le_bytes()));
                            at = get(at, 0);
                        }
                        assert_eq!(at, 0);
                        vm.set(kept, 0);
                        length = 0;
                        round.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut vm = heap.attach().unwrap();
        vm.blocking(|| have_some.wait());
        let go_on = |vm: &mut Vm<'_>| {
            let before: Vec<_> = rounds.iter().map(|round| round.load(Ordering::Relaxed)).collect();
            vm.blocking(|| {
                while rounds.iter().zip(&before).any(|(round, &before)| round.load(Ordering::Relaxed) < before + 3) {
                    std::thread::yield_now();
                }
            });
        };
        vm.collect(Collection::Young);
        assert_eq!(*heap.host().flips.lock().unwrap(), [Way::Processor], "the host was told");
        assert_eq!(heap.buffers().way(), Way::Processor);
        go_on(&mut vm);
        over.store(true, Ordering::Relaxed);
        vm.blocking(|| may_end.wait());
        drop(vm);
    });
    let stats = heap.stats();
    // All of three rounds of 500 at least, by each.
    assert!(stats.redirected >= (SPINNERS * 3 * 500) as u64 && stats.flips == 1, "{stats:?}");
    let vm = heap.attach().unwrap();
    make_by(&vm, &old, 0);
    assert_eq!(heap.stats().redirected, stats.redirected + 1);
    old.update(heap.buffers().way());
    (0..100).for_each(|n| _ = make_by(&vm, &old, n));
    assert_eq!(heap.stats().redirected, stats.redirected + 1, "none since the update");
    assert_eq!(vm.thread().lab.rest(), Bytes(0), "nothing goes to the thread's buffer any more");
}

/// Threads have buffers of their own while they are few. The one too many flips them when it is attached, before any collection, and a collection
/// with few threads left flips them back. Whoever calls the functions of the other side meanwhile gets what it asks for.
#[test]
fn the_thread_that_is_one_too_many_flips_the_buffers() {
    let few = 4 * larder_sys::cpus::allowed_to_process();
    let buffers = buffers(Lowest::FewThreads(Processors::ConcurrencyIds), 4);
    let young = Bytes::mib(4);
    let heap = heap(Config { buffers, young, most_young: young, ..small() });
    if heap.buffers().processors() == 0 {
        println!("skipped: no restartable sequences here");
        return;
    }
    let by_thread = heap.class_function(6).unwrap();
    let way = heap.buffers().way();
    assert!(way.is_by_thread());
    let flips = || heap.host().flips.lock().unwrap().clone();
    let (attached, all_made, may_end) = (Barrier::new(few), Barrier::new(few + 1), Barrier::new(few + 1));
    let mut vm = heap.attach().unwrap();
    std::thread::scope(|scope| {
        for nth in 0..few {
            let (heap, by_thread, attached, all_made, may_end) = (&heap, &by_thread, &attached, &all_made, &may_end);
            scope.spawn(move || {
                let mut vm = heap.attach().unwrap();
                let kept = vm.local(0);
                let mut length = 0;
                let mut make_some = |vm: &Vm<'_>| {
                    for _ in 0..300 {
                        let object = make_by(vm, by_thread, nth * 1000 + length);
                        set(vm, object, 0, vm.get(kept));
                        vm.set(kept, object);
                        length += 1;
                    }
                };
                // While some are still to come, and when all are there.
                make_some(&vm);
                vm.blocking(|| attached.wait());
                make_some(&vm);
                vm.blocking(|| all_made.wait());
                let mut at = vm.get(kept);
                for n in (0..600).rev() {
                    assert!(payload(at).chunks(8).all(|word| word == (nth * 1000 + n).to_le_bytes()));
                    at = get(at, 0);
                }
                assert_eq!(at, 0);
                vm.blocking(|| may_end.wait());
            });
        }
        vm.blocking(|| all_made.wait());
        assert_eq!(flips(), [Way::Processor], "the {few} threads and this one are too many");
        assert_eq!(heap.buffers().way(), Way::Processor);
        assert!(heap.stats().redirected > 0);
        vm.collect(Collection::Young);
        assert_eq!(heap.buffers().way(), Way::Processor, "they are still there");
        vm.blocking(|| may_end.wait());
    });
    vm.collect(Collection::Young);
    assert_eq!(flips(), [Way::Processor, way]);
}
