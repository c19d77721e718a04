//! Writes another address into an IP packet, and makes up for it in its checksums (RFC 1624 section
//! 3, equation 3).

use std::net::IpAddr;
use tailwater_wire::packet::{Family, ICMP, ICMPV6, Part, TCP, UDP, decode};
use tailwater_wire::{ETHERNET_HEADER, Sum};

use super::Side;

/// Offsets in an IPv4 header.
const CHECKSUM4: usize = 10;
const SOURCE4: usize = 12;
const DESTINATION4: usize = 16;
/// Offsets in an IPv6 header.
const SOURCE6: usize = 8;
const DESTINATION6: usize = 24;
/// Length of an ICMP error before the quoted packet, and the offset of its checksum.
const ERROR_HEADER: usize = 8;
const ICMP_CHECKSUM: usize = 2;

/// Bytes that have taken the place of others.
struct Change {
    before: [u8; 16],
    after: [u8; 16],
    len: usize,
}

impl Change {
    /// Makes up for the change in the checksum at `at`.
    fn adjust(&self, bytes: &mut [u8], at: usize) {
        let Some(place) = bytes.get_mut(at..at + 2) else { return };
        let old = u16::from_be_bytes([place[0], place[1]]);
        let inverted = self.before.map(|byte| !byte);
        let sum = Sum::new().word(!old).bytes(&inverted[..self.len]).bytes(&self.after[..self.len]).finish();
        place.copy_from_slice(&sum.to_be_bytes());
    }
}

/// Writes an address, and returns what it has replaced; `None` if the bytes are too few.
fn put(bytes: &mut [u8], at: usize, ip: IpAddr) -> Option<Change> {
    let (mut before, mut after) = ([0; 16], [0; 16]);
    let len = match ip {
        IpAddr::V4(ip) => {
            after[..4].copy_from_slice(&ip.octets());
            4
        }
        IpAddr::V6(ip) => {
            after = ip.octets();
            16
        }
    };
    let place = bytes.get_mut(at..at + len)?;
    before[..len].copy_from_slice(place);
    place.copy_from_slice(&after[..len]);
    Some(Change { before, after, len })
}

/// Writes the address at one side of the packet in a frame, of the packet's family, and at the
/// other side of a packet that an ICMP error quotes.
pub(super) fn rewrite(frame: &mut [u8], side: Side, ip: IpAddr) {
    let Ok(Some(packet)) = decode(frame, frame.len()) else { return };
    let (family, protocol, part) = (packet.family, packet.protocol, packet.part);
    // The payload is a part of the frame.
    let start = packet.payload.as_ptr().addr() - frame.as_ptr().addr();
    let end = start + packet.payload.len();
    let quotes = packet.quoted().is_some();
    let Some(change) = put(frame, ETHERNET_HEADER + place(family, side), ip) else { return };
    if family == Family::V4 {
        change.adjust(frame, ETHERNET_HEADER + CHECKSUM4);
    }
    let Some(payload) = frame.get_mut(start..end).filter(|_| !matches!(part, Part::Later(_))) else { return };
    match protocol {
        TCP => change.adjust(payload, 16),
        // Zero is no checksum in IPv4, and a sum of zero is sent as all ones (RFC 768).
        UDP if family == Family::V6 || payload.get(6..8) != Some(&[0, 0]) => {
            change.adjust(payload, 6);
            if payload.get(6..8) == Some(&[0, 0]) {
                payload[6..8].fill(0xff);
            }
        }
        ICMPV6 => {
            change.adjust(payload, ICMP_CHECKSUM);
            if quotes && let Some(change) = put_quoted(payload, family, side, ip) {
                change.adjust(payload, ICMP_CHECKSUM);
            }
        }
        // The sum of the quoted header stays, and so does that of the error, which has no
        // pseudo-header.
        ICMP if quotes => {
            if let Some(change) = put_quoted(payload, family, side, ip) {
                change.adjust(payload, ERROR_HEADER + CHECKSUM4);
            }
        }
        _ => {}
    }
}

/// Writes the address into the quoted packet, which went in the other direction.
fn put_quoted(payload: &mut [u8], family: Family, side: Side, ip: IpAddr) -> Option<Change> {
    let other = match side {
        Side::Source => Side::Destination,
        Side::Destination => Side::Source,
    };
    put(payload, ERROR_HEADER + place(family, other), ip)
}

/// Returns the offset of an address in a header.
const fn place(family: Family, side: Side) -> usize {
    match (family, side) {
        (Family::V4, Side::Source) => SOURCE4,
        (Family::V4, Side::Destination) => DESTINATION4,
        (Family::V6, Side::Source) => SOURCE6,
        (Family::V6, Side::Destination) => DESTINATION6,
    }
}
