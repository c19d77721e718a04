//! IPv6 headers (RFC 8200) and the walk of their receiver over the extensions; the one of a switch
//! or a firewall, which reads the packets of others, is [`packet`](crate::packet)'s.

use crate::error::{Layer, WireError};
use crate::ip::{Addresses, IpProtocol, PacketInfo};
use crate::layout::layout;
use core::net::Ipv6Addr;

/// Bytes of a header without extensions.
pub const IPV6_HEADER: usize = 40;
/// Bytes of the extension header of a fragment (RFC 8200 section 4.5).
pub const FRAGMENT_HEADER: usize = 8;
/// Bytes of a packet that every link carries (RFC 8200 section 5).
pub const IPV6_MIN_MTU: usize = 1280;
/// Maximum number of extension headers of one packet. RFC 8504 section 5.3 allows a limit and
/// suggests eight; RFC 8200 section 4.1 lists six kinds, of which one may come twice.
pub const MAX_EXTENSIONS: usize = 8;

layout! {
    /// The fixed header.
    pub struct Ipv6Header[IPV6_HEADER] {
        version_class_flow: u32,
        payload_len: u16,
        next_header: IpProtocol,
        hop_limit: u8,
        source: [u8; 16],
        destination: [u8; 16],
    }
}

impl Ipv6Header {
    /// Returns the header of `packet` for `len` bytes after it, which begin with `next_header`. The
    /// flow label is zero (RFC 6437 section 3: a source that does not label).
    ///
    /// # Panics
    /// If `len` exceeds 65,535, or the addresses are IPv4.
    #[inline]
    pub fn of(packet: &PacketInfo, next_header: IpProtocol, len: usize) -> Self {
        let Addresses::V6 { source, destination } = packet.addresses else {
            panic!("an IPv6 header for IPv4 addresses")
        };
        let payload_len = u16::try_from(len).expect("an IPv6 packet has at most 65535 bytes of payload");
        Self {
            version_class_flow: 6 << 28 | u32::from(packet.traffic_class) << 20,
            payload_len,
            next_header,
            hop_limit: packet.hop_limit,
            source: source.octets(),
            destination: destination.octets(),
        }
    }

    /// Differentiated services and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (self.version_class_flow >> 20) as u8
    }

    /// Returns the bytes after this header.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.payload_len.into()
    }

    /// Returns the header or protocol that follows.
    #[inline]
    pub fn next_header(&self) -> IpProtocol {
        self.next_header
    }

    /// Remaining hops.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// Returns the address of the sender.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        self.source.into()
    }

    /// Returns the address of the receiver.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        self.destination.into()
    }

    /// Both addresses.
    #[inline]
    pub fn addresses(&self) -> Addresses {
        Addresses::V6 { source: self.source(), destination: self.destination() }
    }
}

/// A checked packet.
#[derive(Debug, Clone, Copy)]
pub struct Ipv6Packet<'a> {
    /// The fixed header.
    pub header: Ipv6Header,
    /// The packet from the first byte of its header to the last byte of its payload, without
    /// padding.
    pub bytes: &'a [u8],
    /// The bytes after the fixed header: extensions first.
    pub payload: &'a [u8],
}

impl<'a> Ipv6Packet<'a> {
    /// Parses a packet from the payload of a frame, which may end in padding. Jumbograms (RFC 2675)
    /// do not fit a frame and parse as packets without payload.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Field`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (header, rest) = Self::parse_quoted(bytes)?;
        let len = header.payload_len();
        let Some(payload) = rest.get(..len) else {
            return Err(WireError::Truncated {
                layer: Layer::Ipv6,
                need: IPV6_HEADER + len,
                have: bytes.len(),
            });
        };
        Ok(Self { header, bytes: &bytes[..IPV6_HEADER + len], payload })
    }

    /// Parses the header of the packet that an ICMPv6 error quotes, which may be cut short (RFC
    /// 4443 section 3). Returns the header and the bytes of payload present.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::Field`].
    #[inline]
    pub fn parse_quoted(bytes: &'a [u8]) -> Result<(Ipv6Header, &'a [u8]), WireError> {
        let (header, rest) = Ipv6Header::split(bytes).ok_or(WireError::Truncated {
            layer: Layer::Ipv6,
            need: IPV6_HEADER,
            have: bytes.len(),
        })?;
        let version = header.version_class_flow >> 28;
        if version != 6 {
            return Err(WireError::Field { layer: Layer::Ipv6, field: "version", value: version as u16 });
        }
        Ok((header, rest))
    }
}

