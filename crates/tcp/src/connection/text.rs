//! The content of a segment: data, a FIN, and congestion marks (RFC 9293 section 3.10.7.4, seventh
//! and eighth step).

use super::receive::Stored;
use super::{Connection, Events, Set};
use crate::ecn::EcnCodepoint;
use crate::segment::{Flags, Header, SackBlock, Segment};
use crate::seq::Seq;
use crate::state::StateEvent;
use crate::time::Instant;

impl Connection {
    /// Handles data and FIN, the seventh and eighth step.
    pub(super) fn on_text(&mut self, segment: &Segment<'_>, ecn: EcnCodepoint, now: Instant) -> Events {
        if !self.state.receives() {
            return Events::empty();
        }
        let header = &segment.header;
        let mut events = Events::empty();
        if !segment.payload.is_empty() {
            self.counters.data_segments_received += 1;
            if self.set.contains(Set::ECN) {
                self.note_congestion(header, ecn);
            }
            let (start, payload) = self.cut(header.seq, segment.payload);
            let both_closed = self.set.contains(Set::READ_CLOSED | Set::FIN_QUEUED);
            if (both_closed || self.set.contains(Set::RELEASED)) && !payload.is_empty() {
                // The application is gone, or has closed both directions, so the data would never
                // be read (RFC 9293 section 3.6.1).
                return self.abort();
            }
            events |= self.take(start, payload, now);
        }
        if header.flags.contains(Flags::FIN) {
            let fin = header.seq + segment.payload.len() as u32;
            // A FIN beyond the window is ignored; the peer sends it again.
            if fin <= self.receive.edge.max(self.receive.next) && !self.set.contains(Set::PEER_FIN) {
                self.set.insert(Set::PEER_FIN);
                self.receive.fin = fin;
            }
            self.set.insert(Set::ACK_NOW);
        }
        if self.peer_fin() == Some(self.receive.next) {
            self.receive.next += 1;
            self.set.insert(Set::ACK_NOW);
            events |= self.apply(StateEvent::Fin) | Events::PEER_CLOSED | Events::READABLE;
            self.on_waiting_state(now);
        }
        events
    }

    /// Returns the number of the peer's FIN, if it was seen.
    fn peer_fin(&self) -> Option<Seq> {
        self.set.contains(Set::PEER_FIN).then_some(self.receive.fin)
    }

    /// Returns the part of `payload` that is new, in the window and before the peer's FIN, with its
    /// number.
    fn cut<'a>(&mut self, seq: Seq, payload: &'a [u8]) -> (Seq, &'a [u8]) {
        let (mut start, mut payload) = (seq, payload);
        if start < self.receive.next {
            let old = ((self.receive.next - start) as usize).min(payload.len());
            self.receive.note_duplicate(SackBlock { start, end: start + old as u32 });
            (start, payload) = (start + old as u32, &payload[old..]);
            self.counters.troubles().duplicates += 1;
            self.set.insert(Set::ACK_NOW);
        }
        let limit = self.peer_fin().map_or(self.receive.edge, |fin| fin.min(self.receive.edge));
        let room = limit.distance(start).max(0) as usize;
        if payload.len() > room {
            payload = &payload[..room];
            self.counters.troubles().beyond_window += 1;
            self.set.insert(Set::ACK_NOW);
        }
        (start, payload)
    }

    pub(super) fn take(&mut self, start: Seq, payload: &[u8], now: Instant) -> Events {
        if payload.is_empty() {
            return Events::empty();
        }
        let had_gap = self.receive.has_gap();
        self.set.insert(Set::TOUCHED);
        match self.receive.store(start, payload) {
            Stored::InOrder { readable, resequenced } => {
                self.counters.bytes_received += u64::from(readable);
                if resequenced > 0 {
                    self.counters.troubles().resequenced_bytes += u64::from(resequenced);
                }
                if had_gap || self.receive.ack_at_once() {
                    self.set.insert(Set::ACK_NOW);
                } else if self.receive.ack_at == Instant::NEVER {
                    self.receive.ack_at = now + self.ack_delay();
                }
                return Events::READABLE;
            }
            Stored::Ahead => self.counters.troubles().out_of_order += 1,
            Stored::Duplicate => self.counters.troubles().duplicates += 1,
            Stored::Refused => self.counters.troubles().beyond_window += 1,
        }
        self.set.insert(Set::ACK_NOW);
        Events::empty()
    }

    /// Records the congestion marks of a data segment and of its IP header.
    fn note_congestion(&mut self, header: &Header, ecn: EcnCodepoint) {
        let marked = ecn == EcnCodepoint::Ce;
        if self.set.contains(Set::DCTCP) {
            // RFC 8257 section 3.2: the segments that one ACK covers are all marked, or all
            // unmarked.
            if marked != self.set.contains(Set::ECHO) {
                if self.receive.owes_ack() {
                    self.early_ack = self.receive.next;
                    self.set.insert(Set::EARLY_ACK);
                }
                self.set.set(Set::ECHO, marked);
                self.set.insert(Set::ACK_NOW);
            }
            return;
        }
        // RFC 3168 section 6.1.3: the echo lasts until the sender reports that it has slowed down.
        if header.flags.contains(Flags::CWR) {
            self.set.remove(Set::ECHO);
        }
        if marked {
            self.set.insert(Set::ECHO);
        }
    }
}
