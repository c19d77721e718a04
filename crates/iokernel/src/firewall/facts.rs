//! The properties of a packet that rules test.
//!
//! Owns the reduction of a frame to its two ends, protocol and ports. Parses the frame as
//! [`tailwater_wire::packet`] does, so that rules see what the anti-spoofing checks and the flow
//! hash see.

use tailwater_wire::frame::ETHERTYPE_ARP;
use tailwater_wire::packet::{Family, ICMPV6, Packet, Part, decode};

use super::config::Direction;

/// Has an upper-layer header with ports.
pub(super) const PORTS: u8 = 1;
/// A segment of a TCP connection that is not the first: ACK or RST is set (RFC 9293 section
/// 3.10.7).
pub(super) const ESTABLISHED: u8 = 2;

/// The flags RST and ACK of TCP.
const RST_ACK: u8 = 0x14;

/// One packet, from the runtime's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packet5 {
    pub(super) v6: bool,
    pub(super) protocol: u8,
    /// [`PORTS`] and [`ESTABLISHED`].
    pub(super) traits: u8,
    pub(super) local_port: u16,
    pub(super) remote_port: u16,
    /// Addresses as big-endian numbers, an IPv4 address in the low 32 bits.
    pub(super) local: u128,
    pub(super) remote: u128,
}

/// How the firewall classifies a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Facts {
    /// ARP, neighbour discovery, listener reports: passes.
    Housekeeping,
    /// Cannot be parsed, or hides its upper-layer header from a reader of single fragments: denied.
    Opaque,
    Packet(Packet5),
}

impl Facts {
    /// Returns the facts of a frame of `len` bytes that begins with `shown`.
    #[inline]
    pub(super) fn read(shown: &[u8], len: usize, direction: Direction) -> Self {
        match decode(shown, len) {
            Ok(Some(packet)) => Self::of(&packet, direction),
            Ok(None) if shown[12..14] == ETHERTYPE_ARP.to_be_bytes() => Self::Housekeeping,
            _ => Self::Opaque,
        }
    }

    fn of(packet: &Packet<'_>, direction: Direction) -> Self {
        if packet.hides_header() {
            return Self::Opaque;
        }
        if is_housekeeping(packet) {
            return Self::Housekeeping;
        }
        let ports = packet.ports();
        let (from, to) = ports.unwrap_or((0, 0));
        let established = packet.tcp_flags().is_some_and(|flags| flags & RST_ACK != 0);
        let traits = if ports.is_some() { PORTS } else { 0 } | if established { ESTABLISHED } else { 0 };
        let (local, remote, local_port, remote_port) = match direction {
            Direction::Ingress => (packet.destination, packet.source, to, from),
            _ => (packet.source, packet.destination, from, to),
        };
        let (v6, protocol) = (packet.family == Family::V6, packet.protocol);
        Self::Packet(Packet5 { v6, protocol, traits, local_port, remote_port, local, remote })
    }
}

/// Neighbour and router discovery, which never leave the link (hop limit 255), and listener queries
/// and reports.
fn is_housekeeping(packet: &Packet<'_>) -> bool {
    packet.family == Family::V6
        && packet.protocol == ICMPV6
        && packet.part == Part::Whole
        && match packet.payload {
            [133..=137, ..] => packet.hop_limit == 255,
            [130..=132 | 143, ..] => packet.hop_limit == 1,
            _ => false,
        }
}
