//! A cycle beside a program under shuttle's schedulers: its start, tracing, second look, cleaning and last stop, against threads that move pointers,
//! make objects, and collect, all at once.
//!
//! The phases are the shipped ones. The heap is a small one that follows the same rules: objects with one pointer each, on pages of their own that are
//! watched; threads whose roots are looked at in a stop, or one at a time; objects that are born unmarked, and marked from the second look on. At the end of each
//! cycle everything that can be reached is marked, and a thread that follows a pointer never comes to an object that was freed.
#![cfg(all(loom, shuttle))]

mod schedules;

use std::sync::Arc;

use larder_sync::lock::Lock;
use larder_sync::loom::cell::UnsafeCell;
use larder_sync::loom::sync::Mutex;
use larder_sync::loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use larder_sync::loom::thread;
use larder_sync::phases::{Claim, Phase, Phases};
use larder_sync::step;
use schedules::run;

const OBJECTS: usize = 12;
const ROOTS: usize = 3;
/// No object.
const NULL: usize = usize::MAX;

/// Marks: of free memory, of objects, and of those that this cycle has found.
const FREE: usize = 0;
const UNMARKED: usize = 1;
const MARKED: usize = 2;

/// A page, and the pointer of the object there. Who writes notes it and writes, with nothing between, as the kernel does.
struct Page {
    written: bool,
    pointer: usize,
}

struct Object {
    mark: AtomicUsize,
    page: Mutex<Page>,
}

/// The rules of a cycle that models leave out.
const SCANS_WRITTEN_PAGES: &str = "cycle: scans written pages";
const ASKS_BEFORE_IT_SCANS: &str = "cycle: asks for pages before it scans them";
const LOOKS_AT_ROOTS_IN_THE_LAST_STOP: &str = "cycle: looks at roots in the last stop";

struct Heap {
    phases: Phases,
    /// One cycle at a time.
    cycles: Lock,
    /// A thread stands still while somebody else has its lock.
    threads: Vec<Lock>,
    roots: Vec<[AtomicUsize; ROOTS]>,
    objects: Vec<Object>,
    marking: AtomicBool,
    born_marked: AtomicBool,
    /// There is a second look, from which on objects are born marked.
    looks_again: bool,
    /// What is found and not scanned yet. The marker thread's, or the collector's: whose the phase says it is.
    found: UnsafeCell<Vec<usize>>,
    /// Cycles that marked beside the program, in all schedules.
    completed: Arc<std::sync::atomic::AtomicUsize>,
    over: AtomicBool,
}

// SAFETY: the cell finds two who have it at once.
unsafe impl Sync for Heap {}
// SAFETY: as above.
unsafe impl Send for Heap {}

impl Heap {
    fn new(threads: usize, looks_again: bool, completed: Arc<std::sync::atomic::AtomicUsize>) -> Self {
        Self {
            phases: Phases::new(),
            cycles: Lock::new(),
            threads: (0..threads).map(|_| Lock::new()).collect(),
            roots: (0..threads).map(|_| std::array::from_fn(|_| AtomicUsize::new(NULL))).collect(),
            objects: (0..OBJECTS)
                .map(|_| Object {
                    mark: AtomicUsize::new(FREE),
                    page: Mutex::new(Page { written: false, pointer: NULL }),
                })
                .collect(),
            marking: AtomicBool::new(false),
            born_marked: AtomicBool::new(false),
            looks_again,
            found: UnsafeCell::new(Vec::new()),
            completed,
            over: AtomicBool::new(false),
        }
    }

    fn mark(&self, object: usize, found: &mut Vec<usize>) {
        if object != NULL && self.objects[object].mark.load(Ordering::Relaxed) == UNMARKED {
            self.objects[object].mark.store(MARKED, Ordering::Relaxed);
            found.push(object);
        }
    }

    fn look_at(&self, thread: usize, found: &mut Vec<usize>) {
        self.roots[thread].iter().for_each(|root| self.mark(root.load(Ordering::Relaxed), found));
    }

    fn stop(&self) {
        self.threads.iter().for_each(Lock::lock_raw);
    }

    fn resume(&self) {
        // SAFETY: stopped by the caller.
        self.threads.iter().for_each(|thread| unsafe { thread.unlock_raw() });
    }

    /// What is found, for whoever has the cycle.
    fn with_found<R>(&self, f: impl FnOnce(&mut Vec<usize>) -> R) -> R {
        // SAFETY: the cell finds two who have it at once.
        self.found.with_mut(|found| f(unsafe { &mut *found }))
    }

    fn drain(&self, may_stop: bool) {
        self.with_found(|found| {
            while !(may_stop && self.phases.hurries())
                && let Some(object) = found.pop()
            {
                let pointer = self.objects[object].page.lock().unwrap().pointer;
                self.mark(pointer, found);
            }
        });
    }

