//! Free blocks that belong to owners: one mechanism, of which the thesis's algorithms (2.2.3, 2.2.4) are settings.
//!
//! | setting | lists of cells | lists of free blocks | an owner without a free block |
//! |---|---|---|---|
//! | all-shared (AS) | one | the pool | takes a new one (this module is not used) |
//! | page-shared (PS) | one for each owner | one | takes a new one |
//! | all-local (AL) | one for each owner | one for each owner | takes a new one |
//! | locality-aware (LPS) | one for each owner | one for each owner | asks [`heap_expansion_allowed`]: a new one, or another owner's, the nearest first |
//!
//! An owner is a number that the heap gives to a thread, a concurrency id, a CPU, a core, a package or a node. A block is its
//! owner's from the time when it is taken until another owner takes it out of the free list. New blocks come from the pool
//! or are fresh; the pool has what large objects gave back, so "new" is the thesis's "from the OS".
//!
//! **Counting.** `used` (u) counts blocks from the moment in which they are asked for until they are in a free list again,
//! `consumed` (a) from the moment in which new ones are granted until they go back to the pool. So a block is in a list or counted as used,
//! and the thesis's proof holds for every interleaving: `consumed` grows in [`Owners::grant`] only, under one lock, and never beyond
//! what the bounds allow. Debug builds check them there.
//!
//! **Runs.** Blocks are asked for in runs of 1, 4 and 16. A longer free run is split for a shorter one. Free runs that are
//! too short are exchanged: they go to the pool, which merges them, before as many new blocks are granted.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

pub use larder_policy::sharing::Ratio;
use larder_policy::sharing::{Consumption, heap_expansion_allowed};
use larder_sync::lock::Lock;
use larder_units::Blocks;

use crate::block::{Block, NONE, State};
use crate::pool::{Pool, Run};
use crate::space::Space;

/// Owners that are told apart; larger numbers share.
pub const MOST: usize = 128;
/// CPUs whose places are known; those beyond are far from everything.
pub const MOST_CPUS: usize = 1024;
/// Lists of an owner: for runs of at least 1, 4 and 16 blocks, which are the lengths that are asked for.
const LENGTHS: [usize; 3] = [1, 4, 16];

/// Which of the four algorithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Sharing {
    /// Everything is everybody's.
    #[default]
    AllShared = 0,
    /// Free blocks are everybody's.
    PageShared = 1,
    /// Nothing is.
    AllLocal = 2,
    /// Free blocks belong to owners, and are taken from others where the ratio says so.
    LocalityAware = 3,
}

/// Where a block came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Its taker had it before.
    Local,
    /// Another owner had it before.
    Remote,
    /// Nobody had.
    New,
}

/// Why a block is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// A cycle found its objects dead.
    Collected,
    /// Its last object was freed explicitly.
    Explicit,
    /// It was taken and not used.
    Unused,
}

/// One owner's free runs, and what it uses.
#[repr(align(128))]
struct Owner {
    /// Guards what follows, and the records of the runs in the lists. Rank: after the classes, before the pool.
    lock: Lock,
    /// First runs. Sync: `lock`.
    runs: [AtomicU32; LENGTHS.len()],
    /// Blocks in them (the thesis's d_i). Sync: written under `lock`, read as a hint.
    free: AtomicUsize,
    /// u_i. Sync: as `free`.
    used: AtomicUsize,
    /// max u_i in this era. Sync: as `free`.
    most_used: AtomicUsize,
    /// The CPU on which the owner was last seen. Sync: a hint.
    cpu: AtomicU32,
    /// Blocks by origin. Sync: statistics.
    taken: [AtomicU64; 3],
}

