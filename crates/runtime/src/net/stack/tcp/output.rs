//! After a call to a connection: what is due leaves, its timer is set, its place in the table is what its state says, and who waited is woken.

use super::key::Key;
use super::socket::{Failure, Inner, Socket};
use super::timers::{Due, NEVER};
use super::{BURST, RETRY, duration, instant};
use crate::net::stack::output::SendError;
use crate::net::stack::{Event, Outlet, OutletError, Stack};
use crate::net::wire::{Addresses, DEFAULT_TTL, IpProtocol, PacketInfo, Sum};
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::Arc;
use tailwater_tcp::{Error, Events, Full, Header, IcmpError, Instant, Outgoing, State, Transmit};

/// Where a TCP header has its checksum (RFC 9293 section 3.1).
const CHECKSUM_AT: usize = 16;
/// Segments that leave together: from the third of a connection's in one go on, for answers are mostly one or two. The IOKernel
/// polls the very line that each segment's record begins in, and a sender that shows it one at a time waits for that line
/// each time; see `Producer::cork` in `tailwater_shm`.
const CORKED: usize = 8;

/// Writes a checksum over all of `out`, whose own checksum field is zero.
#[inline]
fn fill_checksum(out: &mut [u8], pseudo_header: Sum) {
    let sum = pseudo_header.bytes(out).finish();
    out[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
}

/// A way out for segments without a checksum.
struct Incomplete<'a, O>(&'a mut O);

impl<O: Outlet> Outlet for Incomplete<'_, O> {
    #[inline]
    fn transmit(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), OutletError> {
        self.0.transmit_incomplete(len, fill)
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn poll_by(&mut self, deadline: Duration) {
        self.0.poll_by(deadline);
    }

    fn poll_loopback(&mut self) {
        self.0.poll_loopback();
    }
}

impl Stack {
    /// Sees to what a call to `inner.connection` has caused: to be called after each but pure questions, with the `events` it returned.
    #[inline]
    pub fn settle(
        &self,
        outlet: &mut impl Outlet,
        socket: &Arc<Socket>,
        inner: &mut Inner,
        mut events: Events,
        now: Instant,
    ) {
        let retry = self.transmit_due(outlet, socket, inner, &mut events, now);
        if inner.in_table
            && retry == NEVER
            && matches!(inner.connection.state(), State::TimeWait | State::Closed)
        {
            self.retire(outlet, socket, inner, now);
        }
        inner.next = inner.connection.next_timeout().unwrap_or(NEVER).min(retry);
        self.arm(outlet, socket, inner);
        inner.wake(events);
    }

    /// Hands what is due to the way out. Returns when to try again, or [`NEVER`].
    #[inline]
    fn transmit_due(
        &self,
        outlet: &mut impl Outlet,
        socket: &Socket,
        inner: &mut Inner,
        events: &mut Events,
        now: Instant,
    ) -> Instant {
        let (vouched, mut corked) = (inner.vouched, false);
        let mut again = now;
        for sent in 0..BURST {
            let mut trouble = None;
            let transmit = inner.connection.poll_transmit(now, |outgoing| {
                match self.emit(outlet, socket, outgoing, vouched) {
                    Ok(()) => Ok(()),
                    Err(SendError::Full) => Err(Full),
                    // Lost on the way, as far as the connection is concerned.
                    Err(error) => {
                        trouble = Some((error, outgoing.header));
                        Ok(())
                    }
                }
            });
            if let Some((error, header)) = trouble {
                *events |= on_trouble(inner, error, &header);
            }
            match transmit {
                Transmit::Sent if sent % CORKED == 1 => {
                    if corked {
                        outlet.uncork();
                    }
                    corked = outlet.cork();
                }
                Transmit::Sent => {}
                Transmit::Nothing => {
                    again = NEVER;
                    break;
                }
                Transmit::Full => {
                    again = now + RETRY;
                    break;
                }
            }
        }
        if corked {
            outlet.uncork();
        }
        again
    }

