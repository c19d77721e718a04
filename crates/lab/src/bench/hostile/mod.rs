//! `tailwater-lab bench hostile`: what a service beside an attacker notices of it.
//!
//! Owns the order: one IOKernel and one service for all attacks; before each, the service alone;
//! then beside the attacker, which has had [`REACTION`] by then ([`attacks`]). The attackers are
//! those of the tests ([`Attack`]), as processes; if the bench runs as root, each is of another
//! user with a grant. Then programs are killed in a row ([`kills`]). Last, the IOKernel itself is
//! killed, taken over from ([`restart`]), and killed without another one ([`fallback`]).

use std::io::{Write, stdout};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tailwater_iokernel::{Account, Config, Grant};
use tailwater_iokernel_testing::attack::Attack;
use tailwater_loadgen::Plan;
use tailwater_loadgen::protocol::Medium;
use tailwater_ports::Port;
use tailwater_ports::tap::TapPort;
use tailwater_shm::control::ProgramClass;
use tailwater_testbed::bed::Testbed;
use tailwater_testbed::cores::CorePlan;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::note;
use tailwater_testbed::port::{self, GENERATOR_IP};
use tailwater_testbed::program::Program;
use tailwater_workload::Figures;

use super::spin::{self, Target};

mod attacks;
mod fallback;
mod kills;
mod restart;

use attacks::{Attacked, FRESH_USERS};
use fallback::Fallback;
pub use restart::{ChildArgs, run_child};
use restart::{Replaced, Way};

/// Requests per second, and the work of each.
const RPS: f64 = 50_000.0;
const SERVICE: &str = "exp:2us";
/// The TAP device of attacks that [need one](Attack::needs_tap).
const UPLINK: &str = "tw-hostile";
const UPLINK_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// First part of each measurement that is not counted, unless there is an attack.
const WARM_UP: Duration = Duration::from_millis(300);
/// Maximum number of kthreads of all attackers at a time.
const MANY_KTHREADS: u32 = 1_024;
/// Time that the IOKernel has for its reaction to an attack.
const REACTION: Duration = Duration::from_millis(100);
/// Bar: how much longer the median latency may be. No request may be lost.
const MOST_P50: f64 = 1.25;

/// A service beside programs that attack the IOKernel, and programs whose IOKernel is replaced
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "attacks: a service at 50,000 requests a second, alone and beside each attacker; as root, also beside
one that comes back as another user after each expulsion. kills: the same while 1,000 programs are registered and killed in a row. restart, takeover: 64 busy TCP connections and a UDP
service between programs whose IOKernel is killed (SIGKILL) and started again at once, or taken over from.
Their pause is the longest time in which one of them completed no exchange; from_start is what of it is
after the start of the new process, undisturbed the pause in as many windows without an event. fallback: a
program that sleeps a millisecond at a time and a batch job whose IOKernel is killed, and how they go on.

Examples:
  tailwater-lab bench hostile --seconds 3 --json hostile.json
  tailwater-lab bench hostile --only attacks --attack doorbell,many-words
  tailwater-lab bench hostile --only restart,takeover --times 20"
)]
pub struct HostileArgs {
    /// Seconds of each attack, and of the service alone before it
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(3..=600))]
    seconds: u64,
    /// How often the IOKernel is killed, and taken over from
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    times: u16,
    /// Measure these parts only
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<Part>,
    /// Measure these attacks only
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = attack_of)]
    attack: Vec<Attack>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A service beside attackers
    Attacks,
    /// A service beside programs that are killed
    Kills,
    /// The IOKernel is killed and started again
    Restart,
    /// Another IOKernel takes over
    Takeover,
    /// The IOKernel is killed and none takes its place
    Fallback,
}

/// What was measured.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attacks: Vec<Attacked>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kills: Option<kills::Kills>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restart: Option<Replaced>,
    #[serde(skip_serializing_if = "Option::is_none")]
    takeover: Option<Replaced>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fallback: Option<Fallback>,
}

/// The service's latency in microseconds, and how many requests it did not answer.
#[derive(Debug, Clone, Copy, Serialize)]
struct Latency {
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    win_p999_us: Option<f64>,
    lost: u64,
}

impl Latency {
    /// Returns whether the service, which had the latency `before`, noticed no more than it may.
    fn is_harmless_after(&self, before: Self) -> bool {
        let slower = before.p50_us.zip(self.p50_us);
        self.lost == 0 && slower.is_some_and(|(before, now)| now <= MOST_P50 * before)
    }
}

/// Returns the attack of this name, as in JSON.
fn attack_of(name: &str) -> Result<Attack, String> {
    serde_json::from_value(name.into()).map_err(|error| error.to_string())
}

