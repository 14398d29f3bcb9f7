//! A writer and a reader over one file: following, lapping, and damaged files.
#![cfg(feature = "std")]

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use larder_events::{
    CAPACITY, Cause, Counter, Cycle, CycleRecord, FILE_BYTES, Identity, IndexKind, MOST_PHASES, OpenError, Phase,
    Reader, Writer, event_path,
};
use larder_units::{Bytes, Nanos};

/// A new file in a folder of its own, mapped for writing; both go away with it.
struct Mapped {
    folder: PathBuf,
    path: PathBuf,
    file: File,
    base: *mut u8,
}

impl Mapped {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("larder-events-test-{}-{unique}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut space = [0; 4096];
        let path = event_path(folder.as_os_str().as_encoded_bytes(), std::process::id(), 0, &mut space).unwrap();
        let path = PathBuf::from(path.to_str().unwrap());
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(FILE_BYTES as u64).unwrap();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping overlaps nothing.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), FILE_BYTES, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Mapped { folder, path, file, base: base.cast() }
    }

    fn writer(&self) -> Writer {
        // SAFETY: zeroed file memory of FILE_BYTES bytes, mapped until `self` is dropped, after the writer.
        let writer = unsafe { Writer::new(self.base) };
        writer.initialise(Identity {
            pid: 77,
            index: IndexKind::ConcurrencyId,
            start_monotonic: Nanos(5),
            start_realtime: Nanos(6),
            program: b"a program whose name is longer than the sixty-three bytes that a header keeps",
        });
        writer
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: ours, and every writer over it is gone.
        unsafe { libc::munmap(self.base.cast(), FILE_BYTES) };
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A cycle in which every field follows from its number, so that a mixture of two shows.
fn record(number: u64) -> Cycle {
    let mut record = CycleRecord::new(number, Cause::ALL[number as usize % Cause::ALL.len()]);
    record.start = Nanos(number.wrapping_mul(3));
    record.pause = Nanos(number.wrapping_mul(5));
    record.live = Bytes(number as usize * 7);
    record.links_cleared = number;
    record.young = number;
    record.unwritten_stacks = Bytes(number as usize);
    record.pages_compared = number ^ 1;
    record.objects_by_block = number;
    record.phases = number % 7;
    let phase = |i| Phase { code: i, start: Nanos(number), took: Nanos(number * i), amount: number ^ i };
    Cycle { record, phases: (0..number % 7).map(phase).collect() }
}

/// Publishes it.
fn publish(writer: &Writer, number: u64) {
    let cycle = record(number);
    writer.publish(&cycle.record, &cycle.phases);
}

fn open_error(path: &Path) -> OpenError {
    Reader::open(path).expect_err("the file is damaged")
}

#[test]
fn header_and_counters_arrive() {
    let mapped = Mapped::new();
    let writer = mapped.writer();
    writer.counter(Counter::Refills).fetch_add(3, Ordering::Relaxed);
    let reader = Reader::open(&mapped.path).unwrap();
    assert_eq!(reader.header().pid, 77);
    assert_eq!(reader.header().start_realtime, Nanos(6));
    assert_eq!(reader.index_kind(), IndexKind::ConcurrencyId);
    assert_eq!(reader.program(), "a program whose name is longer than the sixty-three bytes that ");
    assert_eq!(reader.counter(Counter::Refills), 3);
    assert_eq!(reader.cycles_since(0), Default::default());
    assert_eq!(reader.cycles_since(9).next, 9);
}

#[test]
fn a_reader_follows_a_writer() {
    let mapped = Mapped::new();
    let writer = mapped.writer();
    let reader = Reader::open(&mapped.path).unwrap();
    publish(&writer, 0);
    publish(&writer, 1);
    let found = reader.cycles_since(0);
    assert_eq!((found.records, found.missed, found.next), (vec![record(0), record(1)], 0, 2));
    publish(&writer, 2);
    assert_eq!(reader.cycles_since(2).records, [record(2)]);
}

#[test]
fn phases_beyond_the_room_are_left_out() {
    let mapped = Mapped::new();
    let phases = [Phase { code: 9, start: Nanos(1), took: Nanos(2), amount: 3 }; MOST_PHASES + 5];
    mapped.writer().publish(&CycleRecord::new(1, Cause::Budget), &phases);
    mapped.writer().publish(&CycleRecord::new(2, Cause::Budget), &phases[..1]);
    let found = Reader::open(&mapped.path).unwrap().cycles_since(0);
    assert_eq!(found.records[0].phases, phases[..MOST_PHASES]);
    assert_eq!(found.records[1].phases, phases[..1]);
}

#[test]
fn a_lapped_reader_says_how_many_it_missed() {
    let mapped = Mapped::new();
    let writer = mapped.writer();
    let reader = Reader::open(&mapped.path).unwrap();
    let total = 2 * CAPACITY as u64 + 10;
    for number in 0..total {
        publish(&writer, number);
    }
    let found = reader.cycles_since(3);
    assert_eq!(found.next, total);
    // The place of the oldest one might be about to be written, so it does not count as there.
    assert_eq!(found.records.len(), CAPACITY - 1);
    assert_eq!(found.missed, total - 3 - (CAPACITY as u64 - 1));
    assert_eq!(found.records[0], record(total - CAPACITY as u64 + 1));
    assert_eq!(found.records.last(), Some(&record(total - 1)));
}

#[test]
fn a_reader_beside_a_writer_sees_each_record_whole_or_counts_it_missed() {
    let mapped = Mapped::new();
    let writer = mapped.writer();
    let reader = Reader::open(&mapped.path).unwrap();
    let total = 6 * CAPACITY as u64;
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..total {
                publish(&writer, number);
            }
        });
        let (mut next, mut seen, mut missed) = (0, 0, 0);
        while next < total {
            let found = reader.cycles_since(next);
            let first = next + found.missed;
            for (place, cycle) in found.records.iter().enumerate() {
                assert_eq!(*cycle, record(first + place as u64));
            }
            assert_eq!(found.next, first + found.records.len() as u64);
            seen += found.records.len() as u64;
            missed += found.missed;
            next = found.next;
        }
        assert_eq!(seen + missed, total);
    });
}

