//! Locks that are taken in slow paths, and signals.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use larder_sync::lock::Lock;
use larder_testkit::crowd;
use larder_threads::defer;

static LOCK: Lock = Lock::new();
static RELEASED: AtomicBool = AtomicBool::new(false);
static HANDLED_AFTER_RELEASE: AtomicBool = AtomicBool::new(false);
static WAITER: AtomicI32 = AtomicI32::new(0);

extern "C" fn handler(_: i32) {
    HANDLED_AFTER_RELEASE.store(RELEASED.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// What a thread of this process does, as a letter, and the signals that it masks, a bit each.
fn status(thread: i32) -> (char, u64) {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).expect("a thread that runs");
    let find = |name| status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of this name").trim();
    let masked = u64::from_str_radix(find("SigBlk:"), 16).expect("a number in base 16");
    (find("State:").chars().next().expect("a letter"), masked)
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
            WAITER.store(libc::gettid(), Ordering::Relaxed);
            let deferral = defer::lock(&LOCK);
            LOCK.unlock_raw();
            drop(deferral);
        });
        crowd::wait_until(|| WAITER.load(Ordering::Relaxed) != 0);
        let thread = WAITER.load(Ordering::Relaxed);
        // It sleeps nowhere but for the lock.
        crowd::wait_until(|| status(thread).0 == 'S');
        assert!(status(thread).1 & 1 << (libc::SIGUSR2 - 1) != 0, "the client's signals are masked");
        assert_eq!(libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR2), 0);
        RELEASED.store(true, Ordering::Relaxed);
        LOCK.unlock_raw();
        waiter.join().expect("the waiter got the lock");
    }
    assert!(HANDLED_AFTER_RELEASE.load(Ordering::Relaxed));
}