/// Measures, prints, and returns the figures.
pub fn run(args: &HostileArgs, machine: &Machine) -> anyhow::Result<Report> {
    let cores = CorePlan::new(machine.usable_cores.clone())?;
    let interrupt = Arc::new(Interrupt::catch()?);
    let wants = |part| args.only.is_empty() || args.only.contains(&part);
    let mut report = Report::default();
    if wants(Part::Attacks) || wants(Part::Kills) {
        let testbed = Testbed::new(machine.usable_cores.clone(), Arc::clone(&interrupt), Duration::ZERO)?;
        let speed = testbed.calibrate()?;
        let target = start(&testbed, speed, None)?;
        let plan = spin::plan(SERVICE, RPS, WARM_UP, Duration::from_secs(args.seconds))?;
        let all = if args.attack.is_empty() { &Attack::ALL[..] } else { &args.attack };
        let (with_tap, others): (Vec<Attack>, Vec<Attack>) =
            all.iter().copied().partition(|attack| attack.needs_tap());
        if wants(Part::Attacks) {
            report.attacks = attacks::measure(&target, &others, &plan)?;
        }
        report.kills = wants(Part::Kills).then(|| kills::measure(&target, &plan)).transpose()?;
        target.end()?;
        if wants(Part::Attacks) && !with_tap.is_empty() {
            // Reading the device costs the polling thread time, so the others are without it.
            match start(&testbed, speed, Some(Box::new(TapPort::new(UPLINK, UPLINK_IP)))) {
                Ok(target) => {
                    report.attacks.extend(attacks::measure(&target, &with_tap, &plan)?);
                    target.end()?;
                }
                Err(error) => {
                    with_tap.iter().for_each(|attack| note!("skipped: {}: {error:#}", attack.name()));
                }
            }
        }
    }
    let replace = |part, way| {
        let measure = || restart::measure(way, args.times, &cores, &interrupt);
        wants(part).then(measure).transpose()
    };
    report.restart = replace(Part::Restart, Way::Restart)?;
    report.takeover = replace(Part::Takeover, Way::Takeover)?;
    let fall_back = || fallback::measure(args.times, &cores, &interrupt);
    report.fallback = wants(Part::Fallback).then(fall_back).transpose()?;
    write!(stdout(), "{}", describe(&report))?;
    Ok(report)
}

/// Starts an IOKernel, with another port beside the generator, and the service.
fn start(testbed: &Testbed, speed: u64, uplink: Option<Box<dyn Port>>) -> anyhow::Result<Target<'_>> {
    let (port, generator) = port::port(Medium::Datagram, GENERATOR_IP)?;
    let users = Attack::ALL.map(Attack::user).into_iter();
    let users = users.chain((0..FRESH_USERS).map(Attack::fresh_user)).map(Account::Number).collect();
    let config = Config {
        socket: format!("@tailwater-hostile-{}", std::process::id()),
        iokernel_core: Some(testbed.cores.polling as u16),
        managed_cores: Some(testbed.cores.managed.iter().map(|&core| core as u16).collect()),
        grant: vec![Grant {
            users,
            kthreads: MANY_KTHREADS,
            classes: vec![ProgramClass::BestEffort, ProgramClass::LatencyCritical],
            ..Grant::default()
        }],
        ..Config::default()
    };
    let ports = [port].into_iter().chain(uplink).collect();
    Target::start(testbed, Program::spin(speed, SERVICE.parse()?), (config, ports, generator), &[])
}

/// Measures the service.
fn latency(target: &Target<'_>, plan: &Plan) -> anyhow::Result<Latency> {
    target.begin(plan)?;
    let Figures { p50_us, p99_us, win_p999_us, lost, .. } = target.finish(plan)?;
    Ok(Latency { p50_us, p99_us, win_p999_us, lost })
}

fn describe(report: &Report) -> String {
    let mut text = String::new();
    if !report.attacks.is_empty() {
        text += &attacks::describe(&report.attacks);
    }
    if let Some(kills) = &report.kills {
        text += &format!("{}\n", kills.describe());
    }
    let replaced: Vec<&Replaced> = [&report.restart, &report.takeover].into_iter().flatten().collect();
    if !replaced.is_empty() {
        text += &restart::describe(&replaced);
    }
    if let Some(fallback) = &report.fallback {
        text += &fallback::describe(fallback);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attack_is_harmless_if_the_median_stays_and_nothing_is_lost() {
        let latency = |p50, lost| Latency { p50_us: p50, p99_us: p50, win_p999_us: p50, lost };
        let harmless = |before, during: Latency| during.is_harmless_after(before);
        assert!(harmless(latency(Some(8.0), 3), latency(Some(10.0), 0)));
        assert!(!harmless(latency(Some(8.0), 0), latency(Some(10.1), 0)));
        assert!(!harmless(latency(Some(8.0), 0), latency(Some(8.0), 1)));
        assert!(!harmless(latency(Some(8.0), 0), latency(None, 0)), "nothing was answered");
    }
}
