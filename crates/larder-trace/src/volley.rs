//! Eight words looked up together, whatever blocks they lead to.
//!
//! What a word's block says about its cells is one line of memory. The eight lines of eight words are turned into columns; the places of the
//! objects' marks, where they begin and what to scan in them are then computed by one vector instruction each. Their marks and their memory
//! are asked for, and the eight wait until some others have come. So an object takes fewer instructions than by a queue of single places, and
//! objects are still scanned one after the other, in nearly the same order.
//!
//! Several volleys wait at once: where one word is looked up after the other, the next misses of the cache are asked for while the processor
//! waits for one, and here they come in turns. Two at once were slower than the queue, four and six faster (an Intel Xeon, 2026-11-22; figures in
//! `docs/performance.md`), eight faster still where objects are short (an AMD EPYC, 2026-11-25). With AVX2 the eight are four and four: a node of a tree in
//! order takes 54 instructions then, and 145 one by one (callgrind).

use core::hint::select_unpredictable;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::cells::TOGETHER;
use crate::descriptor::Entry;

/// Words that are looked up together.
pub const LANES: usize = TOGETHER;
/// Volleys that wait at most; and where objects may be longer than a line, of which each asks for several.
const DEPTH: usize = 8;
const DEPTH_OF_LONG: usize = 4;

/// Where a heap keeps the records of its blocks, one behind the other. Each is laid out as [`Record`] says.
#[derive(Clone, Copy, Debug)]
pub struct Records {
    /// The heap's first address, where its first block begins.
    pub base: usize,
    /// Address of the first block's record.
    pub table: usize,
}

impl Records {
    /// The address of the record of the block that the word points into.
    #[inline(always)]
    pub fn of(self, word: usize) -> usize {
        self.table + word.wrapping_sub(self.base) / larder_units::BLOCK.0 * Record::BYTES
    }
}

/// Where the record of a block has what, in bytes from its beginning. The heap asserts that its own are so.
pub struct Record;

impl Record {
    /// Bytes in a record, to a multiple of which it is aligned.
    pub const BYTES: usize = 64;
    /// One byte.
    pub const STATE: usize = 0;
    /// The state of the first block of a run of cells.
    pub const CELLS_STATE: u8 = 2;
    /// The state of a later block of a run, of cells or of anything else.
    pub const TAIL_STATE: u8 = 4;
    /// Four bytes: bytes in a cell.
    pub const CELL: usize = 4;
    /// Four bytes: see [`crate::cells::Cells::reciprocal`].
    pub const RECIPROCAL: usize = 8;
    /// Four bytes: how many cells there are.
    pub const COUNT: usize = 12;
    /// Four bytes: of a later block of a run, the number of the first.
    pub const HEAD: usize = 16;
    /// Eight bytes: what to scan in an object.
    pub const DESCRIPTOR: usize = 32;
    /// Eight bytes: address of the first cell's mark byte.
    pub const MARKS: usize = 40;
}

impl Records {
    /// The record of the first block of the run to which this record's block belongs.
    ///
    /// # Safety
    /// The address of a record, of the table or of no block.
    #[inline(always)]
    pub(crate) unsafe fn head_of(self, record: usize) -> usize {
        // SAFETY: the caller's promise; fields are atomic where others write them meanwhile.
        let (state, head) = unsafe {
            let state: &AtomicU8 = &*core::ptr::with_exposed_provenance(record + Record::STATE);
            let head: &AtomicU32 = &*core::ptr::with_exposed_provenance(record + Record::HEAD);
            // ORDER block.publish: Acquire, with the store in `set_state`: of a later block the head is read behind it.
            (state.load(Ordering::Acquire), head.load(Ordering::Relaxed) as usize)
        };
        // Which words lead to later blocks is hard to foresee.
        select_unpredictable(state == Record::TAIL_STATE, self.table + head * Record::BYTES, record)
    }
}

/// Memory of a record.
#[repr(align(64))]
pub struct Line(pub [u8; Record::BYTES]);

