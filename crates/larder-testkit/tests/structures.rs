//! Deep, wide and tangled structures, exact liveness, and words that only look like addresses.

use core::ptr;

use larder_fixed::options::Options;
use larder_fixed::{allocate, cycle, init, kind, object, pacing, stats};
use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{Random, crowd, in_child};
use larder_trace::crew::CREW;
use larder_units::{BLOCK, Bytes};

/// A heap that does not collect by itself, so that what is built is measured once.
fn quiet_heap(markers: usize) {
    init(&Options { initial_heap: Bytes::mib(4096), markers: Some(markers), ..Options::default() });
    verifier::watch(Rules::EXACT);
    // The first block's address is a root where the runtime is linked into the program: the heap's own data name it. So
    // nothing that matters lies there.
    // SAFETY: never used.
    unsafe { allocate(kind::POINTER_FREE, 8) };
}

/// Collects in a thread with a fresh stack: so large a one is not kept for the next thread, and holds no addresses that
/// the builder, the marker or the verifier left there.
fn collect_elsewhere() {
    crowd::spawn_with(64 << 20, || {
        assert!(cycle::collect());
        core::ptr::null_mut()
    })
    .join();
}

/// A list of `n` nodes whose head is in a root. Built by a thread of its own, whose stack is gone afterwards.
fn list(root: Words, n: usize) {
    crowd::spawn(move || {
        for _ in 0..n {
            // SAFETY: in a root at once.
            unsafe {
                let node = allocate(kind::NORMAL, 24).cast::<usize>();
                node.write(root.get(0));
                root.set(0, node.expose_provenance());
            }
        }
    })
    .join();
}

fn long_list(name: &str, markers: usize) {
    in_child(name, &[], move || {
        quiet_heap(markers);
        let root = Words::roots(1);
        let n = 10_000_000;
        list(root, n);
        collect_elsewhere();
        let (objects, _) = verifier::reached();
        assert!((n..n + 100).contains(&objects), "{objects} objects");
        // Its tail is dropped, then all of it.
        let mut at = root.get(0);
        for _ in 0..n / 2 {
            // SAFETY: a node of the list.
            at = unsafe { ptr::with_exposed_provenance::<usize>(at).read() };
        }
        // SAFETY: a node of the list.
        unsafe { ptr::with_exposed_provenance_mut::<usize>(at).write(0) };
        collect_elsewhere();
        let (objects, _) = verifier::reached();
        assert!((n / 2..n / 2 + 100).contains(&objects), "{objects} objects");
        root.set(0, 0);
        collect_elsewhere();
        assert!(verifier::reached().0 < 100, "{:?}", verifier::reached());
    });
}

#[test]
fn a_list_of_ten_million() {
    long_list("a_list_of_ten_million", 1);
}

#[test]
fn a_list_of_ten_million_and_two_markers() {
    long_list("a_list_of_ten_million_and_two_markers", 2);
}

/// An array of `n` addresses, each of an object that refers to one more. Returns how many objects there are.
fn wide(root: Words, n: usize) -> usize {
    crowd::spawn(move || {
        // SAFETY: in a root at once; its elements are inside the object.
        unsafe {
            let array = allocate(kind::NORMAL, n * 8).cast::<usize>();
            root.set(0, array.expose_provenance());
            for i in 0..n {
                let element = allocate(kind::NORMAL, 24).cast::<usize>();
                array.add(i).write(element.expose_provenance());
                let leaf = allocate(kind::POINTER_FREE, 24);
                element.add(2).write(leaf.expose_provenance());
            }
        }
    })
    .join();
    2 * n + 1
}

fn wide_array(name: &str, markers: usize, stack: usize) {
    in_child(name, &[], move || {
        CREW.bound_stacks(stack);
        quiet_heap(markers);
        let root = Words::roots(1);
        let n = wide(root, 1_000_000);
        for _ in 0..2 {
            collect_elsewhere();
            let (objects, _) = verifier::reached();
            assert!((n..n + 100).contains(&objects), "{objects} objects, not {n}");
        }
        root.set(0, 0);
        collect_elsewhere();
        assert!(verifier::reached().0 < 100, "{:?}", verifier::reached());
    });
}

