//! Blocking calls of libc that `larder run` interposes: a thread that sleeps in one is not woken to be stopped.
//!
//! The preloaded object (`larder-preload`) holds no state of the runtime. It offers an [`Anchor`] of a name with a version
//! ([`attach`]); the runtime, when it is initialised, puts the address of its [`Table`] there. Around each blocking call the
//! object calls `enter` and `leave`, around each signal handler of the client `handler_begins` and `handler_ends`, and
//! `unwound` where a thread that is cancelled is unwound past the call.
//!
//! | the thread is | and then |
//! |---|---|
//! | in a call | `Blocked`, its registers and arguments spilled above the stack pointer that it published |
//! | in a handler that interrupted the call | `Running`: the handler is a mutator; `Blocked` again when it returns |
//! | out of the call by `longjmp` from that handler | `Running`, as the handler was |
//! | in the cleanup of a cancelled call | `Running`, from the moment in which the call's frame is left |
//! | in a slow path, a collector, in a region already, on an alternate stack | left as it is: if it runs, it is signalled |
//! | not itself, but a child of clone with its thread pointer | left as it is, also in handlers that run there |
//!
//! A handler may come between any two steps of `leave`, after the thread has become `Running` and before it has looked
//! for a stop that counted on it. So every handler looks, whatever it interrupts, unless it interrupts a slow path:
//! a thread in one has looked before it entered, and a collector may be waiting for it to come out.

use core::ffi::c_void;
use core::sync::atomic::AtomicPtr;

#[cfg(not(loom))]
use larder_sync::asymmetric;
use larder_sync::atomic::Ordering;
use larder_sync::step;
use larder_sys::memory::KeepErrno;

use crate::blocking::become_running;
#[cfg(not(loom))]
use crate::client;
use crate::ground::{signal, tid, tls};
use crate::record::{Thread, ThreadState};
use crate::registry::REGISTRY;
use crate::stop;

/// What a preloaded object offers. The number in its name, `larder_preload_5`, is the version of this and of [`Table`].
#[repr(C)]
pub struct Anchor {
    /// The runtime's, or null before it is initialised. The first field: assembly reads it.
    ///
    /// Sync: `interposed.table`.
    pub table: AtomicPtr<Table>,
    /// Has the object ask the loader for every function that it stands before. The initialisers of other libraries, and the threads that they make,
    /// may come before its own.
    pub look_all_up: extern "C" fn(),
}

/// What the runtime lends to the preloaded object. Each function may be called at any moment, on any thread, from signal
/// handlers as well, and none changes `errno`.
#[repr(C)]
pub struct Table {
    /// Begins a blocking region, if the thread may be in one; see [`enter`].
    pub enter: extern "C" fn(usize) -> usize,
    /// Ends a region that `enter` began; see [`leave`].
    pub leave: extern "C" fn(),
    /// Makes a signal handler a mutator; see [`handler_begins`].
    pub handler_begins: extern "C" fn(usize, usize, usize) -> usize,
    /// Takes that back; see [`handler_ends`].
    pub handler_ends: extern "C" fn(usize),
    /// Ends a region whose frame is unwound; see [`unwound`].
    pub unwound: extern "C" fn(),
    /// The runtime's own handler, which is not a client's.
    pub stop_handler: signal::Handler,
    /// The signal that it is for: no handler of a client runs with that signal masked.
    pub stop_signal: extern "C" fn() -> i32,
    /// The runtime's handler of faults in a watched heap. It is a mutator like a client's, but no stop comes before it ends.
    pub fault_handler: signal::Handler,
    /// `sigaction` for the stop's signal: the client's handler is called for every such signal that no stop has sent, and the kernel does not
    /// learn of it. The second argument, where it is not null, gets what the client has installed before.
    pub handle_stop_signal: extern "C" fn(*const libc::sigaction, *mut libc::sigaction),
    /// The thread is about to make a child that has its thread pointer; see [`lend`].
    pub lend: extern "C" fn(),
    /// That child is gone; see [`take_back`].
    pub take_back: extern "C" fn(),
}

