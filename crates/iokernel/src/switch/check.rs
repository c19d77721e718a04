//! What a runtime's frame says about itself, and whether it may.
//!
//! Owns the anti-spoofing rules. Looks at one private copy of the frame's first 48 bytes and its length, which is exactly
//! what is delivered, so nothing can change between check and use. Everything is *alleged* until [`check`] has returned.
//!
//! | field | rule |
//! |---|---|
//! | source MAC | the runtime's own |
//! | EtherType | IPv4 or ARP |
//! | IPv4 version, header and total length | 4, at least 20 bytes, no longer than the frame |
//! | IPv4 source | the runtime's own |
//! | ARP hardware and protocol type and lengths | Ethernet and IPv4 (RFC 826) |
//! | ARP sender MAC | the runtime's own |
//! | ARP sender IP | the runtime's own, or 0.0.0.0 in a probe (RFC 5227 section 2.1.1) |

use tailwater_shm::ring::FIRST_LINE_FRAME;

use super::flow::mix;
use crate::frame::{ARP_FRAME, ETHERNET_HEADER, ETHERTYPE_ARP, ETHERTYPE_IPV4, IPV4_FRAME};

/// The addresses a runtime may send from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    /// [`crate::frame::Mac::key`] of its MAC address.
    pub(crate) mac: u64,
    /// Its address as it stands in a frame, read as a big-endian number.
    pub(crate) ip: u32,
}

/// Why a frame is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offence {
    Spoofed,
    Malformed,
    Ethertype,
}

/// What a checked frame is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heading {
    /// Key of the destination MAC address.
    pub(crate) destination: u64,
    /// Flow hash.
    pub(crate) hash: u32,
}

type Head = [u8; FIRST_LINE_FRAME];

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

/// Key of the MAC address at `at`.
#[inline(always)]
fn mac_at(head: &Head, at: usize) -> u64 {
    u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes")) & LOW_48
}

/// The I/G bit of a MAC key.
#[inline(always)]
pub(crate) fn is_group(key: u64) -> bool {
    key & 1 != 0
}

/// Judges a frame of `len` bytes that begins with `head` and was sent by `sender`.
#[inline(always)]
pub(crate) fn check(head: &Head, len: usize, sender: &Identity) -> Result<Heading, Offence> {
    if mac_at(head, 6) != sender.mac {
        return Err(Offence::Spoofed);
    }
    let destination = mac_at(head, 0);
    match u16_at(head, 12) {
        ETHERTYPE_IPV4 => {
            let hash = check_ipv4(head, len, sender)?;
            Ok(Heading { destination, hash })
        }
        ETHERTYPE_ARP => {
            check_arp(head, len, sender)?;
            Ok(Heading { destination, hash: 0 })
        }
        _ => Err(Offence::Ethertype),
    }
}

#[inline(always)]
fn check_ipv4(head: &Head, len: usize, sender: &Identity) -> Result<u32, Offence> {
    let header = usize::from(head[14] & 0xf) * 4;
    let total = usize::from(u16_at(head, 16));
    let sane = len >= IPV4_FRAME && head[14] >> 4 == 4 && header >= 20 && total >= header;
    if !sane || total > len - ETHERNET_HEADER {
        return Err(Offence::Malformed);
    }
    if u32_at(head, 26) != sender.ip {
        return Err(Offence::Spoofed);
    }
    Ok(ipv4_hash(head, len))
}

/// Flow hash of an IPv4 frame: addresses, protocol, and ports where they are at hand. Fragments have none, not even the
/// first, so that all fragments of a packet go the same way.
#[inline(always)]
fn ipv4_hash(head: &Head, len: usize) -> u32 {
    const FRAGMENT: u16 = 0x3fff;
    let protocol = head[23];
    let with_ports = head[14] & 0xf == 5 && u16_at(head, 20) & FRAGMENT == 0 && len >= IPV4_FRAME + 4;
    let ports = if with_ports && matches!(protocol, 6 | 17) { u32_at(head, 34) } else { 0 };
    mix(u64_at(head, 26), u64::from(ports) << 8 | u64::from(protocol))
}

fn check_arp(head: &Head, len: usize, sender: &Identity) -> Result<(), Offence> {
    // Hardware type 1, protocol type 0x0800, lengths 6 and 4.
    if len < ARP_FRAME || u64_at(head, 14) >> 16 != 0x0001_0800_0604 {
        return Err(Offence::Malformed);
    }
    let ip = u32_at(head, 28);
    if mac_at(head, 22) != sender.mac || (ip != sender.ip && ip != 0) {
        return Err(Offence::Spoofed);
    }
    Ok(())
}

