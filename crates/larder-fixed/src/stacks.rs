//! Where the stacks of threads are that a cycle scans.

use core::sync::atomic::Ordering;

use larder_sys::specific;
use larder_threads::{Thread, ThreadState};

use crate::cycle::for_each_thread;
use crate::settings;

/// Calls `f(low, high)` for the live part of each thread's stacks, and its thread-specific values. During a stop, by the
/// collector.
pub(crate) fn for_each_stack(mut f: impl FnMut(usize, usize)) {
    // SAFETY: during a stop.
    for_each_thread(|t| unsafe { for_each_stack_of(t, &mut f) });
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
    let (base, sp) = (stack_base(t), t.stack_pointer());
    (has_stack(t) && sp < base).then_some((sp, base))
}

/// Where a thread's stack begins. For the main thread the door's variable counts, which fibers move.
pub(crate) fn stack_base(t: &Thread) -> usize {
    let variable = settings::MAIN_STACK_BASE.load(Ordering::Relaxed);
    // SAFETY: `set_main_stack_base_variable` stored a static.
    match unsafe { variable.as_ref() } {
        Some(v) if core::ptr::eq(t, settings::MAIN.load(Ordering::Relaxed)) => {
            let base = v.load(Ordering::Relaxed).addr();
            if base == 0 { t.stack_base() } else { base }
        }
        _ => t.stack_base(),
    }
}
