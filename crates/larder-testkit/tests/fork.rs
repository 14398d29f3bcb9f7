//! Fork: the child has a heap that works, whatever the other threads were doing.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use larder_fixed::finalization::{self, Order};
use larder_fixed::options::Options;
use larder_fixed::{allocate, cycle, free, init, kind, object, stats};
use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{WITHOUT_SEQUENCES, crowd, in_child, pattern};

/// Seconds after which a child that hangs is killed; on a loaded machine one that does not hang takes long.
const CHILD_SECONDS: libc::c_uint = 900;
const KEPT: usize = 500;

fn fill(table: Words, salt: u64) {
    for i in 0..table.count() {
        let bytes = 16 + i % 700;
        // SAFETY: in a root at once; the old object stays until then.
        unsafe {
            let at = allocate(kind::NORMAL, bytes);
            assert!(!at.is_null());
            assert_eq!(pattern::first_set(at, object::size(at.addr())), None);
            pattern::fill(at, 0, bytes, salt + i as u64);
            table.set(i, at.expose_provenance());
        }
    }
}

fn check(table: Words, salt: u64) {
    for i in 0..table.count() {
        let at = table.get(i);
        assert_eq!(object::base(at), Some(at));
        // SAFETY: kept by the table.
        unsafe { pattern::check(ptr::with_exposed_provenance(at), 0, 16 + i % 700, salt + i as u64) };
    }
}

/// Forks; the child runs `body` and must come to its end.
fn in_fork(body: impl FnOnce()) {
    // SAFETY: the child uses only what the heap allows it, and leaves without running the parent's exit handlers.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::alarm(CHILD_SECONDS);
            body();
            libc::_exit(17);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 17, "the child ended with {status:#x}");
    }
}

/// What a child does: everything that was there is still there, and everything works.
fn child_lives(kept: Words, salt: u64) {
    check(kept, salt);
    let own = Words::roots(KEPT);
    for round in 0..4 {
        fill(own, 7_000_000 + round);
        assert!(cycle::collect());
        check(own, 7_000_000 + round);
    }
    check(kept, salt);
    // New threads use the records, and where there are no sequences the buffers, of those that the child does not have.
    crowd::all(4, |i| {
        let table = Words::roots(KEPT);
        for round in 0..3 {
            fill(table, (i as u64) << 40 | round);
            cycle::collect();
            check(table, (i as u64) << 40 | round);
        }
    });
    for i in 0..KEPT {
        // SAFETY: nothing else refers to it.
        unsafe { free(ptr::with_exposed_provenance_mut(own.word(i).swap(0, Ordering::Relaxed))) };
    }
    check(kept, salt);
    assert!(cycle::collect_and_unmap());
}

fn fork_among_busy_threads(forks: usize) {
    init(&Options { collect_every: Some(200), markers: Some(2), ..Options::default() });
    verifier::watch(Rules::EXACT);
    let over = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..6u64)
        .map(|i| {
            let over = over.clone();
            crowd::spawn(move || {
                let table = Words::roots(KEPT);
                let mut round = 0;
                while !over.load(Ordering::Relaxed) {
                    round += 1;
                    fill(table, i << 48 | round << 16);
                    // Large objects, explicit frees, and cycles, so that a fork meets every lock held.
                    for bytes in [50_000, 200_000] {
                        // SAFETY: freed at once.
                        unsafe { free(allocate(kind::NORMAL, bytes)) };
                    }
                    if round % 8 == i {
                        cycle::collect();
                    }
                    check(table, i << 48 | round << 16);
                }
            })
        })
        .collect();
    let kept = Words::roots(KEPT);
    for f in 0..forks as u64 {
        fill(kept, f << 20);
        in_fork(|| child_lives(kept, f << 20));
        check(kept, f << 20);
    }
    over.store(true, Ordering::Relaxed);
    for b in busy {
        b.join();
    }
    assert!(cycle::collect());
}

#[test]
fn a_child_collects_and_the_parent_goes_on() {
    in_child("a_child_collects_and_the_parent_goes_on", &[], || {
        init(&Options { markers: Some(2), ..Options::default() });
        verifier::watch(Rules::EXACT);
        let kept = Words::roots(KEPT);
        for f in 0..20u64 {
            fill(kept, f << 20);
            in_fork(|| {
                child_lives(kept, f << 20);
                // A child of the child.
                in_fork(|| child_lives(kept, f << 20));
            });
            check(kept, f << 20);
            assert!(cycle::collect());
        }
    });
}

#[test]
fn a_child_of_a_busy_process_works() {
    in_child("a_child_of_a_busy_process_works", &[], || fork_among_busy_threads(24));
}

#[test]
fn a_child_of_a_busy_process_works_without_sequences() {
    in_child("a_child_of_a_busy_process_works_without_sequences", &[WITHOUT_SEQUENCES], || {
        fork_among_busy_threads(20);
        assert!(stats::by_thread());
    });
}

/// Several threads fork at once.
#[test]
fn threads_fork_at_the_same_time() {
    in_child("threads_fork_at_the_same_time", &[], || {
        init(&Options { collect_every: Some(100), ..Options::default() });
        verifier::watch(Rules::EXACT);
        crowd::all(4, |i| {
            let kept = Words::roots(KEPT);
            for f in 0..6u64 {
                let salt = (i as u64) << 40 | f << 20;
                fill(kept, salt);
                in_fork(|| check_and_collect(kept, salt));
                check(kept, salt);
            }
        });
    });
}

fn check_and_collect(kept: Words, salt: u64) {
    check(kept, salt);
    assert!(cycle::collect());
    let own = Words::roots(KEPT);
    fill(own, 1);
    assert!(cycle::collect());
    check(own, 1);
    check(kept, salt);
}

/// Finalizers that have begun.
static FINALIZED: AtomicUsize = AtomicUsize::new(0);
/// A finalizer may return.
static RETURN: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn note(_: *mut c_void, waits: *mut c_void) {
    FINALIZED.fetch_add(1, Ordering::Relaxed);
    if !waits.is_null() {
        crowd::wait_until(|| RETURN.load(Ordering::Relaxed));
    }
}

/// Makes objects that nobody refers to until the finalizer of one was called on this thread.
fn finalize_one(waits: bool) {
    #[inline(never)]
    fn make(waits: bool) {
        // SAFETY: nobody uses it.
        let at = unsafe { allocate(kind::NORMAL, 40) }.expose_provenance();
        assert_eq!(finalization::register(at, Some(note), usize::from(waits), Order::Normal), Ok((None, 0)));
    }
    let before = FINALIZED.load(Ordering::Relaxed);
    // One may be taken for live, in a word that a frame has left.
    for _ in 0..20 {
        make(waits);
        assert!(cycle::collect());
        if FINALIZED.load(Ordering::Relaxed) > before {
            return;
        }
    }
    panic!("no finalizer was called");
}

/// The child of a process in which another thread runs a finalizer, which will never return there, runs its own.
#[test]
fn a_child_runs_finalizers_although_its_parent_was_running_one() {
    in_child("a_child_runs_finalizers_although_its_parent_was_running_one", &[], || {
        init(&Options::default());
        verifier::watch(Rules::WITH_FINALIZERS);
        let other = crowd::spawn(|| finalize_one(true));
        crowd::wait_until(|| FINALIZED.load(Ordering::Relaxed) > 0);
        in_fork(|| finalize_one(false));
        RETURN.store(true, Ordering::Relaxed);
        other.join();
        finalize_one(false);
    });
}
