//! A cycle: stop, mark in parallel, resume; the sweep is left to later refills.
//!
//! | step | world | locks |
//! |---|---|---|
//! | pass the gate that a fork closes; create helpers, which takes the loader's locks in another order | runs | gate, prepare |
//! | hold the loader's list, so that nothing is unmapped | runs | gate, loader |
//! | one collector at a time; the allocation lock, so that no weak reference is read meanwhile | runs | + cycle, allocation |
//! | stop | stops | + registry |
//! | retire every buffer: cells that were not handed out are free again | stopped | + classes, large objects |
//! | a new epoch begins; push roots; mark | stopped | |
//! | clear links, queue finalizers, mark what they keep | stopped | |
//! | resume | runs | - registry, classes, large objects, allocation |
//! | free unmarked large objects, return memory, set the next budget | runs | - cycle, loader |
//!
//! The loader comes first and never after: a stopped thread may hold the loader's lock, but not while this thread does.
//! No list of blocks is touched in the pause; what grows with the number of lists is only the look for sidelined runs.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use larder_blocks::block::State;
use larder_events::{Cause, CycleRecord, PhaseKind};
use larder_sync::lock::Lock;
use larder_sync::parker::Event as Bell;
use larder_sys::memory::KeepErrno;
use larder_sys::{clock, specific, thread, tls};
use larder_threads::registry::RegistryGuard;
use larder_threads::stop::Stopped;
use larder_threads::{REGISTRY, Thread, ThreadState, blocking, defer, stop};
use larder_trace::crew::CREW;
use larder_trace::marker::Tally;
use larder_trace::{Interior, Marker, Objects};
use larder_units::{Blocks, Bytes, Nanos};

use crate::ablation::Optimization;
use crate::epochs::{Cycle, Epochs};
use crate::heap::{self, HEAP};
use crate::hooks::{self, Event};
use crate::inject::{Point, point};
use crate::settings;
use crate::timeline::Timeline;
use crate::view::View;
use crate::{
    ablation, aftermath, concurrent, disclaim, events, finalization, gate, generations, kind, large, lock, own_threads,
    pacing, refill, roots, sharing, untold,
};
use aftermath::Aftermath;
use concurrent::Found;

/// One cycle at a time. Rank: after the loader, before the allocation lock.
static CYCLE: Lock = Lock::new();
/// Helpers are created by one thread at a time. Rank: before the loader.
static PREPARE: Lock = Lock::new();
/// Somebody is on the way to a cycle that is due, and does not have `CYCLE` yet.
///
/// Sync: a hint. Who leaves it set, as a client does that jumps out of a hook, makes the next cycle a little late.
static COMING: AtomicBool = AtomicBool::new(false);
/// Rings when allocation can go on: after the resume, and when `CYCLE` is given back.
static AGAIN: Bell = Bell::new();
/// The collecting thread's marker while the client's push-other-roots procedure runs.
///
/// Sync: collector writes and reads.
pub(crate) static PUSHING: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// Cycles so far. Sync: collector adds; a statistic to others.
static NUMBER: AtomicU64 = AtomicU64::new(0);
/// Marked by client mark procedures themselves. Sync: markers add; collector reads after the round.
static PROC_BYTES: AtomicUsize = AtomicUsize::new(0);
/// A client mark procedure had no room. Sync: markers set; collector reads after the round.
pub(crate) static PROC_OVERFLOW: AtomicBool = AtomicBool::new(false);
/// Allocations in slow paths, counted for the stress mode. Sync: a ticket.
static STRESS: AtomicU64 = AtomicU64::new(0);
/// Time that all pauses took. Sync: collector adds; a statistic.
static PAUSED_NS: AtomicU64 = AtomicU64::new(0);

/// The phases of the cycle under way. Not on the stack: any thread may collect, and each would keep the pages.
struct OfCollector(UnsafeCell<Timeline>);
// SAFETY: used by who holds `CYCLE` only.
unsafe impl Sync for OfCollector {}
/// Sync: `CYCLE`.
static TIMELINE: OfCollector = OfCollector(UnsafeCell::new(Timeline::new()));

/// How often a stop is repeated for a thread that was met where its roots cannot be found.
const MOST_REPEATS: usize = 100;

/// How many threads each thread wakes that waited for a cycle; the collector wakes the first.
const FAN: u32 = 8;

/// What a cycle looks like to a test while the world is still stopped: called with everything marked, before links are
/// cleared.
pub type Inspector = fn();
/// Sync: set by tests before they start.
static INSPECTOR: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Calls `f` in every cycle, world stopped, after marking and finalization. For verifiers.
pub fn inspect_with(f: Option<Inspector>) {
    INSPECTOR.store(f.map_or(core::ptr::null_mut(), |f| f as *mut ()), Ordering::Release);
}

