//! The latency of a core request: from a program's request to the first user thread on the core.
//!
//! Owns the IOKernel, the programs beside it, and the figures; [`child`] is the program that
//! requests. One core polls and one is lent, under `policy = "arbiter"`. That core is either free,
//! and its kthread parked, or held by a best-effort batch job that computes.
//!
//! The program cannot request from a kthread: the lent core is the only one it could run on. An
//! ordinary thread requests, then makes a user thread runnable. It has a core of its own if the
//! machine has a third one. With two it shares the polling core, at the rank of the polling thread,
//! so each latency includes the switch from it back to the polling thread.
//!
//! Work alone fetches a core, too. So the same is also measured without the request: by the
//! difference a request costs or saves time.
//!
//! [`Conditions`] change one thing at a time, to find what bounds the latency: the rest before each
//! request, after which kthread, polling thread and core sleep or do not; a polling thread that
//! never sleeps; a core that never halts; a kthread that polls for ever on a core that it has.

use std::sync::Arc;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tailwater_iokernel::Config;
use tailwater_iokernel::config::{PolicyName, Priority};

use tailwater_shm::Clock;
use tailwater_testbed::child::{Batch, ChildProcess, Spec};
use tailwater_testbed::embedded::{Embedded, lending};
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::progress;
use tailwater_testbed::table::{Table, number};

pub mod child;
pub mod steps;

use crate::bench::quantile;
use steps::{CoreEvent, Trace};

/// Requests of a round that are not counted.
const WARM_UP: u32 = 5;

/// Times of one request on the machine's clock, in cycles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Before the request.
    pub requested: u64,
    /// The user thread had been made runnable.
    pub runnable: u64,
    /// The user thread ran.
    pub ran: u64,
}

impl Sample {
    /// Returns the time from the request until the user thread ran, in microseconds.
    pub fn us(self, clock: &Clock) -> f64 {
        clock.to_ns(self.ran - self.requested) as f64 / 1e3
    }
}

/// A situation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// Whether a batch job holds the core.
    pub busy: bool,
    /// Whether a core is requested; otherwise there is work only.
    pub requests: bool,
}

/// A free core is requested.
pub const FREE: Case = Case { busy: false, requests: true };
/// A core that a batch job holds is requested.
pub const HELD: Case = Case { busy: true, requests: true };

impl Case {
    const ALL: [Self; 4] =
        [FREE, HELD, Self { busy: false, requests: false }, Self { busy: true, requests: false }];
}

/// The state of the machine in which requests are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conditions {
    /// Microseconds for which the program rests before each request.
    pub rest_us: u64,
    /// Whether the IOKernel polls all the time.
    pub awake: bool,
    /// Whether an ordinary thread of class `SCHED_IDLE` computes on the lent core, so that it does
    /// not halt while it is free.
    pub warm: bool,
    /// Whether the program's kthread polls for ever on a core that it has, instead of parking after
    /// 50 us. It parks all the same when a batch job is lent the core.
    pub kthread_awake: bool,
}

impl Default for Conditions {
    /// A rest of 20 ms, longer than the time within which a request that goes up and down fetches a
    /// core once: kthread and IOKernel sleep, and a free core halts.
    fn default() -> Self {
        Self { rest_us: 20_000, awake: false, warm: false, kthread_awake: false }
    }
}

/// The cores of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Places {
    polling: usize,
    managed: usize,
    /// That of the ordinary thread.
    requester: usize,
}

impl Places {
    fn new(usable: &[usize]) -> anyhow::Result<Self> {
        match *usable {
            [polling, managed] => Ok(Self { polling, managed, requester: polling }),
            [polling, managed, requester, ..] => Ok(Self { polling, managed, requester }),
            _ => anyhow::bail!("two cores are needed: one polls, the other is requested"),
        }
    }
}

/// The figures, in microseconds.
#[derive(Debug, Serialize)]
pub struct Figures {
    #[serde(flatten)]
    requested: Latencies,
    /// The same without the request.
    work_alone: Latencies,
    /// Whether the requesting thread has a core of its own.
    own_core: bool,
}

