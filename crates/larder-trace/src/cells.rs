//! Several objects of one block, marked and scanned together.
//!
//! Addresses that lie side by side in an array often lead to one block: to what was made for it, one after the other. For eight of
//! them at a time, what the block's record says is looked up once, the divisions are done by one vector instruction each, and each
//! object takes a dozen instructions instead of eighty.

use crate::guess::Guess;
use crate::objects::Inner;
use core::sync::atomic::AtomicU8;

use larder_units::BLOCK;

/// Addresses that are looked at together.
pub const TOGETHER: usize = 8;
/// The last of them is the newest.
pub const NEWEST: usize = TOGETHER - 1;
/// As many of them as are worth it.
pub const ENOUGH: u32 = 3;

/// Cells of one size in one block, whose objects are scanned alike.
#[derive(Clone, Copy, Debug)]
pub struct Cells {
    /// Address of the first.
    pub first: usize,
    /// Bytes in each.
    pub bytes: usize,
    /// `ceil(2^31 / granules of a cell)`, to divide by.
    pub reciprocal: u32,
    /// How many there are.
    pub count: usize,
    /// The mark byte of the first; those of the others follow.
    pub marks: *const AtomicU8,
    /// Words to scan in each, at most a line of the cache: no more is asked for.
    pub words: usize,
}

impl Cells {
    /// The number of the cell that contains the byte `within` the block.
    #[inline(always)]
    fn number(&self, within: usize) -> usize {
        (((within >> 4) as u64 * u64::from(self.reciprocal)) >> 31) as usize
    }

    /// The mark byte of a cell.
    ///
    /// # Safety
    /// There is such a cell.
    #[inline(always)]
    pub unsafe fn mark(&self, number: usize) -> &'static AtomicU8 {
        // SAFETY: the caller's promise; mark bytes are never unmapped.
        unsafe { &*self.marks.add(number) }
    }
}

/// Where the objects are that the words refer to.
#[derive(Debug)]
pub struct Located {
    /// The numbers of their cells.
    pub numbers: [usize; TOGETHER],
    /// Where they begin.
    pub starts: [usize; TOGETHER],
}

impl Located {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self { numbers: [0; TOGETHER], starts: [0; TOGETHER] }
    }

    /// Finds out for those of the words that point into the cells, if they are [`ENOUGH`] and the newest, which is the last, is among
    /// them; moves the others to the front, in their order, and returns how many these are. Else the answer is `None`, and the content
    /// means nothing. A word that points behind the last cell is neither: it is no object's. `inner`: how far into a cell a word may
    /// point. Where fewer than all count, the newest is there several times.
    #[inline(always)]
    pub fn find(&mut self, words: &mut [usize; TOGETHER], cells: &Cells, inner: Inner) -> Option<usize> {
        let (mut here, mut valid) = (0u8, 0u8);
        for (i, word) in words.iter().enumerate() {
            let within = word.wrapping_sub(cells.first);
            let number = cells.number(within % BLOCK.0);
            let offset = number * cells.bytes;
            let is_here = within < BLOCK.0;
            let is_cell = number < cells.count;
            let counts = inner.counts(within.wrapping_sub(offset));
            here |= u8::from(is_here && (counts || !is_cell)) << i;
            valid |= u8::from(is_here && is_cell && counts) << i;
            (self.numbers[i], self.starts[i]) = (number, cells.first.wrapping_add(offset));
        }
        if valid == u8::MAX {
            return Some(0);
        }
        if valid.count_ones() < ENOUGH || valid >> NEWEST == 0 {
            return None;
        }
        Some(self.keep_valid(words, here, valid))
    }

    /// Where not all are `valid`, the newest takes the places of those that are not; the words that are not `here` are moved to the front.
    /// How many these are.
    #[inline(always)]
    pub fn keep_valid(&mut self, words: &mut [usize; TOGETHER], here: u8, valid: u8) -> usize {
        let mut left = 0;
        for i in 0..TOGETHER {
            if valid >> i & 1 == 0 {
                (self.numbers[i], self.starts[i]) = (self.numbers[NEWEST], self.starts[NEWEST]);
            }
            words[left] = words[i];
            left += usize::from(here >> i & 1 == 0);
        }
        left
    }
}

impl Default for Located {
    fn default() -> Self {
        Self::new()
    }
}

