//! What `larder experiment thesis-3` measures in a process of its own.
//!
//! `thesis loads [MIB]` prints the machine's limits, `thesis marking [MIB [ROUNDS]]` the speed of every version of the markers.

use std::process::ExitCode;

use larder_experiments::{loads, marking};
use serde_json::json;

const USAGE: &str = "usage: thesis loads [MIB] | thesis marking [MIB [ROUNDS]]";

/// The number in an argument, or what is taken without it.
fn number(text: Option<&String>, without: usize) -> Result<usize, String> {
    text.map_or(Ok(without), |text| {
        text.parse()
            .ok()
            .filter(|n| (1..=1 << 16).contains(n))
            .ok_or(format!("'{text}' is no number from 1 to 65536; {USAGE}"))
    })
}

fn run(arguments: &[String]) -> Result<serde_json::Value, String> {
    match arguments.first().map(String::as_str) {
        Some("loads") => {
            let mib = number(arguments.get(1), 256)?;
            let lines = loads::Lines::new(mib << 20);
            let [one, two] = [1, 2].map(|threads| lines.rates(threads, 2_000_000, 3));
            Ok(json!({
                "mib": mib,
                "dependent_per_s": one.dependent, "independent_per_s": one.independent, "in_order_per_s": one.in_order,
                "dependent_per_s_two": two.dependent, "independent_per_s_two": two.independent, "in_order_per_s_two": two.in_order,
            }))
        }
        Some("marking") => {
            let (mib, rounds) = (number(arguments.get(1), 64)?, number(arguments.get(2), 3)?);
            let results: Vec<_> = marking::measure(mib, rounds)
                .into_iter()
                .map(|m| {
                    json!({
                        "shape": m.shape, "without": m.without, "markers": m.markers, "objects": m.objects, "live_bytes": m.bytes,
                        "seconds": m.seconds, "objects_per_s": m.objects as f64 / m.seconds,
                    })
                })
                .collect();
            Ok(json!({ "mib": mib, "rounds": rounds, "results": results }))
        }
        _ => Err(USAGE.to_owned()),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(value) => {
            println!("{value}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("thesis: {message}");
            ExitCode::from(2)
        }
    }
}
