//! The reading side: opens a file, checks it, and follows it while its process runs.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use crate::ring::{CYCLE_WORDS, Header, IndexKind, MAGIC, MOST_PHASES, Slot};
use crate::{CAPACITY, Counter, CycleRecord, FILE_BYTES, HEADER_BYTES, Phase, RECORD_BYTES, VERSION};

/// Why a file could not be read; each says what is wrong with it.
#[derive(Debug)]
pub enum OpenError {
    /// The file could not be opened, examined or mapped.
    Io(PathBuf, io::Error),
    /// The length is not that of an events file: it is another file, or it was cut off.
    Size(PathBuf, u64),
    /// The process has created the file and not yet filled in its header; try again soon.
    NotReady(PathBuf),
    /// It does not start like an events file.
    Magic(PathBuf, u64),
    /// It was written by another version of Larder.
    Version(PathBuf, u32),
    /// The header contradicts the version: its sizes are not the ones that this version writes.
    Layout(PathBuf, &'static str, u32),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Io(path, error) => write!(f, "{}: {error}", path.display()),
            OpenError::Size(path, bytes) => {
                write!(
                    f,
                    "{}: {bytes} bytes long, an events file has {FILE_BYTES}: it is another file, or was cut off",
                    path.display()
                )
            }
            OpenError::NotReady(path) => write!(f, "{}: its process has not filled in the header yet", path.display()),
            OpenError::Magic(path, found) => {
                write!(f, "{}: not an events file, it starts with {found:#018x}", path.display())
            }
            OpenError::Version(path, found) => write!(
                f,
                "{}: format version {found}, this tool reads version {VERSION}: use the tool of the same release as the library",
                path.display()
            ),
            OpenError::Layout(path, what, found) => {
                write!(f, "{}: damaged header, {what} is {found}", path.display())
            }
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Io(_, error) => Some(error),
            _ => None,
        }
    }
}

/// A cycle as it was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cycle {
    /// Its figures.
    pub record: CycleRecord,
    /// Its phases, in the order in which they ended.
    pub phases: Vec<Phase>,
}

/// What [`Reader::cycles_since`] found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CyclesSince {
    /// The records that are still there, oldest first.
    pub records: Vec<Cycle>,
    /// Records that were overwritten before they could be read.
    pub missed: u64,
    /// Where to go on: the argument for the next call.
    pub next: u64,
}

/// A mapped events file, of a process that runs or has ended.
///
/// ```no_run
/// let reader = larder_events::Reader::open("/tmp/events/42.larder".as_ref())?;
/// let mut next = 0;
/// loop {
///     let found = reader.cycles_since(next);
///     next = found.next;
///     for cycle in found.records {
///         println!("{} stopped for {} ns", cycle.record.number, cycle.record.pause.0);
///     }
/// #   break;
/// }
/// # Ok::<(), larder_events::OpenError>(())
/// ```
#[derive(Debug)]
pub struct Reader {
    base: NonNull<u8>,
    /// Kept open: cutting the file off under a mapping would make reads fail, so each look checks its length first.
    file: File,
}

// SAFETY: the mapping is only read, through atomics or through fields that never change once MAGIC was seen; it lives until drop.
unsafe impl Send for Reader {}
// SAFETY: as for `Send`.
unsafe impl Sync for Reader {}

