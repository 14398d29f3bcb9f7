//! The control groups that this process is in, of either version: what they leave of the memory and of the processors, as it is now.
//!
//! Nothing is kept, since limits are changed from outside. A call opens a handful of files, for tens of microseconds; it takes no
//! lock and allocates nothing. Hierarchies are looked for where they are mounted everywhere, below `/sys/fs/cgroup`; where a
//! container does not show the group's own folder, the groups above it count.

use core::ffi::CStr;

use larder_units::Bytes;

use crate::env::{for_each_line, read_file};
use crate::memory;

const ROOT: &[u8] = b"/sys/fs/cgroup";
/// What the kernel says of the groups of this process.
const LINES: &CStr = c"/proc/self/cgroup";
/// As much as is kept of it: three lines at most, version 2's and those of memory and processors, with paths that are no longer than what can be opened.
const MOST_KEPT: usize = 3072;
/// The longest line that is of interest, and the longest path that is opened.
const LONGEST: usize = 1024;
/// Version 1 says "no limit" by the largest whole page, whatever its size.
const NO_LIMIT_V1: usize = usize::MAX / 4;

/// What the memory of a group is counted against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Its limit: the lower one of where it is slowed down and where it ends.
    pub limit: Bytes,
    /// What counts against it, without what the kernel drops first: file pages that nobody used lately.
    pub used: Bytes,
}

/// Time on processors that a group may have in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// In microseconds.
    pub time: u64,
    /// In microseconds.
    pub period: u64,
}

impl Quota {
    fn new(time: Option<usize>, period: Option<usize>) -> Option<Self> {
        let (time, period) = (time? as u64, period? as u64);
        (time > 0 && period > 0).then_some(Self { time, period })
    }

    /// CPUs that it pays for.
    pub fn cpus(self) -> f64 {
        self.time as f64 / self.period as f64
    }

    /// The same, rounded up.
    pub fn whole_cpus(self) -> usize {
        self.time.div_ceil(self.period) as usize
    }
}

/// What the groups allow; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// 1 or 2: which version has the files of a limit; `None` where no group controls anything.
    pub version: Option<u8>,
    /// The smallest limit of memory from the group up to the root.
    pub memory: Option<Bytes>,
    /// The smallest quota from the group up to the root.
    pub quota: Option<Quota>,
}

/// Limits of memory and processors.
pub fn limits() -> Limits {
    let mut buffer = [0; MOST_KEPT];
    Groups::of_process(&mut buffer).limits()
}

/// The smallest limit of memory from the process's group up to the root; `None` where there is none.
pub fn memory_limit() -> Option<Bytes> {
    let mut buffer = [0; MOST_KEPT];
    Groups::of_process(&mut buffer).memory_limit()
}

/// What memory there is for a process with such a [`memory_limit`]: the machine's, or what its control groups leave of it.
pub fn most_memory(limit: Option<Bytes>) -> Bytes {
    limit.into_iter().fold(memory::physical_memory(), Bytes::min)
}

/// Limit and use of the group on the way to the root that has the least left; `None` where there is no limit, or no way to know.
pub fn memory() -> Option<Memory> {
    let mut buffer = [0; MOST_KEPT];
    Groups::of_process(&mut buffer).memory()
}

/// The smallest quota from the process's group up to the root; `None` where there is none.
pub fn quota() -> Option<Quota> {
    let mut buffer = [0; MOST_KEPT];
    Groups::of_process(&mut buffer).quota()
}

/// The groups of a process, and where the hierarchies are.
struct Groups<'a> {
    /// As `/proc/self/cgroup` has them, a line each: number of the hierarchy, its controllers (none in version 2), path. Those of other controllers may be left out.
    lines: &'a [u8],
    root: &'a [u8],
}

/// A group's folder.
#[derive(Clone, Copy)]
struct Folder<'a> {
    is_v2: bool,
    /// Where hierarchies are; below it the controller's folder in version 1, and below that the group's.
    parts: [&'a [u8]; 3],
}

