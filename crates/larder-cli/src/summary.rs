//! What `larder run` says when the program has ended.

use std::fmt::Write;

use larder_events::{Cause, IndexKind};
use larder_units::{Bytes, Nanos};

use crate::follow::ProcessSummary;
use crate::launch::Outcome;

/// Processes that have a row each, where more than one used the heap.
const ROWS: usize = 32;

/// The summary, in whole lines.
pub fn text(outcome: &Outcome) -> String {
    match outcome.processes.as_slice() {
        [] => "larder: nothing used the heap: no process under the program loaded libgc.so.1 and allocated with it\n"
            .to_owned(),
        [one] => one_process(one, outcome),
        several => several_processes(several, outcome),
    }
}

fn one_process(process: &ProcessSummary, outcome: &Outcome) -> String {
    let mut out = String::new();
    let line = |out: &mut String, name: &str, text: String| writeln!(out, "larder:   {name:<13} {text}");
    let result = (|| {
        writeln!(
            out,
            "larder: {} (pid {}), {:.2} s, {}",
            process.program,
            process.pid,
            outcome.elapsed.as_secs_f64(),
            index(process.index)
        )?;
        line(&mut out, "collections", collections(process))?;
        if process.concurrent > 0 {
            line(&mut out, "concurrent", concurrent(process))?;
        }
        if process.cycles > 0 {
            line(&mut out, "pauses", pauses(process))?;
            line(
                &mut out,
                "time to stop",
                format!("p50 {}, longest {}", millis(process.stops.percentile(50.0)), millis(process.stops.longest())),
            )?;
        }
        line(&mut out, "allocated", format!("{}, {}/s", process.allocated, rate(process.allocated, process.ran)))?;
        if process.cycles > 0 {
            line(&mut out, "live, heap", format!("{}, {} at the last collection", process.live, process.heap))?;
            line(
                &mut out,
                "buffer waste",
                format!(
                    "{} taken back unused at stops ({} of what was allocated)",
                    process.buffer_waste,
                    share(process.buffer_waste, process.allocated)
                ),
            )?;
            line(&mut out, "returned", format!("{} to the kernel", process.returned))
        } else {
            line(&mut out, "heap", process.heap.to_string())
        }
    })();
    result.expect("a String takes every text");
    out
}

fn several_processes(processes: &[ProcessSummary], outcome: &Outcome) -> String {
    let mut out = String::new();
    let row = |name: &str, process: &ProcessSummary| {
        format!(
            "{name:<24} {:>7} {:>9} {:>9} {:>9} {:>9} {:>10} {:>12} {:>10} {:>10} {:>9} {:>9}  {}\n",
            process.cycles,
            millis(process.pauses.percentile(50.0)),
            millis(process.pauses.percentile(99.0)),
            millis(process.pauses.longest()),
            millis(process.stops.percentile(50.0)),
            millis(process.stops.longest()),
            format!("{}/s", rate(process.allocated, process.ran)),
            process.live.to_string(),
            process.heap.to_string(),
            process.buffer_waste.to_string(),
            process.returned.to_string(),
            process.index.name(),
        )
    };
    writeln!(
        out,
        "larder: {} processes used the heap, {:.2} s\n{:<24} {:>7} {:>9} {:>9} {:>9} {:>9} {:>10} {:>12} {:>10} {:>10} {:>9} {:>9}  index",
        processes.len(),
        outcome.elapsed.as_secs_f64(),
        "",
        "cycles",
        "pause p50",
        "p99",
        "longest",
        "stop p50",
        "longest",
        "allocation",
        "live",
        "heap",
        "waste",
        "returned"
    )
    .expect("a String takes every text");
    let shown = largest(processes, ROWS, |process| process.allocated);
    for process in &shown {
        out += &row(&format!("{} ({})", shortened(&process.program, 14), process.pid), process);
    }
    if shown.len() < processes.len() {
        let others = processes.len() - shown.len();
        writeln!(out, "and {others} others, each of which allocated less (--log FILE has the cycles of all)")
            .expect("a String takes every text");
    }
    out += &row("total", &total(processes, outcome));
    out.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// As many as `most` of them, by their size, in the order that they have.
fn largest<T, K: Ord>(all: &[T], most: usize, size: impl Fn(&T) -> K) -> Vec<&T> {
    let mut places: Vec<_> = (0..all.len()).collect();
    places.sort_by_key(|&i| std::cmp::Reverse(size(&all[i])));
    places.truncate(most);
    places.sort_unstable();
    places.into_iter().map(|i| &all[i]).collect()
}

/// Sums over processes: memory is that of all at their last cycles, the rate is over the whole run.
fn total(processes: &[ProcessSummary], outcome: &Outcome) -> ProcessSummary {
    let mut processes = processes.iter();
    let first = processes.next().expect("there are several");
    let mut sums = first.clone();
    for process in processes {
        sums.cycles += process.cycles;
        sums.missed += process.missed;
        sums.concurrent += process.concurrent;
        sums.young += process.young;
        sums.cut_short += process.cut_short;
        sums.pages_cleaned += process.pages_cleaned;
        sums.pages_left += process.pages_left;
        sums.pauses.add(&process.pauses);
        sums.first_stops.add(&process.first_stops);
        sums.last_stops.add(&process.last_stops);
        sums.stops.add(&process.stops);
        sums.allocated += process.allocated;
        sums.live += process.live;
        sums.heap += process.heap;
        sums.buffer_waste += process.buffer_waste;
        sums.returned += process.returned;
    }
    sums.ran = Nanos(outcome.elapsed.as_nanos() as u64);
    sums
}

fn index(kind: IndexKind) -> &'static str {
    match kind {
        IndexKind::ConcurrencyId => "a buffer for each concurrency id (mm_cid)",
        IndexKind::Cpu => "a buffer for each CPU (cpu_id)",
        IndexKind::Thread => "a buffer for each thread (no rseq: see `larder doctor`)",
    }
}

