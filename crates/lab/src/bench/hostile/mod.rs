//! `tailwater-lab bench hostile`: what a service beside an attacker notices of it.
//!
//! Owns the order: one IOKernel and one service for all attacks; before each, the service alone;
//! then beside the attacker, which has had [`REACTION`] by then. The attackers are those of the
//! tests ([`Attack`]), as processes; if the bench runs as root, each is of another user with a
//! grant. One that is expelled comes back as soon as it is let in. Then programs are killed in a
//! row ([`kills`]). Last, the IOKernel itself is killed, and taken over from ([`restart`]).

use std::io::{Write, stdout};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;
use tailwater_iokernel::{Account, Config, Grant};
use tailwater_iokernel_testing::attack::Attack;
use tailwater_iokernel_testing::child::RawChild;
use tailwater_loadgen::Plan;
use tailwater_loadgen::kernel_udp::Load;
use tailwater_loadgen::protocol::Medium;
use tailwater_testbed::bed::Testbed;
use tailwater_testbed::child::{Service, Spec};
use tailwater_testbed::cores::CorePlan;
use tailwater_testbed::embedded::Embedded;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::note;
use tailwater_testbed::port::{self, GENERATOR_IP, Generator};
use tailwater_testbed::program::{Prepared, Program};
use tailwater_testbed::table::{Table, number};
use tailwater_workload::{LoadSchedule, Rate};

mod kills;
mod restart;

pub use restart::{ChildArgs, run_child};
use restart::{Replaced, Way};

/// Requests per second, and the work of each.
const RPS: f64 = 50_000.0;
const SERVICE: &str = "exp:2us";
/// Outside the addresses that the IOKernel chooses.
const SERVICE_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
const SERVICE_PORT: u16 = 5000;
/// First part of each measurement that is not counted.
const WARM_UP: Duration = Duration::from_millis(300);
/// Time that the IOKernel has for its reaction to an attack.
const REACTION: Duration = Duration::from_millis(100);
/// Bar: how much longer the median latency may be. No request may be lost.
const MOST_P50: f64 = 1.25;

/// A service beside programs that attack the IOKernel, and programs whose IOKernel is replaced
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "attacks: a service at 50,000 requests a second, alone and beside each attacker. kills: the same while
1,000 programs are registered and killed in a row. restart, takeover: 64 busy TCP connections and a UDP
service between programs whose IOKernel is killed (SIGKILL) and started again at once, or taken over from.
Their pause is the longest time in which one of them completed no exchange; from_start is what of it is
after the start of the new process, undisturbed the pause in as many windows without an event.

Examples:
  tailwater-lab bench hostile --seconds 3 --json hostile.json
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
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
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
}

/// A service before and during one attack.
#[derive(Debug, Serialize)]
struct Attacked {
    name: &'static str,
    before: Latency,
    during: Latency,
    /// The attacker lost its registration at least once.
    expelled: bool,
}

/// The service's latency in microseconds, and how many requests it did not answer.
#[derive(Debug, Clone, Copy, Serialize)]
struct Latency {
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    win_p999_us: Option<f64>,
    lost: u64,
}

impl Attacked {
    /// Returns whether the service noticed no more of the attack than it may.
    fn is_harmless(&self) -> bool {
        let slower = self.before.p50_us.zip(self.during.p50_us);
        self.during.lost == 0 && slower.is_some_and(|(before, during)| during <= MOST_P50 * before)
    }
}

/// Measures, prints, and returns the figures.
///
/// # Errors
/// When a process does not start or ends, or on a signal.
pub fn run(args: &HostileArgs, machine: &Machine) -> anyhow::Result<Report> {
    let cores = CorePlan::new(machine.usable_cores.clone())?;
    let interrupt = Arc::new(Interrupt::catch()?);
    let wants = |part| args.only.is_empty() || args.only.contains(&part);
    let mut report = Report::default();
    if wants(Part::Attacks) || wants(Part::Kills) {
        let (cores, interrupt) = (cores.clone(), Arc::clone(&interrupt));
        let testbed = Testbed { cores, interrupt, solo: Duration::ZERO };
        let speed = testbed.calibrate()?;
        let target = Target::start(testbed, speed)?;
        let plan = plan(Duration::from_secs(args.seconds))?;
        if wants(Part::Attacks) {
            report.attacks = target.attacked_by_all(&plan)?;
        }
        report.kills = wants(Part::Kills).then(|| kills::measure(&target, &plan)).transpose()?;
        target.service.end()?;
    }
    let replace = |part, way| {
        let measure = || restart::measure(way, args.times, &cores, &interrupt);
        wants(part).then(measure).transpose()
    };
    report.restart = replace(Part::Restart, Way::Restart)?;
    report.takeover = replace(Part::Takeover, Way::Takeover)?;
    write!(stdout(), "{}", describe(&report))?;
    Ok(report)
}

fn plan(counted: Duration) -> anyhow::Result<Plan> {
    let schedule = LoadSchedule::constant(Rate::new(RPS)?, (WARM_UP + counted).as_nanos() as u64);
    Ok(Plan { warm_up_ns: WARM_UP.as_nanos() as u64, flows: 64, ..Plan::new(schedule, SERVICE.parse()?) })
}

/// An IOKernel with the generator as its port, and the service.
struct Target {
    testbed: Testbed,
    service: Service,
    program: Program,
    iokernel: Embedded,
    socket: String,
    generator: Generator,
}

