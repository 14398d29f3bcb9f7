//! Threads that end by return, by exit and by cancellation: a program with two tests, which `tests/threads.rs` runs.
//!
//! Exit and cancellation unwind the frames of their thread. Where panics unwind, as in test binaries, Rust aborts when
//! that reaches a frame of C's ABI; here, as in the library, panics abort, and frames are left without a word.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::Arc;

use larder_fixed::options::Options;
use larder_fixed::{cycle, init, stats, threads};
use larder_sys::thread;
use larder_testkit::mutator::{RESULT, check, life};
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{crowd, kill_after_deadline};
use larder_threads::{REGISTRY, stop};

/// How a thread goes: the remainder of its number.
const WAYS: [threads::StartFn; 3] = [returns, exits, is_cancelled];
/// The remainder of threads that are cancelled.
const CANCELLED: usize = 2;

/// Threads that wait to be cancelled. Sync: they add.
static WAITING: AtomicUsize = AtomicUsize::new(0);

extern "C" fn returns(id: *mut c_void) -> *mut c_void {
    life(id.addr() as u64).cast()
}

extern "C" fn exits(id: *mut c_void) -> *mut c_void {
    let result = life(id.addr() as u64).cast();
    // SAFETY: no frame of this thread has anything to drop.
    unsafe { threads::exit(result) }
}

extern "C" fn is_cancelled(id: *mut c_void) -> *mut c_void {
    life(id.addr() as u64);
    WAITING.fetch_add(1, Ordering::Relaxed);
    loop {
        // SAFETY: waits for nothing, for ever; a cancellation point.
        unsafe { libc::poll(ptr::null_mut(), 0, -1) };
    }
}

fn main() {
    if cfg!(panic = "unwind") {
        panic!("build this with `panic = \"abort\"`, as the library is");
    }
    kill_after_deadline();
    match std::env::args().nth(1).as_deref() {
        Some("a-thousand") => a_thousand(),
        Some("cancelled-while-parked") => cancelled_while_parked(),
        _ => panic!("which test? a-thousand or cancelled-while-parked"),
    }
    println!("{} cycles, buffers of threads: {}", cycle::number(), stats::by_thread());
}

/// The kernel's id of the thread that is cancelled while it is parked. Sync: it stores, the main thread reads.
static PARKED: AtomicI32 = AtomicI32::new(0);
/// It ended in a stopped world. Sync: as `PARKED`.
static LEFT_A_STOP: AtomicBool = AtomicBool::new(false);

/// The signal that stops threads may interrupt a call in which a thread can be cancelled at once. It must not be, before
/// the resume: it would run in a stopped world, and would end with the stop signal masked, waited for by the next stop.
fn cancelled_while_parked() {
    unsafe extern "C" fn ends(_: *mut c_void) {
        LEFT_A_STOP.fetch_or(stop::in_progress(), Ordering::Relaxed);
    }
    extern "C" fn waits(key: *mut c_void) -> *mut c_void {
        // SAFETY: the key exists.
        unsafe { libc::pthread_setspecific(key.addr() as libc::pthread_key_t, ptr::without_provenance(1)) };
        PARKED.store(thread::tid(), Ordering::Relaxed);
        is_cancelled(ptr::null_mut())
    }
    init(&Options::default());
    let (mut key, mut handle, mut result) = (0, 0, ptr::null_mut());
    // SAFETY: the routines match their arguments.
    unsafe {
        assert_eq!(libc::pthread_key_create(&mut key, Some(ends)), 0);
        assert_eq!(threads::create(&mut handle, ptr::null(), waits, ptr::without_provenance_mut(key as usize)), 0);
    }
    crowd::wait_until(|| WAITING.load(Ordering::Relaxed) == 1 && is_asleep());
    threads::stop_world();
    // SAFETY: not joined yet.
    assert_eq!(unsafe { threads::cancel(handle) }, 0);
    // Either the kernel keeps the signal for later, or the thread takes it now.
    crowd::wait_until(|| has_pending_signals() || LEFT_A_STOP.load(Ordering::Relaxed));
    threads::start_world();
    // SAFETY: joined once.
    assert_eq!(unsafe { threads::join(handle, &mut result) }, 0);
    assert!(!LEFT_A_STOP.load(Ordering::Relaxed), "a parked thread was cancelled in a stopped world");
    assert_eq!(result.addr(), usize::MAX, "PTHREAD_CANCELED");
    assert!(cycle::collect());
}

