//! Large objects: whole pages each, never moved, in two generations by a flag.
//!
//! A large object begins young: a young collection that does not find it frees it, one that finds it makes it old. Its
//! memory goes back to the kernel when it dies, so what is handed out is always zero.

use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use larder_sync::lock::Lock;
use larder_sys::memory::ReserveError;

use crate::list::{List, Table};
use crate::space::{LARGE_PAGE, Space};

/// Flags of an object.
const USED: u8 = 1;
const OLD: u8 = 2;
const MARKED: u8 = 4;

#[derive(Clone, Copy, Default)]
struct Place {
    at: usize,
    bytes: usize,
}

struct Taking {
    /// Where each object is, by number. Sync: `lock`; an object's own entry does not change while it lives.
    places: List<Place>,
    /// Numbers that are free.
    free: List<u32>,
    /// The page at which the next search begins.
    rover: usize,
}

pub(crate) struct Large {
    range: Range<usize>,
    lock: Lock,
    /// Sync: `lock`.
    taking: UnsafeCell<Taking>,
    /// Of each page of an object: its number and one. Sync: `lock`; read without it for addresses of live objects.
    owners: Table<AtomicU32>,
    /// Sync: set under `lock`; marks in a stopped world, by read-modify-writes.
    flags: Table<AtomicU8>,
    /// Address and size by number, for readers without the lock. Sync: as `owners`.
    extents: Table<Extent>,
}

#[derive(Default)]
struct Extent {
    at: core::sync::atomic::AtomicUsize,
    bytes: core::sync::atomic::AtomicUsize,
}

// SAFETY: two integers.
unsafe impl crate::list::Zero for Extent {}
// SAFETY: `taking` is used under `lock` only.
unsafe impl Sync for Large {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Large {}

impl Large {
    pub fn new(range: Range<usize>) -> Result<Self, ReserveError> {
        let pages = (range.end - range.start) / LARGE_PAGE;
        // A large object has at least two pages.
        let most = pages / 2 + 1;
        Ok(Self {
            range,
            lock: Lock::new(),
            taking: UnsafeCell::new(Taking {
                places: List::with_capacity(most)?,
                free: List::with_capacity(most)?,
                rover: 0,
            }),
            owners: Table::zeroed(pages)?,
            flags: Table::zeroed(most)?,
            extents: Table::zeroed(most)?,
        })
    }

    fn with<R>(&self, f: impl FnOnce(&mut Taking) -> R) -> R {
        let _guard = self.lock.lock();
        // SAFETY: the lock is held.
        f(unsafe { &mut *self.taking.get() })
    }

    /// Bytes that an object of `bytes` takes.
    pub fn footprint(bytes: usize) -> usize {
        bytes.next_multiple_of(LARGE_PAGE)
    }

    /// Zeroed memory for an object of `bytes` bytes.
    pub fn obtain(&self, bytes: usize, old: bool) -> Option<usize> {
        let wanted = bytes.div_ceil(LARGE_PAGE);
        self.with(|taking| {
            let first = self.find(taking, wanted)?;
            let at = self.range.start + first * LARGE_PAGE;
            let place = Place { at, bytes };
            let number = match taking.free.pop() {
                Some(number) => {
                    taking.places.as_mut_slice()[number as usize] = place;
                    number
                }
                None => {
                    taking.places.push(place);
                    taking.places.len() as u32 - 1
                }
            };
            let extent = &self.extents[number as usize];
            extent.at.store(at, Ordering::Relaxed);
            extent.bytes.store(bytes, Ordering::Relaxed);
            for page in &self.owners[first..first + wanted] {
                page.store(number + 1, Ordering::Relaxed);
            }
            self.flags[number as usize].store(if old { USED | OLD } else { USED }, Ordering::Relaxed);
            taking.rover = first + wanted;
            Some(at)
        })
    }

    /// The first of `wanted` free pages in a row, looking from the rover on and round.
    fn find(&self, taking: &Taking, wanted: usize) -> Option<usize> {
        let pages = self.owners.len();
        let search = |from: usize, to: usize| {
            let (mut at, mut run) = (from, 0);
            while at < to {
                match self.owners[at].load(Ordering::Relaxed) {
                    0 => {
                        run += 1;
                        at += 1;
                        if run == wanted {
                            return Some(at - wanted);
                        }
                    }
                    owner => {
                        let place = taking.places.as_slice()[owner as usize - 1];
                        at = (place.at - self.range.start + place.bytes).div_ceil(LARGE_PAGE);
                        run = 0;
                    }
                }
            }
            None
        };
        search(taking.rover, pages).or_else(|| search(0, pages.min(taking.rover + wanted)))
    }

