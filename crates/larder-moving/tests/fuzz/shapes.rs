//! What a seed chooses of a heap: how its buffers are stacked, whom they belong to, where the threads seem to run.

use larder_lab::{Lowest, Processors, Selection, UPPER};
use larder_moving::{Barrier, Config};
use larder_percpu::Level;
use larder_policy::labs::{NearEnd, Sizes, Sizing};
use larder_units::Bytes;
use std::cell::Cell;
use std::num::NonZeroU16;

use crate::Random;
use crate::mini::small;

thread_local! {
    /// On which simulated CPU the thread is, and what decides where it goes from there.
    static PLACE: Cell<(usize, u64)> = const { Cell::new((0, 1)) };
}

/// Simulated CPUs.
const CPUS: usize = 12;

/// The simulated CPU of the calling thread. It moves now and then, between any two looks: in a refill, too.
fn here() -> usize {
    let (cpu, state) = PLACE.get();
    let mut random = Random(state);
    let cpu = if random.next(4) == 0 { random.next(CPUS) } else { cpu };
    PLACE.set((cpu, random.0));
    cpu
}

/// Lets the calling thread's way among the simulated CPUs be that of a number.
pub fn walk_by(number: u64) {
    PLACE.set((0, number | 1));
}

fn groups(size: u16) -> Level {
    Level::Groups(NonZeroU16::new(size).unwrap())
}

fn lowest_sizes(random: &mut Random) -> Sizes {
    match random.next(5) {
        0 => Sizes::adaptive(),
        1 => Sizes::by_share(),
        n => Sizes::fixed(Bytes([4, 8, 16][n - 2] << 10)),
    }
}

/// Sizes of an upper level, `k` from below: of all three policies, in which sizes of levels differ.
fn upper_sizes(random: &mut Random, k: usize) -> Sizes {
    let (least, most) = (Bytes((16 << 10) << k), Bytes((64 << 10) << k));
    let sizing = [Sizing::Fixed, Sizing::Adaptive, Sizing::Share { target_refills: 4 }][random.next(3)];
    Sizes { sizing, initial: least, least, most }
}

/// Buffers of any owner under any number of levels. Those that could flip are chosen twice as often as others.
fn buffers(random: &mut Random) -> larder_lab::Config {
    let lowest = [
        Lowest::Threads,
        Lowest::Processors(Processors::ConcurrencyIds),
        Lowest::Processors(Processors::Cpus),
        Lowest::Nobody,
        Lowest::Flip(Processors::ConcurrencyIds),
        Lowest::Flip(Processors::Cpus),
        Lowest::Flip(Processors::Cpus),
    ][random.next(7)];
    let mut config = larder_lab::Config::new(lowest, lowest_sizes(random));
    config.selection = match random.next(3) {
        0 => Selection::Sequence,
        1 => Selection::ReadThenSwap,
        _ => Selection::Simulated { cpus: CPUS as u32, here },
    };
    let simulated = matches!(config.selection, Selection::Simulated { .. });
    let narrow = if simulated { [groups(1), groups(2)] } else { [Level::Core, groups(1)] }[random.next(2)];
    let middle = if simulated { [groups(4), groups(6)] } else { [Level::Cache, Level::Package] }[random.next(2)];
    let all = [narrow, middle, Level::Process];
    let levels = random.next(UPPER + 1).max(usize::from(lowest == Lowest::Nobody));
    // Any so many of them, from below.
    let left_out = random.next(UPPER);
    let chosen = all.into_iter().enumerate().filter(|&(i, _)| levels == 3 || (levels == 2) == (i != left_out));
    for (k, (_, level)) in chosen.take(levels).enumerate() {
        config = config.under(level, upper_sizes(random, k));
    }
    config.near_end = [NearEnd::Shrink, NearEnd::Singly][random.next(2)];
    config.sequences = random.next(8) != 0;
    config
}

/// A heap of the random kind.
pub fn heap(random: &mut Random) -> Config {
    Config {
        barrier: [Barrier::ConditionalCards, Barrier::Cards, Barrier::StoreBuffer][random.next(3)],
        tenure: 1 + random.next(6) as u8,
        collectors: random.next(4),
        collect_every: [0, 0, 0, 40, 9][random.next(5)],
        most_young: [Bytes(512 << 10), Bytes::mib(2)][random.next(2)],
        old: Bytes::mib(32),
        buffers: buffers(random),
        old_buffers: buffers(random),
        ..small()
    }
}
