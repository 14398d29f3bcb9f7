//! A study: contenders at several numbers of threads, in interleaved rounds, and what is reported of them.

use std::borrow::Cow;

use larder_sync::fairness::{LongTerm, ShortTerm, threads_before_saturation};
use serde_json::{Value, json};

use crate::Options;
use crate::load::undisturbed;
use crate::window::Outcome;

/// Admissions that a log keeps.
pub const LOG: usize = 1 << 15;
/// Admissions in which the working set is counted.
const WINDOW: usize = 1000;

/// One contender: its name, what runs it once at a number of threads, and what logs its admissions.
pub struct Contender<'a> {
    pub name: &'static str,
    pub run: Box<dyn Fn(usize) -> Outcome + 'a>,
    /// Runs for a short time and returns who was admitted, in order; `None` where nothing is admitted one at a time.
    pub log: Option<Box<dyn Fn(usize) -> Vec<u32> + 'a>>,
}

struct Row {
    name: &'static str,
    x: usize,
    rounds: Vec<Outcome>,
    /// Windows that were disturbed and run again.
    rejected: usize,
    log: Option<Vec<u32>>,
}

/// Contenders compared.
pub struct Study {
    pub name: String,
    /// What it shows, in one sentence or two.
    pub says: Cow<'static, str>,
    /// What is counted up along the x axis.
    pub x: &'static str,
    /// What an operation is.
    pub operation: &'static str,
    rows: Vec<Row>,
}

impl Study {
    /// Runs every contender at every number of threads.
    pub fn new(
        name: String,
        says: &'static str,
        operation: &'static str,
        options: &Options,
        contenders: &[Contender],
    ) -> Self {
        let points: Vec<usize> = options.threads().collect();
        Self::over(name, says, "threads", &points, operation, options, contenders)
    }

    /// Runs every contender at every point.
    pub fn over(
        name: String,
        says: &'static str,
        x: &'static str,
        points: &[usize],
        operation: &'static str,
        options: &Options,
        contenders: &[Contender],
    ) -> Self {
        let names: Vec<&str> = contenders.iter().map(|contender| contender.name).collect();
        let wanted: Vec<&Contender> =
            contenders.iter().filter(|contender| options.wants(contender.name, &names)).collect();
        let mut rows = Vec::new();
        for &point in points {
            let mut rounds: Vec<Vec<Outcome>> = wanted.iter().map(|_| Vec::new()).collect();
            let mut repeats = vec![options.repeats(); wanted.len()];
            for round in 0..usize::from(options.rounds) {
                // Every other round backwards, so that nobody always runs behind the same neighbour.
                for position in 0..wanted.len() {
                    let index = if round % 2 == 0 { position } else { wanted.len() - 1 - position };
                    let is_clean = |outcome: &Outcome| outcome.clean;
                    let outcome = undisturbed(&mut repeats[index], is_clean, || (wanted[index].run)(point));
                    rounds[index].push(outcome);
                }
            }
            for ((contender, rounds), left) in wanted.iter().zip(rounds).zip(repeats) {
                let log = contender.log.as_ref().map(|log| log(point));
                rows.push(Row { name: contender.name, x: point, rounds, rejected: options.repeats() - left, log });
            }
        }
        Self { name, says: Cow::Borrowed(says), x, operation, rows }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn to_json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(Row::to_json).collect();
        json!({ "name": self.name, "says": self.says, "x": self.x, "operation": self.operation, "rows": rows })
    }
}

/// Median, lowest, highest.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

impl Row {
    /// Rounds in which others had the machine count only where there are no others.
    fn used(&self) -> Vec<&Outcome> {
        let clean: Vec<&Outcome> = self.rounds.iter().filter(|round| round.clean).collect();
        if clean.is_empty() { self.rounds.iter().collect() } else { clean }
    }

