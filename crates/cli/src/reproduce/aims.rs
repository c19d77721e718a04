//! What this project aims at beside a batch job: the load that a service carries within a latency limit, and what it leaves the
//! batch job at equal load, both against a rival on kernel sockets.
//!
//! Owns the limit, the ratio, and how a claim about two searches is judged.

use tailwater_loadgen::search::Bound;

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
/// Two batch shares within this of each other are the same.
const SAME_SHARE: f64 = 0.02;

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
    let of = |highest: &Highest| format!("{:.0} (bound by {})", highest.load_rps(), highest.bound());
    let times = own.load_rps() / theirs.load_rps();
    let said = if theirs.load_rps() > 0.0 { format!(", {} times", number(times)) } else { String::new() };
    let ours = format!("{} requests/s, {rival} {}{said}", of(own), of(theirs));
    // A rival that its generator held back may be better than it seems; nothing more can be said.
    match theirs.found.bound {
        Bound::Generator => Claim::not_comparable(paper, ours),
        _ => Claim::new(paper, ours, own.load_rps() > 0.0 && own.load_rps() >= ratio * theirs.load_rps()),
    }
}

fn shares(all: &[Highest], asked: &str, rival: &str, paper: &str) -> Claim {
    let share = |highest: &Highest| highest.at_equal_load(|sample| sample.batch.map(BatchRates::share));
    let shares = pair(all, asked, rival).and_then(|(own, theirs)| Some((share(own)?, share(theirs)?)));
    let Some((own, theirs)) = shares else {
        return Claim::not_comparable(paper, "there is no load that both serve within the limit".to_owned());
    };
    let ours = format!("of the shared cores {own} of its full speed, beside {rival} {theirs}");
    Claim::new(paper, ours, own.median + SAME_SHARE >= theirs.median)
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
    fn without_the_rival_nothing_is_claimed() {
        let all = vec![reached("asked", TAILWATER, 4e5, Bound::Limit, 0.5)];
        assert!(beside_batch(&all, "asked", "rival").iter().all(|claim| claim.verdict == NotComparable));
    }
}
