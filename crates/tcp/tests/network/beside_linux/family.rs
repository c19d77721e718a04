//! IPv4 or IPv6 around the segments of the path.
//!
//! Owns the addresses of its two ends in either family, and the headers that carry segments between
//! them. It adds the IPv6 address to a namespace that [`namespace`](super::namespace) has made.

use super::namespace::{self, DEVICE, ip};
use super::relay::PATIENCE;
use core::time::Duration;
use rustix::fd::OwnedFd;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::time::Instant;
use tailwater_tcp::{InitialNumbers, Opening, Seq};
use tailwater_wire::{Addresses, IpProtocol, checksum};

const ADDRESSES6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 2)];
const TCP: u8 = IpProtocol::TCP.0;
const HOPS: u8 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// Returns the address of an end.
    pub fn address(self, end: usize) -> IpAddr {
        match self {
            Self::V4 => namespace::ADDRESSES[end].into(),
            Self::V6 => ADDRESSES6[end].into(),
        }
    }

    /// Returns the length of the IP header.
    pub fn header(self) -> u16 {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }

    /// Returns how a connection from the first end to `port` of the other begins, on a path of 1500
    /// bytes.
    pub fn opening(self, port: u16, seed: u64) -> Opening {
        Opening {
            local_port: 40_000,
            remote_port: port,
            numbers: InitialNumbers { seq: Seq(seed as u32), timestamp_offset: 7 },
            path_mss: 1480 - self.header(),
            // RFC 9293 section 3.7.1.
            default_mss: if self == Self::V4 { 536 } else { 1220 },
        }
    }

    /// Moves this thread into a network namespace of its own that has the address of `end` and a
    /// route to the other.
    ///
    /// # Errors
    /// What is missing.
    pub fn enter(self, end: usize) -> Result<OwnedFd, String> {
        let device = namespace::enter(end)?;
        if self == Self::V6 {
            let (own, other) = (ADDRESSES6[end].to_string(), ADDRESSES6[1 - end].to_string());
            // Nothing else is on the device, so no duplicate is searched for.
            ip(&["addr", "add", &own, "peer", &other, "dev", DEVICE, "nodad"])?;
            await_route(ADDRESSES6[end], ADDRESSES6[1 - end])?;
        }
        Ok(device)
    }

    /// Returns `segment` in a packet from `end`.
    pub fn wrap(self, segment: &[u8], end: usize) -> Vec<u8> {
        let mut packet = match self {
            Self::V4 => {
                let [high, low] = (self.header() + segment.len() as u16).to_be_bytes();
                vec![0x45, 0, high, low, 0, 0, 0x40, 0, HOPS, TCP, 0, 0]
            }
            Self::V6 => {
                let [high, low] = (segment.len() as u16).to_be_bytes();
                vec![0x60, 0, 0, 0, high, low, TCP, HOPS]
            }
        };
        for end in [end, 1 - end] {
            match self.address(end) {
                IpAddr::V4(address) => packet.extend(address.octets()),
                IpAddr::V6(address) => packet.extend(address.octets()),
            }
        }
        if self == Self::V4 {
            let sum = checksum(&packet).to_be_bytes();
            packet[10..12].copy_from_slice(&sum);
        }
        packet.extend(segment);
        packet
    }

    /// Returns the TCP segment in a packet of this family, if there is one.
    pub fn unwrap(self, packet: &[u8]) -> Option<&[u8]> {
        let (first, protocol) = match self {
            Self::V4 => (0x45, packet.get(9)),
            // The first byte has the upper half of the traffic class, which TCP leaves zero.
            Self::V6 => (0x60, packet.get(6)),
        };
        let tcp = packet.first() == Some(&first) && protocol == Some(&TCP);
        tcp.then(|| packet.get(self.header().into()..)).flatten()
    }

    /// Returns the checksum of a segment from `end` whose checksum field is zero.
    pub fn tcp_checksum(self, segment: &[u8], end: usize) -> [u8; 2] {
        let addresses = Addresses::new(self.address(end), self.address(1 - end)).expect("one family");
        addresses.pseudo_header(IpProtocol::TCP, segment.len()).bytes(segment).finish().to_be_bytes()
    }
}

/// Waits until Linux uses an address and its route: it does some time after the device is up.
fn await_route(own: Ipv6Addr, other: Ipv6Addr) -> Result<(), String> {
    let began = Instant::now();
    loop {
        // Binds and routes, and sends nothing.
        match UdpSocket::bind((own, 0)).and_then(|socket| socket.connect((other, 9))) {
            Ok(()) => return Ok(()),
            Err(error) if began.elapsed() > PATIENCE => return Err(format!("no route to {other} ({error})")),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
