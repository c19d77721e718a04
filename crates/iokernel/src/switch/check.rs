//! The checks of a runtime's frame that its first line is enough for.
//!
//! Owns the anti-spoofing rules of the first line: one private copy of the frame's first 48 bytes,
//! which is exactly what is delivered, so nothing can change between check and use. That is enough
//! for ARP and for IPv4 without options; [`super::inspect`] checks other IP packets, and ICMP, on a
//! copy of the whole frame. Every field is unverified until [`check`] or `inspect` has returned.
//!
//! | field | rule |
//! |---|---|
//! | source MAC | the runtime's own |
//! | EtherType | IPv4, IPv6 or ARP; others that the configuration names |
//! | IPv4 total length | at least a header, no longer than the frame |
//! | IPv4 source | the runtime's own |
//! | ARP hardware and protocol type and lengths | Ethernet and IPv4 (RFC 826) |
//! | ARP operation | request or reply |
//! | ARP sender MAC | the runtime's own |
//! | ARP sender IP | the runtime's own, or 0.0.0.0 in a probe for its own (RFC 5227 section 2.1.1) |

use std::net::Ipv6Addr;
use tailwater_shm::ring::FIRST_LINE_FRAME;
use tailwater_wire::frame::{
    ARP_FRAME, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPES_VLAN, IPV4_FRAME,
};
use tailwater_wire::packet::{self, ICMP, TCP, UDP, mix};
use tailwater_wire::{ETHERNET_HEADER, MacAddr};

/// The addresses a runtime may send from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    /// [`MacAddr::key`] of its MAC address.
    pub(crate) mac: u64,
    /// Its IPv4 address as a big-endian number.
    pub(crate) ip: u32,
    /// Its link-local IPv6 address, which its MAC address implies, and the assigned one, if any.
    ipv6: [Option<u128>; 2],
}

impl Identity {
    pub(crate) fn new(mac: MacAddr, ip: std::net::Ipv4Addr, ipv6: Option<Ipv6Addr>) -> Self {
        let ipv6 = [Some(mac.link_local().to_bits()), ipv6.map(Ipv6Addr::to_bits)];
        Self { mac: mac.key(), ip: ip.to_bits(), ipv6 }
    }

    /// Returns whether this IPv6 address is the runtime's own.
    pub(crate) fn owns(&self, address: u128) -> bool {
        self.ipv6.contains(&Some(address))
    }

    /// Returns the runtime's IPv6 addresses.
    pub(crate) fn ipv6(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.ipv6.into_iter().flatten().map(Ipv6Addr::from_bits)
    }
}

/// Why a frame is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offence {
    /// An address that is not the sender's.
    Spoofed,
    /// Truncated, or lengths that contradict one another.
    Malformed,
    /// A protocol that the switch does not forward.
    Ethertype,
    /// A VLAN tag: runtimes are on one network.
    Tagged,
    /// Well formed and not spoofed, but a kind of frame that no host may send.
    Refused,
}

/// Destination and flow of a checked frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heading {
    /// Key of the destination MAC address.
    pub(crate) destination: u64,
    /// Flow hash.
    pub(crate) hash: u32,
}

/// Result of the check of the first line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass(Heading),
    Offence(Offence),
    /// The first line is not enough: the whole frame must be inspected.
    Inspect,
}

type Head = [u8; FIRST_LINE_FRAME];

/// First byte of an IPv4 header without options.
const PLAIN_IPV4: u8 = 0x45;

#[inline(always)]
fn u16_at(head: &Head, at: usize) -> u16 {
    u16::from_be_bytes([head[at], head[at + 1]])
}

