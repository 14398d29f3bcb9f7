//! The experiments of Endo's thesis (2001), chapters 2 and 3, on this machine.
//!
//! An owner of blocks is a thread, as in the thesis. Its machines had 64 to 80 processors; with more threads than CPUs here the threads take
//! turns, which the report says of each figure.

use larder_events::Counter;
use serde_json::{Value, json};

use super::html::{Chart, Series as Line, shown};
use super::measure::{Bench, Case, Measured, Series};
use super::{Report, Size, thesis_numbers as thesis};
use crate::exit::Failure;

/// Mebibytes in a block.
const BLOCK_MIB: f64 = 1.0 / 64.0;

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn strings<T: ToString>(values: impl IntoIterator<Item = T>) -> Vec<String> {
    values.into_iter().map(|value| value.to_string()).collect()
}

/// A row: its name, then numbers.
fn row(name: &str, values: impl IntoIterator<Item = f64>) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(values.into_iter().map(shown)).collect()
}

fn head(first: &str, numbers: &[usize]) -> Vec<String> {
    std::iter::once(first.to_owned()).chain(strings(numbers)).collect()
}

/// The versions in the order in which they first come.
fn versions(all: &[Series], program: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for series in all.iter().filter(|series| series.case.program == program) {
        if !found.contains(&series.case.version) {
            found.push(series.case.version.clone());
        }
    }
    found
}

fn find<'a>(all: &'a [Series], program: &str, version: &str, at: usize) -> Option<&'a Series> {
    all.iter().find(|s| s.case.program == program && s.case.version == version && s.case.at == at)
}

/// A line for each version of a program: a figure over the numbers of threads.
fn lines(all: &[Series], program: &str, at: &[usize], figure: &dyn Fn(&Measured) -> f64) -> Vec<Line> {
    versions(all, program)
        .into_iter()
        .map(|name| {
            let point = |&at: &usize| Some((at as f64, find(all, program, &name, at)?.median(figure)));
            Line { points: at.iter().filter_map(point).collect(), name }
        })
        .filter(|line| line.points.iter().any(|p| p.1.is_finite()))
        .collect()
}

fn chart(report: &mut Report, title: &str, x: &str, y: &str, series: Vec<Line>) {
    report.chart(&Chart { title: title.into(), x: x.into(), y: y.into(), series, bars: Vec::new() });
}

fn table_of(report: &mut Report, first: &str, at: &[usize], lines: &[Line]) {
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            row(
                &line.name,
                at.iter().map(|&at| line.points.iter().find(|p| p.0 == at as f64).map_or(f64::NAN, |p| p.1)),
            )
        })
        .collect();
    report.table(&head(first, at), &rows);
}

fn machine(report: &mut Report, size: Size) {
    let cpus = cpus();
    report.say(&format!(
        "This machine: {cpus} CPUs; sizes: {}. Medians of interleaved rounds. With more than {cpus} threads the threads take turns on the CPUs: then \
         \"speed-up\" ends at {cpus}, and what such rows show is what many threads cost.",
        size.of("the smallest, to see that it runs", "scaled to this machine", "the thesis's")
    ));
    report.put("cpus", json!(cpus));
}

fn remote_ratio(run: &Measured) -> f64 {
    let (local, remote) = (run.counter(Counter::LocalBlocks), run.counter(Counter::RemoteBlocks));
    if local + remote > 0.0 { remote / (local + remote) } else { 0.0 }
}

fn consumed_mib(run: &Measured) -> f64 {
    run.counter(Counter::OwnedMostConsumedBlocks) * BLOCK_MIB
}

/// Seconds without collections.
fn user_s(run: &Measured) -> f64 {
    run.printed("time_s") - run.printed("gc_ms") / 1e3
}

