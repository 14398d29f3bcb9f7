//! Threads that work on structures while their process goes from one cpuset to another: all at once, to other CPUs, in whatever they are
//! just doing. Afterwards each element is in exactly one place.
//!
//! Needs root, and a cpuset controller (cgroup v1 or v2) that lets a process be moved; elsewhere the test says that it skips.

#[path = "storm/workload.rs"]
#[allow(dead_code, reason = "the storms use all of it")]
mod workload;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use workload::{World, crowd, every_way, handle};

/// Two cpusets of one CPU each. The process goes back, and they go, when this is dropped.
struct Cpusets {
    home: PathBuf,
    sets: [PathBuf; 2],
}

impl Cpusets {
    /// Makes them for two of the CPUs that the process may use; says why where that is not possible.
    fn new() -> Result<Self, String> {
        let cpus: Vec<usize> = allowed();
        let [first, .., last] = cpus[..] else { return Err("one CPU is too few".into()) };
        let mut why = "no cpuset controller is mounted".to_string();
        for (root, controllers) in [("/sys/fs/cgroup/cpuset", "cpuset"), ("/sys/fs/cgroup", "")] {
            let root = Path::new(root);
            if !root.join("cgroup.procs").exists() {
                continue;
            }
            match Self::below(root, controllers, [first, last]) {
                Ok(sets) => return Ok(sets),
                Err(e) => why = format!("{}: {e}", root.display()),
            }
        }
        Err(why)
    }

    fn below(root: &Path, controllers: &str, cpus: [usize; 2]) -> io::Result<Self> {
        // `number:controllers:path`; version 2 has no controllers there.
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let own = groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let mut own = own.filter(|(names, _)| names.split(',').any(|name| name == controllers)).map(|(_, path)| path);
        let home = root.join(own.next_back().unwrap_or("/").trim_start_matches('/'));
        if controllers.is_empty() {
            fs::write(root.join("cgroup.subtree_control"), "+cpuset")?;
        }
        let memory = fs::read_to_string(root.join("cpuset.mems.effective"))
            .or_else(|_| fs::read_to_string(root.join("cpuset.mems")))?;
        let set = |i: usize| root.join(format!("larder-test-{}-{i}", std::process::id()));
        let made = Self { home, sets: [set(0), set(1)] };
        for (set, cpu) in made.sets.iter().zip(cpus) {
            fs::create_dir(set)?;
            fs::write(set.join("cpuset.cpus"), cpu.to_string())?;
            fs::write(set.join("cpuset.mems"), memory.trim())?;
        }
        made.enter(0)?;
        Ok(made)
    }

    /// Moves the whole process.
    fn enter(&self, i: usize) -> io::Result<()> {
        fs::write(self.sets[i].join("cgroup.procs"), std::process::id().to_string())
    }
}

impl Drop for Cpusets {
    fn drop(&mut self) {
        _ = fs::write(self.home.join("cgroup.procs"), std::process::id().to_string());
        for set in &self.sets {
            _ = fs::remove_dir(set);
        }
    }
}

fn allowed() -> Vec<usize> {
    // SAFETY: a set of CPUs is plain bits, and the call fills it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

#[test]
fn a_process_that_goes_from_cpuset_to_cpuset_loses_nothing() {
    const MOVES: usize = 60;
    let cpusets = match Cpusets::new() {
        Ok(cpusets) => cpusets,
        Err(why) => return eprintln!("SKIPPED: the process cannot be moved between cpusets ({why})"),
    };
    for options in every_way() {
        let world = World::new(options);
        handle(libc::SIGUSR1);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..MOVES {
                    cpusets.enter(i % 2).expect("the process was moved before");
                    if i % 8 == 0 {
                        world.take_over();
                    }
                }
                over.store(true, Ordering::Relaxed);
            });
            crowd(12, |_| {
                while !over.load(Ordering::Relaxed) {
                    world.work(&|| {});
                }
            });
        });
        world.settle();
    }
}
