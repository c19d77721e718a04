//! A round of each measurement.

use std::time::Duration;

use anyhow::{Context, Result};
use tailwater_loadgen::tcp::{Order, Outcome, STAGES};
use tailwater_tcp::Config;

use super::figures::Figures;
use super::host::Host;
use super::kernel;
use super::terms::{CONNECTIONS, DISCARD, ECHO, GENERATE, REQUEST, SERVICE_IP, STAMP, at, value_of};
use tailwater_testbed::interrupt::Interrupt;

/// Length of each measurement.
pub(super) const LASTS: Duration = Duration::from_millis(300);
pub(super) const WARM_UP: Duration = Duration::from_millis(50);
/// How long connecting and closing may take on a busy machine, and how much longer for each
/// connection.
pub(super) const WAIT: Duration = Duration::from_secs(60);
pub(super) const WAIT_EACH: Duration = Duration::from_micros(500);

/// Concurrent connections of the baseline's churn: more threads are no faster.
const CHURN_LANES: u32 = 16;

/// Figures of the stages, in the order of [`tailwater_loadgen::tcp::STAGES`].
const STAGE_KEYS: [&str; STAGES.len()] = [
    "cycles_client_tcp_out",
    "cycles_switch_in",
    "cycles_ring_tcp_in_wake",
    "cycles_application",
    "cycles_tcp_out",
    "cycles_ring_switch_out",
    "cycles_client_tcp_in",
];

/// Counters that a sender prints after its rate, one a line, and the names of their figures.
const BULK_COUNTERS: [(&str, &str); 3] =
    [("bulk_retransmissions", "again"), ("bulk_timeouts", "timeouts"), ("bulk_tail_probes", "probes")];

/// Connections of the bulk figures over several connections.
const BULK_CONNECTIONS: u32 = 16;

/// What a sender over these prints, one a line, and the names of the figures.
const SHARED_COUNTERS: [(&str, &str); 4] = [
    ("bulk_shared_gbps", "gbps"),
    ("bulk_shared_slowest_gbps", "slowest"),
    ("bulk_shared_retransmissions", "again"),
    ("bulk_shared_timeouts", "timeouts"),
];

/// Connections whose requests leave at once, as with `TCP_NODELAY`.
pub(super) fn config() -> Box<Config> {
    // Ports are reused soon: sequence numbers distinguish old segments from new.
    Box::new(Config { nodelay: true, time_wait: Duration::from_secs(1), ..Config::default() })
}

pub(super) fn open(host: &Host, port: u16, connections: u32) -> Result<Outcome> {
    open_lossy(host, port, connections, 0)
}

/// Opens connections as [`open`] does, and loses so many of a million frames from then on.
pub(super) fn open_lossy(host: &Host, port: u16, connections: u32, loss_per_million: u32) -> Result<Outcome> {
    let server = at(port);
    let wait = WAIT + WAIT_EACH * connections;
    let order = Order::Open { server, connections, config: config(), loss_per_million, wait };
    let outcome = host.run(order)?;
    anyhow::ensure!(
        outcome.completed == u64::from(connections),
        "{} of {connections} connections to port {port} were established: {:#}",
        outcome.completed,
        host.stats().to_json()
    );
    Ok(outcome)
}

/// Asks each of the open connections once, at most `outstanding` at a time; fails if one does not
/// answer.
pub(super) fn ask_once(host: &Host, connections: u32, outstanding: u32) -> Result<Outcome> {
    let wait = WAIT + WAIT_EACH * connections;
    let outcome = host.run(Order::EchoOnce { bytes: REQUEST, outstanding, wait })?;
    anyhow::ensure!(
        outcome.completed == u64::from(connections),
        "{} of {connections} connections answered: {:#}",
        outcome.completed,
        host.stats().to_json()
    );
    Ok(outcome)
}

/// Returns the order to echo with at most this many requests outstanding.
pub(super) fn echo(outstanding: u32) -> Order {
    Order::Echo { bytes: REQUEST, outstanding, warm_up: WARM_UP, lasts: LASTS }
}

/// Opens [`CONNECTIONS`] to the service at `port` and measures an order over all of them, which
/// stay open.
pub(super) fn ask_many(host: &Host, port: u16, order: Order) -> Result<Outcome> {
    open(host, port, CONNECTIONS)?;
    let outcome = host.run(order)?;
    anyhow::ensure!(outcome.failed == 0, "{} connections failed under load", outcome.failed);
    Ok(outcome)
}

/// Returns the cores of a client and a service on the kernel.
pub(super) fn pair() -> Result<[usize; 2]> {
    let cores = tailwater_testbed::machine::usable_cores();
    Ok([*cores.first().context("no core")?, *cores.last().context("no core")?])
}

