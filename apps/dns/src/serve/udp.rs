//! Datagrams: one query, one answer. Any number of threads may serve one socket.
//!
//! Allocates nothing while it runs: the buffers are made before the first query. Nor does it free:
//! see [`crate::store`]. A thread that gets no queries refreshes its view of the zones now and then
//! nevertheless, so that it does not keep replaced ones alive.

use std::ops::ControlFlow;
use std::time::Duration;

use super::counters::Event;
use super::{Datagrams, Shared};
use crate::answer::{MAX_UDP, Transport, Verdict, respond};

/// Maximum length of a query in octets: what we announce ([`MAX_UDP`]) with a margin. Longer ones
/// are malformed.
const MAX_QUERY: usize = 4096;

/// Maximum time until a thread's view of the zones is refreshed: as long as replaced zones are
/// kept, a reload takes twice the memory.
pub const REFRESH: Duration = Duration::from_secs(1);

/// Answers queries until `go_on` returns `Break`; it is called after each datagram, each error and
/// each [`REFRESH`] without any. Sets the socket's read timeout.
pub fn serve(socket: &impl Datagrams, shared: &Shared, mut go_on: impl FnMut() -> ControlFlow<()>) {
    let mut query = [0; MAX_QUERY];
    let mut answer = Vec::with_capacity(usize::from(MAX_UDP));
    let (mut zones, counters) = (shared.store.reader(), shared.counters.own());
    // Without it the thread would only keep replaced zones for longer.
    let _ = socket.set_read_timeout(REFRESH);
    while go_on().is_continue() {
        // An error reports the fate of an earlier answer, which its client notices itself, or that
        // nothing has arrived.
        let Ok((len, client)) = socket.recv_from(&mut query) else {
            zones.zones();
            continue;
        };
        match respond(zones.zones(), &query[..len], Transport::Udp, &mut answer) {
            Verdict::Ignore => counters.add(Event::Ignored),
            Verdict::Reply(answered) => match socket.send_to(&answer, client) {
                Ok(_) => counters.add_answer(Transport::Udp, answered),
                Err(_) => counters.add(Event::Unsent),
            },
        }
    }
}
