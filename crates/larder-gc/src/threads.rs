//! Threads: creating them through the collector, registering those of others, blocking regions, and stack bases.
//!
//! A client's function that is called from here may end its thread, by `pthread_exit` or by being cancelled: then the
//! C library unwinds through these frames, as an exception that the function throws does. They own nothing that would have to
//! be dropped, and they are declared `extern "C"` and not `"C-unwind"` on purpose: with panics that abort, the latter puts a stop into
//! each such frame. What has to be put right meanwhile, `larder_sys::unwind` is told.

use core::ffi::{c_int, c_void};
use core::hint::black_box;
use core::ptr;
use core::sync::atomic::Ordering;

use larder_fixed::threads::{self, StartFn};
use larder_sys::thread::stack_base;

use crate::callbacks::abort;
use crate::data::{GC_stackbottom, Int};
use crate::init::{GC_init, is_ready};
use crate::world::ClientFn;

const SUCCESS: c_int = 0;
const DUPLICATE: c_int = 1;
const UNIMPLEMENTED: c_int = 3;

/// What stands for no choice of a signal.
const UNSET: c_int = -1;
/// libgc's signals.
const USUAL_SUSPEND: c_int = libc::SIGPWR;
const USUAL_RESTART: c_int = libc::SIGXCPU;
/// The signal that stops a thread.
static SUSPEND_SIGNAL: Int = Int::new(USUAL_SUSPEND);
/// The signal that resumes a thread in libgc. Larder resumes by a futex; clients keep the signal unblocked.
static RESTART_SIGNAL: Int = Int::new(USUAL_RESTART);

/// `struct GC_stack_base`.
#[repr(C)]
pub struct StackBase {
    base: *mut u8,
}

/// A function that is given the base of the stack that it may use.
pub type StackBaseFn = unsafe extern "C" fn(*mut StackBase, *mut c_void) -> *mut c_void;

/// The signal that stops a thread.
pub fn suspend_signal() -> c_int {
    SUSPEND_SIGNAL.get()
}

/// As `pthread_create`; the thread is registered while it runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: StartFn,
    argument: *mut c_void,
) -> c_int {
    GC_init();
    // SAFETY: passed on as they came.
    unsafe { threads::create(thread, attributes, start, argument) }
}

/// As `pthread_join`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_pthread_join(thread: libc::pthread_t, result: *mut *mut c_void) -> c_int {
    // SAFETY: passed on as they came.
    unsafe { threads::join(thread, result) }
}

/// As `pthread_detach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_pthread_detach(thread: libc::pthread_t) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { threads::detach(thread) }
}

/// As `pthread_exit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_pthread_exit(result: *mut c_void) -> ! {
    // SAFETY: the caller's promise.
    unsafe { threads::exit(result) }
}

/// As `pthread_cancel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_pthread_cancel(thread: libc::pthread_t) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { threads::cancel(thread) }
}

/// As `pthread_sigmask`, except that the signal that stops threads stays unblocked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_pthread_sigmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: passed on as they came.
    unsafe { threads::sigmask(how, set, old) }
}

/// Allows [`GC_register_my_thread`], which is always allowed. From here on what the C library's threads are made with is live while they run.
#[unsafe(no_mangle)]
pub extern "C" fn GC_allow_register_threads() {
    if !is_ready() {
        abort(c"GC_allow_register_threads was called before GC_init");
    }
    threads::will_be_registered();
}

/// Registers the calling thread, whose stack begins at the given base.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_register_my_thread(base: *const StackBase) -> c_int {
    if !is_ready() {
        abort(c"GC_register_my_thread was called before GC_init");
    }
    // SAFETY: the caller's structure.
    let base = unsafe { (*base).base };
    if threads::register_current(base) { SUCCESS } else { DUPLICATE }
}

/// Undoes [`GC_register_my_thread`].
#[unsafe(no_mangle)]
pub extern "C" fn GC_unregister_my_thread() -> c_int {
    threads::unregister_current();
    SUCCESS
}

/// Whether the calling thread is registered.
#[unsafe(no_mangle)]
pub extern "C" fn GC_thread_is_registered() -> c_int {
    c_int::from(threads::is_registered())
}

/// Tells of the calling thread's ordinary and alternate signal stack.
#[unsafe(no_mangle)]
pub extern "C" fn GC_register_altstack(
    _stack: *mut c_void,
    _stack_bytes: usize,
    alternate: *mut c_void,
    alternate_bytes: usize,
) {
    let low = alternate.cast::<u8>();
    threads::set_altstack(low, low.wrapping_add(alternate_bytes));
}

