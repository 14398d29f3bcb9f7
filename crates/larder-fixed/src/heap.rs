//! The heap's state, and how it begins.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use larder_blocks::Space;
use larder_blocks::owners::Owners;
use larder_blocks::pool::{End, KeptFor, Pool, Run};
use larder_lab::{Association, Labs};
use larder_policy::backing::prefers_small_pages;
use larder_policy::pacing;
use larder_sync::lock::{Lock, LockGuard};
use larder_sync::spin::Patience;
use larder_sys::huge::HUGE_PAGE;
use larder_sys::{cpus, memory, say, thread};
use larder_threads::{REGISTRY, defer, interposed, stop};
use larder_trace::Entry;
use larder_trace::crew::CREW;
use larder_units::{Blocks, Bytes, Nanos};

use crate::ablation::Optimization;
use crate::options::Options;
use crate::{ablation, settings, untold};

/// Most address space that a heap reserves. It costs nothing; the limit keeps the block table's own reservation small.
const MOST_RESERVED: Bytes = Bytes::mib(512 << 10);

/// The part of the range's length that a mark stack may have.
const STACK_SHARE: usize = 16;
/// The part of a limit of the address space that it may have; a marker has as much for mark procedures.
const STACK_SHARE_OF_LIMIT: usize = 128;
/// Entries of a mark stack where the kernel counts memory before it is touched: a mebibyte.
const FEW_ENTRIES: usize = 64 << 10;

/// A value on cache lines of its own: refills on every CPU write these, and the fast path reads what lies beside them.
#[repr(align(128))]
pub(crate) struct Line<T>(T);

impl<T> core::ops::Deref for Line<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// The heap. Field by field: who writes when.
pub(crate) struct Heap {
    pub space: Space,
    pub pool: Line<Pool>,
    /// Free blocks that belong to somebody, in every setting but all-shared.
    pub owners: Line<Owners>,
    pub labs: Labs,
    /// Requests below this many bytes may use a sequence: 0 until the heap exists, and for ever where sequences are not
    /// available.
    ///
    /// Sync: set at initialisation, label `heap.sequences`.
    pub sequence_limit: AtomicUsize,
    /// What is added to a request before it is cut to granules: 15, and one more when a pointer one past the end counts.
    ///
    /// Sync: set at initialisation, and by a client that changes its mind; a number that stands for itself.
    pub round: AtomicUsize,
    /// An object whose mark byte has this value is allocated. Between cycles: the last cycle's epoch. 1..=[`LAST_EPOCH`].
    ///
    /// Sync: collector writes in a stopped world, with the locks of all classes; everybody else reads in a deferral.
    pub epoch: AtomicU8,
    /// What is counted for all.
    pub counts: Line<Counts>,
    /// Bytes after which the next cycle is due.
    ///
    /// Sync: the collector writes.
    pub budget: AtomicUsize,
    /// Bytes handed out before the last cycle.
    pub total: AtomicU64,
    /// Bytes freed explicitly since the last cycle.
    pub freed: Line<AtomicUsize>,
    /// Bytes that the last cycle found live.
    pub live: AtomicUsize,
    /// The heap's size when the last cycle was over. Sync: the collector writes; it decides when, not whether something is safe.
    size_after_cycle: AtomicUsize,
    /// How buffers are associated: 0 thread, 1 concurrency id, 2 cpu.
    pub association: AtomicU32,
    /// Heap size that the client was last told, or would have been.
    pub largest: AtomicUsize,
    /// A part in huge pages is to be prepared for objects without pointers. Sync: a hint; who clears it prepares one.
    wants_next_apart: AtomicBool,
}

/// Counters that many CPUs add to, on one line.
///
/// Sync: statistics that many add to; the first decides when, not whether something is safe.
pub(crate) struct Counts {
    /// Bytes handed to buffers and large objects since the last cycle, but for what is [`untold`].
    pub since: AtomicUsize,
    /// Refills since the start, but for those.
    pub refills: AtomicU64,
}

/// The last epoch before they start over at 1. Records of blocks have a meaning for a value above.
pub(crate) const LAST_EPOCH: u8 = 253;

/// The epoch after this one.
pub(crate) const fn next_epoch(epoch: u8) -> u8 {
    if epoch >= LAST_EPOCH { 1 } else { epoch + 1 }
}

