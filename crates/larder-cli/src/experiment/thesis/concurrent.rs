//! Chapter 5: cycles beside the program. Figure 5.2, tables 5.1 and 5.2; every way of watching writes; and what a client waits for.
//!
//! The thesis's versions are ours with these settings:
//!
//! | thesis | here |
//! |---|---|
//! | Stop: the parallel collector of chapter 3 | cycles that stop the program |
//! | Stop-Soft: the same, in programs that pay for a software barrier | the same, in the programs' `-soft` form, which calls at each pointer it stores |
//! | Conc-VM: pages are protected; what was written is scanned in the finalize phase; objects are born unmarked | `mprotect`, without cleaning, born unmarked |
//! | Conc-Soft: the same with a software barrier, by page | `barrier` (cards of 256 bytes), without cleaning, born unmarked, in the `-soft` form |
//!
//! The pause in the thesis's tables is that of the finalize phase: our final stop. The stop at a cycle's beginning has a column of its own.

use larder_sys::watch::Kind;
use serde_json::{Value, json};

use super::super::html::{Axis, Series as Line, shown};
use super::super::measure::{Bench, Case, Measured, Series};
use super::super::{Report, Size};
use super::{
    chart, chart_on, find, head, lines, machine, numbers as thesis, oversubscribed, relative, rounds, row, strings,
    table_of,
};
use crate::exit::Failure;
use crate::follow::{ProcessSummary, Times};

/// A way to collect.
struct Version {
    name: &'static str,
    /// Of the stock library.
    stock: bool,
    /// The program has to call a barrier.
    barrier: bool,
    environment: Vec<(&'static str, &'static str)>,
    /// What it needs from the machine.
    needs: Option<Kind>,
}

const CONCURRENT: &str = "LARDER_CONCURRENT";

impl Version {
    fn stop(name: &'static str) -> Self {
        Self { name, stock: false, barrier: false, environment: vec![(CONCURRENT, "0")], needs: None }
    }

    fn watching(name: &'static str, kind: Kind) -> Self {
        let environment = vec![(CONCURRENT, "1"), ("LARDER_WATCH", kind.name())];
        Self { needs: Some(kind), environment, ..Self::stop(name) }
    }

    /// `way`: as LARDER_WATCH names it.
    fn software(name: &'static str, way: &'static str) -> Self {
        let environment = vec![(CONCURRENT, "1"), ("LARDER_WATCH", way)];
        Self { barrier: true, environment, ..Self::stop(name) }
    }

    fn stock(name: &'static str, environment: Vec<(&'static str, &'static str)>) -> Self {
        Self { stock: true, environment, ..Self::stop(name) }
    }

    fn with(mut self, variable: &'static str, value: &'static str) -> Self {
        self.environment.push((variable, value));
        self
    }

    fn like_the_thesis(self) -> Self {
        self.with("LARDER_BORN", "unmarked").with("LARDER_ABLATE", "clean")
    }

    fn soft(self) -> Self {
        Self { barrier: true, ..self }
    }

    fn case(&self, program: &'static str, arguments: Vec<String>, at: usize, beside: &[(&'static str, &str)]) -> Case {
        let environment = self.environment.iter().chain(beside).map(|&(name, value)| (name, value.to_owned()));
        Case {
            program,
            arguments,
            version: self.name.to_owned(),
            at,
            stock: self.stock,
            barrier: self.barrier,
            environment: environment.collect(),
        }
    }
}

/// Those of figure 5.2.
fn of_thesis() -> Vec<Version> {
    vec![
        Version::stop("Stop"),
        Version::stop("Stop-Soft").soft(),
        Version::watching("Conc-VM", Kind::Mprotect).like_the_thesis(),
        Version::software("Conc-Soft", "barrier").like_the_thesis(),
    ]
}

/// Larder's own default.
fn uffd() -> Version {
    Version::watching("uffd", Kind::Uffd)
}

