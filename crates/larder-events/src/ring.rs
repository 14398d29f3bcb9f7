//! The file's layout, its writing side, and how a reader meets it without a lock.
//!
//! The writer counts records in `cycles_written`; record *i* (from 0) lies in place *i* mod [`CAPACITY`], so the file always
//! holds the last `CAPACITY` records. A reader may be slow, even lapped, and never holds the writer up:
//!
//! | step | writer, record *w* | reader, record *i* |
//! |---|---|---|
//! | 1 | release fence | load `cycles_written`, acquire: *i* must be below it |
//! | 2 | store the words, relaxed | load the words, relaxed |
//! | 3 | store `cycles_written` = *w* + 1, release | acquire fence |
//! | 4 | | load `cycles_written` = *n*; keep the record if *i* + `CAPACITY` > *n* |
//!
//! *ORDER events.publish* (writer 3, reader 1): a reader that sees the count sees the record's words.
//! *ORDER events.overwrite* (writer 1, reader 3): suppose the reader's step 2 saw a word of a later record
//! *w* = *i* + k `CAPACITY`. The fences then order the writer's earlier count, at least *w*, before step 4,
//! so *n* >= *w* >= *i* + `CAPACITY`, and the record is thrown away. Weaker, a mixture of two records could be kept.
//!
//! Both sides are separate processes in practice; every shared word is an atomic, so no read is a data race.

use core::mem::{offset_of, size_of};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use larder_units::Nanos;

use crate::{Counter, CycleRecord, Phase};

/// First eight bytes of a file that is ready: `LARDEREV` read as little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"LARDEREV");
/// Version of the layout; a reader refuses every other.
pub const VERSION: u32 = 2;
/// Bytes of the header: one page, so that records start on a page.
pub const HEADER_BYTES: usize = 4096;
/// Bytes of one record with its phases.
pub const RECORD_BYTES: usize = 2048;
/// Records in the ring: an hour of a program that collects twice a second.
pub const CAPACITY: usize = 8192;
/// Bytes of a whole file; most of it is never touched.
pub const FILE_BYTES: usize = HEADER_BYTES + CAPACITY * RECORD_BYTES;
/// Words of one record with its phases.
const RECORD_WORDS: usize = RECORD_BYTES / size_of::<u64>();
/// Words of a [`CycleRecord`]; the phases come behind them.
pub(crate) const CYCLE_WORDS: usize = 32;
/// Phases that a record has room for.
pub const MOST_PHASES: usize = (RECORD_WORDS - CYCLE_WORDS) / Phase::WORDS;
/// Places for counters in the header.
pub(crate) const COUNTER_PLACES: usize = 128;

/// A record in the ring, word by word.
pub(crate) type Slot = [AtomicU64; RECORD_WORDS];

/// By what the allocation buffers of a process are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum IndexKind {
    /// A buffer for each thread: restartable sequences are not available.
    Thread = 0,
    /// The kernel's concurrency id.
    ConcurrencyId = 1,
    /// The CPU number.
    Cpu = 2,
}

impl IndexKind {
    /// The kind that a file's number stands for.
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(IndexKind::Thread),
            1 => Some(IndexKind::ConcurrencyId),
            2 => Some(IndexKind::Cpu),
            _ => None,
        }
    }

    /// The name in logs.
    pub const fn name(self) -> &'static str {
        match self {
            IndexKind::Thread => "thread",
            IndexKind::ConcurrencyId => "mm_cid",
            IndexKind::Cpu => "cpu_id",
        }
    }
}

