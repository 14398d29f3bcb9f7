//! Who waits for a lock: a word to be told something through, and a list of such waiters that the lock's holder keeps.
//!
//! # The word
//!
//! | value | meaning |
//! |---|---|
//! | 0 | waiting, and looking |
//! | 1 | waiting, asleep or about to be |
//! | 2 and above | told this |
//!
//! The waiter goes from 0 to 1 by a compare-and-swap, and whoever tells exchanges the word: one of the two comes first, so
//! either the waiter sees the message before it sleeps, or the teller sees that it sleeps. One word, so no fence is needed.
//!
//! # Lifetime
//!
//! A waiter lies on the stack of its thread, which goes on as soon as it has read the message. So the exchange is the
//! last access to the waiter; the wake that follows uses its address as a key only.

use crate::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use crate::futex::Word;
use crate::spin::{Patience, give_way};
use crate::step;
use core::ptr::{self, NonNull};

const LOOKING: u32 = 0;
const ASLEEP: u32 = 1;
/// The smallest message.
pub(crate) const MESSAGE: u32 = 2;

/// A word through which one thread is told something once, looking or asleep.
pub(crate) struct Cell {
    /// Sync: `cell.tell`.
    word: Word,
}

impl Cell {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Self { word: Word::new(LOOKING) }
        }
    }

    /// Makes the cell ready for its next message. Nobody else knows it now.
    pub(crate) fn reset(&self) {
        // ORDER cell.tell: Relaxed; whatever makes the waiter known to others publishes it.
        self.word.store(LOOKING, Ordering::Relaxed);
    }

    /// Waits for the message: looks while there is patience, then sleeps.
    pub(crate) fn wait(&self, patience: Patience) -> u32 {
        self.wait_with(patience, || ())
    }

    /// As [`Cell::wait`], with something to do at each look.
    #[inline]
    pub(crate) fn wait_with(&self, mut patience: Patience, mut at_each_look: impl FnMut()) -> u32 {
        loop {
            at_each_look();
            // ORDER cell.tell: Acquire, with the exchange in `tell`. Weaker, the waiter could go on without what the teller
            // did before.
            let now = self.word.load(step::order("cell.tell: Acquire", Ordering::Acquire));
            if now >= MESSAGE {
                return now;
            }
            if !patience.spin() {
                break;
            }
        }
        self.sleep()
    }

    /// As [`Cell::wait_with`], but gives the processor away again and again for `yielding_ns` before it sleeps: for a waiter
    /// that is passed over while it does not run.
    pub(crate) fn wait_yielding(
        &self,
        mut patience: Patience,
        yielding_ns: u64,
        mut at_each_look: impl FnMut(),
    ) -> u32 {
        let mut until = None;
        loop {
            at_each_look();
            // ORDER cell.tell: Acquire, as in `wait_with`.
            let now = self.word.load(step::order("cell.tell: Acquire", Ordering::Acquire));
            if now >= MESSAGE {
                return now;
            }
            if patience.spin() {
                continue;
            }
            let now = crate::ticks::now();
            let until = *until.get_or_insert_with(|| now.wrapping_add(crate::ticks::of_nanos(yielding_ns)));
            if until.wrapping_sub(now) as i64 <= 0 {
                return self.sleep();
            }
            give_way();
        }
    }

    /// Sleeps for about `nanos` nanoseconds, while nobody tells the waiter anything. A signal ends it early.
    #[cfg(any(feature = "std", loom))]
    pub(crate) fn doze(&self, nanos: u64) {
        self.word.wait_before(LOOKING, crate::futex::Deadline::after(nanos));
    }

    #[cold]
    fn sleep(&self) -> u32 {
        // ORDER cell.tell: Acquire on failure, as above; Relaxed on success, which tells only that this thread sleeps.
        let failure = step::order("cell.tell: Acquire", Ordering::Acquire);
        if let Err(now) = self.word.compare_exchange(LOOKING, ASLEEP, Ordering::Relaxed, failure) {
            return now;
        }
        loop {
            self.word.wait(ASLEEP);
            // ORDER cell.tell: Acquire, as above.
            let now = self.word.load(step::order("cell.tell: Acquire", Ordering::Acquire));
            if now >= MESSAGE {
                return now;
            }
        }
    }

    /// Whether its thread sleeps, or is about to.
    pub(crate) fn sleeps(&self) -> bool {
        // ORDER cell.tell: Relaxed; a hint.
        self.word.load(Ordering::Relaxed) == ASLEEP
    }

    /// Tells the waiter `message`, and wakes it if it sleeps.
    ///
    /// # Safety
    /// `cell` is alive: its thread waits, and nobody else tells it anything.
    pub(crate) unsafe fn tell(cell: NonNull<Self>, message: u32) {
        // SAFETY: the caller's promise.
        let word = unsafe { &cell.as_ref().word };
        let waker = word.waker();
        // ORDER cell.tell: Release, with the loads in `wait`. The waiter may be gone from here on.
        let old = word.swap(message, step::order("cell.tell: Release", Ordering::Release));
        if old == ASLEEP && step::kept("cell: the wake") {
            waker.wake(1);
        }
    }
}

