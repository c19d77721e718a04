//! Datagrams: one query, one answer. Any number of threads may serve one socket.
//!
//! Does not allocate once it runs: the buffers are made before the first query. Nor does it free: see [`crate::store`]. A thread
//! that gets no queries looks at the zones now and then nevertheless, so that replaced ones do not stay because of it.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{Datagrams, Shared};
use crate::answer::{MAX_UDP, Transport, Verdict, respond};

/// Octets of the longest query looked at: what we offer to take ([`MAX_UDP`]) and then some. Longer ones are malformed.
const MAX_QUERY: usize = 4096;

/// Longest time without a look at the zones: as long as they are kept, a reload takes twice the memory.
pub const REFRESH: Duration = Duration::from_secs(1);

/// Answers queries until `go_on` says to stop, which it is asked after each datagram, each error and each [`REFRESH`] without
/// any. Sets the socket's read timeout.
pub fn serve(socket: &impl Datagrams, shared: &Shared, mut go_on: impl FnMut() -> ControlFlow<()>) {
    let mut query = [0; MAX_QUERY];
    let mut answer = Vec::with_capacity(usize::from(MAX_UDP));
    let mut zones = shared.store.reader();
    // Without it the thread would only keep replaced zones for longer.
    let _ = socket.set_read_timeout(REFRESH);
    while go_on().is_continue() {
        // Errors report the fate of an earlier answer, which its client notices by itself, or that nothing has come.
        let Ok((len, client)) = socket.recv_from(&mut query) else {
            zones.zones();
            continue;
        };
        let count = match respond(zones.zones(), &query[..len], Transport::Udp, &mut answer) {
            Verdict::Ignore => &shared.counters.ignored,
            Verdict::Reply if socket.send_to(&answer, client).is_ok() => &shared.counters.udp,
            Verdict::Reply => &shared.counters.unsent,
        };
        count.fetch_add(1, Relaxed);
    }
}
