//! Figure 8: GETs beside SCANs of RocksDB, one queue against a queue for each type, with preemption
//! and without.
//!
//! All parts are simulated on the paper's cores. Where the RocksDB [service](crate::rocks) is built
//! they are measured on this machine's cores as well; elsewhere the figure is simulated only, and
//! says what is missing.

use anyhow::Context as _;
use tailwater_loadgen::Plan;
use tailwater_workload::{Rate, ServiceTime};

use super::super::contest::{self, Case, Contest, Point, System, cases, dedicated};
use super::super::figure::{Claim, Context, Figure, Outcome, Pace, Panel, Spread, Table, draw, number};
use super::super::simulated;
use crate::rocks::{Mixture, NEEDS, service};
use tailwater_testbed::handoffs::HandoffRecord;
use tailwater_testbed::interrupt::Interrupted;
use tailwater_testbed::note;

/// A mixture of requests, as it is measured.
struct Part {
    panel: &'static str,
    mixture: Mixture,
    /// In percent of the work of requests that are alone.
    loads: &'static [f64],
    /// The curves and their policies.
    systems: &'static [(&'static str, &'static str)],
}

const STEALING: &str = "RocksDB, stealing";
const PLAIN: &str = "RocksDB, one queue, no preemption";
const SINGLE: &str = "RocksDB, one queue, 15 us";
const MULTI: &str = "RocksDB, queue by type, 15 us";
/// The paper's quantum, and its places of preempted requests (section 4).
const SINGLE_POLICY: &str = "sq:15us,tail";
const MULTI_POLICY: &str = "mq:15us,head";
const PLAIN_POLICY: &str = "c-fcfs";

const RARE: Part = Part {
    panel: "measured: 99.5 % GET, 0.5 % SCAN(1000)",
    mixture: Mixture { scan_share: 0.005, scan_count: 1_000 },
    loads: &[2.0, 5.0, 10.0, 20.0, 40.0, COMPARED, 75.0],
    systems: &[(STEALING, "steal"), (SINGLE, SINGLE_POLICY)],
};
const HALF: Part = Part {
    panel: "measured: 50 % GET, 50 % SCAN(5000)",
    mixture: Mixture { scan_share: 0.5, scan_count: 5_000 },
    loads: &[10.0, 20.0, 40.0, COMPARED, 75.0],
    systems: &[(STEALING, "steal"), (PLAIN, PLAIN_POLICY), (SINGLE, SINGLE_POLICY), (MULTI, MULTI_POLICY)],
};
/// Load at which latencies are compared, as in the simulation; the paper does not state one.
const COMPARED: f64 = 60.0;
const QUICK_LOADS: [f64; 1] = [COMPARED];
const ROUNDS: usize = 3;
/// Requests per second, half of them SCANs, at which hardly any meets another one.
const ALONE_RPS: f64 = 100.0;
/// p99 at which throughput is compared, in microseconds, as in the simulation.
const LIMIT_US: f64 = 50.0;
/// Part a: 88 % lower tail latency than ZygOS, 6.6 times its throughput.
const PAPERS_LOWER: f64 = 0.88;
const PAPERS_TIMES: f64 = 6.6;
/// "Favoured", "fixed" and "significantly", as in the simulation.
const FAVOURED: f64 = 10.0;
const FIXED: f64 = 10.0;
const SIGNIFICANTLY: f64 = 1.5;
/// Least number of worker cores with which one can steal from another.
const MIN_CORES: usize = 2;

/// Returns whether the service is there: the rest runs anywhere.
pub fn is_measured() -> bool {
    matches!(service(PLAIN_POLICY, HALF.mixture), Ok(Some(_)))
}

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let result = simulated::simulate(figure, context)?;
    let measured = match figure.is_measured() {
        true => measure(figure, context)?,
        false => Err(NEEDS.to_owned()),
    };
    let mut notes = vec![simulated::note(&result)];
    let mut claims = simulated::claims(&result.claims);
    for claim in &mut claims {
        claim.ours = format!("simulated: {}", claim.ours);
    }
    let mut panels = result.drawing.panels;
    let (data, summary) = match measured {
        Ok(measured) => {
            panels.extend(measured.panels());
            claims.extend(measured.claims());
            notes.extend(measured.notes());
            (result.data.joined(&measured.contest.data()), measured.contest.summary())
        }
        Err(why) => {
            note!("skipped: RocksDB: {why}");
            notes.push(format!("RocksDB itself is not measured: {why}."));
            (result.data, Table::default())
        }
    };
    Ok(Outcome { svg: draw(&result.drawing.title, &panels), data, summary, claims, notes })
}

