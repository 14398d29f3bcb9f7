//! Threads as clients see them: registering, creating, joining, blocking.

use core::ffi::{c_int, c_void};
use core::hint::black_box;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use larder_blocks::class::CLASSES;
use larder_lab::CLASSES as SLOTS;
use larder_sys::rseq_area;
use larder_sys::thread::{stack_pointer, thread_pointer};
use larder_threads::{REGISTRY, Thread, blocking, defer, stop, suspend};
use larder_units::Nanos;

use crate::heap::{self, HEAP};
use crate::{finalization, gate, own_threads, refill, settings, stacks, stats};

/// The type of a thread's start routine.
pub type StartFn = extern "C" fn(*mut c_void) -> *mut c_void;

/// Key whose destructor unregisters a thread that ends by whatever way; 0 is "not made yet", else key + 1.
///
/// Sync: compare-and-swap.
static KEY: AtomicU32 = AtomicU32::new(0);

fn key() -> libc::pthread_key_t {
    let known = KEY.load(Ordering::Acquire);
    if known != 0 {
        return known - 1;
    }
    let mut made = 0;
    // SAFETY: the destructor matches.
    if unsafe { libc::pthread_key_create(&mut made, Some(thread_ends)) } != 0 {
        larder_sys::die!("cannot make a thread key (pthread_key_create): too many keys");
    }
    match KEY.compare_exchange(0, made + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        Err(other) => {
            // SAFETY: ours, and unused.
            unsafe { libc::pthread_key_delete(made) };
            other - 1
        }
    }
}

/// Runs when a thread ends that was created or registered here, also by pthread_exit and cancellation. Other destructors may still
/// use the heap, so this waits for the last round.
unsafe extern "C" fn thread_ends(value: *mut c_void) {
    const LAST_ROUND: usize = 4;
    let round = value.addr();
    if round < LAST_ROUND {
        // SAFETY: the key exists, since its destructor runs.
        unsafe { libc::pthread_setspecific(key(), core::ptr::without_provenance(round + 1)) };
        return;
    }
    leave(REGISTRY.current().map_or(0, |t| t.roots()[1]));
}

/// Has the calling thread unregistered when it ends, whatever way.
pub(crate) fn unregister_at_the_end() {
    // SAFETY: the key exists, and the value counts the destructor's rounds.
    unsafe { libc::pthread_setspecific(key(), core::ptr::without_provenance(1)) };
}

/// Keeps the calling thread's result with its record, as a root, until somebody joins it.
fn keep_result(result: usize) {
    if let Some(t) = REGISTRY.current() {
        REGISTRY.note_result(t, result);
    }
}

/// Gives the thread's own buffers back and unregisters it.
fn leave(result: usize) -> bool {
    REGISTRY.current().inspect(|t| stacks::forget_main(t));
    if let Some(t) = REGISTRY.current()
        && !t.buffers().is_null()
    {
        let _deferral = defer::enter();
        larder_lab::retire_own(|offset, from, to| {
            let class = (offset / 16) % SLOTS;
            debug_assert!(class < CLASSES.len());
            refill::release_locked(class, from, to);
        });
    }
    stats::tell_freed();
    finalization::thread_leaves();
    REGISTRY.unregister_current(result)
}

/// Says that the program registers threads of its own making, so that what they are made with is live while they run ([`for_each_argument`]). May wait for
/// the loader's lock.
pub fn will_be_registered() {
    larder_sys::arguments::find();
}

/// Calls `f` with what the C library keeps for threads that may not have registered yet, which is found nowhere else: their arguments. In a stopped
/// world. Nothing where the program has only threads that the heap knows.
pub(crate) fn for_each_argument(f: impl FnMut(usize)) {
    let known = REGISTRY.count() as usize + own_threads::count();
    // A thread that has left the registry, and not ended, counts as well: nothing is lost by looking.
    if larder_sys::arguments::threads().is_some_and(|all| all != known) {
        larder_sys::arguments::for_each(f);
    }
}

