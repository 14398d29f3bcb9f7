//! Runs programs on either library, round after round, and keeps what they printed and what their heap did.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use larder_events::Counter;
use serde_json::{Value, json};

use super::Size;
use crate::doctor;
use crate::exit::Failure;
use crate::follow::{ProcessSummary, Times};
use crate::launch::{self, Output};
use crate::library::{self, Library};

/// A default run ends within half an hour: no further round begins that would end later than so long after the beginning. What an experiment runs
/// afterwards, a round at least, takes some minutes.
const ENOUGH: Duration = Duration::from_secs(24 * 60);

/// Whether there is time for another round, `elapsed` after the beginning, where the longest so far took `longest`.
pub fn is_time_for_another(elapsed: Duration, longest: Duration) -> bool {
    elapsed + longest <= ENOUGH
}

/// Where programs and libraries are.
pub struct Bench {
    larder: Library,
    stock: Option<Library>,
    /// The folder that Larder was staged in.
    stage: PathBuf,
    begun: Instant,
    /// All rounds are run, however long they take.
    patient: bool,
}

/// One way to run one program.
#[derive(Clone, Debug)]
pub struct Case {
    /// A program of `apps/`.
    pub program: &'static str,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// What it is called in tables.
    pub version: String,
    /// The number of threads, or of markers: its place on the horizontal axis.
    pub at: usize,
    /// On the stock library.
    pub stock: bool,
    /// In the form that calls a software write barrier: `PROGRAM-soft`.
    pub barrier: bool,
    /// Added to the environment.
    pub environment: Vec<(&'static str, String)>,
}

impl Case {
    fn binary(&self) -> String {
        format!("{}{}", self.program, if self.barrier { "-soft" } else { "" })
    }
}

/// What one run said.
#[derive(Clone)]
pub struct Measured {
    printed: HashMap<String, String>,
    process: Option<ProcessSummary>,
}

impl Measured {
    /// A figure that the program printed.
    pub fn printed(&self, key: &str) -> f64 {
        self.printed.get(key).and_then(|value| value.parse().ok()).unwrap_or(f64::NAN)
    }

    /// What its heap did; nothing on the stock library.
    pub fn heap(&self) -> Option<&ProcessSummary> {
        self.process.as_ref()
    }

    /// A counter of its heap.
    pub fn counter(&self, counter: Counter) -> f64 {
        self.heap().and_then(|heap| heap.counters.get(counter as usize)).map_or(f64::NAN, |&value| value as f64)
    }

    fn json(&self) -> Value {
        let stops = |times: &Times| json!({ "mean_ns": times.mean().0, "longest_ns": times.longest().0 });
        let heap = self.heap().map(|heap| {
            let counters: serde_json::Map<String, Value> = Counter::ALL
                .iter()
                .zip(&heap.counters)
                .map(|(counter, value)| (counter.description().name.to_owned(), json!(value)))
                .collect();
            json!({
                "cycles": heap.cycles, "marked_bytes": heap.marked.0, "marking_ns": heap.marking.0,
                "most_live_bytes": heap.most_live.0, "concurrent": heap.concurrent, "cut_short": heap.cut_short,
                "pages_cleaned": heap.pages_cleaned, "pages_left": heap.pages_left,
                "first_stops": stops(&heap.first_stops), "last_stops": stops(&heap.last_stops), "counters": counters,
            })
        });
        json!({ "printed": self.printed, "heap": heap })
    }
}

/// Why a run has no figures.
enum RunError {
    /// The program failed.
    Ended { status: u8, message: String },
    /// It could not be run, or printed something else.
    Failed(Failure),
}

impl From<Failure> for RunError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Statuses of a program that somebody ended: SIGINT, SIGTERM.
const INTERRUPTED: [u8; 2] = [128 + 2, 128 + 15];

/// The runs of a case.
pub struct Series {
    /// What was run.
    pub case: Case,
    /// Each round's run.
    pub runs: Vec<Measured>,
    /// Why there are no more: a program that fails on the stock library is not tried again there.
    pub failure: Option<String>,
}

impl Series {
    /// The median of a figure over the rounds.
    pub fn median(&self, figure: impl Fn(&Measured) -> f64) -> f64 {
        median(self.runs.iter().map(figure))
    }

