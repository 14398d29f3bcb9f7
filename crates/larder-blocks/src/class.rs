//! Size classes: which cell a request gets, and how long the blocks of a class are.
//!
//! Up to 128 bytes there is a class for each granule. Above, each class is the largest cell for which the smallest
//! request that it serves still uses 7/8 of its share of the block, the block's tail included: internal waste is at
//! most 12.5 % beyond the rounding to granules. From 2 to 10 KiB it is 11/12: what is so long, arrays mostly, often has one length in a
//! program, and is much of its memory. Blocks are longer where cells are larger, so that the tail stays small. The first blocks of a class are
//! shorter: each is at most as long as all before it together ([`Class::length_after`]), so that classes and kinds of which little is in use
//! take little memory. There the tail is an eighth at most, whatever the cell, and cells begin on fewer sets than is said below.
//!
//! Cells are spread over the sets of a first-level cache, of which there are 64 (Notes, "malloc for Haswell"). Every block begins on the
//! first set, so what counts is where the cells of one block begin: blocks above half a KiB are so long that they have some
//! thirty cells and more, and a cell is taken only if they begin on three quarters as many sets as could be, and on 16 (above
//! 16 KiB, on half as many). 250 objects of any size up to 16 KiB begin on at least 16 sets; of 1010 bytes, on 60.

use larder_units::{BLOCK, Bytes, GRANULE};

/// Largest cell in bytes; larger requests are large objects.
pub const LARGEST: usize = 32 * 1024 + 16;
/// Granules of the largest cell.
const GRANULES: usize = LARGEST / GRANULE.0;

/// One size class.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// Bytes in a cell.
    pub cell: u32,
    /// Most cells in a block of the class.
    pub cells: u32,
    /// Blocks of [`BLOCK`] bytes that one block of the class is long at most.
    pub blocks: u32,
    /// How long else it may be: bit `n - 1` says so of `n`. The tail is an eighth of it at most.
    lengths: u16,
    /// `ceil(2^31 / granules of a cell)`: see [`cell_at`].
    pub reciprocal: u32,
    /// log2 of the mark bytes reserved for each [`BLOCK`] of this class: picks the mark table.
    pub mark_shift: u8,
}

impl Class {
    /// Cells in a block of the class that is `blocks` long.
    pub const fn cells_in(&self, blocks: usize) -> usize {
        blocks * BLOCK.0 / self.cell as usize
    }

    /// Whether a block of the class may be so long.
    pub const fn may_be_long(&self, blocks: usize) -> bool {
        blocks >= 1 && blocks <= self.blocks as usize && self.lengths >> (blocks - 1) & 1 == 1
    }

    /// The fewest blocks that one block of the class is long.
    pub const fn shortest(&self) -> usize {
        self.lengths.trailing_zeros() as usize + 1
    }

    /// How long the next block is where those of its kind have `have` blocks: not longer than all of them together, but for the first.
    pub const fn length_after(&self, have: usize) -> usize {
        let most = if have < u16::BITS as usize { (1 << have) - 1 } else { u16::MAX };
        match (self.lengths & most).checked_ilog2() {
            Some(longest) => longest as usize + 1,
            None => self.shortest(),
        }
    }
}

const fn lengths(cell: usize) -> u16 {
    let longest = block_length(cell);
    let (mut lengths, mut n) = (1 << (longest - 1), 1);
    while n < longest {
        let bytes = n * BLOCK.0;
        if bytes % cell <= bytes / 8 {
            lengths |= 1 << (n - 1);
        }
        n += 1;
    }
    lengths
}

const fn block_length(cell: usize) -> usize {
    if cell <= 512 {
        1
    } else if cell <= 2112 {
        4
    } else {
        16
    }
}

/// Sets of a first-level cache, and bytes in a line.
const SETS: usize = 64;
const LINE: usize = 64;

/// On how many sets the first `n` cells of a block begin.
const fn sets(cell: usize, n: usize) -> usize {
    let (mut seen, mut i) = (0u64, 0);
    while i < n {
        seen |= 1 << (i * cell / LINE % SETS);
        i += 1;
    }
    seen.count_ones() as usize
}

