//! `tailwater demo`: a service and a batch job share cores, on Tailwater and on Linux, in one run.
//!
//! Owns the course of the run: checks, noise, calibration, then load by load both systems
//! in turn, so that a change of the machine's mood meets both; the table as it goes; verdict, file and plot.
//!
//! | module | owns |
//! |---|---|
//! | [`course`] | options, cores, durations: everything fixed before the first measurement |
//! | [`child`] | service and batch processes, and that none outlives the demo |
//! | [`on_tailwater`], [`on_linux`] | one system each: start, measure, end |
//! | [`outcome`] | what was found, as data and as `demo.json` |
//! | [`verdict`], [`plot`] | what it means, in words and as a picture |
//!
//! Both systems get the same requests (plan and seed), the same calibration of work, the same cores, and start anew for
//! every point. During the counted part of a point nothing of the demo runs but the generator: everybody else waits in the
//! kernel for its end.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use tailwater_loadgen::clock::Clock;
use tailwater_loadgen::noise::{Probe, probe};
use tailwater_loadgen::pin::PinnedThread;
use tailwater_loadgen::stalls::MachineStalls;
use tailwater_loadgen::{Measurement, ideal};
use tailwater_spin::Spinner;

use crate::interrupt::Interrupt;
use crate::machine::{Machine, commit};
use crate::{doctor, machine};

pub mod child;
mod course;
mod on_linux;
mod on_tailwater;
mod outcome;
mod plot;
mod verdict;

pub use course::DemoArgs;
use course::{Course, LinuxWait};
use on_linux::Wait;
use outcome::{HandoffRecord, IdealPoint, Noise, Outcome, Point, Solo, System, WaitChoice, WaitTrial};

/// One measured point of either system, before it becomes figures.
#[derive(Debug)]
struct Measured {
    measurement: Measurement,
    /// Trials per second of the batch job over the counted time.
    batch_rate: f64,
    /// The same with nothing beside it, before or after.
    solo_rate: f64,
}

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
    let demo = Demo { course, interrupt };
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
    interrupt: Interrupt,
}

impl Demo {
    fn measure(&self, args: &DemoArgs, machine: Machine) -> anyhow::Result<Outcome> {
        let steps = Steps::new(3 + 2 * self.course.loads.len() as u64);
        steps.begin("noise of the machine");
        let (noise, stalls) = self.probe_noise()?;
        steps.print(&format!("noise: {}", outcome::describe_noise(&noise)))?;
        let speed = self.calibrate()?;
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
                self,
                speed,
                &self.course.plan(index)?,
                self.course.seed(index),
                &mut handoffs,
            )?;
            let point = self.point(System::Tailwater, index, &measured);
            steps.print(&point.table_row())?;
            points.push(point);
            steps.begin(&format!("Linux at {} %", self.course.loads[index]));
            // Past saturation there is nothing to learn but that it is past saturation.
            let plan = if linux_saturated { self.course.short_plan(index) } else { self.course.plan(index) };
            let measured = on_linux::point(self, speed, &plan?, self.course.seed(index), wait.mode())?;
            let point = self.point(System::Linux, index, &measured);
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

    /// Gaps of all cores at the same time, with nothing else of ours running.
    fn probe_noise(&self) -> anyhow::Result<(Vec<Noise>, MachineStalls)> {
        let clock = Clock::start();
        let duration = self.course.noise;
        let probe_on = |core: usize| -> anyhow::Result<Probe> {
            let _pinned = PinnedThread::new(core)?;
            Ok(probe(&clock, duration))
        };
        let managed = self.course.cores.managed.iter().copied();
        let cores: Vec<usize> = [self.course.cores.polling].into_iter().chain(managed).collect();
        let probes = std::thread::scope(|scope| {
            let threads: Vec<_> = cores.iter().map(|&core| scope.spawn(move || probe_on(core))).collect();
            let joined = threads.into_iter().map(|thread| thread.join().expect("probing does not panic"));
            joined.collect::<anyhow::Result<Vec<_>>>()
        })?;
        self.interrupt.check()?;
        let noise =
            cores.iter().zip(&probes).map(|(&core, probe)| Noise { core, gaps: probe.gaps.figures() });
        let mut stalls = probes.iter().map(|probe| probe.stalls.clone());
        let polling = stalls.next().unwrap_or_default();
        Ok((noise.collect(), MachineStalls { polling, working: stalls.collect() }))
    }

