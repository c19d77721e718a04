//! A batch job in background threads of the service's own program, beside the same job in a program
//! of its own.
//!
//! Owns the plan and the figures. The two take turns within each round, with the same requests, so
//! that a machine whose speed changes treats both alike; each figure is the median over the rounds.
//! A hand-over of a core costs a switch between user threads in the one, and one between processes
//! in the other.

use std::sync::Arc;

use serde::Serialize;
use tailwater_loadgen::Plan;
use tailwater_loadgen::ideal::{self, Cores};
use tailwater_testbed::bed::Testbed;
use tailwater_testbed::cores::CorePlan;
use tailwater_testbed::handoffs::HandoffRecord;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::on_tailwater::{Setting, point};
use tailwater_testbed::table::{Table, number};
use tailwater_testbed::{BatchRates, Measured};
use tailwater_workload::{LoadSchedule, Rate};

use super::ramp::{CORE_RPS, SERVICE, SOLO};
use crate::bench::median;

/// Part of the cores' capacity that requests take.
const LOAD: f64 = 0.5;
const WARM_UP_NS: u64 = 200_000_000;
const LENGTH_NS: u64 = 1_200_000_000;
const FLOWS: u16 = 64;

/// The figures of both ways, and of a queue without overheads.
#[derive(Debug, Serialize)]
pub struct Figures {
    two_programs: Way,
    one_program: Way,
    ideal_p50_us: f64,
    ideal_share: f64,
}

#[derive(Debug, Serialize)]
struct Way {
    /// The batch job's rate over its rate alone.
    batch_share: f64,
    p50_us: f64,
    p99_us: f64,
    /// Part of the requests that were answered.
    answered: f64,
}

/// Measures so many rounds.
///
/// # Errors
/// If a process does not start or ends, or on a signal.
pub fn measure(machine: &Machine, interrupt: Arc<Interrupt>, rounds: u16) -> anyhow::Result<Figures> {
    let testbed = Testbed { cores: CorePlan::new(machine.usable_cores.clone())?, interrupt, solo: SOLO };
    let speed = testbed.calibrate()?;
    let cores = testbed.cores.managed.len();
    let rate = Rate::new(LOAD * CORE_RPS * cores as f64)?;
    let schedule = LoadSchedule::constant(rate, WARM_UP_NS + LENGTH_NS);
    let plan = Plan { warm_up_ns: WARM_UP_NS, flows: FLOWS, ..Plan::new(schedule, SERVICE.parse()?) };
    let (mut two, mut one, mut ideals) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 0..u64::from(rounds) {
        for (inside, points) in [(false, &mut two), (true, &mut one)] {
            let setting = Setting { inside, ..Setting::default() };
            points.push(point(&testbed, speed, &plan, seed, setting, &mut HandoffRecord::default())?);
        }
        let ratios =
            [&two, &one].into_iter().filter_map(|points| points.last()?.measurement.delivery.figures());
        let stretch = ratios.map(|figures| figures.median).reduce(f64::min).unwrap_or(1.0);
        ideals.push(ideal::run(&plan, seed, &Cores { stretch, ..Cores::new(cores) })?);
    }
    let p50_us = |ideal: &ideal::Ideal| ideal.measurement.summary.figures().p50_us;
    Ok(Figures {
        two_programs: Way::new(&two),
        one_program: Way::new(&one),
        ideal_p50_us: median(ideals.iter().filter_map(p50_us)),
        ideal_share: median(ideals.iter().map(|ideal| ideal.idle_share)),
    })
}

impl Way {
    fn new(points: &[Measured]) -> Self {
        let figures = || points.iter().map(|point| point.measurement.summary.figures());
        Self {
            batch_share: median(points.iter().filter_map(|point| point.batch.map(BatchRates::share))),
            p50_us: median(figures().filter_map(|figures| figures.p50_us)),
            p99_us: median(figures().filter_map(|figures| figures.p99_us)),
            answered: median(figures().map(|f| f.completed as f64 / (f.completed + f.lost).max(1) as f64)),
        }
    }
}

/// Returns the figures as a table.
pub fn describe(figures: &Figures) -> String {
    let mut table =
        Table::new(["batch job", "batch share", "p50, us", "above the ideal", "p99, us", "answered, %"]);
    let ways = [("a program of its own", &figures.two_programs), ("in the background", &figures.one_program)];
    for (name, way) in ways {
        let above = way.p50_us - figures.ideal_p50_us;
        let cells = [way.batch_share, way.p50_us, above, way.p99_us, 100.0 * way.answered].map(number);
        table.row([name.to_owned()].into_iter().chain(cells));
    }
    let (share, p50) = (number(figures.ideal_share), number(figures.ideal_p50_us));
    format!("{table}\na queue without overheads leaves {share} and has a median of {p50} us\n")
}