/// Whether the cells of a block are spread as the module has it.
const fn is_spread(cell: usize) -> bool {
    let cells = block_length(cell) * BLOCK.0 / cell;
    let most = if cells < SETS { cells } else { SETS };
    let (quarters, least) = if cell < 256 {
        (0, 0)
    } else if cell <= 16 * 1024 {
        (3, 16)
    } else {
        (2, 0)
    };
    let seen = sets(cell, cells);
    4 * seen >= quarters * most && seen >= least
}

/// A request may leave one of so many parts of its cell's share unused.
const fn parts(smallest: usize) -> usize {
    if smallest > 2112 && smallest <= 10 * 1024 { 12 } else { 8 }
}

const fn acceptable(cell: usize, smallest: usize) -> bool {
    let bytes = block_length(cell) * BLOCK.0;
    parts(smallest) * smallest * (bytes / cell) >= (parts(smallest) - 1) * bytes
}

/// The largest acceptable cell whose smallest request is `smallest` bytes.
const fn next_cell(smallest: usize) -> usize {
    // Few cells of almost half a block cannot be spread: then the largest will do.
    let (mut best, mut spread) = (smallest, 0);
    let mut cell = smallest;
    while cell <= LARGEST && cell <= smallest + smallest / (parts(smallest) - 1) + 16 {
        if acceptable(cell, smallest) {
            best = cell;
            if is_spread(cell) {
                spread = cell;
            }
        }
        cell += GRANULE.0;
    }
    if spread > 0 { spread } else { best }
}

const fn describe(cell: usize) -> Class {
    let blocks = block_length(cell);
    Class {
        cell: cell as u32,
        cells: (blocks * BLOCK.0 / cell) as u32,
        blocks: blocks as u32,
        lengths: lengths(cell),
        reciprocal: ((1u64 << 31).div_ceil((cell / GRANULE.0) as u64)) as u32,
        mark_shift: if cell < 32 {
            10
        } else if cell < 64 {
            9
        } else if cell < 256 {
            8
        } else {
            6
        },
    }
}

const fn count() -> usize {
    let (mut n, mut cell) = (0, 0);
    while cell < LARGEST {
        cell = if cell < 128 { cell + 16 } else { next_cell(cell + 16) };
        n += 1;
    }
    n
}

/// How many classes there are.
pub const COUNT: usize = count();

/// Most cells in a block, of any class.
pub const MOST_CELLS: usize = {
    let (mut most, mut class) = (0, 0);
    while class < COUNT {
        if CLASSES[class].cells > most {
            most = CLASSES[class].cells;
        }
        class += 1;
    }
    most as usize
};

const fn table() -> [Class; COUNT] {
    let mut table = [describe(16); COUNT];
    let (mut n, mut cell) = (0, 0);
    while n < COUNT {
        cell = if cell < 128 { cell + 16 } else { next_cell(cell + 16) };
        table[n] = describe(cell);
        n += 1;
    }
    table
}

/// The classes, by size.
pub static CLASSES: [Class; COUNT] = table();

const fn by_granules() -> [u8; GRANULES + 1] {
    let table = table();
    let mut map = [0; GRANULES + 1];
    let (mut g, mut class) = (0, 0);
    while g <= GRANULES {
        if g * GRANULE.0 > table[class].cell as usize {
            class += 1;
        }
        map[g] = class as u8;
        g += 1;
    }
    map
}

/// Class of a request, by its size in granules rounded up (0 counts as 1).
pub static BY_GRANULES: [u8; GRANULES + 1] = by_granules();

/// Number of the cell that contains the byte at `offset` of a block: a multiplication instead of a division, exact for
/// every class and offset (in granules, the product of the two stays far below 2^31).
#[inline(always)]
pub const fn cell_at(offset: usize, reciprocal: u32) -> usize {
    (((offset >> 4) as u64 * reciprocal as u64) >> 31) as usize
}

/// Number of the cell that begins at `offset` of a block, or `None` where none does: what [`cell_at`] multiplies is a multiple of the cell
/// where the part of the product that it shifts out is smaller than the reciprocal. Where `offset`, which is below 2^32, is no granule's, it may be a number
/// beyond those of all cells of any block instead.
#[inline(always)]
pub const fn cell_beginning_at(offset: usize, reciprocal: u32) -> Option<usize> {
    // What is beyond the granule comes to the top, and multiplies to 2^48 at least.
    let product = (offset as u32).rotate_right(GRANULE.0.trailing_zeros()) as u64 * reciprocal as u64;
    if product & ((1 << 31) - 1) < reciprocal as u64 { Some((product >> 31) as usize) } else { None }
}

