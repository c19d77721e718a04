//! The receiving half: what arrived, what is offered, and which ACK is owed.
//!
//! Owns the receive ring with what lies in it out of order, the advertised window, and the accounting of delayed ACKs.
//! Never sees a header: [`input`](super::input) has judged the segment, and hands over numbers and bytes.

use crate::assembler::Assembler;
use crate::ring::Ring;
use crate::segment::{MAX_WINDOW_SCALE, SackBlock, SackBlocks};
use crate::{Instant, Range, Seq};

/// The window at first: what anybody can make us keep before the application has read anything. It grows by each byte
/// read, which doubles it in a round trip as slow start does, up to the configured limit.
const INITIAL_WINDOW: u32 = 64 << 10;
/// Segments acknowledged at once when a connection is young, for the peer's slow start counts on ACKs.
const QUICK_ACKS: u8 = 8;

#[derive(Debug)]
pub(super) struct Receive {
    ring: Ring,
    held: Option<Box<Assembler>>,
    /// The next number expected (RCV.NXT).
    pub next: Seq,
    /// Behind the last number ever offered. Never goes back.
    pub edge: Seq,
    limit: u32,
    target: u32,
    /// The window is at most so large, whatever there is room for.
    ceiling: u32,
    /// Where the peer's FIN is, if it was seen.
    pub fin: Option<Seq>,
    /// What arrived twice, for the next ACK to say (RFC 2883).
    pub duplicate: Option<SackBlock>,
    /// Bytes received since the last ACK.
    pending: u32,
    /// Largest payload seen, an estimate of the peer's segment size.
    largest: u16,
    quick: u8,
    /// Shift of our windows: wanted, until the handshake has settled it.
    pub shift: u8,
    /// Last timestamp of the peer in order (TS.Recent), and the second it is from.
    pub recent_timestamp: u32,
    pub recent_at_s: u32,
    /// Number acknowledged last (Last.ACK.sent).
    pub acked: Seq,
    /// When an ACK that waits for company leaves alone.
    pub ack_at: Instant,
}

/// What became of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// In order, and so many bytes beyond it that had waited.
    InOrder {
        /// Bytes that can be read now and could not before.
        readable: u32,
        /// How many of them had arrived earlier.
        resequenced: u32,
    },
    /// Ahead of what is expected.
    Ahead,
    /// Nothing new.
    Duplicate,
    /// There are too many pieces already: as if it was lost.
    Refused,
}

impl Receive {
    pub fn new(limit: u32) -> Self {
        Self {
            ring: Ring::default(),
            held: None,
            next: Seq(0),
            edge: Seq(0),
            limit,
            target: limit.min(INITIAL_WINDOW),
            ceiling: u32::MAX,
            fin: None,
            duplicate: None,
            pending: 0,
            largest: 536,
            quick: QUICK_ACKS,
            shift: (0..MAX_WINDOW_SCALE).find(|shift| limit >> shift <= 0xffff).unwrap_or(MAX_WINDOW_SCALE),
            recent_timestamp: 0,
            recent_at_s: 0,
            acked: Seq(0),
            ack_at: super::NEVER,
        }
    }

    /// The peer's SYN has number `irs`.
    pub fn start(&mut self, irs: Seq) {
        self.next = irs + 1;
        self.acked = self.next;
        self.edge = self.next + u32::from(self.initial_window());
    }

    /// The peer's clock stood at `value` when it sent what is in order.
    pub fn note_timestamp(&mut self, value: u32, now: Instant) {
        self.recent_timestamp = value;
        self.recent_at_s = super::input::seconds(now);
    }

    /// The window of a SYN, which is never scaled (RFC 7323 section 2.2).
    pub fn initial_window(&self) -> u16 {
        u16::try_from(self.target).unwrap_or(u16::MAX)
    }

    pub fn readable(&self) -> usize {
        self.ring.len()
    }

    pub fn peek(&self, out: &mut [u8]) -> usize {
        self.ring.copy_to(0, out)
    }

    pub fn consume(&mut self, bytes: usize) {
        self.ring.consume(bytes);
        if self.held.is_none() {
            // Else what waits for a gap to be filled lies behind the end.
            self.ring.rewind();
        }
        self.target = self.limit.min(self.target.saturating_add(bytes as u32));
    }

    /// Drops what is unread.
    pub fn discard(&mut self) {
        let unread = self.ring.len();
        self.consume(unread);
    }

