//! The experiments of Endo's thesis (2001) on this machine: chapter 2 in [`allocation`], chapter 3 in [`marking`], chapter 5 in
//! [`concurrent`]. Here is what they share: figures over numbers of threads as tables and lines.
//!
//! An owner of blocks is a thread, as in the thesis. Its machines had 64 to 80 processors; with more threads than CPUs here the threads take
//! turns, which the report says of each figure.

mod allocation;
mod concurrent;
mod marking;
mod numbers;

pub use allocation::chapter_2;
pub use concurrent::chapter_5;
pub use marking::chapter_3;

use serde_json::json;

use super::html::{Axis, Chart, Series as Line, shown};
use super::measure::{Measured, Series};
use super::{Report, Size};

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
    chart_on(report, title, [x, y], Axis::Linear, series);
}

fn chart_on(report: &mut Report, title: &str, [x, y]: [&str; 2], axis: Axis, series: Vec<Line>) {
    report.chart(&Chart { title: title.into(), x: x.into(), y: y.into(), series, bars: Vec::new(), axis });
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

/// Says what it does to a figure that some of these numbers of threads are more than there are CPUs.
fn oversubscribed(report: &mut Report, threads: &[usize], effect: &str) {
    let cpus = cpus();
    if threads.iter().any(|&threads| threads > cpus) {
        report.say(&format!("With more than {cpus} threads: {effect}"));
    }
}

/// Says how many rounds were run: fewer than there should be where the time was up.
fn rounds(report: &mut Report, what: &str, all: &[Series]) {
    let most = all.iter().map(|series| series.runs.len()).max().unwrap_or(0);
    report.say(&format!("{what}: {most} {}.", if most == 1 { "round" } else { "rounds" }));
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

/// Seconds without collections.
fn user_s(run: &Measured) -> f64 {
    run.printed("time_s") - run.printed("gc_ms") / 1e3
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
