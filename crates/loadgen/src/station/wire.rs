//! Frames of the station: requests out, replies and ARP in.
//!
//! Owns the byte offsets of the few headers that a generator needs, and nothing else of a network stack. A request's
//! headers are the same for every request of a run except for the source port and the lengths, so they are made once, and what
//! differs is filled in. UDP checksums are left out (zero, RFC 768): the frame never leaves the machine's memory.
//!
//! Decoding is total: any bytes give a value or `None`, never a panic.

use std::net::{Ipv4Addr, SocketAddrV4};

use tailwater_iokernel::frame::{ARP_FRAME, ETHERNET_HEADER, ETHERTYPE_ARP, ETHERTYPE_IPV4, IPV4_FRAME, Mac};
/// Bytes of a UDP header.
const UDP_HEADER: usize = 8;

/// Where a datagram's data begins in a frame whose IP header has no options.
pub(crate) const PAYLOAD: usize = IPV4_FRAME + UDP_HEADER;

/// IP protocol number of UDP.
const UDP: u8 = 17;

/// Hops that a packet may make; the customary initial value (RFC 1700).
pub(crate) const TIME_TO_LIVE: u8 = 64;

/// One end of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) mac: Mac,
    pub(crate) ip: Ipv4Addr,
}

/// The headers of a request, complete but for source port, lengths and checksum.
pub(crate) fn request_template(from: Host, to: Host, port: u16) -> Vec<u8> {
    let mut frame = vec![0; PAYLOAD];
    frame[..6].copy_from_slice(&to.mac.0);
    frame[6..12].copy_from_slice(&from.mac.0);
    put_u16(&mut frame, 12, ETHERTYPE_IPV4);
    let ip = &mut frame[ETHERNET_HEADER..IPV4_FRAME];
    // Version 4, five words of header.
    ip[0] = 0x45;
    // Don't fragment: then the identification may be zero (RFC 6864).
    put_u16(ip, 6, 0x4000);
    ip[8] = TIME_TO_LIVE;
    ip[9] = UDP;
    ip[12..16].copy_from_slice(&from.ip.octets());
    ip[16..20].copy_from_slice(&to.ip.octets());
    put_u16(&mut frame, IPV4_FRAME + 2, port);
    frame
}

/// Completes the headers before a payload that was appended to a [`request_template`]. One that is too long for a packet makes
/// a frame that the switch refuses.
#[inline]
pub(crate) fn complete(frame: &mut [u8], source_port: u16) {
    let len = frame.len();
    let ip = &mut frame[ETHERNET_HEADER..IPV4_FRAME];
    // The casts cut lengths that no frame has.
    let total = (len - ETHERNET_HEADER) as u16;
    if get_u16(ip, 2) != total {
        put_u16(ip, 2, total);
        put_u16(ip, 10, 0);
        let checksum = internet_checksum(ip);
        put_u16(ip, 10, checksum);
    }
    put_u16(frame, IPV4_FRAME, source_port);
    put_u16(frame, IPV4_FRAME + 4, (len - IPV4_FRAME) as u16);
}

/// A UDP datagram that is not a fragment, with its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Datagram<'a> {
    pub(crate) from: SocketAddrV4,
    pub(crate) to: SocketAddrV4,
    pub(crate) payload: &'a [u8],
}

/// Reads the datagram in `frame`, if there is one. Checksums are not verified: nothing lies between the rings.
#[inline]
pub(crate) fn decode_datagram(frame: &[u8]) -> Option<Datagram<'_>> {
    if frame.len() < PAYLOAD || get_u16(frame, 12) != ETHERTYPE_IPV4 {
        return None;
    }
    let packet = &frame[ETHERNET_HEADER..];
    let header = usize::from(packet[0] & 0xf) * 4;
    let total = usize::from(get_u16(packet, 2));
    let is_fragment = get_u16(packet, 6) & 0x3fff != 0;
    if packet[0] >> 4 != 4 || header < 20 || packet[9] != UDP || is_fragment {
        return None;
    }
    let udp = packet.get(header..total)?;
    if udp.len() < UDP_HEADER {
        return None;
    }
    let payload = udp.get(UDP_HEADER..usize::from(get_u16(udp, 4)))?;
    Some(Datagram {
        from: SocketAddrV4::new(get_ip(packet, 12), get_u16(udp, 0)),
        to: SocketAddrV4::new(get_ip(packet, 16), get_u16(udp, 2)),
        payload,
    })
}

