//! Packets that come in pieces (RFC 791 section 3.2, RFC 8200 section 4.5).
//!
//! Owns the pieces that have come, until the whole is there. Pure: time is an argument.
//!
//! # What is refused
//! * A piece that overlaps another in part condemns the whole (RFC 5722 for IPv6, and nobody honest does it with IPv4
//!   either): the rest of it is dropped as it comes. One that holds nothing new is a duplicate and ignored.
//! * So do pieces that contradict each other about the end, and too many gaps: [`MAX_RUNS`].
//!
//! # Bounds
//! [`MAX_DATAGRAMS`] packets and [`MAX_BYTES`] bytes at a time; the one that would expire first gives way. [`TIMEOUT`] from
//! the first piece on.

use crate::net::wire::{Addresses, IpProtocol, MacAddr};
use core::time::Duration;

/// Packets being put together at a time.
pub const MAX_DATAGRAMS: usize = 64;
/// Bytes of memory they may take.
pub const MAX_BYTES: usize = 1 << 20;
/// How long the rest of a packet is waited for: Linux's time for IPv4. RFC 1122 section 3.3.2 would wait 60 s to 120 s and
/// RFC 8200 section 4.5 60 s, both made for slower networks; at today's rates the numbers that tell packets apart come round
/// sooner (RFC 4963).
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Runs of bytes with gaps between them in one packet. Pieces that merely come out of order make fewer.
pub const MAX_RUNS: usize = 32;
/// Bytes of the whole, header excluded, that fit a packet of either family.
const MAX_PAYLOAD: usize = 65_535 - 20;

/// Which packet a piece belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// From whom, to whom.
    pub addresses: Addresses,
    /// Part of the key for IPv4; zero for IPv6, whose pieces may disagree about it.
    pub protocol: IpProtocol,
    /// What the pieces have in common.
    pub identification: u32,
}

/// A piece.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// Where it belongs, a multiple of eight.
    pub offset: usize,
    /// Whether it is not the last.
    pub more: bool,
    /// Its bytes.
    pub data: &'a [u8],
    /// What comes before the data in its packet: the first piece's is kept.
    pub header: &'a [u8],
    /// What the packet carries, according to this piece: the first one's counts.
    pub protocol: IpProtocol,
    /// Differentiated services and ECN: the first piece's are kept.
    pub traffic_class: u8,
    /// Where it came from: the first piece's station is kept.
    pub station: MacAddr,
}

/// A packet, whole or as far as it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// What the first piece had before its data; empty until it has come. Of even length.
    pub header: Vec<u8>,
    /// The data; with gaps while pieces are missing.
    pub data: Vec<u8>,
    /// What the data is.
    pub protocol: IpProtocol,
    /// Differentiated services and ECN.
    pub traffic_class: u8,
    /// The station that sent the first piece.
    pub station: MacAddr,
}

/// What a piece did.
#[derive(Debug, PartialEq, Eq)]
pub enum Accepted {
    /// The rest is still to come.
    Waits,
    /// It was the last that was missing.
    Whole(Datagram),
    /// It contradicts another; the packet is lost.
    Refused,
}

/// A packet that was not completed in time.
#[derive(Debug, PartialEq, Eq)]
pub struct Expired {
    /// Which.
    pub key: Key,
    /// Its beginning, as far as it came; `None` if the first piece is among those missing, and then nobody is told (RFC 792,
    /// RFC 8200 section 4.5).
    pub first: Option<Datagram>,
}

#[derive(Debug)]
struct Partial {
    key: Key,
    datagram: Datagram,
    /// Runs of bytes that have come, in order, with gaps between them.
    runs: Vec<(usize, usize)>,
    /// Length of the whole, once the last piece has come.
    total: Option<usize>,
    /// A contradiction: what else comes is dropped.
    condemned: bool,
    expires_at: Duration,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Reassembly {
    /// Oldest first: all wait equally long.
    partial: Vec<Partial>,
    bytes: usize,
    /// Packets that gave way to others.
    evicted: u64,
}

impl Partial {
    fn new(key: Key, expires_at: Duration) -> Self {
        let datagram = Datagram {
            header: Vec::new(),
            data: Vec::new(),
            protocol: key.protocol,
            traffic_class: 0,
            station: MacAddr::ZERO,
        };
        Self { key, datagram, runs: Vec::new(), total: None, condemned: false, expires_at }
    }

    fn memory(&self) -> usize {
        self.datagram.data.capacity() + self.datagram.header.capacity()
    }

