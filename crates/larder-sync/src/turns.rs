//! A lock that threads have in turns: who waits is admitted in an order, and who is admitted may take the lock again and
//! again until its turn is over.
//!
//! A lock that hands itself over at each release, in whatever order, is as slow as its hand-over: two transfers of a cache
//! line between threads that run, a wake where the next one sleeps. Critical sections of a few nanoseconds then cost a
//! hundred times their length, and fairness by the single acquisition buys nobody anything. So here waiters stand in a
//! line, `A`, and only its *head* goes for the lock. Who was admitted keeps the lock for a turn of [`TURN_NS`], in which it
//! passes nobody's cache lines around; then the head asks for it, and the next release hands it over. (Locks in time slices
//! are "Avoiding Scheduler Subversion using Scheduler-Cooperative Locks", EuroSys'20; a lock before a lock with an impatient
//! head is "Fissile Locks", NETYS'20.)
//!
//! A turn is not a reservation. The head watches, and takes the lock when it has been free for two looks with no
//! acquisition between them: who stays away longer than some 50 ns has ended its turn.
//!
//! **Progress and fairness:** nobody but the thread whose turn it is takes the lock before the head, once the head has
//! arrived at it. With `n` waiters one waits for at most about `n` turns, or `n` critical sections where these are
//! longer. A head that sleeps while the lock goes free sleeps for at most as long again as it has waited, so the lock is
//! idle for at most half of the time of a turn while somebody wants it. While the next head wakes up, who runs may take the lock. **Cost:**
//! uncontended, a load and one compare-and-swap each way; 24 bytes and the line's. Waiters lie on their threads' stacks.
//! **Cancellation:** a thread must not be cancelled while it waits.
//!
//! # The word
//!
//! | bit | name | set by | cleared by |
//! |---|---|---|---|
//! | 0 | LOCKED | who takes the lock | who releases it, unless it hands it over |
//! | 1 | HEAD | the head, when it arrives | the head that takes the lock, or who hands it over |
//! | 2 | IMPATIENT | the head, when the turn is over | who hands over, or the head that finds the lock free |
//!
//! | step | from | to | who |
//! |---|---|---|---|
//! | take | 0 | LOCKED | anybody |
//! | again | HEAD | HEAD, LOCKED | the thread whose turn it is |
//! | idle | HEAD | LOCKED | the head |
//! | release | LOCKED, perhaps HEAD | the same without LOCKED | the holder |
//! | hand over | all three | LOCKED | the holder, who tells the head so |
//!
//! *No head is forgotten.* Before it is impatient the head sleeps for a limited time only. When it becomes so, either the
//! lock is free, and nobody else can take it any more, so the head does; or it is held, and the holder finds IMPATIENT when it
//! releases, because every step from a held lock is a compare-and-swap that names the bit.

use crate::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, spin_loop};
use crate::fair::RawQueueLock;
use crate::reciprocating::RawReciprocating;
use crate::sched::RunningOracle;
use crate::spin::{Patience, SLEEP_AND_WAKE_NS};
use crate::step;
use crate::ticks;
use crate::waiter::{Cell, MESSAGE};
use core::fmt;
use core::ptr::{self, NonNull};

const LOCKED: u32 = 1;
const HEAD: u32 = 2;
const IMPATIENT: u32 = 4;

/// The head holds the lock.
const OWN: u32 = MESSAGE;

/// How long a turn is, in nanoseconds, where others wait. A turn costs a wake and what its thread has in the cache.
pub const TURN_NS: u64 = 500_000;
/// How long the head watches before it sleeps for the first time, and again when it has become impatient.
const WATCH_NS: u64 = SLEEP_AND_WAKE_NS;
/// How long it sleeps first; each time it is twice as long. The kernel adds 50 us to each.
const NAP_NS: u64 = 30_000;
/// Pauses between two looks of the head, at most.
const PAUSES: u32 = 16;

/// In which order waiters come to the head.
///
/// # Safety
/// `enter` returns on one thread at a time, and then again after `leave`.
pub unsafe trait Admission {
    /// Waits until the calling thread is at the head.
    fn enter(&self);

    /// Lets the next one come to the head.
    ///
    /// # Safety
    /// The calling thread has entered.
    unsafe fn leave(&self);
}

// SAFETY: a lock.
unsafe impl<O: RunningOracle> Admission for RawQueueLock<O> {
    fn enter(&self) {
        self.lock_in_line();
    }
    unsafe fn leave(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.unlock() };
    }
}

