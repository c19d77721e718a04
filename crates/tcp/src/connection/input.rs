//! What a segment does to a connection: the steps of RFC 9293 section 3.10.7, in its order, with the checks of RFC 7323
//! and RFC 5961.

use super::{Connection, Events, MIN_MSS, NEVER, Set, TICK_NS};
use crate::ecn::EcnCodepoint;
use crate::segment::{Flags, Header, MAX_SACK_BLOCKS, MAX_WINDOW_SCALE, SackBlock, Segment};
use crate::sender::{AckInfo, Negotiated, Range};
use crate::state::Event;
use crate::time_wait::Verdict;
use crate::{Error, Instant, Seq, State};
use core::time::Duration;

/// Timestamps are older than any clock after 24 days (RFC 7323 section 5.5).
const TIMESTAMP_LIFE_S: u32 = 24 * 24 * 3600;

impl Connection {
    /// Takes a segment that is this connection's. `ecn` is from its IP header.
    pub fn handle_segment(&mut self, now: Instant, segment: &Segment<'_>, ecn: EcnCodepoint) -> Events {
        self.counters.segments_received += 1;
        let events = match self.state {
            State::Closed => return Events::empty(),
            State::SynSent => self.in_syn_sent(&segment.header, now),
            State::TimeWait => self.in_time_wait(segment, now),
            _ => self.in_other_states(segment, ecn, now),
        };
        self.arm_trim(now);
        self.arm_persist(now);
        self.finish(events, now)
    }

    /// Adds what can be seen from the state.
    pub(super) fn finish(&self, mut events: Events, now: Instant) -> Events {
        events.set(Events::TRANSMIT, self.wants_transmit(now));
        events
    }

    /// RFC 9293 section 3.10.7.3.
    fn in_syn_sent(&mut self, header: &Header, now: Instant) -> Events {
        let acknowledges = header.flags.contains(Flags::ACK);
        let acceptable = header.ack == self.data_start && self.sender.nxt() == self.data_start;
        if acknowledges && !acceptable {
            if !header.flags.contains(Flags::RST) {
                self.answer_with_reset(header.ack);
            }
            return Events::empty();
        }
        if header.flags.contains(Flags::RST) {
            return if acknowledges { self.fail(Error::Refused) } else { Events::empty() };
        }
        if !header.flags.contains(Flags::SYN) {
            return Events::empty();
        }
        self.negotiate(header, now);
        self.set.insert(Set::ACK_NOW);
        if acknowledges {
            self.on_established(header, now, Event::SynAck)
        } else {
            self.set.insert(Set::SYN_ACK);
            self.apply(Event::Syn)
        }
    }

    /// Takes from the peer's SYN what both sides can do.
    pub(super) fn negotiate(&mut self, header: &Header, now: Instant) {
        let options = &header.options;
        self.receive.start(header.seq);
        self.heard_at = now;
        // Until now what the opening said of a peer that does not say.
        self.peer_mss = options.mss.unwrap_or(self.peer_mss).max(MIN_MSS);
        match options.timestamps {
            Some(timestamps) => self.receive.note_timestamp(timestamps.value, now),
            None => self.set.remove(Set::TIMESTAMPS),
        }
        if !options.sack_permitted {
            self.set.remove(Set::SACK);
        }
        match options.window_scale {
            Some(shift) if self.set.contains(Set::SCALING) => self.window_shift = shift.min(MAX_WINDOW_SCALE),
            _ => {
                self.set.remove(Set::SCALING);
                self.receive.shift = 0;
            }
        }
        // A SYN offers with both bits, its answer accepts with one (RFC 3168 section 6.1.1).
        let expected = if header.flags.contains(Flags::ACK) { Flags::ECE } else { Flags::ECE | Flags::CWR };
        if header.flags & (Flags::ECE | Flags::CWR) != expected {
            self.set.remove(Set::ECN);
        }
        self.note_window(u32::from(header.window), header);
    }

    /// The handshake is complete with the ACK in `header`.
    fn on_established(&mut self, header: &Header, now: Instant, event: Event) -> Events {
        let mut events = self.apply(event) | Events::ESTABLISHED | Events::WRITABLE;
        let timestamps = self.set.contains(Set::TIMESTAMPS);
        // Refused only if it acknowledges what was not sent, which was looked at.
        let _ = self.sender.on_ack(&ack_info(header, &[], self.echoed(header, now)), now);
        self.progress_at = now;
        self.sender.on_established(
            &Negotiated {
                mss: self.segment_mss(),
                sack: self.set.contains(Set::SACK),
                timestamp_tick: timestamps.then(|| Duration::from_nanos(TICK_NS)),
            },
            now,
        );
        if self.set.contains(Set::FIN_QUEUED) {
            events |= self.apply(Event::Close);
        }
        events
    }

