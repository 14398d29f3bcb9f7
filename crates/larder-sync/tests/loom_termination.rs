//! Models of `termination.idle`, `.recover`, `.last`, `.sleep` and `.done`: the end is never declared while work is
//! left, every run comes to an end, and each step that is left out is missed.
//!
//! A marker here is the loop that a real one runs, around the shipped deque and the shipped termination. Books are kept
//! twice. What work is left is counted by a `std` atomic, which is exact in every interleaving and orders nothing in
//! the model. What has been done is counted by relaxed atomics of the model: whoever learns of the end must see all of
//! it, and loom, which switches threads only where accesses of the model conflict, switches while a piece is held.
#![cfg(loom)]

mod model;

use larder_sync::atomic::AtomicUsize;
use larder_sync::mutants;
use larder_sync::termination::Termination;
use larder_sync::worklist::{Deque, Entry, Steal};
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize as Uncounted;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

/// The steps of a marker that a mutant replaces.
#[derive(Clone, Copy)]
struct Protocol {
    busy_before_theft: bool,
    become_idle: fn(&Termination, usize),
    detect: fn(&Termination, &World) -> bool,
    sleep: fn(&Termination, usize, &World),
    announce_work: fn(&Termination, usize),
}

const SHIPPED: Protocol = Protocol {
    busy_before_theft: true,
    become_idle: Termination::become_idle,
    detect: |termination, world| termination.detect(|| world.all_empty()),
    sleep: |termination, me, world| termination.sleep(me, || world.all_empty()),
    announce_work: Termination::announce_work,
};

/// Markers, their public lists, and the books.
struct World {
    termination: Termination,
    lists: Vec<Deque>,
    /// Pieces of work that exist and are not finished, wherever they are.
    left: Uncounted,
    /// How many pieces have been made in all.
    made: Uncounted,
    /// How many pieces each marker has finished.
    finished: Vec<AtomicUsize>,
    protocol: Protocol,
}

impl World {
    /// A round of `markers` that has begun, with nothing to do yet.
    fn new(markers: usize, protocol: Protocol) -> Self {
        let world = Self {
            termination: Termination::new(),
            lists: (0..markers).map(|_| model::deque(2)).collect(),
            left: Uncounted::new(0),
            made: Uncounted::new(0),
            finished: (0..markers).map(|_| AtomicUsize::new(0)).collect(),
            protocol,
        };
        world.termination.begin(markers);
        world
    }

    fn all_empty(&self) -> bool {
        self.lists.iter().all(Deque::is_empty)
    }

    fn steal(&self, me: usize) -> Option<Entry> {
        let markers = self.lists.len();
        for victim in (0..markers).map(|distance| (me + distance) % markers) {
            loop {
                match self.lists[victim].steal() {
                    Steal::Taken(piece) => return Some(piece),
                    Steal::Retry => continue,
                    Steal::Empty => break,
                }
            }
        }
        None
    }

    fn make(&self, pieces: usize) {
        self.left.fetch_add(pieces, Relaxed);
        self.made.fetch_add(pieces, Relaxed);
    }

    /// Makes a piece of work public and announces it.
    fn publish(&self, me: usize, piece: usize) {
        self.make(1);
        // SAFETY: only marker `me` pushes to and pops from its own list.
        unsafe { self.lists[me].push(model::whole(piece)) }.expect("the models' trees fit");
        (self.protocol.announce_work)(&self.termination, 1);
    }

    /// Finishes one piece: makes its children public first. The piece `n` has the children `0..n`.
    fn finish(&self, me: usize, piece: Entry) {
        for child in 0..model::number_of(piece) {
            self.publish(me, child);
        }
        // ORDER termination.idle: Relaxed; `become_idle` publishes it to the detector, and `termination.done` to
        // everybody.
        self.finished[me].fetch_add(1, Relaxed);
        self.left.fetch_sub(1, Relaxed);
    }

    fn assert_over(&self) {
        // ORDER termination.idle: Relaxed; the end has been seen, so `termination.done` or `detect` acquired it.
        let finished: usize = self.finished.iter().map(|finished| finished.load(Relaxed)).sum();
        assert_eq!(self.left.load(Relaxed), 0, "the end came too early: work is left");
        assert_eq!(finished, self.made.load(Relaxed), "the end came too early: work that is done is not seen");
    }

    /// Marks until the round is over, starting with the private pieces `roots`.
    fn mark(&self, me: usize, roots: &[usize]) {
        self.make(roots.len());
        for &root in roots {
            self.finish(me, model::whole(root));
        }
        loop {
            // SAFETY: only marker `me` pushes to and pops from its own list.
            while let Some(piece) = unsafe { self.lists[me].pop() } {
                self.finish(me, piece);
            }
            (self.protocol.become_idle)(&self.termination, me);
            match self.recover(me) {
                Some(piece) => self.finish(me, piece),
                None => return self.assert_over(),
            }
        }
    }

