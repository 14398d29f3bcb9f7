//! Which optimizations of marking and of concurrent cycles are left out: for experiments (thesis 3.5.4).
//!
//! A set that is changed while the program runs counts from the next cycle on; `bmb` and `huge-pages` are decided when the heap is reserved. The
//! sets live where a cycle decides what it does: nothing in an inner loop asks for them.

use core::sync::atomic::{AtomicU16, Ordering};

pub use larder_policy::ablation::{Ablation, Optimization};
use larder_sys::env;

/// Sync: a setting; `Relaxed`.
static ABLATION: AtomicU16 = AtomicU16::new(0);

/// Leaves these optimizations out from the next cycle on. Any thread.
pub fn set(ablation: Ablation) {
    ABLATION.store(ablation.bits(), Ordering::Relaxed);
}

/// What is left out.
pub fn get() -> Ablation {
    Ablation::from_bits(ABLATION.load(Ordering::Relaxed))
}

/// Reads `LARDER_ABLATE`, before the heap is reserved.
pub(crate) fn set_up() {
    let Some(text) = env::var(c"LARDER_ABLATE") else { return };
    let text = text.to_str().unwrap_or("?");
    match Ablation::parse(text) {
        Ok(ablation) => set(ablation),
        Err(name) => larder_sys::die!(
            "LARDER_ABLATE names '{name}': set it to some of balance, slo, nsb, bmb, lazy-sweep, prefetch, markers, deque, clean, clusters, huge-pages, copies, grey, with commas between"
        ),
    }
}
