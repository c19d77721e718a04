//! Shinjuku (NSDI'19), figure 7: the multi-queue policy with three quanta (a), the throughput of
//! dispatchers over workers (b), and what it is on a network (c).
//!
//! A dispatcher is one server: it takes requests in, hands them out and preempts, each at a cost of
//! the profile. Part b searches for the highest rate that one dispatcher and its workers carry, by
//! the paper's costs and by those of this project's machine. Two dispatchers share nothing: each
//! has half of the workers, and RSS divides the flows, so the one with more of them bounds both.

use super::curves::{self, CORES, Curve, FLOWS, PAPERS_COSTS, System, WORKERS, Workload, slowdown};
use super::{Claim, Drawing, Options, Reproduction};
use crate::costs::Costs;
use crate::mix::Mix;
use crate::scenario::{Scenario, parallel};
use crate::source::{Source, Synthetic};
use crate::study::Effort;
use tailwater_plot::table::Table;
use tailwater_plot::{Line, Panel};
use tailwater_sched::Nanos;
use tailwater_sched::dispatch::{PolicySpec, Requeue};
use tailwater_workload::{ArrivalProcess, Rate};

const LOADS: [f64; 8] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75];
const QUICK_LOADS: [f64; 3] = [0.3, 0.7, COMPARED];
/// Load at which quanta are compared.
const COMPARED: f64 = 0.75;
const QUANTA: [(&str, &str); 3] =
    [("quantum 5 us", "mq:5us,head"), ("quantum 10 us", "mq:10us,head"), ("quantum 15 us", "mq:15us,head")];
/// Slowdown at which throughput is compared, as in figure 6.
const SLOWDOWN_LIMIT: f64 = 20.0;

/// Workers of one socket of the paper's server.
const MOST: usize = 11;
const QUICK_WORKERS: [usize; 3] = [1, 4, MOST];
/// A rate is carried if the p99 is at most this: it is 1 us of work, and a queue that grows passes
/// the limit within the run.
const LIMIT_NS: f64 = 50_000.0;
/// Halvings of the range in which the highest rate lies: to 0.4 % of what the workers could do
/// without overheads.
const HALVINGS: u32 = 8;
/// "Almost linear": at least this part of so many times what one worker does.
const LINEAR: f64 = 0.9;
/// 9.5 million requests a second with two dispatchers, 5 million with one.
const PAPERS_TWICE: f64 = 1.9;

const LINK_BITS: f64 = 40e9;
/// Preamble and gap between frames, in bytes.
const BETWEEN_FRAMES: f64 = 20.0;
const PAPERS_FRAME: f64 = 258.0;
const FRAMES: [f64; 8] = [64.0, 128.0, PAPERS_FRAME, 384.0, 512.0, 768.0, 1024.0, 1514.0];

/// Points of the figure, for its progress.
pub(super) fn points(options: &Options) -> u64 {
    let quanta =
        QUANTA.len() * loads(options).len() * curves::preempted_effort(options).replications as usize;
    (quanta + PROFILES.len() * workers(options).len()) as u64
}

/// Returns the systems of part a with so many workers.
fn quanta(workers: usize) -> [System; 3] {
    QUANTA.map(|(name, policy)| System { name, policy, workers })
}

fn loads(options: &Options) -> &'static [f64] {
    if options.quick { &QUICK_LOADS } else { &LOADS }
}

fn workers(options: &Options) -> Vec<usize> {
    if options.quick { QUICK_WORKERS.to_vec() } else { (1..=MOST).collect() }
}

/// The costs of this project's machine.
const OWN_COSTS: &str = "vm-2vcpu";
/// Cost profiles of part b, the paper's first.
const PROFILES: [&str; 2] = [PAPERS_COSTS, OWN_COSTS];

/// The highest rates under one profile, by number of workers.
struct Scaling {
    costs: Costs,
    /// Workers of one dispatcher, and requests per second.
    one: Vec<(usize, f64)>,
    /// The part of the flows that the busier of two dispatchers has.
    larger_half: f64,
}

