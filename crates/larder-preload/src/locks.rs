//! Locks: only a thread that must wait for one is in a blocking region.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::mem::transmute;

use crate::calls::blocked;
use crate::runtime::Next;

type Lock = unsafe extern "C" fn(*mut c_void) -> c_int;

/// Declares functions that first try the lock, and only then wait for it in a region. Those with underscores are the same functions for older programs:
/// C libraries since 2.34 have them under a version that the loader does not find unless it is named.
macro_rules! locks {
    ($($name:ident, $older:ident: $wait:ident tries $try_name:literal as $try_it:ident, waits $wait_name:literal as $next:ident;)*) => {
        $(
            static $try_it: Next = Next::new($try_name, None);
            static $next: Next = Next::new($wait_name, None);

            #[unsafe(naked)]
            unsafe extern "C" fn $wait(_: *mut c_void) -> c_int {
                naked_asm!("lea r11, [rip + {next}]", "jmp {blocked}", next = sym $next, blocked = sym blocked)
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(lock: *mut c_void) -> c_int {
                // SAFETY: the C library's function of that name takes a lock; the caller passes one.
                unsafe {
                    match transmute::<usize, Lock>($try_it.address())(lock) {
                        libc::EBUSY => $wait(lock),
                        taken_or_refused => taken_or_refused,
                    }
                }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn $older(lock: *mut c_void) -> c_int {
                // SAFETY: the caller's promise.
                unsafe { $name(lock) }
            }
        )*
        /// The C library's functions.
        pub const ALL: &[&Next] = &[$(&$try_it, &$next),*];
    };
}

locks! {
    pthread_mutex_lock, __pthread_mutex_lock: mutex_wait
        tries c"pthread_mutex_trylock" as MUTEX_TRY, waits c"pthread_mutex_lock" as MUTEX_LOCK;
    pthread_rwlock_rdlock, __pthread_rwlock_rdlock: read_wait
        tries c"pthread_rwlock_tryrdlock" as READ_TRY, waits c"pthread_rwlock_rdlock" as READ_LOCK;
    pthread_rwlock_wrlock, __pthread_rwlock_wrlock: write_wait
        tries c"pthread_rwlock_trywrlock" as WRITE_TRY, waits c"pthread_rwlock_wrlock" as WRITE_LOCK;
}