/// One thread that waits for a lock. On cache lines of its own: its thread looks at it while others work.
#[repr(align(128))]
pub(crate) struct Waiter {
    /// Towards those who came earlier. Sync: `mutex.push` until the holder has taken it over, then the lock.
    pub(crate) next: AtomicPtr<Waiter>,
    /// Towards those who came later. Sync: the lock.
    prev: AtomicPtr<Waiter>,
    /// Where its thread ran before it slept. Sync: as `next`.
    pub(crate) cpu: AtomicU32,
    /// It was called out of turn, as the eldest, and did not get the lock: it goes to the back of the list, where the eldest are.
    /// Sync: as `next`.
    pub(crate) called: AtomicBool,
    pub(crate) cell: Cell,
}

impl Waiter {
    pub(crate) fn new() -> Self {
        Self {
            next: AtomicPtr::new(ptr::null_mut()),
            prev: AtomicPtr::new(ptr::null_mut()),
            cpu: AtomicU32::new(0),
            called: AtomicBool::new(false),
            cell: Cell::new(),
        }
    }

    /// Tells the waiter something; it may be gone afterwards.
    ///
    /// # Safety
    /// It waits, and is in no list.
    pub(crate) unsafe fn tell(waiter: NonNull<Self>, message: u32) {
        // SAFETY: the waiter is alive while it waits, so its field is in bounds and its address valid.
        let cell = unsafe { NonNull::new_unchecked(&raw mut (*waiter.as_ptr()).cell) };
        // SAFETY: the caller's promise; only the one who took it out of its list tells it anything.
        unsafe { Cell::tell(cell, message) };
    }
}

/// The waiters that a holder has taken over, newest in front. Touched by the lock's holder only.
///
/// The fields are atomic so that a holder that does not see what the last one did shows up in a model; all accesses are
/// Relaxed, because the lock orders them.
pub(crate) struct Passive {
    /// Sync: the lock.
    front: AtomicPtr<Waiter>,
    /// Sync: the lock.
    back: AtomicPtr<Waiter>,
}

