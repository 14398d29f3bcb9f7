//! Stacks, registers and thread-local storage, looked at in the first stop and beside the program.

use larder_events::PhaseKind;
use larder_policy::concurrent as policy;
use larder_sys::clock;
use larder_sys::watch::Kind;
use larder_threads::{REGISTRY, Thread, ThreadState};
use larder_trace::{Interior, Marker};
use larder_units::{Bytes, Nanos};

use super::marking::{in_short_stop, with_marker, with_marker_of};
use super::{Births, PHASES, State, Way, own_state, pause_goal};
use crate::view::View;
use crate::{cycle, hooks, roots, stacks};

/// How long the marker thread waits for one thread to stand still for a look, and for all of them together.
const PATIENCE: Nanos = Nanos(10_000_000);
const PATIENCE_FOR_ALL: Nanos = Nanos(100_000_000);

/// Roots are looked at twice beside the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// At the beginning of the cycle.
    First,
    /// When objects begin to be born marked.
    Second,
}

/// Looks at the stacks of threads that ran, as far as that is quickly done; for a barrier, at those of all: a snapshot has all roots, and
/// the last stop of an update looks at them in any case. World stopped.
pub(super) fn look_in_stop(marker: &mut Marker<'_, View>) {
    let State { way, round, looks_at_stacks, .. } = own_state();
    *round = REGISTRY.begin_looks();
    // SAFETY: the client set it to be called so.
    *looks_at_stacks = hooks::PLACES_STACKS.get().is_none_or(|places| unsafe { places() } == 0);
    let all = matches!(way, Way::Barrier(_));
    let watches = *way == Way::Watch(Kind::Uffd);
    let mut left = policy::stacks_at_once(pause_goal()).0;
    look_at_stopped(marker, *round, *looks_at_stacks, |t| {
        let bytes = stacks::live_stack(t).map_or(0, |(low, high)| high - low);
        let waits = watches && policy::is_watched_although_it_runs(Bytes(bytes));
        let now = all || (t.state() != ThreadState::Blocked && bytes <= left && !waits);
        left = left.saturating_sub(if now { bytes } else { 0 });
        now
    });
}

/// Looks at what the threads have that are wanted, and notes it as a look of that round, in which there was none before. World stopped; the
/// caller holds the loader's list and the registry's lock.
fn look_at_stopped(
    marker: &mut Marker<'_, View>,
    round: u32,
    stacks: bool,
    mut wanted: impl FnMut(&'static Thread) -> bool,
) {
    cycle::for_each_thread(|t| {
        if wanted(t) {
            t.note_look(round);
            // SAFETY: the thread stands still.
            unsafe { look_at_stack(marker, t, stacks) };
        }
    });
    let looked_at = |f: &mut dyn FnMut(&'static Thread)| {
        cycle::for_each_thread(|t| {
            // SAFETY: as above. One between two vectors is left to the final stop.
            if t.was_looked_at(round) && !unsafe { roots::is_between_vectors(t) } {
                f(t);
            }
        });
    };
    // SAFETY: the two are held, and the threads stand still where their blocks are found.
    unsafe {
        roots::for_each_thread_local_of(looked_at, |low, high| marker.scan_now(low, high, Interior::AsConfigured));
    }
}

/// What one thread has but its thread-local storage.
///
/// # Safety
/// The thread stands still.
unsafe fn look_at_stack(marker: &mut Marker<'_, View>, t: &'static Thread, stacks: bool) {
    if stacks {
        // SAFETY: the caller's promise; a stack that stands still.
        unsafe { stacks::for_each_stack_of(t, |low, high| marker.scan_now(low, high, Interior::Always)) };
    }
    t.roots().into_iter().for_each(|word| marker.word(word, Interior::Always));
}

/// Beside the program: looks at the stacks of the threads that the stop before has left out, of which each stands still for its own look.
/// A few that do not in time are looked at in one more stop: the main thread's stack may lead to everything. Returns how many threads
/// they were. The caller holds the loader's list.
pub(super) fn look_at_stacks(look: Look) -> usize {
    let State { round, looks_at_stacks: stacks, watch, stacks: watched, aside, tally, births, .. } = own_state();
    let (round, stacks) = (*round, *stacks);
    let watches = look == Look::First && *births != Births::Unmarked;
    let mut watch = watch.as_mut().filter(|watch| watches && watch.takes_more());
    let begun = clock::now();
    let is_late = || clock::now().since(begun) >= PATIENCE_FOR_ALL;
    let looked = with_marker_of(aside, tally, |marker| {
        REGISTRY.look_at_each(
            round,
            PATIENCE.0,
            || PHASES.hurries() || is_late(),
            // SAFETY: the thread stands still, and the loader's list and the registry's lock are held.
            |t| unsafe {
                if let Some(watch) = watch.as_deref_mut().filter(|_| stacks) {
                    // Before it is scanned: what is written later is told.
                    stacks::live_stack(t).inspect(|&(low, high)| watched.watch(watch, low, high));
                }
                look_at_stack(marker, t, stacks);
                // Once in a great many looks: the final stop finds what is there.
                if !roots::is_between_vectors(t) {
                    roots::for_each_thread_local_of(
                        |f| f(t),
                        |low, high| marker.scan_now(low, high, Interior::AsConfigured),
                    );
                }
            },
        )
    });
    if look == Look::First {
        watched.settle(watch);
    }
    if (looked.missed > 0 || is_late()) && !PHASES.hurries() {
        look_at_missed(look, round, stacks);
    }
    let births_are_marked = look == Look::Second || own_state().births == Births::Marked;
    own_state().stacks.count_from_here(births_are_marked && !PHASES.hurries());
    looked.held + looked.asked
}

/// One more short stop, for the threads that were not looked at yet. The caller holds the loader's list.
fn look_at_missed(look: Look, round: u32, stacks: bool) {
    let kind = if look == Look::First { PhaseKind::StartStop } else { PhaseKind::SecondStop };
    cycle::with_cycle_lock(|| {
        in_short_stop(kind, || {
            let again = REGISTRY.begin_looks();
            with_marker(|marker| look_at_stopped(marker, again, stacks, |t| !t.was_looked_at(round)));
        });
    });
}
