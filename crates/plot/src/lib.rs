//! SVG charts of lines and of bars, and tables ([`table`]).
//!
//! Owns the look of every chart: panels side by side under one title, one legend below them, and
//! colours that colour-blind readers can tell apart (Okabe and Ito). A drawing has no fixed size:
//! it scales with the page or window that shows it. Its style sheet follows the reader's light or
//! dark scheme.
//!
//! | module | owns |
//! |---|---|
//! | `axis` | ranges, ticks and their labels; where a value lies on an axis |
//! | `colours` | which colour a curve or bar has |
//! | `chart` | one panel: frame, grid, curves, bars, labels |
//! | [`demo`] | the panels of `tailwater demo` |
//! | `svg` | the text of the elements, escaped; the style sheet; estimated widths of text |
//!
//! A drawing contains no `id`, so any number of drawings may stand in one HTML document.

#![forbid(unsafe_code)]

mod axis;
mod chart;
mod colours;
pub mod demo;
mod svg;
pub mod table;

use colours::Colours;
use svg::{Anchor, Svg};

/// One curve.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Points in order of x; non-finite ones are left out.
    pub points: Vec<(f64, f64)>,
    /// Dashed instead of solid: for references and simulated twins of measured curves.
    pub dashed: bool,
}

impl Line {
    /// Returns a solid curve.
    #[must_use]
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, dashed: false }
    }

    /// Returns the same curve, dashed.
    #[must_use]
    pub fn dashed(self) -> Self {
        Self { dashed: true, ..self }
    }
}

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Name below it.
    pub name: String,
    /// Its height.
    pub value: f64,
    /// Lower and upper end of its whisker, which is cut off at the upper end of the axis.
    pub range: (f64, f64),
}

/// Whole decades around all points of these curves that can be drawn on a logarithmic axis.
#[must_use]
pub fn decades(lines: &[Line]) -> (f64, f64) {
    let values = || lines.iter().flat_map(|line| &line.points).map(|&(_, y)| y).filter(|y| y.is_finite());
    let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(1.0, f64::max));
    let decade = |y: f64, round: fn(f64) -> f64| libm::pow(10.0, round(libm::log10(y.max(0.1))));
    let (low, high) = (decade(low.min(high), f64::floor), decade(high, f64::ceil));
    (low, high.max(low * 10.0))
}

/// One chart of a figure.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// Title above the chart.
    pub title: String,
    /// Label of the x axis.
    pub x_label: String,
    /// Label of the y axis.
    pub y_label: String,
    /// Logarithmic x axis.
    pub log_x: bool,
    /// Logarithmic y axis.
    pub log_y: bool,
    /// Fixed lower and upper end of the y axis; points above are cut off.
    pub y_range: Option<(f64, f64)>,
    /// The curves. The same name has the same colour in every panel.
    pub lines: Vec<Line>,
    /// Bars instead of curves, with whiskers; the x axis is their names.
    pub bars: Vec<Bar>,
    /// Small labels at points of the chart: x, y, text.
    pub labels: Vec<(f64, f64, String)>,
}

impl Panel {
    /// Returns a chart of curves on linear axes.
    #[must_use]
    pub fn new(title: &str, x_label: &str, y_label: &str, lines: Vec<Line>) -> Self {
        let [title, x_label, y_label] = [title, x_label, y_label].map(str::to_owned);
        Self { title, x_label, y_label, lines, ..Self::default() }
    }

    /// Returns a chart of bars.
    #[must_use]
    pub fn of_bars(title: &str, y_label: &str, bars: Vec<Bar>) -> Self {
        Self { bars, ..Self::new(title, "", y_label, Vec::new()) }
    }

    /// Returns the same chart with a logarithmic x axis.
    #[must_use]
    pub fn log_x(self) -> Self {
        Self { log_x: true, ..self }
    }

    /// Returns the same chart with a logarithmic y axis.
    #[must_use]
    pub fn log_y(self) -> Self {
        Self { log_y: true, ..self }
    }

    /// Returns the same chart with a fixed range of the y axis.
    #[must_use]
    pub fn within(self, range: (f64, f64)) -> Self {
        Self { y_range: Some(range), ..self }
    }

    /// Returns the same chart with a logarithmic y axis of [`decades`] around its curves.
    #[must_use]
    pub fn decades(self) -> Self {
        Self { log_y: true, y_range: Some(decades(&self.lines)), ..self }
    }
}