/// Clusters of objects that were located and asked for, and wait until they are there: first in, first out.
///
/// Where objects come in the order of their addresses, waiting would do harm: one would go on at as many places as there are clusters, and
/// none of them would look like a sequence to the processor. Then each cluster goes at once, and what lies [`AHEAD`] of it is asked for.
#[derive(Debug)]
pub struct Clusters {
    waiting: [(Cells, Located); DEPTH],
    /// How many came.
    came: usize,
    /// How many went.
    went: usize,
    /// Up to where memory was asked for ahead.
    asked: usize,
    /// Whether the newest words are a cluster: an array's, and those of what it refers to.
    guesses: [Guess; 2],
    /// How often clusters lay near those before, less how often they did not, lately.
    order: u32,
}

/// Whose words the newest ones are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// An array's.
    Array,
    /// Those of objects that it refers to: only leaves are taken as a cluster.
    Others,
}

/// Most clusters that wait.
const DEPTH: usize = 4;
/// Bytes ahead of an object whose memory is asked for. An object of 32 bytes takes some 8 ns, and memory 250 ns to come.
const AHEAD: usize = 4096;
/// Bytes by which a cluster may lie before or behind what was asked for, and still come in order.
const NEAR: usize = 16 << 10;
/// Most lines that are asked for ahead of one cluster.
const LINES: usize = 16;
/// Bytes in a cache line.
const LINE: usize = 64;
/// Bounds of `order`, and from where on clusters come in order.
const ORDER_MOST: u32 = 16;
const ORDERED: u32 = 4;
/// After so many clusters it is taken for granted once more that they come in order: while clusters wait, it cannot be seen.
const TRY_AGAIN: usize = 256;

impl Clusters {
    /// None.
    pub const fn new() -> Self {
        const NONE: Cells = Cells { first: 0, bytes: 0, reciprocal: 0, count: 0, marks: core::ptr::null(), words: 0 };
        Self {
            waiting: [const { (NONE, Located::new()) }; DEPTH],
            came: 0,
            went: 0,
            asked: 0,
            guesses: [Guess::NEW; 2],
            order: ORDER_MOST,
        }
    }

    /// Whether the newest words may well be a cluster.
    #[inline(always)]
    pub fn guess(&mut self, of: Of) -> &mut Guess {
        &mut self.guesses[of as usize]
    }

    /// Whether none waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.came == self.went
    }

    /// Whether the oldest must go before another comes.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.came - self.went >= if self.order >= ORDERED { 1 } else { DEPTH }
    }

    /// Where the next goes; there is room.
    #[inline(always)]
    pub fn free(&mut self) -> &mut (Cells, Located) {
        &mut self.waiting[self.came % DEPTH]
    }

    /// What is in the free place has come. `ask`: for its objects' memory.
    #[inline(always)]
    pub fn come(&mut self, ask: bool) {
        let (_, located) = &self.waiting[self.came % DEPTH];
        self.came += 1;
        if !ask {
            return;
        }
        let start = located.starts[NEWEST];
        if self.order < ORDERED {
            located.starts.iter().for_each(|&start| larder_sys::hint::prefetch(start));
        }
        if self.came.is_multiple_of(TRY_AGAIN) {
            self.order = ORDER_MOST;
        }
        let goal = start.wrapping_add(AHEAD);
        let missing = goal.wrapping_sub(self.asked);
        if missing.wrapping_add(NEAR) >= 2 * NEAR {
            self.order = self.order.saturating_sub(2);
            self.asked = start & !(LINE - 1);
            return;
        }
        self.order = (self.order + 1).min(ORDER_MOST);
        let mut lines = LINES;
        while goal.wrapping_sub(self.asked) < NEAR && lines > 0 {
            larder_sys::hint::prefetch(self.asked);
            self.asked = self.asked.wrapping_add(LINE);
            lines -= 1;
        }
    }

    /// Takes the cluster that has waited longest, if there is one. It stays as it is until another comes.
    #[inline(always)]
    pub fn oldest(&mut self) -> Option<&(Cells, Located)> {
        if self.is_empty() {
            return None;
        }
        self.went += 1;
        Some(&self.waiting[(self.went - 1) % DEPTH])
    }
}

impl Default for Clusters {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{self, Look, Portable};

    const FIRST: usize = 0x7000_0000_4000;

