//! The hash table under the weak-link and finalizer tables, and the mapped array under both.
//!
//! Keys are addresses, so zero stands for "empty" and the kernel's zeroed memory is an empty table. Collisions go to
//! the next slot (linear probing), and a removal moves the rest of its run back instead of leaving a tombstone: a table
//! that every collection thins out would otherwise fill with tombstones and have to be rebuilt in a pause (Knuth, *The
//! Art of Computer Programming* 3, section 6.4, algorithm R). The hash is Fibonacci hashing (same section): the upper
//! bits of the key times 2^64 over the golden ratio, which spreads addresses at regular distances evenly.
//!
//! Everything here is used under the runtime's allocation lock. Memory comes from the kernel, never from the global
//! allocator, and it is asked for in the functions called `reserve` only: nothing that a collection calls can fail.

use core::mem::size_of;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use larder_sys::memory::{map_lazy, unmap};
use larder_units::Bytes;

/// The kernel gave no memory for a table. The table is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// What an array of mapped memory may hold.
///
/// # Safety
/// All bytes zero are a valid value.
pub unsafe trait Zeroed: Copy {}

// SAFETY: zero is an integer.
unsafe impl Zeroed for usize {}

/// The smallest capacity of a table that holds anything: with slots of two or four words it is one page or less.
const FEWEST_SLOTS: usize = 128;

/// A table is rebuilt smaller, at the next insertion, once it could be this many times smaller. The whole table is
/// walked in every pause, so a past peak must not be paid for ever; a factor far from 2 keeps a table whose content
/// swings from being rebuilt again and again.
const SHRINK_FACTOR: usize = 16;

/// A capacity for `needed` slots, given the present one: unchanged while it is large enough and not far too large for these, and for the `usual`
/// ones.
///
/// The result is a power of two.
pub(crate) fn fitting_capacity(present: usize, needed: usize, usual: usize) -> usize {
    let for_slots = |slots: usize| slots.next_power_of_two().max(FEWEST_SLOTS);
    let fitting = for_slots(needed);
    if fitting > present || for_slots(needed.max(usual)) <= present / SHRINK_FACTOR { fitting } else { present }
}

/// How many slots a table needs for `keys`: a third more, so that a quarter stays empty and runs stay short.
const fn slots_for(keys: usize) -> usize {
    keys + keys.div_ceil(3)
}

/// A fixed number of values in memory of its own, zero at first.
///
/// Invariant: `at` is the start of a mapping that this array owns and that holds `count` values, all of them valid; or
/// `count` is zero and `at` dangles.
pub(crate) struct Array<T: Zeroed> {
    at: NonNull<T>,
    count: usize,
}

// SAFETY: the array owns its values as a `Vec` does.
unsafe impl<T: Zeroed + Send> Send for Array<T> {}
// SAFETY: as above; a shared array can only be read.
unsafe impl<T: Zeroed + Sync> Sync for Array<T> {}

impl<T: Zeroed> Array<T> {
    pub const EMPTY: Self = Self { at: NonNull::dangling(), count: 0 };

    /// Zeroed values. They cost memory once they are written.
    pub fn map(count: usize) -> Result<Self, NoMemory> {
        #[cfg(test)]
        if refusal::is_on() {
            return Err(NoMemory);
        }
        // A mapping is at most half the address space, so that rounding up to pages cannot overflow either.
        let size = count.checked_mul(size_of::<T>()).filter(|&size| size <= isize::MAX as usize).ok_or(NoMemory)?;
        let at = map_lazy(Self::mapped(size)).map_err(|_| NoMemory)?.cast();
        Ok(Self { at, count })
    }

    /// How much is mapped for values of `size` bytes together.
    fn mapped(size: usize) -> Bytes {
        Bytes(size).to_pages_rounded_up().to_bytes()
    }
}

impl<T: Zeroed> Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the invariant; `Zeroed` makes what nobody wrote valid, and pages are aligned for every `T`.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.count) }
    }
}

impl<T: Zeroed> DerefMut for Array<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the array is borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.count) }
    }
}

impl<T: Zeroed> Drop for Array<T> {
    fn drop(&mut self) {
        if self.count != 0 {
            // SAFETY: the invariant: the mapping is whole and ours, and borrows of it have ended.
            unsafe { unmap(self.at.as_ptr().cast(), Self::mapped(self.count * size_of::<T>())) };
        }
    }
}

/// One place of a table. A key of zero means that it is empty, and then the value means nothing.
#[derive(Clone, Copy)]
struct Slot<V> {
    key: usize,
    value: V,
}

// SAFETY: zero is a key, and a valid `V` by its own promise.
unsafe impl<V: Zeroed> Zeroed for Slot<V> {}

/// A map from addresses to small values.
///
/// Invariant: the capacity is zero or a power of two, at least a quarter of it is empty, and between the slot where a
/// key's search begins (its home) and the slot where the key is, no slot is empty.
pub struct Table<V: Zeroed> {
    slots: Array<Slot<V>>,
    len: usize,
    usual: usize,
}

