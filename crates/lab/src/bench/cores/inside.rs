//! A batch job in background threads of the service's own program, beside the same job in a program
//! of its own.
//!
//! Owns the plan and the figures. The two and the service alone take turns within each round, with
//! the same requests, so that a machine whose speed changes treats all alike; each figure is the
//! median over the rounds. The service alone takes longer than a queue without overheads by the
//! price of the packet path, and the two take longer than the service alone by that of the batch
//! job. A hand-over of a core costs a switch between user threads in the one, and one between
//! processes in the other.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tailwater_loadgen::Measurement;
use tailwater_loadgen::ideal::{self, Cores};
use tailwater_testbed::bed::Testbed;
use tailwater_testbed::handoffs::HandoffRecord;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::on_tailwater::{Setting, point};
use tailwater_testbed::table::{Table, number};
use tailwater_testbed::{BatchRates, Measured};

use super::ramp::{CORE_RPS, SERVICE, SOLO};
use crate::bench::{median, spin};

/// Part of the cores' capacity that requests take.
const LOAD: f64 = 0.5;
const WARM_UP: Duration = Duration::from_millis(200);
const LENGTH: Duration = Duration::from_millis(1_200);

/// The figures of both ways, of the service alone, and of a queue without overheads.
#[derive(Debug, Serialize)]
pub struct Figures {
    two_programs: Way,
    one_program: Way,
    /// Of the service without a batch job: the ideal with the overheads of the packet path.
    alone_p50_us: f64,
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
pub fn measure(machine: &Machine, interrupt: Arc<Interrupt>, rounds: u16) -> anyhow::Result<Figures> {
    let testbed = Testbed::new(machine.usable_cores.clone(), interrupt, SOLO)?;
    let speed = testbed.calibrate()?;
    let cores = testbed.cores.managed.len();
    let plan = spin::plan(SERVICE, LOAD * CORE_RPS * cores as f64, WARM_UP, LENGTH)?;
    let (mut two, mut one, mut alone, mut ideals) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let two_programs = Setting::default();
    let one_program = Setting { inside: true, ..two_programs };
    let service_alone = Setting { batch: false, ..two_programs };
    for seed in 0..u64::from(rounds) {
        for (setting, points) in
            [(two_programs, &mut two), (one_program, &mut one), (service_alone, &mut alone)]
        {
            points.push(point(&testbed, speed, &plan, seed, setting, &mut HandoffRecord::default())?);
        }
        let ratios = [&two, &one, &alone]
            .into_iter()
            .filter_map(|points| points.last()?.measurement.delivery.figures());
        let stretch = ratios.map(|figures| figures.median).reduce(f64::min).unwrap_or(1.0);
        ideals.push(ideal::run(&plan, seed, &Cores { stretch, ..Cores::new(cores) })?);
    }
    let p50_us = |measurement: &Measurement| measurement.summary.figures().p50_us;
    Ok(Figures {
        two_programs: Way::new(&two),
        one_program: Way::new(&one),
        alone_p50_us: median(alone.iter().filter_map(|point| p50_us(&point.measurement))),
        ideal_p50_us: median(ideals.iter().filter_map(|ideal| p50_us(&ideal.measurement))),
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
    let mut table = Table::new(
        "batch job | batch share | p50, us | above the ideal | above the service alone | \
         p99, us | answered, %",
    );
    let ways = [("a program of its own", &figures.two_programs), ("in the background", &figures.one_program)];
    for (name, way) in ways {
        let [above_ideal, above_alone] =
            [figures.ideal_p50_us, figures.alone_p50_us].map(|least| way.p50_us - least);
        let cells = [way.batch_share, way.p50_us, above_ideal, above_alone, way.p99_us, 100.0 * way.answered]
            .map(number);
        table.row([name.to_owned()].into_iter().chain(cells));
    }
    let [share, ideal, alone] = [figures.ideal_share, figures.ideal_p50_us, figures.alone_p50_us].map(number);
    format!(
        "{table}\na queue without overheads leaves {share} and has a median of {ideal} us, the service alone one of {alone} us\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_is_compared_with_the_ideal_and_with_the_service_alone() {
        let way = |p50_us| Way { batch_share: 0.4, p50_us, p99_us: 90.0, answered: 1.0 };
        let figures = Figures {
            two_programs: way(19.0),
            one_program: way(16.5),
            alone_p50_us: 16.0,
            ideal_p50_us: 14.0,
            ideal_share: 0.5,
        };
        let text = describe(&figures);
        let row = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_owned();
        assert!(row("of its own").contains("5.00") && row("of its own").contains("3.00"), "{text}");
        assert!(row("in the background").contains("2.50"), "{text}");
        assert!(row("in the background").contains("0.50"), "{text}");
        assert!(text.contains("14.0 us") && text.contains("16.0 us"), "{text}");
        assert_eq!(serde_json::to_value(figures).unwrap()["alone_p50_us"], 16.0);
    }
}
