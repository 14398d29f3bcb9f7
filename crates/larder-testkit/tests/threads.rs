//! Threads that come, go, block, are cancelled, and are not known to the heap.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use larder_fixed::options::Options;
use larder_fixed::{allocate, cycle, free, init, kind, object, stats, threads};
use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{WITHOUT_SEQUENCES, crowd, in_child, pattern};
use larder_threads::REGISTRY;

/// Bytes of a thread's result.
const RESULT: usize = 200;

/// An object with the pattern `id`.
fn object_of(id: u64, bytes: usize) -> *mut u8 {
    // SAFETY: the caller's frame keeps the object.
    unsafe {
        let at = allocate(kind::NORMAL, bytes);
        assert!(!at.is_null());
        assert_eq!(pattern::first_set(at, object::size(at.addr())), None);
        pattern::fill(at, 0, bytes, id);
        at
    }
}

fn check(at: *const u8, bytes: usize, id: u64) {
    assert_eq!(object::base(at.addr()), Some(at.addr()), "object of thread {id}");
    // SAFETY: alive, as was just seen.
    unsafe { pattern::check(at, 0, bytes, id) };
}

/// What each of the many threads does: objects that only its stack keeps, and garbage.
#[inline(never)]
fn life(id: u64) -> *mut u8 {
    let mut own = [ptr::null_mut(); 6];
    for (i, o) in own.iter_mut().enumerate() {
        *o = object_of(id * 8 + i as u64, 40 + 300 * i);
    }
    for _ in 0..40 {
        core::hint::black_box(object_of(id, 120));
    }
    for (i, o) in own.iter().enumerate() {
        check(*o, 40 + 300 * i, id * 8 + i as u64);
    }
    core::hint::black_box(&own);
    object_of(id, RESULT)
}

extern "C" fn returns(id: *mut c_void) -> *mut c_void {
    life(id.addr() as u64).cast()
}

extern "C" fn exits(id: *mut c_void) -> *mut c_void {
    threads::exit(life(id.addr() as u64).cast())
}

/// Threads that wait to be cancelled. Sync: they add.
static WAITING: AtomicUsize = AtomicUsize::new(0);

extern "C" fn is_cancelled(id: *mut c_void) -> *mut c_void {
    life(id.addr() as u64);
    WAITING.fetch_add(1, Ordering::Relaxed);
    loop {
        // SAFETY: waits for nothing, for ever; a cancellation point.
        unsafe { libc::poll(ptr::null_mut(), 0, -1) };
    }
}

/// A thousand threads, at most a hundred at a time, while eight others allocate and collect.
fn come_and_go() {
    init(&Options { collect_every: Some(500), ..Options::default() });
    verifier::watch(Rules::EXACT);
    let over = Arc::new(AtomicBool::new(false));
    let stayers: Vec<_> = (0..8)
        .map(|i| {
            let over = over.clone();
            crowd::spawn(move || {
                let mut rounds = 0;
                while !over.load(Ordering::Relaxed) {
                    life(10_000 + i);
                    rounds += 1;
                    if rounds % 50 == 0 {
                        cycle::collect();
                    }
                }
            })
        })
        .collect();
    let mut id = 1usize;
    for _ in 0..10 {
        let mut batch = vec![];
        for _ in 0..100 {
            let start: threads::StartFn = [returns, exits, is_cancelled][id % 3];
            let mut handle = 0;
            // SAFETY: the routine matches its argument.
            let r = unsafe { threads::create(&mut handle, ptr::null(), start, ptr::without_provenance_mut(id)) };
            assert_eq!(r, 0);
            batch.push((id, handle));
            id += 1;
        }
        let cancelled = batch.iter().filter(|(id, _)| id % 3 == 2).count();
        crowd::wait_until(|| WAITING.load(Ordering::Relaxed) == cancelled);
        WAITING.store(0, Ordering::Relaxed);
        for (id, handle) in &batch {
            if id % 3 == 2 {
                // SAFETY: not joined yet.
                assert_eq!(unsafe { threads::cancel(*handle) }, 0);
            }
        }
        // Results are kept by the records of their threads alone.
        assert!(cycle::collect());
        for (id, handle) in batch {
            let mut result = ptr::null_mut();
            // SAFETY: joined once.
            assert_eq!(unsafe { threads::join(handle, &mut result) }, 0);
            if id % 3 == 2 {
                assert_eq!(result.addr(), usize::MAX, "PTHREAD_CANCELED");
            } else {
                check(result.cast(), RESULT, id as u64);
            }
        }
    }
    over.store(true, Ordering::Relaxed);
    for stayer in stayers {
        stayer.join();
    }
    assert!(REGISTRY.total() >= 1000 && REGISTRY.count() == 1, "{} threads are left", REGISTRY.count());
    assert!(cycle::number() >= 20 && verifier::cycles() == cycle::number());
    // What thousand threads had is garbage now.
    assert!(cycle::collect_and_unmap());
    assert!(verifier::reached().1 < 1 << 20, "{:?} are still reachable", verifier::reached());
}

#[test]
fn a_thousand_threads_come_and_go() {
    in_child("a_thousand_threads_come_and_go", &[], || {
        come_and_go();
        assert!(!stats::by_thread());
    });
}

#[test]
fn a_thousand_threads_come_and_go_without_sequences() {
    in_child("a_thousand_threads_come_and_go_without_sequences", &[WITHOUT_SEQUENCES], || {
        come_and_go();
        assert!(stats::by_thread());
    });
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

/// Threads that the heap does not know may allocate what needs no root, at any moment of a cycle.
#[test]
fn unregistered_threads_may_allocate_uncollectable_objects() {
    in_child("unregistered_threads_may_allocate_uncollectable_objects", &[], || {
        init(&Options { collect_every: Some(50), ..Options::default() });
        // What an unregistered thread is just allocating, the verifier may see before or after the marker.
        verifier::watch(Rules { nothing_else_is_marked: false, nothing_dangles: true });
        let strangers: Vec<_> = (0..4u64)
            .map(|s| {
                std::thread::spawn(move || {
                    assert!(!threads::is_registered());
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
        assert!(cycle::number() > 10);
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
            crowd::wait_until(|| REGISTRY.count() == 1);
            assert!(cycle::collect(), "round {round}");
        }
        let mut records = 0;
        REGISTRY.lock().for_each(|_| records += 1);
        assert_eq!(records, 1, "records of ended threads are left");
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
