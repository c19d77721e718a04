//! A connection of this crate that sends without end.

use super::family::Family;
use super::relay::{PORT, pattern};
use tailwater_tcp::{Config, Connection, EcnCodepoint, Instant, Segment, SendError, Transmit};

const CHUNK: usize = 16 << 10;

#[derive(Debug)]
pub struct Ours {
    pub connection: Connection,
    family: Family,
    written: u64,
}

impl Ours {
    pub fn new(config: &Config, family: Family, seed: u64, now: Instant) -> Self {
        let connection = Connection::connect(config, &family.opening(PORT, seed), now);
        Self { connection, family, written: 0 }
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
            let sum = self.family.tcp_checksum(&bytes, 0);
            bytes[16..18].copy_from_slice(&sum);
            bytes
        })
    }
}
