//! `tailwater-lab bench events`: an echo service that runs to completion, beside the same service
//! on user threads, as futures, and on the kernel's epoll; and hyper on Tailwater beside hyper on
//! Tokio.
//!
//! Owns the rounds and the report. Loops, threads and futures are of one process on the managed
//! core and take turns; the client is that of `bench tcp`. Every figure is the median over the
//! rounds.

use std::collections::BTreeMap;
use std::io::{Write, stderr, stdout};

use anyhow::{Context, Result};
use serde::Serialize;
use tailwater_loadgen::tcp::Order;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::progress;
use tailwater_testbed::table::{Table, number};

use super::figures::Figures;
use super::hello::{BUILD, Hello};
use super::host::Host;
use super::kernel;
use super::rounds::{LASTS, WAIT, WARM_UP, ask_many, echo, open, pair};
use super::terms::{ASYNC, BATCHES, CONNECTIONS, ECHO, EVENTS, LARGE, LARGE_COPIED, LARGE_SHARED, REQUEST};

/// The size of a round that a loop has by default.
const DEFAULT: usize = 64;
/// Names of the figures by size, in the order of [`BATCHES`].
const BATCH_KEYS: [&str; BATCHES.len()] = [
    "batch_1",
    "batch_2",
    "batch_4",
    "batch_8",
    "batch_16",
    "batch_32",
    "batch_64",
    "batch_128",
    "batch_256",
];

/// Measure an echo on event loops, next to user threads, futures and epoll; hyper next to Tokio's
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "echo: 64 connections, one request of 64 bytes outstanding on each, the service on one core; the kernel
gets both. rr: one connection. async: a task for each connection. batch: the echo by the most conditions of a round.
large: the same connections and requests, answers of 16 KiB by an event loop, which copies them into the send buffer or
hands over shared bytes.
hyper: `hello` over HTTP/1.1 and 64 connections; server and client are programs on the managed core, or with Tokio on a
core each over the loopback device; tap: the client is Linux's, behind a TAP device, which takes root. hyper's figures
need tailwater-hello beside this program:
cargo build --release --manifest-path tests/hello/Cargo.toml --target-dir target

Examples:
  tailwater-lab bench events
  tailwater-lab bench events --rounds 11 --json events.json"
)]
pub struct EventsArgs {
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
}

/// The figures of a run: medians.
#[derive(Debug, Serialize)]
pub struct Report {
    echo_rps: Ways,
    rr_p50_us: Ways,
    /// Echoes a second by the size of a round.
    batch: BTreeMap<usize, f64>,
    async_rr_p50_us: f64,
    large_rps: Large,
    /// Answers a second of hyper with both ends on Tailwater, and with both on Tokio; null without
    /// `tailwater-hello`.
    hyper_rps: Option<f64>,
    tokio_hyper_rps: Option<f64>,
    hyper_p50_us: Option<f64>,
    tokio_hyper_p50_us: Option<f64>,
    /// The same with the server on Tailwater and a client of Linux behind a TAP device; null
    /// without the privileges for that.
    hyper_tap_rps: Option<f64>,
    /// All figures, with their spread.
    figures: Figures,
}

/// A figure of each service.
#[derive(Debug, Serialize)]
struct Ways {
    events: f64,
    threads: f64,
    #[serde(rename = "async")]
    tasks: f64,
    kernel_epoll: f64,
}

/// Answers of 16 KiB a second, by what becomes of their bytes when they are handed over.
#[derive(Debug, Serialize)]
struct Large {
    copied: f64,
    shared: f64,
}

impl Large {
    fn of(figures: &Figures) -> Self {
        let [copied, shared] =
            ["large_copied_rps", "large_shared_rps"].map(|key| figures.median(key).unwrap_or(f64::NAN));
        Self { copied, shared }
    }
}

impl Ways {
    fn of(figures: &Figures, keys: [&str; 4]) -> Self {
        let [events, threads, tasks, kernel_epoll] = keys.map(|key| figures.median(key).unwrap_or(f64::NAN));
        Self { events, threads, tasks, kernel_epoll }
    }
}

/// Measures and prints.
pub fn run(args: &EventsArgs) -> Result<Report> {
    let interrupt = Interrupt::catch()?;
    let mut figures = Figures::default();
    let hello = Hello::find();
    if hello.is_none() {
        writeln!(
            stderr(),
            "skipped: hyper: there is no tailwater-hello beside this program or in PATH: {BUILD}"
        )?;
    }
    for _ in progress::over("events", 0..args.rounds) {
        services(&mut figures, &interrupt)?;
        baseline(&mut figures)?;
        interrupt.check()?;
        if let Some(hello) = &hello {
            http(hello, &mut figures, &interrupt)?;
        }
    }
    let batch = BATCHES.into_iter().zip(BATCH_KEYS);
    let rr_p50_us = Ways::of(&figures, ["events_rr_us", "threads_rr_us", "async_rr_us", "kernel_rr_us"]);
    let report = Report {
        echo_rps: Ways::of(&figures, ["events_rps", "threads_rps", "async_rps", "kernel_epoll_rps"]),
        async_rr_p50_us: rr_p50_us.tasks,
        rr_p50_us,
        large_rps: Large::of(&figures),
        batch: batch.filter_map(|(size, key)| Some((size, figures.median(key)?))).collect(),
        hyper_rps: figures.median("hyper_rps"),
        tokio_hyper_rps: figures.median("tokio_hyper_rps"),
        hyper_p50_us: figures.median("hyper_p50_us"),
        tokio_hyper_p50_us: figures.median("tokio_hyper_p50_us"),
        hyper_tap_rps: figures.median("hyper_tap_rps"),
        figures,
    };
    write!(stdout(), "{}", describe(&report))?;
    Ok(report)
}

