//! Which pages of the heap are made clean, and which were written since.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use larder_blocks::block::State as BlockState;
use larder_blocks::space::BLOCK_SHIFT;
use larder_sys::watch::{Asker, Kind, Watch, WatchError, set_neighbours};
use larder_trace::crew::CREW;
use larder_units::{BLOCK, Bytes, PAGE};

use super::{State, Way, ahead, ending, is_on, own_state, protected, wanted};
use crate::heap::HEAP;
use crate::{barrier, dirty, generations};

/// Between cycles, before the watch itself ends or goes on: what is wanted in a cycle only.
pub(super) fn end_what_a_cycle_has() {
    let State { watch, stacks, copies, .. } = own_state();
    ahead::over();
    protected::ignore_none();
    stacks.end(watch.as_mut());
    copies.clear();
    // SAFETY: the marker thread, which has no marker; it was created after `prepare_beside`. Who finished the cycle has taken what was left.
    unsafe { CREW.beside() }.stack.trim();
}

/// Between cycles: the watch of pages ends, but for what is left to be written.
pub(super) fn rest_watch() {
    let State { watch, watched, leaves, .. } = own_state();
    if *leaves
        && *watched != 0
        && is_on()
        && let Some(watch) = watch
    {
        generations::watch_ends();
        ending::begin(watch, *watched);
    } else {
        end_watch();
    }
}

/// Of all pages.
fn end_watch() {
    generations::watch_ends();
    let State { watch, watched, .. } = own_state();
    if let Some(watch) = watch
        && *watched != 0
    {
        // All of it, also what has become free since: that will be written first.
        if ending::begin(watch, *watched) {
            ending::complete();
        } else {
            watch.end(HEAP.space.base(), HEAP.space.base() + *watched);
        }
        *watched = 0;
    }
}

/// Instead of [`end_watch`], before the next watch of the same kind begins: what is in use stays watched, and what is free does not.
fn go_on_with_what_was_left() {
    generations::watch_ends();
    let State { watch, watched, .. } = own_state();
    let Some(watch) = watch else { return };
    let low = HEAP.space.base();
    let mut free = low;
    let mut end = |from: usize, to: usize| {
        _ = protected::for_each_part(
            [from - low, to - low],
            protected::LEAST_LEFT_WRITABLE,
            |is_protected, from, to| {
                if is_protected {
                    watch.end(low + from, low + to);
                    protected::clear(from, to);
                }
                Ok::<(), WatchError>(())
            },
        );
    };
    _ = for_each_watched(Kind::Uffd, low, low + *watched, Which::InUse, |low, high| {
        end(free, low);
        free = high;
        Ok(())
    });
    end(free, low + *watched);
    ending::cancel();
    *watched = 0;
}

/// Pages beside one that is being written which lie in free blocks: they will be written next (thesis 5.2.1). Called in a
/// signal handler.
fn neighbours(page: usize) -> (usize, usize) {
    /// Most that are taken on each side: a free run may be long, and every page of it would be scanned.
    const MOST: usize = 16;
    let space = &HEAP.space;
    let is_free = |at: usize| {
        let offset = at.wrapping_sub(space.base());
        offset < space.span() && {
            // SAFETY: below the frontier.
            let block = unsafe { space.block(offset >> BLOCK_SHIFT) };
            matches!(block.state(), BlockState::Free | BlockState::Untouched | BlockState::Owned)
        }
    };
    let (mut low, mut high) = (page, page + PAGE.0);
    while high - page <= MOST * PAGE.0 && is_free(high) {
        high += PAGE.0;
    }
    while page - low < MOST * PAGE.0 && is_free(low.wrapping_sub(1)) {
        low -= PAGE.0;
    }
    (low, high)
}

