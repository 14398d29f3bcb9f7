//! Young cycles: survivors keep their marks, and what is new is traced.

use core::sync::atomic::{AtomicUsize, Ordering};

use larder_fixed::concurrent::{Births, Way};
use larder_fixed::inject::{Point, at_points};
use larder_fixed::options::Options;
use larder_fixed::{concurrent, cycle, generations, init, object};
use larder_sys::watch::Kind;
use larder_testkit::beside::{offered, one_cycle};
use larder_testkit::fuzz::{Plan, run};
use larder_testkit::mutator::{check, object_of};
use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{WITHOUT_SEQUENCES, crowd, for_each_seed, in_child};
use larder_units::Nanos;

/// One process after another, each with a seed of its own: the verifier looks at each cycle, whichever it is.
fn fuzz(name: &str, kind: Kind, environment: &[(&str, &str)], plan: impl Fn(u64) -> Plan) {
    if !offered(kind) {
        return;
    }
    for_each_seed(name, environment, |seed| {
        run(&Plan { beside: Some(kind), young: 5, until: || generations::completed() > 0, ..plan(seed) });
        let (young, [completed, _]) = (generations::completed(), concurrent::completed());
        eprintln!("{young} of {completed} cycles beside the program were young, of {} altogether", cycle::number());
        assert!(young <= completed, "{young} of {completed} cycles");
    });
}

#[test]
fn one_thread_uffd() {
    fuzz("one_thread_uffd", Kind::Uffd, &[], |seed| Plan { collect_every: Some(10), ..Plan::new(1, seed, 6000) });
}

#[test]
fn eight_threads_uffd() {
    fuzz("eight_threads_uffd", Kind::Uffd, &[], |seed| Plan { collect_every: Some(15), ..Plan::new(8, seed, 800) });
}

#[test]
fn eight_threads_without_sequences_uffd() {
    fuzz("eight_threads_without_sequences_uffd", Kind::Uffd, &[WITHOUT_SEQUENCES], |seed| Plan {
        collect_every: Some(15),
        ..Plan::new(8, seed, 800)
    });
}

/// Looks at all roots once more before it cleans.
#[test]
fn eight_threads_with_second_looks_uffd() {
    fuzz("eight_threads_with_second_looks_uffd", Kind::Uffd, &[], |seed| {
        concurrent::set_pause_goal(Nanos(1));
        Plan { collect_every: Some(15), ..Plan::new(8, seed, 800) }
    });
}

#[test]
fn eight_threads_born_marked_uffd() {
    fuzz("eight_threads_born_marked_uffd", Kind::Uffd, &[], |seed| {
        concurrent::set_births(Births::Marked);
        Plan { collect_every: Some(15), ..Plan::new(8, seed, 800) }
    });
}

#[test]
fn eight_threads_born_unmarked_uffd() {
    fuzz("eight_threads_born_unmarked_uffd", Kind::Uffd, &[], |seed| {
        concurrent::set_births(Births::Unmarked);
        Plan { collect_every: Some(15), ..Plan::new(8, seed, 800) }
    });
}

/// What was written is left to the final stop, all of it since the last full cycle.
#[test]
fn eight_threads_without_cleaning_uffd() {
    fuzz("eight_threads_without_cleaning_uffd", Kind::Uffd, &[("LARDER_ABLATE", "clean")], |seed| Plan {
        collect_every: Some(15),
        ..Plan::new(8, seed, 800)
    });
}

#[test]
fn four_threads_two_markers_beside_uffd() {
    fuzz("four_threads_two_markers_beside_uffd", Kind::Uffd, &[], |seed| Plan {
        collect_every: Some(15),
        markers_beside: Some(2),
        ..Plan::new(4, seed, 1500)
    });
}

#[test]
fn four_threads_mprotect() {
    fuzz("four_threads_mprotect", Kind::Mprotect, &[], |seed| Plan {
        collect_every: Some(15),
        ..Plan::new(4, seed, 3000)
    });
}

