//! How a heap is set up.

use larder_lab::{Lowest, Processors};
use larder_policy::labs::Sizes;
use larder_units::Bytes;

/// A buffer in the old generation: a collector's, for what it promotes, and by default everybody else's.
pub const OLD_BUFFER: Bytes = Bytes(32 << 10);

/// How a store of a reference into an old object is noted, so that a young collection need not look at all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// Mark the slot's card, if it is not marked: threads that store near one another do not take the card's line from
    /// each other (Notes, "False sharing induced by card table marking"). The default.
    ConditionalCards,
    /// Mark the slot's card. One instruction less; for comparison, and for a program with one thread.
    Cards,
    /// Note the slot's address in a buffer of the thread's, if an old object comes to refer to a young one. Exact, where
    /// cards cover 512 bytes; more instructions.
    StoreBuffer,
}

/// What a heap is like. All sizes are rounded up to whole blocks of 32 KiB.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The young generation at the beginning: eden, six eighths of it, and room for the survivors of two collections.
    pub young: Bytes,
    /// How far policy may let it grow; not above `young` fixes it. It also shrinks again, to no less than `young`.
    pub most_young: Bytes,
    /// The most that old objects, large ones included, may take.
    pub old: Bytes,
    /// How large the old generation may become before a collection looks for garbage in it; from there on, when it has doubled
    /// since it was last collected. Zero stands for an eighth of `old`, which keeps memory small; with as much as `old` it has a
    /// fixed size, and is collected when it is nearly full, which is seldom.
    pub least_old: Bytes,
    /// Collectors, the collecting thread included. 0: at most as many as the process may use CPUs, fewer where there is
    /// little to do.
    pub collectors: usize,
    /// Young collections that an object survives before it is old: 1 to 6.
    pub tenure: u8,
    /// The write barrier.
    pub barrier: Barrier,
    /// The allocation buffers of the young generation: whom they belong to, their sizes, the levels above them.
    pub buffers: larder_lab::Config,
    /// Those of the old generation, for objects that are old from the beginning. They are taken back by full collections only.
    pub old_buffers: larder_lab::Config,
    /// Never collect: the baseline to compare with. All of `young` is for allocation, and when it is used up there is no
    /// more.
    pub null: bool,
    /// Whether the stacks of attached threads and the ranges of [`Heap::add_ambiguous`](crate::Heap::add_ambiguous) are
    /// looked through for words that may be references. Such a reference pins.
    pub ambiguous_stacks: bool,
    /// Look at all of the heap after each collection, and compare what is reachable with what was before. Slow.
    pub verify: bool,
    /// Overwrite what a collection frees, and let each full one move old objects that could stay, pinned ones and their neighbours but
    /// for: so an address that was kept too long is found soon. Slow.
    pub poison: bool,
    /// Collect at every so many-th refill of a buffer, every fourth time fully; 0 for not. Slow.
    pub collect_every: usize,
}

impl Default for Config {
    /// 8 MiB young, 256 MiB old, two young collections before an object is old, conditional cards, buffers by concurrency
    /// id.
    fn default() -> Self {
        Self {
            young: Bytes::mib(8),
            most_young: Bytes::mib(8),
            old: Bytes::mib(256),
            least_old: Bytes::ZERO,
            collectors: 0,
            // An object that was allocated just before a collection survives that one by chance, and seldom the next.
            tenure: 2,
            barrier: Barrier::ConditionalCards,
            buffers: larder_lab::Config::by_concurrency_id(),
            old_buffers: larder_lab::Config::new(
                Lowest::Processors(Processors::ConcurrencyIds),
                Sizes::fixed(OLD_BUFFER),
            ),
            null: false,
            ambiguous_stacks: false,
            verify: false,
            poison: false,
            collect_every: 0,
        }
    }
}

/// Why a heap could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// The kernel refused address space: `ulimit -v`, or a heap larger than the machine can map.
    Reserve(larder_sys::memory::ReserveError),
    /// A setting is out of its bounds; the text says which and what they are.
    Setting(&'static str),
    /// The allocation buffers cannot be set up.
    Buffers(larder_lab::SetUpError),
}

impl From<larder_sys::memory::ReserveError> for CreateError {
    fn from(e: larder_sys::memory::ReserveError) -> Self {
        Self::Reserve(e)
    }
}

impl core::fmt::Display for CreateError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Reserve(e) => write!(
                f,
                "cannot reserve {} of address space for the heap and its tables (errno {}): make it smaller or raise ulimit -v",
                e.wanted, e.errno
            ),
            Self::Setting(what) => f.write_str(what),
            Self::Buffers(e) => e.fmt(f),
        }
    }
}

/// The oldest age that blocks know.
pub(crate) const OLDEST: u8 = 6;

impl Config {
    pub(crate) fn check(&self) -> Result<(), CreateError> {
        let bounds = [
            (self.young.0 >= 256 << 10, "the young generation must have at least 256 KiB"),
            (self.young.0.max(self.most_young.0) <= 1 << 37, "the young generation may have at most 128 GiB"),
            (self.old.0 >= 256 << 10, "the old generation must have at least 256 KiB"),
            // Numbers of cards have 32 bits, and large objects a range as long as the old one.
            (self.old.0 <= 1 << 40, "the old generation may have at most 1 TiB"),
            ((1..=OLDEST).contains(&self.tenure), "objects become old after 1 to 6 collections (tenure)"),
            (self.collectors <= crate::gang::MOST, "a heap has at most 16 collectors"),
        ];
        bounds.iter().find(|(holds, _)| !holds).map_or(Ok(()), |&(_, what)| Err(CreateError::Setting(what)))
    }
}