#[cfg(test)]
impl Line {
    /// The record of a block of so many cells.
    pub(crate) fn of_cells(state: u8, cell: usize, count: usize, descriptor: usize, marks: usize) -> Self {
        let mut line = Self([0; Record::BYTES]);
        let mut put = |at: usize, bytes: &[u8]| line.0[at..at + bytes.len()].copy_from_slice(bytes);
        let reciprocal = (1u64 << 31).div_ceil(cell as u64 / 16) as u32;
        put(Record::STATE, &[state, 0xAA, 0xBB, 0xCC]);
        put(Record::CELL, &(cell as u32).to_le_bytes());
        put(Record::RECIPROCAL, &reciprocal.to_le_bytes());
        put(Record::COUNT, &(count as u32).to_le_bytes());
        put(Record::DESCRIPTOR, &descriptor.to_le_bytes());
        put(Record::MARKS, &marks.to_le_bytes());
        line
    }
}

/// The record of no block: for lanes without a word.
pub static NO_RECORD: Line = Line([0; Record::BYTES]);
/// The mark byte of no object. No epoch is 0.
pub static NOWHERE: AtomicU8 = AtomicU8::new(0);

/// The objects that eight words lead to.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Volley {
    /// Addresses of their mark bytes; that of [`NOWHERE`] where there is no object, and the rest of the lane means nothing.
    pub marks: [usize; LANES],
    /// Where they begin.
    pub starts: [usize; LANES],
    /// What to scan in each.
    pub descriptors: [usize; LANES],
    /// Bytes that each keeps.
    pub bytes: [usize; LANES],
    /// No narrow object has more words.
    pub most: Most,
    /// All lanes have objects, of which each keeps as many bytes, and has the same to be scanned, as the first lane's.
    pub alike: bool,
}

impl Volley {
    /// No objects.
    pub const NONE: Self = Self {
        marks: [0; LANES],
        starts: [0; LANES],
        descriptors: [0; LANES],
        bytes: [0; LANES],
        most: Most::Narrow,
        alike: false,
    };

    /// The mark byte of a lane.
    ///
    /// # Safety
    /// The volley was aimed.
    #[inline(always)]
    pub unsafe fn mark(&self, lane: usize) -> &'static AtomicU8 {
        // SAFETY: of a cell of the heap, or of none; mark bytes are never unmapped.
        unsafe { &*core::ptr::with_exposed_provenance(self.marks[lane]) }
    }

    /// What is to be scanned in a lane's object, if there is one.
    #[inline(always)]
    pub fn entry(&self, lane: usize) -> Entry {
        Entry::at(self.starts[lane], self.descriptors[lane])
    }
}

/// What to ask for when a volley is aimed. It does not wait.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Asked {
    /// Beside the mark: of an object that is scanned what the word points to, else the mark once more.
    pub first: [usize; LANES],
    /// The same a line further on, and the object's last byte, for one that is scanned and longer than a line; else what is asked for already. Means
    /// nothing where none is.
    pub beyond: [[usize; LANES]; 2],
}

impl Asked {
    /// Nothing.
    pub const NONE: Self = Self { first: [0; LANES], beyond: [[0; LANES]; 2] };
}

/// Lanes of a volley in which something is left to be done, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Special {
    /// Their words are to be looked up one by one: they lead to no run of cells, or not to the beginning of a cell where only that counts.
    pub others: u8,
    /// Their objects are scanned, and may be longer than a line.
    pub long: u8,
    /// ... and than two.
    pub longer: u8,
}

/// How many words narrow objects have that are scanned together: what has no more is scanned without a branch that depends on how many it has, and
/// what has more as what is not narrow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Most {
    /// Four.
    Four,
    /// Eight.
    Eight,
    /// [`NARROW`](crate::window::NARROW).
    #[default]
    Narrow,
}

/// Volleys that wait for their objects' memory: first in, first out.
pub struct Volleys {
    waiting: [Volley; DEPTH],
    /// Of the one that came last.
    asked: Asked,
    /// As many as should wait of such as came last.
    depth: usize,
    /// How many came.
    came: usize,
    /// How many went.
    went: usize,
}

impl Volleys {
    /// None.
    #[inline(always)]
    pub fn new() -> Self {
        Self { waiting: [Volley::NONE; DEPTH], asked: Asked::NONE, depth: DEPTH, came: 0, went: 0 }
    }

