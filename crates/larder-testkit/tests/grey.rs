//! Objects that are marked first and scanned later, with others of their blocks.

use larder_fixed::ablation::{self, Ablation, Optimization};
use larder_fixed::concurrent::{self, Way};
use larder_fixed::options::Options;
use larder_fixed::{allocate, cycle, free, grey, init, kind};
use larder_sys::watch::Kind;
use larder_testkit::beside::{offered, one_cycle};
use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{Random, crowd, in_child};
use larder_trace::crew::CREW;
use larder_units::Bytes;

const OBJECTS: usize = 60_000;

/// Objects of 32 to 1000 bytes in no order: each refers to three of those that were made before it, and a table to half of them. One in
/// nine is a leaf, and one in fifty fills several blocks.
fn build(root: Words, random: &mut Random) {
    // SAFETY: what is made is in a hidden table and, until that is gone, in the one in the root.
    unsafe {
        let all = allocate(kind::NORMAL, OBJECTS * 8).cast::<usize>();
        root.set(0, all.expose_provenance());
        for i in 0..OBJECTS {
            let words = if i % 50 == 0 { 5000 } else { 4 + random.below(120) };
            let is_leaf = i % 9 == 0;
            let object = allocate(if is_leaf { kind::POINTER_FREE } else { kind::NORMAL }, words * 8).cast::<usize>();
            for word in 0..3.min(i) {
                // In a leaf it keeps nothing.
                object.add(word + random.below(words - 3)).write(all.add(random.below(i)).read());
            }
            all.add(i).write(object.expose_provenance());
        }
        let table = allocate(kind::NORMAL, OBJECTS / 2 * 8).cast::<usize>();
        for i in 0..OBJECTS / 2 {
            table.add(i).write(all.add(random.below(OBJECTS)).read());
        }
        root.set(0, table.expose_provenance());
    }
}

fn collect() -> (usize, usize) {
    crowd::spawn(|| assert!(cycle::collect())).join();
    verifier::reached()
}

fn heap(markers: usize) {
    init(&Options { initial_heap: Bytes::mib(4096), markers: Some(markers), ..Options::default() });
    verifier::watch(Rules::EXACT);
    // SAFETY: never used: the heap's own data name the first block.
    unsafe { allocate(kind::POINTER_FREE, 8) };
}

/// The same, with cycles beside the program.
fn heap_beside(markers: usize) {
    heap(markers);
    // What dies meanwhile is kept.
    verifier::set_rules(Rules { nothing_else_is_marked: false, older_words_keep: false, ..Rules::EXACT });
    concurrent::turn_on(Some(Way::Watch(Kind::Uffd))).unwrap();
}

/// The verifier walks by itself, and compares the marks of every object.
fn all_are_found(name: &str, markers: usize) {
    in_child(name, &[], move || {
        heap(markers);
        let root = Words::roots(1);
        for seed in 1..=4 {
            crowd::spawn(move || build(root, &mut Random::new(seed))).join();
            let before = grey::scanned_by_block();
            let with = collect();
            let waited = grey::scanned_by_block() - before;
            ablation::set(Ablation::NONE.and(Optimization::Grey));
            let without = collect();
            assert_eq!(grey::scanned_by_block() - before, waited);
            ablation::set(Ablation::NONE);
            assert_eq!(with, without);
            assert!(with.0 > OBJECTS / 4 && waited > with.0 as u64 / 4, "{waited} of {with:?}");
        }
        root.set(0, 0);
        assert!(collect().0 < 100);
    });
}

#[test]
fn one_marker_finds_all() {
    all_are_found("one_marker_finds_all", 1);
}

#[test]
fn several_markers_find_all() {
    all_are_found("several_markers_find_all", 4);
}

/// Lists of wide objects in no order, all of the same length, from an array.
fn build_lists(root: Words, lists: usize, random: &mut Random) {
    const BYTES: usize = 256;
    // SAFETY: what is made is in a table in the root.
    unsafe {
        let all = allocate(kind::NORMAL, OBJECTS * 8).cast::<usize>();
        root.set(0, all.expose_provenance());
        (0..OBJECTS).for_each(|i| all.add(i).write(allocate(kind::NORMAL, BYTES).expose_provenance()));
        (1..OBJECTS).for_each(|i| core::ptr::swap(all.add(i), all.add(random.below(i + 1))));
        let heads = allocate(kind::NORMAL, lists * 8).cast::<usize>();
        for i in 0..OBJECTS {
            let (object, head) =
                (core::ptr::with_exposed_provenance_mut::<usize>(all.add(i).read()), heads.add(i % lists));
            object.write(head.read());
            head.write(object.expose_provenance());
        }
        root.set(0, heads.expose_provenance());
    }
}

/// As long as there are many in a block, all of a list waits, not its first object alone.
#[test]
fn what_grey_objects_lead_to_waits_too() {
    in_child("what_grey_objects_lead_to_waits_too", &[], || {
        heap(1);
        let root = Words::roots(1);
        crowd::spawn(move || build_lists(root, OBJECTS / 2, &mut Random::new(1))).join();
        let before = grey::scanned_by_block();
        assert!(collect().0 > OBJECTS);
        let waited = grey::scanned_by_block() - before;
        assert!(waited > OBJECTS as u64 / 10 * 9, "{waited} of {OBJECTS}");
    });
}

