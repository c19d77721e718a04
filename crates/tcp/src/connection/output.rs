//! Output of segments: which segment is next, and what changes once it has left.

use super::{Connection, JUMBO, ORDINARY, Set};
use crate::ecn::EcnCodepoint;
use crate::segment::{Flags, Header, Options, Timestamps};
use crate::send_queue::Payload;
use crate::seq::{Range, Seq};
use crate::state::State;
use crate::time::Instant;

/// The purpose of a segment. A caller without room, or with a global limit, may treat purposes
/// differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Opens the connection: SYN, with or without an ACK.
    Open,
    /// New data, a FIN, or both.
    Data,
    /// Data sent before and taken for lost, or a SYN or FIN.
    Retransmission,
    /// An ACK, or a window update.
    Ack,
    /// The answer to a segment that may be forged (RFC 5961), at most ten a second per connection.
    ///
    /// There is deliberately no limit across connections. With a common limit, an attacker that
    /// provokes challenges on its own connection would see from the number left whether a forgery
    /// to another connection was answered, and would find that connection's numbers in seconds
    /// (CVE-2016-5696); a randomised limit only slows that down. Each challenge answers a segment
    /// that is at least as large, so nothing is amplified.
    Challenge,
    /// Requests an ACK: the window is closed, or the peer was silent.
    Probe,
    /// Ends the connection.
    Reset,
}

/// A segment to send.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// The header; the caller computes its checksum.
    pub header: Header,
    /// The data.
    pub payload: Payload<'a>,
    /// The ECN field of the IP header.
    pub ecn: EcnCodepoint,
    /// The segment's purpose.
    pub purpose: Purpose,
}

impl Outgoing<'_> {
    /// Returns the bytes of header and data.
    pub fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }

    /// Returns false: there is always a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes header and data to the beginning of `out`, with a checksum of zero; returns their
    /// length.
    ///
    /// # Panics
    /// If `out` is shorter than [`len`](Self::len).
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let at = self.header.emit(out);
        let end = at + self.payload.len();
        self.payload.copy_to(&mut out[at..end]);
        end
    }
}

/// The caller had no room for a segment, which is offered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("there is no room for a segment")]
pub struct Full;

/// The result of [`Connection::poll_transmit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub enum Transmit {
    /// A segment left; there may be more.
    Sent,
    /// There was nothing to send.
    Nothing,
    /// The closure had no room.
    Full,
}

/// The next segment, before it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Reset,
    Challenge,
    EarlyAck,
    Syn,
    /// The SYN of this side, now with an ACK: both sides opened at once.
    SynAgain,
    Again(Range),
    New {
        len: u32,
        fin: bool,
        push: bool,
    },
    Probe,
    Ack,
}

impl Connection {
    /// Returns true if [`poll_transmit`](Self::poll_transmit) has work to do: a segment is ready to
    /// leave, or the timer of a closed window must be started.
    #[inline]
    pub fn wants_transmit(&self, now: Instant) -> bool {
        self.choose(now).is_some() || (self.persist_at == Instant::NEVER && self.is_stuck(now))
    }

    /// Returns true if only a plain ACK is due, which a later ACK may cover.
    #[inline]
    pub fn only_acknowledges(&self, now: Instant) -> bool {
        !self.receive.has_sack() && self.choose(now) == Some(Choice::Ack)
    }

    /// Hands the next segment to `emit`, if there is one. See the [contract](super).
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        emit: impl FnOnce(&Outgoing<'_>) -> Result<(), Full>,
    ) -> Transmit {
        let Some(choice) = self.choose(now) else {
            // Data handed over since the last call may have to wait for the peer's window.
            self.arm_persist(now);
            return Transmit::Nothing;
        };
        let outgoing = self.build(choice, now);
        let (window, len) = (outgoing.header.window, outgoing.payload.len());
        let acknowledges = outgoing.header.flags.contains(Flags::ACK);
        let fin = outgoing.header.flags.contains(Flags::FIN);
        let syn = outgoing.header.flags.contains(Flags::SYN);
        if emit(&outgoing).is_err() {
            return Transmit::Full;
        }
        self.counters.segments_sent += 1;
        if acknowledges && choice != Choice::EarlyAck {
            if matches!(choice, Choice::New { .. }) {
                self.receive.on_piggyback();
            }
            // A SYN advertises the initial window, unscaled.
            self.receive.on_ack_sent(if syn { 0 } else { window });
            self.set.remove(Set::ACK_NOW);
        }
        self.commit(choice, len as u32 + u32::from(fin), now);
        self.arm_trim(now);
        Transmit::Sent
    }

