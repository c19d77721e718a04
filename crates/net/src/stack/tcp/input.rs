//! Received segments, and errors about segments of this host.

use crate::arrived::IcmpError as Undeliverable;
use crate::arrived::{Arrived, Link, Origin};
use crate::counters::CountedEvent;
use crate::outlet::{InputBatch, Outlet};
use crate::path_mtu::{FLOOR4, FLOOR6};
use crate::platform::Platform;
use crate::stack::Stack;
use crate::tcp::clock::instant;
use crate::tcp::cookies::Attempt;
use crate::tcp::{Inner, Key, LOCAL_ACK_DELAY, LOCAL_MSS, Socket};
use alloc::sync::Arc;
use core::net::IpAddr;
use core::sync::atomic::Ordering::Relaxed;
use tailwater_tcp::{
    EcnCodepoint, Events, FastOpenOutcome, Flow, IcmpError, Instant, Segment, Seq, State, TimeWaitResponse,
    answer_closed, sender,
};
use tailwater_wire::{Checksums, IPV4_HEADER, IPV6_HEADER, IpProtocol, TCP_HEADER, Undelivered};

impl<P: Platform> Stack<P> {
    #[inline]
    pub(crate) fn handle_tcp(
        &self,
        batch: &mut impl InputBatch<P>,
        outlet: &mut impl Outlet<P>,
        arrived: &Arrived<'_>,
    ) -> Result<(), CountedEvent> {
        // RFC 9293 section 3.9.2.3: segments to a group are dropped.
        if matches!(arrived.origin, Origin::Link(Link { to_all: true, .. })) {
            return Err(CountedEvent::TcpToGroup);
        }
        let pseudo_header = || arrived.addresses.pseudo_header(IpProtocol::TCP, arrived.payload.len());
        if arrived.checksums == Checksums::Verify && pseudo_header().bytes(arrived.payload).finish() != 0 {
            return Err(CountedEvent::BadChecksum);
        }
        let segment = Segment::parse(arrived.payload).map_err(|_| CountedEvent::Malformed)?;
        let flow = Flow {
            local: arrived.addresses.destination(),
            remote: arrived.addresses.source(),
            local_port: segment.header.destination,
            remote_port: segment.header.source,
        };
        let key = Key::from(&flow);
        let ecn = EcnCodepoint::from_bits(arrived.traffic_class);
        let now = instant(outlet.now());
        if let Some(socket) = self.tcp.table.get(&key)
            && self.handle_own(batch, outlet, &socket, &segment, (ecn, arrived.checksums), now)
        {
            return Ok(());
        }
        self.handle_stranger(outlet, arrived, &flow, &segment, now)
    }

    /// Passes a segment, with its packet's ECN bits, to its connection; false if that is over.
    #[inline]
    pub(super) fn handle_own(
        &self,
        batch: &mut impl InputBatch<P>,
        outlet: &mut impl Outlet<P>,
        socket: &Arc<Socket<P>>,
        segment: &Segment<'_>,
        (ecn, checksums): (EcnCodepoint, Checksums),
        now: Instant,
    ) -> bool {
        let mut guard = socket.lock();
        let inner = &mut *guard;
        if !inner.in_table || inner.connection.is_closed() {
            return false;
        }
        let near = self.note_distance(socket, inner, segment, checksums, now);
        let events = inner.connection.handle_segment(now, segment, ecn);
        if near {
            self.widen_path(socket, inner, now);
            if inner.connection.has_gap() {
                self.tcp.machine_window.note_gap(now);
            }
        }
        let traced = batch.traced();
        if events.contains(Events::TRANSMIT)
            && inner.connection.only_acknowledges(now)
            && (inner.deferred || batch.defer(socket))
        {
            inner.deferred = true;
            inner.wake(events);
        } else {
            self.settle(outlet, socket, inner, events, now);
        }
        if let Some(request) = traced {
            inner.tag(request, segment.payload.len(), events);
        }
        if events.contains(Events::FAST_OPEN) {
            let outcome = inner.connection.take_fast_open();
            drop(guard);
            if let Some(outcome) = outcome {
                self.note_fast_open(socket, outcome, now);
            }
        }
        true
    }

    /// Learns from a segment whether the peer is on this machine, and sets the delay of ACKs and
    /// the window for that; returns whether it is another program there.
    #[inline]
    pub(super) fn note_distance(
        &self,
        socket: &Socket<P>,
        inner: &mut Inner<P>,
        segment: &Segment<'_>,
        checksums: Checksums,
        now: Instant,
    ) -> bool {
        let vouched = checksums == Checksums::Trust;
        if vouched != inner.vouched {
            inner.vouched = vouched;
            let other = sender::Config::default().max_ack_delay;
            inner.connection.set_peer_ack_delay(if vouched { LOCAL_ACK_DELAY } else { other });
        }
        // A peer elsewhere on this machine: both ends of a `local` socket are this stack.
        let near = vouched && !socket.local;
        let ceiling = if near {
            self.tcp.machine_window.note(&mut inner.arrivals, segment.payload.len(), now)
        } else {
            u32::MAX
        };
        inner.connection.set_window_ceiling(ceiling);
        near
    }

    /// Lets segments to a peer on this machine be as long as packets may be that do not leave it.
    #[inline]
    pub(super) fn widen_path(&self, socket: &Socket<P>, inner: &mut Inner<P>, now: Instant) {
        let (remote, config) = (socket.flow.remote, self.config());
        let local = config.local_mtu.saturating_sub(overhead(remote));
        if inner.connection.path_mss() < local {
            let link = config.mtu.saturating_sub(overhead(remote));
            inner.connection.widen_path(local, link, now);
        }
    }

