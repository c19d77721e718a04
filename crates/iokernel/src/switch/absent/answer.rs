//! The frames that stand for an address without a program.
//!
//! Owns their bytes: resets, "port unreachable", and reports to the programs of this machine that
//! one of them has ended. Pure: when a frame is answered, and how often, is decided in
//! [`absent`](super).
//!
//! An answer goes to the station that its cause came from, and is about as long. Nothing is
//! answered that RFC 1122 section 3.2.2 and RFC 4443 section 2.4 exempt: resets, errors, fragments
//! other than whole packets, packets from or to a group.

use std::net::IpAddr;
use tailwater_tcp::{Segment, answer_closed};
use tailwater_wire::{
    Addresses, Checksums, DEFAULT_TTL, EtherType, EthernetHeader, Fragmenting, ICMP_HEADER, IPV4_HEADER,
    IPV6_HEADER, IPV6_MIN_MTU, IcmpHeader, Icmpv6Header, IpProtocol, Ipv4Header, Ipv4Packet, Ipv6Header,
    Ipv6Packet, MIN_REASSEMBLY, MacAddr, PacketInfo, Report, Stations, UdpDatagram, upper_layer,
};

/// Bytes of the refused packet that an error quotes (RFC 1812 section 4.3.2.3, RFC 4443 section 3).
const QUOTE4: usize = MIN_REASSEMBLY - IPV4_HEADER - ICMP_HEADER;
const QUOTE6: usize = IPV6_MIN_MTU - IPV6_HEADER - ICMP_HEADER;

/// Offset of the checksum in a TCP header.
const CHECKSUM_AT: usize = IpProtocol::TCP.checksum_offset().expect("TCP has a checksum");

/// A whole packet to an address without a program.
struct Stray<'a> {
    ethernet: EthernetHeader,
    addresses: Addresses,
    protocol: IpProtocol,
    /// Transport header and data.
    payload: &'a [u8],
    /// All of it, IP header first.
    packet: &'a [u8],
}

/// Returns the IP address that the packet in a frame is sent to.
pub(super) fn destination(frame: &[u8]) -> Option<IpAddr> {
    let (ethernet, payload) = EthernetHeader::parse(frame).ok()?;
    match ethernet.ethertype {
        EtherType::IPV4 => Some(Ipv4Packet::parse_quoted(payload).ok()?.0.destination().into()),
        EtherType::IPV6 => Some(Ipv6Packet::parse_quoted(payload).ok()?.0.destination().into()),
        _ => None,
    }
}

/// Returns the answer to a frame for an address without a program: a reset (RFC 9293 section
/// 3.10.7.1) or "port unreachable". `None` if it gets none.
pub(super) fn refusal(frame: &[u8], checksums: Checksums) -> Option<Vec<u8>> {
    let stray = Stray::parse(frame, checksums)?;
    match stray.protocol {
        IpProtocol::TCP => stray.reset(checksums),
        IpProtocol::UDP => stray.unreachable(checksums),
        _ => None,
    }
}

impl<'a> Stray<'a> {
    fn parse(frame: &'a [u8], checksums: Checksums) -> Option<Self> {
        let (ethernet, bytes) = EthernetHeader::parse(frame).ok()?;
        if !ethernet.source.is_station() {
            return None;
        }
        let stray = match ethernet.ethertype {
            EtherType::IPV4 => {
                let packet = Ipv4Packet::parse(bytes, checksums).ok()?;
                let (header, payload) = (packet.header, packet.payload);
                let (addresses, protocol) = (header.addresses(), header.protocol());
                let stray = Self { ethernet, addresses, protocol, payload, packet: packet.bytes };
                (!header.is_fragment()).then_some(stray)?
            }
            EtherType::IPV6 => {
                let packet = Ipv6Packet::parse(bytes).ok()?;
                let upper = upper_layer(packet.header.next_header(), packet.payload).ok()?;
                let (addresses, payload) = (packet.header.addresses(), &packet.payload[upper.at..]);
                let stray =
                    Self { ethernet, addresses, protocol: upper.protocol, payload, packet: packet.bytes };
                upper.fragment.is_none().then_some(stray)?
            }
            _ => return None,
        };
        let source = stray.addresses.source();
        let possible = match source {
            IpAddr::V4(ip) => !ip.is_broadcast() && !ip.is_link_local(),
            IpAddr::V6(_) => true,
        };
        (possible && !source.is_unspecified() && !source.is_multicast() && !source.is_loopback())
            .then_some(stray)
    }

