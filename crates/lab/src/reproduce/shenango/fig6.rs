//! Figure 6: the parts of a request's latency, with a raw port, a runtime that polls, one that must
//! be woken, and one that must preempt.

use std::time::Duration;

use tailwater_iokernel_testing::bench::raw_round_trips;
use tailwater_loadgen::Plan;
use tailwater_workload::{ArrivalProcess, LoadSchedule, Rate};

use super::super::figure::{Bar, Claim, Context, Figure, Outcome, Pace, Panel, Rig, Spread, draw, number};
use super::super::rounds::{self, in_turn};
use tailwater_testbed::handoffs::HandoffRecord;
use tailwater_testbed::on_linux::Server;
use tailwater_testbed::on_linux::Wait;
use tailwater_testbed::{latency_or_timeout, on_linux, on_tailwater};

/// Time between two requests: long enough for an idle kthread to park (50 us), short enough for the
/// IOKernel to stay awake (1 ms).
const GAP: Duration = Duration::from_micros(200);
/// The shortest service time.
const SERVICE: &str = "const:1ns";
const ROUNDS: usize = 5;
/// Longest counted part of a point: 10,000 requests.
const MAX_COUNTED: Duration = Duration::from_secs(2);
/// "Only a few us".
const FEW_US: f64 = 5.0;

/// A way to answer requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A bare kthread on its rings: the IOKernel alone.
    Raw,
    Tailwater(on_tailwater::Setting),
    Linux(on_linux::Setting),
}

/// A way to answer by its name, with the median and the 99th percentile of each round in
/// microseconds.
type Measured = rounds::Point<(&'static str, Way), (f64, f64)>;

const P50: rounds::Value<(f64, f64)> = |round| round.0;
const P99: rounds::Value<(f64, f64)> = |round| round.1;

const RAW: &str = "raw port";
const POLLING: &str = "runtime, polling";
const WOKEN: &str = "runtime, woken";
const PREEMPTING: &str = "runtime, preempting";
const REQUESTING: &str = "runtime, preempting, arbiter";
const LINUX_POLLING: &str = "Linux, polling";
const LINUX_WOKEN: &str = "Linux, woken";
const LINUX_PREEMPTING: &str = "Linux, preempting";

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let rig = context.rig()?;
    let mut ways = ways();
    let mut pace = context.pace(ways.len(), ROUNDS);
    pace.counted = pace.counted.min(MAX_COUNTED);
    measure(figure, context, rig, &pace, &mut ways)?;
    let mut notes = rig.notes(&pace, context.options.quick);
    notes.push(format!(
        "One small UDP request every {} us. The raw port is timed from injection, the others from when a request was due, at most a \
         turn of the polling loop earlier. Linux: kernel sockets over loopback.",
        GAP.as_micros()
    ));
    Ok(Outcome {
        svg: draw(figure.title, &panels(&ways)),
        data: rounds::data(&ways, "way", cells, &[("p50_us", 3, P50), ("p99_us", 3, P99)]),
        summary: rounds::summary(&ways, "way", cells, &[("p50 us", P50), ("p99 us", P99)]),
        claims: claims(&ways),
        notes,
    })
}

fn ways() -> Vec<Measured> {
    let alone = on_tailwater::Setting { batch: false, ..Default::default() };
    let linux = |wait, batch: bool| {
        let batch = batch.then_some(on_linux::Rank::Idle);
        Way::Linux(on_linux::Setting { server: Server::Threads(wait), batch })
    };
    let ways = [
        (RAW, Way::Raw),
        (POLLING, Way::Tailwater(on_tailwater::Setting { idle_timeout_us: 0, ..alone })),
        (WOKEN, Way::Tailwater(alone)),
        (PREEMPTING, Way::Tailwater(on_tailwater::Setting::default())),
        (REQUESTING, Way::Tailwater(on_tailwater::Setting { estimates: true, ..Default::default() })),
        (LINUX_POLLING, linux(Wait::Busy, false)),
        (LINUX_WOKEN, linux(Wait::Block, false)),
        (LINUX_PREEMPTING, linux(Wait::Block, true)),
    ];
    ways.into_iter().map(Measured::new).collect()
}

fn measure(
    figure: &Figure,
    context: &Context,
    rig: &Rig,
    pace: &Pace,
    ways: &mut [Measured],
) -> anyhow::Result<()> {
    let rate = Rate::new(1.0 / GAP.as_secs_f64())?;
    let length = pace.warm_up + pace.counted;
    let plan = Plan {
        arrivals: ArrivalProcess::Constant,
        warm_up_ns: pace.warm_up.as_nanos() as u64,
        ..Plan::new(LoadSchedule::constant(rate, length.as_nanos() as u64), SERVICE.parse()?)
    };
    let requests = (pace.counted.as_nanos() / GAP.as_nanos()) as usize;
    in_turn(figure, context, (ways.len(), pace.rounds), |index, round| {
        let seed = context.options.seed.wrapping_add(round as u64);
        let testbed = &rig.testbed;
        let sample = match ways[index].key.1 {
            Way::Raw => raw(requests)?,
            Way::Tailwater(setting) => {
                let mut handoffs = HandoffRecord::default();
                figures(&on_tailwater::point(testbed, rig.speed, &plan, seed, setting, &mut handoffs)?)
            }
            Way::Linux(setting) => figures(&on_linux::point(testbed, rig.speed, &plan, seed, setting)?),
        };
        ways[index].samples.push(sample);
        Ok(())
    })
}

