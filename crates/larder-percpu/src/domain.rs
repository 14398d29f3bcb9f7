//! Domains: one area of a type for each index, and what can be done to it.

use core::marker::PhantomData;

use larder_sys::memory::ReserveError;

use crate::areas::{By, Core, Mode, Options};
use crate::locked::Busy;
use crate::statistics::Statistics;
use crate::transaction::{Interfered, Transaction};
use crate::word::{Area, Open64, OpenPair, Place, Word};

/// How often [`Domain::run`] tries before it takes the index over.
pub const TRIES: u32 = 64;

/// One `T` for each index. It can be a static.
///
/// ```
/// use larder_percpu::{Area, By, Domain, Open64};
///
/// #[repr(C)]
/// struct Hits { good: Open64, bad: Open64 }
/// // SAFETY: all of it is words, and zeroes are a valid beginning.
/// unsafe impl Area for Hits {}
///
/// static HITS: Domain<Hits> = Domain::new(By::ConcurrencyId);
///
/// HITS.add(|area| &area.good, 3);
/// HITS.add(|area| &area.bad, 1);
/// assert_eq!(HITS.iter().map(|area| area.good.load()).sum::<u64>(), 3);
/// ```
///
/// The areas are mapped when the domain is first used, and cost memory when their index is first used. They are never
/// moved; dropping the domain unmaps them.
#[repr(transparent)]
pub struct Domain<T: Area> {
    core: Core,
    areas: PhantomData<T>,
}

impl<T: Area> Domain<T> {
    /// A domain by concurrency ids or CPUs, with room for all that the machine could ever have.
    pub const fn new(by: By) -> Self {
        Self::with(Options::new(by))
    }

    /// A domain with options.
    ///
    /// For levels see [`Shared`](crate::structures::Shared): transactions need an index of one CPU's.
    pub const fn with(options: Options) -> Self {
        assert!(align_of::<T>() <= 64, "areas begin at multiples of 64 bytes");
        assert!(!matches!(options.by, By::Level(_)), "levels are shared by CPUs: use `Shared`");
        Self { core: Core::new(size_of::<T>(), options), areas: PhantomData }
    }

    /// Maps the areas now: see [`Core::set_up`].
    pub fn set_up(&self) -> Result<(), ReserveError> {
        self.core.set_up()
    }

    /// How the domain works in this process.
    pub fn mode(&self) -> Mode {
        self.core.mode()
    }

    /// The same without the type.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// How many areas there are. Indices of transactions are below.
    pub fn areas(&self) -> usize {
        self.core.areas()
    }

    /// The area of an index, to read.
    pub fn area(&self, index: usize) -> &T {
        assert!(index < self.core.areas(), "area {index} of {}", self.core.areas());
        // SAFETY: the area is mapped as long as the domain lives; an `Area` may be shared, and zero is one.
        unsafe { &*self.core.content(index).cast() }
    }

