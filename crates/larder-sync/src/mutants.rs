//! The protocols with one step left out, for models that must fail.
//!
//! Each of these is the shipped code with one constant changed; it exists only under loom.

use crate::termination::Termination;
use crate::worklist::{Deque, Entry};

/// [`Deque::pop`] without its fence.
///
/// # Safety
/// As for [`Deque::push`].
pub unsafe fn pop_without_fence(deque: &Deque) -> Option<Entry> {
    // SAFETY: the caller's promise.
    unsafe { deque.pop_with::<false>() }
}

/// [`Termination::detect`] without its second collect.
pub fn detect_with_one_collect(termination: &Termination, all_empty: impl Fn() -> bool) -> bool {
    termination.detect_with::<false>(all_empty)
}

/// [`Termination::become_idle`] without its fence.
pub fn become_idle_without_fence(termination: &Termination, me: usize) {
    termination.become_idle_with::<false>(me);
}

/// [`Termination::sleep`] without the look after the announcement.
pub fn sleep_without_last_look(termination: &Termination, me: usize, all_empty: impl Fn() -> bool) {
    termination.sleep_with::<false>(me, all_empty);
}

/// [`Termination::announce_work`] without its fence.
pub fn announce_work_without_fence(termination: &Termination, pieces: usize) {
    termination.announce_work_with::<false>(pieces);
}
