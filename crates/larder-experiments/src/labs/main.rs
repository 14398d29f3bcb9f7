//! `larder-labs`: measures allocation buffers on a bump region, and prints JSON. `larder experiment vee05` and `hab` start it and
//! draw.
//!
//! Each study runs its contenders interleaved, in rounds, for a fixed time each; the medians are printed, and with them what
//! the buffers counted in the last round. Collections copy nothing here: what is measured is what buffers cost, and how much
//! of the region they leave unused.
//!
//! ```text
//! larder-labs vee05 --seconds 0.2 --rounds 3
//! ```

mod arena;
mod hab;
mod vee05;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use larder_lab::Config;
use serde_json::{Value, json};

use arena::{Arena, Outcome, Window};

#[derive(Parser)]
#[command(name = "larder-labs", version, about = "Measures allocation buffers on a bump region; prints JSON")]
struct Options {
    /// Which paper's tables and figures
    #[arg(value_enum)]
    paper: Paper,
    /// Length of a window, in seconds
    #[arg(long, default_value_t = 0.2, value_parser = seconds)]
    seconds: f64,
    /// Rounds, interleaved
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=99))]
    rounds: u16,
    /// The smallest numbers of threads and sizes only: to see that everything runs
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Paper {
    /// Garthwaite, Dice and White: buffers of processors (table 1, figures 9 and 10, table 2)
    Vee05,
    /// Kirsch, Payer and Röck: hierarchical buffers (figures 2 and 3, tables I and II)
    Hab,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a window lasts from 0.001 to 3600 seconds".to_owned()),
    }
}

impl Options {
    fn window(&self) -> Window {
        Window::of(Duration::from_secs_f64(self.seconds))
    }

    /// What is taken of a list of sizes: with `--quick`, its first and its last.
    fn some<T: Copy>(&self, all: &[T]) -> Vec<T> {
        if self.quick && all.len() > 2 { vec![all[0], all[all.len() - 1]] } else { all.to_vec() }
    }
}

/// One contender of a study.
struct Contender {
    /// What it is, for people and as a key.
    name: String,
    config: Config,
}

/// Runs every contender once in each round: the outcomes of each.
fn rounds(
    options: &Options,
    contenders: &[Contender],
    bytes: usize,
    threads: usize,
    run: impl Fn(&Arena, Window) -> Outcome,
) -> Result<Vec<Vec<Outcome>>, String> {
    let mut outcomes: Vec<Vec<Outcome>> = contenders.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.rounds {
        for (contender, outcomes) in contenders.iter().zip(&mut outcomes) {
            let arena = Arena::new(contender.config, bytes, threads)?;
            if let Some(why) = arena.ready.instead {
                eprintln!("larder-labs: {} by threads instead: {why}", contender.name);
            }
            outcomes.push(run(&arena, options.window()));
        }
    }
    Ok(outcomes)
}

/// The median of a value, with its spread.
fn median(outcomes: &[Outcome], value: impl Fn(&Outcome) -> f64) -> Value {
    let mut all: Vec<f64> = outcomes.iter().map(value).collect();
    all.sort_by(f64::total_cmp);
    json!({ "median": all[all.len() / 2], "least": all[0], "most": all[all.len() - 1] })
}

fn main() -> ExitCode {
    let options = Options::parse();
    let measured = match options.paper {
        Paper::Vee05 => vee05::measure(&options),
        Paper::Hab => hab::measure(&options),
    };
    match measured {
        Ok(value) => {
            println!("{value:#}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("larder-labs: {why}");
            ExitCode::FAILURE
        }
    }
}