/// Makes every page of the heap clean; for a young cycle, goes on with the watch that there is.
pub(super) fn watch_all() -> Result<(), WatchError> {
    end_what_a_cycle_has();
    let State { watch, way, watched, young, .. } = own_state();
    let goes_on = *watched != 0 && *way == wanted() && generations::is_on();
    *young = goes_on && generations::next_is_young();
    if goes_on {
        // Young cycles may have been turned on since the last one ended.
        ending::cancel();
    }
    if *young {
        return Ok(());
    }
    if goes_on && *way == Way::Watch(Kind::Uffd) {
        // What was written does not matter to a full cycle.
        generations::watch_ends();
        fetch(watch, *way, watched, Some(Which::InUse), |_, _| {})?;
        generations::watch_has_begun();
        return Ok(());
    }
    let state = own_state();
    if state.leaves && state.watched != 0 && state.way == wanted() {
        go_on_with_what_was_left();
    } else {
        end_watch();
    }
    let state = own_state();
    let (low, high) = (HEAP.space.base(), HEAP.space.base() + HEAP.space.settled_span());
    state.way = wanted();
    let Way::Watch(kind) = state.way else {
        state.watch = None;
        barrier::forget();
        return Ok(());
    };
    if state.watch.as_ref().is_none_or(|watch| watch.kind() != kind) {
        state.watch = None;
        // The first write to a watched huge page splits it, and final stops were longer with them (docs/performance.md).
        HEAP.space.leave_objects_in_small_pages();
        set_neighbours(neighbours);
        let mut whole = HEAP.space.reserved().to_bytes();
        if kind == Kind::Uffd {
            // What is registered must not be mapped anew.
            HEAP.space.keep_mapped();
            whole = HEAP.space.mapped();
        }
        state.watch = Some(Watch::attach(kind, low, low + whole.0)?);
    }
    state.watched = high - low;
    if let Some(watch) = &mut state.watch {
        extend(watch)?;
        for_each_watched(kind, low, high, Which::InUse, |from, to| {
            watch.begin(from, to)?;
            if kind == Kind::Uffd {
                protected::set(from - low, to - low);
            }
            Ok(())
        })?;
        pages_are_clean(kind, state.watched);
        generations::watch_has_begun();
    }
    Ok(())
}

/// So many bytes from the heap's beginning were made clean. For young cycles no page counts as written that was not.
fn pages_are_clean(kind: Kind, bytes: usize) {
    if kind == Kind::Uffd {
        ahead::watched(bytes);
        if !generations::is_on() {
            ahead::begin(bytes);
        }
    }
}

/// What [`watch_all`] made use of may be gone: a program that closes descriptors of others, before it becomes a daemon for one, has ended the watch, and the
/// descriptors may be its own files by now, so nobody closes them. Afterwards nothing is watched, and the next watch is a new one. False where that would be no other.
pub(super) fn forget_watch() -> bool {
    let State { watch, watched, leaves, .. } = own_state();
    if watch.as_ref().is_none_or(|watch| watch.kind() != Kind::Uffd) {
        return false;
    }
    generations::watch_ends();
    ending::cancel();
    core::mem::forget(watch.take());
    protected::clear(0, *watched);
    (*watched, *leaves) = (0, false);
    true
}

/// What of the range was mapped since, is watched as well: afterwards, all that was ever handed out before.
fn extend(watch: &mut Watch) -> Result<(), WatchError> {
    watch.extend(HEAP.space.base() + HEAP.space.mapped().0)
}

/// What is made clean. Never objects without pointers: nobody asks what was written to them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Blocks in use, when the watch begins. Whoever is given another one writes to it, which then costs no fault.
    InUse,
    /// Of these, in a round of cleaning, the ones that hold something marked: what is in others was made lately, will be dead by the end of the
    /// cycle most often, and need not be scanned until it is marked.
    Marked,
}

impl Which {
    /// Blocks beside one another that are left out: fewer are not worth a system call, which interrupts the other CPUs as well.
    const LEAST_LEFT_OUT: usize = protected::LEAST_LEFT_WRITABLE;

    /// Whether a block below the frontier, by its number, is among them.
    fn has(self, index: usize) -> bool {
        // SAFETY: below the frontier.
        let block = unsafe { HEAP.space.block(index) };
        if !matches!(block.state(), BlockState::Small | BlockState::Large | BlockState::Tail) {
            return false;
        }
        let head = dirty::head(block);
        if dirty::is_pointer_free(head) {
            if self == Self::Marked {
                protected::ignore(index);
            }
            return false;
        }
        self == Self::InUse || dirty::has_marked(head)
    }
}

/// Calls `f` for the parts of `[low, high)`, which begins with the heap, that are to be made clean; with kinds other than `uffd` for all of it. Pages of
/// the rest count as written.
fn for_each_watched(
    kind: Kind,
    low: usize,
    high: usize,
    which: Which,
    mut f: impl FnMut(usize, usize) -> Result<(), WatchError>,
) -> Result<(), WatchError> {
    if kind != Kind::Uffd {
        return f(low, high);
    }
    // First block of the run in use, and the first after it.
    let mut run = (0, 0);
    for index in 0..(high - low) >> BLOCK_SHIFT {
        if !which.has(index) {
            continue;
        }
        if index >= run.1 + Which::LEAST_LEFT_OUT {
            if run.0 < run.1 {
                f(low + (run.0 << BLOCK_SHIFT), low + (run.1 << BLOCK_SHIFT))?;
            }
            run.0 = index;
        }
        run.1 = index + 1;
    }
    if run.0 < run.1 { f(low + (run.0 << BLOCK_SHIFT), low + (run.1 << BLOCK_SHIFT)) } else { Ok(()) }
}

