//! When the next cycle is due, how many markers it has, and how much free memory the heap keeps: what is asked of `larder-policy`, and
//! what is made of its answers.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use larder_policy::crew::{self, CrewFacts};
use larder_policy::group::{GroupFacts, bounded};
use larder_policy::pacing::{self as policy, Adjustments, HeapFacts};
use larder_sys::cpus;
use larder_threads::{REGISTRY, defer};
use larder_units::{Blocks, Bytes};

use crate::ablation::{self, Optimization};
use crate::heap::HEAP;
use crate::{concurrent, cycle, generations, refill, settings, untold};

/// Where the census goes on; blocks before it were looked at since the last cycle. Sync: a ticket.
static CENSUS: AtomicUsize = AtomicUsize::new(0);
/// Bytes of roots that the last cycle scanned. Sync: collector writes; a statistic.
static ROOTS: AtomicUsize = AtomicUsize::new(0);
/// As much as the last cycle traced, see [`crew::traced`]. Sync: as `ROOTS`.
static TRACED: AtomicUsize = AtomicUsize::new(0);
/// What was live before the last cycle, and allocated since then. Sync: as `ROOTS`.
static LIVE_BEFORE: AtomicUsize = AtomicUsize::new(0);
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
/// Bytes that the next cycle may find live, if it marks beside the program. Sync: as `ROOTS`.
static EXPECTED_LIVE: AtomicUsize = AtomicUsize::new(0);
/// See [`policy::expected_allocation`]. Sync: as `ROOTS`.
static EXPECTED_ALLOCATION: AtomicUsize = AtomicUsize::new(0);

/// A request that finds no memory in a heap that may not grow.
pub(crate) struct Shortage {
    wanted: Bytes,
    /// Cycles on its behalf so far.
    pub(crate) cycles: usize,
    /// What was handed out before the last of them.
    handed_out: u64,
}

impl Shortage {
    /// A request for so much.
    pub(crate) const fn of(wanted: Bytes) -> Self {
        Self { wanted, cycles: 0, handed_out: 0 }
    }

    /// Runs one more cycle. False where none may be run, or none would help: memory is exhausted.
    ///
    /// Has a frame of its own: what an allocation's frame leaves behind is small then.
    #[cold]
    #[inline(never)]
    pub(crate) fn collect(&mut self) -> bool {
        let handed_out = HEAP.handed_out();
        let taken = Bytes(handed_out.saturating_sub(self.handed_out) as usize);
        if !policy::another_cycle_may_help(self.cycles, self.wanted, taken) {
            return false;
        }
        self.cycles += 1;
        self.handed_out = handed_out;
        cycle::collect_for_memory()
    }
}

/// The budget after a cycle that found `live` bytes.
pub(crate) fn budget(live: Bytes) -> Bytes {
    let [promised, most] = [&settings::INITIAL_HEAP, &settings::MOST_PROMISED].map(|it| it.load(Ordering::Relaxed));
    let promised = promised.min(most);
    let wanted = policy::budget(HeapFacts {
        live: generations::without_let_through(live),
        roots: Bytes(ROOTS.load(Ordering::Relaxed)),
        threads: REGISTRY.count() as usize,
        free_space_divisor: settings::FREE_SPACE_DIVISOR.load(Ordering::Relaxed),
        initial: Bytes(promised),
        max: settings::max_heap(),
    });
    policy::adjusted(
        wanted,
        Adjustments {
            unused: HEAP.size().saturating_sub(live),
            dont_expand: settings::DONT_EXPAND.load(Ordering::Relaxed),
            use_entire_heap: settings::ENTIRE_HEAP.load(Ordering::Relaxed),
            least: Bytes(settings::LEAST_STEP.load(Ordering::Relaxed)),
        },
    )
}

/// A cycle found so much live, where so much was allocated since the one before. The collector says so, before anything asks for a budget.
pub(crate) fn found_live(live: Bytes, allocated: Bytes, on_request: bool) {
    LIVE_BEFORE.store(HEAP.live.load(Ordering::Relaxed), Ordering::Relaxed);
    ALLOCATED.store(allocated.0, Ordering::Relaxed);
    // Who asks for a cycle, or may not grow the heap, wants the rest back.
    let before = |expected: &AtomicUsize| Bytes(if on_request { 0 } else { expected.load(Ordering::Relaxed) });
    let expected = larder_policy::concurrent::expected_live(before(&EXPECTED_LIVE), live);
    EXPECTED_LIVE.store(expected.0, Ordering::Relaxed);
    let allocated = if on_request { Bytes(0) } else { allocated.min(HEAP.size()) };
    let expected = policy::expected_allocation(before(&EXPECTED_ALLOCATION), allocated);
    EXPECTED_ALLOCATION.store(expected.0, Ordering::Relaxed);
    HEAP.live.store(live.0, Ordering::Relaxed);
}

