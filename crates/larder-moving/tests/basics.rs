//! One thread: what lives stays as it is, what dies makes room, at every size and in every generation.

mod mini;

use larder_lab::Lowest;
use larder_moving::{Barrier, Collection, Config, Keep};
use larder_policy::labs::NearEnd;
use larder_units::Bytes;
use mini::*;

/// A list of `n` nodes with the numbers 0..n, the last one first; the references in slot 0.
fn list(vm: &Vm<'_>, n: u64) -> usize {
    vm.scope(|vm| {
        let head = vm.local(0);
        for i in 0..n {
            let node = make(vm, Kind::Strong, 1, 8).unwrap();
            set_number(node, i);
            set(vm, node, 0, vm.get(head));
            vm.set(head, node);
        }
        vm.get(head)
    })
}

fn check_list(mut at: usize, n: u64) {
    for i in (0..n).rev() {
        assert_eq!(number(at), i);
        at = get(at, 0);
    }
    assert_eq!(at, 0);
}

#[test]
fn what_lives_survives_every_kind_of_collection() {
    for barrier in [Barrier::ConditionalCards, Barrier::Cards, Barrier::StoreBuffer] {
        let heap = heap(Config { barrier, ..small() });
        let vm = heap.attach().unwrap();
        let kept = vm.local(list(&vm, 1000));
        for round in 0..6 {
            vm.collect(if round % 3 == 2 { Collection::Full } else { Collection::Young });
            check_list(vm.get(kept), 1000);
        }
        // Old by now; a new young end is remembered.
        let tail = vm.local(list(&vm, 10));
        let mut last = vm.get(kept);
        while get(last, 0) != 0 {
            last = get(last, 0);
        }
        set(&vm, last, 0, vm.get(tail));
        vm.set(tail, 0);
        list(&vm, 50_000);
        vm.collect(Collection::Young);
        let mut at = vm.get(kept);
        for _ in 0..1000 {
            at = get(at, 0);
        }
        check_list(at, 10);
        assert!(heap.stats().promoted_bytes >= 1000 * 32, "{:?}", heap.stats());
    }
}

#[test]
fn garbage_is_collected_without_end() {
    let heap = heap(small());
    let vm = heap.attach().unwrap();
    for _ in 0..100 {
        list(&vm, 1000);
    }
    let stats = heap.stats();
    assert!(stats.young_collections > 5, "{stats:?}");
    assert!(stats.copied_bytes + stats.promoted_bytes < 1 << 20, "{stats:?}");
}

#[test]
fn a_list_of_a_million_nodes_needs_no_stack() {
    let heap = heap(Config {
        young: Bytes::mib(4),
        most_young: Bytes::mib(4),
        old: Bytes::mib(128),
        verify: false,
        ..small()
    });
    let vm = heap.attach().unwrap();
    let kept = vm.local(list(&vm, 1_000_000));
    vm.collect(Collection::Full);
    check_list(vm.get(kept), 1_000_000);
}

#[test]
fn sizes_at_their_edges() {
    let heap = heap(small());
    let vm = heap.attach().unwrap();
    let mut kept = vec![];
    // Zero-length, odd, at the limit between small and large, at pages, huge.
    let sizes = [8, 9, 15, 16, 17, 23, 31, 33, 1023, 1025, 8191, 8192, 8193, 8200, 12287, 12288, 12289, 65536, 1 << 20];
    for round in 0..3 {
        for (i, &bytes) in sizes.iter().enumerate() {
            let object = if round == 1 { make_old } else { make }(&vm, Kind::Strong, 0, bytes - 8).unwrap();
            payload(object).fill((i + round) as u8 + 1);
            kept.push((vm.local(object), bytes, (i + round) as u8 + 1));
        }
        vm.collect(if round == 2 { Collection::Full } else { Collection::Young });
        for &(local, bytes, byte) in &kept {
            let object = vm.get(local);
            assert_eq!(word(object) >> 32, bytes);
            assert!(payload(object).iter().all(|&found| found == byte));
        }
    }
    assert!(vm.allocate(0).is_ok(), "an allocation of nothing is one of 16 bytes");
}