/// Asks whether to give a cycle up: libgc's `GC_stop_func`.
pub type StopFn = unsafe extern "C" fn() -> c_int;

/// Whether a cycle marks beside the program. Under the lock of a class, or of the large objects, the answer stays right.
pub(crate) fn is_marking_beside() -> bool {
    Epochs::now().marking()
}

/// Begins to mark with these epochs. World stopped.
pub(crate) fn begin_epochs(epochs: Epochs) {
    epochs.begin();
    PROC_BYTES.store(0, Ordering::Relaxed);
    PROC_OVERFLOW.store(false, Ordering::Relaxed);
}

pub(crate) fn count_marked(bytes: usize) {
    PROC_BYTES.fetch_add(bytes, Ordering::Relaxed);
}

/// Calls `f` for every thread's record. During a stop, by the collector.
pub(crate) fn for_each_thread(f: impl FnMut(&'static Thread)) {
    // SAFETY: the collector holds the registry's lock during a stop.
    unsafe { REGISTRY.for_each_while_locked(f) }
}

/// Runs the cycle that is due, or waits until somebody else has. False when neither was possible, or another thread is about to.
pub(crate) fn collect_due() -> bool {
    if CYCLE.is_locked() {
        return wait_for_cycle();
    }
    // One thread goes for the loader's list, which is a while away if it loses its CPU on the way. Others would queue for the list behind
    // it, where they have to be signalled as running threads, and before all have had it the next cycle may be due.
    if COMING.load(Ordering::Relaxed) && !HEAP.cycle_overdue() {
        return false;
    }
    COMING.store(true, Ordering::Relaxed);
    let has_run = run(Request { cause: Cause::Budget, stop: None, unmap: false });
    COMING.store(false, Ordering::Relaxed);
    has_run
}

/// Waits, as a blocked thread that need not be signalled, until the cycle under way has resumed the world. False for a
/// thread that may not.
fn wait_for_cycle() -> bool {
    unsafe extern "C" fn wait(seen: *mut c_void) -> *mut c_void {
        AGAIN.wait(seen.addr() as u32);
        AGAIN.pass_on(FAN);
        core::ptr::null_mut()
    }
    let seen = AGAIN.current();
    if REGISTRY.current().is_none() {
        return false;
    }
    if CYCLE.is_locked() {
        wait_blocked(wait, seen);
    }
    true
}

/// Runs `wait(seen)`, which touches no heap, as a blocked thread.
pub(crate) fn wait_blocked(wait: blocking::Callback, seen: u32) {
    // A client's handler that ran in here would allocate as a blocked thread, which the collector takes for stopped.
    // The stop signal stays open: the region's end answers it.
    let mask = gate::mask();
    // SAFETY: the caller's promise.
    unsafe { blocking::blocking(wait, core::ptr::without_provenance_mut(seen as usize)) };
    mask.set();
}

/// In the stress mode, collects at every n-th refill.
pub(crate) fn collect_if_stressed() {
    let every = settings::COLLECT_EVERY.load(Ordering::Relaxed);
    if every == 0 {
        return;
    }
    let tick = STRESS.fetch_add(1, Ordering::Relaxed);
    if tick % every == every - 1 && !(concurrent::is_on() && concurrent::takes_stress(tick / every)) {
        run(Request { cause: Cause::Stress, stop: None, unmap: false });
    }
}

/// Collects because the heap must not grow; false when that is not possible.
pub(crate) fn collect_for_memory() -> bool {
    run(Request { cause: Cause::MaxHeap, stop: None, unmap: false })
}

/// A full cycle at the client's wish. False when collection is disabled or not possible here.
pub fn collect() -> bool {
    run(Request { cause: Cause::Explicit, stop: None, unmap: false })
}

/// The same, and gives all free memory back to the kernel.
pub fn collect_and_unmap() -> bool {
    run(Request { cause: Cause::Explicit, stop: None, unmap: true })
}

/// A cycle that is given up when `stop` says so; false then. Otherwise it gives all free memory back where `unmap` says so.
pub fn try_collect(stop: Option<StopFn>, unmap: bool) -> bool {
    run(Request { cause: Cause::Explicit, stop, unmap })
}

/// No cycles until as many calls of [`enable`].
pub fn disable() {
    settings::DISABLED.fetch_add(1, Ordering::Relaxed);
}

/// Takes one [`disable`] back.
pub fn enable() {
    let _ = settings::DISABLED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
}

/// Whether cycles are disabled.
pub fn is_disabled() -> bool {
    settings::DISABLED.load(Ordering::Relaxed) > 0
}

/// Cycles so far.
pub fn number() -> u64 {
    NUMBER.load(Ordering::Relaxed)
}

/// Time that all pauses took together.
pub fn paused() -> Nanos {
    Nanos(PAUSED_NS.load(Ordering::Relaxed))
}

struct Request {
    cause: Cause,
    stop: Option<StopFn>,
    unmap: bool,
}

/// Runs one cycle on the calling thread. False when it may not: disabled, an unregistered thread, a slow path, a child of
/// vfork, or given up.
fn run(request: Request) -> bool {
    let mut asked = Asked { request, done: false };
    thread::with_spilled_registers(run_below, (&raw mut asked).cast());
    asked.done
}

struct Asked {
    request: Request,
    done: bool,
}

/// What is live of this thread's stack lies at `sp` and above. The frames below are the runtime's, some 2 KiB deep when the world
/// stops, and hold in the words that they have not written what frames before them left there: finalizers' objects, and a client's.
extern "C" fn run_below(sp: *mut u8, asked: *mut u8) {
    // SAFETY: `run` passes its own local.
    let asked = unsafe { &mut *asked.cast::<Asked>() };
    asked.done = run_at(sp.addr(), &asked.request);
}

/// As [`run`], on a thread whose stack counts from `sp` up.
fn run_at(sp: usize, request: &Request) -> bool {
    if !may_collect() {
        return false;
    }
    let _errno = KeepErrno::new();
    hooks::call(&hooks::BEFORE_CYCLE);
    if is_disabled() {
        return false;
    }
    let mut done = false;
    loop {
        // A cycle that marks beside the program ends first. Who wants to know what is dead now, or needs its memory, wants one more: that
        // one keeps what was alive when it began, and a young one what an earlier one kept.
        concurrent::hurry();
        match run_once(sp, request) {
            Ran::NotYet => {}
            Ran::Finished if matches!(request.cause, Cause::Explicit | Cause::MaxHeap) => done = true,
            Ran::Finished | Ran::Whole => return true,
            Ran::Not => return done,
        }
    }
}

/// Whether the calling thread may run cycles: it is registered, not in a slow path, and not in a child of vfork.
pub(crate) fn may_collect() -> bool {
    REGISTRY.current().is_some() && !defer::is_deferring() && tls::with(|t| t.tid.get()) == thread::tid()
}

/// Runs `f`, which may create threads of the runtime, one caller at a time. The caller holds no lock and is not in a slow path.
pub(crate) fn prepared<R>(f: impl FnOnce() -> R) -> R {
    // A client's handler that allocates must not come back here for the lock. The stop signal stays open: creating a
    // thread takes malloc's lock, which a thread that is stopped may hold. The new thread inherits the mask.
    let mask = gate::mask();
    let guard = PREPARE.lock();
    point(Point::PrepareLocked);
    let result = f();
    drop(guard);
    mask.set();
    result
}

/// Runs `f` while nobody creates threads of the runtime. The caller keeps collectors out, and so comes as a fork does.
pub(crate) fn without_preparing<R>(f: impl FnOnce() -> R) -> R {
    let guard = PREPARE.lock();
    let result = f();
    drop(guard);
    result
}

/// Runs `f` with the cycle lock, on a thread whose signals are masked.
pub(crate) fn with_cycle_lock<R>(f: impl FnOnce() -> R) -> R {
    let result = with_cycle_locked(f);
    AGAIN.pass_on(1);
    result
}

/// As [`with_cycle_lock`]; the caller wakes those who wait for the end of a cycle.
fn with_cycle_locked<R>(f: impl FnOnce() -> R) -> R {
    CYCLE.lock_raw();
    let result = f();
    // SAFETY: taken above.
    unsafe { CYCLE.unlock_raw() };
    AGAIN.bump();
    result
}

/// Wakes everybody who sleeps for a cycle: threads that were stopped, those that wait for its end, and the marker thread of concurrent ones.
fn wake_sleepers() {
    stop::wake_resumed(pacing::usable_cpus());
    AGAIN.bump_and_wake(1);
    if concurrent::own_threads() > 0 {
        concurrent::resumed();
    }
}

/// What [`run_once`] did.
enum Ran {
    /// Nothing: it was not due any more, or was given up.
    Not,
    /// Nothing: a cycle is being marked beside the program.
    NotYet,
    /// The end of a concurrent cycle.
    Finished,
    /// A stop cycle.
    Whole,
}

/// That there is no mark stack was said. Sync: a flag of its own; said twice, it would be no harm.
static SAID_NO_STACK: AtomicBool = AtomicBool::new(false);

fn run_once(sp: usize, request: &Request) -> Ran {
    // A client's handler that came while the C library takes the loader's lock, or gives it back, or while a fork waits for
    // this thread to pass the gate, and collected, would wait for its own thread. The stop signal stays open: another
    // collector may hold the lock.
    let outside = gate::mask();
    // Should the program have limited its address space since the heap was made: the cycle wants some of it, and so does the program.
    heap::heed_limit();
    // Creating a thread takes the loader's locks in another order than a walk over its list, so helpers come first.
    let markers = prepared(|| CREW.prepare(if own_threads::are_allowed() { pacing::markers_now() } else { 1 }));
    if markers == 0 {
        // The heap has tried when it was made, too. It goes on without cycles as long as it can.
        if !SAID_NO_STACK.swap(true, Ordering::Relaxed) {
            larder_sys::say!("cannot map a mark stack: out of memory; nothing is collected before that can be had");
        }
        outside.set();
        return Ran::Not;
    }
    let mut stage = Stage { request, markers, found: Found::Nothing, done: false, wakes_last: false };
    gate::with_objects_inside(|| {
        with_cycle_locked(|| {
            COMING.store(false, Ordering::Relaxed);
            // A second collector that waited for the first finds that nothing is due any more.
            if request.cause != Cause::Budget || HEAP.cycle_due() || concurrent::is_ready() {
                stage.found = concurrent::claim();
                if stage.found != Found::Marking {
                    let own = REGISTRY.current().expect("`run_at` checked that the thread is registered");
                    own.standing_at(sp, || collect_standing(&mut stage));
                }
            }
        });
    });
    if stage.wakes_last {
        wake_sleepers();
        aftermath::tell_late_events();
    } else {
        AGAIN.pass_on(1);
    }
    let ran = match stage.found {
        Found::Marking => Ran::NotYet,
        _ if !stage.done => Ran::Not,
        Found::Claimed => Ran::Finished,
        Found::Nothing | Found::Abandoned => Ran::Whole,
    };
    outside.set();
    if matches!(ran, Ran::Finished | Ran::Whole) {
        hooks::call(&hooks::AFTER_CYCLE);
        finalization::after_cycle();
    }
    ran
}

struct Stage<'a> {
    request: &'a Request,
    markers: usize,
    found: Found,
    done: bool,
    /// The threads that the cycle resumed, or kept waiting, are to be woken when everything is given back.
    wakes_last: bool,
}