impl Scaling {
    /// Returns what two dispatchers carry with twice the workers.
    fn two(&self) -> Vec<(usize, f64)> {
        self.one.iter().map(|&(workers, rate)| (2 * workers, rate / self.larger_half)).collect()
    }

    fn most(&self) -> f64 {
        self.one.last().map_or(0.0, |&(_, rate)| rate)
    }

    /// Returns the throughput with all workers over that of as many times one worker.
    fn linearity(&self) -> f64 {
        let first = self.one.first().map_or(f64::NAN, |&(workers, rate)| rate / workers as f64);
        self.most() / (MOST as f64 * first)
    }

    fn per_request_ns(&self) -> u64 {
        self.costs.intake_ns + self.costs.assign_ns
    }
}

/// Returns the highest rate that one dispatcher with `workers` carries; 0 if there is none.
fn highest_rate(workers: usize, costs: &Costs, effort: Effort) -> anyhow::Result<f64> {
    let scenario = Scenario {
        cores: workers,
        mix: Mix::parse("const:1us")?,
        arrivals: ArrivalProcess::Poisson,
        load: 1.0,
        connections: Some(FLOWS),
        policy: PolicySpec::SingleQueue { quantum_ns: Nanos::from_micros(5), requeue: Requeue::Head },
        costs: costs.clone(),
        budget: effort.budget(),
        seed: effort.seed,
    };
    Ok(scenario.highest_rate(1.0, LIMIT_NS, HALVINGS)?.map_or(0.0, |(rate, _)| rate))
}

/// Returns the part of the flows that the busier of two dispatchers has under RSS.
fn larger_half(seed: u64) -> anyhow::Result<f64> {
    const DRAWS: u32 = 100_000;
    let (rate, mix) = (Rate::new(1e6)?, Mix::parse("const:1us")?);
    let mut source = Synthetic::new(ArrivalProcess::Poisson, rate, mix, Some(FLOWS), seed);
    let second = (0..DRAWS).filter_map(|_| source.next_request()).filter(|r| r.flow.home(2).0 == 1).count();
    let part = second as f64 / f64::from(DRAWS);
    Ok(part.max(1.0 - part))
}

