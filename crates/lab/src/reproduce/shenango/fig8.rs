//! Figure 8: the interval between core allocations; tail latency and batch throughput over load.

use super::super::arbiter::{self, ARBITER};
use super::super::contest::{self, Case, Contest, Point, System};
use super::super::figure::{Claim, Context, Figure, Outcome, Pace, Rig, Spread, cell};
use tailwater_testbed::{on_linux, on_tailwater};

const INTERVALS_US: [u64; 5] = [5, 25, 50, 100, 1_000];
const SERVICE: &str = "exp:10us";
const LINUX: &str = "Linux";
const ROUNDS: usize = 3;
/// Cost of each longer interval at the 99.9th percentile in the paper, in microseconds.
const PAPER_COST_US: f64 = 150.0;
/// Maximum that an interval of 5 us takes from the batch job in the paper, in parts of its full
/// speed.
const PAPER_BATCH_COST: f64 = 0.06;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let rig = context.rig()?;
    let loads: &[f64] = if context.options.quick { &[20.0, 60.0] } else { &[10.0, 30.0, 50.0, 70.0, 85.0] };
    let pace = context.pace(loads.len() * (INTERVALS_US.len() + 2), ROUNDS);
    let (mut cases, quick) = (cases(rig, &pace, loads)?, context.options.quick);
    cases.retain(|case| case.curve != ARBITER || arbiter::has_load(quick, loads, case.load));
    let contest = contest::run(figure, context, cases, &pace)?;
    let udp = "Requests are UDP datagrams; the paper's are over TCP.".to_owned();
    let panels = [contest.latency_panel(SERVICE, Vec::new()), contest.batch_panel(SERVICE, Vec::new())];
    let claims = [claims(&contest, loads), vec![arbiter::claim(&contest, &curve(INTERVALS_US[0]))]].concat();
    Ok(contest.outcome(&panels, claims, rig.linux_notes().into_iter().chain([udp])))
}

fn curve(interval_us: u64) -> String {
    if interval_us < 1_000 { format!("{interval_us} us") } else { format!("{} ms", interval_us / 1_000) }
}

fn cases(rig: &Rig, pace: &Pace, loads: &[f64]) -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for &load in loads {
        let plan = pace.plan(&SERVICE.parse()?, load, rig.testbed.cores.managed.len())?;
        let case = |curve: String, system: System| Case {
            panel: SERVICE.to_owned(),
            curve,
            load,
            plan: plan.clone(),
            system,
        };
        cases.extend(INTERVALS_US.map(|interval_us| {
            let setting = on_tailwater::Setting { interval_us, ..Default::default() };
            case(curve(interval_us), System::Tailwater(setting))
        }));
        let setting =
            on_tailwater::Setting { estimates: true, interval_us: INTERVALS_US[0], ..Default::default() };
        cases.push(case(ARBITER.to_owned(), System::Tailwater(setting)));
        let linux = on_linux::Setting::threads(rig.wait.mode());
        cases.push(case(LINUX.to_owned(), System::Linux(linux)));
    }
    Ok(cases)
}

/// Returns the differences of `value` between a curve and that of 5 us, over the loads that both
/// sustain.
fn differences(
    contest: &Contest,
    interval_us: u64,
    loads: &[f64],
    value: impl Fn(&Point) -> Option<Spread>,
) -> Option<Spread> {
    let at = |interval_us: u64, load: f64| {
        let point = contest.at(SERVICE, &curve(interval_us), load).filter(|point| !point.saturated())?;
        Some(value(point)?.median)
    };
    Spread::of(loads.iter().filter_map(|&load| Some(at(interval_us, load)? - at(INTERVALS_US[0], load)?)))
}

/// Loads that saturate the interval of 5 us but not every longer one.
fn overtaken(contest: &Contest, loads: &[f64]) -> Vec<String> {
    let saturated = |us: u64, load: f64| contest.at(SERVICE, &curve(us), load).map(Point::saturated);
    let is = |load: f64| {
        saturated(INTERVALS_US[0], load) == Some(true)
            && INTERVALS_US[1..].iter().any(|&us| saturated(us, load) == Some(false))
    };
    loads.iter().filter(|&&load| is(load)).map(ToString::to_string).collect()
}