    /// Takes `payload`, which begins at `start`, not before `next`, and ends within the window.
    pub fn store(&mut self, start: Seq, payload: &[u8], keep: bool) -> Stored {
        let range = Range::new(start, payload.len() as u32);
        self.largest = self.largest.max(payload.len().min(usize::from(u16::MAX)) as u16);
        if start == self.next {
            return self.store_in_order(range, payload, keep);
        }
        let held = self.held.get_or_insert_default();
        if held.contains(range) {
            self.duplicate = Some(SackBlock { start, end: range.end });
            return Stored::Duplicate;
        }
        if held.insert(range).is_err() {
            return Stored::Refused;
        }
        if keep {
            self.ring.write_behind((start - self.next) as usize, payload);
        }
        Stored::Ahead
    }

    fn store_in_order(&mut self, range: Range, payload: &[u8], keep: bool) -> Stored {
        let end = match &mut self.held {
            None => range.end,
            Some(held) => {
                let end = held.advance(range.end);
                if held.is_empty() {
                    self.held = None;
                }
                end
            }
        };
        let readable = end - self.next;
        if keep {
            self.ring.write_behind(0, payload);
            self.ring.extend(readable as usize);
        }
        self.next = end;
        self.pending = self.pending.saturating_add(readable);
        Stored::InOrder { readable, resequenced: readable - range.len() }
    }

    /// Whether the ACK of what has arrived must not wait: two full segments (RFC 9293 section 3.8.6.3), a young
    /// connection, or a gap (RFC 5681 section 4.2).
    pub fn ack_at_once(&mut self) -> bool {
        if self.quick > 0 {
            self.quick -= 1;
            return true;
        }
        self.held.is_some() || self.pending >= 2 * u32::from(self.largest)
    }

    /// Whether anything received waits to be acknowledged.
    pub fn owes_ack(&self) -> bool {
        self.pending > 0
    }

    /// Data went out with an ACK that was owed: requests and answers, so ACKs are worth delaying.
    pub fn on_piggyback(&mut self) {
        if self.pending > 0 {
            self.quick = 0;
        }
    }

    /// What SACK says: the duplicate, then what is held.
    pub fn sack(&self) -> SackBlocks {
        let held = self.held.as_ref().map(|held| held.sack()).unwrap_or_default();
        match self.duplicate {
            None => held,
            Some(duplicate) => std::iter::once(duplicate).chain(held.as_slice().iter().copied()).collect(),
        }
    }

    /// Whether SACK would say anything.
    #[inline]
    pub fn has_sack(&self) -> bool {
        self.held.is_some() || self.duplicate.is_some()
    }

    /// Whether something lies out of order.
    pub fn has_gap(&self) -> bool {
        self.held.is_some()
    }

    /// How far the window could reach now.
    fn reach(&self) -> Seq {
        self.next + self.target.min(self.ceiling).saturating_sub(self.ring.len() as u32)
    }

    /// The edge to advertise: it moves only by as much as is worth a segment (RFC 9293 section 3.8.6.2.2).
    fn next_edge(&self) -> Seq {
        let reach = self.reach();
        let step = i64::from(u32::from(self.largest).min(self.limit / 2));
        if i64::from(reach.distance(self.edge)) >= step { reach } else { self.edge.max(self.next) }
    }

    /// The window field of the next header. Rounding down to a unit of the scale is the only way in which what the peer
    /// sees can go back (RFC 7323 section 2.4); what was offered is accepted all the same.
    #[inline]
    pub fn window_field(&self) -> u16 {
        u16::try_from((self.next_edge() - self.next) >> self.shift).unwrap_or(u16::MAX)
    }

    /// An ACK with `field` as its window went out: nothing is owed.
    #[inline]
    pub fn on_ack_sent(&mut self, field: u16) {
        self.edge = self.edge.max(self.next + (u32::from(field) << self.shift));
        self.acked = self.next;
        self.pending = 0;
        self.duplicate = None;
        self.ack_at = super::NEVER;
    }

    /// Whether the window has opened so far that the peer should be told: it may be stopped, or is about to be.
    pub fn update_is_worth_it(&self) -> bool {
        let offered = self.edge - self.next.min(self.edge);
        let possible = self.reach() - self.next;
        self.next_edge() > self.edge && offered <= self.limit / 2 && possible / 2 >= offered
    }

    pub fn set_limit(&mut self, limit: u32) {
        // The window was never larger than `target`, and what was offered stays offered.
        self.limit = limit;
        self.target = self.target.min(limit);
    }

    pub fn set_ceiling(&mut self, bytes: u32) {
        self.ceiling = bytes;
    }

    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Gives the ring's memory back if nothing is in it.
    pub fn trim(&mut self) {
        if self.ring.len() == 0 && self.held.is_none() {
            self.ring.release();
        }
    }

    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    pub fn heap_bytes(&self) -> usize {
        self.ring.capacity() + self.held.as_ref().map_or(0, |held| size_of::<Assembler>() + held.heap_bytes())
    }
}