layout! {
    /// The extension header of a fragment.
    pub struct FragmentHeader[FRAGMENT_HEADER] {
        next_header: IpProtocol,
        reserved: u8,
        offset_more: u16,
        identification: u32,
    }
}

impl FragmentHeader {
    /// Returns the extension of a fragment at `offset`, a multiple of eight below 65,536, of a
    /// packet of `protocol`.
    #[inline]
    pub fn new(protocol: IpProtocol, identification: u32, offset: usize, more: bool) -> Self {
        debug_assert!(offset.is_multiple_of(8) && offset < 1 << 16, "a fragment at {offset}");
        Self {
            next_header: protocol,
            reserved: 0,
            offset_more: offset as u16 | u16::from(more),
            identification,
        }
    }

    /// Protocol, or next extension, of the whole packet.
    #[inline]
    pub fn next_header(&self) -> IpProtocol {
        self.next_header
    }

    /// Returns the offset of this fragment's data in the whole, in bytes.
    #[inline]
    pub fn offset(&self) -> usize {
        usize::from(self.offset_more & !7)
    }

    /// Returns whether it is not the last.
    #[inline]
    pub fn more(&self) -> bool {
        self.offset_more & 1 != 0
    }

    /// Returns the identification that the fragments share.
    #[inline]
    pub fn identification(&self) -> u32 {
        self.identification
    }
}

/// The end of a packet's chain of extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpperLayer {
    /// The protocol after the extensions; [`IpProtocol::NO_NEXT_HEADER`] if nothing follows.
    pub protocol: IpProtocol,
    /// Its offset, counted from the first byte after the fixed header.
    pub at: usize,
    /// The byte that names `protocol`, counted from the packet's first: an error about the protocol
    /// points at it.
    pub named_at: usize,
    /// Present if this is a fragment, whose data begins at `at`; also for a packet that is its own
    /// only fragment (RFC 6946).
    pub fragment: Option<FragmentHeader>,
}

/// Why a packet is dropped for its extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExtensionError {
    /// The bytes end before the extension does, or there are more than [`MAX_EXTENSIONS`].
    #[error(transparent)]
    Wire(#[from] WireError),
    /// An option or a routing header that may not be skipped.
    #[error("IPv6: parameter problem {code} at byte {pointer}")]
    Problem {
        /// Code of the answer (RFC 4443 section 3.4).
        code: u8,
        /// The byte at fault, counted from the packet's first.
        pointer: usize,
        /// True if the error is sent even if the packet went to a group (RFC 8200 section 4.2,
        /// option types 10 and 11).
        answers_group: bool,
    },
    /// An unknown option of the kind that drops the packet without an error.
    #[error("IPv6: an unknown option of the kind that drops the packet")]
    Silent,
}

/// Code of a parameter problem: an erroneous field (RFC 4443 section 3.4).
pub const PROBLEM_FIELD: u8 = 0;
/// Code of a parameter problem: an unknown next header.
pub const PROBLEM_NEXT_HEADER: u8 = 1;
/// Code of a parameter problem: an unknown option.
pub const PROBLEM_OPTION: u8 = 2;

/// Walks the extensions of a packet whose fixed header names `first` and precedes `payload`. Stops
/// at a fragment header: the bytes after it belong to the reassembled packet.
///
/// # Errors
/// [`ExtensionError`].
#[inline]
pub fn upper_layer(first: IpProtocol, payload: &[u8]) -> Result<UpperLayer, ExtensionError> {
    walk(first, payload, true)
}

/// As [`upper_layer`], without checking options and routing headers: finds the protocol of a packet
/// that is dropped for its extensions.
///
/// # Errors
/// [`ExtensionError::Wire`].
pub fn upper_layer_unchecked(first: IpProtocol, payload: &[u8]) -> Result<UpperLayer, ExtensionError> {
    walk(first, payload, false)
}

