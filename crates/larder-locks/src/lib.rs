//! `liblarder_locks.so`: puts a lock of `larder-sync` under the mutexes and condition variables of an unmodified pthread
//! program.
//!
//! ```text
//! LD_PRELOAD=DIR/lib/liblarder_locks.so LARDER_LOCK=fair PROGRAM ARGS
//! ```
//!
//! `LARDER_LOCK` is `mutex` (if it is not set), `fair`, `fifo`, `mcs`, `restricted-mcs`, `reciprocating` or `lock`. With
//! `LARDER_LOCK_SUMMARY` set, one line on standard error says at exit how many mutexes there were and how often they were taken.
//!
//! **What is replaced:** mutexes of the default, adaptive, recursive and error-checking kinds, and condition variables.
//! **What is not:** mutexes that are robust, shared between processes, or have a priority protocol, and shared condition
//! variables, which stay the C library's; reader-writer locks, barriers, semaphores, C11's `mtx_t`, and the C library's own
//! locks. A timed lock looks again and again, at longer and longer intervals, because a waiter of these locks cannot give up its
//! place. A wait on a condition variable is no cancellation point, and a wait until a moment of the real-time clock does
//! not notice that the clock was set.
//!
//! A mutex needs an object of 256 bytes beside it, from the kernel and not from malloc, which may be what uses the mutex.
//! It is made at the first lock and taken back by `pthread_mutex_destroy`. In a fork child, locks forget waiters that do not
//! exist there.

mod cond;
mod mutex;
mod objects;
mod real;

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    objects::choose();
    objects::prepare_summary();
    // SAFETY: the handlers may be called at any fork and at exit; they take no lock that a thread may hold for long.
    unsafe {
        libc::pthread_atfork(None, None, Some(objects::after_fork_in_child));
        libc::atexit(objects::at_exit);
    }
}
