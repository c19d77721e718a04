//! Acknowledgments that can wait until their program has a core anyway.
//!
//! The client of a service acknowledges an answer with its next request, or alone if it has none
//! for some time. Alone, the acknowledgment frees the answer's copy in the send buffer, and mostly
//! nothing more. To fetch a core for it would double the hand-offs per request. A program of which
//! a thread may wait for an acknowledgment (data waits for the window or by Nagle's algorithm, a
//! writer for room, a closing one for the end) states so in its status line, and then none of its
//! acknowledgments waits.
//!
//! Owns a table of the last small segment that each flow's program has sent with PSH: one that
//! empties its send buffer. A segment without data that acknowledges exactly that is *pure*. It is
//! put into the ring of a program without a core like any other frame, and the program is woken at
//! the first other frame, or [`Config::ack_hold_us`](crate::Config::ack_hold_us) later.
//!
//! Everything else wakes at once: handshakes, partial acknowledgments, acknowledgments of data that
//! was sent before, FIN and RST, segments with unusual flags, IPv4 packets with options and IPv6
//! packets with extension headers. Windows are not read: repeats of a pure acknowledgment, and
//! window updates with its number, wait like it. A ring's first line shows enough of an IPv4
//! segment; IPv6 frames are copied whole before they are [checked](super::inspect).
//!
//! The table is direct-mapped: of two flows in one place the later one stays, and the other's
//! acknowledgments wake as if there were no table. A forged segment can delay the acknowledgments
//! of a flow by the bound, if its forger knows the flow's ports and sequence number; with them it
//! could do worse.

