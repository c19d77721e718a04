//! The receiving half of a connection: received data, the advertised window, and ACKs due.
//!
//! Owns the receive ring, including its out-of-order data, the advertised window, and the
//! accounting of delayed ACKs. It never sees a header: [`input`](super::input) has checked the
//! segment and passes numbers and bytes.

use crate::assembler::Assembler;
use crate::ring::Ring;
use crate::segment::{MAX_WINDOW_SCALE, SackBlock, SackBlocks};
use crate::seq::{Range, Seq};
use crate::time::Instant;
use alloc::boxed::Box;

/// The initial window, which bounds what any peer can make this side store before the application
/// has read anything. It grows by each byte read, which doubles it in a round trip as slow start
/// does, up to the configured limit.
const INITIAL_WINDOW: u32 = 64 << 10;
/// Segments acknowledged at once on a young connection, because the peer's slow start depends on
/// ACKs.
const QUICK_ACKS: u8 = 8;

#[derive(Debug)]
pub(super) struct Receive {
    ring: Ring,
    held: Option<Box<Assembler>>,
    /// The next number expected (RCV.NXT).
    pub next: Seq,
    /// The number after the last one ever offered. Never goes back.
    pub edge: Seq,
    limit: u32,
    target: u32,
    /// Limit of the window, whatever room there is.
    ceiling: u32,
    /// Bytes that the application has on loan: they take up room in the window.
    lent: u32,
    /// Number of the peer's FIN; meaningful with [`Set::PEER_FIN`](super::Set::PEER_FIN).
    pub fin: Seq,
    /// The range that arrived twice since the last ACK, for the next one to report (RFC 2883);
    /// without bytes if there is none.
    duplicate: SackBlock,
    /// Bytes received since the last ACK.
    pending: u32,
    /// Largest payload seen, an estimate of the peer's segment size.
    largest: u16,
    quick: u8,
    /// Shift of this side's windows: the desired one until the handshake has settled it.
    pub shift: u8,
    /// The peer's last timestamp in order (TS.Recent), and the second in which it arrived.
    pub recent_timestamp: u32,
    pub recent_at_s: u32,
    /// The number acknowledged last (Last.ACK.sent).
    pub acked: Seq,
    /// Time at which a delayed ACK is sent without data.
    pub ack_at: Instant,
}

