//! Lock elision: what each backend does, both forms, and why the subscription cannot come last.
#![cfg(not(loom))]

use larder_sync::elision::{ATTEMPTS, Abort, Elided, ElidedRw, Mock, Never, Rtm, Statistics};
use larder_sync::mutex::RawMutex;
use larder_sync::phase_fair::RawPhaseFair;
use lock_api::RawRwLock as _;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn mock(failures: u32, with: Abort) -> Mock {
    // SAFETY: the sections of these tests run on one thread.
    unsafe { Mock::failing(failures, with) }
}

#[test]
fn never_takes_the_lock() {
    let lock = Elided::new(RawMutex::new(), Never);
    assert!(lock.run(|| lock.raw().is_locked()));
    assert_eq!(lock.statistics(), Statistics { elided: 0, locked: 1, aborted: 0 });
    assert!(!lock.raw().is_locked());
}

#[test]
fn a_transaction_does_not_take_the_lock() {
    let lock = Elided::new(RawMutex::new(), mock(0, Abort::Conflict));
    assert!(!lock.run(|| lock.raw().is_locked()));
    assert_eq!(lock.statistics(), Statistics { elided: 1, locked: 0, aborted: 0 });
}

#[test]
fn conflicts_are_tried_again_and_then_locked() {
    let lock = Elided::new(RawMutex::new(), mock(ATTEMPTS - 1, Abort::Conflict));
    assert!(!lock.run(|| lock.raw().is_locked()));
    let lock = Elided::new(RawMutex::new(), mock(ATTEMPTS, Abort::Conflict));
    assert!(lock.run(|| lock.raw().is_locked()));
    assert_eq!(lock.statistics(), Statistics { elided: 0, locked: 1, aborted: u64::from(ATTEMPTS) });
    assert!(!lock.run(|| lock.raw().is_locked()), "and the next one tries");
}

#[test]
fn what_is_hopeless_is_not_tried_for_a_while() {
    let lock = Elided::new(RawMutex::new(), mock(1, Abort::Hopeless));
    let runs: Vec<bool> = (0..18).map(|_| lock.run(|| lock.raw().is_locked())).collect();
    assert_eq!(runs.iter().filter(|&&locked| locked).count(), 17);
    assert!(!runs[17], "after sixteen more it tries again");
    assert_eq!(lock.statistics().aborted, 1);
}

#[test]
fn a_held_lock_is_not_elided() {
    let lock = Elided::new(RawMutex::new(), mock(0, Abort::Conflict));
    lock.raw().lock();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| lock.run(|| lock.raw().is_locked()));
        while lock.statistics().aborted == 0 {
            std::thread::yield_now();
        }
        assert_eq!(lock.statistics().elided, 0);
        // SAFETY: locked above.
        unsafe { lock.raw().unlock() };
        assert!(other.join().unwrap(), "it waited and took the lock");
    });
}

#[test]
fn a_panic_under_the_lock_releases_it() {
    let lock = Elided::new(RawMutex::new(), Never);
    assert!(catch_unwind(AssertUnwindSafe(|| lock.run(|| panic!("on purpose")))).is_err());
    assert!(!lock.raw().is_locked());
    let lock = ElidedRw::new(RawPhaseFair::new(), mock(0, Abort::Conflict));
    assert!(catch_unwind(AssertUnwindSafe(|| lock.run(|| panic!("on purpose")))).is_err());
    assert!(!lock.raw().is_locked());
}

#[test]
fn transactions_read_and_plain_sections_write() {
    let lock = ElidedRw::new(RawPhaseFair::new(), mock(0, Abort::Conflict));
    let held = || (lock.raw().is_locked(), lock.raw().is_locked_exclusive());
    assert_eq!(lock.run(held), (true, false));
    let lock = ElidedRw::new(RawPhaseFair::new(), mock(1, Abort::Hopeless));
    assert!(lock.run(|| lock.raw().is_locked_exclusive()));
    assert!(!lock.raw().is_locked());
    assert_eq!(lock.statistics(), Statistics { elided: 0, locked: 1, aborted: 1 });
}

#[test]
fn the_processors_transactions_exclude() {
    let Some(rtm) = Rtm::new() else {
        eprintln!("SKIPPED: this processor has no transactions that commit");
        return;
    };
    struct Shared(Elided<RawMutex, Rtm>, Cell<u64>);
    // SAFETY: the number is touched in sections only.
    unsafe impl Sync for Shared {}
    let shared = &Shared(Elided::new(RawMutex::new(), rtm), Cell::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || (0..10_000).for_each(|_| shared.0.run(|| shared.1.set(shared.1.get() + 1))));
        }
    });
    assert_eq!(shared.1.get(), 40_000);
    assert!(shared.0.statistics().elided > 0);
}

/// The notes' flight recorder: a position, a ring of 16, and the lock's word behind it in memory.
const POSITION: usize = 0;
const RING: usize = 1;
const LOCK: usize = RING + 16;
type Memory = [i64; LOCK + 1];

/// A transaction's view: what it has written hides what is there.
struct View<'a> {
    memory: &'a mut Memory,
    written: Vec<(usize, i64)>,
}

impl View<'_> {
    fn load(&self, at: usize) -> i64 {
        self.written.iter().rev().find(|(place, _)| *place == at).map_or(self.memory[at], |&(_, value)| value)
    }
    fn store(&mut self, at: usize, value: i64) {
        self.written.push((at, value));
    }
    fn commit(self) {
        self.written.into_iter().for_each(|(at, value)| self.memory[at] = value);
    }
}

/// The section: put 0 at the position, and begin anew behind the 16th.
fn post(view: &mut View) {
    let index = view.load(POSITION);
    view.store(POSITION, index + 1);
    view.store(RING + index as usize, 0);
    if view.load(POSITION) == 16 {
        view.store(POSITION, 0);
    }
}

/// A transaction that runs the section, and subscribes to the lock before or after it. Whether it commits.
fn transaction(memory: &mut Memory, lazily: bool) -> bool {
    let mut view = View { memory, written: Vec::new() };
    if !lazily && view.load(LOCK) != 0 {
        return false;
    }
    post(&mut view);
    if lazily && view.load(LOCK) != 0 {
        return false;
    }
    view.commit();
    true
}

/// A thread that holds the lock has made the position 16 and not yet 0 again.
fn in_the_middle() -> Memory {
    let mut memory = [7; LOCK + 1];
    (memory[POSITION], memory[LOCK]) = (16, 1);
    memory
}

#[test]
fn a_lazy_subscription_commits_beside_the_holder_and_frees_its_lock() {
    let mut memory = in_the_middle();
    assert!(transaction(&mut memory, true), "it has written its own 0 over the lock's word, and read that");
    assert_eq!(memory[LOCK], 0, "the lock is free, while its holder is still inside");
    assert_eq!(memory[POSITION], 17, "and the position is one that no section ever leaves");
}

#[test]
fn an_early_subscription_gives_up() {
    let mut memory = in_the_middle();
    assert!(!transaction(&mut memory, false));
    assert_eq!(memory, in_the_middle(), "it leaves no trace");
    memory[POSITION] = 15;
    memory[LOCK] = 0;
    assert!(transaction(&mut memory, false) && memory[POSITION] == 0, "beside nobody it commits");
}
