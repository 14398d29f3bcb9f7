//! VEE'05, section 6, and HAB, section V, as the papers did it: programs on a heap whose collections copy.
//!
//! | the paper | here | it shows |
//! |---|---|---|
//! | `_213_javac` | `compiler`, one thread | table 1: what processors' buffers cost |
//! | SPECjbb2000 | `warehouse`, from one thread on | figure 9: threads that compute |
//! | VolanoMark | `chat`, 200 to 1000 threads | table 2 and figure 10: threads that sleep |
//! | HAB's javac of SPECjvm2008 | `compiler`, 80 threads | its figures 2 and 3: levels between threads and heap |
//!
//! The contenders differ in whom buffers belong to, and run interleaved in rounds; their checksums must be equal. Near the end of the young
//! generation table 2 and figure 10 go the paper's way, in which threads that get no buffer allocate object by object; where buffers
//! shrink instead, it is said.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::hotspot::runs;
use super::html::{Axis, Chart, Series, shown};
use super::labs_numbers::{self as paper, Table2};
use super::measure::median;
use super::{Report, Size, labs};
use crate::exit::Failure;
use crate::launch;

/// Threads of a room of `chat`: one for each end of twenty connections.
const THREADS_OF_A_ROOM: usize = 40;
/// Messages that a room's users receive for each that everybody sends.
const RECEIVED: usize = 400;

/// The programs of `apps/vm`, compiled.
pub struct Programs(PathBuf);

impl Programs {
    /// Finds them.
    pub fn find() -> Result<Self, Failure> {
        runs::native().map(Self)
    }
}

/// One way of the heap.
#[derive(Clone)]
struct Contender {
    name: String,
    options: Vec<String>,
}

/// Whom buffers belong to: the paper's three, and concurrency ids.
const ASSOCIATIONS: [(&str, &str); 4] = [("threads", "thread"), ("CPUs", "cpu"), ("flip", "flip-cpu"), ("ids", "id")];

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn contenders(options: &[&str]) -> Vec<Contender> {
    let all = ASSOCIATIONS.iter();
    all.map(|&(name, association)| Contender {
        name: name.to_owned(),
        options: [strings(&["--association", association]), strings(options)].concat(),
    })
    .collect()
}

/// A program with its arguments and what all contenders have in common.
struct Load {
    program: &'static str,
    threads: usize,
    young_kib: usize,
    old_mib: usize,
    sizes: Vec<String>,
}

type Line = HashMap<String, String>;

fn figure(line: &Line, key: &str) -> f64 {
    line.get(key).and_then(|value| value.parse().ok()).unwrap_or(f64::NAN)
}

fn rate(line: &Line) -> f64 {
    figure(line, "operations") / figure(line, "seconds")
}

fn cpu_rate(line: &Line) -> f64 {
    figure(line, "operations") / figure(line, "cpu_s")
}

/// The runs of a load, by contender.
struct Ran {
    load: Load,
    contenders: Vec<Contender>,
    lines: Vec<Vec<Line>>,
}

impl Ran {
    fn lines(&self, name: &str) -> &[Line] {
        let at = self.contenders.iter().position(|contender| contender.name == name);
        at.map_or(&[], |at| &self.lines[at])
    }

    fn median(&self, name: &str, value: impl Fn(&Line) -> f64) -> f64 {
        median(self.lines(name).iter().map(value))
    }

    /// The median of what a contender has of what another has in the same round.
    fn against(&self, name: &str, base: &str, value: impl Fn(&Line) -> f64) -> f64 {
        let pairs = self.lines(name).iter().zip(self.lines(base));
        median(pairs.map(|(own, base)| value(own) / value(base)))
    }

    /// The same, of what threads' buffers have.
    fn against_threads(&self, name: &str, value: impl Fn(&Line) -> f64) -> f64 {
        self.against(name, "threads", value)
    }