fn walk(first: IpProtocol, payload: &[u8], check: bool) -> Result<UpperLayer, ExtensionError> {
    // Offset of "next header" in the fixed header.
    let mut upper = UpperLayer { protocol: first, at: 0, named_at: 6, fragment: None };
    for number in 0..=MAX_EXTENSIONS {
        let rest = &payload[upper.at..];
        let truncated = |need| {
            let (need, have) = (IPV6_HEADER + upper.at + need, IPV6_HEADER + payload.len());
            ExtensionError::Wire(WireError::Truncated { layer: Layer::Ipv6, need, have })
        };
        match upper.protocol {
            IpProtocol::FRAGMENT => {
                let (fragment, _) = FragmentHeader::split(rest).ok_or_else(|| truncated(FRAGMENT_HEADER))?;
                let named_at = IPV6_HEADER + upper.at;
                let (protocol, at) = (fragment.next_header, upper.at + FRAGMENT_HEADER);
                return Ok(UpperLayer { protocol, at, named_at, fragment: Some(fragment) });
            }
            // Only the first extension may be hop-by-hop (RFC 8200 section 4.1).
            IpProtocol::HOP_BY_HOP if number > 0 && check => {
                let (code, pointer) = (PROBLEM_NEXT_HEADER, upper.named_at);
                return Err(ExtensionError::Problem { code, pointer, answers_group: false });
            }
            IpProtocol::HOP_BY_HOP | IpProtocol::ROUTING | IpProtocol::DESTINATION_OPTIONS => {}
            _ => return Ok(upper),
        }
        let &[next, units, ..] = rest else { return Err(truncated(2)) };
        let len = 8 * (usize::from(units) + 1);
        let extension = rest.get(..len).ok_or_else(|| truncated(len))?;
        let starts_at = IPV6_HEADER + upper.at;
        match upper.protocol {
            _ if !check => {}
            IpProtocol::ROUTING => check_routing(extension, starts_at)?,
            _ => check_options(extension, starts_at)?,
        }
        upper = UpperLayer {
            protocol: IpProtocol(next),
            at: upper.at + len,
            named_at: starts_at,
            fragment: None,
        };
    }
    let value = MAX_EXTENSIONS as u16 + 1;
    Err(WireError::Field { layer: Layer::Ipv6, field: "number of extension headers", value }.into())
}

/// Refuses a routing header with segments left: this host does not forward, and type 0 is forbidden
/// altogether (RFC 5095).
fn check_routing(extension: &[u8], starts_at: usize) -> Result<(), ExtensionError> {
    match extension[3] {
        0 => Ok(()),
        // The type is unrecognized (RFC 8200 section 4.4): the pointer refers to it.
        _ => {
            Err(ExtensionError::Problem { code: PROBLEM_FIELD, pointer: starts_at + 2, answers_group: false })
        }
    }
}

/// Checks the options of a hop-by-hop or destination options header (RFC 8200 section 4.2). Only
/// padding is known here, so the two upper bits of each type decide.
fn check_options(extension: &[u8], starts_at: usize) -> Result<(), ExtensionError> {
    const PAD1: u8 = 0;
    let mut at = 2;
    while let Some(&kind) = extension.get(at) {
        if kind == PAD1 {
            at += 1;
            continue;
        }
        let Some(&len) = extension.get(at + 1) else {
            return Err(WireError::Field { layer: Layer::Ipv6, field: "option length", value: 0 }.into());
        };
        if at + 2 + usize::from(len) > extension.len() {
            let field = "option length";
            return Err(WireError::Field { layer: Layer::Ipv6, field, value: len.into() }.into());
        }
        let problem = |answers_group| {
            let (code, pointer) = (PROBLEM_OPTION, starts_at + at);
            Err(ExtensionError::Problem { code, pointer, answers_group })
        };
        match kind >> 6 {
            // Skip; PadN is one of these.
            0 => {}
            1 => return Err(ExtensionError::Silent),
            2 => return problem(true),
            _ => return problem(false),
        }
        at += 2 + usize::from(len);
    }
    Ok(())
}