use super::check::PLAIN_IPV4;
use super::flow::{mix, mix_ipv6};
use super::packet::TCP;
use crate::frame::{ETHERNET_HEADER, ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use tailwater_wire::{IPV4_HEADER, IPV6_HEADER, TCP_HEADER};

/// Flows in the table: 8 KiB, so that it stays in the cache.
const FLOWS: usize = 1_024;
/// Largest answer in bytes. A send buffer that is shorter than a window is filled by full segments,
/// whose acknowledgment a writer may wait for.
const LARGEST: usize = 512;
const FIN_SYN_RST: u8 = 0b111;
const PSH: u8 = 1 << 3;
const ACK: u8 = 1 << 4;
/// All control bits but the two that report congestion of data (RFC 3168 section 6.1).
const CONTROL: u8 = 0x3f;

/// The last answer of one flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Answer {
    flow: u32,
    /// Number of the byte after it.
    end: u32,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct LoneAnswers(Box<[Answer; FLOWS]>);

impl LoneAnswers {
    pub(super) fn new() -> Self {
        Self(Box::new([Answer::default(); FLOWS]))
    }

    /// Records a frame that a runtime sends, of which the first line or all is shown.
    #[inline]
    pub(super) fn note_sent(&mut self, shown: &[u8]) {
        let Some(segment) = Segment::parse(shown) else { return };
        let flow = segment.flow();
        let place = &mut self.0[flow as usize % FLOWS];
        let is_answer = (1..=LARGEST).contains(&segment.data) && segment.flags & CONTROL == PSH | ACK;
        if is_answer {
            *place = Answer { flow, end: segment.sequence.wrapping_add(segment.data as u32) };
        } else if place.flow == flow && (segment.data > 0 || segment.flags & FIN_SYN_RST != 0) {
            *place = Answer::default();
        }
    }

    /// Returns whether a frame is the pure acknowledgment of the last answer of its flow.
    #[inline]
    pub(super) fn is_pure_ack(&self, shown: &[u8]) -> bool {
        let Some(segment) = Segment::parse(shown) else { return false };
        if segment.data > 0 || segment.flags & CONTROL != ACK {
            return false;
        }
        let flow = segment.opposite_flow();
        self.0[flow as usize % FLOWS] == Answer { flow, end: segment.acknowledgment }
    }
}

/// Source, then destination.
enum Addresses {
    V4(u32, u32),
    V6(u128, u128),
}

/// The fields of a TCP segment that tell a pure acknowledgment.
struct Segment {
    addresses: Addresses,
    /// Source port, then destination port.
    ports: u32,
    sequence: u32,
    acknowledgment: u32,
    flags: u8,
    /// Bytes of data.
    data: usize,
}

impl Segment {
    /// Returns the segment of an unfragmented IP packet without options and extension headers;
    /// `None` for other frames.
    #[inline]
    fn parse(shown: &[u8]) -> Option<Self> {
        let ethertype = u16::from_be_bytes(*shown.get(12..)?.first_chunk()?);
        let packet = &shown[ETHERNET_HEADER..];
        match ethertype {
            ETHERTYPE_IPV4 => Self::parse_ipv4(packet),
            ETHERTYPE_IPV6 => Self::parse_ipv6(packet),
            _ => None,
        }
    }

    #[inline]
    fn parse_ipv4(packet: &[u8]) -> Option<Self> {
        let head: &[u8; IPV4_HEADER] = packet.first_chunk()?;
        let u32_at = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        // "More fragments" and the offset; "don't fragment" is the bit above them.
        let fragment = u16::from_be_bytes([head[6], head[7]]) & 0x3fff;
        if head[0] != PLAIN_IPV4 || head[9] != TCP || fragment != 0 {
            return None;
        }
        let length = usize::from(u16::from_be_bytes([head[2], head[3]])).checked_sub(IPV4_HEADER)?;
        Self::parse_tcp(&packet[IPV4_HEADER..], length, Addresses::V4(u32_at(12), u32_at(16)))
    }

    fn parse_ipv6(packet: &[u8]) -> Option<Self> {
        let head: &[u8; IPV6_HEADER] = packet.first_chunk()?;
        let address_at = |at: usize| head[at..].first_chunk().map(|bytes| u128::from_be_bytes(*bytes));
        if head[0] >> 4 != 6 || head[6] != TCP {
            return None;
        }
        let length = u16::from_be_bytes([head[4], head[5]]).into();
        Self::parse_tcp(&packet[IPV6_HEADER..], length, Addresses::V6(address_at(8)?, address_at(24)?))
    }

    /// Returns the segment of `length` bytes of which `shown` is the beginning.
    #[inline]
    fn parse_tcp(shown: &[u8], length: usize, addresses: Addresses) -> Option<Self> {
        let head: &[u8; 14] = shown.first_chunk()?;
        let u32_at = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let header = usize::from(head[12] >> 4) * 4;
        let data = length.checked_sub(header)?;
        (header >= TCP_HEADER).then(|| Self {
            addresses,
            ports: u32_at(0),
            sequence: u32_at(4),
            acknowledgment: u32_at(8),
            flags: head[13],
            data,
        })
    }

    /// Returns the hash of the flow that the segment belongs to.
    #[inline]
    fn flow(&self) -> u32 {
        Self::hash(&self.addresses, self.ports)
    }

    /// Returns the hash of the flow in the other direction.
    #[inline]
    fn opposite_flow(&self) -> u32 {
        let addresses = match self.addresses {
            Addresses::V4(source, destination) => Addresses::V4(destination, source),
            Addresses::V6(source, destination) => Addresses::V6(destination, source),
        };
        Self::hash(&addresses, self.ports.rotate_left(16))
    }

    #[inline]
    fn hash(addresses: &Addresses, ports: u32) -> u32 {
        match *addresses {
            Addresses::V4(source, destination) => {
                mix(u64::from(source) << 32 | u64::from(destination), ports.into())
            }
            Addresses::V6(source, destination) => mix_ipv6(source, destination, ports.into()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::Ipv4Addr;
    use tailwater_wire::MacAddr;

    use super::*;
    use crate::switch::check::tests::udp;

    /// A frame with a TCP segment of `data` bytes.
    pub(crate) fn tcp(
        (from, to): (Ipv4Addr, Ipv4Addr),
        ports: (u16, u16),
        (sequence, acknowledgment): (u32, u32),
        flags: u8,
        data: usize,
    ) -> Vec<u8> {
        let mut frame = udp(from, to, ports, 54 + data);
        frame[23] = TCP;
        frame[38..42].copy_from_slice(&sequence.to_be_bytes());
        frame[42..46].copy_from_slice(&acknowledgment.to_be_bytes());
        frame[46] = 5 << 4;
        frame[47] = flags;
        frame
    }

    /// The same over IPv6, between the link-local addresses of the stations.
    pub(crate) fn tcp_ipv6(
        (from, to): (Ipv4Addr, Ipv4Addr),
        ports: (u16, u16),
        numbers: (u32, u32),
        flags: u8,
        data: usize,
    ) -> Vec<u8> {
        let mut frame = tcp((from, to), ports, numbers, flags, data);
        frame[12..14].copy_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
        let segment = frame.split_off(34);
        frame.truncate(ETHERNET_HEADER);
        // Version 6, a flow label, the length of the segment, hop limit 64.
        frame.extend([0x60, 0, 0x12, 0x34]);
        frame.extend((segment.len() as u16).to_be_bytes());
        frame.extend([TCP, 64]);
        frame.extend([from, to].map(|ip| MacAddr::derived(ip).link_local().octets()).as_flattened());
        frame.extend(segment);
        frame
    }

    const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 11);
    const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 99);
    const DATA: u8 = PSH | ACK;

    fn answer(sequence: u32, flags: u8, data: usize) -> Vec<u8> {
        tcp((SERVICE, CLIENT), (5_000, 40_001), (sequence, 7), flags, data)
    }

    fn ack(number: u32, flags: u8, data: usize) -> Vec<u8> {
        tcp((CLIENT, SERVICE), (40_001, 5_000), (7, number), flags, data)
    }

    #[test]
    fn the_acknowledgment_of_the_whole_last_answer_is_pure_and_no_other() {
        let mut answers = LoneAnswers::new();
        assert!(!answers.is_pure_ack(&ack(1_100, ACK, 0)), "there was no answer");
        answers.note_sent(&answer(1_000, DATA, 100));
        assert!(answers.is_pure_ack(&ack(1_100, ACK, 0)));
        assert!(answers.is_pure_ack(&ack(1_100, ACK, 0)[..48]), "a ring shows the first line only");
        for other in [
            ack(1_099, ACK, 0),
            ack(1_100, ACK, 1),
            ack(1_100, ACK | 1, 0),
            ack(1_100, ACK | 1 << 2, 0),
            tcp((CLIENT, SERVICE), (40_002, 5_000), (7, 1_100), ACK, 0),
            tcp((SERVICE, CLIENT), (5_000, 40_001), (7, 1_100), ACK, 0),
            udp(CLIENT, SERVICE, (40_001, 5_000), 54),
            ack(1_100, ACK, 0)[..47].to_vec(),
        ] {
            assert!(!answers.is_pure_ack(&other), "{other:?}");
        }
    }

    #[test]
    fn what_a_writer_or_a_close_may_wait_for_is_no_answer() {
        for (flags, data) in [(ACK, 100), (DATA, LARGEST + 1), (DATA | 1, 100), (DATA | 2, 1), (ACK | 1, 0)] {
            let mut answers = LoneAnswers::new();
            answers.note_sent(&answer(1_000, DATA, 100));
            answers.note_sent(&answer(1_100, flags, data));
            for end in [1_100, 1_100 + data as u32, 1_101 + data as u32] {
                assert!(!answers.is_pure_ack(&ack(end, ACK, 0)), "{flags:#x}, {data} bytes, {end}");
            }
        }
        // An acknowledgment of its own changes nothing.
        let mut answers = LoneAnswers::new();
        answers.note_sent(&answer(u32::MAX, DATA, 2));
        answers.note_sent(&answer(1, ACK, 0));
        assert!(answers.is_pure_ack(&ack(1, ACK, 0)));
    }

    #[test]
    fn over_ipv6_the_acknowledgment_of_the_whole_last_answer_is_pure_and_no_other() {
        let answer = |sequence, data| tcp_ipv6((SERVICE, CLIENT), (5_000, 40_001), (sequence, 7), DATA, data);
        let ack =
            |number, flags, data| tcp_ipv6((CLIENT, SERVICE), (40_001, 5_000), (7, number), flags, data);
        let mut answers = LoneAnswers::new();
        assert!(!answers.is_pure_ack(&ack(1_100, ACK, 0)), "there was no answer");
        answers.note_sent(&answer(1_000, 100));
        assert!(answers.is_pure_ack(&ack(1_100, ACK, 0)));
        for other in [
            ack(1_099, ACK, 0),
            ack(1_100, ACK, 1),
            ack(1_100, ACK | 1, 0),
            tcp_ipv6((CLIENT, SERVICE), (40_002, 5_000), (7, 1_100), ACK, 0),
            tcp_ipv6((SERVICE, CLIENT), (5_000, 40_001), (7, 1_100), ACK, 0),
            tcp((CLIENT, SERVICE), (40_001, 5_000), (7, 1_100), ACK, 0),
            // What a ring's first line shows.
            ack(1_100, ACK, 0)[..48].to_vec(),
        ] {
            assert!(!answers.is_pure_ack(&other), "{other:?}");
        }
        // The version, the next header (a fragment header), a length below the headers'.
        for (at, byte) in [(14, 0x45), (20, 44), (19, 19)] {
            let mut frame = ack(1_100, ACK, 0);
            frame[at] = byte;
            assert!(!answers.is_pure_ack(&frame), "byte {at}");
        }
        answers.note_sent(&answer(1_100, LARGEST + 1));
        assert!(!answers.is_pure_ack(&ack(1_100, ACK, 0)), "a full segment followed");
    }

    #[test]
    fn lengths_that_contradict_each_other_are_no_segment() {
        let mut frame = ack(5, ACK, 0);
        frame[16..18].copy_from_slice(&30u16.to_be_bytes());
        assert!(Segment::parse(&frame).is_none(), "shorter than its headers");
        frame[16..18].copy_from_slice(&40u16.to_be_bytes());
        frame[46] = 4 << 4;
        assert!(Segment::parse(&frame).is_none(), "a header of 16 bytes");
        for at in [12, 14, 20, 21] {
            let mut frame = ack(5, ACK, 0);
            frame[at] = 0x1f;
            assert!(Segment::parse(&frame).is_none(), "byte {at}");
        }
    }
}
