//! Blocking regions: code that does not touch the heap while it waits, and so need not be stopped.
//!
//! The Notes' asymmetric Dekker: the region's end stores `Running`, passes the light half of a fence and reads the world; the
//! collector stores the world, passes the heavy half and reads the state. Under `larder run`, where regions are frequent, the
//! kernel makes the heavy half do for both; else both halves are full fences, which do not show beside a system call.

use core::ffi::c_void;

use larder_sync::step;
use larder_sys::thread::stack_pointer;
use larder_sys::unwind::{self, Unwound};

use crate::ground::{signal, tls, with_registers_spilled};
use crate::place::Place;
use crate::record::{Thread, ThreadState};
use crate::stop::{self, Obstacle};
use crate::{look, suspend};

pub use larder_sys::unwind::Function as Callback;

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
    // A region that is unwound inside a region stays where it was: lower on the stack than what is live of the outer one.
    if own().is_some_and(|thread| thread.state() == ThreadState::Blocked) {
        // SAFETY: the caller vouches for the callback.
        return region(|| unsafe { f(argument) });
    }
    // SAFETY: the caller vouches for the callback.
    region(|| unsafe { unwind::call::<RegionEnds>(f, argument) })
}

/// A region is unwound: what runs from here on is a mutator.
struct RegionEnds;

impl Unwound for RegionEnds {
    fn unwound() {
        // The callback may have unregistered the thread.
        if let Some(thread) = own() {
            become_running(thread);
            thread.leave_place();
        }
    }
}

/// As [`blocking`], for a closure, which does not use the heap except through [`active_region`].
pub fn region<R>(f: impl FnOnce() -> R) -> R {
    let Some(thread) = own() else { return f() };
    with_registers_spilled(|sp| {
        let outer = (thread.place(), thread.state());
        thread.publish(Place::of(thread, sp));
        thread.set_state(ThreadState::Blocked);
        let result = f();
        if outer.1 == ThreadState::Blocked {
            // A region inside a region: the outer one goes on, with its own place on the stack.
            thread.publish(outer.0);
        } else {
            become_running(thread);
            thread.leave_place();
        }
        result
    })
}

/// Runs `f(argument)` as a mutator inside a blocking region; outside of one it just runs it.
///
/// # Safety
/// `f` may be called with `argument`.
pub unsafe fn active(f: Callback, argument: *mut c_void) -> *mut c_void {
    if own().is_none_or(|thread| thread.state() != ThreadState::Blocked) {
        // SAFETY: the caller vouches for the callback.
        return unsafe { f(argument) };
    }
    // SAFETY: the caller vouches for the callback.
    active_region(|| unsafe { unwind::call::<RegionResumes>(f, argument) })
}

/// A mutator inside a region is unwound: the region goes on.
struct RegionResumes;

impl Unwound for RegionResumes {
    fn unwound() {
        if let Some(thread) = own() {
            // The region's own place is not at hand; this one is lower on the same stack.
            thread.publish(Place::of(thread, stack_pointer().addr()));
            thread.set_state(ThreadState::Blocked);
        }
    }
}

/// As [`active`], for a closure.
pub fn active_region<R>(f: impl FnOnce() -> R) -> R {
    let Some(thread) = own().filter(|t| t.state() == ThreadState::Blocked) else { return f() };
    let region = thread.place();
    become_running(thread);
    let result = f();
    thread.publish(region);
    thread.set_state(ThreadState::Blocked);
    result
}

/// Ends a blocking region: waits for the end of a stop that counted on it, or of a look, and sleeps if the thread was asked to.
pub(crate) fn become_running(thread: &Thread) {
    if !runs_again(thread) {
        sleep_where_it_stands(thread);
    }
}

/// The thread was asked to sleep until somebody resumes it. A region lasts so long: the one that was to end, or, where a handler of the client's begins, one
/// that begins here.
#[cold]
fn sleep_where_it_stands(thread: &Thread) {
    with_registers_spilled(|sp| {
        let outer = thread.place();
        thread.publish(Place::of(thread, sp));
        loop {
            thread.set_state(ThreadState::Blocked);
            suspend::sleep_in_region(thread);
            if runs_again(thread) {
                break;
            }
        }
        thread.publish(outer);
    });
}

/// As [`become_running`]; false where the thread was asked to sleep.
fn runs_again(thread: &Thread) -> bool {
    loop {
        thread.set_state(ThreadState::Running);
        let Some(obstacle) = stop::obstacle_after_fence(thread) else { return true };
        if !step::kept("blocking: wait for the end of the stop") {
            return true;
        }
        let number = match obstacle {
            Obstacle::Stop(number) => number,
            // Whoever looks waits for nobody meanwhile.
            Obstacle::Look => {
                look::wait(thread);
                continue;
            }
            Obstacle::Suspension => return false,
        };
        // Either the collector saw `Blocked`, and this thread must not go on; or it saw `Running` and has signalled,
        // and the handler answers while we sleep here: also where the client, or the mask of its handler, keeps the signal away.
        let mask = step::kept("blocking: open the stop signal").then(|| signal::unblock(stop::signal()));
        stop::wait_while(number);
        mask.inspect(|mask| {
            mask.set();
        });
    }
}