    /// RFC 9293 section 3.10.7.4 for TIME-WAIT. A SYN that would open a new connection is answered as a stray one: only the
    /// [small value](crate::TimeWait) makes room for it.
    fn in_time_wait(&mut self, segment: &Segment<'_>, now: Instant) -> Events {
        let Some(mut value) = self.time_wait() else { return Events::empty() };
        let verdict = value.judge(segment, now);
        (self.expires_at, self.challenges) = (value.expires_at, value.challenges);
        match verdict {
            Verdict::Ignore => {}
            Verdict::Reply(_) => self.set.insert(Set::ACK_NOW),
            Verdict::Reopen { .. } => self.challenge(now),
        }
        Events::empty()
    }

    /// RFC 9293 section 3.10.7.4.
    fn in_other_states(&mut self, segment: &Segment<'_>, ecn: EcnCodepoint, now: Instant) -> Events {
        let header = &segment.header;
        if self.state == State::SynReceived
            && header.flags.contains(Flags::SYN)
            && header.seq + 1 == self.receive.next
        {
            return self.on_crossed_syn(header, now);
        }
        if !self.is_fresh(segment, now) {
            return Events::empty();
        }
        if !self.is_in_window(segment) {
            if self.is_recent_duplicate(segment) {
                self.note_timestamp(header, now);
            }
            self.on_unacceptable(segment, now);
            return Events::empty();
        }
        if header.flags.contains(Flags::RST) {
            return self.on_reset(header, now);
        }
        if header.flags.contains(Flags::SYN) {
            // Whatever its number (RFC 5961 section 4.2).
            self.challenge(now);
            return Events::empty();
        }
        if !header.flags.contains(Flags::ACK) {
            return Events::empty();
        }
        self.note_timestamp(header, now);
        let Some(events) = self.on_ack(segment, now) else { return Events::empty() };
        if self.is_closed() || self.state == State::TimeWait {
            return events;
        }
        events | self.on_text(segment, ecn, now)
    }

    /// The peer's SYN in SYN-RECEIVED: both opened at once (RFC 9293 section 3.5, figure 7). With an ACK it completes the
    /// handshake; without, our answer was lost.
    fn on_crossed_syn(&mut self, header: &Header, now: Instant) -> Events {
        if header.flags.contains(Flags::RST) {
            return Events::empty();
        }
        if header.flags.contains(Flags::ACK)
            && header.ack == self.data_start
            && self.sender.nxt() == header.ack
        {
            self.set.insert(Set::ACK_NOW);
            self.note_window(u32::from(header.window), header);
            return self.on_established(header, now, Event::SynAcked);
        }
        self.set.insert(Set::ACK_NOW);
        Events::empty()
    }

    /// Protection against wrapped sequence numbers (RFC 7323 section 5.3, rule 1).
    fn is_fresh(&mut self, segment: &Segment<'_>, now: Instant) -> bool {
        let header = &segment.header;
        if !self.set.contains(Set::TIMESTAMPS) || header.flags.contains(Flags::RST) {
            return true;
        }
        // Once negotiated each segment has them; one without is dropped (RFC 7323 section 3.2). Not a SYN: whoever has forgotten the
        // connection may have forgotten those too, and is to be challenged (RFC 5961 section 4.2).
        let Some(timestamps) = header.options.timestamps else { return header.flags.contains(Flags::SYN) };
        let behind = timestamps.value.wrapping_sub(self.receive.recent_timestamp) as i32;
        if behind >= 0 || seconds(now).wrapping_sub(self.receive.recent_at_s) > TIMESTAMP_LIFE_S {
            return true;
        }
        self.counters.stale_timestamps += 1;
        self.on_unacceptable(segment, now);
        false
    }

    /// RFC 7323 section 4.3, rule 2, for a segment that [is fresh](Self::is_fresh).
    fn note_timestamp(&mut self, header: &Header, now: Instant) {
        if let Some(timestamps) = header.options.timestamps
            && header.seq <= self.receive.acked
            && self.set.contains(Set::TIMESTAMPS)
        {
            self.receive.note_timestamp(timestamps.value, now);
        }
    }

