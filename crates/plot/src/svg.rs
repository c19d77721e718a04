//! The elements of a drawing as text.
//!
//! Owns escaping, the style sheet and the estimate of how wide a text is. Coordinates are written
//! with one decimal place, which keeps files small and equal results equal bytes.

use std::fmt::Write as _;

/// Curves of a figure that have colours of their own; the next one begins again.
pub const COLOURS: usize = 8;

/// Light and dark form of each colour, after Okabe and Ito: the dark forms are lighter, for
/// contrast.
const PALETTE: [(&str, &str); COLOURS] = [
    ("#0072b2", "#4ba3dd"),
    ("#d55e00", "#f0803c"),
    ("#009e73", "#2fc79b"),
    ("#cc79a7", "#e09cc2"),
    ("#e69f00", "#f0b93a"),
    ("#56b4e9", "#8fd0f5"),
    ("#000000", "#f0f0f0"),
    ("#8c8c8c", "#a8a8a8"),
];

/// Which end of a text lies at its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

/// A drawing under way.
pub struct Svg {
    text: String,
}

impl Svg {
    /// Returns an empty drawing of this size, which scales with whatever shows it.
    pub fn new(width: f64, height: f64, title: &str) -> Self {
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"tw-plot\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" aria-label=\"{}\">\n",
            escape(title)
        );
        text += &style();
        let mut drawing = Self { text };
        drawing.rect((0.0, 0.0), (width, height), "tw-page");
        drawing
    }

    /// Returns the text of the drawing.
    pub fn finish(self) -> String {
        self.text + "</svg>\n"
    }

    /// A line of text; `class` is one of the style sheet's, or empty.
    pub fn text(&mut self, at: (f64, f64), size: f64, anchor: Anchor, class: &str, text: &str) {
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        let _ = writeln!(
            self.text,
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"{size:.0}\" text-anchor=\"{}\"{class}>{}</text>",
            at.0,
            at.1,
            anchor.name(),
            escape(text)
        );
    }

    /// A text that is read from below, centred at a point.
    pub fn vertical_text(&mut self, at: (f64, f64), size: f64, text: &str) {
        self.turned(at, size, -90.0, Anchor::Middle, text);
    }

    /// A text that ends at a point and rises to it at an angle.
    pub fn turned_text(&mut self, at: (f64, f64), size: f64, angle: f64, text: &str) {
        self.turned(at, size, angle, Anchor::End, text);
    }

    fn turned(&mut self, (x, y): (f64, f64), size: f64, angle: f64, anchor: Anchor, text: &str) {
        let _ = writeln!(
            self.text,
            "<text transform=\"translate({x:.1} {y:.1}) rotate({angle:.0})\" font-size=\"{size:.0}\" \
             text-anchor=\"{}\">{}</text>",
            anchor.name(),
            escape(text)
        );
    }

    /// A straight line of a class of the style sheet.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let _ = writeln!(
            self.text,
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            from.0, from.1, to.0, to.1
        );
    }

    /// A rectangle of a class of the style sheet.
    pub fn rect(&mut self, corner: (f64, f64), size: (f64, f64), class: &str) {
        let _ = writeln!(
            self.text,
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
            corner.0, corner.1, size.0, size.1
        );
    }

    /// A bar in the colour with this number.
    pub fn bar(&mut self, corner: (f64, f64), size: (f64, f64), colour: usize) {
        self.rect(corner, size, &format!("tw-f{}", colour % COLOURS));
    }

    /// A curve in the colour with this number; nothing without points.
    pub fn polyline(&mut self, points: &[(f64, f64)], colour: usize, dashed: bool) {
        if points.is_empty() {
            return;
        }
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let dashes = if dashed { " stroke-dasharray=\"7 5\"" } else { "" };
        let (colour, points) = (colour % COLOURS, points.join(" "));
        let _ = writeln!(self.text, "<polyline class=\"tw-l{colour}\"{dashes} points=\"{points}\"/>");
    }

    /// A point of a curve.
    pub fn dot(&mut self, (x, y): (f64, f64), colour: usize) {
        let colour = colour % COLOURS;
        let _ = writeln!(self.text, "<circle class=\"tw-f{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>");
    }

    /// Begins a rectangle that cuts off what leaves it and in which coordinates begin at 0.
    pub fn begin_clipped(&mut self, corner: (f64, f64), size: (f64, f64)) {
        let _ = writeln!(
            self.text,
            "<svg x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" overflow=\"hidden\">",
            corner.0, corner.1, size.0, size.1
        );
    }

    /// Ends it.
    pub fn end_clipped(&mut self) {
        self.text += "</svg>\n";
    }
}