    fn json(&self) -> Value {
        let lines: HashMap<&str, &Vec<Line>> = self
            .contenders
            .iter()
            .zip(&self.lines)
            .map(|(contender, lines)| (contender.name.as_str(), lines))
            .collect();
        let load = &self.load;
        json!({
            "program": load.program, "sizes": load.sizes, "threads": load.threads, "young_kib": load.young_kib,
            "old_mib": load.old_mib, "runs": lines,
        })
    }
}

/// Runs each contender once in each round, beginning with another one in each.
fn run(programs: &Programs, load: Load, contenders: Vec<Contender>, rounds: usize) -> Result<Ran, Failure> {
    let bar = ProgressBar::new((contenders.len() * rounds) as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a valid template"));
    let what = format!("{} {} with {} threads", load.program, load.sizes.join(" "), load.threads);
    bar.set_message(what.clone());
    if bar.is_hidden() {
        note!("{what}, {} MiB young", load.young_kib as f64 / 1024.0);
    }
    let mut lines: Vec<Vec<Line>> = contenders.iter().map(|_| Vec::new()).collect();
    let mut checksum: Option<String> = None;
    for round in 0..rounds {
        for turn in 0..contenders.len() {
            let at = (turn + round) % contenders.len();
            let mut command = Command::new(programs.0.join(load.program));
            launch::forget_heap_variables(&mut command);
            command
                .args(["--threads", &load.threads.to_string(), "--young-kib", &load.young_kib.to_string()])
                .args(["--old", &load.old_mib.to_string(), "--least-old", &load.old_mib.to_string()])
                .args(&contenders[at].options)
                .args(&load.sizes);
            let line = runs::printed(&mut command, &what).inspect_err(|_| bar.finish_and_clear())?;
            let sum = line.get("checksum").cloned().unwrap_or_default();
            if checksum.get_or_insert_with(|| sum.clone()) != &sum {
                bar.finish_and_clear();
                return Err(Failure::tool(format!(
                    "the results of {what} differ: {sum} with buffers of {}: please report this as a bug, with the output of `larder doctor`",
                    contenders[at].name
                )));
            }
            lines[at].push(line);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(Ran { load, contenders, lines })
}

/// The paper's tables and figures. `ticks` of the time-stamp counter are in a nanosecond.
pub fn tables(report: &mut Report, programs: &Programs, size: Size, ticks: f64) -> Result<(), Failure> {
    let mut all = table_1(report, programs, size, ticks)?;
    all.extend(figure_9(report, programs, size)?);
    all.extend(table_2(report, programs, size)?);
    all.extend(figure_10(report, programs, size)?);
    report.put("programs", all.iter().map(Ran::json).collect());
    Ok(())
}

fn table_1(report: &mut Report, programs: &Programs, size: Size, ticks: f64) -> Result<Vec<Ran>, Failure> {
    let load = Load {
        program: "compiler",
        threads: 1,
        young_kib: 2048,
        old_mib: 15,
        sizes: strings(&[size.of("60", "3000", "100000")]),
    };
    let ran = run(programs, load, contenders(&[]), size.of(1, 5, 5))?;
    report.heading("Table 1: compiler, one thread, default sizes, 2 MiB young");
    let mut rows: Vec<Vec<String>> = ASSOCIATIONS
        .iter()
        .map(|&(name, _)| {
            vec![
                name.to_owned(),
                shown(ran.median(name, |line| figure(line, "seconds"))),
                "-".to_owned(),
                allocation(name),
                shown(ran.median(name, |line| figure(line, "cpu_s")) * ticks),
                shown(ran.against_threads(name, |line| figure(line, "seconds"))),
            ]
        })
        .collect();
    for (at, (name, cycles)) in paper::TABLE_1.iter().enumerate() {
        let (seconds, instructions) = paper::TABLE_1_WHOLE[at];
        rows.push(vec![
            format!("*{name} (paper)"),
            shown(seconds),
            shown(instructions / 1e9),
            paper::ALLOCATION[at].to_string(),
            shown(cycles / 1e9),
            shown(seconds / paper::TABLE_1_WHOLE[0].0),
        ]);
    }
    let head = [
        "buffers of",
        "seconds",
        "10^9 instructions",
        "instructions of an allocation",
        "10^9 cycles",
        "seconds, of threads'",
    ];
    report.table(&strings(&head), &rows);
    report.say(
        "Cycles are ticks of the time-stamp counter in the processor time that was used. Instructions are not counted here; those of an allocation, \
         inlined, are known (larder-percpu, tests/golden/inlined.txt).",
    );
    Ok(vec![ran])
}

/// The instructions of an allocation from these buffers.
fn allocation(buffers_of: &str) -> String {
    let [thread, processor] = ["bump of a thread", "bump of the moving heap"].map(labs::inlined_instructions);
    match buffers_of {
        "threads" => thread.to_owned(),
        "flip" => format!("{thread} or {processor}"),
        _ => processor.to_owned(),
    }
}

fn figure_9(report: &mut Report, programs: &Programs, size: Size) -> Result<Vec<Ran>, Failure> {
    let numbers: Vec<usize> =
        size.of(vec![1, 8], vec![1, 2, 4, 8, 16, 32, 64, 256, 1000], vec![1, 2, 4, 8, 16, 32, 64, 256, 1000]);
    let transactions: usize = size.of(20_000, 3_000_000, 100_000_000);
    let mut all = Vec::new();
    for threads in numbers {
        let load = Load {
            program: "warehouse",
            threads,
            young_kib: 4096,
            old_mib: size.of(128, 128, 512),
            sizes: vec![(transactions / threads).to_string(), size.of("400", "400", "4000").to_owned()],
        };
        all.push(run(programs, load, contenders(&[]), size.of(1, 3, 4))?);
    }
    report.heading("Figure 9: warehouse, a thread for each, default sizes, 4 MiB young");
    let lines = |value: &dyn Fn(&Ran, &str) -> f64| -> Vec<Series> {
        let points = |name: &str| all.iter().map(|ran| (ran.load.threads as f64, value(ran, name))).collect();
        ASSOCIATIONS.iter().map(|&(name, _)| Series { name: name.to_owned(), points: points(name) }).collect()
    };
    let chart = |title: &str, y: &str, series| Chart {
        title: title.to_owned(),
        x: "threads".to_owned(),
        y: y.to_owned(),
        series,
        bars: Vec::new(),
        axis: Axis::Linear,
    };
    report.chart(&chart("Throughput", "1000 transactions/s", lines(&|ran, name| ran.median(name, rate) / 1e3)));
    let unused = |line: &Line| 100.0 * figure(line, "unused_mib") / figure(line, "buffer_mib");
    report.chart(&chart(
        "Unused in buffers",
        "per cent of what they obtained",
        lines(&|ran, name| ran.median(name, unused)),
    ));
    let mut head = strings(&["threads", "threads': 1000/s", "% unused"]);
    for (name, _) in &ASSOCIATIONS[1..] {
        head.extend([format!("{name}: of threads'"), "by CPU time".to_owned(), "% unused".to_owned()]);
    }
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|ran| {
            let percent = |name: &str| format!("{:.2}", ran.median(name, unused));
            let mut row =
                vec![ran.load.threads.to_string(), shown(ran.median("threads", rate) / 1e3), percent("threads")];
            for (name, _) in &ASSOCIATIONS[1..] {
                row.extend([rate, cpu_rate].map(|rate| format!("{:.3}", ran.against_threads(name, rate))));
                row.push(percent(name));
            }
            row
        })
        .collect();
    report.table(&head, &rows);
    report.say(
        "The paper: with buffers of threads 2 to 5 % of the heap are wasted from 16 threads on, and processors' do better from there; with up to 8 they do \
         worse. It has eight processors and up to 64 threads.",
    );
    Ok(all)
}

/// `chat` with so many threads, in which so many messages are received.
fn chat(threads: usize, young_kib: usize, received: usize) -> Load {
    let rooms = threads / THREADS_OF_A_ROOM;
    let messages = (received / RECEIVED / rooms).max(1);
    Load { program: "chat", threads, young_kib, old_mib: 64, sizes: vec![rooms.to_string(), messages.to_string()] }
}

const PAPERS_WAY: [&str; 2] = ["--near-end", "singly"];

fn table_2(report: &mut Report, programs: &Programs, size: Size) -> Result<Vec<Ran>, Failure> {
    let buffers = ["--buffer-kib", "64"];
    let mut all = Vec::new();
    for (rooms, threads) in [(0, 200), (1, 1000)] {
        let mut contenders = contenders(&[&PAPERS_WAY[..], &buffers].concat());
        for (name, association) in [ASSOCIATIONS[0], ASSOCIATIONS[3]] {
            contenders.push(Contender {
                name: format!("{name}, shrinking"),
                options: strings(&["--association", association, buffers[0], buffers[1]]),
            });
        }
        let ran =
            run(programs, chat(threads, 4096, size.of(8_000, 120_000, 1_200_000)), contenders, size.of(1, 3, 10))?;
        report.heading(&format!(
            "Table 2: chat, {threads} threads, buffers of 64 KiB, 4 MiB young; the paper's {} rooms",
            [10, 50][rooms]
        ));
        counts(report, &ran, rooms);
        for_the_same_work(report, &ran);
        all.push(ran);
    }
    Ok(all)
}

fn counts(report: &mut Report, ran: &Ran, rooms: usize) {
    let head =
        ["", "threads", "CPUs", "flip", "ids", "client: threads", "CPUs", "flip", "server: threads", "CPUs", "flip"];
    let theirs = |table: &Table2, row: usize| table[rooms][row].map(shown);
    let rows: Vec<Vec<String>> = paper::TABLE_2_ROWS
        .iter()
        .enumerate()
        .map(|(at, row)| {
            let (key, scale) = row.printed;
            let ours = ASSOCIATIONS.map(|(name, _)| shown(ran.median(name, |line| figure(line, key)) * scale));
            let mut cells = vec![row.name.to_owned()];
            cells.extend(ours);
            cells.extend(theirs(&paper::TABLE_2, at));
            cells.extend(theirs(&paper::TABLE_2_SERVER, at));
            cells
        })
        .collect();
    report.table(&strings(&head), &rows);
    report.say("Client and server are one program here, and two in the paper, with as many threads each.");
}

fn for_the_same_work(report: &mut Report, ran: &Ran) {
    let head = [
        "buffers of",
        "messages/s, of threads'",
        "by CPU time",
        "collections, of threads'",
        "unused in buffers: threads' are so many times",
        "time in collections, of threads'",
    ];
    let rows: Vec<Vec<String>> = ran
        .contenders
        .iter()
        .map(|contender| {
            let name = contender.name.as_str();
            let of = |key: &'static str| ran.against_threads(name, move |line| figure(line, key));
            vec![
                name.to_owned(),
                shown(ran.against_threads(name, rate)),
                shown(ran.against_threads(name, cpu_rate)),
                shown(of("young")),
                shown(1.0 / of("unused_mib")),
                shown(of("pause_ms")),
            ]
        })
        .collect();
    report.table(&strings(&head), &rows);
    report.say("All receive the same messages. \"Shrinking\" is the default: near the end of the young generation buffers get smaller.");
}

fn figure_10(report: &mut Report, programs: &Programs, size: Size) -> Result<Vec<Ran>, Failure> {
    const POLICIES: [(&str, &[&str]); 6] = [
        ("default", &[]),
        ("4 KiB", &["--buffer-kib", "4"]),
        ("16 KiB", &["--buffer-kib", "16"]),
        ("64 KiB", &["--buffer-kib", "64"]),
        ("128 KiB", &["--buffer-kib", "128"]),
        ("512 KiB", &["--buffer-kib", "512"]),
    ];
    report.heading("Figure 10: chat, 200 to 1000 threads");
    let mut all = Vec::new();
    for young_mib in size.of(vec![2], vec![2, 4, 8], vec![2, 4, 8]) {
        let from = all.len();
        for threads in size.of(vec![200], vec![200, 400, 600, 800, 1000], vec![200, 400, 600, 800, 1000]) {
            let mut contenders = Vec::new();
            for (by, association) in &ASSOCIATIONS[..2] {
                for (policy, options) in POLICIES {
                    contenders.push(Contender {
                        name: format!("{by}, {policy}"),
                        options: strings(&[&["--association", association][..], &PAPERS_WAY, options].concat()),
                    });
                }
            }
            let load = chat(threads, young_mib << 10, size.of(2_000, 20_000, 400_000));
            all.push(run(programs, load, contenders, size.of(1, 2, 10))?);
        }
        for (by, _) in &ASSOCIATIONS[..2] {
            let series = POLICIES.map(|(policy, _)| {
                let name = format!("{by}, {policy}");
                let points =
                    all[from..].iter().map(|ran| (ran.load.threads as f64, harmonic_mean(ran.lines(&name)) / 1e3));
                Series { name: policy.to_owned(), points: points.collect() }
            });
            report.chart(&Chart {
                title: format!("{young_mib} MiB young, buffers of {by}"),
                x: "threads".to_owned(),
                y: "1000 messages/s".to_owned(),
                series: series.into(),
                bars: Vec::new(),
                axis: Axis::Linear,
            });
        }
    }
    let mut head = strings(&["young MiB", "threads"]);
    for (by, _) in &ASSOCIATIONS[..2] {
        head.extend(POLICIES.map(|(policy, _)| format!("{by}, {policy}")));
    }
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|ran| {
            let mut row = vec![(ran.load.young_kib >> 10).to_string(), ran.load.threads.to_string()];
            row.extend(ran.contenders.iter().map(|contender| shown(harmonic_mean(ran.lines(&contender.name)) / 1e3)));
            row
        })
        .collect();
    report.table(&head, &rows);
    report.say(
        "1000 messages received in a second, harmonic means. The paper's figure: whatever the policy, processors' buffers differ little, and threads' much; \
         with sizes that adapt, processors' gain up to 15 %, with fixed ones more, the larger they are.",
    );
    Ok(all)
}

/// HAB's figures 2 and 3: speed-ups by a level of packages (PLABs) or cores (CLABs) between threads' buffers and the heap.
pub fn hab(report: &mut Report, programs: &Programs, size: Size) -> Result<(), Failure> {
    const LEVELS: [(&str, &str, &str); 6] = [
        ("PLAB 4 MiB", "package", "4096"),
        ("PLAB 16 MiB", "package", "16384"),
        ("PLAB 64 MiB", "package", "65536"),
        ("CLAB 512 KiB", "core", "512"),
        ("CLAB 1 MiB", "core", "1024"),
        ("CLAB 8 MiB", "core", "8192"),
    ];
    const TLABS: [(&str, &[&str]); 6] = [
        ("none", &["--association", "nobody"]),
        ("4 KiB", &["--association", "thread", "--buffer-kib", "4"]),
        ("16 KiB", &["--association", "thread", "--buffer-kib", "16"]),
        ("64 KiB", &["--association", "thread", "--buffer-kib", "64"]),
        ("128 KiB", &["--association", "thread", "--buffer-kib", "128"]),
        ("growing", &["--association", "thread"]),
    ];
    let tlabs = size.of(&TLABS[5..], &TLABS[..], &TLABS[..]);
    let levels = size.of(vec![LEVELS[0], LEVELS[3]], LEVELS.to_vec(), LEVELS.to_vec());
    let mut all = Vec::new();
    for (tlab, options) in tlabs {
        let alone = (*tlab != "none").then(|| Contender { name: "alone".to_owned(), options: strings(options) });
        let under = levels.iter().map(|&(name, level, kib)| Contender {
            name: name.to_owned(),
            options: strings(&[*options, &["--level", level, "--level-kib", kib][..]].concat()),
        });
        let load = Load {
            program: "compiler",
            threads: 80,
            young_kib: size.of(16, 256, 2048) << 10,
            old_mib: 64,
            // All memory is touched before.
            sizes: strings(&[size.of("200", "8000", "400000"), "--warm"]),
        };
        all.push(run(programs, load, alone.into_iter().chain(under).collect(), size.of(1, 3, 7))?);
    }
    let growing = all.last().map_or(f64::NAN, |ran| ran.median("alone", rate));
    for (figure, base) in
        [("Figure 2", "threads' buffers of the same size alone"), ("Figure 3", "growing buffers alone")]
    {
        report.heading(&format!("{figure}: compiler, 80 threads, against {base}"));
        let speedup = |ran: &Ran, name: &str| match figure {
            "Figure 2" => ran.against(name, "alone", rate),
            _ => ran.median(name, rate) / growing,
        };
        let mut head = strings(&["buffers of threads"]);
        head.extend(levels.iter().map(|(name, ..)| (*name).to_owned()));
        let rows: Vec<Vec<String>> = tlabs
            .iter()
            .zip(&all)
            .map(|((tlab, _), ran)| {
                let cells = levels.iter().map(|(name, ..)| shown(speedup(ran, name)));
                std::iter::once((*tlab).to_owned()).chain(cells).collect()
            })
            .collect();
        report.table(&head, &rows);
        let points = |name: &str| -> Vec<(f64, f64)> {
            let values = all.iter().enumerate().map(|(at, ran)| (at as f64, speedup(ran, name)));
            values.filter(|point| point.1.is_finite()).collect()
        };
        report.chart(&Chart {
            title: format!("{figure}, compiler"),
            x: format!("buffers of threads: {}", tlabs.iter().map(|(tlab, _)| *tlab).collect::<Vec<_>>().join(", ")),
            y: "speed-up".to_owned(),
            series: levels.iter().map(|(name, ..)| Series { name: (*name).to_owned(), points: points(name) }).collect(),
            bars: Vec::new(),
            axis: Axis::Linear,
        });
    }
    report.say(
        "The paper, whose figures have no numbers beside them: more speed-up with smaller buffers of threads, some with growing ones, and CLABs on average slightly \
         better than PLABs; with small buffers and a level, about as fast as growing ones alone. Its young generation has 10 GB, its machine 40 cores.",
    );
    report.put("programs", all.iter().map(Ran::json).collect());
    Ok(())
}

fn harmonic_mean(lines: &[Line]) -> f64 {
    lines.len() as f64 / lines.iter().map(|line| 1.0 / rate(line)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        text.split(' ').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect()
    }

    #[test]
    fn contenders_are_compared_within_their_rounds() {
        let of =
            |seconds: &[&str]| seconds.iter().map(|s| line(&format!("operations=10 seconds={s} cpu_s=1"))).collect();
        let ran = Ran {
            load: chat(200, 4096, 120_000),
            contenders: contenders(&[])[..2].to_vec(),
            // The machine was twice as slow in the second round.
            lines: vec![of(&["1", "2", "1"]), of(&["0.5", "1", "0.25"])],
        };
        assert_eq!(ran.against_threads("CPUs", rate), 2.0);
        assert_eq!(ran.median("threads", rate), 10.0);
        assert_eq!(harmonic_mean(ran.lines("threads")), 7.5);
        assert!(ran.median("nobody", rate).is_nan());
    }

    #[test]
    fn a_chat_has_twenty_users_and_forty_threads_in_a_room() {
        for (threads, rooms, messages) in [(200, "5", "60"), (1000, "25", "12")] {
            let load = chat(threads, 4096, 120_000);
            assert_eq!(load.sizes, [rooms, messages]);
        }
        assert_eq!(chat(1000, 4096, 1).sizes[1], "1");
    }
}