/// Every other way; each changes one thing.
fn ways() -> Vec<Version> {
    vec![
        uffd().with("LARDER_ABLATE", "clean").named("uffd, no cleaning"),
        uffd().with("LARDER_BORN", "marked").named("uffd, born marked"),
        uffd().with("LARDER_BORN", "unmarked").named("uffd, born unmarked"),
        Version::watching("soft-dirty", Kind::SoftDirty),
        Version::watching("mprotect", Kind::Mprotect),
        Version::software("barrier", "barrier"),
        Version::software("snapshot", "snapshot"),
    ]
}

impl Version {
    fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }
}

/// In the report, and at once on standard error.
fn say_loudly(report: &mut Report, text: &str) {
    note!("{text}");
    report.say(text);
}

/// Leaves out what this machine does not offer, and says so.
fn offered(report: &mut Report, versions: Vec<Version>) -> Vec<Version> {
    let (offered, missing): (Vec<_>, Vec<_>) =
        versions.into_iter().partition(|version| version.needs.is_none_or(Kind::is_offered));
    for version in missing {
        say_loudly(report, &format!("SKIPPED {}: this machine does not offer it (see larder doctor)", version.name));
    }
    offered
}

const APPS: [&str; 3] = ["bh-pt", "cky", "cube"];
/// A cycle after less allocation than by default, as in the thesis, whose heap of 50 MB had 35 MB alive.
const DIVISOR: &str = "8";

fn milliseconds(run: &Measured, figure: impl Fn(&ProcessSummary) -> f64) -> f64 {
    run.heap().map_or(f64::NAN, |heap| figure(heap) / 1e6)
}

fn mean_ms(run: &Measured) -> f64 {
    milliseconds(run, |heap| mean(&heap.last_stops))
}

fn longest_ms(run: &Measured) -> f64 {
    milliseconds(run, |heap| longest(&heap.last_stops))
}

fn mean(times: &Times) -> f64 {
    if times.is_empty() { f64::NAN } else { times.mean().0 as f64 }
}

fn longest(times: &Times) -> f64 {
    if times.is_empty() { f64::NAN } else { times.longest().0 as f64 }
}

/// Chapter 5, and the latencies of a server.
pub fn chapter_5(bench: &Bench, size: Size) -> Result<Report, Failure> {
    let mut report = Report::new("Endo's thesis, chapter 5: a concurrent parallel garbage collector");
    machine(&mut report, size);
    report.say(
        "Stop: cycles stop the program. Stop-Soft: the same, and the program calls a barrier at each pointer that it stores (its -soft form). Conc-VM: marking beside the program, \
         pages are watched by mprotect, written ones are scanned in the final stop, objects are born unmarked. Conc-Soft: the same with the software barrier. \
         The others are Larder's: uffd is its default, with written memory cleaned beside the program and objects born marked when it has traced; the rest differ from it as their names say.",
    );
    programs(bench, size, &mut report)?;
    latency(bench, size, &mut report)?;
    Ok(report)
}

