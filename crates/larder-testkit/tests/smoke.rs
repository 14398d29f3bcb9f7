//! The heap from one thread and from many, without any door.

use larder_fixed::{allocate, cycle, init, kind, options::Options, stats, threads};
use larder_testkit::in_child;

#[repr(C)]
struct Node {
    left: *mut Node,
    right: *mut Node,
    value: u64,
}

fn tree(depth: u32, value: u64) -> *mut Node {
    // SAFETY: the node is initialised before anything else is allocated, and kept by this frame.
    unsafe {
        let n = allocate(kind::NORMAL, size_of::<Node>()).cast::<Node>();
        if n.is_null() || !(*n).left.is_null() || (*n).value != 0 {
            eprintln!("BAD {n:p} {:p} {:p} {:x} cycles {}", (*n).left, (*n).right, (*n).value, cycle::number());
            std::process::abort();
        }
        (*n).value = value;
        if depth > 0 {
            (*n).left = tree(depth - 1, 2 * value);
            (*n).right = tree(depth - 1, 2 * value + 1);
        }
        n
    }
}

fn sum(n: *const Node) -> u64 {
    // SAFETY: trees are only read.
    unsafe { if n.is_null() { 0 } else { (*n).value.wrapping_add(sum((*n).left)).wrapping_add(sum((*n).right)) } }
}

#[test]
fn trees_survive_collections_in_one_thread() {
    in_child("trees_survive_collections_in_one_thread", &[], || {
        init(&Options::default());
        let keep = tree(14, 1);
        let expected = sum(keep);
        for i in 0..200 {
            let t = tree(12, i);
            assert!(sum(t) >= i);
        }
        assert!(cycle::collect());
        assert_eq!(sum(keep), expected);
        assert!(cycle::number() > 3, "{} cycles", cycle::number());
        assert!(stats::snapshot().live < 8 << 20, "{:?}", stats::snapshot());
    });
}

extern "C" fn worker(seed: *mut core::ffi::c_void) -> *mut core::ffi::c_void {
    let seed = seed.addr() as u64;
    let keep = tree(10, seed);
    let expected = sum(keep);
    for i in 0..60 {
        let t = tree(9, seed + i);
        assert!(sum(t) > 0);
        assert_eq!(sum(keep), expected);
    }
    core::ptr::without_provenance_mut(sum(keep) as usize)
}

#[test]
fn trees_survive_collections_in_many_threads() {
    in_child("trees_survive_collections_in_many_threads", &[], || {
        init(&Options { collect_every: Some(50), ..Options::default() });
        let mut handles = vec![];
        for i in 1..=64usize {
            let mut h = 0;
            // SAFETY: the routine matches its argument.
            let r = unsafe { threads::create(&mut h, core::ptr::null(), worker, core::ptr::without_provenance_mut(i)) };
            assert_eq!(r, 0);
            handles.push((i, h));
        }
        for (i, h) in handles {
            let mut result = core::ptr::null_mut();
            // SAFETY: created above, joined once.
            assert_eq!(unsafe { threads::join(h, &mut result) }, 0);
            assert_eq!(result.addr() as u64, sum(tree(10, i as u64)));
        }
        assert!(cycle::number() > 20, "{} cycles", cycle::number());
    });
}