impl Target {
    fn start(testbed: Testbed, speed: u64) -> anyhow::Result<Self> {
        let (port, generator) = port::port(Medium::Datagram, GENERATOR_IP)?;
        let cores = &testbed.cores;
        let socket = format!("@tailwater-hostile-{}", std::process::id());
        let config = Config {
            socket: socket.clone(),
            iokernel_core: Some(cores.polling as u16),
            managed_cores: Some(cores.managed.iter().map(|&core| core as u16).collect()),
            grant: vec![Grant {
                users: Attack::ALL.map(|attack| Account::Number(attack.user())).to_vec(),
                ..Grant::default()
            }],
            ..Config::default()
        };
        let kthreads = cores.managed.len().to_string();
        let iokernel = Embedded::start(config, port, Some(cores.usable.clone()))?;
        let program = Program::spin(speed, SERVICE.parse()?);
        let Prepared { arguments, folder } = program.prepare(SERVICE_PORT)?;
        let settings = vec![
            ("TAILWATER_IOKERNEL", socket.clone()),
            ("TAILWATER_NAME", program.app.to_owned()),
            ("TAILWATER_KTHREADS", kthreads),
            ("TAILWATER_IP", SERVICE_IP.to_string()),
        ];
        let spec = Spec { app: program.app, arguments, settings, raise: true, ..Spec::default() };
        let service = Service::start(&spec, &testbed.interrupt)?.with_folder(folder);
        Ok(Self { testbed, service, program, iokernel, socket, generator })
    }

    /// Measures the service beside each attacker.
    fn attacked_by_all(&self, plan: &Plan) -> anyhow::Result<Vec<Attacked>> {
        let measure = |attack| {
            let attacked = self.attacked(attack, plan)?;
            note!("{}: {}", attacked.name, if attacked.is_harmless() { "harmless" } else { "NOT harmless" });
            Ok(attacked)
        };
        Attack::ALL.into_iter().map(measure).collect()
    }

    /// Measures the service alone, then beside an attacker.
    fn attacked(&self, attack: Attack, plan: &Plan) -> anyhow::Result<Attacked> {
        let before = self.latency(plan)?;
        let expelled = self.iokernel.stats.polling.expelled.get();
        // Not by path: a newer build may have replaced the file.
        let attacker = RawChild::attack(Command::new("/proc/self/exe"), &self.socket, attack);
        let _attacker = attacker.map_err(anyhow::Error::msg)?;
        self.testbed.interrupt.sleep_until(Instant::now() + REACTION)?;
        let during = self.latency(plan)?;
        let expelled = self.iokernel.stats.polling.expelled.get() > expelled;
        Ok(Attacked { name: attack.name(), before, during, expelled })
    }

    fn latency(&self, plan: &Plan) -> anyhow::Result<Latency> {
        let load = Load { protocol: Arc::clone(&self.program.protocol), seed: 1, preload: false };
        let server = SocketAddrV4::new(SERVICE_IP, SERVICE_PORT);
        self.generator.begin(&self.testbed, plan, &load, server)?;
        let figures = self.generator.finish(&self.testbed, plan)?.summary.figures();
        Ok(Latency {
            p50_us: figures.p50_us,
            p99_us: figures.p99_us,
            win_p999_us: figures.win_p999_us,
            lost: figures.lost,
        })
    }
}

fn describe(report: &Report) -> String {
    let mut text = String::new();
    if !report.attacks.is_empty() {
        text += &describe_attacks(&report.attacks);
    }
    if let Some(kills) = &report.kills {
        text += &format!("{}\n", kills.describe());
    }
    let replaced: Vec<&Replaced> = [&report.restart, &report.takeover].into_iter().flatten().collect();
    if !replaced.is_empty() {
        text += &restart::describe(&replaced);
    }
    text
}

fn describe_attacks(attacks: &[Attacked]) -> String {
    let mut table = Table::new([
        "attack, us",
        "p50 before",
        "p50",
        "p99 before",
        "p99",
        "win. p99.9 before",
        "win. p99.9",
        "lost before",
        "lost",
        "expelled",
        "harmless",
    ]);
    let us = |value: Option<f64>| value.map_or_else(|| "none".to_owned(), number);
    let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    for attacked in attacks {
        let Attacked { name, before, during, expelled } = attacked;
        let latencies = [
            (before.p50_us, during.p50_us),
            (before.p99_us, during.p99_us),
            (before.win_p999_us, during.win_p999_us),
        ];
        let row = [(*name).to_owned()].into_iter();
        let row = row.chain(latencies.into_iter().flat_map(|(before, during)| [us(before), us(during)]));
        let row = row.chain([before.lost.to_string(), during.lost.to_string(), yes(*expelled)]);
        table.row(row.chain([yes(attacked.is_harmless())]));
    }
    format!(
        "{table}\nA service at {RPS} requests a second. Harmless: the median at most {MOST_P50} times that before, \
         and no request lost, {} ms after the attack began.\n\n",
        REACTION.as_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attack_is_harmless_if_the_median_stays_and_nothing_is_lost() {
        let latency = |p50, lost| Latency { p50_us: p50, p99_us: p50, win_p999_us: p50, lost };
        let harmless =
            |before, during| Attacked { name: "test", before, during, expelled: true }.is_harmless();
        assert!(harmless(latency(Some(8.0), 3), latency(Some(10.0), 0)));
        assert!(!harmless(latency(Some(8.0), 0), latency(Some(10.1), 0)));
        assert!(!harmless(latency(Some(8.0), 0), latency(Some(8.0), 1)));
        assert!(!harmless(latency(Some(8.0), 0), latency(None, 0)), "nothing was answered");
    }
}