/// The cycle proper, with what is live of this thread's stacks published.
fn collect_standing(stage: &mut Stage<'_>) {
    aftermath::settle_events();
    lock::acquire();
    hooks::event(Event::Start);
    hooks::call(&hooks::START);
    finalization::decide_toggles();
    let number = NUMBER.load(Ordering::Relaxed) + 1;
    let mut record = CycleRecord::new(number, stage.request.cause);
    let markers = stage.markers;
    record.markers = markers as u32;
    // SAFETY: this thread holds `CYCLE`, and this is the only reference.
    let timeline = unsafe { &mut *TIMELINE.0.get() };
    timeline.clear();

    hooks::event(Event::PreStopWorld);
    let begun = clock::now();
    record.start = begun;
    let registry = REGISTRY.lock_to_stop();
    let stopped = stop_between_no_vectors(&registry);
    (record.threads, record.threads_blocked) = (stopped.signalled, stopped.blocked + stopped.parked);
    record.time_to_stop = Nanos(stopped.time_ns);
    timeline.add(PhaseKind::StopThreads, begun, stopped.signalled as usize);
    tell_of_threads(Event::ThreadSuspended);
    hooks::event(Event::PostStopWorld);

    refill::lock_all();
    large::LOCK.lock_raw();
    untold::tell_all();
    record.allocated = Bytes(HEAP.counts.since.load(Ordering::Relaxed));
    // SAFETY: the world is stopped, and the locks are held.
    let completed = unsafe { mark(markers, stage, &mut record, timeline) };
    // SAFETY: taken above.
    unsafe {
        large::LOCK.unlock_raw();
        refill::unlock_all();
    }
    if completed {
        if record.young == 0 {
            concurrent::has_marked(record.mark, Bytes(record.live.0 + record.roots.0), stage.found == Found::Claimed);
        }
        NUMBER.store(number, Ordering::Relaxed);
        pacing::found_live(record.live, matches!(stage.request.cause, Cause::Explicit | Cause::MaxHeap));
        HEAP.total.fetch_add(record.allocated.0 as u64, Ordering::Relaxed);
        HEAP.counts.since.fetch_sub(record.allocated.0, Ordering::Relaxed);
        HEAP.freed.store(0, Ordering::Relaxed);
        tls::with(|t| t.freed.set(0));
        pacing::begin_census();
        sharing::begin_sweep();
        if ablation::get().leaves_out(Optimization::LazySweep) {
            // As collectors do that build the list of empty blocks in the pause (thesis 3.3).
            let _deferral = defer::enter();
            while pacing::census(Blocks(usize::MAX / 2)) {}
        }
    }
    let next = pacing::budget(Bytes(HEAP.live.load(Ordering::Relaxed)));
    // A cycle that was given up is not due again at once.
    let since = if completed { 0 } else { HEAP.counts.since.load(Ordering::Relaxed) };
    pacing::set_budget(Bytes(next.0.max(since.saturating_add(next.0 / 4))));

    hooks::event(Event::PreStartWorld);
    tell_of_threads(Event::ThreadUnsuspended);
    registry.resume_world();
    // Everything that a resumed thread could want is given back before it is woken: this thread may lose its CPU to it.
    drop(registry);
    if finalization::is_awaited() {
        stop::wake_resumed(pacing::usable_cpus());
        finalization::tell_awaiting(record.finalizable as usize);
    }
    // SAFETY: taken above.
    unsafe { lock::release() };
    let resumed = timeline.add(PhaseKind::Stop, begun, stopped.signalled as usize);
    let aftermath = completed.then(|| Aftermath::new(number, record.live, stage.request.unmap, next));
    stage.wakes_last = aftermath.as_ref().is_none_or(|aftermath| aftermath.is_short);
    let tell = |event| {
        if !stage.wakes_last {
            hooks::event(event);
        }
    };
    if !stage.wakes_last {
        wake_sleepers();
    }
    tell(Event::PostStartWorld);
    if let Some(aftermath) = aftermath {
        tell(Event::ReclaimStart);
        aftermath.do_all(&mut record, timeline, resumed);
        tell(Event::ReclaimEnd);
    }
    record.heap = HEAP.size();
    record.total = clock::now().since(begun);
    record.pause = if stage.wakes_last { record.total } else { resumed.since(begun) };
    if stage.wakes_last {
        aftermath::postpone_events(completed);
    }
    count_pause(record.pause);
    events::publish(&record, timeline.phases(), completed);
    tell(Event::End);
    stage.done = completed;
}

