//! Lists: objects of which each is known only from the one before.
//!
//! There is nothing else to do while the next one is fetched, so nothing may lie between one and the next but the memory itself. What an object's words
//! are is found by vector instructions, compared with what the last one's were, and taken to be the same: the processor then runs ahead from address to address, and finds
//! out behind that whether it was. Words that lead to what is marked already (an element before, the type of all elements) or to a leaf cost a look at a mark, which
//! the processor foresees as well. What else elements refer to waits at the side, as entries, until there is enough of it for volleys.

use crate::descriptor::Entry;
use crate::hot::{Hot, PIECE, collect_best};
use crate::objects::{Marked, Objects};
use crate::window::{self, Look, Portable};
#[cfg(target_arch = "x86_64")]
use crate::window::{Avx2, Avx512};
use crate::words::Words;
use larder_sys::hint::{apart, prefetch};
use larder_units::GRANULE;

/// Entries at the side, after which the walk is left: their words are worth a volley.
const ENOUGH: usize = 2;
/// Words that are too few for a volley: they are gone through one by one.
pub const FEW: usize = 3;
/// Bytes in a line of the cache.
const LINE: usize = 64;
/// Objects after which it is left, so that whoever interrupts the marker does not wait for the end of the list.
const STEPS: usize = 1024;

/// Objects that are met one after the other, each known only from the one before. Where they were made one after the other, they lie at even
/// distances.
#[derive(Clone, Copy, Default)]
struct Chain {
    last: usize,
}

impl Chain {
    /// An object was met there: what lies some objects further on the same way is asked for, and returned; 0 where they do not lie so.
    #[inline(always)]
    fn see(&mut self, at: usize) -> usize {
        const NEAR: usize = 512;
        const AHEAD: usize = 24;
        let step = at.wrapping_sub(self.last);
        self.last = at;
        if step.wrapping_add(NEAR) >= 2 * NEAR {
            return 0;
        }
        let ahead = at.wrapping_add(step.wrapping_mul(AHEAD));
        prefetch(ahead);
        prefetch(ahead.wrapping_add(LINE));
        ahead
    }
}

/// Which of an element's words are addresses: kept from element to element.
#[derive(Clone, Copy, Default)]
struct Shape {
    /// As [`Look::look`] says it.
    inside: u64,
    /// The numbers of the words. The first is the one that leads to the next element.
    places: [u8; Shape::MOST],
    /// How many they are; none where they are more than there is room for.
    n: u8,
}

impl Shape {
    /// Elements with more addresses are no list's.
    const MOST: usize = 4;

    /// Of other elements. Out of line, so that what follows does not wait for it while elements stay the same.
    #[cold]
    #[inline(never)]
    fn of(inside: u64) -> Self {
        let mut shape = Self { inside, ..Self::default() };
        if inside.count_ones() as usize <= Self::MOST {
            let mut rest = inside;
            while rest != 0 {
                shape.places[shape.n as usize] = rest.trailing_zeros() as u8;
                shape.n += 1;
                rest &= rest - 1;
            }
        }
        shape
    }

    /// The word that was to lead to the next element did not: another one may.
    #[inline(always)]
    fn turn(&mut self) {
        if self.n > 1 {
            self.turn_some();
        }
    }

    #[cold]
    #[inline(never)]
    fn turn_some(&mut self) {
        self.places[..self.n as usize].rotate_left(1);
    }
}

/// Narrow entries that wait, the newest last.
#[derive(Clone, Copy)]
struct Side {
    entries: [Entry; ENOUGH + Shape::MOST],
    n: usize,
}

impl Side {
    /// None.
    #[inline(always)]
    fn new() -> Self {
        Self { entries: [Entry::at(0, 0); ENOUGH + Shape::MOST], n: 0 }
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<Entry> {
        self.n = self.n.checked_sub(1)?;
        Some(self.entries[self.n])
    }
}

/// What a walk goes on with, and leaves: moved in and out, so that outside of it all stays in registers.
pub struct Walk<H: Objects> {
    hot: Hot<H>,
    words: Words,
    trail: Trail,
    /// As in [`Objects::look_up`].
    all: bool,
    /// What is left to be scanned, in the order in which it was found.
    side: Side,
    /// ... and then to be looked up, if it is in the range, in which 0 is not.
    word: usize,
    /// The last object was no narrow one.
    is_long: bool,
}

/// What one walk knows from another.
#[derive(Clone, Copy, Default)]
pub struct Trail {
    shape: Shape,
    /// That of an element before of another shape: elements and what they refer to take turns.
    other: Shape,
    chain: Chain,
}

/// A form of [`Walk::go`] of its own, with all of the registers.
pub trait Walks: Look {
    /// [`Walk::go`].
    ///
    /// # Safety
    /// As for [`Look::look`].
    unsafe fn walk<H: Objects>(walk: &mut Walk<H>);
}

impl Walks for Portable {
    #[inline(never)]
    unsafe fn walk<H: Objects>(walk: &mut Walk<H>) {
        walk.go::<Self>();
    }
}

#[cfg(target_arch = "x86_64")]
impl Walks for Avx2 {
    #[inline(never)]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
    unsafe fn walk<H: Objects>(walk: &mut Walk<H>) {
        walk.go::<Self>();
    }
}

#[cfg(target_arch = "x86_64")]
impl Walks for Avx512 {
    #[inline(never)]
    #[target_feature(enable = "avx2,avx512f,bmi1,bmi2,popcnt")]
    unsafe fn walk<H: Objects>(walk: &mut Walk<H>) {
        walk.go::<Self>();
    }
}

impl<H: Objects> Walk<H> {
    /// Marks the object that the newest word refers to, what that refers to, and so on from object to object as long as one leads to one, without a detour
    /// over the words, whose latency would be added to that of the memory for each; then the same for what waits at the side, and the other words. What is left is in
    /// `words`, where there is room for a batch, and on the stack. Whether the last object was no narrow one.
    #[inline(always)]
    pub fn walk<L: Walks>(hot: &mut Hot<H>, words: &mut Words, trail: &mut Trail, all: bool) -> bool {
        let mut walk =
            Self { hot: *hot, words: *words, trail: *trail, all, side: Side::new(), word: 0, is_long: false };
        // SAFETY: as for `drain_with`.
        unsafe { L::walk(&mut walk) };
        (*hot, *words, *trail) = (walk.hot, walk.words, walk.trail);
        // Here, and not in the walk, whose loop is to have the registers.
        for &entry in &walk.side.entries[..walk.side.n] {
            hot.scan::<L>(entry, words);
        }
        if hot.heap.range().contains(walk.word) {
            // SAFETY: there is room.
            unsafe {
                words.top().write(walk.word);
                words.grow(1);
            }
        }
        walk.is_long
    }

