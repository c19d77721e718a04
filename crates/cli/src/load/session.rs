//! The generator of a load: this thread, or a fleet of agents. Callers see plans and measurements
//! only.
//!
//! Owns the seeds of runs and agents, and the thread that prints while the calling one generates.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use tailwater_loadgen::coordinate::fleet::{AgentOutcome, Fleet};
use tailwater_loadgen::coordinate::wire::Job;
use tailwater_loadgen::{Control, Measurement, Plan};
use tailwater_testbed::note;
use tailwater_workload::Interval;

use super::agents::LocalAgents;
use super::args::LoadArgs;
use super::job::JobTarget;
use super::live::Progress;
use super::transport::{Over, Transport};

/// One finished run.
#[derive(Debug)]
pub struct Done {
    /// The measurement of all generators together.
    pub measurement: Measurement,
    /// The run's seed.
    pub seed: u64,
    /// When its schedule started, by the wall clock.
    pub started: SystemTime,
    /// Its agents, if there were any.
    pub agents: Vec<AgentOutcome>,
}

/// See the [module](self).
pub struct Session<'a> {
    target: JobTarget,
    seed: u64,
    stop: &'a AtomicBool,
    generators: Generators,
}

enum Generators {
    Here(Transport),
    // The order matters: the connections close before the processes are waited for.
    Agents { fleet: Fleet, _local: LocalAgents },
}

impl Generators {
    /// Returns this process as the generator, ready to send.
    fn here(args: &LoadArgs, target: &JobTarget) -> anyhow::Result<Self> {
        let transport = Transport::new(args.core.first().copied());
        transport.prepare(&target.way)?;
        if let (Over::Port, Some(socket), false) = (args.over, &target.way.iokernel, args.quiet) {
            note!(
                "the server may attach now: tailwater run --iokernel {socket} --ip {} -- ...",
                target.server.ip()
            );
        }
        Ok(Self::Here(transport))
    }
}

impl<'a> Session<'a> {
    /// Starts local agents and connects to all agents, if the arguments name any.
    ///
    /// # Errors
    /// If an agent cannot be started or reached.
    pub fn open(args: &LoadArgs, stop: &'a AtomicBool) -> anyhow::Result<Self> {
        let target = JobTarget::new(args)?;
        let generators = if args.agents.is_none() && args.coordinate.is_empty() {
            Generators::here(args, &target)?
        } else {
            let local = LocalAgents::start(usize::from(args.agents.unwrap_or(0)), &args.core)?;
            let mut addresses = local.addresses();
            addresses.extend(&args.coordinate);
            Generators::Agents { fleet: Fleet::connect(&addresses)?, _local: local }
        };
        Ok(Self { target, seed: args.seed, stop, generators })
    }

    /// Returns the number of agents; 0 when this thread generates.
    pub fn agents(&self) -> usize {
        match &self.generators {
            Generators::Here(_) => 0,
            Generators::Agents { fleet, .. } => fleet.len(),
        }
    }

    /// True after an interrupt.
    pub fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Runs `plan` as run `number` of this session; each run has its own seed. One generator has
    /// the server store what the protocol reads, before the first run only.
    ///
    /// # Errors
    /// If the run could not start, or no agent finished.
    pub fn measure(&mut self, plan: &Plan, number: u64, progress: &Progress) -> anyhow::Result<Done> {
        let seed = derived_seed(self.seed, number);
        let preload = std::mem::take(&mut self.target.preload);
        let target = |first: bool| JobTarget { preload: preload && first, ..self.target.clone() };
        let (measurement, started, agents) = match &mut self.generators {
            Generators::Here(transport) => {
                let started = Mutex::new(Instant::now());
                let note = |at: Instant| *started.lock().unwrap_or_else(PoisonError::into_inner) = at;
                let control = Control::new(self.stop).with_start_observer(&note);
                let measurement = generate_here(&target(true), plan, seed, transport, control, progress)?;
                (measurement, started.into_inner().unwrap_or_else(PoisonError::into_inner), Vec::new())
            }
            Generators::Agents { fleet, .. } => {
                let count = fleet.len() as u32;
                let job = |agent: u32| Job {
                    target: target(agent == 0),
                    plan: plan.share(agent, count),
                    // Another family of seeds, so that no agent has the seed of a run.
                    seed: derived_seed(seed ^ AGENT_SEEDS, u64::from(agent)),
                    live: progress.is_on(),
                };
                let mut view = progress.view(fleet.len());
                let outcome =
                    fleet.run((0..count).map(job).collect(), self.stop, |agent, length_ns, interval| {
                        view.push(agent, length_ns, interval);
                    })?;
                (outcome.measurement, outcome.started, outcome.agents)
            }
        };
        Ok(Done { measurement, seed, started: wall_clock_at(started), agents })
    }
}

/// Returns the wall clock's time at `at`, which is past.
fn wall_clock_at(at: Instant) -> SystemTime {
    let now = SystemTime::now();
    now.checked_sub(at.elapsed()).unwrap_or(now)
}

/// Generates on this thread while another prints.
fn generate_here(
    target: &JobTarget,
    plan: &Plan,
    seed: u64,
    transport: &Transport,
    control: Control<'_>,
    progress: &Progress,
) -> anyhow::Result<Measurement> {
    if !progress.is_on() {
        return target.run(plan, seed, transport, &control);
    }
    // A plan without intervals sends none.
    let length_ns = plan.interval_length_ns().unwrap_or(0);
    let (intervals, arriving) = channel::<Interval>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut view = progress.view(1);
            for interval in arriving {
                view.push(0, length_ns, &interval);
            }
        });
        // Moved into this scope: dropping it ends the thread above.
        let intervals = intervals;
        let observer = |interval: &Interval| {
            // The printing thread listens until this scope ends.
            let _ = intervals.send(interval.clone());
        };
        target.run(plan, seed, transport, &control.with_observer(&observer))
    })
}

/// Distinguishes seeds of agents from those of runs.
const AGENT_SEEDS: u64 = 0xa9e7_75ee_d500_0000;

/// Seed `number` of the family of `seed`; the first is `seed` itself. The finaliser of SplitMix64
/// (Steele, Lea and Flood 2014) over equally spaced points.
pub fn derived_seed(seed: u64, number: u64) -> u64 {
    if number == 0 {
        return seed;
    }
    let mut z = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
