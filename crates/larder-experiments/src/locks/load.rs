//! Whether a window was disturbed: what the machine did meanwhile that was not done by this process.
//!
//! The kernel counts in clock ticks what every CPU did, and what the host took from it ("steal"). What is left after this process's
//! own time, which is known exactly, was others'. A window in which that is more than [`MOST`] of the machine is rejected and
//! run again, a limited number of times: on a machine that is never quiet, the last ones stand, and the result says so.

use std::fs;
use std::time::Duration;

/// The largest share of the machine that others may take.
const MOST: f64 = 0.02;

/// What the process has taken of the machine until a moment, or between two.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// Processor time.
    pub cpu: Duration,
    /// How often a thread gave its processor up: to sleep, or by a yield.
    pub sleeps: u64,
    /// How often a thread lost its processor.
    pub preemptions: u64,
}

impl Spent {
    /// Since the process began.
    pub fn now() -> Self {
        // SAFETY: all zeroes is a valid `rusage`, and the call fills it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage
        };
        let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
        Self {
            cpu: of(usage.ru_utime) + of(usage.ru_stime),
            sleeps: usage.ru_nvcsw as u64,
            preemptions: usage.ru_nivcsw as u64,
        }
    }

    /// Since an earlier moment.
    pub fn since(earlier: Self) -> Self {
        let now = Self::now();
        Self {
            cpu: now.cpu - earlier.cpu,
            sleeps: now.sleeps - earlier.sleeps,
            preemptions: now.preemptions - earlier.preemptions,
        }
    }
}

/// What the whole machine did until a moment, in clock ticks of all CPUs together.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    busy: u64,
    stolen: u64,
    all: u64,
    cpus: u64,
}

impl Load {
    pub fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(stat: &str) -> Self {
        let ticks: Vec<u64> = stat
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
        let cpus = stat.lines().filter(|line| line.starts_with("cpu")).count().saturating_sub(1) as u64;
        Self { busy: all - idle - stolen, stolen, all, cpus }
    }

    /// Whether nobody disturbed this process since then, in which it took `own`.
    pub fn is_clean_since(&self, own: Duration) -> bool {
        // SAFETY: always allowed.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
        is_clean(self, &Self::now(), own.as_secs_f64() * per_second)
    }
}

/// The same, of two moments and the ticks of the process itself. A tick for each CPU is always allowed: the kernel counts no finer.
fn is_clean(before: &Load, after: &Load, own: f64) -> bool {
    let of = |figure: fn(&Load) -> u64| figure(after).saturating_sub(figure(before)) as f64;
    let others = of(|load| load.busy) - own + of(|load| load.stolen);
    others <= (MOST * of(|load| load.all)).max(after.cpus as f64)
}

/// Runs until the outcome is clean, or nothing is left of `repeats`, which says how many may still be rejected.
pub fn undisturbed<T>(repeats: &mut usize, is_clean: impl Fn(&T) -> bool, mut run: impl FnMut() -> T) -> T {
    loop {
        let outcome = run();
        if is_clean(&outcome) || *repeats == 0 {
            return outcome;
        }
        *repeats -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(dead_code)] // A bench that includes this file has no test harness.
    fn at(user: u64, idle: u64, steal: u64) -> Load {
        Load::parse(&format!("cpu  {user} 0 10 {idle} 5 0 0 {steal} 0 0\ncpu0 1\ncpu1 1\nintr 5\n"))
    }

    #[test]
    fn others_may_take_two_hundredths() {
        // Two CPUs for ten seconds, of a hundred ticks each.
        let before = at(1000, 5000, 7);
        for (busy, steal, own, clean) in [
            (2000, 0, 2000.0, true),
            (2000, 0, 1961.0, true),
            (2000, 0, 1959.0, false),
            (1000, 0, 1000.0, true),
            (1000, 0, 900.0, false),
            (1950, 40, 1950.0, true),
            (1950, 41, 1950.0, false),
        ] {
            let after = at(1000 + busy, 5000 + 2000 - busy - steal, 7 + steal);
            assert_eq!(is_clean(&before, &after, own), clean, "{busy} busy, {steal} stolen, {own} own");
        }
    }

    #[test]
    fn short_windows_are_not_judged_by_less_than_a_tick() {
        let (before, after) = (at(1000, 5000, 0), at(1020, 5020, 0));
        assert!(is_clean(&before, &after, 18.5));
        assert!(!is_clean(&before, &after, 17.0));
    }

    #[test]
    fn a_disturbed_window_is_repeated_until_it_is_clean_or_nothing_is_left() {
        for (repeats, clean_at, expected) in [(7, 0, (0, 7)), (7, 3, (3, 4)), (2, 3, (2, 0)), (0, 1, (0, 0))] {
            let (mut left, mut runs) = (repeats, 0);
            let run = || {
                runs += 1;
                runs - 1
            };
            let last = undisturbed(&mut left, |&n| n >= clean_at, run);
            assert_eq!((last, left), expected, "{repeats} repeats, clean at {clean_at}");
        }
    }
}
