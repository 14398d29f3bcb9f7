//! `cargo xtask soak`: client programs and soak tests, over and over, in an order that a seed decides.
//!
//! The short form is for CI, the long one for a night. Soak tests are integration tests named `soak*`; they run as long as
//! `LARDER_SOAK_SECONDS` says, begin their random numbers where `LARDER_SEED` does, and may be marked `#[ignore]` to keep them out of
//! `cargo xtask test`.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Args;

use crate::clients::Session;
use crate::faults::{self, Effort};
use crate::stage;
use crate::suite;
use crate::tally::{Tally, count};
use crate::workspace::Workspace;

/// How long the short form runs.
const SHORT: Duration = Duration::from_secs(90);
/// The numbers of threads to draw from: one, few, more than the processors, many more.
const THREADS: &[usize] = &[1, 2, 3, 5, 8, 13, 32, 64, 200];
/// A client's own distance between forced collections is multiplied by one of these, in percent.
const STRESS_PERCENT: &[u64] = &[30, 100, 170, 530];
/// The short form leaves the first out: one client then takes minutes.
const SHORT_STRESS_PERCENT: &[u64] = &[100, 170, 530];
/// The short form draws the same each time: what it finds is then due to what was changed. Longer ones look for what is new.
const SHORT_SEED: u64 = 1;
/// Of the time, the part that the soak tests have, in percent, where there are any.
const SOAK_TEST_PERCENT: u32 = 30;

/// Schedules of each of shuttle's models, in a soak that is not the short one: a few minutes.
const SCHEDULES: usize = 5000;

/// The part that the fault matrix has, of a soak that is not the short one.
const FAULT_PERCENT: u32 = 30;

#[derive(Args)]
pub struct Options {
    /// How long to go on
    #[arg(long, value_name = "M", default_value = "30", conflicts_with = "short")]
    minutes: u64,
    /// The form that CI runs: 90 seconds
    #[arg(long)]
    short: bool,
    /// Try the fault matrix alone: each line 1000 times or for a minute, under load
    #[arg(long, conflicts_with_all = ["short", "minutes"])]
    faults: bool,
    /// Start the order of runs from this seed, to repeat an earlier soak
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Runs until the time is over. A run that fails does not end the soak: one failure often comes with others.
pub fn soak(workspace: &Workspace, options: &Options) -> Result<()> {
    if !workspace.has("larder-gc") || !workspace.has("larder-cli") {
        println!("SKIPPED soak: the workspace has no larder-gc or no larder-cli yet");
        return Ok(());
    }
    let total = if options.short { SHORT } else { Duration::from_secs(60 * options.minutes) };
    let staged = stage::for_task(workspace, false)?;

    if options.faults {
        let tally = faults::run(&staged, Effort::long())?;
        return tally.conclude();
    }

    let start = Instant::now();
    let mut draw = Draw::new(options.seed.or(options.short.then_some(SHORT_SEED)));
    let mut tally = soak_tests(workspace, total * SOAK_TEST_PERCENT / 100, draw.seed)?;
    if !options.short {
        tally += suite::search_schedules(workspace, SCHEDULES)?;
        // The short form of the matrix is among the tests.
        tally += faults::run(&staged, Effort::within(total * FAULT_PERCENT / 100))?;
    }

    let session = Session::new(workspace, &staged.join("lib"))?;
    let percents = if options.short { SHORT_STRESS_PERCENT } else { STRESS_PERCENT };
    println!("== client programs, seed {} (repeat with --seed {})", draw.seed, draw.seed);
    let mut round = 0;
    while start.elapsed() < total || round == 0 {
        for client in &session.clients {
            let threads = client.distinct(&[draw.of(THREADS)])[0];
            let stress = (!draw.next().is_multiple_of(4)).then(|| (client.stress * draw.of(percents) / 100).max(1));
            tally += session.run_and_report(client, threads, stress);
        }
        round += 1;
    }
    println!("soak of {:.0} s", start.elapsed().as_secs_f64());
    tally.conclude()
}

/// `seed`: where their random numbers begin.
fn soak_tests(workspace: &Workspace, time: Duration, seed: u64) -> Result<Tally> {
    let mut tally = Tally::default();
    let packages = workspace.with_tests_named("soak");
    for package in &packages {
        let seconds = (time.as_secs() / packages.len() as u64).max(1);
        let mut tests = workspace.cargo();
        tests.args(["test", "--package", package, "--release", "--no-fail-fast", "--test", "soak*"]);
        tests.args(["--", "--include-ignored"]).env("LARDER_SOAK_SECONDS", seconds.to_string());
        tests.env("LARDER_SEED", seed.to_string());
        tally += count(&mut tests)?;
    }
    Ok(tally)
}

/// Pseudo-random draws (splitmix64).
struct Draw {
    seed: u64,
    state: u64,
}

impl Draw {
    fn new(seed: Option<u64>) -> Self {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs());
        let seed = seed.unwrap_or_else(clock);
        Self { seed, state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.next() % choices.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_draws() {
        let draws = |seed| {
            let mut draw = Draw::new(Some(seed));
            (0..20).map(|_| draw.of(THREADS)).collect::<Vec<_>>()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }
}
