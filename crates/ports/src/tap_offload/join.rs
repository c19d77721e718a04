//! Joins consecutive TCP segments of a flow into one packet for Linux (the kernel's virtio_net.h).
//!
//! Owns [`Joiner`]: frames go in one at a time, and come out in the same order, as they were or as
//! a packet of up to 64 KiB and 64 frames with the size at which Linux cuts it again, should it
//! leave the machine. A frame is joined to the packet before it only if cutting that packet gives
//! the frame back: the same headers, the next sequence number, "don't fragment" (so that the
//! identification has no meaning, RFC 6864 section 4.1), no flag but ACK and, in the last frame,
//! PSH, and as much payload as the first or, in the last frame, less. A packet holds frames of one
//! flow, and any other frame goes after it, so frames are never reordered.
//!
//! Frames are of programs, which may lie: every length is compared with the frame's own, and a
//! frame of which a checksum is wrong stays alone, so that Linux refuses it. The checksum of a
//! joined packet is left to Linux, which knows then that its data is undamaged.

use super::{HEADER, NEEDS_CHECKSUM, TCP_V4, TCP_V6};
use tailwater_wire::frame::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use tailwater_wire::{ETHERNET_HEADER, IPV4_HEADER, IPV6_HEADER, IpProtocol, Sum, TCP_HEADER, checksum};

/// Maximum length of an IP packet, and so of a joined one.
const MAX_IP: usize = 65_535;
/// Maximum number of frames of a joined packet: Linux may have to cut it in the call that passes
/// it. Of those of the usual MTU 45 fill a packet.
const MAX_FRAMES: u32 = 64;
/// The fragment word of an IPv4 packet that is whole and stays so: "don't fragment" (RFC 791).
const WHOLE: [u8; 2] = [0x40, 0];
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
/// Offset of the checksum in a TCP header.
const CHECKSUM_AT: usize = IpProtocol::TCP.checksum_offset().expect("TCP has a checksum");

/// Where the parts of a TCP segment with data lie in its frame, and what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    v6: bool,
    /// Offset of the TCP header.
    transport: usize,
    /// Offset of the data.
    payload: usize,
    sequence: u32,
    /// PSH is set: the last of its packet.
    pushes: bool,
}

impl Segment {
    /// Parses a frame that may be a part of a joined packet. Checksums are not looked at.
    fn parse(frame: &[u8]) -> Option<Self> {
        let ip = frame.get(ETHERNET_HEADER..)?;
        let transport = match u16::from_be_bytes([frame[12], frame[13]]) {
            // Without options; the packet is all of the frame.
            ETHERTYPE_IPV4 if ip.len() >= IPV4_HEADER => {
                let whole = ip[0] == 0x45 && ip[6..8] == WHOLE && ip[9] == IpProtocol::TCP.0;
                (whole && word(ip, 2) == ip.len()).then_some(IPV4_HEADER)?
            }
            ETHERTYPE_IPV6 if ip.len() >= IPV6_HEADER => {
                let plain = ip[0] >> 4 == 6 && ip[6] == IpProtocol::TCP.0;
                (plain && word(ip, 4) == ip.len() - IPV6_HEADER).then_some(IPV6_HEADER)?
            }
            _ => return None,
        };
        let tcp = ip[transport..].get(..TCP_HEADER)?;
        let payload = transport + usize::from(tcp[12] >> 4) * 4;
        let plain = tcp[12] & 0x0f == 0 && tcp[13] & !PSH == ACK;
        let sound = payload >= transport + TCP_HEADER && payload < ip.len();
        (plain && sound).then(|| Self {
            v6: transport == IPV6_HEADER,
            transport: ETHERNET_HEADER + transport,
            payload: ETHERNET_HEADER + payload,
            sequence: u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]),
            pushes: tcp[13] & PSH != 0,
        })
    }

    /// Returns whether the checksums of its frame are right.
    fn is_undamaged(&self, frame: &[u8]) -> bool {
        let ip = &frame[ETHERNET_HEADER..self.transport];
        let header = self.v6 || checksum(ip) == 0;
        header && self.pseudo_header(frame, frame.len()).bytes(&frame[self.transport..]).finish() == 0
    }

    /// Returns the sum of the pseudo-header for a frame of `len` bytes that begins as this one
    /// (RFC 9293 section 3.1, RFC 8200 section 8.1).
    fn pseudo_header(&self, frame: &[u8], len: usize) -> Sum {
        let addresses = if self.v6 { &frame[22..54] } else { &frame[26..34] };
        Sum::new().bytes(addresses).word(IpProtocol::TCP.0.into()).word((len - self.transport) as u16)
    }

    /// Returns whether the headers of this segment's `frame` and of `other`, which has its parts at
    /// the same places, differ only in what cutting sets: lengths, identification, checksums,
    /// sequence number, PSH.
    fn has_headers_of(&self, frame: &[u8], other: &[u8]) -> bool {
        let same = |from: usize, to: usize| frame[from..to] == other[from..to];
        let ip = match self.v6 {
            true => same(0, 18) && same(20, 54),
            false => same(0, 16) && same(20, 24) && same(26, 34),
        };
        let tcp = self.transport;
        ip && same(tcp, tcp + 4)
            && same(tcp + 8, tcp + 13)
            && same(tcp + 14, tcp + 16)
            && same(tcp + 18, self.payload)
    }
}