/// The result of storing a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// It was in order, and may have made earlier data readable.
    InOrder {
        /// Bytes that became readable.
        readable: u32,
        /// Number of those bytes that had arrived earlier.
        resequenced: u32,
    },
    /// It lies ahead of the next expected number.
    Ahead,
    /// It held nothing new.
    Duplicate,
    /// There are too many out-of-order pieces; it counts as lost.
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
            lent: 0,
            fin: Seq(0),
            duplicate: SackBlock::default(),
            pending: 0,
            largest: 536,
            quick: QUICK_ACKS,
            shift: (0..MAX_WINDOW_SCALE).find(|shift| limit >> shift <= 0xffff).unwrap_or(MAX_WINDOW_SCALE),
            recent_timestamp: 0,
            recent_at_s: 0,
            acked: Seq(0),
            ack_at: Instant::NEVER,
        }
    }

    /// Starts receiving after the peer's SYN, whose number is `irs`.
    pub fn start(&mut self, irs: Seq) {
        self.next = irs + 1;
        self.acked = self.next;
        self.edge = self.next + u32::from(self.initial_window());
    }

    /// Offers the initial window from the next number on, as the answer to a SYN with data does.
    pub fn offer_initial(&mut self) {
        self.edge = self.edge.max(self.next + u32::from(self.initial_window()));
    }

    /// Remembers a timestamp of the peer that is in order.
    pub fn note_timestamp(&mut self, value: u32, now: Instant) {
        self.recent_timestamp = value;
        self.recent_at_s = now.seconds();
    }

    /// Returns the window of a SYN, which is never scaled (RFC 7323 section 2.2).
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
        self.drop_front(bytes);
        self.note_read(bytes);
    }

    fn drop_front(&mut self, bytes: usize) {
        self.ring.consume(bytes);
        if self.held.is_none() {
            // Otherwise out-of-order data lies behind the end of the readable data.
            self.ring.rewind();
        }
    }

    fn note_read(&mut self, bytes: usize) {
        self.target = self.limit.min(self.target.saturating_add(bytes as u32));
    }

    /// Moves all readable bytes to the end of `into`, in one piece with those there; returns their
    /// number. They are copied only if `into` holds some already, or if out-of-order data lies
    /// behind them.
    ///
    /// Memory that a nearly full loan has doubled beyond the limit of the window is not taken back.
    pub fn lend(&mut self, into: &mut Ring) -> usize {
        let len = self.ring.len();
        if self.is_outgrown(into) {
            into.release();
        }
        if into.len() == 0 && self.held.is_none() {
            into.rewind();
            core::mem::swap(&mut self.ring, into);
            into.straighten();
        } else {
            into.make_room(len);
            let (a, b) = self.ring.slices(0, len);
            into.push(a);
            into.push(b);
            self.drop_front(len);
        }
        self.lent += len as u32;
        len
    }

    /// Returns true if the application has bytes on loan.
    pub fn has_loan(&self) -> bool {
        self.lent > 0
    }

    /// Ends the loan of `bytes`, at most what is lent: the window may open by as many.
    pub fn end_loan(&mut self, bytes: usize) {
        let bytes = bytes.min(self.lent as usize);
        self.lent -= bytes as u32;
        self.note_read(bytes);
    }

    /// Returns whether empty memory has grown beyond the limit of the window.
    fn is_outgrown(&self, memory: &Ring) -> bool {
        memory.len() == 0 && memory.capacity() > (self.limit as usize).next_power_of_two()
    }

    /// Takes back what is on loan in `from`: it is the first to be read. Empties `from`, whose
    /// memory is for what arrives next if there is nothing to read, unless it has grown beyond the
    /// limit of the window.
    pub fn return_loan(&mut self, from: &mut Ring) {
        let returned = from.len() as u32;
        if self.ring.len() == 0 && self.held.is_none() && !self.is_outgrown(from) {
            core::mem::swap(&mut self.ring, from);
        } else {
            let end = self.held.as_ref().map_or(self.next, |held| held.end(self.next));
            let behind = (end - self.next) as usize;
            let (bytes, rest) = from.slices(0, from.len());
            self.ring.prepend(rest, behind);
            self.ring.prepend(bytes, behind);
        }
        from.release();
        self.lent = self.lent.saturating_sub(returned);
    }

    /// Drops unread data.
    pub fn discard(&mut self) {
        let unread = self.ring.len();
        self.consume(unread);
    }

    /// Stores `payload`, which begins at `start`, not before `next`, and ends within the window.
    pub fn store(&mut self, start: Seq, payload: &[u8]) -> Stored {
        let range = Range::new(start, payload.len() as u32);
        self.largest = self.largest.max(payload.len().min(usize::from(u16::MAX)) as u16);
        if start == self.next {
            return self.store_in_order(range, payload);
        }
        let held = self.held.get_or_insert_default();
        let again = held.overlap(range);
        // A range that is held already is inserted too: its block is the next SACK's first, behind
        // the D-SACK (RFC 2883 section 4).
        if held.insert(range).is_err() {
            return Stored::Refused;
        }
        if let Some(again) = again {
            self.note_duplicate(SackBlock { start: again.start, end: again.end });
            if again == range {
                return Stored::Duplicate;
            }
        }
        self.ring.write_behind((start - self.next) as usize, payload);
        Stored::Ahead
    }

    /// Records a range that arrived twice, for the next ACK to report. One that was recorded since
    /// the last ACK stays, extended if the new one touches it.
    pub fn note_duplicate(&mut self, block: SackBlock) {
        let first = &mut self.duplicate;
        if first.is_empty() {
            *first = block;
        } else if block.start <= first.end && first.start <= block.end {
            first.start = first.start.min(block.start);
            first.end = first.end.max(block.end);
        }
    }

    fn store_in_order(&mut self, range: Range, payload: &[u8]) -> Stored {
        let end = match &mut self.held {
            None => range.end,
            Some(held) => {
                let again = held.overlap(range);
                let end = held.advance(range.end);
                if held.is_empty() {
                    self.held = None;
                }
                if let Some(again) = again {
                    self.note_duplicate(SackBlock { start: again.start, end: again.end });
                }
                end
            }
        };
        let readable = end - self.next;
        self.ring.write_behind(0, payload);
        self.ring.extend(readable as usize);
        self.next = end;
        self.pending = self.pending.saturating_add(readable);
        Stored::InOrder { readable, resequenced: readable - range.len() }
    }

    /// Returns true if an ACK must not be delayed: after two full segments (RFC 9293 section
    /// 3.8.6.3), after half of the window, on a young connection, or if there is a gap (RFC 5681
    /// section 4.2).
    pub fn ack_at_once(&mut self) -> bool {
        if self.quick > 0 {
            self.quick -= 1;
            return true;
        }
        let left = u32::try_from(self.edge.distance(self.next)).unwrap_or(0);
        self.held.is_some() || self.pending >= left.min(2 * u32::from(self.largest))
    }

    /// Returns true if received data is not acknowledged yet.
    pub fn owes_ack(&self) -> bool {
        self.pending > 0
    }

    /// Records that data carried a due ACK. The traffic is requests and answers, so delaying ACKs
    /// pays.
    pub fn on_piggyback(&mut self) {
        if self.pending > 0 {
            self.quick = 0;
        }
    }

    /// Returns the SACK blocks to send: the duplicate, then the ranges held.
    pub fn sack(&self) -> SackBlocks {
        let held = self.held.as_ref().map(|held| held.sack()).unwrap_or_default();
        if self.duplicate.is_empty() {
            return held;
        }
        core::iter::once(self.duplicate).chain(held.as_slice().iter().copied()).collect()
    }

    /// Returns true if there are SACK blocks to send.
    #[inline]
    pub fn has_sack(&self) -> bool {
        self.held.is_some() || !self.duplicate.is_empty()
    }

    /// Returns true if out-of-order data is held.
    pub fn has_gap(&self) -> bool {
        self.held.is_some()
    }

    /// Returns the edge that the free space would allow now.
    fn reach(&self) -> Seq {
        let kept = (self.ring.len() as u32).saturating_add(self.lent);
        self.next + self.space().saturating_sub(kept)
    }

    /// Returns the edge to advertise. It moves only by steps that are worth a segment (RFC 9293
    /// section 3.8.6.2.2).
    fn next_edge(&self) -> Seq {
        let reach = self.reach();
        let step = i64::from(u32::from(self.largest).min(self.limit.min(self.space()) / 2));
        if i64::from(reach.distance(self.edge)) >= step { reach } else { self.edge.max(self.next) }
    }

    /// Returns the window field of the next header. Rounding down to a unit of the scale is the
    /// only way in which the window that the peer sees can shrink (RFC 7323 section 2.4); data in
    /// the window offered before is still accepted.
    #[inline]
    pub fn window_field(&self) -> u16 {
        u16::try_from((self.next_edge() - self.next) >> self.shift).unwrap_or(u16::MAX)
    }

    /// Records that an ACK with `field` as its window was sent, so that no ACK is due.
    #[inline]
    pub fn on_ack_sent(&mut self, field: u16) {
        self.edge = self.edge.max(self.next + (u32::from(field) << self.shift));
        self.acked = self.next;
        self.pending = 0;
        self.duplicate = SackBlock::default();
        self.ack_at = Instant::NEVER;
    }

    /// Returns true if the window has opened far enough to send an update: the peer may be blocked
    /// or about to be.
    pub fn update_is_worth_it(&self) -> bool {
        let offered = self.edge - self.next.min(self.edge);
        let possible = self.reach() - self.next;
        self.next_edge() > self.edge && possible / 2 >= offered
    }

    pub fn set_limit(&mut self, limit: u32) {
        // The window was never larger than the limit at that time, and what was offered stays
        // offered.
        self.limit = limit;
        self.target = self.target.min(limit);
    }

    pub fn set_ceiling(&mut self, bytes: u32) {
        self.ceiling = bytes;
    }

    /// Returns the window that an empty buffer would offer. The ceiling counts as two units of the
    /// scale at least, so that rounding does not close the window.
    pub fn space(&self) -> u32 {
        self.target.min(self.ceiling.max(2 << self.shift))
    }

    /// Returns the largest payload received: an estimate of the peer's segment size.
    pub fn largest(&self) -> u16 {
        self.largest
    }

    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Frees the ring's memory if it is empty.
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
