//! Packets from this host to itself, for protocols that answer what arrives: a bounded queue between who sends and who processes.
//!
//! A connection that sends to another of this host does so with its own lock held, and what arrives there may make that one
//! send in turn: processed at once, that would recurse and deadlock. So a packet is put into a buffer here, and a thread of
//! its own ([`Outlet::poll_loopback`](super::Outlet::poll_loopback)) takes the whole buffer and processes what is in it,
//! with no lock held, one packet after the other and in order.
//!
//! Packets are not bytes of a frame: addresses and protocol are kept as they are, and checksums are trusted, since nothing
//! can have damaged them. UDP does without: its datagrams go straight into the receiver's queue.
//!
//! # Bounds
//! [`CAPACITY`] bytes wait, and as many are being processed.

use super::output::SendError;
use crate::net::wire::{Addresses, IpProtocol, PacketInfo, Sum};
use crate::sync::spin::SpinLock;
use core::net::{IpAddr, Ipv6Addr};

/// Bytes of packets that wait, with 40 bytes each of bookkeeping: sixteen packets of the longest kind.
pub const CAPACITY: usize = 1 << 20;
/// Most transport header and data bytes of one packet: as many as a packet of either family holds.
pub const MAX_PACKET: usize = 65_535 - 40;

/// Bytes of bookkeeping per packet: length, protocol, traffic class, family, both addresses.
const HEADER: usize = 40;

/// Packets taken out of the queue. Kept by who empties it, for its memory.
#[derive(Debug, Default)]
pub struct LoopbackBatch {
    bytes: Vec<u8>,
}

/// A packet of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalPacket<'a> {
    /// From whom, to whom: both this host.
    pub addresses: Addresses,
    /// What the payload is.
    pub protocol: IpProtocol,
    /// As sent.
    pub traffic_class: u8,
    /// Transport header and data.
    pub payload: &'a [u8],
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Loopback {
    waiting: SpinLock<Vec<u8>>,
}

impl Loopback {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a packet of `len` bytes that `fill` writes. True if the queue was empty: then somebody has to be told.
    ///
    /// # Errors
    /// [`SendError::Full`], [`SendError::TooLong`]; then `fill` was not called.
    pub fn push(
        &self,
        packet: &PacketInfo,
        len: usize,
        fill: impl FnOnce(&mut [u8], Sum),
    ) -> Result<bool, SendError> {
        if len > MAX_PACKET {
            return Err(SendError::TooLong { len, limit: MAX_PACKET });
        }
        let sum = packet.addresses.pseudo_header(packet.protocol, len);
        let mut waiting = self.waiting.lock();
        let at = waiting.len();
        if at + HEADER + len > CAPACITY {
            return Err(SendError::Full);
        }
        waiting.extend_from_slice(&encode(packet, len));
        waiting.resize(at + HEADER + len, 0);
        fill(&mut waiting[at + HEADER..], sum);
        Ok(at == 0)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }

    /// Puts all that waits into `batch`, in place of what was there. False if nothing waits.
    pub fn take(&self, batch: &mut LoopbackBatch) -> bool {
        batch.bytes.clear();
        core::mem::swap(&mut *self.waiting.lock(), &mut batch.bytes);
        !batch.bytes.is_empty()
    }
}

fn encode(packet: &PacketInfo, len: usize) -> [u8; HEADER] {
    let mapped = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&(len as u32).to_ne_bytes());
    (header[4], header[5]) = (packet.protocol.0, packet.traffic_class);
    header[8..24].copy_from_slice(&mapped(packet.addresses.source()));
    header[24..].copy_from_slice(&mapped(packet.addresses.destination()));
    header
}

impl LoopbackBatch {
    /// The packets, in the order in which they were sent.
    pub fn packets(&self) -> impl Iterator<Item = LocalPacket<'_>> {
        let mut rest = &self.bytes[..];
        core::iter::from_fn(move || {
            let (header, tail) = rest.split_first_chunk::<HEADER>()?;
            let [a, b, c, d, protocol, traffic_class, ..] = *header;
            let (payload, tail) = tail.split_at(u32::from_ne_bytes([a, b, c, d]) as usize);
            rest = tail;
            let address = |at: usize| {
                let octets: [u8; 16] = header[at..at + 16].try_into().expect("sixteen bytes");
                Ipv6Addr::from(octets).to_canonical()
            };
            let addresses = Addresses::new(address(8), address(24)).expect("as they were put in");
            Some(LocalPacket { addresses, protocol: IpProtocol(protocol), traffic_class, payload })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    fn packet(ip: IpAddr) -> PacketInfo {
        PacketInfo {
            addresses: Addresses::new(ip, ip).unwrap(),
            protocol: IpProtocol::TCP,
            hop_limit: 64,
            traffic_class: 2,
        }
    }

    #[test]
    fn packets_come_out_as_they_went_in_and_the_first_of_a_batch_says_so() {
        let loopback = Loopback::new();
        let ips: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let mut batch = LoopbackBatch::default();
        for round in 0..3u8 {
            for (i, ip) in ips.into_iter().enumerate() {
                let first = loopback.push(&packet(ip), 5, |out, _| out.fill(round)).unwrap();
                assert_eq!(first, i == 0);
            }
            assert!(loopback.take(&mut batch));
            let all: Vec<_> = batch.packets().collect();
            let data = [round; 5];
            let expected = ips.map(|ip| LocalPacket {
                addresses: packet(ip).addresses,
                protocol: IpProtocol::TCP,
                traffic_class: 2,
                payload: &data[..],
            });
            assert_eq!(all, expected);
            assert!(loopback.is_empty() && !loopback.take(&mut LoopbackBatch::default()));
        }
    }

    #[test]
    fn a_full_queue_pushes_back_until_it_is_taken() {
        let loopback = Loopback::new();
        let packet = packet(Ipv4Addr::LOCALHOST.into());
        let push = || loopback.push(&packet, 9000, |_, _| ());
        let fitted = (0..1000).take_while(|_| push().is_ok()).count();
        assert_eq!(fitted, CAPACITY / (9000 + HEADER));
        assert_eq!(push(), Err(SendError::Full));
        assert!(loopback.take(&mut LoopbackBatch::default()));
        assert_eq!(push(), Ok(true));
        let too_long = SendError::TooLong { len: MAX_PACKET + 1, limit: MAX_PACKET };
        assert_eq!(loopback.push(&packet, MAX_PACKET + 1, |_, _| ()), Err(too_long));
    }
}
