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

use larder_events::{Cause, CycleRecord, PhaseKind};
use larder_sync::lock::Lock;
use larder_sync::parker::Event as Bell;
use larder_sync::phases::Claim;
use larder_sys::memory::KeepErrno;
use larder_sys::{clock, thread, tls};
use larder_threads::registry::RegistryGuard;
use larder_threads::stop::Stopped;
use larder_threads::{REGISTRY, Thread, ThreadState, blocking, defer, stop};
use larder_trace::crew::CREW;
use larder_units::{Blocks, Bytes, Nanos};

use crate::ablation::Optimization;
use crate::epochs::Epochs;
use crate::group::Reading;
use crate::heap::{self, HEAP};
use crate::hooks::{self, Event};
use crate::inject::{Point, point};
use crate::settings;
use crate::timeline::Timeline;
use crate::{
    ablation, aftermath, concurrent, events, finalization, gate, group, large, lock, own_threads, pacing, refill,
    roots, sharing, untold,
};
use aftermath::Aftermath;

mod forks;
mod marking;

pub(crate) use forks::{after_fork_in_child, after_fork_in_parent, before_fork};
use marking::mark;
pub(crate) use marking::push_uncollectable;

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
/// Stop cycles that were done, each of which found all that was dead when it began.
///
/// Sync: collector adds in a stopped world. A thread that reads the old number has not been stopped for that cycle yet, or it would have seen the new one when
/// it was resumed.
static WHOLE: AtomicU64 = AtomicU64::new(0);
/// Objects that client mark procedures have marked themselves, and their bytes. Sync: markers add; collector reads after the round.
static BY_PROCS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
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
    BY_PROCS.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
    PROC_OVERFLOW.store(false, Ordering::Relaxed);
}

/// A client's mark procedure has marked an object of so many bytes. Any marker.
pub(crate) fn count_marked(bytes: usize) {
    tls::with(|t| {
        let words =
            u32::try_from(bytes / size_of::<usize>()).ok().and_then(|words| t.proc_words.get().checked_add(words));
        match (t.proc_objects.get().checked_add(1), words) {
            (Some(objects), Some(words)) => {
                t.proc_objects.set(objects);
                t.proc_words.set(words);
            }
            _ => add_to_procs(1, bytes),
        }
    });
}

/// What client mark procedures have marked on the calling thread is added to what they did on others: for each object by itself that would have markers wait for
/// one another.
pub(crate) fn procs_returned() {
    tls::with(|t| add_to_procs(t.proc_objects.take().into(), t.proc_words.take() as usize * size_of::<usize>()));
}

fn add_to_procs(objects: usize, bytes: usize) {
    for (counter, n) in BY_PROCS.iter().zip([objects, bytes]) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
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
    // it, and before all have had it the next cycle may be due.
    if COMING.load(Ordering::Relaxed) && !HEAP.cycle_overdue() {
        return false;
    }
    COMING.store(true, Ordering::Relaxed);
    let has_run = run(Request::of(Cause::Budget));
    COMING.store(false, Ordering::Relaxed);
    has_run
}

/// Waits, as a blocked thread that need not be signalled, until the cycle under way has resumed the world. False for a
/// thread that may not.
fn wait_for_cycle() -> bool {
    let seen = AGAIN.current();
    if REGISTRY.current().is_none() {
        return false;
    }
    if CYCLE.is_locked() {
        blocked(|| {
            AGAIN.wait(seen);
            AGAIN.pass_on(FAN);
        });
    }
    true
}

/// Runs `f`, which touches no heap, as a blocked thread.
pub(crate) fn blocked<R>(f: impl FnOnce() -> R) -> R {
    // A client's handler that ran in here would allocate as a blocked thread, which the collector takes for stopped.
    // The stop signal stays open: the region's end answers it.
    let mask = gate::mask();
    let result = blocking::region(f);
    mask.set();
    result
}