    /// Scans what is marked on pages that were written since they were asked for the last time.
    fn scan_written(&self) {
        if !step::kept(SCANS_WRITTEN_PAGES) {
            return;
        }
        let asks_first = step::kept(ASKS_BEFORE_IT_SCANS);
        let is_marked = |object: &Object| object.mark.load(Ordering::Relaxed) == MARKED;
        let is_written = |object: &Object| {
            let mut page = object.page.lock().unwrap();
            if asks_first { std::mem::take(&mut page.written) } else { page.written }
        };
        let again = |i: &usize| is_written(&self.objects[*i]) && is_marked(&self.objects[*i]);
        let written: Vec<usize> = (0..OBJECTS).filter(again).collect();
        self.with_found(|found| found.extend(&written));
        if !asks_first {
            self.drain(true);
            written.iter().for_each(|i| self.objects[*i].page.lock().unwrap().written = false);
        }
    }

    /// The marker thread.
    fn marker(&self) {
        let mut cleans = 0;
        loop {
            let seen = self.phases.rung();
            if self.phases.now() == Phase::Asked {
                cleans = 0;
                self.begin();
                if self.phases.now() != Phase::Marking {
                    continue;
                }
            }
            if self.phases.now() == Phase::Marking {
                self.trace();
            }
            if self.over.load(Ordering::Acquire) {
                return;
            }
            if self.phases.now() != Phase::Ready || cleans == 2 {
                self.phases.sleep(seen);
            } else if !self.phases.sleep_for(seen, 1) && self.phases.take_back(Phase::Ready) {
                cleans += 1;
                self.clean();
                self.phases.ready();
            }
        }
    }

    fn begin(&self) {
        self.phases.prepare();
        // Watched from here on.
        self.objects.iter().for_each(|object| object.page.lock().unwrap().written = false);
        self.cycles.lock_raw();
        let begins = self.phases.now() == Phase::Asked;
        if begins {
            self.stop();
            self.born_marked.store(false, Ordering::Relaxed);
            self.marking.store(true, Ordering::Relaxed);
            self.with_found(|found| self.look_at(0, found));
            self.resume();
            self.phases.begin();
        }
        // SAFETY: taken above.
        unsafe { self.cycles.unlock_raw() };
        if begins {
            self.look_beside();
        }
    }

    fn look_beside(&self) {
        for (i, thread) in self.threads.iter().enumerate().skip(1) {
            thread.lock_raw();
            self.with_found(|found| self.look_at(i, found));
            // SAFETY: taken above.
            unsafe { thread.unlock_raw() };
        }
    }

    fn trace(&self) {
        self.drain(true);
        if self.looks_again && !self.phases.hurries() {
            self.phases.offer();
            self.cycles.lock_raw();
            let is_ours = self.phases.take_back(Phase::Looking);
            if is_ours {
                self.stop();
                self.born_marked.store(true, Ordering::Relaxed);
                self.with_found(|found| self.look_at(0, found));
                self.resume();
            }
            // SAFETY: taken above.
            unsafe { self.cycles.unlock_raw() };
            if !is_ours {
                return;
            }
            self.look_beside();
            self.drain(true);
        }
        self.clean();
        self.phases.ready();
    }

    fn clean(&self) {
        if !self.phases.hurries() {
            self.scan_written();
            self.drain(true);
        }
    }

    /// Finishes a cycle that is ready; `explicitly`, whatever there is, and has a whole one where there is none.
    fn collect(&self, explicitly: bool) {
        loop {
            self.cycles.lock_raw();
            let claim =
                if explicitly || self.phases.now() == Phase::Ready { self.phases.claim() } else { Claim::Nothing };
            match claim {
                Claim::Claimed => self.in_the_last_stop(true),
                Claim::Nothing | Claim::NotBegun if explicitly => self.in_the_last_stop(false),
                _ => {}
            }
            // SAFETY: taken above.
            unsafe { self.cycles.unlock_raw() };
            if claim != Claim::Marking {
                return;
            }
            while let Some(seen) = self.phases.hurry() {
                self.phases.wait_until_marked(seen);
            }
        }
    }

    fn in_the_last_stop(&self, finishes: bool) {
        self.stop();
        if finishes {
            self.scan_written();
        }
        if !finishes || step::kept(LOOKS_AT_ROOTS_IN_THE_LAST_STOP) {
            self.with_found(|found| (0..self.threads.len()).for_each(|thread| self.look_at(thread, found)));
        }
        self.drain(false);
        self.verify();
        for object in &self.objects {
            let is_marked = object.mark.load(Ordering::Relaxed) == MARKED;
            object.mark.store(if is_marked { UNMARKED } else { FREE }, Ordering::Relaxed);
        }
        if finishes {
            self.completed.fetch_add(1, Ordering::Relaxed);
            self.marking.store(false, Ordering::Relaxed);
            self.phases.finished();
        }
        self.resume();
        self.phases.ring();
    }

    /// Everything that can be reached is marked.
    fn verify(&self) {
        let mut seen = [false; OBJECTS];
        let mut left: Vec<usize> = self.roots.iter().flatten().map(|root| root.load(Ordering::Relaxed)).collect();
        while let Some(object) = left.pop() {
            if object != NULL && !std::mem::replace(&mut seen[object], true) {
                assert_eq!(self.objects[object].mark.load(Ordering::Relaxed), MARKED, "an object is lost");
                left.push(self.objects[object].page.lock().unwrap().pointer);
            }
        }
    }

