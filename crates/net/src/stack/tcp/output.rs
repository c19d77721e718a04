//! The steps after a call to a connection: due segments are sent, its timer is set, it leaves the
//! table when it is over, and waiting threads are woken.

use crate::counters::CountedEvent;
use crate::error::SendError;
use crate::outlet::{Outlet, OutletError};
use crate::platform::{Lock, Platform};
use crate::stack::Stack;
use crate::tcp::clock::{duration, instant};
use crate::tcp::cookies::Attempt;
use crate::tcp::{BURST, BURST_BYTES, Due, Failure, Inner, Key, Socket};
use alloc::sync::Arc;
use core::net::IpAddr;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use tailwater_tcp::{Error, Events, Full, Header, IcmpError, Instant, Outgoing, State, Transmit};
use tailwater_wire::{Addresses, DEFAULT_TTL, IpProtocol, PacketInfo, Sum};

/// Offset of the checksum in a TCP header.
const CHECKSUM_AT: usize = IpProtocol::TCP.checksum_offset().expect("TCP has a checksum");
/// Segments that leave together, from the third of a connection in one call on: most answers are
/// one or two segments. The receiver of the frames polls the cache line in which the next frame
/// begins, so a sender that publishes one at a time waits for that line each time.
const CORKED: usize = 8;
/// Or so many bytes, whichever is reached first: the IOKernel copies them while the next segments
/// are written.
const CORKED_BYTES: usize = 16 << 10;

/// Writes a checksum over all of `out`, whose own checksum field is zero.
#[inline]
fn fill_checksum(out: &mut [u8], pseudo_header: Sum) {
    let sum = pseudo_header.bytes(out).finish();
    out[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
}

/// An outlet for segments without a checksum.
struct Incomplete<'a, O>(&'a mut O);

impl<P: Platform, O: Outlet<P>> Outlet<P> for Incomplete<'_, O> {
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

impl<P: Platform> Stack<P> {
    /// Completes a call to `inner.connection` that returned `events`: sends, sets the timer, wakes.
    /// Follows every call that changes the connection.
    #[inline]
    pub fn settle(
        &self,
        outlet: &mut impl Outlet<P>,
        socket: &Arc<Socket<P>>,
        inner: &mut Inner<P>,
        mut events: Events,
        now: Instant,
    ) {
        let retry = self.transmit_due(outlet, socket, inner, &mut events, now);
        if inner.in_table
            && retry == Instant::NEVER
            && matches!(inner.connection.state(), State::TimeWait | State::Closed)
        {
            self.retire(outlet, socket, inner, now);
        }
        events |= inner.connection.take_writable();
        inner.next = inner.connection.next_timeout().unwrap_or(Instant::NEVER).min(retry);
        self.arm(outlet, socket, inner);
        inner.note_awaited();
        inner.wake(events);
    }

    /// Sends due segments of a connection whose program ends, and wakes no thread; false if there
    /// was no room.
    pub(super) fn transmit_quietly(
        &self,
        outlet: &mut impl Outlet<P>,
        socket: &Socket<P>,
        inner: &mut Inner<P>,
        now: Instant,
    ) -> bool {
        self.transmit_due(outlet, socket, inner, &mut Events::empty(), now) == Instant::NEVER
    }

