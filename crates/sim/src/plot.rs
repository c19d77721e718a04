//! SVG charts of lines and of bars.
//!
//! Owns the look of every plot: colours that stay apart for colour-blind readers (Okabe and Ito), one legend per figure, panels
//! side by side. The plotting library is used here and nowhere else, so that it can be replaced.

use std::sync::Arc;

use kuva::plot::{BarPlot, LegendPosition, LinePlot};
use kuva::prelude::*;
use kuva::render::annotations::TextAnnotation;

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
    /// A solid curve.
    #[must_use]
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, dashed: false }
    }

    /// The same curve, dashed.
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
    /// Lower and upper end of its whisker.
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
    /// The curves. The same position has the same colour in every panel.
    pub lines: Vec<Line>,
    /// Bars instead of curves, with whiskers; the x axis is their names.
    pub bars: Vec<Bar>,
    /// Small labels at points of the chart: x, y, text.
    pub labels: Vec<(f64, f64, String)>,
}

const COLOURS: [&str; 8] =
    ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"];

const CELL: (f64, f64) = (470.0, 380.0);

/// Draws panels side by side (at most three in a row) under one title and returns the SVG text.
#[must_use]
pub fn draw(title: &str, panels: &[Panel]) -> String {
    let columns = panels.len().clamp(1, 3);
    let rows = panels.len().div_ceil(columns).max(1);
    let mut plots = Vec::new();
    let mut layouts = Vec::new();
    for panel in panels {
        let mut lines: Vec<Plot> =
            panel.lines.iter().enumerate().map(|(i, l)| line_plot(panel, i, l)).collect();
        if !panel.bars.is_empty() {
            lines.push(bar_plot(&panel.bars));
        }
        layouts.push(layout(panel, &lines));
        plots.push(lines);
    }
    let mut figure = Figure::new(rows, columns).with_title(title).with_title_size(18);
    if panels.len() > 1 {
        figure = figure.with_labels_lowercase().with_shared_legend_bottom();
    } else {
        figure = figure.with_shared_legend_right_top();
    }
    let cell = if panels.len() > 1 { CELL } else { (720.0, 460.0) };
    let scene = figure.with_plots(plots).with_layouts(layouts).with_cell_size(cell.0, cell.1).render();
    SvgBackend::default().render_scene(&scene)
}

fn line_plot(panel: &Panel, index: usize, line: &Line) -> Plot {
    let top = panel.y_range.map_or(f64::INFINITY, |(_, top)| top);
    let points = clip(&line.points, top);
    let mut plot = LinePlot::new()
        .with_data(points)
        .with_color(COLOURS[index % COLOURS.len()])
        .with_stroke_width(2.2)
        .with_legend(line.name.clone());
    if line.dashed {
        plot = plot.with_dashed();
    }
    plot.into()
}

fn bar_plot(bars: &[Bar]) -> Plot {
    let coloured =
        bars.iter().enumerate().map(|(i, bar)| (bar.name.clone(), bar.value, COLOURS[i % COLOURS.len()]));
    let whiskers = bars.iter().map(|bar| (bar.value - bar.range.0, bar.range.1 - bar.value));
    BarPlot::new().with_colored_bars(coloured).with_asymmetric_error(whiskers.collect::<Vec<_>>()).into()
}

/// Drops points that cannot be drawn and ends a curve where it crosses `top`.
fn clip(points: &[(f64, f64)], top: f64) -> Vec<(f64, f64)> {
    let mut kept: Vec<(f64, f64)> = Vec::with_capacity(points.len());
    for &(x, y) in points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()) {
        if y <= top {
            kept.push((x, y));
        } else if let Some(&(x0, y0)) = kept.last().filter(|(_, y0)| *y0 < top) {
            kept.push((x0 + (x - x0) * (top - y0) / (y - y0), top));
        }
    }
    kept
}

fn layout(panel: &Panel, lines: &[Plot]) -> Layout {
    let mut layout = Layout::auto_from_plots(lines)
        .with_title(panel.title.clone())
        .with_x_label(panel.x_label.clone())
        .with_y_label(panel.y_label.clone())
        .with_legend_position(LegendPosition::OutsideRightTop)
        .with_title_size(15)
        .with_font_family("DejaVu Sans, Helvetica, Arial, sans-serif");
    if panel.log_x {
        layout = layout.with_log_x();
    }
    if panel.log_y {
        layout = layout.with_log_y().with_y_tick_format(TickFormat::Custom(Arc::new(|v| format!("{v}"))));
    }
    if let Some((low, high)) = panel.y_range {
        layout = layout.with_y_axis_min(low).with_y_axis_max(high);
    }
    for (x, y, text) in &panel.labels {
        layout = layout.with_annotation(TextAnnotation::new(text.clone(), *x, *y).with_font_size(10));
    }
    layout
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_ends_where_it_leaves_the_chart() {
        assert_eq!(clip(&[(0.0, 1.0), (1.0, 3.0), (2.0, 9.0)], 2.0), [(0.0, 1.0), (0.5, 2.0)]);
        assert_eq!(clip(&[(0.0, f64::NAN), (1.0, 3.0)], 9.0), [(1.0, 3.0)]);
    }

    #[test]
    fn a_logarithmic_axis_begins_and_ends_at_whole_decades() {
        let line = |points: &[(f64, f64)]| vec![Line::new("a", points.to_vec())];
        assert_eq!(decades(&line(&[(0.0, 20.0), (1.0, 900.0)])), (10.0, 1000.0));
        assert_eq!(decades(&line(&[(0.0, 100.0)])), (100.0, 1000.0));
        assert_eq!(decades(&line(&[(0.0, f64::NAN)])), (1.0, 10.0));
    }

    #[test]
    fn bars_reach_the_drawing_with_their_names() {
        let bar = |name: &str, value| Bar { name: name.into(), value, range: (value * 0.5, value * 2.0) };
        let panel = Panel { bars: vec![bar("polling", 3.0), bar("woken", 30.0)], ..Panel::default() };
        let svg = draw("round trips", &[panel]);
        assert!(svg.contains("polling") && svg.contains("woken") && svg.contains(COLOURS[1]), "{svg}");
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
            ..Panel::default()
        };
        let svg = draw("a figure", &[panel.clone(), panel]);
        for text in ["a figure", "alpha", "beta", "tail", "load", COLOURS[1]] {
            let text = text.to_lowercase();
            assert!(svg.to_lowercase().contains(&text), "`{text}` is missing");
        }
    }
}