/// Whether the stress mode is on.
pub(crate) fn is_stressed() -> bool {
    settings::COLLECT_EVERY.load(Ordering::Relaxed) != 0
}

/// In the stress mode, collects at every n-th refill.
pub(crate) fn collect_if_stressed() {
    let every = settings::COLLECT_EVERY.load(Ordering::Relaxed);
    if every == 0 {
        return;
    }
    let tick = STRESS.fetch_add(1, Ordering::Relaxed);
    if tick % every == every - 1 && !(concurrent::is_on() && concurrent::takes_stress(tick / every)) {
        run(Request::of(Cause::Stress));
    }
}

/// Sees to it that all that is dead now is found, because the heap must not grow; false when that is not possible.
///
/// Where several threads find no memory, one of them runs the cycle, and the others wait for it: it would find the same for each.
pub(crate) fn collect_for_memory() -> bool {
    run(Request { before: Some(WHOLE.load(Ordering::Relaxed)), ..Request::of(Cause::MaxHeap) })
}

/// A full cycle at the client's wish. False when collection is disabled or not possible here.
pub fn collect() -> bool {
    run(Request::of(Cause::Explicit))
}

/// The same, and gives all free memory back to the kernel.
pub fn collect_and_unmap() -> bool {
    run(Request { unmap: true, ..Request::of(Cause::Explicit) })
}

/// A cycle that is given up when `stop` says so; false then. Otherwise it gives all free memory back where `unmap` says so.
pub fn try_collect(stop: Option<StopFn>, unmap: bool) -> bool {
    run(Request { stop, unmap, ..Request::of(Cause::Explicit) })
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
    /// Stop cycles that were done when this one was asked for, where another that began since does as well.
    before: Option<u64>,
}

impl Request {
    /// That is not given up, keeps free memory, and is done for nobody else.
    const fn of(cause: Cause) -> Self {
        Self { cause, stop: None, unmap: false, before: None }
    }

