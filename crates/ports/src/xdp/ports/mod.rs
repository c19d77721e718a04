//! Programs behind the interface's own IP addresses: `share=ports`.
//!
//! Owns the translation of each frame between the network of the programs, where each has an
//! address of its own, and the wire, where all have the interface's MAC and IP addresses, as Linux
//! has, and ports tell them apart. Pure, but for the view that the control thread
//! ([`steering`]) replaces.
//!
//! A program believes that it has an address, and a gateway to all other networks. So the switch,
//! its checks and the runtime's stack are the same, and what is translated is:
//!
//! | frame | field | becomes |
//! |---|---|---|
//! | leaves | source MAC and IP address | the interface's own |
//! | leaves | destination MAC address, the gateway's | that of the neighbour or router that Linux has for the destination |
//! | comes | destination MAC and IP address | those of the program with the port |
//! | comes | source MAC address | the gateway's |
//! | leaves or comes, ICMP error | the own address in the quoted packet | the same as outside of it |
//!
//! Ports stay as they are. Checksums are adjusted and not made anew, so damage is found by the
//! receiver. A later fragment goes with the first one of its datagram.
//!
//! A frame of a program to the interface's own address comes back to the program that has the port,
//! in the name of that address, as it would from another host.
//!
//! # Who is who
//! In the switch a program is its MAC and IP address, and may send from no other, which the
//! switch checks. On the wire it is a set of ports: those at which it listens, and its part of the
//! range for outgoing connections. A frame from any other port does not leave, whether that port is
//! Linux's, another program's, or free. Nor do ICMP messages other than errors about packets to
//! these ports, nor later fragments of datagrams whose first fragment did not leave.
//!
//! # What does not pass
//! - Between programs and Linux on the same interface: Linux has the same address.
//! - Broadcasts, multicasts, pings, other protocols than TCP, UDP and ICMP errors: Linux has them.

pub(super) mod attachment;
mod held;
pub(super) mod holders;
pub(super) mod record;
mod rewrite;
pub(super) mod steering;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tailwater_wire::MacAddr;
use tailwater_wire::frame::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use tailwater_wire::packet::{Family, Packet, Part, TCP, UDP, decode};
use tailwater_wire::resolution::{Resolution, resolution, resolved};

use super::addresses::{Counts, Gateway, Outward, asks};
use super::latest::Latest;
use super::linux::Known;
use super::program::ports::port_key;
use super::ways::{Prefix, Way};
use crate::Inject;
use rewrite::rewrite;

/// Maximum number of frames that wait for the station of a neighbour, one for each program and
/// neighbour; and of those of one program.
const MOST_WAITING: usize = 64;
const MOST_WAITING_OF_ONE: usize = 8;
/// Maximum number of frames that come back to a program of this machine at the next poll.
const MOST_RETURNING: usize = 256;
/// Maximum number of datagrams whose later fragments find their way, in each direction.
const MOST_FRAGMENTED: usize = 256;
/// For how long a frame waits: as long as Linux asks for a neighbour (arp(7), `mcast_solicit`).
const WAITS: Duration = Duration::from_secs(3);
/// Maximum number of neighbours that are known by their frames only.
const MOST_HEARD: usize = 1_024;
/// For how long they are known without another frame of theirs: as Linux knows its own (arp(7),
/// `gc_stale_time`).
const HEARD: Duration = Duration::from_secs(60);
/// Time between two requests that Linux checks a neighbour.
const CHECK_PAUSE: Duration = Duration::from_secs(1);

/// A program on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) ip: Ipv4Addr,
    pub(super) ip6: Option<Ipv6Addr>,
    /// Its ports for outgoing connections.
    pub(super) outgoing: RangeInclusive<u16>,
    /// [`port_key`] of each port at which it listens, in ascending order.
    pub(super) listens: Vec<u32>,
}

impl Program {
    /// Returns its address of a family.
    fn address(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => Some(self.ip.into()),
            Family::V6 => self.ip6.map(IpAddr::V6),
        }
    }

    fn has_port(&self, protocol: u8, port: u16) -> bool {
        matches!(protocol, TCP | UDP)
            && (self.outgoing.contains(&port)
                || self.listens.binary_search(&port_key(protocol, port)).is_ok())
    }
}

