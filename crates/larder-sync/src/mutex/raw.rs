//! The lock without its data: the word, and what is done with it. The module's page has the steps and the proof.

use crate::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use crate::line;
use crate::spin::Patience;
use crate::step;
use crate::ticks;
use crate::waiter::{MESSAGE, Passive, Turn, Turns, Waiter, current_cpu};
use core::fmt;
use core::ptr::{self, NonNull};

const LOCKED: usize = 1;
const HEIR: usize = 2;
const WOKEN: usize = 4;
const PASSIVE: usize = 8;
const FLAGS: usize = LOCKED | HEIR | WOKEN | PASSIVE;
const _: () = assert!(align_of::<Waiter>() > FLAGS);

/// The waiter is out of the list and goes for the lock.
const COME: u32 = MESSAGE;
/// The waiter holds the lock.
const OWN: u32 = MESSAGE + 1;

/// How long an heir looks before it sleeps.
const HEIR_NS: u64 = 2 * crate::spin::SLEEP_AND_WAKE_NS;
/// How long others look. The heir may have lost its processor, and the holder be out of its section by then: who sleeps at
/// once is woken again for nothing. None in a model, where a look more only makes it larger.
const OTHERS_NS: u64 = if cfg!(loom) { 0 } else { 2_000 };
/// Pauses between two looks, at first and at most. Looks take the line from a holder that comes back at once.
const FIRST_PAUSES: u32 = 2;
const PAUSES: u32 = 16;

/// Pauses between two looks up to which a waiter does not become the heir, unless the release would wake another one: to say so takes the line
/// from the holder, who may be about to release. None in a model.
const SHORT_PAUSES: u32 = if cfg!(loom) { 0 } else { 4 };

/// How long a thread keeps away from a lock whose holder comes back at once.
const APART_NS: u64 = 6_000;
/// The round of one thread, from release to release, below which two who take turns get less done: the line of a lock takes 100 to
/// 200 ns from one processor to another and back. (100 to 200 ns did about the same; Xeon, Sapphire Rapids, 2 CPUs, 2026-11-22.)
const ROUND_NS: u64 = 150;
/// Of those who have to wait, one in so many finds out how long a round is: while they do not keep away, and while they do.
const COUNTS: u64 = 1024;
const COUNTS_APART: u64 = 16;
/// The lowest bits of the time are not random.
const DICE_TICKS: u64 = 16;

/// A mutex without data; see the [module](super).
pub struct RawMutex {
    /// Flags, and the waiter that came last. Sync: `mutex.hold`, `mutex.push`.
    word: AtomicPtr<Waiter>,
    /// Somebody had to wait, and since then no holder has found the word without others. Sync: a hint.
    crowded: AtomicBool,
    /// Whoever has to wait keeps away at first. Sync: a hint.
    apart: AtomicBool,
    /// Somebody who keeps away wants releases counted. Sync: a hint.
    counted: AtomicBool,
    /// Releases that were counted, modulo 2^32. Sync: written by the holder; a hint to others.
    releases: AtomicU32,
    /// Sync: this lock.
    passive: Passive,
    /// Sync: this lock.
    turns: Turns,
}

// SAFETY: waiters are reached only while their threads wait, in the way that the module's page describes.
unsafe impl Send for RawMutex {}
// SAFETY: as above.
unsafe impl Sync for RawMutex {}

fn flags(word: *mut Waiter) -> usize {
    word.addr() & FLAGS
}

fn chain(word: *mut Waiter) -> *mut Waiter {
    word.map_addr(|bits| bits & !FLAGS)
}

fn has_waiters(word: *mut Waiter) -> bool {
    !chain(word).is_null() || flags(word) & PASSIVE != 0
}

fn with(word: *mut Waiter, set: usize, clear: usize) -> *mut Waiter {
    word.map_addr(|bits| (bits & !clear) | set)
}