    /// Takes a piece in. False if it contradicts what has come.
    fn insert(&mut self, piece: &Piece<'_>) -> bool {
        let (start, end) = (piece.offset, piece.offset + piece.data.len());
        let beyond = self.total.is_some_and(|total| end > total || (!piece.more && end != total));
        let last_before_others = !piece.more && self.runs.last().is_some_and(|run| run.1 > end);
        if beyond || last_before_others {
            return false;
        }
        if self.runs.iter().any(|run| run.0 <= start && end <= run.1) {
            return true;
        }
        if self.runs.iter().any(|run| run.0 < end && start < run.1) {
            return false;
        }
        if !piece.more {
            self.total = Some(end);
        }
        let data = &mut self.datagram.data;
        if data.len() < end {
            data.resize(end, 0);
        }
        data[start..end].copy_from_slice(piece.data);
        if start == 0 {
            self.datagram.header = piece.header.to_vec();
            self.datagram.protocol = piece.protocol;
            self.datagram.traffic_class = piece.traffic_class;
            self.datagram.station = piece.station;
        }
        self.note(start, end)
    }

    /// Notes that the bytes from `start` to `end`, none of which had come, have. False if there are too many gaps.
    fn note(&mut self, start: usize, end: usize) -> bool {
        let at = self.runs.partition_point(|run| run.1 < start);
        match self.runs.get(at) {
            Some(&(_, before)) if before == start => {
                self.runs[at].1 = end;
                if self.runs.get(at + 1).is_some_and(|next| next.0 == end) {
                    self.runs[at].1 = self.runs.remove(at + 1).1;
                }
            }
            Some(&(after, _)) if after == end => self.runs[at].0 = start,
            _ => self.runs.insert(at, (start, end)),
        }
        self.runs.len() <= MAX_RUNS
    }

    fn is_whole(&self) -> bool {
        self.total.is_some_and(|total| self.runs == [(0, total)])
    }
}

impl Reassembly {
    /// Nothing waits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a piece in.
    pub fn accept(&mut self, key: &Key, piece: &Piece<'_>, now: Duration) -> Accepted {
        // All pieces but the last hold multiples of eight bytes (RFC 791, RFC 8200 section 4.5); an empty one is none.
        let odd = piece.more && !piece.data.len().is_multiple_of(8);
        if odd || piece.data.is_empty() || piece.offset + piece.data.len() > MAX_PAYLOAD {
            return Accepted::Refused;
        }
        let at = self.partial.iter().position(|partial| partial.key == *key).unwrap_or_else(|| {
            if self.partial.len() == MAX_DATAGRAMS {
                self.evict(0);
            }
            self.partial.push(Partial::new(*key, now + TIMEOUT));
            self.partial.len() - 1
        });
        let partial = &mut self.partial[at];
        if partial.condemned {
            return Accepted::Refused;
        }
        let before = partial.memory();
        if !partial.insert(piece) {
            partial.condemned = true;
            partial.datagram.data = Vec::new();
            partial.datagram.header = Vec::new();
            self.bytes -= before;
            return Accepted::Refused;
        }
        self.bytes = self.bytes - before + partial.memory();
        if partial.is_whole() {
            let partial = self.partial.remove(at);
            self.bytes -= partial.memory();
            return Accepted::Whole(partial.datagram);
        }
        while self.bytes > MAX_BYTES {
            self.evict(0);
        }
        Accepted::Waits
    }

    fn evict(&mut self, at: usize) {
        let partial = self.partial.remove(at);
        self.bytes -= partial.memory();
        self.evicted += 1;
    }

    /// Packets that gave way to others since the last call.
    pub fn take_evicted(&mut self) -> usize {
        core::mem::take(&mut self.evicted) as usize
    }

    /// When [`poll`](Self::poll) has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        self.partial.first().map(|partial| partial.expires_at)
    }

    /// Gives up on one packet whose time is over, if there is one.
    pub fn poll(&mut self, now: Duration) -> Option<Expired> {
        self.partial.first().filter(|partial| partial.expires_at <= now)?;
        let partial = self.partial.remove(0);
        self.bytes -= partial.memory();
        let first = (!partial.datagram.header.is_empty()).then(|| {
            let mut datagram = partial.datagram;
            // What is quoted is what came in one piece with the header, not the gaps after it.
            datagram.data.truncate(partial.runs.first().map_or(0, |run| run.1));
            datagram
        });
        Some(Expired { key: partial.key, first })
    }
}

#[cfg(test)]
mod tests;