/// Sync: never written.
#[cfg(not(loom))]
static TABLE: Table = Table {
    enter,
    leave,
    handler_begins,
    handler_ends,
    unwound,
    stop_handler: stop::on_signal,
    stop_signal,
    fault_handler: larder_sys::watch::FAULT_HANDLER,
    handle_stop_signal,
    lend,
    take_back,
};

#[cfg(not(loom))]
extern "C" fn handle_stop_signal(new: *const libc::sigaction, old: *mut libc::sigaction) {
    // SAFETY: the table's callers pass null or a client's action.
    let new = unsafe { new.as_ref() }.map(|action| signal::Handling {
        handler: action.sa_sigaction,
        has_context: action.sa_flags & libc::SA_SIGINFO != 0,
    });
    let before = client::replace(new);
    // SAFETY: null, or room for an action.
    if let Some(old) = unsafe { old.as_mut() } {
        // SAFETY: zeroes are an action with an empty mask.
        *old = unsafe { core::mem::zeroed() };
        old.sa_sigaction = before.handler;
        old.sa_flags = libc::SA_RESTART | if before.has_context { libc::SA_SIGINFO } else { 0 };
    }
}

#[cfg(not(loom))]
extern "C" fn stop_signal() -> i32 {
    stop::signal()
}

/// Finds the preloaded object, if there is one, and gives it the runtime's table. Before a second thread registers, and
/// before the stop signal's handler is installed.
#[cfg(not(loom))]
pub fn attach() {
    let anchor: *const Anchor;
    // SAFETY: reads an entry of the global offset table, which is null where nobody defines the weak symbol.
    unsafe {
        core::arch::asm!(
            // Said here, and not beside the functions: the preloaded object, which defines it, links the module as well.
            ".weak larder_preload_5",
            "mov {}, qword ptr [rip + larder_preload_5@GOTPCREL]",
            out(reg) anchor,
            options(nostack, readonly, preserves_flags),
        );
    }
    // SAFETY: where the symbol is defined, it is an anchor.
    if let Some(anchor) = unsafe { anchor.as_ref() } {
        // Only where regions are frequent is it worth the kernel's help.
        asymmetric::init();
        // The loader's lock is taken for the last time: from here on a thread may be stopped that holds it, and the collector makes calls, too.
        (anchor.look_all_up)();
        // ORDER interposed.table: Release; the table is a constant, and readers depend on its address.
        anchor.table.store((&raw const TABLE).cast_mut(), Ordering::Release);
    }
}

/// Begins a blocking region of the calling thread, with everything that its callers need at or above `sp`, registers
/// included. 0 where it may not be in one; then `leave` is not called.
pub extern "C" fn enter(sp: usize) -> usize {
    let (record, deferring, pending) =
        tls::with(|t| (t.record.get(), t.slow_depth.get() != 0, t.stop_pending.get() != 0));
    // SAFETY: a thread's record outlives its registration.
    let Some(thread) = (unsafe { record.cast::<Thread>().as_ref() }) else { return 0 };
    // A slow path, or a collector: whoever stops the world holds the allocation lock, and so defers.
    if deferring || thread.state() != ThreadState::Running || thread.is_lent() || thread.is_on_handler_stack(sp) {
        return 0;
    }
    if pending {
        return enter_slow(thread, sp);
    }
    thread.set_stack_pointer(sp);
    thread.set_state(ThreadState::Blocked);
    1
}

/// In a handler that interrupted the end of a slow path, whose note has not been read yet: the collector waits.
#[cold]
#[inline(never)]
fn enter_slow(thread: &Thread, sp: usize) -> usize {
    stop::park_deferred();
    thread.set_stack_pointer(sp);
    thread.set_state(ThreadState::Blocked);
    1
}

/// Ends the region that `enter` began: waits while a stop counts on it.
pub extern "C" fn leave() {
    end();
}

