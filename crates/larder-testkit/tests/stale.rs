//! Words that still hold the address of what was freed explicitly. When the next object comes to lie there, the program need not store what is there
//! already: nothing is written then that a watch could see.

use std::collections::HashMap;

use larder_fixed::concurrent::{Births, Way};
use larder_fixed::options::Options;
use larder_fixed::{allocate, concurrent, free, generations, init, kind};
use larder_sys::watch::Kind;
use larder_testkit::beside::offered;
use larder_testkit::mutator::{check, object_of};
use larder_testkit::table::Words;
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{Random, WITHOUT_SEQUENCES, crowd, for_each_seed};
use larder_units::Nanos;

/// Bytes of objects: several classes, some with runs of several blocks, and large objects.
const SIZES: [usize; 6] = [48, 200, 3000, 9000, 40_000, 200_000];
/// Objects at once, of each size.
const OBJECTS: usize = 40;
/// Objects that hold the pointers, and words of each: more than a page.
const HOLDERS: usize = 8;
const WORDS: usize = 600;
/// Objects that make a cycle last.
const CHAIN: u64 = 30_000;

/// What a word holds. Addresses are complemented, so that only the words keep objects.
#[derive(Clone, Copy)]
enum Held {
    Nothing,
    Object {
        address: usize,
        size: usize,
        id: u64,
    },
    /// The address of what was freed.
    Stale {
        address: usize,
    },
}

struct Mutator {
    random: Random,
    holders: Words,
    held: Vec<Held>,
    /// The word of each stale address.
    stale: HashMap<usize, usize>,
    live: [usize; SIZES.len()],
    next: u64,
    left_out: usize,
}

impl Mutator {
    fn new(seed: u64) -> Self {
        let holders = Words::roots(HOLDERS);
        for i in 0..HOLDERS {
            // SAFETY: the holders keep it.
            holders.set(i, unsafe { allocate(kind::NORMAL, WORDS * 8) }.expose_provenance());
        }
        Self {
            random: Random::new(seed),
            holders,
            held: vec![Held::Nothing; HOLDERS * WORDS],
            stale: HashMap::new(),
            live: [0; SIZES.len()],
            next: seed << 32,
            left_out: 0,
        }
    }

    fn word(&self, i: usize) -> *mut usize {
        core::ptr::with_exposed_provenance_mut::<usize>(self.holders.get(i / WORDS)).wrapping_add(i % WORDS)
    }

    #[inline(never)]
    fn step(&mut self) {
        let size = self.random.below(SIZES.len());
        if self.live[size] < OBJECTS {
            return self.make(size);
        }
        let mut at = self.random.below(self.held.len());
        while !matches!(self.held[at], Held::Object { .. }) {
            at = (at + 1) % self.held.len();
        }
        self.free(at);
    }

    /// Makes an object. If a word has its address already, that is its word.
    fn make(&mut self, size: usize) {
        self.next += 1;
        let object = object_of(self.next, SIZES[size]);
        let address = !object.expose_provenance();
        let at = if let Some(at) = self.stale.remove(&address) {
            self.left_out += 1;
            at
        } else {
            let at = loop {
                let at = self.random.below(self.held.len());
                match self.held[at] {
                    Held::Object { .. } => {}
                    Held::Stale { address } => {
                        self.stale.remove(&address);
                        break at;
                    }
                    Held::Nothing => break at,
                }
            };
            // SAFETY: a word of a holder.
            unsafe { self.word(at).write(!address) };
            at
        };
        self.held[at] = Held::Object { address, size, id: self.next };
        self.live[size] += 1;
    }

    /// Frees the object of a word, which keeps its address.
    fn free(&mut self, at: usize) {
        self.check(at);
        let Held::Object { address, size, .. } = self.held[at] else { unreachable!("chosen by the caller") };
        // SAFETY: nobody uses it any more.
        unsafe { free(core::ptr::with_exposed_provenance_mut(!address)) };
        self.held[at] = Held::Stale { address };
        self.stale.insert(address, at);
        self.live[size] -= 1;
    }

    fn check(&self, at: usize) {
        if let Held::Object { address, size, id } = self.held[at] {
            // SAFETY: a word of a holder.
            assert_eq!(unsafe { self.word(at).read() }, !address);
            check(core::ptr::with_exposed_provenance(!address), SIZES[size], id);
        }
    }
}

/// Threads that do so while one cycle follows the other.
fn go_on(name: &str, kind: Kind, threads: usize, environment: &[(&str, &str)], young: usize, births: Births) {
    const CYCLES: u64 = 30;
    if !offered(kind) {
        return;
    }
    for_each_seed(name, environment, |seed| {
        init(&Options::default());
        verifier::watch(Rules { nothing_dangles: false, ..Rules::WITH_FINALIZERS });
        concurrent::set_births(births);
        generations::set_young_cycles(young);
        concurrent::set_pause_goal(Nanos(1));
        assert_eq!(concurrent::turn_on(Some(Way::Watch(kind))), Ok(Way::Watch(kind)));
        let chain = Words::roots(1);
        for i in 0..CHAIN {
            let next = object_of(i, 32).cast::<usize>();
            // SAFETY: a word of a fresh object.
            unsafe { next.write(chain.get(0)) };
            chain.set(0, next.expose_provenance());
        }
        crowd::all(threads, move |i| {
            let mut mutator = Mutator::new(seed * 100 + i as u64);
            while concurrent::completed()[0] < CYCLES {
                (0..50).for_each(|_| mutator.step());
                if !concurrent::is_under_way() {
                    concurrent::ask();
                }
                concurrent::finish_if_ready();
            }
            (0..mutator.held.len()).for_each(|at| mutator.check(at));
            assert!(mutator.left_out > 100, "{} stores were left out", mutator.left_out);
        });
        assert_eq!(generations::completed() > 0, young > 0);
    });
}

#[test]
fn one_thread_uffd() {
    go_on("one_thread_uffd", Kind::Uffd, 1, &[], 0, Births::Late);
}

#[test]
fn four_threads_uffd() {
    go_on("four_threads_uffd", Kind::Uffd, 4, &[], 0, Births::Late);
}

#[test]
fn four_threads_without_sequences_uffd() {
    go_on("four_threads_without_sequences_uffd", Kind::Uffd, 4, &[WITHOUT_SEQUENCES], 0, Births::Late);
}

#[test]
fn four_threads_mprotect() {
    go_on("four_threads_mprotect", Kind::Mprotect, 4, &[], 0, Births::Late);
}

#[test]
fn four_threads_born_unmarked_uffd() {
    go_on("four_threads_born_unmarked_uffd", Kind::Uffd, 4, &[], 0, Births::Unmarked);
}

#[test]
fn four_threads_born_marked_uffd() {
    go_on("four_threads_born_marked_uffd", Kind::Uffd, 4, &[], 0, Births::Marked);
}

#[test]
fn one_thread_young_uffd() {
    go_on("one_thread_young_uffd", Kind::Uffd, 1, &[], 5, Births::Late);
}

#[test]
fn four_threads_young_uffd() {
    go_on("four_threads_young_uffd", Kind::Uffd, 4, &[], 5, Births::Late);
}
