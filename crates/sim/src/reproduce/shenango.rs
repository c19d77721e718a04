//! Shenango (NSDI'19) figure 1: CPU efficiency of an optimal 1 ms allocator against reallocation
//! every 5 us.
//!
//! M/M/n, mean service 10 us, latency limit 100 us at the 99.9th percentile, efficiency = core time
//! used / core time allocated. The optimal 1 ms allocator is the paper's: every interval starts
//! empty, what is pending at its end is served at once, and the number of cores is found by trial
//! and error per load. Beside Shenango's own policy (congestion detection, with and without
//! overheads) stand the curves the reproduction report wished for: an optimal 5 us allocator, which
//! knows arrivals and service times in advance, and Shenango's policy at 1 ms.

use tailwater_sched::Nanos;
use tailwater_sched::alloc::optimal::{Clairvoyant, Known, fewest_for_tail};
use tailwater_workload::random::{Prng, stream, unit_exponential};

use super::{Claim, Drawing, Options, Reproduction};
use crate::costs::Costs;
use crate::mix::Mix;
use crate::scenario::{parallel, seed_of};
use crate::study::Effort;
use crate::study::allocators::AllocatorStudy;
use tailwater_plot::table::Table;
use tailwater_plot::{Line, Panel};

const SERVICE_NS: f64 = 10_000.0;
const LIMIT_NS: u64 = 100_000;
/// Cores of the machine; the load never comes near this number.
const CORES: u16 = 16;
/// Loads in steps of an eighth of a core, up to this many.
pub(super) const POINTS: usize = 56;
const STEP: f64 = 0.125;

/// One curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Curve {
    Optimal1ms,
    Optimal5us,
    Prompt5us,
    Shenango,
    ShenangoPaper,
    Shenango1ms,
}

pub(super) const CURVES: usize = ALL.len();
const ALL: [Curve; 6] = [
    Curve::Optimal1ms,
    Curve::Shenango,
    Curve::ShenangoPaper,
    Curve::Optimal5us,
    Curve::Prompt5us,
    Curve::Shenango1ms,
];

impl Curve {
    fn name(self) -> &'static str {
        match self {
            Self::Optimal1ms => "optimal, 1 ms",
            Self::Optimal5us => "optimal, 5 us",
            Self::Prompt5us => "optimal, 5 us, wait at most 10 us",
            Self::Shenango => "Shenango policy, 5 us, no overheads",
            Self::ShenangoPaper => "Shenango policy, 5 us, 2019 costs",
            Self::Shenango1ms => "Shenango policy, 1 ms, 2019 costs",
        }
    }
}

/// Efficiency and tail of one curve at one load.
#[derive(Clone, Copy, Debug)]
struct Point {
    efficiency: f64,
    p999_ns: f64,
    /// Cores assigned, where that is a whole number.
    cores: Option<usize>,
}

pub(super) fn figure1(options: &Options, tick: &(dyn Fn() + Sync)) -> anyhow::Result<Reproduction> {
    let jobs = ALL.len() * POINTS;
    let threads = options.effort().threads();
    let results = parallel(jobs, threads, tick, |job| {
        let cores_busy = STEP * (job % POINTS + 1) as f64;
        point(ALL[job / POINTS], cores_busy, options, seed_of(options.seed, (job % POINTS) as u32))
    });
    let points: Vec<Point> = results.into_iter().collect::<anyhow::Result<_>>()?;
    let curve = |c: Curve| {
        let at = ALL.iter().position(|other| *other == c).unwrap_or(0);
        &points[at * POINTS..(at + 1) * POINTS]
    };
    let mut table = Table::new("curve | busy_cores | mrps | efficiency | p999_us | cores");
    for c in ALL {
        for (i, p) in curve(c).iter().enumerate() {
            let busy = STEP * (i + 1) as f64;
            table.row([
                c.name().to_owned(),
                busy.to_string(),
                format!("{:.3}", busy * 1e3 / SERVICE_NS),
                format!("{:.4}", p.efficiency),
                format!("{:.2}", p.p999_ns / 1e3),
                p.cores.map_or_else(String::new, |n| n.to_string()),
            ]);
        }
    }
    Ok(Reproduction {
        title: "Shenango figure 1: CPU efficiency of core allocators, M/M/n, 10 us, 99.9% within 100 us"
            .to_owned(),
        data: table,
        drawing: Drawing::new("CPU efficiency of core allocators (Shenango, figure 1)", &[panel(&curve)]),
        claims: claims(&curve),
    })
}

