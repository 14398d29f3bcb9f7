//! A heap that has ended. One test, because it looks at all of the process's address space.

mod mini;

use larder_moving::Config;
use mini::*;

/// Bytes of address space that the process has.
fn mapped() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').next().unwrap().parse::<usize>().unwrap() * 4096
}

/// Attaches `threads` mutators to a heap, which then ends.
fn begin_and_end(threads: usize) {
    let heap = heap(Config { collectors: 1, ..small() });
    let all: Vec<_> = (0..threads).map(|_| heap.attach().unwrap()).collect();
    drop(all);
    make(&heap.attach().unwrap(), Kind::Strong, 0, 8).unwrap();
}

#[test]
fn a_heap_that_ends_gives_back_all_of_its_address_space() {
    begin_and_end(100);
    let before = mapped();
    for _ in 0..100 {
        begin_and_end(1);
        begin_and_end(50);
    }
    let after = mapped();
    assert!(after < before + (8 << 20), "{before} bytes became {after}");
}
