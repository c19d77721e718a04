//! Programs behind the interface's own MAC address: `share=addresses`.
//!
//! Owns the translation of each frame between the network of the programs, where each has a MAC
//! address of its own, and the wire, where only the interface's is seen; and the answers for the
//! gateway. Clouds drop frames with any other MAC address, and let a machine have several IP
//! addresses. Pure, but for the view that the control thread ([`sharing`](super::sharing))
//! replaces.
//!
//! A program believes that it has a MAC address and that the wire is its network, as with any other
//! port. So the switch, its checks and the runtime's stack are the same, and what is translated is:
//!
//! | frame | field | becomes |
//! |---|---|---|
//! | leaves | source | the interface's own |
//! | leaves, ARP | sender hardware address | the same |
//! | leaves, neighbour or router solicitation, advertisement | link-layer address options | the same, with the checksum |
//! | leaves to the gateway's MAC address | destination | that of the next hop which Linux's routes have for the destination |
//! | comes, IP or ARP | destination | that of the program with the destination or target IP address |
//! | comes, ARP | target hardware address, if it was the interface's own | the same |
//! | comes, ARP or neighbour discovery in the gateway's name | source, and the link-layer addresses inside | the gateway's |
//! | leaves to the gateway's MAC address, ARP | target hardware address | that of the next hop |
//!
//! A program finds hosts of its network itself: its ARP requests and neighbour solicitations leave,
//! and the answers come to its IP address, also where a cloud answers in the place of hosts. It
//! does not find the gateway: that is an address of the programs' network for which this port
//! answers, whatever network the real one is in. In clouds that may be another one than the
//! programs', and Linux's own entry is the one that works there. A router of the wire that has the
//! gateway's IP address, or a host that claims it, is seen at the gateway's MAC address: no frame
//! of the wire changes where frames to other networks go.
//!
//! # Who is who
//! In the switch a program is its MAC and IP address, and may send from no other, which the
//! switch checks. On the wire it is its IP address. No program is given an address of Linux's, of
//! the gateway or of a next hop, and no frame for one is redirected to the IOKernel, so no program
//! can send from one or receive for it. Frames of protocols other than IP and ARP do not leave: on
//! the wire they would be the machine's. What comes from the wire in the name of a program is
//! dropped by the switch.
//!
//! # What does not pass
//! - Between programs and Linux on the same interface: Linux's address is behind the same MAC
//!   address, and frames for it would leave by the wire. The other side does not answer.
//! - Broadcasts and multicasts of the wire: Linux receives them. A host that announces a new MAC
//!   address by broadcast is found by the programs when its entry there expires. The gateway's is
//!   followed at once, since Linux hears it.
//! - Frames with VLAN tags, in both directions.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_wire::frame::{
    ARP_FRAME, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_FRAME, IPV6_FRAME, PREFIX_LEN6,
};
use tailwater_wire::packet::{ICMPV6, Packet, Part, decode};
use tailwater_wire::resolution::{Resolution, resolution, resolved};
use tailwater_wire::{MacAddr, Sum};

use super::latest::Latest;
use super::ways::{Prefix, Way};
use crate::Inject;

const ROUTER_SOLICITATION: u8 = 133;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// Messages of neighbour discovery that hosts send (RFC 4861 section 4).
const DISCOVERY: [u8; 3] = [ROUTER_SOLICITATION, NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT];
/// Protocols whose packets are no messages of neighbour discovery: most are of these.
const TCP_AND_UDP: [u8; 2] = [6, 17];

/// What the wire looks like. Made by the control thread, and never changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct View {
    /// The interface's own MAC address.
    pub(super) own: MacAddr,
    /// Where frames to the gateway go: the station of the next hop, if it is known. Of those that
    /// fit, the first one counts.
    pub(super) ways: Vec<Way<Option<MacAddr>>>,
}

impl View {
    /// Returns the station of the next hop; `None` if it is unknown.
    fn next_hop(&self, from: IpAddr, to: IpAddr) -> Option<MacAddr> {
        self.ways.iter().find(|way| way.fits(from, to))?.via
    }
}

/// The gateway of the programs: addresses for which the port answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gateway {
    pub(super) ip: Ipv4Addr,
    pub(super) ip6: Option<Ipv6Addr>,
}

impl Gateway {
    /// Returns the networks of its programs.
    pub(super) fn networks(&self, prefix_len: u8) -> Vec<Prefix> {
        let ip6 = self.ip6.map(|ip6| Prefix::new(ip6.into(), PREFIX_LEN6));
        [Some(Prefix::new(self.ip.into(), prefix_len)), ip6].into_iter().flatten().collect()
    }

    /// Returns its MAC address in the network of the programs: no program can have it.
    pub(super) fn mac(&self) -> MacAddr {
        MacAddr::derived(self.ip)
    }

    pub(super) fn has(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => ip == self.ip,
            IpAddr::V6(ip) => Some(ip) == self.ip6,
        }
    }
}

