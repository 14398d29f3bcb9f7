//! Signals that clients block, handle, or send in great numbers.

use std::fs::File;
use std::io::{Read, Seek};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::collector::Collector;
use super::{Outcome, Scratch, failed};

/// Blocks every signal on the calling thread; returns the mask before.
fn block_all() -> libc::sigset_t {
    // SAFETY: both sets are filled in before they are used.
    unsafe {
        let (mut all, mut old) = (zeroed(), zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        old
    }
}

fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: a set that `block_all` returned.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, null_mut()) };
}

/// Threads block all signals around fork, as runtimes do, while others collect; a child collects.
pub fn blocked_around_fork(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    gc.while_collecting(|| {
        gc.crowd(
            2,
            |number| {
                let seed = (number as u64 + 1) << 16;
                let head = gc.chain(seed);
                for _ in 0..3 {
                    let mask = block_all();
                    let result = super::forks::forked(gc, head, seed);
                    set_mask(&mask);
                    result?;
                }
                gc.check(head, seed, "what a forking thread's stack points to")
            },
            || Ok(()),
        )
    })
}

/// A thread blocks all signals for a long time. A stop waits for it, says which thread it is, and goes on when it can.
pub fn blocked_for_long(gc: &Collector, scratch: &Scratch) -> Result<(), Outcome> {
    /// So many looks, of 20 ms each, take much longer than the library waits before it says something, also where the machine stands still
    /// between two of them.
    const LOOKS: u32 = 1500;
    const NAME: &std::ffi::CStr = c"matrix-deaf";
    let path = scratch.file("stderr");
    let mut file = File::options().create(true).truncate(true).read(true).write(true).open(&path).map_err(failed)?;
    // SAFETY: descriptors of our own; standard error is put back below.
    let own = unsafe { libc::dup(2) };
    // SAFETY: as above.
    unsafe { libc::dup2(file.as_raw_fd(), 2) };
    let (deaf, go_on, looks) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    let (tid, collected) = (AtomicU32::new(0), AtomicBool::new(false));
    let mut said = String::new();
    // Every thread that the library knows is stopped by the collection that waits, perhaps with a lock of malloc. So one that
    // it does not know looks, begins before, and allocates nothing.
    let look = || {
        let mut buffer = [0; 4096];
        looks.store(true, Ordering::Release);
        for _ in 0..LOOKS {
            let bytes = file.read_at(&mut buffer, 0).unwrap_or(0);
            let is_named = buffer[..bytes].windows(NAME.count_bytes()).any(|name| name == NAME.to_bytes());
            if is_named || collected.load(Ordering::Acquire) {
                break;
            }
            // SAFETY: no preconditions.
            unsafe { libc::usleep(20_000) };
        }
        go_on.store(true, Ordering::Release);
    };
    let crowd = || {
        gc.crowd(
            2,
            |number| {
                if number == 0 {
                    // SAFETY: names this thread.
                    unsafe { libc::pthread_setname_np(libc::pthread_self(), NAME.as_ptr()) };
                    let head = gc.chain(3);
                    let mask = block_all();
                    // SAFETY: no preconditions.
                    tid.store(unsafe { libc::syscall(libc::SYS_gettid) } as u32, Ordering::Relaxed);
                    deaf.store(true, Ordering::Release);
                    while !go_on.load(Ordering::Acquire) {
                        std::hint::spin_loop();
                        // SAFETY: no preconditions.
                        unsafe { libc::usleep(1000) };
                    }
                    set_mask(&mask);
                    return gc.check(head, 3, "what a thread's stack points to that blocked all signals");
                }
                while !deaf.load(Ordering::Acquire) {
                    // SAFETY: no preconditions.
                    unsafe { libc::usleep(1000) };
                }
                gc.collect();
                collected.store(true, Ordering::Release);
                Ok(())
            },
            || Ok(()),
        )
    };
    let result = std::thread::scope(|scope| {
        scope.spawn(look);
        while !looks.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        crowd()
    });
    file.rewind().and_then(|()| file.read_to_string(&mut said)).map_err(failed)?;
    // SAFETY: descriptors of our own.
    unsafe {
        libc::dup2(own, 2);
        drop(File::from_raw_fd(own));
    }
    result?;
    let tid = tid.load(Ordering::Relaxed);
    let line = said.lines().find(|line| line.contains(&tid.to_string()));
    match line {
        Some(line) if line.contains("matrix-deaf") && line.contains("block") => Ok(()),
        // Where the thread's sleep is known to the library, it is not waited for, and nothing needs to be said.
        _ if super::is_preloaded() => Ok(()),
        Some(line) => Err(Outcome::Failed(format!("the warning names no thread, or no cause: {line}"))),
        None => Err(Outcome::Failed("no warning named the thread that blocks its signals".into())),
    }
}

