//! One page of HTML with tables and figures in SVG: no script, no file beside it.
//!
//! A page is text, tables and charts in order. A chart has either lines (a value over a number) or stacked bars (parts of a value for
//! each name). Colours are told apart in grey as well, by markers.

use std::fmt::Write;

/// A page under construction.
pub struct Page {
    body: String,
    title: String,
}

/// One line of a chart, or the parts of its bars of one kind.
pub struct Series {
    /// What it is.
    pub name: String,
    /// Values; for lines as (x, y), for bars the y of each bar with its number as x.
    pub points: Vec<(f64, f64)>,
}

/// A figure.
pub struct Chart {
    /// Above it.
    pub title: String,
    /// Of the horizontal axis.
    pub x: String,
    /// Of the vertical axis.
    pub y: String,
    /// What is drawn.
    pub series: Vec<Series>,
    /// Names below the bars; empty for lines.
    pub bars: Vec<String>,
    /// How the vertical axis goes.
    pub axis: Axis,
}

/// A vertical axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Axis {
    /// Equal distances for equal differences, from 0.
    #[default]
    Linear,
    /// Equal distances for equal ratios. For lines only: parts of a bar would not add up.
    Logarithmic,
}

/// Text as HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A number with as many decimals as three digits need.
pub fn shown(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "-".to_owned(),
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #bbb;padding:.2em .6em;text-align:right}\
td:first-child,th:first-child{text-align:left}th{background:#eee}.theirs{color:#777}figure{display:inline-block;margin:.5em}\
svg{background:#fff;border:1px solid #ddd}figcaption{font-weight:600}h2{margin-top:2em}";
/// No multiple of three, the number of shapes: so lines of one colour have another shape.
const COLOURS: [&str; 10] =
    ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#555555", "#e377c2", "#bcbd22"];

impl Page {
    /// An empty page.
    pub fn new(title: &str) -> Self {
        Self { body: String::new(), title: title.to_owned() }
    }

    /// A heading of a section.
    pub fn heading(&mut self, text: &str) {
        writeln!(self.body, "<h2>{}</h2>", escaped(text)).expect("a String takes every text");
    }

    /// A paragraph.
    pub fn text(&mut self, text: &str) {
        writeln!(self.body, "<p>{}</p>", escaped(text)).expect("a String takes every text");
    }

    /// A table. A row whose first cell begins with `*` is somebody else's numbers: shown in grey, without the star.
    pub fn table(&mut self, head: &[String], rows: &[Vec<String>]) {
        let mut out = String::from("<table><tr>");
        head.iter().for_each(|cell| out += &format!("<th>{}</th>", escaped(cell)));
        out += "</tr>\n";
        for row in rows {
            let theirs = row.first().is_some_and(|cell| cell.starts_with('*'));
            out += if theirs { "<tr class=theirs>" } else { "<tr>" };
            row.iter().for_each(|cell| out += &format!("<td>{}</td>", escaped(cell.trim_start_matches('*'))));
            out += "</tr>\n";
        }
        self.body += &out;
        self.body += "</table>\n";
    }

    /// A figure; figures that follow one another stand side by side where there is room.
    pub fn chart(&mut self, chart: &Chart) {
        self.body += &chart.svg();
    }

    /// The whole page.
    pub fn finish(self) -> String {
        let title = escaped(&self.title);
        format!(
            "<!doctype html>\n<html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>\n<h1>{title}</h1>\n{}</html>\n",
            self.body
        )
    }
}

/// Places of a chart, in the units of its picture.
const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;

/// A step between marks of an axis: 1, 2 or 5 times a power of ten, about five to the axis.
fn step(most: f64) -> f64 {
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|times| times * power >= rough).unwrap_or(10.0);
    times * power
}

impl Chart {
    fn is_bars(&self) -> bool {
        !self.bars.is_empty()
    }

    /// The largest value on the vertical axis.
    fn most(&self) -> f64 {
        let most = if self.is_bars() {
            (0..self.bars.len())
                .map(|bar| self.series.iter().filter_map(|s| s.points.get(bar)).map(|p| p.1).sum())
                .fold(0.0, f64::max)
        } else {
            self.series.iter().flat_map(|s| &s.points).map(|p| p.1).filter(|y| y.is_finite()).fold(0.0, f64::max)
        };
        if most > 0.0 { most } else { 1.0 }
    }

    /// Where a logarithmic axis begins: a power of ten.
    fn least(&self) -> f64 {
        let values = self.series.iter().flat_map(|s| &s.points).map(|p| p.1).filter(|y| y.is_finite() && *y > 0.0);
        let least = values.fold(f64::INFINITY, f64::min);
        if least.is_finite() { 10f64.powf(least.log10().floor()) } else { 0.1 }
    }

    /// The values with a line and a number.
    fn marks(&self, least: f64, most: f64) -> Vec<f64> {
        let next = |mark: &f64| match self.axis {
            Axis::Linear => mark + step(most),
            Axis::Logarithmic => mark * 10.0,
        };
        let first = if self.axis == Axis::Linear { 0.0 } else { least };
        let end = most * if self.axis == Axis::Linear { 1.05 } else { 1.2 };
        std::iter::successors(Some(first), |mark| Some(next(mark))).take_while(|mark| *mark <= end).collect()
    }

    /// Of the picture: where there are many bars, as wide as their names need.
    fn width(&self) -> f64 {
        const OF_A_BAR: f64 = 46.0;
        WIDTH.max(LEFT + RIGHT + OF_A_BAR * self.bars.len() as f64)
    }

    fn svg(&self) -> String {
        let width = self.width();
        let mut out = format!(
            "<figure><figcaption>{}</figcaption><svg width={width} height={} viewBox='0 0 {width} {}' font-size=11 font-family=sans-serif>\n",
            escaped(&self.title),
            HEIGHT + self.legend_height(),
            HEIGHT + self.legend_height()
        );
        let most = self.most();
        let least = self.least();
        let down = |y: f64| {
            let part = match self.axis {
                Axis::Linear => y / (most * 1.05),
                Axis::Logarithmic => (y.max(least) / least).ln() / (most * 1.2 / least).ln(),
            };
            TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - part)
        };
        for mark in self.marks(least, most) {
            let y = down(mark);
            out += &format!(
                "<path d='M{LEFT} {y:.1}H{}' stroke=#eee /><text x={} y={:.1} text-anchor=end>{}</text>\n",
                width - RIGHT,
                LEFT - 5.0,
                y + 4.0,
                shown(mark)
            );
        }
        out += &format!(
            "<path d='M{LEFT} {TOP}V{}H{}' fill=none stroke=#333 /><text x={} y={} text-anchor=middle>{}</text>\
             <text transform='translate(14 {}) rotate(-90)' text-anchor=middle>{}</text>\n",
            HEIGHT - BOTTOM,
            width - RIGHT,
            (LEFT + width - RIGHT) / 2.0,
            HEIGHT - 8.0,
            escaped(&self.x),
            (HEIGHT - BOTTOM + TOP) / 2.0,
            escaped(&self.y)
        );
        out += &if self.is_bars() { self.bars(&down) } else { self.lines(&down) };
        for (i, series) in self.series.iter().enumerate() {
            let (x, y) = (8.0 + (i % 3) as f64 * 144.0, HEIGHT + 12.0 + (i / 3) as f64 * 15.0);
            out += &if self.is_bars() {
                format!("<rect x={x} y={} width=10 height=10 fill='{}' />", y - 9.0, COLOURS[i % COLOURS.len()])
            } else {
                marker(i, x + 5.0, y - 4.0)
            };
            out += &format!("<text x={} y={y}>{}</text>\n", x + 14.0, escaped(&series.name));
        }
        out + "</svg></figure>\n"
    }

    fn legend_height(&self) -> f64 {
        self.series.len().div_ceil(3) as f64 * 15.0 + 4.0
    }

    /// Numbers of the horizontal axis have equal distances: thread counts double.
    fn lines(&self, down: &impl Fn(f64) -> f64) -> String {
        let width = self.width();
        let mut places: Vec<f64> = self.series.iter().flat_map(|s| s.points.iter().map(|p| p.0)).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let across = |x: f64| {
            let place = places.iter().position(|&p| p == x).unwrap_or(0) as f64;
            LEFT + 16.0 + (width - RIGHT - LEFT - 32.0) * place / (places.len().max(2) - 1) as f64
        };
        let mut out = String::new();
        for &x in &places {
            out += &format!(
                "<text x={:.1} y={} text-anchor=middle>{}</text>\n",
                across(x),
                HEIGHT - BOTTOM + 15.0,
                shown_plain(x)
            );
        }
        for (i, series) in self.series.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let at: Vec<(f64, f64)> =
                series.points.iter().filter(|p| p.1.is_finite()).map(|p| (across(p.0), down(p.1))).collect();
            let path: Vec<String> = at.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
            out += &format!("<polyline points='{}' fill=none stroke='{colour}' stroke-width=2 />\n", path.join(" "));
            for (x, y) in at {
                out += &marker(i, x, y);
            }
        }
        out
    }

    fn bars(&self, down: &impl Fn(f64) -> f64) -> String {
        let width = self.width();
        let room = (width - RIGHT - LEFT) / self.bars.len() as f64;
        let mut out = String::new();
        for (bar, name) in self.bars.iter().enumerate() {
            let x = LEFT + room * (bar as f64 + 0.15);
            let mut below = 0.0;
            for (i, series) in self.series.iter().enumerate() {
                let Some((_, y)) = series.points.get(bar).filter(|p| p.1.is_finite()) else { continue };
                let (from, to) = (down(below), down(below + y));
                out += &format!(
                    "<rect x={x:.1} y={to:.1} width={:.1} height={:.1} fill='{}' />",
                    room * 0.7,
                    from - to,
                    COLOURS[i % COLOURS.len()]
                );
                below += y;
            }
            out += &format!(
                "<text x={:.1} y={} text-anchor=middle font-size=9>{}</text>\n",
                x + room * 0.35,
                HEIGHT - BOTTOM + 13.0,
                escaped(name)
            );
        }
        out
    }
}

