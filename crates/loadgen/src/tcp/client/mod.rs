//! Many TCP connections of one station to one server, without a clock or a socket.
//!
//! Owns the connections, the queue of those with something to send, and the time at which each must
//! be checked again. It never decides what is sent: its caller does, informed by the [`Events`] of
//! each frame and each timeout.
//!
//! Connection `id` runs between local port [`FIRST_PORT`]` + id % `[`PORTS`] and remote port
//! `peer.port + id / PORTS`, so a segment's connection is found by arithmetic, and a service that
//! listens on several consecutive ports can be given more connections than one pair of addresses
//! has ports.
//!
//! # Contract
//! `now` never goes back. Frames that reach the station go to [`Client::handle_frame`]; each
//! iteration of the loop calls [`Client::handle_timeouts`] and then [`Client::poll_transmit`]. Work
//! per call is bounded by its arguments.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use tailwater_ports::{Delivery, Inject};
use tailwater_tcp::isn::initial_numbers;
use tailwater_tcp::{
    Config, Connection, EcnCodepoint, Events, Flow, Full, Header, Instant, Opening, Outgoing, Payload,
    Purpose, RecvError, Secret, Segment, SendError, Transmit, answer_closed, default_mss,
};
use tailwater_wire::MacAddr;

use super::wire::{Template, decode};
use crate::station::wire::Host;

/// A connection of a [`Client`].
pub type ConnectionId = u32;

/// First local port.
pub const FIRST_PORT: u16 = 10_000;
/// Local ports, and so connections per remote port.
pub const PORTS: u32 = 50_000;
/// Maximum number of segments of one connection in a row, so that a bulk transfer does not starve
/// the others.
const BURST: usize = 16;
/// Resets waiting to be sent.
const MAX_RESETS: usize = 64;
/// IPv4 and TCP headers without options.
const HEADERS: u16 = 40;

/// The server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Where frames to it go.
    pub mac: MacAddr,
    /// Its address.
    pub ip: Ipv4Addr,
    /// The first of its ports.
    pub port: u16,
}

#[derive(Debug, Default)]
struct Slot {
    connection: Option<Box<Connection>>,
    /// True if it is among `ready`.
    ready: bool,
    /// The earliest of its entries among `timers`.
    timer: Option<Instant>,
}

/// The connections. See the [module](self).
#[derive(Debug)]
pub struct Client {
    own: Host,
    peer: Peer,
    config: Config,
    secret: Secret,
    path_mss: u16,
    slots: Vec<Slot>,
    /// Those that may have something to send, each once.
    ready: VecDeque<ConnectionId>,
    /// Times at which connections must be checked; entries may be too early, and outlive their
    /// connection.
    timers: BinaryHeap<Reverse<(Instant, ConnectionId)>>,
    /// Answers to segments of connections that are not there.
    resets: Vec<Header>,
    template: Template,
    loss: Loss,
}

/// Frames that are lost on purpose, drawn at random.
#[derive(Debug)]
struct Loss {
    per_million: u32,
    /// Of xorshift64 (Marsaglia, 2003); never zero.
    state: u64,
    lost: u64,
}

impl Loss {
    /// Returns true if the next frame is lost.
    #[inline]
    fn draw(&mut self) -> bool {
        if self.per_million == 0 {
            return false;
        }
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let lost = self.state % 1_000_000 < self.per_million.into();
        self.lost += u64::from(lost);
        lost
    }
}