/// Counts of frames; written by the polling thread, read by the one that serves statistics.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Questions for the gateway that were answered.
    pub(super) answered: AtomicU64,
    /// Frames to the gateway that were dropped, because the station of the next hop is unknown.
    pub(super) no_next_hop: AtomicU64,
    /// Frames that were dropped because nothing of them may be seen on the wire: other protocols,
    /// and frames to the interface's own MAC address.
    pub(super) kept: AtomicU64,
    /// Frames that were dropped because the port that they come from is not the program's.
    pub(super) foreign_ports: AtomicU64,
}

/// What happens to a frame of a program.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outward {
    /// It leaves, to another station if one is given.
    Leaves(Option<MacAddr>),
    /// It was answered.
    Answered,
    Dropped,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Translation {
    latest: Arc<Latest<View>>,
    view: Arc<View>,
    gateway: Option<Gateway>,
    /// Answers for the gateway that wait for the next poll, by the station that asked and the
    /// EtherType. A later one replaces an earlier one, so no program takes another's place.
    answers: BTreeMap<([u8; 6], u16), Vec<u8>>,
    counts: Arc<Counts>,
}

impl Translation {
    pub(super) fn new(latest: Arc<Latest<View>>, gateway: Option<Gateway>, counts: Arc<Counts>) -> Self {
        let view = latest.take().unwrap_or_default();
        Self { latest, view, gateway, answers: BTreeMap::new(), counts }
    }

    /// Takes up the latest view, and injects answers that wait, up to `budget`; returns how many.
    pub(super) fn poll(&mut self, budget: usize, switch: &mut dyn Inject) -> usize {
        if let Some(view) = self.latest.take() {
            self.view = view;
        }
        let mut count = 0;
        while count < budget
            && (count == 0 || switch.may_go_on(false))
            && let Some((_, frame)) = self.answers.pop_first()
        {
            switch.inject(&frame);
            count += 1;
        }
        count
    }

    /// Returns whether answers wait.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Translates a frame from the wire. Returns false if it is for no address of a program.
    pub(super) fn enter(&self, frame: &mut [u8], station: impl Fn(IpAddr) -> Option<MacAddr>) -> bool {
        if enter(frame, self.view.own, station).is_none() {
            return false;
        }
        if let Some(gateway) = self.gateway {
            hide_station(frame, gateway);
        }
        true
    }

    /// Decides on a frame of a program, before [`leave`] translates the copy that leaves.
    pub(super) fn judge(&mut self, frame: &[u8]) -> Outward {
        let ethertype = match frame.get(12..14) {
            Some(&[a, b]) => u16::from_be_bytes([a, b]),
            _ => return self.drop_it(),
        };
        let known = matches!(ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6 | ETHERTYPE_ARP);
        if !known || frame[..6] == self.view.own.0 {
            return self.drop_it();
        }
        let Some(gateway) = self.gateway else { return Outward::Leaves(None) };
        if asks(frame, ethertype)
            && let Some(Resolution::Question { target, by, station }) = resolution(frame)
            && gateway.has(target)
        {
            if let Some(answer) = resolved(target, gateway.mac(), (by, station)) {
                self.answers.insert((station.0, ethertype), answer.to_vec());
                self.counts.answered.fetch_add(1, Ordering::Relaxed);
            }
            return Outward::Answered;
        }
        if frame[..6] != gateway.mac().0 {
            return Outward::Leaves(None);
        }
        match ends(frame, ethertype).and_then(|(from, to)| self.view.next_hop(from, to)) {
            Some(station) => Outward::Leaves(Some(station)),
            None => {
                self.counts.no_next_hop.fetch_add(1, Ordering::Relaxed);
                Outward::Dropped
            }
        }
    }

    fn drop_it(&self) -> Outward {
        self.counts.kept.fetch_add(1, Ordering::Relaxed);
        Outward::Dropped
    }

    /// Translates the copy of a frame that leaves, to this station if one is given.
    pub(super) fn leave(&self, frame: &mut [u8], station: Option<MacAddr>) {
        leave(frame, self.view.own, station);
    }
}

/// Returns the address at `at`, if the frame has it.
fn address4(frame: &[u8], at: usize) -> Option<IpAddr> {
    Some(IpAddr::from(*frame.get(at..)?.first_chunk::<4>()?))
}

fn address6(frame: &[u8], at: usize) -> Option<IpAddr> {
    Some(IpAddr::from(*frame.get(at..)?.first_chunk::<16>()?))
}

/// Returns the destination of an IP packet, and the target of ARP.
fn destination(frame: &[u8], ethertype: u16) -> Option<IpAddr> {
    ends(frame, ethertype).map(|(_, to)| to)
}

/// Returns source and destination of an IP packet, sender and target of ARP.
fn ends(frame: &[u8], ethertype: u16) -> Option<(IpAddr, IpAddr)> {
    match ethertype {
        ETHERTYPE_IPV4 => Some((address4(frame, IPV4_FRAME - 8)?, address4(frame, IPV4_FRAME - 4)?)),
        ETHERTYPE_IPV6 => Some((address6(frame, IPV6_FRAME - 32)?, address6(frame, IPV6_FRAME - 16)?)),
        ETHERTYPE_ARP => Some((address4(frame, ARP_FRAME - 14)?, address4(frame, ARP_FRAME - 4)?)),
        _ => None,
    }
}

