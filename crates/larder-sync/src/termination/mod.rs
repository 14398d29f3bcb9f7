#![doc = include_str!("README.md")]

use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use crate::line::Line;
use crate::parker::Event;
use core::fmt;

mod counted;
pub use counted::Counted;

/// The most markers that one round can have. A model has fewer, because loom keeps books on every atomic.
pub const MAX_MARKERS: usize = if cfg!(loom) { 4 } else { 64 };

/// Set in a marker's word while it is busy: it may hold work, or change a work list.
const BUSY: u64 = 1;
/// Added to a marker's word by each recovery from idle to busy.
const RECOVERY: u64 = 2;

/// How the markers of a round agree that nothing is left to mark, without a counter that all of them write.
///
/// One round runs from [`begin`](Self::begin) to the moment every marker has seen [`is_done`](Self::is_done).
pub struct Termination {
    /// One word a marker, on cache lines of its own.
    ///
    /// | bits | meaning |
    /// |---|---|
    /// | 0 | busy |
    /// | 1..64 | how often this marker has recovered from idle to busy, over all rounds |
    ///
    /// Sync: its marker writes it (`begin` does between rounds); detectors read it by `termination.idle` and
    /// `termination.recover`.
    words: [Line<AtomicU64>; MAX_MARKERS],
    /// What changes seldom, on lines that announcers and detectors can share.
    round: Line<Round>,
    /// Sleepers wait here; the count moves when work is announced or the round is done.
    ///
    /// Sync: `event.happen`.
    bell: Line<Event>,
}

struct Round {
    /// The number of markers in this round.
    ///
    /// Sync: written by `begin`, before the markers of the round run.
    markers: AtomicUsize,
    /// Whether the round is over.
    ///
    /// Sync: `termination.done`; `begin` clears it before the markers of the round run.
    done: AtomicBool,
    /// How many markers sleep, or are about to, or have just woken.
    ///
    /// Sync: `termination.sleep`.
    sleepers: AtomicU32,
}

impl Termination {
    const_unless_loom! {
        /// A termination between rounds: no markers, not done.
        pub fn new() -> Self {
            Self {
                words: new_words(),
                round: Line(Round {
                    markers: AtomicUsize::new(0),
                    done: AtomicBool::new(false),
                    sleepers: AtomicU32::new(0),
                }),
                bell: Line(Event::new()),
            }
        }
    }

    /// Starts a round of `markers` markers, numbered from 0: all of them busy, nothing done.
    ///
    /// Call it while no thread is in any other call of this object, and let what starts the markers order it before
    /// them. In a fork child it also forgets the parent's markers.
    ///
    /// # Panics
    /// When there are no markers, or more than [`MAX_MARKERS`].
    pub fn begin(&self, markers: usize) {
        assert!(
            (1..=MAX_MARKERS).contains(&markers),
            "larder: a round of marking has at least one and at most MAX_MARKERS markers"
        );
        for word in &self.words[..markers] {
            // ORDER termination.begin: Relaxed, with every access of the round; the start of the markers orders it.
            word.store(word.load(Ordering::Relaxed) | BUSY, Ordering::Relaxed);
        }
        // ORDER termination.begin: Relaxed, as above.
        self.round.markers.store(markers, Ordering::Relaxed);
        self.round.sleepers.store(0, Ordering::Relaxed);
        self.round.done.store(false, Ordering::Relaxed);
    }

    /// Marker `me` has nothing private and found nothing to steal: it is idle now. It may detect and sleep next.
    ///
    /// Until it has called [`become_busy`](Self::become_busy) it neither holds work nor changes what `all_empty` reads.
    #[inline]
    pub fn become_idle(&self, me: usize) {
        self.become_idle_with::<true>(me);
    }