/// The owners of a heap.
pub struct Owners {
    owners: [Owner; MOST],
    /// Owners below this number were seen. Sync: only grows; a hint.
    seen: AtomicUsize,
    /// See [`Sharing`]. Sync: written once, before the heap is used.
    sharing: AtomicU8,
    /// k in thousandths. Sync: a setting; `Relaxed`.
    ratio: AtomicU32,
    /// Guards growth of `consumed` and the beginning of an era. Rank: before the owners' locks.
    era: Lock,
    /// a. Sync: written under `era`.
    consumed: AtomicUsize,
    /// max a since the start. Sync: as `consumed`.
    most_consumed: AtomicUsize,
    /// a when the era began. Sync: as `consumed`.
    kept: AtomicUsize,
    /// u. Sync: added to under the lock of the owner whose share changes, after `most_used_by_owners`.
    used: AtomicUsize,
    /// max u in this era. Sync: a maximum of values that `used` had.
    most_used: AtomicUsize,
    /// The sum of the owners' `most_used`. Sync: as `used`; never below it.
    most_used_by_owners: AtomicUsize,
    /// u when the last cycle ended. Sync: as `living`.
    at_cycle: AtomicUsize,
    /// Blocks that were found dead since. Sync: a count.
    collected: AtomicUsize,
    /// l. Sync: the collector writes; so does `ask` where the program frees explicitly.
    living: AtomicUsize,
    /// max l in this era. Sync: as `most_used`.
    most_living: AtomicUsize,
    /// The program freed a block explicitly since the last cycle: then l is u (2.2.4). Sync: a hint.
    frees: AtomicBool,
    /// Times an era began. Sync: under `era`.
    eras: AtomicU64,
    /// The numbers of each CPU's core, package and node, 16 bits each, and a bit that says that they are known.
    ///
    /// Sync: written before the heap is used.
    places: [AtomicU64; MOST_CPUS],
}

/// The variables of 2.2.4 and their maxima, in blocks; and where blocks came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// u.
    pub used: usize,
    /// max u.
    pub most_used: usize,
    /// The sum of max u_i.
    pub most_used_by_owners: usize,
    /// l.
    pub living: usize,
    /// max l.
    pub most_living: usize,
    /// a.
    pub consumed: usize,
    /// max a, since the start.
    pub most_consumed: usize,
    /// a when this era began: 0 until memory was given back.
    pub kept: usize,
    /// Free blocks in lists.
    pub free: usize,
    /// Owners that were seen.
    pub owners: usize,
    /// k, in thousandths.
    pub ratio: u32,
    /// Blocks taken from the taker's own free blocks.
    pub local: u64,
    /// Blocks taken from another owner's.
    pub remote: u64,
    /// New blocks.
    pub new: u64,
    /// Times memory was given back and maxima began anew.
    pub eras: u64,
}

/// What came of the wish for new blocks.
enum Grown {
    By(Run),
    /// The bounds do not allow it.
    Refused,
    NoMemory,
}

fn list_for(n: usize) -> usize {
    LENGTHS.iter().rposition(|&least| least <= n).expect("a run has a block")
}

impl Owners {
    /// Owners that have nothing and share everything.
    pub const fn new() -> Self {
        Self {
            owners: [const {
                Owner {
                    lock: Lock::new(),
                    runs: [const { AtomicU32::new(NONE) }; LENGTHS.len()],
                    free: AtomicUsize::new(0),
                    used: AtomicUsize::new(0),
                    most_used: AtomicUsize::new(0),
                    cpu: AtomicU32::new(u32::MAX),
                    taken: [const { AtomicU64::new(0) }; 3],
                }
            }; MOST],
            seen: AtomicUsize::new(0),
            sharing: AtomicU8::new(0),
            ratio: AtomicU32::new(Ratio::ONE.thousandths()),
            era: Lock::new(),
            consumed: AtomicUsize::new(0),
            most_consumed: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            most_used: AtomicUsize::new(0),
            most_used_by_owners: AtomicUsize::new(0),
            at_cycle: AtomicUsize::new(0),
            collected: AtomicUsize::new(0),
            living: AtomicUsize::new(0),
            most_living: AtomicUsize::new(0),
            frees: AtomicBool::new(false),
            eras: AtomicU64::new(0),
            places: [const { AtomicU64::new(0) }; MOST_CPUS],
        }
    }