/// Returns the style sheet. Every class begins with `tw-`, since a drawing may stand in an HTML
/// page.
fn style() -> String {
    let colours = |dark: bool| -> String {
        let rule = |(i, (light, night)): (usize, &(&str, &str))| {
            let colour = if dark { night } else { light };
            format!(".tw-l{i}{{stroke:{colour}}}.tw-f{i}{{fill:{colour}}}")
        };
        PALETTE.iter().enumerate().map(rule).collect()
    };
    let scheme = |page: &str, ink: &str, grid: &str, fine: &str, frame: &str| {
        format!(
            ".tw-page{{fill:{page}}}.tw-plot text{{fill:{ink}}}.tw-grid{{stroke:{grid}}}.tw-fine{{stroke:{fine}}}\
             .tw-frame{{stroke:{frame};fill:none}}.tw-whisker{{stroke:{ink};stroke-width:1.5}}"
        )
    };
    format!(
        "<style>.tw-plot{{max-width:100%;height:auto;font-family:system-ui,'DejaVu Sans',Helvetica,Arial,sans-serif}}\
         .tw-bold{{font-weight:600}}.tw-plot polyline{{fill:none;stroke-width:2.2;stroke-linejoin:round}}{}{}\
         @media (prefers-color-scheme:dark){{{}{}}}</style>\n",
        scheme("#ffffff", "#1f2328", "#d8dce0", "#eef0f2", "#59636e"),
        colours(false),
        scheme("#0d1117", "#e6edf3", "#30363d", "#1c2128", "#8b949e"),
        colours(true)
    )
}

/// Returns an estimate, rather too large, of the width of a text in a sans-serif font.
pub fn text_width(text: &str, size: f64) -> f64 {
    let wide = |c: char| match c {
        'i' | 'j' | 'l' | 't' | 'f' | 'r' | '.' | ',' | ':' | ';' | ' ' | '|' | '\'' | '(' | ')' | '/' => {
            0.40
        }
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.98,
        'A'..='Z' => 0.74,
        _ => 0.63,
    };
    size * text.chars().map(wide).sum::<f64>()
}

/// Returns a text as lines that fit into `width`, broken at spaces. At least one line; a longer
/// word has a line of its own.
pub fn wrap(text: &str, size: f64, width: f64) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is at least one line");
        if line.is_empty() {
            word.clone_into(line);
        } else if text_width(line, size) + text_width(word, size) + 0.4 * size <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Text as XML, in elements and in double-quoted attributes alike.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_wraps_at_spaces() {
        assert_eq!(wrap("one two three", 10.0, 1e6), ["one two three"]);
        assert_eq!(wrap("one two three", 10.0, 1.0), ["one", "two", "three"]);
        assert_eq!(wrap("", 10.0, 1.0), [""]);
    }

    #[test]
    fn every_class_of_the_style_sheet_is_this_projects_own() {
        let style = style();
        let classes = style.match_indices('.').map(|(at, _)| &style[at..]);
        for class in classes.filter(|class| class[1..].starts_with(|c: char| c.is_ascii_alphabetic())) {
            assert!(class.starts_with(".tw-"), "{class}");
        }
    }
}
