//! Input of segments: the steps of RFC 9293 section 3.10.7, in its order, with the checks of RFC
//! 7323 and RFC 5961.

use super::{Connection, Events, MIN_MSS, Set};
use crate::challenge::Bucket;
use crate::ecn::EcnCodepoint;
use crate::error::Error;
use crate::segment::{Flags, Header, MAX_SACK_BLOCKS, MAX_WINDOW_SCALE, SackBlock, Segment};
use crate::sender::{AckInfo, Negotiated};
use crate::seq::{Range, Seq};
use crate::state::State;
use crate::state::StateEvent;
use crate::time::{Instant, TICK_NS};
use crate::time_wait::TimeWaitResponse;
use core::time::Duration;

/// Age after which a timestamp says nothing any more: 24 days (RFC 7323 section 5.5).
const TIMESTAMP_LIFE_S: u32 = 24 * 24 * 3600;

impl Connection {
    /// Handles a segment of this connection. `ecn` is from its IP header.
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

    /// Handles a segment of a handshake that a listener keeps, whose SYN was answered: returns the
    /// answer, taken from `challenges` if it is one to a possible forgery, and the events.
    pub(crate) fn in_handshake(
        &mut self,
        segment: &Segment<'_>,
        ecn: EcnCodepoint,
        challenges: &mut Bucket,
        now: Instant,
    ) -> (Option<Header>, Events) {
        self.challenges = *challenges;
        let mut events = Events::empty();
        if segment.header.flags.contains(Flags::SYN) && !segment.header.flags.contains(Flags::RST) {
            self.challenge(now);
        } else {
            events = self.handle_segment(now, segment, ecn);
        }
        *challenges = self.challenges;
        let mut reply = None;
        if self.state == State::SynReceived {
            let _ = self.poll_transmit(now, |outgoing| {
                reply = Some(outgoing.header);
                Ok(())
            });
        }
        (reply, events)
    }

    /// Adds the events that follow from the state.
    pub(super) fn finish(&self, mut events: Events, now: Instant) -> Events {
        events.set(Events::TRANSMIT, self.wants_transmit(now));
        events
    }

    /// Handles a segment in SYN-SENT (RFC 9293 section 3.10.7.3).
    fn in_syn_sent(&mut self, header: &Header, now: Instant) -> Events {
        let acknowledges = header.flags.contains(Flags::ACK);
        let acceptable =
            (self.data_start..=self.syn_end()).contains(&header.ack) && self.sender.nxt() == self.data_start;
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
        self.note_fast_answer(&header.options);
        self.negotiate(header, now);
        self.set.insert(Set::ACK_NOW);
        if acknowledges {
            let fast = self.count_syn_data(header.ack);
            let events = self.on_established(header, now, StateEvent::SynAck);
            events | if fast { self.on_progress(now) } else { Events::empty() }
        } else {
            self.set.insert(Set::SYN_ACK);
            self.apply(StateEvent::Syn)
        }
    }

    /// Takes over the options of the peer's SYN that both sides support.
    pub(super) fn negotiate(&mut self, header: &Header, now: Instant) {
        let options = &header.options;
        self.receive.start(header.seq);
        self.heard_at = now;
        // Until now the default of a peer that announces none.
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
        // A SYN offers ECN with both bits, its answer accepts with one (RFC 3168 section 6.1.1).
        let expected = if header.flags.contains(Flags::ACK) { Flags::ECE } else { Flags::ECE | Flags::CWR };
        if header.flags & (Flags::ECE | Flags::CWR) != expected {
            self.set.remove(Set::ECN);
        }
        self.note_window(u32::from(header.window), header);
    }

    /// Completes the handshake with the ACK in `header`.
    fn on_established(&mut self, header: &Header, now: Instant, event: StateEvent) -> Events {
        let mut events = self.apply(event) | Events::ESTABLISHED | Events::WRITABLE;
        events.set(Events::FAST_OPEN, self.fast_opening().is_some());
        self.progress_at = now;
        if self.set.contains(Set::FAST_OPEN) {
            // The sender has started already; the ACK is handled as any other.
            self.set.remove(Set::FAST_OPEN);
        } else {
            // The ACK is refused only if it acknowledges unsent data, which was checked before.
            let _ = self.sender.on_ack(&ack_info(header, &[], self.echoed(header, now)), now);
            self.start_sender(now);
        }
        if self.set.contains(Set::FIN_QUEUED) {
            events |= self.apply(StateEvent::Close);
        }
        events
    }

