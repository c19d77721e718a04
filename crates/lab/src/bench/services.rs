//! `tailwater-lab bench services`: services of the latency class that share cores, and whether each
//! gets its part.
//!
//! Owns the situations and their order. In each, an IOKernel in this process has one generator
//! port for each service, and all loads run at the same time. *Equal* situations divide one total
//! load among one, two and four services, so that the figures differ by what sharing costs. In
//! *uneven* ones a service with little load shares the core with one that asks for more than there
//! is, and two that both ask for a whole core divide it. Situations are measured in rounds, in
//! turn; medians over the rounds count.

use std::io::{Write, stdout};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tailwater_loadgen::Plan;
use tailwater_loadgen::kernel_udp::Load;
use tailwater_loadgen::protocol::Medium;
use tailwater_testbed::bed::Testbed;
use tailwater_testbed::child::{Service, Spec};
use tailwater_testbed::cores::CorePlan;
use tailwater_testbed::embedded::{Embedded, lending};
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::note;
use tailwater_testbed::port::{self, Generator};
use tailwater_testbed::program::{Prepared, Program};
use tailwater_testbed::table::{Table, number};
use tailwater_workload::{LoadSchedule, Rate};

use super::median;

/// Work of a request, and how many of them one core serves in a second.
const SERVICE: &str = "exp:10us";
const CORE_RPS: f64 = 100_000.0;
/// First part of each load that is not counted: the loads begin one after the other.
const WARM_UP: Duration = Duration::from_millis(500);
const SERVICE_PORT: u16 = 5000;
/// Loads of the services, in percent of the shared cores.
const SITUATIONS: [&[f64]; 9] = [
    &[50.0],
    &[25.0, 25.0],
    &[12.5, 12.5, 12.5, 12.5],
    &[80.0],
    &[40.0, 40.0],
    &[20.0, 20.0, 20.0, 20.0],
    &[10.0],
    &[10.0, 120.0],
    &[100.0, 100.0],
];

/// Services that share cores: what sharing costs, and whether each gets its part
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "One total load on one service, on two and on four; a service at 10 % alone and beside one that asks for
120 %; and two that ask for 100 % each. answered: requests answered over those due. Loads are in
percent of the shared cores; other programs have no share (neighbour-share = 0).

Example:
  tailwater-lab bench services --seconds 5 --rounds 5 --json services.json"
)]
pub struct ServicesArgs {
    /// Seconds that are counted of each situation and round
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Rounds, in which all situations are measured in turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    situations: Vec<Situation>,
}

/// Services that ran at the same time.
#[derive(Debug, Serialize)]
struct Situation {
    services: Vec<Share>,
}

/// What one service got: medians over the rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Share {
    /// In percent of the shared cores.
    load: f64,
    /// `None`: at least half of the rounds have no such figure, since too few were answered.
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    win_p999_us: Option<f64>,
    /// Requests answered per second, over those due.
    answered: f64,
}

impl Share {
    /// Returns the median of each figure, as far as there are rounds. A figure that a round lacks
    /// is larger than all others.
    fn median(rounds: &[Self]) -> Option<Self> {
        let load = rounds.first()?.load;
        let middle = |of: fn(&Self) -> Option<f64>| {
            let all = rounds.iter().map(|share| of(share).unwrap_or(f64::INFINITY));
            Some(median(all)).filter(|figure| figure.is_finite())
        };
        Some(Self {
            load,
            p50_us: middle(|share| share.p50_us),
            p99_us: middle(|share| share.p99_us),
            win_p999_us: middle(|share| share.win_p999_us),
            answered: middle(|share| Some(share.answered)).unwrap_or(0.0),
        })
    }
}

/// Measures, prints, and returns the figures.
///
/// # Errors
/// When a process does not start or ends, or on a signal.
pub fn run(args: &ServicesArgs, machine: &Machine) -> anyhow::Result<Report> {
    let cores = CorePlan::new(machine.usable_cores.clone())?;
    let interrupt = Arc::new(Interrupt::catch()?);
    let testbed = Testbed { cores, interrupt, solo: Duration::ZERO, job: Vec::new() };
    let speed = testbed.calibrate()?;
    let mut rounds = vec![Vec::new(); SITUATIONS.len()];
    for round in 1..=args.rounds {
        note!("round {round} of {}", args.rounds);
        for (loads, rounds) in SITUATIONS.iter().zip(&mut rounds) {
            rounds.push(measure(&testbed, speed, loads, Duration::from_secs(args.seconds))?);
        }
    }
    let situations = rounds.iter().map(|rounds| Situation { services: medians(rounds) }).collect();
    let report = Report { situations };
    write!(stdout(), "{}", describe(&report))?;
    Ok(report)
}

/// Returns the medians of each service over the rounds.
fn medians(rounds: &[Vec<Share>]) -> Vec<Share> {
    let services = rounds.iter().map(Vec::len).min().unwrap_or(0);
    let of = |service: usize| rounds.iter().map(|round| round[service].clone()).collect::<Vec<_>>();
    (0..services).filter_map(|service| Share::median(&of(service))).collect()
}

/// One service, its generator and its load.
struct Party<'a> {
    generator: &'a Generator,
    service: Service,
    server: SocketAddrV4,
    plan: Plan,
    load: f64,
}

