//! What a client's signal handler may do with the heap: allocate, look at what it allocated before, and free it.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use larder_fixed::{allocate, free, kind, object};
use larder_threads::{REGISTRY, ThreadState};

use crate::pattern;
use crate::table::Words;

/// Objects that handlers keep at a time.
const SLOTS: usize = 64;
/// Marks the first word of an object, which holds its pattern's number: no address looks so.
const TAG: u64 = 1 << 63;

/// Sync: `install` sets it; handlers read.
static TABLE: AtomicPtr<Words> = AtomicPtr::new(ptr::null_mut());
/// Handlers that ran to their end. Sync: handlers add.
static HANDLED: AtomicU64 = AtomicU64::new(0);
/// Sync: a ticket.
static TICKET: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_signal(_: i32) {
    let keep = larder_sys::memory::KeepErrno::new();
    let counts_as_stopped = || REGISTRY.current().is_some_and(|t| t.state() == ThreadState::Blocked);
    if counts_as_stopped() {
        larder_sys::die!("a handler is about to use the heap on a thread that counts as stopped");
    }
    for bytes in [24, 24, 700, 400_000] {
        exchange(bytes);
    }
    HANDLED.fetch_add(1, Ordering::Relaxed);
    drop(keep);
}

/// Takes an object that an earlier handler left, checks it, frees it or lets it go, and leaves a new one.
fn exchange(bytes: usize) {
    // SAFETY: set by `install`, never freed.
    let table = unsafe { *TABLE.load(Ordering::Acquire) };
    let n = TICKET.fetch_add(1, Ordering::Relaxed);
    let slot = table.word(n % SLOTS);
    let old = slot.swap(0, Ordering::AcqRel);
    if old != 0 {
        let at = ptr::with_exposed_provenance_mut::<u8>(old);
        // SAFETY: the object was kept by the slot, and is on this stack now; nobody else knows it.
        unsafe {
            pattern::check(at, 8, object::size(old), at.cast::<u64>().read() & !TAG);
            if n.is_multiple_of(3) {
                free(at);
            }
        }
    }
    let kind = [kind::NORMAL, kind::POINTER_FREE][n % 2];
    // SAFETY: on this stack until it is in the slot.
    let at = unsafe { allocate(kind, bytes) };
    if at.is_null() {
        larder_sys::die!("an allocation of {bytes} bytes in a signal handler failed");
    }
    // SAFETY: a fresh object.
    unsafe {
        if kind == kind::NORMAL && pattern::first_set(at, object::size(at.addr())).is_some() {
            larder_sys::die!("an allocation of {bytes} bytes in a signal handler is not cleared: {at:p}");
        }
        at.cast::<u64>().write(n as u64 | TAG);
        pattern::fill(at, 8, object::size(at.addr()), n as u64);
    }
    slot.store(at.expose_provenance(), Ordering::Release);
}

/// Installs the handler for a signal. After the heap is initialised.
pub fn install(signal: i32) {
    if TABLE.load(Ordering::Acquire).is_null() {
        TABLE.store(Box::leak(Box::new(Words::roots(SLOTS))), Ordering::Release);
    }
    // SAFETY: the action is fully initialised.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
    }
}

/// Frees what handlers left. No handler runs meanwhile.
pub fn free_all() {
    // SAFETY: set by `install`, never freed.
    let table = unsafe { *TABLE.load(Ordering::Acquire) };
    for i in 0..SLOTS {
        // SAFETY: only the slot refers to it.
        unsafe { free(ptr::with_exposed_provenance_mut(table.word(i).swap(0, Ordering::AcqRel))) };
    }
}

/// Handlers that ran.
pub fn handled() -> u64 {
    HANDLED.load(Ordering::Relaxed)
}

/// Sends the signal to the calling thread; the handler has run when this returns.
pub fn raise(signal: i32) {
    let before = handled();
    // SAFETY: no preconditions.
    assert_eq!(unsafe { libc::raise(signal) }, 0);
    assert!(handled() > before, "the handler did not run");
}

/// Checks what handlers left. No handler runs meanwhile.
pub fn check() {
    // SAFETY: set by `install`, never freed.
    let table = unsafe { *TABLE.load(Ordering::Acquire) };
    for i in 0..SLOTS {
        let at = table.get(i);
        if at != 0 {
            assert_eq!(object::base(at), Some(at));
            let p = ptr::with_exposed_provenance::<u8>(at);
            // SAFETY: kept by the slot.
            unsafe { pattern::check(p, 8, object::size(at), p.cast::<u64>().read() & !TAG) };
        }
    }
}

/// Blocks or unblocks a signal for the calling thread.
pub fn mask(how: i32, signal: i32) {
    // SAFETY: the set is initialised before use.
    unsafe {
        let mut set = core::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        assert_eq!(libc::pthread_sigmask(how, &set, ptr::null_mut()), 0);
    }
}

thread_local! {
    /// The calling thread's timer, if `storm_begins` made one.
    static TIMER: core::cell::Cell<Option<libc::timer_t>> = const { core::cell::Cell::new(None) };
}

/// Nanoseconds between two signals of a thread: with eight threads, they come two thousand times a second.
const STORM_NS: libc::c_long = 4_000_000;

/// From here on the calling thread, and only it, gets a signal every few milliseconds, at whatever it is doing.
pub fn storm_begins() {
    // SAFETY: the records are initialised.
    unsafe {
        let mut event: libc::sigevent = core::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGALRM;
        event.sigev_notify_thread_id = larder_sys::thread::tid();
        let mut timer = core::mem::zeroed();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
        let every = libc::timespec { tv_sec: 0, tv_nsec: STORM_NS };
        let time = libc::itimerspec { it_interval: every, it_value: every };
        assert_eq!(libc::timer_settime(timer, 0, &time, ptr::null_mut()), 0);
        TIMER.set(Some(timer));
    }
    mask(libc::SIG_UNBLOCK, libc::SIGALRM);
}

/// No handler runs on the calling thread after this: it is about to leave the heap.
pub fn storm_ends() {
    mask(libc::SIG_BLOCK, libc::SIGALRM);
    if let Some(timer) = TIMER.take() {
        // SAFETY: the thread's own timer.
        assert_eq!(unsafe { libc::timer_delete(timer) }, 0);
    }
}
