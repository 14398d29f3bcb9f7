//! The heap as the marker sees it: a copy of what does not change during a cycle.

use core::hint::select_unpredictable;
use core::sync::atomic::{AtomicU8, Ordering};

use larder_blocks::block::{Block, State};
use larder_blocks::class;
use larder_blocks::space::BLOCK_SHIFT;
use larder_sys::hint;
use larder_trace::cells::Cells;
use larder_trace::volley::{NOWHERE, Record, Records};
use larder_trace::window::Range;
use larder_trace::{Entry, Grey, Interior, Marked, Objects, Visit};
use larder_units::BLOCK;

use crate::epochs::{Epochs, GREY};
use crate::grey;
use crate::heap::HEAP;
use crate::roots;

/// Bytes in a cache line.
pub(crate) const LINE: usize = 64;
/// Bytes of an object that are asked for as soon as it is marked.
const PREFETCHED: usize = 2048;
/// Words of an object that are looked at one by one before a marker is set to work for it alone.
const FEW_WORDS: usize = 64;
/// Lines that are asked for without a branch.
const FEW_LINES: usize = 8;

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct View {
    base: usize,
    span: usize,
    table: usize,
    epochs: Epochs,
    all_interior: bool,
}

/// What `records` promises.
const _: () = {
    assert!(size_of::<Block>() == Record::BYTES && align_of::<Block>() == Record::BYTES);
    assert!(Block::STATE == Record::STATE && State::Small as u8 == Record::CELLS_STATE);
    assert!(State::Tail as u8 == Record::TAIL_STATE && core::mem::offset_of!(Block, head) == Record::HEAD);
    assert!(core::mem::offset_of!(Block, cell) == Record::CELL);
    assert!(core::mem::offset_of!(Block, reciprocal) == Record::RECIPROCAL);
    assert!(core::mem::offset_of!(Block, cells) == Record::COUNT);
    assert!(core::mem::offset_of!(Block, descriptor) == Record::DESCRIPTOR);
    assert!(core::mem::offset_of!(Block, marks) == Record::MARKS);
};

/// Where an object may be.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    /// The record of the first block of the run.
    block: &'static Block,
    mark: &'static AtomicU8,
    /// First byte of the object.
    base: usize,
}

/// The record of no block.
static NO_BLOCK: Block = Block::new();
/// No place.
const NO_SPOT: Spot = Spot { block: &NO_BLOCK, mark: &NOWHERE, base: 0 };

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

/// Out of line, so that a branch leads here where there is no place: the processor goes on with the place before it knows whether there
/// is one.
#[cold]
#[inline(never)]
fn no_place() {}

/// The cell of the block that contains the byte `within` it, if that keeps it. `all`: wherever in the cell it is.
#[inline(always)]
fn cell_in(block: &'static Block, within: usize, all: bool) -> Option<usize> {
    let cell = class::cell_at(within, block.reciprocal.get());
    let is_kept = all || counts(within - cell * block.cell.get() as usize, false);
    (cell < block.cells.get() as usize && is_kept).then_some(cell)
}

/// The block that holds the object, and its cell there, for what is not in the first block of a run of cells. Not a method: a view has too
/// many fields to be passed in registers, and one that is in memory makes the marker's loop slower. So does a result that is.
#[cold]
#[inline(never)]
fn find_elsewhere(table: usize, offset: usize, all: bool) -> (&'static Block, u32) {
    let mut index = offset >> BLOCK_SHIFT;
    let mut block = block_in(table, index);
    if block.state() == State::Tail {
        index = block.head.get() as usize;
        block = block_in(table, index);
    }
    let within = offset - (index << BLOCK_SHIFT);
    let cell = match block.state() {
        State::Small => cell_in(block, within, all),
        // A large object is its block's one cell.
        State::Large if within < block.size.get() && counts(within, all) => Some(0),
        _ => None,
    };
    cell.map_or((&NO_BLOCK, 0), |cell| (block, cell as u32))
}

/// Asks for the lines of an object of so many bytes behind the one of `start`, none beyond that of `last`. How many they are is hard to foresee, so few
/// are asked for without a branch.
#[inline(always)]
fn prefetch_lines(start: usize, last: usize, bytes: usize) {
    for line in 1..FEW_LINES {
        hint::prefetch((start + line * LINE).min(last));
    }
    if bytes > FEW_LINES * LINE {
        prefetch_many_lines(start, last);
    }
}

/// The same where most objects are short: they have two lines and a part of a third at most, which a branch foresees.
#[inline(always)]
fn prefetch_behind(start: usize, last: usize, bytes: usize) {
    if bytes > 2 * LINE {
        return prefetch_lines(start, last, bytes);
    }
    hint::prefetch((start + LINE).min(last));
    hint::prefetch(last);
}

/// The same of a long object, behind its first lines.
#[cold]
#[inline(never)]
fn prefetch_many_lines(start: usize, last: usize) {
    let mut line = start + FEW_LINES * LINE;
    let last = last.min(start + PREFETCHED - LINE);
    while line < last {
        hint::prefetch(line);
        line += LINE;
    }
    hint::prefetch(last);
}

