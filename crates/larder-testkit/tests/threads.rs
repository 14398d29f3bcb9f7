//! Threads that come, go, block, are cancelled, and are not known to the heap.

#[path = "../../larder-percpu/tests/unregistered/mod.rs"]
mod unregistered;

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::process::Command;

use larder_fixed::inject::{Point, at_points};
use larder_fixed::options::Options;
use larder_fixed::{allocate, cycle, free, init, kind, threads};
use larder_sys::{loader, rseq_area, thread};
use larder_testkit::mutator::{RESULT, check, life, object_of};
use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{WITHOUT_SEQUENCES, beside, crowd, in_child, pattern};
use larder_threads::REGISTRY;
use unregistered::unregister;

extern "C" fn returns(id: *mut c_void) -> *mut c_void {
    life(id.addr() as u64).cast()
}

/// Exit and cancellation unwind the thread's frames, which aborts where panics unwind, as in tests. So these tests are in
/// a program of its own, built as the library is.
fn thread_ends(test: &str, environment: &[(&str, &str)]) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_thread_ends"));
    let output = program.arg(test).envs(environment.iter().copied()).output().expect("cargo has built the program");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let by_thread = environment.contains(&WITHOUT_SEQUENCES);
    assert!(output.status.success(), "{}\n{text}", output.status);
    assert!(text.contains(&format!("buffers of threads: {by_thread}")), "{text}");
}

#[test]
fn a_thousand_threads_come_and_go() {
    thread_ends("a-thousand", &[]);
}

#[test]
fn a_thousand_threads_come_and_go_without_sequences() {
    thread_ends("a-thousand", &[WITHOUT_SEQUENCES]);
}

#[test]
fn a_thread_that_is_cancelled_while_it_is_parked_stays_parked() {
    thread_ends("cancelled-while-parked", &[]);
}

/// Between the two halves of a join, the thread's memory is gone and its record is still there.
#[test]
fn a_cycle_between_the_end_of_a_thread_and_its_record_is_safe() {
    in_child("a_cycle_between_the_end_of_a_thread_and_its_record_is_safe", &[], || {
        init(&Options::default());
        verifier::watch(Rules::EXACT);
        // Stacks beyond the C library's cache are unmapped at once.
        let handle = crowd::spawn_with(64 << 20, || object_of(7, RESULT).cast());
        let mut result = ptr::null_mut();
        // SAFETY: joined once; the record is told later.
        assert_eq!(unsafe { libc::pthread_join(handle.id(), &mut result) }, 0);
        for _ in 0..3 {
            assert!(cycle::collect());
        }
        check(result.cast(), RESULT, 7);
        REGISTRY.joined(handle.id() as usize);
        assert!(cycle::collect());
    });
}

/// The argument of a thread is kept until the thread runs, and by the thread.
#[test]
fn arguments_reach_their_threads() {
    extern "C" fn takes(argument: *mut c_void) -> *mut c_void {
        assert!(cycle::collect());
        check(argument.cast(), RESULT, 3);
        argument
    }
    in_child("arguments_reach_their_threads", &[], || {
        init(&Options::default());
        verifier::watch(Rules::EXACT);
        for _ in 0..50 {
            let mut handle = 0;
            let argument = object_of(3, RESULT).cast();
            // SAFETY: the routine matches its argument.
            assert_eq!(unsafe { threads::create(&mut handle, ptr::null(), takes, argument) }, 0);
            cycle::collect();
            let mut result = ptr::null_mut();
            // SAFETY: joined once.
            assert_eq!(unsafe { threads::join(handle, &mut result) }, 0);
            check(result.cast(), RESULT, 3);
        }
    });
}

/// Allocates what needs no root, fills and checks it, and frees it again.
fn stranger(s: u64) {
    for round in 0..60u64 {
        let objects: Vec<(usize, usize, u64)> = (0..50u64)
            .map(|i| {
                let kind = [kind::UNCOLLECTABLE, kind::POINTER_FREE_UNCOLLECTABLE][i as usize % 2];
                let bytes = [16, 100, 3000, 50_000][i as usize % 4];
                let id = s << 32 | round << 16 | i;
                // SAFETY: uncollectable: it needs no root.
                let at = unsafe { allocate(kind, bytes) };
                // SAFETY: a fresh object.
                unsafe { pattern::fill(at, 0, bytes, id) };
                (!at.expose_provenance(), bytes, id)
            })
            .collect();
        for (hidden, bytes, id) in objects {
            let at = ptr::with_exposed_provenance_mut::<u8>(!hidden);
            // SAFETY: the object is this thread's until it frees it here.
            unsafe {
                pattern::check(at, 0, bytes, id);
                free(at);
            }
        }
    }
}