    #[inline]
    fn emit(
        &self,
        outlet: &mut impl Outlet,
        socket: &Socket,
        outgoing: &Outgoing<'_>,
        vouched: bool,
    ) -> Result<(), SendError> {
        let packet = PacketInfo {
            addresses: socket.addresses(),
            protocol: IpProtocol::TCP,
            hop_limit: socket.settings.ttl.load(Relaxed),
            traffic_class: outgoing.ecn.bits(),
        };
        // Nothing can damage what never leaves: the loopback queue trusts it, and the IOKernel vouches for it to a peer on this
        // machine. Should the peer have moved, the IOKernel fills it in; a segment that waits for its new neighbour is lost.
        if socket.local || (vouched && outlet.completes()) {
            let mut outlet = Incomplete(outlet);
            return self.transmit_ip(&mut outlet, &packet, outgoing.len(), |out, _| {
                outgoing.emit(out);
            });
        }
        self.transmit_ip(outlet, &packet, outgoing.len(), |out, pseudo_header| {
            outgoing.emit(out);
            fill_checksum(out, pseudo_header);
        })
    }

    /// Sends a header that belongs to no connection. If it finds no room its cause will come again.
    pub(super) fn send_header(&self, outlet: &mut impl Outlet, addresses: Addresses, header: &Header) {
        let packet =
            PacketInfo { addresses, protocol: IpProtocol::TCP, hop_limit: DEFAULT_TTL, traffic_class: 0 };
        if self.transmit_header(outlet, &packet, header).is_err() {
            self.counters.count(Event::EgressFull);
        }
    }

    pub(super) fn transmit_header(
        &self,
        outlet: &mut impl Outlet,
        packet: &PacketInfo,
        header: &Header,
    ) -> Result<(), SendError> {
        self.transmit_ip(outlet, packet, header.len(), |out, pseudo_header| {
            header.emit(out);
            fill_checksum(out, pseudo_header);
        })
    }

    /// Takes a connection that is over out of the table. In TIME-WAIT a smaller value takes its place.
    #[cold]
    fn retire(&self, outlet: &mut impl Outlet, socket: &Arc<Socket>, inner: &mut Inner, now: Instant) {
        let key = Key::from(&socket.flow);
        inner.in_table = false;
        if let Some(rest) = inner.connection.time_wait()
            && self.tcp.time_waits.insert(key, rest, now)
            && let Some(next) = self.tcp.time_waits.next()
        {
            outlet.poll_by(duration(next));
        }
        if self.tcp.table.remove(&key, socket) {
            self.tcp.connections.fetch_sub(1, Relaxed);
            self.tcp.gone.lock().add(&inner.connection.stats());
        }
        if inner.armed != NEVER {
            self.tcp.timers.remove(socket.id, inner.armed);
            inner.armed = NEVER;
        }
    }

    /// Sets the timer if it is needed earlier than it is set for.
    #[inline]
    pub(super) fn arm(&self, outlet: &mut impl Outlet, socket: &Arc<Socket>, inner: &mut Inner) {
        let at = inner.next;
        if at >= inner.armed || !inner.in_table {
            return;
        }
        let due = Due::Socket(Arc::clone(socket));
        if self.tcp.timers.insert(socket.id, inner.armed, at, due) {
            outlet.poll_by(duration(at));
        }
        inner.armed = at;
    }

    /// Fails all connections to other hosts: no frame can leave any more.
    pub(in crate::net::stack) fn fail_remote(&self, outlet: &mut impl Outlet) {
        let now = instant(outlet.now());
        self.tcp.table.for_each(|socket| {
            if !socket.local {
                let inner = &mut *socket.lock();
                let events = inner.fail(Failure::Down);
                self.settle(outlet, socket, inner, events, now);
            }
        });
    }
}

/// A segment could not leave for another reason than room.
#[cold]
fn on_trouble(inner: &mut Inner, error: SendError, header: &Header) -> Events {
    match error {
        _ if inner.connection.is_closed() => Events::empty(),
        SendError::Down => inner.fail(Failure::Down),
        SendError::HostUnreachable if inner.is_connecting() => inner.fail(Error::HostUnreachable.into()),
        SendError::NetworkUnreachable if inner.is_connecting() => {
            inner.fail(Error::NetworkUnreachable.into())
        }
        // A neighbour may come back before the connection gives up.
        SendError::HostUnreachable => inner.connection.handle_icmp(IcmpError::HostUnreachable, header.seq),
        _ => inner.connection.handle_icmp(IcmpError::NetworkUnreachable, header.seq),
    }
}