    /// Whether none waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.came == self.went
    }

    /// Whether the oldest must go before another comes.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.came - self.went >= self.depth
    }

    /// Whether more wait than should.
    #[inline(always)]
    pub fn is_crowded(&self) -> bool {
        self.came - self.went > self.depth
    }

    /// Where the next goes, and what is to be asked for; there is room.
    #[inline(always)]
    pub fn free(&mut self) -> (&mut Volley, &mut Asked) {
        (&mut self.waiting[self.came % DEPTH], &mut self.asked)
    }

    /// What is in the free place has come; whether some of its objects may be longer than a line.
    #[inline(always)]
    pub fn come(&mut self, is_long: bool) {
        self.came += 1;
        self.depth = if is_long { DEPTH_OF_LONG } else { DEPTH };
    }

    /// Takes the one that has waited longest, if there is one. It stays as it is until another comes.
    #[inline(always)]
    pub fn oldest(&mut self) -> Option<&Volley> {
        if self.is_empty() {
            return None;
        }
        self.went += 1;
        Some(&self.waiting[(self.went - 1) % DEPTH])
    }
}

impl Default for Volleys {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volleys_go_in_the_order_in_which_they_came_and_fewer_long_ones_wait() {
        let mut volleys = Volleys::new();
        assert!(volleys.oldest().is_none());
        let mut went = Vec::new();
        for i in 0..9 * DEPTH {
            // One goes before each that comes, and two where too many wait.
            for _ in 0..usize::from(volleys.is_full()) + usize::from(volleys.is_crowded()) {
                went.extend(volleys.oldest().map(|volley| volley.starts[0]));
            }
            volleys.free().0.starts = [i; LANES];
            let phase = i / (3 * DEPTH);
            volleys.come(phase == 1);
            if (i + 1).is_multiple_of(3 * DEPTH) {
                assert_eq!(i + 1 - went.len(), [DEPTH, DEPTH_OF_LONG, DEPTH][phase]);
            }
        }
        while let Some(volley) = volleys.oldest() {
            went.push(volley.starts[0]);
        }
        assert!(volleys.is_empty() && went.iter().copied().eq(0..9 * DEPTH), "{went:?}");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_volley_finds_what_is_found_one_by_one() {
        use crate::window::{self, Avx2, Avx512, Form};

        if window::detect() < Form::Avx2 {
            eprintln!("SKIPPED: the processor does not aim");
            return;
        }
        finds_what_is_found_one_by_one::<Avx2>();
        if window::detect() >= Form::Avx512 {
            finds_what_is_found_one_by_one::<Avx512>();
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn finds_what_is_found_one_by_one<L: crate::window::Look>() {
        use larder_units::BLOCK;

        use crate::objects::Inner;
        use crate::window::NARROW;

        const BASE: usize = 0x7000_0000_0000;
        const BLOCKS: usize = 9;
        /// Mark bytes of a block: an address each, at which nothing is read.
        const MARKS: usize = 0x6000_0000_0000;
        // State, cell size and descriptor of each block: with what a stale record may hold where it is none of cells.
        let blocks: [(u8, usize, usize); BLOCKS] = [
            (2, 16, 0),
            (2, 32, 32),
            (2, 112, 112),
            (3, 32, 32),
            (4, 48, 48),
            (2, 432, 9),
            (2, 3008, 3008),
            (4, 64, 64),
            (4, 3008, 0),
        ];
        let heads: [usize; BLOCKS] = [0, 1, 2, 3, 3, 5, 6, 6, 6];
        let count = |cell: usize| BLOCK.0 * if cell == 3008 { 3 } else { 1 } / cell;
        let mut table = blocks.map(|(state, cell, descriptor)| {
            Line::of_cells(state, cell, count(cell), descriptor, MARKS + cell * 0x1_0000)
        });
        for (line, head) in table.iter_mut().zip(heads) {
            line.0[Record::HEAD..Record::HEAD + 4].copy_from_slice(&(head as u32).to_le_bytes());
        }
        let records = Records { base: BASE, table: table.as_ptr().expose_provenance() };
        let nowhere = (&raw const NOWHERE).addr();
        let mut seed = 1u64;
        let mut random = |n: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % n
        };
        // Objects found, lanes that are special, words that lead to none.
        let mut seen = [0; 4];
        let mut widths = [0; 3];
        let mut seen_alike = 0;
        for round in 0..20_000 {
            let n = 1 + round % LANES;
            let words: [usize; LANES] = core::array::from_fn(|_| {
                // Now and then all of them lead to one block.
                let block = if round % 5 == 0 { round / 5 % BLOCKS } else { random(BLOCKS) };
                let head = heads[block];
                let within = (block - head) * BLOCK.0 + random(BLOCK.0);
                let exact = within / blocks[head].1 * blocks[head].1 + if round % 7 == 0 { random(4) } else { 0 };
                let within = if round % 3 == 0 { within } else { exact };
                BASE + head * BLOCK.0 + within
            });
            for inner in [Inner::NONE, Inner { all: false, near: 0b1011 }, Inner::ALL] {
                let (mut volley, mut asked) = (Volley::NONE, Asked::NONE);
                // SAFETY: the words are inside the range, and the records are right for it.
                let special = unsafe { L::aim(words.as_ptr(), n, records, inner, &mut volley, &mut asked) };
                let mut narrow = 0;
                for lane in 0..LANES {
                    let (others, long) = (special.others >> lane & 1 != 0, special.long >> lane & 1 != 0);
                    let (word, offset) = (words[lane], words[lane] - BASE);
                    let head = heads[offset / BLOCK.0];
                    let (state, cell, descriptor) = blocks[head];
                    let within = offset - head * BLOCK.0;
                    let (number, is_cell) = (within / cell, within / cell < count(cell));
                    let counts = inner.counts(within % cell);
                    let expects_other = lane < n && (state != 2 || is_cell && !counts);
                    assert_eq!(others, expects_other, "lane {lane} of {n}, {words:x?}");
                    if lane >= n || others || !is_cell {
                        assert_eq!((volley.marks[lane], long), (nowhere, false), "lane {lane} of {n}, {words:x?}");
                        assert_eq!(asked.first[lane], nowhere);
                        seen[if others { 1 } else { 2 }] += usize::from(lane < n);
                        continue;
                    }
                    let mark = MARKS + cell * 0x1_0000 + number;
                    assert_eq!(volley.marks[lane], mark, "lane {lane} of {n}, {words:x?}");
                    assert_eq!(volley.starts[lane], word - within % cell);
                    assert_eq!((volley.descriptors[lane], volley.bytes[lane]), (descriptor, cell));
                    assert_eq!(asked.first[lane], if descriptor == 0 { mark } else { word });
                    assert_eq!(long, descriptor != 0 && cell > 64);
                    assert_eq!(special.longer >> lane & 1 != 0, descriptor != 0 && cell > 128);
                    let first = asked.first[lane];
                    let further = if long { [64, cell - 1] } else { [0; 2] };
                    assert!(special.long == 0 || asked.beyond.map(|beyond| beyond[lane] - first) == further);
                    seen[if long { 3 } else { 0 }] += 1;
                    let words = volley.entry(lane).words();
                    narrow = narrow.max(if words <= NARROW { words } else { 0 });
                }
                let most = match volley.most {
                    Most::Four => 4,
                    Most::Eight => 8,
                    Most::Narrow => NARROW,
                };
                assert!(narrow <= most, "{narrow} words of {most}");
                widths[volley.most as usize] += 1;
                if volley.alike {
                    assert_eq!(special.others, 0, "{words:x?}");
                    let first = (volley.descriptors[0], volley.bytes[0]);
                    let is_alike = |lane: usize| (volley.descriptors[lane], volley.bytes[lane]) == first;
                    assert!((0..LANES).all(|lane| volley.marks[lane] != nowhere && is_alike(lane)), "{words:x?}");
                    seen_alike += 1;
                }
            }
        }
        assert!(seen.iter().all(|&n| n > 100), "{seen:?}");
        assert_eq!(seen_alike > 100, L::TELLS_ALIKE, "{seen_alike}");
        // Without some of these it may be taken for wider than it is, but not always.
        assert!(
            widths[Most::Narrow as usize] > 100 && widths[Most::Four as usize] + widths[Most::Eight as usize] > 100
        );
    }
}
