//! The panels of the demo: latency over load, and the batch job's speed.
//!
//! Owns their titles and axes; the curves are its caller's. The command `tailwater demo` draws them
//! of one run, `tailwater-lab publish` of the medians of several.

use crate::{Line, Panel, decades, draw as draw_panels};

/// Name of the curve of a queue without overhead.
pub const IDEAL: &str = "ideal queue";
/// Name of the curve of that queue under the stalls of the machine.
pub const STALLED: &str = "ideal with this machine's stalls";

/// Returns the drawing of a service with this distribution as SVG text.
#[must_use]
pub fn draw(service: &str, p50_us: Vec<Line>, win_p999_us: Vec<Line>, batch_share: Vec<Line>) -> String {
    let panels = [
        latency("Median", p50_us),
        latency("p99.9 of a typical 100 ms window", win_p999_us),
        batch(batch_share),
    ];
    draw_panels(&format!("A service ({service}) and a batch job on the same cores"), &panels)
}

fn latency(title: &str, lines: Vec<Line>) -> Panel {
    Panel {
        title: title.to_owned(),
        x_label: "load (%)".to_owned(),
        y_label: "latency (us)".to_owned(),
        log_y: true,
        y_range: Some(decades(&lines)),
        lines,
        ..Panel::default()
    }
}

fn batch(lines: Vec<Line>) -> Panel {
    Panel {
        title: "Batch job".to_owned(),
        x_label: "load (%)".to_owned(),
        y_label: "speed (alone = 1)".to_owned(),
        y_range: Some((0.0, 1.0)),
        lines,
        ..Panel::default()
    }
}
