//! Fork: a child goes on allocating and collecting while its parent does the same.

mod mini;

use larder_lab::{Lowest, Processors};
use larder_moving::{Barrier, Collection, Config, Keep};
use larder_units::Bytes;
use mini::*;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

/// A list of the numbers below `n`, highest first.
fn list(vm: &Vm<'_>, n: u64) -> usize {
    let head = vm.local(0);
    for i in 0..n {
        let node = make(vm, Kind::Strong, 1, 8 + (i % 50) as usize).unwrap();
        set_number(node, i);
        set(vm, node, 0, vm.get(head));
        vm.set(head, node);
    }
    vm.get(head)
}

fn is_list(mut at: usize, n: u64) -> bool {
    (0..n).rev().all(|i| {
        let right = at != 0 && number(at) == i;
        at = if right { get(at, 0) } else { 0 };
        right
    }) && at == 0
}

/// Ends the process by a signal if it takes too long, so that a child that waits for ever fails the test.
fn limit_time() {
    // SAFETY: no handler is installed.
    unsafe { libc::alarm(900) };
}

/// Forks and runs `child` in the child. Returns 0 if that found all to be true, the number of the first that is not, counted
/// from 1, or another number if the child did not end by itself.
fn first_wrong<const N: usize>(vm: &mut Vm<'_>, child: impl FnOnce(&mut Vm<'_>) -> [bool; N]) -> i32 {
    // SAFETY: the heap is ready for it; what the child uses of the standard library is, too.
    let pid = vm.fork(|| unsafe { libc::fork() });
    assert!(pid >= 0, "no child");
    if pid == 0 {
        limit_time();
        let wrong = child(vm).iter().position(|&right| !right).map_or(0, |first| first as i32 + 1);
        // SAFETY: ends the child without the harness's handlers.
        unsafe { libc::_exit(wrong) };
    }
    let mut status = 0;
    // Others collect meanwhile.
    // SAFETY: the child of above; a valid place for its status.
    assert_eq!(vm.blocking(|| unsafe { libc::waitpid(pid, &mut status, 0) }), pid);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1000 + status }
}

/// Runs `body` in a thread of its own, and waits for it. The standard library's threads take a lock of its own when they begin, which
/// another thread may have held when this process was forked.
fn in_another_thread<F: FnOnce() + Send>(body: F) {
    extern "C" fn run<F: FnOnce()>(body: *mut c_void) -> *mut c_void {
        // SAFETY: the caller's option, which waits for this thread and does not use it meanwhile.
        let body = unsafe { &mut *body.cast::<Option<F>>() };
        body.take().expect("it runs once")();
        core::ptr::null_mut()
    }
    let mut body = Some(body);
    // SAFETY: the routine and its argument match, and the argument outlives the thread.
    unsafe {
        let mut thread = 0;
        let argument = (&raw mut body).cast();
        assert_eq!(libc::pthread_create(&mut thread, core::ptr::null(), run::<F>, argument), 0, "no thread");
        assert_eq!(libc::pthread_join(thread, core::ptr::null_mut()), 0);
    }
}

fn threads_of_this_process() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

#[test]
fn a_child_collects_while_its_parent_does() {
    const LENGTH: u64 = 3000;
    let shapes = [
        (Lowest::Threads, Barrier::StoreBuffer),
        (Lowest::Processors(Processors::ConcurrencyIds), Barrier::ConditionalCards),
        (Lowest::Flip(Processors::Cpus), Barrier::StoreBuffer),
    ];
    for (lowest, barrier) in shapes {
        let heap = heap(Config { barrier, collectors: 3, buffers: buffers(lowest, 8), ..small() });
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut vm = heap.attach().unwrap();
            for _ in 0..3 {
                scope.spawn(|| {
                    let vm = heap.attach().unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        vm.scope(|vm| {
                            let made = list(vm, 500);
                            assert!(is_list(made, 500));
                        });
                    }
                });
            }
            let mut wrong = 0;
            for _ in 0..4 {
                let made = vm.scope(|_| {
                    let made = list(&vm, LENGTH);
                    vm.handle(made, Keep::Strong)
                });
                wrong = wrong.max(first_wrong(&mut vm, |vm| {
                    let whole = |vm: &Vm<'_>| is_list(vm.get_handle(made), LENGTH);
                    let found = whole(vm);
                    vm.collect(Collection::Full);
                    // The parent's collectors are not here; two were made.
                    let made_anew = threads_of_this_process() == 3;
                    // The other threads' records can be had again.
                    let heap = vm.heap();
                    vm.blocking(|| {
                        in_another_thread(|| {
                            let vm = heap.attach().unwrap();
                            let fresh = list(&vm, 20_000);
                            assert!(is_list(fresh, 20_000));
                        });
                    });
                    vm.collect(Collection::Full);
                    // A child's child.
                    let grandchild = first_wrong(vm, |vm| {
                        vm.collect(Collection::Young);
                        let fresh = vm.scope(|vm| is_list(list(vm, LENGTH), LENGTH));
                        [fresh, whole(vm), threads_of_this_process() == 3]
                    });
                    [found, made_anew, grandchild == 0, whole(vm)]
                }));
                if !is_list(vm.get_handle(made), LENGTH) {
                    wrong = -1;
                }
                vm.release(made);
                vm.collect(Collection::Young);
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(wrong, 0, "{lowest:?} {barrier:?}");
        });
    }
}

#[test]
fn a_child_that_only_ends_leaves_its_parent_alone_and_needs_no_collectors() {
    let heap = heap(Config { young: Bytes::mib(1), most_young: Bytes::mib(1), ..small() });
    let mut vm = heap.attach().unwrap();
    for _ in 0..20 {
        assert_eq!(first_wrong(&mut vm, |_| [threads_of_this_process() == 1]), 0);
    }
    assert_eq!(vm.fork(|| -1), -1, "what cannot fork is told so");
    vm.collect(Collection::Full);
}
