//! The soak: rounds of churn, bulk in both directions and requests, after which nothing may be
//! left.
//!
//! Owns the checks. Every order completes and no connection fails, although the client loses one
//! frame in two hundred in either direction during every second round. After each round the service
//! has no connection left, and no more memory than after the first. The switch refuses no frame of
//! either side.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use anyhow::Result;
use tailwater_loadgen::tcp::{Order, Outcome};

use super::figures::Figures;
use super::host::Host;
use super::idle::resident_bytes;
use super::rounds::{WAIT, open_lossy};
use super::terms::{DISCARD, ECHO, GENERATE, REQUEST, value_of};
use tailwater_testbed::child::ChildProcess;
use tailwater_testbed::interrupt::Interrupt;

/// Length of each part of a round.
const PART: Duration = Duration::from_secs(1);
/// Connections of a round's parts.
const CONCURRENT: u32 = 256;
const BULK: u32 = 16;
/// Maximum growth of the service's memory between the first round and the last: allocators keep
/// some.
const SLACK_BYTES: u64 = 8 << 20;
/// Frames of a million that the client loses in lossy rounds.
const LOSS: u32 = 5_000;
/// How long the service may take to notice the end of all connections.
const GONE: Duration = Duration::from_secs(20);
/// How long buffers and TIME-WAIT may keep memory.
const SETTLE: Duration = Duration::from_secs(3);

/// The C allocator's thresholds, fixed at their initial values. By default they grow with the
/// largest freed block, and megabytes of freed buffers stay in the process (mallopt(3),
/// `M_MMAP_THRESHOLD`).
const GIVES_BACK: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "131072"), ("MALLOC_TRIM_THRESHOLD_", "131072")];

/// Soaks for `lasts` and prints a line for each round.
pub(super) fn run(lasts: Duration, interrupt: &Interrupt) -> Result<Figures> {
    // The service inherits it: where the system gives all programs huge pages, its memory grows
    // without an allocation when pages are collapsed into a huge one. A refusal shows in the
    // figures.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let host = Host::start()?;
    let mut service = host.serve_with(&GIVES_BACK, interrupt)?;
    let end = Instant::now() + lasts;
    let (mut figures, mut first, mut total) = (Figures::default(), None, Total::default());
    while first.is_none() || Instant::now() < end {
        round(&host, &mut total)?;
        interrupt.check()?;
        check_left(&host, &mut service, interrupt)?;
        let memory = settled(&service, interrupt)?;
        let first = *first.get_or_insert(memory);
        writeln!(
            stdout(),
            "{total}, {} KiB resident (after the first round: {})",
            memory >> 10,
            first >> 10
        )?;
        anyhow::ensure!(memory <= first + SLACK_BYTES, "the service grew from {first} to {memory} bytes");
    }
    figures.add("soak_s", lasts.as_secs_f64());
    figures.add("soak_connections", total.connections as f64);
    figures.add("soak_bytes", total.bytes as f64);
    figures.add("soak_retransmissions", total.retransmissions as f64);
    Ok(figures)
}

#[derive(Debug, Default)]
struct Total {
    rounds: u64,
    connections: u64,
    bytes: u64,
    retransmissions: u64,
}

impl std::fmt::Display for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "round {}: {} connections, {} MiB, {} segments sent again",
            self.rounds,
            self.connections,
            self.bytes >> 20,
            self.retransmissions
        )
    }
}

impl Total {
    fn add(&mut self, what: &str, outcome: &Outcome) -> Result<()> {
        anyhow::ensure!(outcome.failed == 0, "{} connections failed during {what}", outcome.failed);
        self.bytes += outcome.bytes;
        self.retransmissions += outcome.retransmissions;
        Ok(())
    }
}

fn round(host: &Host, total: &mut Total) -> Result<()> {
    let loss = if total.rounds % 2 == 1 { LOSS } else { 0 };
    open_lossy(host, ECHO, CONCURRENT, loss)?;
    let echo = Order::Echo { bytes: REQUEST, outstanding: CONCURRENT, warm_up: Duration::ZERO, lasts: PART };
    total.add("requests", &host.run(echo)?)?;
    let churn = host.run(Order::Churn { concurrent: CONCURRENT, bytes: REQUEST, lasts: PART })?;
    total.connections += churn.completed + u64::from(CONCURRENT + 2 * BULK);
    total.add("churn", &churn)?;
    open_lossy(host, DISCARD, BULK, loss)?;
    total.add("upload", &host.run(Order::Upload { lasts: PART })?)?;
    open_lossy(host, GENERATE, BULK, loss)?;
    total.add("download", &host.run(Order::Download { lasts: PART })?)?;
    // Resets the connections that still send.
    open_lossy(host, ECHO, 1, 0)?;
    total.add("closing", &host.run(Order::Close { wait: WAIT })?)?;
    total.rounds += 1;
    Ok(())
}

/// Fails if the service keeps a connection, or the switch refused a frame.
fn check_left(host: &Host, service: &mut ChildProcess, interrupt: &Interrupt) -> Result<()> {
    let deadline = Instant::now() + GONE;
    loop {
        service.ask()?;
        let open = value_of(&service.read_line(interrupt)?, "open")?;
        if open == 0.0 {
            break;
        }
        anyhow::ensure!(Instant::now() < deadline, "the service still has {open} connections");
        interrupt.sleep_until(Instant::now() + Duration::from_millis(20))?;
    }
    let stats = host.stats().to_json();
    for counter in ["dropped_malformed", "dropped_spoofed"] {
        let refused = stats["switch"][counter].as_u64();
        anyhow::ensure!(refused == Some(0), "{counter} is {refused:?} in {stats:#}");
    }
    Ok(())
}

/// Returns the service's memory after [`SETTLE`], in which it frees unused buffers.
fn settled(service: &ChildProcess, interrupt: &Interrupt) -> Result<u64> {
    interrupt.sleep_until(Instant::now() + SETTLE)?;
    resident_bytes(service)
}