fn panel<'a>(curve: &impl Fn(Curve) -> &'a [Point]) -> Panel {
    let mrps = |i: usize| STEP * (i + 1) as f64 * 1e3 / SERVICE_NS;
    let line = |c: Curve| {
        let points = curve(c).iter().enumerate().map(|(i, p)| (mrps(i), 100.0 * p.efficiency)).collect();
        let line = Line::new(c.name(), points);
        if matches!(c, Curve::Shenango1ms | Curve::Prompt5us) { line.dashed() } else { line }
    };
    // The number of cores at the top of each tooth.
    let optimal = curve(Curve::Optimal1ms);
    let tops = (0..POINTS).filter(|&i| i + 1 == POINTS || optimal[i + 1].cores != optimal[i].cores);
    let label =
        |i: usize| Some((mrps(i), 100.0 * optimal[i].efficiency + 1.5, optimal[i].cores?.to_string()));
    Panel {
        labels: tops.filter_map(label).collect(),
        ..Panel::new(
            "exponential 10 us, p99.9 limit 100 us",
            "offered load (million requests/s)",
            "CPU efficiency (%)",
            ALL.map(line).to_vec(),
        )
        .within((0.0, 102.0))
    }
}

/// The policy of the IOKernel, by how often it looks.
const EVERY_5US: &str = "congestion-detection:5us";
const EVERY_1MS: &str = "congestion-detection:1ms";

fn point(curve: Curve, busy: f64, options: &Options, seed: u64) -> anyhow::Result<Point> {
    let requests = if options.quick { 60_000 } else { 400_000 };
    match curve {
        Curve::Optimal1ms => Ok(optimal_1ms(busy, requests, seed)),
        Curve::Optimal5us => Ok(optimal_5us(busy, requests, seed, |_| LIMIT_NS)),
        Curve::Prompt5us => Ok(optimal_5us(busy, requests, seed, |service| service + 10_000)),
        Curve::Shenango => shenango(EVERY_5US, &Costs::ideal(), busy, requests, seed),
        Curve::ShenangoPaper => shenango(EVERY_5US, &Costs::load("paper-2019")?, busy, requests, seed),
        Curve::Shenango1ms => shenango(EVERY_1MS, &Costs::load("paper-2019")?, busy, requests, seed),
    }
}

/// Arrival and service times of a Poisson stream that keeps `busy` cores busy.
struct Poisson {
    prng: Prng,
    gap_ns: f64,
    at_ns: f64,
}

impl Poisson {
    fn new(busy: f64, seed: u64) -> Self {
        Self { prng: stream(seed, 0), gap_ns: SERVICE_NS / busy, at_ns: 0.0 }
    }

    fn next(&mut self) -> (u64, u64) {
        self.at_ns += self.gap_ns * unit_exponential(&mut self.prng);
        let service = SERVICE_NS * unit_exponential(&mut self.prng);
        (self.at_ns as u64, (service as u64).max(1))
    }
}

/// Runs the paper's simulation: the fewest cores whose pooled p99.9 over independent 1 ms intervals
/// is within the limit.
fn optimal_1ms(busy: f64, requests: u64, seed: u64) -> Point {
    const INTERVAL_NS: u64 = 1_000_000;
    let mut tails = std::collections::BTreeMap::new();
    let tail = |cores: usize| {
        let mut source = Poisson::new(busy, seed);
        let mut latencies = Vec::with_capacity(requests as usize);
        let (mut end_ns, mut free) = (INTERVAL_NS, vec![0u64; cores]);
        for _ in 0..requests {
            let (at, service) = source.next();
            while at >= end_ns {
                free.fill(end_ns);
                end_ns += INTERVAL_NS;
            }
            // First come, first served: the core that is free first takes it.
            let core = free.iter_mut().min().expect("at least one core");
            *core = (*core).max(at) + service;
            latencies.push((*core).min(end_ns) - at);
        }
        let p999 = percentile(&mut latencies, 0.999);
        tails.insert(cores, p999);
        Nanos(p999)
    };
    let cores = fewest_for_tail(busy.ceil() as usize, usize::from(CORES), Nanos(LIMIT_NS), tail);
    let cores = cores.unwrap_or(usize::from(CORES));
    Point { efficiency: busy / cores as f64, p999_ns: tails[&cores] as f64, cores: Some(cores) }
}