/// Stops the world where every thread's roots can be found.
pub(crate) fn stop_between_no_vectors(registry: &RegistryGuard<'_>) -> Stopped {
    let mut stopped = registry.stop_world();
    for _ in 0..MOST_REPEATS {
        if !roots::is_a_thread_between_vectors() {
            break;
        }
        // A handful of instructions, once in a great many stops: let everybody run, and stop them again.
        registry.resume_world();
        stop::wake_resumed(pacing::usable_cpus());
        thread::sleep(Nanos(100_000));
        stopped = registry.stop_world();
    }
    stopped
}

/// Marks everything reachable. False when the cycle was given up; then everything that was allocated still is.
///
/// # Safety
/// The world is stopped; the caller holds the locks of all classes and of the large objects.
unsafe fn mark(markers: usize, stage: &Stage<'_>, record: &mut CycleRecord, timeline: &mut Timeline) -> bool {
    let (request, finishes) = (stage.request, stage.found == Found::Claimed);
    let begun = clock::now();
    // SAFETY: the caller's promise.
    record.buffer_waste = Bytes(unsafe { refill::retire_in_stopped_world() });
    let mut now = timeline.add(PhaseKind::Retire, begun, record.buffer_waste.0);
    if stage.found == Found::Abandoned {
        give_up(Epochs::now());
        generations::given_up();
        concurrent::forgotten();
    }
    let mut tally = Tally::default();
    if finishes {
        tally = concurrent::found_live(record.buffer_waste);
        record.young = u64::from(Epochs::now().cycle == Cycle::Young);
        if request.cause == Cause::Budget && HEAP.cycle_due() {
            concurrent::count_overtaken();
        }
    } else {
        begin_epochs(Epochs::now().of_full_cycle());
    }
    let epochs = Epochs::now();
    let new = epochs.new;
    hooks::event(Event::MarkStart);
    let view = View::new(epochs);
    // SAFETY: the collection lock is held, and this is the only use.
    let first = unsafe { CREW.first() };
    let mut marker = Marker::new(view, first);
    marker.leave_out(ablation::get());
    if finishes {
        let pages = concurrent::push_rest(&mut marker);
        now = timeline.add(PhaseKind::Written, now, pages);
    }
    CREW.call(markers);
    push_roots(&mut marker, finishes, record);
    now = timeline.add(PhaseKind::Roots, now, record.roots.0);
    let before = tally.objects;
    if is_given_up(request) {
        marker.abandon();
        give_up(epochs);
        generations::given_up();
        if finishes {
            concurrent::finished(false, record.start, timeline);
        }
        return false;
    }
    loop {
        let (others, overflowed) = CREW.mark(markers, &mut marker);
        tally += others;
        if !(marker.take_overflow() | overflowed | PROC_OVERFLOW.swap(false, Ordering::Relaxed)) {
            break;
        }
        rescan(&mut marker, new);
    }
    if disclaim::is_used() {
        // SAFETY: the caller's promise.
        unsafe { disclaim::mark_from_dead(&mut marker) };
        rescan_overflow(&mut marker, new);
    }
    if is_given_up(request) {
        marker.abandon();
        give_up(epochs);
        generations::given_up();
        if finishes {
            concurrent::finished(false, record.start, timeline);
        }
        return false;
    }
    now = timeline.add(PhaseKind::Mark, now, tally.objects - before + marker.tally.objects);
    hooks::event(Event::MarkEnd);
    let mut reach = finalization::Reach { marker: &mut marker };
    let finalized = finalization::process(&mut reach);
    rescan_overflow(&mut marker, new);
    if disclaim::is_used() {
        // SAFETY: the caller's promise.
        unsafe { disclaim::keep_dead(view) };
    }
    hooks::call(&hooks::MARKED);
    (record.links_cleared, record.finalizable) = (finalized.links as u64, finalized.queued as u64);
    tally += marker.tally;
    tally.bytes += PROC_BYTES.load(Ordering::Relaxed);
    pacing::has_traced(tally.objects, Bytes(tally.long));
    record.live = Bytes(tally.bytes);
    record.marked_objects = tally.objects as u64;
    record.mark = timeline.add(PhaseKind::Decide, now, finalized.queued).since(begun);
    marker.finish();
    let inspector = INSPECTOR.load(Ordering::Acquire);
    if !inspector.is_null() {
        // The marker thread is not stopped, and may be giving back what its census has found: not while somebody looks at the records.
        HEAP.owners.lock_all();
        HEAP.pool.lock().lock_raw();
        // SAFETY: only `inspect_with` stores here; the locks were taken above.
        unsafe {
            core::mem::transmute::<*mut (), Inspector>(inspector)();
            HEAP.pool.lock().unlock_raw();
            HEAP.owners.unlock_all();
        }
    }
    let after = epochs.after_cycle(generations::cycle_ended(epochs.cycle, record.live));
    HEAP.epoch.store(after.young, Ordering::Relaxed);
    after.begin();
    if finishes {
        let figures = concurrent::finished(true, record.start, timeline);
        record.begun = figures.start;
        record.bytes_helped = figures.bytes_helped as u64;
        record.markers_beside = u64::from(figures.markers);
        record.marked_beside = figures.beside;
        record.start_pause = figures.start_pause;
        record.cleaning_rounds = u64::from(figures.rounds);
        [record.pages_cleaned, record.pages_left] = figures.pages.map(|pages| pages as u64);
        record.hurried = u64::from(figures.hurried);
        record.helps = u64::from(figures.helps);
    }
    true
}

