//! Connections of a program that ends.
//!
//! | connection | is |
//! |---|---|
//! | closed by the program, and the peer has acknowledged data and FIN | left alone |
//! | closed by the program, and the peer has not | waited for |
//! | open, with written data that the peer has not acknowledged | waited for, then reset |
//! | open | reset |
//!
//! A reset may overtake nothing that was acknowledged, so what was written arrives in either case.
//! No thread is woken: the program's threads end with it, and would otherwise report errors that
//! they have not caused.
//!
//! Connections within this host end with it and are left alone.

use crate::outlet::Outlet;
use crate::platform::Platform;
use crate::stack::Stack;
use crate::stack::ending::Owed;
use crate::tcp::clock::instant;
use crate::tcp::{Inner, Socket};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use tailwater_tcp::{Instant, State};

/// Unanswered retransmissions of a FIN after which it is given up, if the peer has closed before
/// and has acknowledged all data. Most such peers do not exist any more.
const FIN_RETRANSMISSIONS: u8 = 3;
/// Length of an IP header, for [`Connection::info`](tailwater_tcp::Connection::info): the lengths
/// in it are not read here.
const IP_HEADER: u16 = 20;

/// The connections that still have something to deliver.
#[derive(Debug)]
pub struct Ending<P: Platform> {
    /// With the number of bytes that the peer has acknowledged once it has everything that had been
    /// written when the end began: threads may go on writing.
    connections: Vec<(Arc<Socket<P>>, u64)>,
}

impl<P: Platform> Stack<P> {
    /// Returns all connections to other hosts, and refuses handshakes from now on.
    pub(crate) fn end_connections(&self) -> Ending<P> {
        self.tcp.ending.store(true, Relaxed);
        let mut connections = Vec::new();
        self.tcp.table.for_each(|socket| {
            if !socket.local {
                let inner = socket.lock();
                let unacknowledged = inner.connection.unacknowledged_bytes() as u64;
                let all = inner.connection.acknowledged_bytes() + unacknowledged;
                drop(inner);
                connections.push((Arc::clone(socket), all));
            }
        });
        Ending { connections }
    }

    /// Resets connections that are due to be reset, and forgets those that are over.
    pub(crate) fn poll_end_of_connections(
        &self,
        outlet: &mut impl Outlet<P>,
        ending: &mut Ending<P>,
        last: bool,
    ) -> Owed {
        if last {
            // Those that were opened meanwhile, too.
            *ending = self.end_connections();
        }
        let now = instant(outlet.now());
        let mut owed = Owed::default();
        ending.connections.retain(|(socket, all)| {
            let inner = &mut *socket.lock();
            let waits = if last || is_due(inner, *all, now) {
                !self.end_connection(outlet, socket, inner, now)
            } else {
                true
            };
            owed.connections += usize::from(waits);
            owed.acknowledged += inner.connection.acknowledged_bytes();
            waits
        });
        owed
    }

    /// Resets a connection unless the peer knows of its end; false if there was no room.
    fn end_connection(
        &self,
        outlet: &mut impl Outlet<P>,
        socket: &Arc<Socket<P>>,
        inner: &mut Inner<P>,
        now: Instant,
    ) -> bool {
        if is_known(inner, now) {
            return true;
        }
        // The events are those that threads would be woken for.
        let _ = inner.connection.abort();
        self.transmit_quietly(outlet, socket, inner, now)
    }

    /// Returns whether there are connections.
    pub(crate) fn has_connections(&self) -> bool {
        self.tcp.connections.load(Relaxed) > 0
    }
}

/// Returns whether the peer knows that this side has closed: it has acknowledged the FIN, or is
/// believed to be gone.
fn is_known<P: Platform>(inner: &Inner<P>, now: Instant) -> bool {
    let connection = &inner.connection;
    match connection.state() {
        State::FinWait2 | State::TimeWait => true,
        State::Closing | State::LastAck => {
            connection.unacknowledged_bytes() == 0
                && connection.info(IP_HEADER, now).retransmits >= FIN_RETRANSMISSIONS
        }
        _ => false,
    }
}

/// Returns whether a connection is not waited for any longer, whose peer is to acknowledge `all`
/// bytes.
fn is_due<P: Platform>(inner: &Inner<P>, all: u64, now: Instant) -> bool {
    match inner.connection.state() {
        State::FinWait1 | State::Closing | State::LastAck => is_known(inner, now),
        // If it has failed, nothing more is acknowledged.
        State::Closed => true,
        _ => is_known(inner, now) || inner.connection.acknowledged_bytes() >= all,
    }
}
