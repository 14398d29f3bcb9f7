//! The environment, read when the collector is initialised and not when the library is loaded: LilyPond sets
//! its variables in `main`.
//!
//! Names and meaning are libgc's. Variables that steer what Larder does not have (black lists) are
//! accepted and change nothing; `docs/libgc.md` says of each one why.

use core::ffi::{CStr, c_int};

use larder_fixed::options::{Form, Options, usual_scan};
use larder_fixed::settings as heap;
use larder_sys::env::{has_more_rights, is_set, parse_leading, size, var};
use larder_units::Bytes;

use crate::callbacks::warn;
use crate::data::{
    GC_all_interior_pointers, GC_dont_gc, GC_find_leak, GC_free_space_divisor, GC_full_freq, GC_time_limit,
    GC_use_entire_heap, Int,
};
use crate::{debug, error_line, incremental, print, progress, settings, threads};

static IGNORES_GCJ: Int = Int::new(0);

/// As many markers as libgc can have.
const MOST_MARKERS: usize = 16;

/// Reads the environment: sets the variables that it overrides, and returns what the heap has to know from the start.
pub fn read() -> Options {
    open_log();
    if is_set(c"GC_PRINT_STATS") || is_set(c"GC_PRINT_VERBOSE_STATS") {
        progress::turn_on();
    }
    if is_set(c"GC_DUMP_REGULARLY") {
        progress::dump_regularly();
    }
    if is_set(c"GC_PRINT_ADDRESS_MAP") {
        progress::print_address_map();
    }
    if let Some(count) = positive(c"GC_BACKTRACES") {
        progress::print_backtraces(count);
    }
    if is_set(c"GC_FINDLEAK_DELAY_FREE") {
        debug::delay_free();
    }
    if is_set(c"GC_IGNORE_GCJ_INFO") {
        IGNORES_GCJ.set(1);
    }
    // Every other number lets memory go after one cycle in which it was free; 0 never.
    if var(c"GC_UNMAP_THRESHOLD") == Some(c"0") {
        heap::set_keep_memory(true);
    }
    if is_set(c"GC_FIND_LEAK") {
        GC_find_leak.set(1);
    }
    if is_set(c"GC_ALL_INTERIOR_POINTERS") {
        GC_all_interior_pointers.set(1);
    }
    if is_set(c"GC_DONT_GC") {
        GC_dont_gc.set(1);
    }
    if let Some(wish) = switch(c"GC_USE_ENTIRE_HEAP") {
        GC_use_entire_heap.set(c_int::from(wish));
    }
    if let Some(wish) = switch(c"GC_FORCE_UNMAP_ON_GCOLLECT") {
        settings::set_force_unmap(wish);
    }
    if let Some(divisor) = positive(c"GC_FREE_SPACE_DIVISOR") {
        GC_free_space_divisor.set(divisor);
    }
    if let Some(cycles) = positive(c"GC_FULL_FREQUENCY") {
        GC_full_freq.set(i32::try_from(cycles).unwrap_or(i32::MAX));
        incremental::frequency_is_chosen();
    }
    if let Some(milliseconds) = positive(c"GC_PAUSE_TIME_TARGET") {
        GC_time_limit.set(milliseconds);
    }
    let (initial_heap, max_heap) = heap_sizes();
    Options {
        all_interior_pointers: GC_all_interior_pointers.is_set(),
        initial_heap,
        max_heap,
        free_space_divisor: GC_free_space_divisor.get(),
        markers: markers(),
        suspend_signal: threads::suspend_signal(),
        sharing: larder_fixed::sharing::Setting::default(),
        collect_every: size(c"LARDER_COLLECT_EVERY").filter(|&n| n > 0).map(|n| n as u64),
        widest_scan: widest_scan(),
        ablation: larder_fixed::ablation::Ablation::NONE,
    }
}

/// The widest vector instructions that `LARDER_SIMD` allows for scanning.
fn widest_scan() -> Form {
    match var(c"LARDER_SIMD").map(CStr::to_bytes) {
        None => usual_scan(),
        Some(b"volleys") => Form::Avx512Volleys,
        Some(b"avx512") => Form::Avx512,
        Some(b"avx2-volleys") => Form::Avx2Volleys,
        Some(b"avx2") => Form::Avx2,
        Some(b"none") => Form::Portable,
        Some(_) => {
            larder_sys::say!("LARDER_SIMD is none of none, avx2, avx2-volleys, avx512 and volleys, and is ignored");
            usual_scan()
        }
    }
}

/// A variable that begins with a positive number.
fn positive(name: &CStr) -> Option<usize> {
    parse_leading(var(name)?).filter(|&n| n > 0)
}

