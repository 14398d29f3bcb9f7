//! Transactions: ordinary code between begin and commit (VEE'05, section 3).

use core::cell::Cell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::areas::{Core, Ticket};
use crate::sequence::inlined::Hold;
use crate::word::{Area, GuardedWord, Place, Word};

/// The transaction does not hold: another one began on its index since, or the thread is on another index, or the index was
/// taken over. Nothing was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interfered;

impl core::fmt::Display for Interfered {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("another transaction began on the same index, or the thread moved: begin again")
    }
}

impl core::error::Error for Interfered {}

pub use crate::sequence::inlined::NotStored;

impl From<Interfered> for NotStored {
    fn from(_: Interfered) -> Self {
        Self::Interfered
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Failed,
    Ended,
}

/// An open transaction.
///
/// A commit succeeds only if no other transaction began on this index since. It leaves the transaction open, so commits
/// can be chained; each prefix of the chain must be a consistent state. Interference is detected exactly: also when the
/// thread slept in a system call, moved and came back, or ran a signal handler with a transaction of its own. Being preempted
/// without interference does not fail it.
///
/// The body is not isolated: it may read values that do not belong together before a commit fails. So shared words are
/// atomics, what they point to stays mapped, and a long loop asks [`valid`](Self::valid).
///
/// Dropped without [`end`](Self::end), it counts as abandoned.
pub struct Transaction<'d, T: Area> {
    core: &'d Core,
    hold: Hold,
    state: Cell<State>,
    area: PhantomData<&'d T>,
}

impl<'d, T: Area> Transaction<'d, T> {
    #[inline(always)]
    pub(crate) fn begin(core: &'d Core) -> Self {
        // SAFETY: the domain's areas are of this type.
        let hold = unsafe { core.begin_inlined::<T>() };
        Self { core, hold, state: Cell::new(State::Open), area: PhantomData }
    }

    /// The index that the transaction works on.
    #[inline(always)]
    pub fn index(&self) -> usize {
        self.hold.index as usize
    }

    /// The index's area.
    #[inline(always)]
    pub fn area(&self) -> &'d T {
        // SAFETY: the area is mapped as long as the domain lives, which the transaction borrows.
        unsafe { &*self.hold.content.cast() }
    }

    /// Whether it still holds. True was true a moment ago; only a commit can say more.
    #[inline]
    pub fn valid(&self) -> bool {
        self.state.get() == State::Open && self.core.holds(Ticket::of(self.hold))
    }

    /// Stores to a word of the area that only transactions write.
    #[inline(always)]
    pub fn store<W: GuardedWord>(&self, word: &W, value: W::Value) -> Result<(), Interfered> {
        if self.state.get() != State::Open {
            return Err(Interfered);
        }
        let words = W::to_words(value);
        // SAFETY: the word exists, is aligned, and is written by transactions only.
        let stored = unsafe {
            match word.place() {
                Place::Small(at) => self.core.store_32_inlined(self.hold, at, words[0] as u32),
                Place::Whole(at) => self.core.store_64_inlined(self.hold, at, words[0]),
                // What a guarded pair holds does not change while the transaction holds, so it can be compared with itself.
                Place::Pair(at) => loop {
                    let word = |n| AtomicU64::from_ptr(at.add(n)).load(Ordering::Relaxed);
                    let old = [word(0), word(1)];
                    match self.core.compare_pair_inlined(self.hold, at, old, words) {
                        Err(NotStored::Mismatch) => {}
                        stored => break stored.is_ok(),
                    }
                },
            }
        };
        if stored { Ok(()) } else { Err(self.fail()) }
    }

    /// Stores to a word of the area that is `old`. The only commit for words that one-shot sequences write as well.
    #[inline(always)]
    pub fn compare_store<W: Word>(&self, word: &W, old: W::Value, new: W::Value) -> Result<(), NotStored> {
        if self.state.get() != State::Open {
            return Err(NotStored::Interfered);
        }
        let (old, new) = (W::to_words(old), W::to_words(new));
        // SAFETY: the word exists and is aligned; on this index only sequences, transactions and take-overs write it.
        let stored = unsafe {
            match word.place() {
                Place::Small(at) => self.core.compare_32_inlined(self.hold, at, old[0] as u32, new[0] as u32),
                Place::Whole(at) => self.core.compare_64_inlined(self.hold, at, old[0], new[0]),
                Place::Pair(at) => self.core.compare_pair_inlined(self.hold, at, old, new),
            }
        };
        if stored == Err(NotStored::Interfered) {
            self.fail();
        }
        stored
    }

    /// Begins anew after interference, as the paper's section 5.1 does: true when it is on the same index as before. The
    /// caller then looks whether what it had read is unchanged, and goes on, or gives up by [`invalidate`](Self::invalidate).
    pub fn reopen(&mut self) -> bool {
        if self.state.get() == State::Open {
            self.count_abandoned();
        }
        let before = self.hold.index;
        // SAFETY: the domain's areas are of this type.
        self.hold = unsafe { self.core.begin_inlined::<T>() };
        self.state.set(State::Open);
        // Relaxed: a counter.
        self.core.header(self.index()).reopened.fetch_add(1, Ordering::Relaxed);
        self.hold.index == before
    }

    /// Ends it normally.
    #[inline(always)]
    pub fn end(self) {
        if self.state.get() == State::Open {
            self.state.set(State::Ended);
        }
    }

    /// Gives it up: nothing that it knows can be used.
    pub fn invalidate(self) {
        // Relaxed: a counter.
        self.core.header(self.index()).invalid.fetch_add(1, Ordering::Relaxed);
    }

    #[cold]
    fn fail(&self) -> Interfered {
        if self.state.replace(State::Failed) == State::Open {
            // Relaxed: a counter.
            self.core.header(self.index()).failed.fetch_add(1, Ordering::Relaxed);
        }
        Interfered
    }

    #[cold]
    fn count_abandoned(&self) {
        // Relaxed: a counter.
        self.core.header(self.index()).abandoned.fetch_add(1, Ordering::Relaxed);
    }
}

impl<T: Area> core::ops::Deref for Transaction<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        self.area()
    }
}

impl<T: Area> Drop for Transaction<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.state.get() == State::Open {
            self.count_abandoned();
        }
    }
}
