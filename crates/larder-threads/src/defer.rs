//! Slow paths defer stops.
//!
//! A thread that refills a buffer, sweeps a block or holds one of the heap's locks is never stopped there: the handler
//! sees the depth, leaves a note, and the thread parks itself when it leaves. A client's signal handler that interrupts
//! a slow path and allocates sees the depth as well, and takes memory that needs none of the locks.

use core::arch::asm;

use larder_sync::atomic::{Ordering, compiler_fence};
use larder_sync::lock::Lock;
use larder_sync::step;

use crate::ground::{signal, tls};
use crate::stop;

/// A stay in a slow path; ends when dropped.
pub struct Deferral(());

/// Enters a slow path.
#[inline]
pub fn enter() -> Deferral {
    tls::with(|t| t.slow_depth.set(t.slow_depth.get() + 1));
    // The handler runs on this thread: only the compiler could move the work out of the stay.
    compiler_fence(Ordering::SeqCst);
    Deferral(())
}

/// What [`briefly`] did.
#[must_use = "a stop may wait for this thread"]
pub struct Brief {
    /// What its function returned; false where it was not called.
    pub done: bool,
    /// A stop waits: the caller calls [`answer`] before anything else. (It is not called here so that it need not return to the middle of
    /// a function that has few instructions otherwise.)
    pub pending: bool,
}

/// Runs `f` as a short stay, where the calling thread is registered and in no slow path yet.
#[inline(always)]
pub fn briefly(f: impl FnOnce() -> bool) -> Brief {
    tls::with(|t| {
        if t.slow_depth.get() != 0 || t.record.get().is_null() {
            return Brief { done: false, pending: false };
        }
        t.slow_depth.set(1);
        compiler_fence(Ordering::SeqCst);
        // Two ways to the same end, which the comments keep apart: each knows what its caller would have to ask.
        if f() {
            let pending = end_briefly(t);
            // SAFETY: no instruction.
            unsafe { asm!("/* done */", options(nomem, nostack, preserves_flags)) };
            Brief { done: true, pending }
        } else {
            let pending = end_briefly(t);
            // SAFETY: no instruction.
            unsafe { asm!("/* not done */", options(nomem, nostack, preserves_flags)) };
            Brief { done: false, pending }
        }
    })
}

/// The end of a short stay. Whether a stop waits.
#[inline(always)]
fn end_briefly(t: &tls::ThreadBlock) -> bool {
    compiler_fence(Ordering::SeqCst);
    t.slow_depth.set(0);
    compiler_fence(Ordering::SeqCst);
    // As where a `Deferral` ends.
    t.stop_pending.get() != 0 && step::kept("defer: park at the end")
}

/// Parks for the stop that was pending when a [`briefly`] ended.
pub fn answer() {
    stop::park_deferred();
}

/// Enters a slow path that begins with taking a lock which the collector holds during a stop.
///
/// The thread must not defer while it waits (the collector would wait for it), and must not hold the lock without
/// deferring (a handler that allocates would collect, and wait for the lock that its own thread holds).
pub fn lock(lock: &Lock) -> Deferral {
    loop {
        let deferral = enter();
        if lock.try_lock_raw() {
            return deferral;
        }
        if step::kept("defer: not while waiting") {
            drop(deferral);
        } else {
            core::mem::forget(deferral);
        }
        // The holder may be a collector that waits for this thread's answer, which a client may have masked. A client's handler that ran in here, and
        // waited for a cycle, would keep the lock, or the one wake that its release is worth, from the collector of that cycle.
        let mask = signal::mask_all_but(stop::signal());
        lock.lock_raw();
        // SAFETY: taken in the line above.
        unsafe { lock.unlock_raw() };
        mask.set();
    }
}

/// Whether the calling thread is in a slow path (then this is a handler that interrupted it, or a callback from it).
#[inline]
pub fn is_deferring() -> bool {
    tls::with(|t| t.slow_depth.get() != 0)
}

impl Deferral {
    /// Takes up a stay whose guard was forgotten.
    ///
    /// # Safety
    /// The calling thread forgot one, and takes each up once.
    pub unsafe fn resume() -> Self {
        Self(())
    }
}

impl Drop for Deferral {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let pending = tls::with(|t| {
            t.slow_depth.set(t.slow_depth.get() - 1);
            compiler_fence(Ordering::SeqCst);
            // A stop that arrives from here on parks in its handler; one that arrived before has left its note.
            t.slow_depth.get() == 0 && t.stop_pending.get() != 0 && step::kept("defer: park at the end")
        });
        if pending {
            stop::park_deferred();
        }
    }
}