    /// Records what a handshake with Fast Open has shown.
    #[cold]
    fn note_fast_open(&self, socket: &Socket<P>, outcome: FastOpenOutcome, now: Instant) {
        let flow = &socket.flow;
        if let Some(attempt) = Attempt::of(outcome) {
            self.tcp.cookies.note(socket.peer_addr(), &attempt, now);
        } else if let Some(listening) = self.tcp.listeners.find(flow.local, flow.local_port) {
            listening.lock().listener.complete_fast_open(flow);
        }
    }

    /// Sends the acknowledgment of a socket that [`InputBatch::defer`] took, unless it has left
    /// with data.
    pub fn flush_tcp(&self, outlet: &mut impl Outlet<P>, socket: &Arc<Socket<P>>) {
        let now = instant(outlet.now());
        let inner = &mut *socket.lock();
        inner.deferred = false;
        self.settle(outlet, socket, inner, Events::empty(), now);
    }

    /// Handles a segment without a connection: in TIME-WAIT, to a listener, or neither.
    #[cold]
    fn handle_stranger(
        &self,
        outlet: &mut impl Outlet<P>,
        arrived: &Arrived<'_>,
        flow: &Flow,
        segment: &Segment<'_>,
        now: Instant,
    ) -> Result<(), CountedEvent> {
        let back = arrived.addresses.reversed();
        let iss = match self.tcp.time_waits.handle_segment(&Key::from(flow), segment, now) {
            Some(TimeWaitResponse::Ignore) => return Ok(()),
            Some(TimeWaitResponse::Reply(header)) => {
                self.send_header(outlet, back, &header);
                return Ok(());
            }
            Some(TimeWaitResponse::Reopen { iss }) => Some(iss),
            None => None,
        };
        if !self.tcp.ending.load(Relaxed)
            && let Some(listening) = self.tcp.listeners.find(flow.local, flow.local_port)
            && self.handle_listening(outlet, &listening, arrived, flow, segment, iss, now)
        {
            return Ok(());
        }
        let link = matches!(arrived.origin, Origin::Link(_));
        if link {
            self.leave_to_other(CountedEvent::TcpNoConnection)?;
        }
        let Some(reset) = answer_closed(segment) else { return Err(CountedEvent::TcpNoConnection) };
        if link && !self.tcp.resets.take(flow.remote, outlet.now()) {
            return Err(CountedEvent::TcpResetLimited);
        }
        self.counters.count(CountedEvent::TcpResetSent);
        self.send_header(outlet, back, &reset);
        Err(CountedEvent::TcpNoConnection)
    }

    /// Returns the longest segment to `remote`, options included, as long as it is not known to be
    /// another program of this machine.
    pub(super) fn path_mss(&self, remote: IpAddr) -> u16 {
        if self.is_local(remote) {
            return LOCAL_MSS;
        }
        self.path_mtu(remote).saturating_sub(overhead(remote))
    }

    /// Handles an error that quotes a segment of this host; true if it is believed: its sequence
    /// number is in flight, and it is no report of a path's MTU about a peer on this machine.
    pub(crate) fn handle_tcp_error(&self, outlet: &mut impl Outlet<P>, error: &Undeliverable<'_>) -> bool {
        // Eight bytes are certain: the ports and the sequence number (RFC 792).
        let Some(&[a, b, c, d, e, f, g, h]) = error.transport.first_chunk::<8>() else { return false };
        let flow = Flow {
            local: error.addresses.source(),
            remote: error.addresses.destination(),
            local_port: u16::from_be_bytes([a, b]),
            remote_port: u16::from_be_bytes([c, d]),
        };
        let seq = Seq(u32::from_be_bytes([e, f, g, h]));
        let Some(socket) = self.tcp.table.get(&Key::from(&flow)) else { return false };
        let now = instant(outlet.now());
        let inner = &mut *socket.lock();
        if !inner.connection.is_in_flight(seq) || inner.connection.state() == State::Closed {
            return false;
        }
        let error = match error.why {
            Undelivered::Network => IcmpError::NetworkUnreachable,
            Undelivered::Host => IcmpError::HostUnreachable,
            Undelivered::Protocol => IcmpError::ProtocolUnreachable,
            Undelivered::Port => IcmpError::PortUnreachable,
            Undelivered::Prohibited => IcmpError::Prohibited,
            Undelivered::HopLimit => IcmpError::Other,
            // There is no router on the way to a peer on this machine.
            Undelivered::TooBig { .. } if inner.vouched => return false,
            Undelivered::TooBig { mtu } => {
                let least = if flow.remote.is_ipv4() { FLOOR4 } else { FLOOR6 };
                let mtu = u16::try_from(mtu).unwrap_or(u16::MAX).max(least);
                let mss = mtu.saturating_sub(overhead(flow.remote));
                let events = inner.connection.set_path_mtu(mss, Some(seq), now);
                self.settle(outlet, &socket, inner, events, now);
                return true;
            }
        };
        let events = inner.connection.handle_icmp(error, seq);
        self.settle(outlet, &socket, inner, events, now);
        true
    }
}

/// Returns the bytes of IP and TCP header.
fn overhead(remote: IpAddr) -> u16 {
    let ip = if remote.is_ipv4() { IPV4_HEADER } else { IPV6_HEADER };
    (ip + TCP_HEADER) as u16
}