#[test]
fn an_array_of_a_million() {
    wide_array("an_array_of_a_million", 1, usize::MAX);
}

#[test]
fn an_array_of_a_million_and_four_markers() {
    wide_array("an_array_of_a_million_and_four_markers", 4, usize::MAX);
}

/// An array of `n` addresses of objects that refer to nothing, which lie in `parts` places far from one another, by turns.
fn by_turns(root: Words, n: usize, parts: usize) {
    crowd::spawn(move || {
        // SAFETY: in a root at once; its elements are inside the object. Nothing is collected meanwhile.
        unsafe {
            let array = allocate(kind::NORMAL, n * 8).cast::<usize>();
            root.set(0, array.expose_provenance());
            for i in 0..n {
                let element = allocate(kind::NORMAL, 24);
                array.add(i % (n / parts) * parts + i / (n / parts)).write(element.expose_provenance());
            }
        }
    })
    .join();
}

#[test]
fn objects_of_far_blocks_by_turns_are_marked_to_the_last() {
    in_child("objects_of_far_blocks_by_turns_are_marked_to_the_last", &[], || {
        quiet_heap(1);
        let root = Words::roots(1);
        for parts in [2, 3, 4, 5, 8] {
            let n = 30_000 * parts;
            by_turns(root, n, parts);
            collect_elsewhere();
            let (objects, _) = verifier::reached();
            assert!((n..n + 100).contains(&objects), "{objects} objects, not {n}, in {parts} parts");
        }
    });
}

/// A chain whose links each refer to more objects that wait on the stack while the chain is followed: the last reference
/// that is found is followed first. So far more waits than a small stack holds.
fn overflowing(name: &str, markers: usize) {
    in_child(name, &[], move || {
        CREW.bound_stacks(4096);
        quiet_heap(markers);
        let root = Words::roots(1);
        let (links, others) = (20_000, 5);
        crowd::spawn(move || {
            // SAFETY: every address is inside its object, and each new one is kept by the last.
            unsafe {
                let object = || allocate(kind::NORMAL, 8 * (others + 1)).cast::<usize>();
                let mut link = object();
                root.set(0, link.expose_provenance());
                for _ in 0..links {
                    for i in 0..others {
                        let other = object();
                        link.add(i).write(other.expose_provenance());
                        other.write(object().expose_provenance());
                    }
                    let next = object();
                    link.add(others).write(next.expose_provenance());
                    link = next;
                }
            }
        })
        .join();
        let n = 1 + links * (1 + 2 * others);
        for _ in 0..2 {
            collect_elsewhere();
            let (objects, _) = verifier::reached();
            assert!((n..n + 100).contains(&objects), "{objects} objects, not {n}");
        }
    });
}

#[test]
fn an_overflow_of_the_mark_stack_loses_nothing() {
    overflowing("an_overflow_of_the_mark_stack_loses_nothing", 1);
}

#[test]
fn an_overflow_of_four_mark_stacks_loses_nothing() {
    overflowing("an_overflow_of_four_mark_stacks_loses_nothing", 4);
}