fn prepare(kind: Kind, most: usize) {
    init(&Options::default());
    verifier::watch(Rules::WITH_FINALIZERS);
    generations::set_young_cycles(most);
    assert_eq!(concurrent::turn_on(Some(Way::Watch(kind))), Ok(Way::Watch(kind)));
}

/// A word of the old object that a root holds; its pattern is not looked at any more.
fn word_of(roots: &Words, i: usize) -> *mut usize {
    core::ptr::with_exposed_provenance_mut::<usize>(roots.get(i)).wrapping_add(100)
}

fn old_objects(n: usize) -> Words {
    let roots = Words::roots(n);
    (0..n).for_each(|i| roots.set(i, object_of(i as u64, 4096).expose_provenance()));
    roots
}

/// Gives each old object the only pointer to a new one, and checks that it is there.
fn fill(roots: &Words, id: u64) {
    for i in 0..roots.count() {
        // SAFETY: a word of an old object.
        unsafe { word_of(roots, i).write(object_of(id + i as u64, 48).expose_provenance()) };
    }
}

fn verify(roots: &Words, id: u64) {
    for i in 0..roots.count() {
        // SAFETY: a word of an old object.
        let new = unsafe { word_of(roots, i).read() };
        check(core::ptr::with_exposed_provenance(new), 48, id + i as u64);
    }
}

/// The only pointer to a new object is written into an old one, on a page of its own. A young cycle finds it, and so do the next ones,
/// when nobody has written since.
fn old_objects_keep_new_ones(kind: Kind) {
    const OLD: usize = 200;
    const ROUNDS: usize = 12;
    const APART: usize = 7;
    prepare(kind, 1000);
    let roots = old_objects(OLD);
    assert!(!one_cycle(), "the first is a full one");
    for round in 0..ROUNDS {
        crowd::all(1, move |_| {
            // A few of the old ones; the others keep what they have from earlier rounds.
            for i in (round..OLD).step_by(APART) {
                // SAFETY: a word of an old object.
                unsafe { word_of(&roots, i).write(object_of((round * 1000 + i) as u64, 48).expose_provenance()) };
            }
            // Memory of what died is used again.
            (0..3000).for_each(|i| _ = core::hint::black_box(object_of(i, 48)));
        });
        assert!(one_cycle(), "round {round}");
    }
    for i in 0..OLD {
        let last = (0..ROUNDS).rev().find(|&round| i >= round && (i - round).is_multiple_of(APART));
        // SAFETY: a word of an old object.
        let new = unsafe { word_of(&roots, i).read() };
        if let Some(round) = last {
            check(core::ptr::with_exposed_provenance(new), 48, (round * 1000 + i) as u64);
        }
    }
}

#[test]
fn what_old_objects_were_given_is_found_uffd() {
    if offered(Kind::Uffd) {
        in_child("what_old_objects_were_given_is_found_uffd", &[], || old_objects_keep_new_ones(Kind::Uffd));
    }
}

#[test]
fn what_old_objects_were_given_is_found_mprotect() {
    in_child("what_old_objects_were_given_is_found_mprotect", &[], || old_objects_keep_new_ones(Kind::Mprotect));
}

