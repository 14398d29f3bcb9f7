//! Whose blocks are whose: the setting of block sharing (`larder_blocks::owners`), and who the present owner is.
//!
//! The default is all-shared: one list of blocks for each class and kind, and one pool. In every other setting each owner has lists of
//! its own, so a thread gets cells of blocks that its owner took. Threads that are not registered, and handlers that interrupt a
//! slow path, own nothing: their blocks are in the first owner's lists and return to the pool.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use larder_blocks::block::NONE;
pub use larder_blocks::owners::{Figures, Ratio, Sharing};
use larder_blocks::owners::{MOST, MOST_CPUS, Origin, Release};
use larder_blocks::pool::{End, Run};
use larder_policy::sharing::{RatioFacts, regulated};
use larder_sys::topology::{self, Level, leader};
use larder_sys::{cgroup, clock, cpus, env};
use larder_threads::REGISTRY;
use larder_units::{Blocks, Bytes, Nanos};

use crate::heap::HEAP;
use crate::{large, pacing, refill, settings};

/// What an owner is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum By {
    /// The index of the allocation buffers: concurrency id, or CPU; the thread where there are no restartable sequences.
    #[default]
    Index = 0,
    /// The thread.
    Thread = 1,
    /// The CPU on which a refill runs.
    Cpu = 2,
    /// Its core.
    Core = 3,
    /// Its package.
    Package = 4,
    /// Its NUMA node.
    Node = 5,
}

/// How blocks are shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The algorithm.
    pub sharing: Sharing,
    /// k, for [`Sharing::LocalityAware`]; `None` regulates it.
    pub ratio: Option<Ratio>,
    /// What an owner is.
    pub by: By,
}

/// Sync: written before the heap is used.
static BY: AtomicU8 = AtomicU8::new(0);
/// k is regulated. Sync: a setting; `Relaxed`.
static REGULATED: AtomicBool = AtomicBool::new(false);
/// Nanoseconds that clearing of local and remote blocks took, and how many were measured. Sync: statistics.
static COSTS: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];
/// Local and remote blocks when k was last regulated. Sync: the collector.
static LOOKED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The algorithm and k of a text: `all-shared`, `page-shared`, `all-local`, `lps` or `lps:auto` (k regulated), `lps:1.5`.
fn parse_sharing(text: &str) -> Option<(Sharing, Option<Ratio>)> {
    let (name, k) = text.split_once(':').map_or((text, None), |(name, k)| (name, Some(k)));
    match (name, k) {
        ("all-shared", None) => Some((Sharing::AllShared, None)),
        ("page-shared", None) => Some((Sharing::PageShared, None)),
        ("all-local", None) => Some((Sharing::AllLocal, None)),
        ("lps", None | Some("auto")) => Some((Sharing::LocalityAware, None)),
        ("lps", Some(k)) => {
            let k: f64 = k.parse().ok()?;
            let thousandths = (k * 1000.0 + 0.5) as u32;
            (k >= 1.0).then_some((Sharing::LocalityAware, Some(Ratio::from_thousandths(thousandths))))
        }
        _ => None,
    }
}

fn parse_by(text: &str) -> Option<By> {
    Some(match text {
        "index" => By::Index,
        "thread" => By::Thread,
        "cpu" => By::Cpu,
        "core" => By::Core,
        "package" => By::Package,
        "node" => By::Node,
        _ => return None,
    })
}

/// CPUs in a core, a package and a node, of a text such as `1,2,2`.
fn parse_topology(text: &str) -> Option<[usize; 3]> {
    let mut parts = text.split(',').map(|part| part.parse().ok().filter(|&cpus| cpus > 0));
    let cpus = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(cpus)
}

/// The setting, as `LARDER_SHARING` and `LARDER_OWNERS` change it.
fn from_environment(mut setting: Setting) -> Setting {
    let text = |name| env::var(name).map(|text| text.to_str().unwrap_or("?"));
    if let Some(text) = text(c"LARDER_SHARING") {
        match parse_sharing(text) {
            Some((sharing, ratio)) => (setting.sharing, setting.ratio) = (sharing, ratio),
            None => larder_sys::die!(
                "LARDER_SHARING is '{text}': set it to all-shared, page-shared, all-local, lps:auto, or lps:K with K at least 1"
            ),
        }
    }
    if let Some(text) = text(c"LARDER_OWNERS") {
        match parse_by(text) {
            Some(by) => setting.by = by,
            None => larder_sys::die!("LARDER_OWNERS is '{text}': set it to index, thread, cpu, core, package or node"),
        }
    }
    setting
}