    /// The same but for what waits at the side, with what is in memory brought to registers.
    #[inline(always)]
    fn go<L: Look>(&mut self) {
        let Self { mut hot, mut words, mut trail, all, .. } = *self;
        (self.side, self.word, self.is_long) = hot.walk::<L>(&mut words, &mut trail, all);
        (self.hot, self.words, self.trail) = (hot, words, trail);
    }
}

impl<H: Objects> Hot<H> {
    /// [`Walk::go`].
    #[inline(always)]
    fn walk<L: Look>(&mut self, words: &mut Words, trail: &mut Trail, all: bool) -> (Side, usize, bool) {
        let Trail { shape, other, chain } = trail;
        let range = self.heap.range();
        let mut side = Side::new();
        let most = self.tally.objects + STEPS;
        let mut next = words.pop();
        // Whether that is an element's word that was to lead to the next.
        let mut leads = false;
        let (entry, word, is_long) = loop {
            let entry = loop {
                if let Some(word) = next
                    && range.contains(word)
                    && let Some(found) = self.reach(word, all)
                {
                    break found;
                }
                if leads {
                    shape.turn();
                    leads = false;
                }
                if let Some(entry) = side.pop() {
                    break entry;
                }
                next = words.pop();
                if next.is_none() {
                    return (side, 0, false);
                }
            };
            let ahead = chain.see(entry.start.addr());
            if self.tally.objects >= most {
                break (Some(entry), 0, false);
            }
            let (at, length) = (entry.first(), entry.words());
            if length > window::NARROW {
                if let Some(n) = self.scan_described(entry, words) {
                    if n == 1 {
                        (next, leads) = (words.pop(), false);
                        continue;
                    }
                    break (None, 0, n > window::NARROW);
                }
                if length > PIECE / size_of::<usize>() {
                    break (Some(entry), 0, true);
                }
                if ahead != 0 {
                    // What lies there has as many lines.
                    (2 * LINE..length * size_of::<usize>())
                        .step_by(LINE)
                        .for_each(|line| prefetch(ahead.wrapping_add(line)));
                }
                // SAFETY: as in `drain_with`; there is room for a piece.
                unsafe { words.grow(collect_best(at, length, range, words.top())) };
                if words.len() > FEW {
                    break (None, 0, true);
                }
                (next, leads) = (words.pop(), false);
                continue;
            }
            // SAFETY: as in `drain_with`.
            let inside = unsafe { L::look(at, length, range) };
            if inside != shape.inside {
                core::mem::swap(shape, other);
                if inside != shape.inside {
                    *shape = Shape::of(inside);
                }
            }
            (next, leads) = (None, false);
            if shape.n == 0 {
                if inside != 0 {
                    break (Some(entry), 0, false);
                }
                continue;
            }
            // SAFETY: one of the object's words.
            let word = |place: u8| unsafe { at.add(place as usize).read() };
            if shape.n > 1 {
                for i in 1..Shape::MOST {
                    if i >= shape.n as usize {
                        break;
                    }
                    let other = word(shape.places[i]);
                    if range.contains(other)
                        && let Some(found) = self.reach(other, all)
                    {
                        prefetch(found.start.addr());
                        if found.words() > window::NARROW {
                            self.keep(found);
                            continue;
                        }
                        side.entries[side.n] = found;
                        side.n += 1;
                    }
                }
                if side.n >= ENOUGH || self.refused.is_some() {
                    break (None, word(shape.places[0]), false);
                }
            }
            (next, leads) = (Some(word(shape.places[0])), true);
        };
        if let Some(entry) = entry {
            side.entries[side.n] = entry;
            side.n += 1;
        }
        (side, word, is_long)
    }

    /// Marks the object that the word refers to; what is to be scanned in it, if there is anything. The word is in the heap's range.
    #[inline(always)]
    fn reach(&mut self, word: usize, all: bool) -> Option<Entry> {
        let Marked { bytes, mut entry } = self.heap.mark(self.heap.look_up(word, all))?;
        self.tally.bytes += bytes;
        // The compiler would add both at once, in memory.
        self.tally.objects = apart(self.tally.objects + 1);
        if entry.descriptor == 0 {
            // Even a look at none of its words would wait for its memory.
            return None;
        }
        let start = word & !(GRANULE.0 - 1);
        if entry.start.addr() == start {
            // The same, but known earlier: also where low bits of the word tell what it leads to.
            entry.start = core::ptr::with_exposed_provenance_mut(apart(start));
        }
        Some(entry)
    }
}
