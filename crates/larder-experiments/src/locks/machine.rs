//! What confounds a measurement: recorded with every result, because a number without it is none (the notes' "C-states and
//! P-states", "A scheduling and dispatching oddity on Linux", "Thread placement policies").

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::Options;

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The machine, its clock, its idle states, its placement, and what the options were.
pub fn describe(options: &Options) -> Value {
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    let flags = field("flags").unwrap_or_default();
    let has = |flag: &str| flags.split(' ').any(|word| word == flag);
    let cpu = "/sys/devices/system/cpu";
    json!({
        "processor": field("model name"),
        "cpus": thread::available_parallelism().map_or(0, usize::from),
        "online": read(&format!("{cpu}/online")),
        "threads_of_a_core": read(&format!("{cpu}/cpu0/topology/thread_siblings_list")),
        "nodes": read("/sys/devices/system/node/online"),
        "kernel": read("/proc/sys/kernel/osrelease"),
        "hypervisor": has("hypervisor"),
        "governor": read(&format!("{cpu}/cpu0/cpufreq/scaling_governor")),
        "turbo": read(&format!("{cpu}/cpufreq/boost")).or_else(|| read(&format!("{cpu}/intel_pstate/no_turbo"))),
        "idle_driver": read(&format!("{cpu}/cpuidle/current_driver")),
        "idle_governor": read(&format!("{cpu}/cpuidle/current_governor")),
        "clock": read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "scheduler_slice_ns": read("/sys/kernel/debug/sched/base_slice_ns"),
        "load": read("/proc/loadavg"),
        "monitor_instructions": json!({ "umwait": has("waitpkg"), "mwaitx": has("mwaitx"), "rtm": has("rtm") }),
        "options": json!({
            "threads": options.threads, "seconds": options.seconds, "rounds": options.rounds,
            "critical_steps": options.critical,
        }),
    })
}

/// The process's processor time.
pub fn cpu_time() -> Duration {
    // SAFETY: all zeroes is a valid `rusage`, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// What the whole machine did until a moment, in clock ticks.
pub struct Load {
    busy: u64,
    stolen: u64,
    all: u64,
}

impl Load {
    pub fn now() -> Self {
        let text = read("/proc/stat").unwrap_or_default();
        let ticks: Vec<u64> = text
            .lines()
            .next()
            .unwrap_or("")
            .split_ascii_whitespace()
            .skip(1)
            .take(8)
            .map(|word| word.parse().unwrap_or(0))
            .collect();
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
        // user nice system idle iowait irq softirq steal
        let (idle, stolen) = (at(3) + at(4), at(7));
        let all: u64 = ticks.iter().sum();
        Self { busy: all - idle - stolen, stolen, all }
    }

    /// Whether, since then, others than this process, which took `own`, had at most this share of the machine.
    pub fn others_took_at_most(&self, share: f64, own: Duration) -> bool {
        let now = Self::now();
        // SAFETY: always allowed.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
        let others = (now.busy - self.busy) as f64 - own.as_secs_f64() * per_second + (now.stolen - self.stolen) as f64;
        others <= share * ((now.all - self.all) as f64).max(1.0)
    }
}
