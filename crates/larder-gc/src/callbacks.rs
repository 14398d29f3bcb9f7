//! The functions that a client sets and the collector calls: setters, getters, defaults, and the hooks that lead there.
//!
//! libgc takes its lock in setters and getters to avoid races on the variable. Here the variable is atomic, and
//! taking the lock would only forbid what libgc's own comments advise against: asking from inside a callback.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use larder_fixed::hooks;

use crate::data::{
    Function, GC_finalizer_notifier, GC_on_abort, GC_on_heap_resize, GC_oom_fn, GC_push_other_roots, Message,
};
use crate::print;

pub type OomFn = unsafe extern "C" fn(usize) -> *mut c_void;
pub type HeapResizeFn = unsafe extern "C" fn(usize);
pub type FinalizerNotifier = unsafe extern "C" fn();
pub type AbortFn = unsafe extern "C" fn(Message);
pub type PushOtherRootsFn = unsafe extern "C" fn();
pub type WarnFn = unsafe extern "C" fn(*mut c_char, usize);
pub type StartFn = unsafe extern "C" fn();
pub type EventFn = unsafe extern "C" fn(c_int);
pub type ThreadEventFn = unsafe extern "C" fn(c_int, *mut c_void);
pub type AwaitFinalizeFn = unsafe extern "C" fn(*mut c_void);
pub type ToggleFn = unsafe extern "C" fn(*mut c_void) -> c_int;
pub type StopFn = unsafe extern "C" fn() -> c_int;

static WARN: Function<WarnFn> = Function::new(print::print_warning);
static COLLECTION_EVENT: Function<EventFn> = Function::none();
static STOP: Function<StopFn> = Function::new(never_stop);

/// The first `GC_oom_fn`.
pub unsafe extern "C" fn return_null(_bytes: usize) -> *mut c_void {
    ptr::null_mut()
}

/// The first `GC_push_other_roots`. libgc's pushes the stacks of all threads; here the heap does so after it.
pub unsafe extern "C" fn push_nothing() {}

/// The first `GC_on_abort`. With `GC_LOOP_ON_ABORT` it does not return, so that a debugger can be attached.
pub unsafe extern "C" fn print_and_return(message: Message) {
    if message.is_null() {
        return;
    }
    // SAFETY: the caller of an abort function passes null or a C string.
    print::error(unsafe { core::ffi::CStr::from_ptr(message) });
    print::error(c"\n");
    if larder_sys::env::is_set(c"GC_LOOP_ON_ABORT") {
        loop {
            // SAFETY: no preconditions.
            unsafe { libc::pause() };
        }
    }
}

/// The first stop function.
pub unsafe extern "C" fn never_stop() -> c_int {
    0
}

/// Leads the heap's hooks here. The variables behind them are read at each call, because clients replace them directly.
pub fn install() {
    hooks::EVENT.set(Some(crate::progress::on_event));
    hooks::PUSH_OTHER_ROOTS.set(Some(push_other_roots));
    hooks::PLACES_STACKS.set(Some(places_stacks));
    hooks::WARN.set(Some(heap_warns));
    hooks::HEAP_RESIZE.set(Some(heap_resized));
    hooks::FINALIZER_NOTIFIER.set(Some(finalizers_wait));
}

unsafe extern "C" fn push_other_roots() {
    if let Some(f) = GC_push_other_roots.get() {
        // SAFETY: the heap calls this where libgc calls it: in a cycle, with the world stopped.
        unsafe { f() }
    }
}

/// A procedure of the client's may, as Crystal's does.
unsafe extern "C" fn places_stacks() -> c_int {
    c_int::from(GC_push_other_roots.get().is_some_and(|f| !ptr::fn_addr_eq(f, push_nothing as PushOtherRootsFn)))
}

unsafe extern "C" fn heap_resized(bytes: usize) {
    crate::progress::resized(bytes);
    if let Some(f) = GC_on_heap_resize.get() {
        // SAFETY: the heap calls this where libgc calls it.
        unsafe { f(bytes) }
    }
}

unsafe extern "C" fn finalizers_wait() {
    if let Some(f) = GC_finalizer_notifier.get() {
        // SAFETY: the heap calls this where libgc calls it: after a cycle, without the lock.
        unsafe { f() }
    }
}

unsafe extern "C" fn heap_warns(format: *const c_char, argument: usize) {
    warn(format, argument);
}

/// Hands a warning to the client's function. `format` begins with libgc's `GC Warning: ` and takes one word.
pub fn warn(format: *const c_char, argument: usize) {
    if let Some(f) = WARN.get() {
        // SAFETY: the format is a C string that takes one word; the callee does not write to it.
        unsafe { f(format.cast_mut(), argument) }
    }
}