/// Runs a clairvoyant allocator that decides every 5 us; `allowance` is the latency allowed to a
/// request of a given service time.
fn optimal_5us(busy: f64, requests: u64, seed: u64, allowance: impl Fn(u64) -> u64) -> Point {
    const INTERVAL_NS: u64 = 5_000;
    let mut source = Poisson::new(busy, seed);
    let mut allocator = Clairvoyant::new();
    let (mut latencies, mut arrivals, mut done) = (Vec::new(), Vec::new(), Vec::new());
    let (mut used_ns, mut allocated_ns, mut start) = (0u64, 0u64, 0u64);
    let mut next = source.next();
    while (latencies.len() as u64) < requests {
        let end = start + INTERVAL_NS;
        arrivals.clear();
        while next.0 < end {
            let (at, service) = next;
            let deadline = Nanos(at + allowance(service));
            arrivals.push(Known { arrived: Nanos(at), deadline, remaining: Nanos(service) });
            next = source.next();
        }
        done.clear();
        let interval = allocator.run(Nanos(start), Nanos(end), &arrivals, usize::from(CORES) * 4, &mut done);
        used_ns += interval.busy.0;
        allocated_ns += interval.cores as u64 * INTERVAL_NS;
        latencies.extend(done.iter().map(|(request, at)| at.0 - request.arrived.0));
        start = end;
    }
    let p999_ns = percentile(&mut latencies, 0.999) as f64;
    Point { efficiency: used_ns as f64 / allocated_ns.max(1) as f64, p999_ns, cores: None }
}

/// Runs Shenango's own policy on the simulated machine; kthreads park as soon as they find nothing.
fn shenango(allocator: &str, costs: &Costs, busy: f64, requests: u64, seed: u64) -> anyhow::Result<Point> {
    let study = AllocatorStudy {
        cores: CORES,
        services: 1,
        batch: false,
        arrivals: tailwater_workload::ArrivalProcess::Poisson,
        park_after: "0ns".to_owned(),
        effort: Effort { requests, ..Effort::default() },
        ..AllocatorStudy::default()
    };
    let load = busy / f64::from(CORES);
    let outcome = study.run_once(allocator, load, costs, &Mix::parse("exp:10us")?, seed)?;
    let service = &outcome.services[0];
    Ok(Point {
        efficiency: service.measured.spent.busy_ns as f64 / service.held_ns.max(1) as f64,
        p999_ns: service.measured.latency.quantile(3).value,
        cores: None,
    })
}

fn percentile(values: &mut [u64], p: f64) -> u64 {
    let rank = ((values.len() as f64 * p).ceil() as usize).clamp(1, values.len()) - 1;
    *values.select_nth_unstable(rank).1
}

