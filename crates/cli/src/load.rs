//! `tailwater load`: the open-loop generator over kernel sockets, against any server whose protocol it speaks.
//!
//! Owns: arguments, one table, one file. The measurement is the `tailwater-loadgen` crate's.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use tailwater_loadgen::kernel_tcp::{self, Connections};
use tailwater_loadgen::kernel_udp::{self, Load, Target};
use tailwater_loadgen::lanes::DEFAULT_PIPELINE;
use tailwater_loadgen::protocol::{Medium, from_name};
use tailwater_loadgen::{Measurement, Plan, Report};
use tailwater_workload::units::parse_duration_ns;
use tailwater_workload::{ArrivalProcess, LoadSchedule, Rate, ServiceTime};

use crate::table::{Table, number};

/// Generate open-loop load against a server, over UDP or TCP
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater load 127.0.0.1:5000 --rate 50k --duration 10s
  tailwater load 10.77.0.2:5000 --rate 20k --service bimodal:0.9*5us+0.1*55us --core 0 --json load.json
  tailwater load 127.0.0.1:5000 --schedule 1s@10k,100ms@200k,1s@10k
  tailwater load 127.0.0.1:11211 --tcp --connections 64 --protocol memcached:usr,keys=100000 --rate 100k

PROTOCOL is one of spin, echo:64 (bytes), memcached:usr or memcached:etc (with keys=10000,get=0.998), dns:FILE (a name a
line, and the address or nxdomain that is expected), rocks:keys=10000,value=64,scan=0.01,put=0,count=5000, or
http:/,/index.html.

Requests are due at times drawn beforehand, and latency counts from the time a request was due, not from when it was
sent. SERVICE is one of const:10us, exp:10us, bimodal:0.9*5us+0.1*55us, lognormal:10us,sigma=1.5,
pareto:10us,alpha=2.1.")]
pub struct LoadArgs {
    /// Address and port of the server
    server: SocketAddr,
    /// What to ask, and how to check the answers
    #[arg(long, default_value = "spin")]
    protocol: String,
    /// Over TCP instead of UDP; http always is
    #[arg(long)]
    tcp: bool,
    /// TCP connections to spread requests over
    #[arg(long, value_name = "N", default_value_t = 1)]
    connections: u32,
    /// Most requests unanswered on one TCP connection; further ones wait for one with room
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PIPELINE)]
    pipeline: usize,
    /// Do not store first what memcached and rocks read later
    #[arg(long)]
    no_preload: bool,
    /// Requests per second, for instance 50k
    #[arg(long, required_unless_present = "schedule", conflicts_with = "schedule")]
    rate: Option<Rate>,
    /// How long
    #[arg(long, value_parser = parse_duration_ns, default_value = "10s")]
    duration: u64,
    /// Rates over time, instead of --rate and --duration
    #[arg(long)]
    schedule: Option<LoadSchedule>,
    /// How long each request asks the server to work
    #[arg(long, default_value = "exp:10us")]
    service: ServiceTime,
    /// How arrivals are spread: poisson, const or onoff:on=1ms,off=9ms
    #[arg(long, default_value = "poisson")]
    arrivals: ArrivalProcess,
    /// First part of the load, which is not counted
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns, default_value = "500ms")]
    warm_up: u64,
    /// A request without a reply for this long is lost
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns, default_value = "200ms")]
    timeout: u64,
    /// UDP source ports to send from
    #[arg(long, value_name = "N", default_value_t = 1)]
    flows: u16,
    /// Fixes arrivals and service times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Core to run on
    #[arg(long, value_name = "CORE")]
    core: Option<usize>,
    /// Write all numbers as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Generates, prints and writes.
///
/// # Errors
/// When no server answers, the plan cannot be run, or the file cannot be written.
pub fn run(args: &LoadArgs) -> anyhow::Result<()> {
    let schedule = match (&args.schedule, args.rate) {
        (Some(schedule), _) => schedule.clone(),
        (None, rate) => LoadSchedule::constant(rate.context("--rate is missing")?, args.duration),
    };
    let plan = Plan {
        arrivals: args.arrivals,
        warm_up_ns: args.warm_up,
        timeout_ns: args.timeout,
        flows: args.flows,
        ..Plan::new(schedule, args.service.clone())
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }
    let target = Target { server: args.server, core: args.core, wait: Duration::from_secs(2) };
    let report = generate(args, &plan, &target, &stop)?.report();
    print!("{}", describe(&report));
    if let Some(path) = &args.json {
        let document = serde_json::json!({ "server": args.server, "protocol": args.protocol, "seed": args.seed, "plan": plan, "report": report });
        std::fs::write(path, serde_json::to_string_pretty(&document)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// One run over the transport that was asked for.
fn generate(args: &LoadArgs, plan: &Plan, target: &Target, stop: &AtomicBool) -> anyhow::Result<Measurement> {
    let tcp = args.tcp || args.protocol.split(':').next() == Some("http");
    let medium = if tcp { Medium::Stream } else { Medium::Datagram };
    let host = args.server.to_string();
    let read_file = |path: &str| std::fs::read_to_string(path);
    let protocol = from_name(&args.protocol, medium, &plan.service, &host, read_file)?;
    let load = Load { protocol, seed: args.seed, preload: !args.no_preload };
    if tcp {
        let connections = Connections { count: args.connections, pipeline: args.pipeline };
        Ok(kernel_tcp::run(plan, &load, connections, target, stop)?)
    } else {
        Ok(kernel_udp::run_protocol(plan, &load, target, stop)?)
    }
}

fn describe(report: &Report) -> String {
    let figures = &report.figures;
    let us = |value: Option<f64>| value.map_or("-".to_owned(), number);
    let mut table = Table::new(["latency us", "p50", "p90", "p99", "p99.9", "max", "windowed p99.9"]);
    table.row([
        String::new(),
        us(figures.p50_us),
        us(figures.p90_us),
        us(figures.p99_us),
        us(figures.p999_us),
        us(figures.max_us),
        us(figures.win_p999_us),
    ]);
    let mut text = format!(
        "{table}offered {}/s, achieved {}/s, {} lost, {} late; {} windows of 100 ms, {} of them cut by stalls of this core\n",
        number(figures.offered_rps),
        number(figures.achieved_rps),
        figures.lost,
        figures.late,
        figures.windows,
        figures.windows_cut
    );
    for warning in &report.warnings {
        text += &format!("warning: {warning}\n");
    }
    text
}
