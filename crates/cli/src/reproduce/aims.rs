//! What this project aims at beside a batch job: the load that a service carries within a latency limit, and what it leaves the
//! batch job at equal load, both against a rival on kernel sockets.
//!
//! Owns the limit, the ratio, and how a claim about two searches is judged: each gives an interval in which the load lies
//! ([`between`]), and a ratio is reached, or not, only if it is so wherever in these intervals the loads lie.

use tailwater_loadgen::search::Bound;
use tailwater_workload::Rate;

use super::batch::{SAME_SHARE, speed, speed_text};
use super::figure::Claim;
use super::limit::Highest;
use crate::table::number;
use crate::testbed::BatchRates;

/// The name of Tailwater's own contender.
pub const TAILWATER: &str = "Tailwater";
/// The limit beside a batch job.
pub const BESIDE_BATCH: &str = "win-p99.9=200us";
/// How many times Linux's load this project aims at beside a batch job.
const AIM: f64 = 4.0;

/// What this project aims at beside a batch job: load, and what is left for the batch job at equal load.
pub fn beside_batch(all: &[Highest], asked: &str, rival: &str) -> [Claim; 2] {
    let paper = format!(
        "(this project's aim) {asked} beside a batch job, p99.9 at most 200 us: {AIM} times the load of {rival}"
    );
    let batch =
        format!("(this project's aim) {asked} at equal load: the batch job gets no less than beside {rival}");
    [times(all, asked, rival, &paper, AIM), shares(all, asked, rival, &batch)]
}

fn pair<'a>(all: &'a [Highest], asked: &str, rival: &str) -> Option<(&'a Highest, &'a Highest)> {
    let of = |name: &str| all.iter().find(|h| h.contender.asked == asked && h.contender.name == name);
    Some((of(TAILWATER)?, of(rival)?))
}

/// Whether Tailwater's load is `ratio` times the rival's.
pub fn times(all: &[Highest], asked: &str, rival: &str, paper: &str, ratio: f64) -> Claim {
    let Some((own, theirs)) = pair(all, asked, rival) else {
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
    let (own, theirs) = (between(own), between(theirs));
    // A rival of which no load is known says nothing, and what is at least nothing times its load neither.
    if confirmed && theirs.at_most > 0.0 && own.at_least >= ratio * theirs.at_most {
        Claim::new(paper, ours, true)
    } else if theirs.at_least > 0.0 && own.at_most < ratio * theirs.at_least {
        Claim::new(paper, ours, false)
    } else {
        Claim::not_comparable(paper, ours)
    }
}

/// Where a program's highest load lies, in requests per second.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Between {
    at_least: f64,
    at_most: f64,
}

/// What a search says about the highest load.
fn between(highest: &Highest) -> Between {
    let load = highest.load_rps();
    let rate = |rate: Option<Rate>, otherwise: f64| rate.map_or(otherwise, Rate::per_second);
    let (at_least, at_most) = match highest.found.bound {
        Bound::Limit => (load, load),
        // It may be better than it seems.
        Bound::Generator | Bound::Ceiling => (load, f64::INFINITY),
        // Not confirmed: it lies where trials with the same load met the limit and missed it.
        Bound::Trials => {
            (rate(highest.found.always_met_up_to, 0.0), rate(highest.found.never_met_from, f64::INFINITY))
        }
        // Less than was tried.
        Bound::Nothing => (0.0, rate(highest.found.never_met_from, f64::INFINITY)),
    };
    Between { at_least, at_most }
}

fn shares<'a>(all: &'a [Highest], asked: &str, rival: &str, paper: &str) -> Claim {
    let share = |highest: &Highest| highest.at_equal_load(|sample| sample.batch.map(BatchRates::share));
    let pair = pair(all, asked, rival);
    let shares = pair.and_then(|(own, theirs)| Some((share(own)?, share(theirs)?)));
    let measured = |highest: &'a Highest| highest.samples.iter().chain(&highest.equal);
    let speed = pair.and_then(|(own, theirs)| speed(measured(own), measured(theirs)));
    let Some((own, theirs)) = shares else {
        return Claim::not_comparable(paper, "there is no load that both serve within the limit".to_owned());
    };
    let Some(speed) = speed else {
        return Claim::not_comparable(paper, "how fast the job is alone is not known".to_owned());
    };
    let ours = format!(
        "of the shared cores {own} of its full speed, beside {rival} {theirs}; {} ({rival})",
        speed_text(speed)
    );
    Claim::new(paper, ours, speed * own.median + SAME_SHARE >= theirs.median)
}

#[cfg(test)]
mod tests {
    use super::super::figure::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::limit::tests::reached;
    use super::*;

    fn verdicts(own: (f64, f64), theirs: (f64, f64), bound: Bound) -> [Verdict; 2] {
        let all = vec![
            reached("asked", TAILWATER, own.0, Bound::Limit, own.1),
            reached("asked", "rival", theirs.0, bound, theirs.1),
        ];
        beside_batch(&all, "asked", "rival").map(|claim| claim.verdict)
    }

    #[test]
    fn four_times_the_load_and_no_less_for_the_batch_job() {
        assert_eq!(verdicts((400e3, 0.49), (100e3, 0.5), Bound::Limit), [Reached; 2]);
        assert_eq!(verdicts((399e3, 0.47), (100e3, 0.5), Bound::Limit), [NotReached; 2]);
    }

    #[test]
    fn a_rival_that_its_generator_held_back_is_not_compared() {
        assert_eq!(verdicts((900e3, 0.5), (100e3, 0.4), Bound::Generator), [NotComparable, Reached]);
    }

    #[test]
    fn a_batch_job_that_is_slower_on_tailwater_even_alone_gets_less() {
        let mut all = vec![
            reached("asked", TAILWATER, 400e3, Bound::Limit, 0.5),
            reached("asked", "rival", 100e3, Bound::Limit, 0.49),
        ];
        assert_eq!(beside_batch(&all, "asked", "rival")[1].verdict, Reached);
        for sample in &mut all[0].equal {
            let rates = sample.batch.as_mut().unwrap();
            (rates.solo, rates.beside) = (0.9 * rates.solo, 0.9 * rates.beside);
        }
        assert_eq!(beside_batch(&all, "asked", "rival")[1].verdict, NotReached);
    }

    /// What bounds a search, its load, and up to where all trials met the limit and from where on all missed it.
    type Searched = (Bound, f64, Option<(f64, f64)>);

    /// The verdict on our own search and the rival's.
    fn ratio_of(searches: [Searched; 2]) -> Verdict {
        let highest = [TAILWATER, "rival"].into_iter().zip(searches).map(|(name, (bound, load, chance))| {
            let mut highest = reached("asked", name, load, bound, 0.5);
            highest.found.always_met_up_to = chance.and_then(|(from, _)| Rate::new(from).ok());
            highest.found.never_met_from = chance.and_then(|(_, to)| Rate::new(to).ok());
            highest
        });
        let [times, _] = beside_batch(&highest.collect::<Vec<_>>(), "asked", "rival");
        times.verdict
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
    fn who_may_take_more_than_was_found_does_not_miss_the_ratio() {
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
        let all = vec![reached("asked", TAILWATER, 4e5, Bound::Limit, 0.5)];
        assert!(beside_batch(&all, "asked", "rival").iter().all(|claim| claim.verdict == NotComparable));
    }
}
