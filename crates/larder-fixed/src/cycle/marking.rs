//! What a stopped world marks: roots, everything that they lead to, and what finalization keeps.

use core::sync::atomic::Ordering;

use larder_blocks::block::State;
use larder_events::{Cause, CycleRecord, PhaseKind};
use larder_sync::phases::Claim;
use larder_sys::clock;
use larder_sys::thread::stack_pointer;
use larder_trace::crew::CREW;
use larder_trace::marker::Tally;
use larder_trace::{Interior, Marker, Objects};
use larder_units::{Bytes, Nanos};

use super::{
    BY_PROCS, INSPECTOR, Inspector, PROC_OVERFLOW, PUSHING, Request, Stage, begin_epochs, for_each_thread,
    procs_returned,
};
use crate::epochs::{Cycle, Epochs, GREY};
use crate::heap::HEAP;
use crate::hooks::{self, Event};
use crate::stacks::for_each_stack;
use crate::timeline::Timeline;
use crate::view::View;
use crate::{
    ablation, concurrent, disclaim, finalization, generations, grey, kind, large, pacing, refill, roots, threads,
};

/// Marks everything reachable. False when the cycle was given up; then everything that was allocated still is.
///
/// # Safety
/// The world is stopped; the caller holds the locks of all classes and of the large objects.
pub(super) unsafe fn mark(
    markers: usize,
    stage: &Stage<'_>,
    record: &mut CycleRecord,
    timeline: &mut Timeline,
) -> bool {
    let (request, finishes) = (stage.request, stage.found == Claim::Claimed);
    let begun = clock::now();
    // SAFETY: the caller's promise.
    record.buffer_waste = Bytes(unsafe { refill::retire_in_stopped_world() });
    let mut now = timeline.add(PhaseKind::Retire, begun, record.buffer_waste.0);
    if stage.found == Claim::Abandoned {
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
        let (pages, others) = concurrent::push_rest(&mut marker, markers);
        tally += others;
        if marker.is_half_full() {
            // An object that is dropped is found by a walk over what is marked; a root would be by nobody.
            let (others, overflowed) = CREW.mark(markers, &mut marker);
            tally += others;
            if overflowed {
                marker.note_overflow();
            }
        }
        now = timeline.add(PhaseKind::Written, now, pages);
    }
    CREW.call(markers);
    push_roots(&mut marker, finishes, record);
    now = timeline.add(PhaseKind::Roots, now, record.roots.0);
    let before = tally.objects + marker.tally.objects;
    if is_given_up(request) {
        return end_given_up(marker, epochs, finishes.then_some((record.start, timeline)));
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
        return end_given_up(marker, epochs, finishes.then_some((record.start, timeline)));
    }
    now = timeline.add(PhaseKind::Mark, now, tally.objects + marker.tally.objects - before);
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
    // Of procedures that a client called by itself.
    procs_returned();
    let [objects, bytes] = BY_PROCS.each_ref().map(|counter| counter.load(Ordering::Relaxed));
    tally += Tally { objects, bytes, ..Tally::NONE };
    pacing::has_traced(tally.objects, Bytes(tally.long));
    record.live = Bytes(tally.bytes);
    record.marked_objects = tally.objects as u64;
    record.objects_by_block = tally.by_block as u64;
    grey::count(tally.by_block);
    record.mark = timeline.add(PhaseKind::Decide, now, finalized.queued).since(begun);
    marker.finish();
    debug_assert!(!grey::is_waiting(), "everything that is marked was scanned");
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
    concurrent::count_births_anew();
    if finishes {
        let figures = concurrent::finished(true, record.start, timeline);
        record.begun = figures.start;
        record.bytes_helped = figures.bytes_helped as u64;
        record.markers_beside = u64::from(figures.markers);
        record.marked_beside = figures.beside;
        record.start_pause = figures.start_pause;
        record.cleaning_rounds = u64::from(figures.rounds);
        [record.pages_cleaned, record.pages_left] = figures.pages.map(|pages| pages as u64);
        record.pages_compared = figures.compared as u64;
        record.hurried = u64::from(figures.hurried);
        record.helps = u64::from(figures.helps);
    }
    true
}

