//! "The perils of negative scalability": where a lock scales negatively, a change that only makes the program slower can look
//! like an optimization at many threads, because it keeps threads away from the lock.

use larder_sync::fair::RawMcsLock;
use larder_sync::restrict::ConcurrencyRestricted;

use crate::Options;
use crate::mutexes::{Load, contender};
use crate::study::Study;

/// Steps that the "optimization" adds, on average.
const DELAY: u64 = 125;

type Locked<R> = lock_api::Mutex<R, ()>;

pub fn studies(options: &Options) -> Vec<Study> {
    let plain = Load { critical: options.critical, outside: 0, window: options.window() };
    let slowed = Load { outside: 2 * DELAY, ..plain };
    let contenders = [
        contender::<Locked<RawMcsLock>>("MCS", plain),
        contender::<Locked<RawMcsLock>>("MCS, and a slower program", slowed),
        contender::<Locked<ConcurrencyRestricted<RawMcsLock>>>("MCS, restricted", plain),
    ];
    vec![Study::new(
        format!("perils: MCS, and the same with a delay of {DELAY} steps outside"),
        "Compare the two MCS at few threads and at many: the delay costs most where there is no contention, and little or \
         nothing where it thins out the waiters. Restriction helps where there is contention and costs little where there \
         is none. So measure a change over all numbers of threads.",
        "acquisitions",
        options,
        &contenders,
    )]
}
