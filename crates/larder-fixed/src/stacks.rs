//! Where the stacks of threads are that a cycle scans.

use core::sync::atomic::{AtomicPtr, Ordering};

use larder_sys::specific;
use larder_threads::{Thread, ThreadState};

use crate::cycle::for_each_thread;
use crate::settings;

/// How many threads ahead the memory is asked for what the C library keeps of a thread: with many threads nobody has looked there for long.
const AHEAD: usize = 8;

/// Calls `f(low, high)` for the live part of each thread's stacks, and its thread-specific values. During a stop, by the
/// collector.
pub(crate) fn for_each_stack(mut f: impl FnMut(usize, usize)) {
    let mut waiting = [None; AHEAD];
    let mut at = 0;
    let mut look_at = |t: Option<&'static Thread>| {
        if let Some(t) = t {
            specific::prefetch_blocks(t.thread_pointer());
        }
        if let Some(t) = core::mem::replace(&mut waiting[at % AHEAD], t) {
            // SAFETY: during a stop.
            unsafe { for_each_stack_of(t, &mut f) };
        }
        at += 1;
    };
    for_each_thread(|t| look_at(Some(t)));
    (0..AHEAD).for_each(|_| look_at(None));
}

/// As [`for_each_stack`], of one thread.
///
/// # Safety
/// The thread stands still, or is this one.
pub(crate) unsafe fn for_each_stack_of(t: &'static Thread, mut f: impl FnMut(usize, usize)) {
    if has_stack(t) {
        live_stack(t).inspect(|&(low, high)| f(low, high));
        t.alternate_stacks().into_iter().flatten().for_each(|(low, high)| f(low, high));
    }
    if !t.thread_pointer().is_null() {
        // SAFETY: the caller's promise.
        unsafe { specific::for_each_block(t.thread_pointer(), &mut f) };
    }
}

fn has_stack(t: &Thread) -> bool {
    matches!(t.state(), ThreadState::Running | ThreadState::Blocked)
}

/// The live part of the ordinary stack of a thread that stands still.
pub(crate) fn live_stack(t: &Thread) -> Option<(usize, usize)> {
    if has_stack(t) { live_from(t, t.stack_pointer()) } else { None }
}

/// What is live of the stack of a thread that stands at `sp`.
///
/// The main thread may stand above the place where the client's variable says that its stack begins: the client called `GC_init` with
/// a base in a frame that has returned since, or has left a fiber and not said so. Then the stack is live up to where the system
/// began it. Of other threads nobody knows that without asking the C library, which may use malloc.
pub(crate) fn live_from(t: &Thread, sp: usize) -> Option<(usize, usize)> {
    let base = stack_base(t);
    if sp < base {
        return Some((sp, base));
    }
    let [low, high] = settings::MAIN_STACK.each_ref().map(|end| end.load(Ordering::Relaxed));
    (is_main(t) && (low..high).contains(&sp)).then_some((sp, high))
}

fn is_main(t: &Thread) -> bool {
    core::ptr::eq(t, settings::MAIN.load(Ordering::Relaxed))
}

/// The door's variable, which says where the main thread's stack begins, for that thread.
fn variable_of(t: &Thread) -> Option<&'static AtomicPtr<u8>> {
    // SAFETY: `set_main_stack_base_variable` stored a static.
    unsafe { settings::MAIN_STACK_BASE.load(Ordering::Relaxed).as_ref() }.filter(|_| is_main(t))
}

/// Where a thread's stack begins. For the main thread the door's variable counts, which fibers move.
fn stack_base(t: &Thread) -> usize {
    match variable_of(t).map_or(0, |variable| variable.load(Ordering::Relaxed).addr()) {
        0 => t.stack_base(),
        base => base,
    }
}

/// The calling thread, whose record this is, is about to be unregistered: the record may become another thread's, whose stack does not
/// begin where the client's variable says.
pub(crate) fn forget_main(t: &Thread) {
    if is_main(t) {
        t.set_stack_base(stack_base(t));
        // Release: not before the base is in the record, where a collector that stops this thread in between looks then. Its stop orders the rest.
        settings::MAIN.store(core::ptr::null_mut(), Ordering::Release);
    }
}

/// Has the calling thread's stack begin at `here`, if it is said to begin deeper.
pub(crate) fn reach(t: &Thread, here: *mut u8) {
    if stack_base(t) >= here.addr() {
        return;
    }
    match variable_of(t) {
        Some(variable) => variable.store(here, Ordering::Relaxed),
        None => t.set_stack_base(here.addr()),
    }
}