/// What the wire looks like, and who has which port. Made by the control thread, and never changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct View {
    /// The interface's own MAC address, and IP addresses.
    own: MacAddr,
    ip: Option<Ipv4Addr>,
    ip6: Option<Ipv6Addr>,
    programs: Vec<Program>,
    /// Networks, each with its router; without one its hosts are neighbours. Of those that fit, the
    /// first one counts.
    networks: Vec<(Prefix, Option<IpAddr>)>,
    neighbours: HashMap<IpAddr, Known>,
}

impl View {
    /// Returns a view with these addresses of the interface, and the ways out of packets from them.
    pub(super) fn new(
        (own, ip, ip6): (MacAddr, Option<Ipv4Addr>, Option<Ipv6Addr>),
        programs: Vec<Program>,
        ways: &[Way],
        neighbours: HashMap<IpAddr, Known>,
    ) -> Self {
        let networks = ways.iter().map(|way| (way.to, way.via)).collect();
        Self { own, ip, ip6, programs, networks, neighbours }
    }

    /// Returns the interface's own address of a family.
    fn own(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.ip.map(IpAddr::V4),
            Family::V6 => self.ip6.map(IpAddr::V6),
        }
    }

    /// Returns the address of the neighbour or router to which a packet goes; `None` without a
    /// route.
    fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        let (_, router) = self.networks.iter().find(|(network, _)| network.has(to))?;
        Some(router.unwrap_or(to))
    }

    fn with_port(&self, protocol: u8, port: u16) -> Option<&Program> {
        self.programs.iter().find(|program| program.has_port(protocol, port))
    }
}

/// Neighbours that the polling thread does not find, or that Linux is to check, for the control
/// thread.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// A hint that there are some; the lock orders the rest.
    any: AtomicBool,
    all: Mutex<Vec<IpAddr>>,
}