/// What dies young is found by a young cycle; what dies old by a full one, which comes after as many as were wanted, or when the program
/// asks.
#[test]
fn the_young_are_found_dead_at_once_and_the_old_by_a_full_cycle() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("the_young_are_found_dead_at_once_and_the_old_by_a_full_cycle", &[], || {
        const N: usize = 1000;
        prepare(Kind::Uffd, 3);
        let (roots, hidden) = (Words::roots(N), Words::hidden(2 * N));
        let make = move || {
            crowd::all(1, move |_| {
                for i in 0..N {
                    let at = object_of(i as u64, 64).expose_provenance();
                    roots.set(i, at);
                    hidden.set(i, !at);
                }
            });
        };
        let alive = move |from: usize| (from..from + N).filter(|&i| object::base(!hidden.get(i)).is_some()).count();
        make();
        assert!(!one_cycle());
        assert_eq!(alive(0), N);
        // The old ones die, and new ones that nobody refers to.
        (0..N).for_each(|i| roots.set(i, 0));
        crowd::all(1, move |_| (0..N).for_each(|i| hidden.set(N + i, !object_of(i as u64, 64).expose_provenance())));
        for cycle in 0..3 {
            assert!(one_cycle(), "cycle {cycle}");
            assert!(alive(N) < 20, "{} of the young in cycle {cycle}", alive(N));
            assert_eq!(alive(0), N, "an old object is left alone");
        }
        assert!(!one_cycle(), "three young ones, then a full one");
        assert!(alive(0) < 20, "{} of the old", alive(0));
        // An explicit collection is full.
        make();
        assert!(one_cycle());
        (0..N).for_each(|i| roots.set(i, 0));
        assert!(cycle::collect());
        assert!(alive(0) < 20, "{} of the old", alive(0));
        assert!(one_cycle(), "the watch goes on over a stop cycle");
    });
}

/// A child has no watch, so its first cycle is a full one; its parent's cycles go on as they were.
#[test]
fn a_child_of_fork_begins_with_a_full_cycle() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("a_child_of_fork_begins_with_a_full_cycle", &[], || {
        prepare(Kind::Uffd, 1000);
        let roots = old_objects(100);
        assert!(!one_cycle() && one_cycle());
        fill(&roots, 1000);
        // SAFETY: the child ends by `_exit`, and nothing but the heap is used in it.
        let child = unsafe { libc::fork() };
        if child == 0 {
            fill(&roots, 2000);
            // The test runner's threads were the parent's: the heap makes no marker thread here before the child has made a thread.
            crowd::all(1, |_| ());
            assert!(!one_cycle(), "nothing was watched");
            assert!(one_cycle());
            verify(&roots, 2000);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the child's number.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(one_cycle());
        verify(&roots, 1000);
    });
}

/// Without the watch between cycles a young one would be wrong: turned off and on again, the next is a full one.
#[test]
fn after_a_pause_of_the_watch_a_full_cycle_comes_first() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("after_a_pause_of_the_watch_a_full_cycle_comes_first", &[], || {
        prepare(Kind::Uffd, 1000);
        let roots = old_objects(100);
        assert!(!one_cycle() && one_cycle());
        generations::set_young_cycles(0);
        assert!(!one_cycle());
        fill(&roots, 1000);
        generations::set_young_cycles(1000);
        assert!(!one_cycle() && one_cycle());
        verify(&roots, 1000);
    });
}

/// Runs of blocks that were made writable by a call. Sync: a count.
static MADE_WRITABLE: AtomicUsize = AtomicUsize::new(0);

fn count_made_writable(p: Point) {
    if p == Point::BeforeMadeWritable {
        MADE_WRITABLE.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a large object takes of a dead one's memory, which young cycles watch, is made writable before it is cleared, and not page by page.
#[test]
fn a_large_object_of_watched_memory_has_it_made_writable() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("a_large_object_of_watched_memory_has_it_made_writable", &[], || {
        const N: usize = 8;
        const BYTES: usize = 300_000;
        prepare(Kind::Uffd, 1000);
        at_points(Some(count_made_writable));
        let roots = Words::roots(N);
        let make = move |id: usize| {
            crowd::all(1, move |_| {
                (0..N).for_each(|i| roots.set(i, object_of((id + i) as u64, BYTES).expose_provenance()));
            });
        };
        make(0);
        assert!(!one_cycle() && one_cycle());
        (0..N).for_each(|i| roots.set(i, 0));
        assert!(cycle::collect());
        let before = MADE_WRITABLE.load(Ordering::Relaxed);
        make(1000);
        let runs = MADE_WRITABLE.load(Ordering::Relaxed) - before;
        assert!((1..=N).contains(&runs), "{runs} runs of {N} objects");
        (0..N).for_each(|i| check(core::ptr::with_exposed_provenance(roots.get(i)), BYTES, (1000 + i) as u64));
        assert!(one_cycle());
    });
}
