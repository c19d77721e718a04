//! Figure 4: a spin server under three service-time distributions beside a batch job; tail latency
//! and batch throughput over load.

use tailwater_loadgen::ideal::{self, Cores, Ideal};
use tailwater_workload::ServiceTime;

use super::super::arbiter::{self, ARBITER};
use super::super::batch;
use super::super::contest::{self, Case, Contest, Point, System};
use super::super::figure::{Claim, Context, Figure, Line, Outcome, Pace, Panel, Rig, Spread, number};
use tailwater_testbed::on_linux::{Server, Setting};
use tailwater_testbed::on_tailwater;

/// The service times of Shenango section 7.1, all with a mean of 10 us.
const SERVICES: [(&str, &str); 3] =
    [("constant", "const:10us"), ("exponential", "exp:10us"), ("bimodal", "bimodal:0.9*5us+0.1*55us")];
const TAILWATER: &str = "Tailwater";
const LINUX: &str = "Linux";
const TOKIO: &str = "Tokio on Linux";
const ROUNDS: usize = 3;

/// Highest load at which the claim about tails is judged: every system should keep up with it.
const MODERATE: f64 = 70.0;
/// Highest load at which Linux leaves the batch job more in the paper, too.
const LOWEST: f64 = 10.0;
/// Largest distance from a straight line, in parts of the batch job's full speed.
const STRAIGHT: f64 = 0.05;
/// The tail that Linux reaches in the paper "even at low load"; a lower tail is low.
const MILLISECONDS_US: f64 = 1_000.0;
/// "Varies drastically": Linux's highest tail is at least this many times its lowest.
const DRASTICALLY: f64 = 3.0;

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let rig = context.rig()?;
    let loads: &[f64] =
        if context.options.quick { &[20.0, 60.0] } else { &[10.0, 30.0, 50.0, 70.0, 80.0, 90.0] };
    let pace = context.pace(SERVICES.len() * loads.len() * 4, ROUNDS);
    let mut cases = cases(rig, &pace, loads)?;
    let quick = context.options.quick;
    // A quick run has the arbiter's curve in the first panel.
    cases.retain(|case| {
        let is_there = arbiter::has_load(quick, loads, case.load) && (!quick || case.panel == SERVICES[0].0);
        case.curve != ARBITER || is_there
    });
    let contest = contest::run(figure, context, cases, &pace)?;
    let mut notes = rig.linux_notes().to_vec();
    notes.push("Requests are UDP datagrams; the paper's are over TCP.".to_owned());
    notes.push(
        "The batch job's share is of the shared cores; the polling core is Tailwater's price and counts for neither."
            .to_owned(),
    );
    let claims = [claims(&contest), vec![arbiter::claim(&contest, TAILWATER)]].concat();
    Ok(contest.outcome(&panels(&contest, rig, context.options.seed)?, claims, notes))
}

fn cases(rig: &Rig, pace: &Pace, loads: &[f64]) -> anyhow::Result<Vec<Case>> {
    let threads = Setting::threads(rig.wait.mode());
    let systems = [
        (TAILWATER, System::Tailwater(on_tailwater::Setting::default())),
        (ARBITER, System::Tailwater(on_tailwater::Setting { estimates: true, ..Default::default() })),
        (LINUX, System::Linux(threads)),
        (TOKIO, System::Linux(Setting { server: Server::App("tokio-spin"), ..threads })),
    ];
    let mut all = Vec::new();
    for (panel, notation) in SERVICES {
        let service: ServiceTime = notation.parse()?;
        for &load in loads {
            let plan = pace.plan(&service, load, rig.testbed.cores.managed.len())?;
            all.extend(contest::cases(panel, &systems, load, &plan));
        }
    }
    Ok(all)
}