impl Client {
    /// Creates a client without connections. Packets are up to `mtu` bytes (at least 576); `secret`
    /// makes sequence numbers.
    pub fn new(own: (MacAddr, Ipv4Addr), peer: Peer, config: Config, secret: [u8; 16], mtu: u16) -> Self {
        let (mac, ip) = own;
        let (own, mtu) = (Host { mac, ip }, mtu.max(576));
        Self {
            own,
            peer,
            config,
            secret: Secret(secret),
            path_mss: mtu - HEADERS,
            slots: Vec::new(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            resets: Vec::new(),
            template: Template::new(own, &peer, mtu),
            loss: Loss { per_million: 0, state: 0x9e37_79b9_7f4a_7c15, lost: 0 },
        }
    }

    /// Sets how many of a million frames are lost on purpose, in either direction; up to 1,000,000.
    pub fn set_loss(&mut self, per_million: u32) {
        self.loss.per_million = per_million;
    }

    /// Returns the number of frames lost on purpose.
    pub fn lost(&self) -> u64 {
        self.loss.lost
    }

    /// Opens connection `id` in place of whatever had that number.
    ///
    /// # Panics
    /// If its remote port would be above 65535.
    pub fn connect(&mut self, id: ConnectionId, now: Instant) {
        let (local_port, remote_port) = self.ports(id).expect("a remote port below 65536");
        let flow = Flow {
            local: IpAddr::V4(self.own.ip),
            remote: IpAddr::V4(self.peer.ip),
            local_port,
            remote_port,
        };
        let numbers = initial_numbers(&self.secret, &flow, now);
        let opening = Opening {
            local_port,
            remote_port,
            numbers,
            path_mss: self.path_mss,
            default_mss: default_mss(flow.remote),
        };
        let connection = Box::new(Connection::connect(&self.config, &opening, now));
        let index = id as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, Slot::default);
        }
        self.slots[index].connection = Some(connection);
        self.mark_ready(id);
    }

    fn ports(&self, id: ConnectionId) -> Option<(u16, u16)> {
        let remote = u32::from(self.peer.port) + id / PORTS;
        Some((FIRST_PORT + (id % PORTS) as u16, u16::try_from(remote).ok()?))
    }

    /// Returns connection `id`, if there is one.
    #[inline]
    pub fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.slots.get(id as usize)?.connection.as_deref()
    }

    /// Queues as much of `data` as there is room for; see [`Connection::send`].
    ///
    /// # Errors
    /// [`SendError`]; [`SendError::Closed`] also if there is no such connection.
    #[inline]
    pub fn send(&mut self, id: ConnectionId, data: &[u8]) -> Result<usize, SendError> {
        let sent = self.connection_mut(id).ok_or(SendError::Closed)?.send(data);
        self.mark_ready(id);
        sent
    }

    /// Copies what was received; see [`Connection::recv`].
    ///
    /// # Errors
    /// [`RecvError`]; [`RecvError::WouldBlock`] also if there is no such connection.
    #[inline]
    pub fn recv(&mut self, id: ConnectionId, out: &mut [u8]) -> Result<usize, RecvError> {
        let received = self.connection_mut(id).ok_or(RecvError::WouldBlock)?.recv(out);
        self.mark_ready(id);
        received
    }

    /// Closes the connection's sending direction; see [`Connection::close`].
    pub fn close(&mut self, id: ConnectionId) -> Events {
        let events = self.connection_mut(id).map_or(Events::empty(), Connection::close);
        self.mark_ready(id);
        events
    }

    /// Resets the connection; see [`Connection::abort`].
    pub fn abort(&mut self, id: ConnectionId) -> Events {
        let events = self.connection_mut(id).map_or(Events::empty(), Connection::abort);
        self.mark_ready(id);
        events
    }

    /// Resets all connections that are not over.
    pub fn abort_all(&mut self) {
        for id in 0..self.slots.len() as ConnectionId {
            let _ = self.abort(id);
        }
    }

    /// Returns true if something may wait to be sent.
    pub fn wants_transmit(&self) -> bool {
        !self.ready.is_empty() || !self.resets.is_empty()
    }

    /// Handles a frame; returns its connection and events, if it belonged to one.
    #[inline]
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8]) -> Option<(ConnectionId, Events)> {
        let (bytes, ecn) = decode(frame, self.own, &self.peer)?;
        if self.loss.draw() {
            return None;
        }
        let segment = Segment::parse(bytes).ok()?;
        let id = self.id_of(&segment.header);
        let Some((id, connection)) = id.and_then(|id| Some((id, self.connection_mut(id)?))) else {
            // RFC 9293 section 3.10.7.1; the server may hold what this side has forgotten.
            if self.resets.len() < MAX_RESETS {
                self.resets.extend(answer_closed(&segment));
            }
            return None;
        };
        let was_closed = connection.is_closed();
        let events = connection.handle_segment(now, &segment, ecn);
        self.mark_ready(id);
        if was_closed && self.resets.len() < MAX_RESETS {
            self.resets.extend(answer_closed(&segment));
        }
        Some((id, events))
    }

    /// Returns the connection between the ports of a segment that came; there may be none.
    #[inline]
    fn id_of(&self, header: &Header) -> Option<ConnectionId> {
        let local = u32::from(header.destination.checked_sub(FIRST_PORT)?);
        let remote = u32::from(header.source.checked_sub(self.peer.port)?);
        (local < PORTS).then_some(())?;
        remote.checked_mul(PORTS)?.checked_add(local)
    }

    /// Runs expired timers, at most `budget` of them, and passes their events to `changed`.
    pub fn handle_timeouts(
        &mut self,
        now: Instant,
        budget: usize,
        mut changed: impl FnMut(ConnectionId, Events),
    ) {
        for _ in 0..budget {
            let Some(&Reverse((at, id))) = self.timers.peek() else { return };
            if at > now {
                return;
            }
            self.timers.pop();
            let slot = &mut self.slots[id as usize];
            if slot.timer != Some(at) {
                // An earlier one took its place.
                continue;
            }
            slot.timer = None;
            let Some(connection) = &mut slot.connection else { continue };
            let events = connection.handle_timeout(now);
            self.mark_ready(id);
            changed(id, events);
        }
    }

    /// Returns when [`handle_timeouts`](Self::handle_timeouts) has work to do, possibly too early;
    /// now, if something waits to be sent.
    pub fn next_event(&self) -> Option<Instant> {
        if self.wants_transmit() {
            return Some(Instant(0));
        }
        self.timers.peek().map(|&Reverse((at, _))| at)
    }

    /// Sends ready frames, at most `budget`; returns their number.
    pub fn poll_transmit(&mut self, now: Instant, budget: usize, switch: &mut dyn Inject) -> usize {
        let mut sent = 0;
        while sent < budget
            && let Some(header) = self.resets.pop()
        {
            let (payload, ecn) = (Payload::default(), EcnCodepoint::NotEct);
            let reset = Outgoing { header, payload, ecn, purpose: Purpose::Reset };
            // A reset without room is lost; the server provokes another.
            switch.inject(self.template.fill(&reset));
            sent += 1;
        }
        for _ in 0..self.ready.len() {
            let Some(id) = self.ready.pop_front() else { break };
            let slot = &mut self.slots[id as usize];
            slot.ready = false;
            let Some(connection) = &mut slot.connection else { continue };
            let room = BURST.min(budget - sent);
            let mut outcome = Transmit::Sent;
            for _ in 0..room {
                outcome = connection.poll_transmit(now, |segment| {
                    // Drawn for what leaves, not for each look whether something does.
                    if self.loss.draw() {
                        return Ok(());
                    }
                    match switch.inject(self.template.fill(segment)) {
                        Delivery::Full => Err(Full),
                        // A frame without a receiver is lost on the way.
                        _ => Ok(()),
                    }
                });
                if outcome != Transmit::Sent {
                    break;
                }
                sent += 1;
            }
            self.arm(id);
            if outcome != Transmit::Nothing {
                self.mark_ready(id);
            }
            if sent == budget || outcome == Transmit::Full {
                break;
            }
        }
        sent
    }

    fn arm(&mut self, id: ConnectionId) {
        let slot = &mut self.slots[id as usize];
        let Some(at) = slot.connection.as_ref().and_then(|connection| connection.next_timeout()) else {
            return;
        };
        // A timer that moved later is found too early, and set again then.
        if slot.timer.is_none_or(|timer| at < timer) {
            slot.timer = Some(at);
            self.timers.push(Reverse((at, id)));
        }
    }

    #[inline]
    fn connection_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.slots.get_mut(id as usize)?.connection.as_deref_mut()
    }

    #[inline]
    fn mark_ready(&mut self, id: ConnectionId) {
        if let Some(slot) = self.slots.get_mut(id as usize)
            && !slot.ready
        {
            slot.ready = true;
            self.ready.push_back(id);
        }
    }
}

#[cfg(test)]
mod tests;
