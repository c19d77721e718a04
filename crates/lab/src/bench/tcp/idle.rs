//! Memory per idle connection: the growth of a service's resident memory while a client connects.

use anyhow::{Context, Result};
use tailwater_loadgen::tcp::Order;

use super::figures::Figures;
use super::host::Host;
use super::rounds::{WAIT, ask_once, open};
use super::terms::HOLD;
use tailwater_testbed::child::ChildProcess;
use tailwater_testbed::interrupt::Interrupt;

/// Connections that are opened and closed first, so that tables and pools exist.
const FIRST: u32 = 1_000;
/// Connections that are asked at a time: the service answers them in one sweep over all, so fewer
/// take as many sweeps as there are windows in all connections.
const ASKED: u32 = 16_384;

/// Opens `connections`, measures the growth of the service's resident memory, then asks each
/// connection once.
pub(super) fn measure(connections: u32, figures: &mut Figures, interrupt: &Interrupt) -> Result<()> {
    let host = Host::start()?;
    let service = host.serve(false, interrupt)?;
    open(&host, HOLD, FIRST)?;
    host.run(Order::Close { wait: WAIT })?;
    let before = resident_bytes(&service)?;
    let opened = open(&host, HOLD, connections)?;
    figures.add("idle_open_s", opened.elapsed.as_secs_f64());
    interrupt.check()?;
    // Empty buffers are freed within two seconds.
    interrupt.sleep_until(std::time::Instant::now() + std::time::Duration::from_millis(2_500))?;
    let after = resident_bytes(&service)?;
    figures.add("idle_conn_bytes", (after as f64 - before as f64) / f64::from(connections));
    figures.add("idle_connections", connections.into());
    let once = ask_once(&host, connections, ASKED)?;
    figures.add("idle_answer_s", once.elapsed.as_secs_f64());
    figures.add("idle_answered", once.completed as f64);
    Ok(())
}

/// Resident memory of a child without pages of files (proc(5), `statm`).
pub(super) fn resident_bytes(child: &ChildProcess) -> Result<u64> {
    let path = format!("/proc/{}/statm", child.id());
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let mut words = text.split(' ').skip(1).map(str::parse::<u64>);
    let (Some(Ok(resident)), Some(Ok(shared))) = (words.next(), words.next()) else {
        anyhow::bail!("{path} has another format: {text}");
    };
    Ok((resident - shared.min(resident)) * rustix::param::page_size() as u64)
}