/// What was measured.
struct Measured {
    contest: Contest,
    /// Median latencies of a GET and of a SCAN that are alone, in microseconds.
    rare_us: [f64; 2],
    half_us: [f64; 2],
    /// Worker cores.
    cores: usize,
}

/// Measures both mixtures, or returns why the service cannot be measured.
///
/// # Errors
/// On a signal, or if a measurement fails after the service has started once.
fn measure(figure: &Figure, context: &Context) -> anyhow::Result<Result<Measured, String>> {
    let loads = |part: &Part| context.choose(part.loads, &QUICK_LOADS);
    let points = [RARE, HALF].iter().map(|part| part.systems.len() * loads(part).len()).sum();
    let pace = context.pace(points, ROUNDS);
    let rare_us = match alone_us(context, &pace, RARE.mixture.scan_count) {
        Ok(us) => us,
        Err(error) if error.is::<Interrupted>() => return Err(error),
        Err(error) => return Ok(Err(format!("{error:#}"))),
    };
    let half_us = alone_us(context, &pace, HALF.mixture.scan_count)?;
    let cores = context.rig()?.testbed.cores.managed.len();
    let mut cases = RARE.cases(&pace, loads(&RARE), rare_us, cores)?;
    cases.extend(HALF.cases(&pace, loads(&HALF), half_us, cores)?);
    let contest = contest::run(figure, context, cases, &pace)?;
    Ok(Ok(Measured { contest, rare_us, half_us, cores }))
}

/// Returns the median latencies of a GET and of a SCAN of so many entries, each alone, in
/// microseconds.
fn alone_us(context: &Context, pace: &Pace, scan_count: u32) -> anyhow::Result<[f64; 2]> {
    let program = service(PLAIN_POLICY, Mixture { scan_share: 0.5, scan_count })?.context(NEEDS)?;
    let plan = pace.plan_at(Rate::new(ALONE_RPS)?, &ServiceTime::constant(0));
    let plan = Plan { first_class: true, ..plan };
    let (rig, seed) = (context.rig()?, context.options.seed);
    let measured = dedicated(&rig.testbed, &program, &plan, seed, &mut HandoffRecord::default())?;
    let Some([Some(get_ns), Some(scan_ns)]) = measured.measurement.by_class_ns(0.5) else {
        anyhow::bail!("the RocksDB service does not answer {ALONE_RPS} requests/s");
    };
    Ok([get_ns, scan_ns].map(|ns| ns as f64 / 1e3))
}

impl Part {
    /// Returns the cases of requests that take so long when they are alone.
    fn cases(
        &self,
        pace: &Pace,
        loads: &[f64],
        [get_us, scan_us]: [f64; 2],
        cores: usize,
    ) -> anyhow::Result<Vec<Case>> {
        let share = self.mixture.scan_share;
        let (get_ns, scan_ns) = (1e3 * get_us, 1e3 * scan_us);
        let alone: ServiceTime =
            format!("bimodal:{}*{get_ns:.0}ns+{share}*{scan_ns:.0}ns", 1.0 - share).parse()?;
        let mut systems = Vec::new();
        for &(curve, policy) in self.systems {
            systems.push((curve, System::Dedicated(service(policy, self.mixture)?.context(NEEDS)?)));
        }
        let mut all = Vec::new();
        for &load in loads {
            let plan = Plan { first_class: true, ..pace.plan(&alone, load, cores)? };
            all.extend(cases(self.panel, &systems, load, &plan));
        }
        Ok(all)
    }
}

impl Measured {
    fn panels(&self) -> Vec<Panel> {
        type Value = fn(&Point) -> Option<Spread>;
        let panel = |title: &str, part: &Part, value: Value| Panel {
            title: title.to_owned(),
            ..self.contest.panel_of(part.panel, "p99 (us)", value, Vec::new())
        };
        vec![
            panel("a, measured: all requests", &RARE, Point::p99_us),
            panel("b, measured: GETs", &HALF, Point::first_class_us),
            panel("c, measured: SCANs", &HALF, Point::other_classes_us),
        ]
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.contest.notes.clone();
        let [get, scan] = self.rare_us.map(number);
        let [_, long] = self.half_us.map(number);
        notes.push(format!(
            "RocksDB is measured over UDP, with the shared core(s) for itself, {} worker(s). Alone a GET takes {get} us, a SCAN of 1,000 {scan}, one of \
             5,000 {long} (the paper: 6, 240 and 1,200); loads are in percent of that work. In the data the first class is GETs.",
            self.cores
        ));
        if self.cores < MIN_CORES {
            notes.push(
                "With one worker stealing is a queue without preemption: nothing can be stolen.".to_owned(),
            );
        }
        notes
    }

