//! Studies as tables for a terminal.

use std::fmt::Write;

use serde_json::Value;

use super::{Row, axes, row_at, string};

/// Every study as a table of rates, and fairness at the largest number of threads.
pub fn tables(result: &Value) -> String {
    let mut text = String::new();
    for study in result["studies"].as_array().into_iter().flatten() {
        table(&mut text, study);
    }
    let machine = &result["machine"];
    let _ = writeln!(
        text,
        "{}, {} CPUs, kernel {}, load {}",
        string(machine, "processor"),
        machine["cpus"],
        string(machine, "kernel"),
        string(machine, "load")
    );
    text
}

fn table(text: &mut String, study: &Value) {
    let (names, points) = axes(study);
    let Some(&most) = points.last() else { return };
    let width = names.iter().map(|name| name.len()).max().unwrap_or(0);
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{}: million {} by a CPU-second, by {}",
        string(study, "name"),
        string(study, "operation"),
        string(study, "x")
    );
    let _ = write!(text, "{:width$}", "");
    for point in &points {
        let _ = write!(text, " {point:>9}");
    }
    let _ = writeln!(text, "   Jain  least/most  working set  longest bypass (at {most})");
    for name in names {
        let _ = write!(text, "{name:width$}");
        for &point in &points {
            match row_at(study, name, point) {
                Some(row) => {
                    let _ = write!(text, " {:>9}", rate(row.rate()[0]));
                }
                None => {
                    let _ = write!(text, " {:>9}", "-");
                }
            }
        }
        if let Some(row) = row_at(study, name, most) {
            let figure = |group, name, digits| {
                row.figure(group, name).map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"))
            };
            let _ = write!(
                text,
                "  {:>5}  {:>10}  {:>11}  {:>14}",
                figure("fairness", "jain", 3),
                figure("fairness", "least_to_most", 3),
                figure("short_term", "working_set", 1),
                figure("short_term", "longest_bypass", 0)
            );
        }
        text.push('\n');
    }
    let sum = |name: &str| Row::all(study).filter_map(|Row(row)| row[name].as_u64()).sum::<u64>();
    let _ = writeln!(
        text,
        "{} of {} windows were clean; {} more were disturbed, and run again",
        sum("clean_rounds"),
        sum("rounds"),
        sum("rejected")
    );
    let _ = writeln!(text, "{}\n", string(study, "says"));
}

/// A rate with three digits that matter.
pub fn rate(rate: f64) -> String {
    match rate {
        rate if rate >= 100.0 => format!("{rate:.0}"),
        rate if rate >= 10.0 => format!("{rate:.1}"),
        rate if rate >= 1.0 => format!("{rate:.2}"),
        rate => format!("{rate:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_every_rate_and_the_fairness() {
        let text = tables(&crate::locks::tests::example());
        let line = text.lines().find(|line| line.starts_with("a <lock>")).unwrap();
        let words: Vec<&str> = line.split_ascii_whitespace().skip(2).collect();
        assert_eq!(words, ["40.0", "0.500", "0.750", "0.500", "2.0", "42"]);
        assert!(text.starts_with("mutexes: million acquisitions by a CPU-second, by threads\n"));
    }

    #[test]
    fn rates_have_three_digits() {
        assert_eq!([0.0123, 1.5, 23.456, 149.9].map(rate), ["0.012", "1.50", "23.5", "150"]);
    }
}
