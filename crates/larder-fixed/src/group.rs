//! The control group's limit of memory, looked at again while the program runs: after each cycle, and while the heap grows.
//!
//! Other processes of the group take memory too, and limits are changed from outside, so neither number is kept for long. What
//! follows from them is [`larder_policy::group`]'s.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use larder_policy::group::{GroupFacts, bounded, good_for};
use larder_sys::{cgroup, clock};
use larder_units::{Bytes, Nanos};

use crate::ablation::{self, Optimization};
use crate::heap::HEAP;

/// How long a reading is good for, where the heap only grows: at a gigabyte per second it grows by some 20 MiB meanwhile.
const GOOD_FOR: Nanos = Nanos(20_000_000);
/// Until when the group need not be looked at, because it was far from its limit. Sync: a hint.
static FAR_UNTIL: AtomicU64 = AtomicU64::new(0);
/// When the group was last looked at while the heap grew. Sync: a ticket; whoever changes it looks.
static LOOKED: AtomicU64 = AtomicU64::new(0);

/// So large a heap is looked after. Programs that end before have no need to know, and are often short: reading the files takes as long as a tenth of
/// a process's start.
const FIRST_LOOK_FROM: Bytes = Bytes::mib(4);
/// Whether somebody has looked for the first time. Sync: a ticket; whoever sets it looks.
static IS_LOOKED_AFTER: AtomicBool = AtomicBool::new(false);

/// The heap is about to grow by so much. At its first growth of some size: what memory there is for the process decides how far huge pages are for it.
/// Where control groups leave all of the machine's, the heap grows for a while before the group is looked at again.
pub(crate) fn look_before_growing(by: Bytes) {
    if IS_LOOKED_AFTER.load(Ordering::Relaxed)
        || HEAP.size().0 + by.0 < FIRST_LOOK_FROM.0
        || IS_LOOKED_AFTER.swap(true, Ordering::Relaxed)
    {
        return;
    }
    let limit = cgroup::memory_limit();
    if limit.is_none() {
        LOOKED.store(clock::now().0, Ordering::Relaxed);
    }
    if !ablation::get().leaves_out(Optimization::HugePages) {
        // A group that has hardly room would reclaim for each: half of what there is.
        HEAP.space.ask_for_huge_pages(Bytes(cgroup::most_memory(limit).0 / 2));
    }
}

/// What is known now; `taken` bytes of the heap hold something.
pub(crate) fn facts(taken: Bytes) -> Option<GroupFacts> {
    cgroup::memory().map(|memory| facts_of(memory, taken))
}

fn facts_of(memory: cgroup::Memory, taken: Bytes) -> GroupFacts {
    GroupFacts { limit: memory.limit, used: memory.used, unused: HEAP.size().saturating_sub(taken) }
}

/// A reading before a cycle's stop, which it would make twice as long in a small heap.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    /// What was read. `None` where a reading shortly before had the limit so far away that it changes nothing: small heaps have a thousand cycles a second;
    /// and where the heap never had any size.
    memory: Option<Option<cgroup::Memory>>,
    at: Nanos,
}

/// So old a reading is made anew: who made it may have waited since, for a CPU and for other threads' cycles.
const OLD_FROM: Nanos = Nanos(1_000_000);

/// Reads the group's files, if it is time to. The world runs, and the caller has not published yet where it stands: reading publishes that as well, where
/// the C library's calls do.
pub(crate) fn read_before_cycle() -> Reading {
    let at = clock::now();
    let is_far = at.0 < FAR_UNTIL.load(Ordering::Relaxed);
    let counts = IS_LOOKED_AFTER.load(Ordering::Relaxed) && !is_far;
    Reading { memory: counts.then(cgroup::memory), at }
}

impl Reading {
    /// The same, or a new one where it is old. The caller's turn has come; as for [`read_before_cycle`].
    pub(crate) fn renewed(self) -> Self {
        if clock::now().since(self.at) < OLD_FROM { self } else { read_before_cycle() }
    }

    /// What is known after a cycle that left `live` bytes, for a next budget of `planned`.
    pub(crate) fn facts_after_cycle(self, live: Bytes, planned: Bytes) -> Option<GroupFacts> {
        let facts = self.memory?.map(|memory| facts_of(memory, live));
        if let Some(time) = good_for(facts, planned) {
            FAR_UNTIL.store(clock::now().0 + time.0, Ordering::Relaxed);
        }
        facts
    }
}

/// The heap grows: makes the next cycle due earlier, where the group has little left.
pub(crate) fn look_while_growing() {
    if !IS_LOOKED_AFTER.load(Ordering::Relaxed) {
        return;
    }
    let (last, now) = (LOOKED.load(Ordering::Relaxed), clock::now());
    if now.0 < FAR_UNTIL.load(Ordering::Relaxed)
        || now.0.saturating_sub(last) < GOOD_FOR.0
        || LOOKED.compare_exchange(last, now.0, Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        return;
    }
    let since = HEAP.handed_out_since_cycle();
    let taken = Bytes(HEAP.live.load(Ordering::Relaxed).saturating_add(since));
    let Some(facts) = facts(taken) else { return };
    let budget = HEAP.budget.load(Ordering::Relaxed);
    if budget == usize::MAX {
        // Only calls collect.
        return;
    }
    let still = bounded(Bytes(budget.saturating_sub(since)), Some(facts));
    HEAP.budget.fetch_min(since.saturating_add(still.0), Ordering::Relaxed);
}