impl RawMutex {
    const_unless_loom! {
        /// A free lock.
        pub fn new() -> Self {
            Self {
                word: AtomicPtr::new(ptr::null_mut()),
                crowded: AtomicBool::new(false),
                apart: AtomicBool::new(false),
                counted: AtomicBool::new(false),
                releases: AtomicU32::new(0),
                passive: Passive::new(),
                turns: Turns::new(),
            }
        }
    }

    /// Whether somebody had to wait of late: then a thread looks at the word before it tries to change it.
    ///
    /// While some wait in the list of a lock that is mostly free, each compare-and-swap that expects no waiters and fails costs as much as the
    /// critical section (256 threads, 250 steps outside: a tenth of the throughput; 2 and 4 threads, none outside: more than half).
    /// But a look at a word that this thread has just changed by a locked instruction waits for that to end, and the next one for the
    /// look: on an Intel Xeon an uncontended lock and unlock with both looks takes 1.5 times as long as without. The hint is another word.
    ///
    /// In a model nobody looks: the compare-and-swap decides, and a look more would only make the model larger.
    #[inline]
    fn is_crowded(&self) -> bool {
        // The line will be written. A load alone would bring it without the right to, and it would be transferred twice.
        line::fetch_to_write(&self.word);
        // ORDER mutex.hold: Relaxed; a hint.
        cfg!(not(loom)) && self.crowded.load(Ordering::Relaxed)
    }

    /// The word, in a function of its own, so that what is expected is not chosen without a branch, and then waits for this.
    #[cold]
    fn look(&self) -> *mut Waiter {
        // ORDER mutex.hold: Relaxed; the compare-and-swap decides.
        self.word.load(Ordering::Relaxed)
    }

    /// Takes the lock; waits while another thread holds it.
    #[inline]
    pub fn lock(&self) {
        let word = if self.is_crowded() { self.look() } else { ptr::null_mut() };
        // ORDER mutex.hold: Acquire, with the compare-and-swaps of `unlock`. Weaker, this critical section could miss what
        // the last one wrote.
        let order = step::order("mutex.hold: Acquire", Ordering::Acquire);
        if flags(word) & LOCKED != 0
            || self.word.compare_exchange(word, with(word, LOCKED, 0), order, Ordering::Relaxed).is_err()
        {
            self.lock_slow();
        }
    }

