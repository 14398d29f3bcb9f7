//! The functions of `pthread_mutex_t`.
//!
//! Of its 40 bytes, the kind stays where the C library has it, because static initializers put it there; the words of the
//! list of robust mutexes, which others do not use, hold the object:
//!
//! | offset | here |
//! |---|---|
//! | 16 | kind, the C library's: 0 default, 1 recursive, 2 error-checking, 3 adaptive; flags above say that it is not ours |
//! | 24 | the object, null until the first lock. Sync: `mutex.object` |

use core::ffi::c_int;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

use larder_sync::spin::{Patience, SLEEP_AND_WAKE_NS};
use libc::{clockid_t, pthread_mutex_t, pthread_mutexattr_t, timespec};

use crate::objects::{Object, me};
use crate::real;

const KIND: usize = 16;
const OBJECT: usize = 24;
const _: () = assert!(size_of::<pthread_mutex_t>() == 40);

/// Robust, priority inheritance, priority protection, shared between processes.
const NOT_OURS: c_int = 0xf0;
const RECURSIVE: c_int = 1;
const ERROR_CHECKING: c_int = 2;

/// The longest pause of a timed lock between two looks.
const LONGEST_PAUSE_NS: u64 = 1_000_000;

/// The kind without flags, or nothing for a mutex that is not ours.
fn kind(mutex: *mut pthread_mutex_t) -> Option<c_int> {
    // SAFETY: the program's mutex; initialised, statically or not, and the kind is not changed afterwards.
    let kind = unsafe { mutex.byte_add(KIND).cast::<c_int>().read() };
    (kind & NOT_OURS == 0).then_some(kind & 3)
}

fn slot<'a>(mutex: *mut pthread_mutex_t) -> &'a AtomicPtr<Object> {
    // SAFETY: in bounds and aligned; the program's mutex lives across the call.
    unsafe { AtomicPtr::from_ptr(mutex.byte_add(OBJECT).cast()) }
}

/// The object, made if it is not there.
fn object<'a>(mutex: *mut pthread_mutex_t) -> &'a Object {
    let slot = slot(mutex);
    // ORDER mutex.object: Acquire, with the compare-and-swap below.
    let mut there = slot.load(Ordering::Acquire);
    if there.is_null() {
        let Some(fresh) = Object::make() else {
            larder_sys::die!("no memory for a mutex: the kernel gives no more (ulimit -v, or the container's limit)");
        };
        // ORDER mutex.object: Release, with the load above; Acquire where another thread was first.
        match slot.compare_exchange(ptr::null_mut(), fresh.as_ptr(), Ordering::Release, Ordering::Acquire) {
            Ok(_) => there = fresh.as_ptr(),
            Err(other) => {
                there = other;
                // SAFETY: nobody has seen it.
                unsafe { Object::free(fresh) };
            }
        }
    }
    // SAFETY: made, and freed only by the mutex's end.
    unsafe { &*there }
}

/// As the manual says; the C library's for a mutex that is not ours.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_init(mutex: *mut pthread_mutex_t, attributes: *const pthread_mutexattr_t) -> c_int {
    // Zeroes everything and writes the kind.
    // SAFETY: the caller's arguments.
    unsafe { real::MUTEX_INIT.get()(mutex, attributes) }
}

/// As the manual says.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_destroy(mutex: *mut pthread_mutex_t) -> c_int {
    if kind(mutex).is_some() {
        // ORDER mutex.object: Acquire, with the compare-and-swap in `object`.
        if let Some(object) = NonNull::new(slot(mutex).load(Ordering::Acquire)) {
            // SAFETY: made, and not freed before.
            // ORDER objects.owner: Relaxed; a mutex that is destroyed while others use it is the program's error.
            if unsafe { object.as_ref() }.owner.load(Ordering::Relaxed) != 0 {
                return libc::EBUSY;
            }
            // ORDER mutex.object: Relaxed; nobody uses the mutex any more.
            slot(mutex).store(ptr::null_mut(), Ordering::Relaxed);
            // SAFETY: not held, and nobody uses the mutex any more.
            unsafe { Object::free(object) };
        }
    }
    // SAFETY: the caller's argument; its words are as after initialisation.
    unsafe { real::MUTEX_DESTROY.get()(mutex) }
}

