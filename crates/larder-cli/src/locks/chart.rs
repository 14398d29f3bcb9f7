//! Curves and bars as SVG.

use std::fmt::Write;

use serde_json::Value;

use super::{Row, axes, row_at, text};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;
const LEGEND: f64 = 230.0;
/// Colours that are told apart by most eyes (Okabe and Ito's, and four more).
const COLOURS: [&str; 11] = [
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#d55e00", "#0072b2", "#cc79a7", "#8a7a00", "#7f7f7f", "#5e3c99",
    "#a6611a",
];

/// Text as it stands in a page.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The curves of a study: numbers of threads across, one step for each; rates upwards by powers of ten, with the range of the
/// rounds behind each point.
pub fn curves(study: &Value) -> String {
    let (names, points) = axes(study);
    let lowest = Row::all(study).map(|row| row.rate()[1]).filter(|&rate| rate > 0.0).fold(f64::INFINITY, f64::min);
    let highest = Row::all(study).map(|row| row.rate()[2]).fold(0.0, f64::max);
    if !lowest.is_finite() || highest <= 0.0 {
        return String::new();
    }
    let (bottom, top) = (lowest.log10().floor(), highest.log10().ceil().max(lowest.log10().floor() + 1.0));
    let (right, base) = (WIDTH - LEGEND, HEIGHT - BOTTOM);
    let across = |x: u64| {
        let position = points.iter().position(|&point| point == x).unwrap_or(0) as f64;
        LEFT + 20.0 + position * (right - LEFT - 40.0) / (points.len().max(2) - 1) as f64
    };
    let up = |rate: f64| base - (rate.log10().max(bottom) - bottom) / (top - bottom) * (base - TOP);

    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    // Writing to a string does not fail.
    for power in bottom as i32..=top as i32 {
        let y = up(10f64.powi(power));
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"grid\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            10f64.powi(power)
        );
    }
    for &point in &points {
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{point}</text>",
            across(point),
            base + 18.0
        );
    }
    let middle = (LEFT + right) / 2.0;
    let _ = write!(
        svg,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        HEIGHT - 6.0,
        escaped(super::string(study, "x"))
    );
    for (index, name) in names.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        // The second time round, the same colours are dashed.
        let dashes = if index < COLOURS.len() { "" } else { " stroke-dasharray=\"5 3\"" };
        let mut line = String::new();
        for &point in &points {
            let Some(row) = row_at(study, name, point) else { continue };
            let ([rate, low, high], x) = (row.rate(), across(point));
            let _ = write!(line, "{x:.1},{:.1} ", up(rate));
            let _ = write!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" opacity=\".35\"/>\
                 <circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"2.6\" fill=\"{colour}\"><title>{}, {point}: {}</title></circle>",
                up(low),
                up(high),
                up(rate),
                escaped(name),
                text::rate(rate)
            );
        }
        let y = TOP + 14.0 + 18.0 * index as f64;
        let _ = write!(
            svg,
            "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"{dashes}/>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"2.5\"{dashes}/>\
             <text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            right + 14.0,
            right + 34.0,
            y - 4.0,
            y - 4.0,
            right + 40.0,
            escaped(name)
        );
    }
    svg.push_str("</svg>");
    svg
}

/// How often each thread was admitted, least often first: a bar for each.
pub fn admissions(row: &Value) -> String {
    let counts: Vec<u64> = row["admissions"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    let Some(&most) = counts.iter().max().filter(|&&most| most > 0) else { return String::new() };
    let step = 200.0 / counts.len() as f64;
    let mut svg = "<svg class=\"bars\" viewBox=\"0 0 200 40\" preserveAspectRatio=\"none\">".to_owned();
    for (index, &count) in counts.iter().enumerate() {
        let height = 40.0 * count as f64 / most as f64;
        let _ = write!(
            svg,
            "<rect x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{height:.2}\"/>",
            index as f64 * step,
            40.0 - height,
            step * 0.9
        );
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_has_a_curve_inside_of_the_picture() {
        let example = crate::locks::tests::example();
        let svg = curves(&example["studies"][0]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(svg.contains("a &lt;lock&gt;") && !svg.contains("a <lock>"));
        let heights = svg.split("cy=\"").skip(1).map(|rest| rest.split('"').next().unwrap().parse::<f64>().unwrap());
        heights.for_each(|y| assert!((TOP..=HEIGHT - BOTTOM).contains(&y), "{y}"));
    }

    #[test]
    fn a_faster_lock_lies_higher() {
        let example = crate::locks::tests::example();
        let svg = curves(&example["studies"][0]);
        let lines: Vec<Vec<f64>> = svg
            .split("points=\"")
            .skip(1)
            .map(|rest| {
                let points = rest.split('"').next().unwrap().split_ascii_whitespace();
                points.map(|point| point.split(',').nth(1).unwrap().parse().unwrap()).collect()
            })
            .collect();
        assert!(lines[0].iter().zip(&lines[1]).all(|(fast, slow)| fast < slow), "{lines:?}");
    }

    #[test]
    fn a_starved_thread_has_no_bar() {
        let example = crate::locks::tests::example();
        let svg = admissions(&example["studies"][0]["rows"][3]);
        assert_eq!(svg.matches("height=\"0.00\"").count(), 3);
        assert_eq!(svg.matches("height=\"40.00\"").count(), 1);
        assert_eq!(admissions(&serde_json::json!({ "admissions": [0, 0] })), "");
    }

    #[test]
    fn nothing_measured_draws_nothing() {
        assert_eq!(curves(&serde_json::json!({ "rows": [] })), "");
    }
}