/// Numbers the cores, the packages or the nodes of a machine from 0 on, by the CPUs that lead them. As owners, leaders themselves would be as many as the
/// machine has CPUs, and two that are a multiple of [`MOST`] apart would be one.
struct Numbered {
    /// By leader.
    numbers: [u16; MOST_CPUS],
    next: u16,
}

impl Numbered {
    const fn new() -> Self {
        Self { numbers: [0; MOST_CPUS], next: 0 }
    }

    /// The number of what `leader` leads, of which `cpu` is a part. CPUs come in order, so a leader before those that it leads.
    fn number(&mut self, cpu: usize, leader: usize) -> usize {
        if leader == cpu {
            self.numbers[cpu] = self.next;
            self.next += 1;
        }
        usize::from(self.numbers.get(leader).copied().unwrap_or(0))
    }
}

/// Chooses the setting, before the heap is used.
pub(crate) fn set_up(setting: Setting) {
    let setting = from_environment(setting);
    if let Some(text) = env::var(c"LARDER_TOPOLOGY").map(|text| text.to_str().unwrap_or("?")) {
        match parse_topology(text) {
            Some(cpus) => topology::assume(cpus),
            None => larder_sys::die!(
                "LARDER_TOPOLOGY is '{text}': set it to the CPUs of a core, of a package and of a node, like 2,8,16"
            ),
        }
    }
    let all_shared = setting.sharing == Sharing::AllShared;
    let mapped = if all_shared { refill::map_parts(cpus::allowed_to_process()) } else { refill::map_owners_lists() };
    if let Err(e) = mapped {
        larder_sys::die!("cannot map {} for lists of blocks (errno {})", e.wanted, e.errno);
    }
    if all_shared {
        return;
    }
    HEAP.owners.set_ratio(setting.ratio.unwrap_or(Ratio::ONE));
    REGULATED.store(setting.sharing == Sharing::LocalityAware && setting.ratio.is_none(), Ordering::Relaxed);
    BY.store(setting.by as u8, Ordering::Relaxed);
    let mut places = [Numbered::new(), Numbered::new(), Numbered::new()];
    for cpu in 0..cpus::possible().min(MOST_CPUS) {
        let mut place = [0; 3];
        for ((number, level), numbered) in
            place.iter_mut().zip([Level::Core, Level::Package, Level::Node]).zip(&mut places)
        {
            *number = numbered.number(cpu, leader(level, cpu));
        }
        HEAP.owners.set_place(cpu, place);
    }
    HEAP.owners.set_sharing(setting.sharing);
}

/// Sets the allowable consumption ratio k while the program runs; `None` has it regulated. Of consequence in the setting
/// [`Sharing::LocalityAware`] only. Any thread.
pub fn set_ratio(k: Option<Ratio>) {
    REGULATED.store(k.is_none(), Ordering::Relaxed);
    if let Some(k) = k {
        HEAP.owners.set_ratio(k);
    }
}

/// The algorithm that was chosen.
pub fn sharing() -> Sharing {
    HEAP.owners.sharing()
}

/// The variables of the thesis's 2.2.4, and where blocks came from; all 0 in the setting all-shared. Any thread.
pub fn figures() -> Figures {
    HEAP.owners.figures()
}

/// Whether blocks have owners.
#[inline]
pub(crate) fn is_used() -> bool {
    HEAP.owners.sharing() != Sharing::AllShared
}

/// The owner for whom the calling thread takes blocks now; `None` where it owns nothing. In a slow path.
pub(crate) fn current() -> Option<usize> {
    if !is_used() {
        return None;
    }
    let thread = REGISTRY.current()?;
    let place = |level: usize| HEAP.owners.place(cpus::current(), level);
    let owner = match BY.load(Ordering::Relaxed) {
        2 => cpus::current(),
        3 => place(0),
        4 => place(1),
        5 => place(2),
        0 => HEAP.labs.current_index().unwrap_or(thread.number()),
        _ => thread.number(),
    };
    Some(owner % MOST)
}

/// `n` blocks for an owner: the steps of 2.2.4.
pub(crate) fn take(owner: usize, n: Blocks) -> Option<(Run, Origin)> {
    let new = |n: Blocks| {
        let free = || HEAP.take_blocks(n, End::Low);
        let swept = || large::sweep().then(free).flatten();
        free().or_else(swept).or_else(|| HEAP.grow(n)).or_else(|| {
            // No memory: then everything that is free is everybody's.
            HEAP.owners.give_all(&HEAP.space, &HEAP.pool);
            HEAP.take_blocks(n, End::Low).or_else(|| HEAP.take_merged_blocks(n))
        })
    };
    HEAP.owners.take(&HEAP.space, &HEAP.pool, (owner, cpus::current()), n, pacing::census, new)
}