    /// Lets the sender use what was negotiated.
    pub(super) fn start_sender(&mut self, now: Instant) {
        let timestamps = self.set.contains(Set::TIMESTAMPS);
        let negotiated = Negotiated {
            mss: self.segment_mss(),
            sack: self.set.contains(Set::SACK),
            timestamp_tick: timestamps.then(|| Duration::from_nanos(TICK_NS)),
        };
        self.sender.on_established(&negotiated, now);
    }

    /// Handles a segment in TIME-WAIT (RFC 9293 section 3.10.7.4). A SYN that would open a new
    /// connection is answered as a stray one: only the [small value](crate::TimeWait) makes room
    /// for it.
    fn in_time_wait(&mut self, segment: &Segment<'_>, now: Instant) -> Events {
        let Some(mut value) = self.time_wait() else { return Events::empty() };
        let response = value.respond(segment, now);
        (self.expires_at, self.challenges) = (value.expires_at, value.challenges);
        match response {
            TimeWaitResponse::Ignore => {}
            TimeWaitResponse::Reply(_) => self.set.insert(Set::ACK_NOW),
            TimeWaitResponse::Reopen { .. } => self.challenge(now),
        }
        Events::empty()
    }

    /// Handles a segment in a state other than SYN-SENT and TIME-WAIT (RFC 9293 section 3.10.7.4).
    fn in_other_states(&mut self, segment: &Segment<'_>, ecn: EcnCodepoint, now: Instant) -> Events {
        let header = &segment.header;
        if self.state == State::SynReceived
            && header.flags.contains(Flags::SYN)
            && header.seq + 1 + self.counters.bytes_received as u32 == self.receive.next
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
            // A SYN is challenged whatever its number (RFC 5961 section 4.2).
            self.challenge(now);
            return Events::empty();
        }
        if !header.flags.contains(Flags::ACK) {
            return Events::empty();
        }
        let Some(events) = self.on_ack(segment, now) else { return Events::empty() };
        if self.is_closed() || self.state == State::TimeWait {
            return events;
        }
        events | self.on_text(segment, ecn, now)
    }

    /// Handles the peer's SYN in SYN-RECEIVED: both sides opened at once (RFC 9293 section 3.5,
    /// figure 7). With an ACK it completes the handshake; without one, the answer to the first SYN
    /// was lost.
    fn on_crossed_syn(&mut self, header: &Header, now: Instant) -> Events {
        if header.flags.contains(Flags::RST) {
            return Events::empty();
        }
        if header.flags.contains(Flags::ACK)
            && header.ack == self.data_start
            && self.sender.nxt() == header.ack
            && !self.set.contains(Set::FAST_OPEN)
        {
            self.set.insert(Set::ACK_NOW);
            self.note_window(u32::from(header.window), header);
            return self.on_established(header, now, StateEvent::SynAcked);
        }
        self.set.insert(Set::ACK_NOW);
        Events::empty()
    }

    /// Returns true if the segment's timestamp is not older than the last one: protection against
    /// wrapped sequence numbers (RFC 7323 section 5.3, rule 1).
    fn is_fresh(&mut self, segment: &Segment<'_>, now: Instant) -> bool {
        let header = &segment.header;
        if !self.set.contains(Set::TIMESTAMPS) || header.flags.contains(Flags::RST) {
            return true;
        }
        // After timestamps were negotiated, a segment without one is dropped (RFC 7323 section
        // 3.2), except a SYN: a peer that forgot the connection may have forgotten timestamps too,
        // and must be challenged (RFC 5961 section 4.2).
        let Some(timestamps) = header.options.timestamps else { return header.flags.contains(Flags::SYN) };
        let behind = timestamps.value.wrapping_sub(self.receive.recent_timestamp) as i32;
        if behind >= 0 || now.seconds().wrapping_sub(self.receive.recent_at_s) > TIMESTAMP_LIFE_S {
            return true;
        }
        self.counters.troubles().stale_timestamps += 1;
        self.on_unacceptable(segment, now);
        false
    }

    /// Remembers the timestamp of a segment that [is fresh](Self::is_fresh) (RFC 7323 section 4.3,
    /// rule 2).
    fn note_timestamp(&mut self, header: &Header, now: Instant) {
        if let Some(timestamps) = header.options.timestamps
            && header.seq <= self.receive.acked
            && self.set.contains(Set::TIMESTAMPS)
        {
            self.receive.note_timestamp(timestamps.value, now);
        }
    }

    /// Returns true if a segment outside the window repeats one received before, because its ACK
    /// was lost.
    ///
    /// The next ACK answers this copy and must echo its timestamp (RFC 7323 section 4.3). With the
    /// first copy's timestamp the peer would take the time between the two copies for a round trip.
    /// RFC 7323 section 5.3 drops everything outside the window before that rule applies, which
    /// keeps forgers out; here a forger must guess a number and an ACK that were valid a window
    /// ago.
    fn is_recent_duplicate(&self, segment: &Segment<'_>) -> bool {
        let header = &segment.header;
        let old = self.receive.next.distance(header.seq);
        segment.sequence_len() > 0
            && (1..=i64::from(self.receive.limit())).contains(&i64::from(old))
            && header.flags & (Flags::RST | Flags::SYN | Flags::ACK) == Flags::ACK
            && self.is_acceptable_ack(header.ack)
    }

    /// Returns true if the ACK is in the acceptable range of RFC 5961 section 5.2, and not below
    /// the number of this side's SYN.
    fn is_acceptable_ack(&self, ack: Seq) -> bool {
        let una = self.sender.una();
        let ever = || u32::try_from(self.counters.bytes_sent + 1).unwrap_or(u32::MAX);
        ack <= self.sender.nxt()
            && (una.distance(ack) <= 0 || (una - ack <= self.max_window && una - ack <= ever()))
    }

    /// Returns true if any part of the segment is in the window (RFC 9293 section 3.10.7.4, first
    /// step). If the window is closed, a segment that carries an ACK passes; its data is cut off
    /// later.
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
        if segment.sequence_len() == 0
            || header.flags.contains(Flags::SYN)
            || self.state == State::SynReceived
        {
            // This is a window probe or a forgery: it is answered, at a limited rate. In
            // SYN-RECEIVED an ACK that is due repeats the SYN, which is no answer to it.
            return self.challenge(now);
        }
        self.counters.troubles().duplicates += 1;
        let end = (header.seq + segment.sequence_len()).min(self.receive.next);
        if header.seq < end {
            self.receive.note_duplicate(SackBlock { start: header.seq, end });
        }
        self.set.insert(Set::ACK_NOW);
    }

    /// Handles a RST: only one with exactly the next expected number resets (RFC 5961 section 3.2).
    fn on_reset(&mut self, header: &Header, now: Instant) -> Events {
        if header.seq != self.receive.next {
            self.challenge(now);
            return Events::empty();
        }
        match self.state {
            State::SynReceived if !self.set.contains(Set::FAST_OPEN) => self.fail(Error::Refused),
            // Also in CLOSING and LAST-ACK, as on Linux: the FIN, and data before it, may not have
            // arrived.
            _ => self.fail(Error::Reset),
        }
    }

    /// Performs the fifth step, the ACK field; returns `None` if the segment ends here.
    fn on_ack(&mut self, segment: &Segment<'_>, now: Instant) -> Option<Events> {
        let header = &segment.header;
        let (una, nxt) = (self.sender.una(), self.sender.nxt());
        let mut events = Events::empty();
        if self.state == State::SynReceived {
            let fast = self.set.contains(Set::FAST_OPEN);
            if header.ack > nxt || header.ack <= una || (header.ack != nxt && !fast) {
                self.answer_with_reset(header.ack);
                return None;
            }
            self.note_window(u32::from(header.window) << self.window_shift, header);
            events |= self.on_established(header, now, StateEvent::SynAcked);
        }
        if !self.is_acceptable_ack(header.ack) {
            self.challenge(now);
            return None;
        }
        // Not before: a segment whose ACK is unacceptable is dropped as a whole.
        self.note_timestamp(header, now);
        if header.ack >= una || una == nxt {
            // An old ACK says nothing about the data in flight. A peer that never received data
            // which another host's forged ACK removed from the send buffer repeats such an ACK for
            // ever, and must not keep a connection with a closed window alive.
            self.heard_at = now;
        }
        self.soft_error = None;
        if !self.has_unsent() {
            // This counts keepalive probes; probes of a closed window keep backing off.
            self.probes = 0;
        }
        // An ACK that was overtaken by a later one may still report data that later ones do not
        // (RFC 2018 section 5, RFC 6675 section 5).
        let overtaken = header.ack < una;
        if !overtaken || (self.set.contains(Set::SACK) && !header.options.sack.is_empty()) {
            let window = u32::from(header.window) << self.window_shift;
            let info = |blocks| AckInfo {
                ecn_echo: !overtaken && self.set.contains(Set::ECN) && header.flags.contains(Flags::ECE),
                may_be_duplicate: segment.sequence_len() == 0 && window == self.window,
                ..ack_info(header, blocks, self.echoed(header, now))
            };
            let (blocks, count) = self.sack_blocks(header);
            let info = info(&blocks[..count]);
            if header.ack == una && info.may_be_duplicate && una != nxt {
                self.counters.troubles().duplicate_acks += 1;
            }
            if let Ok(acked) = self.sender.on_ack(&info, now) {
                if acked.spurious {
                    self.counters.troubles().spurious += 1;
                }
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

    /// Returns when the segment that `header` answers was sent, by the timestamp it echoes.
    fn echoed(&self, header: &Header, now: Instant) -> Option<Instant> {
        let timestamps = header.options.timestamps.filter(|_| self.set.contains(Set::TIMESTAMPS))?;
        let ticks = self.timestamp(now).wrapping_sub(timestamps.echo);
        // The echo is neither from the future nor from before the clock began.
        let sent = (now.0 / TICK_NS).checked_sub(u64::from(ticks))?;
        (ticks < 1 << 31).then_some(Instant(sent * TICK_NS))
    }

    /// Frees the memory of acknowledged data and handles the ACK of the FIN.
    pub(super) fn on_progress(&mut self, now: Instant) -> Events {
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
        if self.set.contains(Set::WANTS_ROOM) && self.has_room() {
            self.set.remove(Set::WANTS_ROOM);
            events |= Events::WRITABLE;
        }
        if fin_acked {
            events |= self.apply(StateEvent::FinAcked);
            self.on_waiting_state(now);
        }
        events
    }

    /// Starts the timer of a state that does not last.
    pub(super) fn on_waiting_state(&mut self, now: Instant) {
        match self.state {
            State::TimeWait => {
                self.stop_timers();
                self.expires_at = now + self.time_wait_period();
            }
            State::FinWait2 if self.set.contains(Set::RELEASED) => {
                self.expires_at = now + self.fin_wait();
            }
            _ => {}
        }
    }

    /// Takes the window from a segment that is not older than the one it was last taken from (RFC
    /// 9293 section 3.10.7.4).
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
            self.persist_at = Instant::NEVER;
            self.probes = 0;
        }
        self.window = window;
        self.max_window = self.max_window.max(window);
        // A segment ahead of its turn, perhaps a forgery, must not make the segments that arrive in
        // order look old.
        self.window_seq = header.seq.min(self.receive.next);
        self.window_ack = header.ack;
    }

    /// Answers with an ACK, at most ten times a second (RFC 5961 section 7), counted per
    /// connection: see [`Purpose::Challenge`](super::Purpose::Challenge).
    fn challenge(&mut self, now: Instant) {
        if self.challenges.take(now) {
            self.counters.troubles().challenge_acks += 1;
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
