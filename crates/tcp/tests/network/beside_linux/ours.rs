//! A connection of this crate that sends without end, and the IPv4 around its segments.

use super::namespace::ADDRESSES;
use super::relay::{PORT, pattern};
use tailwater_tcp::{
    Config, Connection, EcnCodepoint, InitialNumbers, Instant, Opening, Segment, SendError, Seq, Transmit,
};
use tailwater_wire::{Addresses, IpProtocol, checksum};

const CHUNK: usize = 16 << 10;

#[derive(Debug)]
pub struct Ours {
    pub connection: Connection,
    written: u64,
}

impl Ours {
    pub fn new(config: &Config, seed: u64, now: Instant) -> Self {
        let numbers = InitialNumbers { seq: Seq(seed as u32), timestamp_offset: 7 };
        let opening =
            Opening { local_port: 40_000, remote_port: PORT, numbers, path_mss: 1460, default_mss: 536 };
        Self { connection: Connection::connect(config, &opening, now), written: 0 }
    }

    /// Hands over as much as there is room for.
    pub fn write(&mut self) -> Result<(), SendError> {
        while self.connection.writable_bytes() >= CHUNK {
            let taken = self.connection.send(&pattern(self.written, CHUNK))?;
            self.written += taken as u64;
        }
        Ok(())
    }

    pub fn hear(&mut self, segment: &[u8], now: Instant) {
        if let Ok(segment) = Segment::parse(segment) {
            let _ = self.connection.handle_segment(now, &segment, EcnCodepoint::NotEct);
        }
    }

    /// Returns the next segment that leaves, with its checksum.
    pub fn say(&mut self, now: Instant) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let transmit = self.connection.poll_transmit(now, |outgoing| {
            bytes.resize(outgoing.len(), 0);
            outgoing.emit(&mut bytes);
            Ok(())
        });
        (transmit == Transmit::Sent).then(|| {
            let sum = tcp_checksum(&bytes, 0);
            bytes[16..18].copy_from_slice(&sum);
            bytes
        })
    }
}

/// `segment` in an IPv4 packet from `end`.
pub fn wrap(segment: &[u8], end: usize) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((20 + segment.len() as u16).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    packet.extend(ADDRESSES[end].octets());
    packet.extend(ADDRESSES[1 - end].octets());
    let sum = checksum(&packet).to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet.extend(segment);
    packet
}

/// Returns the TCP segment in an IPv4 packet, if that is what it is.
pub fn unwrap(packet: &[u8]) -> Option<&[u8]> {
    (packet.first() == Some(&0x45) && packet.get(9) == Some(&6)).then(|| packet.get(20..)).flatten()
}

/// Returns the checksum of a segment whose checksum field is zero, sent from `end`.
fn tcp_checksum(segment: &[u8], end: usize) -> [u8; 2] {
    let addresses = Addresses::V4 { source: ADDRESSES[end], destination: ADDRESSES[1 - end] };
    addresses.pseudo_header(IpProtocol::TCP, segment.len()).bytes(segment).finish().to_be_bytes()
}
