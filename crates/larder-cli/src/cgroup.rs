//! The limits of the control groups that this process is in, of either version.

use std::fs;
use std::path::{Path, PathBuf};

/// What the groups allow; `None` is no limit.
#[derive(Debug, Default, PartialEq)]
pub struct Limits {
    /// 1 or 2, or `None` where no group controls anything.
    pub version: Option<u8>,
    /// Smallest limit of memory on the way to the root, in bytes.
    pub memory_bytes: Option<u64>,
    /// Smallest CPU quota on the way to the root, in CPUs.
    pub cpus: Option<f64>,
}

/// Version 1 says "no limit" by the largest whole page, whatever its size.
const NO_LIMIT_V1: u64 = i64::MAX as u64 / 2;

/// The limits now.
pub fn limits() -> Limits {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    limits_from(&groups, &mounts)
}

fn limits_from(groups: &str, mounts: &str) -> Limits {
    let mut limits = Limits::default();
    // Each line: hierarchy number, controllers, path.
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        if controllers.is_empty() {
            let Some(root) = mount(mounts, "cgroup2", None) else { continue };
            for folder in ancestors(&root, path) {
                if let Some(text) = read(&folder, "memory.max") {
                    limits.version = Some(2);
                    least(&mut limits.memory_bytes, text.parse().ok());
                }
                if let Some(text) = read(&folder, "cpu.max") {
                    limits.version = Some(2);
                    least_cpus(&mut limits.cpus, quota_v2(&text));
                }
            }
        }
        for controller in controllers.split(',') {
            let Some(root) = mount(mounts, "cgroup", Some(controller)) else { continue };
            for folder in ancestors(&root, path) {
                if controller == "memory"
                    && let Some(text) = read(&folder, "memory.limit_in_bytes")
                {
                    limits.version.get_or_insert(1);
                    least(&mut limits.memory_bytes, text.parse().ok().filter(|bytes| *bytes < NO_LIMIT_V1));
                }
                if controller == "cpu"
                    && let (Some(quota), Some(period)) =
                        (read(&folder, "cpu.cfs_quota_us"), read(&folder, "cpu.cfs_period_us"))
                {
                    limits.version.get_or_insert(1);
                    // A quota of -1 is none.
                    least_cpus(&mut limits.cpus, quota_v2(&format!("{quota} {period}")).filter(|cpus| *cpus > 0.0));
                }
            }
        }
    }
    limits
}

/// Where a hierarchy is mounted: for version 1 the one with the controller among its options.
fn mount(mounts: &str, kind: &str, controller: Option<&str>) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (place, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let (found, options) = (system.next()?, system.nth(1)?);
        let fits = controller.is_none_or(|wanted| options.split(',').any(|option| option == wanted));
        (found == kind && fits).then(|| PathBuf::from(place.split(' ').nth(4).unwrap_or("/")))
    })
}

/// The group's folder and those above it, up to the mount. In a container the path may not be visible; the mount is then all there is.
fn ancestors(root: &Path, path: &str) -> Vec<PathBuf> {
    let group = root.join(path.trim_start_matches('/'));
    let start = if path.contains("..") || !group.is_dir() { root.to_owned() } else { group };
    start.ancestors().take_while(|folder| folder.starts_with(root)).map(Path::to_owned).collect()
}

fn read(folder: &Path, name: &str) -> Option<String> {
    fs::read_to_string(folder.join(name)).ok().map(|text| text.trim().to_owned())
}

/// `QUOTA PERIOD` in CPUs; `max` is no quota.
fn quota_v2(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
}

fn least(limit: &mut Option<u64>, other: Option<u64>) {
    *limit = limit.iter().copied().chain(other).min();
}

fn least_cpus(limit: &mut Option<f64>, other: Option<f64>) {
    *limit = limit.iter().copied().chain(other).reduce(f64::min);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas() {
        assert_eq!(quota_v2("150000 100000"), Some(1.5));
        assert_eq!(quota_v2("max 100000"), None);
    }

    #[test]
    fn the_smallest_limit_on_the_way_up_counts_in_both_versions() {
        let root = std::env::temp_dir().join(format!("larder-cgroup-test-{}", std::process::id()));
        for (name, text) in [
            ("two/a/memory.max", "max\n"),
            ("two/a/cpu.max", "max 100000\n"),
            ("two/a/b/memory.max", "1000\n"),
            ("two/a/b/cpu.max", "50000 100000\n"),
            ("mem/memory.limit_in_bytes", "9223372036854771712\n"),
            ("mem/x/memory.limit_in_bytes", "4096\n"),
            ("cpu/cpu.cfs_quota_us", "-1\n"),
            ("cpu/cpu.cfs_period_us", "100000\n"),
        ] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mounts = format!(
            "30 1 0:1 / {0}/two rw shared:1 - cgroup2 cgroup2 rw\n31 1 0:2 / {0}/mem rw - cgroup cgroup rw,memory\n\
             32 1 0:3 / {0}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
            root.display()
        );
        let two = limits_from("0::/a/b\n", &mounts);
        assert_eq!(two, Limits { version: Some(2), memory_bytes: Some(1000), cpus: Some(0.5) });
        let one = limits_from("4:memory:/x\n3:cpu,cpuacct:/not/visible\n", &mounts);
        assert_eq!(one, Limits { version: Some(1), memory_bytes: Some(4096), cpus: None });
        assert_eq!(limits_from("", ""), Limits::default());
        fs::remove_dir_all(root).unwrap();
    }
}
