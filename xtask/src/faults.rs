//! The fault matrix: `larder doctor --self-test` of a staged Larder, with its lines counted as tests.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::clients::PROGRAM_LIMIT;
use crate::tally::Tally;

/// How often each line is tried, and for how long at most.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    pub rounds: u32,
    pub seconds: u64,
    pub load: bool,
    /// Lines at a time: they are a load for one another.
    pub jobs: u64,
}

/// What CI does.
pub const SHORT: Effort = Effort { rounds: 5, seconds: 5, load: false, jobs: 1 };
/// Each line so often, or for a minute.
const LONG: Effort = Effort { rounds: 1000, seconds: 60, load: true, jobs: 4 };
/// Lines times ways, about: to share a soak's time out.
const RUNS: u64 = 124;

impl Effort {
    /// The long form, cut to so much time altogether.
    pub fn within(time: Duration) -> Self {
        Self { seconds: (time.as_secs() * LONG.jobs / RUNS).clamp(1, LONG.seconds), ..LONG }
    }

    /// The long form.
    pub fn long() -> Self {
        LONG
    }
}

/// Tries every line on the library staged in `staged`.
pub fn run(staged: &Path, effort: Effort) -> Result<Tally> {
    println!("== fault matrix, up to {} rounds or {} s each", effort.rounds, effort.seconds);
    let mut tool = Command::new(staged.join("bin/larder"));
    tool.args(["doctor", "--self-test"]);
    tool.args(["--rounds", &effort.rounds.to_string(), "--seconds", &effort.seconds.to_string()]);
    tool.args(["--jobs", &effort.jobs.to_string()]);
    // A loaded machine is not a hang.
    tool.args(["--patience", &PROGRAM_LIMIT.as_secs().to_string()]);
    if effort.load {
        tool.arg("--load");
    }
    tool.env("LARDER_LIB", staged.join("lib")).stderr(Stdio::inherit());
    let output = tool.output().with_context(|| format!("cannot start {}", staged.join("bin/larder").display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let tally = count(&text);
    ensure!(tally.passed + tally.failures() > 0, "the self-test tried nothing ({})", output.status);
    Ok(tally)
}

fn count(text: &str) -> Tally {
    let begins = |word: &str| text.lines().filter(|line| line.starts_with(word)).count();
    let mut tally = Tally::passed(begins("ok "));
    tally += Tally::skipped(begins("SKIPPED "));
    tally.add_said(text.lines().filter_map(|line| Some(line.strip_prefix("FAILED ")?.trim_start().to_owned())));
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted() {
        let tally =
            count("ok      a, b (1 rounds, 0.1 s)\nFAILED  c, d: why\nSKIPPED e: why\n1 passed, 1 failed, 1 skipped\n");
        assert_eq!((tally.passed, tally.failures(), tally.skipped), (1, 1, 1));
    }

    #[test]
    fn a_soak_shares_its_time_out() {
        assert_eq!(Effort::within(Duration::from_secs(10)).seconds, 1);
        assert_eq!(Effort::within(Duration::from_secs(60 * 60 * 8)).seconds, 60);
    }
}
