//! `larder experiment hotspot`: our moving heap against the collectors of OpenJDK's virtual machine, on the same work.
//!
//! The programs of `apps/vm` exist in C and in Java, allocate objects of the same sizes in the same order, and print the same checksums.
//! Both heaps have the same young and old sizes, fixed, and promote at the same age. What is compared: operations by the clock and by
//! processor time, time that collections stopped the program for each GiB allocated, the longest pause of a young collection, and
//! memory. [`runs`] runs, [`log`] reads what HotSpot says of its collections.

mod log;
pub mod runs;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::html::{Axis, Chart, Series, shown};
use super::measure::{is_time_for_another, median};
use super::{Report, Size};
use crate::exit::Failure;
use runs::{Contender, Load, Machines, Measured};

/// The programs.
pub const PROGRAMS: [&str; 5] = ["trees", "cache", "compiler", "warehouse", "chat"];
/// Threads of a room of `chat`.
const THREADS_OF_A_ROOM: usize = 40;

/// The runs of a workload of a size, of everybody.
struct Compared {
    load: Load,
    runs: HashMap<&'static str, Vec<Measured>>,
}

impl Compared {
    fn median(&self, contender: Contender, figure: impl Fn(&Measured) -> f64) -> f64 {
        median(self.runs.get(contender.name()).into_iter().flatten().map(figure))
    }

    fn json(&self) -> Value {
        let load = &self.load;
        let runs: HashMap<_, Vec<Value>> =
            self.runs.iter().map(|(name, runs)| (*name, runs.iter().map(Measured::json).collect())).collect();
        json!({
            "program": load.program, "sizes": load.sizes, "threads": load.threads, "young_mib": load.young_mib,
            "old_mib": load.old_mib, "warm": load.warm, "runs": runs,
        })
    }
}

/// What is run.
fn loads(size: Size) -> Vec<Load> {
    let threads: Vec<usize> = size.of(vec![2], vec![1, 2, 8, 64], vec![1, 2, 4, 8, 16, 64, 256]);
    let rooms: Vec<usize> = size.of(vec![1], vec![5, 10, 25], vec![5, 10, 15, 20, 25]);
    // About half a second each by default, for all threads together.
    let programs = [
        ("trees", size.of(["400000", "12"], ["40000000", "14"], ["400000000", "14"]).to_vec()),
        ("cache", size.of(["400000", "4000"], ["4000000", "100000"], ["100000000", "100000"]).to_vec()),
        ("compiler", size.of(["60"], ["3000"], ["30000"]).to_vec()),
    ];
    let strings = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    // The old generation has room for what all threads have alive at once: with most threads, a third to a half of it.
    let (young_mib, old_mib, warm) = (size.of(2, 8, 8), size.of(64, 64, 256), size.of(1, 3, 3));
    let load = |program, sizes, threads| Load { program, sizes, threads, young_mib, old_mib, warm };
    let mut loads = Vec::new();
    for (program, sizes) in programs {
        loads.extend(threads.iter().map(|&threads| load(program, strings(&sizes), threads)));
    }
    // Its transactions are of each thread.
    let transactions: usize = size.of(10_000, 3_000_000, 20_000_000);
    for &threads in &threads {
        let each = (transactions / threads).to_string();
        loads.push(load("warehouse", strings(&[&each, size.of("500", "4000", "4000")]), threads));
    }
    // Little is allocated beside the messages' way through the kernel. The young generation is that of VEE'05's table 2.
    for rooms in rooms {
        let messages = (size.of(10, 300, 3000) / rooms).to_string();
        let chat = load("chat", strings(&[&rooms.to_string(), &messages]), rooms * THREADS_OF_A_ROOM);
        loads.push(Load { young_mib: size.of(2, 4, 4), ..chat });
    }
    loads
}