    /// `become_idle`, with or without its fence, so that the model can show what the fence forbids.
    #[inline]
    pub(crate) fn become_idle_with<const FENCED: bool>(&self, me: usize) {
        // ORDER termination.idle: Release, with the first loads in `detect`. Weaker, a detector could see this marker
        // idle and yet miss what it pushed before.
        let before = self.words[me].fetch_sub(BUSY, Ordering::Release);
        debug_assert!(before & BUSY != 0, "larder: an idle marker became idle");
        if FENCED {
            // ORDER termination.last: SeqCst, between the subtraction above and the loads of `detect` by this same
            // marker, with this fence in the other markers. Without it, the last two markers could each see the other
            // busy, and both go to sleep.
            fence(Ordering::SeqCst);
        }
    }

    /// Marker `me` is about to try to steal. It must come before the attempt.
    #[inline]
    pub fn become_busy(&self, me: usize) {
        // ORDER termination.recover: Relaxed, with the second loads in `detect`; the fence below does the work. An
        // addition where a load and a store would do, as in `become_idle`: it costs nothing beside the theft that
        // follows, and loom, which looks for a race with the last access of a word only, would take this thread's load
        // for that access.
        let before = self.words[me].fetch_add(RECOVERY + BUSY, Ordering::Relaxed);
        debug_assert!(before & BUSY == 0, "larder: a busy marker became busy");
        // ORDER termination.recover: Release, between the addition above and everything this marker does to a work list
        // from here on, with the Acquire fence in `detect`. Without it, a detector could see the list that the theft
        // left empty and miss the thief.
        fence(Ordering::Release);
    }

    /// Says whether the round is over: no marker holds work, no work list has any, and so none ever will again.
    ///
    /// `all_empty` reads every public work list, this marker's own included, through atomics, and says whether all of
    /// them are empty. The first caller to find out ends the round and wakes the sleepers.
    ///
    /// Any thread may detect. Of several markers that become idle and then detect once each, with no work left, at
    /// least one succeeds.
    #[inline]
    pub fn detect(&self, all_empty: impl Fn() -> bool) -> bool {
        self.detect_with::<true>(all_empty)
    }

