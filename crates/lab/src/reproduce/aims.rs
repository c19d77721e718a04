//! This project's aims beside a batch job: the load that a service carries within a latency limit,
//! and the batch job's share at equal load, both against a rival on kernel sockets.
//!
//! Owns the limit, the ratio and the verdict. The judgement uses curves over load, medians over
//! rounds in which the systems take turns, and the highest load tried that is within the limit,
//! whether or not lower loads are. A search would end at random: on a busy host stalls alone take
//! single trials over the limit at any load. The true load lies between that load and the next one
//! tried; a ratio counts as reached, or as not reached, only if it is so for all loads in these
//! intervals.

use super::batch;
use super::contest::{Contest, Point};
use super::figure::Claim;

/// The limit on the windowed p99.9, in microseconds.
const LIMIT_US: f64 = 200.0;
/// The aim: this many times a rival's load.
const AIM: f64 = 4.0;

/// Judges the aims by the curves of Tailwater and of a rival in `panel`, both beside the batch job.
/// The rival's generator sends at most `generators_most`; `unit` is the unit of the loads.
pub fn claims(
    contest: &Contest,
    panel: &str,
    pair: [&str; 2],
    generators_most: f64,
    unit: &str,
) -> [Claim; 2] {
    let paper = format!(
        "(this project's aim) beside {} the batch job gets no less than beside {} at equal load ({panel})",
        pair[0], pair[1]
    );
    [times(contest, panel, pair, generators_most, unit), batch::no_less(contest, pair, unit, &paper)]
}

fn times(contest: &Contest, panel: &str, [own, rival]: [&str; 2], generators_most: f64, unit: &str) -> Claim {
    let paper = format!(
        "(this project's aim) {own} carries {AIM} times the load of {rival} with a p99.9 of at most {LIMIT_US} us, both beside a batch job ({panel})"
    );
    if let Some(curve) = [own, rival].into_iter().find(|curve| contest.curve(panel, curve).is_empty()) {
        return Claim::not_comparable(&paper, format!("{curve} was not measured"));
    }
    let of = |curve: &str| {
        let within = |point: &Point| point.tail_us().is_some_and(|tail| tail.median <= LIMIT_US);
        let load = contest.between(panel, curve, within);
        let text = match load.at_most {
            at_most if load.at_least == 0.0 => format!("none of {at_most} {unit} or more"),
            at_most if at_most.is_infinite() => format!("{} {unit}, the highest tried", load.at_least),
            at_most => format!("{} {unit}, not {at_most}", load.at_least),
        };
        (load, text)
    };
    let ((mine, my_text), (mut theirs, their_text)) = (of(own), of(rival));
    // Beyond that the generator itself may be slow.
    if theirs.at_least >= generators_most {
        theirs.at_most = f64::INFINITY;
    }
    let ours = format!("highest of the loads tried within the limit: {own} {my_text}; {rival} {their_text}");
    Claim::judged(&paper, ours, mine.is_times(AIM, theirs))
}

#[cfg(test)]
mod tests {
    use super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::contest::tests::{contest, point};
    use super::*;

    /// Highest loads within the limit and lowest loads beyond it, of Tailwater and of a rival, on a
    /// curve of 10, 20, 40 and so on to 320.
    fn curves(own: f64, theirs: f64, generators_most: f64) -> Verdict {
        let mut points = Vec::new();
        for load in [10.0, 20.0, 40.0, 80.0, 160.0, 320.0] {
            for (curve, up_to) in [("own", own), ("rival", theirs)] {
                let tail = if load <= up_to { 150.0 } else { 250.0 };
                points.push(point(curve, load, &[tail], 0.5, false));
            }
        }
        let panel = points[0].case.panel.clone();
        times(&contest(points), &panel, ["own", "rival"], generators_most, "k").verdict
    }

    #[test]
    fn on_curves_the_load_between_two_that_were_tried_is_not_known() {
        assert_eq!(curves(160.0, 20.0, 300.0), Reached, "the rival's is below 40");
        assert_eq!(curves(80.0, 20.0, 300.0), NotComparable, "80 to 160 against 20 to 40");
        assert_eq!(curves(80.0, 40.0, 300.0), NotReached, "below 160 against 40");
        assert_eq!(curves(40.0, 0.0, 300.0), Reached, "the rival's is below 10");
        assert_eq!(curves(20.0, 0.0, 300.0), NotComparable);
        assert_eq!(curves(0.0, 0.0, 300.0), NotComparable);
        assert_eq!(curves(320.0, 160.0, 300.0), NotComparable, "nothing above was tried");
        assert_eq!(curves(160.0, 20.0, 20.0), NotComparable, "the generator may be what bounds it");
        let alone = contest(vec![point("own", 10.0, &[100.0], 0.5, false)]);
        let panel = alone.points[0].case.panel.clone();
        let verdicts = claims(&alone, &panel, ["own", "rival"], 300.0, "k").map(|claim| claim.verdict);
        assert_eq!(verdicts, [NotComparable; 2]);
    }
}