    /// All areas, to read. What other threads change meanwhile may be seen or not.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.core.areas()).map(|index| self.area(index))
    }

    /// What its transactions did.
    pub fn statistics(&self) -> Statistics {
        Statistics::of(&self.core)
    }

    /// Begins a transaction on the calling thread's index.
    ///
    /// Nothing is excluded: the body runs beside others, and its commits fail if one of them began on the same index
    /// since. Any thread, also in signal handlers once the domain is set up.
    #[inline(always)]
    pub fn begin(&self) -> Transaction<'_, T> {
        Transaction::begin(&self.core)
    }

    /// Runs `body` in transactions until one succeeds. After [`TRIES`] failures `slow` gets the area for itself.
    ///
    /// ```
    /// # use larder_percpu::{By, Domain, Guarded64};
    /// static LARGEST: Domain<Guarded64> = Domain::new(By::Cpu);
    ///
    /// fn note(value: u64) {
    ///     LARGEST.run(
    ///         |t| if value > t.load() { t.store(&**t, value) } else { Ok(()) },
    ///         |area| if value > area.load() { area.store(&**area, value) },
    ///     );
    /// }
    /// # note(7); note(3);
    /// # assert_eq!(LARGEST.iter().map(|a| a.load()).max(), Some(7));
    /// ```
    pub fn run<R>(
        &self,
        mut body: impl FnMut(&Transaction<'_, T>) -> Result<R, Interfered>,
        slow: impl FnOnce(&Exclusive<'_, T>) -> R,
    ) -> R {
        for _ in 0..TRIES {
            let transaction = self.begin();
            if let Ok(result) = body(&transaction) {
                transaction.end();
                return result;
            }
        }
        let mut slow = Some(slow);
        let areas = self.core.areas();
        let start = self.core.current_index().unwrap_or(0);
        // The last area is the spare shard, which code that interrupted a holder always gets.
        for turn in (0..areas).cycle() {
            let index = (start + turn) % areas;
            let done = self.take_over(index, |area| slow.take().map(|slow| slow(area)));
            if let Ok(Some(result)) = done {
                return result;
            }
        }
        unreachable!("a domain has areas")
    }

    /// Makes an area the caller's alone while `f` runs: see [`Core::take_over`].
    pub fn take_over<R>(&self, index: usize, f: impl FnOnce(&Exclusive<'_, T>) -> R) -> Result<R, Busy> {
        // SAFETY: the core passes the area's content; nobody else writes it while `f` runs.
        self.core.take_over(index, |content| f(&Exclusive::new(unsafe { &*content.cast::<T>() })))
    }

    /// The offset of a word in the area. The compiler makes a constant of it.
    #[inline(always)]
    fn offset<W>(&self, word: impl FnOnce(&T) -> &W) -> usize {
        // SAFETY: as in `area`; area 0 always exists, unless the domain is not set up.
        offset_in(unsafe { &*self.core.content(0).cast::<T>() }, word)
    }

    /// As `offset`, on a domain that may have to be set up before.
    #[inline(always)]
    fn place<W>(&self, word: impl FnOnce(&T) -> &W) -> usize {
        if self.core.sequence_areas() == 0 {
            self.core.areas();
        }
        self.offset(word)
    }

    /// Adds to a word of the current index's area.
    #[inline(always)]
    pub fn add(&self, word: impl FnOnce(&T) -> &Open64, value: u64) {
        let offset = self.place(word);
        // SAFETY: `place` gives the offset of a word in the area.
        unsafe { self.core.add(offset, value) };
    }

    /// Stores to a word of the current index's area and returns what it was.
    #[inline(always)]
    pub fn exchange(&self, word: impl FnOnce(&T) -> &Open64, new: u64) -> u64 {
        let offset = self.place(word);
        // SAFETY: as in `add`.
        unsafe { self.core.exchange(offset, new) }
    }

    /// Stores to a word of the current index's area if it is `old`; says whether it was.
    ///
    /// What `old` was read from may be another index's area: the thread may have moved.
    #[inline(always)]
    pub fn compare_store(&self, word: impl FnOnce(&T) -> &Open64, old: u64, new: u64) -> bool {
        let offset = self.place(word);
        // SAFETY: as in `add`.
        unsafe { self.core.compare_store(offset, old, new) == 0 }
    }

    /// As [`Domain::compare_store`], if another word is `also`.
    #[inline(always)]
    pub fn compare_two_store<W: Word<Value = u64>>(
        &self,
        word: impl FnOnce(&T) -> &Open64,
        old: u64,
        new: u64,
        other: impl FnOnce(&T) -> &W,
        also: u64,
    ) -> bool {
        let (offset, other) = (self.place(word), self.place(other));
        // SAFETY: as in `add`.
        unsafe { self.core.compare_two_store(offset, old, new, other, also) == 0 }
    }

    /// Stores to a pair of the current index's area if it is `old`; says whether it was.
    #[inline(always)]
    pub fn compare_store_pair(&self, pair: impl FnOnce(&T) -> &OpenPair, old: [u64; 2], new: [u64; 2]) -> bool {
        let offset = self.place(pair);
        // SAFETY: as in `add`; pairs are aligned.
        unsafe { self.core.compare_store_pair(offset, old, new) == 0 }
    }
}

/// The offset of a word in an area.
#[inline(always)]
pub(crate) fn offset_in<T, W>(area: &T, word: impl FnOnce(&T) -> &W) -> usize {
    let offset = core::ptr::from_ref(word(area)).addr().wrapping_sub(core::ptr::from_ref(area).addr());
    assert!(offset <= size_of::<T>() - size_of::<W>(), "the word must be part of the area");
    offset
}

impl<T: Area> Drop for Domain<T> {
    fn drop(&mut self) {
        // SAFETY: nobody borrows the domain any more; threads are inside an operation only while they borrow it.
        unsafe { self.core.destroy() };
    }
}

// SAFETY: areas may be shared (`Area: Sync`), and the core is atomics.
unsafe impl<T: Area> Sync for Domain<T> {}
// SAFETY: a domain belongs to no thread.
unsafe impl<T: Area> Send for Domain<T> {}

/// An area that was taken over: nobody else begins, commits, or runs a sequence there.
pub struct Exclusive<'d, T> {
    area: &'d T,
}

impl<'d, T> Exclusive<'d, T> {
    pub(crate) fn new(area: &'d T) -> Self {
        Self { area }
    }

    /// Stores to a word of the area.
    ///
    /// (A word of another area is not protected by this one's take-over.)
    pub fn store<W: Word>(&self, word: &W, value: W::Value) {
        use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
        let words = W::to_words(value);
        // Relaxed: the closed word orders them.
        // SAFETY: the address of a word that exists, as an atomic.
        unsafe {
            match word.place() {
                Place::Small(at) => AtomicU32::from_ptr(at).store(words[0] as u32, Ordering::Relaxed),
                Place::Whole(at) => AtomicU64::from_ptr(at).store(words[0], Ordering::Relaxed),
                Place::Pair(at) => {
                    AtomicU64::from_ptr(at).store(words[0], Ordering::Relaxed);
                    AtomicU64::from_ptr(at.add(1)).store(words[1], Ordering::Relaxed);
                }
            }
        }
    }
}

impl<T> core::ops::Deref for Exclusive<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.area
    }
}