/// Adds to the time that all pauses took.
pub(crate) fn count_pause(pause: Nanos) {
    PAUSED_NS.fetch_add(pause.0, Ordering::Relaxed);
}

/// Whether the client wants the cycle to be given up: by the function of the call, or by the one for cycles that the heap
/// begins by itself. Running out of memory is no time to ask.
fn is_given_up(request: &Request) -> bool {
    let by_itself = || hooks::STOP.get().filter(|_| request.cause == Cause::Budget);
    // SAFETY: the client set it to be called so.
    request.stop.or_else(by_itself).is_some_and(|stop| unsafe { stop() } != 0)
}

/// Tells the client of each thread that was stopped by a signal, or that was and is resumed. World stopped.
fn tell_of_threads(event: Event) {
    let Some(tell) = hooks::THREAD_EVENT.get() else { return };
    let own = REGISTRY.current().map_or(core::ptr::null(), core::ptr::from_ref);
    let stopped = event == Event::ThreadSuspended;
    for_each_thread(|t| {
        // A thread that leaves a blocking region meanwhile counts as running, but was not stopped.
        let was_told = t.announce(false);
        if core::ptr::eq(t, own) || !(if stopped { t.state() == ThreadState::Running } else { was_told }) {
            return;
        }
        t.announce(stopped);
        // SAFETY: the client set it to be called so.
        unsafe { tell(event as c_int, core::ptr::with_exposed_provenance_mut(t.pthread())) };
    });
}

