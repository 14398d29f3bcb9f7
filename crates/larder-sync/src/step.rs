//! Steps that a model leaves out, to show that they are missed.
//!
//! A protocol asks [`kept`] before a step that it could seem to do without. In the shipped code the answer is a constant
//! `true`; a model that runs [`without`] a step must fail.

use crate::atomic::Ordering;

/// Whether the step of this name is made.
#[cfg(not(loom))]
#[inline(always)]
pub const fn kept(_name: &'static str) -> bool {
    true
}

#[cfg(loom)]
std::thread_local! {
    // loom runs all threads of a model on the one that explores it.
    static LEFT_OUT: std::cell::Cell<&'static str> = const { std::cell::Cell::new("") };
}

/// Whether the step of this name is made.
#[cfg(loom)]
pub fn kept(name: &'static str) -> bool {
    LEFT_OUT.get() != name
}

/// Whether every step is made: nothing is left [`without`].
#[cfg(loom)]
pub fn all_kept() -> bool {
    LEFT_OUT.get().is_empty()
}

/// `order`, or `Relaxed` in a model without the step.
#[inline(always)]
pub fn order(name: &'static str, order: Ordering) -> Ordering {
    if kept(name) { order } else { Ordering::Relaxed }
}

/// Runs `model` without the step of this name.
#[cfg(loom)]
pub fn without(name: &'static str, model: impl FnOnce()) {
    LEFT_OUT.set(name);
    model();
    LEFT_OUT.set("");
}