fn services(figures: &mut Figures, interrupt: &Interrupt) -> Result<()> {
    let host = Host::start()?;
    let _service = host.serve(true, interrupt)?;
    let loops: Vec<(u16, &str)> = (EVENTS..).zip(BATCH_KEYS).collect();
    let default = BATCHES.iter().position(|&size| size == DEFAULT).context("a default size")?;
    let ports = [
        (loops[default].0, "events_rr_us", "events_rps"),
        (ECHO, "threads_rr_us", "threads_rps"),
        (ASYNC, "async_rr_us", "async_rps"),
    ];
    for (port, rr, rps) in ports {
        open(&host, port, 1)?;
        figures.add(rr, host.run(echo(1))?.latency_us(0.5));
        host.run(Order::Close { wait: WAIT })?;
        figures.add(rps, throughput(&host, port, echo(CONNECTIONS))?);
    }
    for (port, key) in loops {
        figures.add(key, throughput(&host, port, echo(CONNECTIONS))?);
        interrupt.check()?;
    }
    for (port, key) in [(LARGE_COPIED, "large_copied_rps"), (LARGE_SHARED, "large_shared_rps")] {
        let (warm_up, lasts) = (WARM_UP, LASTS);
        let fetch = Order::Fetch { bytes: REQUEST, answer: LARGE, outstanding: CONNECTIONS, warm_up, lasts };
        figures.add(key, throughput(&host, port, fetch)?);
    }
    Ok(())
}

/// Returns the answers a second of the service at `port` to the requests of `order`.
fn throughput(host: &Host, port: u16, order: Order) -> Result<f64> {
    let outcome = ask_many(host, port, order)?;
    host.run(Order::Close { wait: WAIT })?;
    Ok(outcome.rate())
}

fn baseline(figures: &mut Figures) -> Result<()> {
    let pair = pair()?;
    figures.add("kernel_epoll_rps", kernel::echo(pair, CONNECTIONS, REQUEST, WARM_UP, LASTS)?.rate());
    figures.add("kernel_rr_us", kernel::echo(pair, 1, REQUEST, WARM_UP, LASTS)?.latency_us(0.5));
    Ok(())
}

/// Measures hyper in all three ways.
fn http(hello: &Hello, figures: &mut Figures, interrupt: &Interrupt) -> Result<()> {
    let own = hello.on_tailwater(interrupt).context("hyper on Tailwater")?;
    figures.add("hyper_rps", own.rps);
    figures.add("hyper_p50_us", own.p50_us);
    let tokio = hello.on_tokio(interrupt).context("hyper on Tokio")?;
    figures.add("tokio_hyper_rps", tokio.rps);
    figures.add("tokio_hyper_p50_us", tokio.p50_us);
    match hello.over_tap(interrupt) {
        Ok(answers) => figures.add("hyper_tap_rps", answers.rps),
        Err(error) => {
            interrupt.check()?;
            writeln!(stderr(), "skipped: hyper over TAP: {error:#}")?;
        }
    }
    Ok(())
}

fn describe(report: &Report) -> String {
    let mut table = Table::new(
        "echo | event loop | user threads | async | kernel, epoll | loop to threads | \
         async to threads | loop to kernel",
    );
    let mut row = |name: &str, ways: &Ways, unit: f64| {
        let Ways { events, threads, tasks, kernel_epoll } = *ways;
        let ratios = [events / threads, tasks / threads, events / kernel_epoll];
        let cells =
            [events, threads, tasks, kernel_epoll].map(|figure| figure / unit).into_iter().chain(ratios);
        table.row([name.to_owned()].into_iter().chain(cells.map(number)));
    };
    row("64 connections, 1000/s", &report.echo_rps, 1e3);
    row("1 connection, p50 us", &report.rr_p50_us, 1.0);
    let mut batches = Table::new("conditions in a round | 1000/s");
    for (size, rate) in &report.batch {
        batches.row([size.to_string(), number(rate / 1e3)]);
    }
    let mut large = Table::new("answers of 16 KiB | copied | shared | shared to copied");
    let Large { copied, shared } = report.large_rps;
    let mut row = |name: &str, unit: f64| {
        let figures = [copied * unit, shared * unit, shared / copied].map(number);
        large.row([name.to_owned()].into_iter().chain(figures));
    };
    row("1000/s", 1e-3);
    row("Gbit/s", LARGE as f64 * 8e-9);
    let mut text = format!("{table}\n{batches}\n{large}");
    if let (Some(own), Some(tokio)) = (report.hyper_rps, report.tokio_hyper_rps) {
        let mut table = Table::new("hyper, 64 connections | Tailwater | Tokio | ratio | Tailwater over TAP");
        let cell = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), number);
        let tap = cell(report.hyper_tap_rps.map(|rps| rps / 1e3));
        table.row(["1000/s".to_owned(), number(own / 1e3), number(tokio / 1e3), number(own / tokio), tap]);
        let p50s = [report.hyper_p50_us, report.tokio_hyper_p50_us];
        let [own, tokio] = p50s.map(cell);
        table.row(["p50 us".to_owned(), own, tokio, String::new(), String::new()]);
        text += &format!("\n{table}");
    }
    text
}