    /// Idles until there is a piece to do or the round is over. The marker is busy again when it has a piece.
    fn recover(&self, me: usize) -> Option<Entry> {
        loop {
            if (self.protocol.detect)(&self.termination, self) {
                self.assert_over();
                return None;
            }
            if self.all_empty() {
                (self.protocol.sleep)(&self.termination, me, self);
                continue;
            }
            if self.protocol.busy_before_theft {
                self.termination.become_busy(me);
            }
            let piece = self.steal(me);
            if !self.protocol.busy_before_theft {
                self.termination.become_busy(me);
            }
            if piece.is_some() {
                return piece;
            }
            (self.protocol.become_idle)(&self.termination, me);
        }
    }
}

/// Runs one marker per element of `roots`; the element is what it starts with.
fn round(roots: &'static [&'static [usize]], protocol: Protocol, preemptions: usize) {
    model::explore(preemptions, move || {
        let world = Arc::new(World::new(roots.len(), protocol));
        let others: Vec<_> = (1..roots.len())
            .map(|me| {
                let world = world.clone();
                thread::spawn(move || world.mark(me, roots[me]))
            })
            .collect();
        world.mark(0, roots[0]);
        for other in others {
            other.join().unwrap();
        }
        assert!(world.termination.is_done());
        world.assert_over();
    });
}

#[test]
fn two_markers_without_work() {
    round(&[&[], &[]], SHIPPED, 3);
}

/// `LOOM_MAX_PREEMPTIONS=3` takes twenty seconds.
#[test]
fn two_markers_share_a_tree() {
    round(&[&[2], &[]], SHIPPED, 2);
}

#[test]
fn two_markers_with_a_piece_each() {
    round(&[&[1], &[1]], SHIPPED, 3);
}

#[test]
fn three_markers_without_work() {
    round(&[&[], &[], &[]], SHIPPED, 3);
}

/// `LOOM_MAX_PREEMPTIONS=2` takes half a minute.
#[test]
fn three_markers_share_a_piece() {
    round(&[&[], &[1], &[]], SHIPPED, 1);
}

#[test]
#[should_panic(expected = "the end came too early")]
fn stealing_before_becoming_busy_ends_too_early() {
    round(&[&[1], &[]], Protocol { busy_before_theft: false, ..SHIPPED }, 2);
}

/// The race that the second collect decides, without the rest of a round: marker 0 recovers and takes the only piece,
/// marker 1, whose piece it was, becomes idle, and marker 2 looks at one before and at the other after.
fn theft_under_a_detector(protocol: Protocol, preemptions: usize) {
    model::explore(preemptions, move || {
        let world = Arc::new(World::new(3, protocol));
        world.publish(1, 0);
        (protocol.become_idle)(&world.termination, 0);
        (protocol.become_idle)(&world.termination, 2);
        let thief = {
            let world = world.clone();
            thread::spawn(move || {
                world.termination.become_busy(0);
                if let Some(piece) = world.steal(0) {
                    world.finish(0, piece);
                }
                (protocol.become_idle)(&world.termination, 0);
            })
        };
        let owner = {
            let world = world.clone();
            thread::spawn(move || {
                // SAFETY: this thread alone stands for marker 1, after the thread that spawned it.
                if let Some(piece) = unsafe { world.lists[1].pop() } {
                    world.finish(1, piece);
                }
                (protocol.become_idle)(&world.termination, 1);
            })
        };
        if (protocol.detect)(&world.termination, &world) {
            world.assert_over();
        }
        thief.join().unwrap();
        owner.join().unwrap();
        assert!((protocol.detect)(&world.termination, &world), "the end was not noticed");
    });
}

#[test]
fn theft_under_a_detector_is_noticed() {
    theft_under_a_detector(SHIPPED, 4);
}

#[test]
#[should_panic(expected = "the end came too early")]
fn one_collect_ends_too_early() {
    let detect =
        |termination: &Termination, world: &World| mutants::detect_with_one_collect(termination, || world.all_empty());
    theft_under_a_detector(Protocol { detect, ..SHIPPED }, 4);
}

/// `termination.recover` alone: a list whose own accesses order nothing, so that only the fences in `become_busy` and
/// `detect` keep the detector from seeing the theft and missing the thief.
#[test]
fn a_theft_from_a_relaxed_list_is_noticed() {
    model::explore(4, || {
        let world = Arc::new(World::new(2, SHIPPED));
        let list = Arc::new(AtomicUsize::new(1));
        world.make(1);
        world.termination.become_idle(0);
        world.termination.become_idle(1);
        let thief = {
            let (world, list) = (world.clone(), list.clone());
            thread::spawn(move || {
                world.termination.become_busy(1);
                // ORDER termination.recover: Relaxed, which is the point.
                if list.swap(0, Relaxed) == 1 {
                    world.finish(1, model::whole(0));
                }
                world.termination.become_idle(1);
            })
        };
        // ORDER termination.recover: Relaxed, which is the point.
        if world.termination.detect(|| list.load(Relaxed) == 0) {
            world.assert_over();
        }
        thief.join().unwrap();
    });
}

