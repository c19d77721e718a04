//! `tailwater demo`: a service and a batch job share cores, on Tailwater and on Linux, in one run.
//!
//! Owns the course of the run: checks, noise, calibration, then load by load both systems
//! in turn, so that a change of the machine's mood meets both; the table as it goes; verdict, file and plot.
//!
//! | module | owns |
//! |---|---|
//! | [`course`] | options, cores, durations: everything fixed before the first measurement |
//! | [`outcome`] | what was found, as data and as `demo.json` |
//! | [`verdict`], [`plot`] | what it means, in words and as a picture |
//!
//! How a point is measured is the [`testbed`](crate::testbed)'s.

use std::io::Write;
use std::sync::Arc;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use tailwater_loadgen::ideal;
use tailwater_loadgen::stalls::MachineStalls;

use crate::doctor;
use crate::interrupt::Interrupt;
use crate::machine::{Machine, commit};
use crate::testbed::handoffs::HandoffRecord;
use crate::testbed::wait::{self, Wait, WaitChoice};
use crate::testbed::{Measured, Testbed, on_linux, on_tailwater};

mod course;
mod outcome;
mod plot;
mod verdict;

pub use course::DemoArgs;
use course::{Course, LinuxWait};
use outcome::{IdealPoint, Noise, Outcome, Point, Solo, System};

/// Runs the demo.
///
/// # Errors
/// [`doctor::Unsupported`], [`crate::interrupt::Interrupted`], or what went wrong with a process or a file.
pub fn run(args: &DemoArgs) -> anyhow::Result<()> {
    doctor::check()?;
    let interrupt = Interrupt::catch()?;
    let machine = Machine::describe();
    let course = Course::new(args, machine.usable_cores.clone())?;
    print(&format!("{machine}\n{}\n", course.describe()))?;
    let testbed = Testbed { cores: course.cores.clone(), interrupt: Arc::new(interrupt), solo: course.solo };
    let demo = Demo { course, testbed };
    let outcome = demo.measure(args, machine)?;
    print(&format!("\n{}", outcome.verdict.join("\n")))?;
    write(&args.json, &outcome.to_json()?)?;
    write(&args.svg, &plot::draw(&outcome))?;
    print(&format!("\nnumbers in {}, plot in {}", args.json.display(), args.svg.display()))
}

/// Prints a line; whoever read it may be gone (`tailwater demo | head`), which is an error like any other.
fn print(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{line}").context("cannot print")
}

fn write(path: &std::path::Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// What every step of the run needs.
struct Demo {
    course: Course,
    testbed: Testbed,
}

impl Demo {
    fn measure(&self, args: &DemoArgs, machine: Machine) -> anyhow::Result<Outcome> {
        let steps = Steps::new(3 + 2 * self.course.loads.len() as u64);
        steps.begin("noise of the machine");
        let (noise, stalls) = self.probe_noise()?;
        steps.print(&format!("noise: {}", outcome::describe_noise(&noise)))?;
        let speed = self.testbed.calibrate()?;
        let wait = self.choose_wait(args.linux_wait, speed, &steps)?;
        steps.print(&format!("Linux service: {}", wait.why))?;
        steps.print(&outcome::table_head())?;
        let mut points = Vec::new();
        let mut ideals = Vec::new();
        let mut handoffs = HandoffRecord::default();
        let mut linux_saturated = false;
        for index in 0..self.course.loads.len() {
            let ideal = self.ideal(index, &stalls)?;
            steps.print(&ideal.table_rows())?;
            steps.begin(&format!("Tailwater at {} %", self.course.loads[index]));
            let measured = on_tailwater::point(
                &self.testbed,
                speed,
                &self.course.plan(index)?,
                self.course.seed(index),
                on_tailwater::Setting { guaranteed: self.course.guaranteed, ..Default::default() },
                &mut handoffs,
            )?;
            let point = self.point(System::Tailwater, index, &measured)?;
            steps.print(&point.table_row())?;
            points.push(point);
            steps.begin(&format!("Linux at {} %", self.course.loads[index]));
            // Past saturation there is nothing to learn but that it is past saturation.
            let plan = if linux_saturated { self.course.short_plan(index) } else { self.course.plan(index) };
            let setting = on_linux::Setting::threads(wait.mode());
            let measured = on_linux::point(&self.testbed, speed, &plan?, self.course.seed(index), setting)?;
            let point = self.point(System::Linux, index, &measured)?;
            linux_saturated |= point.saturated;
            steps.print(&point.table_row())?;
            points.push(point);
            ideals.push(ideal);
        }
        let solo = Solo::of(&points);
        steps.print(&solo.describe())?;
        steps.end();
        let mut outcome = Outcome {
            machine,
            commit: commit(),
            options: self.course.options(),
            noise,
            speed,
            solo,
            linux_wait: wait,
            points,
            ideal: ideals,
            handoff_us: handoffs.figures(),
            verdict: Vec::new(),
        };
        outcome.verdict = verdict::verdict(&outcome);
        Ok(outcome)
    }

    /// The machine's noise before anything of the demo runs.
    fn probe_noise(&self) -> anyhow::Result<(Vec<Noise>, MachineStalls)> {
        let probes = self.testbed.probe_noise(self.course.noise)?;
        let noise = probes.iter().map(|(core, probe)| Noise { core: *core, gaps: probe.gaps.figures() });
        let mut stalls = probes.iter().map(|(_, probe)| probe.stalls.clone());
        let polling = stalls.next().unwrap_or_default();
        Ok((noise.collect(), MachineStalls { polling, working: stalls.collect() }))
    }

    /// Blocking or polling sockets for the baseline, whichever serves it better.
    fn choose_wait(&self, asked: LinuxWait, speed: u64, steps: &Steps) -> anyhow::Result<WaitChoice> {
        match asked {
            LinuxWait::Block => return Ok(WaitChoice::told(Wait::Block)),
            LinuxWait::Busy => return Ok(WaitChoice::told(Wait::Busy)),
            LinuxWait::Auto => {}
        }
        let (load, plan) = self.course.trial()?;
        wait::choose(&self.testbed, speed, load, &plan, self.course.seed(0), |what| steps.begin(what))
    }

    /// The queue without overhead, on cores that never stall and on this machine's.
    fn ideal(&self, index: usize, stalls: &MachineStalls) -> anyhow::Result<IdealPoint> {
        let plan = self.course.plan(index)?;
        let (seed, cores) = (self.course.seed(index), self.course.cores.managed.len());
        let ideal = ideal::run(&plan, seed, cores)?;
        let stalled = ideal::run_with_stalls(&plan, seed, cores, stalls)?;
        IdealPoint::new(self.course.loads[index], &ideal, &stalled)
    }

    fn point(&self, system: System, index: usize, measured: &Measured) -> anyhow::Result<Point> {
        let batch = measured.batch.context("a point of the demo has a batch job")?;
        let Course { loads, service, .. } = &self.course;
        Ok(Point::new(system, loads[index], service, &measured.measurement, batch))
    }
}

/// Progress for a person: a bar under the growing table on a terminal, plain lines elsewhere.
struct Steps {
    bar: ProgressBar,
}

impl Steps {
    fn new(count: u64) -> Self {
        // Hidden by itself when standard error is no terminal.
        let bar = ProgressBar::new(count);
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar }
    }

    /// Starts the next step. Draws once: a bar that moved during a measurement would disturb it.
    fn begin(&self, what: &str) {
        self.bar.inc(1);
        self.bar.set_message(what.to_owned());
    }

    fn print(&self, line: &str) -> anyhow::Result<()> {
        self.bar.suspend(|| print(line))
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.end();
    }
}
