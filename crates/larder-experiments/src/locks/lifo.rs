//! The notes' locks with LIFO admission, E3 to E9, as study programs ("Locks with LIFO admission order").
//!
//! They are kept as the notes have them, with three things changed. They wait by looking for 10 us and giving the
//! processor away from then on, because there are more threads than processors here, where the notes look without end. And
//! two of them, as printed, are wrong:
//!
//! - **E3** stores `h & ~1` as the next element, so the last waiter's is 0, and popping it makes a held lock free. Here the
//!   1 for "held, nobody waits" is kept.
//! - **E8** takes the admission by an exchange, and says that it finds its own ticket or -1. It can find a third: one that
//!   was given after it had seen its own. Then it goes in with somebody else's, and later releases name a ticket that nobody
//!   has. Here it takes its own by a compare-and-swap. A test replays the printed form.
//!
//! What became of the question is [`larder_sync::reciprocating`], which has both: constant time, and bounded bypass.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicPtr, AtomicUsize, Ordering};

use larder_sync::fair::RawMcsLock;
use larder_sync::spin::{Patience, SLEEP_AND_WAKE_NS};

use crate::contenders::Bare;

// ORDER lifo.hold: in all of these, what admits is an Acquire load or exchange, and what releases a Release store or
// exchange, of the same word. They are studies; nothing else relies on them.

/// Waits politely until `ready`.
fn wait_until(ready: impl Fn() -> bool) {
    let mut patience = Patience::for_nanos(SLEEP_AND_WAKE_NS);
    while !ready() {
        if !patience.spin() {
            std::thread::yield_now();
        }
    }
}

/// A lock whose arrivals a test can see: the word that changes with each.
#[cfg(test)]
trait Arrivals {
    fn arrivals(&self) -> usize;
}

struct Element {
    next: *mut Element,
    waits: AtomicBool,
}

const HELD: *mut Element = ptr::without_provenance_mut(1);

/// An explicit stack: strict LIFO, with a release that may have to try again.
#[derive(Default)]
pub struct E3 {
    /// 0: free. 1: held, nobody waits. Else the last arrival.
    head: AtomicPtr<Element>,
}

impl E3 {
    fn acquire(&self, _thread: u32) {
        let mut element = Element { next: HELD, waits: AtomicBool::new(true) };
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let wanted = if head.is_null() {
                HELD
            } else {
                element.next = head;
                &raw mut element
            };
            match self.head.compare_exchange(head, wanted, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if head.is_null() => return,
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        let waits = &raw const element.waits;
        // SAFETY: on this stack; others use it until it is false.
        wait_until(|| !unsafe { (*waits).load(Ordering::Acquire) });
    }

    fn release(&self) {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            // SAFETY: it waits; only the owner takes it out.
            let next = if head == HELD { ptr::null_mut() } else { unsafe { (*head).next } };
            match self.head.compare_exchange(head, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if head == HELD => return,
                Ok(_) => {
                    // SAFETY: it waits until this store.
                    return unsafe { (*head).waits.store(false, Ordering::Release) };
                }
                Err(now) => head = now,
            }
        }
    }
}

const UNLOCKED: usize = 0;
const NOBODY_WAITS: usize = 1;
const PASSING: usize = 2;
const INVALID: usize = 3;
const BIAS: usize = 4;

/// No elements: each waiter remembers who came before it, and puts that one's number back when it goes in.
#[derive(Default)]
pub struct E5 {
    head: AtomicUsize,
    next_to_run: AtomicUsize,
}

