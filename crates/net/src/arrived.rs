//! Packets that arrived for this host, and errors about packets of this host, on their way to a
//! transport protocol.

use tailwater_wire::{Addresses, Checksums, IpProtocol, MacAddr, Undelivered};

/// A transport payload: that of an IP packet which is for this host and has a possible source.
#[derive(Debug, Clone, Copy)]
pub struct Arrived<'a> {
    /// Source and destination.
    pub addresses: Addresses,
    /// Protocol of the payload.
    pub protocol: IpProtocol,
    /// Differentiated services and ECN.
    pub traffic_class: u8,
    /// Transport header and data.
    pub payload: &'a [u8],
    /// Whether the transport's checksum is verified.
    pub checksums: Checksums,
    /// Where it came from.
    pub origin: Origin<'a>,
}

/// Where a packet came from.
#[derive(Debug, Clone, Copy)]
pub enum Origin<'a> {
    /// This host: no error is reported about it.
    Loopback,
    /// The link, in frames.
    Link(Link<'a>),
}

/// A packet that came over the link, as an error about it needs it.
#[derive(Debug, Clone, Copy)]
pub struct Link<'a> {
    /// The station it came from.
    pub station: MacAddr,
    /// The packet, IP header first. Of a reassembled one, the bytes before the first fragment's
    /// data, of even length, and the data.
    pub packet: [&'a [u8]; 2],
    /// True if it was sent to more hosts than this one.
    pub to_all: bool,
    /// True if it can be neighbour discovery: it was not routed and is no fragment (RFC 4861
    /// section 7.1, RFC 6980 section 5).
    pub never_routed: bool,
    /// IPv6: offset of the byte that names the transport protocol.
    pub named_at: usize,
}

/// A packet of this host that did not arrive.
#[derive(Debug, Clone, Copy)]
pub struct IcmpError<'a> {
    /// The reason.
    pub why: Undelivered,
    /// Protocol of the packet's payload.
    pub protocol: IpProtocol,
    /// Source, of this host, and destination.
    pub addresses: Addresses,
    /// The beginning of its transport header and data; often only eight bytes (RFC 792).
    pub transport: &'a [u8],
}
