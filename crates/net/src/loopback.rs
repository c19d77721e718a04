//! Packets from this host to itself: a bounded queue between sender and processing.
//!
//! A connection sends to another one of this host with its own lock held, and the packet may cause
//! the other to send in turn; processed at once, that would recurse and deadlock. A packet is
//! therefore put into a buffer here. A thread of its own
//! ([`Outlet::poll_loopback`](crate::Outlet::poll_loopback)) takes the whole buffer and processes
//! the packets in order, with no lock held.
//!
//! Packets are not frames: addresses and protocol are stored as they are, and checksums are
//! trusted, because nothing can have damaged them. UDP does not use this queue: its datagrams go
//! straight into the receiver's.
//!
//! # Bounds
//! [`CAPACITY`] bytes waiting, and as many being processed.

use crate::error::SendError;
use crate::platform::{Lock, Platform};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};
use tailwater_wire::{Addresses, IpProtocol, PacketInfo, Sum};

/// Bytes of waiting packets, including 40 bytes of bookkeeping for each: sixteen of the longest
/// packets.
pub const CAPACITY: usize = 1 << 20;
/// Maximum bytes of transport header and data in one packet of either family.
pub const MAX_PACKET: usize = 65_535 - 40;

/// Bytes of bookkeeping per packet: length, protocol, traffic class, family, both addresses.
const HEADER: usize = 40;

/// Packets taken out of the queue. Its owner reuses it for its memory.
#[derive(Debug, Default)]
pub struct LoopbackBatch {
    bytes: Vec<u8>,
}

/// A packet of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalPacket<'a> {
    /// Source and destination, both of this host.
    pub addresses: Addresses,
    /// Protocol of the payload.
    pub protocol: IpProtocol,
    /// As sent.
    pub traffic_class: u8,
    /// Transport header and data.
    pub payload: &'a [u8],
}

/// See the module documentation.
#[derive(Debug)]
pub struct Loopback<P: Platform> {
    waiting: P::Lock<Vec<u8>>,
}

impl<P: Platform> Loopback<P> {
    /// Makes an empty queue.
    pub fn new() -> Self {
        Self { waiting: Lock::new(Vec::new()) }
    }

    /// Appends a packet of `len` bytes that `fill` writes. True if the queue was empty: then the
    /// caller calls [`Outlet::poll_loopback`](crate::Outlet::poll_loopback).
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

    /// Returns whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }

    /// Moves all waiting packets into `batch`, replacing its content. False if none waits.
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
    /// Returns the packets in the order in which they were sent.
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
        let loopback = Loopback::<crate::Single>::new();
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
        let loopback = Loopback::<crate::Single>::new();
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
