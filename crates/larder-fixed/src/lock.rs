//! The allocation lock, in libgc's sense: it guards roots, finalizers and links, and no cycle runs while it is held.
//!
//! The collector holds it from before the stop until the resume. A holder must not allocate. A client's function that runs with the lock may ask what libgc
//! answers without: the thread is known to hold it ([`is_held`]).
//!
//! Order of locks: loader, cycle, allocation, registry, classes, large objects, pool.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use larder_sync::lock::Lock;
use larder_sys::memory::KeepErrno;
use larder_sys::unwind::{self, Function, Unwound};
use larder_sys::{thread, tls};
use larder_threads::defer;
use larder_units::Nanos;

pub(crate) static ALLOCATION: Lock = Lock::new();

/// Runs `f` with the lock held. An allocation in a signal handler that interrupts it does not collect.
pub fn with<R>(f: impl FnOnce() -> R) -> R {
    acquire();
    CALLED.store(false, Ordering::Relaxed);
    let result = f();
    // SAFETY: taken above.
    unsafe { release() };
    result
}

/// Runs `f`, which only looks at what the lock guards, or changes what its holders may change, with the lock held: by this call, or already by the calling thread for
/// a client's function that runs now. libgc takes no lock for such.
pub fn with_or_held<R>(f: impl FnOnce() -> R) -> R {
    if is_held() { f() } else { with(f) }
}

/// Runs a client's `f(argument)` with the lock held. Where it is unwound, the lock is given back.
///
/// # Safety
/// As for the call of `f`.
pub unsafe fn call(f: Function, argument: *mut c_void) -> *mut c_void {
    acquire_for_client();
    // SAFETY: the caller's promise.
    let result = unsafe { unwind::call::<Held>(f, argument) };
    // SAFETY: taken above.
    unsafe { release_from_client() };
    result
}

/// A client's function runs with the lock.
struct Held;

impl Unwound for Held {
    fn unwound() {
        // SAFETY: `call` took it.
        unsafe { release_from_client() };
    }
}

/// The thread that holds the lock for a client's functions, by its thread block; 0 while none does, or only inside of the runtime, where what
/// the lock guards may be half changed.
///
/// Sync: only a thread's own store makes it the thread's own.
static HOLDER: AtomicUsize = AtomicUsize::new(0);

/// Whether it was last taken for a client's functions. Sync: `ALLOCATION`.
static CALLED: AtomicBool = AtomicBool::new(false);

/// How long a thread that gave it back behind a client's function is left running before it is stopped.
const GRACE: Nanos = Nanos(50_000);

/// [`acquire_for_client`] by a collector, before it stops the world. Where it has to wait for a thread that runs a client's function, that is left the time to come out of
/// here. A client that changes under the lock what its mark procedures read may do the last of it behind the call: Guile 3.0 moves a thread's stack so, and where a collection comes
/// between, returns memory to the kernel that is not its own. And it would nearly always come between: the thread gives the lock back by the system call that wakes the
/// collector, and is in it still when it is stopped.
pub fn acquire_to_stop() {
    let deferral = defer::enter();
    let is_free = ALLOCATION.try_lock_raw();
    if is_free {
        core::mem::forget(deferral);
    } else {
        drop(deferral);
        acquire();
        if CALLED.load(Ordering::Relaxed) {
            let _errno = KeepErrno::new();
            thread::sleep(GRACE);
        }
    }
    CALLED.store(false, Ordering::Relaxed);
    HOLDER.store(tls::block().addr(), Ordering::Relaxed);
}

/// Whether the calling thread holds the lock for a client's function.
pub fn is_held() -> bool {
    HOLDER.load(Ordering::Relaxed) == tls::block().addr()
}

/// Takes the lock for functions of a client that run until [`release_from_client`].
pub fn acquire_for_client() {
    acquire();
    CALLED.store(true, Ordering::Relaxed);
    HOLDER.store(tls::block().addr(), Ordering::Relaxed);
}

/// Undoes [`acquire_for_client`].
///
/// # Safety
/// The calling thread called that.
pub unsafe fn release_from_client() {
    HOLDER.store(0, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    unsafe { release() };
}

/// Takes the lock.
pub fn acquire() {
    // Ended by `release`.
    core::mem::forget(defer::lock(&ALLOCATION));
}

/// Gives the lock back.
///
/// # Safety
/// The calling thread took it with [`acquire`].
pub unsafe fn release() {
    // SAFETY: the caller's promise; the deferral was forgotten in `acquire`.
    unsafe {
        ALLOCATION.unlock_raw();
        drop(defer::Deferral::resume());
    }
}