/// Figure 5.2, tables 5.1 and 5.2, and the same for every way.
fn programs(bench: &Bench, size: Size, report: &mut Report) -> Result<(), Failure> {
    let threads: Vec<usize> = size.of(vec![1, 3], vec![1, 2, 8, 16, 32, 48, 60], vec![1, 2, 8, 16, 32, 48, 60]);
    let few: Vec<usize> = size.of(vec![3], vec![2, 60], vec![2, 8, 60]);
    let sizes = |program: &str| match program {
        "cky" => size.of(vec!["20", "36", "60"], vec!["60", "36", "80"], vec!["200", "36", "100"]),
        "cube" => size.of(vec!["3", "20", "2"], vec!["3", "20", "5"], vec!["3", "20", "10"]),
        _ => size.of(vec!["8000", "16"], vec!["15000", "24"], vec!["100000", "30"]),
    };
    let (everywhere, sometimes) =
        (offered(report, of_thesis().into_iter().chain([uffd()]).collect()), offered(report, ways()));
    let mut cases = Vec::new();
    for program in APPS {
        for (versions, at) in [(&everywhere, &threads), (&sometimes, &few)] {
            for &at in at {
                let arguments: Vec<String> =
                    [at.to_string(), "thesis".to_owned()].into_iter().chain(strings(sizes(program))).collect();
                let beside = [("GC_FREE_SPACE_DIVISOR", DIVISOR)];
                cases.extend(versions.iter().map(|v| v.case(program, arguments.clone(), at, &beside)));
            }
        }
    }
    let all = bench.run_all(cases, size.of(1, 3, 3), |case| case.program.to_owned())?;
    report.put("runs", Value::Array(all.iter().map(Series::json).collect()));
    rounds(report, "The programs", &all);

    report.heading("Figure 5.2: time of the programs; 1 is Stop");
    report.say(thesis::FIGURE_5_2);
    oversubscribed(
        report,
        &threads,
        "no CPU is idle, so the time for marking beside the program is the program's: no version can gain by it.",
    );
    let seconds = |run: &Measured| run.printed("time_s");
    for program in APPS {
        let mut times = lines(&all, program, &threads, &seconds);
        times.retain(|line| everywhere.iter().any(|version| version.name == line.name));
        let stop: Vec<f64> = times.iter().take(1).flat_map(|line| line.points.iter().map(|p| p.1)).collect();
        let normal = relative(times, "Stop");
        report
            .say(&format!("{program}; Stop took {} s:", stop.iter().map(|s| shown(*s)).collect::<Vec<_>>().join(", ")));
        table_of(report, "threads", &threads, &normal);
        chart(report, &format!("Figure 5.2, {program}"), "threads", "times Stop", normal);
    }

    report.heading("Tables 5.1 and 5.2: average and longest pause, ms");
    report.say(
        "Of a cycle beside the program: its final stop, as in the thesis, from the request until the program goes on. The longest is the median of the rounds' longest. E10K: Enterprise \
         10000, table 5.1; O2K: Origin 2000, table 5.2, whose last number of threads is 64.",
    );
    oversubscribed(
        report,
        &threads,
        "pauses include the wait until the threads that are to stop, and the markers, have had their turn on a CPU. The longest there are such waits for the most part.",
    );
    for program in APPS {
        report.say(&format!("{program}:"));
        let of = |figure: &dyn Fn(&Measured) -> f64| {
            let mut pauses = lines(&all, program, &threads, figure);
            pauses.retain(|line| everywhere.iter().any(|version| version.name == line.name));
            pauses
        };
        let (means, longests) = (of(&mean_ms), of(&longest_ms));
        let mut rows = Vec::new();
        for (mean, longest) in means.iter().zip(&longests) {
            for (what, line) in [("avg.", mean), ("max.", longest)] {
                rows.push(row(&format!("{} {what}", line.name), line.points.iter().map(|p| p.1)));
            }
        }
        for theirs in thesis::PAUSES.iter().filter(|pauses| pauses.program == program) {
            for (version, numbers) in [("Stop", theirs.stop), ("Conc-VM", theirs.conc_vm)] {
                for (what, numbers) in ["avg.", "max."].iter().zip(numbers) {
                    let at = |at: &usize| thesis::THREADS_5.iter().position(|t| t == at);
                    let cells = threads.iter().map(|t| at(t).map_or(f64::NAN, |i| f64::from(numbers[i])));
                    rows.push(row(&format!("*{version} {what}, {}, thesis", theirs.machine), cells));
                }
            }
        }
        report.table(&head("threads", &threads), &rows);
        for (what, pauses) in [("average", means), ("longest", longests)] {
            chart_on(report, &format!("{program}, {what} pause"), ["threads", "ms"], Axis::Logarithmic, pauses);
        }
    }

    report.heading("Every way of watching writes");
    report.say(
        "living: the most that a cycle left, floating garbage included. first: the stop at a cycle's beginning. last: its final stop. cut short: cycles that the program overtook. cleaned, left: written pages of 4 KiB that a cycle scanned again \
         beside the program, and in its final stop. time and CPU: of the whole program, compared with Stop.",
    );
    let columns = [
        "",
        "time",
        "CPU",
        "peak MiB",
        "living, MB",
        "cycles",
        "cut short",
        "first, avg. ms",
        "first, max.",
        "last, avg. ms",
        "last, max.",
        "cleaned",
        "left",
    ];
    for program in APPS {
        for &at in &few {
            report.say(&format!("{program}, {at} threads:"));
            let stop =
                |key: &str| find(&all, program, "Stop", at).map_or(f64::NAN, |s| s.median(|run| run.printed(key)));
            let (stop_s, stop_cpu) = (stop("time_s"), stop("cpu_s"));
            let rows: Vec<Vec<String>> = everywhere
                .iter()
                .chain(&sometimes)
                .filter_map(|version| find(&all, program, version.name, at))
                .map(|series| {
                    let heap = |figure: &dyn Fn(&ProcessSummary) -> f64| {
                        series.median(|run| run.heap().map_or(f64::NAN, figure))
                    };
                    let each = |pages: u64, heap: &ProcessSummary| {
                        if heap.concurrent == 0 { f64::NAN } else { pages as f64 / heap.concurrent as f64 }
                    };
                    row(
                        &series.case.version,
                        [
                            series.median(|run| run.printed("time_s")) / stop_s,
                            series.median(|run| run.printed("cpu_s")) / stop_cpu,
                            series.median(|run| run.printed("rss_mb")),
                            heap(&|heap| heap.most_live.0 as f64 / 1e6),
                            heap(&|heap| heap.cycles as f64),
                            heap(&|heap| heap.cut_short as f64),
                            heap(&|heap| mean(&heap.first_stops) / 1e6),
                            heap(&|heap| longest(&heap.first_stops) / 1e6),
                            series.median(mean_ms),
                            series.median(longest_ms),
                            heap(&|heap| each(heap.pages_cleaned, heap)),
                            heap(&|heap| each(heap.pages_left, heap)),
                        ],
                    )
                })
                .collect();
            report.table(&strings(columns), &rows);
        }
    }
    Ok(())
}