/// Lists are gone through side by side, and after some rounds they do not wait any more.
#[test]
fn many_long_lists_wait_for_a_while() {
    const LISTS: usize = 1000;
    in_child("many_long_lists_wait_for_a_while", &[], || {
        heap(1);
        let root = Words::roots(1);
        crowd::spawn(move || build_lists(root, LISTS, &mut Random::new(1))).join();
        let before = grey::scanned_by_block();
        assert!(collect().0 > OBJECTS);
        let waited = grey::scanned_by_block() - before;
        assert!((LISTS as u64 / 2..4 * LISTS as u64).contains(&waited), "{waited} of {OBJECTS}");
    });
}

/// Each cycle begins while everything is being made, and threads write and free meanwhile what a marker may have made grey.
#[test]
fn what_is_grey_beside_the_program_is_written_and_freed() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("what_is_grey_beside_the_program_is_written_and_freed", &[], || {
        heap_beside(2);
        let root = Words::roots(1);
        let before = grey::scanned_by_block();
        for seed in 1..=3 {
            crowd::spawn(move || build(root, &mut Random::new(seed))).join();
            crowd::spawn(move || shuffle(root, seed)).join();
        }
        assert!(grey::scanned_by_block() > before + OBJECTS as u64 / 4, "{}", grey::scanned_by_block() - before);
        assert!(concurrent::completed()[0] >= 6, "{:?}", concurrent::completed());
    });
}

/// Pointers change places beside a cycle, and some of what nobody else refers to is freed, so that the words must be looked at when they are scanned.
fn shuffle(root: Words, seed: u64) {
    let mut random = Random::new(seed);
    let table = core::ptr::with_exposed_provenance_mut::<usize>(root.get(0));
    for round in 0..3 {
        concurrent::ask();
        for step in 0..200_000 {
            let (a, b) = (random.below(OBJECTS / 2), random.below(OBJECTS / 2));
            // SAFETY: words of the table. New objects take the only reference to an old one over.
            unsafe {
                let moved = table.add(a).read();
                if step % 3 == 0 {
                    let holder = allocate(kind::NORMAL, 64).cast::<usize>();
                    holder.add(step % 8).write(moved);
                    table.add(a).write(holder.expose_provenance());
                } else {
                    table.add(a).write(table.add(b).read());
                    table.add(b).write(moved);
                }
                if step % 5 == 0 {
                    free(allocate(kind::NORMAL, 16 + random.below(800)));
                }
            }
        }
        assert!(!one_cycle(), "round {round}");
    }
}

/// A visit puts more on a stack than it holds: what is dropped is found by the walk over all that is marked, which makes others grey.
fn small_stacks(name: &str, markers: usize, entries: usize) {
    in_child(name, &[], move || {
        CREW.bound_stacks(entries);
        heap(markers);
        let root = Words::roots(1);
        for seed in 1..=2 {
            crowd::spawn(move || build(root, &mut Random::new(seed))).join();
            let before = grey::scanned_by_block();
            assert!(collect().0 > OBJECTS / 4);
            assert!(grey::scanned_by_block() > before + OBJECTS as u64 / 8);
        }
    });
}

#[test]
fn a_small_stack_loses_nothing_that_is_grey() {
    small_stacks("a_small_stack_loses_nothing_that_is_grey", 1, 16);
}

#[test]
fn four_small_stacks_lose_nothing_that_is_grey() {
    small_stacks("four_small_stacks_lose_nothing_that_is_grey", 4, 64);
}

/// Marking beside the program is ended in its middle, and the rest is marked in the stop, by so many markers and whatever these leave out.
#[test]
fn what_waits_when_marking_is_ended_early_is_found_in_the_stop() {
    if !offered(Kind::Uffd) {
        return;
    }
    in_child("what_waits_when_marking_is_ended_early_is_found_in_the_stop", &[], || {
        use Optimization::{Balance, Deque, Grey, Nsb};
        heap_beside(16);
        let root = Words::roots(1);
        crowd::spawn(move || build(root, &mut Random::new(5))).join();
        let mut random = Random::new(6);
        for left_out in [&[][..], &[Balance], &[Grey], &[Deque], &[Nsb], &[Deque, Nsb, Grey], &[Balance, Nsb]] {
            ablation::set(left_out.iter().fold(Ablation::NONE, |all, &it| all.and(it)));
            for _ in 0..5 {
                concurrent::ask();
                crowd::wait_until(|| concurrent::is_under_way() || !concurrent::finish_if_ready());
                for _ in 0..random.below(20_000) {
                    // SAFETY: dropped.
                    unsafe { allocate(kind::NORMAL, 64) };
                }
                assert!(collect().0 > OBJECTS / 4);
            }
        }
    });
}
