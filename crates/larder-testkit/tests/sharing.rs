//! Blocks with owners in a real heap: who gets whose blocks, whoever frees them, and what the thesis's variables say.

use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use larder_fixed::options::Options;
use larder_fixed::sharing::{By, Ratio, Setting, Sharing, figures};
use larder_fixed::{allocate, cycle, free, init, kind, stats};
use larder_testkit::fuzz::{Plan, prepare, work};
use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{beside, crowd, dies_in_child, in_child};
use larder_units::{BLOCK, Bytes};

/// Bytes that each object takes: a byte less is asked for, since an address one past the end counts.
const CELL: usize = 48;

fn owners(sharing: Sharing, ratio: Option<Ratio>, by: By) {
    let sharing = Setting { sharing, ratio, by };
    init(&Options { sharing, initial_heap: Bytes::mib(1024), ..Options::default() });
    verifier::watch(Rules::EXACT);
}

/// Objects of `size` bytes in every word of a table.
fn fill(table: Words, size: usize) {
    for i in 0..table.count() {
        // SAFETY: in a root at once.
        table.set(i, unsafe { allocate(kind::NORMAL, size) }.expose_provenance());
    }
}

fn free_all(table: Words) {
    for i in 0..table.count() {
        let at = ptr::with_exposed_provenance_mut(table.get(i));
        table.set(i, 0);
        // SAFETY: allocated by `fill`, and named nowhere else.
        unsafe { free(at) };
    }
}

#[test]
fn blocks_that_another_thread_frees_return_to_their_owner_at_once() {
    in_child("blocks_that_another_thread_frees_return_to_their_owner_at_once", &[], || {
        if beside::is_asked() {
            // While a cycle marks, no block returns to anybody.
            return;
        }
        owners(Sharing::LocalityAware, Some(Ratio::ONE), By::Thread);
        let table = Words::roots(200_000);
        let (ready, filled) = mpsc::channel();
        let (go, again) = mpsc::channel();
        let owner = crowd::spawn(move || {
            fill(table, CELL - 1);
            ready.send(()).unwrap();
            again.recv().unwrap();
            let before = figures();
            fill(table, CELL - 1);
            let after = figures();
            // A new one stands for what is left under a buffer.
            assert!(after.new <= before.new + 2 && after.remote == before.remote, "{before:?} {after:?}");
            assert!(after.local >= before.local + 500, "its own blocks: {before:?} {after:?}");
            free_all(table);
        });
        filled.recv().unwrap();
        let full = figures();
        assert!(full.used * BLOCK.0 >= 200_000 * CELL, "{full:?}");
        free_all(table);
        let emptied = figures();
        // What is left are blocks under a buffer or a shelf.
        assert!(emptied.used <= 8 && emptied.free + 8 >= full.used, "{full:?} {emptied:?}");
        assert_eq!(emptied.consumed, full.consumed);
        go.send(()).unwrap();
        owner.join();
        assert!(figures().used <= 8, "{:?}", figures());
        assert!(cycle::collect());
    });
}

/// Everybody's lists have parts, one for each CPU. What one CPU's part has free is found from the other's before the heap grows.
#[test]
fn cells_that_died_in_one_part_are_used_from_another_before_the_heap_grows() {
    in_child("cells_that_died_in_one_part_are_used_from_another_before_the_heap_grows", &[], || {
        init(&Options { initial_heap: Bytes::mib(1024), ..Options::default() });
        verifier::watch(Rules::EXACT);
        let table = Words::roots(200_000);
        let over = &*Box::leak(Box::new(AtomicBool::new(false)));
        let (ready, filled) = mpsc::channel();
        // It goes on running, so that the other thread has another concurrency id and CPU, where there are two.
        let first = crowd::spawn(move || {
            fill(table, CELL - 1);
            ready.send(()).unwrap();
            while !over.load(Ordering::Relaxed) {
                core::hint::spin_loop();
            }
        });
        filled.recv().unwrap();
        (0..table.count()).step_by(2).for_each(|i| table.set(i, 0));
        assert!(cycle::collect());
        let before = stats::snapshot().heap;
        for i in (0..table.count() / 10 * 9).step_by(2) {
            // SAFETY: in a root at once.
            table.set(i, unsafe { allocate(kind::NORMAL, CELL - 1) }.expose_provenance());
        }
        let after = stats::snapshot().heap;
        // A few stand for what other classes took, and for what both have in their buffers.
        assert!(after <= before + 8 * BLOCK.0, "{before} {after}");
        over.store(true, Ordering::Relaxed);
        first.join();
        assert!(cycle::collect());
    });
}

