//! The experiments on allocation buffers: VEE'05 (Garthwaite, Dice, White) and HAB (Kirsch, Payer, Röck), on this machine.
//!
//! Programs after the papers' run on the moving heap ([`programs`]). `larder-labs` measures on a bump region whose collections copy nothing: the
//! papers' questions about buffers alone, what an allocation costs, how much of a young generation buffers leave unused, and how often it
//! is collected for it.

use serde_json::Value;

use super::html::{Axis, Chart, Series, shown};
use super::labs_numbers::{self as paper, Foreign};
use super::programs::{self, Programs};
use super::{Report, Size};
use crate::exit::Failure;
use crate::launch;
use crate::libexec;

const PROGRAM: &str = "larder-labs";

/// What the program measured.
fn measured(paper: &str, size: Size) -> Result<Value, Failure> {
    let path = libexec::find(PROGRAM)?;
    let mut command = std::process::Command::new(&path);
    launch::forget_heap_variables(&mut command);
    let (seconds, rounds) = size.of(("0.03", "1"), ("0.15", "3"), ("2", "7"));
    command.args([paper, "--seconds", seconds, "--rounds", rounds]).stderr(std::process::Stdio::inherit());
    if size == Size::Quick {
        command.arg("--quick");
    }
    let output = command.output().map_err(|error| Failure::tool(format!("{}: {error}", path.display())))?;
    if !output.status.success() {
        return Err(Failure::tool(format!("{PROGRAM} {paper} failed ({}): see what it said above", output.status)));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Failure::tool(format!("{PROGRAM} {paper} printed no JSON: {error}")))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn median(row: &Value, figure: &str) -> f64 {
    number(&row[figure]["median"])
}

/// The row of this name.
fn named<'v>(rows: &'v Value, name: &str) -> Option<&'v Value> {
    list(rows).iter().find(|row| row["name"] == name)
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// VEE'05: table 1, figure 9, table 2, figure 10.
pub fn vee05(size: Size) -> Result<Report, Failure> {
    let all = measured("vee05", size)?;
    let mut report = Report::new("Per-processor allocation buffers (VEE'05) on this machine");
    report.say(
        "The paper's programs ran on eight 750 MHz processors in a Java system. Here are programs after them (apps/vm), in C on the moving heap, \
         with young generations of the paper's sizes; then buffers alone, on a bump region whose collections copy nothing. Medians.",
    );
    match Programs::find() {
        Ok(programs) => {
            programs::tables(&mut report, &programs, size, number(&all["table_1"]["tsc_per_ns"]))?;
        }
        Err(why) => report.say(&format!("The programs were left out: {}", why.message)),
    }
    report.heading("Buffers alone");
    report.say(
        "Threads allocate and sleep as the paper's programs do, and collections only take buffers back. Rates are by processor time, because \
         the machine may be shared.",
    );
    table_1(&mut report, &all["table_1"]);
    figure_9(&mut report, &all["figure_9"]);
    table_2(&mut report, &all["table_2"]);
    figure_10(&mut report, &all["figure_10"]);
    report.put("paper", paper::vee05());
    report.put("measured", all);
    Ok(report)
}

fn table_1(report: &mut Report, measured: &Value) {
    report.heading("Buffers alone, table 1: one thread, default sizes");
    let mut rows: Vec<Vec<String>> = list(&measured["rows"])
        .iter()
        .map(|row| {
            let cell = |figure| shown(median(row, figure));
            vec![text(&row["name"]), cell("ns_per_object"), cell("cycles_per_object")]
        })
        .collect();
    let cycles = |at: usize| shown(paper::TABLE_1[at].1 / paper::TABLE_1_OBJECTS);
    for (at, (name, _)) in paper::TABLE_1.iter().enumerate() {
        rows.push(vec![format!("*{name} (paper: the whole program, by its objects)"), "-".into(), cycles(at)]);
    }
    report.table(&strings(&["buffers of", "ns per object", "cycles per object"]), &rows);
    report.say(&format!(
        "The paper's difference is 13.9 cycles and 10.2 instructions per object: 7 instructions for a thread's buffer, 17 for a processor's. Ours are {} for a \
         processor's, called (3 arm the sequence, 2 test the registration, 2 a word that is closed while somebody takes the buffer over).",
        instructions("bump")
    ));
}

/// How many instructions a sequence has, from call to return: the golden file that a test keeps.
fn instructions(sequence: &str) -> &'static str {
    count_in(include_str!("../../../larder-percpu/tests/golden/instructions.txt"), sequence)
}

