//! Reassembly of fragmented packets (RFC 791 section 3.2, RFC 8200 section 4.5).
//!
//! Owns the fragments received until the whole packet is there. Time is an argument.
//!
//! # Refused fragments
//! * One that overlaps another in part invalidates the packet, whose later fragments are dropped
//!   (RFC 5722 for IPv6; no regular sender does it with IPv4 either). One that holds nothing new is
//!   a duplicate and ignored.
//! * Fragments that contradict each other about the end, and more than [`MAX_RUNS`] runs,
//!   invalidate it too.
//!
//! # Bounds
//! [`MAX_DATAGRAMS`] packets and [`MAX_BYTES`] bytes at a time; the packet that would expire first
//! is evicted. [`TIMEOUT`] from the first fragment on.

use alloc::vec::Vec;
use core::time::Duration;
use tailwater_wire::{Addresses, IpProtocol, MacAddr};

/// Packets under reassembly at a time.
pub const MAX_DATAGRAMS: usize = 64;
/// Bytes of memory they take at most.
pub const MAX_BYTES: usize = 1 << 20;
/// Time in which all fragments must arrive: Linux's for IPv4. RFC 1122 section 3.3.2 has 60 s to
/// 120 s, RFC 8200 section 4.5 60 s, both for slower networks; at today's rates identifications
/// repeat sooner (RFC 4963).
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of runs of bytes with gaps between them in one packet. Reordered fragments alone
/// make fewer.
pub const MAX_RUNS: usize = 32;
/// Bytes of the whole, header excluded, that fit a packet of either family.
const MAX_PAYLOAD: usize = 65_535 - 20;

/// Identifies the packet that a fragment belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Source and destination.
    pub addresses: Addresses,
    /// Part of the key for IPv4; zero for IPv6, whose fragments may disagree about it.
    pub protocol: IpProtocol,
    /// The identification that the fragments share.
    pub identification: u32,
}

/// A fragment.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// Offset of its data in the whole, a multiple of eight.
    pub offset: usize,
    /// True if it is not the last.
    pub more: bool,
    /// Its data.
    pub data: &'a [u8],
    /// The bytes before the data in its packet. The first fragment's are kept.
    pub header: &'a [u8],
    /// Protocol of the whole packet according to this fragment. The first fragment's is kept.
    pub protocol: IpProtocol,
    /// Differentiated services and ECN. The first fragment's are kept.
    pub traffic_class: u8,
    /// Station that sent it. The first fragment's is kept.
    pub station: MacAddr,
}

/// A packet, whole or incomplete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// The bytes before the first fragment's data; empty until it arrives. Of even length.
    pub header: Vec<u8>,
    /// The data, with gaps while fragments are missing.
    pub data: Vec<u8>,
    /// Protocol of the data.
    pub protocol: IpProtocol,
    /// Differentiated services and ECN.
    pub traffic_class: u8,
    /// Station that sent the first fragment.
    pub station: MacAddr,
}

/// The effect of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Others are missing.
    Waits,
    /// It completes the packet.
    Whole(Datagram),
    /// It contradicts another; the packet is invalid.
    Refused,
}

/// A packet that was not complete in time.
#[derive(Debug, PartialEq, Eq)]
pub struct Expired {
    /// The packet.
    pub key: Key,
    /// Its beginning, up to the first gap; `None` if the first fragment is missing, in which case
    /// no error is sent (RFC 792, RFC 8200 section 4.5).
    pub first: Option<Datagram>,
}

#[derive(Debug)]
struct Partial {
    key: Key,
    datagram: Datagram,
    /// Runs of bytes received, in order, with gaps between them.
    runs: Vec<(usize, usize)>,
    /// Length of the whole, known once the last fragment has arrived.
    total: Option<usize>,
    /// Fragments contradicted each other: later ones are dropped.
    condemned: bool,
    expires_at: Duration,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Reassembly {
    /// Oldest first: all have the same timeout.
    partial: Vec<Partial>,
    bytes: usize,
    /// Packets evicted.
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

    /// Adds a fragment. False if it contradicts an earlier one.
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

    /// Adds the run of new bytes from `start` to `end`. False if there are too many gaps.
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
    /// Makes an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fragment.
    pub fn accept(&mut self, key: &Key, piece: &Piece<'_>, now: Duration) -> Accepted {
        // All fragments but the last hold multiples of eight bytes (RFC 791, RFC 8200 section 4.5),
        // and none is empty.
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

    /// Returns the number of packets evicted since the last call.
    pub fn take_evicted(&mut self) -> usize {
        core::mem::take(&mut self.evicted) as usize
    }

    /// Returns when [`poll`](Self::poll) has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        self.partial.first().map(|partial| partial.expires_at)
    }

    /// Removes one packet whose time is over, if there is one.
    pub fn poll(&mut self, now: Duration) -> Option<Expired> {
        self.partial.first().filter(|partial| partial.expires_at <= now)?;
        let partial = self.partial.remove(0);
        self.bytes -= partial.memory();
        let first = (!partial.datagram.header.is_empty()).then(|| {
            let mut datagram = partial.datagram;
            // An error quotes the bytes up to the first gap.
            datagram.data.truncate(partial.runs.first().map_or(0, |run| run.1));
            datagram
        });
        Some(Expired { key: partial.key, first })
    }
}

#[cfg(test)]
mod tests;
