//! Models of a take that guesses the frontier and compares it alone (`larder_percpu::sequence::level::level_bump_guessed`), against
//! refills that give rests back and get them again in other pieces, against its like, and against a stop that lets numbers begin anew.
//!
//! The instructions of the sequence are run by the step interpreter of `larder-percpu` (`tests/steps.rs`), with one order of memory and
//! one filling. Here is what that has not: fillings, marks and numbers are the shipped code of `larder_sync::region`, with the orders
//! that they have. Of the sequence there is each access, in its order, with no order of memory but what its locked instruction is taken
//! for; that an abort sends it back to its beginning is modelled by a lock around the commit, where a stop matters.
#![cfg(loom)]

mod model;
#[path = "model/pair.rs"]
mod pair;

use larder_sync::region::fillings::{Fillings, address};
use larder_sync::{region, step};
use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use pair::Packed;
use std::sync::Arc;

/// Pieces of the space below, numbered; each is two addresses long, from 2 on.
const PIECES: usize = 5;

fn place(piece: usize) -> usize {
    2 * piece + 2
}

struct Shared {
    region: Packed,
    fillings: Fillings,
    marks: AtomicUsize,
    /// Runs of the space below that nobody has; the last one goes first, so that a rest comes back at once.
    free: Mutex<Vec<(usize, usize)>>,
    /// What the refiller writes to each piece. loom reports a taker that comes too early.
    content: Vec<UnsafeCell<usize>>,
    taken: Vec<AtomicUsize>,
    /// Where a stop comes: how many there were. A take that has begun before one does not commit.
    aborts: Option<Mutex<usize>>,
}

// SAFETY: loom checks the accesses to the cells; that is what the model is for.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new(stops: bool) -> Self {
        Self {
            region: Packed::new([0, 0]),
            fillings: Fillings::new(),
            marks: AtomicUsize::new(0),
            free: Mutex::new(vec![(place(0), place(PIECES))]),
            content: (0..PIECES).map(|_| UnsafeCell::new(0)).collect(),
            taken: (0..PIECES).map(|_| AtomicUsize::new(0)).collect(),
            aborts: stops.then(|| Mutex::new(0)),
        }
    }

    /// These pieces are this thread's: they were written, and nobody else has them.
    fn use_all(&self, start: usize, end: usize) {
        for at in (start..end).step_by(2) {
            let piece = (at - 2) / 2;
            // SAFETY: loom checks it.
            let written = self.content[piece].with(|content| unsafe { *content });
            assert_eq!(written, at, "a piece that was not written yet");
            assert_eq!(self.taken[piece].fetch_add(1, Ordering::Relaxed), 0, "piece {piece} was taken twice");
        }
    }

    fn give_back(&self, start: usize, end: usize) {
        if start < end {
            self.free.lock().unwrap().push((start, end));
        }
    }

    /// At most `most` pieces, written, of the last run that has `least`.
    fn obtain(&self, least: usize, most: usize) -> Option<(usize, usize)> {
        let mut free = self.free.lock().unwrap();
        let i = free.iter().rposition(|(start, end)| end - start >= 2 * least)?;
        let (start, end) = free.remove(i);
        let cut = end.min(start + 2 * most);
        if cut < end {
            free.insert(i, (cut, end));
        }
        drop(free);
        for at in (start..cut).step_by(2) {
            // SAFETY: loom checks it.
            self.content[(at - 2) / 2].with_mut(|content| unsafe { *content = at });
        }
        Some((start, cut))
    }

    /// The sequence, access by access: its address, or 0.
    ///
    /// Who shares a guess is a handler of the same thread, for which another thread stands here: what that has seen is ordered by the guess.
    fn bump(&self, bytes: usize, guess: &AtomicUsize) -> usize {
        loop {
            let begun = self.aborts.as_ref().map(|aborts| *aborts.lock().unwrap());
            let frontier = guess.load(Ordering::Acquire);
            let next = frontier + bytes;
            let limit = self.region.limit();
            if next > limit {
                let there = self.region.frontier();
                guess.store(there, Ordering::Release);
                if there == frontier {
                    return 0;
                }
                continue;
            }
            // Held over the commit: an abort comes before it or after.
            let aborts = self.aborts.as_ref().map(|aborts| aborts.lock().unwrap());
            if aborts.as_ref().is_some_and(|aborts| Some(**aborts) != begun) {
                continue;
            }
            match self.region.compare_exchange_frontier(frontier, next, limit) {
                Ok(()) => {
                    guess.store(next, Ordering::Release);
                    return address(frontier);
                }
                Err(there) => guess.store(there, Ordering::Release),
            }
        }
    }

    /// Takes pieces by the sequence, and does without them where that finds none.
    fn take(&self, pieces: usize, guess: &AtomicUsize) {
        let at = self.bump(2 * pieces, guess);
        if at != 0 {
            self.use_all(at, at + 2 * pieces);
        }
    }

    /// Takes pieces as the level's slow path does. A thread that has moved leaves all that it brought to those who are there.
    fn refill(&self, pieces: usize, size: usize, moves: bool) {
        let seen = region::Pair::load(&self.region);
        if region::is_marked(seen) || region::rest(seen) >= 2 * pieces {
            return;
        }
        let number = self.marks.fetch_add(1, Ordering::Relaxed);
        let Some(mark) = region::mark(&self.region, seen, number) else { return };
        if region::rest(seen) != 0 {
            self.give_back(address(seen[0]), address(seen[1]));
        }
        let Some(number) = self.fillings.next() else { return region::give_up(&self.region, mark) };
        let Some((start, end)) = self.obtain(pieces, size) else { return region::give_up(&self.region, mark) };
        let first = if moves { start } else { start + 2 * pieces };
        if region::finish(&self.region, mark, number | first, number | end) {
            self.use_all(start, first);
        } else {
            self.give_back(start, end);
        }
    }

    /// A stop: what the region had left is free, and so is all that was taken; numbers begin anew.
    fn stop(&self, stamp: usize) {
        if let Some((start, end)) = region::close(&self.region, stamp) {
            self.give_back(address(start), address(end));
        }
        if let Some(aborts) = self.aborts.as_ref().filter(|_| step::kept("guess: a stop aborts takes")) {
            *aborts.lock().unwrap() += 1;
        }
        self.fillings.begin_anew();
    }

    /// Each piece is with one thread, in the region, or free.
    fn nothing_is_lost(&self) {
        if let Some((start, end)) = region::close(&self.region, 0) {
            self.use_all(address(start), address(end));
        }
        for (start, end) in self.free.lock().unwrap().drain(..) {
            (start..end).step_by(2).for_each(|at| _ = self.taken[(at - 2) / 2].fetch_add(1, Ordering::Relaxed));
        }
        for (piece, taken) in self.taken.iter().enumerate() {
            assert_eq!(taken.load(Ordering::Relaxed), 1, "piece {piece}");
        }
    }
}