fn shared(version: &str, setting: &str) -> (String, Vec<(&'static str, String)>) {
    (version.to_owned(), vec![("LARDER_SHARING", setting.to_owned()), ("LARDER_OWNERS", "thread".to_owned())])
}

/// Chapter 2: table 2.1 and figures 2.4 to 2.8, table 2.2.
pub fn chapter_2(bench: &Bench, size: Size) -> Result<Report, Failure> {
    let mut report = Report::new("Endo's thesis, chapter 2: a scalable parallel allocator");
    machine(&mut report, size);
    let four = || {
        vec![
            shared("PS", "page-shared"),
            shared("LPS(k=1)", "lps:1"),
            shared("LPS(k=1.5)", "lps:1.5"),
            shared("AL", "all-local"),
        ]
    };
    let threads: Vec<usize> = size.of(vec![1, 4], thesis::THREADS.to_vec(), thesis::THREADS.to_vec());
    let mut cases = Vec::new();

    // 2.4.1. Every thread does the same work; with more threads fewer rounds, but for the full size.
    for &at in &threads {
        let rounds = size.of(2, (60 / at).clamp(2, 30), 30);
        let objects: usize = size.of(5_000, 100_000, 100_000);
        let work = strings([at, objects, rounds]);
        let arguments = |library: &str| {
            vec![work[0].clone(), "thesis".into(), work[1].clone(), work[2].clone(), library.to_owned()]
        };
        let case = |version: &str, environment, stock, library| Case {
            program: "throughput",
            arguments: arguments(library),
            version: version.to_owned(),
            at,
            stock,
            environment,
        };
        cases.extend(four().into_iter().map(|(version, environment)| case(&version, environment, false, "gc")));
        cases.push(case("all-shared (default)", Vec::new(), false, "gc"));
        cases.push(case("libc", Vec::new(), false, "malloc"));
        if bench.has_stock() {
            cases.push(case("stock libgc", Vec::new(), true, "gc"));
        }
    }
    // 2.4.2.
    let unfair_threads: Vec<usize> = size.of(vec![1, 4], vec![1, 4, 16, 32, 64], vec![1, 8, 16, 24, 32, 48, 64]);
    for &at in &unfair_threads {
        let mut settings = four();
        settings.splice(3..3, [shared("LPS(k=2)", "lps:2"), shared("LPS(k=4)", "lps:4")]);
        cases.extend(settings.into_iter().map(|(version, environment)| Case {
            program: "unfair",
            arguments: strings([
                at.to_string().as_str(),
                "thesis",
                size.of("512", "5120", "5120"),
                size.of("2", "4", "4"),
                "free",
            ]),
            version,
            at,
            stock: false,
            environment,
        }));
    }
    // 2.4.3.
    let app_threads: Vec<usize> = size.of(vec![2], vec![1, 2, 8, 64], vec![1, 8, 16, 24, 32, 48, 64]);
    const APPS: [&str; 3] = ["matmul", "bh-pt", "cky"];
    let sizes = |program: &str| match program {
        "matmul" => size.of(vec!["100", "3"], vec!["400", "10"], vec!["1000", "30"]),
        "cky" => size.of(vec!["2", "20", "30"], vec!["40", "36", "80"], vec!["200", "36", "100"]),
        _ => size.of(vec!["1000", "2"], vec!["15000", "8"], vec!["100000", "30"]),
    };
    for program in APPS {
        for &at in &app_threads {
            cases.extend(four().into_iter().map(|(version, environment)| Case {
                program,
                arguments: [at.to_string(), "thesis".to_owned()].into_iter().chain(strings(sizes(program))).collect(),
                version,
                at,
                stock: false,
                environment,
            }));
        }
    }
    // The sum of throughput depends on nothing but the objects, that of the others not on threads.
    let all = bench.run_all(cases, size.of(1, 3, 3), |case| {
        if case.program == "throughput" {
            format!("throughput {:?}", &case.arguments[2..4])
        } else {
            case.program.to_owned()
        }
    })?;
    report.put("runs", Value::Array(all.iter().map(Series::json).collect()));

    report.heading("Table 2.1 and figure 2.4: throughput, million allocations of 16 bytes a second by all threads");
    let throughput = lines(&all, "throughput", &threads, &|run| run.printed("mallocs_per_s") / 1e6);
    table_of(&mut report, "threads", &threads, &throughput);
    let exactly = |(name, values): &(&str, [f64; 7])| {
        std::iter::once(format!("*{name}, thesis")).chain(values.iter().map(|value| format!("{value:.2}"))).collect()
    };
    let theirs: Vec<Vec<String>> = thesis::THROUGHPUT.iter().map(exactly).collect();
    report.table(&head("threads (Origin 2000)", &thesis::THREADS), &theirs);
    chart(&mut report, "Figure 2.4", "threads", "million allocations/s", throughput);
    let theirs = thesis::THROUGHPUT.iter().map(|(name, values)| Line {
        name: (*name).to_owned(),
        points: thesis::THREADS.iter().map(|&t| t as f64).zip(*values).collect(),
    });
    chart(&mut report, "Figure 2.4, the thesis's", "threads", "million allocations/s", theirs.collect());

    report.heading("Figure 2.5: the unfair benchmark, memory in MiB and remote block ratio");
    report.say(thesis::FIGURE_2_5);
    let (memory, remote) =
        (lines(&all, "unfair", &unfair_threads, &consumed_mib), lines(&all, "unfair", &unfair_threads, &remote_ratio));
    report.say("Most memory of blocks, MiB:");
    table_of(&mut report, "threads", &unfair_threads, &memory);
    report.say("Remote blocks among those that were taken from free lists:");
    table_of(&mut report, "threads", &unfair_threads, &remote);
    chart(&mut report, "Figure 2.5, memory", "threads", "MiB", memory);
    chart(&mut report, "Figure 2.5, locality", "threads", "remote block ratio", remote);

    report.heading("Table 2.2: behaviour of the programs");
    let most = app_threads[app_threads.len() - 1];
    let columns = ["", "allocated, MB", "allocations", "time without collections, s", "allocations/s"];
    let mut rows = Vec::new();
    for (program, theirs) in thesis::BEHAVIOUR {
        if let Some(series) = find(&all, program, "LPS(k=1)", most) {
            let time = series.median(user_s);
            // Rows of three matrices and two vectors, and two matrices' rows for each product.
            let objects = match program {
                "matmul" => series.median(|run| (2.0 * run.printed("products") + 3.0) * run.printed("n") + 5.0),
                _ => series.median(|run| run.printed("objects")),
            };
            let allocated = series.median(|run| run.counter(Counter::AllocatedBytes) / 1e6);
            rows.push(row(&format!("{program}, {most} threads"), [allocated, objects, time, objects / time]));
        }
        rows.push([format!("*{program}, thesis")].into_iter().chain(strings(theirs)).collect());
    }
    report.table(&strings(columns), &rows);

    for (figure, (program, said)) in ["2.6", "2.7", "2.8"].iter().zip(thesis::FIGURES_2_6_TO_2_8) {
        report.heading(&format!("Figure {figure}: {program}"));
        report.say(said);
        let parts: [(&str, &str, Vec<Line>); 4] = [
            ("memory", "MiB", lines(&all, program, &app_threads, &consumed_mib)),
            ("remote blocks", "remote block ratio", lines(&all, program, &app_threads, &remote_ratio)),
            ("time without collections", "s", lines(&all, program, &app_threads, &user_s)),
            ("time compared with PS", "times PS", relative(lines(&all, program, &app_threads, &user_s), "PS")),
        ];
        for (what, unit, lines) in parts {
            report.say(&format!("{what}, {unit}:"));
            table_of(&mut report, "threads", &app_threads, &lines);
            chart(&mut report, &format!("Figure {figure}, {what}"), "threads", unit, lines);
        }
    }
    Ok(report)
}

/// Every line divided by one of them.
fn relative(lines: Vec<Line>, to: &str) -> Vec<Line> {
    let Some(base) = lines.iter().find(|line| line.name == to).map(|line| line.points.clone()) else { return lines };
    let divided = |line: Line| Line {
        points: line.points.iter().zip(&base).map(|(p, b)| (p.0, p.1 / b.1)).collect(),
        name: line.name,
    };
    lines.into_iter().map(divided).collect()
}

/// The thesis's versions of the collector (table 3.2), and those that only Larder has.
const VERSIONS: [(&str, &str); 9] = [
    ("Opt", ""),
    ("Simple", "balance,"),
    ("No-Opt", "slo,nsb,bmb,"),
    ("No-SLO", "slo,"),
    ("No-NSB", "nsb,"),
    ("No-BMB", "bmb,"),
    ("No-prefetch", "prefetch,"),
    ("No-deque", "deque,"),
    ("No-lazy-sweep", "lazy-sweep,"),
];

/// Most markers that a cycle can have.
const MOST_MARKERS: usize = 16;

/// Bytes marked in a second, in gigabytes.
fn speed(run: &Measured) -> f64 {
    run.heap().filter(|heap| heap.marking.0 > 0).map_or(f64::NAN, |heap| heap.marked.0 as f64 / heap.marking.0 as f64)
}

/// Chapter 3: table 3.1 and figures 3.5 to 3.10; and marking alone, as a fraction of what the memory gives.
pub fn chapter_3(bench: &Bench, size: Size) -> Result<Report, Failure> {
    let mut report = Report::new("Endo's thesis, chapter 3: a scalable parallel garbage collector");
    machine(&mut report, size);
    report.say(
        "Each program has as many markers as threads, up to 16, whatever the size of its heap. Cycles come after equal amounts of allocation in every version, \
         so that all versions mark the same.",
    );
    let threads: Vec<usize> = size.of(vec![1, 2], vec![1, 2, 4, 16], vec![1, 2, 4, 8, 16, 32, 64]);
    const APPS: [&str; 4] = ["bh-pt", "bh-st", "cky", "cube"];
    // Sizes, and refills of buffers (16 KiB each, mostly) between cycles: about twenty cycles.
    let sizes = |program: &str| match program {
        "cky" => size.of((vec!["4", "20", "40"], 50), (vec!["40", "36", "80"], 600), (vec!["200", "36", "100"], 3000)),
        "cube" => size.of((vec!["2", "5", "2"], 10), (vec!["3", "20", "3"], 60), (vec!["3", "20", "10"], 200)),
        _ => size.of((vec!["1500", "3"], 10), (vec!["15000", "8"], 40), (vec!["30000", "20"], 120)),
    };
    let mut cases = Vec::new();
    for program in APPS {
        for &at in &threads {
            let (work, every) = sizes(program);
            for (version, left_out) in VERSIONS {
                cases.push(Case {
                    program,
                    arguments: [at.to_string(), "thesis".to_owned()].into_iter().chain(strings(work.clone())).collect(),
                    version: version.to_owned(),
                    at,
                    stock: false,
                    environment: vec![
                        ("LARDER_ABLATE", format!("{left_out}markers")),
                        ("GC_MARKERS", at.min(MOST_MARKERS).to_string()),
                        ("LARDER_COLLECT_EVERY", every.to_string()),
                    ],
                });
            }
        }
    }
    let all = bench.run_all(cases, size.of(1, 3, 3), |case| {
        if case.program.starts_with("bh") { "bh".into() } else { case.program.into() }
    })?;
    report.put("runs", Value::Array(all.iter().map(Series::json).collect()));

    report.heading("Table 3.1: behaviour of the programs");
    let most = threads[threads.len() - 1];
    let mut rows = Vec::new();
    for (program, theirs) in thesis::COLLECTIONS {
        if let Some(series) = find(&all, program, "Opt", most) {
            let live = series.median(|run| run.heap().map_or(f64::NAN, |heap| heap.most_live.0 as f64 / 1e6));
            let figures = [
                series.median(|run| run.printed("gcs")),
                series.median(|run| run.printed("time_s")),
                live,
                series.median(|run| run.printed("heap_mb")),
            ];
            rows.push(row(&format!("{program}, {most} threads"), figures));
        }
        rows.push([format!("*{program}, thesis")].into_iter().chain(strings(theirs)).collect());
    }
    report.table(&strings(["", "collections", "time, s", "most living, MB", "heap, MB"]), &rows);

    report.heading("Figures 3.5 and 3.6: time of the programs, and the collections' share");
    let mut rows = Vec::new();
    for program in APPS {
        let mut bars = Vec::new();
        let (mut user, mut gc) = (Vec::new(), Vec::new());
        for version in ["Simple", "Opt"] {
            let share = |at: usize| {
                find(&all, program, version, at)
                    .map_or(f64::NAN, |s| 100.0 * s.median(|run| run.printed("gc_ms") / 1e3 / run.printed("time_s")))
            };
            rows.push(row(&format!("{program}, {version}: GC in % of the time"), threads.iter().map(|&at| share(at))));
            for &at in &threads {
                let Some(series) = find(&all, program, version, at) else { continue };
                bars.push(format!("{version} {at}"));
                user.push((0.0, series.median(user_s)));
                gc.push((0.0, series.median(|run| run.printed("gc_ms") / 1e3)));
            }
        }
        let series = vec![Line { name: "User".into(), points: user }, Line { name: "GC".into(), points: gc }];
        report.chart(&Chart {
            title: format!("Figure 3.5, {program}"),
            x: "version and threads".into(),
            y: "s".into(),
            series,
            bars,
        });
    }
    report.table(&head("threads", &threads), &rows);
    let theirs: Vec<Vec<String>> = thesis::SHARES
        .iter()
        .map(|(program, machine, simple, opt)| {
            vec![format!("*{program}, {machine}"), format!("{simple} %"), format!("{opt} %")]
        })
        .collect();
    report.table(&strings(["GC in % of the time, thesis", "Simple", "Opt"]), &theirs);

    report.heading("Figures 3.7 to 3.10: speed-up of marking; 1 is Opt with one marker");
    report.say(thesis::SPEED_UP);
    for program in APPS {
        let all_lines = lines(&all, program, &threads, &speed);
        let base = all_lines
            .iter()
            .find(|line| line.name == "Opt")
            .and_then(|line| line.points.first())
            .map_or(f64::NAN, |p| p.1);
        report.say(&format!("{program}: Opt with one marker goes through {} GB/s of live objects.", shown(base)));
        let speed_ups: Vec<Line> = all_lines
            .into_iter()
            .map(|line| Line { points: line.points.iter().map(|p| (p.0, p.1 / base)).collect(), name: line.name })
            .collect();
        table_of(&mut report, "markers", &threads, &speed_ups);
        let (first, rest): (Vec<Line>, Vec<Line>) =
            speed_ups.into_iter().partition(|line| ["Simple", "No-Opt"].contains(&line.name.as_str()));
        let (opt, others): (Vec<Line>, Vec<Line>) = rest.into_iter().partition(|line| line.name == "Opt");
        let copy = |line: &Line| Line { name: line.name.clone(), points: line.points.clone() };
        let with = |lines: Vec<Line>| opt.iter().map(copy).chain(lines).collect::<Vec<_>>();
        chart(&mut report, &format!("Figure 3.7, {program}"), "markers", "speed-up", with(first));
        chart(&mut report, &format!("Figure 3.9, {program}"), "markers", "speed-up", with(others));
    }
    marking_alone(bench, size, &mut report)?;
    Ok(report)
}

/// Structures that are marked in one process by every version in turn, and the machine's limit for loads.
fn marking_alone(bench: &Bench, size: Size, report: &mut Report) -> Result<(), Failure> {
    let mib = size.of("4", "64", "512");
    let loads = bench.json_of("thesis", &strings(["loads", size.of("8", "256", "512")]))?;
    let marking = bench.json_of("thesis", &strings(["marking", mib, size.of("1", "3", "5")]))?;
    report.heading("Marking alone, and what the memory gives");
    let number = |value: &Value, key: &str| value[key].as_f64().unwrap_or(f64::NAN);
    let independent = number(&loads, "independent_per_s");
    report.say(&format!(
        "Loads of lines in no order from {} MiB: {} million a second where each waits for the one before, {} million where they do not wait, by one CPU; \
         {} and {} million by two.",
        number(&loads, "mib"),
        shown(number(&loads, "dependent_per_s") / 1e6),
        shown(independent / 1e6),
        shown(number(&loads, "dependent_per_s_two") / 1e6),
        shown(number(&loads, "independent_per_s_two") / 1e6),
    ));
    report.say(
        "Marked objects, in millions a second, and as a fraction of the independent loads that one CPU (or, with two markers, two) can do: an object is at least one \
         load. A structure that is made in the order in which it is marked is read in order of address, which is faster than that limit.",
    );
    let mut rows = Vec::new();
    for entry in marking["results"].as_array().into_iter().flatten() {
        let markers = number(entry, "markers");
        let limit = if markers > 1.0 { number(&loads, "independent_per_s_two") } else { independent };
        let speed = number(entry, "objects_per_s");
        let name = |key: &str| entry[key].as_str().unwrap_or("?").to_owned();
        rows.push(vec![name("shape"), name("without"), shown(markers), shown(speed / 1e6), shown(speed / limit)]);
    }
    report.table(&strings(["shape", "without", "markers", "million objects/s", "of the limit"]), &rows);
    report.put("loads", loads);
    report.put("marking", marking);
    Ok(())
}
