//! The marker thread: what it does from the moment when a cycle is asked for until only the final stop is left.

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use larder_events::PhaseKind;
use larder_policy::concurrent::{self as policy, CleanFacts, Round};
use larder_sync::phases::Phase;
use larder_sys::signal::Mask;
use larder_sys::vector::Vector;
use larder_sys::{clock, say, scheduling, watch};
use larder_threads::{REGISTRY, stop};
use larder_trace::crew::{Beside, CREW, GUESTS};
use larder_trace::marker::Tally;
use larder_trace::{Entry, Interior, Marker};
use larder_units::{Blocks, Bytes, Nanos, PAGE};

use super::guests::{LEFT, with_guests};
use super::looking::{Look, look_at_stacks, look_in_stop};
use super::watching::{Which, end_what_a_cycle_has, fetch, forget_watch, rest_watch, watch_all};
use super::{
    BY_HELPERS, Births, CHOSEN_MARKERS, Figures, NEXT_MARKERS, PHASES, State, TO_MARK, TRACED_NS, Way, births,
    own_state, pause_goal, phase, turn_off, way,
};
use crate::ablation::Optimization;
use crate::barrier::{self, Algorithm};
use crate::epochs::Epochs;
use crate::heap::HEAP;
use crate::inject::{Point, point};
use crate::view::View;
use crate::{
    ablation, cycle, dirty, finalization, gate, generations, grey, group, large, lock, pacing, refill, roots, untold,
};

/// How long the marker thread waits for somebody to finish before it cleans once more.
const CLEAN_AGAIN_NS: u64 = 10_000_000;
/// ... and how often: a program that does not allocate need not pay for it.
const CLEANS_WAITING: u32 = 20;

pub(super) extern "C" fn marker_main(_: *mut c_void) -> *mut c_void {
    Mask::all_but_faults().set();
    scheduling::as_program();
    // SAFETY: the name is a C string of fewer than 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"larder-conc".as_ptr()) };
    let mut cleans = 0;
    loop {
        let seen = PHASES.rung();
        match phase() {
            Phase::Asked => {
                cleans = 0;
                begin();
                if phase() != Phase::Marking {
                    // Once more, or the watch is to end that may have begun.
                    continue;
                }
            }
            Phase::Idle => {
                end_what_a_cycle_has();
                if !generations::is_on() {
                    rest_watch();
                }
            }
            _ => {}
        }
        if phase() == Phase::Marking {
            mark();
        }
        if phase() != Phase::Ready || cleans == CLEANS_WAITING {
            PHASES.sleep(seen);
        } else if !PHASES.sleep_for(seen, CLEAN_AGAIN_NS) && PHASES.take_back(Phase::Ready) {
            cleans += 1;
            clean();
            ready();
        }
    }
}

/// From `Asked` to `Marking`, or back to `Idle`.
fn begin() {
    let number = cycle::number();
    own_state().timeline.clear();
    let begun = clock::now();
    // A fork waits meanwhile: its child must find no block on its way to the pool, and a watch that is whole.
    let inside = gate::pass_gate();
    // What the last cycle found dead is found now: while this one marks, no block becomes free.
    while phase() == Phase::Asked && pacing::census(Blocks(usize::MAX / 2)) {}
    let begun = own_state().timeline.add(PhaseKind::Census, begun, 0);
    // Outside of every lock, since creating threads takes the loader's.
    let wanted = NEXT_MARKERS.load(Ordering::Relaxed);
    own_state().markers = if wanted > 1 { cycle::prepared(|| CREW.prepare(wanted)).max(1) } else { 1 };
    if cycle::is_disabled() {
        call_off();
        return;
    }
    if let Err(e) = watch_all().or_else(|e| if forget_watch() { watch_all() } else { Err(e) }) {
        say!("cannot watch writes ({}: errno {}): cycles are not concurrent any more", e.call, e.errno);
        turn_off();
        call_off();
        return;
    }
    let State { timeline, watched, .. } = own_state();
    timeline.add(PhaseKind::Watch, begun, *watched);
    PHASES.prepare();
    drop(inside);
    gate::with_objects_inside(|| {
        let started = cycle::with_cycle_lock(|| {
            if phase() != Phase::Asked || cycle::number() != number {
                // A stop cycle came first. If the next one is asked for already, what that has found dead is not to be watched.
                return false;
            }
            start_in_stopped_world();
            PHASES.begin();
            true
        });
        if started {
            look_beside(Look::First);
        }
    });
}