/// A variable that 0 turns off and everything else on. Most have no such value: they are on where they are set.
fn switch(name: &CStr) -> Option<bool> {
    Some(var(name)? != c"0")
}

/// The size that a variable sets; warns where it is set to something else.
fn heap_size(name: &CStr, warning: &CStr) -> Option<usize> {
    let text = var(name)?;
    let bytes = size(name).filter(|&bytes| bytes > 0);
    if bytes.is_none() {
        warn(warning.as_ptr(), text.as_ptr().addr());
    }
    bytes
}

fn heap_sizes() -> (Bytes, Bytes) {
    let initial =
        heap_size(c"GC_INITIAL_HEAP_SIZE", c"GC Warning: Bad initial heap size %s - ignoring it.\n").unwrap_or(0);
    let mut most = heap_size(c"GC_MAXIMUM_HEAP_SIZE", c"GC Warning: Bad maximum heap size %s - ignoring it.\n")
        .unwrap_or_else(settings::max_heap);
    if most != 0 && most < initial {
        warn(c"GC Warning: Bad maximum heap size %lu: it is below the initial size - ignoring it.\n".as_ptr(), most);
        most = 0;
    }
    (Bytes(initial), Bytes(most))
}

/// How many markers there shall be, `None` to leave it to the heap. `GC_MARKERS` wins over `GC_NPROCS`, and both over
/// `GC_set_markers_count`.
fn markers() -> Option<usize> {
    if let Some(text) = var(c"GC_MARKERS") {
        if let Some(n) = parse_leading(text).filter(|n| (1..=MOST_MARKERS).contains(n)) {
            return Some(n);
        }
        warn(
            c"GC Warning: Too big or invalid number of mark threads: %s; using maximum threads\n".as_ptr(),
            text.as_ptr().addr(),
        );
        return Some(MOST_MARKERS);
    }
    positive(c"GC_NPROCS").map(|n| n.min(MOST_MARKERS)).or_else(settings::markers_wanted)
}

/// How many processors the program shall believe in.
pub fn processors() -> usize {
    positive(c"GC_NPROCS").unwrap_or_else(larder_sys::cpus::usable)
}

/// Opens the file that `GC_LOG_FILE` names. Errors go there too unless `GC_ONLY_LOG_TO_FILE` says otherwise.
fn open_log() {
    let Some(path) = var(c"GC_LOG_FILE") else { return };
    if has_more_rights() {
        warn(
            c"GC Warning: GC_LOG_FILE=%s is ignored in a program with rights of its own\n".as_ptr(),
            path.as_ptr().addr(),
        );
        return;
    }
    let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC;
    // SAFETY: a C string from the environment, and the mode that `O_CREAT` wants.
    let fd = unsafe { libc::open(path.as_ptr(), flags, 0o644) };
    if fd < 0 {
        warn(c"GC Warning: Failed to open %s as log file\n".as_ptr(), path.as_ptr().addr());
        return;
    }
    print::set_log(fd, switch(c"GC_ONLY_LOG_TO_FILE") != Some(true));
}

/// What is left to do once the heap is there: says what was asked for and cannot be had.
pub fn after() {
    incremental::read_environment();
    if is_set(c"GC_LOOP_ON_ABORT") {
        loop_on_faults();
    }
    if is_set(c"GC_TRACE") {
        warn(c"GC Warning: Tracing not enabled: Ignoring GC_TRACE value\n".as_ptr(), 0);
    }
    if is_set(c"GC_PRINT_BACK_HEIGHT") {
        error_line!(
            "Back height not available: GC_PRINT_BACK_HEIGHT is ignored; GC_BACKTRACES=N prints paths to objects"
        );
    }
    if is_set(c"GC_LARGE_ALLOC_WARN_INTERVAL") && positive(c"GC_LARGE_ALLOC_WARN_INTERVAL").is_none() {
        warn(c"GC Warning: GC_LARGE_ALLOC_WARN_INTERVAL environment variable has bad value: Ignoring\n".as_ptr(), 0);
    }
}

/// Whether gcj objects are scanned conservatively.
pub fn ignores_gcj() -> bool {
    IGNORES_GCJ.is_set()
}

/// Stands still at a fault, so that a debugger can be attached.
fn loop_on_faults() {
    extern "C" fn stand_still(signal: libc::c_int) {
        error_line!("Caught signal {signal}: looping in handler");
        loop {
            // SAFETY: no preconditions.
            unsafe { libc::pause() };
        }
    }
    let handler = stand_still as extern "C" fn(libc::c_int);
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the handler uses nothing that the fault may have left half done.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}