    /// Chooses the algorithm; before the first block is taken.
    pub fn set_sharing(&self, sharing: Sharing) {
        self.sharing.store(sharing as u8, Ordering::Relaxed);
    }

    /// The algorithm.
    #[inline]
    pub fn sharing(&self) -> Sharing {
        match self.sharing.load(Ordering::Relaxed) {
            1 => Sharing::PageShared,
            2 => Sharing::AllLocal,
            3 => Sharing::LocalityAware,
            _ => Sharing::AllShared,
        }
    }

    /// Sets k; at any time. A smaller k gives nothing back, it only grants less.
    pub fn set_ratio(&self, k: Ratio) {
        self.ratio.store(k.thousandths(), Ordering::Relaxed);
    }

    /// k.
    pub fn ratio(&self) -> Ratio {
        Ratio::from_thousandths(self.ratio.load(Ordering::Relaxed))
    }

    /// Says which core, package and node a CPU is in, by numbers of which those of one level are told apart.
    pub fn set_place(&self, cpu: usize, [core, package, node]: [usize; 3]) {
        const KNOWN: u64 = 1 << 48;
        if let Some(place) = self.places.get(cpu) {
            let packed = |number: usize| number as u64 & 0xFFFF;
            place.store(KNOWN | packed(core) << 32 | packed(package) << 16 | packed(node), Ordering::Relaxed);
        }
    }

    /// The number of a CPU's core (0), package (1) or node (2); the CPU's own where its place is not known.
    pub fn place(&self, cpu: usize, level: usize) -> usize {
        match self.places.get(cpu).map_or(0, |place| place.load(Ordering::Relaxed)) {
            0 => cpu,
            place => (place >> [32, 16, 0][level] & 0xFFFF) as usize,
        }
    }

    /// How far owners are from one another: 0 on one core, 1 in one package, 2 on one node, 3 elsewhere.
    fn distance(&self, one: usize, other: usize) -> usize {
        let place = |owner: usize| {
            let cpu = self.owners[owner].cpu.load(Ordering::Relaxed) as usize;
            self.places.get(cpu).map_or(0, |place| place.load(Ordering::Relaxed))
        };
        let (a, b) = (place(one), place(other));
        if a == 0 || b == 0 {
            return 3;
        }
        [32, 16, 0].iter().position(|&level| a >> level & 0xFFFF == b >> level & 0xFFFF).unwrap_or(3)
    }

    /// Whose list holds the free blocks of an owner.
    fn keeper(&self, owner: usize) -> usize {
        if self.sharing() == Sharing::PageShared { 0 } else { owner }
    }

    fn owned(&self, owner: usize) -> &Owner {
        if self.seen.load(Ordering::Relaxed) <= owner {
            self.seen.fetch_max(owner + 1, Ordering::Relaxed);
        }
        &self.owners[owner]
    }

    /// Counts blocks as used by an owner.
    fn ask(&self, owner: usize, n: usize) {
        let o = self.owned(owner);
        let _guard = o.lock.lock();
        let used = o.used.load(Ordering::Relaxed) + n;
        let most = o.most_used.load(Ordering::Relaxed);
        if used > most {
            self.most_used_by_owners.fetch_add(used - most, Ordering::Relaxed);
            o.most_used.store(used, Ordering::Relaxed);
        }
        o.used.store(used, Ordering::Relaxed);
        let all = self.used.fetch_add(n, Ordering::Relaxed) + n;
        self.most_used.fetch_max(all, Ordering::Relaxed);
        if self.frees.load(Ordering::Relaxed) {
            self.living.store(all, Ordering::Relaxed);
            self.most_living.fetch_max(all, Ordering::Relaxed);
        }
    }

    /// Takes it back.
    fn unask(&self, owner: usize, n: usize) {
        let o = self.owned(owner);
        let _guard = o.lock.lock();
        o.used.store(o.used.load(Ordering::Relaxed) - n, Ordering::Relaxed);
        self.used.fetch_sub(n, Ordering::Relaxed);
    }

