//! A mutator that hides the only pointer to an object from a cycle that marks beside it, in every way that a program has.
//!
//! One thread moves the only pointer to each of many objects from place to place, and looks at the object on the way. The
//! verifier looks at the end of every cycle as well, but it sees only what is reachable then; the pattern of an object shows
//! whether its memory was ever given to somebody else.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use larder_fixed::barrier::{self, Algorithm};
use larder_fixed::concurrent::{Births, Way as How};
use larder_fixed::options::Options;
use larder_fixed::{allocate, concurrent, cycle, init, kind};
use larder_sys::watch::Kind;
use larder_testkit::mutator::{check, object_of};
use larder_testkit::verifier::{self, Rules};
use larder_testkit::{Random, crowd, in_child};
use larder_threads::blocking;

/// Objects that are hidden, and bytes of each.
const OBJECTS: usize = 64;
const BYTES: usize = 200;
/// Words in a place: places are far apart, so that each is on pages of its own.
const WORDS: usize = 600;
/// Objects of `WORDS` words among which pointers move.
const PLACES: usize = 24;

/// A table of the places, complemented: only `ANCHOR` refers to them.
struct Mutator {
    random: Random,
    anchor: *mut *mut usize,
    /// Where the only pointer of each object is: place and word.
    at: [(usize, usize); OBJECTS],
    used: [[bool; WORDS]; PLACES],
    pipe: [i32; 2],
    /// How it stores pointers.
    store: unsafe fn(*mut usize, usize),
}

impl Mutator {
    fn new(seed: u64, how: How) -> Self {
        let store = if matches!(how, How::Barrier(_)) { barrier::store } else { plain_store };
        // SAFETY: the anchor is kept by this struct, which lies on the stack; the places by the anchor.
        unsafe {
            let anchor = allocate(kind::NORMAL, PLACES * 8).cast::<*mut usize>();
            for place in 0..PLACES {
                store(anchor.add(place).cast(), allocate(kind::NORMAL, WORDS * 8).expose_provenance());
            }
            let mut pipe = [0; 2];
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let mut m = Self {
                random: Random::new(seed),
                anchor,
                at: [(0, 0); OBJECTS],
                used: [[false; WORDS]; PLACES],
                pipe,
                store,
            };
            for object in 0..OBJECTS {
                let to = m.free_word();
                m.at[object] = to;
                store(m.word(to), object_of(object as u64, BYTES).expose_provenance());
            }
            m
        }
    }

    fn word(&self, (place, word): (usize, usize)) -> *mut usize {
        // SAFETY: the anchor has all places.
        unsafe { self.anchor.add(place).read_volatile().add(word) }
    }

    fn free_word(&mut self) -> (usize, usize) {
        loop {
            let (place, word) = (self.random.below(PLACES), self.random.below(WORDS));
            if !self.used[place][word] {
                self.used[place][word] = true;
                return (place, word);
            }
        }
    }