#[inline(always)]
fn u32_at(head: &Head, at: usize) -> u32 {
    u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

#[inline(always)]
fn u64_at(head: &Head, at: usize) -> u64 {
    u64::from(u32_at(head, at)) << 32 | u64::from(u32_at(head, at + 4))
}

const LOW_48: u64 = (1 << 48) - 1;

/// Returns the key of the MAC address at `at`.
#[inline(always)]
fn mac_at(head: &Head, at: usize) -> u64 {
    u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes")) & LOW_48
}

/// Returns the key of the MAC address at `at`; `None` if there are too few bytes.
pub(crate) fn mac_key(bytes: &[u8], at: usize) -> Option<u64> {
    Some(MacAddr(*bytes.get(at..)?.first_chunk()?).key())
}

/// Returns whether the key is that of a group address (the I/G bit).
#[inline(always)]
pub(crate) fn is_group(key: u64) -> bool {
    key & 1 != 0
}

/// Checks a frame of `len` bytes that begins with `head` and was sent by `sender`.
#[inline(always)]
pub(crate) fn check(head: &Head, len: usize, sender: &Identity) -> Verdict {
    if mac_at(head, 6) != sender.mac {
        return Verdict::Offence(Offence::Spoofed);
    }
    let destination = mac_at(head, 0);
    let hash = match u16_at(head, 12) {
        ETHERTYPE_IPV4 if head[14] == PLAIN_IPV4 && head[23] != ICMP => check_ipv4(head, len, sender),
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => return Verdict::Inspect,
        ETHERTYPE_ARP => check_arp(head, len, sender),
        tag if ETHERTYPES_VLAN.contains(&tag) => Err(Offence::Tagged),
        _ => Err(Offence::Ethertype),
    };
    match hash {
        Ok(hash) => Verdict::Pass(Heading { destination, hash }),
        Err(offence) => Verdict::Offence(offence),
    }
}

/// Checks an IPv4 packet without options; returns its flow hash.
#[inline(always)]
fn check_ipv4(head: &Head, len: usize, sender: &Identity) -> Result<u32, Offence> {
    let total = usize::from(u16_at(head, 16));
    if total < IPV4_FRAME - ETHERNET_HEADER || total + ETHERNET_HEADER > len {
        return Err(Offence::Malformed);
    }
    if u32_at(head, 26) != sender.ip {
        return Err(Offence::Spoofed);
    }
    Ok(ipv4_hash(head, len))
}

/// Returns [`packet::Packet::hash`] of an IPv4 packet without options that is not ICMP, from its
/// first line.
#[inline(always)]
fn ipv4_hash(head: &Head, len: usize) -> u32 {
    const FRAGMENT: u16 = 0x3fff;
    let protocol = head[23];
    let with_ports = u16_at(head, 20) & FRAGMENT == 0 && u16_at(head, 16) >= 24 && len >= IPV4_FRAME + 4;
    let ports = if with_ports && matches!(protocol, TCP | UDP) { u32_at(head, 34) } else { 0 };
    mix(u64_at(head, 26), u64::from(ports) << 8 | u64::from(protocol))
}

fn check_arp(head: &Head, len: usize, sender: &Identity) -> Result<u32, Offence> {
    // Hardware type 1, protocol type 0x0800, lengths 6 and 4.
    if len < ARP_FRAME || u64_at(head, 14) >> 16 != 0x0001_0800_0604 {
        return Err(Offence::Malformed);
    }
    let (operation, from, target) = (u16_at(head, 20), u32_at(head, 28), u32_at(head, 38));
    if !matches!(operation, 1 | 2) {
        return Err(Offence::Refused);
    }
    // A probe for a foreign address would keep its owner from using it.
    let own = from == sender.ip || (from == 0 && operation == 1 && target == sender.ip);
    if mac_at(head, 22) != sender.mac || !own {
        return Err(Offence::Spoofed);
    }
    Ok(0)
}

/// Returns the heading of a frame from a port, whose source is trusted. `head` is its first line,
/// zero beyond its end.
#[inline(always)]
pub(crate) fn heading(head: &Head, frame: &[u8]) -> Heading {
    let hash = match u16_at(head, 12) {
        ETHERTYPE_IPV4 if head[14] == PLAIN_IPV4 && head[23] != ICMP => ipv4_hash(head, frame.len()),
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => packet_hash(frame),
        _ => 0,
    };
    Heading { destination: mac_at(head, 0), hash }
}

/// Returns the flow hash of any frame: 0 if it is not an IP packet.
pub(super) fn packet_hash(frame: &[u8]) -> u32 {
    packet::decode(frame, frame.len()).ok().flatten().map_or(0, |packet| packet.hash())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::inspect::inspect;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;
    use tailwater_testkit::frames::{arp, udp};

    const ME: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
    const YOU: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);

    fn me() -> Identity {
        Identity::new(MacAddr::derived(ME), ME, None)
    }

    fn head(frame: &[u8]) -> Head {
        let mut head = [0; FIRST_LINE_FRAME];
        let n = frame.len().min(FIRST_LINE_FRAME);
        head[..n].copy_from_slice(&frame[..n]);
        head
    }

    /// Checks a frame as the switch does: the first line, and the whole frame if that is not
    /// enough.
    fn judge(frame: &[u8]) -> Result<Heading, Offence> {
        match check(&head(frame), frame.len(), &me()) {
            Verdict::Pass(heading) => Ok(heading),
            Verdict::Offence(offence) => Err(offence),
            Verdict::Inspect => inspect(frame, &me()),
        }
    }

    #[test]
    fn an_honest_frame_passes_with_its_destination() {
        let heading = judge(&udp(ME, YOU, (1000, 53), 60)).unwrap();
        assert_eq!(heading.destination, MacAddr::derived(YOU).key());
        assert_eq!(judge(&arp(ME, YOU)).unwrap().destination, MacAddr::BROADCAST.key());
        assert!(is_group(MacAddr::BROADCAST.key()) && !is_group(heading.destination));
    }

    #[test]
    fn foreign_source_addresses_are_spoofed() {
        let mut frame = udp(YOU, ME, (1, 2), 60);
        assert_eq!(judge(&frame), Err(Offence::Spoofed), "MAC and IP");
        frame[6..12].copy_from_slice(&MacAddr::derived(ME).0);
        assert_eq!(judge(&frame), Err(Offence::Spoofed), "IP only");
        let mut frame = arp(ME, YOU);
        frame[22] ^= 4;
        assert_eq!(judge(&frame), Err(Offence::Spoofed), "ARP sender MAC");
        let mut frame = arp(ME, YOU);
        frame[31] ^= 1;
        assert_eq!(judge(&frame), Err(Offence::Spoofed), "ARP sender IP");
        frame[28..32].fill(0);
        assert_eq!(judge(&frame), Err(Offence::Spoofed), "an ARP probe for a foreign address");
        frame[38..42].copy_from_slice(&ME.octets());
        assert!(judge(&frame).is_ok(), "an ARP probe has no sender IP");
        frame[21] = 2;
        assert_eq!(judge(&frame), Err(Offence::Spoofed), "an ARP reply without a sender");
        let mut frame = arp(ME, YOU);
        frame[21] = 3;
        assert_eq!(judge(&frame), Err(Offence::Refused), "reverse ARP");
    }

    #[test]
    fn lengths_that_contradict_one_another_are_malformed() {
        type Change = (&'static str, fn(&mut Vec<u8>));
        let changes: [Change; 6] = [
            ("truncated header", |f| f.truncate(33)),
            ("version 6", |f| f[14] = 0x65),
            ("header of 16 bytes", |f| f[14] = 0x44),
            ("total beyond the frame", |f| f[17] = 47),
            ("total below the header", |f| f[17] = 19),
            ("options beyond the total", |f| (f[14], f[17]) = (0x4f, 40)),
        ];
        for (what, change) in changes {
            let mut frame = udp(ME, YOU, (1, 2), 60);
            change(&mut frame);
            assert_eq!(judge(&frame), Err(Offence::Malformed), "{what}");
        }
        let mut frame = arp(ME, YOU);
        frame[18] = 8;
        assert_eq!(judge(&frame), Err(Offence::Malformed), "ARP hardware length");
        assert_eq!(judge(&arp(ME, YOU)[..41]), Err(Offence::Malformed), "short ARP");
    }

    #[test]
    fn other_ethertypes_and_vlan_tags_are_refused() {
        let mut frame = udp(ME, YOU, (1, 2), 60);
        frame[12..14].copy_from_slice(&[0x88, 0xcc]);
        assert_eq!(judge(&frame), Err(Offence::Ethertype));
        for tag in ETHERTYPES_VLAN {
            frame[12..14].copy_from_slice(&tag.to_be_bytes());
            assert_eq!(judge(&frame), Err(Offence::Tagged), "{tag:#x}");
        }
    }

    #[test]
    fn all_fragments_of_a_packet_have_one_hash_and_flows_differ() {
        let hash = |frame: &[u8]| judge(frame).unwrap().hash;
        let (mut first, mut second) = (udp(ME, YOU, (1, 2), 60), udp(ME, YOU, (777, 888), 60));
        assert_ne!(hash(&first), hash(&second));
        first[20] = 0x20;
        second[21] = 9;
        assert_eq!(hash(&first), hash(&second));
    }

    proptest! {
        #[test]
        fn nothing_passes_that_is_not_from_its_sender(bytes in any::<[u8; FIRST_LINE_FRAME]>(), len in 14usize..1514,
            own_mac in any::<bool>(), ethertype in prop_oneof![Just([8, 0]), Just([8, 6]), any::<[u8; 2]>()]) {
            let mut bytes = bytes;
            if own_mac {
                bytes[6..12].copy_from_slice(&MacAddr::derived(ME).0);
            }
            bytes[12..14].copy_from_slice(&ethertype);
            if let Verdict::Pass(_) = check(&bytes, len, &me()) {
                prop_assert_eq!(&bytes[6..12], &MacAddr::derived(ME).0);
                if ethertype == [8, 0] {
                    prop_assert_eq!(&bytes[26..30], &ME.octets());
                }
            }
        }

        #[test]
        fn the_first_line_and_the_whole_packet_have_one_hash(mut rest in any::<[u8; 34]>(), len in 34usize..80,
            protocol in prop::sample::select(vec![6u8, 17, 2, 50]), fragment in prop::sample::select(vec![0u16, 0x4000, 0x2000, 7])) {
            rest[9] = protocol;
            rest[6..8].copy_from_slice(&fragment.to_be_bytes());
            let mut frame = udp(ME, YOU, (0, 0), 80);
            frame.truncate(len);
            let n = rest.len().min(len - 14);
            frame[14..14 + n].copy_from_slice(&rest[..n]);
            frame[14] = PLAIN_IPV4;
            frame[16..18].copy_from_slice(&((len - 14) as u16 - u16::from(rest[0] % 8).min(len as u16 - 34)).to_be_bytes());
            prop_assert_eq!(ipv4_hash(&head(&frame), len), packet_hash(&frame));
        }
    }
}
