//! Figure 4: a spin server under three service-time distributions beside a batch job; tail latency and batch throughput over load.

use tailwater_loadgen::ideal::{self, Ideal};
use tailwater_sim::plot::{Line, Panel, draw};
use tailwater_workload::ServiceTime;

use super::super::contest::{Case, Contest, Point, System, run};
use super::super::context::{Context, Pace, Rig};
use super::super::figure::{Claim, Figure, Outcome};
use crate::table::number;
use crate::testbed::on_linux::{self, Server, Setting};
use crate::testbed::on_tailwater;

/// Shenango section 7.1: all with a mean of 10 us.
const SERVICES: [(&str, &str); 3] =
    [("constant", "const:10us"), ("exponential", "exp:10us"), ("bimodal", "bimodal:0.9*5us+0.1*55us")];
const TAILWATER: &str = "Tailwater";
const LINUX: &str = "Linux";
const TOKIO: &str = "Tokio on Linux";
const ROUNDS: usize = 3;

/// Loads at which the claim about tails is judged: those at which any system should keep up.
const MODERATE: f64 = 70.0;
/// Loads at which the paper itself gives the batch job to Linux.
const LOWEST: f64 = 10.0;
/// Farthest from a straight line that still counts as one, in parts of the batch job's full speed.
const STRAIGHT: f64 = 0.05;
/// Two batch shares within this of each other are the same.
const SAME_SHARE: f64 = 0.02;

/// See the [module](self).
#[derive(Debug)]
pub struct Figure4;

impl Figure for Figure4 {
    fn name(&self) -> &'static str {
        "shenango-fig4"
    }

    fn title(&self) -> &'static str {
        "Tail latency and batch throughput for three service-time distributions"
    }

    fn paper(&self) -> &'static str {
        "Shenango (NSDI'19), figure 4"
    }

    fn plan(&self) -> &'static str {
        include_str!("../../../../../experiments/shenango-fig4.md")
    }

    fn run(&self, context: &Context) -> anyhow::Result<Outcome> {
        let rig = context.rig()?;
        let loads: &[f64] =
            if context.options.quick { &[20.0, 60.0] } else { &[10.0, 30.0, 50.0, 70.0, 80.0, 90.0] };
        let pace = context.pace(SERVICES.len() * loads.len() * 3, ROUNDS);
        let cases = cases(rig, &pace, loads)?;
        let contest = run(self.name(), context, cases, pace.rounds)?;
        let mut notes = rig.notes(&pace, context.options.quick);
        notes.push(contest.handoff_note());
        notes.push(on_linux::queue_note());
        notes.push("Requests are UDP datagrams; the paper's are over TCP.".to_owned());
        notes.push(
            "The batch job's share is of the shared cores; the polling core is Tailwater's price and counts for neither."
                .to_owned(),
        );
        Ok(Outcome {
            svg: draw(self.title(), &panels(&contest, rig, context.options.seed)?),
            data: contest.data(),
            summary: contest.summary(),
            claims: claims(&contest),
            notes,
        })
    }
}

fn cases(rig: &Rig, pace: &Pace, loads: &[f64]) -> anyhow::Result<Vec<Case>> {
    let threads = Setting::threads(rig.wait.mode());
    let systems = [
        (TAILWATER, System::Tailwater(on_tailwater::Setting::default())),
        (LINUX, System::Linux(threads)),
        (TOKIO, System::Linux(Setting { server: Server::Tokio, ..threads })),
    ];
    let mut cases = Vec::new();
    for (panel, notation) in SERVICES {
        let service: ServiceTime = notation.parse()?;
        for &load in loads {
            let plan = pace.plan(&service, load, rig.testbed.cores.managed.len())?;
            cases.extend(systems.iter().map(|(curve, system)| Case {
                panel: panel.to_owned(),
                curve: (*curve).to_owned(),
                load,
                plan: plan.clone(),
                system: system.clone(),
            }));
        }
    }
    Ok(cases)
}