/// Returns whether a frame may ask for a station: few are looked at more closely.
pub(super) fn asks(frame: &[u8], ethertype: u16) -> bool {
    match ethertype {
        ETHERTYPE_ARP => true,
        ETHERTYPE_IPV6 => {
            frame.get(20) == Some(&ICMPV6) && frame.get(IPV6_FRAME) == Some(&NEIGHBOUR_SOLICITATION)
        }
        _ => false,
    }
}

/// See [`Translation::enter`].
fn enter(frame: &mut [u8], own: MacAddr, station: impl Fn(IpAddr) -> Option<MacAddr>) -> Option<()> {
    let ethertype = u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]);
    let to = destination(frame, ethertype)?;
    if to.is_multicast() {
        // A neighbour solicitation, which the switch delivers by its group.
        return Some(());
    }
    let station = station(to)?;
    frame[..6].copy_from_slice(&station.0);
    if ethertype == ETHERTYPE_ARP && frame[32..38] == own.0 {
        frame[32..38].copy_from_slice(&station.0);
    }
    Some(())
}

/// Has a frame from the wire that speaks for the gateway, by ARP or neighbour discovery, come from
/// the gateway's MAC address.
fn hide_station(frame: &mut [u8], gateway: Gateway) {
    let mac = gateway.mac();
    match u16::from_be_bytes([frame[12], frame[13]]) {
        ETHERTYPE_ARP
            if frame.len() >= ARP_FRAME && address4(frame, 28).is_some_and(|sender| gateway.has(sender)) =>
        {
            frame[6..12].copy_from_slice(&mac.0);
            frame[22..28].copy_from_slice(&mac.0);
        }
        ETHERTYPE_IPV6 if frame.get(20).is_some_and(|next| !TCP_AND_UDP.contains(next)) => {
            if let Ok(Some(packet)) = decode(frame, frame.len())
                && speaks_for(&packet, gateway)
            {
                frame[6..12].copy_from_slice(&mac.0);
                replace_options(frame, mac);
            }
        }
        _ => {}
    }
}

/// Returns whether a message of neighbour discovery says where the gateway is.
fn speaks_for(packet: &Packet<'_>, gateway: Gateway) -> bool {
    let has = |ip: u128| gateway.has(IpAddr::V6(ip.into()));
    let Some(&kind) = packet.payload.first().filter(|_| packet.protocol == ICMPV6) else { return false };
    let target = || address6(packet.payload, 8);
    DISCOVERY.contains(&kind)
        && (has(packet.source)
            || kind == NEIGHBOUR_ADVERTISEMENT && target().is_some_and(|target| gateway.has(target)))
}

/// See [`Translation::leave`].
fn leave(frame: &mut [u8], own: MacAddr, station: Option<MacAddr>) {
    let is_arp = frame[12..14] == ETHERTYPE_ARP.to_be_bytes() && frame.len() >= ARP_FRAME;
    if let Some(station) = station {
        if is_arp && frame[..6] == frame[32..38] {
            frame[32..38].copy_from_slice(&station.0);
        }
        frame[..6].copy_from_slice(&station.0);
    }
    frame[6..12].copy_from_slice(&own.0);
    if is_arp {
        frame[22..28].copy_from_slice(&own.0);
    } else if frame[12..14] == ETHERTYPE_IPV6.to_be_bytes() {
        replace_options(frame, own);
    }
}

/// Writes a MAC address into the link-layer address options of a message of neighbour discovery.
fn replace_options(frame: &mut [u8], mac: MacAddr) {
    let Ok(Some(packet)) = decode(frame, frame.len()) else { return };
    let [kind, ..] = *packet.payload else { return };
    if packet.protocol != ICMPV6 || packet.part != Part::Whole || !DISCOVERY.contains(&kind) {
        return;
    }
    // The payload is a part of the frame.
    let start = packet.payload.as_ptr().addr() - frame.as_ptr().addr();
    let end = start + packet.payload.len();
    // A router solicitation has no target.
    let mut at = start + if kind == ROUTER_SOLICITATION { 8 } else { 24 };
    // Bounded: every round takes at least eight bytes.
    while let Some(&[option, units]) = frame[..end].get(at..).and_then(<[u8]>::first_chunk) {
        let len = 8 * usize::from(units);
        // Source and target link-layer address (RFC 4861 section 4.6.1).
        if matches!(option, 1 | 2) && len == 8 && at + 8 <= end {
            replace(&mut frame[start..end], at - start + 2, mac);
        } else if len == 0 {
            return;
        }
        at += len;
    }
}

/// Writes a MAC address into an ICMPv6 message at an even offset, and makes up for it in the
/// checksum (RFC 1624 section 3, equation 3).
fn replace(message: &mut [u8], at: usize, mac: MacAddr) {
    let place = &mut message[at..at + 6];
    let inverted: [u8; 6] = core::array::from_fn(|i| !place[i]);
    place.copy_from_slice(&mac.0);
    let old = u16::from_be_bytes([message[2], message[3]]);
    let sum = Sum::new().word(!old).bytes(&inverted).bytes(&mac.0).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests;