#[test]
fn memory_is_zero_after_it_was_poisoned() {
    let heap = heap(small());
    let vm = heap.attach().unwrap();
    for i in 0..50_000 {
        let bytes = 16 + i % 300;
        let object = vm.allocate(bytes).unwrap();
        // SAFETY: a fresh object.
        let content = unsafe { std::slice::from_raw_parts_mut(object, bytes) };
        assert!(content.iter().all(|&byte| byte == 0));
        content.fill(0xff);
        // SAFETY: as above.
        unsafe { object.cast::<usize>().write(header(Kind::Strong, 0, bytes)) };
    }
    assert!(heap.stats().young_collections > 5);
}

#[test]
fn large_objects_die_young_and_old() {
    let heap = heap(small());
    let vm = heap.attach().unwrap();
    let kept = vm.local(make(&vm, Kind::Strong, 100_000, 0).unwrap());
    vm.collect(Collection::Young);
    for i in 0..2000 {
        let child = make(&vm, Kind::Strong, 0, 8).unwrap();
        set_number(child, i);
        set(&vm, vm.get(kept), i as usize * 50, child);
    }
    for _ in 0..200 {
        make(&vm, Kind::Strong, 0, 200_000).unwrap();
    }
    vm.collect(Collection::Young);
    let used = heap.stats().old_bytes;
    assert!(used < 4 << 20, "young large objects were freed: {used}");
    for i in 0..2000 {
        assert_eq!(number(get(vm.get(kept), i as usize * 50)), i);
    }
    vm.set(kept, 0);
    vm.collect(Collection::Full);
    assert_eq!(heap.stats().old_bytes, 0);
}

#[test]
fn when_memory_is_out_it_is_a_value_and_comes_back() {
    let heap = heap(Config { old: Bytes::mib(1), ..small() });
    let vm = heap.attach().unwrap();
    let head = vm.local(0);
    let mut made = 0;
    let out = loop {
        match make(&vm, Kind::Strong, 1, 100) {
            Ok(node) => {
                set(&vm, node, 0, vm.get(head));
                vm.set(head, node);
                made += 1;
            }
            Err(out) => break out,
        }
    };
    assert_eq!(out.wanted, Bytes(116));
    assert!(made * 128 > 1 << 20, "{made}");
    let (mut at, mut found) = (vm.get(head), 0);
    while at != 0 {
        (at, found) = (get(at, 0), found + 1);
    }
    assert_eq!(found, made);
    assert!(make(&vm, Kind::Strong, 0, 2 << 20).is_err(), "longer than the heap");
    assert!(make(&vm, Kind::Strong, 0, usize::MAX >> 40).is_err());
    vm.set(head, 0);
    let kept = vm.local(list(&vm, 5000));
    check_list(vm.get(kept), 5000);
}

#[test]
fn pinned_objects_stay_where_they_are() {
    let heap = heap(small());
    let vm = heap.attach().unwrap();
    let mut pins = vec![];
    for i in 0..300 {
        list(&vm, 100);
        let object = if i % 2 == 0 { make } else { make_old }(&vm, Kind::Strong, 1, 8).unwrap();
        set_number(object, i);
        pins.push((vm.handle(object, Keep::Pinned), object));
        let child = make(&vm, Kind::Strong, 0, 8).unwrap();
        set_number(child, i + 1000);
        set(&vm, vm.get_handle(pins[i as usize].0), 0, child);
        if i % 50 == 49 {
            vm.collect(if i % 100 == 99 { Collection::Full } else { Collection::Young });
        }
        for (i, &(handle, object)) in pins.iter().enumerate() {
            assert_eq!(vm.get_handle(handle), object);
            assert_eq!(number(object), i as u64);
            assert_eq!(number(get(object, 0)), i as u64 + 1000);
        }
    }
    assert!(heap.stats().kept_blocks > 0 && heap.stats().compacted_bytes > 0, "{:?}", heap.stats());
    for (handle, _) in pins {
        vm.release(handle);
    }
    vm.collect(Collection::Full);
    vm.collect(Collection::Full);
    assert_eq!(heap.stats().old_bytes, 0);
}