/// The first page of an events file.
///
/// The plain fields are written before `magic` and never again. *ORDER events.ready*: `magic` is stored with
/// Release and loaded with Acquire, so whoever sees it sees them.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`] once the header is complete, zero before. Sync: ORDER events.ready.
    pub(crate) magic: AtomicU64,
    /// [`VERSION`].
    pub version: u32,
    /// [`HEADER_BYTES`].
    pub header_bytes: u32,
    /// [`RECORD_BYTES`].
    pub record_bytes: u32,
    /// [`CAPACITY`].
    pub capacity: u32,
    /// The process that writes, in its own pid namespace.
    pub pid: u32,
    /// The [`IndexKind`] as a number.
    pub index_code: u32,
    /// When the heap was initialised, on the monotonic clock.
    pub start_monotonic: Nanos,
    /// The same moment as nanoseconds since 1970.
    pub start_realtime: Nanos,
    /// The program's name, filled up with zeros.
    pub program: [u8; 64],
    reserved_to_line: [u64; 2],
    /// Records published so far. Sync: ORDER events.publish.
    pub(crate) cycles_written: AtomicU64,
    reserved_to_counters: [u64; 111],
    /// Places of [`Counter`]. Sync: relaxed; each is a figure of its own and guards nothing.
    pub(crate) counters: [AtomicU64; COUNTER_PLACES],
    reserved_to_page: [u64; 256],
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);
// The publishing count shares its line with nothing that changes.
const _: () = assert!(offset_of!(Header, cycles_written) == 128 && offset_of!(Header, counters) == 1024);
const _: () = assert!(size_of::<Slot>() == RECORD_BYTES && align_of::<Header>() == 8);

/// Who writes a file; fixed at its start.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// The writing process.
    pub pid: u32,
    /// How its buffers are chosen.
    pub index: IndexKind,
    /// Now, on the monotonic clock.
    pub start_monotonic: Nanos,
    /// Now, as nanoseconds since 1970.
    pub start_realtime: Nanos,
    /// The program's name; only the first 63 bytes are kept.
    pub program: &'a [u8],
}

/// The writing side of an events file, over memory that its owner mapped.
///
/// ```
/// use larder_events::{Cause, Counter, CycleRecord, FILE_BYTES, Identity, IndexKind, Writer};
/// use larder_units::Nanos;
/// let mut memory = vec![0u64; FILE_BYTES / 8];
/// // SAFETY: `memory` is zeroed, large enough, aligned, and outlives `writer`.
/// let writer = unsafe { Writer::new(memory.as_mut_ptr().cast()) };
/// let (start_monotonic, start_realtime) = (Nanos(1), Nanos(2));
/// writer.initialise(Identity { pid: 1, index: IndexKind::Cpu, start_monotonic, start_realtime, program: b"demo" });
/// writer.counter(Counter::Refills).fetch_add(1, std::sync::atomic::Ordering::Relaxed);
/// writer.publish(&CycleRecord::new(1, Cause::Explicit), &[]);
/// assert_eq!(writer.cycles_written(), 1);
/// ```
#[derive(Debug)]
pub struct Writer {
    base: NonNull<u8>,
}

// SAFETY: all that `Writer` does to the memory behind `base` after `initialise` are atomic operations, and the memory
// outlives it (contract of `new`); `initialise` itself claims the file through `magic` before any plain store.
unsafe impl Send for Writer {}
// SAFETY: as for `Send`.
unsafe impl Sync for Writer {}

/// Held in `magic` while a header is being filled in; no reader takes it for ready.
const CLAIMED: u64 = 1;

impl Writer {
    /// Takes over `base`, which a file of [`FILE_BYTES`] bytes was mapped at, or anonymous memory where nobody reads.
    ///
    /// # Safety
    /// `base` is aligned to eight bytes and stays mapped, readable and writable for [`FILE_BYTES`] bytes as long as
    /// the `Writer` is used; the memory is zero or was initialised by a `Writer`; whatever else uses it does so through this crate.
    pub const unsafe fn new(base: *mut u8) -> Self {
        // SAFETY: mapped memory is not at address zero.
        Writer { base: unsafe { NonNull::new_unchecked(base) } }
    }