/// What the kernel says about the thread that is cancelled while it is parked.
fn status_of_parked(name: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/self/task/{}/status", PARKED.load(Ordering::Relaxed))).ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim_start_matches(':').trim().to_owned()))
}

fn is_asleep() -> bool {
    status_of_parked("State").is_some_and(|state| state.starts_with('S'))
}

fn has_pending_signals() -> bool {
    status_of_parked("SigPnd").is_some_and(|set| set.bytes().any(|digit| digit != b'0'))
}

/// A thousand threads that come, and go in three ways, while eight others allocate and collect; the verifier looks at
/// every cycle.
fn a_thousand() {
    init(&Options { collect_every: Some(3000), ..Options::default() });
    verifier::watch(Rules::EXACT);
    let over = Arc::new(AtomicBool::new(false));
    let stayers: Vec<_> = (0..8)
        .map(|i| {
            let over = over.clone();
            crowd::spawn(move || {
                let mut rounds = 0;
                while !over.load(Ordering::Relaxed) {
                    life(10_000 + i);
                    rounds += 1;
                    if rounds % 1000 == 0 {
                        cycle::collect();
                    }
                }
            })
        })
        .collect();
    for batch in 0..10 {
        a_hundred_from(1 + 100 * batch);
    }
    // How often the eight refilled meanwhile is the machine's business.
    crowd::wait_until(|| cycle::number() >= 20);
    over.store(true, Ordering::Relaxed);
    for stayer in stayers {
        stayer.join();
    }
    assert!(REGISTRY.total() >= 1000 && REGISTRY.count() == 1, "{} threads are left", REGISTRY.count());
    assert_eq!(verifier::cycles(), cycle::number());
    // What a thousand threads had is garbage now.
    assert!(cycle::collect_and_unmap());
    assert!(verifier::reached().1 < 1 << 20, "{:?} are still reachable", verifier::reached());
}

/// Creates the threads `first` to `first` + 99, and waits for their ends.
fn a_hundred_from(first: usize) {
    let batch: Vec<_> = (first..first + 100)
        .map(|id| {
            let mut handle = 0;
            // SAFETY: the routine matches its argument.
            let r = unsafe {
                threads::create(&mut handle, ptr::null(), WAYS[id % WAYS.len()], ptr::without_provenance_mut(id))
            };
            assert_eq!(r, 0, "no thread");
            (id, handle)
        })
        .collect();
    let is_cancelled = |id: usize| id % WAYS.len() == CANCELLED;
    let cancelled = batch.iter().filter(|(id, _)| is_cancelled(*id)).count();
    crowd::wait_until(|| WAITING.load(Ordering::Relaxed) == cancelled);
    WAITING.store(0, Ordering::Relaxed);
    for (_, handle) in batch.iter().filter(|(id, _)| is_cancelled(*id)) {
        // SAFETY: not joined yet.
        assert_eq!(unsafe { threads::cancel(*handle) }, 0);
    }
    // Results are kept by the records of their threads alone.
    assert!(cycle::collect());
    for (id, handle) in batch {
        let mut result = ptr::null_mut();
        // SAFETY: joined once.
        assert_eq!(unsafe { threads::join(handle, &mut result) }, 0);
        if is_cancelled(id) {
            assert_eq!(result.addr(), usize::MAX, "PTHREAD_CANCELED");
        } else {
            check(result.cast(), RESULT, id as u64);
        }
    }
}