    fn choose(&self, now: Instant) -> Option<Choice> {
        if self.set.contains(Set::RESET) {
            return Some(Choice::Reset);
        }
        if matches!(self.state, State::Closed) {
            return None;
        }
        if self.set.contains(Set::CHALLENGE) {
            return Some(Choice::Challenge);
        }
        if self.set.contains(Set::EARLY_ACK) {
            return Some(Choice::EarlyAck);
        }
        let new = self.next_data(now);
        if let Some(range) = self.sender.next_retransmission(new.is_some()) {
            return Some(Choice::Again(range));
        }
        if matches!(self.state, State::SynSent | State::SynReceived) {
            if self.sender.nxt() == self.iss() {
                return Some(Choice::Syn);
            }
            if self.state == State::SynReceived && self.set.contains(Set::ACK_NOW) {
                return Some(Choice::SynAgain);
            }
            if !self.set.contains(Set::FAST_OPEN) {
                return None;
            }
        }
        if let Some(choice) = new {
            return Some(choice);
        }
        if self.set.contains(Set::PROBE) {
            return Some(Choice::Probe);
        }
        (self.set.contains(Set::ACK_NOW) || self.receive.ack_at <= now).then_some(Choice::Ack)
    }

    /// Returns true if new data or the FIN may leave.
    pub(super) fn may_send(&self, now: Instant) -> bool {
        self.next_data(now).is_some()
    }

    /// Chooses new data or the FIN, if the windows, Nagle and silly window avoidance (RFC 9293
    /// section 3.8.6.2.1) allow it.
    fn next_data(&self, now: Instant) -> Option<Choice> {
        let opens = matches!(self.state, State::SynSent | State::SynReceived);
        if opens && (!self.set.contains(Set::FAST_OPEN) || self.sender.nxt() == self.iss()) {
            return None;
        }
        let (una, nxt) = (self.sender.una(), self.sender.nxt());
        let unsent = u32::try_from(self.data_end().distance(nxt)).ok()?;
        // The FIN waits for the end of a handshake with Fast Open.
        let fin = self.set.contains(Set::FIN_QUEUED) && !opens;
        if unsent == 0 && !fin {
            return None;
        }
        let usable = u32::try_from((una + self.window).distance(nxt)).unwrap_or(0);
        if unsent == 0 {
            return (usable > 0).then_some(Choice::New { len: 0, fin: true, push: false });
        }
        let mss = self.mss_now(now) as u32;
        let len = unsent.min(mss).min(usable).min(self.sender.may_send_new(now));
        if len == 0 {
            return None;
        }
        let all = len == unsent;
        // Nagle as refined by Minshall: a small segment waits only for an earlier small one. One
        // that fills an ordinary packet is not small, however long packets on this path may be.
        let free = self.set.intersects(Set::NODELAY | Set::FLUSH) || self.small_end <= una;
        let worth_it = len == mss
            || (all && (fin || ((free || len as usize >= small_below(mss as usize)) && !self.is_corked())))
            || len >= self.max_window.div_ceil(2).max(1)
            || self.set.contains(Set::OVERRIDE);
        let fin = fin && all && usable > len;
        worth_it.then_some(Choice::New { len, fin, push: all })
    }

