//! Which buffers there are: the associations of the hierarchy, and the rules by which they can be stacked.
//!
//! | HAB | here |
//! |---|---|
//! | two levels: TLABs over the heap | `Lowest::Threads`, no upper level |
//! | three levels: TLABs over PLABs, or over CLABs | `Lowest::Threads`, one upper level by `Level::Package`, or `Level::Core` |
//! | four levels: TLABs over CLABs over PLABs | `Lowest::Threads`, two upper levels |
//! | none: threads straight from PLABs | `Lowest::Nobody`, one upper level by `Level::Package` |
//! | VEE'05's PLABs | `Lowest::Processors(Processors::Cpus)` |
//! | VEE'05's flip mode | `Lowest::Flip(...)` |
//! | beyond the papers: as many buffers as processors at least, and a few times as many at most | `Lowest::FewThreads(...)` |

use larder_percpu::Level;
use larder_policy::labs::{NearEnd, Sizes};
use larder_units::Bytes;

/// How many upper levels there can be: core, package and node, say.
pub const UPPER: usize = 3;

/// What stands for a processor: both are exclusive to whoever runs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processors {
    /// Concurrency ids (`mm_cid`): as many buffers as threads run at once. CPUs where the kernel has none (before 6.3).
    ConcurrencyIds,
    /// CPUs.
    Cpus,
}

/// Whom the lowest buffers belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lowest {
    /// Each thread has one.
    Threads,
    /// Each processor has one.
    Processors(Processors),
    /// Threads at first; a stop may flip to processors and back.
    Flip(Processors),
    /// Threads while they are few ([`Config::room`]), processors beyond: a stop flips. Whoever makes threads known asks
    /// [`Buffers::is_due_to_flip`](crate::Buffers::is_due_to_flip), and stops.
    FewThreads(Processors),
    /// There are none: objects come one by one from the buffers of the lowest upper level.
    Nobody,
}

/// One upper level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper {
    /// Who shares a buffer. `Level::Groups` of one CPU is a buffer for each CPU.
    pub level: Level,
    /// How large they are. What is obtained is a multiple of what the level below asks for.
    pub sizes: Sizes,
}

/// How a thread finds its buffer of an upper level.
#[derive(Clone, Copy, Debug)]
pub enum Selection {
    /// One restartable sequence reads the CPU, maps it to the buffer and takes: a thread that migrates in between starts
    /// over, so no allocation is foreign by migration. Where there are no sequences: as `ReadThenSwap`.
    Sequence,
    /// As in HAB: the CPU is read, then its buffer is used. A thread that migrates in between makes a foreign allocation.
    ReadThenSwap,
    /// The same on a simulated topology: so many CPUs, and a function that says on which one the calling thread is. For tests,
    /// and for machines that one does not have.
    Simulated {
        /// How many CPUs.
        cpus: u32,
        /// The calling thread's CPU, below `cpus`.
        here: fn() -> usize,
    },
}

/// The shape of a set of buffers.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Whom the lowest buffers belong to.
    pub lowest: Lowest,
    /// How large these are.
    pub sizes: Sizes,
    /// The levels above, from below; each shares its buffers among more CPUs than the one before.
    pub upper: [Option<Upper>; UPPER],
    /// How their buffers are found.
    pub selection: Selection,
    /// What happens where less is left than the buffers would take.
    pub near_end: NearEnd,
    /// How large the space is, of which threads' own buffers may take a part where they have them while they are few
    /// (`larder_policy::labs::few_threads`). 0: as if it were small.
    pub room: Bytes,
    /// Whether restartable sequences are used where the system has them. Without, buffers belong to threads.
    pub sequences: bool,
}

impl Config {
    /// Buffers for these, of these sizes, straight over the space.
    pub const fn new(lowest: Lowest, sizes: Sizes) -> Self {
        Self {
            lowest,
            sizes,
            upper: [None; UPPER],
            selection: Selection::Sequence,
            near_end: NearEnd::Shrink,
            room: Bytes(0),
            sequences: true,
        }
    }

    /// The default: by concurrency id, adaptive sizes.
    pub const fn by_concurrency_id() -> Self {
        Self::new(Lowest::Processors(Processors::ConcurrencyIds), Sizes::adaptive())
    }