#[test]
fn a_second_initialisation_changes_nothing() {
    let mapped = Mapped::new();
    let writer = mapped.writer();
    writer.initialise(Identity {
        pid: 1,
        index: IndexKind::Thread,
        start_monotonic: Nanos(0),
        start_realtime: Nanos(0),
        program: b"other",
    });
    assert_eq!(Reader::open(&mapped.path).unwrap().header().pid, 77);
}

#[test]
fn each_kind_of_damage_has_its_own_error() {
    let mapped = Mapped::new();
    assert!(matches!(open_error(&mapped.path), OpenError::NotReady(_)));
    let _writer = mapped.writer();
    let damage = |offset: u64, bytes: &[u8]| {
        let mut before = vec![0; bytes.len()];
        mapped.file.read_exact_at(&mut before, offset).unwrap();
        mapped.file.write_all_at(bytes, offset).unwrap();
        let error = open_error(&mapped.path);
        mapped.file.write_all_at(&before, offset).unwrap();
        error
    };
    assert!(matches!(damage(0, b"NOTLARDR"), OpenError::Magic(..)));
    assert!(matches!(damage(8, &9u32.to_le_bytes()), OpenError::Version(_, 9)));
    assert!(matches!(damage(12, &1u32.to_le_bytes()), OpenError::Layout(_, _, 1)));
    assert!(matches!(damage(16, &1u32.to_le_bytes()), OpenError::Layout(_, _, 1)));
    assert!(matches!(damage(20, &0u32.to_le_bytes()), OpenError::Layout(_, _, 0)));
    assert!(matches!(damage(28, &8u32.to_le_bytes()), OpenError::Layout(_, _, 8)));
    let message = damage(8, &9u32.to_le_bytes()).to_string();
    assert!(message.contains("version 9") && message.contains(mapped.path.to_str().unwrap()), "{message}");
    Reader::open(&mapped.path).expect("the damage was undone");

    assert!(matches!(open_error(&mapped.folder.join("missing.larder")), OpenError::Io(..)));
    assert!(matches!(open_error(&mapped.folder), OpenError::Io(..) | OpenError::Size(..)));
}

#[test]
fn a_damaged_count_is_bounded_by_the_ring() {
    let mapped = Mapped::new();
    let _writer = mapped.writer();
    let reader = Reader::open(&mapped.path).unwrap();
    mapped.file.write_all_at(&u64::MAX.to_le_bytes(), 128).unwrap();
    let found = reader.cycles_since(0);
    assert_eq!(found.records.len() as u64 + found.missed, u64::MAX);
    assert!(found.records.len() <= CAPACITY);
}

#[test]
fn a_file_cut_off_under_its_reader_reads_as_empty() {
    let mapped = Mapped::new();
    let writer = mapped.writer();
    publish(&writer, 0);
    let reader = Reader::open(&mapped.path).unwrap();
    mapped.file.set_len(100).unwrap();
    assert_eq!(reader.cycles_since(0).records, []);
    assert_eq!(reader.cycles_written(), 0);
    assert_eq!(reader.counter(Counter::Refills), 0);
    assert!(matches!(open_error(&mapped.path), OpenError::Size(_, 100)));
}

/// The mapping alone keeps a file, as that of a process does, which closes its descriptor.
#[test]
fn a_file_is_abandoned_when_its_last_writer_is_gone() {
    let mut mapped = Mapped::new();
    mapped.writer();
    let reader = Reader::open(&mapped.path).unwrap();
    if reader.is_abandoned().is_none() {
        eprintln!("SKIPPED: the file system of {} has no leases", mapped.path.display());
        return;
    }
    mapped.file = File::open(&mapped.path).unwrap();
    assert_eq!(reader.is_abandoned(), Some(false));
    // SAFETY: no writer is left over it; what is mapped there now is dropped in its place.
    unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        assert_eq!(libc::mmap(mapped.base.cast(), FILE_BYTES, access, flags, -1, 0), mapped.base.cast());
    }
    assert_eq!(reader.is_abandoned(), Some(true));
    // The lease was given back: a writer need not wait.
    OpenOptions::new().write(true).open(&mapped.path).unwrap();
    assert_eq!(reader.cycles_written(), 0);
}
