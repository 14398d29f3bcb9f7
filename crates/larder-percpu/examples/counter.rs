//! A sharded counter: `cargo run -p larder-percpu --example counter`.

use larder_percpu::{By, structures::Counter};

static REQUESTS: Counter = Counter::new(By::ConcurrencyId);

fn main() {
    const THREADS: u64 = 8;
    const ADDS: u64 = 1_000_000;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..ADDS).for_each(|_| REQUESTS.add(1)));
        }
    });
    println!("counted {} by {:?}", REQUESTS.sum(), REQUESTS.domain().mode());
    assert_eq!(REQUESTS.sum(), THREADS * ADDS);
}
