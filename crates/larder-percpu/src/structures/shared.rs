//! Areas for cores, packages or nodes: several CPUs use one at the same time.

use core::marker::PhantomData;

use larder_sys::topology::Level;

use super::bump_region::MOST;
use crate::areas::{By, Core, Mode, Options};
use crate::domain::{Exclusive, offset_in};
use crate::locked::Busy;
use crate::word::{Area, Open64, OpenPair};

/// One `T` for each core, package or node.
///
/// Each operation finds the area of the CPU that it runs on and ends in one `lock cmpxchg`, so it costs a locked
/// instruction, but the line is shared by neighbours only. There are no transactions: a token would say nothing about
/// another CPU of the same area.
pub struct Shared<T: Area> {
    core: Core,
    areas: PhantomData<T>,
}

impl<T: Area> Shared<T> {
    /// One area for each of these.
    pub const fn new(level: Level) -> Self {
        Self::with(level, true)
    }

    /// The same; without sequences where they are not wanted.
    pub const fn with(level: Level, sequences: bool) -> Self {
        assert!(align_of::<T>() <= 64, "areas begin at multiples of 64 bytes");
        let options = Options { by: By::Level(level), indices: 0, sequences };
        Self { core: Core::new(size_of::<T>(), options), areas: PhantomData }
    }

    /// How it works in this process.
    pub fn mode(&self) -> Mode {
        self.core.mode()
    }

    /// How many areas there is room for: one for each CPU; those of CPUs that lead no other are never used.
    pub fn areas(&self) -> usize {
        self.core.areas()
    }

    /// An area, to read.
    pub fn area(&self, index: usize) -> &T {
        assert!(index < self.core.areas(), "area {index} of {}", self.core.areas());
        // SAFETY: as in `Domain::area`.
        unsafe { &*self.core.content(index).cast() }
    }

    /// All areas, to read.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.core.areas()).map(|index| self.area(index))
    }

    /// The area that the calling thread's CPU belongs to: a hint. `None` without sequences.
    pub fn current(&self) -> Option<&T> {
        self.core.current_index().map(|index| self.area(index))
    }

    fn offset<W>(&self, word: impl FnOnce(&T) -> &W) -> usize {
        offset_in(self.area(0), word)
    }

    /// Adds to a word.
    pub fn add(&self, word: impl FnOnce(&T) -> &Open64, value: u64) {
        let offset = self.offset(word);
        // SAFETY: the offset is a word's in the area.
        unsafe { self.core.level_add(offset, value) };
    }

    /// Stores to a word that is `old`; says whether it was.
    pub fn compare_store(&self, word: impl FnOnce(&T) -> &Open64, old: u64, new: u64) -> bool {
        let offset = self.offset(word);
        // SAFETY: as in `add`.
        unsafe { self.core.level_compare_store(offset, old, new) == 0 }
    }

    /// Stores to a pair that is `old`; says whether it was.
    pub fn compare_store_pair(&self, pair: impl FnOnce(&T) -> &OpenPair, old: [u64; 2], new: [u64; 2]) -> bool {
        let offset = self.offset(pair);
        // SAFETY: as in `add`; pairs are aligned.
        unsafe { self.core.level_compare_store_pair(offset, old, new) == 0 }
    }

    /// Takes `bytes` from the region (frontier, limit) that the pair is; `None` when it has too little left.
    ///
    /// The limit that was stored there is an address, or another number below half of all.
    pub fn bump(&self, pair: impl FnOnce(&T) -> &OpenPair, bytes: usize) -> Option<usize> {
        if bytes > MOST {
            return None;
        }
        let offset = self.offset(pair);
        // SAFETY: as in `add`; pairs are aligned.
        let at = unsafe { self.core.level_bump(offset, bytes) };
        (at != 0).then_some(at)
    }

    /// Makes an area the caller's alone while `f` runs: see [`Core::take_over`].
    pub fn take_over<R>(&self, index: usize, f: impl FnOnce(&Exclusive<'_, T>) -> R) -> Result<R, Busy> {
        // SAFETY: the core passes the area's content; nobody else writes it while `f` runs.
        self.core.take_over(index, |content| f(&Exclusive::new(unsafe { &*content.cast::<T>() })))
    }
}

impl<T: Area> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: nobody borrows it any more.
        unsafe { self.core.destroy() };
    }
}

// SAFETY: areas may be shared, and the core is atomics.
unsafe impl<T: Area> Sync for Shared<T> {}
// SAFETY: it belongs to no thread.
unsafe impl<T: Area> Send for Shared<T> {}