/// An address that is kept over a full collection is wrong afterwards, though the object had no garbage below it.
#[test]
fn every_old_object_moves_where_freed_memory_is_overwritten() {
    for poison in [true, false] {
        let heap = heap(Config { poison, ..small() });
        let vm = heap.attach().unwrap();
        let all: Vec<_> = (0..3000).map(|_| vm.local(make_old(&vm, Kind::Strong, 1, 24).unwrap())).collect();
        vm.collect(Collection::Full);
        let used = heap.stats().old_bytes;
        for _ in 0..100 {
            let before: Vec<usize> = all.iter().map(|&local| vm.get(local)).collect();
            vm.collect(Collection::Full);
            let stayed = all.iter().zip(&before).filter(|&(&local, &before)| vm.get(local) == before).count();
            assert_eq!(stayed, if poison { 0 } else { 3000 });
        }
        assert!(heap.stats().old_bytes.abs_diff(used) <= 1024, "what they take does not change");
        // A pinned object stays, and what is in front of it moves.
        let pin = vm.handle(vm.get(all[1500]), Keep::Pinned);
        let before = [0, 1500].map(|i| vm.get(all[i]));
        vm.collect(Collection::Full);
        let now = [0, 1500].map(|i| vm.get(all[i]));
        assert_eq!([now[0] == before[0], now[1] == before[1]], [!poison, true]);
        vm.release(pin);
    }
}

/// After more full collections than there is room for, objects stay again, and nothing else happens.
#[test]
fn objects_that_always_moved_stay_at_last() {
    let heap = heap(Config { poison: true, verify: false, collectors: 1, ..small() });
    let vm = heap.attach().unwrap();
    let object = vm.local(make_old(&vm, Kind::Strong, 1, 24).unwrap());
    set_number(vm.get(object), 7);
    let moved = (0..4200).filter(|_| {
        let before = vm.get(object);
        vm.collect(Collection::Full);
        vm.get(object) != before
    });
    assert_eq!((moved.count(), number(vm.get(object))), (4096, 7));
}

#[test]
fn compaction_closes_gaps() {
    let heap = heap(small());
    let vm = heap.attach().unwrap();
    let kept = vm.local(make_old(&vm, Kind::Strong, 1000, 0).unwrap());
    for i in 0..10_000 {
        let object = make_old(&vm, Kind::Strong, 1, i % 700).unwrap();
        if i % 10 == 0 {
            set(&vm, vm.get(kept), i / 10, object);
        }
    }
    let before = heap.stats().old_bytes;
    vm.collect(Collection::Full);
    let stats = heap.stats();
    assert!(stats.old_bytes < before / 9, "{before} to {}", stats.old_bytes);
    assert!(stats.old_bytes - stats.marked_bytes < 1024, "{stats:?}");
    for i in 0..1000 {
        assert_eq!(payload(get(vm.get(kept), i)).len(), i * 10 % 700);
    }
}

#[test]
fn a_store_buffer_that_overflows_is_helped_out_by_cards() {
    let heap = heap(Config { barrier: Barrier::StoreBuffer, old: Bytes(512 << 10), ..small() });
    let vm = heap.attach().unwrap();
    let old = vm.local(make_old(&vm, Kind::Strong, 500, 0).unwrap());
    let young = vm.local(make(&vm, Kind::Strong, 0, 8).unwrap());
    set_number(vm.get(young), 5);
    // Many times what the list of a heap this small holds.
    for i in 0..1_000_000 {
        set(&vm, vm.get(old), i % 500, vm.get(young));
    }
    vm.set(young, 0);
    for kind in [Collection::Young, Collection::Full, Collection::Young] {
        vm.collect(kind);
        for i in 0..500 {
            assert_eq!(number(get(vm.get(old), i)), 5);
        }
    }
}

/// Eden is six eighths at least: garbage of so many bytes takes no more collections than that.
#[test]
fn eden_is_most_of_the_young_generation() {
    let young = 1 << 20;
    let heap = heap(Config { young: Bytes(young), most_young: Bytes(young), verify: false, ..small() });
    let vm = heap.attach().unwrap();
    let bytes = 40 * young;
    (0..bytes / 256).for_each(|_| _ = make(&vm, Kind::Strong, 0, 248).unwrap());
    let stats = heap.stats();
    assert!(stats.young_collections as usize * young * 6 / 8 <= bytes, "{stats:?}");
    assert!(
        stats.young_collections as usize * young >= bytes - young,
        "nor is it more than the young generation: {stats:?}"
    );
}

