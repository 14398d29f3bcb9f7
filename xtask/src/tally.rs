//! Counting tests: what a run of `cargo test` reports, and the line that a task ends with.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::ops::AddAssign;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace::line_of;

/// How many tests passed, failed, and were skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
}

impl Tally {
    /// An error where a test failed, or where none ran at all.
    pub fn verdict(self) -> Result<()> {
        if self.failed > 0 {
            bail!("{} failed; the lines above say what", self.failed);
        }
        if self.passed == 0 {
            bail!("no test ran, so nothing was shown; is the workspace empty, or every package missing?");
        }
        Ok(())
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Reads the summary line of one test program: `test result: ok. 5 passed; 0 failed; 2 ignored; ...`.
fn parse_result(line: &str) -> Option<Tally> {
    let (_verdict, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut tally = Tally::default();
    for part in counts.split("; ") {
        let Some((number, word)) = part.split_once(' ') else { continue };
        let count = match word {
            "passed" => &mut tally.passed,
            "failed" => &mut tally.failed,
            "ignored" => &mut tally.skipped,
            _ => continue,
        };
        *count = number.parse().ok()?;
    }
    Some(tally)
}

/// Runs a `cargo test` command, passes its output on, and counts.
///
/// A test program that is killed by a signal, or does not compile, prints no summary; it counts as one failure.
pub fn count(command: &mut Command) -> Result<Tally> {
    let line = line_of(command);
    println!("== {line}");
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start `{line}`"))?;
    let output = child.stdout.take().context("the output is piped")?;
    let mut tally = Tally::default();
    for text in BufReader::new(output).split(b'\n') {
        let text = text.with_context(|| format!("cannot read what `{line}` prints"))?;
        let text = String::from_utf8_lossy(&text);
        println!("{text}");
        tally += parse_result(&text).unwrap_or_default();
    }
    let status = child.wait().with_context(|| format!("cannot wait for `{line}`"))?;
    if !status.success() && tally.failed == 0 {
        println!("`{line}` failed ({status}) without a failed test: a test program crashed or did not compile");
        tally.failed = 1;
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_read() {
        let line = "test result: ok. 5 passed; 0 failed; 2 ignored; 0 measured; 1 filtered out; finished in 0.00s";
        assert_eq!(parse_result(line), Some(Tally { passed: 5, failed: 0, skipped: 2 }));
        let line = "test result: FAILED. 11 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2.01s";
        assert_eq!(parse_result(line), Some(Tally { passed: 11, failed: 3, skipped: 0 }));
    }

    #[test]
    fn other_lines_are_not_summaries() {
        for line in ["", "test units::tests::rounds ... ok", "running 5 tests", "test result: "] {
            assert_eq!(parse_result(line), None, "{line:?}");
        }
    }

    #[test]
    fn a_failure_or_an_empty_run_is_an_error() {
        assert!(Tally { passed: 1, failed: 0, skipped: 4 }.verdict().is_ok());
        assert!(Tally { passed: 9, failed: 1, skipped: 0 }.verdict().is_err());
        assert!(Tally { passed: 0, failed: 0, skipped: 4 }.verdict().is_err());
    }

    #[test]
    fn a_crashed_program_counts_as_a_failure() {
        let tally = count(Command::new("sh").args(["-c", "kill -SEGV $$"])).expect("sh starts");
        assert_eq!(tally, Tally { passed: 0, failed: 1, skipped: 0 });
    }

    #[test]
    fn the_closing_line_has_its_form() {
        assert_eq!(Tally { passed: 7, failed: 0, skipped: 1 }.to_string(), "7 passed, 0 failed, 1 skipped");
    }
}
