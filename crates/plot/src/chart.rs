//! One panel: title, frame, grid, curves or bars, labels of the axes.
//!
//! Owns where things lie within the panel. Curves and bars are drawn in a nested element that cuts
//! off what leaves the frame.

use crate::axis::{Axis, Tick};
use crate::colours::Colours;
use crate::svg::{Anchor, Svg, text_width, wrap};
use crate::{Bar, Line, Panel};

/// Size of the text at axes and in the legend.
pub const TEXT_SIZE: f64 = 13.0;
pub const PANEL_TITLE_SIZE: f64 = 14.0;
const ANNOTATION_SIZE: f64 = 11.0;
/// A curve of at most this many points shows them, so that a curve of one point is visible.
const MARKED: usize = 24;
/// How far dots and strokes at the ends of an axis may leave the frame.
const BLEED: f64 = 4.0;
/// Names of bars wider than their share of the axis are drawn at this angle.
const SLANT: f64 = -32.0;

/// The rectangle inside the axes.
#[derive(Clone, Copy, Debug)]
struct Frame {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

impl Frame {
    fn right(&self) -> f64 {
        self.x + self.width
    }

    fn bottom(&self) -> f64 {
        self.y + self.height
    }
}

/// Draws a panel with its upper left corner at `origin` and of this size.
pub fn draw(drawing: &mut Svg, panel: &Panel, colours: &Colours, origin: (f64, f64), size: (f64, f64)) {
    let y_axis = y_axis(panel);
    let title = wrap(&panel.title, PANEL_TITLE_SIZE, size.0 - 10.0);
    let frame = frame(panel, &y_axis, title.len(), origin, size);
    for (row, line) in title.iter().enumerate() {
        let y = origin.1 + PANEL_TITLE_SIZE * (1.0 + 1.3 * row as f64);
        drawing.text((frame.x + frame.width / 2.0, y), PANEL_TITLE_SIZE, Anchor::Middle, "tw-bold", line);
    }
    draw_y_axis(drawing, &y_axis, &frame, origin.0, &panel.y_label);
    drawing.rect((frame.x, frame.y), (frame.width, frame.height), "tw-frame");
    if panel.bars.is_empty() {
        draw_curves(drawing, panel, colours, &y_axis, &frame);
    } else {
        draw_bars(drawing, &panel.bars, colours, &y_axis, &frame);
    }
    let at = (frame.x + frame.width / 2.0, origin.1 + size.1 - 12.0);
    drawing.text(at, TEXT_SIZE, Anchor::Middle, "", &panel.x_label);
}

fn y_axis(panel: &Panel) -> Axis {
    match panel.y_range {
        Some((low, high)) => Axis::fixed(low, high, panel.log_y),
        None if panel.bars.is_empty() => {
            let values = panel.lines.iter().flat_map(|line| &line.points).map(|&(_, y)| y);
            Axis::around(values, panel.log_y)
        }
        None => {
            let tops = panel.bars.iter().map(|bar| bar.value.max(bar.range.1));
            Axis::around(tops.chain(std::iter::once(0.0)), panel.log_y)
        }
    }
}

/// Returns the frame inside a panel: what titles, labels and names of bars leave of it.
fn frame(panel: &Panel, y_axis: &Axis, titles: usize, origin: (f64, f64), size: (f64, f64)) -> Frame {
    let label = |tick: &Tick| tick.label.as_ref().map_or(0.0, |label| text_width(label, TEXT_SIZE));
    let ticks = y_axis.ticks().iter().map(label).fold(0.0, f64::max);
    let left = 26.0 + ticks + 8.0;
    let top = 8.0 + 1.3 * PANEL_TITLE_SIZE * titles as f64;
    let width = size.0 - left - 16.0;
    let names = if slanted(&panel.bars, width) {
        let longest = panel.bars.iter().map(|bar| text_width(&bar.name, TEXT_SIZE)).fold(0.0, f64::max);
        14.0 + longest * libm::sin(-SLANT.to_radians())
    } else {
        22.0
    };
    let x_label = if panel.x_label.is_empty() { 8.0 } else { 32.0 };
    Frame { x: origin.0 + left, y: origin.1 + top, width, height: size.1 - top - names - x_label }
}

/// Returns whether the names of the bars do not fit side by side into `width`.
fn slanted(bars: &[Bar], width: f64) -> bool {
    let share = width / bars.len().max(1) as f64;
    bars.iter().any(|bar| text_width(&bar.name, TEXT_SIZE) + 6.0 > share)
}

fn draw_y_axis(drawing: &mut Svg, axis: &Axis, frame: &Frame, left: f64, label: &str) {
    for tick in axis.ticks() {
        let y = frame.bottom() - axis.place(tick.value) * frame.height;
        let class = if tick.label.is_some() { "tw-grid" } else { "tw-fine" };
        drawing.line((frame.x, y), (frame.right(), y), class);
        if let Some(label) = tick.label {
            drawing.text((frame.x - 6.0, y + 0.35 * TEXT_SIZE), TEXT_SIZE, Anchor::End, "", &label);
        }
    }
    drawing.vertical_text((left + 14.0, frame.y + frame.height / 2.0), TEXT_SIZE, label);
}

fn draw_x_axis(drawing: &mut Svg, axis: &Axis, frame: &Frame) {
    let mut free = f64::NEG_INFINITY;
    for tick in axis.ticks() {
        let x = frame.x + axis.place(tick.value) * frame.width;
        drawing.line(
            (x, frame.y),
            (x, frame.bottom()),
            if tick.label.is_some() { "tw-grid" } else { "tw-fine" },
        );
        // A label that would touch the one before it is left out.
        let Some(label) = tick.label else { continue };
        let half = text_width(&label, TEXT_SIZE) / 2.0;
        if x - half >= free {
            drawing.text((x, frame.bottom() + 1.3 * TEXT_SIZE), TEXT_SIZE, Anchor::Middle, "", &label);
            free = x + half + 4.0;
        }
    }
}

fn draw_curves(drawing: &mut Svg, panel: &Panel, colours: &Colours, y_axis: &Axis, frame: &Frame) {
    let drawn: Vec<Vec<(f64, f64)>> =
        panel.lines.iter().map(|line| clip(&line.points, y_axis.high())).collect();
    let x_axis = x_axis(&drawn, panel.log_x);
    draw_x_axis(drawing, &x_axis, frame);
    let place = |x: f64, y: f64| {
        (BLEED + x_axis.place(x) * frame.width, BLEED + (1.0 - y_axis.place(y)) * frame.height)
    };
    let corner = (frame.x - BLEED, frame.y - BLEED);
    drawing.begin_clipped(corner, (frame.width + 2.0 * BLEED, frame.height + 2.0 * BLEED));
    for (Line { name, dashed, .. }, points) in panel.lines.iter().zip(&drawn) {
        let colour = colours.get(name);
        let points: Vec<(f64, f64)> = points.iter().map(|&(x, y)| place(x, y)).collect();
        drawing.polyline(&points, colour, *dashed);
        if points.len() <= MARKED && (!dashed || points.len() == 1) {
            for point in points {
                drawing.dot(point, colour);
            }
        }
    }
    for (x, y, text) in &panel.labels {
        drawing.text(place(*x, *y), ANNOTATION_SIZE, Anchor::Middle, "", text);
    }
    drawing.end_clipped();
}

/// Returns the range of the curves' x values, with nothing added: a curve begins and ends at the
/// frame.
fn x_axis(drawn: &[Vec<(f64, f64)>], log: bool) -> Axis {
    let values = || drawn.iter().flatten().map(|&(x, _)| x).filter(|x| !log || *x > 0.0);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
    if low < high { Axis::fixed(low, high, log) } else { Axis::around(values(), log) }
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

fn draw_bars(drawing: &mut Svg, bars: &[Bar], colours: &Colours, axis: &Axis, frame: &Frame) {
    let share = frame.width / bars.len() as f64;
    let slant = slanted(bars, frame.width);
    let place = |value: f64| (1.0 - axis.place(value).clamp(0.0, 1.0)) * frame.height;
    drawing.begin_clipped((frame.x, frame.y), (frame.width, frame.height));
    for (index, bar) in bars.iter().enumerate().filter(|(_, bar)| bar.value.is_finite()) {
        let (x, y) = (share * index as f64, place(bar.value));
        drawing.bar((x + 0.15 * share, y), (0.7 * share, frame.height - y), colours.get(&bar.name));
        let middle = x + share / 2.0;
        drawing.line((middle, place(bar.range.0)), (middle, place(bar.range.1)), "tw-whisker");
        for end in [bar.range.0, bar.range.1] {
            drawing.line((middle - 4.0, place(end)), (middle + 4.0, place(end)), "tw-whisker");
        }
    }
    drawing.end_clipped();
    for (index, bar) in bars.iter().enumerate() {
        let x = frame.x + share * (index as f64 + 0.5);
        let y = frame.bottom() + 1.2 * TEXT_SIZE;
        if slant {
            drawing.turned_text((x + 4.0, y), TEXT_SIZE, SLANT, &bar.name);
        } else {
            drawing.text((x, y), TEXT_SIZE, Anchor::Middle, "", &bar.name);
        }
    }
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
    fn names_of_bars_are_slanted_where_they_would_touch() {
        let bar = |name: &str| Bar { name: name.to_owned(), value: 1.0, range: (1.0, 1.0) };
        assert!(!slanted(&[bar("a"), bar("b")], 300.0));
        assert!(slanted(&[bar("runtime, preempting"), bar("Linux, preempting")], 200.0));
    }
}