/// Threads that the heap does not know may allocate what needs no root, at any moment of a cycle. Of every two one is not known
/// to the kernel either: nothing would abort its sequences, and its concurrency id is somebody else's.
#[test]
fn unregistered_threads_may_allocate_uncollectable_objects() {
    in_child("unregistered_threads_may_allocate_uncollectable_objects", &[], || {
        init(&Options { collect_every: Some(5), ..Options::default() });
        verifier::watch(Rules::WITH_STRANGERS);
        let has_sequences = rseq_area::find().is_ok();
        let strangers: Vec<_> = (0..4u64)
            .map(|s| {
                std::thread::spawn(move || {
                    assert!(!threads::is_registered());
                    assert!(s % 2 == 0 || !has_sequences || unregister());
                    stranger(s);
                })
            })
            .collect();
        crowd::all(4, |i| {
            for _ in 0..60 {
                life(i as u64);
            }
        });
        for stranger in strangers {
            stranger.join().unwrap();
        }
        beside::expect_cycles(10);
    });
}

/// A mutator that loses its registration on the way goes on, by refills.
#[test]
fn a_mutator_without_rseq_goes_on() {
    in_child("a_mutator_without_rseq_goes_on", &[], || {
        init(&Options { collect_every: Some(5), ..Options::default() });
        let has_sequences = rseq_area::find().is_ok();
        crowd::all(4, move |i| {
            for round in 0..60 {
                if i % 2 == 1 && round == 3 && has_sequences {
                    assert!(unregister());
                }
                life(i as u64);
            }
        });
        beside::expect_cycles(10);
    });
}

/// A thread that is not registered is not stopped: a whole cycle may pass between its look at a block, which was empty,
/// and its locking of the list that the block is in.
#[test]
fn a_census_that_missed_a_cycle_takes_no_block_with_objects() {
    /// The thread that takes the census; 0 until it begins, and after its first candidate.
    static STRANGER: AtomicUsize = AtomicUsize::new(0);
    /// It stands at a candidate. Sync: it sets this, the main thread clears it.
    static STANDS: AtomicBool = AtomicBool::new(false);
    const BYTES: usize = 3000;
    const OBJECTS: usize = 2000;

    fn stand_at_candidate(point: Point) {
        let me = thread::tid() as usize;
        if point == Point::CensusCandidate
            && STRANGER.compare_exchange(me, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            STANDS.store(true, Ordering::Release);
            crowd::wait_until(|| !STANDS.load(Ordering::Acquire));
        }
    }

    in_child("a_census_that_missed_a_cycle_takes_no_block_with_objects", &[], || {
        init(&Options { initial_heap: larder_units::Bytes::mib(256), ..Options::default() });
        if larder_fixed::sharing::sharing() != larder_fixed::sharing::Sharing::AllShared {
            // Where blocks have owners, the collector itself takes the whole census, and leaves none to others.
            return;
        }
        if beside::is_asked() {
            // Likewise the marker thread, before each cycle.
            return;
        }
        verifier::watch(Rules::WITH_STRANGERS);
        let own = Words::roots(OBJECTS);
        // Blocks that a cycle leaves empty, in their list.
        for i in 0..OBJECTS {
            own.set(i, object_of(i as u64, BYTES).expose_provenance());
        }
        own.clear();
        assert!(cycle::collect());
        at_points(Some(stand_at_candidate));
        let stranger = std::thread::spawn(|| {
            STRANGER.store(thread::tid() as usize, Ordering::Release);
            // Large objects empty the pool, and then want blocks from the census.
            while STRANGER.load(Ordering::Acquire) != 0 {
                // SAFETY: uncollectable: it needs no root.
                unsafe { allocate(kind::POINTER_FREE_UNCOLLECTABLE, 40_000).write_bytes(0xff, 40_000) };
            }
        });
        crowd::wait_until(|| STANDS.load(Ordering::Acquire));
        assert!(cycle::collect());
        for i in 0..OBJECTS {
            own.set(i, object_of(i as u64, BYTES).expose_provenance());
        }
        STANDS.store(false, Ordering::Release);
        stranger.join().unwrap();
        for i in 0..OBJECTS {
            check(ptr::with_exposed_provenance(own.get(i)), BYTES, i as u64);
        }
        assert!(cycle::collect());
    });
}

