//! `tailwater load`: the open-loop generator over kernel UDP sockets, against any spin server.
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
use tailwater_loadgen::kernel_udp::{Target, run as generate};
use tailwater_loadgen::{Plan, Report};
use tailwater_workload::units::parse_duration_ns;
use tailwater_workload::{ArrivalProcess, LoadSchedule, Rate, ServiceTime};

use crate::table::{Table, number};

/// Generate open-loop load against a spin server over UDP
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  tailwater load 127.0.0.1:5000 --rate 50k --duration 10s
  tailwater load 10.77.0.2:5000 --rate 20k --service bimodal:0.9*5us+0.1*55us --core 0 --json load.json
  tailwater load 127.0.0.1:5000 --schedule 1s@10k,100ms@200k,1s@10k

Requests are due at times drawn beforehand, and latency counts from the time a request was due, not from when it was
sent. SERVICE is one of const:10us, exp:10us, bimodal:0.9*5us+0.1*55us, lognormal:10us,sigma=1.5,
pareto:10us,alpha=2.1.")]
pub struct LoadArgs {
    /// Address and UDP port of the server
    server: SocketAddr,
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
    /// Source ports to send from
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
    let report = generate(&plan, args.seed, &target, &stop)?.report();
    print!("{}", describe(&report));
    if let Some(path) = &args.json {
        let document =
            serde_json::json!({ "server": args.server, "seed": args.seed, "plan": plan, "report": report });
        std::fs::write(path, serde_json::to_string_pretty(&document)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
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
