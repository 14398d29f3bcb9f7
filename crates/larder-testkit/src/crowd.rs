//! Threads that the heap knows, from closures.
//!
//! What a closure captures lies in the memory of malloc, which is no root: pass addresses of objects in registered
//! ranges or statics.

use core::ffi::{c_int, c_void};
use core::ptr;

use larder_fixed::threads;

type Body = Box<dyn FnOnce() -> *mut c_void + Send>;

/// A thread that has to be joined.
#[must_use = "a thread that nobody joins keeps its record"]
pub struct Handle(libc::pthread_t);

extern "C" fn run(body: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn_with` passes a box that nobody else has.
    let body = unsafe { Box::from_raw(body.cast::<Body>()) };
    body()
}

/// Starts a registered thread with a stack of `stack` bytes; its result is a root until it is joined.
pub fn spawn_with(stack: usize, body: impl FnOnce() -> *mut c_void + Send + 'static) -> Handle {
    // SAFETY: initialised attributes.
    create(|attributes| unsafe { libc::pthread_attr_setstacksize(attributes, stack) }, body)
}

/// Starts a registered thread on a stack of the caller's.
///
/// # Safety
/// The `bytes` bytes at `low` are the thread's until it has ended.
pub unsafe fn spawn_on(low: *mut u8, bytes: usize, body: impl FnOnce() + Send + 'static) -> Handle {
    create(
        // SAFETY: initialised attributes, and the caller's promise.
        |attributes| unsafe { libc::pthread_attr_setstack(attributes, low.cast(), bytes) },
        || {
            body();
            ptr::null_mut()
        },
    )
}

/// Starts a registered thread, whose attributes `set` completes.
fn create(
    set: impl FnOnce(&mut libc::pthread_attr_t) -> c_int,
    body: impl FnOnce() -> *mut c_void + Send + 'static,
) -> Handle {
    let body: Box<Body> = Box::new(Box::new(body));
    let mut handle = 0;
    // SAFETY: attributes are initialised and destroyed here; the routine takes the box over.
    unsafe {
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        assert_eq!(set(&mut attributes), 0);
        let r = threads::create(&mut handle, &attributes, run, Box::into_raw(body).cast());
        libc::pthread_attr_destroy(&mut attributes);
        assert_eq!(r, 0, "no thread");
    }
    Handle(handle)
}

/// Starts a registered thread.
pub fn spawn(body: impl FnOnce() + Send + 'static) -> Handle {
    spawn_with(256 << 10, || {
        body();
        ptr::null_mut()
    })
}

impl Handle {
    /// Waits for the thread's end. What it returns is only on the caller's stack from here on.
    pub fn join(self) -> *mut c_void {
        let mut result = ptr::null_mut();
        // SAFETY: created by `spawn_with`, joined once.
        assert_eq!(unsafe { threads::join(self.0, &mut result) }, 0);
        result
    }

    /// The thread's id.
    pub fn id(&self) -> libc::pthread_t {
        self.0
    }
}

/// Runs `body(i)` in `n` threads at once and waits for all of them.
pub fn all(n: usize, body: impl Fn(usize) + Send + Sync + 'static) {
    let body = std::sync::Arc::new(body);
    let handles: Vec<_> = (0..n)
        .map(|i| {
            let body = body.clone();
            spawn(move || body(i))
        })
        .collect();
    for handle in handles {
        handle.join();
    }
}

/// Gives the CPU away until `ready` says yes.
pub fn wait_until(ready: impl Fn() -> bool) {
    while !ready() {
        larder_sys::thread::yield_now();
    }
}
