//! Whatever optimization is left out, every cycle finds the same objects: the verifier looks at each.

use larder_fixed::ablation::{self, Ablation, Optimization};
use larder_fixed::options::Options;
use larder_fixed::{allocate, cycle, init, kind};
use larder_testkit::fuzz::{Plan, run};
use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{crowd, dies_in_child, in_child};
use larder_units::Bytes;

/// Nothing, each optimization alone, the thesis's "No-Opt", and everything that can be left out at once.
fn sets() -> Vec<Ablation> {
    let mut sets = vec![Ablation::NONE];
    sets.extend(Ablation::NAMES.iter().map(|&(optimization, _)| Ablation::NONE.and(optimization)));
    sets.push(Ablation::parse("slo,nsb,bmb").unwrap());
    sets.push(Ablation::parse("slo,nsb,deque,prefetch,lazy-sweep,markers").unwrap());
    sets.push(Ablation::parse("balance,slo,nsb,prefetch").unwrap());
    sets
}

/// Objects in every shape that the markers treat differently, each with a root of its own.
fn build(root: Words) {
    // A tree of 2^17 nodes under one root.
    fn tree(depth: usize) -> usize {
        // SAFETY: the children are kept by this frame until the node refers to them.
        unsafe {
            let (left, right) = if depth == 0 { (0, 0) } else { (tree(depth - 1), tree(depth - 1)) };
            let node = allocate(kind::NORMAL, 24).cast::<usize>();
            node.write(left);
            node.add(1).write(right);
            node.expose_provenance()
        }
    }
    root.set(0, tree(16));
    // SAFETY: each object is in a root, or in an object that is, before the next is made.
    unsafe {
        // A list.
        for _ in 0..100_000 {
            let node = allocate(kind::NORMAL, 40).cast::<usize>();
            node.write(root.get(1));
            root.set(1, node.expose_provenance());
        }
        // A long array of addresses.
        let long = 200_000;
        let array = allocate(kind::NORMAL, long * 8).cast::<usize>();
        root.set(2, array.expose_provenance());
        for i in 0..long {
            array.add(i).write(allocate(kind::NORMAL, 24).expose_provenance());
        }
        // A list of arrays.
        for _ in 0..200 {
            let node = allocate(kind::NORMAL, 8 * 512).cast::<usize>();
            node.write(root.get(3));
            for i in 1..511 {
                node.add(i).write(allocate(kind::POINTER_FREE, 16).expose_provenance());
            }
            root.set(3, node.expose_provenance());
        }
        // A list whose elements also refer to the one before them, to one further on (a parent), and to a leaf with an address in it, which
        // keeps nothing. Elements change their shape now and then.
        let mut parent = 0;
        for i in 0..50_000 {
            let node = allocate(kind::NORMAL, if i % 1000 == 0 { 200 } else { 72 }).cast::<usize>();
            let next = core::ptr::with_exposed_provenance_mut::<usize>(root.get(4));
            node.add(usize::from(i / 5000 % 2 == 0)).write(next.expose_provenance());
            root.set(4, node.expose_provenance());
            if !next.is_null() {
                next.add(3).write(node.expose_provenance());
            }
            if i % 18 == 0 {
                parent = node.expose_provenance();
            }
            node.add(4).write(parent);
            let leaf = allocate(kind::POINTER_FREE, 16).cast::<usize>();
            node.add(5).write(leaf.expose_provenance());
            leaf.write(allocate(kind::NORMAL, 24).expose_provenance());
        }
    }
}