/// Markers that begin with parts which they claim. One that comes late counted as idle before; it finds no part left, or is seen to have one.
fn late_marker_with_a_part(busy_before_claim: bool) {
    const PARTS: usize = 2;
    model::explore(4, move || {
        let world = Arc::new(World::new(2, SHIPPED));
        let next = Arc::new(AtomicUsize::new(0));
        world.make(PARTS);
        world.termination.become_idle(1);
        let late = {
            let (world, next) = (world.clone(), next.clone());
            thread::spawn(move || {
                if busy_before_claim {
                    world.termination.become_busy(1);
                }
                // ORDER termination.recover: AcqRel, with the claims of others: who finds nothing left sees that this one is busy.
                let has_one = next.fetch_add(1, AcqRel) < PARTS;
                if !busy_before_claim {
                    world.termination.become_busy(1);
                }
                if has_one {
                    world.finish(1, model::whole(0));
                }
                world.termination.become_idle(1);
            })
        };
        // ORDER termination.recover: AcqRel, as above.
        while next.fetch_add(1, AcqRel) < PARTS {
            world.finish(0, model::whole(0));
        }
        world.termination.become_idle(0);
        if world.termination.detect(|| world.all_empty()) {
            world.assert_over();
        }
        late.join().unwrap();
    });
}

#[test]
fn a_late_marker_with_a_part_is_noticed() {
    late_marker_with_a_part(true);
}

#[test]
#[should_panic(expected = "the end came too early")]
fn claiming_before_becoming_busy_ends_too_early() {
    late_marker_with_a_part(false);
}

/// `termination.idle` alone: a marker that becomes idle over its own public work. Whoever sees it idle sees the work.
#[test]
fn work_left_public_by_an_idle_marker_is_noticed() {
    model::explore(4, || {
        let world = Arc::new(World::new(2, SHIPPED));
        let list = Arc::new(AtomicUsize::new(0));
        world.termination.become_idle(0);
        world.make(1);
        let owner = {
            let (world, list) = (world.clone(), list.clone());
            thread::spawn(move || {
                // ORDER termination.idle: Relaxed, which is the point.
                list.store(1, Relaxed);
                world.termination.become_idle(1);
            })
        };
        // ORDER termination.idle: Relaxed, which is the point.
        assert!(!world.termination.detect(|| list.load(Relaxed) == 0), "the end came too early: work is left");
        owner.join().unwrap();
    });
}

/// Of markers that become idle and then detect once each, one succeeds: the fence in `become_idle`, without the help of
/// those in `sleep`.
fn last_one_detects(protocol: Protocol) {
    model::explore(4, move || {
        let world = Arc::new(World::new(3, protocol));
        let idle_and_detect = move |world: &World, me| {
            (protocol.become_idle)(&world.termination, me);
            (protocol.detect)(&world.termination, world)
        };
        let others: Vec<_> = (1..3)
            .map(|me| {
                let world = world.clone();
                thread::spawn(move || idle_and_detect(&world, me))
            })
            .collect();
        let mut detected = idle_and_detect(&world, 0);
        for other in others {
            detected |= other.join().unwrap();
        }
        assert!(detected, "every marker took another for busy");
    });
}

#[test]
fn the_last_one_to_become_idle_detects() {
    last_one_detects(SHIPPED);
}

#[test]
#[should_panic(expected = "every marker took another for busy")]
fn idling_without_a_fence_is_not_noticed() {
    last_one_detects(Protocol { become_idle: mutants::become_idle_without_fence, ..SHIPPED });
}

/// A sleeper and a busy marker that publishes one piece, which only the sleeper is there to take.
fn work_for_a_sleeper(protocol: Protocol) {
    model::explore(4, move || {
        let world = Arc::new(World::new(2, protocol));
        let sleeper = {
            let world = world.clone();
            thread::spawn(move || {
                (protocol.become_idle)(&world.termination, 0);
                let piece = world.recover(0).expect("marker 1 stays busy");
                world.finish(0, piece);
            })
        };
        world.publish(1, 0);
        sleeper.join().unwrap();
        world.assert_over();
    });
}

#[test]
fn a_sleeper_is_woken_for_work() {
    work_for_a_sleeper(SHIPPED);
}

#[test]
#[should_panic(expected = "deadlock")]
fn announcing_without_a_fence_loses_a_wake() {
    work_for_a_sleeper(Protocol { announce_work: mutants::announce_work_without_fence, ..SHIPPED });
}

#[test]
#[should_panic(expected = "deadlock")]
fn idling_without_a_fence_puts_everybody_to_sleep() {
    round(&[&[], &[]], Protocol { become_idle: mutants::become_idle_without_fence, ..SHIPPED }, 3);
}

#[test]
#[should_panic(expected = "deadlock")]
fn sleeping_without_a_last_look_misses_the_end() {
    let sleep = |termination: &Termination, me: usize, world: &World| {
        mutants::sleep_without_last_look(termination, me, || world.all_empty())
    };
    round(&[&[], &[]], Protocol { sleep, ..SHIPPED }, 3);
}
