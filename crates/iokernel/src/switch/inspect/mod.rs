//! The checks of a runtime's frame that need more than its first line.
//!
//! Owns the anti-spoofing rules of IPv6, of neighbour discovery, and of IPv4 packets with options
//! or ICMP. Reads a private copy of the whole frame, which is what is delivered, so that nothing
//! can change between check and use; what was found in the first line is checked again, because
//! this is another copy.
//!
//! | field | rule |
//! |---|---|
//! | IPv4 and IPv6 source | the runtime's own; `::` in duplicate address detection and its multicast reports only |
//! | IPv4 source routes, IPv6 routing headers with segments left | refused (RFC 5095, RFC 7126 sections 4.3 and 4.4) |
//! | extension headers | a chain with an end, upper-layer header in the first fragment (RFC 7112) |
//! | ICMP redirect, router advertisement, "fragmentation needed", "host unreachable", "time exceeded in transit", source quench | refused: no runtime is a router |
//! | ICMPv6 router advertisement, redirect, renumbering, multicast query, inverse discovery, "packet too big", "address unreachable", "hop limit exceeded in transit" | refused (RFC 6105, RFC 7113) |
//! | packet that an ICMP or ICMPv6 error quotes | sent to the runtime, or to an IPv6 group; the error is not fragmented |
//! | neighbour discovery: fragment header, hop limit | none, 255 (RFC 6980 section 5, RFC 4861 section 7.1) |
//! | advertised target, probed target | the runtime's own |
//! | link-layer address options | the runtime's own MAC address |

use tailwater_wire::icmp::kind as v4;
use tailwater_wire::icmpv6::{OPTION_SOURCE_LINK, OPTION_TARGET_LINK, kind as v6};
use tailwater_wire::packet::{Family, ICMP, ICMPV6, Packet, Part, decode};

use super::check::{Heading, Identity, Offence, mac_key};

/// Multicast listener reports (RFC 2710, RFC 3810), which duplicate address detection sends before
/// there is an address.
const LISTENER_REPORTS: [u8; 3] = [131, 132, 143];
/// Messages that only routers send, or that speak for other hosts: multicast listener query, router
/// advertisement, redirect, router renumbering, inverse discovery (RFC 3122), certification path
/// and multicast router advertisement.
const NOT_FOR_HOSTS: [u8; 8] = [130, 134, 137, 138, 141, 142, 149, 151];
/// Codes of ICMP errors that only routers send.
const FRAGMENTATION_NEEDED: u8 = 4;
/// Host unreachable, unknown, isolated, and unreachable for a type of service. The IOKernel reports
/// by it that a program, or one of two instances of it, has ended, which its receiver looks for
/// among all its connections.
const HOST_UNREACHABLE: [u8; 4] = [1, 7, 8, 12];
const IN_TRANSIT: u8 = 0;
/// ICMPv6 errors (RFC 4443 section 3): unreachable and parameter problem, which hosts send, and
/// those between.
const V6_ERRORS: core::ops::RangeInclusive<u8> = 1..=4;
/// As [`HOST_UNREACHABLE`].
const ADDRESS_UNREACHABLE: u8 = 3;
/// The flag of a neighbour advertisement that a router sends.
const IS_ROUTER: u8 = 0x80;
/// The flag of a neighbour advertisement that answers a solicitation.
const SOLICITED: u8 = 0x40;

/// Checks a whole frame sent by `sender`; returns its heading or its offence.
pub(crate) fn inspect(frame: &[u8], sender: &Identity) -> Result<Heading, Offence> {
    let (Some(destination), Some(source)) = (mac_key(frame, 0), mac_key(frame, 6)) else {
        return Err(Offence::Malformed);
    };
    if source != sender.mac {
        return Err(Offence::Spoofed);
    }
    // Not IP: the sender changed the type since the first line was read.
    let packet = decode(frame, frame.len()).map_err(|_| Offence::Malformed)?.ok_or(Offence::Ethertype)?;
    match packet.family {
        Family::V4 => inspect_ipv4(&packet, sender)?,
        Family::V6 => inspect_ipv6(&packet, sender)?,
    }
    if packet.source_routed {
        return Err(Offence::Refused);
    }
    if packet.hides_header() {
        return Err(Offence::Malformed);
    }
    Ok(Heading { destination, hash: packet.hash() })
}

fn inspect_ipv4(packet: &Packet<'_>, sender: &Identity) -> Result<(), Offence> {
    if packet.source != u128::from(sender.ip) {
        return Err(Offence::Spoofed);
    }
    if packet.protocol != ICMP || matches!(packet.part, Part::Later(_)) {
        return Ok(());
    }
    match *packet.payload {
        // A believed one shortens or ends the traffic of others. Source quench: RFC 6633 section 3.
        [v4::REDIRECT | v4::ROUTER_ADVERTISEMENT | v4::SOURCE_QUENCH, ..]
        | [v4::DESTINATION_UNREACHABLE, FRAGMENTATION_NEEDED, ..]
        | [v4::TIME_EXCEEDED, IN_TRANSIT, ..] => Err(Offence::Refused),
        [v4::DESTINATION_UNREACHABLE, code, ..] if HOST_UNREACHABLE.contains(&code) => Err(Offence::Refused),
        [v4::DESTINATION_UNREACHABLE | v4::TIME_EXCEEDED | v4::PARAMETER_PROBLEM, ..] => {
            inspect_quote(packet, sender)
        }
        _ => Ok(()),
    }
}