    fn claims(&self) -> Vec<Claim> {
        vec![self.lower(), self.times(), self.favoured(), self.fixed(), self.improved(), self.worse()]
    }

    /// Returns a figure of a curve at the load of the comparison; infinite if it is saturated.
    fn at(&self, part: &Part, curve: &str, value: fn(&Point) -> Option<Spread>) -> Option<f64> {
        let point = self.contest.at(part.panel, curve, COMPARED)?;
        if point.saturated() { Some(f64::INFINITY) } else { Some(value(point)?.median) }
    }

    /// Judges two values at the load of the comparison, `own` first.
    fn compare(
        paper: &str,
        values: [Option<f64>; 2],
        ours: impl Fn(&str, &str) -> String,
        holds: impl Fn(f64, f64) -> bool,
    ) -> Claim {
        let [Some(own), Some(other)] = values else {
            return Claim::not_comparable(paper, "there is no point".to_owned());
        };
        let text = |us: f64| if us.is_finite() { number(us) } else { "saturated".to_owned() };
        let ours = format!("measured at {COMPARED} % load: {}", ours(&text(own), &text(other)));
        // Two systems that do not keep up have no latencies to compare.
        let is_open = own.is_infinite() && other.is_infinite();
        Claim::judged(paper, ours, (!is_open).then(|| holds(own, other)))
    }

    fn lower(&self) -> Claim {
        Self::compare(
            "a: tail latency 88 % lower than ZygOS's",
            [SINGLE, STEALING].map(|curve| self.at(&RARE, curve, Point::p99_us)),
            |own, other| format!("p99 {own} us, stealing {other} us"),
            |own, other| own <= (1.0 - PAPERS_LOWER) * other,
        )
    }

    /// Judges the throughput within the limit. A system that is within it at no load tried counts
    /// as having reached the least of them.
    fn times(&self) -> Claim {
        const PAPER: &str = "a: 6.6 times the throughput of ZygOS";
        let kept = |point: &Point| point.p99_us().is_some_and(|p99| p99.median <= LIMIT_US);
        let within = |curve| self.contest.highest(RARE.panel, curve, kept).map(|point| point.case.load);
        let tried = self.contest.curve(RARE.panel, SINGLE);
        let (Some(first), Some(last)) = (tried.first(), tried.last()) else {
            return Claim::not_comparable(PAPER, "there is no point".to_owned());
        };
        let (least, most) = (first.case.load, last.case.load);
        let text = |load: Option<f64>| load.map_or_else(|| format!("below {least}"), |load| load.to_string());
        let (own, other) = (within(SINGLE), within(STEALING));
        let ours = format!(
            "measured: highest load of those tried with a p99 of at most {LIMIT_US} us, %: {}, stealing {}",
            text(own),
            text(other)
        );
        let holds = own.is_some_and(|own| own >= PAPERS_TIMES * other.unwrap_or(least));
        // More than the highest load tried is unknown.
        Claim::judged(PAPER, ours, (own != Some(most) || holds).then_some(holds))
    }

    fn favoured(&self) -> Claim {
        let [get_us, scan_us] = self.half_us;
        let slowdowns = [
            self.at(&HALF, PLAIN, Point::first_class_us).map(|us| us / get_us),
            self.at(&HALF, PLAIN, Point::other_classes_us).map(|us| us / scan_us),
        ];
        Self::compare(
            "b, c: without preemption SCANs are favoured over GETs",
            slowdowns,
            |gets, scans| format!("p99 over the time alone: GETs {gets}, SCANs {scans}"),
            |gets, scans| gets > FAVOURED * scans,
        )
    }

    fn fixed(&self) -> Claim {
        Self::compare(
            "b: preemption fixes this with a single queue",
            [SINGLE, PLAIN].map(|curve| self.at(&HALF, curve, Point::first_class_us)),
            |own, plain| format!("p99 of GETs {own} us, without preemption {plain} us"),
            |own, plain| own < plain / FIXED,
        )
    }

    fn improved(&self) -> Claim {
        Self::compare(
            "c: a queue for each type improves SCANs",
            [MULTI, SINGLE].map(|curve| self.at(&HALF, curve, Point::other_classes_us)),
            |multi, single| format!("p99 of SCANs {multi} us, with a single queue {single} us"),
            |multi, single| multi < single,
        )
    }