/// The base of the calling thread's stack, as the C library knows it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_get_stack_base(into: *mut StackBase) -> c_int {
    let Some(base) = stack_base() else { return UNIMPLEMENTED };
    // SAFETY: the caller's place for the result.
    unsafe { (*into).base = base };
    SUCCESS
}

/// The base of the calling thread's stack, as the collector knows it; returns a handle for [`GC_set_stackbottom`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_get_my_stackbottom(into: *mut StackBase) -> *mut c_void {
    let thread = threads::current_handle();
    // Relaxed: an address that stands for itself.
    let base = if threads::is_main(thread) { GC_stackbottom.load(Ordering::Relaxed) } else { threads::my_stack_base() };
    // SAFETY: the caller's place for the result.
    unsafe { (*into).base = base };
    thread
}

/// Tells where a thread's stack begins, after a switch to another one; null is the calling thread. The caller holds the
/// allocation lock, or comes before initialisation and means the main thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_set_stackbottom(thread: *mut c_void, base: *const StackBase) {
    // SAFETY: the caller's structure.
    let base = unsafe { (*base).base };
    let thread = if thread.is_null() && is_ready() { threads::current_handle() } else { thread };
    if !is_ready() || threads::is_main(thread) {
        // Relaxed: an address that stands for itself, which the heap reads in a stopped world.
        GC_stackbottom.store(base, Ordering::Relaxed);
    } else if !thread.is_null() {
        // SAFETY: a handle from `GC_get_my_stackbottom`, under the lock.
        unsafe { threads::set_stack_base(thread, base) };
    }
}

/// Calls `f` with a stack base that lies in this function's frame.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn GC_call_with_stack_base(f: StackBaseFn, argument: *mut c_void) -> *mut c_void {
    let mut base = StackBase { base: ptr::null_mut() };
    base.base = (&raw mut base).cast();
    // SAFETY: the client's function, with what it expects.
    let result = unsafe { f(black_box(&raw mut base), argument) };
    // Keeps the call from becoming a jump, after which the frame would be gone.
    black_box(&raw mut base);
    result
}

/// Calls `f`, during which the thread counts as stopped: it may not touch the heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_do_blocking(f: ClientFn, argument: *mut c_void) -> *mut c_void {
    // SAFETY: the client's function, which keeps that promise.
    unsafe { threads::do_blocking(f, argument) }
}

/// Calls `f`, which may use the heap, from within [`GC_do_blocking`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GC_call_with_gc_active(f: ClientFn, argument: *mut c_void) -> *mut c_void {
    // SAFETY: passed on as they came.
    unsafe { threads::call_with_gc_active(f, argument) }
}

/// Chooses the signal that stops threads; -1 for the usual one. Before initialisation.
#[unsafe(no_mangle)]
pub extern "C" fn GC_set_suspend_signal(signal: c_int) {
    if !is_ready() {
        SUSPEND_SIGNAL.set(if signal == UNSET { USUAL_SUSPEND } else { signal });
    }
}

/// Chooses the signal that [`GC_get_thr_restart_signal`] names; -1 for the usual one. Before initialisation.
#[unsafe(no_mangle)]
pub extern "C" fn GC_set_thr_restart_signal(signal: c_int) {
    if !is_ready() {
        RESTART_SIGNAL.set(if signal == UNSET { USUAL_RESTART } else { signal });
    }
}

/// The signal that stops threads.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_suspend_signal() -> c_int {
    if is_ready() { threads::suspend_signal() } else { SUSPEND_SIGNAL.get() }
}

/// The signal that resumes threads in libgc; Larder does not use it.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_thr_restart_signal() -> c_int {
    RESTART_SIGNAL.get()
}

/// Starts marker threads; the heap does that when it has work for them.
#[unsafe(no_mangle)]
pub extern "C" fn GC_start_mark_threads() {}

/// Suspends a thread, by its `pthread_t`, until [`GC_resume_thread`]; returns once it stands still. Nothing happens where it
/// is not registered, or is suspended already. Cycles go on meanwhile. A thread may suspend itself.
#[unsafe(no_mangle)]
pub extern "C" fn GC_suspend_thread(thread: libc::pthread_t) {
    threads::suspend(thread);
}

/// Lets a thread go on that was suspended, however often.
#[unsafe(no_mangle)]
pub extern "C" fn GC_resume_thread(thread: libc::pthread_t) {
    threads::resume(thread);
}

/// Whether a registered thread is suspended by [`GC_suspend_thread`].
#[unsafe(no_mangle)]
pub extern "C" fn GC_is_thread_suspended(thread: libc::pthread_t) -> c_int {
    c_int::from(threads::is_suspended(thread))
}
