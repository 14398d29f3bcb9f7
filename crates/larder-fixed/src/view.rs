//! The heap as the marker sees it: a copy of what does not change during a cycle.

use core::hint::select_unpredictable;
use core::sync::atomic::{AtomicU8, Ordering};

use larder_blocks::block::{Block, State};
use larder_blocks::class;
use larder_blocks::space::BLOCK_SHIFT;
use larder_trace::window::Range;
use larder_trace::{Entry, Interior, Marked, Objects};
use larder_units::BLOCK;

use crate::heap::HEAP;
use crate::roots;

/// Bytes in a cache line.
const LINE: usize = 64;
/// Bytes of an object that are asked for as soon as it is marked.
const PREFETCHED: usize = 512;

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct View {
    base: usize,
    span: usize,
    table: usize,
    /// Mark byte of an object that is allocated and not yet marked.
    old: u8,
    /// Mark byte of a marked object.
    new: u8,
    all_interior: bool,
}

/// Where an object may be.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    /// The record of the first block of the run.
    block: &'static Block,
    mark: &'static AtomicU8,
}

/// The mark byte of no object. No epoch is 0.
static NOWHERE: AtomicU8 = AtomicU8::new(0);
/// The record of no block.
static NO_BLOCK: Block = Block::new();

#[inline(always)]
fn block_in(table: usize, index: usize) -> &'static Block {
    // SAFETY: the table has a record for every block below the frontier.
    unsafe { &*core::ptr::with_exposed_provenance::<Block>(table + index * size_of::<Block>()) }
}

/// Whether a word that points so far into an object keeps it.
#[inline(always)]
fn counts(displacement: usize, all: bool) -> bool {
    all || displacement == 0 || roots::is_valid_displacement(displacement)
}

/// The cell that contains the byte `within` a run of cells. `all`: wherever in the cell that is.
#[inline(always)]
fn find_cell(block: &'static Block, within: usize, all: bool) -> Option<Spot> {
    let cell = class::cell_at(within, block.reciprocal.get());
    if cell >= block.cells.get() as usize || !(all || counts(within - cell * block.cell.get() as usize, false)) {
        return None;
    }
    // SAFETY: `cell` is a cell of the block.
    Some(Spot { block, mark: unsafe { block.mark(cell) } })
}

/// `find` for what is not in the first block of a run of cells. Not a method: a view has too many fields to be passed in
/// registers, and one that is in memory makes the marker's loop slower.
#[inline(never)]
fn find_elsewhere(table: usize, offset: usize, all: bool) -> Option<Spot> {
    let mut index = offset >> BLOCK_SHIFT;
    let mut block = block_in(table, index);
    if block.state() == State::Tail {
        index = block.head.get() as usize;
        block = block_in(table, index);
    }
    let within = offset - (index << BLOCK_SHIFT);
    match block.state() {
        State::Small => find_cell(block, within, all),
        State::Large if within < block.size.get() && counts(within, all) => {
            // SAFETY: a large object is its block's one cell.
            Some(Spot { block, mark: unsafe { block.mark(0) } })
        }
        _ => None,
    }
}

impl View {
    /// A view for the cycle that goes from epoch `old` to `new`. World stopped.
    pub fn new(old: u8, new: u8) -> Self {
        Self {
            base: HEAP.space.base(),
            span: HEAP.space.span(),
            table: HEAP.space.table(),
            old,
            new,
            all_interior: HEAP.round.load(Ordering::Relaxed) > 15,
        }
    }

    /// First byte of the object at a spot.
    #[inline(always)]
    fn base_at(self, spot: Spot) -> usize {
        let record = core::ptr::from_ref(spot.block).addr();
        let first = self.base + (record - self.table) * (BLOCK.0 / size_of::<Block>());
        let cell = core::ptr::from_ref(spot.mark).addr() - spot.block.marks.get();
        first + cell * spot.block.cell.get() as usize
    }

    /// Bytes that the object at a spot keeps.
    #[inline(always)]
    fn bytes_at(self, spot: Spot) -> usize {
        match spot.block.cell.get() {
            0 => spot.block.size.get(),
            cell => cell as usize,
        }
    }

    /// Whether the object that contains `address` is marked; `None` outside of objects.
    pub fn is_marked(self, address: usize) -> Option<bool> {
        self.find(address, Interior::Always).map(|spot| spot.mark.load(Ordering::Relaxed) == self.new)
    }