/// Checks that an error is about a packet that was sent to the runtime: one about a foreign packet
/// can end a connection between others. Nothing else in the quote is checked: its sender chose it,
/// and the runtime's network stack answers whatever it was sent.
fn inspect_quote(packet: &Packet<'_>, sender: &Identity) -> Result<(), Offence> {
    // An error is short enough for one piece (RFC 1812 section 4.3.2.3, RFC 4443 section 2.4).
    let destination = packet.quoted_destination().ok_or(Offence::Malformed)?;
    let own = match packet.family {
        Family::V4 => destination == u128::from(sender.ip),
        // Some errors answer packets to a group (RFC 4443 section 2.4).
        Family::V6 => sender.owns(destination) || is_multicast(destination),
    };
    if own { Ok(()) } else { Err(Offence::Spoofed) }
}

fn inspect_ipv6(packet: &Packet<'_>, sender: &Identity) -> Result<(), Offence> {
    let unspecified = packet.source == 0;
    if !unspecified && !sender.owns(packet.source) {
        return Err(Offence::Spoofed);
    }
    let shown = packet.protocol == ICMPV6 && !matches!(packet.part, Part::Later(_));
    if !shown {
        return if unspecified { Err(Offence::Spoofed) } else { Ok(()) };
    }
    // Type, code, checksum and four bytes of body are in every message that hosts send (RFC 4443
    // section 2.1).
    let &[kind, code, ..] = packet.payload else { return Err(Offence::Malformed) };
    if packet.payload.len() < 8 {
        return Err(Offence::Malformed);
    }
    match kind {
        v6::ROUTER_SOLICITATION | v6::NEIGHBOUR_SOLICITATION | v6::NEIGHBOUR_ADVERTISEMENT => {
            if packet.fragment_header || packet.hop_limit != 255 {
                return Err(Offence::Refused);
            }
            if code != 0 {
                return Err(Offence::Malformed);
            }
            inspect_discovery(kind, packet, sender)
        }
        kind if NOT_FOR_HOSTS.contains(&kind) => Err(Offence::Refused),
        kind if unspecified && !LISTENER_REPORTS.contains(&kind) => Err(Offence::Spoofed),
        v6::PACKET_TOO_BIG => Err(Offence::Refused),
        v6::TIME_EXCEEDED if code == IN_TRANSIT => Err(Offence::Refused),
        v6::DESTINATION_UNREACHABLE if code == ADDRESS_UNREACHABLE => Err(Offence::Refused),
        kind if V6_ERRORS.contains(&kind) => inspect_quote(packet, sender),
        _ => Ok(()),
    }
}

fn inspect_discovery(kind: u8, packet: &Packet<'_>, sender: &Identity) -> Result<(), Offence> {
    let unspecified = packet.source == 0;
    if kind == v6::ROUTER_SOLICITATION {
        return if unspecified {
            Err(Offence::Spoofed)
        } else {
            inspect_options(&packet.payload[8..], false, sender)
        };
    }
    let Some((body, options)) = packet.payload.split_at_checked(24) else { return Err(Offence::Malformed) };
    let target = u128::from_be_bytes(body[8..24].try_into().expect("sixteen bytes"));
    if is_multicast(target) {
        return Err(Offence::Malformed);
    }
    if kind == v6::NEIGHBOUR_ADVERTISEMENT {
        if unspecified || !sender.owns(target) {
            return Err(Offence::Spoofed);
        }
        if body[4] & IS_ROUTER != 0 {
            return Err(Offence::Refused);
        }
        if is_multicast(packet.destination) && body[4] & SOLICITED != 0 {
            return Err(Offence::Malformed);
        }
    } else if unspecified {
        // A probe for a foreign address would keep its owner from using it (RFC 4862 section
        // 5.4.3).
        if !sender.owns(target) {
            return Err(Offence::Spoofed);
        }
        if packet.destination != solicited_node(target) {
            return Err(Offence::Malformed);
        }
    }
    inspect_options(options, unspecified, sender)
}

/// Checks the options of a neighbour discovery message (RFC 4861 section 4.6).
fn inspect_options(mut options: &[u8], unspecified: bool, sender: &Identity) -> Result<(), Offence> {
    // Bounded: every round takes at least eight bytes.
    while let [kind, units, ..] = *options {
        let size = usize::from(units) * 8;
        let Some((option, rest)) = options.split_at_checked(size).filter(|_| size > 0) else {
            return Err(Offence::Malformed);
        };
        if matches!(kind, OPTION_SOURCE_LINK | OPTION_TARGET_LINK) {
            if size != 8 || unspecified {
                return Err(Offence::Malformed);
            }
            if mac_key(option, 2) != Some(sender.mac) {
                return Err(Offence::Spoofed);
            }
        }
        options = rest;
    }
    if options.is_empty() { Ok(()) } else { Err(Offence::Malformed) }
}

fn is_multicast(address: u128) -> bool {
    address >> 120 == 0xff
}

/// Returns the solicited-node group of an address: ff02::1:ff00:0/104 and its last 24 bits (RFC
/// 4291 section 2.7.1).
fn solicited_node(address: u128) -> u128 {
    0xff02_0000_0000_0000_0000_0001_ff00_0000 | address & 0x00ff_ffff
}

#[cfg(test)]
mod tests;
