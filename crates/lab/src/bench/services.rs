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
use std::net::Ipv4Addr;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use tailwater_loadgen::Plan;
use tailwater_loadgen::protocol::Medium;
use tailwater_testbed::bed::Testbed;
use tailwater_testbed::child::Service;
use tailwater_testbed::embedded::{Embedded, lending};
use tailwater_testbed::machine::Machine;
use tailwater_testbed::port::{self, Generator};
use tailwater_testbed::program::Program;
use tailwater_testbed::progress;
use tailwater_testbed::table::{Table, number};

use super::{medians, spin};

/// Work of a request, and how many of them one core serves in a second.
const SERVICE: &str = "exp:10us";
const CORE_RPS: f64 = 100_000.0;
/// First part of each load that is not counted: the loads begin one after the other.
const WARM_UP: Duration = Duration::from_millis(500);
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Share {
    /// In percent of the shared cores.
    load: f64,
    /// `None`: no round has such a figure, since too few were answered.
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    win_p999_us: Option<f64>,
    /// Requests answered per second, over those due.
    answered: f64,
}

/// Measures, prints, and returns the figures.
pub fn run(args: &ServicesArgs, machine: &Machine) -> anyhow::Result<Report> {
    let testbed = spin::testbed(machine, Duration::ZERO)?;
    let speed = testbed.calibrate()?;
    let mut rounds = vec![Vec::new(); SITUATIONS.len()];
    for _ in progress::over("services", 0..args.rounds) {
        for (loads, rounds) in SITUATIONS.iter().zip(&mut rounds) {
            rounds.push(measure(&testbed, speed, loads, Duration::from_secs(args.seconds))?);
        }
    }
    let situation = |rounds: &Vec<Vec<Share>>| anyhow::Ok(Situation { services: medians(rounds)? });
    let report = Report { situations: rounds.iter().map(situation).collect::<Result<_, _>>()? };
    write!(stdout(), "{}", describe(&report))?;
    Ok(report)
}

/// One service, its generator and its load.
struct Party<'a> {
    generator: &'a Generator,
    service: Service,
    ip: Ipv4Addr,
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
        let name = format!("{}-{}", program.app, ip.octets()[3]);
        let service = spin::start(testbed, &program, (&socket, &name, *ip), &[])?;
        let rps = load / 100.0 * CORE_RPS * cores.managed.len() as f64;
        let plan = spin::plan(SERVICE, rps, WARM_UP, counted)?;
        parties.push(Party { generator, service, ip: *ip, plan, load });
    }
    for (party, seed) in parties.iter().zip(1..) {
        spin::begin(testbed, party.generator, &program, &party.plan, (party.ip, seed))?;
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
        let mut rounds = [[9.0, 1.0], [1.0, 2.0], [5.0, 3.0]].map(|round| round.map(share).to_vec());
        rounds[1][0].p50_us = None;
        let merged = medians(&rounds).unwrap();
        assert_eq!((merged[0].p50_us, &merged[1]), (Some(9.0), &share(2.0)), "the upper one of two");
    }

    #[test]
    fn a_situation_has_a_row_for_each_service() {
        let report = Report { situations: vec![Situation { services: vec![share(5.0), share(6.0)] }] };
        let text = describe(&report);
        assert_eq!(text.lines().filter(|line| line.contains("25 %")).count(), 2, "{text}");
    }
}