/// Times from a request until the first user thread runs.
#[derive(Debug, Serialize)]
struct Latencies {
    /// The core is free.
    idle_p50: f64,
    /// A batch job has it.
    busy_p50: f64,
    /// Of both.
    p99: f64,
    idle_p99: f64,
    busy_p99: f64,
    /// Number of requests of each kind.
    count: usize,
}

impl Latencies {
    fn of(idle: &[f64], busy: &[f64]) -> Self {
        let of = |values: &[f64], part| quantile(values.iter().copied(), part);
        Self {
            idle_p50: of(idle, 0.5),
            busy_p50: of(busy, 0.5),
            p99: of(&[idle, busy].concat(), 0.99),
            idle_p99: of(idle, 0.99),
            busy_p99: of(busy, 0.99),
            count: idle.len(),
        }
    }
}

/// Measures so many rounds of `count` requests in each situation, in turn.
pub fn measure(
    machine: &Machine,
    interrupt: &Arc<Interrupt>,
    conditions: Conditions,
    (rounds, count): (u16, u32),
) -> anyhow::Result<Figures> {
    let clock = Clock::calibrate(20);
    let mut all: [Vec<f64>; Case::ALL.len()] = Default::default();
    for _ in progress::over("requests for cores", 0..rounds) {
        for (case, all) in Case::ALL.into_iter().zip(&mut all) {
            let samples = sample(machine, interrupt, conditions, case, count)?;
            all.extend(samples.into_iter().map(|sample| sample.us(&clock)));
        }
    }
    let [idle, busy, idle_work, busy_work] = all;
    let places = Places::new(&machine.usable_cores)?;
    Ok(Figures {
        requested: Latencies::of(&idle, &busy),
        work_alone: Latencies::of(&idle_work, &busy_work),
        own_core: places.requester != places.polling,
    })
}

/// Measures one round in a situation.
pub fn sample(
    machine: &Machine,
    interrupt: &Interrupt,
    conditions: Conditions,
    case: Case,
    count: u32,
) -> anyhow::Result<Vec<Sample>> {
    let setup = Setup { conditions, ..Setup::new(machine)? };
    let _warm = conditions.warm.then(|| setup.start_idle_thread(interrupt)).transpose()?;
    let _iokernel = setup.start_iokernel(machine)?;
    let _batch = case.busy.then(|| setup.start_batch(interrupt)).transpose()?;
    setup.run_child(interrupt, case, count)
}

/// As [`sample`], with the steps of all cores meanwhile. The trace costs the polling thread some
/// tens of nanoseconds for each.
///
/// # Errors
/// As [`measure`], or if there is no trace.
pub fn sample_traced(
    machine: &Machine,
    interrupt: &Interrupt,
    case: Case,
    count: u32,
) -> anyhow::Result<(Vec<Sample>, Vec<CoreEvent>)> {
    let setup = Setup::new(machine)?;
    let _iokernel = setup.start_iokernel(machine)?;
    let _batch = case.busy.then(|| setup.start_batch(interrupt)).transpose()?;
    let mut trace = Trace::begin(&setup.socket)?;
    let samples = setup.run_child(interrupt, case, count)?;
    Ok((samples, trace.read()?))
}

/// One IOKernel with `policy = "arbiter"` and one core to lend, and its programs.
pub(super) struct Setup {
    places: Places,
    socket: String,
    conditions: Conditions,
}

impl Setup {
    pub(super) fn new(machine: &Machine) -> anyhow::Result<Self> {
        let places = Places::new(&machine.usable_cores)?;
        let socket = format!("@tailwater-requests-{}", std::process::id());
        Ok(Self { places, socket, conditions: Conditions::default() })
    }

    pub(super) fn start_iokernel(&self, machine: &Machine) -> anyhow::Result<Embedded> {
        let config = Config {
            policy: PolicyName::Arbiter,
            priority: Priority::Thread,
            idle_sleep_us: if self.conditions.awake { 0 } else { Config::default().idle_sleep_us },
            ..lending(&self.socket, self.places.polling, &[self.places.managed])
        };
        Embedded::with_ports(config, Vec::new(), Some(machine.usable_cores.clone()))
    }

    fn start_batch(&self, interrupt: &Interrupt) -> anyhow::Result<Batch> {
        let spec = Spec {
            app: "swaptions",
            arguments: vec!["--report-on-input".to_owned()],
            settings: self.settings("batch", "best-effort", 1),
            cores: vec![self.places.requester],
            ..Spec::default()
        };
        Batch::start(&spec, interrupt)
    }