/// Measures one situation: all loads at the same time.
fn measure(testbed: &Testbed, speed: u64, loads: &[f64], counted: Duration) -> anyhow::Result<Vec<Share>> {
    let socket = format!("@tailwater-services-{}", std::process::id());
    let mut ends = Vec::new();
    let mut ports = Vec::new();
    // Outside the addresses that the IOKernel chooses.
    for place in 0..loads.len() as u8 {
        let (name, ip) = (format!("generator-{place}"), Ipv4Addr::new(10, 77, 0, 250 - place));
        let (port, generator) = port::named_port(&name, Medium::Datagram, ip)?;
        ports.push(port);
        ends.push((generator, Ipv4Addr::new(10, 77, 0, 200 + place)));
    }
    let cores = &testbed.cores;
    let config = lending(&socket, cores.polling, &cores.managed);
    // After the generators: ends before their ports have no other end.
    let _iokernel = Embedded::with_ports(config, ports, Some(cores.usable.clone()))?;
    let program = Program::spin(speed, SERVICE.parse()?);
    let mut parties = Vec::new();
    for ((generator, ip), &load) in ends.iter().zip(loads) {
        let service = start(testbed, &program, &socket, *ip)?;
        let server = SocketAddrV4::new(*ip, SERVICE_PORT);
        parties.push(Party { generator, service, server, plan: plan(load, cores, counted)?, load });
    }
    for (party, seed) in parties.iter().zip(1..) {
        let load = Load { protocol: Arc::clone(&program.protocol), seed, preload: false };
        party.generator.begin(testbed, &party.plan, &load, party.server)?;
    }
    let finish = |party: Party<'_>| {
        let figures = party.generator.finish(testbed, &party.plan)?.summary.figures();
        party.service.end()?;
        Ok(Share {
            load: party.load,
            p50_us: figures.p50_us,
            p99_us: figures.p99_us,
            win_p999_us: figures.win_p999_us,
            answered: figures.achieved_rps / figures.offered_rps,
        })
    };
    parties.into_iter().map(finish).collect()
}

/// Starts a service at `ip` that may use all shared cores.
fn start(testbed: &Testbed, program: &Program, socket: &str, ip: Ipv4Addr) -> anyhow::Result<Service> {
    let Prepared { arguments, folder } = program.prepare(SERVICE_PORT)?;
    let settings = vec![
        ("TAILWATER_IOKERNEL", socket.to_owned()),
        ("TAILWATER_NAME", format!("{}-{}", program.app, ip.octets()[3])),
        ("TAILWATER_KTHREADS", testbed.cores.managed.len().to_string()),
        ("TAILWATER_IP", ip.to_string()),
    ];
    let spec = Spec { app: program.app, arguments, settings, raise: true, ..Spec::default() };
    Ok(Service::start(&spec, &testbed.interrupt)?.with_folder(folder))
}

fn plan(load: f64, cores: &CorePlan, counted: Duration) -> anyhow::Result<Plan> {
    let rate = Rate::new(load / 100.0 * CORE_RPS * cores.managed.len() as f64)?;
    let schedule = LoadSchedule::constant(rate, (WARM_UP + counted).as_nanos() as u64);
    Ok(Plan { warm_up_ns: WARM_UP.as_nanos() as u64, flows: 64, ..Plan::new(schedule, SERVICE.parse()?) })
}

fn describe(report: &Report) -> String {
    let mut table = Table::new("services | load | p50 us | p99 us | win p99.9 us | answered");
    for Situation { services } in &report.situations {
        for (place, share) in services.iter().enumerate() {
            let count = if place == 0 { services.len().to_string() } else { String::new() };
            let load = format!("{} %", share.load);
            let shown = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), number);
            let latencies = [share.p50_us, share.p99_us, share.win_p999_us].map(shown);
            let answered = format!("{:.3}", share.answered);
            table.row([count, load].into_iter().chain(latencies).chain([answered]));
        }
    }
    format!("{table}\n{SERVICE} of work for each request; loads in percent of the shared cores.\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(p50_us: f64) -> Share {
        let times = |factor: f64| Some(factor * p50_us);
        Share { load: 25.0, p50_us: times(1.0), p99_us: times(2.0), win_p999_us: times(3.0), answered: 1.0 }
    }

    #[test]
    fn each_service_has_the_medians_of_its_own_rounds() {
        let rounds = [[9.0, 1.0], [1.0, 2.0], [5.0, 3.0]].map(|round| round.map(share).to_vec());
        assert_eq!(medians(&rounds), [share(5.0), share(2.0)]);
        assert!(medians(&[]).is_empty());
    }

    #[test]
    fn a_round_without_a_figure_counts_as_the_slowest() {
        let none = Share { p50_us: None, ..share(1.0) };
        let of = |rounds: &[&Share]| {
            Share::median(&rounds.iter().map(|&share| share.clone()).collect::<Vec<_>>()).unwrap().p50_us
        };
        assert_eq!(of(&[&share(4.0), &none, &share(3.0)]), Some(4.0));
        assert_eq!(of(&[&none, &none, &share(3.0)]), None);
    }

    #[test]
    fn a_situation_has_a_row_for_each_service() {
        let report = Report { situations: vec![Situation { services: vec![share(5.0), share(6.0)] }] };
        let text = describe(&report);
        assert_eq!(text.lines().filter(|line| line.contains("25 %")).count(), 2, "{text}");
    }
}
