//! What confounds a measurement: recorded with every result, because a number without it is none (the notes' "C-states and
//! P-states", "A scheduling and dispatching oddity on Linux", "Thread placement policies").

use std::fs;
use std::thread;

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
            "repeats": options.repeats(), "critical_steps": options.critical,
        }),
    })
}

/// Whether the processor shows this flag in /proc/cpuinfo.
pub fn has(flag: &str) -> bool {
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    flags.split([' ', '\t']).any(|word| word == flag)
}