    /// Starts an ordinary thread that computes on the lent core wherever nothing else does.
    fn start_idle_thread(&self, interrupt: &Interrupt) -> anyhow::Result<Batch> {
        let core = self.places.managed.to_string();
        let words = ["--linux", "--threads", "1", "--core", &core, "--report-on-input", "--nice-idle"];
        let arguments = words.map(str::to_owned).to_vec();
        Batch::start(&Spec { app: "swaptions", arguments, ..Spec::default() }, interrupt)
    }

    /// Runs the requesting program; returns the counted requests.
    fn run_child(&self, interrupt: &Interrupt, case: Case, count: u32) -> anyhow::Result<Vec<Sample>> {
        let rest = self.conditions.rest_us.to_string();
        let words = ["requests", "--count", &count.to_string(), "--rest-us", &rest];
        let mut arguments = words.map(str::to_owned).to_vec();
        if !case.requests {
            arguments.push("--work-alone".to_owned());
        }
        let mut child = self.start_child(arguments, 1)?;
        let lines = (0..WARM_UP + count).map(|_| {
            let line = child.read_line_within(child::PATIENCE, interrupt)?;
            let sample: Option<Sample> = serde_json::from_str(&line).ok();
            // The thread may run before the call returns.
            let sample = sample.filter(|it| it.requested <= it.runnable.min(it.ran));
            sample.with_context(|| format!("the child printed {line:?}, no times"))
        });
        Ok(lines.collect::<anyhow::Result<Vec<_>>>()?.split_off(WARM_UP as usize))
    }

    /// Starts the measured process with so many kthreads. Its ordinary threads run off the managed
    /// core.
    pub(super) fn start_child(&self, arguments: Vec<String>, kthreads: u16) -> anyhow::Result<ChildProcess> {
        let mut settings = self.settings("requester", "latency-critical", kthreads);
        if self.conditions.kthread_awake {
            settings.push(("TAILWATER_IDLE_TIMEOUT_US", "0".to_owned()));
        }
        ChildProcess::start(&Spec {
            app: "cores",
            arguments,
            settings,
            cores: vec![self.places.requester],
            raise: true,
            ..Spec::default()
        })
    }

    fn settings(&self, name: &str, class: &str, kthreads: u16) -> Vec<(&'static str, String)> {
        vec![
            ("TAILWATER_IOKERNEL", self.socket.clone()),
            ("TAILWATER_NAME", name.to_owned()),
            ("TAILWATER_CLASS", class.to_owned()),
            ("TAILWATER_KTHREADS", kthreads.to_string()),
        ]
    }
}

/// Returns the figures as a table.
pub fn describe(figures: &Figures) -> String {
    let mut table =
        Table::new("until the first user thread runs, us | free p50 | p99 | held p50 | p99 | all p99");
    let rows = [("request, then work", &figures.requested), ("work alone", &figures.work_alone)];
    for (what, of) in rows {
        let cells = [of.idle_p50, of.idle_p99, of.busy_p50, of.busy_p99, of.p99].map(number);
        table.row([what.to_owned()].into_iter().chain(cells));
    }
    let place = if figures.own_core { "a core of its own" } else { "the polling core" };
    format!("{table}\n{} requests of each kind; the requesting thread has {place}\n", figures.requested.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requester_has_a_core_of_its_own_from_three_on() {
        assert!(Places::new(&[3]).is_err());
        let requester = |usable: &[usize]| Places::new(usable).unwrap().requester;
        assert_eq!([requester(&[3, 5]), requester(&[3, 5, 8, 9])], [3, 8]);
    }

    #[test]
    fn the_tail_is_that_of_free_and_held_cores_together() {
        let latencies = Latencies::of(&[3.0, 1.0, 2.0], &[9.0, 7.0, 8.0]);
        assert_eq!((latencies.idle_p50, latencies.busy_p50), (2.0, 8.0));
        assert_eq!((latencies.idle_p99, latencies.busy_p99, latencies.p99), (3.0, 9.0, 9.0));
        assert!(Latencies::of(&[], &[]).p99.is_nan());
    }
}