fn end() {
    // A handler in the call may have unregistered the thread.
    let Some(thread) = REGISTRY.current() else { return };
    thread.set_state(ThreadState::Running);
    if stop::obstacle_after_fence(thread).is_some() && step::kept("interposed: wait at the end of a call") {
        leave_slow(thread);
    }
}

/// Waits for the end of what was seen.
#[cold]
#[inline(never)]
fn leave_slow(thread: &Thread) {
    let _errno = KeepErrno::new();
    become_running(thread);
}

/// Makes the client's handler that begins now a mutator. `low..high` is the alternate stack that it runs on, or empty; `disarmed` is not 0 where the
/// kernel does not know that meanwhile. Returns what [`handler_ends`] wants.
pub extern "C" fn handler_begins(low: usize, high: usize, disarmed: usize) -> usize {
    begin_handler(low, high, disarmed != 0)
}

fn begin_handler(low: usize, high: usize, disarmed: bool) -> usize {
    let Some(thread) = REGISTRY.current() else { return 0 };
    if thread.is_lent() && thread.tid() != tid() {
        return 0;
    }
    if low < high {
        thread.set_handler_stack(low, high, disarmed);
    }
    let (deferring, pending) = tls::with(|t| (t.slow_depth.get() != 0, t.stop_pending.get() != 0));
    if deferring {
        return 0;
    }
    if pending {
        // See `enter`.
        stop::park_deferred();
        return 0;
    }
    let region = match thread.state() {
        ThreadState::Blocked => thread.stack_pointer(),
        ThreadState::Running => 0,
        _ => return 0,
    };
    thread.set_state(ThreadState::Running);
    if stop::obstacle_after_fence(thread).is_some() && step::kept("interposed: wait before a handler") {
        leave_slow(thread);
    }
    region
}

/// The handler returns: the call that it interrupted goes on as a blocked one.
pub extern "C" fn handler_ends(region: usize) {
    if region != 0
        && let Some(thread) = REGISTRY.current()
    {
        thread.set_stack_pointer(region);
        thread.set_state(ThreadState::Blocked);
    }
}

/// The frame of a call is unwound, because the thread was cancelled or ends: what runs from here on is a mutator.
pub extern "C" fn unwound() {
    handler_begins(0, 0, 0);
}

/// The calling thread makes a child that shares its memory and has its thread pointer, so that the thread's record looks to it like its own. From
/// here on calls are no regions, neither the child's nor the thread's, which cannot be told apart without a system call.
pub extern "C" fn lend() {
    if let Some(thread) = REGISTRY.current() {
        thread.lent.fetch_add(1, Ordering::Relaxed);
    }
}

/// The child of the last [`lend`] is gone, or was not made. By the thread itself, for which it has slept.
pub extern "C" fn take_back() {
    if let Some(thread) = REGISTRY.current() {
        // The record may be newer than the child.
        let lent = thread.lent.load(Ordering::Relaxed);
        thread.lent.store(lent.saturating_sub(1), Ordering::Relaxed);
    }
}

/// Runs `f` as the preloaded object runs a handler.
#[cfg(loom)]
pub fn handler(f: impl FnOnce()) {
    let region = begin_handler(0, 0, false);
    f();
    handler_ends(region);
}

/// Makes a call around `f` as the preloaded object does. A model that fails unwinds, which C's functions do not allow.
#[cfg(loom)]
pub fn call(f: impl FnOnce()) {
    assert_ne!(enter(1), 0);
    f();
    end();
}

/// As [`call`], with a handler of the client at the worst place: after the store and before the look.
#[cfg(loom)]
pub fn call_interrupted_at_its_end(f: impl FnOnce()) {
    assert_ne!(enter(1), 0);
    if let Some(thread) = REGISTRY.current() {
        thread.set_state(ThreadState::Running);
    }
    handler(f);
    end();
}

const _: () = assert!(size_of::<Table>() == 11 * size_of::<*const c_void>());