/// Runs everything in rounds, so that what else the machine does falls on everybody.
fn measure(machines: &Machines, loads: Vec<Load>, rounds: usize) -> Result<Vec<Compared>, Failure> {
    let begun = Instant::now();
    let bar = ProgressBar::new((loads.len() * rounds * Contender::ALL.len()) as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {eta} {msg}").expect("a valid template"));
    let mut all: Vec<Compared> = loads.into_iter().map(|load| Compared { load, runs: HashMap::new() }).collect();
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        if round > 0 && !is_time_for_another(begun.elapsed(), longest) {
            note!("{round} of {rounds} rounds: the time is up");
            break;
        }
        let began = Instant::now();
        for compared in &mut all {
            for turn in 0..Contender::ALL.len() {
                let contender = Contender::ALL[(turn + round) % Contender::ALL.len()];
                let load = &compared.load;
                let what = format!("{}, {} threads, {}", load.program, load.threads, contender.name());
                if bar.is_hidden() && bar.position().is_multiple_of(10) {
                    note!("{} of {}: {what}", bar.position() + 1, bar.length().unwrap_or(0));
                }
                bar.set_message(what.clone());
                bar.tick();
                let measured = machines.run(load, contender).inspect_err(|_| bar.finish_and_clear())?;
                if let Some(other) = compared.runs.values().flatten().next()
                    && other.result() != measured.result()
                {
                    bar.finish_and_clear();
                    return Err(Failure::tool(format!(
                        "the results differ: {} of {what}, {} before: please report this as a bug, with the output of `larder doctor`",
                        measured.result(),
                        other.result()
                    )));
                }
                compared.runs.entry(contender.name()).or_default().push(measured);
                bar.inc(1);
            }
        }
        longest = longest.max(began.elapsed());
    }
    bar.finish_and_clear();
    Ok(all)
}

/// Operations in a second.
fn rate(run: &Measured) -> f64 {
    run.printed("operations") / run.printed("seconds")
}

/// Operations in a second of processor time, the collectors' and the compilers' included.
fn cpu_rate(run: &Measured) -> f64 {
    run.printed("operations") / run.printed("cpu_s")
}

/// Milliseconds in which collections stopped the program, for each GiB that it allocated.
fn pause_per_gib(run: &Measured) -> f64 {
    run.collections.pause_ms / (run.printed("allocated_mib") / 1024.0)
}

fn longest_young(run: &Measured) -> f64 {
    run.collections.longest_young_ms
}

/// The experiment, with one of the programs or all.
pub fn hotspot(size: Size, only: Option<&str>) -> Result<Report, Failure> {
    let machines = Machines::new()?;
    let mut loads = loads(size);
    loads.retain(|load| only.is_none_or(|only| load.program == only));
    let example = runs::java_options(&loads[0], Contender::Parallel).join(" ");
    let warm = loads[0].warm;
    let all = measure(&machines, loads, size.of(1, 3, 5))?;

    let mut report = Report::new("The moving heap against HotSpot");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    report.say(&format!(
        "{}; {cpus} CPUs. The same programs in C on Larder's moving heap (compiled with -O2) and in Java, with the same checksums. Medians of \
         interleaved rounds. Java runs everything {} before the run that is measured, in the same process.",
        machines.java_version(),
        if warm == 1 { "once".to_owned() } else { format!("{warm} times") }
    ));
    report.say(&format!(
        "HotSpot's options: {example} (G1: -XX:+UseG1GC in the place of the first two). Larder's heap has the same young and old size, promotes \
         at the same age, and has at most as many collectors; its other settings are the defaults."
    ));
    report.say(
        "Pauses are from the request of the stop to the resume: HotSpot's as its safepoint log has them. Both count what they stopped for, \
         not what ran beside the program (G1's concurrent cycles are in the JSON). Peak memory includes the virtual machine and its compilers.",
    );
    report.put("java", json!(machines.java_version()));
    report.put("cpus", json!(cpus));
    report.put("loads", Value::Array(all.iter().map(Compared::json).collect()));

    summary(&mut report, &all);
    for program in PROGRAMS {
        let of: Vec<&Compared> = all.iter().filter(|compared| compared.load.program == program).collect();
        section(&mut report, program, &of);
    }
    Ok(report)
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Ours over the parallel collector's.
fn summary(report: &mut Report, all: &[Compared]) {
    report.heading("Larder against ParallelGC");
    let head = ["workload", "threads", "speed", "speed by CPU time", "collection time per GiB", "longest young pause"];
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|compared| {
            let ratio = |figure: fn(&Measured) -> f64| {
                let theirs = compared.median(Contender::Parallel, figure);
                shown(if theirs > 0.0 { compared.median(Contender::Larder, figure) / theirs } else { f64::NAN })
            };
            let mut row = vec![compared.load.program.to_owned(), compared.load.threads.to_string()];
            row.extend([rate, cpu_rate, pause_per_gib, longest_young].map(ratio));
            row
        })
        .collect();
    report.table(&strings(&head), &rows);
    report.say("Ratios of medians. Speed: more is better for Larder; the other two: less is.");
}