impl<'a> Groups<'a> {
    fn of_process(buffer: &'a mut [u8]) -> Self {
        Self { lines: Self::read_lines(LINES, buffer), root: ROOT }
    }

    /// The lines of what counts. There may be a dozen others, each with the long path of a container's group.
    fn read_lines(file: &CStr, into: &'a mut [u8]) -> &'a [u8] {
        let mut used = 0;
        let _ = for_each_line(file, &mut [0; LONGEST], |line| {
            let mut controllers = line.split(|&b| b == b':').nth(1).unwrap_or_default().split(|&b| b == b',');
            if controllers.any(|name| matches!(name, b"" | b"memory" | b"cpu"))
                && let Some(to) = into.get_mut(used..used + line.len() + 1)
            {
                to[..line.len()].copy_from_slice(line);
                to[line.len()] = b'\n';
                used += to.len();
            }
            true
        });
        &into[..used]
    }

    /// Folders of the groups that count for a controller, each followed by those above it; `controller` begins with a slash.
    fn folders(&self, controller: &'a [u8]) -> impl Iterator<Item = Folder<'a>> {
        let root = self.root;
        self.lines
            .split(|&b| b == b'\n')
            .filter_map(move |line| {
                let mut fields = line.splitn(3, |&b| b == b':');
                let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
                let is_v2 = controllers.is_empty();
                let counts = is_v2 || controllers.split(|&b| b == b',').any(|name| name == &controller[1..]);
                counts.then_some((is_v2, if path == b"/" { b"" } else { path }))
            })
            .flat_map(move |(is_v2, path)| {
                let above = |path: &&'a [u8]| path.iter().rposition(|&b| b == b'/').map(|slash| &path[..slash]);
                let mount: &[u8] = if is_v2 { b"" } else { controller };
                core::iter::successors(Some(path), above).map(move |path| Folder { is_v2, parts: [root, mount, path] })
            })
    }

    fn limits(&self) -> Limits {
        let has_files = |folder: &Folder| {
            let mut buffer = [0; 1];
            let names: [&[u8]; 2] = if folder.is_v2 {
                [b"/memory.max", b"/cpu.max"]
            } else {
                [b"/memory.limit_in_bytes", b"/cpu.cfs_quota_us"]
            };
            names.iter().any(|name| folder.read(name, &mut buffer).is_some())
        };
        let version = self.folders(b"/memory").chain(self.folders(b"/cpu")).find(has_files);
        Limits { version: version.map(|f| 1 + u8::from(f.is_v2)), memory: self.memory_limit(), quota: self.quota() }
    }

    fn memory_limit(&self) -> Option<Bytes> {
        self.folders(b"/memory").filter_map(|folder| folder.memory_limit()).min()
    }

    fn memory(&self) -> Option<Memory> {
        let memories = self.folders(b"/memory").filter_map(|folder| folder.memory());
        memories.min_by_key(|memory| memory.limit.saturating_sub(memory.used))
    }

    fn quota(&self) -> Option<Quota> {
        let quotas = self.folders(b"/cpu").filter_map(|folder| folder.quota());
        quotas.min_by(|a, b| a.cpus().total_cmp(&b.cpus()))
    }
}

impl Folder<'_> {
    fn read<'b>(&self, name: &[u8], into: &'b mut [u8]) -> Option<&'b [u8]> {
        self.with_path(name, |path| read_file(path, into))
    }

    /// Calls `f` with the path of a file.
    fn with_path<R>(&self, name: &[u8], f: impl FnOnce(&CStr) -> Option<R>) -> Option<R> {
        let mut path = [0u8; LONGEST];
        let mut used = 0;
        for part in self.parts.into_iter().chain([name, b"\0"]) {
            path.get_mut(used..used + part.len())?.copy_from_slice(part);
            used += part.len();
        }
        f(CStr::from_bytes_until_nul(&path).ok()?)
    }

    fn number(&self, name: &[u8]) -> Option<usize> {
        number(self.read(name, &mut [0; 64])?)
    }

    fn memory_limit(&self) -> Option<Bytes> {
        let limit = if self.is_v2 {
            self.number(b"/memory.max").into_iter().chain(self.number(b"/memory.high")).min()
        } else {
            self.number(b"/memory.limit_in_bytes").filter(|&limit| limit < NO_LIMIT_V1)
        };
        limit.map(Bytes)
    }

    fn memory(&self) -> Option<Memory> {
        let limit = self.memory_limit()?;
        let (current, dropped): (&[u8], &[u8]) = if self.is_v2 {
            (b"/memory.current", b"inactive_file ")
        } else {
            (b"/memory.usage_in_bytes", b"total_inactive_file ")
        };
        let used = self.number(current)?.saturating_sub(self.statistic(dropped));
        Some(Memory { limit, used: Bytes(used) })
    }

    fn statistic(&self, key: &[u8]) -> usize {
        let mut found = None;
        self.with_path(b"/memory.stat", |path| {
            for_each_line(path, &mut [0; 512], |line| {
                found = line.strip_prefix(key).and_then(number);
                found.is_none()
            })
        });
        found.unwrap_or(0)
    }

    fn quota(&self) -> Option<Quota> {
        if !self.is_v2 {
            // A quota of -1 is none.
            return Quota::new(self.number(b"/cpu.cfs_quota_us"), self.number(b"/cpu.cfs_period_us"));
        }
        let mut buffer = [0; 64];
        let mut fields = self.read(b"/cpu.max", &mut buffer)?.splitn(2, |&b| b == b' ');
        Quota::new(fields.next().and_then(number), fields.next().and_then(number))
    }
}

