//! Collectors that meet: at one object, and where one moves what another is about to overwrite.

mod mini;

use larder_moving::{Barrier, Collection, Config};
use larder_units::Bytes;
use mini::*;

#[test]
fn an_object_that_all_collectors_find_is_copied_once() {
    const SHARED: usize = 1000;
    const OWNERS: usize = 64;
    for barrier in [Barrier::ConditionalCards, Barrier::StoreBuffer] {
        let heap = heap(Config { barrier, collectors: 4, young: Bytes::mib(1), most_young: Bytes::mib(1), ..small() });
        let vm = heap.attach().unwrap();
        // Old objects whose cards lead to the same young ones: collectors come to these at the same time. Large young
        // objects, too, so that copying takes a while.
        let owners = vm.local(make_old(&vm, Kind::Strong, OWNERS, 0).unwrap());
        for i in 0..OWNERS {
            let owner = make_old(&vm, Kind::Strong, SHARED, 0).unwrap();
            set(&vm, vm.get(owners), i, owner);
        }
        for round in 0..40 {
            for n in 0..SHARED {
                let bytes = if n % 50 == 0 { 4000 } else { 8 + n % 64 };
                let shared = make(&vm, Kind::Strong, 0, bytes).unwrap();
                set_number(shared, (round * SHARED + n) as u64);
                for i in 0..OWNERS {
                    set(&vm, get(vm.get(owners), i), n, shared);
                }
            }
            vm.collect(if round % 10 == 9 { Collection::Full } else { Collection::Young });
            let first = get(vm.get(owners), 0);
            for n in 0..SHARED {
                assert_eq!(number(get(first, n)), (round * SHARED + n) as u64);
                assert!(
                    (1..OWNERS).all(|i| get(get(vm.get(owners), i), n) == get(first, n)),
                    "two copies of one object"
                );
            }
        }
    }
}

#[test]
fn what_is_moved_over_was_moved_away_before() {
    const LISTS: usize = 4000;
    // Several megabytes, many stripes, more collectors than CPUs: the one that moves a stripe is often descheduled.
    let heap = heap(Config { collectors: 8, old: Bytes::mib(24), verify: false, poison: false, ..small() });
    let vm = heap.attach().unwrap();
    let all = vm.local(make_old(&vm, Kind::Strong, LISTS, 0).unwrap());
    let fresh = |i: usize, n: u64| {
        let object = make_old(&vm, Kind::Strong, 0, 8 + (i * 37 + n as usize * 101) % 4000).unwrap();
        payload(object).fill(n as u8);
        set_number(object, (i as u64) << 32 | n);
        set(&vm, vm.get(all), i, object);
    };
    (0..LISTS).for_each(|i| fresh(i, 0));
    let mut latest = vec![0; LISTS];
    for round in 1..12u64 {
        // Every round others die, so that everything slides by a little, or by much.
        for i in (round as usize..LISTS).step_by(if round % 3 == 0 { 29 } else { 5 }) {
            latest[i] = round;
            fresh(i, round);
        }
        vm.collect(Collection::Full);
        for (i, &n) in latest.iter().enumerate() {
            let object = get(vm.get(all), i);
            assert_eq!(number(object), (i as u64) << 32 | n);
            assert!(payload(object)[8..].iter().all(|&byte| byte == n as u8));
        }
    }
    assert!(heap.stats().compacted_bytes > 20 << 20, "{:?}", heap.stats());
}

#[test]
fn what_a_collection_provides_is_not_collected_by_the_next() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    const THREADS: usize = 12;
    // So little room, and objects so long, that nearly every allocation collects, and gets its memory from that collection;
    // and others that collect all the time.
    let young = Bytes(256 << 10);
    let buffers = buffers(larder_lab::Lowest::Threads, 4);
    let heap = heap(Config { young, most_young: young, buffers, collectors: 1, verify: false, ..small() });
    /// Ends with its thread, by a failure too: those that collect must not go on for ever.
    struct Running<'a>(&'a AtomicUsize);
    impl Drop for Running<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let running = AtomicUsize::new(THREADS);
    std::thread::scope(|scope| {
        for seed in 0..THREADS as u64 {
            let (heap, running) = (&heap, &running);
            scope.spawn(move || {
                let _running = Running(running);
                let vm = heap.attach().unwrap();
                let last = vm.local(0);
                for n in 0..600 {
                    let object = make(&vm, Kind::Strong, 1, 7000).unwrap();
                    assert!(payload(object).iter().all(|&byte| byte == 0), "memory that somebody else has");
                    payload(object).fill(seed as u8 + 1);
                    let before = vm.get(last);
                    if n > 0 {
                        assert!(payload(before).iter().all(|&byte| byte == seed as u8 + 1));
                    }
                    vm.set(last, object);
                }
            });
        }
        for _ in 0..3 {
            scope.spawn(|| {
                let vm = heap.attach().unwrap();
                while running.load(Ordering::Relaxed) > 0 {
                    vm.collect(Collection::Young);
                }
            });
        }
    });
}

#[test]
fn what_a_collection_provides_outlasts_one_that_waits_for_its_end() {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};
    const MOST: Duration = Duration::from_secs(60);
    /// The calling thread runs on the first CPU that it may use, and only while no other wants to run there if `idle`.
    fn take_place(idle: bool) {
        move_to(cpus()[0]);
        if idle {
            // SAFETY: plain data of the right size; the calling thread is meant.
            unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &std::mem::zeroed()) };
        }
    }
    let heap =
        heap(Config { young: Bytes(256 << 10), most_young: Bytes(256 << 10), collectors: 1, verify: false, ..small() });
    let over = AtomicBool::new(false);
    let others = AtomicUsize::new(0);
    let all_zero = std::thread::scope(|scope| {
        scope.spawn(|| {
            take_place(false);
            let mut vm = heap.attach().unwrap();
            let mut seen = 0;
            while !over.load(Ordering::Relaxed) {
                vm.blocking(|| {
                    let mut collections = heap.host().collections.lock().unwrap();
                    while collections.len() == seen && !over.load(Ordering::Relaxed) {
                        collections = heap.host().collected.wait(collections).unwrap();
                    }
                    seen = collections.len() + 1;
                });
                // It leaves its blocking region when the other's collection is over, displaces the other, and waits here for
                // the lock. So it goes on in the moment when the other gives the lock up.
                vm.collect(Collection::Young);
                others.fetch_add(1, Ordering::Relaxed);
            }
        });
        take_place(true);
        let vm = heap.attach().unwrap();
        let mut all_zero = true;
        // Where other programs want this CPU all the time, an idle thread hardly runs: then fewer meetings are enough.
        let begun = Instant::now();
        while all_zero && others.load(Ordering::Relaxed) < 20 && begun.elapsed() < MOST {
            let object = make(&vm, Kind::Strong, 0, 2000).unwrap();
            all_zero = payload(object).iter().all(|&byte| byte == 0);
        }
        // Under the lock, or the other could miss it.
        let collections = heap.host().collections.lock().unwrap();
        over.store(true, Ordering::Relaxed);
        heap.host().collected.notify_all();
        drop(collections);
        drop(vm);
        all_zero
    });
    assert!(all_zero, "an object was handed out whose memory another collection had freed");
}
