//! Models of `deque.publish`, `deque.take`, `deque.recycle` and `deque.last`: every entry is taken exactly once and
//! whole.
#![cfg(loom)]

mod model;

use larder_sync::atomic::{AtomicUsize, Ordering};
use larder_sync::mutants;
use larder_sync::worklist::{Deque, Entry, Steal};
use loom::thread;
use std::sync::Arc;

type Pop = unsafe fn(&Deque) -> Option<Entry>;

/// Which pieces have been taken. The atomics are `std`'s, so that keeping the books orders nothing in the model.
#[derive(Default)]
struct Books(std::sync::atomic::AtomicUsize);

impl Books {
    fn enter(&self, entry: Entry) {
        let bit = 1 << model::number_of(entry);
        let before = self.0.fetch_or(bit, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(before & bit, 0, "an entry was taken twice");
    }

    fn all(&self) -> usize {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

#[derive(Clone, Copy)]
enum Step {
    Push(usize),
    Pop,
}
use Step::{Pop as POP, Push};

/// An owner takes `steps` while each of `thieves` threads tries to steal `attempts` times. What does not fit is taken
/// by the owner at once; what is left at the end as well. Then each of `entries` must have been taken once.
fn owner_and_thieves(
    capacity: usize,
    steps: &'static [Step],
    thieves: usize,
    attempts: usize,
    preemptions: usize,
    pop: Pop,
) {
    let entries = steps.iter().filter(|step| matches!(step, Push(_))).count();
    model::explore(preemptions, move || {
        let deque = Arc::new(model::deque(capacity));
        let books = Arc::new(Books::default());
        let thieves: Vec<_> = (0..thieves)
            .map(|_| {
                let (deque, books) = (deque.clone(), books.clone());
                thread::spawn(move || {
                    for _ in 0..attempts {
                        if let Steal::Taken(entry) = deque.steal() {
                            books.enter(entry);
                        }
                    }
                })
            })
            .collect();
        for step in steps {
            // SAFETY: this thread is the only owner.
            let taken = unsafe {
                match *step {
                    Push(number) => deque.push(model::whole(number)).err(),
                    POP => pop(&deque),
                }
            };
            taken.into_iter().for_each(|entry| books.enter(entry));
        }
        for thief in thieves {
            thief.join().unwrap();
        }
        // SAFETY: as above.
        while let Some(entry) = unsafe { pop(&deque) } {
            books.enter(entry);
        }
        assert!(deque.is_empty());
        assert_eq!(books.all(), (1 << entries) - 1, "an entry was lost");
    });
}

#[test]
fn the_last_entry_goes_to_one_of_owner_and_two_thieves() {
    owner_and_thieves(2, &[Push(0), POP], 2, 1, 3, Deque::pop);
}

#[test]
fn one_thief_steals_twice_while_the_owner_pops_all() {
    owner_and_thieves(4, &[Push(0), Push(1), POP, POP], 1, 2, 4, Deque::pop);
}

#[test]
fn two_thieves_and_an_owner_that_pushes_and_pops() {
    owner_and_thieves(4, &[Push(0), Push(1), POP, Push(2), POP], 2, 1, 2, Deque::pop);
}

#[test]
fn a_ring_of_one_is_reused_under_a_thief() {
    owner_and_thieves(1, &[Push(0), Push(1), POP, Push(2)], 1, 2, 3, Deque::pop);
}

#[test]
fn a_ring_of_two_wraps_under_two_thieves() {
    owner_and_thieves(2, &[Push(0), Push(1), Push(2), POP, Push(3)], 2, 2, 2, Deque::pop);
}

#[test]
#[should_panic(expected = "an entry was taken twice")]
fn without_the_fence_in_pop_an_entry_is_taken_twice() {
    owner_and_thieves(4, &[Push(0), Push(1), POP, POP], 1, 2, 4, mutants::pop_without_fence);
}

/// A thief that finds an entry sees what its owner wrote before pushing it; an owner that reuses a slot does not
/// disturb the thief that read it last.
#[test]
fn an_entry_brings_what_was_written_before_it() {
    model::explore(4, || {
        let deque = Arc::new(model::deque(1));
        let object = Arc::new(AtomicUsize::new(0));
        let thief = {
            let (deque, object) = (deque.clone(), object.clone());
            thread::spawn(move || {
                if let Steal::Taken(entry) = deque.steal() {
                    // ORDER deque.publish: Relaxed; the theft acquired what the push published.
                    assert!(
                        object.load(Ordering::Relaxed) >= model::number_of(entry),
                        "the entry came before its object"
                    );
                }
            })
        };
        for number in 1..=2 {
            // ORDER deque.publish: Relaxed; the push that follows publishes it.
            object.store(number, Ordering::Relaxed);
            // SAFETY: this thread is the only owner.
            let _ = unsafe { deque.push(model::whole(number)) };
        }
        thief.join().unwrap();
    });
}

/// `is_empty` says yes only if it was so at some moment, and whoever hears no sees what was written before the push.
#[test]
fn a_deque_that_is_never_empty_does_not_look_so() {
    model::explore(4, || {
        let deque = Arc::new(model::deque(2));
        let object = Arc::new(AtomicUsize::new(0));
        // SAFETY: this thread is the only owner.
        unsafe { deque.push(model::whole(0)) }.unwrap();
        // The one who looks is not the first thread: loom runs that first, and then finds only the races of later loads.
        let looker = {
            let (deque, object) = (deque.clone(), object.clone());
            thread::spawn(move || {
                let entries = deque.len();
                assert_ne!(entries, 0, "a deque that was never empty looked empty");
                if entries == 2 {
                    // ORDER deque.publish: Relaxed; `len` acquired the push of the second entry.
                    assert_eq!(object.load(Ordering::Relaxed), 1, "the entry came before its object");
                }
            })
        };
        // ORDER deque.publish: Relaxed; the push that follows publishes it.
        object.store(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { deque.push(model::whole(1)) }.unwrap();
        assert_eq!(deque.steal(), Steal::Taken(model::whole(0)));
        looker.join().unwrap();
    });
}

/// Two threads take several at a time while a third pushes, over the end of the ring: each entry is taken once, whole, and brings what was written
/// before it.
#[test]
fn thieves_of_several_take_each_entry_once() {
    const ENTRIES: usize = 4;
    model::explore(3, || {
        let deque = Arc::new(model::deque(2));
        let books = Arc::new(Books::default());
        let object = Arc::new(AtomicUsize::new(0));
        let thieves: Vec<_> = (1..=2)
            .map(|most| {
                let (deque, books, object) = (deque.clone(), books.clone(), object.clone());
                thread::spawn(move || {
                    let mut taken = [[0; 2]; 2];
                    // SAFETY: nobody pops.
                    let n = unsafe { deque.steal_many(&mut taken[..most]) };
                    for entry in &taken[..n] {
                        books.enter(*entry);
                        // ORDER deque.publish: Relaxed; the theft acquired what the push published.
                        assert!(object.load(Ordering::Relaxed) >= model::number_of(*entry));
                    }
                })
            })
            .collect();
        for number in 0..ENTRIES {
            // ORDER deque.publish: Relaxed; the push that follows publishes it.
            object.store(number, Ordering::Relaxed);
            // SAFETY: this thread is the only owner.
            if let Err(entry) = unsafe { deque.push(model::whole(number)) } {
                books.enter(entry);
            }
        }
        for thief in thieves {
            thief.join().unwrap();
        }
        let mut taken = [[0; 2]; 2];
        // SAFETY: nobody pops.
        let n = unsafe { deque.steal_many(&mut taken) };
        taken[..n].iter().for_each(|entry| books.enter(*entry));
        assert!(deque.is_empty());
        assert_eq!(books.all(), (1 << ENTRIES) - 1, "an entry was lost");
    });
}