/// Heading of a frame from a port, which is trusted as to who it is from. `head` is zero beyond the frame's end.
#[inline(always)]
pub(crate) fn heading(head: &Head, len: usize) -> Heading {
    let ipv4 = u16_at(head, 12) == ETHERTYPE_IPV4 && len >= IPV4_FRAME;
    Heading { destination: mac_at(head, 0), hash: if ipv4 { ipv4_hash(head, len) } else { 0 } }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::frame::Mac;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    const ME: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
    const YOU: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);

    fn me() -> Identity {
        Identity { mac: Mac::derived(ME).key(), ip: ME.to_bits() }
    }

    /// A minimal UDP frame of `len` bytes.
    pub(crate) fn udp(from: Ipv4Addr, to: Ipv4Addr, ports: (u16, u16), len: usize) -> Vec<u8> {
        let mut f = vec![0; len];
        f[..6].copy_from_slice(&Mac::derived(to).0);
        f[6..12].copy_from_slice(&Mac::derived(from).0);
        f[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
        f[14] = 0x45;
        f[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
        f[22] = 64;
        f[23] = 17;
        f[26..30].copy_from_slice(&from.octets());
        f[30..34].copy_from_slice(&to.octets());
        f[34..36].copy_from_slice(&ports.0.to_be_bytes());
        f[36..38].copy_from_slice(&ports.1.to_be_bytes());
        f[38..40].copy_from_slice(&((len - 34) as u16).to_be_bytes());
        f
    }

    /// An ARP request.
    pub(crate) fn arp(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
        let mut f = vec![0; ARP_FRAME];
        f[..6].copy_from_slice(&Mac::BROADCAST.0);
        f[6..12].copy_from_slice(&Mac::derived(from).0);
        f[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        f[22..28].copy_from_slice(&Mac::derived(from).0);
        f[28..32].copy_from_slice(&from.octets());
        f[38..42].copy_from_slice(&to.octets());
        f
    }

    fn head(frame: &[u8]) -> Head {
        let mut head = [0; FIRST_LINE_FRAME];
        let n = frame.len().min(FIRST_LINE_FRAME);
        head[..n].copy_from_slice(&frame[..n]);
        head
    }

    fn judge(frame: &[u8]) -> Result<Heading, Offence> {
        check(&head(frame), frame.len(), &me())
    }

    #[test]
    fn an_honest_frame_passes_with_its_destination() {
        let heading = judge(&udp(ME, YOU, (1000, 53), 60)).unwrap();
        assert_eq!(heading.destination, Mac::derived(YOU).key());
        assert_eq!(judge(&arp(ME, YOU)).unwrap().destination, Mac::BROADCAST.key());
        assert!(is_group(Mac::BROADCAST.key()) && !is_group(heading.destination));
    }

    #[test]
    fn foreign_source_addresses_are_spoofed() {
        let mut frame = udp(YOU, ME, (1, 2), 60);
        assert_eq!(judge(&frame), Err(Offence::Spoofed), "MAC and IP");
        frame[6..12].copy_from_slice(&Mac::derived(ME).0);
        assert_eq!(judge(&frame), Err(Offence::Spoofed), "IP only");
        let mut frame = arp(ME, YOU);
        frame[22] ^= 4;
        assert_eq!(judge(&frame), Err(Offence::Spoofed), "ARP sender MAC");
        let mut frame = arp(ME, YOU);
        frame[31] ^= 1;
        assert_eq!(judge(&frame), Err(Offence::Spoofed), "ARP sender IP");
        frame[28..32].fill(0);
        assert!(judge(&frame).is_ok(), "an ARP probe has no sender IP");
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
    fn other_ethertypes_are_refused() {
        let mut frame = udp(ME, YOU, (1, 2), 60);
        frame[12..14].copy_from_slice(&crate::frame::ETHERTYPE_IPV6.to_be_bytes());
        assert_eq!(judge(&frame), Err(Offence::Ethertype));
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
                bytes[6..12].copy_from_slice(&Mac::derived(ME).0);
            }
            bytes[12..14].copy_from_slice(&ethertype);
            if check(&bytes, len, &me()).is_ok() {
                prop_assert_eq!(&bytes[6..12], &Mac::derived(ME).0);
                if ethertype == [8, 0] {
                    prop_assert_eq!(&bytes[26..30], &ME.octets());
                }
            }
        }
    }
}