// ORDER passive.lock: every access of this impl is Relaxed; the lock of whoever owns the list orders them.
impl Passive {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Self { front: AtomicPtr::new(ptr::null_mut()), back: AtomicPtr::new(ptr::null_mut()) }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.front.load(Ordering::Relaxed).is_null()
    }

    /// Puts a chain of waiters, linked through `next` from the newest to the oldest, in front; those of them that were called, at the back.
    ///
    /// # Safety
    /// The caller holds the lock; the waiters wait and are in no other list.
    pub(crate) unsafe fn prepend_chain(&self, newest: NonNull<Waiter>) {
        let (mut first, mut last) = (ptr::null_mut(), None::<NonNull<Waiter>>);
        let mut called = ptr::null_mut();
        let mut waiter = newest.as_ptr();
        while let Some(at) = NonNull::new(waiter) {
            // SAFETY: a waiter is alive while it is in a list or in the chain.
            let this = unsafe { at.as_ref() };
            waiter = this.next.load(Ordering::Relaxed);
            if this.called.load(Ordering::Relaxed) {
                this.next.store(called, Ordering::Relaxed);
                called = at.as_ptr();
                continue;
            }
            this.prev.store(last.map_or(ptr::null_mut(), NonNull::as_ptr), Ordering::Relaxed);
            match last {
                // SAFETY: as above.
                Some(last) => unsafe { last.as_ref() }.next.store(at.as_ptr(), Ordering::Relaxed),
                None => first = at.as_ptr(),
            }
            last = Some(at);
        }
        if let Some(last) = last {
            let front = self.front.load(Ordering::Relaxed);
            // SAFETY: as above; it is the oldest of the chain.
            unsafe { last.as_ref() }.next.store(front, Ordering::Relaxed);
            match NonNull::new(front) {
                // SAFETY: as above.
                Some(front) => unsafe { front.as_ref() }.prev.store(last.as_ptr(), Ordering::Relaxed),
                None => self.back.store(last.as_ptr(), Ordering::Relaxed),
            }
            self.front.store(first, Ordering::Relaxed);
        }
        while let Some(at) = NonNull::new(called) {
            // SAFETY: as above.
            called = unsafe { at.as_ref() }.next.load(Ordering::Relaxed);
            // SAFETY: the caller's promise.
            unsafe { self.push_eldest(at) };
        }
    }

    /// Puts one waiter at the back.
    ///
    /// # Safety
    /// As for [`Passive::prepend_chain`].
    unsafe fn push_eldest(&self, waiter: NonNull<Waiter>) {
        let back = self.back.load(Ordering::Relaxed);
        // SAFETY: the waiter waits.
        let this = unsafe { waiter.as_ref() };
        this.prev.store(back, Ordering::Relaxed);
        this.next.store(ptr::null_mut(), Ordering::Relaxed);
        match NonNull::new(back) {
            // SAFETY: a waiter is alive while it is in the list.
            Some(back) => unsafe { back.as_ref() }.next.store(waiter.as_ptr(), Ordering::Relaxed),
            None => self.front.store(waiter.as_ptr(), Ordering::Relaxed),
        }
        self.back.store(waiter.as_ptr(), Ordering::Relaxed);
    }

    /// Puts one waiter in front.
    ///
    /// # Safety
    /// As for [`Passive::prepend_chain`].
    pub(crate) unsafe fn push_newest(&self, waiter: NonNull<Waiter>) {
        // SAFETY: the waiter waits.
        unsafe { waiter.as_ref() }.next.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.prepend_chain(waiter) };
    }

    /// Takes a new waiter out: the newest of those that did not sleep on `cpu`, if one is among the first few, or the
    /// newest.
    ///
    /// # Safety
    /// The caller holds the lock.
    pub(crate) unsafe fn pop_new(&self, cpu: u32) -> Option<NonNull<Waiter>> {
        let newest = NonNull::new(self.front.load(Ordering::Relaxed))?;
        let mut candidate = newest;
        for _ in 0..LOOKED_AT {
            // SAFETY: a waiter is alive while it is in the list.
            let waiter = unsafe { candidate.as_ref() };
            if waiter.cpu.load(Ordering::Relaxed) != cpu {
                // SAFETY: the caller's promise.
                unsafe { self.remove(candidate) };
                return Some(candidate);
            }
            let Some(next) = NonNull::new(waiter.next.load(Ordering::Relaxed)) else { break };
            candidate = next;
        }
        // SAFETY: the caller's promise.
        unsafe { self.remove(newest) };
        Some(newest)
    }

    /// # Safety
    /// The caller holds the lock, and the waiter is in the list.
    unsafe fn remove(&self, waiter: NonNull<Waiter>) {
        // SAFETY: a waiter is alive while it is in the list; so are its neighbours.
        let this = unsafe { waiter.as_ref() };
        let (next, prev) = (this.next.load(Ordering::Relaxed), this.prev.load(Ordering::Relaxed));
        match NonNull::new(prev) {
            // SAFETY: as above.
            Some(prev) => unsafe { prev.as_ref() }.next.store(next, Ordering::Relaxed),
            None => self.front.store(next, Ordering::Relaxed),
        }
        match NonNull::new(next) {
            // SAFETY: as above.
            Some(next) => unsafe { next.as_ref() }.prev.store(prev, Ordering::Relaxed),
            None => self.back.store(prev, Ordering::Relaxed),
        }
    }

    /// Takes the waiter out that has been there longest.
    ///
    /// # Safety
    /// The caller holds the lock.
    pub(crate) unsafe fn pop_eldest(&self) -> Option<NonNull<Waiter>> {
        let eldest = NonNull::new(self.back.load(Ordering::Relaxed))?;
        // SAFETY: the caller's promise.
        unsafe { self.remove(eldest) };
        Some(eldest)
    }
}

/// How many waiters [`Passive::pop_new`] looks at for one from another processor.
const LOOKED_AT: usize = 8;