    /// Puts a run into a list. The caller holds the keeper's lock.
    fn push(&self, space: &Space, keeper: usize, run: Run, owner: u32) {
        let o = &self.owners[keeper];
        // SAFETY: the run lies below the frontier, and is the caller's.
        let b = unsafe { space.block(run.first) };
        let list = &o.runs[list_for(run.blocks.0)];
        b.blocks.set(run.blocks.0 as u32);
        b.size.set(usize::from(run.zero));
        b.owner.set(owner);
        b.next.set(list.load(Ordering::Relaxed));
        b.previous.set(NONE);
        b.set_state(State::Owned);
        list.store(run.first as u32, Ordering::Relaxed);
        o.free.store(o.free.load(Ordering::Relaxed) + run.blocks.0, Ordering::Relaxed);
    }

    /// Takes the first run off a list, with its last owner. The caller holds the keeper's lock.
    fn pop(&self, space: &Space, keeper: usize, list: usize) -> Option<(Run, u32)> {
        let o = &self.owners[keeper];
        let first = o.runs[list].load(Ordering::Relaxed);
        if first == NONE {
            return None;
        }
        // SAFETY: lists hold indices of the table.
        let b: &Block = unsafe { space.block(first as usize) };
        let run = Run { first: first as usize, blocks: Blocks(b.blocks.get() as usize), zero: b.size.get() == 1 };
        o.runs[list].store(b.next.get(), Ordering::Relaxed);
        o.free.store(o.free.load(Ordering::Relaxed) - run.blocks.0, Ordering::Relaxed);
        b.set_state(State::Untouched);
        Some((run, b.owner.get()))
    }

    /// Takes `n` blocks out of a keeper's lists, with their last owner; the rest of a longer run stays.
    fn take_from(&self, space: &Space, keeper: usize, n: usize) -> Option<(Run, u32)> {
        let o = &self.owners[keeper];
        if o.free.load(Ordering::Relaxed) < n {
            return None;
        }
        let _guard = o.lock.lock();
        let (mut run, last) = (list_for(n)..LENGTHS.len()).find_map(|list| self.pop(space, keeper, list))?;
        if run.blocks.0 > n {
            let rest = Run { first: run.first + n, blocks: run.blocks - Blocks(n), zero: run.zero };
            self.push(space, keeper, rest, last);
            run.blocks = Blocks(n);
        }
        Some((run, last))
    }

    /// Takes `n` blocks (1, 4 or 16) for an owner that runs on `cpu`; the steps of 2.2.4.
    ///
    /// `sweep` looks for blocks that turned out to be empty, which it gives to their owners; false when there are no more. `obtain` gets
    /// new blocks, `None` when there is no memory. `None` when nobody has a free block and there is no memory.
    pub fn take(
        &self,
        space: &Space,
        pool: &Pool,
        (owner, cpu): (usize, usize),
        n: Blocks,
        mut sweep: impl FnMut(Blocks) -> bool,
        mut obtain: impl FnMut(Blocks) -> Option<Run>,
    ) -> Option<(Run, Origin)> {
        let owner = owner % MOST;
        self.ask(owner, n.0);
        self.owners[owner].cpu.store(cpu as u32, Ordering::Relaxed);
        let keeper = self.keeper(owner);
        loop {
            // 2-1.
            if let Some((run, last)) = self.take_from(space, keeper, n.0) {
                let origin = if last as usize == owner { Origin::Local } else { Origin::Remote };
                return Some(self.taken(owner, run, origin));
            }
            if !sweep(n) {
                break;
            }
        }
        let lps = self.sharing() == Sharing::LocalityAware;
        // 2-2.
        if lps && let Grown::By(run) = self.expand(n, false, &mut obtain) {
            return Some(self.taken(owner, run, Origin::New));
        }
        loop {
            // 2-3.
            if lps && let Some((run, _)) = self.take_near(space, owner, n.0) {
                return Some(self.taken(owner, run, Origin::Remote));
            }
            // Runs that are too short for what is asked for count as consumed, too.
            let keepers = if lps { 0..self.seen.load(Ordering::Relaxed) } else { keeper..keeper + 1 };
            self.exchange(space, pool, keepers, n.0);
            // 3.
            match self.expand(n, true, &mut obtain) {
                Grown::By(run) => return Some(self.taken(owner, run, Origin::New)),
                Grown::NoMemory => break,
                // A free block was put back behind the search.
                Grown::Refused => {
                    if let Some((run, last)) = self.take_from(space, keeper, n.0) {
                        let origin = if last as usize == owner { Origin::Local } else { Origin::Remote };
                        return Some(self.taken(owner, run, origin));
                    }
                }
            }
        }
        self.unask(owner, n.0);
        None
    }

