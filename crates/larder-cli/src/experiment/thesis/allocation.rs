//! Chapter 2: a scalable parallel allocator.

use larder_events::Counter;
use serde_json::Value;

use super::super::html::Series as Line;
use super::super::measure::{Bench, Case, Measured, Series};
use super::super::{Report, Size};
use super::{
    chart, find, head, lines, machine, numbers as thesis, oversubscribed, relative, rounds, row, strings, table_of,
    user_s,
};
use crate::exit::Failure;

/// Mebibytes in a block.
const BLOCK_MIB: f64 = 1.0 / 64.0;

fn remote_ratio(run: &Measured) -> f64 {
    let (local, remote) = (run.counter(Counter::LocalBlocks), run.counter(Counter::RemoteBlocks));
    if local + remote > 0.0 { remote / (local + remote) } else { 0.0 }
}

fn consumed_mib(run: &Measured) -> f64 {
    run.counter(Counter::OwnedMostConsumedBlocks) * BLOCK_MIB
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
            barrier: false,
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
            barrier: false,
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
                barrier: false,
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
    rounds(&mut report, "The programs", &all);

    report.heading("Table 2.1 and figure 2.4: throughput, million allocations of 16 bytes a second by all threads");
    oversubscribed(
        &mut report,
        &threads,
        "no more work is done at once, so a level line is the best that there can be. Where one falls, threads wait for a lock whose holder is waiting for its turn.",
    );
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
    oversubscribed(&mut report, &unfair_threads, "nothing changes, for only one of them works at a time.");
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
            // Three matrices and two vectors, the rows of two matrices at first, and those of two for each product.
            let objects = match program {
                "matmul" => series.median(|run| (2.0 * run.printed("products") + 2.0) * run.printed("n") + 5.0),
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
        oversubscribed(
            &mut report,
            &app_threads,
            "the time ends falling. A thread takes many pieces of work in its turn and none until the next, so each has had most of them once: local lists may hold more memory than with as many CPUs, \
             and more blocks may be remote.",
        );
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