pub(crate) static HEAP: Heap = Heap {
    space: Space::new(),
    pool: Line(Pool::new()),
    owners: Line(Owners::new()),
    labs: Labs::new(),
    sequence_limit: AtomicUsize::new(0),
    round: AtomicUsize::new(16),
    epoch: AtomicU8::new(1),
    counts: Line(Counts { since: AtomicUsize::new(0), refills: AtomicU64::new(0) }),
    budget: AtomicUsize::new(pacing::LEAST_BUDGET.0),
    total: AtomicU64::new(0),
    freed: Line(AtomicUsize::new(0)),
    live: AtomicUsize::new(0),
    size_after_cycle: AtomicUsize::new(0),
    association: AtomicU32::new(0),
    largest: AtomicUsize::new(0),
    wants_next_apart: AtomicBool::new(false),
};

/// Held while the heap looks whether it may grow and does, where it has a maximum: two threads that both found room would pass it together. And while it
/// grows for objects without pointers. Rank: before the pool. Taken in a deferral, and not in signal handlers.
static GROWTH: Lock = Lock::new();
/// A reader of the size waits so long for whoever is about to give back what passed the maximum.
const SETTLES_WITHIN: Nanos = Nanos(2_000_000);

/// In a fork child: nobody makes the heap grow.
///
/// # Safety
/// The calling thread is the only one of the process.
pub(crate) unsafe fn reset_growth_after_fork() {
    // SAFETY: the caller's promise.
    unsafe { GROWTH.reset_after_fork() };
    // Who waited for its pages is not there; they come when they are written.
    HEAP.pool.next_is_ready();
}

static INITIALISING: Lock = Lock::new();
/// 0 not yet, 1 done. Sync: Release after everything is set up, Acquire in `is_initialised`.
static INITIALISED: AtomicU32 = AtomicU32::new(0);

/// Whether the heap can be used.
pub fn is_initialised() -> bool {
    INITIALISED.load(Ordering::Acquire) == 1
}

/// Sets the heap up; the calling thread is registered as the main thread. Later calls do nothing.
///
/// Stops the process with one line when not even a small heap can be reserved.
pub fn init(options: &Options) {
    let _guard = INITIALISING.lock();
    if is_initialised() {
        return;
    }
    let wanted =
        Bytes((memory::physical_memory().0 * 4).next_power_of_two().min(MOST_RESERVED.0).max(Bytes::mib(1024).0));
    ablation::set(options.ablation);
    ablation::set_up();
    let spread = !ablation::get().leaves_out(Optimization::Bmb);
    match HEAP.space.reserve(wanted, spread) {
        // What a mark stack drops is found by a walk.
        Ok(size) => {
            // Whoever reserves has asked already, unless the range is mapped as it is needed.
            let is_counted = HEAP.space.is_committed_in_steps()
                || (HEAP.space.is_mapped_as_needed() && memory::is_counted_untouched());
            let most = if is_counted { FEW_ENTRIES } else { usize::MAX };
            CREW.bound_stacks(most.min(size.0 / STACK_SHARE / size_of::<Entry>()));
            heed_limit();
            if is_counted || HEAP.space.is_mapped_as_needed() {
                CREW.prepare_first();
            }
        }
        Err(e) => larder_sys::die!(
            "cannot reserve {} of address space for the heap (errno {}); raise the limit (ulimit -v)",
            e.wanted,
            e.errno
        ),
    }
    HEAP.round.store(15 + usize::from(options.all_interior_pointers), Ordering::Relaxed);
    settings::FREE_SPACE_DIVISOR.store(options.free_space_divisor.max(1), Ordering::Relaxed);
    settings::MAX_HEAP.store(options.max_heap.0, Ordering::Relaxed);
    settings::INITIAL_HEAP.store(options.initial_heap.0, Ordering::Relaxed);
    settings::MOST_PROMISED.store(memory::physical_memory().0 / 4 * 3, Ordering::Relaxed);
    settings::MARKERS.store(options.markers.unwrap_or(0), Ordering::Relaxed);
    larder_trace::window::limit(options.widest_scan);
    settings::COLLECT_EVERY.store(options.collect_every.unwrap_or(0), Ordering::Relaxed);
    match HEAP.labs.set_up(cpus::possible()) {
        Ok(Association::ConcurrencyId) => HEAP.association.store(1, Ordering::Relaxed),
        Ok(Association::Cpu) => HEAP.association.store(2, Ordering::Relaxed),
        Ok(Association::Thread(_)) => {
            HEAP.association.store(0, Ordering::Relaxed);
            REGISTRY.give_buffers(Bytes(larder_lab::SLAB));
        }
        Err(e) => larder_sys::die!("cannot map {} for allocation buffers (errno {})", e.wanted, e.errno),
    }
    if let Err(e) = crate::shelf::set_up().and_then(|()| untold::set_up()) {
        larder_sys::die!("cannot map {} for allocation buffers (errno {})", e.wanted, e.errno);
    }
    crate::pacing::set_budget(crate::pacing::budget(Bytes(0)));
    crate::sharing::set_up(options.sharing);
    stop::set_signal(options.suspend_signal);
    interposed::attach();
    if !stop::install() {
        larder_sys::die!("cannot install the handler for signal {}, which stops threads", options.suspend_signal);
    }
    // The first thread that comes here need not be the main one.
    let is_main = thread::tid() == thread::pid();
    let base = thread::stack_base().map_or(0, <*mut u8>::addr);
    if REGISTRY.register_current(base).is_err() {
        larder_sys::die!("cannot register the main thread: out of memory");
    }
    if is_main && let Some(own) = REGISTRY.current() {
        settings::MAIN_STACK[0].store(thread::main_stack_limit().addr(), Ordering::Relaxed);
        settings::MAIN_STACK[1].store(base, Ordering::Relaxed);
        settings::MAIN.store(core::ptr::from_ref(own).cast_mut(), Ordering::Relaxed);
    }
    larder_sys::control_block::find();
    if larder_sys::control_block::give_number() {
        // Nobody would answer for it when it has ended: the main thread ends before its process by pthread_exit.
        crate::threads::unregister_at_the_end();
    }
    larder_sys::specific::find();
    crate::fork::install();
    crate::events::attach();
    INITIALISED.store(1, Ordering::Release);
    if !HEAP.labs.by_thread() {
        // ORDER heap.sequences: Release, with the load in `allocate`.
        HEAP.sequence_limit.store(crate::allocate::SMALL + 1, Ordering::Release);
    }
    if larder_sys::env::is_set(c"LARDER_VERBOSE") {
        say!(
            "heap of up to {} reserved, association {}",
            HEAP.space.reserved().to_bytes(),
            HEAP.association.load(Ordering::Relaxed)
        );
    }
}