fn word(bytes: &[u8], at: usize) -> usize {
    u16::from_be_bytes([bytes[at], bytes[at + 1]]).into()
}

/// The packet that is being joined.
#[derive(Debug, Clone, Copy)]
struct Open {
    first: Segment,
    /// Bytes of data of each frame but the last.
    size: usize,
    /// The sequence number of the next frame.
    next: u32,
    frames: u32,
    /// The last frame pushes.
    pushes: bool,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Joiner {
    /// Room for a [`HEADER`], which is zero while the packet is one frame, and the packet.
    packet: Vec<u8>,
    open: Option<Open>,
}

/// What [`Joiner::take`] did with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is in the packet, which may grow.
    Held,
    /// It is in the packet and the last that fits: [`Joiner::finish`] it.
    Last,
    /// It is none that can be joined: send it by itself.
    Alone,
    /// It does not continue the packet: [`Joiner::finish`] that, and offer the frame again.
    Other,
}

impl Joiner {
    /// Takes the next frame, if it continues the packet or may begin one.
    pub(crate) fn take(&mut self, frame: &[u8]) -> Taken {
        let segment = Segment::parse(frame);
        let Some(open) = &mut self.open else {
            return match segment {
                // A frame that pushes is seldom followed by one of its flow.
                Some(first) if !first.pushes && first.is_undamaged(frame) => self.begin(first, frame),
                _ => Taken::Alone,
            };
        };
        let Some(segment) = segment else { return Taken::Other };
        let data = &frame[segment.payload..];
        let long = self.packet.len() - HEADER - ETHERNET_HEADER + data.len();
        let continues = segment.payload == open.first.payload
            && segment.v6 == open.first.v6
            && segment.sequence == open.next
            && data.len() <= open.size
            && long <= MAX_IP
            && open.first.has_headers_of(&self.packet[HEADER..], frame)
            && segment.is_undamaged(frame);
        if !continues {
            return Taken::Other;
        }
        self.packet.extend_from_slice(data);
        open.next = open.next.wrapping_add(data.len() as u32);
        open.frames += 1;
        open.pushes = segment.pushes;
        let is_last = data.len() < open.size || segment.pushes || open.frames == MAX_FRAMES;
        if is_last { Taken::Last } else { Taken::Held }
    }

    fn begin(&mut self, first: Segment, frame: &[u8]) -> Taken {
        self.packet.clear();
        self.packet.extend_from_slice(&[0; HEADER]);
        self.packet.extend_from_slice(frame);
        let size = frame.len() - first.payload;
        let next = first.sequence.wrapping_add(size as u32);
        self.open = Some(Open { first, size, next, frames: 1, pushes: false });
        Taken::Held
    }

    /// Returns whether there is a packet that may grow.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the packet with its header before it, and begins anew; `None` if there is none.
    pub(crate) fn finish(&mut self) -> Option<&[u8]> {
        let open = self.open.take()?;
        if open.frames > 1 {
            self.complete(&open);
        }
        Some(&self.packet)
    }

    /// Writes what a packet of several frames has in place of the first one's: lengths, PSH, and
    /// the checksums as Linux expects them of a packet that is to be cut.
    fn complete(&mut self, open: &Open) {
        let Open { first, size, .. } = *open;
        let (header, frame) = self.packet.split_at_mut(HEADER);
        let (kind, at) = if first.v6 { (TCP_V6, 18) } else { (TCP_V4, 16) };
        header[..2].copy_from_slice(&[NEEDS_CHECKSUM, kind]);
        for (at, value) in [(2, first.payload), (4, size), (6, first.transport), (8, CHECKSUM_AT)] {
            header[at..at + 2].copy_from_slice(&(value as u16).to_ne_bytes());
        }
        let (long, before) = (frame.len() - ETHERNET_HEADER, if first.v6 { IPV6_HEADER } else { 0 });
        frame[at..at + 2].copy_from_slice(&((long - before) as u16).to_be_bytes());
        if !first.v6 {
            frame[24..26].fill(0);
            let sum = checksum(&frame[ETHERNET_HEADER..first.transport]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        if open.pushes {
            frame[first.transport + 13] |= PSH;
        }
        let partial = first.pseudo_header(frame, frame.len()).partial();
        let field = first.transport + CHECKSUM_AT;
        frame[field..field + 2].copy_from_slice(&partial.to_be_bytes());
    }
}

#[cfg(test)]
mod tests;