/// How many instructions an inlined sequence has, from arming to commit: another golden file.
pub fn inlined_instructions(sequence: &str) -> &'static str {
    count_in(include_str!("../../../larder-percpu/tests/golden/inlined.txt"), sequence)
}

fn count_in(golden: &'static str, sequence: &str) -> &'static str {
    let line = |line: &'static str| line.trim().split_once(' ').filter(|(_, name)| *name == sequence);
    golden.lines().find_map(line).map_or("-", |(count, _)| count)
}

/// Charts have lines over a number; `rows` are the lines' names, and `figure` what is drawn.
fn lines(points: &[Value], x: &str, names: &[&str], value: impl Fn(&Value) -> f64) -> Vec<Series> {
    names
        .iter()
        .map(|&name| Series {
            name: name.to_owned(),
            points: points
                .iter()
                .filter_map(|point| Some((number(&point[x]), value(named(&point["rows"], name)?))))
                .collect(),
        })
        .collect()
}

const ASSOCIATIONS: [&str; 4] = ["threads", "CPUs", "flip", "ids"];

fn figure_9(report: &mut Report, measured: &Value) {
    report.heading("Buffers alone, figure 9: threads that compute");
    let points = list(&measured["points"]);
    let chart = |title: &str, y: &str, value: &dyn Fn(&Value) -> f64| Chart {
        title: title.to_owned(),
        x: "threads".to_owned(),
        y: y.to_owned(),
        series: lines(points, "threads", &ASSOCIATIONS, value),
        bars: Vec::new(),
        axis: Axis::Linear,
    };
    report.chart(&chart("Allocation", "million objects per processor second", &|row| {
        median(row, "objects_per_cpu_second") / 1e6
    }));
    report.chart(&chart("Unused in buffers at collections", "per cent of what they obtained", &|row| {
        100.0 * median(row, "unused_part")
    }));
    let rows: Vec<Vec<String>> = points
        .iter()
        .map(|point| {
            let mut row = vec![shown(number(&point["threads"]))];
            for name in ASSOCIATIONS {
                let found = named(&point["rows"], name).unwrap_or(&Value::Null);
                row.push(shown(median(found, "objects_per_cpu_second") / 1e6));
                row.push(format!("{:.2}", 100.0 * median(found, "unused_part")));
            }
            row
        })
        .collect();
    let mut head = strings(&["threads"]);
    for name in ASSOCIATIONS {
        head.push(format!("{name}: M objects/s"));
        head.push("% unused".to_owned());
    }
    report.table(&head, &rows);
    report.say("The paper: with buffers of threads, 2 to 5 % of the heap are wasted from 16 threads on, and processors' do better from there.");
}

fn table_2(report: &mut Report, measured: &Value) {
    for (room, theirs) in list(measured).iter().zip(&paper::TABLE_2) {
        report.heading(&format!(
            "Buffers alone, table 2: {} rooms, {} threads that sleep, buffers of 64 KiB, 4 MiB young",
            room["rooms"], room["threads"]
        ));
        let head = strings(&["", "threads", "CPUs", "flip", "ids", "paper: threads", "CPUs", "flip"]);
        let rows: Vec<Vec<String>> = paper::TABLE_2_ROWS
            .iter()
            .zip(theirs)
            .map(|(row, theirs)| {
                let (counter, scale) = row.counter;
                let mut row = vec![row.name.to_owned()];
                for association in ASSOCIATIONS {
                    let counters = named(&room["rows"], association).map_or(&Value::Null, |row| &row["counters"]);
                    row.push(shown(number(&counters[counter]) * scale));
                }
                row.extend(theirs.iter().map(|&value| shown(value)));
                row
            })
            .collect();
        report.table(&head, &rows);
        report.say(
            "The counts above are those of one window, and depend on how much was done in it; a window lasts until there were enough \
             collections. For the same allocation, medians of the rounds:",
        );
        let of = |name: &str, key: &str| named(&room["rows"], name).map_or(f64::NAN, |row| median(row, key));
        let against = |key: &str, name: &str| shown(of(name, key) / of("threads", key));
        let rows: Vec<Vec<String>> = ASSOCIATIONS
            .iter()
            .map(|name| {
                vec![
                    (*name).to_owned(),
                    shown(of(name, "collections_per_gib")),
                    against("collections_per_gib", name),
                    shown(of(name, "unused_bytes_per_gib") / (1 << 20) as f64),
                    against("unused_bytes_per_gib", name),
                    against("objects_per_second", name),
                    against("objects_per_cpu_second", name),
                ]
            })
            .collect();
        report.table(
            &strings(&[
                "buffers of",
                "collections per GiB",
                "of threads'",
                "MiB unused in buffers, per GiB",
                "of threads'",
                "objects/s, of threads'",
                "objects per CPU second, of threads'",
            ]),
            &rows,
        );
        report.say(&format!(
            "Collections by CPUs are {} of threads' in the paper, memory unused in buffers {}.",
            shown(theirs[0][1] / theirs[0][0]),
            shown(unused_in_paper(theirs))
        ));
    }
}

/// The last row of table 2: CPUs' against threads'.
fn unused_in_paper(table: &[[f64; 3]]) -> f64 {
    table.last().map_or(f64::NAN, |row| row[1] / row[0])
}

fn figure_10(report: &mut Report, measured: &Value) {
    report.heading("Buffers alone, figure 10: 200 to 1000 threads that sleep");
    let points = list(&measured["points"]);
    const POLICIES: [&str; 6] = ["default", "4 KiB", "16 KiB", "64 KiB", "128 KiB", "512 KiB"];
    let mut sizes: Vec<u64> = points.iter().filter_map(|point| point["young_bytes"].as_u64()).collect();
    sizes.dedup();
    for young in sizes {
        let of: Vec<Value> = points.iter().filter(|point| point["young_bytes"] == young).cloned().collect();
        for by in ["threads", "CPUs"] {
            for end in ["", ", shrinking"] {
                let names: Vec<String> = POLICIES.iter().map(|policy| format!("{by}, {policy}{end}")).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let note = if end.is_empty() { "" } else { ", buffers shrink near the end" };
                report.chart(&Chart {
                    title: format!("{} MiB, buffers of {by}{note}", young >> 20),
                    x: "threads".to_owned(),
                    y: "collections per GiB of objects".to_owned(),
                    series: lines(&of, "threads", &names, |row| median(row, "collections_per_gib")),
                    bars: Vec::new(),
                    axis: Axis::Linear,
                });
            }
        }
    }
    report.say(
        "Collections for the same allocation stand for the paper's rate of messages: it was decided by them. Where buffers shrink near the \
         end, the size of buffers matters less, for threads as well: the study that the paper asks for.",
    );
}

/// HAB: figures 2 and 3, tables I and II.
pub fn hab(size: Size) -> Result<Report, Failure> {
    let all = measured("hab", size)?;
    let mut report = Report::new("Hierarchical allocation buffers (HAB) on this machine");
    report.say(&format!(
        "The paper ran a compiler with 80 threads on 40 cores in 4 packages; this machine has {} CPUs. Speed-ups are of \
         operations by the clock for the program, of objects per processor second for buffers alone; medians.",
        all["cpus"]
    ));
    match Programs::find() {
        Ok(programs) => programs::hab(&mut report, &programs, size)?,
        Err(why) => report.say(&format!("The program was left out: {}", why.message)),
    }
    report.heading("Buffers alone");
    report.say("80 threads allocate without a pause on a bump region of 256 MiB whose collections copy nothing.");
    for (key, level, foreign) in [("packages", "PLAB", &paper::TABLE_I), ("cores", "CLAB", &paper::TABLE_II)] {
        let points = list(&all[key]);
        speedups(&mut report, points, level);
        foreign_table(&mut report, points, level, foreign);
    }
    report.put("paper", paper::hab());
    report.put("measured", all);
    Ok(report)
}

/// The names of the contenders with an upper level.
fn uppers(points: &[Value]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for row in points.iter().flat_map(|point| list(&point["rows"])) {
        let name = text(&row["name"]);
        if name != "alone" && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn speedups(report: &mut Report, points: &[Value], level: &str) {
    let growing = points
        .iter()
        .find(|point| point["tlab"] == "growing")
        .and_then(|point| named(&point["rows"], "alone"))
        .map_or(f64::NAN, |row| median(row, "objects_per_cpu_second"));
    let tlabs: Vec<String> = points.iter().map(|point| text(&point["tlab"])).collect();
    for (figure, base) in
        [("Figure 2", "threads' buffers of the same size alone"), ("Figure 3", "growing buffers alone")]
    {
        report.heading(&format!("{figure}: {level}s, against {base}"));
        let mut head = strings(&["buffers of threads"]);
        let names = uppers(points);
        head.extend(names.iter().map(|name| format!("{level} {name}")));
        let rows: Vec<Vec<String>> = points
            .iter()
            .zip(&tlabs)
            // Where nobody has buffers there is nothing of the same size to compare with.
            .filter(|(point, _)| figure == "Figure 3" || named(&point["rows"], "alone").is_some())
            .map(|(point, tlab)| {
                let base = if figure == "Figure 3" {
                    growing
                } else {
                    named(&point["rows"], "alone").map_or(f64::NAN, |row| median(row, "objects_per_cpu_second"))
                };
                let mut row = vec![tlab.clone()];
                row.extend(names.iter().map(|name| {
                    let rate =
                        named(&point["rows"], name).map_or(f64::NAN, |row| median(row, "objects_per_cpu_second"));
                    shown(rate / base)
                }));
                row
            })
            .collect();
        report.table(&head, &rows);
        report.chart(&Chart {
            title: format!("{figure}, {level}s"),
            x: format!("buffers of threads: {}", tlabs.join(", ")),
            y: "speed-up".to_owned(),
            series: names
                .iter()
                .filter(|name| !name.contains("sequence"))
                .map(|name| Series {
                    name: name.clone(),
                    points: points
                        .iter()
                        .enumerate()
                        .filter_map(|(at, point)| {
                            let rate = median(named(&point["rows"], name)?, "objects_per_cpu_second");
                            let alone = named(&point["rows"], "alone").map(|row| median(row, "objects_per_cpu_second"));
                            let base = if figure == "Figure 3" { growing } else { alone? };
                            Some((at as f64, rate / base))
                        })
                        .collect(),
                })
                .collect(),
            bars: Vec::new(),
            axis: Axis::Linear,
        });
    }
}

fn foreign_table(report: &mut Report, points: &[Value], level: &str, theirs: &Foreign) {
    report.heading(&format!("Table {}: foreign allocations with {level}s, per cent", theirs.table));
    let mut head = strings(&["buffers of threads"]);
    let names = uppers(points);
    head.extend(names.iter().map(|name| format!("{level} {name}")));
    head.extend(theirs.columns.iter().map(|column| format!("paper: {column}")));
    let rows: Vec<Vec<String>> = points
        .iter()
        .map(|point| {
            let tlab = text(&point["tlab"]);
            let mut row = vec![tlab.clone()];
            row.extend(names.iter().map(|name| {
                named(&point["rows"], name).map_or("-".to_owned(), |row| {
                    format!("{:.2} + {:.2}", median(row, "migrated_percent"), median(row, "fallen_over_percent"))
                })
            }));
            let paper = theirs.rows.iter().find(|(name, _)| *name == tlab).map_or(&[][..], |(_, values)| values);
            row.extend((0..theirs.columns.len()).map(|at| {
                paper.get(at).filter(|value| value.is_finite()).map_or("-".to_owned(), |value| format!("{value:.2}"))
            }));
            row
        })
        .collect();
    report.table(&head, &rows);
    report.say(
        "By migration + by falling over to another buffer. By sequence nothing is foreign through migration; what falls over met a refill \
         in progress.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever reads the file finds the papers' numbers beside ours.
    #[test]
    fn the_papers_numbers_are_in_the_file() {
        let (vee05, hab) = (paper::vee05(), paper::hab());
        let row = &vee05["table 2"]["client"]["50 rooms"][15];
        assert_eq!(row["name"], "MB unused in these");
        assert_eq!(row["values"][0], 3576.6);
        assert_eq!(vee05["table 1"]["rows"][1]["cycles"], 6.718e9);
        assert_eq!(hab[0]["rows"][0]["percent"][4], 1.93);
        assert!(hab[1]["rows"][5]["percent"][0].is_null(), "the paper has none there");
    }

    /// A row of Figure 2 has something to be compared with.
    #[test]
    fn a_figure_has_no_empty_rows() {
        let rate = |median: f64| serde_json::json!({ "median": median });
        let row = |name: &str, median| serde_json::json!({ "name": name, "objects_per_cpu_second": rate(median) });
        let points = [
            serde_json::json!({ "tlab": "none", "rows": [row("4096 KiB", 1.0)] }),
            serde_json::json!({ "tlab": "growing", "rows": [row("alone", 4.0), row("4096 KiB", 5.0)] }),
        ];
        let mut report = Report::new("a test");
        speedups(&mut report, &points, "PLAB");
        let text = &report.text;
        let (first, second) = text.split_once("Figure 3").expect("both figures");
        assert!(!first.contains("none ") && first.contains("1.25") && second.contains("0.250"), "{text}");
    }

    #[test]
    fn the_golden_files_have_the_sequences_that_are_shown() {
        let shown = [("bump", instructions("bump"), 10)].into_iter().chain(
            [("bump of a thread", 7), ("bump of the moving heap", 10)]
                .map(|(name, more)| (name, inlined_instructions(name), more)),
        );
        for (name, count, more) in shown {
            assert!(count.parse::<u32>().is_ok_and(|count| count > more), "{name}: {count}");
        }
        assert_eq!(instructions("no such sequence"), "-");
    }
}