fn section(report: &mut Report, program: &str, all: &[&Compared]) {
    let Some(first) = all.first() else { return };
    report.heading(program);
    report.say(&format!(
        "{} MiB young, {} MiB old; arguments {}{}.",
        first.load.young_mib,
        first.load.old_mib,
        first.load.sizes.join(" "),
        if all.iter().any(|other| other.load.sizes != first.load.sizes) {
            " with the least threads, the same work in all with more"
        } else {
            ""
        }
    ));
    let head = [
        "threads",
        "heap",
        "1000 operations/s",
        "by CPU time",
        "allocated MiB",
        "young",
        "full",
        "pauses ms/GiB",
        "without stopping",
        "mean young ms",
        "longest young ms",
        "longest ms",
        "peak MiB",
    ];
    let mut rows = Vec::new();
    for compared in all {
        for contender in Contender::ALL {
            let figure = |figure: &dyn Fn(&Measured) -> f64| shown(compared.median(contender, figure));
            rows.push(vec![
                compared.load.threads.to_string(),
                contender.name().to_owned(),
                figure(&|run| rate(run) / 1e3),
                figure(&|run| cpu_rate(run) / 1e3),
                figure(&|run| run.printed("allocated_mib")),
                figure(&|run| run.collections.young as f64),
                figure(&|run| run.collections.full as f64),
                figure(&pause_per_gib),
                figure(&|run| run.collections.work_ms / (run.printed("allocated_mib") / 1024.0)),
                figure(&|run| run.collections.young_pause_ms / run.collections.young as f64),
                figure(&longest_young),
                figure(&|run| run.collections.longest_ms),
                figure(&|run| run.printed("peak_mib")),
            ]);
        }
    }
    report.table(&strings(&head), &rows);
    let charts = [
        ("speed", "million operations/s", 1e-6, rate as fn(&Measured) -> f64),
        ("collection time", "ms per GiB allocated", 1.0, pause_per_gib),
        ("longest young pause", "ms", 1.0, longest_young),
    ];
    for (what, unit, scale, figure) in charts {
        let line = |contender: Contender| Series {
            name: contender.name().to_owned(),
            points: all
                .iter()
                .map(|compared| (compared.load.threads as f64, scale * compared.median(contender, figure)))
                .filter(|point| point.1.is_finite())
                .collect(),
        };
        report.chart(&Chart {
            title: format!("{program}: {what}"),
            x: "threads".to_owned(),
            y: unit.to_owned(),
            series: Contender::ALL.map(line).into(),
            bars: Vec::new(),
            axis: Axis::Linear,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_loads_of_every_size_and_chat_two_hundred_to_a_thousand_threads() {
        for size in [Size::Quick, Size::Scaled, Size::Full] {
            let all = loads(size);
            for program in PROGRAMS {
                assert!(all.iter().any(|load| load.program == program), "{size:?}, {program}");
            }
            assert!(all.iter().all(|load| PROGRAMS.contains(&load.program) && load.threads <= 1000), "{size:?}");
        }
        let threads: Vec<usize> =
            loads(Size::Scaled).iter().filter(|load| load.program == "chat").map(|load| load.threads).collect();
        assert_eq!(threads, [200, 400, 1000]);
    }
}
