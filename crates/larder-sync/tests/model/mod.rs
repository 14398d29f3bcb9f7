//! What the models share: how far loom explores, and how an entry shows that it is whole.

use larder_sync::worklist::{Deque, Entry};
use std::ptr;

/// Explores every interleaving of `model` with at most `preemptions` preemptions. Waiting for another thread is not
/// one.
///
/// `LOOM_MAX_PREEMPTIONS` replaces the bound, for a longer search.
pub fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// A deque with room for `capacity` entries.
#[allow(dead_code, reason = "each test file is a crate of its own and uses what it needs")]
pub fn deque(capacity: usize) -> Deque {
    let deque = Deque::new();
    // SAFETY: under loom, a deque makes its own slots and does not use the pointer; nobody else has seen it yet.
    unsafe { deque.attach(ptr::null_mut(), capacity) };
    deque
}

/// An entry whose words match.
#[allow(dead_code, reason = "each test file is a crate of its own and uses what it needs")]
pub fn whole(word: usize) -> Entry {
    [word, !word]
}

/// The number in an entry; fails if its words do not match.
#[allow(dead_code, reason = "each test file is a crate of its own and uses what it needs")]
pub fn number_of(entry: Entry) -> usize {
    assert_eq!(entry[1], !entry[0], "a torn entry was taken");
    entry[0]
}