/// Mebibytes that programs can have now.
fn available_mib() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: usize = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(usize::MAX);
    kib / 1024
}

/// What clients of a server wait for, on every version and on the stock library in both of its modes.
fn latency(bench: &Bench, size: Size, report: &mut Report) -> Result<(), Failure> {
    report.heading("What a client waits for");
    report.say(&format!(
        "cache, a server: threads look entries up and make replies, some requests replace an entry. Requests come on a schedule. Simple: from when the work on a request began until it \
         was done. Metered: from when it was due; a late request delays those behind it. Both libraries with GC_FREE_SPACE_DIVISOR={LATENCY_DIVISOR}, so that collections come in \
         the measured time; the program calls the barrier in every version. Pauses: between the events around a stop, in the measured time; of Larder's cycles beside the program that is the \
         final stop."
    ));
    let mut versions = Vec::new();
    if bench.has_stock() {
        versions.push(Version::stock("stock, stopped", Vec::new()));
        versions.push(Version::stock("stock, incremental", vec![("GC_ENABLE_INCREMENTAL", "1")]));
    } else {
        say_loudly(report, "SKIPPED the stock library: none is installed (Debian: apt install libgc1)");
    }
    versions.extend([Version::stop("Larder, stopped"), uffd()]);
    versions.extend(ways());
    let versions = offered(report, versions);
    // The stock library's incremental mode fails where a heap has more changes between watched and other pages than the kernel allows mappings; so
    // there is a smaller size, too.
    let wanted = size.of(vec![16], vec![128, 1024], vec![128, 1024]);
    let (seconds, rate, puts) = size.of(("1", "4000", "10"), ("5", "8000", "5"), ("30", "8000", "5"));
    // A heap beside what is alive, and a library that needs more than ours.
    let most = (available_mib() / 4).max(1);
    let mut cases = Vec::new();
    for mib in wanted.iter().map(|mib| (*mib).min(most)) {
        let arguments = strings([&SERVERS.to_string(), &mib.to_string(), seconds, rate, puts]);
        let beside = [("GC_FREE_SPACE_DIVISOR", LATENCY_DIVISOR)];
        // The cache has no form without the barrier's calls.
        let case =
            |version: &Version| Case { barrier: false, ..version.case("cache", arguments.clone(), mib, &beside) };
        cases.extend(versions.iter().map(case));
    }
    if wanted.iter().any(|mib| *mib > most) {
        say_loudly(report, &format!("The cache has at most {most} MiB: no more memory is available."));
    }
    let all = bench.run_all(cases, size.of(1, 3, 3), |_| "cache".to_owned())?;
    report.put("latency", Value::Array(all.iter().map(Series::json).collect()));
    rounds(report, "The server", &all);
    let mut sizes: Vec<usize> = all.iter().map(|series| series.case.at).collect();
    sizes.dedup();
    let mut ratios = serde_json::Map::new();
    for mib in sizes {
        report.say(&format!(
            "{mib} MiB of entries, {SERVERS} threads, {rate} requests a second each for {seconds} s, of which {puts} % replace an entry:"
        ));
        let of_size: Vec<&Series> = all.iter().filter(|series| series.case.at == mib).collect();
        if let Some(ratio) = latency_of(report, &of_size, mib) {
            ratios.insert(mib.to_string(), json!(ratio));
        }
    }
    report.put("metered_p999_uffd_over_stock", Value::Object(ratios));
    Ok(())
}

