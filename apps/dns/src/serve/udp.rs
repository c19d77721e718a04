//! Datagrams: one query, one answer. Any number of threads may serve one socket.
//!
//! Does not allocate once it runs: the buffers are made before the first query.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

use super::{Datagrams, Shared};
use crate::answer::{MAX_UDP, Transport, Verdict, respond};

/// Octets of the longest query looked at: what we offer to take ([`MAX_UDP`]) and then some. Longer ones are malformed.
const MAX_QUERY: usize = 4096;

/// Answers queries until `go_on` says to stop, which it is asked after each datagram and each error.
pub fn serve(socket: &impl Datagrams, shared: &Shared, mut go_on: impl FnMut() -> ControlFlow<()>) {
    let mut query = [0; MAX_QUERY];
    let mut answer = Vec::with_capacity(usize::from(MAX_UDP));
    let mut zones = shared.store.reader();
    while go_on().is_continue() {
        // Errors report the fate of an earlier answer, which its client notices by itself.
        let Ok((len, client)) = socket.recv_from(&mut query) else { continue };
        let count = match respond(zones.zones(), &query[..len], Transport::Udp, &mut answer) {
            Verdict::Ignore => &shared.counters.ignored,
            Verdict::Reply if socket.send_to(&answer, client).is_ok() => &shared.counters.udp,
            Verdict::Reply => &shared.counters.unsent,
        };
        count.fetch_add(1, Relaxed);
    }
}