impl Wanted {
    /// Adds one, if that takes no waiting.
    fn add(&self, ip: IpAddr) {
        if let Ok(mut all) = self.all.try_lock()
            && all.len() < MOST_WAITING
            && !all.contains(&ip)
        {
            all.push(ip);
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// Returns those that were added since the last call.
    pub(super) fn take(&self) -> Vec<IpAddr> {
        if !self.any.swap(false, Ordering::Relaxed) {
            return Vec::new();
        }
        core::mem::take(&mut self.all.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }
}

/// What tells the datagrams of one sender apart: source or destination, identification and
/// protocol.
type Datagram = (u128, u128, u32, u8);

/// The program of the latest fragmented datagrams.
#[derive(Debug, Default)]
struct Fragmented(VecDeque<(Datagram, Ipv4Addr)>);

impl Fragmented {
    fn note(&mut self, datagram: Datagram, program: Ipv4Addr) {
        self.0.retain(|(other, _)| *other != datagram);
        if self.0.len() == MOST_FRAGMENTED {
            self.0.pop_front();
        }
        self.0.push_back((datagram, program));
    }

    fn find(&self, datagram: Datagram) -> Option<Ipv4Addr> {
        self.0.iter().rev().find(|(other, _)| *other == datagram).map(|(_, program)| *program)
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Translation {
    latest: Arc<Latest<View>>,
    view: Arc<View>,
    wanted: Arc<Wanted>,
    gateway: Gateway,
    /// Answers for the gateway that wait for the next poll, by the station that asked and the
    /// EtherType. A later one replaces an earlier one, so no program takes another's place.
    answers: BTreeMap<([u8; 6], u16), Vec<u8>>,
    /// Frames for programs of this machine that wait for the next poll.
    returning: VecDeque<Vec<u8>>,
    /// Frames of programs that wait for the station of a neighbour, and since when: the latest of
    /// each. They are judged once more before they leave.
    waiting: BTreeMap<(Ipv4Addr, IpAddr), (Instant, Vec<u8>)>,
    /// Those whose station is known now.
    ready: Vec<Vec<u8>>,
    /// Neighbours that Linux does not know, by their frames, and about when the last one came.
    heard: HashMap<IpAddr, (MacAddr, Instant)>,
    /// Neighbours that Linux is to check, and since when these are collected.
    checked: (Instant, HashSet<IpAddr>),
    /// When the view was taken up: once a second at least.
    now: Instant,
    entering: Fragmented,
    leaving: Fragmented,
    counts: Arc<Counts>,
}

impl Translation {
    pub(super) fn new(
        (latest, wanted): (Arc<Latest<View>>, Arc<Wanted>),
        gateway: Gateway,
        counts: Arc<Counts>,
    ) -> Self {
        let (view, now) = (latest.take().unwrap_or_default(), Instant::now());
        Self {
            latest,
            view,
            wanted,
            gateway,
            answers: BTreeMap::new(),
            returning: VecDeque::new(),
            waiting: BTreeMap::new(),
            ready: Vec::new(),
            heard: HashMap::new(),
            checked: (now, HashSet::new()),
            now,
            entering: Fragmented::default(),
            leaving: Fragmented::default(),
            counts,
        }
    }

    /// Takes up the latest view, and injects frames that wait, up to `budget`; returns how many.
    pub(super) fn poll(&mut self, budget: usize, switch: &mut dyn Inject) -> usize {
        if let Some(view) = self.latest.take() {
            (self.view, self.now) = (view, Instant::now());
            self.forget();
            self.release_waiting();
        }
        let mut count = 0;
        while count < budget && (count == 0 || switch.may_go_on(false)) {
            if let Some((_, frame)) = self.answers.pop_first() {
                switch.inject(&frame);
            } else if let Some(mut frame) = self.returning.pop_front() {
                if self.try_enter(&mut frame, false, |ip| switch.station(ip)).is_some() {
                    switch.inject(&frame);
                }
            } else {
                break;
            }
            count += 1;
        }
        count
    }

    /// Returns whether frames wait for the next poll.
    pub(super) fn has_answers(&self) -> bool {
        !(self.answers.is_empty() && self.returning.is_empty() && self.ready.is_empty())
    }

    /// Returns the frames whose next hop has become known, to be sent as they are.
    pub(super) fn take_ready(&mut self) -> Vec<Vec<u8>> {
        core::mem::take(&mut self.ready)
    }

    /// Forgets neighbours that have sent nothing for a time, and has Linux check others anew.
    fn forget(&mut self) {
        let now = self.now;
        self.heard.retain(|_, (_, heard)| now.saturating_duration_since(*heard) < HEARD);
        if now.saturating_duration_since(self.checked.0) >= CHECK_PAUSE {
            self.checked = (now, HashSet::new());
        }
    }

    /// Moves frames to those that are sent if their neighbour is known now, and drops those that
    /// have waited too long.
    fn release_waiting(&mut self) {
        let Self { waiting, view, now, counts, .. } = self;
        let mut released = Vec::new();
        waiting.retain(|(_, hop), (since, frame)| {
            if now.saturating_duration_since(*since) >= WAITS {
                counts.no_next_hop.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            let is_known = view.neighbours.contains_key(hop);
            if is_known {
                released.push(core::mem::take(frame));
            }
            !is_known
        });
        // The port may be another program's since, or the interface have another address.
        for mut frame in released {
            if let Outward::Leaves(station) = self.judge(&frame) {
                self.leave(&mut frame, station);
                self.ready.push(frame);
            }
        }
    }

    /// Translates a frame from the wire. Returns false if it is for no port of a program.
    pub(super) fn enter(&mut self, frame: &mut [u8], station: impl Fn(IpAddr) -> Option<MacAddr>) -> bool {
        self.try_enter(frame, true, station).is_some()
    }

    /// Translates a frame from the wire, or of a program to the interface's own address.
    fn try_enter(
        &mut self,
        frame: &mut [u8],
        from_wire: bool,
        station: impl Fn(IpAddr) -> Option<MacAddr>,
    ) -> Option<()> {
        let packet = decode(frame, frame.len()).ok()??;
        let own = self.view.own(packet.family)?;
        if address(&packet, packet.destination) != own {
            return None;
        }
        // No other host has the own address: a program would take the sender for one of this
        // machine, and answer itself.
        if from_wire && address(&packet, packet.source) == own {
            return None;
        }
        let datagram = datagram(&packet);
        let to = match (packet.part, packet.ports(), packet.quoted()) {
            (Part::Later(_), ..) => {
                let ip = self.entering.find(datagram?)?;
                self.view.programs.iter().find(|program| program.ip == ip)?
            }
            (_, Some((_, port)), _) => self.view.with_port(packet.protocol, port)?,
            (_, None, Some(quoted)) if address(&quoted, quoted.source) == own => {
                self.view.with_port(quoted.protocol, quoted.ports()?.0)?
            }
            _ => return None,
        };
        if packet.part == Part::First {
            self.entering.note(datagram?, to.ip);
        }
        let (ip, sender) = (to.address(packet.family)?, address(&packet, packet.source));
        let mac = station(ip)?;
        if self.view.next_hop(sender) == Some(sender) && !self.view.neighbours.contains_key(&sender) {
            if self.heard.len() >= MOST_HEARD {
                self.heard.clear();
            }
            self.heard.extend(frame[6..12].first_chunk().map(|mac| (sender, (MacAddr(*mac), self.now))));
        }
        rewrite(frame, Side::Destination, ip);
        frame[..6].copy_from_slice(&mac.0);
        frame[6..12].copy_from_slice(&self.gateway.mac().0);
        Some(())
    }

    /// Decides on a frame of a program, before [`leave`](Self::leave) translates the copy that
    /// leaves.
    pub(super) fn judge(&mut self, frame: &[u8]) -> Outward {
        let ethertype = match frame.get(12..14) {
            Some(&[a, b]) => u16::from_be_bytes([a, b]),
            _ => return self.drop_it(),
        };
        if asks(frame, ethertype) {
            return self.answer(frame, ethertype);
        }
        if frame[..6] != self.gateway.mac().0 || !matches!(ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6) {
            return self.drop_it();
        }
        let Ok(Some(packet)) = decode(frame, frame.len()) else { return self.drop_it() };
        let source = address(&packet, packet.source);
        let view = Arc::clone(&self.view);
        let program = view.programs.iter().find(|program| program.address(packet.family) == Some(source));
        let (Some(program), Some(own)) = (program, view.own(packet.family)) else { return self.drop_it() };
        if !self.may_leave(&packet, program) {
            self.counts.foreign_ports.fetch_add(1, Ordering::Relaxed);
            return Outward::Dropped;
        }
        let to = address(&packet, packet.destination);
        if to == own {
            return self.send_back(frame);
        }
        let hop = view.next_hop(to);
        let Some(hop) = hop else { return self.drop_without_hop(1) };
        let (station, is_checked) = match (view.neighbours.get(&hop), self.heard.get(&hop)) {
            (Some(known), _) => (known.mac, !known.stale),
            (None, Some((heard, _))) => (*heard, false),
            (None, None) => return self.wait_for(frame, program.ip, hop),
        };
        if !is_checked {
            self.have_checked(hop);
        }
        Outward::Leaves(Some(station))
    }

    /// Has Linux check a neighbour that is used, as it does one to which it sends itself.
    fn have_checked(&mut self, hop: IpAddr) {
        let checked = &mut self.checked.1;
        if checked.len() < MOST_HEARD && checked.insert(hop) {
            self.wanted.add(hop);
        }
    }

    /// Answers a question for the gateway's station; others are dropped.
    fn answer(&mut self, frame: &[u8], ethertype: u16) -> Outward {
        match resolution(frame) {
            Some(Resolution::Question { target, by, station }) if self.gateway.has(target) => {
                if let Some(answer) = resolved(target, self.gateway.mac(), (by, station)) {
                    self.answers.insert((station.0, ethertype), answer.to_vec());
                    self.counts.answered.fetch_add(1, Ordering::Relaxed);
                }
                Outward::Answered
            }
            // An announcement or a probe of its own address, which no other host has.
            _ if ethertype == ETHERTYPE_ARP => Outward::Answered,
            _ => self.drop_it(),
        }
    }

    /// Returns whether the port that a packet comes from is the program's, or that to which the
    /// packet went that an error is about.
    fn may_leave(&mut self, packet: &Packet<'_>, program: &Program) -> bool {
        let datagram = datagram(packet);
        let may = match (packet.part, packet.ports(), packet.quoted()) {
            (Part::Later(_), ..) => {
                return datagram.and_then(|it| self.leaving.find(it)) == Some(program.ip);
            }
            (_, Some((port, _)), _) => program.has_port(packet.protocol, port),
            (_, None, Some(quoted)) => {
                quoted.ports().is_some_and(|(_, port)| program.has_port(quoted.protocol, port))
            }
            _ => false,
        };
        if may
            && packet.part == Part::First
            && let Some(datagram) = datagram
        {
            self.leaving.note(datagram, program.ip);
        }
        may
    }

    /// Has a frame to the interface's own address come back at the next poll.
    fn send_back(&mut self, frame: &[u8]) -> Outward {
        if self.returning.len() >= MOST_RETURNING {
            return self.drop_it();
        }
        let mut copy = frame.to_vec();
        self.leave(&mut copy, Some(self.view.own));
        self.returning.push_back(copy);
        Outward::Answered
    }

    /// Keeps a frame until the station of its next hop is known.
    fn wait_for(&mut self, frame: &[u8], program: Ipv4Addr, hop: IpAddr) -> Outward {
        self.wanted.add(hop);
        let theirs = self.waiting.keys().filter(|(ip, _)| *ip == program).count();
        let has_room = theirs < MOST_WAITING_OF_ONE && self.waiting.len() < MOST_WAITING;
        if !has_room && !self.waiting.contains_key(&(program, hop)) {
            // One that has waited for a neighbour in vain makes room.
            self.waiting.retain(|(ip, _), _| *ip != program);
            return self.drop_without_hop(theirs as u64 + 1);
        }
        if self.waiting.insert((program, hop), (Instant::now(), frame.to_vec())).is_some() {
            self.drop_without_hop(1);
        }
        Outward::Answered
    }

    /// Counts frames that are dropped because their next hop is unknown.
    fn drop_without_hop(&self, count: u64) -> Outward {
        self.counts.no_next_hop.fetch_add(count, Ordering::Relaxed);
        Outward::Dropped
    }

    fn drop_it(&self) -> Outward {
        self.counts.kept.fetch_add(1, Ordering::Relaxed);
        Outward::Dropped
    }

    /// Translates the copy of a frame that leaves, to this station if one is given.
    pub(super) fn leave(&self, frame: &mut [u8], station: Option<MacAddr>) {
        let family = if frame[12..14] == ETHERTYPE_IPV4.to_be_bytes() { Family::V4 } else { Family::V6 };
        if let Some(own) = self.view.own(family) {
            rewrite(frame, Side::Source, own);
        }
        if let Some(station) = station {
            frame[..6].copy_from_slice(&station.0);
        }
        frame[6..12].copy_from_slice(&self.view.own.0);
    }
}

/// Which of the two addresses of a packet is an own one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Source,
    Destination,
}

/// Returns an address of a packet.
fn address(packet: &Packet<'_>, number: u128) -> IpAddr {
    match packet.family {
        Family::V4 => Ipv4Addr::from_bits(number as u32).into(),
        Family::V6 => Ipv6Addr::from_bits(number).into(),
    }
}

/// Returns the datagram of which a frame is a fragment (RFC 791 section 3.2, RFC 8200 section 4.5);
/// `None` if it is none.
fn datagram(packet: &Packet<'_>) -> Option<Datagram> {
    if packet.part == Part::Whole {
        return None;
    }
    // In IPv6 the identification alone tells them apart; the protocol is only in the first one's.
    let protocol = if packet.family == Family::V4 { packet.protocol } else { 0 };
    Some((packet.source, packet.destination, packet.identification, protocol))
}

#[cfg(test)]
mod tests;
