//! A window of fixed time in which threads count what they do.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::load::{Load, Spent, undisturbed};

pub struct Options {
    pub rounds: usize,
    /// How many disturbed windows of each candidate are run again, at each number of threads.
    pub repeats: usize,
    pub window: Duration,
    pub threads: Vec<usize>,
    pub only: Vec<String>,
}

impl Options {
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.contains(only.as_str()))
    }
}

/// What one window gave.
pub struct Outcome {
    /// Operations of each thread inside the window.
    pub counts: Vec<u64>,
    pub wall: Duration,
    /// What the process took of the machine.
    pub spent: Spent,
    /// Whether nobody else disturbed it.
    pub clean: bool,
}

impl Outcome {
    pub fn per_second(&self) -> f64 {
        self.counts.iter().sum::<u64>() as f64 / self.wall.as_secs_f64()
    }

    pub fn per_cpu_second(&self) -> f64 {
        self.counts.iter().sum::<u64>() as f64 / self.spent.cpu.as_secs_f64().max(1e-9)
    }

    pub fn jain(&self) -> f64 {
        let sum: f64 = self.counts.iter().map(|&count| count as f64).sum();
        let squares: f64 = self.counts.iter().map(|&count| (count as f64).powi(2)).sum();
        if squares == 0.0 { 1.0 } else { sum * sum / (self.counts.len() as f64 * squares) }
    }
}

const WAITING: u32 = 0;
const RUNNING: u32 = 1;
const OVER: u32 = 2;

/// Runs `threads` threads that each call `operation(thread, seed)` again and again; `drain` is called once they are to
/// stop, and again until they have, for those that wait for one another.
pub fn run(threads: usize, window: Duration, operation: &(dyn Fn(usize, &mut u64) -> bool + Sync)) -> Outcome {
    let phase = AtomicU32::new(WAITING);
    let ready = AtomicUsize::new(0);
    let counts: Vec<Slot> = (0..threads).map(|_| Slot::default()).collect();
    let mut outcome = None;
    thread::scope(|scope| {
        for (thread, slot) in counts.iter().enumerate() {
            let (phase, ready) = (&phase, &ready);
            scope.spawn(move || {
                let mut seed = 0x9e37_79b9_7f4a_7c15 ^ ((thread as u64 + 1) << 17);
                ready.fetch_add(1, Ordering::Relaxed);
                while phase.load(Ordering::Acquire) == WAITING {
                    thread::yield_now();
                }
                let mut count = 0;
                while phase.load(Ordering::Relaxed) == RUNNING {
                    if operation(thread, &mut seed) {
                        count += 1;
                        slot.0.store(count, Ordering::Relaxed);
                    }
                }
            });
        }
        while ready.load(Ordering::Relaxed) < threads {
            thread::yield_now();
        }
        let (before, load) = (Spent::now(), Load::now());
        let start = Instant::now();
        phase.store(RUNNING, Ordering::Release);
        thread::sleep(window);
        // On a loaded machine no thread may have had a processor in it; that would be a figure for nothing.
        while counts.iter().all(|slot| slot.0.load(Ordering::Relaxed) == 0) {
            thread::yield_now();
        }
        let counts: Vec<u64> = counts.iter().map(|slot| slot.0.load(Ordering::Relaxed)).collect();
        let (wall, spent) = (start.elapsed(), Spent::since(before));
        outcome = Some(Outcome { counts, wall, spent, clean: load.is_clean_since(spent.cpu) });
        phase.store(OVER, Ordering::Release);
    });
    outcome.expect("the scope has run")
}

#[derive(Default)]
#[repr(align(128))]
struct Slot(AtomicU64);

/// One step of Marsaglia's xor-shift: the work of sections.
#[inline]
pub fn step(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// Median, lowest, highest.
pub fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// What confounds: printed once, above all tables.
pub fn preamble(options: &Options) {
    let read =
        |path: &str| fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned());
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or("unknown")
        .trim_start_matches(['\t', ':', ' ']);
    println!(
        "# {model}, {} CPUs, kernel {}, load {}, governor {}, {} rounds of {:.1} s, interleaved",
        thread::available_parallelism().map_or(0, usize::from),
        read("/proc/sys/kernel/osrelease"),
        read("/proc/loadavg").split(' ').next().unwrap_or(""),
        read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        options.rounds,
        options.window.as_secs_f64(),
    );
}

/// Runs every candidate in each round, and prints a row for each.
pub fn compare(title: &str, threads: usize, options: &Options, candidates: &[(&str, &dyn Fn() -> Outcome)]) {
    let mut rounds: Vec<Vec<Outcome>> = candidates.iter().map(|_| Vec::new()).collect();
    let mut repeats = vec![options.repeats; candidates.len()];
    for round in 0..options.rounds {
        // Every other round backwards, so that nobody always runs behind the same neighbour.
        for position in 0..candidates.len() {
            let index = if round % 2 == 0 { position } else { candidates.len() - 1 - position };
            rounds[index].push(undisturbed(
                &mut repeats[index],
                |outcome: &Outcome| outcome.clean,
                candidates[index].1,
            ));
        }
    }
    println!("\n## {title}, {threads} threads");
    println!("| lock | Mops/s | range | Mops per CPU-s | Jain | ratio to the first | clean, rejected |");
    println!("|---|---|---|---|---|---|---|");
    let counted = |outcomes: Vec<Outcome>| {
        let (clean, disturbed): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(|outcome| outcome.clean);
        let count = format!("{} of {}", clean.len(), clean.len() + disturbed.len());
        // Where there is no clean window, the disturbed ones are all there is.
        (if clean.is_empty() { disturbed } else { clean }, count)
    };
    let (rounds, clean): (Vec<_>, Vec<_>) = rounds.into_iter().map(counted).unzip();
    let first = spread(rounds[0].iter().map(Outcome::per_cpu_second).collect()).0;
    for ((((name, _), outcomes), clean), left) in candidates.iter().zip(&rounds).zip(&clean).zip(&repeats) {
        let rejected = options.repeats - left;
        let (median, low, high) = spread(outcomes.iter().map(|outcome| outcome.per_second() / 1e6).collect());
        let per_cpu = spread(outcomes.iter().map(Outcome::per_cpu_second).collect()).0;
        let jain = spread(outcomes.iter().map(Outcome::jain).collect()).0;
        println!(
            "| {name} | {median:.3} | {low:.3}-{high:.3} | {:.3} | {jain:.3} | {:.2} | {clean}, {rejected} |",
            per_cpu / 1e6,
            per_cpu / first
        );
    }
}
