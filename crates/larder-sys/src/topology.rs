//! Which CPUs share a core, a package, a node.

use core::fmt::Write;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::env::read_file;
use crate::report::Line;

/// What CPUs can have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A core: its hardware threads.
    Core,
    /// A package (socket).
    Package,
    /// The last-level cache: on processors of several chips, less than a package.
    Cache,
    /// A NUMA node.
    Node,
    /// The whole process: everybody together.
    Process,
    /// Groups of so many consecutive CPUs, for a topology that the kernel does not show, or a simulated one.
    Groups(core::num::NonZeroU16),
}

/// CPUs in each core, package and node of a topology that is assumed; 0 where the kernel is asked.
///
/// Sync: written before the heap is used.
static ASSUMED: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// Assumes that so many neighbouring CPUs share a core, a package and a node, whatever the kernel says: to try on a small machine what
/// is done on a large one. Each is at least 1. Call it before anybody asks.
pub fn assume(cpus: [usize; 3]) {
    for (assumed, cpus) in ASSUMED.iter().zip(cpus) {
        assumed.store(cpus.max(1), Ordering::Relaxed);
    }
}

/// The lowest CPU that shares the level with `cpu`: the same number for all that share it. A CPU of which the kernel says
/// nothing (offline, or no /sys) is alone for a core; for the others it is with CPU 0.
pub fn leader(level: Level, cpu: usize) -> usize {
    let assumed = match level {
        Level::Core => Some(0),
        // An assumed package has one last-level cache.
        Level::Package | Level::Cache => Some(1),
        Level::Node => Some(2),
        Level::Process | Level::Groups(_) => None,
    };
    let assumed = assumed.map_or(0, |level: usize| ASSUMED[level].load(Ordering::Relaxed));
    if let Some(place) = cpu.checked_rem(assumed) {
        return cpu - place;
    }
    let alone = if level == Level::Core { cpu } else { 0 };
    match level {
        Level::Process => Some(0),
        Level::Groups(size) => Some(cpu - cpu % usize::from(size.get())),
        Level::Cache => cache_leader(cpu),
        Level::Core => first_of(format_args!("/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list\0")),
        Level::Package => first_of(format_args!("/sys/devices/system/cpu/cpu{cpu}/topology/package_cpus_list\0")),
        Level::Node => node_leader(cpu),
    }
    .unwrap_or(alone)
}

fn list(path: core::fmt::Arguments<'_>, into: &mut [u8; 1024]) -> Option<usize> {
    let mut name = Line::new();
    name.write_fmt(path).ok()?;
    let name = core::ffi::CStr::from_bytes_until_nul(name.as_bytes()).ok()?;
    read_file(name, into).map(|text| text.len())
}

fn first_of(path: core::fmt::Arguments<'_>) -> Option<usize> {
    let mut buffer = [0; 1024];
    let used = list(path, &mut buffer)?;
    ranges(&buffer[..used]).next().map(|(first, _)| first)
}

/// The cache with the highest number is the last level.
fn cache_leader(cpu: usize) -> Option<usize> {
    const MOST_CACHES: usize = 16;
    (0..MOST_CACHES)
        .map_while(|n| first_of(format_args!("/sys/devices/system/cpu/cpu{cpu}/cache/index{n}/shared_cpu_list\0")))
        .last()
}

/// Nodes are few and dense enough to be tried in order.
fn node_leader(cpu: usize) -> Option<usize> {
    const MOST_NODES: usize = 1024;
    let mut missing = 0;
    for node in 0..MOST_NODES {
        let mut buffer = [0; 1024];
        let Some(used) = list(format_args!("/sys/devices/system/node/node{node}/cpulist\0"), &mut buffer) else {
            missing += 1;
            // Numbers may have gaps, but not long ones.
            if missing > 16 {
                return None;
            }
            continue;
        };
        if ranges(&buffer[..used]).any(|(first, last)| (first..=last).contains(&cpu)) {
            return ranges(&buffer[..used]).next().map(|(first, _)| first);
        }
    }
    None
}

/// The ranges of a list such as `0-3,8`.
fn ranges(text: &[u8]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let number = |part: &[u8]| core::str::from_utf8(part).ok()?.trim().parse::<usize>().ok();
    text.split(|&b| b == b',').filter_map(move |part| {
        let mut ends = part.splitn(2, |&b| b == b'-');
        let first = number(ends.next()?)?;
        Some((first, ends.next().map_or(Some(first), number)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        let of = |text: &'static str| ranges(text.as_bytes()).collect::<Vec<_>>();
        assert_eq!(of("0-3,8,10-11\n"), [(0, 3), (8, 8), (10, 11)]);
        assert_eq!(of("\n"), []);
    }

    #[test]
    fn groups_are_consecutive() {
        let of = |size, cpu| leader(Level::Groups(core::num::NonZeroU16::new(size).unwrap()), cpu);
        assert_eq!([of(1, 5), of(4, 3), of(4, 4), of(4, 7), of(3, 8)], [5, 0, 4, 4, 6]);
        assert_eq!(leader(Level::Process, 77), 0);
    }

    #[test]
    fn every_leader_leads_itself() {
        let groups = Level::Groups(core::num::NonZeroU16::new(3).unwrap());
        for level in [Level::Core, Level::Package, Level::Cache, Level::Node, Level::Process, groups] {
            for cpu in 0..crate::cpus::possible() {
                let leader = leader(level, cpu);
                assert!(leader <= cpu);
                assert_eq!(super::leader(level, leader), leader);
            }
        }
    }
}