/// A cycle traced so much: so many objects, and of long ones so many bytes.
pub(crate) fn has_traced(objects: usize, long: Bytes) {
    TRACED.store(crew::traced(objects, long).0, Ordering::Relaxed);
}

/// A cycle scanned so many bytes of roots.
pub(crate) fn has_scanned(roots: Bytes) {
    ROOTS.store(roots.0, Ordering::Relaxed);
}

/// Bytes of roots that the last cycle scanned.
pub(crate) fn bytes_of_roots() -> usize {
    ROOTS.load(Ordering::Relaxed)
}

/// Computes the budget anew, after a setting has changed.
pub(crate) fn renew_budget() {
    if crate::is_initialised() {
        set_budget(budget(Bytes(HEAP.live.load(Ordering::Relaxed))));
    }
}

/// Sets when the next cycle is due; never, where only calls collect.
pub(crate) fn set_budget(budget: Bytes) {
    let never = settings::NO_AUTOMATIC.load(Ordering::Relaxed);
    let budget = if never { Bytes(usize::MAX) } else { budget };
    HEAP.budget.store(budget.0, Ordering::Relaxed);
    untold::heed_budget(budget);
    concurrent::plan(budget);
}

/// Finalizers that were registered since the last cycle. Sync: the allocation lock.
static NEW_FINALIZERS: AtomicUsize = AtomicUsize::new(0);

/// A finalizer was registered: objects with finalizers may hold more than their bytes, so a program that makes many of
/// them is collected before its heap grows. The caller holds the allocation lock.
pub(crate) fn finalizer_registered() {
    let new = NEW_FINALIZERS.fetch_add(1, Ordering::Relaxed) + 1;
    let each = settings::BYTES_PER_FINALIZER.load(Ordering::Relaxed);
    let since = HEAP.handed_out_since_cycle();
    let never = settings::NO_AUTOMATIC.load(Ordering::Relaxed);
    let live = HEAP.live.load(Ordering::Relaxed);
    // Nearly used up: a quarter may lie in blocks of other classes.
    let nearly_full = || live + since >= HEAP.size().0 / 4 * 3;
    if each > 0 && !never && new.saturating_mul(each) > since && nearly_full() {
        let least = LEAST_FOR_FINALIZERS.max(live / LIVE_FOR_FINALIZERS);
        HEAP.budget.fetch_min(since.max(least), Ordering::Relaxed);
    }
}

/// A cycle has looked at all objects with finalizers.
pub(crate) fn no_finalizer_is_new() {
    NEW_FINALIZERS.store(0, Ordering::Relaxed);
}

/// However many finalizers there are, so many bytes are allocated between cycles: less would be no progress.
const LEAST_FOR_FINALIZERS: usize = 256 * 1024;
/// Nor is so small a part of what is alive, and marked again each time, allocated between them.
const LIVE_FOR_FINALIZERS: usize = 4;

/// What the last cycle found.
fn last_found() -> crew::Last {
    let bytes = |of: &AtomicUsize| Bytes(of.load(Ordering::Relaxed));
    crew::Last {
        traced: bytes(&TRACED),
        live: bytes(&HEAP.live),
        live_before: bytes(&LIVE_BEFORE),
        allocated: bytes(&ALLOCATED),
    }
}

fn crew_facts() -> CrewFacts {
    let asked = settings::MARKERS.load(Ordering::Relaxed);
    CrewFacts {
        usable_cpus: usable_cpus(),
        asked: (asked > 0).then_some(asked),
        traced: match cycle::number() {
            0 => crew::traced_by_first(Bytes(HEAP.handed_out_since_cycle())),
            _ => crew::traced_by_next(last_found(), Bytes(HEAP.handed_out_since_cycle())),
        },
    }
}

/// Markers for the next cycle.
pub(crate) fn markers_now() -> usize {
    let adaptive = !ablation::get().leaves_out(Optimization::Markers);
    if adaptive { crew::markers(crew_facts()) } else { markers() }
}

/// CPUs, looked up every 64 cycles: a quota may change while the program runs.
pub(crate) fn usable_cpus() -> usize {
    /// Sync: a hint.
    static KNOWN: AtomicUsize = AtomicUsize::new(1);
    /// The first cycle that looks again. Sync: a hint.
    static UNTIL: AtomicU64 = AtomicU64::new(0);
    const EVERY: u64 = 64;
    let cycle = cycle::number();
    if cycle >= UNTIL.load(Ordering::Relaxed) {
        KNOWN.store(cpus::usable(), Ordering::Relaxed);
        UNTIL.store(cycle + EVERY, Ordering::Relaxed);
    }
    KNOWN.load(Ordering::Relaxed)
}

