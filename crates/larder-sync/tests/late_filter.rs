//! A sandbox that refuses `membarrier` after light halves have relied on it: the fence holds all the same. A file of its own, since the process does without the
//! call from then on.
#![cfg(not(loom))]

mod dekker;

use dekker::missed_by_both;
use larder_sync::asymmetric;
use std::cell::Cell;
use std::mem::offset_of;
use std::thread;

/// What the kernel does where a call is refused.
const FAIL: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

/// Has the kernel refuse a system call to the calling thread, and to no other.
fn refuse(call: libc::c_long, how: u32) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset_of!(libc::seccomp_data, nr) as u32),
        libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32) },
        statement(libc::BPF_RET | libc::BPF_K, how),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program lives during the call, and lets everything else pass.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let filter = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, filter, &raw const program), 0, "no seccomp on this machine");
    }
}

/// The processors that the calling thread may run on.
fn processors() -> Vec<usize> {
    // SAFETY: zeroes are an empty set, and the call fills it in.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// A heavy half; the kernel's part of it is refused from the hundredth on.
fn refused_from_the_hundredth_on() {
    let before = processors();
    if CALLS.replace(CALLS.get() + 1) == 100 {
        refuse(libc::SYS_membarrier, FAIL);
    }
    asymmetric::heavy();
    assert_eq!(before, processors());
}

#[test]
fn a_call_that_is_refused_late_is_done_without() {
    asymmetric::init();
    // Not where the scheduler cannot take its place.
    let refused = thread::spawn(|| {
        refuse(libc::SYS_membarrier, FAIL);
        refuse(libc::SYS_sched_setaffinity, FAIL);
        asymmetric::heavy();
    });
    assert!(refused.join().is_err(), "it returned without a barrier");

    assert_eq!(missed_by_both(asymmetric::light, refused_from_the_hundredth_on), 0);
    // Nobody asks for the call again.
    let killed = thread::spawn(|| {
        refuse(libc::SYS_membarrier, libc::SECCOMP_RET_KILL_PROCESS);
        asymmetric::heavy();
    });
    killed.join().unwrap();
    assert_eq!(missed_by_both(asymmetric::light, asymmetric::heavy), 0);
}
