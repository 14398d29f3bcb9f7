//! Memory of the control groups that this process is in, of either version: limit and use, as they are now.

use crate::cpus::{file_in, number};
use crate::env::read_file;
use larder_units::Bytes;

/// The group on the way to the root that has the least left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Its limit: the lower one of where it is slowed down and where it ends.
    pub limit: Bytes,
    /// What counts against it, without what the kernel drops first: file pages that nobody used lately.
    pub used: Bytes,
}

/// Version 1 says "no limit" by the largest whole page, whatever its size.
const NO_LIMIT_V1: usize = usize::MAX / 4;

/// Reads the limit and the use; `None` where there is no limit, or no way to know.
///
/// Opens a handful of files: tens of microseconds. Takes no lock and allocates nothing.
pub fn memory() -> Option<Memory> {
    let mut buffer = [0; 1024];
    tightest(read_file(c"/proc/self/cgroup", &mut buffer)?, b"/sys/fs/cgroup")
}

/// As [`memory`], of the groups that the text names, with every hierarchy mounted under `root`.
fn tightest(groups: &[u8], root: &[u8]) -> Option<Memory> {
    let mut best: Option<Memory> = None;
    for line in groups.split(|&b| b == b'\n') {
        let mut fields = line.splitn(3, |&b| b == b':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let is_v2 = controllers.is_empty();
        if !is_v2 && !controllers.split(|&b| b == b',').any(|c| c == b"memory") {
            continue;
        }
        let mut group = path;
        loop {
            let found = if is_v2 { of_v2(root, group) } else { of_v1(root, group) };
            let left = |m: &Memory| m.limit.saturating_sub(m.used);
            if let Some(found) = found
                && best.is_none_or(|best| left(&found) < left(&best))
            {
                best = Some(found);
            }
            match group.iter().rposition(|&b| b == b'/') {
                Some(cut) if group.len() > 1 => group = &group[..cut],
                _ => break,
            }
        }
    }
    best
}

fn read_number(root: &[u8], group: &[u8], name: &[u8]) -> Option<usize> {
    let mut buffer = [0; 64];
    number(file_in(root, group, name, &mut buffer)?)?.try_into().ok()
}

fn statistic(root: &[u8], group: &[u8], key: &[u8]) -> usize {
    let mut buffer = [0; 8192];
    let text = file_in(root, group, b"/memory.stat", &mut buffer).unwrap_or_default();
    text.split(|&b| b == b'\n').find_map(|line| number(line.strip_prefix(key)?)?.try_into().ok()).unwrap_or(0)
}

fn of_v2(root: &[u8], group: &[u8]) -> Option<Memory> {
    // "max", which is no number, is no limit.
    let limits = [read_number(root, group, b"/memory.max"), read_number(root, group, b"/memory.high")];
    let limit = limits.into_iter().flatten().min()?;
    let used = read_number(root, group, b"/memory.current")?;
    let used = used.saturating_sub(statistic(root, group, b"inactive_file "));
    Some(Memory { limit: Bytes(limit), used: Bytes(used) })
}

fn of_v1(root: &[u8], group: &[u8]) -> Option<Memory> {
    let mut place = [0; 256];
    let (folder, name) = (root, &b"/memory"[..]);
    let length = folder.len() + name.len();
    place.get_mut(..folder.len())?.copy_from_slice(folder);
    place.get_mut(folder.len()..length)?.copy_from_slice(name);
    let root = &place[..length];
    let limit = read_number(root, group, b"/memory.limit_in_bytes").filter(|&limit| limit < NO_LIMIT_V1)?;
    let used = read_number(root, group, b"/memory.usage_in_bytes")?;
    let used = used.saturating_sub(statistic(root, group, b"total_inactive_file "));
    Some(Memory { limit: Bytes(limit), used: Bytes(used) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_with_the_least_left_counts_in_both_versions() {
        let root = std::env::temp_dir().join(format!("larder-group-test-{}", std::process::id()));
        for (name, text) in [
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
        ] {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let place = root.to_str().unwrap().as_bytes();
        let memory = |limit, used| Some(Memory { limit: Bytes(limit), used: Bytes(used) });
        assert_eq!(tightest(b"0::/a/b\n", place), memory(500_000, 450_000));
        assert_eq!(tightest(b"0::/a\n", place), memory(1_000_000, 600_000));
        assert_eq!(tightest(b"5:cpu:/q\n4:memory:/x\n", place), memory(4_096_000, 600_000));
        assert_eq!(tightest(b"4:memory:/\n", place), None);
        assert_eq!(tightest(b"", place), None);
        std::fs::remove_dir_all(root).unwrap();
    }
}
