//! Cuts long segments that Linux passes through a TAP device with offloads into frames, and joins
//! frames into such segments for Linux (the kernel's virtio_net.h).
//!
//! Owns [`Header`], which precedes each frame in both directions, and [`Cutter`], which turns what
//! was read from Linux into frames: a TCP segment or a bundle of UDP datagrams of up to 64 KiB
//! becomes frames with complete headers and checksums, one at a time, so that the caller may stop
//! after any. A frame that needs no cutting may still lack its checksum, which is computed here.
//! The header's numbers come from the kernel and are checked all the same. [`join`] has the other
//! direction.
//!
//! In a cut TCP segment, sequence numbers count on, FIN and PSH stay with the last frame and CWR
//! with the first (RFC 3168 section 6.1.2: it answers one congestion signal); IPv4 identifications
//! count on (RFC 6864 allows any, for these cannot be fragmented).

mod join;

pub(super) use join::{Joiner, Taken};

use tailwater_wire::frame::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use tailwater_wire::{ETHERNET_HEADER, IpProtocol, Sum, checksum};

/// Length of a [`Header`] in bytes.
pub(super) const HEADER: usize = 10;
/// Maximum length of a read from the device, with the header.
pub(super) const MAX_READ: usize = HEADER + ETHERNET_HEADER + 65_535 + 40;

const NEEDS_CHECKSUM: u8 = 1;
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
const UDP: u8 = 5;
/// The segment carries ECN; cutting handles CWR in any case.
const WITH_ECN: u8 = 0x80;

const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// The fields of `struct virtio_net_hdr` that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    flags: u8,
    kind: u8,
    /// Payload bytes of each frame.
    size: usize,
    /// Where the checksummed range begins, and the offset of the checksum field from there.
    start: usize,
    offset: usize,
}

impl Header {
    fn decode(bytes: &[u8; HEADER]) -> Self {
        let word = |at: usize| usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
        Self { flags: bytes[0], kind: bytes[1] & !WITH_ECN, size: word(4), start: word(6), offset: word(8) }
    }
}

/// What remains to be cut from the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cutter {
    /// Offset of the transport header in the frame.
    transport: usize,
    /// Offset of the payload in the frame.
    payload: usize,
    /// Payload bytes of each frame; 0 if nothing is to be cut.
    size: usize,
    v6: bool,
    tcp: bool,
    /// Payload bytes already cut.
    done: usize,
    finished: bool,
}

impl Cutter {
    /// Parses a buffer of header and frame. A frame that needs no cutting is completed in place.
    /// `None` if the header does not fit the frame.
    pub(super) fn new(read: &mut [u8]) -> Option<Self> {
        let (header, frame) = read.split_first_chunk_mut::<HEADER>()?;
        let header = Header::decode(header);
        let whole =
            Self { transport: 0, payload: 0, size: 0, v6: false, tcp: false, done: 0, finished: false };
        if header.kind == 0 {
            let made = header.flags & NEEDS_CHECKSUM == 0 || complete(frame, &header);
            return made.then_some(whole);
        }
        let kind = u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]);
        let (v6, tcp) = match (header.kind, kind) {
            (TCP_V4, ETHERTYPE_IPV4) => (false, true),
            (TCP_V6, ETHERTYPE_IPV6) => (true, true),
            (UDP, ETHERTYPE_IPV4) => (false, false),
            (UDP, ETHERTYPE_IPV6) => (true, false),
            _ => return None,
        };
        let transport = header.start;
        let payload = transport + if tcp { usize::from(*frame.get(transport + 12)? >> 4) * 4 } else { 8 };
        let least = ETHERNET_HEADER + if v6 { 40 } else { 20 };
        let sound =
            transport >= least && payload >= transport + 8 && payload < frame.len() && header.size > 0;
        sound.then_some(Self { transport, payload, size: header.size, v6, tcp, ..whole })
    }

    /// Returns the next frame: a part of `read`, or made in `out`. `None` if there is none left, or
    /// it is too long for `out`.
    pub(super) fn next<'a>(&mut self, read: &'a [u8], out: &'a mut [u8]) -> Option<&'a [u8]> {
        let frame = &read[HEADER..];
        if self.finished {
            return None;
        }
        if self.size == 0 {
            self.finished = true;
            return Some(frame);
        }
        let from = self.payload + self.done;
        let len = self.size.min(frame.len() - from);
        let out = out.get_mut(..self.payload + len)?;
        out[..self.payload].copy_from_slice(&frame[..self.payload]);
        out[self.payload..].copy_from_slice(&frame[from..from + len]);
        let number = (self.done / self.size) as u16;
        self.finished = from + len == frame.len();
        self.fix_network(out, number);
        self.fix_transport(out);
        self.done += len;
        Some(out)
    }

    /// Sets lengths, identification and checksum of the IP header.
    fn fix_network(&self, frame: &mut [u8], number: u16) {
        let ip = &mut frame[ETHERNET_HEADER..];
        let len = ip.len() as u16;
        if self.v6 {
            ip[4..6].copy_from_slice(&(len - 40).to_be_bytes());
            return;
        }
        ip[2..4].copy_from_slice(&len.to_be_bytes());
        let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(number);
        ip[4..6].copy_from_slice(&id.to_be_bytes());
        ip[10..12].fill(0);
        let made = checksum(&ip[..self.transport - ETHERNET_HEADER]);
        ip[10..12].copy_from_slice(&made.to_be_bytes());
    }

    /// Sets sequence number and flags, or length; and the checksum.
    fn fix_transport(&self, frame: &mut [u8]) {
        let addresses = if self.v6 { &frame[22..54] } else { &frame[26..34] };
        let protocol = if self.tcp { IpProtocol::TCP } else { IpProtocol::UDP };
        let len = (frame.len() - self.transport) as u16;
        let pseudo = Sum::new().bytes(addresses).word(protocol.0.into()).word(len);
        let (first, last) = (self.done == 0, self.finished);
        let body = &mut frame[self.transport..];
        let at = if self.tcp {
            let sequence =
                u32::from_be_bytes([body[4], body[5], body[6], body[7]]).wrapping_add(self.done as u32);
            body[4..8].copy_from_slice(&sequence.to_be_bytes());
            body[13] &= !(if last { 0 } else { FIN_PSH } | if first { 0 } else { CWR });
            16
        } else {
            let len = body.len() as u16;
            body[4..6].copy_from_slice(&len.to_be_bytes());
            6
        };
        body[at..at + 2].fill(0);
        let made = match pseudo.bytes(body).finish() {
            0 if !self.tcp => 0xffff,
            made => made,
        };
        body[at..at + 2].copy_from_slice(&made.to_be_bytes());
    }
}

/// Completes the checksum that `header` asks for; the field holds the sum of the pseudo header.
/// False if it is out of bounds.
fn complete(frame: &mut [u8], header: &Header) -> bool {
    let Some(body) = frame.get_mut(header.start..) else { return false };
    let made = match checksum(body) {
        0 => 0xffff,
        made => made,
    };
    let Some(field) = body.get_mut(header.offset..header.offset + 2) else { return false };
    field.copy_from_slice(&made.to_be_bytes());
    true
}

#[cfg(test)]
mod tests;