    /// Whether a segment that is not in the window is something received before and sent again, because its ACK was lost.
    /// The next ACK answers this copy and must echo its timestamp, as section 4.3 of RFC 7323 has it: with that of the first
    /// copy the peer would take the time between the two for a round trip. Section 5.3 drops all that is out of the window
    /// before that rule, which keeps forgers out; here they have to guess a number and an ACK that were good a window ago.
    fn is_recent_duplicate(&self, segment: &Segment<'_>) -> bool {
        let header = &segment.header;
        let old = self.receive.next.distance(header.seq);
        segment.sequence_len() > 0
            && (1..=i64::from(self.receive.limit())).contains(&i64::from(old))
            && header.flags & (Flags::RST | Flags::SYN | Flags::ACK) == Flags::ACK
            && self.is_acceptable_ack(header.ack)
    }

    /// RFC 5961 section 5.2.
    fn is_acceptable_ack(&self, ack: Seq) -> bool {
        let una = self.sender.una();
        ack <= self.sender.nxt() && (una.distance(ack) <= 0 || una - ack <= self.max_window)
    }

    /// Whether any of the segment is in the window (RFC 9293 section 3.10.7.4, first step). A closed window lets through
    /// what carries an ACK; its data is cut off later.
    fn is_in_window(&self, segment: &Segment<'_>) -> bool {
        let (start, len) = (segment.header.seq, segment.sequence_len());
        let end = start + len;
        start <= self.receive.edge.max(self.receive.next)
            && if len == 0 { end >= self.receive.next } else { end > self.receive.next }
    }

    fn on_unacceptable(&mut self, segment: &Segment<'_>, now: Instant) {
        let header = &segment.header;
        if header.flags.contains(Flags::RST) {
            return;
        }
        if segment.sequence_len() == 0 || header.flags.contains(Flags::SYN) {
            // A probe, or a forgery: answered, but not without end.
            return self.challenge(now);
        }
        self.counters.duplicates += 1;
        let end = (header.seq + segment.payload.len() as u32).min(self.receive.next);
        if header.seq < end {
            self.receive.duplicate = Some(SackBlock { start: header.seq, end });
        }
        self.set.insert(Set::ACK_NOW);
    }

    /// RFC 5961 section 3.2: only the very next number resets.
    fn on_reset(&mut self, header: &Header, now: Instant) -> Events {
        if header.seq != self.receive.next {
            self.challenge(now);
            return Events::empty();
        }
        match self.state {
            State::SynReceived => self.fail(Error::Refused),
            // Nothing is lost: all was said and heard.
            State::Closing | State::LastAck => self.apply(Event::Reset),
            _ => self.fail(Error::Reset),
        }
    }

    /// The fifth step: `None` if the segment ends here.
    fn on_ack(&mut self, segment: &Segment<'_>, now: Instant) -> Option<Events> {
        let header = &segment.header;
        let (una, nxt) = (self.sender.una(), self.sender.nxt());
        let mut events = Events::empty();
        if self.state == State::SynReceived {
            if header.ack != nxt || una == nxt {
                self.answer_with_reset(header.ack);
                return None;
            }
            self.note_window(u32::from(header.window) << self.window_shift, header);
            events |= self.on_established(header, now, Event::SynAcked);
        }
        if !self.is_acceptable_ack(header.ack) {
            self.challenge(now);
            return None;
        }
        if header.ack >= una || una == nxt {
            // An old ACK says nothing of what is in flight: a peer that lacks what another's ACK took off our hands repeats it for
            // ever, and must not keep a connection with a closed window.
            self.heard_at = now;
        }
        self.soft_error = None;
        if !self.has_unsent() {
            // Of keepalive; those of a closed window go on being further and further apart.
            self.probes = 0;
        }
        if header.ack >= una {
            let window = u32::from(header.window) << self.window_shift;
            let info = |blocks| AckInfo {
                ecn_echo: self.set.contains(Set::ECN) && header.flags.contains(Flags::ECE),
                may_be_duplicate: segment.sequence_len() == 0 && window == self.window,
                ..ack_info(header, blocks, self.echoed(header, now))
            };
            let (blocks, count) = self.sack_blocks(header);
            let info = info(&blocks[..count]);
            if header.ack == una && info.may_be_duplicate && una != nxt {
                self.counters.duplicate_acks += 1;
            }
            if let Ok(acked) = self.sender.on_ack(&info, now) {
                self.counters.spurious += u32::from(acked.spurious);
                if acked.send_cwr {
                    self.set.insert(Set::CWR);
                }
                if acked.acked > 0 {
                    events |= self.on_progress(now);
                }
            }
        }
        self.update_window(header);
        Some(events)
    }