    /// One step of a thread of the program, which is not stopped meanwhile.
    fn step(&self, me: usize, random: &mut u64) {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let [a, b] = [*random >> 8, *random >> 16].map(|bits| &self.roots[me][bits as usize % ROOTS]);
        self.threads[me].lock_raw();
        let object = a.load(Ordering::Relaxed);
        match *random % 8 {
            _ if object == NULL => a.store(self.make(), Ordering::Relaxed),
            0 => a.store(self.make(), Ordering::Relaxed),
            1 => {
                let pointer = self.objects[object].page.lock().unwrap().pointer;
                assert!(
                    pointer == NULL || self.objects[pointer].mark.load(Ordering::Relaxed) != FREE,
                    "freed too early"
                );
                b.store(pointer, Ordering::Relaxed);
            }
            2 if b.load(Ordering::Relaxed) != NULL => {
                // The only pointer, from one object into another.
                let pointer = self.objects[object].page.lock().unwrap().pointer;
                self.write(b.load(Ordering::Relaxed), pointer);
                self.write(object, NULL);
            }
            3 => self.write(object, b.load(Ordering::Relaxed)),
            4 | 5 => {
                // The only pointer, from a root into an object.
                self.write(object, b.swap(NULL, Ordering::Relaxed));
            }
            6 => self.write(object, NULL),
            _ => a.store(NULL, Ordering::Relaxed),
        }
        // SAFETY: taken above.
        unsafe { self.threads[me].unlock_raw() };
    }

    fn write(&self, object: usize, pointer: usize) {
        *self.objects[object].page.lock().unwrap() = Page { written: true, pointer };
    }

    fn make(&self) -> usize {
        let is_marked = self.marking.load(Ordering::Relaxed) && self.born_marked.load(Ordering::Relaxed);
        let mark = if is_marked { MARKED } else { UNMARKED };
        let is_free =
            |object: &Object| object.mark.compare_exchange(FREE, mark, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let Some(new) = self.objects.iter().position(is_free) else { return NULL };
        self.write(new, NULL);
        new
    }
}

/// Threads that do so many steps each, while cycles are asked for all the time; one in so many steps collects, whatever is under way.
fn program(threads: usize, steps: usize, collects: usize, looks_again: bool) {
    let all_completed = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let completed = all_completed.clone();
    run(move || {
        let heap = Arc::new(Heap::new(threads, looks_again, completed.clone()));
        let marker = thread::spawn({
            let heap = heap.clone();
            move || heap.marker()
        });
        let running: Vec<_> = (0..threads)
            .map(|me| {
                let heap = heap.clone();
                thread::spawn(move || {
                    let mut random = 0x9E37_79B9_7F4A_7C15 ^ (me as u64 + 1) << 20;
                    for i in 0..steps {
                        heap.step(me, &mut random);
                        if heap.phases.ask() {
                            heap.phases.ring();
                        }
                        if heap.phases.now() == Phase::Ready {
                            heap.collect(false);
                        }
                        if i % collects == collects - 1 {
                            heap.collect(true);
                        }
                    }
                })
            })
            .collect();
        running.into_iter().for_each(|thread| thread.join().unwrap());
        // Whatever is under way ends.
        heap.collect(true);
        heap.over.store(true, Ordering::Release);
        heap.phases.ring();
        marker.join().unwrap();
        assert_eq!(heap.phases.now(), Phase::Idle);
    });
    let completed = all_completed.load(Ordering::Relaxed);
    assert!(completed > 100, "{completed} cycles marked beside the program");
}

#[test]
fn two_threads() {
    program(2, 40, usize::MAX, true);
}

#[test]
fn five_threads() {
    program(5, 12, usize::MAX, true);
}

#[test]
fn three_threads_of_which_one_collects() {
    program(3, 24, 9, true);
}

#[test]
fn three_threads_whose_objects_are_born_unmarked() {
    program(3, 24, 9, false);
}

#[test]
#[should_panic(expected = "an object is lost")]
fn pages_that_nobody_scans_again_are_found() {
    step::without(SCANS_WRITTEN_PAGES, || program(2, 40, usize::MAX, true));
}

#[test]
#[should_panic(expected = "an object is lost")]
fn roots_that_nobody_looks_at_again_are_found() {
    step::without(LOOKS_AT_ROOTS_IN_THE_LAST_STOP, || program(2, 40, usize::MAX, true));
}

#[test]
#[should_panic(expected = "an object is lost")]
fn pages_that_are_scanned_before_they_are_asked_for_are_found() {
    step::without(ASKS_BEFORE_IT_SCANS, || program(2, 60, usize::MAX, false));
}

#[test]
#[should_panic]
fn a_cycle_that_is_taken_back_from_who_has_it_is_found() {
    step::without("phases: taken back if it is still there", || program(3, 24, 9, true));
}