fn scaling(options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Vec<Scaling>> {
    let requests = if options.quick { 5_000 } else { 100_000 };
    let effort = Effort { requests, replications: 1, seed: options.seed, threads: options.threads };
    let workers = workers(options);
    let costs = PROFILES.map(Costs::load).into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let jobs = costs.len() * workers.len();
    let rates = parallel(jobs, effort.threads(), tick, |job| {
        highest_rate(workers[job % workers.len()], &costs[job / workers.len()], effort)
    });
    let rates = rates.into_iter().collect::<anyhow::Result<Vec<f64>>>()?;
    let larger_half = larger_half(options.seed)?;
    let each = |(costs, rates): (Costs, &[f64])| {
        let one = workers.iter().copied().zip(rates.iter().copied()).collect();
        Scaling { costs, one, larger_half }
    };
    Ok(costs.into_iter().zip(rates.chunks(workers.len())).map(each).collect())
}

pub(super) fn figure7(options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Reproduction> {
    let workload = |name, costs, cores| {
        let classes = Mix::parse("bimodal:0.5*1us+0.5*100us")?;
        let effort = curves::preempted_effort(options);
        anyhow::Ok(Workload { name, classes, costs, cores, loads: loads(options), effort })
    };
    let papers = workload("a", PAPERS_COSTS, CORES)?.run(&quanta(WORKERS), tick)?;
    let own = workload("a, one worker here", OWN_COSTS, 1)?.run(&quanta(1), tick)?;
    let scaling = scaling(options, tick)?;
    let panels = [
        curves::panel("a: preemption interval", "p99 slowdown", (1.0, 1000.0), &papers, slowdown),
        curves::panel("a on one worker here", "p99 slowdown", (1.0, 1000.0), &own, slowdown),
        scaling_panel(&scaling),
        network_panel(&scaling[0]),
    ];
    let mut claims = judge_quanta(&papers, "");
    claims.extend(judge_quanta(&own, " (one worker here)"));
    claims.extend(judge_scaling(&scaling[0]));
    Ok(Reproduction {
        title: "Shinjuku figure 7: preemption intervals, and dispatchers over workers".to_owned(),
        data: data(&[(WORKERS, &papers), (1, &own)], &scaling),
        drawing: Drawing::new("Preemption interval and scaling of dispatchers (Shinjuku, figure 7)", &panels),
        claims,
    })
}

fn scaling_panel(scaling: &[Scaling]) -> Panel {
    let points = |rates: Vec<(usize, f64)>| rates.iter().map(|&(n, rate)| (n as f64, rate / 1e6)).collect();
    let mut lines = Vec::new();
    for each in scaling {
        let name = |dispatchers: &str| format!("{dispatchers}, {} ns a request", each.per_request_ns());
        lines.push(Line::new(name("1 dispatcher"), points(each.one.clone())));
        lines.push(Line::new(name("2 dispatchers"), points(each.two())).dashed());
    }
    Panel::new("b: throughput, 1 us requests", "workers", "million requests/s", lines).within((0.0, 15.0))
}

/// Returns what replies of a frame length take of a link, in bits per second.
fn link_bits(rate: f64, frame: f64) -> f64 {
    (rate * (frame + BETWEEN_FRAMES) * 8.0).min(LINK_BITS)
}

fn both(scaling: &Scaling) -> f64 {
    scaling.two().last().map_or(0.0, |&(_, rate)| rate)
}

fn network_panel(scaling: &Scaling) -> Panel {
    let rate = both(scaling);
    let points = FRAMES.map(|frame| (frame, link_bits(rate, frame) / 1e9)).to_vec();
    Panel::new(
        "c: replies of 2 dispatchers",
        "frame (bytes)",
        "Gbit/s",
        vec![Line::new("2 dispatchers, by frame length", points)],
    )
    .within((0.0, 45.0))
}

fn data(quanta: &[(usize, &[Curve]); 2], scaling: &[Scaling]) -> Table {
    let mut table = Table::new(
        "part | system | load | workers | dispatchers | requests_per_s | p99_slowdown | \
         short_p99_us",
    );
    let curves =
        quanta.iter().flat_map(|&(workers, curves)| curves.iter().map(move |curve| (workers, curve)));
    for (workers, curve) in curves {
        for row in &curve.rows {
            let mut cells = vec!["a".to_owned(), curve.name.to_owned(), row.load.to_string()];
            cells.extend([workers.to_string(), "1".to_owned(), format!("{:.0}", row.offered_rps)]);
            let short_us = row.class_p99_ns.first().map_or(f64::NAN, |p99| p99.value / 1e3);
            cells.extend([slowdown(row), short_us].map(|value| format!("{value:.3}")));
            table.row(cells);
        }
    }
    for each in scaling {
        for (dispatchers, rates) in [("1", each.one.clone()), ("2", each.two())] {
            for (workers, rate) in rates {
                let mut cells = vec!["b".to_owned(), each.costs.name.clone(), String::new()];
                cells.extend([workers.to_string(), dispatchers.to_owned(), format!("{rate:.0}")]);
                cells.extend([String::new(), String::new()]);
                table.row(cells);
            }
        }
    }
    table
}

/// Judges part a; the curves are those of [`QUANTA`].
fn judge_quanta(quanta: &[Curve], on: &str) -> Vec<Claim> {
    let [five, ten, fifteen] = [0, 1, 2].map(|index| quanta[index].at(COMPARED, slowdown));
    let [most, _, least] = [0, 1, 2].map(|index| quanta[index].within(SLOWDOWN_LIMIT, slowdown) / 1e3);
    vec![
        Claim::new(
            &format!(
                "the shorter the preemption interval, the less 100 us requests disturb those of 1 us{on}"
            ),
            format!(
                "p99 slowdown at {:.0} % load: {five:.1} with 5 us, {ten:.1} with 10 us, {fifteen:.1} with 15 us",
                100.0 * COMPARED
            ),
            five < ten && ten < fifteen,
        ),
        Claim::new(
            &format!("even an interval of 5 us performs well{on}"),
            format!(
                "of the loads tried with a p99 slowdown of at most {SLOWDOWN_LIMIT}, thousand/s: {most:.0} with 5 us, \
                 {least:.0} with 15 us"
            ),
            most > 0.0 && most >= least,
        ),
    ]
}

/// Judges the paper's profile.
fn judge_scaling(scaling: &Scaling) -> Vec<Claim> {
    let (one, two, linear) = (scaling.most() / 1e6, both(scaling) / 1e6, scaling.linearity());
    let gbits = link_bits(1e6 * two, PAPERS_FRAME) / 1e9;
    let fills = LINK_BITS / (8e6 * two) - BETWEEN_FRAMES;
    vec![
        Claim::new(
            "one dispatcher scales almost linearly to 11 workers",
            format!("{one:.1} million/s with 11 workers, {:.0} % of 11 times one worker", 100.0 * linear),
            linear >= LINEAR,
        ),
        Claim::new(
            "9.5 million requests/s with two dispatchers and 22 workers, 5 million with one",
            format!("{two:.1} million/s with two, {one:.1} with one: {:.2} times", two / one),
            two >= PAPERS_TWICE * one,
        ),
        Claim::new(
            "two dispatchers saturate 40 Gbit/s with replies of 258 bytes",
            format!("{gbits:.1} Gbit/s with 258 bytes; frames of {fills:.0} bytes fill the link"),
            gbits >= LINK_BITS / 1e9,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::curves::tests::row;

    #[test]
    fn one_dispatcher_bounds_many_workers_and_a_worker_itself() {
        let effort = Effort { requests: 4_000, replications: 1, ..Effort::default() };
        let costs = Costs { intake_ns: 100, assign_ns: 100, ..Costs::ideal() };
        let one = highest_rate(1, &costs, effort).unwrap();
        // A worker waits for 100 ns before each request of 1 us.
        assert!((0.8e6..0.92e6).contains(&one), "{one}");
        let many = highest_rate(MOST, &costs, effort).unwrap();
        assert!((4.6e6..5.2e6).contains(&many), "{many}");
    }

    #[test]
    fn the_busier_of_two_dispatchers_has_little_more_than_half() {
        let part = larger_half(1).unwrap();
        assert!((0.5..0.55).contains(&part), "{part}");
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        let scaling = |one: [f64; 2], larger_half| Scaling {
            costs: Costs::ideal(),
            one: vec![(1, one[0]), (MOST, one[1])],
            larger_half,
        };
        let holds = |scaling: &Scaling| judge_scaling(scaling).iter().map(|c| c.holds).collect::<Vec<_>>();
        assert_eq!(holds(&scaling([0.5e6, 5e6], 0.52)), [true, true, false]);
        assert_eq!(holds(&scaling([0.7e6, 5e6], 0.6)), [false, false, false]);
        assert_eq!(holds(&scaling([1e6, 10e6], 0.5)), [true, true, true]);
        let quanta = |slowdowns: [f64; 3]| {
            let each = |slowdown| Curve { name: "", rows: vec![row(COMPARED, slowdown, 1e6)] };
            judge_quanta(&slowdowns.map(each), "").iter().map(|c| c.holds).collect::<Vec<_>>()
        };
        assert_eq!(quanta([1.0, 2.0, 3.0]), [true, true]);
        assert_eq!(quanta([2.0, 2.0, 3.0]), [false, true]);
        assert_eq!(quanta([30.0, 2.0, 3.0]), [false, false]);
    }
}