    fn sack_blocks(&self, header: &Header) -> ([Range; MAX_SACK_BLOCKS], usize) {
        let mut blocks = [Range::new(Seq(0), 0); MAX_SACK_BLOCKS];
        if !self.set.contains(Set::SACK) {
            return (blocks, 0);
        }
        let said = header.options.sack.as_slice();
        for (block, said) in blocks.iter_mut().zip(said) {
            *block = Range { start: said.start, end: said.end };
        }
        (blocks, said.len())
    }

    /// When the segment that `header` answers was sent, by the timestamp it echoes.
    fn echoed(&self, header: &Header, now: Instant) -> Option<Instant> {
        let timestamps = header.options.timestamps.filter(|_| self.set.contains(Set::TIMESTAMPS))?;
        let ticks = self.timestamp(now).wrapping_sub(timestamps.echo);
        // Not from the future, and not from before the clock began.
        let sent = (now.0 / TICK_NS).checked_sub(u64::from(ticks))?;
        (ticks < 1 << 31).then_some(Instant(sent * TICK_NS))
    }

    /// Something was acknowledged: its memory is free, and perhaps the FIN has arrived.
    fn on_progress(&mut self, now: Instant) -> Events {
        self.progress_at = now;
        let una = self.sender.una();
        let fin_acked = una.distance(self.data_end()) > 0;
        let data = una.min(self.data_end()).distance(self.data_start).max(0);
        self.unacked.consume(data as usize);
        self.unacked.rewind();
        self.data_start += data as u32;
        if !self.set.contains(Set::TOUCHED) {
            self.give_back();
        }
        let mut events = Events::empty();
        let held = self.unacked.len();
        if self.set.contains(Set::WANTS_ROOM) && held <= self.send_room() / 4 * 3 {
            self.set.remove(Set::WANTS_ROOM);
            events |= Events::WRITABLE;
        }
        if fin_acked {
            events |= self.apply(Event::FinAcked);
            self.on_waiting_state(now);
        }
        events
    }

    /// Starts the clock of a state that does not last.
    pub(super) fn on_waiting_state(&mut self, now: Instant) {
        match self.state {
            State::TimeWait => {
                self.stop_timers();
                self.expires_at = now + Duration::from_millis(self.time_wait_ms.into());
            }
            State::FinWait2 if self.set.contains(Set::RELEASED) => {
                self.expires_at = now + Duration::from_millis(self.fin_wait_ms.into());
            }
            _ => {}
        }
    }

    /// Takes the window of a segment that is not older than the one it was last taken from (RFC 9293 section 3.10.7.4).
    fn update_window(&mut self, header: &Header) {
        let newer = self.window_seq < header.seq
            || (self.window_seq == header.seq && self.window_ack <= header.ack)
            || self.window_ack < header.ack;
        if newer && header.ack >= self.sender.una() {
            self.note_window(u32::from(header.window) << self.window_shift, header);
        }
    }

    fn note_window(&mut self, window: u32, header: &Header) {
        if window > self.window {
            self.persist_at = NEVER;
            self.probes = 0;
        }
        self.window = window;
        self.max_window = self.max_window.max(window);
        // A segment ahead of its turn, perhaps a forgery, must not make all that come in turn look old.
        self.window_seq = header.seq.min(self.receive.next);
        self.window_ack = header.ack;
    }

    /// Answers with an ACK, at most ten times a second (RFC 5961 section 7), counted for this connection alone: see
    /// [`Purpose::Challenge`](super::Purpose::Challenge).
    fn challenge(&mut self, now: Instant) {
        if self.challenges.take(now) {
            self.counters.challenge_acks += 1;
            self.set.insert(Set::CHALLENGE);
        }
    }

    /// Answers with `<SEQ=seq><CTL=RST>`; the connection stays.
    fn answer_with_reset(&mut self, seq: Seq) {
        self.reset_seq = seq;
        self.set.insert(Set::RESET | Set::RESET_BARE);
    }
}

fn ack_info<'a>(header: &Header, sack: &'a [Range], echoed: Option<Instant>) -> AckInfo<'a> {
    AckInfo { ack: header.ack, sack, echoed, ecn_echo: false, may_be_duplicate: false }
}

/// Whole seconds of `now`.
pub(super) fn seconds(now: Instant) -> u32 {
    (now.0 / 1_000_000_000) as u32
}
