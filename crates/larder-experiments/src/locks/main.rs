//! `larder-locks`: measures locks, queues and ways of waiting, and prints JSON. `larder locks` starts it and draws.
//!
//! Every study runs a fixed time and reports the work done in it (the notes' fixed-time-report-work), in rounds that are
//! interleaved: each round runs every contender once, so that what else the machine does falls on all. Operations are
//! counted inside the window only, and are divided by the processor time that the process got, because the machine may
//! be shared.
//!
//! ```text
//! larder-locks mutex --threads 1,2,4 --seconds 0.2 --rounds 3
//! ```

mod clock;
mod contenders;
mod fetch_add;
mod lifo;
mod lines;
mod load;
mod machine;
mod mutexes;
mod perils;
mod polite;
mod queues;
mod read_write;
mod study;
mod window;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};

#[derive(Parser)]
#[command(name = "larder-locks", version, about = "Measures locks, queues and ways of waiting; prints JSON")]
struct Options {
    /// What to measure
    #[arg(value_enum, default_value = "mutex")]
    what: What,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128,256", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// Length of a window, in seconds
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Rounds, interleaved
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// How many disturbed windows are run again, for each contender at each point [default: as many as rounds]
    #[arg(long)]
    repeats: Option<u16>,
    /// Steps of the critical section
    #[arg(long, default_value_t = 4)]
    critical: u64,
    /// Steps of the non-critical section: a number drawn anew each time from 0 to below this; several for several studies
    #[arg(long, value_delimiter = ',', default_value = "0,250")]
    outside: Vec<u64>,
    /// Only contenders with one of these names, or whose names contain one that is nobody's
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Mutexes under a critical and a non-critical section
    Mutex,
    /// The study locks with LIFO admission, and how many threads fit over a lock
    Lifo,
    /// Reader-writer locks
    Rwlock,
    /// Bounded queues
    Queue,
    /// How a slower program looks faster where scaling is negative
    Perils,
    /// Fetch-and-add against compare-and-swap
    FetchAdd,
    /// How much waiting threads disturb those that work
    Polite,
    /// Clocks that never go back, by their granularity
    Clock,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a window lasts from 0.001 to 3600 seconds".to_owned()),
    }
}

impl Options {
    fn window(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    fn repeats(&self) -> usize {
        usize::from(self.repeats.unwrap_or(self.rounds))
    }

    /// Whether `name`, one of `names`, was asked for: as a whole, or as a part where no other one is called so.
    fn wants(&self, name: &str, names: &[&str]) -> bool {
        let asks = |only: &String| name == only || name.contains(only.as_str()) && !names.contains(&only.as_str());
        self.only.is_empty() || self.only.iter().any(asks)
    }

    fn threads(&self) -> impl Iterator<Item = usize> {
        self.threads.iter().map(|&threads| usize::from(threads))
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let studies = match options.what {
        What::Mutex => mutexes::studies(&options),
        What::Lifo => mutexes::lifo_studies(&options),
        What::Rwlock => read_write::studies(&options),
        What::Queue => queues::studies(&options),
        What::Perils => perils::studies(&options),
        What::FetchAdd => fetch_add::studies(&options),
        What::Polite => polite::studies(&options),
        What::Clock => clock::studies(&options),
    };
    if studies.iter().all(study::Study::is_empty) {
        eprintln!("larder-locks: no contender is named like {}: leave --only out", options.only.join(" or "));
        return ExitCode::from(2);
    }
    let studies: Vec<_> = studies.iter().map(study::Study::to_json).collect();
    println!("{}", serde_json::json!({ "machine": machine::describe(&options), "studies": studies }));
    ExitCode::SUCCESS
}