    fn taken(&self, owner: usize, run: Run, origin: Origin) -> (Run, Origin) {
        self.owners[owner].taken[origin as usize].fetch_add(run.blocks.0 as u64, Ordering::Relaxed);
        (run, origin)
    }

    /// Searches the other owners' lists, near ones first, from the next number on.
    fn take_near(&self, space: &Space, owner: usize, n: usize) -> Option<(Run, u32)> {
        let seen = self.seen.load(Ordering::Relaxed);
        for distance in 0..=3 {
            for step in 1..seen {
                let other = (owner + step) % seen;
                if self.owners[other].free.load(Ordering::Relaxed) >= n
                    && self.distance(owner, other) == distance
                    && let Some(found) = self.take_from(space, other, n)
                {
                    return Some(found);
                }
            }
        }
        None
    }

    /// Gives free runs of some keepers to the pool, until as many blocks as `n` are there.
    fn exchange(&self, space: &Space, pool: &Pool, keepers: core::ops::Range<usize>, n: usize) {
        let mut given = 0;
        for keeper in keepers {
            while given < n && self.owners[keeper].free.load(Ordering::Relaxed) > 0 {
                let popped = {
                    let _guard = self.owners[keeper].lock.lock();
                    (0..LENGTHS.len()).find_map(|list| self.pop(space, keeper, list))
                };
                let Some((run, _)) = popped else { break };
                given += run.blocks.0;
                self.surrender(space, pool, run);
            }
        }
    }

    /// Gives a run that is in no list any more to the pool.
    fn surrender(&self, space: &Space, pool: &Pool, run: Run) {
        {
            let _guard = self.era.lock();
            self.consumed.store(self.consumed.load(Ordering::Relaxed) - run.blocks.0, Ordering::Relaxed);
        }
        pool.give(space, run);
    }

    /// Whether `n` new blocks may be had: as 2-2 has it, or `forced`, as step 3 has it. The caller holds `era`.
    fn is_granted(&self, n: Blocks, k: Ratio, forced: bool) -> bool {
        let consumed = self.consumed.load(Ordering::Relaxed);
        let most_used_by_owners = self.most_used_by_owners.load(Ordering::Relaxed);
        if !forced {
            let facts = Consumption {
                consumed: Blocks(consumed),
                most_living: Blocks(self.most_living.load(Ordering::Relaxed)),
                most_used_by_owners: Blocks(most_used_by_owners),
            };
            return heap_expansion_allowed(facts, k, n);
        }
        if self.sharing() == Sharing::AllLocal {
            return true;
        }
        // With no free block anywhere a is less than u, which counts what is asked for. An era that began meanwhile may have
        // missed the present u.
        let most_used = self.most_used.fetch_max(self.used.load(Ordering::Relaxed), Ordering::Relaxed);
        consumed + n.0 <= most_used.max(self.used.load(Ordering::Relaxed)).min(most_used_by_owners)
    }

    /// Grants `n` new blocks and gets them.
    fn expand(&self, n: Blocks, forced: bool, obtain: &mut impl FnMut(Blocks) -> Option<Run>) -> Grown {
        {
            let _guard = self.era.lock();
            // Read once: it may be set meanwhile.
            let k = self.ratio();
            if !self.is_granted(n, k, forced) {
                return Grown::Refused;
            }
            let consumed = self.consumed.load(Ordering::Relaxed) + n.0;
            self.consumed.store(consumed, Ordering::Relaxed);
            self.most_consumed.fetch_max(consumed, Ordering::Relaxed);
            if cfg!(debug_assertions) {
                self.check_bounds(k);
            }
        }
        if let Some(run) = obtain(n) {
            return Grown::By(run);
        }
        let _guard = self.era.lock();
        self.consumed.store(self.consumed.load(Ordering::Relaxed) - n.0, Ordering::Relaxed);
        Grown::NoMemory
    }