/// Static data, and the stacks that the stop has left out. The world runs on; the loader's list, which the caller holds, and the lock keep
/// what is looked at where it is.
fn look_beside(look: Look) {
    let begun = clock::now();
    with_marker(|marker| {
        lock::with(|| {
            // SAFETY: data of loaded objects and registered ranges, which stay while the two are held.
            roots::for_each_range_of_cycle(|low, high| unsafe {
                marker.scan_now(low, high, Interior::AsConfigured);
            });
        });
    });
    let begun = own_state().timeline.add(PhaseKind::StaticData, begun, 0);
    if let Way::Watch(_) = own_state().way {
        let threads = look_at_stacks(look);
        own_state().timeline.add(PhaseKind::Stacks, begun, threads);
    }
}

/// From `Asked` to `Idle`: there will be no cycle.
fn call_off() {
    if PHASES.call_off() {
        pacing::renew_budget();
    }
}

/// The short stop at the beginning.
fn start_in_stopped_world() {
    let state = own_state();
    state.tally = Tally::default();
    state.figures = Figures { markers: 1, ..Figures::default() };
    // SAFETY: the world is stopped, and the locks are held.
    let (begun, resumed) = in_short_stop(PhaseKind::StartStop, || unsafe { start() });
    let state = own_state();
    (state.figures.start, state.resumed) = (begun, resumed);
}

/// Stops the world for `f`, which has the locks of the classes and of the large objects as well. Returns when that was asked for, and when
/// it was over. The caller holds the cycle lock.
pub(super) fn in_short_stop(kind: PhaseKind, f: impl FnOnce()) -> (Nanos, Nanos) {
    lock::acquire_to_stop();
    let begun = clock::now();
    let registry = REGISTRY.lock_to_stop();
    let threads = cycle::stop_between_no_vectors(&registry).signalled as usize;
    let stopped = own_state().timeline.add(PhaseKind::StopThreads, begun, threads);
    refill::lock_all();
    large::LOCK.lock_raw();
    f();
    // SAFETY: taken above.
    unsafe {
        large::LOCK.unlock_raw();
        refill::unlock_all();
    }
    own_state().timeline.add(PhaseKind::StartRoots, stopped, 0);
    registry.resume_world();
    drop(registry);
    // SAFETY: taken above.
    unsafe { lock::release_from_client() };
    let State { figures, timeline, .. } = own_state();
    let resumed = timeline.add(kind, begun, threads);
    figures.start_pause = figures.start_pause.max(resumed.since(begun));
    cycle::count_pause(resumed.since(begun));
    stop::wake_resumed(pacing::usable_cpus());
    (begun, resumed)
}

