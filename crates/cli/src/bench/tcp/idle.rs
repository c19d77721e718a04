//! Memory per idle connection: what a service's resident memory grows by while a client connects.

use anyhow::{Context, Result};
use tailwater_loadgen::tcp::Order;

use super::REQUEST;
use super::figures::Figures;
use super::host::Host;
use super::rounds::{WAIT, WAIT_EACH, open};
use super::service::HOLD;
use crate::interrupt::Interrupt;
use crate::testbed::child::ChildProcess;

/// Opened and closed first, so that tables and pools exist.
const FIRST: u32 = 1_000;

/// Opens `connections`, compares the service's resident memory with what it was, then has each answer once.
pub(super) fn measure(connections: u32, figures: &mut Figures, interrupt: &Interrupt) -> Result<()> {
    let host = Host::start()?;
    let service = host.serve(false, interrupt)?;
    open(&host, HOLD, FIRST)?;
    host.run(Order::Close { wait: WAIT })?;
    let before = resident_bytes(&service)?;
    let opened = open(&host, HOLD, connections)?;
    figures.add("idle_open_s", opened.elapsed.as_secs_f64());
    interrupt.check()?;
    // Buffers that lie empty are given back within two seconds.
    interrupt.sleep_until(std::time::Instant::now() + std::time::Duration::from_millis(2_500))?;
    let after = resident_bytes(&service)?;
    figures.add("idle_conn_bytes", (after as f64 - before as f64) / f64::from(connections));
    figures.add("idle_connections", connections.into());
    let once = host.run(Order::EchoOnce { bytes: REQUEST, wait: WAIT + WAIT_EACH * connections })?;
    anyhow::ensure!(
        once.completed == u64::from(connections),
        "{} of {connections} idle connections answered: {:#}",
        once.completed,
        host.stats().to_json()
    );
    figures.add("idle_answer_s", once.elapsed.as_secs_f64());
    figures.add("idle_answered", once.completed as f64);
    Ok(())
}

/// Resident memory of a child, without what it shares with files (proc(5), `statm`).
pub(super) fn resident_bytes(child: &ChildProcess) -> Result<u64> {
    let path = format!("/proc/{}/statm", child.id());
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let mut words = text.split(' ').skip(1).map(str::parse::<u64>);
    let (Some(Ok(resident)), Some(Ok(shared))) = (words.next(), words.next()) else {
        anyhow::bail!("{path} has another form: {text}");
    };
    Ok((resident - shared.min(resident)) * rustix::param::page_size() as u64)
}
