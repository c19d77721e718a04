//! The ratio of Tailwater's load to a rival's, when both were searched for.
//!
//! Owns the verdict: each search gives an interval in which the load lies ([`between`]), and a
//! ratio counts as reached, or as not reached, only if it is so for all loads in these intervals.

use tailwater_loadgen::search::Bound;
use tailwater_workload::Rate;

use super::figure::{Claim, number};
use super::limit::Highest;

/// The name of Tailwater's contender.
pub const TAILWATER: &str = "Tailwater";

fn pair<'a>(all: &'a [Highest], workload: &str, rival: &str) -> Option<(&'a Highest, &'a Highest)> {
    let of = |name: &str| all.iter().find(|h| h.contender.workload == workload && h.contender.name == name);
    Some((of(TAILWATER)?, of(rival)?))
}

/// Judges whether Tailwater's load is `ratio` times the rival's.
pub fn times(all: &[Highest], workload: &str, rival: &str, paper: &str, ratio: f64) -> Claim {
    let Some((own, theirs)) = pair(all, workload, rival) else {
        return Claim::not_comparable(paper, format!("{rival} is not there"));
    };
    let of = |highest: &Highest| {
        let Between { at_least, at_most } = between(highest);
        let range = match highest.found.bound {
            Bound::Trials if at_most.is_finite() => format!("; between {at_least:.0} and {at_most:.0}"),
            Bound::Trials => format!("; at least {at_least:.0}"),
            _ => String::new(),
        };
        format!("{:.0} (bound by {}{range})", highest.load_rps(), highest.bound())
    };
    let times = own.load_rps() / theirs.load_rps();
    let said = if theirs.load_rps() > 0.0 { format!(", {} times", number(times)) } else { String::new() };
    let ours = format!("{} requests/s, {rival} {}{said}", of(own), of(theirs));
    let confirmed = own.found.bound != Bound::Trials;
    let holds = between(own).is_times(ratio, between(theirs));
    Claim::judged(paper, ours, holds.filter(|holds| confirmed || !holds))
}

/// The interval in which a program's highest load lies, in the unit of the loads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Between {
    pub at_least: f64,
    pub at_most: f64,
}

impl Between {
    /// Returns whether this load is at least `ratio` times another; `None` if it is for some loads
    /// of the intervals only. One without a known load decides nothing.
    pub fn is_times(self, ratio: f64, other: Self) -> Option<bool> {
        if other.at_most > 0.0 && self.at_least >= ratio * other.at_most {
            Some(true)
        } else {
            (other.at_least > 0.0 && self.at_most <= ratio * other.at_least).then_some(false)
        }
    }
}

/// Returns the interval that a search gives.
fn between(highest: &Highest) -> Between {
    let load = highest.load_rps();
    let rate = |rate: Option<Rate>, otherwise: f64| rate.map_or(otherwise, Rate::per_second);
    let (at_least, at_most) = match highest.found.bound {
        Bound::Limit => (load, load),
        // The true load may be higher.
        Bound::Generator | Bound::Ceiling => (load, f64::INFINITY),
        // Not confirmed: the load lies where trials of the same load both met and missed the limit.
        Bound::Trials => {
            (rate(highest.found.always_met_up_to, 0.0), rate(highest.found.never_met_from, f64::INFINITY))
        }
        // Below the lowest load tried.
        Bound::Nothing => (0.0, rate(highest.found.never_met_from, f64::INFINITY)),
    };
    Between { at_least, at_most }
}

#[cfg(test)]
mod tests {
    use super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::limit::tests::reached;
    use super::*;

    /// The bound of a search, its load, the load up to which all trials met the limit, and the load
    /// from which on all missed it.
    type Searched = (Bound, f64, Option<(f64, f64)>);

    /// Returns the verdict on Tailwater's search and the rival's.
    fn ratio_of(searches: [Searched; 2]) -> Verdict {
        let highest = [TAILWATER, "rival"].into_iter().zip(searches).map(|(name, (bound, load, chance))| {
            let mut highest = reached("workload", name, load, bound);
            highest.found.always_met_up_to = chance.and_then(|(from, _)| Rate::new(from).ok());
            highest.found.never_met_from = chance.and_then(|(_, to)| Rate::new(to).ok());
            highest
        });
        times(&highest.collect::<Vec<_>>(), "workload", "rival", "paper", 4.0).verdict
    }

    #[test]
    fn a_load_that_was_not_confirmed_decides_only_where_its_whole_range_does() {
        let own = (Bound::Limit, 400e3, None);
        let rival = |from, to| (Bound::Trials, (from + to) / 2.0, Some((from, to)));
        assert_eq!(ratio_of([own, rival(50e3, 100e3)]), Reached, "never met from a quarter on");
        assert_eq!(ratio_of([own, rival(50e3, 150e3)]), NotComparable);
        assert_eq!(ratio_of([own, rival(110e3, 150e3)]), NotReached);
        assert_eq!(
            ratio_of([own, (Bound::Trials, 50e3, None)]),
            NotComparable,
            "no trial says where it ends"
        );
        let limit = (Bound::Limit, 100e3, None);
        assert_eq!(ratio_of([rival(450e3, 500e3), limit]), NotComparable, "our own is not confirmed");
        assert_eq!(ratio_of([rival(200e3, 390e3), limit]), NotReached);
    }

    #[test]
    fn a_search_bounded_by_the_generator_does_not_miss_the_ratio() {
        let rival = (Bound::Limit, 100e3, None);
        for bound in [Bound::Generator, Bound::Ceiling] {
            assert_eq!(ratio_of([(bound, 300e3, None), rival]), NotComparable);
            assert_eq!(ratio_of([(bound, 400e3, None), rival]), Reached);
            assert_eq!(ratio_of([(Bound::Limit, 900e3, None), (bound, 100e3, None)]), NotComparable);
            assert_eq!(ratio_of([(Bound::Limit, 300e3, None), (bound, 100e3, None)]), NotReached);
        }
    }

    #[test]
    fn a_rival_that_meets_the_limit_nowhere_is_not_compared() {
        let none = (Bound::Nothing, 0.0, None);
        assert_eq!(ratio_of([(Bound::Limit, 400e3, None), none]), NotComparable);
        assert_eq!(ratio_of([none, none]), NotComparable);
        let tried = (Bound::Nothing, 0.0, Some((0.0, 24.0)));
        assert_eq!(ratio_of([tried, (Bound::Limit, 100e3, None)]), NotReached);
    }

    #[test]
    fn without_the_rival_nothing_is_claimed() {
        let all = vec![reached("workload", TAILWATER, 4e5, Bound::Limit)];
        assert_eq!(times(&all, "workload", "rival", "paper", 4.0).verdict, NotComparable);
    }
}