/// Latency above, batch job below, with queues without overhead as references.
fn panels(contest: &Contest, rig: &Rig, seed: u64) -> anyhow::Result<Vec<Panel>> {
    let (mut above, mut below) = (Vec::new(), Vec::new());
    for panel in contest.names(|case| &case.panel) {
        let (mut latency, mut stalled, mut share) = (Vec::new(), Vec::new(), Vec::new());
        let cores = rig.testbed.cores.managed.len();
        for Point { case, .. } in contest.curve(&panel, TAILWATER) {
            let at = |ideal: &Ideal| Some((case.load, ideal.measurement.report().figures.win_p999_us?));
            let ideal = ideal::run(&case.plan, seed, cores)?;
            latency.extend(at(&ideal));
            stalled.extend(at(&ideal::run_with_stalls(&case.plan, seed, cores, &rig.stalls)?));
            share.push((case.load, ideal.idle_share));
        }
        let name = "ideal queue";
        let under = Line::new("ideal queue under the stalls seen before the run", stalled).dashed();
        above.push(contest.latency_panel(&panel, vec![Line::new(name, latency).dashed(), under]));
        below.push(contest.batch_panel(&panel, vec![Line::new(name, share).dashed()]));
    }
    above.append(&mut below);
    Ok(above)
}

fn claims(contest: &Contest) -> Vec<Claim> {
    vec![tails(contest), capacity(contest), straight(contest), batch(contest)]
}

/// Pairs of points of Tailwater and `other` at the same panel and load.
fn pairs<'a>(contest: &'a Contest, other: &str) -> Vec<(&'a Point, &'a Point)> {
    let panels = contest.names(|case| &case.panel);
    let points = panels.iter().flat_map(|panel| contest.curve(panel, TAILWATER));
    points.filter_map(|own| Some((own, contest.at(&own.case.panel, other, own.case.load)?))).collect()
}

fn name_of(point: &Point) -> String {
    format!("{} {} %", point.case.panel, point.case.load)
}

/// Joins what was found, or says that nothing was.
fn list(found: &[String]) -> String {
    if found.is_empty() { "nowhere".to_owned() } else { found.join(", ") }
}

fn tails(contest: &Contest) -> Claim {
    const PAPER: &str = "Shenango keeps the 99.9th percentile low for all three distributions; that of Linux varies \
        drastically and reaches milliseconds even at low load";
    let mut worse = Vec::new();
    let mut ratios = Vec::new();
    for other in [LINUX, TOKIO] {
        for (own, theirs) in pairs(contest, other).into_iter().filter(|(own, _)| own.case.load <= MODERATE) {
            let (Some(a), Some(b)) = (own.tail_us(), theirs.tail_us()) else { continue };
            if own.saturated() || (!theirs.saturated() && a.median >= b.median) {
                worse.push(format!("{} ({other})", name_of(own)));
            }
            if !own.saturated() && !theirs.saturated() && other == LINUX {
                ratios.push(b.median / a.median);
            }
        }
    }
    ratios.sort_by(f64::total_cmp);
    let highest = contest.points.iter().filter(|p| p.case.curve == LINUX && !p.saturated());
    let highest = highest.filter(|p| p.case.load <= MODERATE).filter_map(|p| Some(p.tail_us()?.max));
    let ours = format!(
        "up to {MODERATE} % load Linux's windowed p99.9 is {} to {} times Tailwater's where it keeps up, {} us at worst in any \
         round; Tailwater is not lower at: {}",
        ratios.first().map_or("-".to_owned(), |&r| number(r)),
        ratios.last().map_or("-".to_owned(), |&r| number(r)),
        number(highest.fold(0.0, f64::max)),
        list(&worse)
    );
    Claim::new(PAPER, ours, worse.is_empty())
}

fn capacity(contest: &Contest) -> Claim {
    let mut holds = true;
    let mut texts = Vec::new();
    for panel in contest.names(|case| &case.panel) {
        let of = |curve: &str| contest.capacity(&panel, curve);
        let [own, linux, tokio] = [TAILWATER, LINUX, TOKIO].map(of);
        holds &= own.is_some() && own >= linux && own >= tokio;
        let text = |load: Option<f64>| load.map_or("none".to_owned(), |load| format!("{load} %"));
        texts.push(format!("{panel}: {}, Linux {}, Tokio {}", text(own), text(linux), text(tokio)));
    }
    let ours = format!("highest load sustained (at most 1 % lost): {}", texts.join("; "));
    Claim::new("Shenango sustains a higher load than Linux for each distribution", ours, holds)
}