    /// Fills in the header and makes the file readable. Does nothing where that was done before.
    pub fn initialise(&self, identity: Identity<'_>) {
        let header = self.base.cast::<Header>().as_ptr();
        // SAFETY: the header is mapped and aligned (contract of `new`), and `magic` is only used as an atomic.
        let magic = unsafe { &(*header).magic };
        // ORDER events.ready: Acquire on failure, so that a second caller may use what the first filled in; nothing was written
        // before a success.
        if magic.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Acquire).is_err() {
            return;
        }
        let mut program = [0; 64];
        let kept = identity.program.len().min(program.len() - 1);
        program[..kept].copy_from_slice(&identity.program[..kept]);
        // SAFETY: the exchange above makes this the only thread that fills the header in, and no reader looks at the plain
        // fields before it has seen MAGIC; the places are mapped and aligned.
        unsafe {
            (&raw mut (*header).version).write(VERSION);
            (&raw mut (*header).header_bytes).write(HEADER_BYTES as u32);
            (&raw mut (*header).record_bytes).write(RECORD_BYTES as u32);
            (&raw mut (*header).capacity).write(CAPACITY as u32);
            (&raw mut (*header).pid).write(identity.pid);
            (&raw mut (*header).index_code).write(identity.index as u32);
            (&raw mut (*header).start_monotonic).write(identity.start_monotonic);
            (&raw mut (*header).start_realtime).write(identity.start_realtime);
            (&raw mut (*header).program).write(program);
        }
        // ORDER events.ready: Release, with the load in `Reader::open`. Weaker, a reader could see an empty header.
        magic.store(MAGIC, Ordering::Release);
    }

    /// Appends a record and its phases, of which those beyond [`MOST_PHASES`] are left out, over the oldest one where the ring is full.
    /// No lock, no allocation, no system call.
    ///
    /// One thread publishes at a time: the one that holds the collection lock. Two at once would lose a record or mix two,
    /// and harm nothing else.
    pub fn publish(&self, record: &CycleRecord, phases: &[Phase]) {
        let phases = &phases[..phases.len().min(MOST_PHASES)];
        let record = CycleRecord { phases: phases.len() as u64, ..*record };
        let count = self.cycles_written_word();
        // Relaxed: only publishers change the count, and the collection lock orders them.
        let number = count.load(Ordering::Relaxed);
        let slot = self.slot(number);
        // ORDER events.overwrite: with the fence in `Reader::cycles_since`. Weaker, a reader could keep a mixture.
        fence(Ordering::Release);
        for (word, value) in
            slot.iter().zip(record.to_words().into_iter().chain(phases.iter().flat_map(|p| p.to_words())))
        {
            // Relaxed: the two ORDER labels order the words as a whole.
            word.store(value, Ordering::Relaxed);
        }
        // ORDER events.publish: Release, with the first load in `Reader::cycles_since`. Weaker, a reader could take words not yet written.
        count.store(number + 1, Ordering::Release);
    }

    /// The place of a counter; use it with `Relaxed`.
    pub fn counter(&self, counter: Counter) -> &AtomicU64 {
        // SAFETY: mapped and aligned (contract of `new`), only used as an atomic, and inside the header (const-asserted length).
        unsafe { &(*self.base.cast::<Header>().as_ptr()).counters[counter as usize] }
    }

    /// Records published so far.
    pub fn cycles_written(&self) -> u64 {
        // Relaxed: a figure; the words are not looked at.
        self.cycles_written_word().load(Ordering::Relaxed)
    }

    fn cycles_written_word(&self) -> &AtomicU64 {
        // SAFETY: mapped and aligned (contract of `new`), and only used as an atomic.
        unsafe { &(*self.base.cast::<Header>().as_ptr()).cycles_written }
    }

    fn slot(&self, number: u64) -> &Slot {
        let place = (number % CAPACITY as u64) as usize;
        // SAFETY: `place` is below CAPACITY, so the slot lies in the FILE_BYTES that are mapped; words are only used as atomics.
        unsafe { &*self.base.add(HEADER_BYTES + place * RECORD_BYTES).cast::<Slot>().as_ptr() }
    }
}
