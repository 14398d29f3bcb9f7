//! Models of `region.publish` (HAB's refill): each piece is taken once, with what its refiller wrote to it, also where a stop
//! closes the region under a refill; and the mutants, among them the paper's listing.
#![cfg(loom)]

mod model;
#[path = "model/pair.rs"]
mod pair;

use larder_sync::region::{self, Taken};
use larder_sync::step;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use pair::Packed;
use std::sync::Arc;

/// Pieces of the space below, numbered; even numbers are frontiers, as addresses are.
const PIECES: usize = 6;
/// How many pieces a refill brings.
const REFILL: usize = 3;

struct Shared {
    region: Packed,
    /// The next piece of the space below.
    top: AtomicUsize,
    marks: AtomicUsize,
    /// How often a stop began. What was obtained in one epoch is no memory in another.
    epoch: AtomicUsize,
    /// What the refiller writes to each piece: its place and epoch. loom reports a taker that comes too early.
    content: Vec<UnsafeCell<[usize; 2]>>,
    taken: Vec<AtomicUsize>,
}

// SAFETY: loom checks the accesses to the cells; that is what the model is for.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// Pieces are two apart, from 2 on.
fn place(piece: usize) -> usize {
    2 * piece + 2
}

impl Shared {
    fn new() -> Self {
        Self {
            region: Packed::new([0, 0]),
            top: AtomicUsize::new(0),
            marks: AtomicUsize::new(0),
            epoch: AtomicUsize::new(0),
            content: (0..PIECES).map(|_| UnsafeCell::new([0; 2])).collect(),
            taken: (0..PIECES).map(|_| AtomicUsize::new(0)).collect(),
        }
    }

    /// The piece at a frontier is this thread's: it was written, and nobody else has it. Returns its epoch.
    fn use_piece(&self, at: usize) -> usize {
        let piece = (at - 2) / 2;
        // SAFETY: loom checks it.
        let [written, epoch] = self.content[piece].with(|content| unsafe { *content });
        assert_eq!(written, at, "a piece that was not written yet");
        assert_eq!(self.taken[piece].fetch_add(1, Ordering::Relaxed), 0, "piece {piece} was taken twice");
        epoch
    }

    fn use_all(&self, start: usize, end: usize) {
        (start..end).step_by(2).for_each(|at| _ = self.use_piece(at));
    }

    /// Pieces of the space below, written: from the rest on, if that was the end of what was obtained.
    fn obtain(&self, rest: [usize; 2]) -> Option<(usize, usize)> {
        let kept = region::rest(rest) / 2;
        let first = self.top.fetch_add(REFILL, Ordering::Relaxed);
        if first + REFILL > PIECES {
            return None;
        }
        let epoch = self.epoch.load(Ordering::Relaxed);
        for piece in first..first + REFILL {
            // SAFETY: loom checks it.
            self.content[piece].with_mut(|content| unsafe { *content = [place(piece), epoch] });
        }
        let merges = kept != 0 && rest[1] == place(first);
        Some((if merges { rest[0] } else { place(first) }, place(first + REFILL)))
    }

    /// Takes pieces as the buffers of a level do: listing 2, repaired. A thread that has moved leaves all that it brought
    /// to those who are there.
    fn take(&self, pieces: usize, moves: bool) {
        match region::take(&self.region, 2 * pieces, 2 * pieces) {
            Taken::Run(at, end) => {
                assert_eq!(end, at + 2 * pieces);
                self.use_all(at, end);
            }
            Taken::Refilling => {}
            Taken::Short(seen) => self.refill(seen, pieces, moves),
        }
    }

    fn refill(&self, seen: [usize; 2], pieces: usize, moves: bool) {
        let number = self.marks.fetch_add(1, Ordering::Relaxed);
        let Some(mark) = region::mark(&self.region, seen, number) else { return };
        let Some((start, end)) = self.obtain(seen) else {
            self.use_all(seen[0], seen[1].max(seen[0]));
            return region::give_up(&self.region, mark);
        };
        if start != seen[0] {
            self.use_all(seen[0], seen[1].max(seen[0]));
        }
        let first = if moves { start } else { start + 2 * pieces };
        if region::finish(&self.region, mark, first, end) {
            self.use_all(start, first);
        } else {
            // Closed meanwhile: the refiller has all of what it brought.
            self.use_all(start, end);
        }
    }

    /// A stop: a new epoch, and what was left.
    fn close(&self, stamp: usize) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
        if let Some((start, end)) = region::close(&self.region, stamp) {
            self.use_all(start, end);
        }
    }

    /// All pieces that were obtained were used, and those that are left are of the last epoch.
    fn all_are_used(&self) {
        if let Some((start, end)) = region::close(&self.region, 0) {
            for at in (start..end).step_by(2) {
                let epoch = self.use_piece(at);
                assert_eq!(epoch, self.epoch.load(Ordering::Relaxed), "memory from before a stop");
            }
        }
        for piece in 0..self.top.load(Ordering::Relaxed).min(PIECES) {
            assert_eq!(self.taken[piece].load(Ordering::Relaxed), 1, "piece {piece} is lost");
        }
    }
}

/// What one thread takes, one after the other: how many pieces, and whether it moves in a refill.
type Program = &'static [(usize, bool)];

/// Runs the programs beside one another on a region that was refilled once before if `is_filled`; a stop comes meanwhile
/// if `stops`.
fn explore(preemptions: usize, programs: &'static [Program], is_filled: bool, stops: bool) {
    model::explore(preemptions, move || {
        let shared = Arc::new(Shared::new());
        if is_filled {
            shared.take(2, false);
        }
        let handles: Vec<_> = programs
            .iter()
            .map(|program| {
                let shared = shared.clone();
                thread::spawn(move || program.iter().for_each(|&(pieces, moves)| shared.take(pieces, moves)))
            })
            .collect();
        if stops {
            shared.close(16);
        }
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        shared.all_are_used();
    });
}

const ONE: Program = &[(1, false)];
const TWO: Program = &[(2, false)];
const TWO_AND_ONE: Program = &[(2, false), (1, false)];
const TWO_MOVING: Program = &[(2, true)];

#[test]
fn each_piece_is_taken_once() {
    explore(3, &[TWO_AND_ONE, TWO_AND_ONE], false, false);
    explore(3, &[TWO_AND_ONE, TWO_MOVING], true, false);
    explore(2, &[ONE, TWO, TWO_MOVING], true, false);
}

#[test]
fn a_stop_closes_the_region_under_a_refill() {
    explore(3, &[TWO, TWO], true, true);
    explore(2, &[TWO_MOVING, ONE], false, true);
}

#[test]
#[should_panic]
fn the_result_of_the_mark_is_not_looked_at() {
    step::without("region: the result of the mark", || explore(2, &[TWO, TWO], true, false));
}

#[test]
#[should_panic]
fn only_the_frontier_is_compared() {
    step::without("region: both words are compared", || explore(2, &[ONE, TWO_MOVING], true, false));
}

#[test]
#[should_panic]
fn marks_are_all_alike() {
    step::without("region: numbered marks", || explore(3, &[TWO, TWO], false, true));
}

#[test]
#[should_panic]
fn published_relaxed() {
    step::without("region.publish", || explore(2, &[TWO_AND_ONE, ONE], false, false));
}
