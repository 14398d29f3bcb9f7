//! Locks against their peers, in interleaved rounds of fixed time.
//!
//! ```text
//! cargo bench -p larder-sync --features std --bench locks -- [--rounds N] [--seconds S] [--repeats N] [--threads 1,2,4] [NAME...]
//! ```
//!
//! Each round runs every lock once at one number of threads, one after the other, so that what else the machine does
//! falls on all. A window in which other processes and the host took more than 2 % of the machine is rejected and run again, up to
//! `--repeats` times for each lock at each number of threads (as many as rounds). A result is the median of the rounds, with the lowest and the highest behind it. Operations are counted
//! inside the window only. "per CPU-s" divides by the processor time that the process got in the window.

#[path = "../../../larder-experiments/src/locks/lines.rs"]
mod lines;
#[path = "../../../larder-experiments/src/locks/load.rs"]
mod load;
mod mutexes;
mod others;
mod window;

use std::time::Duration;

fn main() {
    let mut options = window::Options {
        rounds: 7,
        repeats: 0,
        window: Duration::from_secs(10),
        threads: vec![1, 2, 4, 16, 64, 256],
        only: Vec::new(),
    };
    let mut repeats = None;
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        let mut value = |what: &str| {
            arguments.next().unwrap_or_else(|| {
                eprintln!("locks: {argument} needs {what}");
                std::process::exit(2);
            })
        };
        match argument.as_str() {
            "--rounds" => options.rounds = number(&value("a number of rounds")) as usize,
            "--repeats" => repeats = Some(number(&value("a number of windows")) as usize),
            "--seconds" => options.window = Duration::from_secs_f64(number(&value("a number of seconds"))),
            "--threads" => {
                options.threads = value("numbers of threads, like 1,2,4")
                    .split(',')
                    .map(|threads| number(threads) as usize)
                    .collect();
            }
            name if !name.starts_with('-') => options.only.push(name.to_owned()),
            other => {
                eprintln!(
                    "locks: {other} is no option: --rounds, --seconds, --repeats, --threads, or names of experiments"
                );
                std::process::exit(2);
            }
        }
    }
    options.rounds = options.rounds.max(1);
    options.repeats = repeats.unwrap_or(options.rounds);
    window::preamble(&options);
    mutexes::run(&options);
    others::run(&options);
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_else(|_| {
        eprintln!("locks: {text} is not a number");
        std::process::exit(2);
    })
}