// SAFETY: a lock.
unsafe impl Admission for RawReciprocating {
    fn enter(&self) {
        self.lock();
    }
    unsafe fn leave(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.unlock() };
    }
}

/// A lock in turns, without data; see the [module](self). `A` orders those who wait.
pub struct TurnLock<A> {
    /// Sync: `turns.hold`, `turns.head`.
    word: AtomicU32,
    /// How often somebody has taken the lock again in its turn, for the head to watch. Written by the holder; Relaxed.
    taken: AtomicU32,
    /// Whose turn it is. Sync: a thread that finds itself here has written it; Relaxed.
    whose: AtomicUsize,
    /// Where the head waits. Sync: `turns.head`.
    head: AtomicPtr<Cell>,
    line: A,
}

/// On cache lines of its own: the head looks at it while others work.
#[repr(align(128))]
struct Place(Cell);

// SAFETY: the head's cell is reached only while the head waits.
unsafe impl<A: Send> Send for TurnLock<A> {}
// SAFETY: as above.
unsafe impl<A: Sync> Sync for TurnLock<A> {}

/// Names the calling thread. Another one may have the name after it has ended, and goes on with its turn.
#[cfg(not(loom))]
#[inline]
fn me() -> usize {
    larder_sys::thread::thread_pointer().addr()
}

#[cfg(loom)]
fn me() -> usize {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    crate::loom::thread::current().id().hash(&mut hasher);
    hasher.finish() as usize | 1
}

impl<A: Admission> TurnLock<A> {
    const_unless_loom! {
        /// A free lock with an empty line.
        pub fn with_line(line: A) -> Self {
            Self {
                word: AtomicU32::new(0),
                taken: AtomicU32::new(0),
                whose: AtomicUsize::new(0),
                head: AtomicPtr::new(ptr::null_mut()),
                line,
            }
        }
    }