    /// Everything about it.
    pub fn json(&self) -> Value {
        let case = &self.case;
        json!({
            "program": case.program, "arguments": case.arguments, "version": case.version, "at": case.at, "stock": case.stock,
            "barrier": case.barrier,
            "environment": case.environment.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
            "runs": self.runs.iter().map(Measured::json).collect::<Vec<_>>(), "failure": self.failure,
        })
    }
}

/// The median of what is a number; no number where nothing is.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n => (values[(n - 1) / 2] + values[n / 2]) / 2.0,
    }
}

impl Bench {
    /// Finds everything, or says what is missing.
    pub fn new(size: Size) -> Result<Self, Failure> {
        let larder = library::find()?;
        let stage = larder.folder.parent().unwrap_or(Path::new("/")).to_owned();
        if !stage.join("apps").is_dir() {
            return Err(Failure::tool(format!(
                "{} does not exist: the experiments need the programs that `cargo xtask stage DIR` compiles (it needs a C compiler); run \
                 DIR/bin/larder, or set {} to DIR/lib",
                stage.join("apps").display(),
                library::FOLDER_VARIABLE
            )));
        }
        let stock = doctor::stock_libgc().and_then(|path| path.parent().map(Path::to_owned));
        if stock.is_none() {
            note!("no libgc is installed to compare with (Debian: apt install libgc1)");
        }
        Ok(Self {
            larder,
            stock: stock.map(|folder| Library { folder }),
            stage,
            begun: Instant::now(),
            patient: size == Size::Full,
        })
    }

    /// Whether there is a stock library.
    pub fn has_stock(&self) -> bool {
        self.stock.is_some()
    }

    /// Runs every case in each round. A failure ends it, but for one on the stock library, which is kept beside what it printed. The sums that a program prints must agree over all cases with the same work: `work` names it.
    pub fn run_all(
        &self,
        cases: Vec<Case>,
        rounds: usize,
        work: impl Fn(&Case) -> String,
    ) -> Result<Vec<Series>, Failure> {
        let bar = ProgressBar::new((cases.len() * rounds) as u64);
        bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {eta} {msg}").expect("a valid template"));
        let mut all: Vec<Series> =
            cases.into_iter().map(|case| Series { case, runs: Vec::new(), failure: None }).collect();
        let mut sums: HashMap<String, (String, String)> = HashMap::new();
        let mut longest = Duration::ZERO;
        for round in 0..rounds {
            if round > 0 && !self.patient && !is_time_for_another(self.begun.elapsed(), longest) {
                note!("{round} of {rounds} rounds: the time is up");
                break;
            }
            let begun = Instant::now();
            for series in &mut all {
                let case = &series.case;
                let what = format!("{} {} {}", case.program, case.arguments[0], case.version);
                if bar.is_hidden() && bar.position().is_multiple_of(10) {
                    note!("{} of {}: {what}", bar.position() + 1, bar.length().unwrap_or(0));
                }
                bar.set_message(what.clone());
                bar.tick();
                if series.failure.is_some() {
                    bar.inc(1);
                    continue;
                }
                let measured = match self.run(case) {
                    Ok(measured) => measured,
                    Err(RunError::Ended { status, .. }) if INTERRUPTED.contains(&status) => {
                        bar.finish_and_clear();
                        return Err(Failure { message: "interrupted: nothing was written".to_owned(), status });
                    }
                    Err(RunError::Ended { message, .. }) if case.stock => {
                        bar.suspend(|| note!("on the stock library: {message}"));
                        series.failure = Some(message);
                        bar.inc(1);
                        continue;
                    }
                    Err(RunError::Ended { message, .. }) => {
                        bar.finish_and_clear();
                        return Err(Failure::tool(message));
                    }
                    Err(RunError::Failed(failure)) => {
                        bar.finish_and_clear();
                        return Err(failure);
                    }
                };
                let sum = measured.printed.get("sum").cloned().unwrap_or_default();
                let (first, wanted) = sums.entry(work(case)).or_insert_with(|| (what.clone(), sum.clone()));
                if *wanted != sum {
                    bar.finish_and_clear();
                    return Err(Failure::tool(format!(
                        "the results differ: {wanted} of {first}, {sum} of {what}: please report this as a bug, with the output of `larder doctor`"
                    )));
                }
                series.runs.push(measured);
                bar.inc(1);
            }
            longest = longest.max(begun.elapsed());
        }
        bar.finish_and_clear();
        Ok(all)
    }