    fn worse(&self) -> Claim {
        const PAPER: &str = "b, c: ZygOS is significantly worse than even one queue without preemption";
        let claim = Self::compare(
            PAPER,
            [STEALING, PLAIN].map(|curve| self.at(&HALF, curve, Point::first_class_us)),
            |stealing, plain| format!("p99 of GETs {stealing} us, one queue without preemption {plain} us"),
            |stealing, plain| stealing > SIGNIFICANTLY * plain,
        );
        match self.cores < MIN_CORES {
            true => Claim::not_comparable(PAPER, format!("{}; one worker cannot steal", claim.ours)),
            false => claim,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{self, NotComparable, NotReached, Reached};
    use super::super::super::contest::tests::{contest, point};
    use super::*;

    /// A mixture, a curve, a load, p99 of all requests, of GETs and of SCANs.
    type Row = (&'static str, &'static str, f64, f64, [f64; 2]);

    const GOOD: [Row; 8] = [
        (RARE.panel, STEALING, 5.0, 200.0, [1.0; 2]),
        (RARE.panel, SINGLE, 5.0, 20.0, [1.0; 2]),
        (RARE.panel, STEALING, COMPARED, 400.0, [1.0; 2]),
        (RARE.panel, SINGLE, COMPARED, 40.0, [1.0; 2]),
        (HALF.panel, STEALING, COMPARED, 1.0, [8_000.0, 5_000.0]),
        (HALF.panel, PLAIN, COMPARED, 1.0, [4_000.0, 5_000.0]),
        (HALF.panel, SINGLE, COMPARED, 1.0, [60.0, 8_000.0]),
        (HALF.panel, MULTI, COMPARED, 1.0, [60.0, 7_000.0]),
    ];

    fn measured(rows: &[Row], cores: usize) -> Measured {
        let make = |&(panel, curve, load, p99_us, by_class_us): &Row| {
            // The p99 is half of the tail.
            let mut point = point(curve, load, &[2.0 * p99_us], 0.0, false).on(panel);
            point.case.plan.service = "const:1ms".parse().unwrap();
            point.samples[0].by_class_us = Some(by_class_us);
            point
        };
        let (rare_us, half_us) = ([4.0, 200.0], [4.0, 1_000.0]);
        Measured { contest: contest(rows.iter().map(make).collect()), rare_us, half_us, cores }
    }

    fn verdicts(rows: &[Row], cores: usize) -> Vec<Verdict> {
        measured(rows, cores).claims().iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn each_claim_follows_the_numbers() {
        assert_eq!(verdicts(&GOOD, 2), [Reached; 6]);
        let mut poor = GOOD;
        // Beyond the limit at both loads, though the other one is as well.
        (poor[1].3, poor[3].3) = (60.0, 60.0);
        (poor[4].4[0], poor[5].4, poor[6].4) = (5_000.0, [400.0, 40_000.0], [390.0, 6_000.0]);
        assert_eq!(verdicts(&poor, 2)[..5], [NotReached; 5]);
        assert_eq!(verdicts(&poor, 2)[5], Reached, "12.5 times");
        poor[4].4[0] = 590.0;
        assert_eq!(verdicts(&poor, 2)[5], NotReached);
        assert_eq!(verdicts(&GOOD, 1)[5], NotComparable, "one worker cannot steal");
        assert_eq!(verdicts(&[], 2), [NotComparable; 6]);
    }

    #[test]
    fn loads_beyond_those_tried_and_systems_that_do_not_keep_up_decide_nothing() {
        let mut even = GOOD;
        (even[0].3, even[2].3) = (30.0, 45.0);
        assert_eq!(verdicts(&even, 2)[1], NotComparable, "both may carry more");
        let mut measured = measured(&GOOD, 2);
        for point in &mut measured.contest.points {
            point.samples[0].figures.lost = 50;
        }
        let verdicts: Vec<_> = measured.claims().iter().map(|claim| claim.verdict).collect();
        assert_eq!(
            verdicts,
            [NotComparable, NotReached, NotComparable, NotComparable, NotComparable, NotComparable]
        );
    }

    #[test]
    fn each_part_is_drawn_with_its_own_latencies() {
        let panels = measured(&GOOD, 1).panels();
        let last = |panel: &Panel, line: usize| panel.lines[line].points.last().copied();
        assert_eq!(panels.len(), 3);
        assert_eq!(last(&panels[0], 1), Some((COMPARED, 40.0)));
        assert!(panels[1].lines.iter().any(|line| line.points == [(COMPARED, 4_000.0)]), "{panels:?}");
        assert!(panels[2].lines.iter().any(|line| line.points == [(COMPARED, 7_000.0)]), "{panels:?}");
    }
}