/// Tells the client of a step of a cycle.
pub fn announce(event: c_int) {
    if let Some(f) = COLLECTION_EVENT.get() {
        // SAFETY: the heap's event hook is called in libgc's order and places.
        unsafe { f(event) }
    }
}

/// The client's stop function, or `None` while it is the one that never stops.
pub fn stop_function() -> Option<StopFn> {
    STOP.get().filter(|&f| !ptr::fn_addr_eq(f, never_stop as StopFn))
}

/// Calls the client's out-of-memory function.
pub fn memory_exhausted(bytes: usize) -> *mut c_void {
    // SAFETY: the client's function, called as it expects: without the lock, by the thread that wants memory.
    GC_oom_fn.get().map_or(ptr::null_mut(), |f| unsafe { f(bytes) })
}

/// Stops the process because of a wrong call, as libgc does: through the client's abort function.
pub fn abort(message: &'static core::ffi::CStr) -> ! {
    if let Some(f) = GC_on_abort.get() {
        // SAFETY: a C string that lives forever.
        unsafe { f(message.as_ptr()) }
    }
    // SAFETY: no preconditions.
    unsafe { libc::abort() }
}

/// Ends the process with status 1 after the abort function was told that there is nothing more to say.
#[unsafe(no_mangle)]
pub extern "C" fn GC_abort_on_oom() {
    print::error(c"Insufficient memory for the allocation\n");
    if let Some(f) = GC_on_abort.get() {
        // SAFETY: null is what libgc passes before an exit.
        unsafe { f(ptr::null()) }
    }
    // SAFETY: no preconditions; exit handlers run, as on libgc.
    unsafe { libc::exit(1) }
}

macro_rules! function_setting {
    ($(#[$doc:meta])* $set:ident, $get:ident: $type:ty => $variable:expr) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $set(function: Option<$type>) {
            $variable.set(function);
        }

        /// The function that was set last, or the first one.
        #[unsafe(no_mangle)]
        pub extern "C" fn $get() -> Option<$type> {
            $variable.get()
        }
    };
}

function_setting! {
    /// Sets what is called when there is no memory.
    GC_set_oom_fn, GC_get_oom_fn: OomFn => GC_oom_fn
}
function_setting! {
    /// Sets what is called when the heap has grown by another step; never when it shrinks.
    GC_set_on_heap_resize, GC_get_on_heap_resize: HeapResizeFn => GC_on_heap_resize
}
function_setting! {
    /// Sets what is called at each step of a cycle.
    GC_set_on_collection_event, GC_get_on_collection_event: EventFn => COLLECTION_EVENT
}
function_setting! {
    /// Sets what is called for each thread that a cycle has stopped, and again before it is resumed; the world is stopped.
    GC_set_on_thread_event, GC_get_on_thread_event: ThreadEventFn => hooks::THREAD_EVENT
}
function_setting! {
    /// Sets what is called when finalizers wait for `GC_invoke_finalizers`.
    GC_set_finalizer_notifier, GC_get_finalizer_notifier: FinalizerNotifier => GC_finalizer_notifier
}
function_setting! {
    /// Sets what is called for each object that is queued for finalization, with the allocation lock held.
    GC_set_await_finalize_proc, GC_get_await_finalize_proc: AwaitFinalizeFn => hooks::AWAIT_FINALIZE
}
function_setting! {
    /// Sets what gets warnings.
    GC_set_warn_proc, GC_get_warn_proc: WarnFn => WARN
}
function_setting! {
    /// Sets what is called before the process is stopped.
    GC_set_abort_func, GC_get_abort_func: AbortFn => GC_on_abort
}
function_setting! {
    /// Sets what is called at the start of each cycle.
    GC_set_start_callback, GC_get_start_callback: StartFn => hooks::START
}
function_setting! {
    /// Sets what finds the client's own roots.
    GC_set_push_other_roots, GC_get_push_other_roots: PushOtherRootsFn => GC_push_other_roots
}
/// Sets what may end a cycle early: one that the heap begins by itself, or `GC_gcollect`.
#[unsafe(no_mangle)]
pub extern "C" fn GC_set_stop_func(function: Option<StopFn>) {
    STOP.set(function);
    hooks::STOP.set(stop_function());
}

/// The function that was set last, or the first one.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_stop_func() -> Option<StopFn> {
    STOP.get()
}
function_setting! {
    /// Sets what decides about each object of `GC_toggleref_add` at the start of a cycle, with the allocation lock held.
    GC_set_toggleref_func, GC_get_toggleref_func: ToggleFn => hooks::TOGGLE
}