/// Width and height of one panel among several, in units of the drawing. Three in a row with
/// 13-unit text stay readable in a window 800 pixels wide.
const CELL: (f64, f64) = (340.0, 310.0);
/// Width and height of a panel that stands alone.
const SINGLE: (f64, f64) = (680.0, 400.0);
const MARGIN: f64 = 12.0;
const TITLE_SIZE: f64 = 17.0;
const LEGEND_ROW: f64 = 22.0;
/// Space of a legend entry beside its name: sample line, gap, distance to the next entry.
const LEGEND_EXTRA: f64 = 60.0;

/// Draws panels side by side (at most three in a row) under one title and returns the SVG text.
#[must_use]
pub fn draw(title: &str, panels: &[Panel]) -> String {
    let columns = panels.len().clamp(1, 3);
    let cell = if panels.len() > 1 { CELL } else { SINGLE };
    let width = columns as f64 * cell.0 + 2.0 * MARGIN;
    let heading = svg::wrap(title, TITLE_SIZE, width - 2.0 * MARGIN);
    let colours = Colours::of(panels);
    let legend = legend_rows(panels, &colours, width - 2.0 * MARGIN);
    let top = MARGIN + 1.4 * TITLE_SIZE * heading.len() as f64;
    let bottom = top + cell.1 * panels.len().div_ceil(columns) as f64;
    let height = bottom + LEGEND_ROW * legend.len() as f64 + MARGIN;

    let mut drawing = Svg::new(width, height, title);
    for (row, line) in heading.iter().enumerate() {
        let y = MARGIN + TITLE_SIZE * (1.0 + 1.4 * row as f64);
        drawing.text((width / 2.0, y), TITLE_SIZE, Anchor::Middle, "tw-bold", line);
    }
    for (index, panel) in panels.iter().enumerate() {
        let (row, column) = ((index / columns) as f64, (index % columns) as f64);
        let origin = (MARGIN + column * cell.0, top + row * cell.1);
        chart::draw(&mut drawing, panel, &colours, origin, cell);
    }
    for (row, entries) in legend.iter().enumerate() {
        draw_legend_row(&mut drawing, entries, width, bottom + LEGEND_ROW * (row as f64 + 0.6));
    }
    drawing.finish()
}

/// A name in the legend and how its curve is drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    colour: usize,
    dashed: bool,
}

impl Entry {
    fn width(&self) -> f64 {
        svg::text_width(&self.name, chart::TEXT_SIZE) + LEGEND_EXTRA
    }
}

/// Returns the curves of all panels, each name once, in rows that fit into `width`.
fn legend_rows(panels: &[Panel], colours: &Colours, width: f64) -> Vec<Vec<Entry>> {
    let mut rows: Vec<Vec<Entry>> = Vec::new();
    for line in panels.iter().flat_map(|panel| &panel.lines) {
        let colour = colours.get(&line.name);
        let entry = Entry { name: line.name.clone(), colour, dashed: line.dashed };
        if rows.iter().flatten().any(|known| known.name == entry.name) {
            continue;
        }
        match rows.last_mut() {
            Some(row) if row.iter().map(Entry::width).sum::<f64>() + entry.width() <= width => {
                row.push(entry);
            }
            _ => rows.push(vec![entry]),
        }
    }
    rows
}