fn figures(measured: &tailwater_testbed::Measured) -> (f64, f64) {
    let figures = measured.measurement.report().figures;
    (latency_or_timeout(figures.p50_us), latency_or_timeout(figures.p99_us))
}

fn raw(requests: usize) -> anyhow::Result<(f64, f64)> {
    let mut trips = raw_round_trips(requests, GAP)?;
    trips.sort_unstable();
    anyhow::ensure!(!trips.is_empty(), "no round trip was measured");
    let quantile = |percent: usize| trips[(trips.len() - 1) * percent / 100] as f64 / 1e3;
    Ok((quantile(50), quantile(99)))
}

fn cells(&(name, _): &(&'static str, Way)) -> Vec<String> {
    vec![name.to_owned()]
}

/// Returns a panel for each system, on a common scale that the medians set: one disturbed round
/// must not hide all others.
fn panels(ways: &[Measured]) -> [Panel; 2] {
    let highest = ways.iter().filter_map(|way| Some(way.spread(P50)?.median)).fold(0.0, f64::max);
    let bar = |way: &Measured| {
        let Spread { median, min, max } = way.spread(P50)?;
        // The panel's title names the system.
        let (name, _) = way.key;
        let name = name.split_once(", ").map_or(name, |(_, name)| name);
        Some(Bar { name: name.to_owned(), value: median, range: (min, max) })
    };
    let panel = |title: &str, on_linux: bool| {
        Panel::of_bars(
            &format!("{title}: medians, lowest and highest round"),
            "round trip (us)",
            ways.iter()
                .filter(|way| matches!(way.key.1, Way::Linux(_)) == on_linux)
                .filter_map(bar)
                .collect(),
        )
        .within((0.0, (1.3 * highest).max(1.0)))
    };
    [panel("Tailwater", false), panel("Linux", true)]
}

fn claims(ways: &[Measured]) -> Vec<Claim> {
    let p50 = |name: &str| {
        ways.iter().find(|way| way.key.0 == name).and_then(|way| way.spread(P50)).map(|s| s.median)
    };
    let adds = |paper: &str, more: &str, less: &str, linux: [&str; 2]| {
        let cost = |more: &str, less: &str| Some(p50(more)? - p50(less)?);
        let text = |cost: Option<f64>| cost.map_or("-".to_owned(), number);
        let own = cost(more, less);
        let beside = if linux[0].is_empty() {
            String::new()
        } else {
            format!(" (on Linux {} us)", text(cost(linux[0], linux[1])))
        };
        let ours = format!(
            "`{more}` takes {} us more than `{less}` at the median{beside}; a few is up to {FEW_US}",
            text(own)
        );
        Claim::judged(paper, ours, own.map(|us| us.abs() <= FEW_US))
    };
    vec![
        adds("traversing runtime and IOKernel adds little over raw packets", POLLING, RAW, [""; 2]),
        adds("waking a kthread adds only a few us", WOKEN, POLLING, [LINUX_WOKEN, LINUX_POLLING]),
        adds(
            "preempting a batch job adds only a few us",
            PREEMPTING,
            POLLING,
            [LINUX_PREEMPTING, LINUX_POLLING],
        ),
        adds(
            "(this project's arbiter) nor more where the service requests the cores of Arachne's estimate",
            REQUESTING,
            POLLING,
            [""; 2],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict;
    use super::*;

    fn with(figures: [f64; 8]) -> Vec<Measured> {
        let mut ways = ways();
        ways.iter_mut().zip(figures).for_each(|(way, p50)| way.samples = vec![(p50, 2.0 * p50)]);
        ways
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        let ways = with([1.0, 2.0, 30.0, 6.0, 8.0, 6.0, 30.0, 35.0]);
        let claims = claims(&ways);
        let verdicts: Vec<_> = claims.iter().map(|claim| claim.verdict).collect();
        assert_eq!(verdicts, [Verdict::Reached, Verdict::NotReached, Verdict::Reached, Verdict::NotReached]);
        assert!(
            claims[2].ours.contains("4.00 us more") && claims[2].ours.contains("29.0"),
            "{}",
            claims[2].ours
        );
    }

    #[test]
    fn every_way_is_in_the_drawing() {
        let ways = with([1.0; 8]);
        let panels = panels(&ways);
        assert_eq!(panels.each_ref().map(|panel| panel.bars.len()), [5, 3]);
        assert_eq!(panels[0].bars[4].name, "preempting, arbiter");
    }

    #[test]
    fn one_disturbed_round_does_not_hide_the_others() {
        let mut ways = with([1.0; 8]);
        ways[1].samples = vec![(1.0, 2.0), (1.1, 2.0), (1_000.0, 2_000.0)];
        assert!(panels(&ways).iter().all(|panel| panel.y_range.is_some_and(|(_, top)| top < 2.0)));
    }

    #[test]
    fn missing_measurements_are_not_judged() {
        assert!(claims(&ways()).iter().all(|claim| claim.verdict == Verdict::NotComparable));
    }
}