/// Lets the heap grow by so much before the next cycle. False when it may not become so large.
pub fn expand(bytes: usize) -> bool {
    // Room that was promised before and not taken yet is part of the heap, as clients know it.
    let goal = HEAP.size().0.max(settings::INITIAL_HEAP.load(Ordering::Relaxed)).saturating_add(bytes);
    let max = settings::max_heap();
    if (max.0 != 0 && goal > max.0) || goal > HEAP.space.reserved().to_bytes().0 {
        return false;
    }
    settings::INITIAL_HEAP.fetch_max(goal, Ordering::Relaxed);
    renew_budget();
    true
}

/// Bounds the heap; 0 takes the bound away.
pub fn set_max_heap(bytes: usize) {
    settings::MAX_HEAP.store(bytes, Ordering::Relaxed);
    renew_budget();
}

/// See [`larder_policy::pacing::HeapFacts::free_space_divisor`].
pub fn set_free_space_divisor(divisor: usize) {
    settings::FREE_SPACE_DIVISOR.store(divisor.max(1), Ordering::Relaxed);
}

/// Asks for a number of markers; 0 lets the CPUs decide.
pub fn set_markers(markers: usize) {
    settings::MARKERS.store(markers, Ordering::Relaxed);
}

/// The most markers that a cycle will have.
pub fn markers() -> usize {
    crew::most_markers(crew_facts())
}

/// There may be empty blocks anywhere again.
pub(crate) fn begin_census() {
    CENSUS.store(0, Ordering::Relaxed);
}

/// Looks through blocks that no refill has come to, and gives empty ones to the pool: until about `wanted` blocks are
/// found, or all were looked at. False when there is nothing left to look at.
pub(crate) fn census(wanted: Blocks) -> bool {
    if cycle::is_marking_beside() {
        return false;
    }
    const STEP: usize = 32;
    let goal = wanted.0.max(8);
    let mut found = 0;
    loop {
        let end = HEAP.space.frontier().0;
        if CENSUS.load(Ordering::Relaxed) >= end {
            return found > 0;
        }
        let from = CENSUS.fetch_add(STEP, Ordering::Relaxed);
        for index in from..(from + STEP).min(end) {
            if refill::reclaim_if_empty(index) {
                found += 1;
            }
        }
        if found >= goal {
            return true;
        }
    }
}

/// Makes the next cycle due earlier than `planned`, where the control group has little left.
pub(crate) fn bound_by_group(facts: Option<GroupFacts>, planned: Bytes) {
    let bounded = bounded(planned, facts);
    if bounded < planned && !settings::NO_AUTOMATIC.load(Ordering::Relaxed) {
        HEAP.budget.fetch_min(bounded.0, Ordering::Relaxed);
    }
}

/// Bytes of free memory that stay behind the pool where the heap has more than it will need: none where `all` goes. `None` where it has not.
pub(crate) fn kept_of_too_much(all: bool) -> Option<Bytes> {
    let live = Bytes(HEAP.live.load(Ordering::Relaxed));
    if !all && settings::KEEP_MEMORY.load(Ordering::Relaxed) {
        return None;
    }
    let coming = Bytes(EXPECTED_ALLOCATION.load(Ordering::Relaxed));
    let mut keep = if all { Bytes(0) } else { policy::resident_to_keep(budget(live), coming) };
    if !all && concurrent::is_on() {
        let expected = Bytes(EXPECTED_LIVE.load(Ordering::Relaxed));
        keep = keep.max(larder_policy::concurrent::wanted_memory(expected, budget(expected)).saturating_sub(live));
    }
    policy::has_too_much(HEAP.size(), live, keep).then_some(keep)
}

/// Gives free memory back to the kernel, but for what is to be kept.
pub(crate) fn return_memory(keep: Bytes) -> Bytes {
    let _deferral = defer::enter();
    while census(Blocks(usize::MAX / 2)) {}
    HEAP.owners.give_back(&HEAP.space, &HEAP.pool, keep.to_blocks_rounded_up());
    let keep = keep.to_blocks_rounded_up().saturating_sub(HEAP.owners.free());
    let returned = HEAP.pool.discard(&HEAP.space, keep);
    if returned.0 > 0 {
        HEAP.note_size_after_cycle();
        HEAP.tell_size();
    }
    returned
}