    fn cells(bytes: usize) -> Cells {
        let reciprocal = (1u64 << 31).div_ceil(bytes as u64 / 16) as u32;
        Cells { first: FIRST, bytes, reciprocal, count: BLOCK.0 / bytes, marks: core::ptr::null(), words: 0 }
    }

    fn agree<L: Look>() {
        let mut seed = 1u64;
        let (mut found, mut refused) = ([0, 0], 0);
        for bytes in (16..=512).step_by(16) {
            let cells = cells(bytes);
            for round in 0..500 {
                let mut random = |n: usize| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (seed >> 33) as usize % n
                };
                let spread = if round % 5 == 0 { 2 * BLOCK.0 } else { cells.count * bytes };
                let from = if round % 5 == 0 { FIRST - BLOCK.0 / 2 } else { FIRST };
                let exact = round % 2 == 0;
                let words = [(); TOGETHER].map(|()| {
                    let word = from + random(spread);
                    let start = FIRST.wrapping_add((word.wrapping_sub(FIRST) / bytes) * bytes);
                    if !exact { word } else { start + if round % 3 == 0 { random(4) } else { 0 } }
                });
                for inner in [Inner::ALL, Inner::NONE, Inner { all: false, near: 0b1011 }] {
                    let is_here = |word: usize| (FIRST..FIRST + BLOCK.0).contains(&word);
                    let is_cell = |word: usize| is_here(word) && (word - FIRST) / bytes < cells.count;
                    let counts = |word: usize| {
                        inner.all
                            || [0, 1, 3][..inner.near.count_ones().min(3) as usize].contains(&((word - FIRST) % bytes))
                    };
                    let valid = |word: usize| is_cell(word) && counts(word);
                    let (mut after, mut located) = (words, Located::new());
                    // SAFETY: the caller has seen to the processor.
                    let left = unsafe { L::locate(&mut after, &cells, inner, &mut located) };
                    let n = words.iter().filter(|word| valid(**word)).count();
                    if (n as u32) < ENOUGH || !valid(words[NEWEST]) {
                        assert_eq!((left, after), (None, words), "{words:x?} {cells:x?}");
                        refused += 1;
                        continue;
                    }
                    found[usize::from(n == TOGETHER)] += 1;
                    let others: Vec<usize> =
                        words.iter().copied().filter(|&w| !is_here(w) || is_cell(w) && !counts(w)).collect();
                    assert_eq!(after[..left.unwrap()], others, "{words:x?} {cells:x?}");
                    let objects = words.map(|word| if valid(word) { word } else { words[NEWEST] });
                    assert_eq!(located.numbers, objects.map(|word| (word - FIRST) / bytes));
                    assert_eq!(located.starts, located.numbers.map(|number| FIRST + number * bytes));
                }
            }
        }
        assert!(found.iter().all(|&n| n > 1000) && refused > 1000, "{found:?} and {refused}");
    }

    #[test]
    fn objects_are_located_as_by_a_division() {
        agree::<Portable>();
        #[cfg(target_arch = "x86_64")]
        {
            if window::detect() >= window::Form::Avx2 {
                agree::<window::Avx2>();
            }
            if window::detect() >= window::Form::Avx512 {
                agree::<window::Avx512>();
            }
        }
    }

    fn come(clusters: &mut Clusters, start: usize) {
        let (place, located) = clusters.free();
        *place = cells(32);
        located.starts = [start; TOGETHER];
        clusters.come(true);
    }

    #[test]
    fn clusters_go_at_once_in_order_and_wait_where_there_is_none() {
        let mut clusters = Clusters::new();
        let mut went = Vec::new();
        for i in 0..64 {
            come(&mut clusters, FIRST + 256 * i);
            assert!(clusters.is_full(), "cluster {i} came in order");
            went.extend(clusters.oldest().map(|(_, located)| located.starts[0]));
        }
        let mut longest = 0;
        for i in 64..128 {
            while clusters.is_full() {
                went.extend(clusters.oldest().map(|(_, located)| located.starts[0]));
            }
            come(&mut clusters, FIRST + 256 * i + (i << 20));
            longest = longest.max(clusters.came - clusters.went);
        }
        assert_eq!(longest, DEPTH);
        while let Some((_, located)) = clusters.oldest() {
            went.push(located.starts[0]);
        }
        assert!(clusters.is_empty() && went.len() == 128 && went.is_sorted());
    }
}
