//! Locks against their peers, in interleaved rounds of fixed time.
//!
//! ```text
//! cargo bench -p larder-sync --features std --bench locks -- [--rounds N] [--seconds S] [--threads 1,2,4] [NAME...]
//! ```
//!
//! Each round runs every lock once at one number of threads, one after the other, so that what else the machine does
//! falls on all. A result is the median of the rounds, with the lowest and the highest behind it. Operations are counted
//! inside the window only. "per CPU-s" divides by the processor time that the process got in the window.

mod mutexes;
mod others;
mod window;

use std::time::Duration;

fn main() {
    let mut options = window::Options {
        rounds: 7,
        window: Duration::from_secs(10),
        threads: vec![1, 2, 4, 16, 64, 256],
        only: Vec::new(),
    };
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
            "--seconds" => options.window = Duration::from_secs_f64(number(&value("a number of seconds"))),
            "--threads" => {
                options.threads = value("numbers of threads, like 1,2,4")
                    .split(',')
                    .map(|threads| number(threads) as usize)
                    .collect();
            }
            name if !name.starts_with('-') => options.only.push(name.to_owned()),
            other => {
                eprintln!("locks: {other} is no option: --rounds, --seconds, --threads, or names of experiments");
                std::process::exit(2);
            }
        }
    }
    options.rounds = options.rounds.max(1);
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