    fn build(&self, choice: Choice, now: Instant) -> Outgoing<'_> {
        let nxt = self.sender.nxt();
        let plain = |seq, flags, purpose| Outgoing {
            header: self.header(seq, flags, now),
            payload: Payload::default(),
            ecn: EcnCodepoint::NotEct,
            purpose,
        };
        match choice {
            Choice::Reset => {
                let bare = self.set.contains(Set::RESET_BARE);
                let flags = if bare { Flags::RST } else { Flags::RST | Flags::ACK };
                let mut outgoing = plain(self.reset_seq, flags, Purpose::Reset);
                // RFC 7323 section 3.2: the echo means nothing without ACK.
                let agreed = self.set.contains(Set::TIMESTAMPS) && self.state != State::SynSent;
                let echo = if bare { 0 } else { self.receive.recent_timestamp };
                let timestamps = agreed.then(|| Timestamps { echo, ..self.timestamps(now) });
                outgoing.header.options = Options { timestamps, ..Options::default() };
                outgoing.header.ack = if bare { Seq(0) } else { self.receive.next };
                outgoing.header.window = 0;
                outgoing
            }
            Choice::Challenge => plain(nxt, Flags::ACK, Purpose::Challenge),
            Choice::EarlyAck => {
                let mut outgoing = plain(nxt, Flags::ACK, Purpose::Ack);
                outgoing.header.ack = self.early_ack;
                outgoing.header.flags.toggle(Flags::ECE);
                outgoing
            }
            Choice::Syn | Choice::SynAgain => self.syn(now, Purpose::Open),
            Choice::Again(range) if range.start == self.iss() => self.syn(now, Purpose::Retransmission),
            Choice::Again(range) => {
                let len = range.len().min(self.data_end() - range.start);
                self.data_segment(range.start, len, range, now)
            }
            Choice::New { len, fin, push } => {
                let mut flags = Flags::ACK;
                flags.set(Flags::PSH, push && len > 0);
                flags.set(Flags::FIN, fin);
                flags.set(Flags::CWR, self.set.contains(Set::CWR) && len > 0);
                let ecn = self.set.contains(Set::ECN) && len > 0;
                Outgoing {
                    header: self.header(nxt, flags, now),
                    payload: self.unacked.payload((nxt - self.data_start) as usize, len as usize),
                    ecn: if ecn { EcnCodepoint::Ect0 } else { EcnCodepoint::NotEct },
                    purpose: Purpose::Data,
                }
            }
            Choice::Probe => plain(self.sender.una() + u32::MAX, Flags::ACK, Purpose::Probe),
            Choice::Ack => plain(nxt, Flags::ACK, Purpose::Ack),
        }
    }

    /// Returns a retransmission, which is never marked as ECN-capable (RFC 3168 section 6.1.5).
    fn data_segment(&self, start: Seq, len: u32, range: Range, now: Instant) -> Outgoing<'_> {
        let mut header = self.header(start, Flags::ACK, now);
        let len = (len as usize).min(self.mss_with(&header.options));
        let end = start + len as u32;
        header.flags.set(Flags::PSH, len > 0 && end == self.data_end());
        header.flags.set(Flags::FIN, end == self.data_end() && range.end > end && self.fin_sent());
        Outgoing {
            header,
            payload: self.unacked.payload((start - self.data_start) as usize, len),
            ecn: EcnCodepoint::NotEct,
            purpose: Purpose::Retransmission,
        }
    }

    fn syn(&self, now: Instant, purpose: Purpose) -> Outgoing<'_> {
        let answer = self.set.contains(Set::SYN_ACK);
        let mut header = self.header(self.iss(), Flags::SYN, now);
        let timestamps = self.set.contains(Set::TIMESTAMPS);
        header.options = Options {
            mss: Some(self.path_mss.min(self.own_mss)),
            window_scale: self.set.contains(Set::SCALING).then_some(self.receive.shift),
            sack_permitted: self.set.contains(Set::SACK),
            timestamps: timestamps.then(|| self.timestamps(now)),
            fast_open: self.fast_open_option(purpose == Purpose::Retransmission),
            ..Options::default()
        };
        let data = if purpose == Purpose::Open { self.syn_data(&header.options) } else { 0 };
        // The window of a SYN is not scaled (RFC 7323 section 2.2).
        header.window = self.receive.initial_window();
        header.flags.set(Flags::ACK, answer);
        // The first SYN offers ECN. A repeated one does not, because some routers drop packets with
        // unknown bits (RFC 3168 section 6.1.1.1).
        let ecn = self.set.contains(Set::ECN) && purpose == Purpose::Open;
        header.flags.set(Flags::ECE, ecn || (answer && self.set.contains(Set::ECN)));
        header.flags.set(Flags::CWR, ecn && !answer);
        if !answer {
            header.ack = Seq(0);
        }
        Outgoing { header, payload: self.unacked.payload(0, data), ecn: EcnCodepoint::NotEct, purpose }
    }

    /// Returns the header of the answer to a SYN.
    pub(crate) fn syn_ack(&self, now: Instant) -> Header {
        self.syn(now, Purpose::Open).header
    }

    pub(super) fn timestamps(&self, now: Instant) -> Timestamps {
        Timestamps { value: self.timestamp(now), echo: self.receive.recent_timestamp }
    }

    /// Returns the options of a segment after the handshake.
    fn options(&self, now: Instant) -> Options {
        let mut options = Options::default();
        if self.set.contains(Set::TIMESTAMPS) {
            options.timestamps = Some(self.timestamps(now));
        }
        if self.set.contains(Set::SACK) {
            options.sack = self.receive.sack();
        }
        options
    }

    /// Returns the bytes of data in a full segment that leaves now.
    #[inline]
    fn mss_now(&self, now: Instant) -> usize {
        let full = if self.receive.has_sack() {
            self.mss_with(&self.options(now))
        } else {
            self.segment_mss() as usize
        };
        // Half of the window, so that one half travels while the other is acknowledged. Not within
        // one program, where a segment is acknowledged in the next moment.
        let window = self.window as usize;
        if (ORDINARY..=JUMBO).contains(&full) { full.min((window / 2).max(ORDINARY)) } else { full }
    }

    fn header(&self, seq: Seq, flags: Flags, now: Instant) -> Header {
        let echo = self.set.contains(Set::ECHO) && self.set.contains(Set::ECN);
        Header {
            source: self.local_port,
            destination: self.remote_port,
            seq,
            ack: self.receive.next,
            flags: if echo { flags | Flags::ECE } else { flags },
            window: self.receive.window_field(),
            options: self.options(now),
        }
    }

    /// Updates the state after the segment of `choice` left, which took `numbers` sequence numbers.
    fn commit(&mut self, choice: Choice, numbers: u32, now: Instant) {
        match choice {
            Choice::Reset => self.set.remove(Set::RESET | Set::RESET_BARE),
            Choice::Challenge => self.set.remove(Set::CHALLENGE),
            Choice::EarlyAck => self.set.remove(Set::EARLY_ACK),
            Choice::Probe => self.set.remove(Set::PROBE),
            Choice::Ack | Choice::SynAgain => {}
            Choice::Syn => {
                self.progress_at = now;
                self.note_first_syn(numbers, now);
                self.sender.on_sent(Range::new(self.sender.nxt(), 1), now);
            }
            Choice::Again(range) => {
                let numbers = if range.start == self.iss() { 1 } else { numbers };
                // SYN and FIN are no data.
                let data = self.data_end().distance(range.start).max(0) as u32;
                let opens = range.start == self.iss();
                self.counters.note_retransmission(if opens { 0 } else { numbers.min(data) });
                self.sender.on_retransmitted(Range::new(range.start, numbers), now);
            }
            Choice::New { len, push, .. } => {
                let nxt = self.sender.nxt();
                if nxt == self.sender.una() {
                    // Nothing was in flight until now, so the user timeout starts here.
                    self.progress_at = now;
                }
                if len > 0 {
                    self.set.remove(Set::CWR | Set::OVERRIDE);
                }
                self.counters.bytes_sent += u64::from(len);
                self.counters.data_segments_sent += u32::from(len > 0);
                if (len as usize) < small_below(self.mss_now(now)) {
                    self.small_end = nxt + numbers;
                    let flush = self.set.contains(Set::FLUSH);
                    self.set.set(Set::FLUSHED, flush);
                }
                if push {
                    self.set.remove(Set::FLUSH);
                }
                self.persist_at = Instant::NEVER;
                self.sender.on_sent(Range::new(nxt, numbers), now);
            }
        }
        self.arm_persist(now);
    }
}

/// Returns the length below which a segment is small to Nagle's algorithm, where a full one has
/// `mss` bytes: up to [`JUMBO`] what an ordinary packet carries; above, within one program, a full
/// segment, as its acknowledgment comes at once.
fn small_below(mss: usize) -> usize {
    if mss <= JUMBO { mss.min(ORDINARY) } else { mss }
}
