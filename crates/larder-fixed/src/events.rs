//! What this process tells the `larder` tool: one record for each cycle, and counters, in a file that the tool maps.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use larder_events::{
    CAPACITY, Counter, CycleRecord, DIRECTORY_VARIABLE, FILE_BYTES, HEADER_BYTES, Identity, IndexKind, Phase,
    RECORD_BYTES, Writer, event_path,
};
use larder_sys::{clock, env, memory, thread};
use larder_threads::REGISTRY;
use larder_units::{Bytes, Nanos, PAGE};

use crate::heap::HEAP;

/// The mapped file, or null. Sync: written at initialisation and in fork children; read by the collector.
static FILE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// Whether it was said that there is no room. Sync: written by the collector, of which there is one.
static SAID: AtomicBool = AtomicBool::new(false);

/// How many earlier programs of the same process (exec) are looked past.
const ATTEMPTS: u32 = 100;

/// When the process began, on the monotonic clock, while `FILE` is its parent's: in a child of fork that has nothing to tell yet. 0 where it is its own. Sync: as `FILE`.
static BEGUN_WITH_PARENTS: AtomicU64 = AtomicU64::new(0);

/// Creates this process's file, if the environment asks for one.
pub(crate) fn attach() {
    create(clock::now());
    if !FILE.load(Ordering::Relaxed).is_null() {
        // SAFETY: the function lives as long as the process. Children of fork have it from here.
        unsafe { libc::atexit(at_exit) };
    }
}

/// The same, for a process that began then.
fn create(begun: Nanos) {
    let Some(directory) = env::var(DIRECTORY_VARIABLE).filter(|_| !env::has_more_rights()) else { return };
    let mut space = [0; 4096];
    for attempt in 0..ATTEMPTS {
        let Some(path) = event_path(directory.to_bytes(), thread::pid() as u32, attempt, &mut space) else { return };
        match memory::create_shared_file(path, Bytes(FILE_BYTES)) {
            Ok(at) => {
                // SAFETY: the mapping was just made, and goes with its file where it is of no use.
                unsafe {
                    if !memory::has_room(at.as_ptr(), Bytes(HEADER_BYTES)) {
                        memory::unmap(at.as_ptr(), Bytes(FILE_BYTES));
                        libc::unlink(path.as_ptr());
                        return;
                    }
                }
                // SAFETY: a fresh mapping of FILE_BYTES zeroes that is never unmapped while `FILE` names it.
                let writer = unsafe { Writer::new(at.as_ptr()) };
                let mut name = [0; 64];
                writer.initialise(Identity {
                    pid: thread::pid() as u32,
                    index: IndexKind::from_code(HEAP.association.load(Ordering::Relaxed)).unwrap_or(IndexKind::Thread),
                    start_monotonic: begun,
                    start_realtime: Nanos(clock::wall().0.saturating_sub(clock::now().since(begun).0)),
                    program: env::read_file(c"/proc/self/comm", &mut name).unwrap_or(b"?").trim_ascii_end(),
                });
                FILE.store(at.as_ptr(), Ordering::Release);
                return;
            }
            Err(e) if e.errno == libc::EEXIST => {}
            Err(_) => return,
        }
    }
}

/// A fork child is a process of its own: it leaves its parent's file alone. It gets one of its own when it has something to tell: most run another program, or end,
/// and a file would take as long as half of the fork.
pub(crate) fn after_fork_in_child() {
    BEGUN_WITH_PARENTS.store(clock::now().0, Ordering::Relaxed);
}

/// This process's file; null where there is none. Creates it in a child of fork. By the collector, outside of the pause, or who ends the process.
fn own_file() -> *mut u8 {
    if BEGUN_WITH_PARENTS.load(Ordering::Relaxed) != 0 {
        replace_parents();
    }
    FILE.load(Ordering::Acquire)
}

/// Not in the frame of a cycle: a path takes 4 KiB of a stack that may be small.
#[cold]
#[inline(never)]
fn replace_parents() {
    let begun = BEGUN_WITH_PARENTS.swap(0, Ordering::Relaxed);
    if begun == 0 {
        // Another thread does, for the end of the process or of a cycle.
        return;
    }
    let at = FILE.swap(core::ptr::null_mut(), Ordering::AcqRel);
    if !at.is_null() {
        // SAFETY: the mapping made by `create` in the parent; nobody else uses it in the child.
        unsafe { memory::unmap(at, Bytes(FILE_BYTES)) };
        create(Nanos(begun));
    }
}