fn claims(contest: &Contest, loads: &[f64]) -> Vec<Claim> {
    let longer = &INTERVALS_US[1..];
    let costs: Vec<_> =
        longer.iter().map(|&us| (us, differences(contest, us, loads, Point::tail_us))).collect();
    let text = |costs: &[(u64, Option<Spread>)]| -> String {
        let each = costs.iter().map(|(us, spread)| format!("{}: {}", curve(*us), cell(*spread)));
        each.collect::<Vec<_>>().join("; ")
    };
    let medians: Vec<f64> = costs.iter().filter_map(|(_, spread)| Some(spread.as_ref()?.median)).collect();
    // A load that only a longer interval sustains is in no difference, and contradicts both claims.
    let overtaken = overtaken(contest, loads);
    // The median of each, also of the shortest, is above that of 5 us.
    let degrades = overtaken.is_empty()
        && medians.first().is_some_and(|&first| first >= 0.0)
        && medians.last().is_some_and(|&last| last > 0.0)
        && medians.windows(2).all(|pair| pair[0] <= pair[1]);
    // An interval without a load at which it and 5 us keep up leaves the claim open.
    let judged = |paper: &str, ours: String, compared: usize, of: usize, holds: bool| {
        Claim::judged(paper, ours, (compared == of).then_some(holds))
    };
    let mut ours = format!("windowed p99.9 above that at 5 us, in us, over the loads: {}", text(&costs));
    if !overtaken.is_empty() {
        ours += &format!("; 5 us are saturated where a longer one is not, at: {} %", overtaken.join(", "));
    }
    let mut claims = vec![
        judged(
            "tail latency degrades with longer intervals",
            ours.clone(),
            medians.len(),
            longer.len(),
            degrades,
        ),
        judged(
            "any interval longer than 5 us costs at least 150 us of tail latency",
            ours,
            medians.len(),
            longer.len(),
            overtaken.is_empty() && medians.iter().all(|&median| median >= PAPER_COST_US),
        ),
    ];
    let gains: Vec<_> =
        longer[..3].iter().map(|&us| (us, differences(contest, us, loads, Point::share))).collect();
    let most: Vec<f64> = gains.iter().filter_map(|(_, spread)| Some(spread.as_ref()?.max)).collect();
    claims.push(judged(
        "an interval of 5 us takes up to 6 % of its full speed from the batch job, compared with 25, 50 and 100 us",
        format!("batch share above that at 5 us, over the loads: {}", text(&gains)),
        most.len(),
        gains.len(),
        most.iter().all(|&most| most <= PAPER_BATCH_COST),
    ));
    claims
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict;
    use super::super::super::contest::tests::{contest, point};
    use super::*;

    fn verdicts(tails: [f64; 5], shares: [f64; 5]) -> Vec<Verdict> {
        let points: Vec<Point> = INTERVALS_US
            .iter()
            .zip(tails.iter().zip(shares))
            .map(|(&us, (&tail, share))| point(&curve(us), 50.0, &[tail], share, false).on(SERVICE))
            .collect();
        claims(&contest(points), &[50.0]).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        use Verdict::{NotReached, Reached};
        let flat = [0.5; 5];
        assert_eq!(verdicts([90.0, 250.0, 260.0, 300.0, 900.0], flat), [Reached; 3]);
        assert_eq!(verdicts([90.0, 110.0, 140.0, 190.0, 900.0], flat), [Reached, NotReached, Reached]);
        assert_eq!(verdicts([90.0, 80.0, 70.0, 60.0, 50.0], flat)[0], NotReached);
        assert_eq!(
            verdicts([90.0, 60.0, 70.0, 80.0, 900.0], flat)[0],
            NotReached,
            "25 us are better than 5 us"
        );
        assert_eq!(verdicts([90.0; 5], [0.4, 0.5, 0.5, 0.5, 0.5])[2], NotReached);
    }

    #[test]
    fn a_load_that_only_longer_intervals_sustain_is_a_loss() {
        let tails = [90.0, 250.0, 260.0, 300.0, 900.0];
        let at = |load: f64, saturated: bool| {
            INTERVALS_US.iter().zip(tails).map(move |(&us, tail)| {
                point(&curve(us), load, &[tail], 0.5, saturated && us == 5).on(SERVICE)
            })
        };
        let points = at(50.0, false).chain(at(85.0, true)).collect();
        let claims = claims(&contest(points), &[50.0, 85.0]);
        assert_eq!(
            claims.iter().map(|claim| claim.verdict).collect::<Vec<_>>()[..2],
            [Verdict::NotReached; 2]
        );
    }

    #[test]
    fn a_saturated_curve_is_compared_with_nothing() {
        let points = vec![point("5 us", 50.0, &[9.0], 0.5, true), point("25 us", 50.0, &[9.0], 0.5, false)];
        let claims = claims(&contest(points), &[50.0]);
        assert!(claims.iter().all(|claim| claim.verdict == Verdict::NotComparable));
    }
}
