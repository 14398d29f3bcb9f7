//! The heap as the marker sees it: a copy of what does not change during a cycle.

use core::hint::select_unpredictable;
use core::sync::atomic::{AtomicU8, Ordering};

use larder_blocks::block::{Block, State};
use larder_blocks::class;
use larder_blocks::space::BLOCK_SHIFT;
use larder_trace::window::Range;
use larder_trace::{Entry, Interior, Marked, Objects};

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
    block: &'static Block,
    mark: &'static AtomicU8,
    base: usize,
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

    #[inline(always)]
    fn block(self, index: usize) -> &'static Block {
        // SAFETY: the table has a record for every block below the frontier.
        unsafe { &*core::ptr::with_exposed_provenance::<Block>(self.table + index * size_of::<Block>()) }
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
        (descriptor != 0).then(|| Entry { start: core::ptr::with_exposed_provenance_mut(spot.base), descriptor })
    }

    /// First and one past the last address of the object that contains `address`.
    fn extent(self, address: usize) -> (usize, usize) {
        match self.find(address, Interior::Always) {
            Some(spot) => {
                let bytes = match spot.block.cell.get() {
                    0 => spot.block.size.get(),
                    cell => cell as usize,
                };
                (spot.base, spot.base + bytes)
            }
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
        (m == self.old || m == self.new).then_some(spot.base)
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
        let mut index = offset >> BLOCK_SHIFT;
        let mut block = self.block(index);
        let mut state = block.state();
        if state == State::Tail {
            index = block.head.get() as usize;
            block = self.block(index);
            state = block.state();
        }
        let within = offset - (index << BLOCK_SHIFT);
        let (cell, start) = match state {
            State::Small => {
                let cell = class::cell_at(within, block.reciprocal.get());
                if cell >= block.cells.get() as usize {
                    return None;
                }
                (cell, cell * block.cell.get() as usize)
            }
            State::Large if within < block.size.get() => (0, 0),
            _ => return None,
        };
        let displacement = within - start;
        if displacement != 0
            && !self.all_interior
            && interior == Interior::AsConfigured
            && !roots::is_valid_displacement(displacement)
        {
            return None;
        }
        // SAFETY: `cell` is a cell of the block.
        let mark = unsafe { block.mark(cell) };
        Some(Spot { block, mark, base: self.base + (index << BLOCK_SHIFT) + start })
    }

    #[inline(always)]
    fn prefetch(self, spot: Spot) {
        let mark = core::ptr::from_ref(spot.mark).addr();
        larder_sys::hint::prefetch(mark);
        // Whether an object will be scanned is hard to foresee: no branch.
        larder_sys::hint::prefetch(select_unpredictable(spot.block.descriptor.get() != 0, spot.base, mark));
    }

    #[inline(always)]
    fn mark(self, spot: Spot) -> Option<Marked> {
        // Relaxed: two markers may both see the old value; then the object is scanned twice, which is harmless. Nothing
        // else is published through the byte.
        if spot.mark.load(Ordering::Relaxed) != self.old {
            return None;
        }
        spot.mark.store(self.new, Ordering::Relaxed);
        let descriptor = spot.block.descriptor.get();
        let bytes = match spot.block.cell.get() {
            0 => spot.block.size.get(),
            cell => cell as usize,
        };
        if bytes > LINE {
            // Its first line was asked for when it was found. The object is scanned after those that are found later: time
            // for its other lines to arrive. Asking for the last line again is cheaper than a branch on their number.
            let last = spot.base + select_unpredictable(descriptor != 0, bytes - 1, 0);
            for line in 1..PREFETCHED / LINE {
                larder_sys::hint::prefetch((spot.base + line * LINE).min(last));
            }
        }
        let start = core::ptr::with_exposed_provenance_mut(spot.base);
        Some(Marked { bytes, entry: Entry { start, descriptor } })
    }
}