impl<V: Zeroed> Table<V> {
    /// An empty table, which has no memory yet.
    pub const fn new() -> Self {
        Self { slots: Array::EMPTY, len: 0, usual: 0 }
    }

    /// How many keys there are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no key.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of `key`.
    pub fn get(&self, key: usize) -> Option<V> {
        self.find(key).map(|at| self.slots[at].value)
    }

    /// The value of `key`, to be changed.
    pub fn get_mut(&mut self, key: usize) -> Option<&mut V> {
        self.find(key).map(|at| &mut self.slots[at].value)
    }

    /// Makes room for one more key. It may also give memory back.
    pub fn reserve(&mut self) -> Result<(), NoMemory> {
        let capacity = fitting_capacity(self.slots.len(), slots_for(self.len + 1), slots_for(self.usual));
        if capacity == self.slots.len() {
            return Ok(());
        }
        match Array::map(capacity) {
            Ok(slots) => {
                let old = core::mem::replace(self, Self { slots, len: 0, usual: self.usual });
                // The order of the slots is the order of the hashes, so the new table fills from one end to the other
                // and no run grows long.
                for (key, value) in old.iter() {
                    self.insert(key, value);
                }
                Ok(())
            }
            // A table that stays too large is no failure.
            Err(NoMemory) if capacity < self.slots.len() => Ok(()),
            Err(NoMemory) => Err(NoMemory),
        }
    }

    /// Adds a key that is not there. There must be room: a `reserve` before it, or a removal since the last one.
    pub fn insert(&mut self, key: usize, value: V) {
        assert!(key != 0, "zero is not an address");
        assert!(slots_for(self.len + 1) <= self.slots.len(), "no room was reserved");
        debug_assert!(self.find(key).is_none());
        let mut at = self.home(key);
        while self.slots[at].key != 0 {
            at = self.after(at);
        }
        self.slots[at] = Slot { key, value };
        self.len += 1;
    }

    /// Removes a key and returns its value.
    pub fn remove(&mut self, key: usize) -> Option<V> {
        let at = self.find(key)?;
        let value = self.slots[at].value;
        self.remove_at(at);
        Some(value)
    }

    /// All keys and values, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = (usize, V)> {
        self.slots.iter().filter(|slot| slot.key != 0).map(|slot| (slot.key, slot.value))
    }

    /// A collection is about to take keys out.
    pub fn before_thinning(&mut self) {
        self.usual = self.len.max(self.usual / 2);
    }

    /// How many keys there are usually before a collection thins them out: as many as before the last one, or half of what was usual then. So a table
    /// that each collection empties is not rebuilt after each, and what was once is forgotten after a few.
    pub const fn usual(&self) -> usize {
        self.usual
    }

    /// Removes the keys for which `keep` says no, and returns how many. A key that is kept may be asked about twice. For collections.
    pub fn retain(&mut self, mut keep: impl FnMut(usize, V) -> bool) -> usize {
        self.before_thinning();
        let before = self.len;
        let mut at = 0;
        // A removal moves later keys to this slot or beyond it, so none escapes the walk; at the end of the array it
        // may move keys there that the walk has met at the beginning, and those it meets again.
        while at < self.slots.len() {
            let Slot { key, value } = self.slots[at];
            if key == 0 || keep(key, value) {
                at += 1;
            } else {
                self.remove_at(at);
            }
        }
        before - self.len
    }

    /// Where the search for `key` begins. The table has memory.
    fn home(&self, key: usize) -> usize {
        const GOLDEN: usize = 0x9e37_79b9_7f4a_7c15;
        key.wrapping_mul(GOLDEN) >> (usize::BITS - self.slots.len().trailing_zeros())
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }

    /// How far `to` lies behind `from`, going round at the end.
    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.slots.len() - 1)
    }

    fn find(&self, key: usize) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        let mut at = self.home(key);
        loop {
            match self.slots[at].key {
                0 => return None,
                found if found == key => return Some(at),
                _ => at = self.after(at),
            }
        }
    }

    /// Empties a slot and closes the gap in the run behind it.
    fn remove_at(&mut self, at: usize) {
        let mut gap = at;
        let mut next = self.after(gap);
        while self.slots[next].key != 0 {
            // A key may move back to the gap unless its home lies behind the gap.
            let home = self.home(self.slots[next].key);
            if self.distance(home, next) >= self.distance(gap, next) {
                self.slots[gap] = self.slots[next];
                gap = next;
            }
            next = self.after(next);
        }
        self.slots[gap].key = 0;
        self.len -= 1;
    }
}

impl<V: Zeroed> Default for Table<V> {
    fn default() -> Self {
        Self::new()
    }
}

/// Lets a test refuse memory to the tables of its own thread.
#[cfg(test)]
pub(crate) mod refusal {
    use core::cell::Cell;

    thread_local!(static ON: Cell<bool> = const { Cell::new(false) });

    pub fn is_on() -> bool {
        ON.get()
    }

