//! A lock-free array of statistics, updated by transactions: `cargo run -p larder-percpu --example statistics`.
//!
//! Each index has an array of its own. A sample changes sum and count by one commit of both words; the largest follows in the
//! same transaction by a second commit. Every prefix of the chain is a state that a reader may see.

use larder_percpu::{Area, By, Domain, Guarded64, GuardedPair, NotStored};

const SERIES: usize = 4;

#[repr(C)]
struct Series {
    sum_and_count: GuardedPair,
    largest: Guarded64,
}

// SAFETY: words; zero is no sample.
unsafe impl Area for Series {}

static STATISTICS: Domain<[Series; SERIES]> = Domain::new(By::Cpu);

fn note(series: usize, sample: u64) {
    loop {
        let t = STATISTICS.begin();
        let series = &t.area()[series];
        let [sum, count] = series.sum_and_count.load();
        match t.compare_store(&series.sum_and_count, [sum, count], [sum + sample, count + 1]) {
            Ok(()) => {}
            // Another transaction began on this index: nothing was stored.
            Err(NotStored::Interfered | NotStored::Mismatch) => continue,
        }
        // The transaction is still open. The largest is advisory: to lose it to interference is harmless.
        if sample > series.largest.load() {
            let _ = t.store(&series.largest, sample);
        }
        t.end();
        return;
    }
}

fn main() {
    const THREADS: u64 = 8;
    const SAMPLES: u64 = 100_000;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || (1..=SAMPLES).for_each(|sample| note(thread as usize % SERIES, sample)));
        }
    });
    for series in 0..SERIES {
        let (mut sum, mut count, mut largest) = (0, 0, 0);
        for area in STATISTICS.iter() {
            let [s, c] = area[series].sum_and_count.load();
            (sum, count, largest) = (sum + s, count + c, area[series].largest.load().max(largest));
        }
        println!("series {series}: {count} samples, mean {}, largest {largest}", sum / count);
        assert_eq!((count, sum), (2 * SAMPLES, SAMPLES * (SAMPLES + 1)));
    }
    println!("{}", STATISTICS.statistics());
}
