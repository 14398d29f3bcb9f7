//! Numbers that a client sets and asks for.
//!
//! Those that are libgc variables act through them. Of the rest, some steer the heap, and some (the rates of incremental
//! cycles) are kept for whoever asks and steer nothing.

use core::ffi::{c_int, c_uint, c_ulong};

use larder_fixed::{pacing, settings as heap};

use crate::data::{
    GC_all_interior_pointers, GC_dont_expand, GC_dont_precollect, GC_finalize_on_demand, GC_find_leak,
    GC_free_space_divisor, GC_full_freq, GC_java_finalization, GC_max_retries, GC_no_dls, GC_time_limit,
    GC_use_entire_heap, Int, Word,
};
use crate::incremental;
use crate::init::{is_ready, sync_now};

/// 8.2.2, as in `GC_VERSION`.
const VERSION: c_uint = 8 << 16 | 2 << 8 | 2;

static MAX_HEAP: Word = Word::new(0);
static MARKERS_WANTED: Word = Word::new(0);
static NO_AUTOMATIC: Int = Int::new(0);
static PAGES_EXECUTABLE: Int = Int::new(0);
static FORCE_UNMAP: Int = Int::new(0);
static MANUAL_BARRIER: Int = Int::new(0);
static MAX_PRIOR_ATTEMPTS: Int = Int::new(1);
static RATE: Int = Int::new(10);
static MIN_BYTES_ALLOCATED: Word = Word::new(1);
static BYTES_PER_FINALIZER: Word = Word::new(10_000);
/// What [`GC_set_time_limit_tv`] has set beyond milliseconds.
pub static TIME_LIMIT_NS: Word = Word::new(0);

/// The largest heap that was asked for before initialisation, 0 for any.
pub fn max_heap() -> usize {
    MAX_HEAP.get()
}

/// The number of markers that was asked for before initialisation.
pub fn markers_wanted() -> Option<usize> {
    Some(MARKERS_WANTED.get()).filter(|&n| n != 0)
}

/// Hands the numbers to the heap that steer when it collects.
pub fn sync() {
    heap::set_dont_expand(GC_dont_expand.is_set());
    heap::set_use_entire_heap(GC_use_entire_heap.is_set());
    heap::set_least_step(MIN_BYTES_ALLOCATED.get());
    heap::set_bytes_per_finalizer(BYTES_PER_FINALIZER.get());
}

/// Whether `GC_gcollect` gives free memory back.
pub fn force_unmap() -> bool {
    FORCE_UNMAP.is_set()
}

/// Sets what [`force_unmap`] says.
pub fn set_force_unmap(on: bool) {
    FORCE_UNMAP.set(c_int::from(on));
}

macro_rules! int_setting {
    ($(#[$doc:meta])* $set:ident, $get:ident => $variable:ident) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $set(value: c_int) {
            $variable.set(value);
            sync_now();
        }

        /// The value that was set last, or the first one.
        #[unsafe(no_mangle)]
        pub extern "C" fn $get() -> c_int {
            $variable.get()
        }
    };
}

macro_rules! word_setting {
    ($(#[$doc:meta])* $set:ident, $get:ident => $variable:ident) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $set(value: usize) {
            $variable.set(value);
            sync_now();
        }

        /// The value that was set last, or the first one.
        #[unsafe(no_mangle)]
        pub extern "C" fn $get() -> usize {
            $variable.get()
        }
    };
}

int_setting! {
    /// Whether finalizers wait for `GC_invoke_finalizers`.
    GC_set_finalize_on_demand, GC_get_finalize_on_demand => GC_finalize_on_demand
}
int_setting! {
    /// Whether an object of `GC_register_finalizer_unreachable` waits while a queued object without order reaches it. What
    /// queued objects refer to is kept either way.
    GC_set_java_finalization, GC_get_java_finalization => GC_java_finalization
}
int_setting! {
    /// Whether the data of loaded libraries is not searched; the program's own is searched all the same.
    GC_set_no_dls, GC_get_no_dls => GC_no_dls
}
int_setting! {
    /// Whether objects that become unreachable without having been freed are reported; finalizers and links are refused
    /// then.
    GC_set_find_leak, GC_get_find_leak => GC_find_leak
}
int_setting! {
    /// Whether a cycle comes before the heap grows.
    GC_set_dont_expand, GC_get_dont_expand => GC_dont_expand
}
int_setting! {
    /// Accepted: nothing is ever collected at initialisation.
    GC_set_dont_precollect, GC_get_dont_precollect => GC_dont_precollect
}
/// Lets so many young cycles come between two full ones, where cycles mark beside the program and it asks for that by this call, or its
/// user by `GC_FULL_FREQUENCY` or `LARDER_YOUNG`, which goes first.
#[unsafe(no_mangle)]
pub extern "C" fn GC_set_full_freq(cycles: c_int) {
    GC_full_freq.set(cycles);
    incremental::frequency_is_chosen();
}