fn claims<'a>(curve: &impl Fn(Curve) -> &'a [Point]) -> Vec<Claim> {
    let optimal = curve(Curve::Optimal1ms);
    let mean = |c: Curve| curve(c).iter().map(|p| p.efficiency).sum::<f64>() / POINTS as f64;
    // One to four cores assigned: where the paper sees the worst loss.
    let few: Vec<usize> = (0..POINTS).filter(|&i| optimal[i].cores.is_some_and(|n| n <= 4)).collect();
    let mean_few =
        |c: Curve| few.iter().map(|&i| curve(c)[i].efficiency).sum::<f64>() / few.len().max(1) as f64;
    let teeth = optimal.windows(2).filter(|w| w[1].efficiency < w[0].efficiency).count();
    let beaten = |c: Curve| (0..POINTS).filter(|&i| curve(c)[i].efficiency > optimal[i].efficiency).count();
    let worst_tail = |c: Curve| curve(c).iter().map(|p| p.p999_ns).fold(0.0, f64::max) / 1e3;
    let percent = |x: f64| format!("{:.0}%", 100.0 * x);
    vec![
        Claim::new(
            "the optimal 1 ms allocator's efficiency is a sawtooth, one tooth per core",
            format!("{teeth} teeth up to {} busy cores", STEP * POINTS as f64),
            teeth >= 3,
        ),
        Claim::new(
            "its loss is especially severe between one and four cores",
            format!(
                "mean efficiency {} there, {} over all loads",
                percent(mean_few(Curve::Optimal1ms)),
                percent(mean(Curve::Optimal1ms))
            ),
            mean_few(Curve::Optimal1ms) < mean(Curve::Optimal1ms) - 0.05,
        ),
        Claim::new(
            "reallocating every 5 us is more efficient than the optimal 1 ms allocator",
            format!(
                "at {} of {POINTS} loads without overheads (mean {}), at {} with 2019 costs (mean {}); optimal 1 ms {}",
                beaten(Curve::Shenango),
                percent(mean(Curve::Shenango)),
                beaten(Curve::ShenangoPaper),
                percent(mean(Curve::ShenangoPaper)),
                percent(mean(Curve::Optimal1ms))
            ),
            beaten(Curve::Shenango) == POINTS && mean_few(Curve::ShenangoPaper) > mean_few(Curve::Optimal1ms),
        ),
        Claim::new(
            "Shenango keeps its tail within the same limit",
            format!(
                "p99.9 at most {:.0} us without overheads, {:.0} us with 2019 costs",
                worst_tail(Curve::Shenango),
                worst_tail(Curve::ShenangoPaper)
            ),
            worst_tail(Curve::ShenangoPaper) <= LIMIT_NS as f64 / 1e3,
        ),
        Claim::new(
            "(reproduction report) how far is Shenango from an optimal 5 us allocator?",
            format!(
                "optimal 5 us: mean {} using up the limit (p99.9 {:.0} us), {} if nothing waits over 10 us",
                percent(mean(Curve::Optimal5us)),
                worst_tail(Curve::Optimal5us),
                percent(mean(Curve::Prompt5us))
            ),
            mean(Curve::Optimal5us) >= mean(Curve::ShenangoPaper),
        ),
        Claim::new(
            "(reproduction report) what if Shenango's policy decided only every 1 ms?",
            format!(
                "mean efficiency {}, but p99.9 up to {:.0} us",
                percent(mean(Curve::Shenango1ms)),
                worst_tail(Curve::Shenango1ms)
            ),
            worst_tail(Curve::Shenango1ms) > LIMIT_NS as f64 / 1e3,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_optimal_1ms_allocator_needs_more_than_one_core_for_half_a_core_of_load() {
        let p = optimal_1ms(0.5, 20_000, 1);
        assert_eq!(p.cores, Some(2), "one core gives a p99.9 of 138 us at half load");
        assert!(p.p999_ns <= LIMIT_NS as f64 && p.efficiency == 0.25);
    }

    #[test]
    fn the_clairvoyant_allocator_uses_up_the_limit_and_wastes_little() {
        let p = optimal_5us(2.0, 6_000, 1, |_| LIMIT_NS);
        assert!(p.efficiency > 0.93, "{p:?}");
        assert!((90_000.0..=101_000.0).contains(&p.p999_ns), "{p:?}");
        let prompt = optimal_5us(2.0, 6_000, 1, |service| service + 10_000);
        assert!(prompt.efficiency < p.efficiency && prompt.p999_ns < p.p999_ns, "{prompt:?}");
    }

    #[test]
    fn the_policies_of_the_iokernel_run() {
        for policy in [EVERY_5US, EVERY_1MS] {
            let point = shenango(policy, &Costs::ideal(), 0.5, 2_000, 1).unwrap();
            assert!(point.efficiency > 0.0 && point.efficiency <= 1.0, "{policy}: {point:?}");
        }
    }
}
