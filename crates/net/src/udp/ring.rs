//! The datagrams that wait in one socket: a byte ring, so that no packet costs an allocation.
//!
//! Records are an eight-byte header (length, port and IPv4 address of the sender), for an IPv6
//! sender its address, and the data, rounded up to eight bytes, each in one piece. One that does
//! not fit before the end starts again at the front. A ring that runs empty starts again at the
//! front too: a socket whose reader keeps up lives in its first few cache lines, however large its
//! buffer.
//!
//! Invariant: `count == 0` exactly when `head == tail` and nothing is wrapped; then both are zero.

use alloc::boxed::Box;
use alloc::vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::Range;

/// Bytes of bookkeeping per datagram.
pub const RECORD_HEADER: usize = 8;
/// Bytes of an IPv6 sender's address, besides.
const LONG_ADDRESS: usize = 16;
/// In the header, marks an address that follows it. No packet has it as source.
const FOLLOWS: Ipv4Addr = Ipv4Addr::BROADCAST;

/// A bounded FIFO of datagrams.
#[derive(Debug)]
pub struct DatagramRing {
    bytes: Box<[u8]>,
    /// First byte of the oldest record.
    head: usize,
    /// Where the next record goes.
    tail: usize,
    /// The newest records are in front of the oldest.
    wrapped: bool,
    /// Where the oldest records end, while `wrapped`.
    end: usize,
    count: usize,
}

/// A datagram as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Bytes of data; only as many as the buffer holds were copied.
    pub len: usize,
    /// Address of the sender.
    pub source: SocketAddr,
}

/// Returns the bytes before the data of a datagram from `source`.
#[inline]
fn prefix(source: IpAddr) -> usize {
    if short(source).is_some() { RECORD_HEADER } else { RECORD_HEADER + LONG_ADDRESS }
}

/// Returns the address, if it fits the header.
#[inline]
fn short(source: IpAddr) -> Option<Ipv4Addr> {
    match source {
        IpAddr::V4(ip) if ip != FOLLOWS => Some(ip),
        _ => None,
    }
}

/// Returns the bytes a record of `len` bytes of data takes.
#[inline]
fn record(source: IpAddr, len: usize) -> usize {
    prefix(source) + len.next_multiple_of(RECORD_HEADER)
}