/// What a thread does.
#[derive(Clone, Copy)]
enum Op {
    /// Takes so many pieces by its guess.
    Take(usize),
    /// By one guess that it has in common with others, as with a handler of its own.
    TakeByCommon(usize),
    /// Refills for so many pieces, with so many, and moves meanwhile or not.
    Refill(usize, usize, bool),
    /// Stops the world. Only takes by a guess go on meanwhile: slow paths are not stopped in.
    Stop(usize),
}

use Op::{Refill, Stop, Take, TakeByCommon};

/// Runs the programs beside one another, on a region that was filled with two pieces, of which everybody guesses the frontier.
fn explore(preemptions: usize, programs: &'static [&'static [Op]]) {
    let stops = programs.iter().any(|program| program.iter().any(|op| matches!(op, Stop(_))));
    model::explore(preemptions, move || {
        let shared = Arc::new(Shared::new(stops));
        shared.refill(1, 2, true);
        let frontier = shared.region.frontier();
        let common = Arc::new(AtomicUsize::new(frontier));
        let handles: Vec<_> = programs
            .iter()
            .map(|program| {
                let (shared, common) = (shared.clone(), common.clone());
                thread::spawn(move || {
                    let own = AtomicUsize::new(frontier);
                    for &op in *program {
                        match op {
                            Take(pieces) => shared.take(pieces, &own),
                            TakeByCommon(pieces) => shared.take(pieces, &common),
                            Refill(pieces, size, moves) => shared.refill(pieces, size, moves),
                            Stop(stamp) => shared.stop(stamp),
                        }
                    }
                })
            })
            .collect();
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        shared.nothing_is_lost();
    });
}

/// The rest of the first filling, which a guess is right about, is given back; then it comes again, in a filling that is shorter.
const SHORTER_AGAIN: &[Op] = &[Refill(3, 3, false), Refill(1, 1, true)];

#[test]
fn each_piece_is_taken_once() {
    explore(3, &[&[Take(1), Take(1)], &[Take(2)]]);
    explore(3, &[&[Take(2), Take(1)], SHORTER_AGAIN]);
    explore(2, &[&[Take(1), Take(1)], &[Take(1)], &[Refill(3, 3, true)]]);
}

#[test]
fn two_that_share_a_guess() {
    explore(2, &[&[TakeByCommon(1), TakeByCommon(1)], &[TakeByCommon(1)]]);
    explore(1, &[&[TakeByCommon(2)], &[TakeByCommon(1), Refill(3, 3, false), Refill(1, 1, true), TakeByCommon(1)]]);
}

/// Takes that go on where there is no memory for a refill, which leaves a frontier of 0.
#[test]
fn a_refill_that_is_given_up() {
    explore(3, &[&[Take(1), Take(1)], &[Refill(4, 4, false), Refill(3, 3, false)]]);
}

/// All numbers there are, and more.
#[test]
fn without_a_number_nothing_is_filled() {
    explore(2, &[&[Take(1)], &[Refill(3, 3, true), Refill(4, 4, true), Refill(3, 3, true)]]);
}

/// The filling after the stop has the first number again, and begins where the first one did.
const STOP_AND_SHORTER: &[Op] = &[Stop(16), Refill(1, 1, true)];

#[test]
fn a_stop_lets_numbers_begin_anew() {
    explore(3, &[&[Take(2), Take(1)], STOP_AND_SHORTER]);
    explore(2, &[&[Take(1)], &[Take(2)], STOP_AND_SHORTER]);
}

#[test]
#[should_panic]
fn fillings_are_all_alike() {
    step::without("region: fillings have numbers of their own", || explore(3, &[&[Take(2)], SHORTER_AGAIN]));
}

#[test]
#[should_panic]
fn a_stop_does_not_abort() {
    step::without("guess: a stop aborts takes", || explore(3, &[&[Take(2)], STOP_AND_SHORTER]));
}

#[test]
#[should_panic]
fn the_guessed_take_does_not_acquire() {
    step::without("region.publish: the guessed take", || explore(2, &[&[Take(1), Take(1)], &[Refill(3, 3, true)]]));
}

#[test]
#[should_panic]
fn published_relaxed() {
    step::without("region.publish", || explore(2, &[&[Take(1), Take(1)], &[Refill(3, 3, true)]]));
}
