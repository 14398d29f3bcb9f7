//! HAB: what buffers of packages or cores between threads and heap gain (figures 2 and 3), and how many allocations are foreign
//! (tables I and II).

use std::sync::atomic::Ordering;

use larder_lab::{Config, Lowest, Selection};
use larder_percpu::Level;
use larder_policy::labs::Sizes;
use larder_units::Bytes;
use serde_json::{Value, json};

use crate::arena::{Arena, Outcome, Window};
use crate::{Contender, Options, median, rounds};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The paper's threads, and its objects of a compiler.
const THREADS: usize = 80;
const PER_BURST: u64 = 500;

/// A young generation of 10 GiB there; here what 64 buffers of the largest size fit into.
const YOUNG: usize = 256 * MIB;

/// Objects have 16 to 136 bytes, each size as often.
const MEAN_SIZE: f64 = 76.0;

/// Sizes of threads' buffers: 0 for none, then fixed ones, then growing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tlab {
    None,
    Fixed(usize),
    Growing,
}

impl Tlab {
    fn name(self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Fixed(bytes) => format!("{} KiB", bytes / KIB),
            Self::Growing => "growing".to_owned(),
        }
    }

    /// The growing strategy of the paper's machine settled at 2 MiB; ours goes as far.
    fn config(self) -> Config {
        let growing = Sizes { most: Bytes(2 * MIB), ..Sizes::adaptive() };
        match self {
            Self::None => Config::new(Lowest::Nobody, growing),
            Self::Fixed(bytes) => Config::new(Lowest::Threads, Sizes::fixed(Bytes(bytes))),
            Self::Growing => Config::new(Lowest::Threads, growing),
        }
    }
}

fn compile(arena: &Arena, window: Window) -> Outcome {
    arena.run(window, |me, _| {
        let mut state = me as u64 + 1;
        let mut size = || {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            8 * (2 + (state >> 60) as usize)
        };
        while !arena.over.load(Ordering::Relaxed) {
            arena.burst(me, PER_BURST, &mut size);
        }
    })
}

/// One figure and one table: threads' buffers of each size under each size of the level's, and without.
fn figure(options: &Options, level: Level, tlabs: &[Tlab], uppers: &[usize]) -> Result<Value, String> {
    let mut points = Vec::new();
    for tlab in options.some(tlabs) {
        eprintln!("larder-labs: {level:?}, buffers of threads: {}", tlab.name());
        let mut all = Vec::new();
        if tlab != Tlab::None {
            all.push(Contender { name: "alone".to_owned(), config: tlab.config() });
        }
        for upper in options.some(uppers) {
            for (how, selection) in [("", Selection::ReadThenSwap), (", by sequence", Selection::Sequence)] {
                let config = Config { selection, ..tlab.config().under(level, Sizes::fixed(Bytes(upper))) };
                if config.check().is_ok() {
                    all.push(Contender { name: format!("{} KiB{how}", upper / KIB), config });
                }
            }
        }
        let outcomes = rounds(options, &all, YOUNG, THREADS, compile)?;
        let rows: Vec<Value> = all.iter().zip(&outcomes).map(|(c, o)| row(&c.name, o)).collect();
        points.push(json!({ "tlab": tlab.name(), "rows": rows }));
    }
    Ok(json!(points))
}

fn row(name: &str, outcomes: &[Outcome]) -> Value {
    let last = outcomes.last().expect("there is a round");
    let part = |count: fn(&larder_lab::LevelStatistics) -> u64| {
        median(outcomes, move |o| {
            o.levels.first().map_or(0.0, |level| 100.0 * count(level) as f64 / level.taken.max(1) as f64)
        })
    };
    json!({
        "name": name,
        "objects_per_cpu_second": median(outcomes, Outcome::rate),
        "foreign_percent": part(|level| level.migrated + level.fallen_over),
        "migrated_percent": part(|level| level.migrated),
        "fallen_over_percent": part(|level| level.fallen_over),
        "collections_per_gib": median(outcomes, |o| o.per_gib(o.collections, MEAN_SIZE)),
        "counters": last.counters(),
    })
}

/// Both figures and both tables.
pub fn measure(options: &Options) -> Result<Value, String> {
    use Tlab::{Fixed, Growing, None};
    let kib = |n: usize| Fixed(n * KIB);
    let packages = [None, kib(1), kib(4), kib(8), kib(16), kib(32), kib(64), kib(128), Growing];
    let cores = [kib(1), kib(4), kib(16), kib(64), kib(128), Growing];
    Ok(json!({
        "paper": "hab",
        "seconds": options.seconds,
        "rounds": options.rounds,
        "threads": THREADS,
        "young_bytes": YOUNG,
        "cpus": larder_sys::cpus::usable(),
        "packages": figure(options, Level::Package, &packages, &[4, 8, 16, 32, 64].map(|n| n * MIB))?,
        "cores": figure(options, Level::Core, &cores, &[MIB / 2, MIB, 8 * MIB, 16 * MIB])?,
    }))
}