/// Parts of the requests: as the program names them, as tables do, and in per cent.
const PARTS: [(&str, &str, f64); 4] =
    [("p50", "50 %", 50.0), ("p99", "99 %", 99.0), ("p999", "99.9 %", 99.9), ("max", "longest", 100.0)];

/// One size's tables and figures. Returns how long the unlucky requests took with `uffd`, compared with the better one of the stock
/// library's modes.
fn latency_of(report: &mut Report, all: &[&Series], mib: usize) -> Option<f64> {
    for series in all {
        if let Some(failure) = &series.failure {
            report.say(&format!("{}: {failure}", series.case.version));
        }
    }
    let of =
        |series: &Series, kind: &str, part: &str| series.median(|run| run.printed(&format!("{kind}_{part}_us")) / 1e3);
    let mut rows = Vec::new();
    for series in all {
        let latencies = ["simple", "metered"].iter().flat_map(|kind| PARTS.map(|(part, ..)| of(series, kind, part)));
        let other = ["pauses", "pause_max_ms", "cpu_s", "rss_mb"].map(|key| series.median(|run| run.printed(key)));
        rows.push(row(&series.case.version, latencies.chain(other)));
    }
    let columns = [
        "ms",
        "simple: 50 %",
        "99 %",
        "99.9 %",
        "longest",
        "metered: 50 %",
        "99 %",
        "99.9 %",
        "longest",
        "pauses: number",
        "longest",
        "CPU s, with filling",
        "peak MiB",
    ];
    report.table(&strings(columns), &rows);
    for kind in ["simple", "metered"] {
        let curve = |series: &&Series| Line {
            name: series.case.version.clone(),
            points: PARTS.iter().map(|(part, _, x)| (*x, of(series, kind, part))).collect(),
        };
        let curves = all.iter().map(curve).collect();
        chart_on(
            report,
            &format!("{kind} latency, {mib} MiB"),
            ["per cent of the requests", "ms"],
            Axis::Logarithmic,
            curves,
        );
    }
    let metered = |version: &str| {
        let series = all.iter().find(|series| series.case.version == version)?;
        Some(of(series, "metered", "p999")).filter(|ms| ms.is_finite())
    };
    let stock = ["stock, stopped", "stock, incremental"].into_iter().filter_map(metered).reduce(f64::min)?;
    let ratio = metered("uffd")? / stock;
    report.say(&format!("Metered, 99.9 %: uffd takes {} of the stock library's better mode.", shown(ratio)));
    Some(ratio)
}

/// Threads that answer requests.
const SERVERS: usize = 2;
/// Collections come after about an eighth of what is alive was allocated, on both libraries.
const LATENCY_DIVISOR: &str = "16";
