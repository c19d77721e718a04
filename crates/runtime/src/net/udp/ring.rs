//! The datagrams that wait in one socket: a byte ring, so that no packet costs an allocation.
//!
//! Records are an eight-byte header (length, port and address of the sender) and the data, rounded up to eight bytes, each in one
//! piece. One that does not fit before the end starts again at the front. A ring that runs empty starts again at the front too:
//! a socket whose reader keeps up lives in its first few cache lines, however large its buffer.
//!
//! Invariant: `count == 0` exactly when `head == tail` and nothing is wrapped; then both are zero.

use core::net::{Ipv4Addr, SocketAddrV4};

/// Bytes of bookkeeping per datagram.
pub const RECORD_HEADER: usize = 8;

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
    /// Bytes of data, of which only as many as the buffer holds were copied.
    pub len: usize,
    /// From whom.
    pub source: SocketAddrV4,
}

/// Bytes a record of `len` bytes of data takes.
fn record(len: usize) -> usize {
    RECORD_HEADER + len.next_multiple_of(RECORD_HEADER)
}

impl DatagramRing {
    /// An empty ring of `capacity` bytes, rounded down to a multiple of eight; no memory is touched before it is needed.
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
    pub fn push(&mut self, source: SocketAddrV4, data: &[u8]) -> bool {
        let need = record(data.len());
        if !self.make_room(need) {
            return false;
        }
        let len = u16::try_from(data.len()).expect("a datagram has at most 65535 bytes");
        let header =
            u64::from(u32::from(*source.ip())) << 32 | u64::from(source.port()) << 16 | u64::from(len);
        let record = &mut self.bytes[self.tail..self.tail + need];
        let (front, rest) = record.split_at_mut(RECORD_HEADER);
        front.copy_from_slice(&header.to_ne_bytes());
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

    /// Copies as much of the oldest datagram as `buf` holds.
    #[inline]
    pub fn peek(&self, buf: &mut [u8]) -> Option<Received> {
        if self.count == 0 {
            return None;
        }
        let (header, data) = self.bytes[self.head..].split_first_chunk::<RECORD_HEADER>()?;
        let header = u64::from_ne_bytes(*header);
        let len = usize::from(header as u16);
        let copied = len.min(buf.len());
        buf[..copied].copy_from_slice(&data[..copied]);
        let source = SocketAddrV4::new(Ipv4Addr::from((header >> 32) as u32), (header >> 16) as u16);
        Some(Received { len, source })
    }

    /// As [`peek`](Self::peek), and removes the datagram.
    #[inline]
    pub fn pop(&mut self, buf: &mut [u8]) -> Option<Received> {
        let received = self.peek(buf)?;
        self.head += record(received.len);
        self.count -= 1;
        if self.count == 0 {
            (self.head, self.tail) = (0, 0);
            self.wrapped = false;
        } else if self.wrapped && self.head == self.end {
            self.head = 0;
            self.wrapped = false;
        }
        Some(received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn source(i: u32) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::from(i.wrapping_mul(0x0101_0101)), i as u16)
    }

    /// Room a ring without gaps would have.
    fn used(model: &VecDeque<(SocketAddrV4, Vec<u8>)>) -> usize {
        model.iter().map(|(_, data)| record(data.len())).sum()
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
                    prop_assert!(!fits || record(len) <= room, "{} bytes into {room}", record(len));
                    // What is lost is less than one record: the gap before the end, or this one's split between end and front.
                    prop_assert!(fits || record(len) + record(150) > room, "{} bytes not into {room}", record(len));
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
            assert_eq!(ring.tail, record(100));
            ring.pop(&mut []);
        }
    }

    #[test]
    fn the_longest_datagram_fits_the_default_buffer() {
        let mut ring = DatagramRing::new(crate::net::stack::DEFAULT_UDP_RECEIVE_BYTES);
        assert!((0..4).all(|_| ring.push(source(1), &[7; 65_507])));
        assert!(!ring.push(source(1), &[7; 65_507]));
    }
}