/// What a release with waiters does beside releasing.
pub(crate) enum Turn {
    /// Nothing.
    No,
    /// It wakes one more if the last that was woken has not come yet.
    Wake,
    /// It calls the eldest waiter, or gives it the lock if it was called before.
    Eldest,
    /// As `Eldest`, in a model, where it would take long until one was called in vain: gives it the lock.
    #[cfg(loom)]
    HandOver,
}

/// When a waiter that has waited long is let in out of turn, and when a waiter that was woken counts as late.
///
/// The holder keeps it. Sync of all fields: the lock.
pub(crate) struct Turns {
    #[cfg(not(loom))]
    due: core::sync::atomic::AtomicU64,
    #[cfg(not(loom))]
    woken_at: core::sync::atomic::AtomicU64,
    /// How often in a row somebody was woken because the last one was late.
    #[cfg(not(loom))]
    late_wakes: AtomicU32,
    releases: AtomicU32,
}

/// A waiter waits at most about this long times the number of those who wait, while the lock is in use. A hand-over to
/// a sleeping thread leaves the lock idle for 5 to 50 us, so it costs at most some percent.
#[cfg(not(loom))]
const TURN_NS: u64 = 1_000_000;
/// A woken thread that has not come after this long has been put behind somebody on a busy processor, perhaps while
/// another one is idle. (200 us: no difference at 64 and 256 threads with 250 steps outside, 5 % less at 16.)
#[cfg(not(loom))]
const LATE_NS: u64 = 50_000;
/// If the next one is late as well, all processors are busy, and more that are awake only wait for each other: each is waited for twice as
/// long as the last, until the eldest is called; so often at most.
#[cfg(not(loom))]
const LATE_WAKES: u32 = 6;
/// The clock is read at every so many releases with waiters.
#[cfg(not(loom))]
const RELEASES_PER_LOOK: u32 = 16;

// ORDER passive.lock: every access of this impl is Relaxed; the caller holds the lock.
impl Turns {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Self {
                #[cfg(not(loom))]
                due: core::sync::atomic::AtomicU64::new(0),
                #[cfg(not(loom))]
                woken_at: core::sync::atomic::AtomicU64::new(0),
                #[cfg(not(loom))]
                late_wakes: AtomicU32::new(0),
                releases: AtomicU32::new(0),
            }
        }
    }

    /// What this release is to do. Called by the holder, with waiters there.
    #[cfg(not(loom))]
    pub(crate) fn look(&self) -> Turn {
        let releases = self.releases.load(Ordering::Relaxed).wrapping_add(1);
        self.releases.store(releases, Ordering::Relaxed);
        if !releases.is_multiple_of(RELEASES_PER_LOOK) {
            return Turn::No;
        }
        let now = crate::ticks::now();
        if now.wrapping_sub(self.due.load(Ordering::Relaxed)) as i64 > 0 {
            self.due.store(now.wrapping_add(crate::ticks::of_nanos(TURN_NS)), Ordering::Relaxed);
            return Turn::Eldest;
        }
        let since = now.wrapping_sub(self.woken_at.load(Ordering::Relaxed));
        let late = LATE_NS << self.late_wakes.load(Ordering::Relaxed);
        if since > crate::ticks::of_nanos(late) { Turn::Wake } else { Turn::No }
    }

    /// The holder wakes somebody now, because the last one is `late` or for another reason.
    #[cfg(not(loom))]
    pub(crate) fn wakes(&self, late: bool) {
        self.woken_at.store(crate::ticks::now(), Ordering::Relaxed);
        let wakes = if late { (self.late_wakes.load(Ordering::Relaxed) + 1).min(LATE_WAKES) } else { 0 };
        self.late_wakes.store(wakes, Ordering::Relaxed);
    }

    /// What this release is to do: in a model, each in turn.
    #[cfg(loom)]
    pub(crate) fn look(&self) -> Turn {
        let releases = self.releases.load(Ordering::Relaxed).wrapping_add(1);
        self.releases.store(releases, Ordering::Relaxed);
        match releases % 4 {
            0 => Turn::Wake,
            1 => Turn::No,
            2 => Turn::HandOver,
            _ => Turn::Eldest,
        }
    }

    #[cfg(loom)]
    pub(crate) fn wakes(&self, _late: bool) {}
}

/// Where the calling thread runs. A hint: a woken thread tends to go where it ran, and the waker's processor is busy.
pub(crate) fn current_cpu() -> u32 {
    if cfg!(loom) {
        return 0;
    }
    // SAFETY: always allowed; -1 where the kernel cannot say.
    unsafe { libc::sched_getcpu() as u32 }
}
