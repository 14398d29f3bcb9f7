//! Long stacks whose writes are watched: what nobody has written since it was looked at, the final stop does not read again.
//!
//! That a thread has slept since does not say that its stack is as it was: who wakes it from a queue, or hands it a result, writes to its
//! frames. So the kernel notes the writes, whoever makes them, system calls included, as it does for the heap.
//!
//! | when | what |
//! |---|---|
//! | a thread stands still for its look, beside the program | the whole pages of the live part of its stack are watched, then scanned |
//! | final stop | of each live stack, what lies outside of these pages is scanned; the kernel is asked once which of them were written; those are scanned |
//! | after it, beside the program | the watch of stacks ends |
//!
//! **Why nothing live is lost.** A word on a watched page that was not written since holds what it held when it was scanned, after the watch had
//! begun; so what it refers to is marked. It does not matter whose stack the page is now, nor whether the thread ran. A stack that was unmapped, and
//! another one mapped at its address, is not watched any more: what is not watched counts as written. The parts of a page
//! below the stack pointer, where nobody looked, and above the stack's base are not watched: the stack may grow there.
//! (A word that happened to be the address of a free cell is no reference to the object that was handed out there later. So that such objects are marked
//! all the same, and a verifier may expect it, all stacks are looked at once more when objects begin to be born marked; where that was not
//! done to the end, the final stop reads all stacks. Where objects are never born marked, stacks are not watched.)
//!
//! Short stacks are scanned again: to ask costs more ([`policy::is_worth_watching`]).

use core::sync::atomic::Ordering;

use larder_policy::concurrent as policy;
use larder_sys::vector::Vector;
use larder_sys::watch::Watch;
use larder_trace::{Interior, Marker};
use larder_units::{Bytes, PAGE};

use super::{STATE, State, UNWRITTEN_STACKS};
use crate::stacks;
use crate::view::View;

/// The watched pages of one stack.
#[derive(Clone, Copy)]
pub(super) struct Pages {
    low: usize,
    high: usize,
    /// What of them is live in the final stop, `[low, high)`; empty before, and where the stack is nobody's any more.
    live: (usize, usize),
}

impl Pages {
    /// What `[from, to)` and what is live have in common.
    fn live_in(&self, from: usize, to: usize) -> (usize, usize) {
        (self.live.0.max(from), self.live.1.min(to))
    }
}

/// Stacks that are watched at once: each makes up to two mappings more, of which a process may have 65,530.
const MOST: usize = 8192;
/// Stacks with no more than this between them are asked for together: what lies between is passed over, mapping by mapping.
const TOGETHER: usize = 64 << 20;

/// What a cycle watches of stacks. Sorted by address once all looks are over; no two overlap. Empty while there is no watch.
pub(super) struct Stacks {
    pages: Vector<Pages>,
    /// The kernel refused one: no more in this cycle.
    refused: bool,
    /// What was not written need not be read.
    counts: bool,
}

impl Stacks {
    pub(super) const fn new() -> Self {
        Self { pages: Vector::new(), refused: false, counts: false }
    }

    /// Watches the whole pages of `[low, high)`, the live part of a stack that stands still and is scanned next, if that is worth it.
    pub(super) fn watch(&mut self, watch: &mut Watch, low: usize, high: usize) {
        let (low, high) = (low.next_multiple_of(PAGE.0), high / PAGE.0 * PAGE.0);
        let worth = policy::is_worth_watching(Bytes(high.saturating_sub(low)));
        if !worth || self.refused || self.pages.as_slice().len() >= MOST {
            return;
        }
        // Where it is refused, the final stop scans the stack like any other.
        self.refused = watch.add(low, high).is_err();
        if !self.refused && self.pages.push(Pages { low, high, live: (0, 0) }).is_err() {
            watch.remove(low, high);
            self.refused = true;
        }
    }

    /// No more are added in this cycle.
    pub(super) fn settle(&mut self, watch: Option<&mut Watch>) {
        self.pages.as_mut_slice().sort_unstable_by_key(|pages| pages.low);
        if self.pages.as_slice().windows(2).any(|pair| pair[0].high > pair[1].low) {
            // A client says that two threads have one stack.
            self.end(watch);
        }
    }

    /// Whether there are any.
    pub(super) fn are_watched(&self) -> bool {
        !self.pages.as_slice().is_empty()
    }

    /// Objects are born marked, and every thread has been looked at since that was so, or not.
    pub(super) fn count_from_here(&mut self, counts: bool) {
        self.counts = counts;
    }

    /// Ends the watch of all.
    pub(super) fn end(&mut self, watch: Option<&mut Watch>) {
        if let Some(watch) = watch {
            self.pages.as_slice().iter().for_each(|pages| watch.remove(pages.low, pages.high));
        }
        self.pages.clear();
        (self.refused, self.counts) = (false, false);
    }

    /// Calls `f` for what of the live range `[low, high)` is not watched, and notes what is.
    fn claim(&mut self, low: usize, high: usize, mut f: impl FnMut(usize, usize)) {
        let after = self.pages.as_slice().partition_point(|pages| pages.low < high);
        let found = after.checked_sub(1).filter(|_| self.counts).map(|at| &mut self.pages.as_mut_slice()[at]);
        // Where a thread has taken over what was another's, and that one is still there, the second is scanned.
        let Some(pages) = found.filter(|pages| pages.high > low && pages.live == (0, 0)) else { return f(low, high) };
        pages.live = (pages.low.max(low), pages.high.min(high));
        for (from, to) in [(low, pages.live.0), (pages.live.1, high)] {
            if from < to {
                f(from, to);
            }
        }
    }

    /// Calls `f` for what was written of the claimed parts, or is not watched any more.
    fn written(&self, watch: &mut Watch, mut f: impl FnMut(usize, usize)) {
        let all = self.pages.as_slice();
        let mut rest = all;
        while let Some(first) = rest.first() {
            let near = |pair: &[Pages]| pair[1].low - pair[0].high <= TOGETHER;
            let count = 1 + rest.windows(2).take_while(|pair| near(pair)).count();
            let (group, others) = rest.split_at(count);
            rest = others;
            let last = group[count - 1];
            let mut tell = |from: usize, to: usize| {
                let begin = group.partition_point(|pages| pages.high <= from);
                for pages in group[begin..].iter().take_while(|pages| pages.low < to) {
                    let (from, to) = pages.live_in(from, to);
                    if from < to {
                        f(from, to);
                    }
                }
            };
            if watch.fetch_added(first.low, last.high, &mut tell).is_err() {
                // Nothing is known of this group.
                tell(first.low, last.high);
            }
        }
    }
}

/// Pushes the live parts of all threads' stacks, less what nobody has written since it was looked at. World stopped; the caller has claimed the
/// cycle, and holds the registry's lock. Returns the bytes of all, and of what was left out.
pub(crate) fn push_stacks(marker: &mut Marker<'_, View>) -> [Bytes; 2] {
    // SAFETY: the caller's claim.
    let State { watch, stacks, .. } = unsafe { &mut *STATE.0.get() };
    let (mut all, mut pushed) = (0, 0);
    let mut push = |low: usize, high: usize| {
        pushed += high - low;
        marker.push_range(low, high, Interior::Always);
    };
    stacks::for_each_stack(|low, high| {
        all += high - low;
        stacks.claim(low, high, &mut push);
    });
    // Without a watch there is no entry.
    if let Some(watch) = watch {
        stacks.written(watch, push);
    }
    let unwritten = all - pushed;
    UNWRITTEN_STACKS.fetch_add(unwritten as u64, Ordering::Relaxed);
    [Bytes(all), Bytes(unwritten)]
}
