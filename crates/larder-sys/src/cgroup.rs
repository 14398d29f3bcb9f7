//! The memory that the control group leaves to this process.

use larder_units::Bytes;

use crate::cpus::file_in;
use crate::env::read_file;
use crate::memory;

/// Values from here on mean "no limit" in version 1.
const UNLIMITED: usize = 1 << 60;

/// The tightest memory limit of the process's control groups; `None` where there is none. Reads cgroup v2 and v1.
pub fn memory_limit() -> Option<Bytes> {
    let mut buffer = [0; 1024];
    let groups = read_file(c"/proc/self/cgroup", &mut buffer)?;
    groups
        .split(|&b| b == b'\n')
        .filter_map(|line| {
            let mut fields = line.splitn(3, |&b| b == b':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            if controllers.is_empty() {
                tightest(b"/sys/fs/cgroup", path, b"/memory.max")
            } else if controllers.split(|&b| b == b',').any(|c| c == b"memory") {
                tightest(b"/sys/fs/cgroup/memory", path, b"/memory.limit_in_bytes")
            } else {
                None
            }
        })
        .min()
}

/// What memory there is for the process: the machine's, or what its control groups leave of it.
pub fn memory() -> Bytes {
    memory_limit().into_iter().fold(memory::physical_memory(), Bytes::min)
}

/// The smallest limit from the group up to the root.
fn tightest(root: &[u8], mut group: &[u8], name: &[u8]) -> Option<Bytes> {
    let mut best: Option<Bytes> = None;
    loop {
        let mut buffer = [0; 64];
        let own = file_in(root, group, name, &mut buffer).and_then(limit);
        best = best.into_iter().chain(own).min();
        let Some(slash) = group.iter().rposition(|&b| b == b'/') else { return best };
        group = &group[..slash];
    }
}

/// A limit as the kernel writes it: a number of bytes, or `max`.
fn limit(text: &[u8]) -> Option<Bytes> {
    core::str::from_utf8(text).ok()?.trim().parse().ok().filter(|&bytes| bytes < UNLIMITED).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_below_the_largest() {
        assert_eq!(limit(b"1048576\n"), Some(Bytes(1 << 20)));
        assert_eq!(limit(b"max\n"), None);
        assert_eq!(limit(b"9223372036854771712\n"), None);
        assert_eq!(limit(b""), None);
    }

    #[test]
    fn the_limit_is_what_the_files_say() {
        // Whatever this machine has: reading it neither fails nor invents a limit above all memory there could be.
        assert!(memory_limit().is_none_or(|bytes| bytes.0 > 0 && bytes.0 < UNLIMITED));
    }
}