/// As above, between reading an object's mark and reading the epochs.
#[test]
fn a_free_that_missed_a_cycle_finds_the_object() {
    /// The thread that frees; 0 until it begins, and after it has read the mark.
    static STRANGER: AtomicUsize = AtomicUsize::new(0);
    /// It has read the mark. Sync: it sets this, the main thread clears it.
    static STANDS: AtomicBool = AtomicBool::new(false);

    fn stand_at_mark(point: Point) {
        let me = thread::tid() as usize;
        if point == Point::MarkRead && STRANGER.compare_exchange(me, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            STANDS.store(true, Ordering::Release);
            crowd::wait_until(|| !STANDS.load(Ordering::Acquire));
        }
    }

    in_child("a_free_that_missed_a_cycle_finds_the_object", &[], || {
        init(&Options::default());
        verifier::watch(Rules::WITH_STRANGERS);
        at_points(Some(stand_at_mark));
        let stranger = std::thread::spawn(|| {
            // SAFETY: uncollectable: it needs no root.
            let at = unsafe { allocate(kind::UNCOLLECTABLE, 100) };
            STRANGER.store(thread::tid() as usize, Ordering::Release);
            // SAFETY: freed once.
            unsafe { free(at) };
        });
        crowd::wait_until(|| STANDS.load(Ordering::Acquire));
        assert!(cycle::collect());
        STANDS.store(false, Ordering::Release);
        stranger.join().unwrap();
        assert!(cycle::collect());
    });
}

// ---- Blocking regions.

/// Threads in a blocking region. Sync: they add and subtract.
static BLOCKED: AtomicUsize = AtomicUsize::new(0);
/// Lets them out. Sync: the test.
static RELEASED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn wait_for_release(_: *mut c_void) -> *mut c_void {
    BLOCKED.fetch_add(1, Ordering::AcqRel);
    crowd::wait_until(|| RELEASED.load(Ordering::Acquire));
    ptr::null_mut()
}

/// Makes one stop, and says whom it had to signal.
fn stop_once() -> larder_threads::stop::Stopped {
    let guard = REGISTRY.lock();
    let stopped = guard.stop_world();
    guard.resume_world();
    stopped
}

#[test]
fn blocked_threads_are_not_signalled_and_keep_their_objects() {
    in_child("blocked_threads_are_not_signalled_and_keep_their_objects", &[], || {
        init(&Options::default());
        verifier::watch(Rules::EXACT);
        let sleepers: Vec<_> = (0..100u64)
            .map(|id| {
                crowd::spawn(move || {
                    let own = object_of(id, 300);
                    // SAFETY: the callback does not use the heap.
                    unsafe { threads::do_blocking(wait_for_release, ptr::null_mut()) };
                    check(own, 300, id);
                })
            })
            .collect();
        crowd::wait_until(|| BLOCKED.load(Ordering::Acquire) == 100);
        let stopped = stop_once();
        assert_eq!((stopped.signalled, stopped.blocked), (0, 100));
        for _ in 0..20 {
            assert!(cycle::collect());
        }
        assert!(verifier::reached().0 >= 100);
        RELEASED.store(true, Ordering::Release);
        // They come back while the world is stopped and resumed.
        for _ in 0..50 {
            assert!(cycle::collect());
        }
        for sleeper in sleepers {
            sleeper.join();
        }
        assert_eq!(stop_once().signalled, 0);
    });
}

