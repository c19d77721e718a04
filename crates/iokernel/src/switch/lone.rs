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
//! was sent before, FIN and RST, segments with unusual flags, and IPv6, whose ports a ring's first
//! line does not show. Windows are not read: repeats of a pure acknowledgment, and window updates
//! with its number, wait like it.
//!
//! The table is direct-mapped: of two flows in one place the later one stays, and the other's
//! acknowledgments wake as if there were no table. A forged segment can delay the acknowledgments
//! of a flow by the bound, if its forger knows the flow's ports and sequence number; with them it
//! could do worse.

use super::flow::mix;
use crate::frame::{ETHERNET_HEADER, ETHERTYPE_IPV4};
use tailwater_wire::{IPV4_HEADER, IpProtocol, TCP_HEADER};

/// Flows in the table: 8 KiB, so that it stays in the cache.
const FLOWS: usize = 1_024;
/// Largest answer in bytes. A send buffer that is shorter than a window is filled by full segments,
/// whose acknowledgment a writer may wait for.
const LARGEST: usize = 512;
/// An IPv4 header without options.
const VERSION_AND_LENGTH: u8 = 0x45;
const TCP: u8 = IpProtocol::TCP.0;
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

    /// Records a frame that a runtime sends, of which the first line is shown.
    #[inline]
    pub(super) fn note_sent(&mut self, shown: &[u8]) {
        let Some(segment) = Segment::parse(shown) else { return };
        let flow = mix(segment.source << 32 | segment.destination, segment.ports);
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
        // Of the other direction: as the answer was sent.
        let ports = (segment.ports << 16 | segment.ports >> 16) & 0xffff_ffff;
        let flow = mix(segment.destination << 32 | segment.source, ports);
        self.0[flow as usize % FLOWS] == Answer { flow, end: segment.acknowledgment }
    }
}

/// The fields of a TCP segment that a ring's first line shows.
struct Segment {
    source: u64,
    destination: u64,
    /// Source port, then destination port.
    ports: u64,
    sequence: u32,
    acknowledgment: u32,
    flags: u8,
    /// Bytes of data.
    data: usize,
}

impl Segment {
    /// Returns the segment of an unfragmented IPv4 packet without options; `None` for other frames.
    #[inline]
    fn parse(shown: &[u8]) -> Option<Self> {
        const IP: usize = ETHERNET_HEADER;
        const SEGMENT: usize = IP + IPV4_HEADER;
        let head: &[u8; SEGMENT + 14] = shown.first_chunk()?;
        let u16_at = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let u32_at = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        // "More fragments" and the offset; "don't fragment" is the bit above them.
        let fragment = u16_at(IP + 6) & 0x3fff;
        if u16_at(12) != ETHERTYPE_IPV4
            || head[IP] != VERSION_AND_LENGTH
            || head[IP + 9] != TCP
            || fragment != 0
        {
            return None;
        }
        let header = usize::from(head[SEGMENT + 12] >> 4) * 4;
        let data = usize::from(u16_at(IP + 2)).checked_sub(IPV4_HEADER + header)?;
        (header >= TCP_HEADER).then(|| Self {
            source: u32_at(IP + 12).into(),
            destination: u32_at(IP + 16).into(),
            ports: u32_at(SEGMENT).into(),
            sequence: u32_at(SEGMENT + 4),
            acknowledgment: u32_at(SEGMENT + 8),
            flags: head[SEGMENT + 13],
            data,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::Ipv4Addr;

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
