//! Blocking regions: code that does not touch the heap while it waits, and so need not be stopped.
//!
//! The Notes' asymmetric Dekker, in its plain form: the region's end stores `Running`, passes a full fence and reads the
//! world; the collector stores the world, passes a full fence and reads the state. Ending a region is rare and slow
//! enough (it follows a system call) that the fence does not show.

use core::ffi::c_void;

use larder_sys::thread::{stack_pointer, with_spilled_registers};
use larder_sys::tls;

use crate::record::{Thread, ThreadState};
use crate::stop;

/// A callback with its argument, as C passes them.
pub type Callback = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

struct Call {
    f: Callback,
    argument: *mut c_void,
    result: *mut c_void,
}

fn own<'a>() -> Option<&'a Thread> {
    let record = tls::with(|t| t.record.get()).cast::<Thread>();
    // SAFETY: a thread's record outlives its registration.
    (!record.is_null()).then(|| unsafe { &*record })
}

/// Runs `f(argument)` as a blocking region: the collector treats the thread as stopped, with everything that the caller
/// held in registers spilled and its stack scanned from here. In a thread that is not registered it just runs `f`.
///
/// # Safety
/// `f` may be called with `argument`, and does not use the heap except through [`active`].
pub unsafe fn blocking(f: Callback, argument: *mut c_void) -> *mut c_void {
    extern "C" fn inside(sp: *mut u8, call: *mut u8) {
        // SAFETY: `blocking` passes its own local.
        let call = unsafe { &mut *call.cast::<Call>() };
        let thread = own().expect("`blocking` checked that the thread is registered");
        let outer = (thread.stack_pointer(), thread.state());
        thread.set_stack_pointer(sp.addr());
        thread.set_state(ThreadState::Blocked);
        // SAFETY: the caller of `blocking` vouches for the callback.
        call.result = unsafe { (call.f)(call.argument) };
        if outer.1 == ThreadState::Blocked {
            // A region inside a region: the outer one goes on, with its own place on the stack.
            thread.set_stack_pointer(outer.0);
        } else {
            become_running(thread);
        }
    }
    let mut call = Call { f, argument, result: core::ptr::null_mut() };
    if own().is_none() {
        // SAFETY: the caller vouches for the callback.
        return unsafe { f(argument) };
    }
    with_spilled_registers(inside, (&raw mut call).cast());
    call.result
}

/// Runs `f(argument)` as a mutator inside a blocking region; outside of one it just runs it.
///
/// # Safety
/// `f` may be called with `argument`.
pub unsafe fn active(f: Callback, argument: *mut c_void) -> *mut c_void {
    let Some(thread) = own().filter(|t| t.state() == ThreadState::Blocked) else {
        // The stack base of a thread that was registered deeper than here must cover this frame.
        if let Some(thread) = own()
            && thread.stack_base() < stack_pointer().addr()
        {
            thread.set_stack_base(stack_pointer().addr());
        }
        // SAFETY: the caller vouches for the callback.
        return unsafe { f(argument) };
    };
    let region = thread.stack_pointer();
    become_running(thread);
    // SAFETY: the caller vouches for the callback.
    let result = unsafe { f(argument) };
    thread.set_stack_pointer(region);
    thread.set_state(ThreadState::Blocked);
    result
}

/// Ends a blocking region: waits for the end of a stop that counted on it.
pub(crate) fn become_running(thread: &Thread) {
    loop {
        thread.set_state(ThreadState::Running);
        let Some(number) = stop::stop_seen_after_fence() else { return };
        // Either the collector saw `Blocked`, and this thread must not go on; or it saw `Running` and has signalled,
        // and the handler answers while we sleep here.
        stop::wait_while(number);
    }
}