    /// Whether another thread has run the cycle, from beginning to end. Since `before` was read this thread was stopped for it.
    fn is_served(&self) -> bool {
        self.before.is_some_and(|before| WHOLE.load(Ordering::Relaxed) > before)
    }
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
        if request.is_served() {
            return true;
        }
        // A cycle that marks beside the program ends first. Who wants to know what is dead now, or needs its memory, wants one more: that
        // one keeps what was alive when it began, and a young one what an earlier one kept.
        concurrent::hurry();
        match run_once(sp, request) {
            Ran::NotYet => {}
            Ran::Finished if matches!(request.cause, Cause::Explicit | Cause::MaxHeap) => done = true,
            Ran::Finished | Ran::Whole | Ran::Served => return true,
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

/// Wakes others who wait for the lock under which threads are made, or for the end of a cycle, in case that one who was suspended has got their wake.
pub(crate) fn wake_others() {
    PREPARE.wake_another();
    AGAIN.pass_on(FAN);
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

/// Wakes the program's threads that sleep for a cycle: those that were stopped, and those that wait for its end.
fn wake_sleepers() {
    stop::wake_resumed(pacing::usable_cpus());
    AGAIN.bump_and_wake(1);
}

/// Wakes the library's own threads that waited for the end of a stop, when the client was told of it: they have nothing that its functions could wait for, and
/// may push the caller off its CPU.
fn wake_own_threads() {
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
    /// Nothing: another thread has run one since it was asked for.
    Served,
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
    let markers = prepared(|| {
        // Those that exist, where there may be no more.
        let most = if own_threads::are_allowed() { usize::MAX } else { 1 + CREW.helpers() };
        CREW.prepare(pacing::markers_now().min(most))
    });
    if markers == 0 {
        // The heap has tried when it was made, too. It goes on without cycles as long as it can.
        if !SAID_NO_STACK.swap(true, Ordering::Relaxed) {
            larder_sys::say!("cannot map a mark stack: out of memory; nothing is collected before that can be had");
        }
        outside.set();
        return Ran::Not;
    }
    // Where calls of the C library publish where their thread stands, as those that read a file do, that must be over before this one does.
    let group = group::read_before_cycle();
    let mut stage = Stage { request, markers, group, found: Claim::Nothing, done: false, wakes_last: false };
    gate::with_objects_inside(|| {
        with_cycle_locked(|| {
            COMING.store(false, Ordering::Relaxed);
            // A second collector that waited for the first finds that nothing is due any more.
            let is_due = match request.cause {
                Cause::Budget => HEAP.cycle_due() || concurrent::is_ready(),
                _ => !request.is_served(),
            };
            if is_due {
                stage.found = concurrent::claim();
                if stage.found != Claim::Marking {
                    stage.group = stage.group.renewed();
                    let own = REGISTRY.current().expect("`run_at` checked that the thread is registered");
                    own.standing_at(sp, || collect_standing(&mut stage));
                }
            }
        });
    });
    if stage.wakes_last {
        wake_sleepers();
        aftermath::tell_late_events();
        wake_own_threads();
    } else {
        AGAIN.pass_on(1);
    }
    let ran = match stage.found {
        Claim::Marking => Ran::NotYet,
        _ if request.is_served() && !stage.done => Ran::Served,
        _ if !stage.done => Ran::Not,
        Claim::Claimed => Ran::Finished,
        Claim::Nothing | Claim::NotBegun | Claim::Abandoned => Ran::Whole,
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
    group: Reading,
    found: Claim,
    done: bool,
    /// The threads that the cycle resumed, or kept waiting, are to be woken when everything is given back.
    wakes_last: bool,
}

/// The cycle proper, with what is live of this thread's stacks published.
fn collect_standing(stage: &mut Stage<'_>) {
    aftermath::settle_events();
    lock::acquire_to_stop();
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
            let (bytes, finished) = (Bytes(record.live.0 + record.roots.0), stage.found == Claim::Claimed);
            concurrent::has_marked(record.mark, bytes, finished);
            concurrent::backoff::cycle_ends(&concurrent::backoff::Ended {
                stop: [begun, clock::now()],
                before: finished.then_some(record.start_pause),
                overtaken: finished && record.hurried > 0 && stage.request.cause == Cause::Budget,
                bytes,
                allocated: record.allocated,
            });
        }
        NUMBER.store(number, Ordering::Relaxed);
        if stage.found != Claim::Claimed {
            WHOLE.fetch_add(1, Ordering::Relaxed);
        }
        let on_request = matches!(stage.request.cause, Cause::Explicit | Cause::MaxHeap);
        pacing::found_live(record.live, record.allocated, on_request);
        HEAP.total.fetch_add(record.allocated.0 as u64, Ordering::Relaxed);
        HEAP.counts.since.fetch_sub(record.allocated.0, Ordering::Relaxed);
        HEAP.freed.store(0, Ordering::Relaxed);
        tls::with(|t| t.freed.set(0));
        HEAP.note_size_after_cycle();
        pacing::begin_census();
        large::begin_sweep();
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
    // Before anybody goes on: this thread may have no CPU for as long as it takes to use the budget up.
    let group = completed.then(|| stage.group.facts_after_cycle(record.live, next)).flatten();
    pacing::bound_by_group(group, next);

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
    unsafe { lock::release_from_client() };
    let resumed = timeline.add(PhaseKind::Stop, begun, stopped.signalled as usize);
    let aftermath = completed.then(|| Aftermath::new(number, stage.request.unmap, next, group));
    stage.wakes_last = aftermath.as_ref().is_none_or(|aftermath| aftermath.is_short);
    let tell = |event| {
        if !stage.wakes_last {
            hooks::event(event);
        }
    };
    if !stage.wakes_last {
        wake_sleepers();
        tell(Event::PostStartWorld);
        wake_own_threads();
    }
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

/// Adds to the time that all pauses took.
pub(crate) fn count_pause(pause: Nanos) {
    PAUSED_NS.fetch_add(pause.0, Ordering::Relaxed);
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
