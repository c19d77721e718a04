//! Frames of the station: requests out, replies and ARP in.
//!
//! Owns the byte offsets of the few headers that a generator needs, and nothing else of a network
//! stack. A request's headers are the same for every request of a run except for the source port
//! and the lengths, so they are made once, and what differs is filled in. UDP checksums are left
//! out (zero, RFC 768): the frame never leaves the machine's memory.
//!
//! Decoding is total: any bytes give a value or `None`, never a panic.

use std::net::{Ipv4Addr, SocketAddrV4};
use tailwater_wire::frame::{ARP_FRAME, ETHERTYPE_ARP, ETHERTYPE_IPV4, IPV4_FRAME};
use tailwater_wire::{
    ArpOperation, ArpPacket, Checksums, DEFAULT_TTL, ETHERNET_HEADER, EtherType, EthernetHeader, IpProtocol,
    Ipv4Packet, MacAddr, UDP_HEADER, UdpDatagram, checksum,
};

/// Where a datagram's data begins in a frame whose IP header has no options.
pub(crate) const PAYLOAD: usize = IPV4_FRAME + UDP_HEADER;

/// One end of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) mac: MacAddr,
    pub(crate) ip: Ipv4Addr,
}

/// Returns the headers of a request, complete except for source port, lengths and checksum.
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
    ip[8] = DEFAULT_TTL;
    ip[9] = IpProtocol::UDP.0;
    ip[12..16].copy_from_slice(&from.ip.octets());
    ip[16..20].copy_from_slice(&to.ip.octets());
    put_u16(&mut frame, IPV4_FRAME + 2, port);
    frame
}

/// Completes the headers before a payload that was appended to a [`request_template`]. One that is
/// too long for a packet makes a frame that the switch refuses.
#[inline]
pub(crate) fn complete(frame: &mut [u8], source_port: u16) {
    let len = frame.len();
    let ip = &mut frame[ETHERNET_HEADER..IPV4_FRAME];
    // The casts cut lengths that no frame has.
    let total = (len - ETHERNET_HEADER) as u16;
    if get_u16(ip, 2) != total {
        put_u16(ip, 2, total);
        put_u16(ip, 10, 0);
        let checksum = checksum(ip);
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

/// Reads the datagram in `frame`, if there is one. Checksums are not verified: nothing lies between
/// the rings.
#[inline]
pub(crate) fn decode_datagram(frame: &[u8]) -> Option<Datagram<'_>> {
    let (ethernet, packet) = EthernetHeader::parse(frame).ok()?;
    if ethernet.ethertype != EtherType::IPV4 {
        return None;
    }
    let Ipv4Packet { header, payload, .. } = Ipv4Packet::parse(packet, Checksums::Trust).ok()?;
    if header.protocol() != IpProtocol::UDP || header.is_fragment() {
        return None;
    }
    let udp = UdpDatagram::parse(payload, &header.addresses(), Checksums::Trust).ok()?;
    Some(Datagram {
        from: SocketAddrV4::new(header.source(), udp.header.source_port()),
        to: SocketAddrV4::new(header.destination(), udp.header.destination_port()),
        payload: udp.payload,
    })
}

/// Returns the reply to `frame` if it is an ARP request for `own.ip` (RFC 826).
pub(crate) fn answer_arp(frame: &[u8], own: Host) -> Option<[u8; ARP_FRAME]> {
    let (ethernet, packet) = EthernetHeader::parse(frame).ok()?;
    if ethernet.ethertype != EtherType::ARP {
        return None;
    }
    let request = ArpPacket::parse(packet).ok()?;
    if request.operation != ArpOperation::Request || request.target_ip != own.ip {
        return None;
    }
    let answer = ArpPacket {
        operation: ArpOperation::Reply,
        sender_mac: own.mac,
        sender_ip: own.ip,
        target_mac: request.sender_mac,
        target_ip: request.sender_ip,
    };
    let mut reply = [0; ARP_FRAME];
    reply[..6].copy_from_slice(&request.sender_mac.0);
    reply[6..12].copy_from_slice(&own.mac.0);
    reply[12..ETHERNET_HEADER].copy_from_slice(&ETHERTYPE_ARP.to_be_bytes());
    reply[ETHERNET_HEADER..].copy_from_slice(&answer.encode());
    Some(reply)
}

pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

pub(crate) fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: Host = Host { mac: MacAddr([2, 0, 0, 0, 0, 1]), ip: Ipv4Addr::new(10, 77, 0, 250) };
    const B: Host = Host { mac: MacAddr([2, 0, 0, 0, 0, 2]), ip: Ipv4Addr::new(10, 77, 0, 2) };

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
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(checksum(&request()[ETHERNET_HEADER..IPV4_FRAME]), 0);
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
        question[..6].copy_from_slice(&MacAddr::BROADCAST.0);
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