    /// Fairness is that of the round in the middle: what one window gave, not a sum over windows, which would look fairer.
    fn middle<'a>(&self, used: &[&'a Outcome]) -> &'a Outcome {
        let mut by_rate = used.to_vec();
        by_rate.sort_by(|a, b| a.per_cpu_second().total_cmp(&b.per_cpu_second()));
        by_rate[by_rate.len() / 2]
    }

    fn to_json(&self) -> Value {
        let used = self.used();
        let clean = self.rounds.iter().filter(|round| round.clean).count();
        let (median, low, high) = spread(used.iter().map(|round| round.per_cpu_second()).collect());
        let (wall, ..) = spread(used.iter().map(|round| round.per_second()).collect());
        let cpus =
            spread(used.iter().map(|round| round.spent.cpu.as_secs_f64() / round.wall.as_secs_f64()).collect()).0;
        let middle = self.middle(&used);
        let a_second = |events: u64| events as f64 / middle.wall.as_secs_f64();
        let mut admissions = middle.counts.clone();
        admissions.sort_unstable();
        let long = LongTerm::of(&middle.counts).map(|figures| {
            json!({
                "jain": figures.jain, "gini": figures.gini, "relative_deviation": figures.relative_deviation,
                "median_deviation": if figures.median_deviation.is_finite() { json!(figures.median_deviation) } else { json!(null) },
                "least_to_most": figures.least_to_most,
            })
        });
        let short = self.log.as_deref().and_then(|log| ShortTerm::of(log, WINDOW)).map(|figures| {
            json!({
                "working_set": figures.working_set, "mean_time_to_reacquire": figures.mean_time_to_reacquire,
                "median_time_to_reacquire": figures.median_time_to_reacquire,
                "longest_bypass": figures.longest_bypass,
            })
        });
        json!({
            "name": self.name, "x": self.x,
            "per_cpu_second": { "median": median, "low": low, "high": high },
            "per_second": wall, "cpus": cpus, "rounds": self.rounds.len(), "clean_rounds": clean, "rejected": self.rejected,
            "switches": {
                "voluntary_per_second": a_second(middle.spent.sleeps),
                "involuntary_per_second": a_second(middle.spent.preemptions),
            },
            "fairness": long, "short_term": short,
            "threads_that_fit": threads_before_saturation(&admissions), "admissions": admissions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Spent;
    use std::time::Duration;

    fn outcome(counts: &[u64], clean: bool) -> Outcome {
        let second = Duration::from_secs(1);
        let spent = Spent { cpu: second, sleeps: 3, preemptions: 1 };
        Outcome { counts: counts.to_vec(), wall: second, spent, clean }
    }

    #[test]
    fn clean_rounds_count_where_there_are_any() {
        let rounds = vec![outcome(&[1, 1], false), outcome(&[4, 4], true), outcome(&[900, 1], false)];
        let log = Some((0..2000).map(|admission| admission % 2).collect());
        let row = Row { name: "lock", x: 2, rounds, rejected: 5, log };
        let json = row.to_json();
        assert_eq!(json["per_cpu_second"]["median"], 8.0);
        assert_eq!((json["rounds"].as_u64(), json["clean_rounds"].as_u64()), (Some(3), Some(1)));
        assert_eq!(json["rejected"], 5);
        assert_eq!(json["switches"], json!({ "voluntary_per_second": 3.0, "involuntary_per_second": 1.0 }));
        assert_eq!(json["fairness"]["jain"], 1.0);
        assert_eq!(json["short_term"]["working_set"], 2.0);
        assert_eq!(json["admissions"], json!([4, 4]));
    }

    #[test]
    fn without_a_clean_round_all_count() {
        let row = Row { name: "lock", x: 2, rounds: vec![outcome(&[2, 4], false)], rejected: 0, log: None };
        let json = row.to_json();
        assert_eq!(json["per_cpu_second"]["median"], 6.0);
        assert!(json["short_term"].is_null());
    }
}
