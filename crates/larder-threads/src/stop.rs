//! Stopping the world, and resuming it.
//!
//! `WORLD` is one futex word: even while threads run, odd during a stop; each stop has its own odd number.
//!
//! | step | collector (holds the registry's lock) | thread |
//! |---|---|---|
//! | 1 | `WORLD` becomes odd | |
//! | 2 | heavy fence; for each `Running` record: `signalled` := number, send the signal | |
//! | 3 | | handler: in a slow path, leaves a note and returns; else publishes its stack pointer |
//! | 4 | | `answered` := number, adds 1 to `ANSWERS`; the last one wakes the collector |
//! | 5 | waits until `ANSWERS` is the number of signals sent | sleeps on `WORLD` while it has this number |
//! | 6 | marks ... | |
//! | 7 | `WORLD` becomes even; wakes one | wakes a few more, returns from the handler |
//!
//! A thread that comes back from a blocking region reads `WORLD` after it has become `Running` again; the collector
//! reads the state after it has made `WORLD` odd. With a full fence between the two accesses on each side, at least
//! one of them sees the other: the thread waits, or it is signalled (and a signalled thread always answers).
//! The resume is passed on: the collector wakes one thread and every thread that leaves wakes [`FAN`] more, so the
//! collector does not spend the beginning of everybody's time on a thousand wakes, and is not pushed off its CPU by those
//! it woke while it still holds locks. The next stop first wakes whoever might still sleep.
//!
//! A thread that is still on its way out of the last stop when the next one begins sees another number, returns from
//! its handler, and finds the next signal pending.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering, compiler_fence};

use larder_sync::atomic::fence;
use larder_sys::memory::KeepErrno;
use larder_sys::signal::{self, Mask, SendError};
use larder_sys::thread::with_spilled_registers;
use larder_sys::{clock, futex, tls};

use crate::record::{Thread, ThreadState};
use crate::registry::{REGISTRY, RegistryGuard};
use crate::suspend;

/// See the module. Sync: collector writes; everybody reads; the labels below.
static WORLD: AtomicU32 = AtomicU32::new(0);
/// Threads that answered the present stop. Sync: reset by the collector before it sends; handlers add.
static ANSWERS: AtomicU32 = AtomicU32::new(0);
/// How many answers complete the present stop; `u32::MAX` while signals are still being sent. Sync: collector writes.
static EXPECTED: AtomicU32 = AtomicU32::new(u32::MAX);
/// Number of the last stop whose answers are complete: what the collector sleeps on. Sync: the last to answer writes.
static COMPLETE: AtomicU32 = AtomicU32::new(0);
/// The signal that stops threads. Sync: set before the first stop.
static SIGNAL: AtomicI32 = AtomicI32::new(libc::SIGPWR);

/// After this long without the last answer the collector looks whether somebody died.
const RECHECK_NS: u64 = 50_000_000;

/// How many threads each thread that leaves a stop wakes.
const FAN: u32 = 8;

/// What a stop cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stopped {
    /// Threads that were signalled.
    pub signalled: u32,
    /// Threads that were in a blocking region.
    pub blocked: u32,
    /// From the request until the last answer.
    pub time_ns: u64,
}

/// Chooses the stop signal; before `install`.
pub fn set_signal(signal: i32) {
    SIGNAL.store(signal, Ordering::Relaxed);
}

/// The stop signal.
pub fn signal() -> i32 {
    SIGNAL.load(Ordering::Relaxed)
}

/// Installs the handler. False when the kernel refuses the signal.
pub fn install() -> bool {
    // SAFETY: the handler calls only async-signal-safe functions.
    unsafe { signal::install(signal(), on_signal, &Mask::all_but_faults()) }
}

/// Whether a stop is under way.
pub fn in_progress() -> bool {
    WORLD.load(Ordering::Relaxed) & 1 == 1
}

extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let _errno = KeepErrno::new();
    let (record, deferring) = tls::with(|t| (t.record.get(), t.slow_depth.get() != 0));
    if record.is_null() {
        return;
    }
    if deferring {
        tls::with(|t| t.stop_pending.set(1));
        return;
    }
    // SAFETY: a thread's record outlives its registration, and `record` is cleared before that ends.
    let thread = unsafe { &*record.cast::<Thread>() };
    // The kernel saved every register in the frame that `context` is part of, at or above this handler's own frame: the
    // handler runs on the stack that it interrupted. That may be the alternate stack of a client's handler.
    let here = larder_sys::thread::stack_pointer().addr();
    let _ = context;
    match signal::alternate_stack_in_use() {
        None => {
            park(thread, here);
            suspend::sleep_if_asked(thread, here);
        }
        Some(alternate) => {
            thread.stopped_on[0].store(here, Ordering::Relaxed);
            thread.stopped_on[1].store(alternate.high, Ordering::Relaxed);
            // The ordinary stack goes on where the client's handler interrupted it.
            // SAFETY: the range is this thread's own stack, in use.
            let sp = unsafe { alternate.interrupted(here) }.unwrap_or(thread.stack_base());
            park(thread, sp);
            suspend::sleep_if_asked(thread, sp);
            thread.stopped_on[0].store(0, Ordering::Relaxed);
            thread.stopped_on[1].store(0, Ordering::Relaxed);
        }
    }
}

/// Parks a thread that left a slow path with a stop pending.
#[cold]
pub(crate) fn park_deferred() {
    extern "C" fn parked(sp: *mut u8, record: *mut u8) {
        // SAFETY: as in the handler.
        let thread = unsafe { &*record.cast::<Thread>() };
        park(thread, sp.addr());
        suspend::sleep_if_asked(thread, sp.addr());
    }
    let _errno = KeepErrno::new();
    tls::with(|t| t.stop_pending.set(0));
    compiler_fence(Ordering::SeqCst);
    let record = tls::with(|t| t.record.get());
    if !record.is_null() {
        // A second signal of a later stop must not interrupt the answer half-way.
        let mask = Mask::all_but_faults().set();
        with_spilled_registers(parked, record);
        mask.set();
    }
}

/// Answers the present stop and sleeps until it is over. Returns at once when there is none for this thread.
fn park(thread: &Thread, sp: usize) {
    // ORDER stop.world: Acquire, with the store in `stop_world`.
    let number = WORLD.load(Ordering::Acquire);
    let meant = number & 1 == 1
        && thread.signalled.load(Ordering::Relaxed) == number
        && thread.answered.load(Ordering::Relaxed) != number;
    if !meant {
        return;
    }
    thread.stack_pointer.store(sp, Ordering::Relaxed);
    thread.answered.store(number, Ordering::Relaxed);
    // ORDER stop.ack: the fence and this addition publish the stack pointer, with the Acquire in `wait_for_answers`.
    let answers = ANSWERS.fetch_add(1, Ordering::AcqRel) + 1;
    // Between the addition and the load: the collector stores EXPECTED and then reads ANSWERS.
    fence(Ordering::SeqCst);
    if answers == EXPECTED.load(Ordering::Relaxed) {
        COMPLETE.store(number, Ordering::Release);
        futex::wake(&COMPLETE, 1);
    }
    wait_while(number);
}

/// Sleeps while the stop `number` lasts.
pub(crate) fn wait_while(number: u32) {
    // ORDER stop.resume: Acquire, with the store in `resume_world`: what the collector wrote is seen.
    while WORLD.load(Ordering::Acquire) == number {
        futex::wait(&WORLD, number);
    }
    futex::wake(&WORLD, FAN);
}

/// The number of the stop under way, if one is. The caller has just become visible as running.
pub(crate) fn stop_seen_after_fence() -> Option<u32> {
    // Between the store of the state and this load: the collector stores WORLD and then reads the state.
    fence(Ordering::SeqCst);
    let number = WORLD.load(Ordering::Acquire);
    (number & 1 == 1).then_some(number)
}

