//! A set of buffers over one space: who has them, and the fast path.
//!
//! An object comes straight from the space, without a buffer, for one of three reasons. (VEE'05, section 4, lists three as well, and they are
//! lost in the copies that we know.)
//!
//! | reason | counted by |
//! |---|---|
//! | It is too large for a buffer: longer than an eighth of one (`larder_policy::labs::is_direct`), so that a refill never abandons more | `direct` |
//! | There is room for it, and none for a buffer: near the end of a space, where buffers do not shrink | `singly` |
//! | The space collected to make room for it, and gave it its memory before anybody else could take that | the space: the moving heap's `provided` |

use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use larder_percpu::areas::{By, Core, Options};
use larder_percpu::ground::{Association, Ground};
use larder_percpu::sequence::{self, Near, SLAB};
use larder_policy::labs::{Side, is_direct};
use larder_sys::memory::{self, ReserveError};
use larder_sys::rseq_area::Index;
use larder_units::Bytes;

use crate::config::{BadStack, Config, Lowest, Processors, UPPER};
use crate::counters::{Counters, LevelStatistics, Statistics, add};
use crate::lab::Lab;
use crate::level::Level;
use crate::refill::Refilled;
use crate::sideline::Sideline;
use crate::source::{Chunk, ChunkSource, Point, Request, Why};

/// Objects' sizes are multiples of this.
pub const WORD: usize = 8;

/// No object is larger: beyond it, the sum of an address and a size could wrap around.
pub const LARGEST_OBJECT: Bytes = Bytes(1 << 46);

/// Which buffer an allocation uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Way {
    /// The thread's own, by a sequence that the kernel aborts when the thread is stopped.
    Thread,
    /// That of the concurrency id, or CPU.
    Processor,
    /// That of the lowest shared level, object by object.
    Shared,
    /// The thread's own, without sequences: one `cmpxchg16b`.
    ThreadAlone,
}

impl Way {
    const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Processor,
            2 => Self::Shared,
            3 => Self::ThreadAlone,
            _ => Self::Thread,
        }
    }

    /// Whether the buffers belong to threads.
    pub const fn is_by_thread(self) -> bool {
        matches!(self, Self::Thread | Self::ThreadAlone)
    }
}

/// What [`Buffers::set_up`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Whom the buffers belong to now.
    pub way: Way,
    /// What stands for processors, where they have buffers.
    pub processors: Option<Processors>,
    /// Why it is not what was asked for.
    pub instead: Option<&'static str>,
}

/// Why buffers cannot be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetUpError {
    /// The levels cannot be stacked.
    Stack(BadStack),
    /// No address space.
    Reserve(ReserveError),
}

impl core::fmt::Display for SetUpError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Stack(bad) => bad.fmt(f),
            Self::Reserve(error) => write!(
                f,
                "no address space for the buffers of all CPUs ({} bytes, errno {}): raise ulimit -v",
                error.wanted.0, error.errno
            ),
        }
    }
}

impl core::error::Error for SetUpError {}

impl From<ReserveError> for SetUpError {
    fn from(error: ReserveError) -> Self {
        Self::Reserve(error)
    }
}

/// The buffers over one space: one set for each generation.
///
/// A thread calls [`allocate`](Self::allocate) with its own [`Lab`], which the host keeps with what else it knows about the
/// thread; where buffers do not belong to threads, its pair stays empty, and it only counts.
///
/// Stopped threads hold nothing: see [`ChunkSource`] for what the host owes.
pub struct Buffers<S> {
    pub(crate) source: S,
    pub(crate) config: Config,
    /// Where sequences find the zero that is every thread's index of its own buffer.
    pub(crate) thread_ground: Ground,
    /// Where they find the processor.
    pub(crate) processor_ground: Ground,
    /// Address of processor 0's slab; each begins with a [`Lab`]. Sync: written by `set_up`.
    pub(crate) slabs: AtomicUsize,
    /// The tokens of the processors' refills; its areas hold nothing.
    pub(crate) transactions: Core,
    pub(crate) upper: [Option<Level>; UPPER],
    /// A [`Way`]. Sync: written by `set_up`, and in a stopped world.
    way: AtomicU8,
    pub(crate) sideline: Sideline,
    pub(crate) counters: Counters,
    /// How many stops retired the buffers. Sync: stopped world.
    pub(crate) stops: AtomicUsize,
    /// Lowest buffers filled since the last stop, and the largest size that one of them had. Sync: advisory; stopped world.
    pub(crate) sharers: AtomicUsize,
    /// See `sharers`.
    pub(crate) largest: AtomicUsize,
}

