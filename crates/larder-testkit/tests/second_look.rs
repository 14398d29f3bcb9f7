//! What happens exactly while a cycle beside the program looks at roots for the second time: before it, when who collects may take the cycle over, and in it.

use core::cell::{Cell, OnceCell};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use larder_fixed::concurrent::Way;
use larder_fixed::inject::{Point, at_points};
use larder_fixed::options::Options;
use larder_fixed::{concurrent, cycle, init, object};
use larder_sys::{thread, watch::Kind};
use larder_testkit::beside::offered;
use larder_testkit::mutator::{check, object_of};
use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{crowd, in_child};
use larder_units::Nanos;

/// The point at which the marker thread waits, once; 0 for none. Sync: the test sets it, the marker thread takes it.
static TARGET: AtomicU32 = AtomicU32::new(0);
/// The marker thread waits there. Sync: by the marker thread.
static WAITS: AtomicBool = AtomicBool::new(false);
/// It may go on. Sync: by the test.
static GOES_ON: AtomicBool = AtomicBool::new(false);

/// Blocks whose pages a refill had made writable. Sync: a count.
static MADE_WRITABLE: AtomicUsize = AtomicUsize::new(0);

fn hook(p: Point) {
    if p == Point::BeforeMadeWritable {
        MADE_WRITABLE.fetch_add(1, Ordering::Relaxed);
    }
    if TARGET.compare_exchange(p as u32, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        WAITS.store(true, Ordering::Release);
        while !GOES_ON.load(Ordering::Acquire) {
            thread::yield_now();
        }
        WAITS.store(false, Ordering::Release);
    }
}

/// Objects in roots, and one in a word of each of them.
struct Kept(Words);

const KEPT: usize = 1000;
const BYTES: usize = 5000;

impl Kept {
    /// A word of an object that its pattern does not reach.
    fn word(&self, i: usize) -> *mut usize {
        core::ptr::with_exposed_provenance_mut::<usize>(self.0.get(i)).wrapping_add(BYTES / 8)
    }

    fn new() -> Self {
        let kept = Self(Words::roots(KEPT));
        (0..KEPT).for_each(|i| kept.0.set(i, object_of(i as u64, BYTES).expose_provenance()));
        kept
    }

    /// Gives every second one a new object, and replaces the others.
    fn renew(&self, round: u64) {
        for i in 0..KEPT {
            if (i as u64 + round).is_multiple_of(2) {
                // SAFETY: a word of an object.
                unsafe { self.word(i).write(object_of(round << 20 | i as u64, 48).expose_provenance()) };
            } else {
                let new = object_of(i as u64, BYTES);
                // SAFETY: words of two objects; the content of the old one's is the new one's from here on.
                unsafe { new.cast::<usize>().wrapping_add(BYTES / 8).write(self.word(i).read()) };
                self.0.set(i, new.expose_provenance());
            }
        }
    }

    fn check(&self, round: u64) {
        for i in 0..KEPT {
            check(core::ptr::with_exposed_provenance(self.0.get(i)), BYTES, i as u64);
            let of = if (i as u64 + round).is_multiple_of(2) { round } else { round - 1 };
            // SAFETY: a word of an object.
            check(core::ptr::with_exposed_provenance(unsafe { self.word(i).read() }), 48, of << 20 | i as u64);
        }
    }
}

/// Calls `act` while a cycle waits at that point, and lets the cycle go on when it calls the function that it is given, or returns; twenty times.
fn at(name: &str, point: Point, act: impl Fn(&Kept, u64, &dyn Fn())) {
    const ROUNDS: u64 = 20;
    if !offered(Kind::Uffd) {
        return;
    }
    in_child(name, &[], || {
        init(&Options::default());
        verifier::watch(Rules::WITH_FINALIZERS);
        // There is a second look whatever was made.
        concurrent::set_pause_goal(Nanos(1));
        assert_eq!(concurrent::turn_on(Some(Way::Watch(Kind::Uffd))), Ok(Way::Watch(Kind::Uffd)));
        at_points(Some(hook));
        let kept = Kept::new();
        (0..2).for_each(|round| kept.renew(round));
        let (mut round, mut reached) = (1, 0);
        while reached < ROUNDS {
            GOES_ON.store(false, Ordering::Relaxed);
            TARGET.store(point as u32, Ordering::Relaxed);
            concurrent::ask();
            crowd::wait_until(|| concurrent::is_under_way() || !concurrent::finish_if_ready());
            round += 1;
            kept.renew(round);
            // Some cycles are overtaken, or have nothing to look for.
            crowd::wait_until(|| WAITS.load(Ordering::Acquire) || !concurrent::finish_if_ready());
            TARGET.store(0, Ordering::Relaxed);
            let go_on = || GOES_ON.store(true, Ordering::Release);
            if WAITS.load(Ordering::Acquire) {
                reached += 1;
                act(&kept, round, &go_on);
            }
            go_on();
            crowd::wait_until(|| {
                !concurrent::finish_if_ready() && !concurrent::is_under_way() && !WAITS.load(Ordering::Acquire)
            });
            kept.check(round);
        }
    });
}