/// Begins the cycle.
///
/// # Safety
/// The world is stopped, and the caller holds the locks of the classes and of the large objects.
unsafe fn start() {
    let state = own_state();
    // SAFETY: the caller's promise.
    unsafe {
        if state.way == Way::Barrier(Algorithm::Snapshot) {
            // What is not handed out yet must be born marked: nobody else looks at it.
            refill::retire_in_stopped_world();
        } else {
            // Buffers are clear, and what is handed out of them is seen by its writes. Shelves are not.
            refill::retire_shelves_in_stopped_world();
        }
    }
    // Whatever came since that was looked at: a cycle that is not young is right without it.
    state.young &= generations::is_whole();
    let now = Epochs::now();
    cycle::begin_epochs(if state.young { now.of_young_cycle() } else { now.of_full_cycle() });
    untold::tell_all();
    state.since_at_start = HEAP.counts.since.load(Ordering::Relaxed);
    state.births = births::begin(state.way, state.young);
    state.since_born_marked = (state.births == Births::Marked).then_some(state.since_at_start);
    if state.births == Births::Marked {
        allow_copies();
    }
    let to_mark = if state.young { state.since_at_start } else { HEAP.live.load(Ordering::Relaxed) };
    TO_MARK[usize::from(state.young)].store(to_mark, Ordering::Relaxed);
    let way = state.way;
    with_marker(|marker| {
        if let Way::Barrier(algorithm) = way {
            barrier::activate(Some(algorithm));
            if algorithm == Algorithm::Snapshot {
                // The snapshot has all roots.
                // SAFETY: the loader's list and the allocation lock are held, and the world stands still.
                roots::for_each_range_of_cycle(|low, high| unsafe {
                    marker.scan_now(low, high, Interior::AsConfigured);
                });
            }
        }
        look_in_stop(marker);
        // SAFETY: the caller's promise.
        unsafe { cycle::push_uncollectable(marker) };
        finalization::push_roots(|word| marker.word(word, Interior::Always));
    });
}

/// What became of the second look.
enum Second {
    /// There was none, or it is over; whether nothing is left to be marked.
    Over { drained: bool },
    /// Somebody else finishes the cycle, or has.
    TakenOver,
}

/// What there was when the cycle began is traced. From here on objects are born marked, and what was made meanwhile is found from the
/// roots, which are looked at again, unless it is little; so the final stop need not.
fn find_what_was_made() -> Second {
    let state = own_state();
    if state.births != Births::Late {
        return Second::Over { drained: true };
    }
    let made = HEAP.counts.since.load(Ordering::Relaxed).saturating_sub(state.since_at_start);
    let is_worth = policy::is_worth_a_second_look(Bytes(made), pause_goal()) || state.stacks.are_watched();
    if !is_worth || cycle::is_disabled() {
        bear_marked();
        return Second::Over { drained: true };
    }
    look_again(Bytes(made))
}

/// Stops the world shortly, from when on objects are born marked, and looks at the roots once more, which may lead to so much.
fn look_again(made: Bytes) -> Second {
    // Who collects in a walk over the loader's list has that list, and waits for the end of `Marking`.
    PHASES.offer();
    point(Point::BeforeSecondLook);
    let is_ours = gate::with_objects_inside(|| {
        let is_ours = cycle::with_cycle_lock(|| {
            let is_ours = PHASES.take_back(Phase::Looking);
            if is_ours {
                in_short_stop(PhaseKind::SecondStop, || {
                    untold::tell_all();
                    bear_marked();
                    allow_copies();
                    with_marker(look_in_stop);
                });
            }
            is_ours
        });
        if is_ours {
            point(Point::InSecondLook);
            look_beside(Look::Second);
        }
        is_ours
    });
    if !is_ours {
        return Second::TakenOver;
    }
    let (begun, before) = (clock::now(), own_state().tally.bytes);
    let drained = drain(made);
    let State { timeline, tally, .. } = own_state();
    let ended = timeline.add(PhaseKind::TraceNew, begun, tally.bytes - before);
    TRACED_NS.fetch_add(ended.since(begun).0, Ordering::Relaxed);
    Second::Over { drained }
}

/// Objects are born marked from here on.
fn bear_marked() {
    own_state().since_born_marked.get_or_insert(HEAP.counts.since.load(Ordering::Relaxed));
    births::are_marked_now();
}

/// Whether rounds of cleaning may copy what they scan, once objects are born marked. The unit of a barrier is smaller than a page, and what it tells of
/// was written.
fn may_copy() -> bool {
    let State { way, births, .. } = own_state();
    let left_out = ablation::get().leaves_out(Optimization::Copies);
    matches!(way, Way::Watch(_)) && *births != Births::Unmarked && !left_out
}

/// They may, if at all. World stopped, objects are born marked from here on.
fn allow_copies() {
    if may_copy() {
        own_state().copies.allow();
    }
}