/// What a thread that has the mutex already gets: nothing for the kinds that do not look.
fn have_it_already(object: &Object, kind: c_int, trying: bool) -> Option<c_int> {
    // ORDER objects.owner: Relaxed, all; a thread finds itself there only while it holds the lock.
    if !matches!(kind, RECURSIVE | ERROR_CHECKING) || object.owner.load(Ordering::Relaxed) != me() {
        return None;
    }
    if kind == ERROR_CHECKING {
        return Some(if trying { libc::EBUSY } else { libc::EDEADLK });
    }
    let again = object.again.load(Ordering::Relaxed);
    if again == u32::MAX {
        return Some(libc::EAGAIN);
    }
    object.again.store(again + 1, Ordering::Relaxed);
    Some(0)
}

/// As the manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int {
    let Some(kind) = kind(mutex) else {
        // SAFETY: the caller's argument.
        return unsafe { real::MUTEX_LOCK.get()(mutex) };
    };
    let object = object(mutex);
    have_it_already(object, kind, false).unwrap_or_else(|| {
        object.lock();
        0
    })
}

/// As the manual says.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_trylock(mutex: *mut pthread_mutex_t) -> c_int {
    let Some(kind) = kind(mutex) else {
        // SAFETY: the caller's argument.
        return unsafe { real::MUTEX_TRYLOCK.get()(mutex) };
    };
    let object = object(mutex);
    have_it_already(object, kind, true).unwrap_or_else(|| if object.try_lock() { 0 } else { libc::EBUSY })
}

/// As the manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_unlock(mutex: *mut pthread_mutex_t) -> c_int {
    let Some(kind) = kind(mutex) else {
        // SAFETY: the caller's argument.
        return unsafe { real::MUTEX_UNLOCK.get()(mutex) };
    };
    let object = object(mutex);
    if matches!(kind, RECURSIVE | ERROR_CHECKING) {
        // ORDER objects.owner: Relaxed, all, as in `have_it_already`.
        if object.owner.load(Ordering::Relaxed) != me() {
            return libc::EPERM;
        }
        let again = object.again.load(Ordering::Relaxed);
        if again != 0 {
            object.again.store(again - 1, Ordering::Relaxed);
            return 0;
        }
    }
    // SAFETY: the caller holds it, or breaks the contract of its own call.
    unsafe { object.unlock() };
    0
}

/// As the manual says.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_timedlock(mutex: *mut pthread_mutex_t, until: *const timespec) -> c_int {
    let Some(kind) = kind(mutex) else {
        // SAFETY: the caller's arguments.
        return unsafe { real::MUTEX_TIMEDLOCK.get()(mutex, until) };
    };
    // SAFETY: the caller's argument.
    lock_until(object(mutex), kind, libc::CLOCK_REALTIME, unsafe { *until })
}

/// As the manual says.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_clocklock(
    mutex: *mut pthread_mutex_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    let Some(kind) = kind(mutex) else {
        // SAFETY: the caller's arguments.
        return unsafe { real::MUTEX_CLOCKLOCK.get()(mutex, clock, until) };
    };
    // SAFETY: the caller's argument.
    lock_until(object(mutex), kind, clock, unsafe { *until })
}

fn lock_until(object: &Object, kind: c_int, clock: clockid_t, until: timespec) -> c_int {
    if let Some(result) = have_it_already(object, kind, false) {
        return result;
    }
    let mut patience = Patience::for_nanos(SLEEP_AND_WAKE_NS);
    let mut pause = 50_000;
    loop {
        if object.try_lock() {
            return 0;
        }
        if patience.spin() {
            continue;
        }
        let left = match nanos_until(clock, until) {
            Ok(0) => return libc::ETIMEDOUT,
            Ok(left) => left,
            Err(error) => return error,
        };
        let pause_ns = pause.min(left);
        let pause_of = timespec { tv_sec: 0, tv_nsec: pause_ns as i64 };
        // SAFETY: a readable timespec below a second. It returns its error and leaves `errno` alone.
        unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &pause_of, ptr::null_mut()) };
        pause = (pause * 2).min(LONGEST_PAUSE_NS);
    }
}

/// Nanoseconds until a moment of a clock; 0 if it has passed. Or the error of a moment or a clock that is none.
pub fn nanos_until(clock: clockid_t, until: timespec) -> Result<u64, c_int> {
    const SECOND: i64 = 1_000_000_000;
    if !(0..SECOND).contains(&until.tv_nsec) || !matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_MONOTONIC) {
        return Err(libc::EINVAL);
    }
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a writable timespec, and a clock that exists.
    unsafe { libc::clock_gettime(clock, &mut now) };
    let seconds = until.tv_sec.saturating_sub(now.tv_sec);
    let nanos = seconds.saturating_mul(SECOND).saturating_add(until.tv_nsec - now.tv_nsec);
    Ok(u64::try_from(nanos).unwrap_or(0))
}
