//! The functions of `pthread_cond_t`: an event that is counted, in the program's own 48 bytes.
//!
//! | offset | here |
//! |---|---|
//! | 0 | how often it was notified. Sync: its own |
//! | 4 | threads in a wait. Sync: `cond.waiting` |
//! | 8 | the clock of timed waits, written by `pthread_cond_init` |
//! | 12 | the process, of a family of forks, in which those in a wait were counted |
//! | [`flags`] | the C library's flags; bit 0 says shared between processes, and then the C library has the whole |
//!
//! Whoever waits counts itself and reads the count of notifications with the mutex held; whoever notifies after having
//! changed something under the mutex finds it counted. (Without a lock in between POSIX promises nothing either.)

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use larder_sync::parker::Event;
use libc::{clockid_t, pthread_cond_t, pthread_condattr_t, pthread_mutex_t, timespec};

use crate::mutex::{nanos_until, pthread_mutex_lock, pthread_mutex_unlock};
use crate::objects::generation;
use crate::real;

const SHARED: u32 = 1;

#[repr(C)]
struct Condition {
    notified: Event,
    waiting: AtomicU32,
    clock: clockid_t,
    /// The process in which `waiting` was counted: a fork child has none of its parent's waiters. Sync: the mutex.
    generation: AtomicU32,
}
const _: () = assert!(size_of::<pthread_cond_t>() == 48);

/// Where the C library has its flags, as an offset: 36 in glibc 2.36, 28 in later ones. So it is asked, at the first use: a shared
/// condition that it has just made is zero but for them.
fn flags() -> usize {
    /// 0 before the first use. Sync: every thread finds the same; Relaxed.
    static FLAGS: AtomicUsize = AtomicUsize::new(0);
    // ORDER cond.flags: Relaxed; the number is the whole message.
    let mut flags = FLAGS.load(Ordering::Relaxed);
    if flags == 0 {
        let mut words = [0u32; size_of::<pthread_cond_t>() / 4];
        // SAFETY: the attributes are initialised and destroyed here; there is room for a condition, which nobody waits for.
        unsafe {
            let mut attributes: pthread_condattr_t = core::mem::zeroed();
            libc::pthread_condattr_init(&mut attributes);
            libc::pthread_condattr_setpshared(&mut attributes, libc::PTHREAD_PROCESS_SHARED);
            let mut condition: pthread_cond_t = core::mem::zeroed();
            real::COND_INIT.get()(&mut condition, &attributes);
            libc::pthread_condattr_destroy(&mut attributes);
            words.as_mut_ptr().copy_from((&raw const condition).cast(), words.len());
        }
        let found = words.iter().position(|word| word & SHARED != 0).map_or(0, |word| 4 * word);
        if found < size_of::<Condition>() {
            larder_sys::die!(
                "this C library's condition variables are not what liblarder_locks.so knows: it needs another version"
            );
        }
        flags = found;
        // ORDER cond.flags: Relaxed, as above.
        FLAGS.store(flags, Ordering::Relaxed);
    }
    flags
}

/// The condition, unless it is shared between processes.
fn ours<'a>(condition: *mut pthread_cond_t) -> Option<&'a Condition> {
    // SAFETY: in bounds; all zeroes after static initialisation, which is a whole `Condition`.
    unsafe {
        let flags = condition.byte_add(flags()).cast::<u32>().read();
        (flags & SHARED == 0).then(|| &*condition.cast::<Condition>())
    }
}

/// As the manual says.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_init(condition: *mut pthread_cond_t, attributes: *const pthread_condattr_t) -> c_int {
    let (mut shared, mut clock) = (libc::PTHREAD_PROCESS_PRIVATE, libc::CLOCK_REALTIME);
    if !attributes.is_null() {
        // SAFETY: the caller's attributes.
        unsafe {
            libc::pthread_condattr_getpshared(attributes, &mut shared);
            libc::pthread_condattr_getclock(attributes, &mut clock);
        }
    }
    if shared != libc::PTHREAD_PROCESS_PRIVATE {
        // SAFETY: the caller's arguments.
        return unsafe { real::COND_INIT.get()(condition, attributes) };
    }
    // SAFETY: the caller's memory, which nobody else uses yet.
    unsafe {
        condition.write_bytes(0, 1);
        (*condition.cast::<Condition>()).clock = clock;
    }
    0
}