/// Measures a client in a port and a service on the managed core.
pub(super) fn service(figures: &mut Figures, interrupt: &Interrupt) -> Result<()> {
    let host = Host::start()?;
    let _service = host.serve(true, interrupt)?;
    open(&host, ECHO, 1)?;
    let rr = host.run(echo(CONNECTIONS))?;
    figures.add("rr_p50_us", rr.latency_us(0.5));
    figures.add("rr_p99_us", rr.latency_us(0.99));
    host.run(Order::Close { wait: WAIT })?;
    open(&host, STAMP, 1)?;
    let stamped = host.run(Order::Stages { bytes: REQUEST, lasts: LASTS })?;
    if let Some(stages) = &stamped.stages {
        for (number, name) in STAGE_KEYS.into_iter().enumerate() {
            figures.add(name, stages.median(number) as f64);
        }
    }
    host.run(Order::Close { wait: WAIT })?;
    let many = ask_many(&host, ECHO, echo(CONNECTIONS))?;
    figures.add("echo_rps", many.rate());
    figures.add("echo_p50_us", many.latency_us(0.5));
    figures.add("echo_p99_us", many.latency_us(0.99));
    let churn = host.run(Order::Churn { concurrent: CONNECTIONS, bytes: REQUEST, lasts: LASTS })?;
    figures.add("churn_cps", churn.rate());
    open(&host, DISCARD, 1)?;
    host.run(Order::Upload { lasts: WARM_UP })?;
    figures.add("bulk_upload_gbps", host.run(Order::Upload { lasts: LASTS })?.gbps());
    open(&host, GENERATE, 1)?;
    host.run(Order::Download { lasts: WARM_UP })?;
    figures.add("bulk_download_gbps", host.run(Order::Download { lasts: LASTS })?.gbps());
    Ok(())
}

/// Measures two runtimes that share the managed core, then one alone.
pub(super) fn runtimes(figures: &mut Figures, interrupt: &Interrupt) -> Result<()> {
    let lasts = LASTS.as_millis().to_string();
    {
        let host = Host::start()?;
        let _service = host.serve(false, interrupt)?;
        let to = format!("{SERVICE_IP}:{DISCARD}");
        let mut sender = host.other(&["send", &to, &lasts])?;
        figures.add("bulk_gbps", value_of(&sender.read_line(interrupt)?, "gbps")?);
        for (key, name) in BULK_COUNTERS {
            figures.add(key, value_of(&sender.read_line(interrupt)?, name)?);
        }
        let dropped = host.stats().to_json()["switch"]["dropped_full"].as_u64();
        figures.add("bulk_ring_drops", dropped.context("no count of frames dropped")? as f64);
    }
    {
        let host = Host::start()?;
        let _service = host.serve(false, interrupt)?;
        let (to, connections) = (format!("{SERVICE_IP}:{DISCARD}"), BULK_CONNECTIONS.to_string());
        let mut senders = host.other(&["send-many", &to, &lasts, &connections])?;
        for (key, name) in SHARED_COUNTERS {
            figures.add(key, value_of(&senders.read_line(interrupt)?, name)?);
        }
    }
    let host = Host::start()?;
    let mut one = host.other(&["loopback", &lasts])?;
    figures.add("bulk_loopback_gbps", value_of(&one.read_line(interrupt)?, "gbps")?);
    Ok(())
}

/// Measures the same over the kernel's loopback device.
pub(super) fn kernel(figures: &mut Figures) -> Result<()> {
    let pair = pair()?;
    let spinning = kernel::request_response(pair, true, REQUEST, WARM_UP, LASTS)?;
    figures.add("kernel_rr_p50_us", spinning.latency_us(0.5));
    figures.add("kernel_rr_p99_us", spinning.latency_us(0.99));
    let blocking = kernel::request_response(pair, false, REQUEST, WARM_UP, LASTS)?;
    figures.add("kernel_rr_blocking_p50_us", blocking.latency_us(0.5));
    figures.add("kernel_rr_blocking_p99_us", blocking.latency_us(0.99));
    let many = kernel::echo(pair, CONNECTIONS, REQUEST, WARM_UP, LASTS)?;
    figures.add("kernel_echo_rps", many.rate());
    figures.add("kernel_echo_p50_us", many.latency_us(0.5));
    figures.add("kernel_echo_p99_us", many.latency_us(0.99));
    figures.add("kernel_churn_cps", kernel::churn(pair, CHURN_LANES, REQUEST, LASTS)?);
    figures.add("kernel_bulk_gbps", kernel::bulk(pair, WARM_UP, LASTS)?);
    Ok(())
}
