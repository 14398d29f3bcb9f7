//! Locks that are taken in slow paths, and signals.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use larder_sync::lock::Lock;
use larder_testkit::crowd;
use larder_threads::defer;

static LOCK: Lock = Lock::new();
static RELEASED: AtomicBool = AtomicBool::new(false);
static HANDLED_AFTER_RELEASE: AtomicBool = AtomicBool::new(false);
static HANDLED: AtomicBool = AtomicBool::new(false);
static WAITER: AtomicI32 = AtomicI32::new(0);

extern "C" fn handler(_: i32) {
    HANDLED_AFTER_RELEASE.store(RELEASED.load(Ordering::SeqCst), Ordering::SeqCst);
    HANDLED.store(true, Ordering::SeqCst);
}

/// The signals that a thread of this process masks, a bit each.
fn masked(thread: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).expect("a thread that runs");
    let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a line for masked signals");
    u64::from_str_radix(line.trim(), 16).expect("a number in base 16")
}

/// A client's handler may collect. One that did so in a thread that waits for such a lock would keep the lock, or the wake that its release is
/// worth, from the collector for which it waits itself.
#[test]
fn no_handler_of_the_client_runs_while_a_thread_waits_for_a_lock() {
    // SAFETY: the handler stores into atomics only; the locks are released by who took them.
    unsafe {
        libc::signal(libc::SIGUSR2, handler as extern "C" fn(i32) as usize);
        LOCK.lock_raw();
        let waiter = std::thread::spawn(|| {
            WAITER.store(libc::gettid(), Ordering::SeqCst);
            let deferral = defer::lock(&LOCK);
            LOCK.unlock_raw();
            drop(deferral);
        });
        crowd::wait_until(|| WAITER.load(Ordering::SeqCst) != 0);
        let thread = WAITER.load(Ordering::SeqCst);
        crowd::wait_until(|| masked(thread) & 1 << (libc::SIGUSR2 - 1) != 0);
        assert_eq!(libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR2), 0);
        RELEASED.store(true, Ordering::SeqCst);
        LOCK.unlock_raw();
        waiter.join().expect("the waiter got the lock");
    }
    assert!(HANDLED.load(Ordering::SeqCst) && HANDLED_AFTER_RELEASE.load(Ordering::SeqCst));
}