    /// Moves the pointer of one object to another word, by one of many ways.
    #[inline(never)]
    fn step(&mut self, ways: &[Way]) {
        let object = self.random.below(OBJECTS);
        let from = self.at[object];
        let to = self.free_word();
        let way = ways[self.random.below(ways.len())];
        // SAFETY: both are words of places; whatever the way, the word is in one of the two, or a root, at any time.
        unsafe {
            let (source, target) = (self.word(from), self.word(to));
            check(ptr::with_exposed_provenance(source.read_volatile()), BYTES, object as u64);
            match way {
                Way::Register => {
                    let value = source.read_volatile();
                    (self.store)(source, 0);
                    self.dawdle();
                    (self.store)(target, value);
                    core::hint::black_box(value);
                }
                Way::OtherStack => {
                    HANDED.store(source.read_volatile(), Ordering::Release);
                    (self.store)(source, 0);
                    crowd::wait_until(|| HANDED.load(Ordering::Acquire) == 0);
                    self.dawdle();
                    BACK.store(true, Ordering::Release);
                    crowd::wait_until(|| HANDED.load(Ordering::Acquire) != 0);
                    (self.store)(target, HANDED.load(Ordering::Acquire));
                    BACK.store(false, Ordering::Release);
                    HANDED.store(0, Ordering::Release);
                    crowd::wait_until(|| TAKEN.load(Ordering::Acquire) == 0);
                }
                Way::SleepersStack => {
                    let slot = ptr::with_exposed_provenance_mut::<usize>(SLOT.load(Ordering::Acquire));
                    slot.write_volatile(source.read_volatile());
                    (self.store)(source, 0);
                    self.dawdle();
                    (self.store)(target, slot.read_volatile());
                    slot.write_volatile(0);
                }
                Way::Move => {
                    ptr::copy(source, target, 1);
                    barrier::written(target.addr());
                    self.dawdle();
                    (self.store)(source, 0);
                }
                Way::SystemCall => {
                    let kept = source.read_volatile();
                    assert_eq!(libc::write(self.pipe[1], source.cast(), 8), 8);
                    (self.store)(source, 0);
                    self.dawdle();
                    assert_eq!(libc::read(self.pipe[0], target.cast(), 8), 8);
                    barrier::written(target.addr());
                    core::hint::black_box(kept);
                }
                Way::NewObject => {
                    // Into an object that is born in the cycle, and from there.
                    let fresh = allocate(kind::NORMAL, 64).cast::<usize>();
                    (self.store)(fresh, source.read_volatile());
                    (self.store)(source, 0);
                    self.dawdle();
                    (self.store)(target, fresh.read_volatile());
                    core::hint::black_box(fresh);
                }
                Way::Renew => {
                    // Another object in its place, which nothing else has ever referred to.
                    (self.store)(target, object_of(object as u64, BYTES).expose_provenance());
                    (self.store)(source, 0);
                }
                Way::Exchange => {
                    let cell = &*target.cast::<AtomicUsize>();
                    cell.swap((*source.cast::<AtomicUsize>()).swap(0, Ordering::AcqRel), Ordering::AcqRel);
                }
            }
        }
        self.used[from.0][from.1] = false;
        self.at[object] = to;
    }

    /// Makes garbage, so that cycles begin and end.
    #[inline(never)]
    fn dawdle(&mut self) {
        for _ in 0..self.random.below(12) {
            core::hint::black_box(object_of(1 << 40, 16 + self.random.below(300)));
        }
    }

    fn check_all(&self) {
        for (object, &at) in self.at.iter().enumerate() {
            // SAFETY: a word of a place.
            check(ptr::with_exposed_provenance(unsafe { self.word(at).read_volatile() }), BYTES, object as u64);
        }
    }
}

#[derive(Clone, Copy)]
enum Way {
    Register,
    OtherStack,
    /// Written into the stack of a thread that sleeps, and does not know of it.
    SleepersStack,
    Move,
    SystemCall,
    NewObject,
    Renew,
    Exchange,
}

const ALL: [Way; 8] = [
    Way::Register,
    Way::OtherStack,
    Way::SleepersStack,
    Way::Move,
    Way::SystemCall,
    Way::NewObject,
    Way::Renew,
    Way::Exchange,
];
/// Without system calls that write into watched memory: `mprotect` makes them fail.
const WITHOUT_CALLS: [Way; 7] =
    [Way::Register, Way::OtherStack, Way::SleepersStack, Way::Move, Way::NewObject, Way::Renew, Way::Exchange];

const IN_THE_SLEEPERS_STACK: [Way; 4] = [Way::SleepersStack, Way::SleepersStack, Way::SleepersStack, Way::NewObject];

/// A store without a barrier.
unsafe fn plain_store(place: *mut usize, value: usize) {
    // SAFETY: the caller's word.
    unsafe { place.write_volatile(value) };
}

/// Without what the barrier does not see.
const BY_BARRIER: [Way; 6] = [Way::Register, Way::OtherStack, Way::Move, Way::SystemCall, Way::NewObject, Way::Renew];

/// A pointer that is handed to the other thread, or back. A static is a root, but only for the moment of the hand-over.
static HANDED: AtomicUsize = AtomicUsize::new(0);
/// The other thread is to give it back.
static BACK: AtomicBool = AtomicBool::new(false);
/// The other thread has one, or has not noticed yet that it is gone.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static END: AtomicBool = AtomicBool::new(false);

/// Keeps what it is handed on its stack only.
fn keeper() {
    let mut kept = 0usize;
    while !END.load(Ordering::Acquire) {
        let handed = HANDED.load(Ordering::Acquire);
        if handed != 0 && !BACK.load(Ordering::Acquire) {
            // SAFETY: a local; volatile, so that it is really on the stack.
            unsafe { ptr::from_mut(&mut kept).write_volatile(handed) };
            TAKEN.store(1, Ordering::Release);
            HANDED.store(0, Ordering::Release);
            crowd::wait_until(|| BACK.load(Ordering::Acquire));
            // SAFETY: as above.
            HANDED.store(unsafe { ptr::from_ref(&kept).read_volatile() }, Ordering::Release);
            crowd::wait_until(|| HANDED.load(Ordering::Acquire) == 0);
            kept = 0;
            TAKEN.store(0, Ordering::Release);
        }
        larder_sys::thread::yield_now();
    }
}