impl View {
    /// A view for the cycle that has these epochs.
    pub fn new(epochs: Epochs) -> Self {
        Self {
            base: HEAP.space.base(),
            span: HEAP.space.span(),
            table: HEAP.space.table(),
            epochs,
            all_interior: HEAP.round.load(Ordering::Relaxed) > 15,
        }
    }

    /// The number of a block, by its record.
    #[inline(always)]
    fn index_of(self, block: &'static Block) -> usize {
        (core::ptr::from_ref(block).addr() - self.table) / size_of::<Block>()
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
        self.find(address, Interior::Always).map(|spot| self.epochs.is_marked(spot.mark.load(Ordering::Relaxed)))
    }

    /// Marks an object without scanning it.
    pub fn set_mark(self, address: usize) {
        if let Some(spot) = self.find(address, Interior::Always)
            && !self.epochs.is_marked(spot.mark.load(Ordering::Relaxed))
        {
            spot.mark.store(self.epochs.new, Ordering::Relaxed);
        }
    }

    /// What scanning the object at `address` means, whether or not it is marked.
    pub fn entry_of(self, address: usize) -> Option<Entry> {
        let spot = self.find(address, Interior::Always)?;
        let descriptor = spot.block.descriptor.get();
        (descriptor != 0).then(|| Entry::at(spot.base, descriptor))
    }

    /// Whether an object of so many bytes, whose mark byte is there, is one that is not worth many requests: it is long, and marked already. Elements of large
    /// structures refer to these again and again. (The marks of long objects lie close together, and are soon in the nearest cache.)
    #[inline(always)]
    fn is_known(self, mark: usize, bytes: usize) -> bool {
        // SAFETY: a mark byte of the table, which is never unmapped.
        let mark = || unsafe { &*core::ptr::with_exposed_provenance::<AtomicU8>(mark) }.load(Ordering::Relaxed);
        bytes > FEW_LINES * LINE && hint::unusual() && !self.epochs.is_unmarked(mark())
    }

    /// Whether to scan this may mark something: all that is long, and what is scanned as clients say, may. World stopped.
    pub fn leads_on(self, entry: Entry) -> bool {
        let leads = |i| {
            // SAFETY: a word of the object, in a stopped world.
            let word = unsafe { entry.first().add(i).read() };
            let is_unmarked = |spot: Spot| self.epochs.is_unmarked(spot.mark.load(Ordering::Relaxed));
            self.find(word, Interior::AsConfigured).is_some_and(is_unmarked)
        };
        entry.words() > FEW_WORDS || (0..entry.words()).any(leads)
    }