    /// The object that an address is in: its number.
    fn number(&self, at: usize) -> Option<usize> {
        (self.owners[(at - self.range.start) / LARGE_PAGE].load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    /// The address and size of the object that an address is in.
    pub fn find_object(&self, at: usize) -> Option<Range<usize>> {
        let extent = &self.extents[self.number(at)?];
        let start = extent.at.load(Ordering::Relaxed);
        Some(start..start + extent.bytes.load(Ordering::Relaxed)).filter(|object| object.contains(&at))
    }

    fn flag(&self, object: usize) -> &AtomicU8 {
        match self.number(object) {
            Some(number) => &self.flags[number],
            None => larder_sys::die!(
                "a reference to {object:#x}, where no large object is: the host's scan or a barrier is wrong"
            ),
        }
    }

    /// Claims an object for who finds it first. With `young_only`, old ones are not claimed.
    pub fn mark(&self, object: usize, young_only: bool) -> bool {
        let flag = self.flag(object);
        let before = flag.load(Ordering::Relaxed);
        if before & MARKED != 0 || young_only && before & OLD != 0 {
            return false;
        }
        flag.fetch_or(MARKED, Ordering::Relaxed) & MARKED == 0
    }

    /// Whether the object was claimed.
    pub fn is_marked(&self, object: usize) -> bool {
        self.flag(object).load(Ordering::Relaxed) & MARKED != 0
    }

    /// Whether the object is old.
    pub fn is_old(&self, object: usize) -> bool {
        self.flag(object).load(Ordering::Relaxed) & OLD != 0
    }

    /// Every object: address and size. The world is stopped.
    pub fn objects(&self) -> impl Iterator<Item = Range<usize>> {
        let count = self.with(|taking| taking.places.len());
        (0..count).filter(|&number| self.flags[number].load(Ordering::Relaxed) & USED != 0).map(|number| {
            let extent = &self.extents[number];
            let at = extent.at.load(Ordering::Relaxed);
            at..at + extent.bytes.load(Ordering::Relaxed)
        })
    }

    /// Forgets marks. Before a collection; the world is stopped.
    pub fn clear_marks(&self) {
        let count = self.with(|taking| taking.places.len());
        for flag in &self.flags[..count] {
            flag.fetch_and(!MARKED, Ordering::Relaxed);
        }
    }

    /// After marking: frees what was not found, and makes the rest old. Returns the bytes freed, in whole pages. The world
    /// is stopped. With `young_only`, old objects were not looked at and stay.
    pub fn sweep(&self, space: &Space, young_only: bool) -> usize {
        let mut freed = 0;
        self.with(|taking| {
            for number in 0..taking.places.len() {
                let flags = self.flags[number].load(Ordering::Relaxed);
                if flags & USED == 0 {
                    continue;
                }
                if flags & MARKED != 0 || young_only && flags & OLD != 0 {
                    self.flags[number].store(USED | OLD, Ordering::Relaxed);
                    continue;
                }
                let Place { at, bytes } = taking.places.as_slice()[number];
                let end = at + Self::footprint(bytes);
                space.discard(at..end);
                let first = (at - self.range.start) / LARGE_PAGE;
                for page in &self.owners[first..first + bytes.div_ceil(LARGE_PAGE)] {
                    page.store(0, Ordering::Relaxed);
                }
                self.flags[number].store(0, Ordering::Relaxed);
                taking.free.push(number as u32);
                freed += end - at;
            }
            taking.rover = 0;
        });
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_again_and_are_zero() {
        let space = Space::reserve(1 << 20, 1 << 20, 1 << 20).unwrap();
        let large = Large::new(space.large.clone()).unwrap();
        let all: Vec<usize> = core::iter::from_fn(|| large.obtain(10_000, false)).collect();
        assert_eq!(all.len(), (1 << 20) / (3 * 4096));
        for &at in &all {
            space.word(at + 8).store(5, Ordering::Relaxed);
            assert_eq!(large.find_object(at + 9_999), Some(at..at + 10_000));
            assert_eq!(large.find_object(at + 10_000), None);
        }
        // Two neighbours die: their six pages make room for one object that is longer than either.
        for (i, &at) in all.iter().enumerate() {
            assert!(i == 5 || i == 6 || large.mark(at, false));
        }
        assert_eq!(large.sweep(&space, false), 6 * 4096);
        let long = large.obtain(6 * 4096, true).unwrap();
        assert_eq!((long, space.word(long + 8).load(Ordering::Relaxed)), (all[5], 0));
        assert!(large.is_old(long) && large.is_old(all[0]));
    }

    #[test]
    fn a_young_sweep_leaves_old_objects_alone() {
        let space = Space::reserve(1 << 20, 1 << 20, 1 << 20).unwrap();
        let large = Large::new(space.large.clone()).unwrap();
        let old = large.obtain(9000, true).unwrap();
        let found = large.obtain(9000, false).unwrap();
        large.obtain(9000, false).unwrap();
        assert!(large.mark(found, true) && !large.mark(found, true) && !large.mark(old, true));
        assert_eq!(large.sweep(&space, true), 3 * 4096);
        assert_eq!(large.objects().map(|object| object.start).collect::<Vec<_>>(), [old, found]);
    }
}
