//! How shuttle's models are run.

use std::sync::Arc;

use larder_sync::step;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};

/// Schedules of each model where nobody asks for more.
const SCHEDULES: usize = 100;

/// Most schedules of a model that has a mistake in it: the first that shows the mistake is the last. In the rarest of them one
/// schedule in a few hundred does.
const SCHEDULES_UNTIL_FOUND: usize = 100_000;

/// Changes of priority in one schedule.
const DEPTH: usize = 5;

/// Where schedules begin, so that every run of the tests sees the same ones.
const SEED: u64 = 0x1a5d_e500;

/// `SHUTTLE_ITERATIONS`: so many schedules of each model, from a new beginning each time. For a search; `cargo xtask soak` makes one.
fn searched() -> Option<usize> {
    std::env::var("SHUTTLE_ITERATIONS").ok().and_then(|n| n.parse().ok())
}

/// Runs a model under both schedulers.
pub fn run(model: impl Fn() + Send + Sync + 'static) {
    let model = Arc::new(model);
    let under = |scheduler: Box<dyn Scheduler + Send>| {
        let model = model.clone();
        Runner::new(scheduler, Config::new()).run(move || model());
    };
    match searched() {
        Some(schedules) if step::all_kept() => {
            under(Box::new(PctScheduler::new(DEPTH, schedules)));
            under(Box::new(RandomScheduler::new(schedules)));
        }
        _ => {
            let schedules = if step::all_kept() { SCHEDULES } else { SCHEDULES_UNTIL_FOUND };
            under(Box::new(PctScheduler::new_from_seed(SEED, DEPTH, schedules)));
            under(Box::new(RandomScheduler::new_from_seed(SEED, schedules)));
        }
    }
}