    /// The speed of work on a managed core, for all servers of this run.
    fn calibrate(&self) -> anyhow::Result<u64> {
        let _pinned = PinnedThread::new(self.course.cores.managed[0])?;
        // The fastest of three, for a stall may last as long as one of them.
        let speeds = (0..3).map(|_| Spinner::calibrate().iterations_per_ms());
        Ok(speeds.max().unwrap_or(1))
    }

    /// Blocking or polling sockets for the baseline, whichever serves it better.
    fn choose_wait(&self, asked: LinuxWait, speed: u64, steps: &Steps) -> anyhow::Result<WaitChoice> {
        match asked {
            LinuxWait::Block => return Ok(WaitChoice::told(Wait::Block)),
            LinuxWait::Busy => return Ok(WaitChoice::told(Wait::Busy)),
            LinuxWait::Auto => {}
        }
        let (load, plan) = self.course.trial()?;
        let trial = |wait: Wait, name: &str| -> anyhow::Result<WaitTrial> {
            steps.begin(name);
            let measured = on_linux::point(self, speed, &plan, self.course.seed(0), wait)?;
            Ok(WaitTrial::new(&measured))
        };
        let block = trial(Wait::Block, "Linux, blocking sockets")?;
        let busy = trial(Wait::Busy, "Linux, polling sockets")?;
        Ok(WaitChoice::between(load, block, busy))
    }

    /// The queue without overhead, on cores that never stall and on this machine's.
    fn ideal(&self, index: usize, stalls: &MachineStalls) -> anyhow::Result<IdealPoint> {
        let plan = self.course.plan(index)?;
        let (seed, cores) = (self.course.seed(index), self.course.cores.managed.len());
        let ideal = ideal::run(&plan, seed, cores)?;
        let stalled = ideal::run_with_stalls(&plan, seed, cores, stalls)?;
        IdealPoint::new(self.course.loads[index], &ideal, &stalled)
    }

    fn point(&self, system: System, index: usize, measured: &Measured) -> Point {
        Point::new(system, self.course.loads[index], &self.course.service, measured)
    }

    /// Measures a batch job that has its cores to itself: the median of several stretches, so that a stall in one of them
    /// does not make every share that is compared with this rate too large. Goes on while other programs let it do nothing.
    ///
    /// Done right before and after each point, with the same process, and the larger counts: a host may run its cores at
    /// 660,000 trials a second now and at 920,000 some seconds later, and a share of the slower one could exceed 1.
    fn solo_rate(&self, batch: &mut child::Batch) -> anyhow::Result<f64> {
        let stretch = self.course.solo / SOLO_STRETCHES;
        let give_up = Instant::now() + START_TIMEOUT;
        let mut rates = Vec::new();
        while rates.len() < SOLO_STRETCHES as usize {
            let from = Instant::now();
            let rate = self.batch_rate(batch, from, from + stretch)?;
            if rate > 0.0 {
                rates.push(rate);
            }
            anyhow::ensure!(
                Instant::now() < give_up,
                "the batch job gets no core even alone: the machine is overloaded"
            );
        }
        rates.sort_by(f64::total_cmp);
        Ok(rates[rates.len() / 2])
    }

    /// Measures a system's batch job between two points in time, during which this thread sleeps.
    fn batch_rate(&self, batch: &mut child::Batch, from: Instant, to: Instant) -> anyhow::Result<f64> {
        self.interrupt.sleep_until(from)?;
        let first = batch.progress(&self.interrupt)?;
        self.interrupt.sleep_until(to)?;
        let last = batch.progress(&self.interrupt)?;
        Ok(last.rate_since(first))
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

/// Stretches in which the batch job alone is measured.
const SOLO_STRETCHES: u32 = 3;

/// How long a started process may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Keeps the calling thread, and the processes it starts, off the cores under measurement while it lives.
fn stay_off_managed_cores(course: &Course) -> anyhow::Result<OffManaged> {
    let before = machine::usable_cores();
    let elsewhere: Vec<usize> =
        before.iter().copied().filter(|core| !course.cores.managed.contains(core)).collect();
    rustix::thread::sched_setaffinity(None, &machine::cpu_set(&elsewhere))
        .context("cannot leave the cores to measure")?;
    Ok(OffManaged { before })
}

/// See [`stay_off_managed_cores`].
struct OffManaged {
    before: Vec<usize>,
}

impl Drop for OffManaged {
    fn drop(&mut self) {
        // Fails only if those cores went offline since.
        let _ = rustix::thread::sched_setaffinity(None, &machine::cpu_set(&self.before));
    }
}