/// If `frame` is an ARP request for `own.ip`, the reply to it (RFC 826).
pub(crate) fn answer_arp(frame: &[u8], own: Host) -> Option<[u8; ARP_FRAME]> {
    // Ethernet and IPv4 addresses of 6 and 4 bytes; operation 1, a request.
    const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
    let frame = frame.get(..ARP_FRAME)?;
    let arp = &frame[ETHERNET_HEADER..];
    if get_u16(frame, 12) != ETHERTYPE_ARP || arp[..8] != REQUEST || get_ip(arp, 24) != own.ip {
        return None;
    }
    let mut reply = [0; ARP_FRAME];
    reply[..6].copy_from_slice(&arp[8..14]);
    reply[6..12].copy_from_slice(&own.mac.0);
    reply[12..14].copy_from_slice(&frame[12..14]);
    let answer = &mut reply[ETHERNET_HEADER..];
    answer[..8].copy_from_slice(&REQUEST);
    answer[7] = 2;
    answer[8..14].copy_from_slice(&own.mac.0);
    answer[14..18].copy_from_slice(&own.ip.octets());
    answer[18..28].copy_from_slice(&arp[8..18]);
    Some(reply)
}

/// The checksum of a header whose checksum field is zero (RFC 1071). `header` has an even length.
pub(crate) fn internet_checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(get_u16(pair, 0))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

pub(crate) fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn get_ip(bytes: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: Host = Host { mac: Mac([2, 0, 0, 0, 0, 1]), ip: Ipv4Addr::new(10, 77, 0, 250) };
    const B: Host = Host { mac: Mac([2, 0, 0, 0, 0, 2]), ip: Ipv4Addr::new(10, 77, 0, 2) };

    /// Bytes of a payload, and of its frame.
    const PAYLOAD_LEN: usize = 32;
    const REQUEST_FRAME: usize = PAYLOAD + PAYLOAD_LEN;

    fn request() -> Vec<u8> {
        let mut frame = request_template(A, B, 5000);
        // A longer one first: nothing of it may stay.
        frame.extend_from_slice(&[8; 1000]);
        complete(&mut frame, 1);
        frame.truncate(PAYLOAD);
        frame.extend_from_slice(&[7; PAYLOAD_LEN]);
        complete(&mut frame, 49_153);
        frame
    }

    #[test]
    fn a_request_reads_back() {
        let frame = request();
        let datagram = Datagram {
            from: SocketAddrV4::new(A.ip, 49_153),
            to: SocketAddrV4::new(B.ip, 5000),
            payload: &[7; PAYLOAD_LEN],
        };
        assert_eq!(decode_datagram(&frame), Some(datagram));
        assert_eq!(&frame[..6], &B.mac.0);
        assert_eq!(&frame[6..12], &A.mac.0);
    }

    #[test]
    fn a_correct_header_sums_to_zero() {
        // The example of RFC 1071 section 3, and our own header with its checksum in place.
        assert_eq!(internet_checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(internet_checksum(&request()[ETHERNET_HEADER..IPV4_FRAME]), 0);
    }

    #[test]
    fn what_is_no_whole_udp_datagram_is_refused() {
        for (at, value) in
            [(12, 0x86), (14, 0x65), (14, 0x44), (16, 0xff), (20, 0x20), (21, 1), (23, 6), (38, 0xff)]
        {
            let mut frame = request();
            frame[at] = value;
            assert_eq!(decode_datagram(&frame), None, "byte {at} = {value:#x}");
        }
        for len in 0..REQUEST_FRAME {
            assert_eq!(decode_datagram(&request()[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn only_questions_for_the_own_address_are_answered() {
        let mut question = [0; 60];
        question[..6].copy_from_slice(&Mac::BROADCAST.0);
        question[6..12].copy_from_slice(&B.mac.0);
        question[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        question[22..28].copy_from_slice(&B.mac.0);
        question[28..32].copy_from_slice(&B.ip.octets());
        question[38..42].copy_from_slice(&A.ip.octets());
        let answer = answer_arp(&question, A).unwrap();
        assert_eq!((&answer[..6], &answer[6..12], answer[21]), (&B.mac.0[..], &A.mac.0[..], 2));
        assert_eq!((&answer[22..28], &answer[28..32]), (&A.mac.0[..], &A.ip.octets()[..]));
        assert_eq!((&answer[32..38], &answer[38..42]), (&B.mac.0[..], &B.ip.octets()[..]));
        assert_eq!(answer_arp(&question, B), None, "another address");
        assert_eq!(answer_arp(&answer, B), None, "an answer");
        assert_eq!(answer_arp(&question[..41], A), None, "cut short");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..120), plausible: bool) {
            if plausible {
                let keep = bytes.len().min(24);
                bytes[..keep].copy_from_slice(&request()[..keep]);
            }
            if let Some(datagram) = decode_datagram(&bytes) {
                prop_assert!(datagram.payload.len() + PAYLOAD <= bytes.len());
            }
            let _ = answer_arp(&bytes, A);
        }
    }
}