/// Panels of latency and of the batch job, with queues without overhead as references.
fn panels(contest: &Contest, rig: &Rig, seed: u64) -> anyhow::Result<Vec<Panel>> {
    let (mut above, mut below) = (Vec::new(), Vec::new());
    for panel in contest.names(|case| &case.panel) {
        let (mut latency, mut stalled, mut share) = (Vec::new(), Vec::new(), Vec::new());
        let cores = rig.testbed.cores.managed.len();
        for Point { case, .. } in contest.curve(&panel, TAILWATER) {
            let cores = Cores { stretch: contest.fastest_work(&panel, case.load), ..Cores::new(cores) };
            let at = |ideal: &Ideal| Some((case.load, ideal.measurement.report().figures.win_p999_us?));
            let ideal = ideal::run(&case.plan, seed, &cores)?;
            latency.extend(at(&ideal));
            let cores = Cores { stalls: rig.stalls.clone(), ..cores };
            stalled.extend(at(&ideal::run(&case.plan, seed, &cores)?));
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
    let paper = "(section 7.1, of memcached) the batch job gets more beside Shenango than on Linux at all but the lowest loads";
    let batch = batch::more(contest, [TAILWATER, LINUX], LOWEST, "%", paper);
    vec![low(contest), varies(contest), capacity(contest), straight(contest), batch]
}

fn name_of(point: &Point) -> String {
    format!("{} {} %", point.case.panel, point.case.load)
}

/// Returns the list in words; `none` if it is empty.
fn list(found: &[String]) -> String {
    if found.is_empty() { "nowhere".to_owned() } else { found.join(", ") }
}

/// Points of `curve` in all panels up to [`MODERATE`] load.
fn moderate<'a>(contest: &'a Contest, curve: &'a str) -> impl Iterator<Item = &'a Point> {
    contest.points.iter().filter(move |point| point.case.curve == curve && point.case.load <= MODERATE)
}

/// Judges whether the tail is low: under a millisecond and lower than Linux's.
fn low(contest: &Contest) -> Claim {
    const PAPER: &str = "Shenango keeps the 99.9th percentile low for all three distributions";
    let (mut high, mut worse, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut judged = 0;
    for own in moderate(contest, TAILWATER) {
        let Some(tail) = own.tail_us() else { continue };
        judged += 1;
        if own.saturated() || tail.median >= MILLISECONDS_US {
            high.push(name_of(own));
        }
        for other in [LINUX, TOKIO] {
            let rival = contest.at(&own.case.panel, other, own.case.load).filter(|rival| !rival.saturated());
            let Some(theirs) = rival.and_then(Point::tail_us) else { continue };
            if own.saturated() || tail.median >= theirs.median {
                worse.push(format!("{} ({other})", name_of(own)));
            }
            if !own.saturated() && other == LINUX {
                ratios.push(theirs.median / tail.median);
            }
        }
    }
    let times = match Spread::of(ratios) {
        Some(Spread { min, max, .. }) => format!("{} to {}", number(min), number(max)),
        None => "-".to_owned(),
    };
    let ours = format!(
        "up to {MODERATE} % load Linux's windowed p99.9 is {times} times Tailwater's where both keep up; Tailwater's is a millisecond or more \
         at: {}; not lower than on Linux at: {}",
        list(&high),
        list(&worse)
    );
    match judged {
        0 => Claim::not_comparable(PAPER, "there is no point".to_owned()),
        _ => Claim::new(PAPER, ours, high.is_empty() && worse.is_empty()),
    }
}

/// Judges the paper's statement on Linux's tail.
fn varies(contest: &Contest) -> Claim {
    const PAPER: &str =
        "Linux's 99.9th percentile varies drastically and reaches milliseconds even at low load";
    let sustained = moderate(contest, LINUX).filter(|point| !point.saturated());
    let tails: Vec<f64> = sustained.filter_map(|point| Some(point.tail_us()?.median)).collect();
    let Some(Spread { min, max, .. }) = Spread::of(tails) else {
        return Claim::not_comparable(PAPER, format!("Linux keeps up with no load up to {MODERATE} %"));
    };
    let ours = format!(
        "up to {MODERATE} % load, where it keeps up, Linux's windowed p99.9 is {} to {} us; drastically is {DRASTICALLY} times",
        number(min),
        number(max)
    );
    Claim::new(PAPER, ours, max >= MILLISECONDS_US && max >= DRASTICALLY * min)
}

fn capacity(contest: &Contest) -> Claim {
    let (mut lower, mut higher) = (false, true);
    let mut texts = Vec::new();
    for panel in contest.names(|case| &case.panel) {
        let of = |curve: &str| contest.capacity(&panel, curve);
        let [own, linux, tokio] = [TAILWATER, LINUX, TOKIO].map(of);
        lower |= own < linux || own < tokio;
        higher &= own > linux && own > tokio;
        let text = |load: Option<f64>| load.map_or("none".to_owned(), |load| format!("{load} %"));
        texts.push(format!("{panel}: {}, Linux {}, Tokio {}", text(own), text(linux), text(tokio)));
    }
    const PAPER: &str = "Shenango sustains a higher load than Linux for each distribution";
    let ours = format!(
        "highest load sustained (at most 1 % lost, no standing queue): {}; equal loads decide nothing",
        texts.join("; ")
    );
    let is_open = texts.is_empty() || (!lower && !higher);
    Claim::judged(PAPER, ours, (!is_open).then_some(higher))
}

fn straight(contest: &Contest) -> Claim {
    const PAPER: &str = "batch throughput is traded for the service's linearly";
    let (mut worst, mut short): ((f64, String), Vec<String>) = ((0.0, String::new()), Vec::new());
    for panel in contest.names(|case| &case.panel) {
        let points = contest.curve(&panel, TAILWATER).into_iter().filter(|point| !point.saturated());
        let points: Vec<(f64, f64)> =
            points.filter_map(|point| Some((point.case.load, point.share()?.median))).collect();
        match farthest_from_line(&points) {
            Some(off) if off >= worst.0 => worst = (off, panel),
            Some(_) => {}
            None => short.push(panel),
        }
    }
    if !short.is_empty() || worst.1.is_empty() {
        let why = format!("too few loads for a line: {}", list(&short));
        return Claim::not_comparable(PAPER, why);
    }
    let ours = format!(
        "the batch job's share is at most {:.3} of its full speed off a straight line ({})",
        worst.0, worst.1
    );
    Claim::new(PAPER, ours, worst.0 <= STRAIGHT)
}

/// Largest vertical distance of a point from the line of least squares; `None` for fewer than three
/// points.
fn farthest_from_line(points: &[(f64, f64)]) -> Option<f64> {
    if points.len() < 3 {
        return None;
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
    Some(points.iter().map(|(x, y)| (y - y0 - slope * (x - x0)).abs()).fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::super::contest::tests::{contest, point};
    use super::*;

    fn verdicts(points: Vec<Point>) -> Vec<Verdict> {
        claims(&contest(points)).iter().map(|claim| claim.verdict).collect()
    }

    fn good() -> Vec<Point> {
        vec![
            point(TAILWATER, 10.0, &[80.0], 0.9, false),
            point(LINUX, 10.0, &[200.0], 0.95, false),
            point(TAILWATER, 50.0, &[100.0], 0.5, false),
            point(LINUX, 50.0, &[3000.0], 0.3, false),
            point(TAILWATER, 90.0, &[300.0], 0.1, false),
            point(LINUX, 90.0, &[9000.0], 0.0, true),
        ]
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        assert_eq!(verdicts(good()), [Reached; 5]);
        let with = |place: usize, curve: &str, load: f64, tail: f64, share: f64, saturated: bool| {
            let mut points = good();
            points[place] = point(curve, load, &[tail], share, saturated);
            verdicts(points)
        };
        assert_eq!(with(2, TAILWATER, 50.0, 4000.0, 0.5, false)[0], NotReached, "higher than Linux's");
        assert_eq!(with(2, TAILWATER, 50.0, 2000.0, 0.5, false)[0], NotReached, "lower, but milliseconds");
        assert_eq!(with(3, LINUX, 50.0, 900.0, 0.3, false)[1], NotReached, "Linux reaches no milliseconds");
        assert_eq!(with(1, LINUX, 10.0, 2000.0, 0.95, false)[1], NotReached, "Linux's tails are alike");
        let mut weak = good();
        weak[4] = point(TAILWATER, 90.0, &[300.0], 0.1, true);
        weak[5] = point(LINUX, 90.0, &[900.0], 0.0, false);
        assert_eq!(verdicts(weak)[2], NotReached);
        assert_eq!(with(2, TAILWATER, 50.0, 100.0, 0.2, false)[3..], [NotReached; 2]);
    }

    #[test]
    fn ties_and_missing_points_decide_nothing() {
        let mut tie = good();
        tie[5] = point(LINUX, 90.0, &[900.0], 0.09, false);
        assert_eq!(verdicts(tie)[2], NotComparable, "both sustain the highest load tried");
        let two_loads = good().into_iter().take(4).collect();
        assert_eq!(verdicts(two_loads)[3], NotComparable, "any two points are on a line");
        let saturated = |curve, load| point(curve, load, &[9000.0], 0.0, true);
        let mut hopeless = good();
        (hopeless[1], hopeless[3]) = (saturated(LINUX, 10.0), saturated(LINUX, 50.0));
        let verdicts = verdicts(hopeless);
        assert_eq!((verdicts[1], verdicts[4]), (NotComparable, NotComparable));
    }

    #[test]
    fn without_points_nothing_is_judged() {
        assert_eq!(verdicts(Vec::new()), [NotComparable; 5]);
    }

    #[test]
    fn a_line_is_straight_and_a_bend_is_not() {
        assert!(farthest_from_line(&[(1.0, 0.9), (5.0, 0.5), (9.0, 0.1)]).unwrap() < 1e-12);
        assert!((farthest_from_line(&[(0.0, 0.0), (1.0, 0.3), (2.0, 0.0)]).unwrap() - 0.2).abs() < 1e-12);
        assert_eq!(farthest_from_line(&[(1.0, 5.0), (2.0, 7.0)]), None);
    }
}