/// A number as the kernel writes it; "max" and what is negative are none.
fn number(text: &[u8]) -> Option<usize> {
    core::str::from_utf8(text).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hierarchies in a folder of the test's own.
    struct Made(std::path::PathBuf);

    impl Made {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("larder-cgroup-{name}-{}", std::process::id()));
            for (name, text) in files {
                let path = root.join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Self(root)
        }

        fn groups<'a>(&'a self, lines: &'a str) -> Groups<'a> {
            Groups { lines: lines.as_bytes(), root: self.0.to_str().unwrap().as_bytes() }
        }
    }

    impl Drop for Made {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn the_group_with_the_least_memory_left_counts_in_both_versions() {
        let made = Made::new(
            "memory",
            &[
                ("a/memory.max", "1000000\n"),
                ("a/memory.high", "max\n"),
                ("a/memory.current", "900000\n"),
                ("a/memory.stat", "anon 5\ninactive_file 300000\nactive_file 7\n"),
                ("a/b/memory.max", "max\n"),
                ("a/b/memory.high", "500000\n"),
                ("a/b/memory.current", "450000\n"),
                ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("memory/x/memory.limit_in_bytes", "4096000\n"),
                ("memory/x/memory.usage_in_bytes", "1000000\n"),
                ("memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 400000\n"),
            ],
        );
        for (lines, left) in [
            ("0::/a/b\n", Some((500_000, 450_000))),
            ("0::/a\n", Some((1_000_000, 600_000))),
            ("5:cpu:/q\n4:memory:/x\n", Some((4_096_000, 600_000))),
            // What a container does not show of its group, those above it stand for.
            ("4:memory:/x/hidden/from/here\n", Some((4_096_000, 600_000))),
            ("4:memory:/\n", None),
            ("", None),
        ] {
            let groups = made.groups(lines);
            assert_eq!(groups.memory(), left.map(|(limit, used)| Memory { limit: Bytes(limit), used: Bytes(used) }));
            assert_eq!(groups.memory_limit(), left.map(|(limit, _)| Bytes(limit)), "{lines}");
        }
    }

    /// In a container of version 1 each of a dozen lines has a path of two hundred bytes. Where the line of memory came late it was not read, so that there was
    /// no limit.
    #[test]
    fn a_limit_is_found_however_long_the_other_lines_are() {
        let group = format!("kubepods.slice/pod{}/cri-{}", "0".repeat(60), "1".repeat(100));
        let limit = format!("memory/{group}/memory.limit_in_bytes");
        let (usage, stat) = (limit.replace("limit", "usage"), limit.replace("limit_in_bytes", "stat"));
        let many = "other 1\n".repeat(3000) + "total_inactive_file 500\n";
        let names = [
            "name=systemd",
            "pids",
            "blkio",
            "freezer",
            "devices",
            "hugetlb",
            "perf_event",
            "cpuset",
            "memory",
            "cpu,cpuacct",
            "",
        ];
        let lines: String = (0..).zip(names).map(|(i, name)| format!("{i}:{name}:/{group}\n")).collect();
        let made = Made::new("long", &[(&limit, "8192\n"), (&usage, "4096\n"), (&stat, &many), ("lines", &lines)]);
        let path = std::ffi::CString::new(made.0.join("lines").to_str().unwrap()).unwrap();
        let mut buffer = [0; MOST_KEPT];
        let kept = core::str::from_utf8(Groups::read_lines(&path, &mut buffer)).unwrap();
        assert_eq!(kept.lines().count(), 3, "{kept}");
        assert_eq!(made.groups(kept).memory(), Some(Memory { limit: Bytes(8192), used: Bytes(4096 - 500) }));
    }

    #[test]
    fn the_smallest_quota_counts_in_both_versions() {
        let made = Made::new(
            "quota",
            &[
                ("a/cpu.max", "max 100000\n"),
                ("a/b/cpu.max", "50000 100000\n"),
                ("a/b/c/cpu.max", "150000 200000\n"),
                ("a/d/cpu.max", "250000 100000\n"),
                ("cpu/cpu.cfs_quota_us", "-1\n"),
                ("cpu/cpu.cfs_period_us", "100000\n"),
                ("cpu/x/cpu.cfs_quota_us", "300000\n"),
                ("cpu/x/cpu.cfs_period_us", "100000\n"),
            ],
        );
        let quota = |lines| made.groups(lines).quota();
        assert_eq!(quota("0::/a\n"), None);
        assert_eq!(quota("0::/a/b/c\n"), Some(Quota { time: 50_000, period: 100_000 }));
        assert_eq!(quota("0::/a/b\n").map(|quota| (quota.cpus(), quota.whole_cpus())), Some((0.5, 1)));
        assert_eq!(quota("0::/a/d\n").map(|quota| (quota.cpus(), quota.whole_cpus())), Some((2.5, 3)));
        assert_eq!(quota("3:cpu,cpuacct:/x\n"), Some(Quota { time: 300_000, period: 100_000 }));
        assert_eq!(quota("3:cpu,cpuacct:/\n"), None);
    }

    #[test]
    fn the_version_is_the_one_with_files() {
        let made = Made::new("version", &[("a/cpu.max", "max 100000\n"), ("memory/memory.limit_in_bytes", "4096\n")]);
        assert_eq!(made.groups("0::/a\n").limits(), Limits { version: Some(2), memory: None, quota: None });
        let one = Limits { version: Some(1), memory: Some(Bytes(4096)), quota: None };
        assert_eq!(made.groups("4:memory:/\n0::/\n").limits(), one);
        assert_eq!(made.groups("0::/\n").limits(), Limits::default());
    }

    #[test]
    fn the_limits_of_this_process_are_what_could_be() {
        // Whatever this machine has: reading it neither fails nor invents a limit above all memory there could be.
        assert!(memory_limit().is_none_or(|bytes| bytes.0 > 0 && bytes.0 < NO_LIMIT_V1));
        assert!(most_memory(memory_limit()) <= memory::physical_memory());
        assert_eq!(most_memory(None), memory::physical_memory());
        assert_eq!(most_memory(Some(Bytes(4096))), Bytes(4096));
    }
}
