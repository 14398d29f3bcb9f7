//! Control groups with little memory, for tests. `larder-testkit` includes this file, too.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, io};

/// A control group, removed when dropped.
pub struct Group(PathBuf);

impl Group {
    /// Below this process's own, in the hierarchy that has memory, and with at most so many bytes of it. The name gets this process's number, and one for each group:
    /// one in which something still ends cannot be removed yet.
    pub fn create(name: &str, limit: u64) -> io::Result<Self> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        // Relaxed: a number of its own is all that is wanted.
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("larder-{name}-{}-{number}", std::process::id());
        let mut why = io::Error::from(io::ErrorKind::NotFound);
        for line in fs::read_to_string("/proc/self/cgroup")?.lines() {
            let [_, controllers, path] = line.splitn(3, ':').collect::<Vec<_>>()[..] else { continue };
            let (root, file) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                _ => continue,
            };
            let group = Self(Path::new(root).join(path.trim_start_matches('/')).join(&name));
            // The file is there only where the group has the controller; then it is not made by writing.
            let limited = fs::create_dir(&group.0)
                .and_then(|()| fs::metadata(group.0.join(file)))
                .and_then(|_| fs::write(group.0.join(file), limit.to_string()));
            match limited {
                Ok(()) => return Ok(group),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        &self.0
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What is left of it does no harm, and there is nobody to tell.
        let _ = fs::remove_dir(&self.0);
    }
}