/// Runs `f` with a marker that goes on where the last one was. Its queue is empty afterwards.
pub(super) fn with_marker_of<R>(
    aside: &mut Vector<Entry>,
    tally: &mut Tally,
    f: impl FnOnce(&mut Marker<'_, View>) -> R,
) -> R {
    // SAFETY: the marker thread, one at a time; the thread was created after `prepare_beside`.
    let mut marker = Marker::new(View::new(Epochs::now()), unsafe { CREW.beside() });
    marker.put_aside(aside);
    let result = f(&mut marker);
    marker.flush();
    *tally += marker.tally;
    result
}

/// As [`with_marker_of`], with the state's own.
pub(super) fn with_marker<R>(f: impl FnOnce(&mut Marker<'_, View>) -> R) -> R {
    let State { aside, tally, .. } = own_state();
    with_marker_of(aside, tally, f)
}

/// Marks until nothing is left or somebody hurries, about `work` bytes, and lets guests help meanwhile. Returns whether nothing is left.
///
/// "The marker thread" below is a round of markers where there are several: it has nothing left when the round has ended.
///
/// | step | marker thread | guest |
/// |---|---|---|
/// | 1 | opens (under the lock) | enters, if it is open (under the lock) |
/// | 2 | marks; shares its oldest entries | steals, and marks until it has done its part |
/// | 3 | has nothing left: takes what was brought back | brings back what is left, and leaves (under the lock) |
/// | 4 | nothing was brought, and nobody is inside: closes (under the lock) | |
///
/// An entry is always with the marker thread, in its list, with somebody inside, or among what was brought back; so when
/// step 4 finds none of these under the lock, there is none.
fn drain(work: Bytes) -> bool {
    with_guests(|guests| guests.open = true);
    let State { aside, tally, figures, markers, .. } = own_state();
    let worth = match CHOSEN_MARKERS.load(Ordering::Relaxed) {
        0 => work.0 / policy::WORTH_A_MARKER_BESIDE.0,
        chosen => chosen,
    };
    let markers = worth.clamp(1, *markers);
    figures.markers = figures.markers.max(markers as u32);
    let beside = Beside { interrupted: PHASES.hurry_word(), bring };
    with_marker_of(aside, tally, |marker| {
        CREW.open_beside(marker, true);
        loop {
            if markers > 1 {
                way::count_steps(false);
                let (others, overflowed) = CREW.mark_beside(markers, marker, &beside);
                way::count_steps(true);
                marker.tally += others;
                BY_HELPERS.fetch_add(others.bytes as u64, Ordering::Relaxed);
                if overflowed {
                    marker.note_overflow();
                }
            } else {
                marker.drain_until(
                    |_| {},
                    || {
                        way::step();
                        PHASES.hurries()
                    },
                );
            }
            let hurries = PHASES.hurries();
            // One entry at a time, so that guests have the others; all of them where there is no time.
            while CREW.take_back_beside(marker) && hurries {}
            if marker.is_idle() && !hurries {
                CREW.take_grey(marker);
            }
            let seen = LEFT.current();
            let (alone, finished) = with_guests(|guests| {
                while let Some(entry) = guests.left.pop() {
                    marker.push(entry);
                }
                let alone = guests.inside == [false; GUESTS];
                let finished = hurries || (marker.is_idle() && !grey::is_waiting());
                // Nobody enters any more once there is no time, or nothing to be done that is not inside.
                guests.open &= !(hurries || (alone && finished));
                (alone, finished)
            });
            match (finished, alone) {
                (true, true) => break,
                (true, false) => LEFT.wait(seen),
                (false, _) => {}
            }
        }
        CREW.open_beside(marker, false);
    });
    with_guests(|guests| {
        while let Some(entry) = guests.aside.pop() {
            guests.overflowed |= aside.push(entry).is_err();
        }
        *tally += core::mem::take(&mut guests.tally);
        figures.helps += core::mem::take(&mut guests.helps);
        figures.bytes_helped += core::mem::take(&mut guests.helped);
        if core::mem::take(&mut guests.overflowed) {
            // SAFETY: the marker thread, whose marker is gone.
            unsafe { CREW.beside() }.stack.note_overflow();
        }
    });
    // SAFETY: as above.
    unsafe { CREW.beside() }.stack.is_empty() && !grey::is_waiting()
}

/// Takes what a helper has put aside.
fn bring(aside: &mut Vector<Entry>) {
    with_guests(|guests| {
        while let Some(entry) = aside.pop() {
            guests.overflowed |= guests.aside.push(entry).is_err();
        }
    });
}

/// From `Marking` to `Ready`, unless somebody takes the cycle over.
fn mark() {
    let begun = clock::now();
    let mut before = None;
    let State { timeline, tally, young, way, .. } = own_state();
    let work = Bytes(TO_MARK[usize::from(*young)].load(Ordering::Relaxed));
    grey::leave_what_is_written(cleans() && *way == Way::Watch(watch::Kind::Uffd));
    let mut again = drain(work);
    grey::leave_what_is_written(false);
    let traced = timeline.add(PhaseKind::Trace, begun, tally.bytes);
    TRACED_NS.store(traced.since(begun).0, Ordering::Relaxed);
    if again {
        match find_what_was_made() {
            Second::Over { drained } => again = drained,
            Second::TakenOver => return,
        }
    }
    let mut rounds = 0;
    while again {
        let Some(round) = clean() else { break };
        rounds += 1;
        again = policy::cleans_again(CleanFacts { round, before, rounds, goal: pause_goal() });
        before = Some(round);
        if again && may_copy() && !own_state().copies.are_allowed() && !cycle::is_disabled() {
            // Objects have been born marked without a stop, before which somebody may have begun to make one.
            match look_again(Bytes(0)) {
                Second::Over { drained } => again = drained,
                Second::TakenOver => return,
            }
        }
    }
    ready();
}

/// Whether written memory is scanned beside the program at all.
fn cleans() -> bool {
    !ablation::get().leaves_out(Optimization::Clean)
}

/// One round: asks for written pages, scans what is on them, and marks. `None` where that is not possible or left out, or somebody hurries.
fn clean() -> Option<Round> {
    let State { watch, way, watched, aside, tally, figures, copies, .. } = own_state();
    if !cleans() || watch.as_ref().is_some_and(|watch| !watch.cleans_while_running()) || PHASES.hurries() {
        return None;
    }
    let new = Epochs::now().new;
    let begun = clock::now();
    let live = Bytes(tally.bytes.max(HEAP.live.load(Ordering::Relaxed)));
    copies.begin_round(|| policy::copies(live, group::facts(live)));
    let found = with_marker_of(aside, tally, |marker| {
        let push =
            |low, high| _ = dirty::push(marker, |marker, low, high| copies.push(marker, low, high), new, low, high);
        let found = fetch(watch, *way, watched, Some(Which::Marked), push);
        copies.end_round();
        if found.is_err() {
            // Pages may be clean that nobody has scanned: everything that is marked is scanned again in the stop.
            marker.note_overflow();
        }
        found.ok()
    })?;
    figures.rounds += 1;
    figures.pages[0] += found;
    point(Point::Cleaned);
    let drained = drain(Bytes(found.saturating_mul(PAGE.0)));
    let ended = own_state().timeline.add(PhaseKind::Clean, begun, found);
    drained.then_some(Round { found, took: ended.since(begun) })
}

/// From `Marking`: what is left is the final stop's.
fn ready() {
    let State { figures, timeline, tally, resumed, .. } = own_state();
    figures.hurried |= PHASES.hurries();
    let now = clock::now();
    figures.beside = now.since(figures.start);
    if figures.ready.0 == 0 {
        figures.ready = now;
        timeline.add_until(PhaseKind::Beside, *resumed, now, tally.bytes);
    }
    PHASES.ready();
}