/// A child finds everything, and collects.
fn fork(kept: &Kept, round: u64) {
    // SAFETY: the child uses only what the heap allows it, and leaves without running the parent's exit handlers.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::alarm(900);
            kept.check(round);
            assert!(cycle::collect());
            kept.renew(round + 1);
            assert!(cycle::collect());
            kept.check(round + 1);
            libc::_exit(17);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 17, "the child ended with {status:#x}");
    }
}

#[test]
fn a_fork_before_it() {
    at("a_fork_before_it", Point::BeforeSecondLook, |kept, round, _| fork(kept, round));
}

/// The marker thread is where no fork may be: the fork waits for it.
#[test]
fn a_fork_in_it() {
    at("a_fork_in_it", Point::InSecondLook, |kept, round, go_on| {
        go_on();
        fork(kept, round);
    });
}

#[test]
fn collecting_before_it() {
    at("collecting_before_it", Point::BeforeSecondLook, |kept, round, _| {
        // The cycle is taken over, and another one follows.
        assert!(cycle::collect());
        kept.check(round);
    });
}

#[test]
fn collecting_in_it() {
    at("collecting_in_it", Point::InSecondLook, |kept, round, go_on| {
        go_on();
        assert!(cycle::collect());
        kept.check(round);
    });
}

/// Whatever is forbidden meanwhile, the cycle goes on where it was when it is allowed again.
fn forbid(kept: &Kept, round: u64, go_on: &dyn Fn()) {
    cycle::disable();
    let before = cycle::number();
    go_on();
    (0..5).for_each(|_| kept.renew(round));
    assert_eq!(cycle::number(), before);
    kept.check(round);
    cycle::enable();
    kept.renew(round);
}

#[test]
fn collecting_is_forbidden_before_it() {
    at("collecting_is_forbidden_before_it", Point::BeforeSecondLook, forbid);
}

#[test]
fn collecting_is_forbidden_in_it() {
    at("collecting_is_forbidden_in_it", Point::InSecondLook, forbid);
}

/// Free cells between others that live are handed out while a cycle watches: all pages of a block are made writable by one call, and what is written
/// to its older objects afterwards is found.
#[test]
fn what_lies_beside_new_objects_may_be_written_before_it() {
    const OBJECTS: usize = 4000;
    const SMALL: usize = 392;
    let old = OnceCell::new();
    let (last, reached) = (Cell::new(0), Cell::new(0));
    at("what_lies_beside_new_objects_may_be_written_before_it", Point::BeforeSecondLook, |_, round, _| {
        let id = |round: u64, i: usize| round << 20 | i as u64;
        let made = |i: usize| object_of(id(round, i), SMALL).expose_provenance();
        let old = *old.get_or_init(|| {
            let old = Words::roots(OBJECTS);
            for i in 0..OBJECTS {
                // One of the two is dead, and its cell is handed out in the middle of a later cycle.
                made(i);
                old.set(i, made(i));
            }
            assert!(object::size(old.get(0)) >= SMALL + 8, "an object has a word behind its pattern");
            old
        });
        for i in 0..OBJECTS {
            let word = core::ptr::with_exposed_provenance_mut::<usize>(old.get(i)).wrapping_add(SMALL / 8);
            // SAFETY: a word of an object that a root keeps. Nothing else refers to the new object.
            unsafe {
                if last.get() > 0 {
                    check(core::ptr::with_exposed_provenance(word.read()), SMALL, id(last.get(), i));
                }
                word.write(made(i));
            }
        }
        last.set(round);
        // Now and then the dead leave whole blocks, which nobody watches.
        let blocks = MADE_WRITABLE.load(Ordering::Relaxed) as u64;
        reached.set(reached.get() + 1);
        // What is made in the first one may lie in new blocks, which nobody watches either.
        assert!(
            reached.get() == 1 || blocks > reached.get(),
            "of {blocks} blocks pages were made writable in {reached:?} rounds"
        );
    });
}