/// The end of a cycle that was given up; of one that began beside the program, with when its stop began and its timeline. False, for [`mark`].
#[cold]
fn end_given_up(mut marker: Marker<'_, View>, epochs: Epochs, beside: Option<(Nanos, &mut Timeline)>) -> bool {
    marker.abandon();
    give_up(epochs);
    generations::given_up();
    if let Some((start, timeline)) = beside {
        concurrent::finished(false, start, timeline);
    }
    false
}

/// Whether the client wants the cycle to be given up: by the function of the call, or by the one for cycles that the heap
/// begins by itself. Running out of memory is no time to ask.
fn is_given_up(request: &Request) -> bool {
    let by_itself = || hooks::STOP.get().filter(|_| request.cause == Cause::Budget);
    // SAFETY: the client set it to be called so.
    request.stop.or_else(by_itself).is_some_and(|stop| unsafe { stop() } != 0)
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
            debug_assert!(!(low..high).contains(&stack_pointer().addr()), "the collector's own frames are roots");
            bytes += high - low;
            marker.push_range(low, high, Interior::Always);
        });
    }
    for_each_thread(|t| t.roots().into_iter().for_each(|word| marker.word(word, Interior::Always)));
    threads::for_each_argument(|word| marker.word(word, Interior::Always));
    // SAFETY: the world is stopped and the locks of the classes and of the large objects are held.
    unsafe { push_uncollectable(marker) };
    finalization::push_roots(|word| marker.word(word, Interior::Always));
    pacing::has_scanned(Bytes(bytes));
    record.roots = Bytes(bytes);
}

/// Objects of uncollectable kinds are roots while they are allocated.
///
/// # Safety
/// The world is stopped; the locks of the classes and of the large objects are held.
pub(crate) unsafe fn push_uncollectable(marker: &mut Marker<'_, View>) {
    let epochs = Epochs::now();
    for k in [kind::UNCOLLECTABLE, kind::POINTER_FREE_UNCOLLECTABLE] {
        // SAFETY: the caller's promise.
        unsafe {
            refill::for_each_block(k, |b| {
                let (start, size) = (HEAP.space.address_of(HEAP.space.index_of(b)), b.cell.get() as usize);
                let descriptor = b.descriptor.get();
                debug_assert!(
                    descriptor == 0 || descriptor == size,
                    "objects of these kinds are scanned as a whole, or not at all"
                );
                refill::mark_all(b.all_marks(), epochs, |from, to| {
                    marker.tally.objects += to - from;
                    marker.tally.bytes += (to - from) * size;
                    if descriptor != 0 {
                        marker.push_range(start + from * size, start + to * size, Interior::AsConfigured);
                    }
                });
            });
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        large::for_each(|b| {
            if kind::uncollectable(b.kind.get() as usize)
                && let Some(spot) = marker.heap().find(HEAP.space.address_of(HEAP.space.index_of(b)), Interior::Always)
            {
                marker.mark(spot);
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
    let is_taken_back = |mark| mark == GREY || (epochs.cycle == Cycle::Full && mark == epochs.new);
    grey::forget();
    for index in 0..HEAP.space.frontier().0 {
        // SAFETY: below the frontier.
        let b = unsafe { HEAP.space.block(index) };
        if matches!(b.state(), State::Small | State::Large) {
            // SAFETY: the record is in one of the two states.
            for m in unsafe { b.all_marks() } {
                if is_taken_back(m.load(Ordering::Relaxed)) {
                    m.store(epochs.young, Ordering::Relaxed);
                }
            }
        }
    }
    epochs.given_up().begin();
}