/// Registers the calling thread, whose stack begins at `stack_base`. False when it was registered already.
pub fn register_current(stack_base: *mut u8) -> bool {
    will_be_registered();
    let known = larder_sys::control_block::give_number();
    // A thread that the C library did not make has no registration, but an area that looks as if it had.
    if !HEAP.labs.by_thread() && !rseq_area::register_here() {
        larder_sys::die!(
            "cannot register thread {}: it was not made by the C library, and the kernel refuses its restartable sequences; \
             create it with pthread_create, or set GLIBC_TUNABLES=glibc.pthread.rseq=0",
            larder_sys::thread::tid()
        );
    }
    match REGISTRY.register_current(stack_base.addr()) {
        Ok(new) => {
            if new {
                own_threads::program_made_one();
            }
            if new && known {
                // A thread that forgets to unregister: its stack is about to go.
                unregister_at_the_end();
            }
            new
        }
        Err(e) => larder_sys::die!("cannot register a thread: no memory for {}", e.wanted),
    }
}

/// Unregisters the calling thread. False when it was not registered.
pub fn unregister_current() -> bool {
    leave(0)
}

/// Whether the calling thread is registered.
pub fn is_registered() -> bool {
    REGISTRY.current().is_some()
}

/// Creates a thread that is registered from its first instruction on. Returns pthread_create's result.
///
/// # Safety
/// As for pthread_create.
pub unsafe fn create(
    handle: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: StartFn,
    argument: *mut c_void,
) -> c_int {
    let mut state = libc::PTHREAD_CREATE_JOINABLE;
    if !attributes.is_null() {
        // SAFETY: the caller passes initialised attributes.
        unsafe { pthread_attr_getdetachstate(attributes, &mut state) };
    }
    let detached = state == libc::PTHREAD_CREATE_DETACHED;
    // Should the program have limited its address space since the heap was made: its stack wants some of it.
    heap::heed_limit();
    let Ok(record) = REGISTRY.prepare(start as usize, argument.addr(), detached) else { return libc::EAGAIN };
    key();
    // SAFETY: the caller's promise; the record lives until the thread has ended and was joined.
    unsafe {
        let mut own = core::mem::zeroed();
        // Into the caller's variable, which the thread may read as soon as it runs.
        let handle = if handle.is_null() { &raw mut own } else { handle };
        let result =
            libc::pthread_create(handle, attributes, thread_begins, core::ptr::from_ref(record).cast_mut().cast());
        if result != 0 {
            REGISTRY.abandon(record);
            return result;
        }
        if !detached {
            REGISTRY.note_handle(record, *handle as usize);
        }
    }
    own_threads::program_made_one();
    0
}

unsafe extern "C" {
    fn pthread_attr_getdetachstate(attributes: *const libc::pthread_attr_t, state: *mut c_int) -> c_int;
}

/// Where the stack of a thread begins that is in its first function.
///
/// Destructors run after that function has returned, in the place where its frame was, so its own stack pointer would leave
/// out their first words. The thread control block lies above every frame.
fn base_of_new_stack() -> usize {
    /// More than the frames of the first function and of the C library's that calls it.
    const FIRST_FRAMES: usize = 512;
    let (here, block) = (stack_pointer().addr(), thread_pointer().addr());
    if here < block { block.min(here + FIRST_FRAMES) } else { here }
}

extern "C" fn thread_begins(record: *mut c_void) -> *mut c_void {
    // SAFETY: `create` passes a record of the registry.
    let record = unsafe { &*record.cast::<Thread>() };
    let (start, argument) = REGISTRY.begin_current(record, base_of_new_stack());
    unregister_at_the_end();
    larder_sys::signal::unblock(stop::signal());
    // SAFETY: `create` stored the caller's start routine.
    let start = unsafe { core::mem::transmute::<usize, StartFn>(start) };
    // The argument is a root of the record until the routine has returned: cheaper than to prove that it is on this
    // stack.
    let result = start(core::ptr::with_exposed_provenance_mut(argument));
    keep_result(result.addr());
    result
}

/// Joins a thread, as pthread_join; its result stays a root until this returns.
///
/// # Safety
/// As for pthread_join.
pub unsafe fn join(handle: libc::pthread_t, result: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let r = unsafe { libc::pthread_join(handle, result) };
    if r == 0 {
        REGISTRY.joined(handle as usize);
    }
    r
}