    /// First and one past the last address of the object that contains `address`.
    fn extent(self, address: usize) -> (usize, usize) {
        match self.find(address, Interior::Always) {
            Some(spot) => (spot.base, spot.base + self.bytes_at(spot)),
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
        self.epochs.is_allocated(m).then_some(spot.base)
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
        let spot = self.look_up(word, self.counts_everywhere(interior));
        (spot.base != 0).then_some(spot)
    }

    #[inline(always)]
    fn counts_everywhere(self, interior: Interior) -> bool {
        self.all_interior || interior == Interior::Always
    }

    #[inline(always)]
    fn near_displacements(self) -> u64 {
        roots::near_displacements()
    }

    #[inline(always)]
    fn look_up(self, word: usize, all: bool) -> Spot {
        let offset = word.wrapping_sub(self.base);
        let mut block = block_in(self.table, offset >> BLOCK_SHIFT);
        let within = offset & (BLOCK.0 - 1);
        let mut first = word - within;
        let mut cell;
        if block.state() == State::Small {
            let Some(found) = cell_in(block, within, all) else {
                no_place();
                return NO_SPOT;
            };
            cell = found;
        } else {
            let number;
            (block, number) = find_elsewhere(self.table, offset, all);
            if core::ptr::eq(block, &raw const NO_BLOCK) {
                return NO_SPOT;
            }
            (first, cell) = (self.base + (self.index_of(block) << BLOCK_SHIFT), number as usize);
        }
        // SAFETY: `cell` is a cell of the block.
        let mark = unsafe { block.mark(cell) };
        cell *= block.cell.get() as usize;
        Spot { block, mark, base: first + cell }
    }

    #[inline(always)]
    fn nowhere(self) -> Spot {
        NO_SPOT
    }

    #[inline(always)]
    fn prefetch(self, spot: Spot, word: usize) {
        let mark = core::ptr::from_ref(spot.mark).addr();
        hint::prefetch(mark);
        // Whether an object will be scanned is hard to foresee: no branch.
        let cell = spot.block.cell.get() as usize;
        let scanned = spot.block.descriptor.get() != 0;
        let start = select_unpredictable(scanned, word, mark);
        hint::prefetch(start);
        if cell > LINE && !self.is_known(mark, cell) {
            prefetch_behind(start, start + select_unpredictable(scanned, cell - 1, 0), cell);
        }
    }

    #[inline(always)]
    fn prefetch_first(self, spot: Spot) {
        let mark = core::ptr::from_ref(spot.mark).addr();
        hint::prefetch(mark);
        hint::prefetch(select_unpredictable(spot.block.descriptor.get() != 0, spot.base, mark));
    }

    #[inline(always)]
    fn prefetch_others(self, spot: Spot) {
        let scanned = select_unpredictable(spot.block.descriptor.get() != 0, spot.block.cell.get() as usize, 1);
        if !self.is_known(core::ptr::from_ref(spot.mark).addr(), scanned) {
            prefetch_lines(spot.base, spot.base + scanned - 1, scanned);
        }
    }

    #[inline(always)]
    fn prefetch_mark(self, spot: Spot) {
        hint::prefetch(core::ptr::from_ref(spot.mark).addr());
    }

    #[inline(always)]
    fn mark(self, spot: Spot) -> Option<Marked> {
        // Relaxed: two markers may both see the old value; then the object is scanned twice, which is harmless. Nothing
        // else is published through the byte.
        if !self.epochs.is_unmarked(spot.mark.load(Ordering::Relaxed)) {
            return None;
        }
        spot.mark.store(self.epochs.new, Ordering::Relaxed);
        Some(Marked { bytes: self.bytes_at(spot), entry: Entry::at(spot.base, spot.block.descriptor.get()) })
    }

    #[inline(always)]
    fn is_leaf(self, spot: Spot) -> bool {
        spot.block.descriptor.get() == 0
    }

    #[inline(always)]
    fn mark_leaf(self, spot: Spot) -> Option<usize> {
        // Relaxed: as in `mark`.
        if !self.epochs.is_unmarked(spot.mark.load(Ordering::Relaxed)) {
            return None;
        }
        spot.mark.store(self.epochs.new, Ordering::Relaxed);
        Some(self.bytes_at(spot))
    }

    #[inline(always)]
    fn cells_around(self, word: usize) -> Option<Cells> {
        let offset = word.wrapping_sub(self.base);
        let block = block_in(self.table, offset >> BLOCK_SHIFT);
        // A length in words, or with its tag far more than that.
        let words = block.descriptor.get().rotate_right(3);
        (block.state() == State::Small && words <= LINE / size_of::<usize>()).then(|| Cells {
            first: word - (offset & (BLOCK.0 - 1)),
            bytes: block.cell.get() as usize,
            reciprocal: block.reciprocal.get(),
            count: block.cells.get() as usize,
            marks: core::ptr::with_exposed_provenance(block.marks.get()),
            words,
        })
    }

    #[inline(always)]
    fn records(self) -> Records {
        Records { base: self.base, table: self.table }
    }

    #[inline(always)]
    fn located(self, spot: Spot) -> (usize, Marked) {
        let entry = Entry::at(spot.base, spot.block.descriptor.get());
        (core::ptr::from_ref(spot.mark).expose_provenance(), Marked { bytes: self.bytes_at(spot), entry })
    }

    #[inline(always)]
    fn prefetch_rest(self, mark: usize, start: usize, bytes: usize) {
        if !self.is_known(mark, bytes) {
            prefetch_behind(start, start + bytes.saturating_sub(1), bytes);
        }
    }

    #[inline(always)]
    fn mark_grey(self, spot: Spot) -> Option<Grey> {
        // Relaxed: as in `mark`.
        if !self.epochs.is_unmarked(spot.mark.load(Ordering::Relaxed)) {
            return None;
        }
        let descriptor = spot.block.descriptor.get();
        let block = self.index_of(spot.block);
        let waits = grey::may_wait(spot.block, block, descriptor);
        spot.mark.store(select_unpredictable(waits, GREY, self.epochs.new), Ordering::Relaxed);
        let entry = Entry::at(spot.base, select_unpredictable(waits, 0, descriptor));
        Some(Grey { bytes: self.bytes_at(spot), entry, block, waits })
    }

    #[inline(always)]
    fn wait(self, blocks: &[usize]) {
        grey::wait(blocks);
    }

    fn has_grey(self) -> bool {
        grey::is_waiting()
    }

    fn take_grey(self, from: &mut usize, push: &mut dyn FnMut(Entry)) -> Option<Visit> {
        grey::take(self.epochs.new, from, push)
    }

    fn procs_returned(self) {
        crate::cycle::procs_returned();
    }

    #[inline(always)]
    fn is_marked(self, mark: &AtomicU8) -> bool {
        // Relaxed: as in `mark`.
        self.epochs.is_marked(mark.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn mark_byte(self, mark: &AtomicU8) -> bool {
        // Relaxed: as in `mark`.
        let is_unmarked = self.epochs.is_unmarked(mark.load(Ordering::Relaxed));
        if is_unmarked {
            mark.store(self.epochs.new, Ordering::Relaxed);
        }
        is_unmarked
    }
}
