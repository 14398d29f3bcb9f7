//! What the heap calls in its client. All optional; each says when and where it is called.

use core::ffi::{c_char, c_int, c_void};
use core::marker::PhantomData;
use core::mem;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function that a client may set at any time.
pub struct Hook<F> {
    /// Sync: anyone stores and loads; the function itself is code.
    f: AtomicPtr<c_void>,
    kind: PhantomData<fn() -> F>,
}

impl<F: Copy> Hook<F> {
    const fn new() -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Self { f: AtomicPtr::new(core::ptr::null_mut()), kind: PhantomData }
    }

    /// Sets or clears the function.
    pub fn set(&self, f: Option<F>) {
        // SAFETY: `F` is a function pointer (checked by its size in `new`, and all hooks are declared below).
        let raw = f.map_or(core::ptr::null_mut(), |f| unsafe { mem::transmute_copy::<F, *mut c_void>(&f) });
        self.f.store(raw, Ordering::Release);
    }

    /// The function, if one is set.
    pub fn get(&self) -> Option<F> {
        let raw = self.f.load(Ordering::Acquire);
        // SAFETY: only `set` stores here, and it stores an `F`.
        (!raw.is_null()).then(|| unsafe { mem::transmute_copy::<*mut c_void, F>(&raw) })
    }
}

/// The heap is used before it was initialised: initialise it. On the thread that allocates.
pub static INITIALISE: Hook<unsafe extern "C" fn()> = Hook::new();
/// Before every cycle is decided on: bring settings up to date. On the collecting thread; the world runs.
pub static BEFORE_CYCLE: Hook<unsafe extern "C" fn()> = Hook::new();
/// A cycle begins. On the collecting thread, which holds the allocation lock; the world runs.
pub static START: Hook<unsafe extern "C" fn()> = Hook::new();
/// libgc's collection events, in libgc's order. On the collecting thread, some while the world is stopped.
pub static EVENT: Hook<unsafe extern "C" fn(c_int)> = Hook::new();
/// Push more roots. On the collecting thread, world stopped.
pub static PUSH_OTHER_ROOTS: Hook<unsafe extern "C" fn()> = Hook::new();
/// Whether [`PUSH_OTHER_ROOTS`] may say where stacks begin: anything but 0. Then nobody looks at stacks before it was
/// called. On any collecting thread, world stopped.
pub static PLACES_STACKS: Hook<unsafe extern "C" fn() -> c_int> = Hook::new();
/// The heap has grown to so many bytes. On whichever thread made it grow; it must not allocate.
pub static HEAP_RESIZE: Hook<unsafe extern "C" fn(usize)> = Hook::new();
/// An object that is never collected, and takes so many bytes, is freed. On whichever thread frees it; it must not allocate.
pub static UNCOLLECTABLE_FREED: Hook<unsafe extern "C" fn(usize)> = Hook::new();
/// Something to worry about: a format with one `%p`-like word. On the collecting thread, after the resume, no lock held.
pub static WARN: Hook<unsafe extern "C" fn(*const c_char, usize)> = Hook::new();
/// Finalizers are ready and wait to be invoked. On the collecting thread, no lock held.
pub static FINALIZER_NOTIFIER: Hook<unsafe extern "C" fn()> = Hook::new();

/// What to do about a toggle reference: 0 drop it, 1 make it strong, 2 make it weak. For each one, at the start of a cycle.
/// On the collecting thread, which holds the allocation lock; the world runs.
pub static TOGGLE: Hook<unsafe extern "C" fn(*mut c_void) -> c_int> = Hook::new();
/// An object was queued for finalization. After the resume, on the collecting thread, which holds the allocation lock.
pub static AWAIT_FINALIZE: Hook<unsafe extern "C" fn(*mut c_void)> = Hook::new();
/// A thread, by its `pthread_t`, was stopped, or is about to be resumed. On the collecting thread, which holds the allocation
/// lock; the world is stopped.
pub static THREAD_EVENT: Hook<unsafe extern "C" fn(c_int, *mut c_void)> = Hook::new();
/// Whether to give up a cycle that the heap began by itself: anything but 0 does. On the collecting thread, which holds
/// the allocation lock; the world may be stopped.
pub static STOP: Hook<unsafe extern "C" fn() -> c_int> = Hook::new();
/// Everything is marked that this cycle keeps; what is allocated and not marked is about to be free. On the collecting
/// thread, world stopped: see [`crate::object::for_each_in_cycle`].
pub static MARKED: Hook<unsafe extern "C" fn()> = Hook::new();
/// A cycle is complete, and finalizers were not yet run. On the collecting thread, no lock held.
pub static AFTER_CYCLE: Hook<unsafe extern "C" fn()> = Hook::new();

/// libgc's `GC_EventType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)] // The names say it, and their order is libgc's.
pub enum Event {
    Start = 0,
    MarkStart = 1,
    MarkEnd = 2,
    ReclaimStart = 3,
    ReclaimEnd = 4,
    End = 5,
    PreStopWorld = 6,
    PostStopWorld = 7,
    PreStartWorld = 8,
    PostStartWorld = 9,
    ThreadSuspended = 10,
    ThreadUnsuspended = 11,
}

pub(crate) fn event(e: Event) {
    if let Some(f) = EVENT.get() {
        // SAFETY: the client set it to be called so.
        unsafe { f(e as c_int) }
    }
}

pub(crate) fn call(hook: &Hook<unsafe extern "C" fn()>) {
    if let Some(f) = hook.get() {
        // SAFETY: the client set it to be called so.
        unsafe { f() }
    }
}