/// A random graph with cycles: what is marked is what can be reached, to the object, with 1 to 8 markers.
#[test]
fn random_graphs_are_marked_exactly() {
    in_child("random_graphs_are_marked_exactly", &[], || {
        quiet_heap(1);
        let root = Words::roots(16);
        let n = 100_000;
        let nodes = Words::hidden(n);
        let mut random = Random::new(4);
        crowd::spawn(move || {
            // Everything is kept until the links are made.
            let all = Words::roots(n);
            let mut random = Random::new(8);
            for i in 0..n {
                // SAFETY: in a root at once.
                all.set(i, unsafe { allocate(kind::NORMAL, 8 * (1 + random.below(40))) }.expose_provenance());
                nodes.set(i, !all.get(i));
            }
            for i in 0..n {
                let words = object::size(all.get(i)) / 8;
                for _ in 0..random.below(3) {
                    let target = all.get(random.below(n));
                    // SAFETY: a word of the object.
                    unsafe {
                        let word = ptr::with_exposed_provenance_mut::<usize>(all.get(i)).add(random.below(words));
                        word.write(target + random.below(object::size(target)));
                    }
                }
            }
            for i in 0..16 {
                root.set(i, all.get(random.below(n)));
            }
            verifier::remove_roots(all.start(), all.start() + n * 8);
        })
        .join();
        let mut before = usize::MAX;
        for markers in [1, 2, 3, 8] {
            pacing::set_markers(markers);
            // Fewer roots each time, so fewer objects.
            root.set(random.below(16), 0);
            collect_elsewhere();
            let (objects, _) = verifier::reached();
            assert!(objects > 0 && objects <= before, "{objects} objects after {before}");
            before = objects;
        }
    });
}

/// Words of every sort as roots and inside objects: near and inside the heap, one past an end, in tails of blocks, in
/// free cells, beyond the frontier.
fn random_words(name: &str, all_interior_pointers: bool) {
    in_child(name, &[], move || {
        init(&Options { all_interior_pointers, ..Options::default() });
        verifier::watch(Rules::WILD);
        let words = Words::roots(64 << 10);
        let mut random = Random::new(11);
        let (low, high) = stats::plausible_bounds();
        for round in 0..12 {
            // Objects of all sorts, most of them garbage at once.
            for i in 0..20_000 {
                let kind = [kind::NORMAL, kind::POINTER_FREE, kind::NORMAL][i % 3];
                let bytes = [16, 30, 100, 1000, 5000, 20_000, 70_000][random.below(random_shape(i))];
                // SAFETY: the content of objects is random anyway.
                unsafe {
                    let at = allocate(kind, bytes);
                    assert!(!at.is_null());
                    // A pointer-free object may hold anything; others hold words of the table.
                    for word in 0..bytes / 8 {
                        at.cast::<usize>().add(word).write(words.get(random.below(words.count())));
                    }
                    if random.below(40) == 0 {
                        words.set(random.below(words.count()), at.expose_provenance());
                    }
                }
            }
            let used = stats::snapshot().heap + stats::snapshot().unmapped;
            for i in 0..words.count() {
                let inside = low + random.below(used.max(1));
                let word = match random.below(12) {
                    0 => random.bits() as usize,
                    1 => low.wrapping_sub(random.below(4096)),
                    2 => low + used + random.below(1 << 20),
                    3 => high.wrapping_add(random.below(4096)).wrapping_sub(2048),
                    4 => inside & !(BLOCK.0 - 1),
                    5 => (inside & !(BLOCK.0 - 1)) + BLOCK.0 - 1 - random.below(64),
                    6 => object::base(inside).map_or(inside, |b| b + object::size(b)),
                    7 => object::base(inside).map_or(inside, |b| b + object::size(b) - 1),
                    8 => inside & !15,
                    9 => words.get(random.below(words.count())) ^ 1 << random.below(48),
                    _ => inside,
                };
                // Half of them, so that what round before kept is not lost all at once.
                if (i + round) % 2 == 0 {
                    words.set(i, word);
                }
            }
            assert!(cycle::collect());
            // A word that names nothing is nothing.
            for i in (0..words.count()).step_by(17) {
                let word = words.get(i);
                if let Some(base) = object::base(word) {
                    assert!(word >= base && word - base < object::size(base));
                }
            }
        }
        words.clear();
        assert!(cycle::collect() && verifier::cycles() >= 13);
    });
}

/// Mostly small objects.
fn random_shape(i: usize) -> usize {
    if i.is_multiple_of(50) { 7 } else { 4 }
}

#[test]
fn random_words_are_no_harm() {
    random_words("random_words_are_no_harm", true);
}

#[test]
fn random_words_are_no_harm_where_only_bases_count_in_the_heap() {
    random_words("random_words_are_no_harm_where_only_bases_count_in_the_heap", false);
}