fn straight(contest: &Contest) -> Claim {
    let mut worst: (f64, String) = (0.0, String::new());
    for panel in contest.names(|case| &case.panel) {
        let points = contest.curve(&panel, TAILWATER).into_iter().filter(|point| !point.saturated());
        let points: Vec<(f64, f64)> =
            points.filter_map(|point| Some((point.case.load, point.share()?.median))).collect();
        let off = farthest_from_line(&points);
        if off >= worst.0 {
            worst = (off, panel);
        }
    }
    let ours = format!(
        "the batch job's share is at most {:.3} of its full speed off a straight line ({})",
        worst.0, worst.1
    );
    let paper = "batch throughput is traded for the service's linearly";
    Claim::new(paper, ours, worst.0 <= STRAIGHT)
}

/// Largest distance in y of a point from the line of least squares through all of them; 0 for fewer than three.
fn farthest_from_line(points: &[(f64, f64)]) -> f64 {
    if points.len() < 3 {
        return 0.0;
    }
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x0, y0) = (mean(|p| p.0), mean(|p| p.1));
    let (mut xy, mut xx) = (0.0, 0.0);
    for (x, y) in points {
        xy += (x - x0) * (y - y0);
        xx += (x - x0) * (x - x0);
    }
    let slope = if xx > 0.0 { xy / xx } else { 0.0 };
    points.iter().map(|(x, y)| (y - y0 - slope * (x - x0)).abs()).fold(0.0, f64::max)
}

fn batch(contest: &Contest) -> Claim {
    let mut less = Vec::new();
    for (own, linux) in pairs(contest, LINUX).into_iter().filter(|(_, linux)| !linux.saturated()) {
        let (Some(a), Some(b)) = (own.share(), linux.share()) else { continue };
        if a.median + SAME_SHARE < b.median {
            less.push((own.case.load, format!("{} ({:.2}, Linux {:.2})", name_of(own), a.median, b.median)));
        }
    }
    let holds = less.iter().all(|(load, _)| *load <= LOWEST);
    let less: Vec<String> = less.into_iter().map(|(_, text)| text).collect();
    let ours =
        format!("of the shared cores Linux leaves the batch job more than Tailwater at: {}", list(&less));
    let paper = "(section 7.1, of memcached) the batch job gets more beside Shenango than on Linux at all but the lowest loads";
    Claim::new(paper, ours, holds)
}

#[cfg(test)]
mod tests {
    use super::super::super::contest::tests::{contest, point};
    use super::super::super::figure::Verdict;
    use super::*;

    fn verdicts(points: Vec<Point>) -> Vec<Verdict> {
        claims(&contest(points)).iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        let good = vec![
            point(TAILWATER, 10.0, &[80.0], 0.9, false),
            point(LINUX, 10.0, &[200.0], 0.95, false),
            point(TAILWATER, 50.0, &[100.0], 0.5, false),
            point(LINUX, 50.0, &[300.0], 0.3, false),
            point(TAILWATER, 90.0, &[300.0], 0.1, false),
            point(LINUX, 90.0, &[9000.0], 0.0, true),
        ];
        assert_eq!(verdicts(good.clone()), [Verdict::Reached; 4]);
        let mut slow = good.clone();
        slow[2] = point(TAILWATER, 50.0, &[400.0], 0.5, false);
        assert_eq!(verdicts(slow)[0], Verdict::NotReached);
        let mut weak = good.clone();
        weak[4] = point(TAILWATER, 90.0, &[300.0], 0.1, true);
        weak[5] = point(LINUX, 90.0, &[900.0], 0.0, false);
        assert_eq!(verdicts(weak)[1], Verdict::NotReached);
        let mut greedy = good;
        greedy[2] = point(TAILWATER, 50.0, &[100.0], 0.2, false);
        assert_eq!(verdicts(greedy)[2..], [Verdict::NotReached; 2]);
    }

    #[test]
    fn a_line_is_straight_and_a_bend_is_not() {
        assert!(farthest_from_line(&[(1.0, 0.9), (5.0, 0.5), (9.0, 0.1)]) < 1e-12);
        assert!((farthest_from_line(&[(0.0, 0.0), (1.0, 0.3), (2.0, 0.0)]) - 0.2).abs() < 1e-12);
        assert_eq!(farthest_from_line(&[(1.0, 5.0), (1.0, 7.0)]), 0.0);
    }
}
