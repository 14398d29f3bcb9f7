//! Long runs: `cargo xtask soak` starts them with the time that they have.

use std::time::{Duration, Instant, SystemTime};

use larder_testkit::fuzz::{self, Plan};
use larder_testkit::{WITHOUT_SEQUENCES, asked_seed, handler, in_child, soak_seconds};

/// How many tests share the time.
const TESTS: u64 = 4;

/// Runs plans with one seed after the other until the time is over.
fn soak(name: &str, environment: &[(&str, &str)], plan: fn(u64) -> Plan) {
    in_child(name, environment, || {
        let time = Duration::from_secs((soak_seconds().unwrap_or(40) / TESTS).max(1));
        let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |t| t.as_secs());
        let mut seed = asked_seed().unwrap_or_else(clock);
        let begun = Instant::now();
        fuzz::prepare(&plan(seed));
        handler::install(libc::SIGALRM);
        while begun.elapsed() < time {
            eprintln!("LARDER_SEED={seed}");
            fuzz::work(&plan(seed));
            seed += 1;
        }
        handler::check();
    });
}

#[test]
#[ignore = "soak: cargo xtask soak"]
fn soak_eight_threads_under_stress() {
    soak("soak_eight_threads_under_stress", &[], |seed| Plan {
        collect_every: Some(20),
        markers: Some(4),
        ..Plan::new(8, seed, 2000)
    });
}

#[test]
#[ignore = "soak: cargo xtask soak"]
fn soak_hundreds_of_threads() {
    soak("soak_hundreds_of_threads", &[], |seed| Plan { collect_every: Some(300), ..Plan::new(256, seed, 300) });
}

#[test]
#[ignore = "soak: cargo xtask soak"]
fn soak_handlers_at_any_moment() {
    soak("soak_handlers_at_any_moment", &[], |seed| Plan {
        collect_every: Some(50),
        around: [handler::storm_begins, handler::storm_ends],
        ..Plan::new(16, seed, 1000)
    });
}

#[test]
#[ignore = "soak: cargo xtask soak"]
fn soak_without_sequences() {
    soak("soak_without_sequences", &[WITHOUT_SEQUENCES], |seed| Plan {
        collect_every: Some(50),
        around: [handler::storm_begins, handler::storm_ends],
        ..Plan::new(16, seed, 1000)
    });
}
