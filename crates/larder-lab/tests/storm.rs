//! Storms: 2, 64 and 1000 threads on every association and hierarchy, stopped by signals at any instruction. After each
//! stop every byte belongs to exactly one object or one rest, and every object is as it was written.

mod world;

use std::num::NonZeroU16;
use std::sync::Mutex;

use larder_lab::{Config, Lowest, Processors, Selection};
use larder_percpu::Level;
use larder_policy::labs::{NearEnd, Sizes};
use larder_units::Bytes;
use world::{World, small};

/// Stops are by a signal of the whole process: one storm at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const KIB: fn(usize) -> Sizes = |n| Sizes::fixed(Bytes(n << 10));

/// Every shape that the papers have, and those between.
fn shapes() -> Vec<Config> {
    let pairs = Level::Groups(NonZeroU16::new(2).unwrap());
    let each = Level::Groups(NonZeroU16::MIN);
    let threads = Config::new(Lowest::Threads, KIB(4));
    let ids = Config::new(Lowest::Processors(Processors::ConcurrencyIds), KIB(4));
    let cpus = Config::new(Lowest::Processors(Processors::Cpus), KIB(4));
    let nobody = Config::new(Lowest::Nobody, KIB(4));
    let paper = |config: Config| Config { selection: Selection::ReadThenSwap, ..config };
    vec![
        threads,
        Config { sequences: false, ..threads },
        ids,
        cpus,
        Config { near_end: NearEnd::Singly, ..ids },
        Config::new(Lowest::Flip(Processors::Cpus), KIB(16)),
        Config::new(Lowest::Flip(Processors::ConcurrencyIds), Sizes::adaptive()),
        Config::new(Lowest::FewThreads(Processors::ConcurrencyIds), Sizes::adaptive()),
        threads.under(Level::Core, KIB(64)),
        paper(threads.under(Level::Package, KIB(64))),
        threads.under(each, KIB(16)).under(Level::Package, KIB(128)),
        ids.under(Level::Cache, KIB(64)).under(Level::Process, KIB(256)),
        Config { sequences: false, ..threads.under(pairs, KIB(64)) },
        nobody.under(Level::Package, KIB(64)),
        nobody.under(each, Sizes::adaptive()),
        paper(nobody.under(Level::Core, KIB(64)).under(Level::Process, KIB(512))),
        Config { sizes: Sizes::by_share(), ..ids },
    ]
}

fn storm(threads: usize, objects: u64, stops: usize, bytes: usize, shapes: impl Iterator<Item = Config>) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for (number, config) in shapes.enumerate() {
        let world = World::new(config, bytes, threads);
        world.storm(objects, stops, small, 256);
        let done: u64 = world.members.iter().map(|m| m.allocated.load(std::sync::atomic::Ordering::Relaxed)).sum();
        assert!(done >= objects * threads as u64, "shape {number}");
    }
}

#[test]
fn two_threads() {
    storm(2, 20_000, 8, 2 << 20, shapes().into_iter());
}

#[test]
fn sixty_four_threads() {
    storm(64, 500, 3, 2 << 20, shapes().into_iter());
}

#[test]
fn a_thousand_threads() {
    // Every third shape: starting a thousand threads is most of it.
    storm(1000, 20, 1, 16 << 20, shapes().into_iter().step_by(3));
}