/// The value that was set last, or the first one, 19. Without having been set it steers nothing.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_full_freq() -> c_int {
    GC_full_freq.get()
}
int_setting! {
    /// Whether `GC_gcollect` gives free memory back to the kernel.
    GC_set_force_unmap_on_gcollect, GC_get_force_unmap_on_gcollect => FORCE_UNMAP
}
int_setting! {
    /// Accepted: whether there is a barrier is chosen by `LARDER_WATCH`.
    GC_set_manual_vdb_allowed, GC_get_manual_vdb_allowed => MANUAL_BARRIER
}
int_setting! {
    /// Accepted: the time limit is a wish, which gives no cycle up, so marking is never attempted twice.
    GC_set_max_prior_attempts, GC_get_max_prior_attempts => MAX_PRIOR_ATTEMPTS
}
int_setting! {
    /// Accepted: how much is marked at a time follows from how fast the program allocates.
    GC_set_rate, GC_get_rate => RATE
}
word_setting! {
    /// How much is allocated between cycles, in parts of the heap: a larger divisor collects more often.
    GC_set_free_space_divisor, GC_get_free_space_divisor => GC_free_space_divisor
}
word_setting! {
    /// Accepted: a full heap is collected before memory is reported as exhausted.
    GC_set_max_retries, GC_get_max_retries => GC_max_retries
}
word_setting! {
    /// The fewest bytes that are allocated between cycles which the heap begins by itself.
    GC_set_min_bytes_allocd, GC_get_min_bytes_allocd => MIN_BYTES_ALLOCATED
}
word_setting! {
    /// Before the heap grows, a cycle is due if each finalizer registered since the last one stands for fewer allocated
    /// bytes than this; 0 takes no notice of finalizers.
    GC_set_allocd_bytes_per_finalizer, GC_get_allocd_bytes_per_finalizer => BYTES_PER_FINALIZER
}

/// A time as libgc passes it.
#[repr(C)]
pub struct TimeLimit {
    milliseconds: c_ulong,
    nanoseconds: c_ulong,
}

/// Chooses how long a pause of cycles that mark beside the program should last at most (`GC_TIME_UNLIMITED`, the default,
/// means a millisecond).
#[unsafe(no_mangle)]
pub extern "C" fn GC_set_time_limit(milliseconds: c_ulong) {
    GC_time_limit.set(milliseconds as usize);
    incremental::goal_is_set();
}

/// The time limit in milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_time_limit() -> c_ulong {
    GC_time_limit.get() as c_ulong
}

/// As [`GC_set_time_limit`], with a fraction.
#[unsafe(no_mangle)]
pub extern "C" fn GC_set_time_limit_tv(limit: TimeLimit) {
    GC_time_limit.set(limit.milliseconds as usize);
    TIME_LIMIT_NS.set(limit.nanoseconds as usize);
    incremental::goal_is_set();
}

/// The time limit with its fraction.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_time_limit_tv() -> TimeLimit {
    TimeLimit { milliseconds: GC_time_limit.get() as c_ulong, nanoseconds: TIME_LIMIT_NS.get() as c_ulong }
}

/// Whether pointers into objects from the heap and static data count. Best before initialisation: an object that was allocated without the byte that
/// is added where they do is not kept by a pointer past its end.
#[unsafe(no_mangle)]
pub extern "C" fn GC_set_all_interior_pointers(value: c_int) {
    GC_all_interior_pointers.set(c_int::from(value != 0));
    if is_ready() {
        larder_fixed::settings::set_all_interior_pointers(value != 0);
    }
}

/// Whether pointers into objects count.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_all_interior_pointers() -> c_int {
    GC_all_interior_pointers.get()
}

/// Limits the heap; 0 for no limit.
#[unsafe(no_mangle)]
pub extern "C" fn GC_set_max_heap_size(bytes: usize) {
    MAX_HEAP.set(bytes);
    if is_ready() {
        pacing::set_max_heap(bytes);
    }
}

/// Sets the number of markers, the collecting thread included. Before initialisation; 0 leaves it to the heap.
#[unsafe(no_mangle)]
pub extern "C" fn GC_set_markers_count(count: c_uint) {
    MARKERS_WANTED.set(count as usize);
}

/// Whether only explicit calls collect, and a heap that cannot grow.
#[unsafe(no_mangle)]
pub extern "C" fn GC_set_disable_automatic_collection(value: c_int) {
    NO_AUTOMATIC.set(value);
    heap::set_automatic(value == 0);
}

/// Whether only explicit calls collect.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_disable_automatic_collection() -> c_int {
    NO_AUTOMATIC.get()
}

/// Whether code may run on the heap. Before initialisation.
#[unsafe(no_mangle)]
pub extern "C" fn GC_set_pages_executable(value: c_int) {
    if !is_ready() {
        PAGES_EXECUTABLE.set(c_int::from(value != 0));
        larder_sys::memory::commit_executable(value != 0);
    }
}

/// Whether code may run on the heap.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_pages_executable() -> c_int {
    PAGES_EXECUTABLE.get()
}

/// The version of libgc whose interface this is.
#[unsafe(no_mangle)]
pub extern "C" fn GC_get_version() -> c_uint {
    VERSION
}
