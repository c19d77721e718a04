//! Messages of several lengths, several messages on a connection, connections over the number of
//! cores, and rounds of an event loop: the points of IX's figures 4, 5 and 6b, for `tailwater-lab
//! reproduce`.
//!
//! Owns a round of each: on Tailwater a service started anew, all points of the round in turn; on
//! Linux a client and a server thread over the loopback device for each point, on a core each
//! ([`kernel`], [`calls`]). The services answer a message when all of it has arrived.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tailwater_loadgen::tcp::{Order, Outcome};
use tailwater_shm::clock;
use tailwater_testbed::account::{self, Shares, Snapshot, Tracepoints};
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::usable_cores;

use super::host::Host;
use super::many::{Length, OUTSTANDING};
use super::rounds::{WAIT, ask_once, open, pair};
use super::terms::{CONNECTIONS, COUNTED, EVENTS, LOOPS, REQUEST, WHOLE, WHOLE_EVENTS, port_for, value_of};
use super::{calls, kernel};

pub use super::terms::{CONNECTIONS as MANY_CONNECTIONS, MAX_EVENT_MESSAGE, MESSAGES};

/// Measurements of a point of which the first with an answer counts: a virtual machine may stand
/// still for the whole of one.
const TRIES: usize = 20;

/// Measures a message of each length, one at a time over one connection, there and back, to a
/// service on a user thread.
///
/// # Errors
/// If a process does not start, if a connection is not established or fails, or on a signal.
pub fn ping_pong(
    lengths: impl Iterator<Item = usize>,
    length: Length,
    interrupt: &Interrupt,
    each: impl FnMut(usize, &Outcome),
) -> Result<()> {
    echo_each(lengths, (WHOLE, 1), length, interrupt, each)
}

/// Measures the same over the kernel's loopback device; both sides block, or both spin.
pub fn ping_pong_on_linux(bytes: usize, spins: bool, length: Length) -> Result<Outcome> {
    let Length { warm_up, lasts } = length;
    kernel::request_response(pair()?, spins, bytes, warm_up, lasts)
}

/// Measures messages of each length, up to [`MAX_EVENT_MESSAGE`], one outstanding on each of many
/// connections to an event loop.
pub fn echo(
    lengths: impl Iterator<Item = usize>,
    length: Length,
    interrupt: &Interrupt,
    each: impl FnMut(usize, &Outcome),
) -> Result<()> {
    echo_each(lengths, (WHOLE_EVENTS, CONNECTIONS), length, interrupt, each)
}

/// Measures the same with one epoll thread on either side.
pub fn echo_on_linux(bytes: usize, length: Length) -> Result<Outcome> {
    kernel::echo(pair()?, CONNECTIONS, bytes, length.warm_up, length.lasts)
}

fn echo_each(
    lengths: impl Iterator<Item = usize>,
    (first_port, connections): (u16, u32),
    length: Length,
    interrupt: &Interrupt,
    mut each: impl FnMut(usize, &Outcome),
) -> Result<()> {
    let host = Host::start()?;
    let _service = host.serve(true, interrupt)?;
    let Length { warm_up, lasts } = length;
    for bytes in lengths {
        open(&host, port_for(first_port, bytes)?, connections)?;
        let echoed = host.run(Order::Echo { bytes, outstanding: connections, warm_up, lasts })?;
        ensure!(echoed.failed == 0, "{} connections failed with messages of {bytes} bytes", echoed.failed);
        each(bytes, &echoed);
        host.run(Order::Close { wait: WAIT })?;
        interrupt.check()?;
    }
    Ok(())
}

/// Measures connections that are opened, send so many messages of 64 bytes, one after the other,
/// and are reset, many at a time, to an event loop.
pub fn connections(
    counts: impl Iterator<Item = u32>,
    length: Length,
    interrupt: &Interrupt,
    mut each: impl FnMut(u32, &Outcome),
) -> Result<()> {
    let host = Host::start()?;
    let _service = host.serve(true, interrupt)?;
    // The loop with the default bound.
    open(&host, EVENTS + 6, 1)?;
    for messages in counts {
        each(messages, &calls_of(&host, messages, length)?);
        interrupt.check()?;
    }
    Ok(())
}

/// Measures connections to the service at the last port that was opened.
fn calls_of(host: &Host, messages: u32, length: Length) -> Result<Outcome> {
    let Length { warm_up, lasts } = length;
    let order = Order::Calls { concurrent: CONNECTIONS, messages, bytes: REQUEST, warm_up, lasts };
    let echoed = host.run(order)?;
    ensure!(echoed.failed == 0, "{} connections of {messages} messages failed", echoed.failed);
    Ok(echoed)
}

