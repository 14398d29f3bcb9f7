//! Whole cycles while a thread stands at a chosen place.

use core::sync::atomic::{AtomicU64, Ordering};

use larder_fixed::cycle;
use larder_sys::tls;

use crate::crowd;

/// Cycles that the collecting thread was asked for. Sync: whoever asks adds.
static ASKED: AtomicU64 = AtomicU64::new(0);
/// Cycles that it has made. Sync: it adds.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Starts the thread that collects when it is asked to; it ends with the process.
pub fn start_collector() {
    let _ = crowd::spawn(|| {
        loop {
            crowd::wait_until(|| ASKED.load(Ordering::Acquire) > MADE.load(Ordering::Relaxed));
            assert!(cycle::collect());
            MADE.fetch_add(1, Ordering::Release);
        }
    });
}

/// Cycles that the collecting thread has made.
pub fn cycles_made() -> u64 {
    MADE.load(Ordering::Acquire)
}

/// Whether the calling thread, or what it interrupted, is in a slow path: then it defers stops and cannot collect.
pub fn in_slow_path() -> bool {
    tls::with(|t| t.slow_depth.get() != 0)
}

/// Has the collecting thread make a whole cycle while this one stands here. In a slow path the stop waits for this
/// thread; then this returns as soon as the stop has asked for it, and checks that no cycle passed it by.
pub fn stop_here() {
    let wanted = ASKED.fetch_add(1, Ordering::AcqRel) + 1;
    if in_slow_path() {
        crowd::wait_until(|| tls::with(|t| t.stop_pending.get() != 0));
        assert!(cycles_made() < wanted, "a cycle did not wait for a thread in a slow path");
    } else {
        crowd::wait_until(|| cycles_made() >= wanted);
    }
}

/// Waits until every cycle that was asked for is over.
pub fn settle() {
    let wanted = ASKED.load(Ordering::Acquire);
    crowd::wait_until(|| cycles_made() >= wanted);
}