/// Scans again while entries were dropped outside of a round.
fn rescan_overflow(marker: &mut Marker<'_, View>, new: u8) {
    while marker.take_overflow() | PROC_OVERFLOW.swap(false, Ordering::Relaxed) {
        rescan(marker, new);
    }
}

/// Pushes everything that is live by itself.
fn push_roots(marker: &mut Marker<'_, View>, finishes: bool, record: &mut CycleRecord) {
    let mut bytes = roots::push_all_static(marker);
    // Before the stacks: it may say where those of fibers begin on which threads run.
    if let Some(f) = hooks::PUSH_OTHER_ROOTS.get() {
        PUSHING.store(core::ptr::from_mut(marker).cast(), Ordering::Relaxed);
        // SAFETY: the client set it to be called so.
        unsafe { f() };
        PUSHING.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
    if finishes {
        let [all, unwritten] = concurrent::push_stacks(marker);
        bytes += all.0;
        record.unwritten_stacks = unwritten;
    } else {
        for_each_stack(|low, high| {
            bytes += high - low;
            marker.push_range(low, high, Interior::Always);
        });
    }
    for_each_thread(|t| t.roots().into_iter().for_each(|word| marker.word(word, Interior::Always)));
    // SAFETY: the world is stopped and the locks of the classes and of the large objects are held.
    unsafe { push_uncollectable(marker) };
    finalization::push_roots(|word| marker.word(word, Interior::Always));
    pacing::has_scanned(Bytes(bytes));
    record.roots = Bytes(bytes);
}

/// Calls `f(low, high)` for the live part of each thread's stacks, and its thread-specific values. During a stop, by the
/// collector.
pub(crate) fn for_each_stack(mut f: impl FnMut(usize, usize)) {
    // SAFETY: during a stop.
    for_each_thread(|t| unsafe { for_each_stack_of(t, &mut f) });
}

/// As [`for_each_stack`], of one thread.
///
/// # Safety
/// The thread stands still, or is this one.
pub(crate) unsafe fn for_each_stack_of(t: &'static Thread, mut f: impl FnMut(usize, usize)) {
    if has_stack(t) {
        live_stack(t).inspect(|&(low, high)| f(low, high));
        t.alternate_stacks().into_iter().flatten().for_each(|(low, high)| f(low, high));
    }
    if !t.thread_pointer().is_null() {
        // SAFETY: the caller's promise.
        unsafe { specific::for_each_block(t.thread_pointer(), &mut f) };
    }
}

fn has_stack(t: &Thread) -> bool {
    matches!(t.state(), ThreadState::Running | ThreadState::Blocked)
}

/// The live part of the ordinary stack of a thread that stands still.
pub(crate) fn live_stack(t: &Thread) -> Option<(usize, usize)> {
    let (base, sp) = (stack_base(t), t.stack_pointer());
    (has_stack(t) && sp < base).then_some((sp, base))
}

/// Where a thread's stack begins. For the main thread the door's variable counts, which fibers move.
pub(crate) fn stack_base(t: &Thread) -> usize {
    let variable = settings::MAIN_STACK_BASE.load(Ordering::Relaxed);
    // SAFETY: `set_main_stack_base_variable` stored a static.
    match unsafe { variable.as_ref() } {
        Some(v) if core::ptr::eq(t, settings::MAIN.load(Ordering::Relaxed)) => {
            let base = v.load(Ordering::Relaxed).addr();
            if base == 0 { t.stack_base() } else { base }
        }
        _ => t.stack_base(),
    }
}

/// Objects of uncollectable kinds are roots while they are allocated.
///
/// # Safety
/// The world is stopped; the locks of the classes and of the large objects are held.
pub(crate) unsafe fn push_uncollectable(marker: &mut Marker<'_, View>) {
    let view = marker.heap();
    let mut every_cell = |b: &'static larder_blocks::Block| {
        let start = HEAP.space.address_of(HEAP.space.index_of(b));
        for cell in 0..b.cells.get() as usize {
            if let Some(spot) = view.find(start + cell * b.cell.get() as usize, Interior::Always) {
                marker.mark(spot);
            }
        }
    };
    for k in [kind::UNCOLLECTABLE, kind::POINTER_FREE_UNCOLLECTABLE] {
        // SAFETY: the caller's promise.
        unsafe { refill::for_each_block(k, &mut every_cell) };
    }
    // SAFETY: the caller's promise.
    unsafe {
        large::for_each(|b| {
            if kind::uncollectable(b.kind.get() as usize) {
                every_cell(b);
            }
        });
    }
}