/// What survives beyond an eighth is promoted, whatever its age; what survives within it is not.
#[test]
fn survivors_that_have_no_room_are_promoted() {
    for (kib, overflows) in [(60, false), (600, true)] {
        let young = Bytes::mib(1);
        let heap = heap(Config { young, most_young: young, tenure: 6, collectors: 1, ..small() });
        let vm = heap.attach().unwrap();
        let nodes = (kib << 10) / 32;
        let kept = vm.local(list(&vm, nodes));
        vm.collect(Collection::Young);
        let stats = heap.stats();
        assert_eq!(stats.young_collections, 1, "{stats:?}");
        assert_eq!(stats.promoted_bytes > 0, overflows, "{kib} KiB: {stats:?}");
        assert!(
            stats.copied_bytes <= 128 << 10 && stats.copied_bytes + stats.promoted_bytes == nodes * 32,
            "{stats:?}"
        );
        check_list(vm.get(kept), nodes);
        vm.collect(Collection::Young);
        check_list(vm.get(kept), nodes);
    }
}

/// A host may watch whatever a slot may hold.
#[test]
fn what_is_no_address_in_the_heap_does_not_die() {
    let heap = heap(small());
    let vm = heap.attach().unwrap();
    for (token, value) in [0, 1, 1 << 20, usize::MAX].into_iter().enumerate() {
        vm.watch(value, token);
    }
    vm.watch(make(&vm, Kind::Strong, 0, 8).unwrap(), 99);
    for kind in [Collection::Young, Collection::Full, Collection::Full] {
        vm.collect(kind);
    }
    assert_eq!(vm.next_dead().map(|(_, token)| token), Some(99));
    assert_eq!(vm.next_dead(), None);
}

/// Its age is a number of 8 bits, and others that its block keeps have survived as often.
#[test]
fn an_object_is_promoted_however_long_it_was_pinned() {
    let heap = heap(Config { verify: false, poison: false, ..small() });
    let vm = heap.attach().unwrap();
    let object = make(&vm, Kind::Strong, 0, 8).unwrap();
    set_number(object, 7);
    let (kept, pin) = (vm.local(object), vm.handle(object, Keep::Pinned));
    // The object is as old after them as the 8 bits say.
    for _ in 0..255 {
        vm.collect(Collection::Young);
    }
    assert_eq!((vm.get(kept), heap.stats().promoted_bytes), (object, 0));
    vm.release(pin);
    vm.collect(Collection::Young);
    assert_ne!(vm.get(kept), object);
    assert_eq!((number(vm.get(kept)), heap.stats().promoted_bytes), (7, 16));
}

/// An old generation of fixed size is collected when it is nearly full; one that may be smaller, whenever it has doubled.
#[test]
fn how_often_the_old_generation_is_collected_is_chosen() {
    let collections = |least_old: usize| {
        let heap = heap(Config { old: Bytes::mib(16), least_old: Bytes(least_old), verify: false, ..small() });
        let vm = heap.attach().unwrap();
        let kept = vm.local(make_old(&vm, Kind::Strong, 0, 1 << 12).unwrap());
        for i in 0..40 << 8 {
            make_old(&vm, Kind::Strong, 0, 4080).unwrap();
            if i % 16 == 0 {
                vm.collect(Collection::Young);
            }
        }
        assert_eq!(payload(vm.get(kept)).len(), 1 << 12);
        heap.stats().full_collections
    };
    let (small, fixed) = (collections(0), collections(16 << 20));
    // 40 MiB of garbage, 2 or nearly 16 MiB at a time.
    assert!((15..=25).contains(&small) && (2..=4).contains(&fixed), "{small} and {fixed}");
}

