//! The functions that are replaced here, as the C library has them.

use core::ffi::{CStr, c_int};
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{clockid_t, pthread_cond_t, pthread_condattr_t, pthread_mutex_t, pthread_mutexattr_t, timespec};

/// A function of the C library, looked up at its first use.
pub struct Real<F> {
    name: &'static CStr,
    /// Null until it has been looked up. Sync: every thread finds the same; Relaxed.
    address: AtomicPtr<()>,
    kind: core::marker::PhantomData<F>,
}

// SAFETY: a function may be called by any thread.
unsafe impl<F> Sync for Real<F> {}

impl<F: Copy> Real<F> {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()), kind: core::marker::PhantomData }
    }

    /// The function.
    pub fn get(&self) -> F {
        // ORDER real.address: Relaxed; the address is the whole message.
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            // Condition variables have an old version too, which an unversioned look-up may find.
            // SAFETY: both are C strings.
            let mut found = unsafe { libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), c"GLIBC_2.3.2".as_ptr()) };
            if found.is_null() {
                // SAFETY: a C string.
                found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            }
            if found.is_null() {
                larder_sys::die!(
                    "{} is in no library of this program: liblarder_locks.so needs glibc, linked dynamically",
                    self.name.to_str().unwrap_or("a pthread function")
                );
            }
            address = found.cast();
            // ORDER real.address: Relaxed, as above.
            self.address.store(address, Ordering::Relaxed);
        }
        const { assert!(size_of::<F>() == size_of::<*mut ()>()) };
        // SAFETY: `F` is the type of the function of this name, as declared below.
        unsafe { mem::transmute_copy(&address) }
    }
}

macro_rules! real {
    ($($constant:ident: $name:literal, fn($($argument:ty),*);)*) => { $(
        pub static $constant: Real<unsafe extern "C" fn($($argument),*) -> c_int> = Real::new($name);
    )* };
}

real! {
    MUTEX_INIT: c"pthread_mutex_init", fn(*mut pthread_mutex_t, *const pthread_mutexattr_t);
    MUTEX_DESTROY: c"pthread_mutex_destroy", fn(*mut pthread_mutex_t);
    MUTEX_LOCK: c"pthread_mutex_lock", fn(*mut pthread_mutex_t);
    MUTEX_TRYLOCK: c"pthread_mutex_trylock", fn(*mut pthread_mutex_t);
    MUTEX_TIMEDLOCK: c"pthread_mutex_timedlock", fn(*mut pthread_mutex_t, *const timespec);
    MUTEX_CLOCKLOCK: c"pthread_mutex_clocklock", fn(*mut pthread_mutex_t, clockid_t, *const timespec);
    MUTEX_UNLOCK: c"pthread_mutex_unlock", fn(*mut pthread_mutex_t);
    COND_INIT: c"pthread_cond_init", fn(*mut pthread_cond_t, *const pthread_condattr_t);
    COND_DESTROY: c"pthread_cond_destroy", fn(*mut pthread_cond_t);
    COND_WAIT: c"pthread_cond_wait", fn(*mut pthread_cond_t, *mut pthread_mutex_t);
    COND_TIMEDWAIT: c"pthread_cond_timedwait", fn(*mut pthread_cond_t, *mut pthread_mutex_t, *const timespec);
    COND_CLOCKWAIT: c"pthread_cond_clockwait",
        fn(*mut pthread_cond_t, *mut pthread_mutex_t, clockid_t, *const timespec);
    COND_SIGNAL: c"pthread_cond_signal", fn(*mut pthread_cond_t);
    COND_BROADCAST: c"pthread_cond_broadcast", fn(*mut pthread_cond_t);
}
