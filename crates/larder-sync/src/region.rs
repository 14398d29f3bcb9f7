//! A region that many threads take from and that one of them refills, without a lock (HAB, listing 2).
//!
//! The region is a pair of words that changes as one:
//!
//! | pair | meaning |
//! |---|---|
//! | (frontier, limit), limit not 0 | open: `frontier..limit` may be taken from its lower end |
//! | (even, 0) | closed: empty, nobody refills it. The first word is whatever the closer gave, to tell times apart |
//! | (odd, 0) | one thread refills it. The first word is that thread's mark, which no other refill ever has |
//!
//! | step | change | who may go on |
//! |---|---|---|
//! | take | (f, l) to (f + n, l) | the taker has `f..f + n` |
//! | mark | (f, l) to (mark, 0) | the marker has the rest `f..l`, and the refill |
//! | finish | (mark, 0) to (f', l') | everybody may take from `f'..l'` |
//! | give up | (mark, 0) to (0, 0) | everybody may mark |
//! | close | anything to (stamp, 0) | the closer has the rest; whoever had marked finds that it has no refill any more |
//!
//! **Why it holds.** Every change compares the whole pair, and the pair is all the state there is. So a reading that was
//! torn (one word old, one new), and a pair that went away and came back (ABA), can only succeed where the pair is at that
//! moment what was read; then the step is right. A mark that was wiped by a close cannot be taken for a later one, because
//! marks are numbered: the late refiller's finish fails, and it still owns what it had brought.
//!
//! The paper keeps `top` alone in the compared word, with the limit beside it: a thread could read a limit that belongs to
//! another top. Its listing 2 also compares the result of the compare-and-swap with NULL, which it never is: a thread whose
//! swap failed would refill as well. Both are mutants of the model (`tests/loom_region.rs`).
//!
//! Where takes are to compare one word, fillings have numbers: see [`fillings`].
//!
//! Nobody waits here. A thread that meets a mark goes elsewhere, and a thread that disappears while it refills (it did not
//! come along a fork) blocks nobody: the region stays marked until somebody closes it.

pub mod fillings;

use crate::step;

/// Two words that are compared and swapped as one.
///
/// `load` may tear. `compare_exchange` orders what its caller did before against what follows the one that reads its
/// result: ORDER region.publish, on both ends. On x86-64 it is one `lock cmpxchg16b`.
pub trait Pair {
    /// Both words, which need not belong together.
    fn load(&self) -> [usize; 2];
    /// Replaces the pair if it is `old`; says whether it did.
    fn compare_exchange(&self, old: [usize; 2], new: [usize; 2]) -> bool;
}

/// What [`take`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// `start..end` is the caller's.
    Run(usize, usize),
    /// Somebody refills the region.
    Refilling,
    /// Less than the least is left; the pair that says so is for [`mark`].
    Short([usize; 2]),
}

/// The right to refill a region; [`finish`] or [`give_up`] ends it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the region stays marked until it is finished, given up or closed"]
pub struct Mark(usize);

impl Mark {
    /// The pair that stands for the mark.
    pub const fn pair(&self) -> [usize; 2] {
        [self.0, 0]
    }
}

/// Whether the pair says that somebody refills the region.
pub const fn is_marked(pair: [usize; 2]) -> bool {
    pair[1] == 0 && pair[0] % 2 == 1
}

/// What the pair has left.
pub const fn rest(pair: [usize; 2]) -> usize {
    pair[1].saturating_sub(pair[0])
}

/// Takes at most `most`, at least `least`, from the lower end.
pub fn take(region: &impl Pair, least: usize, most: usize) -> Taken {
    debug_assert!(least != 0 && least <= most);
    loop {
        let seen = region.load();
        if is_marked(seen) {
            return Taken::Refilling;
        }
        if rest(seen) < least {
            return Taken::Short(seen);
        }
        let end = seen[0] + rest(seen).min(most);
        // ORDER region.publish: acquires, with `finish`: what the refiller wrote to the new region is seen.
        if region.compare_exchange(seen, [end, seen[1]]) {
            return Taken::Run(seen[0], end);
        }
    }
}

/// Claims the refill of a region that was found too short: `number` is one that no other refill of it has, in its life.
/// What the pair `seen` has left is the caller's then. `None` when somebody else was faster.
pub fn mark(region: &impl Pair, seen: [usize; 2], number: usize) -> Option<Mark> {
    let mark = Mark(if step::kept("region: numbered marks") { number << 1 | 1 } else { 1 });
    // ORDER region.publish: acquires, as in `take`, what lies in the rest.
    let done = region.compare_exchange(seen, mark.pair());
    (done || !step::kept("region: the result of the mark")).then_some(mark)
}

/// Opens the region with `start..end`; false when it was closed meanwhile, and `start..end` is still the caller's.
#[must_use]
pub fn finish(region: &impl Pair, mark: Mark, start: usize, end: usize) -> bool {
    debug_assert!(end != 0 && start.is_multiple_of(2));
    // ORDER region.publish: releases, with `take`: what the refiller wrote to the new region.
    region.compare_exchange(mark.pair(), [start, end])
}

/// Leaves the region empty, for others to refill.
pub fn give_up(region: &impl Pair, mark: Mark) {
    // If it fails, the region was closed, which is as good.
    region.compare_exchange(mark.pair(), [0, 0]);
}

/// Closes the region and returns what it had left, whatever others do; a refill that is under way will not finish.
/// `stamp` is even.
pub fn close(region: &impl Pair, stamp: usize) -> Option<(usize, usize)> {
    debug_assert!(stamp.is_multiple_of(2));
    loop {
        let seen = region.load();
        // ORDER region.publish: acquires, as in `take`.
        if region.compare_exchange(seen, [stamp, 0]) {
            return (rest(seen) != 0).then_some((seen[0], seen[1]));
        }
    }
}
