//! Studies as one HTML file, which needs nothing from elsewhere.

use std::fmt::Write;

use serde_json::Value;

use super::chart::{admissions, curves, escaped};
use super::{Row, axes, row_at, string, text};

const HEAD: &str = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Larder: locks</title><style>\
body{font:14px/1.45 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;margin:.8rem 0}td,th{padding:.15rem .6rem;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}svg{width:100%;height:auto;font-size:12px}svg.bars{width:200px;height:40px;fill:#0072b2}\
.grid{stroke:#ddd}.note{color:#666}</style></head><body>\n";

/// The whole page.
pub fn page(result: &Value) -> String {
    let mut page = format!("{HEAD}<h1>Locks</h1>\n");
    // Writing to a string does not fail.
    for study in result["studies"].as_array().into_iter().flatten() {
        let _ = write!(
            page,
            "<h2>{}</h2>\n<p>{}</p>\n{}\n",
            escaped(string(study, "name")),
            escaped(string(study, "says")),
            curves(study)
        );
        let _ = writeln!(
            page,
            "<p class=\"note\">Million {} by a CPU-second; median of the rounds, with lowest and highest.</p>",
            escaped(string(study, "operation"))
        );
        rates(&mut page, study);
        fairness(&mut page, study);
    }
    preamble(&mut page, &result["machine"]);
    page.push_str("</body></html>\n");
    page
}

fn rates(page: &mut String, study: &Value) {
    let (names, points) = axes(study);
    let _ = write!(page, "<table><tr><th>{}</th>", escaped(string(study, "x")));
    points.iter().for_each(|point| {
        let _ = write!(page, "<th>{point}</th>");
    });
    page.push_str("</tr>\n");
    for name in names {
        let _ = write!(page, "<tr><td>{}</td>", escaped(name));
        for &point in &points {
            let cell = row_at(study, name, point).map_or_else(String::new, |row| {
                let [rate, low, high] = row.rate().map(text::rate);
                format!("<span title=\"{low} to {high}\">{rate}</span>")
            });
            let _ = write!(page, "<td>{cell}</td>");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

/// The figures of every contender at the largest number of threads, and its admissions.
fn fairness(page: &mut String, study: &Value) {
    const FIGURES: [(&str, &str, &str); 8] = [
        ("fairness", "jain", "Jain"),
        ("fairness", "gini", "Gini"),
        ("fairness", "relative_deviation", "rel. deviation"),
        ("fairness", "median_deviation", "med. deviation"),
        ("fairness", "least_to_most", "least/most"),
        ("short_term", "working_set", "working set"),
        ("short_term", "median_time_to_reacquire", "median reacquire"),
        ("short_term", "longest_bypass", "longest bypass"),
    ];
    let (names, points) = axes(study);
    let Some(&most) = points.last().filter(|&&most| most > 1) else { return };
    let _ = write!(page, "<table><tr><th>at {most}</th>");
    FIGURES.iter().for_each(|(.., title)| {
        let _ = write!(page, "<th>{title}</th>");
    });
    page.push_str("<th>threads that fit</th><th>admissions</th><th>clean rounds</th><th>rejected</th></tr>\n");
    for row in names.iter().filter_map(|name| row_at(study, name, most)) {
        let Row(value) = row;
        let _ = write!(page, "<tr><td>{}</td>", escaped(row.name()));
        for (group, name, _) in FIGURES {
            let figure = row.figure(group, name).map_or_else(String::new, |figure| format!("{figure:.3}"));
            let _ = write!(page, "<td>{}</td>", figure.trim_end_matches(".000"));
        }
        let _ = writeln!(
            page,
            "<td>{}</td><td>{}</td><td>{} of {}</td><td>{}</td></tr>",
            value["threads_that_fit"],
            admissions(value),
            value["clean_rounds"],
            value["rounds"],
            value["rejected"]
        );
    }
    page.push_str("</table>\n");
}

/// What confounds: the machine, as the program found it.
fn preamble(page: &mut String, machine: &Value) {
    page.push_str("<h2>Machine</h2>\n<table>\n");
    for (name, value) in machine.as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let value = if value == "null" { "not said".to_owned() } else { value };
        let _ = writeln!(page, "<tr><td>{}</td><td>{}</td></tr>", escaped(&name.replace('_', " ")), escaped(&value));
    }
    page.push_str("</table>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_curves_figures_admissions_and_the_machine() {
        let page = page(&crate::locks::tests::example());
        for part in [
            "<polyline",
            "class=\"bars\"",
            "a &lt;lock&gt;",
            "0.75",
            "42",
            "a &amp; b",
            "not said",
            "2 of 3</td><td>4<",
        ] {
            assert!(page.contains(part), "{part} is missing");
        }
        assert_eq!(page.matches("<table").count(), page.matches("</table>").count());
        assert!(!page.contains("a <lock>"), "a name was not escaped");
        assert!(!page.contains("http"), "the page needs nothing from elsewhere");
    }
}