fn collections(process: &ProcessSummary) -> String {
    let causes: Vec<_> = Cause::ALL
        .iter()
        .zip(process.by_cause)
        .filter(|(_, count)| *count > 0)
        .map(|(cause, count)| format!("{count} {}", cause.name()))
        .collect();
    let mut text = process.cycles.to_string();
    if !causes.is_empty() {
        write!(text, " ({})", causes.join(", ")).expect("a String takes every text");
    }
    if process.missed > 0 {
        write!(text, ", {} of them too fast to be read", process.missed).expect("a String takes every text");
    }
    text
}

fn concurrent(process: &ProcessSummary) -> String {
    let each = |pages: u64| pages / process.concurrent;
    let cut_short = match process.cut_short {
        0 => String::new(),
        n => format!(", {n} of them cut short"),
    };
    let young = match process.young {
        0 => String::new(),
        n => format!(", {n} of them young"),
    };
    format!(
        "{} collections beside the program{young}{cut_short}; written pages scanned again, on average: {} beside, {} in the stop",
        process.concurrent,
        each(process.pages_cleaned),
        each(process.pages_left)
    )
}

fn pauses(process: &ProcessSummary) -> String {
    format!(
        "p50 {}, p99 {}, longest {}",
        millis(process.pauses.percentile(50.0)),
        millis(process.pauses.percentile(99.0)),
        millis(process.pauses.longest())
    )
}

/// Three digits that matter, in milliseconds.
pub fn millis(time: Nanos) -> String {
    let millis = time.0 as f64 / 1e6;
    let decimals = if millis >= 100.0 {
        0
    } else if millis >= 10.0 {
        1
    } else if millis >= 1.0 {
        2
    } else {
        3
    };
    format!("{millis:.decimals$} ms")
}

fn rate(bytes: Bytes, time: Nanos) -> Bytes {
    if time.0 == 0 { Bytes::ZERO } else { Bytes((bytes.0 as f64 * 1e9 / time.0 as f64) as usize) }
}

fn share(part: Bytes, whole: Bytes) -> String {
    if whole == Bytes::ZERO { "0 %".to_owned() } else { format!("{:.1} %", part.0 as f64 * 100.0 / whole.0 as f64) }
}

fn shortened(name: &str, most: usize) -> String {
    name.chars().take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_read_well() {
        assert_eq!(millis(Nanos(41_234)), "0.041 ms");
        assert_eq!(millis(Nanos(1_234_567)), "1.23 ms");
        assert_eq!(millis(Nanos(123_456_789)), "123 ms");
        assert_eq!(rate(Bytes(100), Nanos(500_000_000)), Bytes(200));
        assert_eq!(rate(Bytes(100), Nanos(0)), Bytes::ZERO);
        assert_eq!(share(Bytes(1), Bytes(8)), "12.5 %");
    }

    #[test]
    fn the_largest_have_rows_in_the_order_in_which_they_began() {
        let sizes = |most| largest(&[3, 9, 1, 7], most, |&size| size).into_iter().copied().collect::<Vec<_>>();
        assert_eq!(sizes(2), [9, 7]);
        assert_eq!(sizes(3), [3, 9, 7]);
        assert_eq!(sizes(5), [3, 9, 1, 7]);
    }
}