fn draw_legend_row(drawing: &mut Svg, entries: &[Entry], width: f64, y: f64) {
    let mut x = (width - entries.iter().map(Entry::width).sum::<f64>()) / 2.0 + 10.0;
    for entry in entries {
        drawing.polyline(&[(x, y), (x + 30.0, y)], entry.colour, entry.dashed);
        let at = (x + 36.0, y + 0.35 * chart::TEXT_SIZE);
        drawing.text(at, chart::TEXT_SIZE, Anchor::Start, "", &entry.name);
        x += entry.width();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_axis_begins_and_ends_at_whole_decades() {
        let line = |points: &[(f64, f64)]| vec![Line::new("a", points.to_vec())];
        assert_eq!(decades(&line(&[(0.0, 20.0), (1.0, 900.0)])), (10.0, 1000.0));
        assert_eq!(decades(&line(&[(0.0, 100.0)])), (100.0, 1000.0));
        assert_eq!(decades(&line(&[(0.0, f64::NAN)])), (1.0, 10.0));
    }

    #[test]
    fn a_panel_without_a_point_is_drawn_empty() {
        for (log_y, log_x, y_range) in
            [(true, false, Some((1.0, 10.0))), (true, true, None), (false, false, None)]
        {
            let lines = vec![Line::new("saturated", Vec::new())];
            let empty = Panel { title: "no point".into(), log_x, log_y, y_range, lines, ..Panel::default() };
            for panels in [vec![empty.clone()], vec![empty.clone(), empty.clone()], vec![Panel::default()]] {
                let svg = draw("a figure", &panels);
                assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
    }

    #[test]
    fn bars_reach_the_drawing_with_their_names() {
        let bar = |name: &str, value| Bar { name: name.into(), value, range: (value * 0.5, value * 2.0) };
        let panel = Panel { bars: vec![bar("polling", 3.0), bar("woken", 30.0)], ..Panel::default() };
        let svg = draw("round trips", &[panel]);
        for text in [">polling<", ">woken<", "tw-f0", "tw-f1"] {
            assert!(svg.contains(text), "`{text}` is missing");
        }
    }

    #[test]
    fn every_curve_and_label_reaches_the_drawing() {
        let panel = Panel {
            title: "tail".into(),
            x_label: "load".into(),
            y_label: "us".into(),
            log_y: true,
            lines: vec![
                Line::new("alpha", vec![(0.1, 1.0), (0.9, 10.0)]),
                Line::new("beta", vec![(0.1, 2.0), (0.9, 30.0)]).dashed(),
            ],
            labels: vec![(0.5, 5.0, "knee".to_owned())],
            ..Panel::default()
        };
        let svg = draw("a figure", &[panel.clone(), panel]);
        for text in [">a figure<", ">alpha<", ">beta<", ">tail<", ">load<", ">us<", ">knee<", "tw-l1"] {
            assert!(svg.contains(text), "`{text}` is missing");
        }
    }

    #[test]
    fn no_word_of_a_long_title_is_cut_off() {
        let title = |about: &str| format!("{about}: tail latency of requests beside a batch job, ").repeat(6);
        for columns in 1..=3 {
            let panel = Panel { title: title("panel"), ..Panel::default() };
            let svg = draw(&title("drawing"), &vec![panel; columns]);
            let sized = svg.split_once("viewBox=\"0 0 ").unwrap().1;
            let width: f64 = sized.split(' ').next().unwrap().parse().unwrap();
            let bold = |size: f64| {
                let lines = svg.lines().filter(move |line| {
                    line.contains("tw-bold\">") && line.contains(&format!("font-size=\"{size:.0}\""))
                });
                let texts =
                    lines.map(|line| line.split_once('>').unwrap().1.strip_suffix("</text>").unwrap());
                texts.map(str::to_owned).collect::<Vec<_>>()
            };
            let heading = bold(TITLE_SIZE);
            assert_eq!(heading.join(" "), title("drawing"));
            assert!(heading.iter().all(|line| svg::text_width(line, TITLE_SIZE) <= width), "{heading:?}");
            let panels = bold(chart::PANEL_TITLE_SIZE);
            assert_eq!(panels.join(" "), vec![title("panel"); columns].join(" "));
            let share = width / columns as f64;
            let fits = |line: &String| svg::text_width(line, chart::PANEL_TITLE_SIZE) <= share;
            assert!(panels.iter().all(fits), "{panels:?}");
        }
    }

    #[test]
    fn a_name_is_once_in_the_legend_whatever_the_number_of_panels() {
        let panel = |names: &[&str]| Panel {
            lines: names.iter().map(|name| Line::new(*name, Vec::new())).collect(),
            ..Panel::default()
        };
        let panels = [panel(&["a", "b"]), panel(&["a", "c"])];
        let rows = legend_rows(&panels, &Colours::of(&panels), 1e6);
        let entry = |name: &str, colour| Entry { name: name.to_owned(), colour, dashed: false };
        assert_eq!(rows, [vec![entry("a", 0), entry("b", 1), entry("c", 2)]]);
    }

    #[test]
    fn a_legend_wraps_before_it_leaves_the_drawing() {
        let lines =
            (0..8).map(|i| Line::new(format!("a rather long name of a curve, {i}"), Vec::new())).collect();
        let panels = [Panel { lines, ..Panel::default() }];
        let rows = legend_rows(&panels, &Colours::of(&panels), 700.0);
        assert!(rows.len() > 1);
        for row in rows {
            assert!(row.iter().map(Entry::width).sum::<f64>() <= 700.0);
        }
    }

    #[test]
    fn a_drawing_scales_and_has_no_ids() {
        let svg = draw("a figure", &[Panel::default()]);
        assert!(svg.contains("viewBox=\"0 0 ") && svg.contains("max-width:100%"), "{svg}");
        assert!(!svg.contains(" id="), "{svg}");
    }

    #[test]
    fn no_text_becomes_markup() {
        let panel = Panel {
            title: "<b>".into(),
            x_label: "a&b".into(),
            lines: vec![Line::new("\"<i>\"", vec![(1.0, 1.0)])],
            ..Panel::default()
        };
        let svg = draw("<script>", &[panel]);
        for markup in ["<script", "<b>", "<i>", "a&b"] {
            assert!(!svg.contains(markup), "{markup}\n{svg}");
        }
    }
}