/// A point of the line with this number. Shapes tell lines apart where colours do not.
fn marker(line: usize, x: f64, y: f64) -> String {
    let colour = COLOURS[line % COLOURS.len()];
    match line % 3 {
        0 => format!("<circle cx={x:.1} cy={y:.1} r=3.5 fill='{colour}' />"),
        1 => format!("<rect x={:.1} y={:.1} width=7 height=7 fill='{colour}' />", x - 3.5, y - 3.5),
        _ => {
            let (top, right, bottom, left) = (y - 4.5, x + 4.5, y + 4.0, x - 4.5);
            format!("<path d='M{x:.1} {top:.1}L{right:.1} {bottom:.1}H{left:.1}Z' fill='{colour}' />")
        }
    }
}

/// A number of threads or a ratio, without needless decimals.
fn shown_plain(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_its_parts_and_escapes_them() {
        let mut page = Page::new("A & B");
        page.heading("1 < 2");
        page.table(&["x".into()], &[vec!["*theirs".into()], vec!["\"ours\"".into()]]);
        page.chart(&Chart {
            title: "T".into(),
            x: "threads".into(),
            y: "s".into(),
            series: vec![Series { name: "a".into(), points: vec![(1.0, 2.0), (64.0, f64::NAN), (2.0, 3.0)] }],
            bars: Vec::new(),
            axis: Axis::Linear,
        });
        page.chart(&Chart {
            title: "B".into(),
            x: "".into(),
            y: "s".into(),
            series: vec![
                Series { name: "u".into(), points: vec![(0.0, 1.0), (1.0, 2.0)] },
                Series { name: "g".into(), points: vec![(0.0, 0.5), (1.0, 0.5)] },
            ],
            bars: vec!["1".into(), "2".into()],
            axis: Axis::Linear,
        });
        let text = page.finish();
        assert!(text.contains("<title>A &amp; B</title>") && text.contains("<h2>1 &lt; 2</h2>"));
        assert!(text.contains("<tr class=theirs><td>theirs</td>") && text.contains("&quot;ours&quot;"));
        assert_eq!(text.matches("<svg").count(), 2);
        assert_eq!(text.matches("<circle").count(), 3, "the legend's and two: a point without a value is left out");
        assert!(!text.contains("NaN"));
    }

    #[test]
    fn a_logarithmic_axis_has_the_powers_of_ten() {
        let points = vec![(1.0, 0.03), (2.0, 420.0), (3.0, 0.0), (4.0, f64::NAN)];
        let series = vec![Series { name: "a".into(), points }];
        let axis = Axis::Logarithmic;
        let chart = Chart { title: "T".into(), x: String::new(), y: "ms".into(), series, bars: Vec::new(), axis };
        let marks = chart.marks(chart.least(), chart.most());
        assert_eq!(marks.iter().map(|m| shown(*m)).collect::<Vec<_>>(), ["0.010", "0.100", "1.00", "10.0", "100"]);
        let svg = chart.svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        // What is not above 0 has no place of its own: it lies on the axis.
        assert!(svg.contains(&format!("cy={:.1}", HEIGHT - BOTTOM)), "{svg}");
    }

    #[test]
    fn lines_are_told_apart_and_the_legend_shows_how() {
        let markers: std::collections::HashSet<String> = (0..30).map(|line| marker(line, 0.0, 0.0)).collect();
        assert_eq!(markers.len(), 30);
        let line = |name: &str| Series { name: name.into(), points: vec![(1.0, 1.0), (2.0, 2.0)] };
        let series = vec![line("a"), line("b"), line("c")];
        let (x, y) = (String::new(), String::new());
        let svg = Chart { title: "T".into(), x, y, series, bars: Vec::new(), axis: Axis::Linear }.svg();
        // Two points and the legend's.
        assert_eq!(
            [svg.matches("<circle").count(), svg.matches("<rect").count(), svg.matches("Z' fill=").count()],
            [3; 3]
        );
    }

    #[test]
    fn the_names_of_bars_have_room() {
        let points: Vec<(f64, f64)> = (0..14).map(|bar| (0.0, f64::from(bar))).collect();
        let series = vec![Series { name: "User".into(), points }];
        let bars: Vec<String> = (0..14).map(|bar| format!("Simple {bar}")).collect();
        let (x, y) = (String::new(), "s".into());
        let svg = Chart { title: "T".into(), x, y, series, bars, axis: Axis::Linear }.svg();
        let places: Vec<f64> = svg
            .split("<text x=")
            .filter(|text| text.contains("Simple"))
            .filter_map(|text| text.split(' ').next()?.parse().ok())
            .collect();
        assert_eq!(places.len(), 14);
        assert!(places.windows(2).all(|two| two[1] - two[0] >= 45.0), "{places:?}");
        let width: f64 = svg.split("<svg width=").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap();
        assert!(places[13] < width);
    }

    #[test]
    fn axes_have_about_five_marks_at_round_numbers() {
        for (most, wanted) in [(1.0, 0.2), (7.0, 2.0), (26.0, 10.0), (440.0, 100.0), (0.03, 0.01)] {
            assert!((step(most) - wanted).abs() < wanted * 1e-9, "{most}: {}", step(most));
        }
        assert_eq!((shown(0.0), shown(1234.5).as_str(), shown(f64::NAN).as_str()), ("0".into(), "1234", "-"));
    }
}