    /// Sends due segments. Returns when to try again, or [`Instant::NEVER`].
    #[inline]
    fn transmit_due(
        &self,
        outlet: &mut impl Outlet<P>,
        socket: &Socket<P>,
        inner: &mut Inner<P>,
        events: &mut Events,
        now: Instant,
    ) -> Instant {
        let (vouched, mut corked) = (inner.vouched, false);
        let mut again = now;
        let (mut bytes, mut shown) = (0, 0);
        for sent in 0..BURST {
            if bytes >= BURST_BYTES && !socket.local {
                break;
            }
            let mut trouble = None;
            let transmit = inner.connection.poll_transmit(now, |outgoing| {
                bytes += outgoing.len();
                match self.emit(outlet, socket, outgoing, vouched) {
                    Ok(()) => Ok(()),
                    Err(SendError::Full) => Err(Full),
                    // To the connection the segment is lost on the way.
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
                Transmit::Sent if sent % CORKED == 1 || (corked && bytes - shown >= CORKED_BYTES) => {
                    shown = bytes;
                    if corked {
                        outlet.uncork();
                    }
                    corked = outlet.cork();
                }
                Transmit::Sent => {}
                Transmit::Nothing => {
                    again = Instant::NEVER;
                    break;
                }
                Transmit::Full => {
                    again = now + outlet.retry_after();
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
        outlet: &mut impl Outlet<P>,
        socket: &Socket<P>,
        outgoing: &Outgoing<'_>,
        vouched: bool,
    ) -> Result<(), SendError> {
        let packet = PacketInfo {
            addresses: socket.addresses(),
            protocol: IpProtocol::TCP,
            hop_limit: socket.settings.ttl.load(Relaxed),
            traffic_class: outgoing.ecn.bits(),
        };
        // A segment that does not leave the machine cannot be damaged: the loopback queue trusts
        // it, and the outlet vouches for it to a peer on this machine. If the peer has moved, the
        // outlet fills the checksum in; a segment that waits for a neighbour is lost.
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

    /// Sends a header without a connection. If there is no room it is dropped; its cause is
    /// retransmitted.
    pub(super) fn send_header(&self, outlet: &mut impl Outlet<P>, addresses: Addresses, header: &Header) {
        let packet =
            PacketInfo { addresses, protocol: IpProtocol::TCP, hop_limit: DEFAULT_TTL, traffic_class: 0 };
        if self.transmit_header(outlet, &packet, header).is_err() {
            self.counters.count(CountedEvent::EgressFull);
        }
    }

    pub(super) fn transmit_header(
        &self,
        outlet: &mut impl Outlet<P>,
        packet: &PacketInfo,
        header: &Header,
    ) -> Result<(), SendError> {
        self.transmit_ip(outlet, packet, header.len(), |out, pseudo_header| {
            header.emit(out);
            fill_checksum(out, pseudo_header);
        })
    }

    /// Removes a connection that is over from the table. In TIME-WAIT a smaller value replaces it.
    #[cold]
    fn retire(
        &self,
        outlet: &mut impl Outlet<P>,
        socket: &Arc<Socket<P>>,
        inner: &mut Inner<P>,
        now: Instant,
    ) {
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
        if inner.armed != Instant::NEVER {
            self.tcp.timers.remove(socket.id, inner.armed);
            inner.armed = Instant::NEVER;
        }
        // The place of a server's connection stays taken: see `Listener`.
        if let Some(attempt) = inner.connection.take_fast_open().and_then(Attempt::of) {
            self.tcp.cookies.note(socket.peer_addr(), &attempt, now);
        } else if inner.connection.has_failed_to_open() {
            self.tcp.cookies.note_plain_failure(socket.peer_addr());
        }
    }

    /// Sets the timer if it is needed earlier than it is set.
    #[inline]
    pub(super) fn arm(&self, outlet: &mut impl Outlet<P>, socket: &Arc<Socket<P>>, inner: &mut Inner<P>) {
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

    /// Fails all connections to other hosts, and wakes the threads that wait for new ones: the link
    /// is down.
    pub(crate) fn fail_remote(&self, outlet: &mut impl Outlet<P>) {
        self.settle_remote(outlet, |inner| inner.fail(Failure::Down));
        self.tcp.listeners.wake_acceptors();
    }

    /// Sends what connections to other hosts have to send.
    pub(crate) fn resume_remote(&self, outlet: &mut impl Outlet<P>) {
        self.settle_remote(outlet, |_| Events::empty());
    }

    /// Fails the connections to `gone`, an address whose program has ended.
    pub(crate) fn fail_departed(&self, outlet: &mut impl Outlet<P>, gone: IpAddr) {
        let to_gone = |socket: &Socket<P>| !socket.local && socket.flow.remote == gone;
        self.settle_those(outlet, to_gone, |inner| inner.connection.handle_departure());
    }

    /// Asks `peer`, an address of which one of two instances has ended, whether it has the
    /// connections that this host has to it.
    pub(crate) fn probe_peer(&self, outlet: &mut impl Outlet<P>, peer: IpAddr) {
        let now = instant(outlet.now());
        let to_peer = |socket: &Socket<P>| !socket.local && socket.flow.remote == peer;
        self.settle_those(outlet, to_peer, |inner| inner.connection.probe(now));
    }

    fn settle_remote(&self, outlet: &mut impl Outlet<P>, change: impl Fn(&mut Inner<P>) -> Events) {
        self.settle_those(outlet, |socket| !socket.local, change);
    }

    fn settle_those(
        &self,
        outlet: &mut impl Outlet<P>,
        concerns: impl Fn(&Socket<P>) -> bool,
        change: impl Fn(&mut Inner<P>) -> Events,
    ) {
        let now = instant(outlet.now());
        self.tcp.table.for_each(|socket| {
            if concerns(socket) {
                let inner = &mut *socket.lock();
                let events = change(inner);
                self.settle(outlet, socket, inner, events, now);
            }
        });
    }
}

/// Handles a segment that could not be sent for another reason than room.
#[cold]
fn on_trouble<P: Platform>(inner: &mut Inner<P>, error: SendError, header: &Header) -> Events {
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