    /// The bounds of 2.3, restated for eras (see `larder_policy::sharing`), after a growth that the ratio `k` allowed: what an earlier,
    /// larger ratio allowed may be held, but does not grow. The caller holds `era`.
    fn check_bounds(&self, k: Ratio) {
        let f = self.figures();
        let by_ratio = match self.sharing() {
            Sharing::LocalityAware => f.consumed <= k.times_rounded_up(Blocks(f.most_used)).0.max(f.kept),
            // The pages of everybody are one list.
            Sharing::PageShared => f.consumed <= f.most_used.max(f.kept),
            Sharing::AllShared | Sharing::AllLocal => true,
        };
        assert!(by_ratio, "locality-aware sharing holds more than k times what page sharing would: {f:?}");
        // All-local lists that kept blocks do not use them for another owner's growth.
        let local = match self.sharing() {
            Sharing::AllLocal => f.most_used_by_owners + f.kept,
            _ => f.most_used_by_owners.max(f.kept),
        };
        assert!(f.consumed <= local, "more blocks than all-local lists would hold: {f:?}");
    }

    /// Gives blocks back that an owner used; from any thread. They are [retired](Run::retire).
    pub fn give(&self, space: &Space, owner: usize, run: Run, release: Release) {
        let owner = owner % MOST;
        match release {
            Release::Explicit if !self.frees.load(Ordering::Relaxed) => self.frees.store(true, Ordering::Relaxed),
            Release::Collected => {
                self.collected.fetch_add(run.blocks.0, Ordering::Relaxed);
            }
            Release::Explicit | Release::Unused => {}
        }
        let keeper = self.keeper(owner);
        self.owned(keeper);
        {
            let _guard = self.owners[keeper].lock.lock();
            self.push(space, keeper, run, owner as u32);
        }
        // Afterwards: a block is in a list, or counted as used, or both.
        self.unask(owner, run.blocks.0);
    }

    /// A cycle has marked, and nobody has taken a block since: what is used now survived, but for what the sweep will find dead.
    pub fn begin_sweep(&self) {
        self.at_cycle.store(self.used.load(Ordering::Relaxed), Ordering::Relaxed);
        self.collected.store(0, Ordering::Relaxed);
    }

    /// The sweep that began is complete, so that l is known. What was taken meanwhile did not live through the cycle.
    pub fn survived(&self) {
        let (before, dead) = (self.at_cycle.load(Ordering::Relaxed), self.collected.load(Ordering::Relaxed));
        let living = before.saturating_sub(dead).min(self.used.load(Ordering::Relaxed));
        self.living.store(living, Ordering::Relaxed);
        self.most_living.fetch_max(living, Ordering::Relaxed);
        self.frees.store(false, Ordering::Relaxed);
    }

    /// Free blocks in all lists.
    pub fn free(&self) -> Blocks {
        let seen = self.seen.load(Ordering::Relaxed);
        Blocks(self.owners[..seen].iter().map(|o| o.free.load(Ordering::Relaxed)).sum())
    }

    /// Gives every free block to the pool, for somebody who needs a long run. No new era: what is used and what was used stays.
    pub fn give_all(&self, space: &Space, pool: &Pool) {
        self.exchange(space, pool, 0..self.seen.load(Ordering::Relaxed), usize::MAX);
    }