/// The word on the sleeper's stack that others write.
static SLOT: AtomicUsize = AtomicUsize::new(0);

/// Sleeps in a blocking region until the end; wakes now and then and goes on sleeping.
fn sleeper() {
    let mut slot = 0usize;
    sleep_with(&raw mut slot);
    // SAFETY: a local, which the mutator does not write any more.
    core::hint::black_box(unsafe { (&raw const slot).read_volatile() });
}

/// Sleeps with a word of the calling thread's stack as the slot.
fn sleep_with(slot: *mut usize) {
    SLOT.store(slot.expose_provenance(), Ordering::Release);
    while !END.load(Ordering::Acquire) {
        blocking::region(|| larder_sys::thread::sleep(larder_units::Nanos(300_000)));
    }
}

/// As [`sleeper`], with the word in the middle of a long stack, to which nobody else writes.
fn deep_sleeper() {
    #[inline(never)]
    fn below(frame: &mut [usize; FRAME]) {
        sleep_with(&raw mut frame[FRAME / 2]);
    }
    /// 96 KiB, of the 256 that a thread of the crowd has.
    const FRAME: usize = 12 << 10;
    let mut frame = [0; FRAME];
    below(core::hint::black_box(&mut frame));
    core::hint::black_box(&frame);
}

fn hide(how: How, ways: &'static [Way], steps: usize) {
    hide_beside(sleeper, how, ways, steps, || true);
}

/// `until`: what must have happened besides, before the mutator ends.
fn hide_beside(sleeper: fn(), how: How, ways: &'static [Way], steps: usize, until: fn() -> bool) {
    init(&Options { collect_every: Some(3), ..Options::default() });
    verifier::watch(Rules::WITH_FINALIZERS);
    assert_eq!(concurrent::turn_on(Some(how)), Ok(how));
    let keeper = crowd::spawn(keeper);
    let sleeper = crowd::spawn(sleeper);
    crowd::wait_until(|| SLOT.load(Ordering::Acquire) != 0);
    let mutator = crowd::spawn(move || {
        let mut mutator = Mutator::new(5, how);
        let mut done = 0;
        while done < steps || concurrent::completed()[0] <= 10 || !until() {
            mutator.step(ways);
            done += 1;
        }
        mutator.check_all();
        assert!(cycle::collect());
        mutator.check_all();
    });
    mutator.join();
    END.store(true, Ordering::Release);
    keeper.join();
    sleeper.join();
    let [completed, _] = concurrent::completed();
    eprintln!("{completed} of {} cycles marked beside the program", cycle::number());
}

#[test]
fn nothing_hides_from_uffd() {
    if Kind::Uffd.is_offered() {
        in_child("nothing_hides_from_uffd", &[], || hide(How::Watch(Kind::Uffd), &ALL, 4000));
    } else {
        eprintln!("SKIPPED: this machine does not offer uffd");
    }
}

#[test]
fn nothing_hides_from_uffd_with_three_markers_beside() {
    if Kind::Uffd.is_offered() {
        in_child("nothing_hides_from_uffd_with_three_markers_beside", &[], || {
            concurrent::set_markers(3);
            hide(How::Watch(Kind::Uffd), &ALL, 4000);
        });
    }
}

/// Most steps use the stack that final stops do not read as long as nobody has written there.
#[test]
fn nothing_hides_in_a_stack_that_is_watched() {
    if Kind::Uffd.is_offered() {
        in_child("nothing_hides_in_a_stack_that_is_watched", &[], || {
            // Until so much of stacks was left out, which takes cycles in which the sleeper came to its place.
            let left_out = || concurrent::unwritten_stacks() > 256 << 10;
            hide_beside(deep_sleeper, How::Watch(Kind::Uffd), &IN_THE_SLEEPERS_STACK, 4000, left_out);
        });
    } else {
        eprintln!("SKIPPED: this machine does not offer uffd");
    }
}

#[test]
fn nothing_hides_from_mprotect() {
    in_child("nothing_hides_from_mprotect", &[], || hide(How::Watch(Kind::Mprotect), &WITHOUT_CALLS, 3000));
}