/// Eden holds as many buffers as their size says, whatever that is.
#[test]
fn buffers_that_do_not_shrink_fill_eden() {
    for kib in [4, 16, 32, 64, 128, 512] {
        let shape = larder_lab::Config { near_end: NearEnd::Singly, ..buffers(Lowest::Threads, kib) };
        let young = Bytes::mib(4);
        let heap = heap(Config { young, most_young: young, buffers: shape, ..small() });
        let vm = heap.attach().unwrap();
        while heap.stats().young_collections == 0 {
            make(&vm, Kind::Strong, 0, 56).unwrap();
        }
        let stats = heap.stats();
        // Eden and the room of survivors that there were none of: seven eighths.
        assert_eq!(stats.buffers as usize, (7 * young.0 / 8) / (kib << 10), "buffers of {kib} KiB: {stats:?}");
        assert_eq!((stats.buffer_bytes as usize, stats.unused_bytes), (7 * young.0 / 8, 0), "buffers of {kib} KiB");
    }
}

/// A block that a pin keeps is walked over from its beginning to its end, whatever its neighbours held.
#[test]
fn no_object_reaches_from_one_span_into_the_next() {
    for kib in [32, 64] {
        let shape = larder_lab::Config { near_end: NearEnd::Singly, ..buffers(Lowest::Threads, kib) };
        let heap = heap(Config { buffers: shape, ..small() });
        let vm = heap.attach().unwrap();
        let mut pins = vec![];
        // 48 bytes each, which no block is a multiple of.
        for n in 0..6 * 700 {
            let object = make(&vm, Kind::Strong, 0, 40).unwrap();
            set_number(object, n);
            // In every second block about.
            if n % 1400 == 0 {
                pins.push((vm.handle(object, Keep::Pinned), n));
            }
        }
        assert_eq!(heap.stats().young_collections, 0, "all of them are in eden");
        for kind in [Collection::Young, Collection::Full, Collection::Young] {
            vm.collect(kind);
            for &(handle, n) in &pins {
                assert_eq!(number(vm.get_handle(handle)), n);
            }
            list(&vm, 2000);
        }
        assert!(heap.stats().kept_blocks >= 3);
    }
}

/// Without a buffer an object comes for one of three reasons, in either generation, and each is counted.
#[test]
fn objects_come_without_a_buffer_for_three_reasons() {
    type Make = fn(&Vm<'_>, Kind, usize, usize) -> Result<usize, larder_moving::OutOfMemory>;
    let reasons = |stats: larder_moving::Stats| {
        [[stats.direct, stats.singly, stats.provided], [stats.old_direct, stats.old_singly, stats.old_provided]]
    };
    let shape = |kib| larder_lab::Config { near_end: NearEnd::Singly, ..buffers(Lowest::Threads, kib) };
    for (old, make) in [make as Make, make_old].into_iter().enumerate() {
        // Eden is 448 KiB.
        let (kib, total) = [(256, 448), (512, 768)][old];
        let heap = heap(Config {
            old: Bytes(768 << 10),
            least_old: Bytes(768 << 10),
            buffers: shape(256),
            old_buffers: shape(512),
            ..small()
        });
        let vm = heap.attach().unwrap();
        // A buffer is used up, and there is no room for another one.
        for n in 1..=total {
            make(&vm, Kind::Strong, 0, 1024 - 8).unwrap();
            assert_eq!(reasons(heap.stats())[old], [0, n.max(kib) - kib, 0]);
        }
        assert_eq!(heap.stats().young_collections, 0);
        // The collection that this one needs provides it.
        make(&vm, Kind::Strong, 0, 1024 - 8).unwrap();
        assert_eq!((reasons(heap.stats())[old], heap.stats().young_collections), ([0, total - kib, 1], 1));
        assert_eq!(reasons(heap.stats())[1 - old], [0; 3], "the other generation");
    }
    for (old, make) in [make as Make, make_old].into_iter().enumerate() {
        let heap = heap(Config { buffers: shape(8), old_buffers: shape(8), ..small() });
        let vm = heap.attach().unwrap();
        make(&vm, Kind::Strong, 0, 1024 - 8).unwrap();
        assert_eq!(reasons(heap.stats()), [[0; 3]; 2], "an eighth of a buffer is not too large for one");
        let taken = heap.stats().buffers + heap.stats().old_buffers;
        // The first comes from the buffer, because there is room; no buffer is abandoned for the others.
        for n in 0..4 {
            make(&vm, Kind::Strong, 0, (4 << 10) - 8).unwrap();
            assert_eq!(reasons(heap.stats())[old], [n, 0, 0]);
        }
        assert_eq!(heap.stats().buffers + heap.stats().old_buffers, taken);
    }
}