/// Signals that the client's own handlers got: SIGPWR and SIGXCPU.
static CAUGHT: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

extern "C" fn own_handler(signal: libc::c_int) {
    CAUGHT[usize::from(signal == libc::SIGXCPU)].fetch_add(1, Ordering::Relaxed);
}

/// The client handles SIGPWR and SIGXCPU itself, which it says only after the library has begun: stops work, and the
/// client's handlers get what is meant for them.
pub fn own_handlers(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    CAUGHT.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    for signal in [libc::SIGPWR, libc::SIGXCPU] {
        // SAFETY: the handler is async-signal-safe; zeroes are an empty mask.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = own_handler as *const () as usize;
            libc::sigaction(signal, &action, null_mut());
        }
    }
    const SENT: u32 = 20;
    let done = AtomicBool::new(false);
    gc.while_collecting(|| {
        gc.crowd(
            2,
            |number| {
                let head = gc.chain(number as u64);
                while !done.load(Ordering::Relaxed) {
                    gc.churn();
                }
                gc.check(head, number as u64, "what a thread's stack points to")
            },
            || {
                for _ in 0..SENT {
                    gc.churn();
                    // SAFETY: the handler runs on this thread, before `raise` returns.
                    unsafe {
                        libc::raise(libc::SIGPWR);
                        libc::raise(libc::SIGXCPU);
                    }
                }
                done.store(true, Ordering::Relaxed);
                Ok(())
            },
        )
    })?;
    let caught = || [0, 1].map(|i| CAUGHT[i].swap(0, Ordering::Relaxed));
    // Equal signals that are pending together are one, and a stop may have sent its SIGPWR already: not all arrive. Where the
    // library does not see the handler being installed, it gets what a stop has just sent to the threads of the load and to this one.
    let stray = if super::is_preloaded() { 0 } else { 3 };
    let beside = caught();
    // Where the world is stopped now and then, by a load at most, most arrive.
    for _ in 0..SENT {
        // SAFETY: as above.
        unsafe {
            libc::raise(libc::SIGPWR);
            libc::raise(libc::SIGXCPU);
        }
    }
    let alone = caught();
    let most = SENT / 2..=SENT + stray;
    if beside[1] == SENT && beside[0] <= SENT + stray && alone[1] == SENT && most.contains(&alone[0]) {
        return Ok(());
    }
    Err(Outcome::Failed(format!(
        "of {SENT} signals each, the client's handlers got {} SIGPWR and {} SIGXCPU while collections follow one another, {} and {} after",
        beside[0], beside[1], alone[0], alone[1]
    )))
}

/// Reads from pipes, semaphores and condition variables return what they would without collections, never EINTR.
pub fn calls_are_restarted(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    gc.while_collecting(|| {
        let mut ends = [0; 2];
        // SAFETY: two descriptors of our own.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(failed(std::io::Error::last_os_error()));
        }
        // SAFETY: as above.
        let (mut reader, writer) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
        // SAFETY: zeroes are room for a semaphore.
        let mut semaphore: Box<libc::sem_t> = Box::new(unsafe { zeroed() });
        // SAFETY: initialised once, used by the threads below, destroyed after.
        unsafe { libc::sem_init(&mut *semaphore, 0, 0) };
        let at = AtomicPtr::new(&raw mut *semaphore);
        let result = gc.crowd(
            2,
            |number| {
                let head = gc.chain(number as u64);
                if number == 0 {
                    let mut byte = 0u8;
                    // The call itself, since a file of the standard library would repeat it.
                    // SAFETY: one byte of our own.
                    let n = unsafe { libc::read(reader.as_raw_fd(), (&raw mut byte).cast(), 1) };
                    if n != 1 {
                        let why = std::io::Error::last_os_error();
                        return Err(Outcome::Failed(format!("a read was interrupted: {why}")));
                    }
                } else {
                    // SAFETY: initialised above.
                    if unsafe { libc::sem_wait(at.load(Ordering::Relaxed)) } != 0 {
                        let why = std::io::Error::last_os_error();
                        return Err(Outcome::Failed(format!("sem_wait was interrupted: {why}")));
                    }
                }
                gc.check(head, number as u64, "what a waiting thread's stack points to")
            },
            || {
                for _ in 0..10 {
                    gc.collect();
                }
                // SAFETY: descriptors and a semaphore of our own.
                unsafe {
                    libc::sem_post(at.load(Ordering::Relaxed));
                    libc::write(writer.as_raw_fd(), c"x".as_ptr().cast(), 1);
                }
                Ok(())
            },
        );
        let _ = reader.by_ref();
        // SAFETY: nobody waits any more.
        unsafe { libc::sem_destroy(at.load(Ordering::Relaxed)) };
        result
    })
}