impl DatagramRing {
    /// Returns an empty ring of `capacity` bytes, rounded down to a multiple of eight; no memory is
    /// touched before it is needed.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity - capacity % RECORD_HEADER;
        let bytes = vec![0; capacity].into_boxed_slice();
        Self { bytes, head: 0, tail: 0, wrapped: false, end: 0, count: 0 }
    }

    /// Appends a datagram; false if it does not fit.
    ///
    /// # Panics
    /// If `data` is longer than a UDP datagram can be.
    #[inline]
    #[must_use]
    pub fn push(&mut self, source: SocketAddr, data: &[u8]) -> bool {
        let need = record(source.ip(), data.len());
        if !self.make_room(need) {
            return false;
        }
        let len = u16::try_from(data.len()).expect("a datagram has at most 65535 bytes");
        let ip = short(source.ip()).unwrap_or(FOLLOWS);
        let header = u64::from(ip.to_bits()) << 32 | u64::from(source.port()) << 16 | u64::from(len);
        let record = &mut self.bytes[self.tail..self.tail + need];
        let (front, mut rest) = record.split_at_mut(RECORD_HEADER);
        front.copy_from_slice(&header.to_ne_bytes());
        if ip == FOLLOWS {
            let long = match source.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let (address, data) = rest.split_at_mut(LONG_ADDRESS);
            address.copy_from_slice(&long.octets());
            rest = data;
        }
        rest[..data.len()].copy_from_slice(data);
        self.tail += need;
        self.count += 1;
        true
    }

    /// Makes `tail` the start of `need` free bytes.
    #[inline]
    fn make_room(&mut self, need: usize) -> bool {
        if self.wrapped {
            return self.head - self.tail >= need;
        }
        if self.bytes.len() - self.tail >= need {
            return true;
        }
        if self.head < need {
            return false;
        }
        self.end = self.tail;
        self.tail = 0;
        self.wrapped = true;
        true
    }

    /// Datagrams in it.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the oldest datagram, and where its data begins.
    #[inline]
    fn front(&self) -> Option<(Received, usize)> {
        if self.count == 0 {
            return None;
        }
        let (header, data) = self.bytes[self.head..].split_first_chunk::<RECORD_HEADER>()?;
        let header = u64::from_ne_bytes(*header);
        let short = Ipv4Addr::from_bits((header >> 32) as u32);
        let (mut ip, mut at) = (IpAddr::V4(short), self.head + RECORD_HEADER);
        if short == FOLLOWS {
            let long = data.first_chunk::<LONG_ADDRESS>()?;
            ip = Ipv6Addr::from(*long).to_canonical();
            at += LONG_ADDRESS;
        }
        let len = usize::from(header as u16);
        Some((Received { len, source: SocketAddr::new(ip, (header >> 16) as u16) }, at))
    }

    /// Copies as much of the oldest datagram as `buf` holds.
    #[inline]
    pub fn peek(&self, buf: &mut [u8]) -> Option<Received> {
        let (received, at) = self.front()?;
        let copied = received.len.min(buf.len());
        buf[..copied].copy_from_slice(&self.bytes[at..at + copied]);
        Some(received)
    }

    /// As [`peek`](Self::peek), and removes the datagram.
    #[inline]
    pub fn pop(&mut self, buf: &mut [u8]) -> Option<Received> {
        let received = self.peek(buf)?;
        self.remove(&received);
        Some(received)
    }

    /// Removes the oldest datagram; returns its source and the place of its data, which
    /// [`data`](Self::data) returns until the next [`push`](Self::push).
    #[inline]
    pub fn take(&mut self) -> Option<(SocketAddr, Range<usize>)> {
        let (received, at) = self.front()?;
        self.remove(&received);
        Some((received.source, at..at + received.len))
    }

    /// Returns the data of a datagram that [`take`](Self::take) has removed; nothing if `place` is
    /// none of this ring.
    #[inline]
    pub fn data(&self, place: Range<usize>) -> &[u8] {
        self.bytes.get(place).unwrap_or_default()
    }

    /// Removes the oldest datagram, which is `received`.
    #[inline]
    fn remove(&mut self, received: &Received) {
        self.head += record(received.source.ip(), received.len);
        self.count -= 1;
        if self.count == 0 {
            (self.head, self.tail) = (0, 0);
            self.wrapped = false;
        } else if self.wrapped && self.head == self.end {
            self.head = 0;
            self.wrapped = false;
        }
    }

    /// Returns the bytes of memory that the ring has.
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Every third is IPv6; 255 has the address that stands for them.
    fn source(i: u32) -> SocketAddr {
        let ip = match i % 3 {
            1 => Ipv6Addr::from_bits(u128::from(i) << 64 | 7).into(),
            _ => IpAddr::from(Ipv4Addr::from(i.wrapping_mul(0x0101_0101))),
        };
        SocketAddr::new(ip, i as u16)
    }

    /// Room a ring without gaps would have.
    fn used(model: &VecDeque<(SocketAddr, Vec<u8>)>) -> usize {
        model.iter().map(|(source, data)| record(source.ip(), data.len())).sum()
    }

    proptest! {
        #[test]
        fn a_ring_is_a_bounded_queue(
            capacity in 64usize..600,
            steps in prop::collection::vec((any::<bool>(), 0usize..150, any::<u8>()), 1..300),
        ) {
            let mut ring = DatagramRing::new(capacity);
            let mut model = VecDeque::new();
            let mut buf = [0; 150];
            for (i, (push, len, fill)) in steps.into_iter().enumerate() {
                if push {
                    let data = vec![fill; len];
                    let fits = ring.push(source(i as u32), &data);
                    let room = (capacity - capacity % 8).saturating_sub(used(&model));
                    let need = record(source(i as u32).ip(), len);
                    prop_assert!(!fits || need <= room, "{need} bytes into {room}");
                    // Less than one record is lost: the gap before the end, or the record that did
                    // not fit there.
                    let longest = record(source(1).ip(), 150);
                    prop_assert!(fits || need + longest > room, "{need} bytes not into {room}");
                    if fits {
                        model.push_back((source(i as u32), data));
                    }
                } else {
                    let expected = model.front().map(|(source, data)| Received { len: data.len(), source: *source });
                    prop_assert_eq!(ring.peek(&mut buf), expected);
                    prop_assert_eq!(ring.pop(&mut buf), expected);
                    if let Some((_, data)) = model.pop_front() {
                        prop_assert_eq!(&buf[..data.len()], &data[..]);
                    }
                }
                prop_assert_eq!(ring.count, model.len());
            }
        }
    }

    #[test]
    fn a_datagram_taken_stays_readable() {
        let mut ring = DatagramRing::new(4096);
        for i in 0..3 {
            assert!(ring.push(source(i), &[i as u8; 9]));
        }
        let taken: Vec<_> = core::iter::from_fn(|| ring.take()).collect();
        assert_eq!((taken.len(), ring.count()), (3, 0));
        for (i, (from, place)) in (0..).zip(taken) {
            assert_eq!((from, ring.data(place)), (source(i), &[i as u8; 9][..]));
        }
        assert!(ring.data(4090..5000).is_empty());
    }

    #[test]
    fn a_short_buffer_gets_the_beginning() {
        let mut ring = DatagramRing::new(4096);
        assert!(ring.push(source(1), b"abcdef"));
        assert!(ring.push(source(2), b""));
        let mut buf = [0; 3];
        assert_eq!(ring.pop(&mut buf), Some(Received { len: 6, source: source(1) }));
        assert_eq!(&buf, b"abc");
        assert_eq!(ring.pop(&mut []), Some(Received { len: 0, source: source(2) }));
        assert_eq!(ring.pop(&mut buf), None);
    }

    #[test]
    fn a_reader_that_keeps_up_stays_at_the_front() {
        let mut ring = DatagramRing::new(1 << 20);
        for i in 0..1000 {
            assert!(ring.push(source(i), &[1; 100]));
            assert_eq!(ring.tail, record(source(i).ip(), 100));
            ring.pop(&mut []);
        }
    }

    #[test]
    fn the_longest_datagram_fits_the_default_buffer() {
        let mut ring = DatagramRing::new(crate::DEFAULT_UDP_RECEIVE_BYTES);
        assert!((0..4).all(|_| ring.push(source(2), &[7; 65_507])));
        assert!(!ring.push(source(2), &[7; 65_507]));
    }
}