/// Scans every marked object once more, because entries were dropped.
fn rescan(marker: &mut Marker<'_, View>, new: u8) {
    for index in 0..HEAP.space.frontier().0 {
        // SAFETY: below the frontier.
        let b = unsafe { HEAP.space.block(index) };
        if !matches!(b.state(), State::Small | State::Large) || b.descriptor.get() == 0 {
            continue;
        }
        let start = HEAP.space.address_of(index);
        for cell in 0..b.cells.get() as usize {
            // SAFETY: a cell of the block.
            if unsafe { b.mark(cell) }.load(Ordering::Relaxed) == new
                && let Some(entry) = marker.heap().entry_of(start + cell * b.cell.get() as usize)
            {
                marker.push(entry);
                // A block at a time, so that the stack that overflowed does not overflow again.
                marker.drain(|_| {});
            }
        }
    }
}

/// Takes every mark of a cycle that was given up back: what was allocated before still is, and no block is sweepable
/// that was not before.
fn give_up(epochs: Epochs) {
    // What a young cycle has marked cannot be told from what survived, and need not be: the next cycle is a full one.
    let last = if epochs.cycle == Cycle::Full { HEAP.space.frontier().0 } else { 0 };
    for index in 0..last {
        // SAFETY: below the frontier.
        let b = unsafe { HEAP.space.block(index) };
        if matches!(b.state(), State::Small | State::Large) {
            // SAFETY: the record is in one of the two states.
            for m in unsafe { b.all_marks() } {
                if m.load(Ordering::Relaxed) == epochs.new {
                    m.store(epochs.young, Ordering::Relaxed);
                }
            }
        }
    }
    epochs.given_up().begin();
}