    fn run(&self, case: &Case) -> Result<Measured, RunError> {
        let path = self.stage.join("apps").join(case.binary());
        if !path.is_file() {
            let message = format!("{} does not exist: run `cargo xtask stage` again", path.display());
            return Err(Failure::tool(message).into());
        }
        let command: Vec<OsString> =
            std::iter::once(case.binary().into()).chain(case.arguments.iter().map(OsString::from)).collect();
        let library = if case.stock { self.stock.as_ref().unwrap_or(&self.larder) } else { &self.larder };
        let mut text = String::new();
        let outcome = launch::run_in(&path, &command, library, &case.environment, Output::Captured(&mut text))?;
        if outcome.status != 0 {
            let message = format!(
                "{} {} ({}) ended with status {}: see what it said above",
                case.program,
                case.arguments.join(" "),
                case.version,
                outcome.status
            );
            return Err(RunError::Ended { status: outcome.status, message });
        }
        let printed: HashMap<String, String> = text
            .split_whitespace()
            .filter_map(|pair| pair.split_once('='))
            .map(|(k, v)| (k.into(), v.into()))
            .collect();
        let timed = ["time_s", "seconds"].iter().any(|key| printed.contains_key(*key));
        if !printed.contains_key("sum") || !timed {
            return Err(Failure::tool(format!("{} printed no sum and time: {text}", case.program)).into());
        }
        Ok(Measured { printed, process: outcome.processes.into_iter().next() })
    }

    /// Runs a program of `libexec/larder/`, which prints JSON.
    pub fn json_of(&self, program: &str, arguments: &[String]) -> Result<Value, Failure> {
        let path = self.stage.join("libexec/larder").join(program);
        if !path.is_file() {
            return Err(Failure::tool(format!("{} does not exist: run `cargo xtask stage` again", path.display())));
        }
        note!("{program} {}", arguments.join(" "));
        let mut command = Command::new(&path);
        launch::forget_heap_variables(&mut command);
        let output =
            command.args(arguments).output().map_err(|error| Failure::tool(format!("{}: {error}", path.display())))?;
        if !output.status.success() {
            return Err(Failure::tool(format!(
                "{} {} failed ({}): {}",
                path.display(),
                arguments.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim_end()
            )));
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|error| Failure::tool(format!("{} printed no JSON: {error}", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_would_end_too_late_do_not_begin() {
        let minutes = |n: u64| Duration::from_secs(n * 60);
        // Latencies are measured after the programs: four minutes.
        for (round, wanted) in [(2, 12), (7, 3), (10, 2), (13, 1), (40, 1)] {
            let mut done = 1;
            while is_time_for_another(minutes(done * round), minutes(round)) {
                done += 1;
            }
            assert_eq!(done, wanted, "of {round} minutes");
        }
    }

    #[test]
    fn the_median_leaves_out_what_is_no_number() {
        assert_eq!(median([3.0, 1.0, f64::NAN, 2.0].into_iter()), 2.0);
        assert_eq!(median([1.0, 2.0].into_iter()), 1.5);
        assert!(median([f64::NAN].into_iter()).is_nan());
    }
}
