//! The arbiter's curve in figures with a batch job beside: the service requests the cores of its
//! estimate, and is lent others by congestion.
//!
//! Owns the curve's name, where a quick run has it, and the comparison with cores that are lent by
//! congestion alone.

use super::contest::{Contest, Point};
use super::figure::{Claim, Spread, number};

/// The curve's name.
pub const ARBITER: &str = "Tailwater, arbiter";
/// Tails up to this many times those without requests count as equal.
const TAIL: f64 = 1.25;
/// Shares of the batch job that differ by no more count as equal.
const SHARE: f64 = 0.05;

/// Returns whether the curve has this load: all of them, or the first one in a quick run.
pub fn has_load(quick: bool, loads: &[f64], load: f64) -> bool {
    !quick || loads.first() == Some(&load)
}

/// Judges whether requests leave tails and shares as they are without, by the medians over the
/// loads of all panels at which both systems keep up. `other` is the curve without requests.
pub fn claim(contest: &Contest, other: &str) -> Claim {
    const PAPER: &str = "(this project's arbiter) cores requested by Arachne's estimate make the tail no longer, and leave the batch \
        job no less, than cores lent by congestion alone";
    let mut pairs: Vec<(&Point, &Point)> = Vec::new();
    for panel in contest.names(|case| &case.panel) {
        for own in contest.curve(&panel, ARBITER) {
            pairs.extend(contest.at(&panel, other, own.case.load).map(|lent| (own, lent)));
        }
    }
    pairs.retain(|(own, lent)| !own.saturated() && !lent.saturated());
    let tails = pairs.iter().filter_map(|(own, lent)| Some(own.tail_us()?.median / lent.tail_us()?.median));
    let shares = pairs.iter().filter_map(|(own, lent)| Some(own.share()?.median - lent.share()?.median));
    let (Some(tail), Some(share)) = (Spread::of(tails), Spread::of(shares)) else {
        return Claim::not_comparable(PAPER, "there is no load at which both keep up".to_owned());
    };
    let Spread { median, min, max } = tail;
    let ours = format!(
        "windowed p99.9 {} ({} to {}) times, batch share {:+.2} ({:+.2} to {:+.2}) over the loads at which both keep up",
        number(median),
        number(min),
        number(max),
        share.median,
        share.min,
        share.max
    );
    Claim::new(PAPER, ours, median <= TAIL && share.median >= -SHARE)
}

#[cfg(test)]
mod tests {
    use super::super::claim::Verdict::{NotComparable, NotReached, Reached};
    use super::super::contest::tests::{contest, point};
    use super::*;

    #[test]
    fn tail_and_share_are_both_compared_where_both_keep_up() {
        let verdict = |tail: f64, share: f64, saturated: bool| {
            let points = vec![
                point("lent", 10.0, &[100.0], 0.8, false),
                point(ARBITER, 10.0, &[tail], share, saturated),
                point("lent", 90.0, &[9000.0], 0.0, true),
                point(ARBITER, 90.0, &[100.0], 0.9, false),
            ];
            claim(&contest(points), "lent").verdict
        };
        assert_eq!(verdict(120.0, 0.76, false), Reached);
        assert_eq!(verdict(130.0, 0.8, false), NotReached);
        assert_eq!(verdict(100.0, 0.7, false), NotReached);
        assert_eq!(verdict(100.0, 0.8, true), NotComparable);
    }

    #[test]
    fn a_quick_run_has_the_first_load_only() {
        let loads = [20.0, 60.0];
        assert_eq!(loads.map(|load| has_load(true, &loads, load)), [true, false]);
        assert_eq!(loads.map(|load| has_load(false, &loads, load)), [true; 2]);
    }
}