impl Condition {
    /// Forgets waiters of before a fork. Called with the mutex held, or by who destroys.
    fn renew(&self) {
        // ORDER cond.waiting: Relaxed, all; the mutex orders them.
        if self.generation.load(Ordering::Relaxed) != generation() {
            self.generation.store(generation(), Ordering::Relaxed);
            self.waiting.store(0, Ordering::Relaxed);
        }
    }
}

/// As the manual says. Waits for threads that were woken and have not left.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_destroy(condition: *mut pthread_cond_t) -> c_int {
    let Some(this) = ours(condition) else {
        // SAFETY: the caller's argument.
        return unsafe { real::COND_DESTROY.get()(condition) };
    };
    this.renew();
    // ORDER cond.waiting: Acquire, with the subtraction in `wait`: the last access of who leaves.
    while this.waiting.load(Ordering::Acquire) != 0 {
        larder_sys::thread::yield_now();
    }
    0
}

/// Releases the mutex, lets `sleep` sleep, and takes the mutex again.
fn wait(this: &Condition, mutex: *mut pthread_mutex_t, sleep: impl FnOnce(u32) -> c_int) -> c_int {
    this.renew();
    let seen = this.notified.current();
    // ORDER cond.waiting: Relaxed; the mutex, which the caller holds and the notifier has held since, orders it.
    this.waiting.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the caller's mutex.
    let error = unsafe { pthread_mutex_unlock(mutex) };
    let result = if error == 0 { sleep(seen) } else { error };
    // ORDER cond.waiting: Release, with the load in `pthread_cond_destroy`. The condition may be gone from here on.
    this.waiting.fetch_sub(1, Ordering::Release);
    if error != 0 {
        return error;
    }
    // SAFETY: the caller's mutex.
    let error = unsafe { pthread_mutex_lock(mutex) };
    if error != 0 { error } else { result }
}

/// As the manual says, without cancellation.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_wait(condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t) -> c_int {
    let Some(this) = ours(condition) else {
        // SAFETY: the caller's arguments.
        return unsafe { real::COND_WAIT.get()(condition, mutex) };
    };
    wait(this, mutex, |seen| {
        this.notified.wait(seen);
        0
    })
}

fn wait_until(this: &Condition, mutex: *mut pthread_mutex_t, clock: clockid_t, until: timespec) -> c_int {
    // Before anything is done: an error leaves the mutex held.
    if let Err(error) = nanos_until(clock, until) {
        return error;
    }
    wait(this, mutex, |seen| {
        let nanos = nanos_until(clock, until).unwrap_or(0);
        if this.notified.wait_timeout(seen, nanos) { 0 } else { libc::ETIMEDOUT }
    })
}

/// As the manual says, without cancellation.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_timedwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    until: *const timespec,
) -> c_int {
    match ours(condition) {
        // SAFETY: the caller's arguments.
        Some(this) => wait_until(this, mutex, this.clock, unsafe { *until }),
        // SAFETY: as above.
        None => unsafe { real::COND_TIMEDWAIT.get()(condition, mutex, until) },
    }
}

/// As the manual says, without cancellation.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_clockwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    match ours(condition) {
        // SAFETY: the caller's arguments.
        Some(this) => wait_until(this, mutex, clock, unsafe { *until }),
        // SAFETY: as above.
        None => unsafe { real::COND_CLOCKWAIT.get()(condition, mutex, clock, until) },
    }
}

fn notify(this: &Condition, threads: u32) -> c_int {
    // ORDER cond.waiting: Relaxed; see `wait`.
    if this.waiting.load(Ordering::Relaxed) != 0 {
        this.notified.bump_and_wake_earlier(threads);
    }
    0
}

/// As the manual says.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_signal(condition: *mut pthread_cond_t) -> c_int {
    match ours(condition) {
        Some(this) => notify(this, 1),
        // SAFETY: the caller's argument.
        None => unsafe { real::COND_SIGNAL.get()(condition) },
    }
}

/// As the manual says.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_broadcast(condition: *mut pthread_cond_t) -> c_int {
    match ours(condition) {
        Some(this) => notify(this, u32::MAX),
        // SAFETY: the caller's argument.
        None => unsafe { real::COND_BROADCAST.get()(condition) },
    }
}