impl E5 {
    fn acquire(&self, thread: u32) {
        let ticket = thread as usize + BIAS;
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head == PASSING {
                wait_until(|| self.head.load(Ordering::Relaxed) != PASSING);
                head = self.head.load(Ordering::Relaxed);
                continue;
            }
            let wanted = if head == UNLOCKED { NOBODY_WAITS } else { ticket };
            match self.head.compare_exchange(head, wanted, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        if head != UNLOCKED {
            wait_until(|| self.next_to_run.load(Ordering::Acquire) == ticket);
            self.next_to_run.store(INVALID, Ordering::Relaxed);
            self.head.store(head, Ordering::Release);
        }
    }

    fn release(&self) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let wanted = if head == NOBODY_WAITS { UNLOCKED } else { PASSING };
            match self.head.compare_exchange(head, wanted, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        if head != NOBODY_WAITS {
            self.next_to_run.store(head, Ordering::Release);
        }
    }
}

/// E5 with the paths of the uncontended lock apart.
#[derive(Default)]
pub struct E5B {
    head: AtomicUsize,
    next_to_run: AtomicUsize,
}

impl E5B {
    fn acquire(&self, thread: u32) {
        let ticket = thread as usize + BIAS;
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head == PASSING {
                wait_until(|| self.head.load(Ordering::Relaxed) != PASSING);
                head = self.head.load(Ordering::Relaxed);
                continue;
            }
            let wanted = if head == UNLOCKED { NOBODY_WAITS } else { ticket };
            match self.head.compare_exchange(head, wanted, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(UNLOCKED) => return,
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        wait_until(|| self.next_to_run.load(Ordering::Acquire) == ticket);
        self.next_to_run.store(UNLOCKED, Ordering::Relaxed);
        self.head.store(head, Ordering::Release);
    }

    fn release(&self) {
        let free = self.head.compare_exchange(NOBODY_WAITS, UNLOCKED, Ordering::Release, Ordering::Relaxed).is_ok();
        if !free {
            let head = self.head.swap(PASSING, Ordering::AcqRel);
            self.next_to_run.store(head, Ordering::Release);
        }
    }
}

/// One word: twice the depth of the stack, and 1 more while the lock is passed on, which keeps arrivals out.
#[derive(Default)]
pub struct E6 {
    next: AtomicUsize,
}

impl E6 {
    fn acquire(&self, _thread: u32) {
        let mut word = self.next.load(Ordering::Relaxed);
        loop {
            if word & 1 != 0 {
                wait_until(|| self.next.load(Ordering::Relaxed) & 1 == 0);
                word = self.next.load(Ordering::Relaxed);
                continue;
            }
            match self.next.compare_exchange(word, word + 2, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        if word != 0 {
            wait_until(|| self.next.load(Ordering::Acquire) == word + 1);
            self.next.store(word, Ordering::Release);
        }
    }

    fn release(&self) {
        let alone = self.next.load(Ordering::Relaxed) == 2
            && self.next.compare_exchange(2, 0, Ordering::Release, Ordering::Relaxed).is_ok();
        if !alone {
            self.next.fetch_sub(1, Ordering::Release);
        }
    }
}

/// An explicit stack under an inner lock.
#[derive(Default)]
pub struct E7 {
    inner: RawMcsLock,
    /// Sync: the inner lock.
    head: AtomicPtr<Element>,
}

impl E7 {
    fn acquire(&self, _thread: u32) {
        self.inner.lock();
        let head = self.head.load(Ordering::Relaxed);
        let mut element = Element { next: head, waits: AtomicBool::new(true) };
        self.head.store(if head.is_null() { HELD } else { &raw mut element }, Ordering::Relaxed);
        // SAFETY: locked above.
        unsafe { self.inner.unlock() };
        if !head.is_null() {
            let waits = &raw const element.waits;
            // SAFETY: on this stack; others use it until it is false.
            wait_until(|| !unsafe { (*waits).load(Ordering::Acquire) });
        }
    }

    fn release(&self) {
        self.inner.lock();
        let head = self.head.load(Ordering::Relaxed);
        // SAFETY: it waits until it is told.
        let next = if head == HELD { ptr::null_mut() } else { unsafe { (*head).next } };
        self.head.store(next, Ordering::Relaxed);
        // SAFETY: locked above.
        unsafe { self.inner.unlock() };
        if head != HELD {
            // SAFETY: it waits until this store.
            unsafe { (*head).waits.store(false, Ordering::Release) };
        }
    }
}

const NOBODY: isize = -1;

/// Additions: a ticket is the depth at which a thread came, and threads of one depth race for the admission.
pub struct E8 {
    ticket: AtomicIsize,
    admit: AtomicIsize,
}

impl Default for E8 {
    fn default() -> Self {
        Self { ticket: AtomicIsize::new(0), admit: AtomicIsize::new(NOBODY) }
    }
}

impl E8 {
    fn acquire(&self, _thread: u32) {
        let ticket = self.ticket.fetch_add(1, Ordering::Acquire);
        if ticket == 0 {
            return;
        }
        loop {
            wait_until(|| self.admit.load(Ordering::Relaxed) == ticket);
            if self.admit.compare_exchange(ticket, NOBODY, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    fn release(&self) {
        let left = self.ticket.fetch_sub(1, Ordering::Release) - 1;
        if left != 0 {
            self.admit.store(left, Ordering::Release);
        }
    }
}

/// A ticket lock, which one thread may take and another release.
#[derive(Default)]
struct Latch {
    next: AtomicUsize,
    serving: AtomicUsize,
}

impl Latch {
    fn acquire(&self) {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        wait_until(|| self.serving.load(Ordering::Acquire) == ticket);
    }
    fn release(&self) {
        // Only who has it writes it.
        self.serving.store(self.serving.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// A depth under a latch, which a release keeps until its successor gives it back.
#[derive(Default)]
pub struct E9 {
    latch: Latch,
    /// Sync: the latch.
    depth: AtomicIsize,
    admit: AtomicIsize,
}

impl E9 {
    fn acquire(&self, _thread: u32) {
        self.latch.acquire();
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth.store(depth + 1, Ordering::Relaxed);
        self.latch.release();
        if depth != 0 {
            wait_until(|| self.admit.load(Ordering::Acquire) == depth);
            self.admit.store(NOBODY, Ordering::Relaxed);
            self.latch.release();
        }
    }

    fn release(&self) {
        self.latch.acquire();
        let depth = self.depth.load(Ordering::Relaxed) - 1;
        self.depth.store(depth, Ordering::Relaxed);
        self.admit.store(depth, Ordering::Release);
        if depth == 0 {
            self.latch.release();
        }
    }
}

macro_rules! study_locks {
    ($($lock:ident, $arrivals:ident;)*) => { $(
        impl Bare for $lock {
            fn fresh() -> Self {
                Self::default()
            }
            #[inline]
            fn with(&self, thread: u32, section: impl FnOnce()) {
                self.acquire(thread);
                section();
                self.release();
            }
        }

        #[cfg(test)]
        impl Arrivals for $lock {
            fn arrivals(&self) -> usize {
                self.$arrivals.load(Ordering::Relaxed) as usize
            }
        }
    )* };
}

study_locks! {
    E3, head;
    E5, head;
    E5B, head;
    E6, next;
    E7, head;
    E8, ticket;
    E9, depth;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::Mutex;

    struct Counted<L> {
        lock: L,
        number: UnsafeCell<u64>,
    }
    // SAFETY: the number is touched only under the lock.
    unsafe impl<L: Sync> Sync for Counted<L> {}

    fn excludes<L: Bare>() {
        let counted = Counted { lock: L::fresh(), number: UnsafeCell::new(0) };
        let counted = &counted;
        std::thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || {
                    for _ in 0..500 {
                        // SAFETY: the lock is held.
                        counted.lock.with(thread, || unsafe { *counted.number.get() += 1 });
                    }
                });
            }
        });
        // SAFETY: all threads have ended.
        assert_eq!(unsafe { *counted.number.get() }, 8 * 500);
    }

    /// Threads come one after the other to a held lock; the last one goes in first.
    fn admits_the_last_first<L: Bare + Arrivals>() {
        let lock = L::fresh();
        let admitted = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            lock.with(0, || {
                for thread in 1..=5 {
                    let before = lock.arrivals();
                    let (lock, admitted) = (&lock, &admitted);
                    scope.spawn(move || lock.with(thread, || admitted.lock().unwrap().push(thread)));
                    wait_until(|| lock.arrivals() != before);
                }
            });
        });
        assert_eq!(*admitted.lock().unwrap(), [5, 4, 3, 2, 1]);
    }

    macro_rules! every {
        ($($name:ident: $lock:ty;)*) => { $(
            #[test]
            fn $name() {
                excludes::<$lock>();
                admits_the_last_first::<$lock>();
            }
        )* };
    }
    every! {
        e3: E3;
        e5: E5;
        e5b: E5B;
        e6: E6;
        e7: E7;
        e8: E8;
        e9: E9;
    }

    /// The printed E8: `v = SWAP(Admit, -1)`, and in with whatever is not -1.
    #[test]
    fn e8_as_printed_names_a_ticket_that_nobody_has() {
        let lock = E8::default();
        let arrive = || lock.ticket.fetch_add(1, Ordering::Relaxed);
        assert_eq!((arrive(), arrive(), arrive()), (0, 1, 2));
        lock.release();
        // The thread with ticket 2 sees it, and is delayed. Another comes, gets a 2 as well, and goes in.
        assert_eq!(lock.admit.load(Ordering::Relaxed), 2);
        assert_eq!((arrive(), lock.admit.swap(NOBODY, Ordering::Relaxed)), (2, 2));
        // One more comes, and the owner leaves.
        assert_eq!(arrive(), 3);
        lock.release();
        // Now the delayed one exchanges, finds 3, and goes in.
        assert_eq!(lock.admit.swap(NOBODY, Ordering::Relaxed), 3);
        lock.release();
        assert_eq!(lock.admit.load(Ordering::Relaxed), 2, "but those who wait have tickets 1 and 3");
    }
}