/// Detaches a thread, as pthread_detach.
///
/// # Safety
/// As for pthread_detach.
pub unsafe fn detach(handle: libc::pthread_t) -> c_int {
    // Before the call: after it the handle may belong to another thread.
    REGISTRY.detached(handle as usize);
    // SAFETY: the caller's promise.
    unsafe { libc::pthread_detach(handle) }
}

/// Ends the calling thread, as pthread_exit; `result` stays a root until it is joined.
///
/// # Safety
/// As for pthread_exit: no frame of the thread needs to be left in order.
pub unsafe fn exit(result: *mut c_void) -> ! {
    keep_result(result.addr());
    // SAFETY: the caller's promise.
    unsafe { libc::pthread_exit(result) }
}

/// Cancels a thread, as pthread_cancel.
///
/// # Safety
/// As for pthread_cancel.
pub unsafe fn cancel(handle: libc::pthread_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { libc::pthread_cancel(handle) }
}

/// Changes the calling thread's signal mask, as pthread_sigmask, but never blocks the stop signal.
///
/// # Safety
/// As for pthread_sigmask.
pub unsafe fn sigmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: the caller's promise; the copy is initialised before it is used.
    unsafe {
        if set.is_null() || how == libc::SIG_UNBLOCK {
            return libc::pthread_sigmask(how, set, old);
        }
        let mut own = *set;
        libc::sigdelset(&mut own, stop::signal());
        libc::pthread_sigmask(how, &own, old)
    }
}

/// Runs `f(argument)` as a blocking region: the thread is not signalled while it is there.
///
/// # Safety
/// `f` does not use the heap except through [`call_with_gc_active`].
pub unsafe fn do_blocking(f: blocking::Callback, argument: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { blocking::blocking(f, argument) }
}

/// Runs `f(argument)` as a mutator inside a blocking region. A stack that was said to begin deeper than here begins here from now on.
///
/// # Safety
/// As for any call of `f`.
pub unsafe fn call_with_gc_active(f: blocking::Callback, argument: *mut c_void) -> *mut c_void {
    // Of this frame, which lies above what is searched.
    let mut base = 0u8;
    if let Some(t) = REGISTRY.current() {
        stacks::reach(t, black_box(&raw mut base));
    }
    // SAFETY: the caller's promise.
    let result = unsafe { blocking::active(f, argument) };
    // Keeps the call from becoming a jump, after which the frame would be gone.
    black_box(&raw mut base);
    result
}

/// Where the main thread's stack begins. `None` where another thread has initialised the heap.
pub fn main_stack_end() -> Option<*mut u8> {
    let [_, high] = settings::MAIN_STACK.each_ref().map(|end| end.load(Ordering::Relaxed));
    (high != 0).then(|| core::ptr::with_exposed_provenance_mut(high))
}

/// Where the calling thread's stack begins; null when it is not registered.
pub fn my_stack_base() -> *mut u8 {
    REGISTRY.current().map_or(core::ptr::null_mut(), |t| core::ptr::with_exposed_provenance_mut(t.stack_base()))
}

/// Moves the place where a thread's stack begins: fibers. `thread` is what [`current_handle`] returned, or null for the
/// calling thread.
///
/// # Safety
/// `thread` is null or names a registered thread that is the calling one or cannot run.
pub unsafe fn set_stack_base(thread: *mut c_void, base: *mut u8) {
    if let Some(t) = REGISTRY.current() {
        // SAFETY: the caller's promise.
        let target = unsafe { thread.cast::<Thread>().as_ref() }.unwrap_or(t);
        target.set_stack_base(base.addr());
    }
}

/// Whether a handle is that of the thread whose stack begins where the client's variable says.
pub fn is_main(handle: *mut c_void) -> bool {
    !handle.is_null() && handle == settings::MAIN.load(Ordering::Relaxed).cast()
}

/// A handle of the calling thread for [`set_stack_base`]; null when it is not registered.
pub fn current_handle() -> *mut c_void {
    REGISTRY.current().map_or(core::ptr::null_mut(), |t| core::ptr::from_ref(t).cast_mut().cast())
}

