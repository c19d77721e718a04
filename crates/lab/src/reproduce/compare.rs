//! The comparison of two curves of latency over load.
//!
//! Owns the ratios of two curves by load, and the verdict on the highest loads at which the median
//! is within a limit. Loads lie between those that were tried, so a limit that a curve does not
//! reach decides nothing.

use super::contest::{Contest, Point};
use super::figure::{Claim, Spread, number};
use crate::bench::quantile;

/// The panel and the name of a curve.
pub type Curve<'a> = (&'a str, &'a str);

/// Returns by load the ratio of `value` of the second curve to that of the first, where the first
/// is not saturated; infinite where the second is.
pub fn times(
    contest: &Contest,
    [first, second]: [Curve<'_>; 2],
    value: fn(&Point) -> Option<Spread>,
) -> Vec<(f64, f64)> {
    let ratio = |point: &Point| {
        let other = contest.at(second.0, second.1, point.case.load)?;
        let times = match other.saturated() {
            true => f64::INFINITY,
            false => value(other)?.median / value(point)?.median,
        };
        Some((point.case.load, times))
    };
    let first = contest.curve(first.0, first.1);
    first.into_iter().filter(|point| !point.saturated()).filter_map(ratio).collect()
}

/// Returns ratios, each with its load, in words.
pub fn listed(times: &[(f64, f64)]) -> String {
    let one = |&(load, times): &(f64, f64)| match times.is_finite() {
        true => format!("{} ({})", number(times), number(load)),
        false => format!("saturated ({})", number(load)),
    };
    let text: Vec<String> = times.iter().map(one).collect();
    if text.is_empty() { "no load that both sustain".to_owned() } else { text.join(", ") }
}

/// Returns the median over the loads. Not a [`Spread`], which leaves out infinite values: a load
/// that only the first curve sustains counts.
pub fn middle(times: &[(f64, f64)]) -> Option<f64> {
    (!times.is_empty()).then(|| quantile(times.iter().map(|&(_, times)| times), 0.5))
}

/// Judges whether the highest load tried at which Tailwater's median is at most `limit_us` is at
/// least `ratio` times that of a rival.
pub fn more(
    contest: &Contest,
    [own, rival]: [Curve<'_>; 2],
    limit_us: f64,
    ratio: f64,
    paper: &str,
) -> Claim {
    let kept = |point: &Point| point.p50_us().is_some_and(|p50| p50.median <= limit_us);
    let within =
        |curve: Curve<'_>| contest.highest(curve.0, curve.1, kept).map_or(0.0, |point| point.case.load);
    let (own, theirs) = (within(own), within(rival));
    let ours = format!(
        "of the loads tried {} against {} thousand/s on the shared cores of this machine",
        number(own),
        number(theirs)
    );
    let most = contest.points.iter().map(|point| point.case.load).fold(0.0, f64::max);
    let holds = own >= ratio * theirs;
    // A rival that is within the limit nowhere decides nothing, and loads beyond the highest one
    // tried are unknown.
    let is_open = theirs == 0.0 || theirs >= most || (own >= most && !holds);
    Claim::judged(paper, ours, (!is_open).then_some(holds))
}

#[cfg(test)]
mod tests {
    use super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::contest::tests::{contest, point};
    use super::*;

    const PAIR: [Curve<'_>; 2] = [("exp", "own"), ("exp", "rival")];

    #[test]
    fn a_load_that_only_the_first_curve_sustains_is_infinitely_worse() {
        let contest = contest(vec![
            point("own", 10.0, &[100.0], 0.0, false),
            point("rival", 10.0, &[300.0], 0.0, false),
            point("own", 20.0, &[100.0], 0.0, false),
            point("rival", 20.0, &[9e3], 0.0, true),
            point("own", 30.0, &[9e3], 0.0, true),
            point("rival", 30.0, &[100.0], 0.0, false),
        ]);
        let times = times(&contest, PAIR, Point::p99_us);
        assert_eq!(times, [(10.0, 3.0), (20.0, f64::INFINITY)]);
        assert_eq!(listed(&times), "3.00 (10.0), saturated (20.0)");
        assert_eq!(
            (middle(&times), middle(&times[..1]), middle(&[])),
            (Some(f64::INFINITY), Some(3.0), None)
        );
        assert_eq!(listed(&[]), "no load that both sustain");
    }

    #[test]
    fn loads_beyond_those_tried_are_unknown() {
        // The median is a tenth of the tail.
        let verdict = |own: f64, rival: f64| -> Verdict {
            let mut points = Vec::new();
            for load in [10.0, 20.0, 40.0] {
                let tail = |most: f64| if load <= most { 900.0 } else { 1_100.0 };
                points.push(point("own", load, &[tail(own)], 0.0, false));
                points.push(point("rival", load, &[tail(rival)], 0.0, false));
            }
            more(&contest(points), PAIR, 100.0, 2.0, "paper").verdict
        };
        assert_eq!(verdict(20.0, 10.0), Reached);
        assert_eq!(verdict(40.0, 10.0), Reached);
        assert_eq!(verdict(20.0, 20.0), NotReached);
        assert_eq!(verdict(40.0, 20.0), Reached);
        assert_eq!(verdict(40.0, 40.0), NotComparable, "both may be higher");
        assert_eq!(verdict(40.0, 0.0), NotComparable);
    }
}