/// Before fork: no cycle is under way, and this thread holds every lock of the heap.
pub(crate) fn before_fork() {
    let mask = gate::mask();
    gate::keep_collectors_out();
    PREPARE.lock_raw();
    CYCLE.lock_raw();
    lock::acquire();
    own_threads::before_fork(CREW.helpers() + concurrent::own_threads());
    mask.set();
    REGISTRY.before_fork();
    refill::lock_all();
    large::LOCK.lock_raw();
    HEAP.owners.lock_all();
    HEAP.pool.lock().lock_raw();
    HEAP.space.before_fork();
}

/// After fork, in the parent.
///
/// # Safety
/// The calling thread called `before_fork`.
pub(crate) unsafe fn after_fork_in_parent() {
    let mask = gate::mask();
    // SAFETY: all were taken by `before_fork`.
    unsafe {
        HEAP.space.after_fork_in_parent();
        HEAP.pool.lock().unlock_raw();
        HEAP.owners.unlock_all();
        large::LOCK.unlock_raw();
        refill::unlock_all();
        REGISTRY.after_fork_in_parent();
        lock::release();
        CYCLE.unlock_raw();
        PREPARE.unlock_raw();
    }
    AGAIN.bump_and_wake_all();
    gate::let_collectors_in();
    mask.set();
}

/// After fork, in the child.
///
/// # Safety
/// The calling thread called `before_fork` and is the only one of the child.
pub(crate) unsafe fn after_fork_in_child() {
    let mask = gate::mask();
    // Its record is used again for another thread.
    if REGISTRY.current().is_none_or(|own| !core::ptr::eq(own, settings::MAIN.load(Ordering::Relaxed))) {
        settings::MAIN.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
    // SAFETY: we are alone.
    unsafe {
        HEAP.space.reset_after_fork();
        HEAP.pool.lock().reset_after_fork();
        heap::reset_growth_after_fork();
        HEAP.owners.reset_after_fork();
        large::LOCK.reset_after_fork();
        refill::reset_after_fork();
        REGISTRY.after_fork_in_child();
        lock::ALLOCATION.reset_after_fork();
        // The stay that `lock::acquire` began in `before_fork`.
        drop(defer::Deferral::resume());
        CYCLE.reset_after_fork();
        COMING.store(false, Ordering::Relaxed);
        PREPARE.reset_after_fork();
        gate::reset_after_fork();
        AGAIN.reset_after_fork();
        aftermath::reset_after_fork();
        CREW.reset_after_fork();
        concurrent::after_fork_in_child();
    }
    own_threads::after_fork_in_child();
    mask.set();
    events::after_fork_in_child();
}