impl Reader {
    /// Maps the file and checks that it is a complete events file of this version.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let io = |error| OpenError::Io(path.to_owned(), error);
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if metadata.is_file() && metadata.len() == 0 {
            return Err(OpenError::NotReady(path.to_owned()));
        }
        if metadata.len() != FILE_BYTES as u64 {
            return Err(OpenError::Size(path.to_owned(), metadata.len()));
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let mapped = unsafe {
            libc::mmap(std::ptr::null_mut(), FILE_BYTES, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if mapped == libc::MAP_FAILED {
            return Err(io(io::Error::last_os_error()));
        }
        let base = NonNull::new(mapped.cast()).expect("mmap returns no null pointer");
        let reader = Reader { base, file };
        // ORDER events.ready: Acquire, with the store in `Writer::initialise`.
        match reader.raw_header().magic.load(Ordering::Acquire) {
            MAGIC => {}
            // Zero before, and a small number while, the header is filled in.
            0 | 1 => return Err(OpenError::NotReady(path.to_owned())),
            found => return Err(OpenError::Magic(path.to_owned(), found)),
        }
        let header = reader.raw_header();
        if header.version != VERSION {
            return Err(OpenError::Version(path.to_owned(), header.version));
        }
        let layout = |what, found| Err(OpenError::Layout(path.to_owned(), what, found));
        if header.header_bytes as usize != HEADER_BYTES {
            return layout("its size of the header", header.header_bytes);
        }
        if header.record_bytes as usize != RECORD_BYTES {
            return layout("its size of a record", header.record_bytes);
        }
        if header.capacity as usize != CAPACITY {
            return layout("its number of records", header.capacity);
        }
        if IndexKind::from_code(header.index_code).is_none() {
            return layout("its kind of index", header.index_code);
        }
        Ok(reader)
    }

    /// The fixed facts about the process.
    pub fn header(&self) -> &Header {
        self.raw_header()
    }

    /// How the process chooses its buffers.
    pub fn index_kind(&self) -> IndexKind {
        IndexKind::from_code(self.raw_header().index_code).expect("checked when the file was opened")
    }

    /// The program's name.
    pub fn program(&self) -> String {
        let name = &self.raw_header().program;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        String::from_utf8_lossy(&name[..end]).into_owned()
    }

    /// The present value of a counter; zero where the file was cut off since.
    pub fn counter(&self, counter: Counter) -> u64 {
        if !self.is_whole() {
            return 0;
        }
        // Relaxed: a figure of its own.
        self.raw_header().counters[counter as usize].load(Ordering::Relaxed)
    }

    /// Records published so far; zero where the file was cut off since.
    pub fn cycles_written(&self) -> u64 {
        if !self.is_whole() {
            return 0;
        }
        // Relaxed: a figure; the words are not looked at.
        self.raw_header().cycles_written.load(Ordering::Relaxed)
    }

    /// The records from number `from` (counted from 0) on, as far as they are still in the ring.
    ///
    /// A `from` beyond the end finds nothing and keeps `next` there.
    pub fn cycles_since(&self, from: u64) -> CyclesSince {
        if !self.is_whole() {
            return CyclesSince { next: from, ..Default::default() };
        }
        let count = &self.raw_header().cycles_written;
        // ORDER events.publish: Acquire, with the last store in `Writer::publish`.
        let end = count.load(Ordering::Acquire);
        if end <= from {
            return CyclesSince { next: from, ..Default::default() };
        }
        // A count from a damaged file may be anything, so the range is bounded by the ring first.
        let first = from.max(end.saturating_sub(CAPACITY as u64));
        let mut records: Vec<_> = (first..end).map(|number| self.copy(number)).collect();
        // ORDER events.overwrite: with the fence in `Writer::publish`. Weaker, a copy that mixes two records could be kept.
        fence(Ordering::Acquire);
        // Relaxed: the fence above orders it.
        let now = count.load(Ordering::Relaxed);
        // Record `now` may be under way, over record `now - CAPACITY`; whatever is not older than the one after it was stable.
        let stable = now.saturating_add(1).saturating_sub(CAPACITY as u64).clamp(first, end);
        records.drain(..(stable - first) as usize);
        CyclesSince { records, missed: stable - from, next: end }
    }

    /// Whether nobody can write to the file any more: no process has it open for writing, or mapped so. That is so when its process has ended, in
    /// whatever pid namespace, and has left no child that kept its memory. `None` where the file system or the file's owner does not let us know.
    pub fn is_abandoned(&self) -> Option<bool> {
        let lease = |kind: libc::c_int| {
            // SAFETY: the descriptor is ours, and the argument is a number.
            unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLEASE, kind) }
        };
        // The kernel gives a lease for reading to none but the only kind of user that there is. We give it back at once: whoever opens the file
        // for writing would have to wait.
        if lease(libc::F_RDLCK) == 0 {
            lease(libc::F_UNLCK);
            return Some(true);
        }
        (io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock).then_some(false)
    }

    fn copy(&self, number: u64) -> Cycle {
        let place = (number % CAPACITY as u64) as usize;
        // SAFETY: `place` is below CAPACITY, so the slot lies in the mapping; it is aligned, and used as atomics only.
        let slot = unsafe { &*self.base.add(HEADER_BYTES + place * RECORD_BYTES).cast::<Slot>().as_ptr() };
        // Relaxed: the two ORDER labels of `cycles_since` order the words as a whole.
        let word = |word: usize| slot[word].load(Ordering::Relaxed);
        let record = CycleRecord::from_words(std::array::from_fn(word));
        // The number may be of another record than the phases: then neither is kept.
        let phases = (0..record.phases.min(MOST_PHASES as u64) as usize)
            .map(|phase| Phase::from_words(std::array::from_fn(|i| word(CYCLE_WORDS + phase * Phase::WORDS + i))))
            .collect();
        Cycle { record, phases }
    }

    fn raw_header(&self) -> &Header {
        // SAFETY: mapped until drop, page aligned, every bit pattern is valid; plain fields are read by callers only after MAGIC
        // was seen, or as numbers to be checked.
        unsafe { self.base.cast().as_ref() }
    }

    /// Whether the file still has its length: a mapping past the end of a file cannot be read.
    fn is_whole(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.len() >= FILE_BYTES as u64)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrowed from it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), FILE_BYTES) };
    }
}