/// As the thesis has it: what is made meanwhile is born unmarked, and everything that was written is left to the final stop.
#[test]
fn nothing_hides_from_mprotect_as_in_the_thesis() {
    in_child("nothing_hides_from_mprotect_as_in_the_thesis", &[("LARDER_ABLATE", "clean")], || {
        concurrent::set_births(Births::Unmarked);
        hide(How::Watch(Kind::Mprotect), &WITHOUT_CALLS, 3000);
    });
}

/// No stack is looked at in the first stop.
#[test]
fn nothing_hides_while_stacks_are_looked_at_one_at_a_time() {
    if Kind::Uffd.is_offered() {
        in_child("nothing_hides_while_stacks_are_looked_at_one_at_a_time", &[], || {
            concurrent::set_pause_goal(larder_units::Nanos(1));
            hide(How::Watch(Kind::Uffd), &ALL, 4000);
        });
    }
}

#[test]
fn nothing_hides_from_soft_dirty() {
    if Kind::SoftDirty.is_offered() {
        in_child("nothing_hides_from_soft_dirty", &[], || hide(How::Watch(Kind::SoftDirty), &ALL, 4000));
    } else {
        eprintln!("SKIPPED: this machine does not offer soft-dirty");
    }
}

#[test]
fn nothing_hides_from_a_barrier_that_updates() {
    in_child("nothing_hides_from_a_barrier_that_updates", &[], || {
        hide(How::Barrier(Algorithm::IncrementalUpdate), &BY_BARRIER, 4000);
    });
}

#[test]
fn nothing_hides_from_a_barrier_that_keeps_the_snapshot() {
    in_child("nothing_hides_from_a_barrier_that_keeps_the_snapshot", &[], || {
        hide(How::Barrier(Algorithm::Snapshot), &BY_BARRIER, 4000);
    });
}

#[test]
fn nothing_hides_from_a_snapshot_with_three_markers_beside() {
    in_child("nothing_hides_from_a_snapshot_with_three_markers_beside", &[], || {
        concurrent::set_markers(3);
        hide(How::Barrier(Algorithm::Snapshot), &BY_BARRIER, 4000);
    });
}

/// A fork at every point of a cycle: the child goes on with the heap, collects, and finds everything; so does the parent.
fn forks(how: How) {
    init(&Options { collect_every: Some(7), ..Options::default() });
    verifier::watch(Rules::WITH_FINALIZERS);
    assert_eq!(concurrent::turn_on(Some(how)), Ok(how));
    let mut under_way = 0;
    let mut mutator = Mutator::new(9, how);
    for round in 0..60 {
        for _ in 0..20 {
            mutator.step(&[Way::Register, Way::Move, Way::NewObject, Way::Exchange]);
        }
        if round % 2 == 0 {
            // What has begun stays until this thread allocates, however long its marker waits for a CPU.
            crowd::wait_until(|| {
                concurrent::ask();
                concurrent::is_under_way()
            });
        }
        under_way += usize::from(concurrent::is_under_way());
        // SAFETY: the child uses the heap, whose handlers the C library calls, and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                for _ in 0..60 {
                    mutator.step(&[Way::Register, Way::Move, Way::NewObject, Way::Exchange]);
                }
                mutator.check_all();
                assert!(cycle::collect());
                mutator.check_all();
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert_eq!(status, 0, "the child of round {round}");
        }
        mutator.check_all();
    }
    assert!(under_way >= 30, "{under_way} forks met a cycle");
}

#[test]
fn a_fork_in_the_middle_of_a_cycle_harms_neither_uffd() {
    if Kind::Uffd.is_offered() {
        in_child("a_fork_in_the_middle_of_a_cycle_harms_neither_uffd", &[], || forks(How::Watch(Kind::Uffd)));
    }
}

#[test]
fn a_fork_in_the_middle_of_a_cycle_harms_neither_with_three_markers_beside() {
    if Kind::Uffd.is_offered() {
        in_child("a_fork_in_the_middle_of_a_cycle_harms_neither_with_three_markers_beside", &[], || {
            concurrent::set_markers(3);
            forks(How::Watch(Kind::Uffd));
        });
    }
}

#[test]
fn a_fork_in_the_middle_of_a_cycle_harms_neither_mprotect() {
    in_child("a_fork_in_the_middle_of_a_cycle_harms_neither_mprotect", &[], || forks(How::Watch(Kind::Mprotect)));
}