/// Collectors that queue behind another for the loader's list keep their objects, and a stop counts on them without a signal.
#[test]
fn a_collector_that_waits_for_the_loaders_list_is_not_signalled() {
    in_child("a_collector_that_waits_for_the_loaders_list_is_not_signalled", &[], || {
        init(&Options::default());
        verifier::watch(Rules::EXACT);
        // Their objects are made before: a thread whose allocation came to a cycle would queue for the list, too.
        static MADE: AtomicUsize = AtomicUsize::new(0);
        static HELD: AtomicBool = AtomicBool::new(false);
        let queue: Vec<_> = (0..8u64)
            .map(|id| {
                crowd::spawn(move || {
                    let own = object_of(id, 300);
                    MADE.fetch_add(1, Ordering::AcqRel);
                    crowd::wait_until(|| HELD.load(Ordering::Acquire));
                    assert!(cycle::collect());
                    check(own, 300, id);
                })
            })
            .collect();
        crowd::wait_until(|| MADE.load(Ordering::Acquire) == 8);
        loader::with_objects_held(|| {
            HELD.store(true, Ordering::Release);
            // Some of them are on their way to the list at first.
            crowd::wait_until(|| {
                let stopped = stop_once();
                larder_threads::stop::wake_resumed(2);
                (stopped.signalled, stopped.blocked) == (0, 8)
            });
            // A callback of the program's collects: the list is its own thread's.
            for _ in 0..20 {
                assert!(cycle::collect());
                assert!(verifier::reached().0 >= 8);
            }
            let stopped = stop_once();
            assert_eq!((stopped.signalled, stopped.blocked), (0, 8));
        });
        for collector in queue {
            collector.join();
        }
    });
}

#[test]
fn a_blocked_thread_may_become_active_inside_and_block_again() {
    unsafe extern "C" fn active(depth: *mut c_void) -> *mut c_void {
        let id = 500 + depth.addr() as u64;
        let own = object_of(id, 100);
        assert!(cycle::collect());
        if depth.addr() > 0 {
            // SAFETY: the callback uses the heap only when it is active again.
            unsafe { threads::do_blocking(blocked, ptr::without_provenance_mut(depth.addr() - 1)) };
        }
        assert!(cycle::collect());
        check(own, 100, id);
        ptr::null_mut()
    }
    unsafe extern "C" fn blocked(depth: *mut c_void) -> *mut c_void {
        BLOCKED.fetch_add(1, Ordering::AcqRel);
        // SAFETY: as for `active` itself.
        unsafe { threads::call_with_gc_active(active, depth) };
        ptr::null_mut()
    }
    in_child("a_blocked_thread_may_become_active_inside_and_block_again", &[], || {
        init(&Options::default());
        verifier::watch(Rules::EXACT);
        crowd::all(16, |i| {
            for _ in 0..10 {
                let own = object_of(i as u64, 300);
                // SAFETY: the callback uses the heap only when it is active.
                unsafe { threads::do_blocking(blocked, ptr::without_provenance_mut(3)) };
                check(own, 300, i as u64);
            }
        });
        assert_eq!(BLOCKED.load(Ordering::Relaxed), 16 * 10 * 4);
        assert!(cycle::number() >= 16 * 10 * 8);
    });
}

/// Two words of different threads' records must not be mixed up when records are used again.
#[test]
fn detached_threads_leave_no_record() {
    in_child("detached_threads_leave_no_record", &[], || {
        init(&Options::default());
        verifier::watch(Rules::EXACT);
        for round in 0..20 {
            let n = 30;
            for id in 0..n {
                let mut handle = 0;
                // SAFETY: the routine matches its argument; detached at once.
                unsafe {
                    let start = ptr::without_provenance_mut(id + 1);
                    assert_eq!(threads::create(&mut handle, ptr::null(), returns, start), 0);
                    assert_eq!(threads::detach(handle), 0);
                }
            }
            // A record that stays is waited for in vain.
            crowd::wait_until(|| {
                let mut records = 0;
                REGISTRY.lock().for_each(|_| records += 1);
                records == 1
            });
            assert!(cycle::collect(), "round {round}");
        }
        assert_eq!(REGISTRY.total(), 1 + 20 * 30);
    });
}

/// Roots in thread-local storage count, of every thread.
#[test]
fn thread_local_storage_keeps_objects() {
    thread_local!(static WORD: core::cell::Cell<usize> = const { core::cell::Cell::new(0) });
    in_child("thread_local_storage_keeps_objects", &[], || {
        init(&Options::default());
        verifier::watch(Rules::EXACT);
        #[inline(never)]
        fn put(id: u64) {
            WORD.set(object_of(id, 500).expose_provenance());
        }
        let seen = Words::hidden(16);
        crowd::all(16, move |i| {
            put(i as u64);
            seen.set(i, !WORD.get());
            crowd::wait_until(|| (0..16).all(|i| seen.get(i) != 0));
            for _ in 0..5 {
                assert!(cycle::collect());
            }
            check(ptr::with_exposed_provenance(WORD.get()), 500, i as u64);
        });
    });
}
