//! Who generates: this thread, or a fleet of agents. Everything above sees plans and measurements only.
//!
//! Owns: what a job consists of beside its plan, seeds, and the thread that prints while this one spins.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tailwater_loadgen::coordinate::fleet::{AgentOutcome, Fleet};
use tailwater_loadgen::coordinate::wire::Job;
use tailwater_loadgen::protocol::{Medium, from_name};
use tailwater_loadgen::{Control, Measurement, Plan};
use tailwater_workload::{Interval, ServiceTime};

use super::agents::LocalAgents;
use super::args::LoadArgs;
use super::live::Progress;
use super::transport::{Over, Question, Transport, Way};

/// Longest file that a protocol reads, such as a list of names: agents get it with each job.
const MAX_FILE: u64 = 16 << 20;

/// What to talk to, and how: all that an agent must know beside the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobTarget {
    /// The server.
    pub server: SocketAddr,
    /// The server as it was written, which http servers are told.
    pub authority: String,
    /// The protocol as it was written.
    pub protocol: String,
    /// Files that the protocol names, by path: an agent reads none of its own.
    pub files: BTreeMap<String, String>,
    /// How to reach the server.
    pub way: Way,
    /// Whether to store first what the protocol reads.
    pub preload: bool,
}

impl JobTarget {
    fn new(args: &LoadArgs) -> anyhow::Result<Self> {
        let server = args.server.as_ref().context("the server's address is missing")?;
        let mut target = Self {
            server: server.address,
            authority: server.authority.clone(),
            protocol: args.protocol.clone(),
            files: BTreeMap::new(),
            way: args.way(),
            preload: !args.no_preload,
        };
        let files = RefCell::new(BTreeMap::new());
        // Here, where the files are and mistakes are seen before anything starts.
        from_name(
            &target.protocol,
            target.medium(),
            &ServiceTime::constant(0),
            &target.authority,
            |path: &str| {
                let mut text = String::new();
                File::open(path)?.take(MAX_FILE + 1).read_to_string(&mut text)?;
                if text.len() as u64 > MAX_FILE {
                    return Err(io::Error::other(format!("{path} is longer than {} MiB", MAX_FILE >> 20)));
                }
                files.borrow_mut().insert(path.to_owned(), text.clone());
                Ok(text)
            },
        )?;
        target.files = files.into_inner();
        Ok(target)
    }

    fn medium(&self) -> Medium {
        if self.way.connections.is_some() { Medium::Stream } else { Medium::Datagram }
    }

    /// Runs `plan` against it over `transport`.
    ///
    /// # Errors
    /// When the run could not start.
    pub fn run(
        &self,
        plan: &Plan,
        seed: u64,
        transport: &Transport,
        control: &Control<'_>,
    ) -> anyhow::Result<Measurement> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let read_file = |path: &str| self.files.get(path).cloned().ok_or_else(missing);
        let protocol = from_name(&self.protocol, self.medium(), &plan.service, &self.authority, read_file)?;
        let question = Question { server: self.server, protocol, preload: self.preload, seed, plan };
        transport.run(&self.way, question, control)
    }
}

/// One finished run.
#[derive(Debug)]
pub struct Done {
    /// What was measured, by all generators together.
    pub measurement: Measurement,
    /// The run's seed.
    pub seed: u64,
    /// When its schedule started, by the wall clock.
    pub started: SystemTime,
    /// Its agents; empty without.
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
    // In this order: the connections close before the processes are waited for.
    Agents { fleet: Fleet, _local: LocalAgents },
}

impl Generators {
    /// This process, ready to send.
    fn here(args: &LoadArgs, target: &JobTarget) -> anyhow::Result<Self> {
        let transport = Transport::new(args.core.first().copied());
        transport.prepare(&target.way)?;
        if let (Over::Port, Some(socket), false) = (args.over, &target.way.iokernel, args.quiet) {
            eprintln!(
                "the server may attach now: tailwater run --iokernel {socket} --ip {} -- ...",
                target.server.ip()
            );
        }
        Ok(Self::Here(transport))
    }
}

impl<'a> Session<'a> {
    /// Starts local agents and connects to all of them, if there are to be agents.
    ///
    /// # Errors
    /// When an agent cannot be started or reached.
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

    /// How many agents there are; 0 when this thread generates.
    pub fn agents(&self) -> usize {
        match &self.generators {
            Generators::Here(_) => 0,
            Generators::Agents { fleet, .. } => fleet.len(),
        }
    }

    /// Whether the user wants it to end.
    pub fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Runs `plan` as run `number` of this session, of which each has its own seed. What the protocol reads is stored before
    /// the first run only, by one generator.
    ///
    /// # Errors
    /// When it could not start, or no agent finished.
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
                    // A family of its own, so that no agent has the seed of another run.
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

/// What the wall clock read at `at`, which is past.
fn wall_clock_at(at: Instant) -> SystemTime {
    let now = SystemTime::now();
    now.checked_sub(at.elapsed()).unwrap_or(now)
}

/// Generates on this thread; another one prints.
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
    // Of a plan without intervals none comes.
    let length_ns = plan.interval_length_ns().unwrap_or(0);
    let (intervals, arriving) = channel::<Interval>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut view = progress.view(1);
            for interval in arriving {
                view.push(0, length_ns, &interval);
            }
        });
        // Moved in, so that dropping it ends the thread above.
        let intervals = intervals;
        let observer = |interval: &Interval| {
            // The printing thread listens until this scope ends.
            let _ = intervals.send(interval.clone());
        };
        target.run(plan, seed, transport, &control.with_observer(&observer))
    })
}

/// Marks seeds of agents off from those of runs.
const AGENT_SEEDS: u64 = 0xa9e7_75ee_d500_0000;

/// Seed `number` of the family of `seed`; the first is `seed` itself. The finaliser of SplitMix64 (Steele, Lea and Flood
/// 2014) over equally spaced points.
pub fn derived_seed(seed: u64, number: u64) -> u64 {
    if number == 0 {
        return seed;
    }
    let mut z = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