    /// Gives free blocks to the pool until about `keep` are left, an equal share of each owner's, and begins a new era if there were
    /// any. Returns how many went.
    pub fn give_back(&self, space: &Space, pool: &Pool, keep: Blocks) -> Blocks {
        let free = self.free().0;
        if free <= keep.0 {
            return Blocks(0);
        }
        let mut given = 0;
        for keeper in 0..self.seen.load(Ordering::Relaxed) {
            let own = self.owners[keeper].free.load(Ordering::Relaxed);
            let share = own - (own as u128 * keep.0 as u128 / free as u128) as usize;
            let mut went = 0;
            while went < share {
                let popped = {
                    let _guard = self.owners[keeper].lock.lock();
                    (0..LENGTHS.len()).find_map(|list| self.pop(space, keeper, list))
                };
                let Some((run, _)) = popped else { break };
                went += run.blocks.0;
                self.surrender(space, pool, run);
            }
            given += went;
        }
        if given > 0 {
            self.begin_era();
        }
        Blocks(given)
    }

    /// Maxima begin anew.
    fn begin_era(&self) {
        let _guard = self.era.lock();
        self.eras.fetch_add(1, Ordering::Relaxed);
        self.kept.store(self.consumed.load(Ordering::Relaxed), Ordering::Relaxed);
        for o in &self.owners[..self.seen.load(Ordering::Relaxed)] {
            let _guard = o.lock.lock();
            let (used, most) = (o.used.load(Ordering::Relaxed), o.most_used.load(Ordering::Relaxed));
            o.most_used.store(used, Ordering::Relaxed);
            self.most_used_by_owners.fetch_sub(most - used, Ordering::Relaxed);
        }
        let used = self.used.load(Ordering::Relaxed);
        self.most_used.store(used, Ordering::Relaxed);
        // What survived and was freed since is not living any more: l is never above u (2.2.4).
        let living = self.living.load(Ordering::Relaxed).min(used);
        self.living.store(living, Ordering::Relaxed);
        self.most_living.store(living, Ordering::Relaxed);
    }

    /// The figures of one moment each.
    pub fn figures(&self) -> Figures {
        let load = |word: &AtomicUsize| word.load(Ordering::Relaxed);
        let seen = load(&self.seen);
        let taken = |origin: Origin| {
            self.owners[..seen].iter().map(|o| o.taken[origin as usize].load(Ordering::Relaxed)).sum::<u64>()
        };
        Figures {
            used: load(&self.used),
            most_used: load(&self.most_used),
            most_used_by_owners: load(&self.most_used_by_owners),
            // What survived may have been freed since.
            living: load(&self.living).min(load(&self.used)),
            most_living: load(&self.most_living),
            consumed: load(&self.consumed),
            most_consumed: load(&self.most_consumed),
            kept: load(&self.kept),
            free: self.free().0,
            owners: seen,
            ratio: self.ratio().thousandths(),
            local: taken(Origin::Local),
            remote: taken(Origin::Remote),
            new: taken(Origin::New),
            eras: self.eras.load(Ordering::Relaxed),
        }
    }

    /// Those that may have blocks: none where all is shared, which is decided before the first block is taken. So forks write to no page of theirs.
    fn in_use(&self) -> &[Owner] {
        if self.sharing() == Sharing::AllShared { &[] } else { &self.owners }
    }

    /// Takes every lock, for a fork.
    pub fn lock_all(&self) {
        self.era.lock_raw();
        self.in_use().iter().for_each(|o| o.lock.lock_raw());
    }

    /// Gives them back.
    ///
    /// # Safety
    /// The caller took them with [`Owners::lock_all`].
    pub unsafe fn unlock_all(&self) {
        for o in self.in_use() {
            // SAFETY: the caller's promise.
            unsafe { o.lock.unlock_raw() };
        }
        // SAFETY: the caller's promise.
        unsafe { self.era.unlock_raw() };
    }

    /// In a fork child.
    ///
    /// # Safety
    /// The caller is the only thread of the process, which took all locks before the fork.
    pub unsafe fn reset_after_fork(&self) {
        for o in self.in_use() {
            // SAFETY: the caller's promise.
            unsafe { o.lock.reset_after_fork() };
        }
        // SAFETY: the caller's promise.
        unsafe { self.era.reset_after_fork() };
    }
}

impl Default for Owners {
    fn default() -> Self {
        Self::new()
    }
}