/// Gives an empty block back: to its owner, or to the pool. From any thread.
pub(crate) fn give(owner: u32, run: Run, release: Release) {
    if owner == NONE {
        HEAP.pool.give(&HEAP.space, run);
    } else {
        HEAP.owners.give(&HEAP.space, owner as usize, run, release);
    }
}

/// Clears a run of cells; measures it where k is regulated and the block was somebody's before.
pub(crate) fn measured(origin: Origin, blocks: usize, clear: impl FnOnce()) {
    if origin == Origin::New || !REGULATED.load(Ordering::Relaxed) {
        return clear();
    }
    let begun = clock::now();
    clear();
    let [ns, count] = &COSTS[origin as usize];
    ns.fetch_add(clock::now().since(begun).0, Ordering::Relaxed);
    count.fetch_add(blocks as u64, Ordering::Relaxed);
}

/// A cycle has marked; the world is still stopped. By the collector.
pub(crate) fn begin_sweep() {
    HEAP.owners.begin_sweep();
}

/// After a cycle, world running: everything is swept, so that what survived is known, and k is regulated. By the collector.
pub(crate) fn after_cycle() {
    if !is_used() {
        return;
    }
    while pacing::census(Blocks(usize::MAX / 2)) {}
    HEAP.owners.survived();
    if REGULATED.load(Ordering::Relaxed) {
        let f = figures();
        let since = |place: usize, now: u64| now - LOOKED[place].swap(now, Ordering::Relaxed);
        let cost = |origin: Origin| {
            let [ns, count] = &COSTS[origin as usize];
            Nanos(ns.swap(0, Ordering::Relaxed) / count.swap(0, Ordering::Relaxed).max(1))
        };
        let facts = RatioFacts {
            local: since(0, f.local) as usize,
            remote: since(1, f.remote) as usize,
            local_cost: cost(Origin::Local),
            remote_cost: cost(Origin::Remote),
            most_living: Blocks(f.most_living),
            limit: limit(),
            owners: f.owners,
        };
        HEAP.owners.set_ratio(regulated(HEAP.owners.ratio(), facts));
    }
}

/// What blocks may take: three quarters of the heap's maximum, of the control group's limit, or of the machine's memory, whichever is
/// least. The group's limit may change while the program runs; reading it costs as much as the census of a few hundred blocks.
fn limit() -> Bytes {
    let max = Some(settings::max_heap()).filter(|max| max.0 > 0);
    let least = max.into_iter().fold(cgroup::most_memory(cgroup::memory_limit()), Bytes::min);
    Bytes(least.0 / 4 * 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_that_are_places_have_numbers_from_0_on() {
        // Two nodes of 128 CPUs: as CPUs their leaders would be one owner, and seem to be 129.
        let numbers = |leader: fn(usize) -> usize, cpus: usize| {
            let mut numbered = Numbered::new();
            (0..cpus).map(|cpu| numbered.number(cpu, leader(cpu))).collect::<Vec<_>>()
        };
        let nodes = numbers(|cpu| cpu & !127, 256);
        assert!(nodes[..128].iter().all(|&node| node == 0) && nodes[128..].iter().all(|&node| node == 1));
        // The second hardware threads of four cores are the later CPUs.
        assert_eq!(numbers(|cpu| cpu % 4, 8), [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(numbers(|cpu| cpu & !1, 6), [0, 0, 1, 1, 2, 2]);
        // A CPU that is offline is with CPU 0.
        assert_eq!(numbers(|cpu| if cpu < 4 { 0 } else { cpu & !1 }, 6), [0, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn settings_are_read() {
        let k = |thousandths| Some(Ratio::from_thousandths(thousandths));
        for (text, wanted) in [
            ("all-shared", Some((Sharing::AllShared, None))),
            ("page-shared", Some((Sharing::PageShared, None))),
            ("all-local", Some((Sharing::AllLocal, None))),
            ("lps", Some((Sharing::LocalityAware, None))),
            ("lps:auto", Some((Sharing::LocalityAware, None))),
            ("lps:1", Some((Sharing::LocalityAware, k(1000)))),
            ("lps:1.5", Some((Sharing::LocalityAware, k(1500)))),
            ("lps:0.9", None),
            ("lps:", None),
            ("lps:NaN", None),
            ("page-shared:2", None),
            ("", None),
        ] {
            assert_eq!(parse_sharing(text), wanted, "{text}");
        }
        assert_eq!(parse_topology("2,8,16"), Some([2, 8, 16]));
        for text in ["", "2,8", "2,8,0", "2,8,16,1", "a,b,c"] {
            assert_eq!(parse_topology(text), None, "{text}");
        }
        assert_eq!(parse_by("node"), Some(By::Node));
        assert_eq!(parse_by("nodes"), None);
    }
}