    /// Marks an object without scanning it.
    pub fn set_mark(self, address: usize) {
        if let Some(spot) = self.find(address, Interior::Always) {
            spot.mark.store(self.new, Ordering::Relaxed);
        }
    }

    /// What scanning the object at `address` means, whether or not it is marked.
    pub fn entry_of(self, address: usize) -> Option<Entry> {
        let spot = self.find(address, Interior::Always)?;
        let descriptor = spot.block.descriptor.get();
        (descriptor != 0).then(|| Entry::at(self.base_at(spot), descriptor))
    }

    /// First and one past the last address of the object that contains `address`.
    fn extent(self, address: usize) -> (usize, usize) {
        match self.find(address, Interior::Always) {
            Some(spot) => (self.base_at(spot), self.base_at(spot) + self.bytes_at(spot)),
            None => (0, 0),
        }
    }

    /// The words of the object at `base`. World stopped.
    pub fn words_of(self, base: usize) -> impl Iterator<Item = usize> {
        let (low, high) = self.extent(base);
        // SAFETY: the object's own words, in a stopped world.
        (low..high).step_by(8).map(|at| unsafe { core::ptr::with_exposed_provenance::<usize>(at).read() })
    }

    /// Whether `word` points into the object at `base`.
    pub fn is_inside(self, base: usize, word: usize) -> bool {
        let (low, high) = self.extent(base);
        (low..high).contains(&word)
    }

    /// Base of the allocated object that contains `address`.
    pub fn base_of(self, address: usize) -> Option<usize> {
        let spot = self.find(address, Interior::Always)?;
        let m = spot.mark.load(Ordering::Relaxed);
        (m == self.old || m == self.new).then(|| self.base_at(spot))
    }
}

impl Objects for View {
    type Place = Spot;

    #[inline(always)]
    fn range(self) -> Range {
        Range { base: self.base, span: self.span }
    }

    #[inline(always)]
    fn find(self, word: usize, interior: Interior) -> Option<Spot> {
        let offset = word.wrapping_sub(self.base);
        if offset >= self.span {
            return None;
        }
        self.find_in_range(word, self.counts_everywhere(interior))
    }

    #[inline(always)]
    fn counts_everywhere(self, interior: Interior) -> bool {
        self.all_interior || interior == Interior::Always
    }

    #[inline(always)]
    fn find_in_range(self, word: usize, all: bool) -> Option<Spot> {
        let offset = word.wrapping_sub(self.base);
        let block = block_in(self.table, offset >> BLOCK_SHIFT);
        if block.state() != State::Small {
            return find_elsewhere(self.table, offset, all);
        }
        find_cell(block, offset & (BLOCK.0 - 1), all)
    }

    #[inline(always)]
    fn nowhere(self) -> Spot {
        Spot { block: &NO_BLOCK, mark: &NOWHERE }
    }

    #[inline(always)]
    fn prefetch(self, spot: Spot, word: usize) {
        let mark = core::ptr::from_ref(spot.mark).addr();
        larder_sys::hint::prefetch(mark);
        // Whether an object will be scanned is hard to foresee: no branch.
        let cell = spot.block.cell.get() as usize;
        let scanned = spot.block.descriptor.get() != 0;
        let start = select_unpredictable(scanned, word, mark);
        larder_sys::hint::prefetch(start);
        if cell > LINE {
            let last = start + select_unpredictable(scanned, cell - 1, 0);
            for line in 1..PREFETCHED / LINE {
                larder_sys::hint::prefetch((start + line * LINE).min(last));
            }
        }
    }

    #[inline(always)]
    fn mark(self, spot: Spot) -> Option<Marked> {
        // Relaxed: two markers may both see the old value; then the object is scanned twice, which is harmless. Nothing
        // else is published through the byte.
        if spot.mark.load(Ordering::Relaxed) != self.old {
            return None;
        }
        spot.mark.store(self.new, Ordering::Relaxed);
        let (base, bytes, descriptor) = (self.base_at(spot), self.bytes_at(spot), spot.block.descriptor.get());
        Some(Marked { bytes, entry: Entry::at(base, descriptor) })
    }
    #[inline(always)]
    fn is_leaf(self, spot: Spot) -> bool {
        spot.block.descriptor.get() == 0
    }

    #[inline(always)]
    fn mark_leaf(self, spot: Spot) -> Option<usize> {
        // Relaxed: as in `mark`.
        if spot.mark.load(Ordering::Relaxed) != self.old {
            return None;
        }
        spot.mark.store(self.new, Ordering::Relaxed);
        Some(self.bytes_at(spot))
    }
}