    fn reset(&self, checksums: Checksums) -> Option<Vec<u8>> {
        let sum = || self.addresses.pseudo_header(IpProtocol::TCP, self.payload.len()).bytes(self.payload);
        if checksums == Checksums::Verify && sum().finish() != 0 {
            return None;
        }
        let header = answer_closed(&Segment::parse(self.payload).ok()?)?;
        Some(self.answer(IpProtocol::TCP, header.len(), |out, back| {
            header.emit(out);
            let sum = back.pseudo_header(IpProtocol::TCP, out.len()).bytes(out).finish();
            out[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
        }))
    }

    fn unreachable(&self, checksums: Checksums) -> Option<Vec<u8>> {
        UdpDatagram::parse(self.payload, &self.addresses, checksums).ok()?;
        let (protocol, most) = match self.addresses {
            Addresses::V4 { .. } => (IpProtocol::ICMP, QUOTE4),
            Addresses::V6 { .. } => (IpProtocol::ICMPV6, QUOTE6),
        };
        let quote = &self.packet[..self.packet.len().min(most)];
        Some(self.answer(protocol, ICMP_HEADER + quote.len(), |out, back| {
            error(out, back, Report::Port, quote);
        }))
    }

    /// Returns a frame back to the sender, with a payload of `len` bytes that `fill` writes.
    fn answer(&self, protocol: IpProtocol, len: usize, fill: impl FnOnce(&mut [u8], &Addresses)) -> Vec<u8> {
        let stations = Stations { source: self.ethernet.destination, destination: self.ethernet.source };
        build(stations, (self.addresses.reversed(), protocol, DEFAULT_TTL), len, fill)
    }
}

/// Returns a frame with a payload of `len` bytes that `fill` writes over zeros.
fn build(
    stations: Stations,
    (addresses, protocol, hop_limit): (Addresses, IpProtocol, u8),
    len: usize,
    fill: impl FnOnce(&mut [u8], &Addresses),
) -> Vec<u8> {
    let packet = PacketInfo { addresses, protocol, hop_limit, traffic_class: 0 };
    let overhead = packet.overhead_of(Fragmenting::Forbidden);
    let mut frame = vec![0; overhead + len];
    let (front, rest) = frame.split_at_mut(overhead);
    packet.write_headers(front, stations, Fragmenting::Forbidden, len);
    fill(rest, &addresses);
    frame
}

/// Writes an error with this quote, which fills the rest of `out`.
fn error(out: &mut [u8], addresses: &Addresses, report: Report, quote: &[u8]) {
    let header = match addresses {
        Addresses::V4 { .. } => IcmpHeader::error(report, [quote, &[]]).map(IcmpHeader::to_bytes),
        Addresses::V6 { .. } => Some(Icmpv6Header::error(addresses, report, [quote, &[]]).to_bytes()),
    };
    let (front, rest) = out.split_at_mut(ICMP_HEADER);
    front.copy_from_slice(&header.expect("both families have these reports"));
    rest.copy_from_slice(quote);
}

/// Returns the report to the program at `to`, whose station is `station`, that the program at
/// `gone`, whose station was `gone_station`, has ended: "host unreachable", from there, which
/// quotes no more than the IP header of a packet to there. Of one of two instances, that packet's
/// protocol is TCP, whose connections the other instance may have. No other message is right for
/// that, because programs may not send "host unreachable", and its receiver looks at all its
/// connections. `None` for two addresses of different families.
pub(super) fn departure(
    of_instance: bool,
    (gone, gone_station): (IpAddr, MacAddr),
    (to, station): (IpAddr, MacAddr),
) -> Option<Vec<u8>> {
    let (back, forth) = (Addresses::new(gone, to)?, Addresses::new(to, gone)?);
    let about = if of_instance { IpProtocol::TCP } else { IpProtocol::NO_NEXT_HEADER };
    let quoted = PacketInfo { addresses: forth, protocol: about, hop_limit: DEFAULT_TTL, traffic_class: 0 };
    let stations = Stations { source: gone_station, destination: station };
    let frame = |protocol, quote: &[u8]| {
        build(stations, (back, protocol, DEFAULT_TTL), ICMP_HEADER + quote.len(), |out, addresses| {
            error(out, addresses, Report::Host, quote);
        })
    };
    Some(match back {
        Addresses::V4 { .. } => {
            frame(IpProtocol::ICMP, &Ipv4Header::of(&quoted, Fragmenting::Forbidden, 0).to_bytes())
        }
        Addresses::V6 { .. } => frame(IpProtocol::ICMPV6, &Ipv6Header::of(&quoted, about, 0).to_bytes()),
    })
}
