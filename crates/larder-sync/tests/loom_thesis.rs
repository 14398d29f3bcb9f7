//! Models of the thesis's own work list and of the shared counter of idle markers: every entry is taken once, the end is not
//! declared too early, and every run ends.
#![cfg(loom)]

mod model;

use larder_sync::termination::Counted;
use larder_sync::worklist::Watermark;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize as Uncounted;
use std::sync::atomic::Ordering::Relaxed;

/// A stack of small numbers with a public part. loom reports an entry that two threads touch at once.
struct Stack {
    entries: Vec<UnsafeCell<usize>>,
    ends: Watermark,
}

// SAFETY: the watermark says who may touch which entry, which is what the model checks.
unsafe impl Sync for Stack {}
// SAFETY: numbers.
unsafe impl Send for Stack {}

impl Stack {
    fn new(room: usize) -> Self {
        Self { entries: (0..room).map(|_| UnsafeCell::new(0)).collect(), ends: Watermark::new() }
    }

    fn read(&self, i: usize) -> usize {
        // SAFETY: the caller has the entry.
        self.entries[i].with(|p| unsafe { *p })
    }

    fn write(&self, i: usize, value: usize) {
        // SAFETY: the caller has the entry.
        self.entries[i].with_mut(|p| unsafe { *p = value });
    }
}

/// What the owner keeps to itself.
struct Owner<'a> {
    stack: &'a Stack,
    bottom: usize,
    top: usize,
}

impl Owner<'_> {
    fn push(&mut self, value: usize) {
        self.stack.write(self.top, value);
        self.top += 1;
    }

    /// Moves the watermark; false where the stack is empty altogether.
    fn centre(&mut self) -> bool {
        // SAFETY: this thread is the owner.
        match unsafe { self.stack.ends.centre(self.top) } {
            Some(bottom) => self.bottom = bottom,
            None => (self.bottom, self.top) = (0, 0),
        }
        self.top > 0
    }

    fn pop(&mut self) -> Option<usize> {
        if self.top == self.bottom && !self.centre() {
            return None;
        }
        self.top -= 1;
        Some(self.stack.read(self.top))
    }
}

/// Which numbers were taken. The books are `std`'s, so that keeping them orders nothing in the model.
#[derive(Default)]
struct Books(Uncounted);

impl Books {
    fn enter(&self, number: usize) {
        assert_eq!(self.0.fetch_or(1 << number, Relaxed) & 1 << number, 0, "an entry was taken twice");
    }
}

/// An owner that pushes, shares, and takes everything back, and a thief.
#[test]
fn every_entry_of_a_shared_stack_is_taken_once() {
    model::explore(3, || {
        let stack = Arc::new(Stack::new(4));
        let books = Arc::new(Books::default());
        let thief = {
            let (stack, books) = (stack.clone(), books.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    if let Some(number) = stack.ends.steal(|i| stack.read(i)) {
                        books.enter(number);
                    }
                }
            })
        };
        let mut owner = Owner { stack: &stack, bottom: 0, top: 0 };
        for number in 0..3 {
            owner.push(number);
        }
        owner.centre();
        while let Some(number) = owner.pop() {
            books.enter(number);
        }
        // What is pushed anew lies where stolen entries lay.
        owner.push(3);
        owner.centre();
        thief.join().unwrap();
        while let Some(number) = owner.pop() {
            books.enter(number);
        }
        assert_eq!(books.0.load(Relaxed), 0b1111);
    });
}

/// Markers on stacks with watermarks that agree by the counter, or by `begin` with one marker too few: the mutant.
fn round(preemptions: usize, counted: usize) {
    model::explore(preemptions, move || {
        let world = Arc::new((Counted::new(), [Stack::new(8), Stack::new(8)], Uncounted::new(0)));
        world.0.begin(counted);
        let mark = |world: &(Counted, [Stack; 2], Uncounted), me: usize, roots: usize| {
            let (counted, stacks, done) = (&world.0, &world.1, &world.2);
            let all_empty = || stacks.iter().all(|stack| stack.ends.is_empty());
            let mut owner = Owner { stack: &stacks[me], bottom: 0, top: 0 };
            (0..roots).for_each(|_| owner.push(0));
            loop {
                if owner.centre() && !owner.stack.ends.is_empty() {
                    counted.announce_work(1);
                }
                while owner.pop().is_some() {
                    done.fetch_add(1, Relaxed);
                }
                counted.become_idle();
                loop {
                    if counted.detect(all_empty) {
                        assert_eq!(done.load(Relaxed), 2, "the end came too early");
                        return;
                    }
                    if all_empty() {
                        counted.sleep(all_empty);
                        continue;
                    }
                    counted.become_busy();
                    let other = &stacks[1 - me];
                    if let Some(number) = other.ends.steal(|i| other.read(i)) {
                        owner.push(number);
                        break;
                    }
                    counted.become_idle();
                }
            }
        };
        let other = {
            let world = world.clone();
            thread::spawn(move || mark(&world, 1, 0))
        };
        mark(&world, 0, 2);
        other.join().unwrap();
    });
}

#[test]
fn markers_that_count_finish_together() {
    round(2, 2);
}

#[test]
#[should_panic(expected = "the end came too early")]
fn a_marker_that_is_not_counted_is_missed() {
    round(2, 1);
}