/// An upper level of the shape. (A loop would drop what it replaces, which constants cannot.)
const fn upper_level(config: &Config, k: usize) -> Option<Level> {
    match config.upper[k] {
        Some(upper) => Some(Level::new(upper, config.selection, config.sequences)),
        None => None,
    }
}

const _: () = assert!(UPPER == 3);

impl<S: ChunkSource> Buffers<S> {
    /// Buffers of this shape, all empty. They cannot be used before [`set_up`](Self::set_up).
    pub const fn new(source: S, config: Config) -> Self {
        let by = match config.lowest {
            Lowest::Processors(Processors::Cpus)
            | Lowest::Flip(Processors::Cpus)
            | Lowest::FewThreads(Processors::Cpus) => By::Cpu,
            _ => By::ConcurrencyId,
        };
        Self {
            source,
            config,
            thread_ground: Ground::new(),
            processor_ground: Ground::new(),
            slabs: AtomicUsize::new(0),
            transactions: Core::new(0, Options { by, indices: 0, sequences: config.sequences }),
            upper: [upper_level(&config, 0), upper_level(&config, 1), upper_level(&config, 2)],
            way: AtomicU8::new(Way::ThreadAlone as u8),
            sideline: Sideline::new(),
            counters: Counters::new(),
            stops: AtomicUsize::new(0),
            sharers: AtomicUsize::new(0),
            largest: AtomicUsize::new(0),
        }
    }

    /// Maps what belongs to processors and levels, and finds out what the machine offers. Once, before any thread allocates;
    /// not in a signal handler.
    pub fn set_up(&self) -> Result<Ready, SetUpError> {
        self.config.check().map_err(SetUpError::Stack)?;
        let mut reason = "the buffers were made without sequences";
        let mut processors = None;
        let by_thread = self.config.sequences && self.thread_ground.set_up_for_threads();
        if let (true, Lowest::Processors(wanted) | Lowest::Flip(wanted) | Lowest::FewThreads(wanted)) =
            (self.config.sequences, self.config.lowest)
        {
            let index = if wanted == Processors::Cpus { Index::CpuId } else { Index::MmCid };
            let possible = larder_sys::cpus::possible();
            match self.processor_ground.set_up_by(possible, index) {
                Association::ConcurrencyId => processors = Some(Processors::ConcurrencyIds),
                Association::Cpu => processors = Some(Processors::Cpus),
                Association::Thread(why) => reason = why,
            }
            if processors.is_some() {
                let slabs = memory::map_lazy(Bytes(possible * SLAB))?;
                self.slabs.store(slabs.as_ptr().expose_provenance(), Ordering::Relaxed);
                self.transactions.set_up()?;
            }
        }
        for level in self.upper.iter().flatten() {
            level.set_up()?;
        }
        let own = if by_thread { Way::Thread } else { Way::ThreadAlone };
        let (way, as_wanted) = match self.config.lowest {
            Lowest::Nobody => (Way::Shared, true),
            Lowest::Threads => (own, by_thread || !self.config.sequences),
            Lowest::Processors(_) if processors.is_some() => (Way::Processor, true),
            Lowest::Processors(_) => (own, false),
            Lowest::Flip(_) | Lowest::FewThreads(_) => (own, processors.is_some()),
        };
        self.set_way(way);
        Ok(Ready { way, processors, instead: (!as_wanted).then_some(reason) })
    }

    pub(crate) fn set_way(&self, way: Way) {
        self.way.store(way as u8, Ordering::Relaxed);
    }

    /// Whom the buffers belong to now. It changes in stopped worlds only.
    #[inline(always)]
    pub fn way(&self) -> Way {
        Way::from_number(self.way.load(Ordering::Relaxed))
    }

    /// The side of the flip, where there is one.
    pub fn side(&self) -> Side {
        if self.way().is_by_thread() { Side::Threads } else { Side::Processors }
    }

    /// The space.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the buffers did so far.
    pub fn statistics(&self) -> Statistics {
        self.counters.read()
    }

    /// What an upper level did so far, counted from below.
    pub fn level_statistics(&self, level: usize) -> Option<LevelStatistics> {
        self.upper.get(level)?.as_ref().map(|level| level.counters.read())
    }

    /// How many processors have a buffer, or could have; 0 where they have none.
    pub fn processors(&self) -> usize {
        self.processor_ground.indices() as usize
    }