    /// The same with another level on top.
    #[must_use]
    pub const fn under(mut self, level: Level, sizes: Sizes) -> Self {
        let mut at = 0;
        while at < UPPER && self.upper[at].is_some() {
            at += 1;
        }
        assert!(at < UPPER, "there can be three upper levels");
        self.upper[at] = Some(Upper { level, sizes });
        self
    }

    /// Whether the levels can be stacked.
    pub fn check(&self) -> Result<(), BadStack> {
        let levels = || self.upper.iter().flatten();
        if self.upper.iter().skip_while(|upper| upper.is_some()).any(Option::is_some) {
            return Err(BadStack::Gap);
        }
        if self.lowest == Lowest::Nobody && self.upper[0].is_none() {
            return Err(BadStack::NoBuffers);
        }
        // The node and the cache are wider than one another on different machines.
        let ordered = |pair: (&Upper, &Upper)| match (width(pair.0.level), width(pair.1.level)) {
            (Some(below), Some(above)) => below < above,
            _ => true,
        };
        if !levels().zip(levels().skip(1)).all(ordered) {
            return Err(BadStack::Order);
        }
        let largest = |sizes: Sizes| Bytes(sizes.most.0.max(sizes.initial.0));
        let mut below = if self.lowest == Lowest::Nobody { Bytes(0) } else { self.sizes.first() };
        for upper in levels() {
            if largest(upper.sizes) < below {
                return Err(BadStack::Size { below, above: largest(upper.sizes) });
            }
            below = upper.sizes.first();
        }
        Ok(())
    }
}

/// How wide a level is, where that is the same on all machines.
const fn width(level: Level) -> Option<u32> {
    match level {
        Level::Core => Some(1),
        Level::Cache => Some(2),
        Level::Package => Some(3),
        Level::Process => Some(u32::MAX),
        Level::Node | Level::Groups(_) => None,
    }
}

/// Why levels cannot be stacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadStack {
    /// A level is missing between two others.
    Gap,
    /// There are no lowest buffers and no upper ones.
    NoBuffers,
    /// A level is not wider than the one below it.
    Order,
    /// A buffer is smaller than one of the level below.
    Size {
        /// What the level below asks for.
        below: Bytes,
        /// What the level above has at most.
        above: Bytes,
    },
}

impl core::fmt::Display for BadStack {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Gap => f.write_str("an upper level of buffers is missing below another one: fill the list from its beginning"),
            Self::NoBuffers => f.write_str("nobody has buffers: give the lowest an owner, or add an upper level"),
            Self::Order => f.write_str(
                "levels of buffers must become wider from below: core, cache, package, process; node and groups anywhere",
            ),
            Self::Size { below, above } => write!(
                f,
                "buffers of {above} cannot serve the level below, which asks for {below}: make the upper ones larger"
            ),
        }
    }
}

impl core::error::Error for BadStack {}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(levels: &[Level]) -> Result<(), BadStack> {
        let config = Config::new(Lowest::Threads, Sizes::fixed(Bytes(4096)));
        levels.iter().fold(config, |config, &level| config.under(level, Sizes::fixed(Bytes(1 << 20)))).check()
    }

    #[test]
    fn levels_become_wider() {
        for good in [
            &[][..],
            &[Level::Core],
            &[Level::Core, Level::Package],
            &[Level::Core, Level::Node, Level::Process],
            &[Level::Cache, Level::Package, Level::Process],
        ] {
            assert_eq!(stack(good), Ok(()), "{good:?}");
        }
        for bad in [&[Level::Package, Level::Core][..], &[Level::Core, Level::Core], &[Level::Process, Level::Package]]
        {
            assert_eq!(stack(bad), Err(BadStack::Order), "{bad:?}");
        }
    }

    #[test]
    fn each_other_defect_is_named() {
        let mut config = Config::new(Lowest::Nobody, Sizes::adaptive());
        assert_eq!(config.check(), Err(BadStack::NoBuffers));
        config.upper[1] = Some(Upper { level: Level::Core, sizes: Sizes::adaptive() });
        assert_eq!(config.check(), Err(BadStack::Gap));
        let small = Config::new(Lowest::Threads, Sizes::fixed(Bytes(64 << 10)));
        let small = small.under(Level::Core, Sizes::fixed(Bytes(32 << 10)));
        let error = small.check().unwrap_err();
        assert!(error.to_string().contains("64.0 KiB"), "{error}");
    }
}
