//! Frames of a TCP client: Ethernet, IPv4 without options, one segment.
//!
//! Owns the offsets and the checksums of sent frames. Checksums of received frames are not
//! verified: nothing lies between the rings, and a port of an IOKernel trusts its own process.
//! Decoding is total.

use tailwater_tcp::{EcnCodepoint, Outgoing};
use tailwater_wire::frame::{ETHERTYPE_IPV4, IPV4_FRAME};
use tailwater_wire::{
    Checksums, DEFAULT_TTL, ETHERNET_HEADER, EtherType, EthernetHeader, IpProtocol, Ipv4Packet, Sum, checksum,
};

use super::Peer;
use crate::station::wire::{Host, put_u16};

/// IP protocol number of TCP.
const TCP: u8 = IpProtocol::TCP.0;
/// Offset of the checksum in a TCP header.
const CHECKSUM: usize = IpProtocol::TCP.checksum_offset().expect("TCP has a checksum");

/// A frame buffer with the headers that all segments to one peer share.
#[derive(Debug)]
pub(super) struct Template {
    frame: Vec<u8>,
    /// Sum of the pseudo-header's addresses and protocol (RFC 9293 section 3.1).
    pseudo: Sum,
}

impl Template {
    pub(super) fn new(own: Host, peer: &Peer, mtu: u16) -> Self {
        let mut frame = vec![0; ETHERNET_HEADER + usize::from(mtu)];
        frame[..6].copy_from_slice(&peer.mac.0);
        frame[6..12].copy_from_slice(&own.mac.0);
        put_u16(&mut frame, 12, ETHERTYPE_IPV4);
        let ip = &mut frame[ETHERNET_HEADER..IPV4_FRAME];
        // Version 4, five words of header.
        ip[0] = 0x45;
        // Don't fragment: then the identification may be zero (RFC 6864).
        put_u16(ip, 6, 0x4000);
        ip[8] = DEFAULT_TTL;
        ip[9] = TCP;
        ip[12..16].copy_from_slice(&own.ip.octets());
        ip[16..20].copy_from_slice(&peer.ip.octets());
        let pseudo = Sum::new().bytes(&ip[12..20]).word(TCP.into());
        Self { frame, pseudo }
    }

    /// Returns the frame that carries `segment`, which fits the MTU.
    #[inline]
    pub(super) fn fill(&mut self, segment: &Outgoing<'_>) -> &[u8] {
        let end = IPV4_FRAME + segment.len();
        let ip = &mut self.frame[ETHERNET_HEADER..IPV4_FRAME];
        ip[1] = segment.ecn.bits();
        put_u16(ip, 2, (end - ETHERNET_HEADER) as u16);
        put_u16(ip, 10, 0);
        let header = checksum(ip);
        put_u16(ip, 10, header);
        let bytes = &mut self.frame[IPV4_FRAME..end];
        segment.emit(bytes);
        let checksum = self.pseudo.word(bytes.len() as u16).bytes(bytes).finish();
        bytes[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
        &self.frame[..end]
    }
}

/// Returns the bytes of the TCP segment in `frame`, if it is one from `peer` to `own`, and the
/// congestion bits of its IP header.
#[inline]
pub(super) fn decode<'a>(frame: &'a [u8], own: Host, peer: &Peer) -> Option<(&'a [u8], EcnCodepoint)> {
    let (ethernet, packet) = EthernetHeader::parse(frame).ok()?;
    if ethernet.ethertype != EtherType::IPV4 {
        return None;
    }
    let Ipv4Packet { header, payload, .. } = Ipv4Packet::parse(packet, Checksums::Trust).ok()?;
    if header.protocol() != IpProtocol::TCP || header.is_fragment() {
        return None;
    }
    if header.source() != peer.ip || header.destination() != own.ip {
        return None;
    }
    Some((payload, EcnCodepoint::from_bits(header.traffic_class())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;
    use tailwater_tcp::segment::Options;
    use tailwater_tcp::{Flags, Header, Purpose, Segment, Seq};
    use tailwater_wire::MacAddr;

    const A: Host = Host { mac: MacAddr([2, 0, 0, 0, 0, 1]), ip: Ipv4Addr::new(10, 77, 0, 250) };
    const B: Host = Host { mac: MacAddr([2, 0, 0, 0, 0, 2]), ip: Ipv4Addr::new(10, 77, 0, 2) };

    fn peer(host: Host) -> Peer {
        Peer { mac: host.mac, ip: host.ip, port: 7 }
    }

    fn frame(payload: (&[u8], &[u8])) -> Vec<u8> {
        let header = Header {
            source: 1000,
            destination: 7,
            seq: Seq(1),
            ack: Seq(2),
            flags: Flags::ACK,
            window: 3,
            options: Options::default(),
        };
        let outgoing =
            Outgoing { header, payload: payload.into(), ecn: EcnCodepoint::Ect0, purpose: Purpose::Data };
        Template::new(A, &peer(B), 1500).fill(&outgoing).to_vec()
    }

    #[test]
    fn a_segment_reads_back_and_its_checksums_hold() {
        for (a, b) in [(&b""[..], &b""[..]), (b"odd", b""), (b"wrapped", b"around"), (b"even", b"xy")] {
            let frame = frame((a, b));
            let (bytes, ecn) = decode(&frame, B, &peer(A)).expect("it is for B");
            assert_eq!(ecn, EcnCodepoint::Ect0);
            assert_eq!(Segment::parse(bytes).expect("a segment").payload, [a, b].concat());
            assert_eq!(checksum(&frame[ETHERNET_HEADER..IPV4_FRAME]), 0);
            // RFC 9293 section 3.1: over the pseudo header and the whole segment, word by word.
            let mut covered = [A.ip.octets(), B.ip.octets()].concat();
            covered.extend([0, TCP]);
            covered.extend((bytes.len() as u16).to_be_bytes());
            covered.extend(bytes);
            covered.resize(covered.len().next_multiple_of(2), 0);
            assert_eq!(checksum(&covered), 0, "{a:?} {b:?}");
        }
    }

    #[test]
    fn frames_of_others_are_refused() {
        for (at, value) in [(12, 0x86), (14, 0x65), (16, 0xff), (20, 0x20), (23, 17), (26, 9), (33, 9)] {
            let mut frame = frame((b"payload", b""));
            frame[at] = value;
            assert!(decode(&frame, B, &peer(A)).is_none(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..120), plausible: bool) {
            if plausible {
                let keep = bytes.len().min(IPV4_FRAME);
                bytes[..keep].copy_from_slice(&frame((b"", b""))[..keep]);
            }
            let _ = decode(&bytes, B, &peer(A));
        }
    }
}
