//! `larder experiment NAME`: runs a paper's experiments here, prints its numbers beside ours, and draws its figures; or runs a peer.
//!
//! Each experiment is a module with one function that measures and fills a [`Report`]; [`measure`] runs programs on either library,
//! [`html`] draws. What is written: `NAME.html`, one page that needs nothing beside it, and `NAME.json`, every figure of every run.

mod hotspot;
mod html;
mod labs;
mod labs_numbers;
mod measure;
mod programs;
mod thesis;

use std::fs;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::results::ResultFile;
use crate::say;
use html::{Chart, Page};

/// Arguments of `larder experiment`.
#[derive(Args)]
#[command(after_help = "\
The programs come with Larder (DIR/apps and DIR/libexec/larder, made by `cargo xtask stage DIR`). Runs are interleaved, and tables have \
medians. The default takes some minutes, with sizes for this machine; --full takes the paper's sizes, and hours.")]
pub struct ExperimentArguments {
    /// What to run
    #[arg(value_enum)]
    name: Name,
    /// The folder for NAME.html and NAME.json
    #[arg(long, short, default_value = ".", value_name = "FOLDER")]
    output: PathBuf,
    /// The paper's sizes and numbers of threads; with hotspot, longer runs at more numbers of threads
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// The smallest sizes, one round: to see that everything runs
    #[arg(long)]
    quick: bool,
    /// Of hotspot, this program only
    #[arg(long, value_name = "PROGRAM", value_parser = hotspot::PROGRAMS)]
    only: Option<String>,
}

/// The experiments.
#[derive(Clone, Copy, ValueEnum)]
enum Name {
    /// Endo's thesis (2001), chapter 2: allocation and block sharing
    #[value(name = "thesis-2")]
    Thesis2,
    /// Endo's thesis (2001), chapter 3: parallel marking
    #[value(name = "thesis-3")]
    Thesis3,
    /// Endo's thesis (2001), chapter 5: cycles beside the program
    #[value(name = "thesis-5")]
    Thesis5,
    /// Garthwaite, Dice and White (VEE'05): allocation buffers of processors
    Vee05,
    /// Kirsch, Payer and Röck: hierarchical allocation buffers
    Hab,
    /// Our moving heap against HotSpot's: the same programs in C and in Java
    Hotspot,
}

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// To see that it runs.
    Quick,
    /// For this machine.
    Scaled,
    /// The paper's.
    Full,
}

impl Size {
    /// One of three values.
    pub fn of<T>(self, quick: T, scaled: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Scaled => scaled,
            Self::Full => full,
        }
    }
}

/// What an experiment found: for people on the terminal, for people with a browser, and for programs.
pub struct Report {
    text: String,
    page: Page,
    json: Value,
}

impl Report {
    fn new(title: &str) -> Self {
        Self { text: format!("{title}\n"), page: Page::new(title), json: json!({ "title": title }) }
    }

    /// Begins a section.
    fn heading(&mut self, text: &str) {
        self.text += &format!("\n{text}\n");
        self.page.heading(text);
    }

    /// Says something.
    fn say(&mut self, text: &str) {
        self.text += &format!("{text}\n");
        self.page.text(text);
    }

    /// A table; a row whose first cell begins with `*` has the paper's numbers.
    fn table(&mut self, head: &[String], rows: &[Vec<String>]) {
        let all = || std::iter::once(head).chain(rows.iter().map(Vec::as_slice));
        let width = |column: usize| {
            all().filter_map(|row| row.get(column)).map(|c| c.trim_start_matches('*').len()).max().unwrap_or(0)
        };
        for row in all() {
            for (column, cell) in row.iter().enumerate() {
                let (cell, width) = (cell.trim_start_matches('*'), width(column));
                self.text += &if column == 0 { format!("  {cell:width$}") } else { format!("  {cell:>width$}") };
            }
            self.text += "\n";
        }
        self.page.table(head, rows);
    }

    /// A figure, on the page only.
    fn chart(&mut self, chart: &Chart) {
        self.page.chart(chart);
    }

    /// A value under a key.
    fn put(&mut self, key: &str, value: Value) {
        self.json[key] = value;
    }
}

/// Runs the experiment, writes both files, and prints the tables on standard output.
pub fn run(arguments: &ExperimentArguments) -> Result<u8, Failure> {
    let size = match (arguments.quick, arguments.full) {
        (true, _) => Size::Quick,
        (_, true) => Size::Full,
        _ => Size::Scaled,
    };
    if arguments.only.is_some() && !matches!(arguments.name, Name::Hotspot) {
        return Err(Failure::tool("--only chooses among the programs of hotspot: leave it out"));
    }
    // Before hours of work.
    fs::create_dir_all(&arguments.output).map_err(|error| {
        Failure::tool(format!(
            "{} cannot be made: {error}: name another folder with --output",
            arguments.output.display()
        ))
    })?;
    let name = match arguments.name {
        Name::Thesis2 => "thesis-2",
        Name::Thesis3 => "thesis-3",
        Name::Thesis5 => "thesis-5",
        Name::Vee05 => "vee05",
        Name::Hab => "hab",
        Name::Hotspot => "hotspot",
    };
    let open = |ending| ResultFile::open(&arguments.output.join(format!("{name}.{ending}")));
    let (html, json) = (open("html")?, open("json")?);
    let report = match arguments.name {
        Name::Thesis2 => thesis::chapter_2(&measure::Bench::new(size)?, size)?,
        Name::Thesis3 => thesis::chapter_3(&measure::Bench::new(size)?, size)?,
        Name::Thesis5 => thesis::chapter_5(&measure::Bench::new(size)?, size)?,
        Name::Vee05 => labs::vee05(size)?,
        Name::Hab => labs::hab(size)?,
        Name::Hotspot => hotspot::hotspot(size, arguments.only.as_deref())?,
    };
    // A failure here comes after the files, which took long to measure.
    let printed = say::print(&report.text);
    let files = [
        (html, report.page.finish()),
        (json, serde_json::to_string_pretty(&report.json).expect("a value is JSON") + "\n"),
    ];
    for (file, content) in files {
        let at = file.path().display().to_string();
        file.write(&content)?;
        note!("wrote {at}");
    }
    printed.map(|()| 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_their_numbers_unmarked() {
        let mut report = Report::new("t");
        report
            .table(&["a".into(), "b".into()], &[vec!["*long name".into(), "1".into()], vec!["x".into(), "100".into()]]);
        assert_eq!(report.text, "t\n  a            b\n  long name    1\n  x          100\n");
    }
}