    /// A processor's buffer.
    pub(crate) fn lab_of(&self, processor: usize) -> &Lab {
        debug_assert!(processor < self.processors());
        let slab = self.slabs.load(Ordering::Relaxed) + processor * SLAB;
        // SAFETY: `set_up` mapped a slab for each processor; zero is a `Lab`, and all of it is atomics.
        unsafe { &*core::ptr::with_exposed_provenance::<Lab>(slab) }
    }

    /// The fast path of a thread's own buffer: `bytes` from it, or 0.
    ///
    /// # Safety
    /// `set_up` found sequences; `mine` is the calling thread's; `bytes` is a multiple of [`WORD`], not 0, at most
    /// [`LARGEST_OBJECT`].
    #[inline(always)]
    pub unsafe fn take_by_thread(&self, mine: &Lab, bytes: usize) -> usize {
        // SAFETY: the ground is set up, with one index; the slot is the calling thread's.
        unsafe {
            sequence::bump_of_thread(&self.thread_ground, core::ptr::from_ref(&mine.slot).expose_provenance(), bytes)
        }
    }

    /// The fast path of a processor's buffer: `bytes` from that of the one it runs on, or 0.
    ///
    /// # Safety
    /// As for [`take_by_thread`](Self::take_by_thread); processors have buffers.
    #[inline(always)]
    pub unsafe fn take_by_processor(&self, bytes: usize) -> usize {
        // SAFETY: the ground is set up, with as many indices as there are slabs, which begin with a slot.
        unsafe { sequence::bump(&self.processor_ground, self.slabs.load(Ordering::Relaxed), bytes) }
    }

    /// Lets the sequences of one thread that go by its [`Near`] use the buffers of processors, or closes them where processors have
    /// none. `thread_pointer` is the thread's, or null if it is not registered with the kernel.
    ///
    /// # Safety
    /// `near` is that thread's, which is the caller, or stands still between two allocations.
    pub unsafe fn aim(&self, near: &Near, thread_pointer: *mut u8) {
        if self.way() != Way::Processor || thread_pointer.is_null() {
            return near.close();
        }
        // SAFETY: `set_up` mapped a slab for each index; the caller vouches for the thread.
        unsafe { near.open(&self.processor_ground, thread_pointer, self.slabs.load(Ordering::Relaxed)) }
    }

    /// The fast path of the lowest shared level: `bytes` from the buffer of the CPU it runs on, or 0. It counts nothing.
    ///
    /// # Safety
    /// `mine` is the calling thread's; `bytes` is as for [`take_by_thread`](Self::take_by_thread).
    #[inline(always)]
    pub unsafe fn take_shared(&self, mine: &Lab, bytes: usize) -> usize {
        // SAFETY: the caller's promise; a thread's buffer remembers nothing else.
        self.upper[0].as_ref().map_or(0, |level| unsafe { level.bump_guessed(bytes, mine.guess()) })
    }

    /// The fast path of whatever the buffers belong to now: `bytes`, or 0.
    ///
    /// # Safety
    /// As for [`allocate`](Self::allocate).
    #[inline(always)]
    pub unsafe fn take(&self, mine: &Lab, bytes: usize) -> usize {
        // SAFETY: `set_up` chose the way by what it found; the caller vouches for the rest.
        unsafe { self.take_in(self.way(), mine, bytes) }
    }

    /// The fast path of a way that the buffers have or had: `bytes`, or 0. Where it is not theirs now, it finds closed pairs.
    ///
    /// # Safety
    /// As for [`allocate`](Self::allocate).
    #[inline(always)]
    pub unsafe fn take_in(&self, way: Way, mine: &Lab, bytes: usize) -> usize {
        // SAFETY: `set_up` chose the ways by what it found; the caller vouches for the rest.
        unsafe {
            match way {
                Way::Thread => self.take_by_thread(mine, bytes),
                Way::Processor => self.take_by_processor(bytes),
                Way::Shared => self.take_shared(mine, bytes),
                Way::ThreadAlone => sequence::bump_own(&mine.slot, bytes),
            }
        }
    }

