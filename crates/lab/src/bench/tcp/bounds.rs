//! The echo service on event loops by the bound of their rounds and by load, for `tailwater-lab
//! reproduce ix-fig13`.
//!
//! Owns one round: a service started anew, with a loop for each bound, and over the same
//! connections to it each number of outstanding requests in turn.

use anyhow::{Context, Result};
use tailwater_loadgen::tcp::{Order, Outcome};
use tailwater_testbed::interrupt::Interrupt;

use super::host::Host;
use super::many::Length;
use super::rounds::{WAIT, open};
use super::terms::{BATCHES, CONNECTIONS, EVENTS, REQUEST};

/// Established connections, and so the most outstanding requests.
pub const MAX_OUTSTANDING: u32 = CONNECTIONS;

/// Measures each of these bounds under each number of outstanding requests, and passes the outcomes
/// to `each`.
///
/// # Errors If no loop has one of the bounds, if a process does not start, if a connection is not
/// established or fails, or on a signal.
pub fn round(
    bounds: impl Iterator<Item = usize>,
    loads: &[u32],
    length: Length,
    interrupt: &Interrupt,
    mut each: impl FnMut(usize, u32, &Outcome),
) -> Result<()> {
    let host = Host::start()?;
    let _service = host.serve(true, interrupt)?;
    let Length { warm_up, lasts } = length;
    for bound in bounds {
        let port = (EVENTS..).zip(BATCHES).find_map(|(port, size)| (size == bound).then_some(port));
        open(&host, port.with_context(|| format!("no loop has the bound {bound}"))?, CONNECTIONS)?;
        for &outstanding in loads {
            let echoed = host.run(Order::Echo { bytes: REQUEST, outstanding, warm_up, lasts })?;
            anyhow::ensure!(echoed.failed == 0, "{} connections failed under load", echoed.failed);
            each(bound, outstanding, &echoed);
            interrupt.check()?;
        }
        host.run(Order::Close { wait: WAIT })?;
    }
    Ok(())
}