/// Brings the counters up to date once more: a process may end without a single cycle.
extern "C" fn at_exit() {
    let at = own_file();
    if !at.is_null() {
        // SAFETY: `create` mapped it.
        sample(&unsafe { Writer::new(at) });
    }
}

/// Writes the counters that are states of the heap.
fn sample(writer: &Writer) {
    let set = |counter, value: u64| writer.counter(counter).store(value, Ordering::Relaxed);
    set(Counter::AllocatedBytes, HEAP.total.load(Ordering::Relaxed) + HEAP.handed_out_since_cycle() as u64);
    set(Counter::Refills, crate::stats::refills());
    set(Counter::ThreadsRegistered, u64::from(REGISTRY.count()));
    set(Counter::ThreadsStartedTotal, REGISTRY.total() as u64);
    set(Counter::HeapBytes, HEAP.size().0 as u64);
    set(Counter::LiveBytes, HEAP.live.load(Ordering::Relaxed) as u64);
    set(Counter::MaxHeapBytes, crate::settings::max_heap().0 as u64);
    set(Counter::MarkersAvailable, crate::pacing::markers() as u64);
    let free = HEAP.pool.resident() + HEAP.pool.discarded() + HEAP.owners.free();
    set(Counter::BlocksInUse, HEAP.space.frontier().saturating_sub(free).0 as u64);
    let shared = HEAP.owners.figures();
    set(Counter::OwnedUsedBlocks, shared.used as u64);
    set(Counter::OwnedMostUsedBlocks, shared.most_used as u64);
    set(Counter::OwnedMostUsedByOwnersBlocks, shared.most_used_by_owners as u64);
    set(Counter::OwnedLivingBlocks, shared.living as u64);
    set(Counter::OwnedMostLivingBlocks, shared.most_living as u64);
    set(Counter::OwnedConsumedBlocks, shared.consumed as u64);
    set(Counter::OwnedMostConsumedBlocks, shared.most_consumed as u64);
    set(Counter::OwnersSeen, shared.owners as u64);
    set(Counter::LocalBlocks, shared.local);
    set(Counter::RemoteBlocks, shared.remote);
    set(Counter::NewBlocks, shared.new);
    set(Counter::ConsumptionRatio, if crate::sharing::is_used() { u64::from(shared.ratio) } else { 0 });
    set(Counter::SampledNs, clock::now().0);
}

/// Publishes a cycle. By the collector, outside of the pause.
pub(crate) fn publish(record: &CycleRecord, phases: &[Phase], completed: bool) {
    let at = own_file();
    if at.is_null() {
        return;
    }
    // SAFETY: `create` mapped it, and only one collector runs at a time.
    let writer = unsafe { Writer::new(at) };
    let add = |counter, value: u64| {
        writer.counter(counter).fetch_add(value, Ordering::Relaxed);
    };
    if !completed {
        add(Counter::AbortedCycles, 1);
        return;
    }
    add(Counter::ReturnedBytesTotal, record.returned.0 as u64);
    add(Counter::BufferWasteBytes, record.buffer_waste.0 as u64);
    sample(&writer);
    if has_room_for_record(at, &writer) {
        writer.publish(record, phases);
    } else if !SAID.swap(true, Ordering::Relaxed) {
        let folder = env::var(DIRECTORY_VARIABLE).unwrap_or_default().to_str().unwrap_or("the folder for events");
        larder_sys::say!(
            "{folder}: the file system is full: what happens until there is room is left out of the events"
        );
    }
}

/// Whether the next record can be written: a full file system must not end the process.
fn has_room_for_record(at: *mut u8, writer: &Writer) -> bool {
    const RECORDS: usize = PAGE.0 / RECORD_BYTES;
    const _: () = assert!(RECORDS > 0 && HEADER_BYTES.is_multiple_of(PAGE.0));
    // Behind a page's first record the page is there, and so is each when the ring has been filled once.
    let number = writer.cycles_written() as usize;
    if number >= CAPACITY || !number.is_multiple_of(RECORDS) {
        return true;
    }
    // SAFETY: the first record of a page that lies in the file's mapping.
    unsafe { memory::has_room(at.add(HEADER_BYTES + number * RECORD_BYTES), PAGE) }
}
