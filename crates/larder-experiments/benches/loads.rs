//! `cargo bench -p larder-experiments --bench loads`: the machine's limits for loads, for memory of several sizes, with one thread and
//! with two. `SIZES=1,100,1024` names the sizes, in MiB.

use larder_experiments::loads::Lines;

fn main() {
    let sizes = std::env::var("SIZES").unwrap_or_else(|_| "1,100,1024".to_owned());
    println!("| MiB | threads | dependent, ns | independent, ns | in order, ns |\n|---|---|---|---|---|");
    for size in sizes.split(',') {
        let Ok(mib) = size.trim().parse::<usize>() else {
            eprintln!("SIZES is '{sizes}': set it to numbers of MiB with commas between");
            std::process::exit(2);
        };
        let lines = Lines::new(mib << 20);
        for threads in [1, 2] {
            let rates = lines.rates(threads, 1_000_000, 5);
            // Nanoseconds of the machine for one line: with two threads half of what each thread sees.
            let ns = |rate: f64| 1e9 / rate;
            println!(
                "| {mib} | {threads} | {:.1} | {:.2} | {:.2} |",
                ns(rates.dependent),
                ns(rates.independent),
                ns(rates.in_order)
            );
        }
    }
}
