//! Words that may be references: on stacks, and in ranges that were added.

mod mini;

use larder_moving::{Collection, Config, Keep};
use larder_units::Bytes;
use mini::*;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn an_address_into_an_object_keeps_it_where_it_is() {
    let heap = heap(small());
    let vm = heap.attach().unwrap();
    let mut words = vec![0usize; 64];
    // SAFETY: the words outlive the heap's use in this test.
    unsafe { heap.add_ambiguous(words.as_ptr_range()) };
    let sizes = [8, 40, 500, 3000, 8000, 20_000];
    for round in 0..6 {
        for (i, &bytes) in sizes.iter().enumerate() {
            for old in [false, true] {
                let object = if old { make_old } else { make }(&vm, Kind::Strong, 1, bytes).unwrap();
                set_number(object, (round * 100 + i) as u64);
                // To its beginning, inside, and to its last byte.
                let offset = [0, 9, 8 + 8 + bytes - 1][round % 3];
                words[2 * i + usize::from(old)] = object + offset;
                words[32 + 2 * i + usize::from(old)] = !object;
                let child = make(&vm, Kind::Strong, 0, 8).unwrap();
                set_number(child, 7);
                set(&vm, object, 0, child);
            }
        }
        vm.collect(if round % 2 == 0 { Collection::Young } else { Collection::Full });
        for (i, &bytes) in sizes.iter().enumerate() {
            for old in 0..2 {
                let object = !words[32 + 2 * i + old];
                assert_eq!((word(object) >> 32, number(object)), (16 + bytes, (round * 100 + i) as u64));
                assert_eq!(number(get(object, 0)), 7);
            }
        }
    }
    words.fill(0);
    vm.collect(Collection::Full);
    assert_eq!(heap.stats().old_bytes, 0);
}

/// A deep stack may refer to a few objects more often than the heap has words.
#[test]
fn words_may_be_more_than_the_heap_has_room_for() {
    let smallest = Bytes(256 << 10);
    let heap = heap(Config { young: smallest, most_young: smallest, old: smallest, ..small() });
    let vm = heap.attach().unwrap();
    let objects: Vec<usize> = (0..100)
        .map(|n| {
            let object = make(&vm, Kind::Strong, 0, 8).unwrap();
            set_number(object, n);
            object
        })
        .collect();
    let words: Vec<usize> = objects.iter().copied().cycle().take(1 << 20).collect();
    // SAFETY: the words outlive the heap's use in this test.
    unsafe { heap.add_ambiguous(words.as_ptr_range()) };
    for kind in [Collection::Young, Collection::Full, Collection::Young] {
        vm.collect(kind);
        assert!(objects.iter().enumerate().all(|(n, &object)| number(object) == n as u64), "{kind:?}");
    }
}

/// As many as a program has modules, or stacks of its own.
#[test]
fn ranges_may_be_many() {
    let heap = heap(small());
    let vm = heap.attach().unwrap();
    let objects: Vec<usize> = (0..5000).map(|_| make(&vm, Kind::Strong, 0, 8).unwrap()).collect();
    for word in 0..objects.len() {
        // SAFETY: the words outlive the heap's use in this test.
        unsafe { heap.add_ambiguous(objects[word..=word].as_ptr_range()) };
    }
    vm.collect(Collection::Full);
    assert!(objects.iter().all(|&object| word(object) == header(Kind::Strong, 0, 16)));
}

#[test]
fn words_that_are_no_references_do_no_harm() {
    let heap = heap(small());
    let vm = heap.attach().unwrap();
    let object = make(&vm, Kind::Strong, 0, 8).unwrap();
    let mut words: Vec<usize> = (0..4000).map(|i| object.wrapping_sub(16 << 20).wrapping_add(i * 8209)).collect();
    words.extend([0, 1, usize::MAX, object - 1, object + 16 * 4096]);
    // SAFETY: the words outlive the heap's use in this test.
    unsafe { heap.add_ambiguous(words.as_ptr_range()) };
    for round in 0..8 {
        for i in 0..2000 {
            let object = if i % 3 == 0 { make_old } else { make }(&vm, Kind::Strong, 2, i % 900).unwrap();
            let _ = object;
        }
        vm.collect(if round % 3 == 2 { Collection::Full } else { Collection::Young });
    }
}

#[inline(never)]
fn on_the_stack_only(vm: &Vm<'_>, n: u64) -> usize {
    let object = make(vm, Kind::Strong, 1, 8).unwrap();
    set_number(object, n);
    object
}

#[test]
fn a_thread_without_exact_roots_keeps_what_its_stack_shows() {
    let heap = heap(Config { ambiguous_stacks: true, ..small() });
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let heap = &heap;
            scope.spawn(move || {
                let mut vm = heap.attach().unwrap();
                for round in 0..300 {
                    // Held in registers or on the stack across safepoints, and nowhere else.
                    let first = black_box(on_the_stack_only(&vm, seed * 1000 + round));
                    let second = black_box(on_the_stack_only(&vm, round));
                    set(&vm, first, 0, second);
                    for i in 0..50 {
                        make(&vm, Kind::Strong, 0, 8 + i * 16).unwrap();
                    }
                    if round % 16 == 0 {
                        vm.collect(if round % 64 == 0 { Collection::Full } else { Collection::Young });
                    } else if round % 16 == 1 {
                        vm.blocking(std::thread::yield_now);
                    }
                    assert_eq!(number(black_box(first)), seed * 1000 + round);
                    assert_eq!((get(first, 0), number(second)), (second, round));
                }
            });
        }
    });
    assert!(heap.stats().kept_blocks > 0);
}

#[test]
fn threads_attach_and_detach_while_another_collects() {
    let heap = heap(Config { ambiguous_stacks: true, ..small() });
    let left = AtomicUsize::new(4);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (heap, left) = (&heap, &left);
            scope.spawn(move || {
                for round in 0..400 {
                    // The record is a new one, its last thread's, or another's whose stack is no more.
                    let mut vm = heap.attach().unwrap();
                    if round % 3 != 0 {
                        let object = black_box(on_the_stack_only(&vm, seed * 1000 + round));
                        vm.blocking(std::thread::yield_now);
                        assert_eq!(number(black_box(object)), seed * 1000 + round);
                    }
                }
                // ORDER test.count: Relaxed; it orders nothing.
                left.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let vm = heap.attach().unwrap();
        while left.load(Ordering::Relaxed) > 0 {
            vm.collect(Collection::Young);
        }
    });
}

#[test]
fn the_null_collector_never_collects() {
    let heap = heap(Config { null: true, young: larder_units::Bytes::mib(2), ..small() });
    let vm = heap.attach().unwrap();
    let first = vm.handle(make(&vm, Kind::Strong, 0, 8).unwrap(), Keep::Weak);
    let mut made = 0;
    while make(&vm, Kind::Strong, 0, 1000).is_ok() {
        made += 1;
    }
    vm.collect(Collection::Full);
    assert!((1900..2100).contains(&made), "{made}");
    assert_ne!(vm.get_handle(first), 0);
    assert_eq!((heap.stats().young_collections, heap.stats().full_collections), (0, 0));
}
