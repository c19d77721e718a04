//! `tailwater demo`: a service and a batch job share cores, on Tailwater and on Linux, in one run.
//!
//! Owns the order of the run: checks, noise, calibration, then both systems in turn at each load,
//! so that a change of the machine's speed affects both. Prints the table meanwhile, writes file
//! and plot, and prints the verdict, also if a file could not be written. [`tailwater_testbed`]
//! measures the points.
//!
//! | module | owns |
//! |---|---|
//! | [`course`] | options, cores, durations: everything fixed before the first measurement |
//! | [`outcome`] | the results as data, as table rows and as `demo.json` |
//! | [`verdict`], [`plot`] | the results in words and as a picture |
//! | [`progress`] | the line that shows the current step |

use std::io::Write;
use std::sync::Arc;

use anyhow::Context;
use tailwater_loadgen::ideal::{self, Cores};
use tailwater_loadgen::stalls::MachineStalls;

use crate::output;
use tailwater_testbed::exit::EndsWith2;
use tailwater_testbed::handoffs::HandoffRecord;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::{Machine, commit};
use tailwater_testbed::on_linux::Wait;
use tailwater_testbed::progress::Progress;
use tailwater_testbed::requirements;
use tailwater_testbed::wait::{self, WaitChoice};
use tailwater_testbed::{Measured, Testbed, on_linux, on_tailwater};

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
/// [`requirements::Unsupported`], [`tailwater_testbed::interrupt::Interrupted`], or the failure of
/// a process or a file.
pub fn run(args: &DemoArgs) -> anyhow::Result<()> {
    requirements::check()?;
    let interrupt = Interrupt::catch()?;
    let machine = Machine::describe();
    let course = Course::new(args, machine.usable_cores.clone()).map_err(EndsWith2::wrap)?;
    output::check([&*args.json, &*args.svg])?;
    print(&format!("{machine}\n{}\n", course.describe()))?;
    let testbed = Testbed {
        cores: course.cores.clone(),
        interrupt: Arc::new(interrupt),
        solo: course.solo,
        job: course.job.clone(),
    };
    let demo = Demo { course, testbed };
    let outcome = demo.measure(args, machine)?;
    // Neither does a file that cannot be written cost the verdict, nor a closed output the files.
    let written = output::write(&args.json, |out| Ok(out.write_all(outcome.to_json()?.as_bytes())?))
        .and_then(|()| output::write(&args.svg, |out| Ok(out.write_all(plot::draw(&outcome).as_bytes())?)));
    print(&format!("\n{}", outcome::describe_work(&outcome.points)))?;
    print(&format!("\n{}", outcome::describe_account(&outcome.points)))?;
    print(&format!("\n{}", outcome.verdict.join("\n")))?;
    written?;
    Ok(print(&format!("\nnumbers in {}, plot in {}", args.json.display(), args.svg.display()))?)
}

fn print(line: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{line}")
}

/// What every step of the run needs.
struct Demo {
    course: Course,
    testbed: Testbed,
}

impl Demo {
    fn measure(&self, args: &DemoArgs, machine: Machine) -> anyhow::Result<Outcome> {
        let steps = Progress::new("", 3 + 2 * self.course.loads.len() as u64);
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
            steps.begin(&format!("Tailwater at {} %", self.course.loads[index]));
            let measured = on_tailwater::point(
                &self.testbed,
                speed,
                &self.course.plan(index)?,
                self.course.seed(index),
                on_tailwater::Setting {
                    guaranteed: self.course.guaranteed,
                    traced: true,
                    neighbour_share: self.course.neighbour_share(),
                    ..Default::default()
                },
                &mut handoffs,
            )?;
            let tailwater = self.point(System::Tailwater, index, &measured)?;
            steps.begin(&format!("Linux at {} %", self.course.loads[index]));
            // Of a load past saturation only the saturation is shown.
            let plan = if linux_saturated { self.course.short_plan(index) } else { self.course.plan(index) };
            let setting = on_linux::Setting::threads(wait.mode());
            let measured = on_linux::point(&self.testbed, speed, &plan?, self.course.seed(index), setting)?;
            let linux = self.point(System::Linux, index, &measured)?;
            linux_saturated |= linux.saturated;
            let ideal = self.ideal(index, &stalls, outcome::fastest_work([&tailwater, &linux]))?;
            steps.print(&ideal.table_rows())?;
            for point in [tailwater, linux] {
                steps.print(&point.table_row())?;
                points.push(point);
            }
            ideals.push(ideal);
        }
        let solo = Solo::of(&points);
        steps.print(&solo.describe())?;
        drop(steps);
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

    /// Measures the machine's noise before any other process of the demo runs.
    fn probe_noise(&self) -> anyhow::Result<(Vec<Noise>, MachineStalls)> {
        let probes = self.testbed.probe_noise(self.course.noise)?;
        let noise = probes.iter().map(|(core, probe)| Noise { core: *core, gaps: probe.gaps.figures() });
        let mut stalls = probes.iter().map(|(_, probe)| probe.stalls.clone());
        let polling = stalls.next().unwrap_or_default();
        Ok((noise.collect(), MachineStalls { polling, working: stalls.collect() }))
    }

    /// Chooses blocking or polling sockets for the Linux server.
    fn choose_wait(&self, asked: LinuxWait, speed: u64, steps: &Progress) -> anyhow::Result<WaitChoice> {
        match asked {
            LinuxWait::Block => return Ok(WaitChoice::given(Wait::Block)),
            LinuxWait::Busy => return Ok(WaitChoice::given(Wait::Busy)),
            LinuxWait::Auto => {}
        }
        let (load, plan) = self.course.trial()?;
        wait::choose(&self.testbed, speed, load, &plan, self.course.seed(0), |what| steps.begin(what))
    }

    /// Runs the queue without overhead, on cores that never stall and on cores with this machine's
    /// stalls; work takes `stretch` times as long as asked for.
    fn ideal(&self, index: usize, stalls: &MachineStalls, stretch: f64) -> anyhow::Result<IdealPoint> {
        let plan = self.course.plan(index)?;
        let cores = Cores { stretch, ..Cores::new(self.course.cores.managed.len()) };
        let seed = self.course.seed(index);
        let ideal = ideal::run(&plan, seed, &cores)?;
        let stalled = ideal::run(&plan, seed, &Cores { stalls: stalls.clone(), ..cores })?;
        IdealPoint::new(self.course.loads[index], &ideal, &stalled)
    }

    fn point(&self, system: System, index: usize, measured: &Measured) -> anyhow::Result<Point> {
        let batch = measured.batch.context("a point of the demo has a batch job")?;
        let Course { loads, service, .. } = &self.course;
        let point = Point::new(system, loads[index], service, &measured.measurement, batch);
        Ok(point.with_account(service, measured.account.clone(), batch.speed))
    }
}