/// Has the heap do with what a limit of the address space leaves it, which the program may have set for itself since the last call. Where there is
/// none this costs a system call.
pub(crate) fn heed_limit() {
    HEAP.space.give_back_unused();
    if HEAP.space.is_mapped_as_needed()
        && let Some(limit) = memory::address_space_limit()
    {
        CREW.bound_stacks(limit.0 / STACK_SHARE_OF_LIMIT / size_of::<Entry>());
    }
}

impl Heap {
    #[inline(always)]
    pub fn epoch(&self) -> u8 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Bytes that the heap holds from the kernel: all blocks ever used, less those given back.
    pub fn size(&self) -> Bytes {
        self.space.frontier().saturating_sub(self.pool.discarded()).to_bytes()
    }

    /// The size without what was taken beyond the maximum and is being given back.
    pub fn settled_size(&self) -> Bytes {
        let (size, max) = (self.size(), settings::max_heap());
        if max.0 == 0 || size <= max {
            return size;
        }
        let mut patience = Patience::for_nanos(SETTLES_WITHIN.0);
        while patience.spin() {
            if let Some(_growth) = GROWTH.try_lock() {
                return self.size();
            }
        }
        size
    }

    /// Keeps others from growing the heap, where it has a maximum.
    fn growth(&self) -> Option<LockGuard<'static>> {
        (settings::max_heap().0 != 0).then(|| GROWTH.lock())
    }

    /// Whether the heap may grow by `n` blocks that cost memory.
    pub fn may_grow(&self, n: Blocks) -> bool {
        let max = settings::max_heap();
        max.0 == 0 || self.size().0 + n.to_bytes().0 <= max.0
    }

    /// Takes `n` blocks out of the pool, from that end of a run: of one that has memory behind it, however much longer it is, rather than of one that was given
    /// back to the kernel, and has to be touched for the first time. Where the maximum leaves no room for those, every run is looked at for one.
    pub fn take_blocks(&self, n: Blocks, end: End) -> Option<Run> {
        let _growth = self.growth();
        if !self.may_grow(n) {
            return self.pool.take_resident(&self.space, n, end);
        }
        let resident = self.pool.take_resident_soon(&self.space, n, end);
        resident.or_else(|| self.pool.take_from(&self.space, n, end))
    }

    /// The same, put together from neighbours in the pool. Where only what was given back to the kernel is long enough, and the maximum leaves no room for it,
    /// memory of shorter runs goes back instead.
    pub fn take_merged_blocks(&self, n: Blocks) -> Option<Run> {
        let _growth = self.growth();
        self.pool.join_apart(&self.space);
        let before = self.size();
        if let Some(run) = self.within_maximum(self.pool.take_merging(&self.space, n)?, before) {
            return Some(run);
        }
        let most = before.max(settings::max_heap());
        let missing = Bytes(self.size().0 + n.to_bytes().0).saturating_sub(most).to_blocks_rounded_up();
        self.pool.discard(&self.space, Blocks(self.pool.resident().0.checked_sub(missing.0)?));
        self.within_maximum(self.pool.take_merging(&self.space, n)?, before)
    }

    /// The run, or `None` (and it is back in the pool) where it makes the heap, which was so large `before`, larger than its maximum: memory that was
    /// given back to the kernel costs again. A heap that is above a maximum which was set late uses what it has.
    fn within_maximum(&self, run: Run, before: Bytes) -> Option<Run> {
        if self.may_grow(Blocks(0)) || self.size() <= before {
            return Some(run);
        }
        // A run that was merged from resident and discarded ones counts as resident: discarded as a whole, it is what its
        // parts were, or less.
        let at = core::ptr::with_exposed_provenance_mut(self.space.address_of(run.first));
        if !run.zero {
            // SAFETY: the run was just taken and is nobody else's.
            unsafe { memory::discard(at, run.blocks.to_bytes()) };
        }
        self.pool.give(&self.space, Run { zero: true, ..run });
        None
    }

    /// Takes `n` blocks that were never used, if the maximum allows.
    pub fn grow(&self, n: Blocks) -> Option<Run> {
        crate::group::look_before_growing(n.to_bytes());
        let growth = self.growth();
        let first = self.take_unbacked(n)?;
        self.space.back(first, n, n);
        drop(growth);
        self.has_grown();
        Some(Run { first, blocks: n, zero: true })
    }

    /// The same for what is to lie beside others of its kind, so that cycles beside the program watch few parts: where the heap is large, a longer run, the
    /// rest of which is kept for such. It has memory behind it, but for a small heap's.
    pub fn grow_apart(&self, n: Blocks, kept_for: KeptFor) -> Option<Run> {
        let at_once = larder_policy::backing::apart(self.size(), n);
        if at_once.0 <= n.0 && kept_for == KeptFor::Pointers {
            // Nothing is kept for them, so nobody need wait.
            return self.grow(n);
        }
        crate::group::look_before_growing(at_once.max(n).to_bytes());
        // One thread at a time: with others growing meanwhile as well, most of what each takes would be kept for nobody.
        let growth = GROWTH.lock();
        if self.may_grow(n)
            && let Some(run) = self.pool.take_apart(&self.space, n, kept_for)
        {
            self.want_next_apart(kept_for);
            drop(growth);
            self.space.have_pages_in_turn(run.first, n);
            return Some(run);
        }
        let whole = if self.may_grow(at_once) { at_once.max(n) } else { n };
        // Where the address space has no such part any more, the run alone.
        let (first, whole) = [whole, n].into_iter().find_map(|n| Some((self.take_unbacked(n)?, n)))?;
        if whole > n {
            self.pool.keep_apart(&self.space, Run { first: first + n.0, blocks: whole - n, zero: true }, kept_for);
        }
        self.want_next_apart(kept_for);
        drop(growth);
        self.space.back(first, whole, n);
        self.has_grown();
        Some(Run { first, blocks: n, zero: true })
    }

    /// Has somebody prepare a part in huge pages, where what is kept apart will soon be used up: what is not watched keeps them, where cycles beside the
    /// program leave the others none.
    fn want_next_apart(&self, kept_for: KeptFor) {
        let [now, next, _] = self.pool.kept_apart();
        if kept_for == KeptFor::PointerFree && next.is_empty() && now.len() < self.next_apart().0 / 2 {
            self.wants_next_apart.store(true, Ordering::Relaxed);
        }
    }

    /// As many blocks as a part in huge pages has; none where there is to be none.
    fn next_apart(&self) -> Blocks {
        // At a maximum, parts are counted, which takes a lock that must not be held while pages come.
        if !self.space.leaves_objects_in_small_pages() || settings::max_heap().0 != 0 {
            return Blocks(0);
        }
        larder_policy::backing::apart_in_huge_pages(self.size(), HUGE_PAGE)
    }

    /// Prepares such a part if one is wanted. The caller is in no slow path and holds no lock.
    #[inline]
    pub fn prepare_apart(&self) {
        if self.wants_next_apart.load(Ordering::Relaxed) {
            self.prepare_next_apart();
        }
    }

    /// A huge page may take as long to come as a pause should last at most, and a thread does not answer meanwhile. So it waits for it as a blocked one, with
    /// what has no owner yet.
    #[cold]
    fn prepare_next_apart(&self) {
        if !crate::cycle::may_collect() || !self.wants_next_apart.swap(false, Ordering::Relaxed) {
            return;
        }
        let deferral = defer::enter();
        let n = self.next_apart();
        let taken = (n.0 > 0).then(|| self.space.take_fresh_in_huge_pages(n)).flatten();
        let Some((first, skipped)) = taken else { return };
        self.pool.keep_next(&self.space, Run { first, blocks: n, zero: true });
        if skipped.0 > 0 {
            self.pool.give(&self.space, Run { first: first - skipped.0, blocks: skipped, zero: true });
        }
        drop(deferral);
        crate::cycle::blocked(|| self.space.have_huge_pages(first, n));
        let _deferral = defer::enter();
        self.pool.next_is_ready();
    }

    /// As [`grow`](Self::grow), in a signal handler, whose thread may be in the middle of it. The client is told the next time.
    pub fn grow_in_handler(&self, n: Blocks) -> Option<Run> {
        let first = self.may_grow(n).then(|| self.space.take_fresh(n)).flatten()?;
        Some(Run { first, blocks: n, zero: true })
    }

    /// Takes blocks that were never used, and have no memory behind them yet.
    fn take_unbacked(&self, n: Blocks) -> Option<usize> {
        let threads = REGISTRY.count() as usize;
        self.space.prefer_small_pages(prefers_small_pages(threads, crate::pacing::usable_cpus));
        self.may_grow(n).then(|| self.space.take_unbacked(n)).flatten()
    }

    /// Looks at the group's memory, and tells the client in steps, not for every block.
    fn has_grown(&self) {
        let size = self.size().0;
        crate::group::look_while_growing();
        if size > self.largest.load(Ordering::Relaxed) + (1 << 20) {
            self.tell_size();
        }
    }

    /// Tells the client how large the heap is now.
    pub fn tell_size(&self) {
        let size = self.size().0;
        self.largest.store(size, Ordering::Relaxed);
        if let Some(f) = crate::hooks::HEAP_RESIZE.get() {
            // SAFETY: the client set it to be called so.
            unsafe { f(size) }
        }
    }

    /// Bytes handed to buffers and large objects since the last cycle. What is due is decided without looking at every index.
    pub fn handed_out_since_cycle(&self) -> usize {
        self.counts.since.load(Ordering::Relaxed) + untold::bytes()
    }

    /// Adds to the allocation since the last cycle.
    #[inline]
    pub fn count_allocated(&self, bytes: usize) {
        self.counts.since.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes handed to buffers and large objects since the start. On a thread that stops for a cycle.
    pub fn handed_out(&self) -> u64 {
        loop {
            let total = self.total.load(Ordering::Relaxed);
            let since = self.handed_out_since_cycle();
            // A cycle moves what it found from one to the other while this thread stands still, which may be between the two loads.
            if self.total.load(Ordering::Relaxed) == total {
                return total + since as u64;
            }
        }
    }

    /// Whether a cycle should have run long ago, as far as allocation goes.
    pub fn cycle_overdue(&self) -> bool {
        let (since, freed) = (self.counts.since.load(Ordering::Relaxed), self.freed.load(Ordering::Relaxed));
        pacing::is_overdue(Bytes(since.saturating_sub(freed)), Bytes(self.budget.load(Ordering::Relaxed)))
    }

    /// Whether a cycle is due.
    #[inline]
    pub fn cycle_due(&self) -> bool {
        self.counts_as_much_as(self.counts.since.load(Ordering::Relaxed), self.budget.load(Ordering::Relaxed))
    }

    /// A cycle is over, and what goes back to the kernel has gone.
    pub fn note_size_after_cycle(&self) {
        self.size_after_cycle.store(self.size().0, Ordering::Relaxed);
    }

    /// What counts of `since` bytes that were allocated since the last cycle: what was freed explicitly hardly does.
    #[inline]
    pub fn net(&self, since: usize) -> usize {
        let freed = Bytes(self.freed.load(Ordering::Relaxed));
        let grown = self.size().0 > self.size_after_cycle.load(Ordering::Relaxed);
        pacing::net_allocation(Bytes(since), freed, grown).0
    }

    /// Whether `since` bytes count as `limit` bytes at least. What was freed is looked up only where it matters: every free writes there.
    #[inline]
    pub fn counts_as_much_as(&self, since: usize, limit: usize) -> bool {
        since >= limit && self.net(since) >= limit
    }
}
