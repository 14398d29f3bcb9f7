//! Initialisation, by `GC_init` or by the first allocation, and the way of the client's variables into the heap.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use larder_fixed::{cycle, hooks, lock, pacing, roots, stats};
use larder_sys::clock::now;
use larder_sys::thread::{main_stack_base, tid, yield_now};
use larder_units::Nanos;

use crate::data::{
    GC_dont_gc, GC_finalize_on_demand, GC_find_leak, GC_free_space_divisor, GC_greatest_plausible_heap_addr,
    GC_java_finalization, GC_least_plausible_heap_addr, GC_no_dls, GC_stackbottom, Int, Word,
};
use crate::{callbacks, env, errors, forking, progress, settings, stats as counters};

const NEW: u32 = 0;
const RUNNING: u32 = 1;
const READY: u32 = 2;

/// NEW, RUNNING while one thread initialises, READY.
static STATE: AtomicU32 = AtomicU32::new(NEW);
/// The thread that initialises while [`STATE`] is RUNNING.
static INITIALISER: AtomicI32 = AtomicI32::new(0);
/// Whether the heap has been told that collecting is disabled. Sync: changed under the allocation lock only.
static TOLD_DISABLED: Int = Int::new(0);

/// When the heap was initialised. Sync: written once, before [`STATE`] is READY.
static SINCE_NS: Word = Word::new(0);

/// How long ago the heap was initialised.
pub fn since_init() -> Nanos {
    now().since(Nanos(SINCE_NS.get() as u64))
}

/// Runs when the library is loaded. It only says where the heap finds [`initialise`]: a program's first call may be an
/// allocation, and the fast path has no room to ask whether there is a heap.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    hooks::INITIALISE.set(Some(initialise));
}

/// Initialises the heap, once; another thread that comes at the same time waits.
pub unsafe extern "C" fn initialise() {
    loop {
        // ORDER init.ready: Acquire, with the store below. Weaker, the heap could be seen half made.
        match STATE.load(Ordering::Acquire) {
            READY => return,
            // Relaxed: only the thread's own store can make the two equal. A client's warning function that allocates
            // comes back here; it finds the heap as far as it is.
            RUNNING if INITIALISER.load(Ordering::Relaxed) == tid() => return,
            RUNNING => yield_now(),
            // Relaxed failure: the loop reads again. Acquire on success pairs with nothing but costs nothing here.
            _ if STATE.compare_exchange(NEW, RUNNING, Ordering::Acquire, Ordering::Relaxed).is_ok() => break,
            _ => {}
        }
    }
    // Relaxed: read by this thread only, see above.
    INITIALISER.store(tid(), Ordering::Relaxed);
    SINCE_NS.set(now().0 as usize);
    callbacks::install();
    hooks::INITIALISE.set(Some(initialise));
    hooks::BEFORE_CYCLE.set(Some(sync_variables));
    let options = env::read();
    larder_fixed::settings::set_main_stack_base_variable(&GC_stackbottom);
    larder_fixed::init(&options);
    set_stack_bottom();
    forking::install();
    // SAFETY: callable by anyone who does not hold the lock.
    unsafe { sync_variables() };
    publish();
    env::after();
    progress::initialised();
    // ORDER init.ready: Release, with the load above.
    STATE.store(READY, Ordering::Release);
}

/// Sets `GC_stackbottom` unless the client did. Until then the heap uses what the loader says.
fn set_stack_bottom() {
    let bottom = larder_fixed::threads::main_stack_end().unwrap_or_else(main_stack_base);
    // Relaxed: an address that stands for itself; before initialisation there is one thread that stores here.
    let _ = GC_stackbottom.compare_exchange(core::ptr::null_mut(), bottom, Ordering::Relaxed, Ordering::Relaxed);
}

/// Hands the client's variables to the heap: called before each decision to collect.
///
/// # Safety
/// The caller does not hold the allocation lock, unless as a client's function does.
pub unsafe extern "C" fn sync_variables() {
    roots::set_no_dls(GC_no_dls.is_set());
    larder_fixed::settings::set_java_finalization(GC_java_finalization.is_set());
    larder_fixed::settings::set_finalize_on_demand(GC_finalize_on_demand.is_set());
    pacing::set_free_space_divisor(GC_free_space_divisor.get().max(1));
    settings::sync();
    if GC_find_leak.is_set() {
        errors::watch_leaks();
    }
    // A handler that collects may have interrupted this thread while it holds the lock, in a fork: it must not wait for nothing.
    if GC_dont_gc.is_set() == TOLD_DISABLED.is_set() {
        return;
    }
    lock::with_or_held(|| {
        let disabled = GC_dont_gc.is_set();
        if disabled != TOLD_DISABLED.is_set() {
            TOLD_DISABLED.set(c_int::from(disabled));
            if disabled { cycle::disable() } else { cycle::enable() }
        }
    });
}

/// Hands the client's variables to the heap now. For setters: before initialisation there is nothing to tell.
pub fn sync_now() {
    if is_ready() {
        // SAFETY: setters are called without the lock, or by functions that run with it.
        unsafe { sync_variables() };
    }
}

/// Whether the heap is there.
pub fn is_ready() -> bool {
    // ORDER init.ready: Acquire, as in `initialise`.
    STATE.load(Ordering::Acquire) == READY
}

/// Copies what the heap knows into the variables that clients read.
fn publish() {
    let (least, greatest) = stats::plausible_bounds();
    GC_least_plausible_heap_addr.set(least);
    GC_greatest_plausible_heap_addr.set(greatest);
    counters::publish();
}

/// Initialises the collector; the calling thread is registered.
#[unsafe(no_mangle)]
pub extern "C" fn GC_init() {
    // SAFETY: callable at any time by any thread.
    unsafe { initialise() }
}

/// Whether the collector is initialised, or being so.
#[unsafe(no_mangle)]
pub extern "C" fn GC_is_init_called() -> c_int {
    // Relaxed: a snapshot for the caller; nothing is read on its strength.
    c_int::from(STATE.load(Ordering::Relaxed) != NEW)
}

/// Ends the use of the collector: on Linux there is nothing to dispose of.
#[unsafe(no_mangle)]
pub extern "C" fn GC_deinit() {}