    /// Takes the lock if it is free; says whether it did.
    #[inline]
    pub fn try_lock(&self) -> bool {
        // ORDER mutex.hold: Relaxed; the compare-and-swap decides.
        let mut word = self.word.load(Ordering::Relaxed);
        while flags(word) & LOCKED == 0 {
            // ORDER mutex.hold: Acquire, as in `lock`.
            let order = step::order("mutex.hold: Acquire", Ordering::Acquire);
            match self.word.compare_exchange_weak(word, with(word, LOCKED, 0), order, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Whether somebody held the lock a moment ago. It orders nothing.
    pub fn is_locked(&self) -> bool {
        // ORDER mutex.hold: Relaxed; a snapshot that guards no data.
        flags(self.word.load(Ordering::Relaxed)) & LOCKED != 0
    }

    #[cold]
    fn lock_slow(&self) {
        // ORDER mutex.hold: Relaxed, both; a hint. A store would take the lock's line from the holder.
        if !self.crowded.load(Ordering::Relaxed) {
            self.crowded.store(true, Ordering::Relaxed);
        }
        self.keep_apart();
        let waiter = Waiter::new();
        let mut heir = false;
        // Woken, and not yet made a step of its own.
        let mut woken = false;
        let mut patience = Patience::for_nanos(OTHERS_NS);
        let mut pauses = FIRST_PAUSES;
        // ORDER mutex.hold: Relaxed, here and in the loop; a compare-and-swap decides.
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            // What this thread's next step clears: what stood for it alone, or for it and others that were woken.
            let mine =
                if heir && step::kept("mutex: the heir resigns") { HEIR } else { 0 } | if woken { WOKEN } else { 0 };
            if flags(word) & LOCKED == 0 {
                // ORDER mutex.hold: Acquire, as in `lock`.
                let order = step::order("mutex.hold: Acquire", Ordering::Acquire);
                match self.word.compare_exchange_weak(word, with(word, LOCKED, mine), order, Ordering::Relaxed) {
                    Ok(_) => return,
                    Err(now) => word = now,
                }
                continue;
            }
            let would_wake = has_waiters(word) && flags(word) & WOKEN == 0;
            if !heir && flags(word) & HEIR == 0 && (would_wake || pauses > SHORT_PAUSES) {
                // ORDER mutex.hold: Relaxed; the bit stands for nothing but itself.
                match self.word.compare_exchange_weak(
                    word,
                    with(word, HEIR, mine),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => {
                        (heir, woken) = (true, false);
                        patience = Patience::for_nanos(HEIR_NS);
                    }
                    Err(now) => {
                        word = now;
                        continue;
                    }
                }
            }
            if patience.spin_for(pauses) {
                pauses = (pauses * 2).min(PAUSES);
                // ORDER mutex.hold: Relaxed; see above.
                word = self.word.load(Ordering::Relaxed);
                continue;
            }
            if !self.push(&waiter, word, mine) {
                // ORDER mutex.hold: Relaxed; see above.
                word = self.word.load(Ordering::Relaxed);
                continue;
            }
            if waiter.cell.wait(Patience::none()) == OWN {
                return;
            }
            waiter.cell.reset();
            (heir, woken) = (false, true);
            patience = Patience::for_nanos(OTHERS_NS);
            pauses = FIRST_PAUSES;
            // ORDER mutex.hold: Relaxed; see above.
            word = self.word.load(Ordering::Relaxed);
        }
    }

    /// Keeps away for a while from a lock to which its holder comes back so soon that two who take turns get less done than one of
    /// them alone: the lock's line takes longer from one processor to another than a whole round of one thread. Whether it is
    /// so is found out now and then, by counting the releases meanwhile. (Counted all the time, by a store to the line of
    /// the lock, two threads with 250 steps outside got a sixth less done.)
    fn keep_apart(&self) {
        // A model has no time.
        if cfg!(loom) {
            return;
        }
        // ORDER mutex.hold: Relaxed, here and below; hints.
        let apart = self.apart.load(Ordering::Relaxed);
        let dice = ticks::now() / DICE_TICKS;
        let counts = dice.is_multiple_of(if apart { COUNTS_APART } else { COUNTS });
        if !apart && !counts {
            return;
        }
        let before = self.releases.load(Ordering::Relaxed);
        if counts {
            self.counted.store(true, Ordering::Relaxed);
            // Again: the holder may have taken it back before it saw the other.
            self.crowded.store(true, Ordering::Relaxed);
        }
        let mut patience = Patience::for_nanos(APART_NS);
        while patience.spin_for(PAUSES) {}
        if counts {
            let rounds = self.releases.load(Ordering::Relaxed).wrapping_sub(before);
            self.counted.store(false, Ordering::Relaxed);
            let now = u64::from(rounds) * ROUND_NS > APART_NS;
            if now != apart {
                self.apart.store(now, Ordering::Relaxed);
            }
        }
    }

    /// The holder, who has the line and has seen `word`, takes the hint back, or counts its release for somebody who keeps away.
    fn note(&self, word: *mut Waiter) {
        // Nobody looks at the hints in a model.
        if cfg!(loom) {
            return;
        }
        // ORDER mutex.hold: Relaxed, all; hints.
        if self.counted.load(Ordering::Relaxed) {
            let releases = self.releases.load(Ordering::Relaxed);
            self.releases.store(releases.wrapping_add(1), Ordering::Relaxed);
        } else if word.addr() == LOCKED {
            self.crowded.store(false, Ordering::Relaxed);
        }
    }

    /// Puts the waiter on the chain if the word still is `word`, in which LOCKED is set.
    fn push(&self, waiter: &Waiter, word: *mut Waiter, mine: usize) -> bool {
        // ORDER mutex.push: Relaxed; the compare-and-swap publishes it.
        waiter.next.store(chain(word), Ordering::Relaxed);
        waiter.cpu.store(current_cpu(), Ordering::Relaxed);
        let me = ptr::from_ref(waiter).cast_mut().map_addr(|bits| bits | (flags(word) & !mine));
        // ORDER mutex.push: Release, with the exchange in `take_over`. Weaker, the holder could read an old `next`.
        let order = step::order("mutex.push: Release", Ordering::Release);
        self.word.compare_exchange(word, me, order, Ordering::Relaxed).is_ok()
    }

    /// Releases the lock.
    ///
    /// # Safety
    /// The calling thread holds the lock, or has been given it by the thread that does.
    #[inline]
    pub unsafe fn unlock(&self) {
        // ORDER mutex.hold: Release, with the compare-and-swaps that set LOCKED. Weaker, the next critical section could
        // miss what this one wrote.
        let order = step::order("mutex.hold: Release", Ordering::Release);
        let (held, free) = (ptr::without_provenance_mut(LOCKED), ptr::null_mut());
        if self.is_crowded() || self.word.compare_exchange(held, free, order, Ordering::Relaxed).is_err() {
            // SAFETY: the caller's promise.
            unsafe { self.unlock_slow() };
        }
    }

    /// # Safety
    /// As for [`RawMutex::unlock`].
    #[cold]
    unsafe fn unlock_slow(&self) {
        // ORDER mutex.hold: Relaxed; a compare-and-swap decides.
        let mut word = self.word.load(Ordering::Relaxed);
        self.note(word);
        let mut late = false;
        if has_waiters(word) {
            let turn = self.turns.look();
            match turn {
                Turn::No => {}
                Turn::Wake => late = true,
                _ => {
                    // SAFETY: this thread holds the lock.
                    if unsafe { self.serve_eldest(turn) } {
                        return;
                    }
                    // ORDER mutex.hold: Relaxed; see above.
                    word = self.word.load(Ordering::Relaxed);
                }
            }
        }
        loop {
            let late = late && flags(word) & WOKEN != 0;
            let nobody_comes = flags(word) & HEIR == 0 && (flags(word) & WOKEN == 0 || late);
            if has_waiters(word) && nobody_comes && step::kept("mutex: the wake") {
                // SAFETY: this thread holds the lock.
                unsafe { self.release_and_wake(late) };
                return;
            }
            // ORDER mutex.hold: Release, as in `unlock`.
            let order = step::order("mutex.hold: Release", Ordering::Release);
            match self.word.compare_exchange_weak(word, with(word, 0, LOCKED), order, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// Takes the chain over into the list.
    ///
    /// # Safety
    /// The caller holds the lock.
    unsafe fn take_over(&self) {
        // ORDER mutex.push: Relaxed; the compare-and-swap decides.
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let Some(newest) = NonNull::new(chain(word)) else { return };
            let rest = ptr::without_provenance_mut(flags(word) | PASSIVE);
            // ORDER mutex.push: Acquire, with the compare-and-swap in `push`, of which each continues the release
            // sequence of those before it. Weaker, `next` could be an old one.
            let order = step::order("mutex.push: Acquire", Ordering::Acquire);
            match self.word.compare_exchange_weak(word, rest, order, Ordering::Relaxed) {
                Ok(_) => {
                    // SAFETY: the chain is out of the word, its waiters wait, and the caller holds the lock.
                    unsafe { self.passive.prepend_chain(newest) };
                    return;
                }
                Err(now) => word = now,
            }
        }
    }

    /// Calls who has waited longest, or gives it the lock if it was called before; the lock is released then. False without waiters.
    ///
    /// To give the lock to a thread that sleeps leaves it idle until that has a processor, and when all are busy, until those who had them
    /// sleep. So it is called first, and the lock is free for whoever comes.
    ///
    /// # Safety
    /// The caller holds the lock.
    unsafe fn serve_eldest(&self, turn: Turn) -> bool {
        // SAFETY: the caller's promise, for both.
        let eldest = unsafe {
            self.take_over();
            self.passive.pop_eldest()
        };
        let Some(eldest) = eldest else { return false };
        // SAFETY: out of the list, and waiting.
        let called = unsafe { &eldest.as_ref().called };
        // ORDER passive.lock: Relaxed, both; the lock orders them.
        if called.load(Ordering::Relaxed) || !matches!(turn, Turn::Eldest) {
            // SAFETY: as above.
            unsafe { Waiter::tell(eldest, OWN) };
        } else {
            called.store(true, Ordering::Relaxed);
            self.turns.wakes(false);
            // SAFETY: the caller's promise; as above.
            unsafe { self.release_to(eldest) };
        }
        true
    }

    /// Clears LOCKED, and tells a waiter to come.
    ///
    /// # Safety
    /// The caller holds the lock; the waiter is out of the list, and waits.
    unsafe fn release_to(&self, chosen: NonNull<Waiter>) {
        // ORDER mutex.hold: Relaxed; the compare-and-swap decides.
        let mut word = self.word.load(Ordering::Relaxed);
        // ORDER mutex.hold: Release, as in `unlock`.
        let order = step::order("mutex.hold: Release", Ordering::Release);
        while let Err(now) = self.word.compare_exchange_weak(word, self.freed(word, WOKEN), order, Ordering::Relaxed) {
            word = now;
        }
        // SAFETY: the caller's promise. The lock may be gone from here on; the waiter is not.
        unsafe { Waiter::tell(chosen, COME) };
    }

    /// `word` without LOCKED, and with PASSIVE as the list is, and `set`.
    fn freed(&self, word: *mut Waiter, set: usize) -> *mut Waiter {
        let passive = if self.passive.is_empty() { 0 } else { PASSIVE };
        with(word, passive | set, (LOCKED | PASSIVE) & !passive)
    }

    /// Clears LOCKED, and wakes a new waiter unless somebody looks by now.
    ///
    /// # Safety
    /// The caller holds the lock.
    unsafe fn release_and_wake(&self, late: bool) {
        let cpu = current_cpu();
        // SAFETY: the caller's promise, for both.
        let take = || unsafe {
            self.take_over();
            self.passive.pop_new(cpu)
        };
        let mut chosen = take();
        self.turns.wakes(late);
        // ORDER mutex.hold: Relaxed; the compare-and-swap decides.
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if flags(word) & HEIR != 0
                && let Some(waiter) = chosen.take()
            {
                // SAFETY: the caller's promise; `waiter` is out of the list, and waits.
                unsafe { self.passive.push_newest(waiter) };
            }
            if chosen.is_none() && flags(word) & (HEIR | WOKEN) == 0 && !chain(word).is_null() {
                // Whoever looked has gone to sleep meanwhile.
                chosen = take();
                // ORDER mutex.hold: Relaxed; see above.
                word = self.word.load(Ordering::Relaxed);
                continue;
            }
            let free = self.freed(word, if chosen.is_some() { WOKEN } else { 0 });
            // ORDER mutex.hold: Release, as in `unlock`.
            let order = step::order("mutex.hold: Release", Ordering::Release);
            match self.word.compare_exchange_weak(word, free, order, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        if let Some(waiter) = chosen {
            // SAFETY: out of the list, and waiting. The lock may be gone from here on; the waiter is not.
            unsafe { Waiter::tell(waiter, COME) };
        }
    }
}

impl Default for RawMutex {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RawMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawMutex").field("is_locked", &self.is_locked()).finish()
    }
}

// SAFETY: LOCKED is set by one thread at a time, and cleared or handed over by the one that holds the lock.
#[cfg(any(feature = "std", loom))]
unsafe impl lock_api::RawMutex for RawMutex {
    #[cfg(not(loom))]
    #[allow(clippy::declare_interior_mutable_const, reason = "the interface asks for it")]
    const INIT: Self = Self::new();
    #[cfg(loom)]
    const INIT: Self = panic!("a model makes its locks by `new`");

    type GuardMarker = lock_api::GuardSend;

    own_methods!();
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<RawMutex>() == 56);
