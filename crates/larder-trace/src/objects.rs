//! What the engine asks of a heap.

use core::sync::atomic::AtomicU8;

use crate::cells::Cells;
use crate::descriptor::Entry;
use crate::volley::Records;
use crate::window::Range;

/// Whether a word that points into the middle of an object keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interior {
    /// As the client chose for heap and static data.
    AsConfigured,
    /// Always: stacks and registers.
    Always,
}

/// How far into an object of the heap a word of another may point, and still keep it.
#[derive(Clone, Copy, Debug)]
pub struct Inner {
    /// Wherever it points.
    pub all: bool,
    /// So many bytes below 64, a bit for each: the lowest, which is for its beginning, is set. Those beyond are to be asked about.
    pub near: u64,
}

impl Inner {
    /// Nowhere but to the beginning.
    pub const NONE: Self = Self { all: false, near: 1 };
    /// Anywhere.
    pub const ALL: Self = Self { all: true, near: u64::MAX };

    /// Whether a word counts that points so far into an object, as far as this tells.
    #[inline(always)]
    pub fn counts(self, bytes: usize) -> bool {
        self.all || bytes < 64 && self.near >> bytes & 1 != 0
    }
}

/// An object that was just marked.
#[derive(Clone, Copy)]
pub struct Marked {
    /// Bytes that it keeps.
    pub bytes: usize,
    /// What to scan in it; its descriptor is 0 where there is nothing to scan.
    pub entry: Entry,
}

/// An object that was just marked, where its scan may wait.
#[derive(Clone, Copy)]
pub struct Grey {
    /// Bytes that it keeps.
    pub bytes: usize,
    /// What to scan in it now; its descriptor is 0 where there is nothing, or its block waits.
    pub entry: Entry,
    /// Its block, by a number of the heap's.
    pub block: usize,
    /// Whether that is to wait.
    pub waits: bool,
}

/// Blocks that had waited, and what was found in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visit {
    /// How many cells they have.
    pub cells: usize,
    /// How many grey objects they had.
    pub objects: usize,
    /// The last block of the heap lies between these and those of the visit before.
    pub wrapped: bool,
}

/// What the marker asks of a heap. Cheap to copy: every marker has its own.
pub trait Objects: Copy {
    /// A place where an object may be.
    type Place: Copy;

    /// Where objects are.
    fn range(self) -> Range;

    /// Whether the word may be the address of an object.
    fn find(self, word: usize, interior: Interior) -> Option<Self::Place>;

    /// Whether a word that points into the middle of an object keeps it wherever that is.
    fn counts_everywhere(self, interior: Interior) -> bool;

    /// Which displacements count in the heap's objects, where [`Objects::counts_everywhere`] said no.
    fn near_displacements(self) -> u64;

    /// As [`Objects::find`], for a word that is known to be in the range, and of which [`Objects::counts_everywhere`] said `all`;
    /// [`Objects::nowhere`] where it is not an object's.
    fn look_up(self, word: usize, all: bool) -> Self::Place;

    /// A place where no object is.
    fn nowhere(self) -> Self::Place;

    /// Asks for the memory that `mark` and the scan will read: of the object, at least the line of `word`.
    fn prefetch(self, place: Self::Place, word: usize);

    /// The same in two parts: the mark, and the first line of what the scan will read ...
    fn prefetch_first(self, place: Self::Place);

    /// ... and its other lines. Where they lie in a page whose translation the processor has yet to find, each would wait for that by itself,
    /// and keep others from waiting.
    fn prefetch_others(self, place: Self::Place);

    /// Asks for the memory that `mark` will read.
    fn prefetch_mark(self, place: Self::Place);

    /// Marks the object there, if one is allocated and not marked yet, and asks for its memory.
    fn mark(self, place: Self::Place) -> Option<Marked>;

    /// Whether there is nothing to scan in an object at the place.
    fn is_leaf(self, place: Self::Place) -> bool;

    /// As [`Objects::mark`], for a leaf: the bytes that it keeps.
    fn mark_leaf(self, place: Self::Place) -> Option<usize>;

    /// The cells of the block that the word points into, if they are leaves or narrow. The word is as for [`Objects::look_up`].
    fn cells_around(self, word: usize) -> Option<Cells>;

    /// Where its blocks' records are.
    fn records(self) -> Records;

    /// What a volley says of the object at the place: the address of its mark byte, and what it is if it is marked.
    fn located(self, place: Self::Place) -> (usize, Marked);

    /// Asks for the lines behind the first of an object that keeps so many bytes, and whose mark byte is at `mark`.
    fn prefetch_rest(self, mark: usize, start: usize, bytes: usize);

    /// As [`Objects::mark`]; but an object of whose kind the heap can tell later which are marked and not scanned may become *grey*: then its block is to
    /// wait, until [`Objects::take_grey`] comes to it.
    fn mark_grey(self, place: Self::Place) -> Option<Grey>;

    /// These blocks have grey objects, and wait from here on.
    fn wait(self, blocks: &[usize]);

    /// Whether a block waits, as far as the caller knows: what it did itself is seen.
    fn has_grey(self) -> bool;

    /// Takes some blocks that wait, from that number on and around the end, and makes their grey objects ones that are marked, like others: what to scan
    /// in them is given to `push`. `from` goes on behind them. `None` where no block waits.
    fn take_grey(self, from: &mut usize, push: &mut dyn FnMut(Entry)) -> Option<Visit>;

    /// Client mark procedures were called on this thread: what they have marked themselves is to be counted.
    fn procs_returned(self);

    /// Whether the mark byte is a marked object's.
    fn is_marked(self, mark: &AtomicU8) -> bool;

    /// As [`Objects::mark`], by the mark byte: whether the object is allocated and was not marked yet.
    fn mark_byte(self, mark: &AtomicU8) -> bool;
}