    /// `detect`, with or without its second collect, so that the model can show what that forbids.
    pub(crate) fn detect_with<const COLLECT_TWICE: bool>(&self, all_empty: impl Fn() -> bool) -> bool {
        if self.is_done() {
            return true;
        }
        // ORDER termination.begin: Relaxed, with the store in `begin`.
        let words = &self.words[..self.round.markers.load(Ordering::Relaxed)];
        let mut first = 0u64;
        for word in words {
            // ORDER termination.idle: Acquire, with the subtraction in `become_idle`. Weaker, the lists read below
            // could be older than the idleness read here.
            let word = word.load(Ordering::Acquire);
            if word & BUSY != 0 {
                return false;
            }
            first = first.wrapping_add(word);
        }
        if !all_empty() {
            return false;
        }
        if COLLECT_TWICE {
            // ORDER termination.recover: Acquire, between what `all_empty` read and the loads below, with the fence in
            // `become_busy`. Without it, the loads could be older than a theft that `all_empty` saw.
            fence(Ordering::Acquire);
            // A word that moved after it was idle is larger by at least RECOVERY, so an equal sum means equal words.
            let second = words
                .iter()
                // ORDER termination.recover: Relaxed, with the addition in `become_busy`; the fence above does the
                // work.
                .fold(0u64, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)));
            if second != first {
                return false;
            }
        }
        self.finish();
        true
    }

    /// Says whether the round is over.
    #[inline]
    pub fn is_done(&self) -> bool {
        // ORDER termination.done: Acquire, with the store in `finish`. Weaker, a marker could leave the round before it
        // sees what the others marked.
        self.round.done.load(Ordering::Acquire)
    }

    /// Lets the idle marker `me` sleep until work is announced or the round is over.
    ///
    /// It returns at once when there is work, or when nothing is left and the round ends with this call. It may also
    /// return for no reason, so the caller looks again at [`is_done`](Self::is_done) and the work lists.
    pub fn sleep(&self, me: usize, all_empty: impl Fn() -> bool) {
        self.sleep_with::<true>(me, all_empty);
    }

    /// `sleep`, with or without its last look, so that the model can show what that forbids.
    pub(crate) fn sleep_with<const LOOK_AGAIN: bool>(&self, me: usize, all_empty: impl Fn() -> bool) {
        // ORDER termination.own: Relaxed, with this marker's own stores.
        debug_assert!(self.words[me].load(Ordering::Relaxed) & BUSY == 0, "larder: a busy marker went to sleep");
        // Nobody may fall asleep as the last one. The fence in `become_idle` makes this look a good one.
        if self.detect(&all_empty) {
            return;
        }
        // Before the announcement: a bump from here on ends the wait, whether or not its wake finds this marker asleep.
        let seen = self.bell.current();
        // ORDER termination.sleep: Relaxed, with the loads of `sleepers` in `announce_work` and `finish`; the fences do
        // the work.
        self.round.sleepers.fetch_add(1, Ordering::Relaxed);
        // ORDER termination.sleep: SeqCst, between the announcement above and the last look below, with the fences in
        // `announce_work` and `finish`. Without it, the announcer could miss this sleeper and the sleeper the work.
        fence(Ordering::SeqCst);
        if !LOOK_AGAIN || (!self.is_done() && all_empty()) {
            self.bell.wait(seen);
        }
        // ORDER termination.sleep: Relaxed, as the addition. An announcer that still counts this marker makes a system
        // call for nothing.
        self.round.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// A busy marker has put `pieces` pieces of work into a public list: wakes as many sleepers.
    ///
    /// While nobody sleeps this is one fence and one load of a line that seldom changes.
    #[inline]
    pub fn announce_work(&self, pieces: usize) {
        self.announce_work_with::<true>(pieces);
    }

    /// `announce_work`, with or without its fence, so that the model can show what the fence forbids.
    #[inline]
    pub(crate) fn announce_work_with<const FENCED: bool>(&self, pieces: usize) {
        if FENCED {
            // ORDER termination.sleep: SeqCst, between the caller's push and the load below, with the fence in `sleep`.
            // Without it, this marker could miss the sleeper and the sleeper the push.
            fence(Ordering::SeqCst);
        }
        // ORDER termination.sleep: Relaxed, with the addition in `sleep`; the fence above does the work.
        if self.round.sleepers.load(Ordering::Relaxed) != 0 && pieces != 0 {
            self.bell.bump_and_wake(u32::try_from(pieces).unwrap_or(u32::MAX));
        }
    }

    /// Ends the round although work is left: markers that are idle, or sleep, leave it. Those that are busy are told in another way.
    ///
    /// Who comes into the round later finds it over. [`begin`](Self::begin) starts the next one as always.
    pub fn interrupt(&self) {
        self.finish();
    }

    /// Ends the round and wakes everybody. Several detectors may come here; once is as good as twice.
    #[cold]
    fn finish(&self) {
        // ORDER termination.done: Release, with the load in `is_done`. This thread has acquired every marker's last
        // store, so a marker that sees the flag sees everything that was marked.
        self.round.done.store(true, Ordering::Release);
        // ORDER termination.sleep: SeqCst, between the store above and the load below, with the fence in `sleep`.
        // Without it, this thread could miss a sleeper that misses the flag.
        fence(Ordering::SeqCst);
        // ORDER termination.sleep: Relaxed, with the addition in `sleep`; the fence above does the work.
        if self.round.sleepers.load(Ordering::Relaxed) != 0 {
            self.bell.bump_and_wake_all();
        }
    }
}

#[cfg(not(loom))]
const fn new_words() -> [Line<AtomicU64>; MAX_MARKERS] {
    [const { Line(AtomicU64::new(0)) }; MAX_MARKERS]
}

#[cfg(loom)]
fn new_words() -> [Line<AtomicU64>; MAX_MARKERS] {
    core::array::from_fn(|_| Line(AtomicU64::new(0)))
}

impl Default for Termination {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Termination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Termination").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}