/// Declares an alternate stack of the calling thread; null bounds take it back.
pub fn set_altstack(low: *mut u8, high: *mut u8) {
    if let Some(t) = REGISTRY.current() {
        t.set_alternate_stack(low.addr(), high.addr());
    }
}

/// Chooses the stop signal; before the heap is initialised.
pub fn set_suspend_signal(signal: c_int) {
    stop::set_signal(signal);
}

/// The stop signal.
pub fn suspend_signal() -> c_int {
    stop::signal()
}

/// A stop by [`stop_world`] is under way. Sync: the thread that stops the world.
static EXTERNAL: AtomicUsize = AtomicUsize::new(0);

/// Runs `f` with every other registered thread stopped and the loader's list held, which a stopped thread could hold. It takes the locks
/// of a collector in a collector's order. `f` must not allocate.
pub(crate) fn with_stopped_world(f: impl FnOnce()) {
    let outside = gate::mask();
    gate::with_objects_inside(|| {
        crate::cycle::with_cycle_lock(|| {
            crate::lock::with(|| {
                let registry = REGISTRY.lock_to_stop();
                registry.stop_world();
                f();
                registry.resume_world();
            });
            stop::wake_resumed(1);
        });
    });
    outside.set();
}

/// Stops every other registered thread until [`start_world`]; the caller must not allocate meanwhile.
pub fn stop_world() {
    let mask = gate::mask();
    gate::keep_collectors_out();
    crate::lock::acquire_to_stop();
    mask.set();
    core::mem::ManuallyDrop::new(REGISTRY.lock_to_stop()).stop_world();
    EXTERNAL.store(1, Ordering::Relaxed);
}

/// Resumes what [`stop_world`] stopped.
pub fn start_world() {
    if EXTERNAL.swap(0, Ordering::Relaxed) == 1 {
        let mask = gate::mask();
        // SAFETY: `stop_world` on this thread took both locks.
        unsafe {
            REGISTRY.resume_and_unlock();
            crate::lock::release_from_client();
        }
        gate::let_collectors_in();
        mask.set();
    }
}

/// Suspends a registered thread, by its `pthread_t`, until [`resume`]; a collection meanwhile takes it for blocked. Returns
/// once it stands still, or, where it is in a blocking region, stays there until then. False where the thread is not registered or is suspended already. A thread may suspend itself.
pub fn suspend(thread: libc::pthread_t) -> bool {
    // SAFETY: no preconditions.
    if thread == unsafe { libc::pthread_self() } {
        return suspend::suspend_self();
    }
    for request in 1.. {
        // A collector holds every lock with signals masked; so there must be none while a thread is asked. Nor does the thread create helpers
        // for a cycle then: it answers there, and would sleep with the lock that every cycle begins with.
        let suspended = gate::without_collectors(|| {
            crate::cycle::without_preparing(|| crate::lock::with(|| suspend::suspend(thread as usize)))
        });
        if !suspended {
            return false;
        }
        wake_others();
        // It comes to the gate with the loader's list, and every cycle takes that, too. Who asks cannot hold it meanwhile: a client's thread that
        // does may wait before the gate.
        if request == MOST_REQUESTS || !suspend::may_hold_list(thread as usize) {
            break;
        }
        suspend::resume(thread as usize);
        larder_sys::thread::sleep(NEXT_REQUEST);
    }
    true
}

/// Wakes others who wait for what a thread that was suspended may have waited for, in case that it got their wake.
fn wake_others() {
    crate::lock::ALLOCATION.wake_another();
    crate::cycle::wake_others();
    suspend::wake_others();
}

/// A thread that was suspended with the loader's list is let go, and asked again after so long: on its way to the gate it has the list for
/// about a microsecond.
const NEXT_REQUEST: Nanos = Nanos(100_000);
/// So often. One that holds it still is in a client's callback, and may wait there for what only this thread does: it stays suspended.
const MOST_REQUESTS: usize = 1000;

/// Lets a suspended thread go on. False where it was not suspended.
pub fn resume(thread: libc::pthread_t) -> bool {
    suspend::resume(thread as usize)
}

/// Whether a registered thread is suspended.
pub fn is_suspended(thread: libc::pthread_t) -> bool {
    suspend::is_suspended(thread as usize)
}
