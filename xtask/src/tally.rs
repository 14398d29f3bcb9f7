//! Counting tests: what a run of `cargo test` reports, and the lines that a task ends with.

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::ops::AddAssign;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace::line_of;

/// Of what a test of Rust printed before it failed, so many lines are said again at the end: its last.
const LINES_AGAIN: usize = 30;

/// How many tests passed and were skipped, and what is to be said of each that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub passed: usize,
    pub skipped: usize,
    failures: Vec<String>,
}

impl Tally {
    pub fn passed(passed: usize) -> Self {
        Self { passed, ..Self::default() }
    }

    pub fn skipped(skipped: usize) -> Self {
        Self { skipped, ..Self::default() }
    }

    /// One that failed: says so at once, and again at the end.
    pub fn failed(what: impl Into<String>) -> Self {
        let what = what.into();
        println!("FAILED  {what}");
        Self { failures: vec![what], ..Self::default() }
    }

    pub fn fail(&mut self, what: impl Into<String>) {
        *self += Self::failed(what);
    }

    /// Counts failures that were printed already.
    pub fn add_said(&mut self, failures: impl IntoIterator<Item = String>) {
        self.failures.extend(failures);
    }

    pub fn failures(&self) -> usize {
        self.failures.len()
    }

    /// The last lines of a task: what failed, once more, since it may be thousands of lines up, and the counts.
    /// An error where a test failed, or where none ran at all.
    pub fn conclude(&self) -> Result<()> {
        for failure in &self.failures {
            println!("FAILED  {failure}");
        }
        println!("{self}");
        self.verdict()
    }

    fn verdict(&self) -> Result<()> {
        if !self.failures.is_empty() {
            bail!("{} failed; the lines above say what", self.failures());
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
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failures(), self.skipped)
    }
}

/// The summary line of one test program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Summary {
    passed: usize,
    failed: usize,
    ignored: usize,
}

/// Reads one: `test result: ok. 5 passed; 0 failed; 2 ignored; ...`.
fn parse_result(line: &str) -> Option<Summary> {
    let (_verdict, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut summary = Summary::default();
    for part in counts.split("; ") {
        let Some((number, word)) = part.split_once(' ') else { continue };
        let count = match word {
            "passed" => &mut summary.passed,
            "failed" => &mut summary.failed,
            "ignored" => &mut summary.ignored,
            _ => continue,
        };
        *count = number.parse().ok()?;
    }
    Some(summary)
}

/// What failed tests printed, read line by line: `---- NAME stdout ----` begins one, the list of names after `failures:` ends the last.
#[derive(Default)]
struct Reports {
    done: Vec<String>,
    open: Option<(String, VecDeque<String>)>,
}

impl Reports {
    fn read(&mut self, line: &str) {
        let header = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if header.is_some() || line == "failures:" {
            self.close();
        }
        if let Some(name) = header {
            self.open = Some((name.to_owned(), VecDeque::new()));
        } else if let Some((_, lines)) = &mut self.open
            && !line.is_empty()
        {
            if lines.len() == LINES_AGAIN {
                lines.pop_front();
            }
            lines.push_back(line.to_owned());
        }
    }

    fn close(&mut self) {
        if let Some((name, lines)) = self.open.take() {
            let lines: String = lines.iter().map(|line| format!("\n    {line}")).collect();
            self.done.push(format!("{name}{lines}"));
        }
    }

    /// As many as failed, each with the command that it is from.
    fn take(&mut self, failed: usize, command: &str) -> impl Iterator<Item = String> {
        self.close();
        let mut done = std::mem::take(&mut self.done);
        done.resize(failed, "a test that says nothing of itself".to_owned());
        let command = command.to_owned();
        done.into_iter().map(move |report| format!("`{command}`: {report}"))
    }
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
    let mut reports = Reports::default();
    for text in BufReader::new(output).split(b'\n') {
        let text = text.with_context(|| format!("cannot read what `{line}` prints"))?;
        let text = String::from_utf8_lossy(&text);
        println!("{text}");
        reports.read(&text);
        if let Some(summary) = parse_result(&text) {
            tally.passed += summary.passed;
            tally.skipped += summary.ignored;
            tally.add_said(reports.take(summary.failed, &line));
        }
    }
    let status = child.wait().with_context(|| format!("cannot wait for `{line}`"))?;
    if !status.success() && tally.failures() == 0 {
        tally.fail(format!("`{line}` ({status}) without a failed test: a test program crashed or did not compile"));
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_read() {
        let line = "test result: ok. 5 passed; 0 failed; 2 ignored; 0 measured; 1 filtered out; finished in 0.00s";
        assert_eq!(parse_result(line), Some(Summary { passed: 5, failed: 0, ignored: 2 }));
        let line = "test result: FAILED. 11 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2.01s";
        assert_eq!(parse_result(line), Some(Summary { passed: 11, failed: 3, ignored: 0 }));
    }

    #[test]
    fn other_lines_are_not_summaries() {
        for line in ["", "test units::tests::rounds ... ok", "running 5 tests", "test result: "] {
            assert_eq!(parse_result(line), None, "{line:?}");
        }
    }

    #[test]
    fn a_failure_or_an_empty_run_is_an_error() {
        let ran = Tally { passed: 9, skipped: 4, failures: vec![] };
        assert!(ran.verdict().is_ok());
        assert!(Tally { failures: vec!["one".into()], ..ran }.verdict().is_err());
        assert!(Tally::skipped(4).verdict().is_err());
    }

    #[test]
    fn what_failed_is_said_with_its_last_lines() {
        let printed = "printf 'failures:\\n\\n---- a::b stdout ----\\nthread panicked\\nleft: 1\\n\\n---- c stdout ----\\n'; \
            seq 100; printf '\\nfailures:\\n    a::b\\n    c\\n\\n'; \
            echo 'test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured'; exit 101";
        let tally = count(Command::new("sh").args(["-c", printed])).expect("sh starts");
        assert_eq!((tally.passed, tally.failures()), (1, 2));
        assert!(tally.failures[0].ends_with("`: a::b\n    thread panicked\n    left: 1"), "{:?}", tally.failures);
        assert!(tally.failures[1].contains("`: c\n    71\n    72\n"), "{:?}", tally.failures);
        assert!(tally.failures[1].ends_with("\n    100"), "{:?}", tally.failures);
    }

    #[test]
    fn a_crashed_program_counts_as_a_failure() {
        let tally = count(Command::new("sh").args(["-c", "kill -SEGV $$"])).expect("sh starts");
        assert_eq!((tally.passed, tally.failures()), (0, 1));
    }

    #[test]
    fn the_closing_line_has_its_form() {
        let tally = Tally { passed: 7, skipped: 1, failures: vec![] };
        assert_eq!(tally.to_string(), "7 passed, 0 failed, 1 skipped");
    }
}