    /// The address of `bytes` of memory, or 0 when the space is exhausted.
    ///
    /// The address is a multiple of whatever all sizes are multiples of.
    ///
    /// # Safety
    /// `set_up` succeeded. `mine` is the calling thread's. `bytes` is a multiple of [`WORD`], not 0, at most
    /// [`LARGEST_OBJECT`]. The slow path is deferred as [`ChunkSource`] asks: a host that cannot defer before it knows that
    /// the fast path failed calls [`take`](Self::take) and [`allocate_slow`](Self::allocate_slow) itself.
    #[inline(always)]
    pub unsafe fn allocate(&self, mine: &Lab, bytes: usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            let at = self.take(mine, bytes);
            if at != 0 { at } else { self.allocate_slow(mine, bytes) }
        }
    }

    /// Counts a miss of a function of the set of `way`, where that is not the set in use.
    pub fn note_miss(&self, way: Way) {
        if self.way() != way {
            add(&self.counters.redirected, 1);
        }
    }

    /// The slow path: refills the buffer, or takes the object from the space.
    ///
    /// # Safety
    /// As for [`allocate`](Self::allocate).
    #[cold]
    pub unsafe fn allocate_slow(&self, mine: &Lab, bytes: usize) -> usize {
        assert!(
            bytes != 0 && bytes.is_multiple_of(WORD) && bytes <= LARGEST_OBJECT.0,
            "an object of {bytes} bytes: sizes are multiples of 8, not 0"
        );
        loop {
            // SAFETY: the caller's promise. The way may be another than that of the function that missed.
            let at = unsafe { self.take(mine, bytes) };
            if at != 0 {
                return at;
            }
            let size = self.size_for(mine);
            if is_direct(Bytes(bytes), size) {
                return self.direct(bytes);
            }
            // SAFETY: the caller's promise.
            match unsafe { self.refill(mine, bytes) } {
                Refilled::Object(at) => return at,
                Refilled::Again => continue,
                Refilled::Nothing => {}
            }
            if let Some(chunk) = self.ask(bytes, bytes, false) {
                add(&self.counters.singly, 1);
                add(&self.counters.singly_bytes, bytes);
                self.source.prepare(chunk);
                return chunk.start;
            }
            match self.ask(bytes, size.0.max(bytes), true) {
                None => return 0,
                Some(chunk) => {
                    self.source.prepare(chunk);
                    self.put_aside(chunk);
                }
            }
        }
    }

    fn ask(&self, least: usize, most: usize, may_collect: bool) -> Option<Chunk> {
        self.source.obtain(Request { least: Bytes(least), most: Bytes(most), may_collect })
    }

    /// An object straight from the space.
    fn direct(&self, bytes: usize) -> usize {
        let chunk = self.ask(bytes, bytes, false).or_else(|| self.ask(bytes, bytes, true));
        let Some(chunk) = chunk else { return 0 };
        add(&self.counters.direct, 1);
        add(&self.counters.direct_bytes, bytes);
        self.source.prepare(chunk);
        chunk.start
    }

    /// The size of the buffer that an allocation uses now.
    fn size_for(&self, mine: &Lab) -> Bytes {
        match self.way() {
            Way::Thread | Way::ThreadAlone => mine.size(self.config.sizes),
            Way::Processor => match self.processor_ground.current_index() {
                Some(processor) => self.lab_of(processor).size(self.config.sizes),
                None => self.config.sizes.first(),
            },
            Way::Shared => {
                let level = self.upper[0].as_ref().expect("checked by `set_up`");
                level.lab(level.here()).size(level.upper.sizes)
            }
        }
    }

    /// Keeps a chunk, which is ready for objects, for the next comer; gives it back where there is no place for it.
    pub(crate) fn put_aside(&self, chunk: Chunk) {
        self.source.at(Point::Sidelining);
        if chunk.epoch != self.source.epoch() {
            add(&self.counters.dropped, 1);
            add(&self.counters.dropped_bytes, chunk.bytes().0);
            return;
        }
        match self.sideline.put(chunk) {
            Ok(()) => {
                add(&self.counters.sidelined, 1);
                add(&self.counters.sidelined_bytes, chunk.bytes().0);
            }
            // SAFETY: of this epoch, and nobody else's.
            Err(chunk) => unsafe { self.source.give_back(chunk, Why::Abandoned) },
        }
    }
}

impl<S> Drop for Buffers<S> {
    fn drop(&mut self) {
        let slabs = *self.slabs.get_mut();
        if slabs != 0 {
            let size = Bytes(self.processor_ground.indices() as usize * SLAB);
            // SAFETY: the mapping of `set_up`; nobody borrows the buffers any more.
            unsafe { memory::unmap(core::ptr::with_exposed_provenance_mut(slabs), size) };
        }
        // SAFETY: as above.
        unsafe { self.transactions.destroy() };
    }
}
