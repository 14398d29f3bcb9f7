//! Models of `forward.offer`: of several copies of an object one counts, and whoever follows it finds it finished.
#![cfg(loom)]

mod model;

use larder_sync::atomic::AtomicUsize;
use larder_sync::forward::{Found, look, offer};
use larder_sync::step;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

const WORD: usize = 0x40;

struct Shared {
    word: AtomicUsize,
    /// Where each collector makes its copy; loom reports a read that is not ordered after the write.
    copies: [UnsafeCell<usize>; 2],
}

// SAFETY: loom checks the accesses to the cells.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    /// What collector `me` does with the object; returns which copy it took.
    fn evacuate(&self, me: usize) -> usize {
        let at = match look(&self.word) {
            Found::Moved(at) => at,
            Found::Here(seen) => {
                // SAFETY: a collector's own place.
                self.copies[me].with_mut(|copy| unsafe { *copy = 7 });
                offer(&self.word, seen, (me + 1) * 16)
            }
        };
        let which = at / 16 - 1;
        // SAFETY: a copy that counts is not written any more.
        self.copies[which].with(|copy| assert_eq!(unsafe { *copy }, 7, "a copy that is not finished"));
        which
    }
}

fn two_collectors() {
    model::explore(3, || {
        let shared =
            Arc::new(Shared { word: AtomicUsize::new(WORD), copies: [UnsafeCell::new(0), UnsafeCell::new(0)] });
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.evacuate(1))
        };
        let mine = shared.evacuate(0);
        assert_eq!(mine, other.join().unwrap(), "two copies of one object");
        assert_eq!(look(&shared.word), Found::Moved((mine + 1) * 16));
    });
}

#[test]
fn one_copy_counts_and_is_finished() {
    two_collectors();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn looking_without_acquire_is_caught() {
    step::without("forward.offer: Acquire of look", two_collectors);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn losing_without_acquire_is_caught() {
    step::without("forward.offer: Acquire of a loser", two_collectors);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn offering_without_release_is_caught() {
    step::without("forward.offer: Release", two_collectors);
}
