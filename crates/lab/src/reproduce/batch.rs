//! Compares the batch shares of two systems.
//!
//! Owns the unit. A share is a fraction of the job's full speed on its own system, measured right
//! before and after each point, because a host's cores change speed over time. That hides a job
//! that is slower on one system even alone. To compare two systems, the first one's shares are
//! therefore multiplied by the ratio of the full speeds ([`speed`]); both are then fractions of the
//! second system's full speed, and compare like trials per second.

use super::contest::{Contest, Sample};
use super::figure::{Claim, Spread, number};

/// Two batch shares within this of each other are the same.
const SAME_SHARE: f64 = 0.02;

/// Returns the batch job's full speed on the system of `own`, divided by that on the system of
/// `other`; `None` where it did not run. Uses medians over all points: the two were not measured at
/// the same time.
fn speed<'a>(
    own: impl IntoIterator<Item = &'a Sample>,
    other: impl IntoIterator<Item = &'a Sample>,
) -> Option<f64> {
    let alone = |sample: &Sample| sample.batch.map(|rates| rates.solo);
    let own = Spread::of(own.into_iter().filter_map(alone))?.median;
    let other = Spread::of(other.into_iter().filter_map(alone))?.median;
    (other > 0.0).then(|| own / other)
}

/// Returns the ratio of the speeds in words.
fn speed_text(speed: f64) -> String {
    format!("alone the job runs at {} times its speed there", number(speed))
}

/// Shares at one load, both as fractions of the other system's full speed.
#[derive(Debug, Clone, PartialEq)]
struct Shares {
    place: String,
    own: f64,
    other: f64,
}

/// Judges whether `own` leaves the batch job more than `other` at all loads above `lowest` that
/// `other` keeps up with. Equal shares decide nothing, nor does a load at which one system has no
/// share.
pub fn more(contest: &Contest, pair: [&str; 2], lowest: f64, unit: &str, paper: &str) -> Claim {
    judge(contest, pair, lowest, unit, paper, false)
}

/// Judges whether `own` leaves the batch job no less than `other` at every load that `other` keeps
/// up with.
pub fn no_less(contest: &Contest, pair: [&str; 2], unit: &str, paper: &str) -> Claim {
    judge(contest, pair, 0.0, unit, paper, true)
}

fn judge(
    contest: &Contest,
    pair: [&str; 2],
    lowest: f64,
    unit: &str,
    paper: &str,
    equal_is_enough: bool,
) -> Claim {
    let samples = |curve: &str| {
        let points = contest.points.iter().filter(move |point| point.case.curve == curve);
        points.flat_map(|point| &point.samples).collect::<Vec<_>>()
    };
    let other = pair[1];
    let Some(speed) = speed(samples(pair[0]), samples(other)) else {
        return Claim::not_comparable(paper, "there was no batch job on both".to_owned());
    };
    let all = compared(contest, pair, lowest, unit, speed);
    let listed = |keep: &dyn Fn(&Shares) -> bool| -> Vec<String> {
        let kept = all.iter().filter(|shares| keep(shares));
        kept.map(|s| format!("{} ({:.2}, there {:.2})", s.place, s.own, s.other)).collect()
    };
    let less = listed(&|s| s.own + SAME_SHARE < s.other);
    let more = listed(&|s| s.own > s.other + SAME_SHARE);
    let text = |list: &[String]| if list.is_empty() { "nowhere".to_owned() } else { list.join(", ") };
    let loads = if lowest > 0.0 { format!("at loads above {lowest} that") } else { "where".to_owned() };
    let ours = format!(
        "of the shared cores, in full speeds of the job on {other} ({}), {loads} {other} keeps up: it gets more beside Tailwater: {}; \
         less: {}",
        speed_text(speed),
        text(&more),
        text(&less)
    );
    let decided = if equal_is_enough { !all.is_empty() } else { !(less.is_empty() && more.is_empty()) };
    Claim::judged(paper, ours, decided.then_some(less.is_empty()))
}

/// Returns the shares at the loads above `lowest` that `other` keeps up with.
fn compared(contest: &Contest, [own, other]: [&str; 2], lowest: f64, unit: &str, speed: f64) -> Vec<Shares> {
    let mut all = Vec::new();
    for panel in contest.names(|case| &case.panel) {
        for point in contest.curve(&panel, own).into_iter().filter(|point| point.case.load > lowest) {
            let load = point.case.load;
            let rival = contest.at(&panel, other, load).filter(|rival| !rival.saturated());
            let Some((a, b)) = rival.and_then(|rival| Some((point.share()?, rival.share()?))) else {
                continue;
            };
            all.push(Shares {
                place: format!("{panel} {load} {unit}"),
                own: a.median * speed,
                other: b.median,
            });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::contest::Point;
    use super::super::contest::tests::{contest, point};
    use super::*;

    fn verdict(points: Vec<Point>) -> Verdict {
        more(&contest(points), ["own", "other"], 10.0, "%", "paper").verdict
    }

    fn at(curve: &str, load: f64, share: f64) -> Point {
        point(curve, load, &[100.0], share, false)
    }

    #[test]
    fn more_at_one_load_and_less_at_none_is_more() {
        let low = [at("own", 10.0, 0.5), at("other", 10.0, 0.9)];
        let with = |shares: &[(f64, f64)]| {
            let mut points = low.to_vec();
            for (index, &(own, other)) in shares.iter().enumerate() {
                let load = 20.0 + index as f64;
                points.extend([at("own", load, own), at("other", load, other)]);
            }
            verdict(points)
        };
        assert_eq!(with(&[(0.5, 0.4), (0.4, 0.41)]), Reached);
        assert_eq!(with(&[(0.5, 0.4), (0.3, 0.41)]), NotReached);
        assert_eq!(with(&[(0.5, 0.5), (0.4, 0.41)]), NotComparable, "equal everywhere");
        assert_eq!(with(&[]), NotComparable, "only the lowest load");
    }

    #[test]
    fn no_less_is_at_any_load_and_equal_is_enough() {
        let verdict = |shares: &[(f64, f64)]| {
            let points = shares.iter().enumerate().flat_map(|(index, &(own, other))| {
                let load = 10.0 + index as f64;
                [at("own", load, own), at("other", load, other)]
            });
            no_less(&contest(points.collect()), ["own", "other"], "%", "paper").verdict
        };
        assert_eq!(verdict(&[(0.5, 0.5), (0.4, 0.41)]), Reached);
        assert_eq!(verdict(&[(0.5, 0.6), (0.4, 0.1)]), NotReached);
        assert_eq!(verdict(&[]), NotComparable);
    }

    #[test]
    fn a_rival_that_does_not_keep_up_is_not_compared() {
        let points = vec![at("own", 20.0, 0.5), point("other", 20.0, &[100.0], 0.1, true)];
        assert_eq!(verdict(points), NotComparable);
    }

    #[test]
    fn a_job_that_is_slower_on_one_system_even_alone_gets_less_there() {
        let mut points = vec![at("own", 20.0, 0.5), at("other", 20.0, 0.45)];
        assert_eq!(verdict(points.clone()), Reached);
        for sample in &mut points[0].samples {
            let rates = sample.batch.as_mut().unwrap();
            (rates.solo, rates.beside) = (0.8 * rates.solo, 0.8 * rates.beside);
        }
        assert_eq!(points[0].share().unwrap().median, 0.5, "of its own full speed as much as before");
        assert_eq!(verdict(points), NotReached, "0.40 of the other's full speed against 0.45");
    }
}