/// Calls `f` for every run of pages written since it was asked for the last time, and makes them `clean` where that is worth it. Returns how many pages
/// they were. What is not made clean counts as written the next time.
pub(super) fn fetch(
    watch: &mut Option<Watch>,
    way: Way,
    watched: &mut usize,
    clean: Option<Which>,
    mut f: impl FnMut(usize, usize),
) -> Result<usize, WatchError> {
    if let Way::Barrier(_) = way {
        return Ok(barrier::fetch(clean.is_some(), f).div_ceil(PAGE.0));
    }
    // What is made clean may be protected, and then nobody may make it accessible any more.
    let span = if clean.is_some() { HEAP.space.settled_span() } else { HEAP.space.span() };
    let (low, high) = (HEAP.space.base(), HEAP.space.base() + span);
    *watched = (high - low).max(*watched);
    let Some(watch) = watch else { return Ok(0) };
    extend(watch)?;
    let kind = watch.kind();
    let mut pages = 0;
    let Some(which) = clean else { return watch.fetch(low, high, false, &mut f) };
    for_each_watched(kind, low, high, which, |from, to| {
        pages += watch.fetch(from, to, true, &mut f)?;
        if kind == Kind::Uffd {
            protected::set(from - low, to - low);
        }
        Ok(())
    })?;
    pages_are_clean(kind, high - low);
    Ok(pages)
}

/// What was written, in parts that the markers of the final stop claim.
pub(super) struct Parts<'a> {
    asker: Asker<'a>,
    /// The heap's beginning.
    base: usize,
    /// Bytes from there that may have been written, and in a part.
    span: usize,
    part: usize,
    /// Where the next part begins. Sync: claims; see [`Crew::mark_from`](larder_trace::crew::Crew::mark_from).
    next: AtomicUsize,
    /// How many pages were written so far. Sync: the markers add.
    pages: AtomicUsize,
    /// The kernel does not tell. Sync: set by a marker, read when they are done.
    failed: AtomicBool,
}

impl<'a> Parts<'a> {
    /// Bytes in a part, at least: what is asked about in a fraction of the time that it takes to get a marker its CPU.
    const LEAST: Bytes = Bytes::mib(4);
    /// Parts of each marker, at least where there is so much.
    const EACH: usize = 8;

    /// Those of the present watch. `None` where [`fetch`] is all that can be asked. World stopped.
    pub fn of(watch: &'a mut Option<Watch>, way: Way, watched: &mut usize, markers: usize) -> Option<Self> {
        let watch = watch.as_mut().filter(|_| matches!(way, Way::Watch(_)))?;
        let (base, span) = (HEAP.space.base(), HEAP.space.span());
        let failed = extend(watch).is_err();
        let asker = watch.asker()?;
        *watched = span.max(*watched);
        let part = (span / (Self::EACH * markers)).max(Self::LEAST.0).next_multiple_of(BLOCK.0);
        let (next, pages, failed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(failed));
        Some(Self { asker, base, span, part, next, pages, failed })
    }

    /// How many markers are worth it.
    pub fn markers(&self) -> usize {
        self.span.div_ceil(self.part)
    }

    /// Calls `f(from, to)` for what was written, of parts that nobody else has claimed, until there are none.
    pub fn fetch(&self, mut f: impl FnMut(usize, usize)) {
        loop {
            // ORDER termination.recover: AcqRel, with the claims of others: who finds nothing left sees that they are busy.
            let from = self.next.fetch_add(self.part, Ordering::AcqRel);
            if from >= self.span {
                return;
            }
            let mut pages = 0;
            let mut written = |from, to| {
                pages += (to - from) / PAGE.0;
                f(from, to);
            };
            // What is not protected is written, by all that is known.
            let part = [from, self.span.min(from + self.part)];
            let told = protected::for_each_part(part, protected::LEAST_NOT_ASKED_ABOUT, |is_protected, from, to| {
                if is_protected {
                    return self.asker.fetch(self.base + from, self.base + to, &mut written);
                }
                protected::for_each_not_ignored(from, to, |from, to| written(self.base + from, self.base + to));
                Ok(())
            });
            self.pages.fetch_add(pages, Ordering::Relaxed);
            if told.is_err() {
                self.failed.store(true, Ordering::Relaxed);
            }
        }
    }

    /// How many pages were written; `None` where the kernel does not tell. The markers are done.
    pub fn pages(&self) -> Option<usize> {
        (!self.failed.load(Ordering::Relaxed)).then(|| self.pages.load(Ordering::Relaxed))
    }
}