    /// Runs `work` while every request for memory is refused.
    pub fn during<R>(work: impl FnOnce() -> R) -> R {
        ON.set(true);
        let result = work();
        ON.set(false);
        result
    }
}

/// A small generator of random numbers for tests (Marsaglia's xorshift), so that a failure repeats.
#[cfg(test)]
pub(crate) struct Random(pub u64);

#[cfg(test)]
impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn assert_same(table: &Table<usize>, model: &HashMap<usize, usize>) {
        assert_eq!(table.len(), model.len());
        assert_eq!(table.iter().collect::<HashMap<_, _>>(), *model);
        for (&key, &value) in model {
            assert_eq!(table.get(key), Some(value));
        }
        assert!(slots_for(table.len) <= table.slots.len());
    }

    /// Random operations on few keys meet long runs, runs over the end of the array, growth, and shrinking.
    #[test]
    fn random_operations_agree_with_a_hash_map() {
        for seed in 1..=20 {
            let mut random = Random(seed << 40 | 0x9abc_def1);
            let keys = [90, 300, 5000][seed as usize % 3];
            let (mut table, mut model) = (Table::new(), HashMap::new());
            for step in 0..40_000 {
                let key = 0x10_0000 + 8 * random.below(keys);
                match random.below(1000) {
                    0..450 => match (table.get_mut(key), model.get_mut(&key)) {
                        (Some(a), Some(b)) => (*a, *b) = (step, step),
                        (None, None) => {
                            table.reserve().unwrap();
                            table.insert(key, step);
                            model.insert(key, step);
                        }
                        (a, b) => panic!("{a:?} and {b:?} differ"),
                    },
                    450..750 => assert_eq!(table.remove(key), model.remove(&key)),
                    750..998 => assert_eq!(table.get(key), model.get(&key).copied()),
                    _ => {
                        let bits = random.below(4);
                        let before = model.len();
                        model.retain(|key, value| (key / 8 + *value) & bits == 0);
                        assert_eq!(table.retain(|key, value| (key / 8 + value) & bits == 0), before - model.len());
                    }
                }
                if step % 500 == 0 {
                    assert_same(&table, &model);
                }
            }
            assert_same(&table, &model);
        }
    }

    /// Keys that share one home, at the end of the array, so that their run goes round.
    #[test]
    fn a_run_over_the_end_survives_removals_in_every_order() {
        let mut table = Table::<usize>::new();
        table.reserve().unwrap();
        let last = FEWEST_SLOTS - 1;
        let at_the_end: Vec<usize> = (1..).map(|n| n * 8).filter(|&key| table.home(key) == last).take(6).collect();
        let at_the_start: Vec<usize> = (1..).map(|n| n * 8).filter(|&key| table.home(key) <= 1).take(4).collect();
        let keys: Vec<usize> = at_the_end.into_iter().chain(at_the_start).collect();
        for mask in 0..1_usize << keys.len() {
            let gone = |key| mask >> keys.iter().position(|&k| k == key).unwrap() & 1 == 1;
            let mut table = Table::new();
            for &key in &keys {
                table.reserve().unwrap();
                table.insert(key, key + 1);
            }
            assert_eq!(table.retain(|key, _| !gone(key)), mask.count_ones() as usize);
            for &key in &keys {
                assert_eq!(table.get(key), (!gone(key)).then_some(key + 1));
            }
        }
    }

    #[test]
    fn a_table_grows_with_its_content_and_shrinks_after_it() {
        let mut table = Table::new();
        for n in 1..=100_000 {
            table.reserve().unwrap();
            table.insert(n * 16, n);
        }
        assert!((1..=100_000).all(|n| table.get(n * 16) == Some(n)));
        assert_eq!(table.slots.len(), 1 << 18);
        assert_eq!(table.retain(|key, _| key <= 160), 99_990);
        // There may be as many again before the next collection.
        for collections in 0..10 {
            table.reserve().unwrap();
            assert_eq!(table.slots.len() == FEWEST_SLOTS, collections >= 4, "after {collections}");
            assert!((1..=10).all(|n| table.get(n * 16) == Some(n)));
            assert_eq!(table.retain(|_, _| true), 0);
        }
    }

    #[test]
    fn a_refusal_is_a_value_and_changes_nothing() {
        let mut table = Table::new();
        assert_eq!(refusal::during(|| table.reserve()), Err(NoMemory));
        table.reserve().unwrap();
        let mut full = 0;
        while refusal::during(|| table.reserve()).is_ok() {
            full += 1;
            table.insert(full * 8, full);
        }
        assert_eq!(full, FEWEST_SLOTS * 3 / 4);
        assert!((1..=full).all(|n| table.get(n * 8) == Some(n)));
        assert!(Array::<usize>::map(usize::MAX / 4).is_err());
    }

    #[test]
    fn zero_is_never_found() {
        let mut table = Table::new();
        assert_eq!(table.get(0), None);
        table.reserve().unwrap();
        table.insert(8, 1);
        assert_eq!(table.get(0), None);
        assert_eq!(table.remove(0), None);
    }
}