    /// Takes the lock if it is free, and nobody waits or it is the calling thread's turn; says whether it did.
    #[inline]
    pub fn try_lock(&self) -> bool {
        // ORDER turns.hold: Relaxed; the compare-and-swap decides.
        let word = self.word.load(Ordering::Relaxed);
        let mine = || self.whose.load(Ordering::Relaxed) == me() || !step::kept("turns: again only in one's turn");
        if word != 0 && (word != HEAD || !mine()) {
            return false;
        }
        // ORDER turns.hold: Acquire, with the compare-and-swap in `unlock`. Weaker, this critical section could miss what the
        // last one wrote.
        let order = step::order("turns.hold: Acquire", Ordering::Acquire);
        let taken = self.word.compare_exchange(word, word | LOCKED, order, Ordering::Relaxed).is_ok();
        if taken && word == HEAD {
            // ORDER turns.hold: Relaxed, both; only the holder writes it, and the head compares it with itself.
            self.taken.store(self.taken.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        taken
    }

    /// Takes the lock; waits while another thread holds it, or has its turn before this one.
    #[inline]
    pub fn lock(&self) {
        if !self.try_lock() {
            self.lock_slow();
        }
    }

    /// Whether somebody held the lock a moment ago. It orders nothing.
    pub fn is_locked(&self) -> bool {
        // ORDER turns.hold: Relaxed; a snapshot that guards no data.
        self.word.load(Ordering::Relaxed) & LOCKED != 0
    }

    /// Whether somebody waited at the head a moment ago. It orders nothing.
    pub fn is_awaited(&self) -> bool {
        // ORDER turns.hold: Relaxed; a snapshot.
        self.word.load(Ordering::Relaxed) & HEAD != 0
    }

    #[cold]
    fn lock_slow(&self) {
        self.line.enter();
        let place = Place(Cell::new());
        // ORDER turns.head: Relaxed; the bit publishes it.
        self.head.store(ptr::from_ref(&place.0).cast_mut(), Ordering::Relaxed);
        // ORDER turns.head: Release, with the load in `unlock_slow`. Weaker, the holder could tell the head before this one.
        self.word.fetch_or(HEAD, step::order("turns.head: Release", Ordering::Release));
        self.wait_at_the_head(&place.0);
        // ORDER turns.hold: Relaxed; see the field.
        self.whose.store(me(), Ordering::Relaxed);
        // SAFETY: entered above.
        unsafe { self.line.leave() };
    }

    /// Returns when the lock is the calling thread's, which is at the head.
    fn wait_at_the_head(&self, cell: &Cell) {
        let over = ticks::now().wrapping_add(ticks::of_nanos(TURN_NS));
        let mut patience = Patience::for_nanos(WATCH_NS);
        let (mut pauses, mut nap) = (1, NAP_NS);
        loop {
            if self.take_if_idle() {
                return;
            }
            if cfg!(loom) {
                // A model has no clock, and who waits in it runs only when nobody else can: the turn is over at once.
                break;
            }
            if patience.spin_for(pauses) {
                pauses = (pauses * 2).min(PAUSES);
                continue;
            }
            if over.wrapping_sub(ticks::now()) as i64 <= 0 {
                break;
            }
            cell.doze(nap);
            nap *= 2;
        }
        // ORDER turns.hold: Acquire, where the lock is free: with the compare-and-swap in `unlock`.
        let order = step::order("turns.impatient: Acquire", Ordering::Acquire);
        if self.word.fetch_or(IMPATIENT, order) & LOCKED == 0 {
            // ORDER turns.hold: Relaxed; from here on only this thread may take it.
            self.word.store(LOCKED, Ordering::Relaxed);
            return;
        }
        cell.wait(Patience::for_nanos(WATCH_NS));
    }

    /// Takes the lock if it is free and nobody takes it for a moment. The calling thread is at the head.
    fn take_if_idle(&self) -> bool {
        // ORDER turns.hold: Relaxed, all; the compare-and-swap decides.
        if self.word.load(Ordering::Relaxed) != HEAD {
            return false;
        }
        let taken = self.taken.load(Ordering::Relaxed);
        spin_loop();
        if self.taken.load(Ordering::Relaxed) != taken {
            return false;
        }
        // ORDER turns.hold: Acquire, as in `try_lock`.
        let order = step::order("turns.idle: Acquire", Ordering::Acquire);
        self.word.compare_exchange(HEAD, LOCKED, order, Ordering::Relaxed).is_ok()
    }

    /// Releases the lock.
    ///
    /// # Safety
    /// The calling thread holds the lock, or has been given it by the thread that does.
    #[inline]
    pub unsafe fn unlock(&self) {
        // ORDER turns.hold: Relaxed; the compare-and-swap decides.
        let word = self.word.load(Ordering::Relaxed);
        // ORDER turns.hold: Release, with the compare-and-swaps that set LOCKED. Weaker, the next critical section could miss
        // what this one wrote.
        let order = step::order("turns.hold: Release", Ordering::Release);
        if word & IMPATIENT != 0 || self.word.compare_exchange(word, word & !LOCKED, order, Ordering::Relaxed).is_err()
        {
            // SAFETY: the caller's promise.
            unsafe { self.unlock_slow() };
        }
    }

    /// # Safety
    /// As for [`TurnLock::unlock`].
    #[cold]
    unsafe fn unlock_slow(&self) {
        loop {
            // ORDER turns.head: Acquire, with the `or` in `lock_slow`.
            let word = self.word.load(step::order("turns.head: Acquire", Ordering::Acquire));
            if word & IMPATIENT != 0 && step::kept("turns: the impatient head is served") {
                let head = NonNull::new(self.head.load(Ordering::Relaxed));
                // ORDER turns.hold: Relaxed; the message orders it, and nobody changes a word with all three bits.
                self.word.store(LOCKED, Ordering::Relaxed);
                if let Some(head) = head {
                    // SAFETY: the head waits, and only the holder tells it anything.
                    unsafe { Cell::tell(head, OWN) };
                }
                return;
            }
            // ORDER turns.hold: Release, as in `unlock`.
            let order = step::order("turns.hold: Release", Ordering::Release);
            if self.word.compare_exchange(word, word & !LOCKED, order, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }
}

impl<A: Admission> fmt::Debug for TurnLock<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnLock").field("is_locked", &self.is_locked()).finish_non_exhaustive()
    }
}

// SAFETY: LOCKED is set by one thread at a time, and cleared or handed over by the one that holds the lock.
#[cfg(not(loom))]
unsafe impl<A: Admission + lock_api::RawMutex> lock_api::RawMutex for TurnLock<A> {
    #[allow(clippy::declare_interior_mutable_const, reason = "the interface asks for it")]
    const INIT: Self = Self::with_line(A::INIT);

    // The line is entered and left within one call, so it does not bind a guard to its thread.
    type GuardMarker = lock_api::GuardSend;

    own_methods!();
}
