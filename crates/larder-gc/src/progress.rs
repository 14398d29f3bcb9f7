//! What happens in a cycle, told step by step: to the client's event function, to the variables that show it, and,
//! where
//! `GC_PRINT_STATS` is set, to the log in libgc's lines, which scripts read.

use core::ffi::c_int;

use larder_fixed::stats::snapshot;
use larder_fixed::{cycle, finalization, hooks, object, pacing};
use larder_sys::clock::now;
use larder_units::Nanos;

use crate::data::{Int, Word};
use crate::{backptr, callbacks, env, error_line, errors, incremental, log_line, print, stats, world};

/// libgc's event numbers.
mod event {
    use core::ffi::c_int;

    pub const START: c_int = 0;
    pub const MARK_START: c_int = 1;
    pub const RECLAIM_END: c_int = 4;
    pub const END: c_int = 5;
    pub const PRE_STOP_WORLD: c_int = 6;
    pub const PRE_START_WORLD: c_int = 8;
    pub const POST_START_WORLD: c_int = 9;
}

static IS_ON: Int = Int::new(0);
static DUMP: Int = Int::new(0);
static ADDRESS_MAP: Int = Int::new(0);
static BACKTRACES: Word = Word::new(0);
// Sync: written and read by the collecting thread, one at a time under the allocation lock.
static USED_BEFORE: Word = Word::new(0);
static STARTED_NS: Word = Word::new(0);
static STOPPED_NS: Word = Word::new(0);
static LAST_SIZE: Word = Word::new(0);
static RESUMED_NS: Word = Word::new(0);
static STOPPED_TOTAL_NS: Word = Word::new(0);

/// Prints from now on.
pub fn turn_on() {
    IS_ON.set(1);
}

/// Whether statistics are printed.
pub fn is_on() -> bool {
    IS_ON.is_set()
}

/// Dumps the collector's state after each cycle.
pub fn dump_regularly() {
    DUMP.set(1);
}

/// Prints the process's address map after each cycle.
pub fn print_address_map() {
    ADDRESS_MAP.set(1);
}

/// Prints so many paths to random objects after each cycle.
pub fn print_backtraces(count: usize) {
    BACKTRACES.set(count);
    hooks::AFTER_CYCLE.set(Some(after_cycle));
}

/// What is printed about a cycle without any lock.
pub unsafe extern "C" fn after_cycle() {
    // SAFETY: called where the heap's hook is.
    unsafe { errors::report() };
    (0..BACKTRACES.get()).for_each(|_| backptr::print_random());
}

/// Tells that the heap is larger or smaller now.
pub fn resized(bytes: usize) {
    if !is_on() {
        return;
    }
    let s = snapshot();
    if bytes > LAST_SIZE.get() {
        log_line!("Grow heap to {} KiB after {} bytes allocated", bytes / 1024, s.bytes_since_cycle);
    }
    LAST_SIZE.set(bytes);
}

/// Copies the process's address map to where errors go. With its buffer not in the frame of every event's function: threads may have little stack.
#[cold]
#[inline(never)]
fn address_map() {
    let mut part = [0; 4096];
    error_line!("---------- Begin address map ----------");
    // SAFETY: a C string; the descriptor is closed; the buffer is as long as said.
    unsafe {
        // The main thread may have ended, and then `/proc/self` has no map.
        let fd = libc::open(c"/proc/thread-self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        while let Ok(n @ 1..) = usize::try_from(libc::read(fd, part.as_mut_ptr().cast(), part.len())) {
            print::error_bytes(&part[..n]);
        }
        libc::close(fd);
    }
    error_line!("---------- End address map ----------");
}

/// Tells of the machine.
pub fn initialised() {
    if DUMP.is_set() {
        world::dump(None);
    }
    if is_on() {
        log_line!("Number of processors: {}", env::processors());
        log_line!("Started {} mark helper threads", pacing::markers() - 1);
        incremental::print();
    }
}

/// The heap's event hook: the collecting thread calls it at each step, in libgc's order.
pub unsafe extern "C" fn on_event(event: c_int) {
    match event {
        event::START => USED_BEFORE.set(used()),
        event::PRE_START_WORLD => {
            stats::publish();
            stats::note_reclaimed(USED_BEFORE.get().saturating_sub(used()));
        }
        _ => {}
    }
    callbacks::announce(event);
    if is_on() {
        print(event);
    }
    if event == event::END && DUMP.is_set() {
        world::dump(None);
    }
    if event == event::END && ADDRESS_MAP.is_set() {
        address_map();
    }
}

/// Bytes that the last cycle found live, and what was allocated since.
fn used() -> usize {
    let s = snapshot();
    s.live + s.bytes_since_cycle
}

/// Whole milliseconds and the nanoseconds beyond, as libgc prints times.
fn parts(time: Nanos) -> (u64, u64) {
    (time.to_millis_rounded_down(), time.0 % 1_000_000)
}

fn since(mark: &Word) -> Nanos {
    now().since(Nanos(mark.get() as u64))
}

#[cold]
#[inline(never)]
fn print(event: c_int) {
    let kib = |bytes: usize| bytes / 1024;
    let s = snapshot();
    match event {
        event::START => {
            STARTED_NS.set(now().0 as usize);
            log_line!("Initiating full world-stop collection!");
        }
        event::PRE_STOP_WORLD => STOPPED_NS.set(now().0 as usize),
        event::MARK_START => {
            log_line!(
                "\n--> Marking for collection #{} after {} allocated bytes",
                cycle::number() + 1,
                s.bytes_since_cycle
            );
        }
        event::PRE_START_WORLD => {
            log_line!(
                "GC #{} freed {} bytes, heap {} KiB (+ {} KiB unmapped + 0 KiB internal)",
                cycle::number(),
                USED_BEFORE.get().saturating_sub(used()),
                kib(s.heap),
                kib(s.unmapped)
            );
        }
        event::POST_START_WORLD => {
            let stopped = since(&STOPPED_NS);
            STOPPED_TOTAL_NS.set(STOPPED_TOTAL_NS.get() + stopped.0 as usize);
            RESUMED_NS.set(now().0 as usize);
            let average = Nanos(STOPPED_TOTAL_NS.get() as u64).to_millis_rounded_down() / cycle::number().max(1);
            let (ms, ns) = parts(stopped);
            log_line!("World-stopped marking took {ms} ms {ns} ns ({average} ms in average)");
        }
        event::RECLAIM_END => {
            let [pointers, other] = object::bytes_in_use();
            let percent = ((pointers + other) * 100).checked_div(s.heap).unwrap_or(0);
            log_line!("In-use heap: {percent}% ({} KiB pointers + {} KiB other)", kib(pointers), kib(other));
            let [finalizers, links, long_links] = finalization::registered();
            log_line!("{finalizers} finalization entries; {links}/{long_links} short/long disappearing links alive");
            let [short, long] = finalization::cleared();
            log_line!("{} finalization-ready objects; {short}/{long} short/long links cleared", finalization::ready());
            let (ms, ns) = parts(since(&RESUMED_NS));
            log_line!("Finalize and initiate sweep took {ms} ms {ns} ns + 0 ms 0 ns");
        }
        event::END => {
            let (ms, ns) = parts(since(&STARTED_NS));
            log_line!("Complete collection took {ms} ms {ns} ns");
        }
        _ => {}
    }
}
