//! Sets of signals: a thread that the client tells to block all signals, or to wait for them, still takes the stop signal.
//!
//! Programs block everything around fork, or for ever, and mean the signals that they know. libgc asks them to call its own
//! `GC_pthread_sigmask`, which leaves its signal out; here the C library's functions do. As there, such a program reads
//! back a mask without the stop signal. Before the runtime begins, masks are what they are: a thread that registers takes the
//! signal out of its mask.

use core::ffi::c_int;
use core::mem::transmute;
use core::ptr;

use crate::runtime::{Next, table};

type SetMask = unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;
type SetBits = unsafe extern "C" fn(c_int) -> c_int;
type Hold = unsafe extern "C" fn(c_int) -> c_int;
type Descriptor = unsafe extern "C" fn(c_int, *const libc::sigset_t, c_int) -> c_int;

static PTHREAD_SIGMASK: Next = Next::new(c"pthread_sigmask", None);
static SIGPROCMASK: Next = Next::new(c"sigprocmask", None);
static SIGBLOCK: Next = Next::new(c"sigblock", None);
static SIGSETMASK: Next = Next::new(c"sigsetmask", None);
static SIGHOLD: Next = Next::new(c"sighold", None);
static SIGNALFD: Next = Next::new(c"signalfd", None);

/// The C library's functions.
pub const ALL: &[&Next] = &[&PTHREAD_SIGMASK, &SIGPROCMASK, &SIGBLOCK, &SIGSETMASK, &SIGHOLD, &SIGNALFD];

/// The stop signal, if there is a runtime.
fn stop_signal() -> Option<c_int> {
    table().map(|table| (table.stop_signal)())
}

/// A copy of the set, without the stop signal.
pub fn without_stop_signal(mut set: libc::sigset_t) -> libc::sigset_t {
    if let Some(signal) = stop_signal() {
        // SAFETY: a set that its owner has filled in, and a signal.
        unsafe { libc::sigdelset(&mut set, signal) };
    }
    set
}

unsafe fn set_mask(next: &Next, how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: the caller's promise, which is that of sigprocmask; a copy differs in one signal only.
    unsafe {
        let blocks = how != libc::SIG_UNBLOCK;
        let own = set.as_ref().map(|set| if blocks { without_stop_signal(*set) } else { *set });
        transmute::<usize, SetMask>(next.address())(how, own.as_ref().map_or(ptr::null(), ptr::from_ref), old)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { set_mask(&PTHREAD_SIGMASK, how, set, old) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigprocmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { set_mask(&SIGPROCMASK, how, set, old) }
}

/// BSD's masks of 32 signals, without the stop signal.
pub fn bits_without_stop_signal(mask: c_int) -> c_int {
    stop_signal().filter(|&signal| signal <= 32).map_or(mask, |signal| mask & !(1 << (signal - 1)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigblock(mask: c_int) -> c_int {
    // SAFETY: the C library's function of that name.
    unsafe { transmute::<usize, SetBits>(SIGBLOCK.address())(bits_without_stop_signal(mask)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigsetmask(mask: c_int) -> c_int {
    // SAFETY: the C library's function of that name.
    unsafe { transmute::<usize, SetBits>(SIGSETMASK.address())(bits_without_stop_signal(mask)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sighold(signal: c_int) -> c_int {
    if stop_signal() == Some(signal) {
        return 0;
    }
    // SAFETY: the C library's function of that name.
    unsafe { transmute::<usize, Hold>(SIGHOLD.address())(signal) }
}

/// A descriptor from which signals are read: what a thread reads there is not delivered to it.
#[unsafe(no_mangle)]
unsafe extern "C" fn signalfd(descriptor: c_int, set: *const libc::sigset_t, flags: c_int) -> c_int {
    // SAFETY: the caller's promise, which is that of signalfd; a copy differs in one signal only.
    unsafe {
        let own = set.as_ref().map(|set| without_stop_signal(*set));
        let next = transmute::<usize, Descriptor>(SIGNALFD.address());
        next(descriptor, own.as_ref().map_or(ptr::null(), ptr::from_ref), flags)
    }
}
