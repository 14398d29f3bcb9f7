//! `larder locks`: starts the program that measures locks, queues and ways of waiting, and draws what it prints.

mod chart;
mod page;
mod text;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Args;
use serde_json::Value;

use crate::exit::Failure;
use crate::results::ResultFile;
use crate::{libexec, say};

/// The program that measures.
const PROGRAM: &str = "larder-locks";

/// Arguments of `larder locks`.
#[derive(Args)]
#[command(after_help = "\
WHAT is one of: mutex (MutexBench), lifo (the study locks E3 to E9), rwlock, queue, perils (how a slower program looks faster), \
fetch-add (against compare-and-swap), polite (what waiting takes from a neighbour), clock (one that never goes back).\n\n\
Rates are by a second of processor time, so that a shared machine does not spoil them. A window in which other processes and the host \
took more than 2 % of the machine is rejected and run again, --repeats times at most; the median is of the clean rounds, of all \
if there are none.")]
pub struct LocksArguments {
    /// What to measure
    #[arg(default_value = "mutex", value_name = "WHAT",
          value_parser = ["mutex", "lifo", "rwlock", "queue", "perils", "fetch-add", "polite", "clock"])]
    what: String,
    /// Numbers of threads, such as 1,2,4 [default: 1 to 256 in powers of two]
    #[arg(long, value_name = "LIST")]
    threads: Option<String>,
    /// Length of a window, in seconds [default: 1]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<String>,
    /// Interleaved rounds [default: 7]
    #[arg(long, value_name = "NUMBER")]
    rounds: Option<String>,
    /// How many disturbed windows are run again, for each contender at each point [default: as many as rounds]
    #[arg(long, value_name = "NUMBER")]
    repeats: Option<String>,
    /// Steps of the critical section [default: 4]
    #[arg(long, value_name = "STEPS")]
    critical: Option<String>,
    /// Steps of the non-critical section are drawn from 0 to below this; a list for several studies [default: 0,250]
    #[arg(long, value_name = "LIST")]
    outside: Option<String>,
    /// Only contenders whose names contain one of these
    #[arg(long, value_name = "NAMES")]
    only: Option<String>,
    /// Write what was measured to FILE, for other programs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with curves, fairness and admissions to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Measures, prints tables, and writes the files that were asked for.
pub fn run(arguments: &LocksArguments) -> Result<u8, Failure> {
    let open = |path: &Option<PathBuf>| path.as_deref().map(ResultFile::open).transpose();
    let (json, html) = (open(&arguments.json)?, open(&arguments.html)?);
    let program = libexec::find(PROGRAM)?;
    let mut command = Command::new(&program);
    command.arg(&arguments.what);
    let options = [
        ("--threads", &arguments.threads),
        ("--seconds", &arguments.seconds),
        ("--rounds", &arguments.rounds),
        ("--repeats", &arguments.repeats),
        ("--critical", &arguments.critical),
        ("--outside", &arguments.outside),
        ("--only", &arguments.only),
    ];
    for (option, value) in options {
        if let Some(value) = value {
            command.arg(format!("{option}={value}"));
        }
    }
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Failure::tool(format!("cannot start {}: {error}", program.display())))?;
    if !output.status.success() {
        return Err(Failure::tool(format!(
            "{} ended with {}: see its message above",
            program.display(),
            output.status
        )));
    }
    let result: Value = serde_json::from_slice(&output.stdout).map_err(|error| {
        Failure::tool(format!(
            "{} printed no JSON ({error}): it is of another version than this tool",
            program.display()
        ))
    })?;
    // A failure here comes after the files, which took long to measure.
    let printed = say::print(&text::tables(&result));
    let json = json.map_or(Ok(()), |file| file.write(&format!("{result:#}\n")));
    let html = html.map_or(Ok(()), |file| file.write(&page::page(&result)));
    json.and(html).and(printed).map(|()| 0)
}

/// A row of a study, as the program prints it.
struct Row<'a>(&'a Value);

impl<'a> Row<'a> {
    /// The rows of a study.
    fn all(study: &'a Value) -> impl Iterator<Item = Self> {
        study["rows"].as_array().into_iter().flatten().map(Self)
    }

    fn name(&self) -> &'a str {
        self.0["name"].as_str().unwrap_or("")
    }

    fn x(&self) -> u64 {
        self.0["x"].as_u64().unwrap_or(0)
    }

    /// Million operations by a CPU-second: the median, the lowest and the highest.
    fn rate(&self) -> [f64; 3] {
        let rate = &self.0["per_cpu_second"];
        ["median", "low", "high"].map(|which| rate[which].as_f64().unwrap_or(0.0) / 1e6)
    }

    fn figure(&self, group: &str, name: &str) -> Option<f64> {
        self.0[group][name].as_f64()
    }
}

/// The contenders of a study in their order, and its numbers of threads, ascending.
fn axes(study: &Value) -> (Vec<&str>, Vec<u64>) {
    let (mut names, mut points) = (Vec::new(), Vec::new());
    for row in Row::all(study) {
        if !names.contains(&row.name()) {
            names.push(row.name());
        }
        if !points.contains(&row.x()) {
            points.push(row.x());
        }
    }
    points.sort_unstable();
    (names, points)
}

/// The row of a contender at a number of threads.
fn row_at<'a>(study: &'a Value, name: &str, x: u64) -> Option<Row<'a>> {
    Row::all(study).find(|row| row.name() == name && row.x() == x)
}

fn string<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    /// What the program prints, for two contenders at two numbers of threads.
    pub fn example() -> Value {
        let row = |name: &str, x: u64, rate: f64, counts: &[u64]| {
            json!({
                "name": name, "x": x, "per_cpu_second": { "median": rate, "low": rate * 0.9, "high": rate * 1.1 },
                "per_second": rate, "cpus": 1.5, "rounds": 3, "clean_rounds": 2, "rejected": 4, "admissions": counts,
                "fairness": { "jain": 0.75, "gini": 0.2, "relative_deviation": 0.1, "median_deviation": null, "least_to_most": 0.5 },
                "short_term": { "working_set": 2.0, "mean_time_to_reacquire": 3.0, "median_time_to_reacquire": 1.0, "longest_bypass": 42 },
            })
        };
        let rows = [
            row("std", 1, 50e6, &[50]),
            row("a <lock>", 1, 40e6, &[40]),
            row("std", 4, 20e6, &[1, 2, 3, 4]),
            row("a <lock>", 4, 0.5e6, &[0, 0, 0, 500]),
        ];
        json!({
            "machine": { "processor": "a & b", "cpus": 2, "governor": null },
            "studies": [{ "name": "mutexes", "says": "What it says.", "x": "threads", "operation": "acquisitions", "rows": rows }],
        })
    }

    #[test]
    fn axes_are_complete_and_in_order() {
        let example = example();
        let (names, points) = super::axes(&example["studies"][0]);
        assert_eq!((names, points), (vec!["std", "a <lock>"], vec![1, 4]));
    }
}