/// For handlers, which get no argument. Sync: set before a handler is installed.
static GC: AtomicPtr<Collector> = AtomicPtr::new(null_mut());
static HANDLED: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU32 = AtomicU32::new(0);

fn collector() -> &'static Collector {
    // SAFETY: `handle` leaks its copy.
    unsafe { &*GC.load(Ordering::Acquire) }
}

/// Allocates and checks, wherever it interrupted the thread.
extern "C" fn allocating_handler(_: libc::c_int) {
    // SAFETY: the thread's own.
    let errno = unsafe { *libc::__errno_location() };
    let gc = collector();
    let seed = HANDLED.fetch_add(1, Ordering::Relaxed) << 8;
    let head = gc.chain(seed);
    if gc.check(head, seed, "").is_err() {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// The same, and waits for a collection by somebody else, so that what it holds lies on the alternate stack alone.
extern "C" fn waiting_handler(_: libc::c_int) {
    let gc = collector();
    let seed = HANDLED.fetch_add(1, Ordering::Relaxed) << 8;
    let head = gc.chain(seed);
    let before = (gc.GC_get_gc_no)();
    while (gc.GC_get_gc_no)() < before + 2 {
        std::hint::spin_loop();
    }
    if gc.check(head, seed, "").is_err() {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

fn handle(gc: &Collector, signal: i32, handler: extern "C" fn(libc::c_int), flags: i32) {
    if GC.load(Ordering::Acquire).is_null() {
        GC.store(Box::into_raw(Box::new(*gc)), Ordering::Release);
    }
    HANDLED.store(0, Ordering::Relaxed);
    LOST.store(0, Ordering::Relaxed);
    // SAFETY: the library allows allocation in handlers; zeroes are an empty mask.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        libc::sigaction(signal, &action, null_mut());
    }
}

fn nothing_lost(what: &str) -> Result<(), Outcome> {
    match LOST.load(Ordering::Relaxed) {
        0 => Ok(()),
        lost => Err(Outcome::Failed(format!("{lost} times {what} was freed"))),
    }
}

/// Handlers on alternate stacks hold the only pointer to objects while others collect.
pub fn alternate_stacks(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    handle(gc, libc::SIGUSR1, waiting_handler, libc::SA_ONSTACK | libc::SA_RESTART);
    gc.while_collecting(|| {
        gc.crowd(
            2,
            |number| {
                let head = gc.chain(number as u64);
                let mut stack = vec![0u8; 64 << 10];
                // SAFETY: the stack is this thread's until it is taken back.
                unsafe {
                    let on = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
                    let mut old = zeroed();
                    libc::sigaltstack(&on, &mut old);
                    libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1);
                    libc::sigaltstack(&old, null_mut());
                }
                gc.check(head, number as u64, "what a thread's ordinary stack points to")
            },
            || Ok(()),
        )
    })?;
    nothing_lost("what a handler's alternate stack points to")
}

/// Threads are signalled as fast as another can, and their handlers allocate, while they allocate and others collect.
pub fn signal_storm(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    handle(gc, libc::SIGUSR2, allocating_handler, libc::SA_RESTART);
    const THREADS: usize = 3;
    let handles: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    gc.while_collecting(|| {
        gc.crowd(
            THREADS,
            |number| {
                let head = gc.chain(number as u64);
                // SAFETY: no preconditions.
                handles[number].store(unsafe { libc::pthread_self() }, Ordering::Release);
                while !done.load(Ordering::Acquire) {
                    gc.churn();
                }
                gc.check(head, number as u64, "what a thread's stack points to")
            },
            || {
                for i in 0..3000 {
                    let handle = handles[i % THREADS].load(Ordering::Acquire);
                    if handle != 0 {
                        // SAFETY: the thread runs until `done`.
                        unsafe { libc::pthread_kill(handle, libc::SIGUSR2) };
                    }
                }
                done.store(true, Ordering::Release);
                Ok(())
            },
        )
    })?;
    nothing_lost("what a handler's frame points to")
}

/// A handler runs at every tick of a timer, in whatever the only busy thread does, and keeps what it allocates.
pub fn allocation_in_handlers(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    handle(gc, libc::SIGALRM, allocating_handler, libc::SA_RESTART);
    let tick = libc::timeval { tv_sec: 0, tv_usec: 200 };
    let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
    // SAFETY: both values are whole.
    unsafe {
        libc::setitimer(libc::ITIMER_REAL, &libc::itimerval { it_interval: tick, it_value: tick }, null_mut());
    }
    let head = gc.chain(77);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(50) || HANDLED.load(Ordering::Relaxed) < 20 {
        gc.collect();
    }
    // SAFETY: as above.
    unsafe {
        libc::setitimer(libc::ITIMER_REAL, &libc::itimerval { it_interval: none, it_value: none }, null_mut());
    }
    gc.check(head, 77, "what the interrupted thread's stack points to")?;
    nothing_lost("what a handler's frame points to")
}

/// Handlers that allocate and collect interrupt threads that fork, at every moment of the fork.
pub fn handlers_around_fork(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    extern "C" fn collecting_handler(signal: libc::c_int) {
        allocating_handler(signal);
        collector().collect();
        // SAFETY: no preconditions.
        let own = unsafe { libc::pthread_self() };
        THREADS.iter().filter(|thread| thread.handle.load(Ordering::Relaxed) == own).for_each(|thread| {
            thread.handles.store(false, Ordering::Release);
        });
    }
    struct Forking {
        handle: AtomicU64,
        /// A signal was sent to it, and its handler has not ended. The next one waits for that: a thread that is always
        /// in handlers comes to nothing else.
        handles: AtomicBool,
    }
    static THREADS: [Forking; 2] =
        [const { Forking { handle: AtomicU64::new(0), handles: AtomicBool::new(false) } }; 2];
    handle(gc, libc::SIGUSR2, collecting_handler, libc::SA_RESTART);
    let forking = AtomicUsize::new(THREADS.len());
    let done = AtomicBool::new(false);
    let result = gc.crowd(
        THREADS.len(),
        |number| {
            let seed = (number as u64 + 1) << 20;
            let head = gc.chain(seed);
            // SAFETY: no preconditions.
            THREADS[number].handle.store(unsafe { libc::pthread_self() }, Ordering::Release);
            let result = (0..4).try_for_each(|_| super::forks::forked(gc, head, seed));
            forking.fetch_sub(1, Ordering::Relaxed);
            while !done.load(Ordering::Acquire) || THREADS[number].handles.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            result.and_then(|()| gc.check(head, seed, "what a forking thread's stack points to"))
        },
        || {
            let mut wait_us = 0;
            while forking.load(Ordering::Relaxed) > 0 {
                for thread in &THREADS {
                    let handle = thread.handle.load(Ordering::Acquire);
                    if handle != 0 && !thread.handles.swap(true, Ordering::Acquire) {
                        // SAFETY: the thread runs until `done`.
                        unsafe { libc::pthread_kill(handle, libc::SIGUSR2) };
                    }
                }
                // Of a fork's time, every part is met.
                wait_us = (wait_us + 37) % 500;
                std::thread::sleep(Duration::from_micros(wait_us));
            }
            done.store(true, Ordering::Release);
            Ok(())
        },
    );
    THREADS.iter().for_each(|thread| thread.handle.store(0, Ordering::Relaxed));
    result?;
    nothing_lost("what a handler's frame points to")
}