impl RegistryGuard<'_> {
    /// Stops every registered thread but the caller. Returns when all stand still.
    ///
    /// The caller holds the collection lock, is not in a slow path, and does not allocate, log or take a lock that a
    /// stopped thread may hold until it resumes the world.
    pub fn stop_world(&self) -> Stopped {
        let begun = clock::now();
        let own = tls::with(|t| t.record.get());
        ANSWERS.store(0, Ordering::Relaxed);
        EXPECTED.store(u32::MAX, Ordering::Relaxed);
        let number = WORLD.load(Ordering::Relaxed).wrapping_add(1);
        // ORDER stop.world: Release, with the load in `park`; the fence stands between this store and the loads of the
        // states below (see `stop_seen_after_fence`).
        WORLD.store(number, Ordering::Release);
        fence(Ordering::SeqCst);
        // Whoever still sleeps after the last stop has to come out of its handler to answer this one.
        futex::wake(&WORLD, u32::MAX);
        let mut stopped = Stopped::default();
        self.for_each(|thread| {
            if core::ptr::from_ref(thread).cast::<u8>() == own.cast_const() {
                return;
            }
            match thread.state() {
                ThreadState::Running => {
                    thread.signalled.store(number, Ordering::Relaxed);
                    if send(thread) {
                        stopped.signalled += 1;
                    } else {
                        thread.answered.store(number, Ordering::Relaxed);
                    }
                }
                ThreadState::Blocked => stopped.blocked += 1,
                _ => {}
            }
        });
        EXPECTED.store(stopped.signalled, Ordering::Relaxed);
        // Between this store and the loads in `wait_for_answers`: see `park`.
        fence(Ordering::SeqCst);
        self.wait_for_answers(number, stopped.signalled, own);
        stopped.time_ns = clock::now().since(begun).0;
        stopped
    }

    fn wait_for_answers(&self, number: u32, expected: u32, own: *mut u8) {
        let mut missing = 0;
        // ORDER stop.ack: Acquire, with the addition in `park`.
        while ANSWERS.load(Ordering::Acquire) + missing < expected {
            let seen = COMPLETE.load(Ordering::Acquire);
            if seen == number {
                break;
            }
            futex::wait_timeout(&COMPLETE, seen, RECHECK_NS);
            if COMPLETE.load(Ordering::Acquire) == number {
                break;
            }
            if ANSWERS.load(Ordering::Acquire) + missing >= expected {
                break;
            }
            // Somebody has not answered for long: it has blocked the signal, is starved, or died without saying so.
            missing = 0;
            self.for_each(|thread| {
                let waiting = core::ptr::from_ref(thread).cast::<u8>() != own.cast_const()
                    && thread.signalled.load(Ordering::Relaxed) == number
                    && thread.answered.load(Ordering::Relaxed) != number;
                if waiting && signal::send(thread.tid(), 0) == Err(SendError::Gone) {
                    missing += 1;
                }
            });
        }
    }

    /// Resumes every stopped thread, in two steps: from here on no thread stands still that looks, and
    /// [`wake_resumed`] gets the sleepers going. Between them the collector gives its locks back.
    pub fn resume_world(&self) {
        // ORDER stop.resume: Release, with the load in `wait_while`.
        WORLD.store(WORLD.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// Wakes the first of the threads that a resume lets go; it wakes others. One is enough, and it can have the CPU that a
/// marker has just left: more would push the collector off its own.
pub fn wake_resumed() {
    futex::wake(&WORLD, 1);
}

/// Sends the stop signal; false when the thread is gone.
fn send(thread: &Thread) -> bool {
    loop {
        match signal::send(thread.tid(), signal()) {
            Ok(()) => return true,
            Err(SendError::Gone) => return false,
            Err(SendError::Again) => larder_sys::thread::yield_now(),
        }
    }
}

/// In a fork child: no stop is under way.
///
/// # Safety
/// The caller is the only thread of the process.
pub(crate) unsafe fn reset_after_fork() {
    let number = WORLD.load(Ordering::Relaxed);
    WORLD.store(number.wrapping_add(number & 1), Ordering::Relaxed);
    let _ = &REGISTRY;
}