#[test]
fn threads_in_turn_consume_what_their_setting_allows() {
    // The unfair benchmark (2.4.2), by collection: 12 threads that need about 300 blocks each, one after the other.
    const THREADS: usize = 12;
    const OBJECTS: usize = 100_000;
    let consumed = |name: &'static str, sharing: Sharing, k: u32, least: usize, most: usize| {
        in_child(name, &[("LARDER_TEST_K", &k.to_string())], move || {
            owners(sharing, Some(Ratio::from_thousandths(k)), By::Thread);
            let table = Words::roots(OBJECTS);
            // All threads live through all turns, so that each has a number of its own.
            let gates: Vec<_> = (0..THREADS).map(|_| mpsc::sync_channel(1)).collect();
            let (done, over) = mpsc::channel();
            let mut starts = Vec::new();
            let mut handles = Vec::new();
            for (start, wait) in gates {
                starts.push(start);
                let done = done.clone();
                handles.push(crowd::spawn(move || {
                    while wait.recv().is_ok() {
                        fill(table, CELL - 1);
                        assert!(cycle::collect());
                        table.clear();
                        done.send(()).unwrap();
                    }
                }));
            }
            for turn in 0..2 * THREADS {
                starts[turn % THREADS].send(()).unwrap();
                over.recv().unwrap();
                assert!(cycle::collect());
            }
            drop(starts);
            for handle in handles {
                handle.join();
            }
            let f = figures();
            let once = OBJECTS * CELL / BLOCK.0;
            let times = f.most_consumed as f64 / once as f64;
            assert!((least..=most).contains(&f.most_consumed), "{times:.2} times what is needed at once: {f:?}");
        });
    };
    let once = OBJECTS * CELL / BLOCK.0;
    let name = std::env::var("LARDER_TEST_K").ok();
    let name = name.as_deref();
    const NAME: &str = "threads_in_turn_consume_what_their_setting_allows";
    for (k, sharing, least, most) in [
        (1000, Sharing::PageShared, once, once + 40),
        (1001, Sharing::LocalityAware, once, once + 60),
        (2000, Sharing::LocalityAware, 2 * once - 40, 2 * once + 80),
        (1002, Sharing::AllLocal, 11 * once, 12 * once + 400),
    ] {
        if name.is_none_or(|name| name == k.to_string()) {
            consumed(NAME, sharing, k, least, most);
        }
    }
}

#[test]
fn nodes_that_are_assumed_have_blocks_of_their_own() {
    let name = "nodes_that_are_assumed_have_blocks_of_their_own";
    // Every CPU is a node of its own, in one package.
    in_child(
        name,
        &[("LARDER_TOPOLOGY", "1,4096,1"), ("LARDER_SHARING", "all-local"), ("LARDER_OWNERS", "node")],
        || {
            init(&Options { initial_heap: Bytes::mib(1024), ..Options::default() });
            verifier::watch(Rules::EXACT);
            let cpus: Vec<usize> = (0..larder_sys::cpus::possible()).filter(|&cpu| bound_to(cpu)).collect();
            let most = cpus.iter().max().unwrap() + 1;
            for &cpu in &cpus {
                let table = Words::roots(20_000);
                crowd::spawn(move || {
                    assert!(bound_to(cpu));
                    fill(table, CELL - 1);
                    free_all(table);
                })
                .join();
            }
            let f = figures();
            assert!(f.owners <= most && f.owners > most - 1 && f.remote == 0, "{f:?} on CPUs {cpus:?}");
            // Each node took blocks of its own: nobody got another's.
            assert!(f.most_used_by_owners * BLOCK.0 >= cpus.len() * 20_000 * CELL, "{f:?}");
        },
    );
}

/// Keeps the calling thread on a CPU; false where it may not run there.
fn bound_to(cpu: usize) -> bool {
    // SAFETY: the set is initialised and of the size that is said.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set) == 0
    }
}

#[test]
fn random_operations_with_a_regulated_ratio() {
    let environment = [("LARDER_SHARING", "lps:auto"), ("LARDER_OWNERS", "thread")];
    in_child("random_operations_with_a_regulated_ratio", &environment, || {
        let plan = Plan { finalizers: false, collect_every: Some(40), ..Plan::new(6, 11, 1500) };
        prepare(&plan);
        work(&plan);
        assert!(cycle::collect());
        let f = figures();
        assert!(f.ratio >= 1000 && f.most_consumed > 0 && f.living <= f.used, "{f:?}");
    });
}

#[test]
fn a_topology_that_is_none_is_refused() {
    let line = "LARDER_TOPOLOGY is '2,8': set it to the CPUs of a core,";
    dies_in_child("a_topology_that_is_none_is_refused", &[("LARDER_TOPOLOGY", "2,8")], line, || {
        init(&Options::default());
    });
}
