//! VEE'05: the cost of an allocation (table 1), threads that compute (figure 9), threads that sleep (figure 10, table 2).

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use larder_lab::{Config, Lowest, Processors};
use larder_policy::labs::{NearEnd, Sizes};
use larder_units::Bytes;
use serde_json::{Value, json};

use crate::arena::{Arena, Outcome, Window};
use crate::{Contender, Options, median, rounds};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Objects of one message of the chat: its text, what it is wrapped in, and what each of the room's twenty is told.
const PER_MESSAGE: u64 = 30;
/// Objects between two looks at the stop where threads compute.
const PER_ORDER: u64 = 200;

/// Whom buffers belong to: the paper's three, and concurrency ids.
fn associations() -> [(&'static str, Lowest); 4] {
    [
        ("threads", Lowest::Threads),
        ("CPUs", Lowest::Processors(Processors::Cpus)),
        ("flip", Lowest::Flip(Processors::Cpus)),
        ("ids", Lowest::Processors(Processors::ConcurrencyIds)),
    ]
}

fn contenders(sizes: Sizes, near_end: NearEnd) -> Vec<Contender> {
    associations()
        .into_iter()
        .map(|(name, lowest)| Contender {
            name: name.to_owned(),
            config: Config { near_end, ..Config::new(lowest, sizes) },
        })
        .collect()
}

const SIZES: [usize; 16] = [24, 24, 32, 24, 16, 40, 24, 64, 24, 32, 16, 24, 48, 24, 136, 32];
const MEAN_SIZE: f64 = 36.5;

/// Sizes of objects: 24 bytes mostly, some larger, as a compiler's or a server's.
fn sizes() -> impl FnMut() -> usize {
    let mut at = 0;
    move || {
        at = (at + 1) % SIZES.len();
        SIZES[at]
    }
}

/// Every thread allocates without a pause.
fn compute(arena: &Arena, window: Window) -> Outcome {
    arena.run(window, |me, _| {
        let mut size = sizes();
        while !arena.over.load(Ordering::Relaxed) {
            arena.burst(me, PER_ORDER, &mut size);
        }
    })
}

/// Messages go round among threads that sleep until one comes: twice as many messages as CPUs are under way.
fn chat(arena: &Arena, window: Window) -> Outcome {
    let inboxes: Vec<AtomicU32> = (0..arena.members()).map(|_| AtomicU32::new(0)).collect();
    let messages = 2 * larder_sys::cpus::usable();
    (0..messages).for_each(|n| inboxes[n * inboxes.len() / messages].store(1, Ordering::Relaxed));
    // Not to a neighbour: a prime that divides no number of threads here.
    let next = |me: usize| (me + 37) % inboxes.len();
    arena.run(window, |me: usize, threads: &[Thread]| {
        let mut size = sizes();
        loop {
            while inboxes[me].load(Ordering::Acquire) == 0 {
                if arena.over.load(Ordering::Acquire) {
                    return;
                }
                thread::park();
            }
            inboxes[me].fetch_sub(1, Ordering::AcqRel);
            arena.burst(me, PER_MESSAGE, &mut size);
            inboxes[next(me)].fetch_add(1, Ordering::AcqRel);
            threads[next(me)].unpark();
        }
    })
}

fn row(name: &str, outcomes: &[Outcome]) -> Value {
    let last = outcomes.last().expect("there is a round");
    json!({
        "name": name,
        "objects_per_cpu_second": median(outcomes, Outcome::rate),
        "objects_per_second": median(outcomes, |o| o.objects as f64 / o.elapsed.as_secs_f64()),
        "collections_per_gib": median(outcomes, |o| o.per_gib(o.collections, MEAN_SIZE)),
        "unused_bytes_per_gib": median(outcomes, |o| o.per_gib(o.buffers.partly_used_bytes, MEAN_SIZE)),
        "unused_part": median(outcomes, |o| o.buffers.partly_used_bytes as f64 / (o.buffers.lab_bytes.max(1)) as f64),
        "counters": last.counters(),
    })
}

/// Table 1: one thread, a young generation of 2 MiB, the adaptive sizes.
fn table_1(options: &Options) -> Result<Value, String> {
    let all = contenders(Sizes::adaptive(), NearEnd::Shrink);
    let outcomes = rounds(options, &all, 2 * MIB, 1, compute)?;
    let frequency = ticks_per_ns();
    let rows: Vec<Value> = all
        .iter()
        .zip(&outcomes)
        .map(|(contender, outcomes)| {
            let mut row = row(&contender.name, outcomes);
            row["ns_per_object"] = median(outcomes, |o| 1e9 / o.rate());
            row["cycles_per_object"] = median(outcomes, |o| 1e9 / o.rate() * frequency);
            row
        })
        .collect();
    Ok(json!({ "young_bytes": 2 * MIB, "tsc_per_ns": frequency, "rows": rows }))
}

/// Ticks of the time-stamp counter in a nanosecond.
fn ticks_per_ns() -> f64 {
    let (clock, ticks) = (std::time::Instant::now(), larder_ticks());
    thread::sleep(Duration::from_millis(20));
    (larder_ticks() - ticks) as f64 / clock.elapsed().as_nanos() as f64
}

fn larder_ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Figure 9: 1 to 64 threads that compute; and 1000, which the paper does not have.
fn figure_9(options: &Options) -> Result<Value, String> {
    let mut points = Vec::new();
    for threads in options.some(&[1, 2, 4, 8, 16, 32, 64, 1000]) {
        eprintln!("larder-labs: figure 9, {threads} threads");
        let all = contenders(Sizes::adaptive(), NearEnd::Shrink);
        let outcomes = rounds(options, &all, 4 * MIB, threads, compute)?;
        let rows: Vec<Value> = all.iter().zip(&outcomes).map(|(c, o)| row(&c.name, o)).collect();
        points.push(json!({ "threads": threads, "rows": rows }));
    }
    Ok(json!({ "young_bytes": 4 * MIB, "points": points }))
}

/// Figure 10: 200 to 1000 threads that sleep, three sizes of the young generation, six policies; and what happens near the
/// end of the region, in the paper's way and in ours.
fn figure_10(options: &Options) -> Result<Value, String> {
    let policies = [
        ("default", Sizes::adaptive()),
        ("4 KiB", Sizes::fixed(Bytes(4 * KIB))),
        ("16 KiB", Sizes::fixed(Bytes(16 * KIB))),
        ("64 KiB", Sizes::fixed(Bytes(64 * KIB))),
        ("128 KiB", Sizes::fixed(Bytes(128 * KIB))),
        ("512 KiB", Sizes::fixed(Bytes(512 * KIB))),
    ];
    let mut points = Vec::new();
    for young in options.some(&[2 * MIB, 4 * MIB, 8 * MIB]) {
        for threads in options.some(&[200, 400, 600, 800, 1000]) {
            eprintln!("larder-labs: figure 10, {} MiB, {threads} threads", young / MIB);
            let mut all = Vec::new();
            for (end, near_end) in [("", NearEnd::Singly), (", shrinking", NearEnd::Shrink)] {
                for (policy, sizes) in policies {
                    for (by, lowest) in [associations()[0], associations()[1]] {
                        let config = Config { near_end, ..Config::new(lowest, sizes) };
                        all.push(Contender { name: format!("{by}, {policy}{end}"), config });
                    }
                }
            }
            let outcomes = rounds(options, &all, young, threads, chat)?;
            let rows: Vec<Value> = all.iter().zip(&outcomes).map(|(c, o)| row(&c.name, o)).collect();
            points.push(json!({ "young_bytes": young, "threads": threads, "rows": rows }));
        }
    }
    Ok(json!({ "points": points }))
}

/// Collections in a run of table 2, as many as the paper's processors had: fewer would say nothing of what they left unused, and
/// much of how many came before the flip.
const COLLECTIONS: u64 = 55;

/// Table 2: buffers of 64 KiB, a young generation of 4 MiB, 10 and 50 rooms.
fn table_2(options: &Options) -> Result<Value, String> {
    let mut rooms = Vec::new();
    for (count, threads) in [(10, 200), (50, 1000)] {
        eprintln!("larder-labs: table 2, {count} rooms");
        let all = contenders(Sizes::fixed(Bytes(64 * KIB)), NearEnd::Singly);
        let outcomes = rounds(options, &all, 4 * MIB, threads, |arena, window| {
            chat(arena, Window { collections: if options.quick { 1 } else { COLLECTIONS }, ..window })
        })?;
        let rows: Vec<Value> = all.iter().zip(&outcomes).map(|(c, o)| row(&c.name, o)).collect();
        rooms.push(json!({ "rooms": count, "threads": threads, "rows": rows }));
    }
    Ok(json!(rooms))
}

/// All of them.
pub fn measure(options: &Options) -> Result<Value, String> {
    Ok(json!({
        "paper": "vee05",
        "seconds": options.seconds,
        "mean_object_bytes": MEAN_SIZE,
        "rounds": options.rounds,
        "cpus": larder_sys::cpus::usable(),
        "table_1": table_1(options)?,
        "figure_9": figure_9(options)?,
        "table_2": table_2(options)?,
        "figure_10": figure_10(options)?,
    }))
}
