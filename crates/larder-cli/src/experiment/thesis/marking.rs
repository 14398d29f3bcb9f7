//! Chapter 3: a scalable parallel collector.

use serde_json::Value;

use super::super::html::{Axis, Chart, Series as Line, shown};
use super::super::measure::{Bench, Case, Measured, Series};
use super::super::{Report, Size};
use super::{
    chart, find, head, lines, machine, numbers as thesis, oversubscribed, rounds, row, strings, table_of, user_s,
};
use crate::exit::Failure;

/// The thesis's versions of the collector (table 3.2), and those that only Larder has.
const VERSIONS: [(&str, &str); 11] = [
    ("Opt", ""),
    ("Simple", "balance,"),
    ("No-Opt", "slo,nsb,bmb,"),
    ("No-SLO", "slo,"),
    ("No-NSB", "nsb,"),
    ("No-BMB", "bmb,"),
    ("No-prefetch", "prefetch,"),
    ("No-deque", "deque,"),
    ("No-lazy-sweep", "lazy-sweep,"),
    ("No-clusters", "clusters,"),
    ("No-grey", "grey,"),
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
        "Each program has as many markers as threads, up to 16, whatever the size of its heap. The thesis drew each figure twice, for the Enterprise 10000 (3.5, 3.7, 3.9) and for \
         the Origin 2000 (3.6, 3.8, 3.10). Cycles come after equal amounts of allocation in every version, \
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
                    barrier: false,
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
    rounds(&mut report, "The programs", &all);

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
                // Programs print MiB.
                series.median(|run| run.printed("heap_mb") * (1 << 20) as f64 / 1e6),
            ];
            rows.push(row(&format!("{program}, {most} threads"), figures));
        }
        rows.push([format!("*{program}, thesis")].into_iter().chain(strings(theirs)).collect());
    }
    report.table(&strings(["", "collections", "time, s", "most living, MB", "heap, MB"]), &rows);

    report.heading("Figures 3.5 and 3.6: time of the programs, and the collections' share");
    oversubscribed(
        &mut report,
        &threads,
        "User ends falling, and GC includes the wait until each thread has had the turn in which it stops.",
    );
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
            title: format!("Figures 3.5 and 3.6, {program}"),
            x: "version and threads".into(),
            y: "s".into(),
            series,
            bars,
            axis: Axis::Linear,
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
    oversubscribed(
        &mut report,
        &threads,
        "markers take turns as well, and one that finds nothing to mark takes its turn from one that has. Versions differ there in how they wait, not in how they mark.",
    );
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
        table_of(&mut report, "threads", &threads, &speed_ups);
        let (first, rest): (Vec<Line>, Vec<Line>) =
            speed_ups.into_iter().partition(|line| ["Simple", "No-Opt"].contains(&line.name.as_str()));
        let (opt, others): (Vec<Line>, Vec<Line>) = rest.into_iter().partition(|line| line.name == "Opt");
        let copy = |line: &Line| Line { name: line.name.clone(), points: line.points.clone() };
        let with = |lines: Vec<Line>| opt.iter().map(copy).chain(lines).collect::<Vec<_>>();
        chart(&mut report, &format!("Figures 3.7 and 3.8, {program}"), "threads", "speed-up", with(first));
        chart(&mut report, &format!("Figures 3.9 and 3.10, {program}"), "threads", "speed-up", with(others));
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