/// The class for a request of `bytes`, or `None` for a large object.
#[inline]
pub fn of(bytes: Bytes) -> Option<usize> {
    BY_GRANULES.get(bytes.to_granules_rounded_up().0).map(|&c| c as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_wastes_at_most_its_part_beyond_its_granules() {
        for g in 1..=GRANULES {
            let c = &CLASSES[BY_GRANULES[g] as usize];
            let request = (g * 16) as f64;
            assert!(f64::from(c.cell) >= request);
            let share = (c.blocks as usize * BLOCK.0) as f64 / f64::from(c.cells);
            if g > 8 {
                let most = if (2128.0..=10240.0).contains(&request) { 1.0 / 12.0 } else { 0.125 };
                assert!(1.0 - request / share <= most, "{request} bytes in a share of {share}");
            }
        }
    }

    #[test]
    fn classes_grow_and_fit_their_mark_tables() {
        for pair in CLASSES.windows(2) {
            assert!(pair[0].cell < pair[1].cell);
        }
        for c in &CLASSES {
            assert!(c.cell % 16 == 0);
            assert!(c.cells >= 1 && c.cells <= c.blocks << c.mark_shift, "{c:?}");
        }
        assert!(CLASSES[COUNT - 1].cell as usize >= 32 * 1024 + 16);
    }

    #[test]
    fn blocks_grow_with_what_there_is_and_have_short_tails() {
        for c in &CLASSES {
            let (mut have, mut last) = (0, 0);
            while last < c.blocks as usize {
                let n = c.length_after(have);
                assert!(c.may_be_long(n) && n >= last && (n <= have || n == c.shortest()), "{c:?}: {n} after {have}");
                assert!(c.cells_in(n) >= 1 && c.cells_in(n) <= n << c.mark_shift, "{c:?}: {n}");
                assert!(n == c.blocks as usize || n * BLOCK.0 % c.cell as usize <= n * BLOCK.0 / 8, "{c:?}: {n}");
                have += n;
                last = n;
            }
            assert!(have < 5 * c.blocks as usize, "{c:?}: the first of full length is behind {have}");
            assert_eq!(c.cells_in(last), c.cells as usize);
            assert!(c.shortest() * BLOCK.0 <= 9 * (c.cell as usize).max(BLOCK.0), "{c:?}");
        }
    }

    #[test]
    fn objects_of_one_size_begin_on_many_sets() {
        // The Notes' experiment: 250 objects, here in blocks one after the other.
        for c in CLASSES.iter().filter(|c| c.cell >= 256 && c.cell <= 16 * 1024) {
            let mut on_set = [0; SETS];
            let (mut have, mut left) = (0, 250);
            while left > 0 {
                let n = c.length_after(have);
                let cells = c.cells_in(n).min(left);
                (0..cells).for_each(|i| on_set[i * c.cell as usize / LINE % SETS] += 1);
                (have, left) = (have + n, left - cells);
            }
            let used = on_set.iter().filter(|&&n| n > 0).count();
            assert!(used >= 16, "{c:?} on {used} sets: {on_set:?}");
            if (900..1100).contains(&c.cell) {
                // An associativity of eight holds all of them.
                assert!(on_set.iter().all(|&n| n <= 8), "{c:?}: {on_set:?}");
            }
        }
    }

    #[test]
    fn reciprocals_divide_exactly() {
        for c in &CLASSES {
            for offset in 0..c.blocks as usize * BLOCK.0 {
                let cell = offset / c.cell as usize;
                assert_eq!(cell_at(offset, c.reciprocal), cell, "{c:?}");
                let begins = offset % c.cell as usize == 0;
                // What is no granule's multiplies to a number beyond all cells.
                let beginning = cell_beginning_at(offset, c.reciprocal).filter(|&number| number < 1 << 15);
                assert_eq!(beginning, begins.then_some(cell), "{c:?}");
            }
        }
    }
}