/// Measures connections of one message each, many at a time, to an event loop on each of `cores`
/// cores beside the client's.
pub fn connections_on_cores(cores: usize, length: Length, interrupt: &Interrupt) -> Result<Outcome> {
    let host = Host::start()?;
    let _service = host.serve_on(cores, interrupt)?;
    open(&host, LOOPS, 1)?;
    let echoed = calls_of(&host, 1, length)?;
    interrupt.check()?;
    Ok(echoed)
}

/// Measures what [`connections_on_cores`] does, with an epoll thread on each of those cores, all on
/// one listener, and one on the client's.
pub fn connections_on_linux_cores(cores: usize, length: Length) -> Result<Outcome> {
    let usable = usable_cores();
    let (client, servers) = usable.split_first().context("no core")?;
    let servers = servers.get(..cores).with_context(|| format!("there are no {cores} cores to serve"))?;
    calls::measure((*client, servers), CONNECTIONS, 1, REQUEST, length)
}

/// Returns how many cores can serve beside the client's; 0 on one core.
pub fn max_serving_cores() -> usize {
    usable_cores().len().saturating_sub(1)
}

/// Measures what [`connections`] does, with one epoll thread on either side.
pub fn connections_on_linux(messages: u32, length: Length) -> Result<Outcome> {
    let [client, server] = pair()?;
    calls::measure((client, &[server]), CONNECTIONS, messages, REQUEST, length)
}

/// A point of the rounds of an event loop.
#[derive(Debug)]
pub struct Rounds {
    /// What the client counted.
    pub echoed: Outcome,
    /// Mean number of conditions of a round.
    pub conditions: f64,
    /// Cycles of the service's core for each condition, that is for each message, without those in
    /// which it polled without work.
    pub cycles: f64,
}

/// Returns the part of a core's time in which a service worked on it.
fn busy(shares: &Shares) -> f64 {
    shares.service_threads + shares.service_stack + shares.service_scheduler
}

/// Measures echoes over each number of established connections with each number of outstanding
/// requests, and rounds and core of the event loop meanwhile.
///
/// # Errors
/// As [`ping_pong`]; if the IOKernel keeps no account.
pub fn rounds(
    points: impl Iterator<Item = (u32, u32)>,
    length: Length,
    interrupt: &Interrupt,
    mut each: impl FnMut((u32, u32), &Rounds),
) -> Result<()> {
    let host = Host::start()?;
    let mut service = host.serve(true, interrupt)?;
    let mut counted = || -> Result<[f64; 2]> {
        service.tell("rounds")?;
        let rounds = value_of(&service.read_line(interrupt)?, "rounds")?;
        Ok([rounds, value_of(&service.read_line(interrupt)?, "conditions")?])
    };
    for (connections, outstanding) in points {
        open(&host, COUNTED, connections)?;
        // First accesses to the memory of a connection are not counted.
        ask_once(&host, connections, OUTSTANDING)?;
        let Length { warm_up, lasts } = length;
        host.run(Order::Echo { bytes: REQUEST, outstanding, warm_up: warm_up / 2, lasts: warm_up / 2 })?;
        let mut measure = || -> Result<Option<Rounds>> {
            let (before, from) =
                (counted()?, Snapshot::new(&host.stats().to_json(), &Tracepoints::unused())?);
            let began = clock::now();
            let order = Order::Echo { bytes: REQUEST, outstanding, warm_up: Duration::ZERO, lasts };
            let echoed = host.run(order)?;
            let elapsed = clock::now() - began;
            let (to, after) = (Snapshot::new(&host.stats().to_json(), &Tracepoints::unused())?, counted()?);
            ensure!(echoed.failed == 0, "{} of {connections} connections failed", echoed.failed);
            let busy: f64 = account::between(&from, &to).iter().map(busy).sum();
            let [rounds, conditions] = [after[0] - before[0], after[1] - before[1]];
            let cycles = busy * elapsed as f64 / conditions;
            Ok((rounds > 0.0).then(|| Rounds { echoed, conditions: conditions / rounds, cycles }))
        };
        let measured = (0..TRIES).find_map(|_| measure().transpose()).transpose()?;
        let measured =
            measured.context("the service answered nothing: the machine stands still for too long")?;
        each((connections, outstanding), &measured);
        host.run(Order::Close { wait: WAIT })?;
        interrupt.check()?;
    }
    Ok(())
}