#[test]
fn every_version_of_the_collector_marks_the_same() {
    in_child("every_version_of_the_collector_marks_the_same", &[], || {
        init(&Options { initial_heap: Bytes::mib(4096), markers: Some(4), ..Options::default() });
        verifier::watch(Rules::EXACT);
        // SAFETY: never used: the heap's own data name the first block.
        unsafe { allocate(kind::POINTER_FREE, 8) };
        let root = Words::roots(5);
        crowd::spawn(move || build(root)).join();
        let collect = || {
            // Twice: the second begins with every helper asleep.
            crowd::spawn(|| assert!(cycle::collect() && cycle::collect())).join();
            verifier::reached()
        };
        let all = collect();
        assert!(all.0 > 2 * (1 << 16) + 100_000 + 200_000 + 100_000, "{all:?}");
        for set in sets() {
            ablation::set(set);
            let (objects, _) = collect();
            // A dead thread's stack may still name a few.
            assert!(objects.abs_diff(all.0) < 10, "{set:?}: {objects} objects, and not {}", all.0);
        }
        // Each version frees the same, too.
        for (gone, set) in sets().into_iter().enumerate().skip(1).take(5) {
            ablation::set(set);
            root.set(gone - 1, 0);
            let before = verifier::reached().0;
            assert!(collect().0 + 90_000 < before, "{set:?}");
        }
        assert!(verifier::reached().0 < 100);
    });
}

/// Random operations on a heap whose markers do without some optimizations, from the start.
fn fuzz_without(name: &str, names: &'static str) {
    in_child(name, &[("LARDER_ABLATE", names)], || {
        run(&Plan { finalizers: false, collect_every: Some(30), markers: Some(3), ..Plan::new(4, 7, 1200) });
        assert_eq!(ablation::get(), Ablation::parse(names).unwrap());
        assert!(cycle::number() > 20, "{} cycles", cycle::number());
    });
}

#[test]
fn random_operations_without_balance() {
    fuzz_without("random_operations_without_balance", "balance,markers");
}

#[test]
fn random_operations_with_the_thesis_work_lists() {
    fuzz_without("random_operations_with_the_thesis_work_lists", "deque,nsb,slo,markers");
}

#[test]
fn random_operations_without_a_queue_and_swept_in_the_pause() {
    fuzz_without("random_operations_without_a_queue_and_swept_in_the_pause", "prefetch,lazy-sweep,bmb");
}

#[test]
fn a_small_heap_has_all_markers_where_their_number_is_fixed() {
    in_child("a_small_heap_has_all_markers_where_their_number_is_fixed", &[], || {
        init(&Options { markers: Some(3), ..Options::default() });
        verifier::watch(Rules::EXACT);
        for set in [Ablation::NONE.and(Optimization::Markers), Ablation::NONE] {
            ablation::set(set);
            for _ in 0..20 {
                assert!(cycle::collect());
            }
        }
        assert_eq!(verifier::cycles(), 40);
    });
}

#[test]
fn a_name_that_is_none_is_refused() {
    let line = "LARDER_ABLATE names 'fast': set it to some of balance, slo,";
    dies_in_child("a_name_that_is_none_is_refused", &[("LARDER_ABLATE", "slo,fast")], line, || {
        init(&Options::default());
    });
}

#[test]
fn the_side_tables_are_spread_over_the_nodes() {
    let name = "the_side_tables_are_spread_over_the_nodes";
    for environment in [&[][..], &[("LARDER_ABLATE", "bmb")]] {
        in_child(name, environment, || {
            init(&Options::default());
            // A kernel without nodes has no such file, and a sandbox may forbid the policy.
            let Ok(maps) = std::fs::read_to_string("/proc/self/numa_maps") else { return };
            let spread = maps.lines().filter(|line| line.contains(" interleave:")).count();
            let without = ablation::get().leaves_out(Optimization::Bmb);
            assert!(if without { spread == 0 } else { spread >= 1 || !may_interleave() }, "{maps}");
        });
    }
}

/// Whether the kernel lets this process interleave anything.
fn may_interleave() -> bool {
    let at = larder_sys::memory::map_lazy(Bytes::mib(1)).unwrap().as_ptr();
    // SAFETY: the mapping is this function's own.
    unsafe { larder_sys::numa::interleave(at, Bytes::mib(1)) }
}
