//! Loss recovery and congestion control of one direction of one connection: what is in flight, what was lost, how much may go out.
//!
//! Owns: the scoreboard of sent ranges, round-trip times, the congestion window, and the three timers of the sending side:
//! retransmission (RFC 6298), tail loss probe and reordering (RFC 8985). Never knows: options, buffers, the peer's window, flags;
//! a SYN and a FIN are sequence numbers inside a range like any byte.
//!
//! # How a connection uses it
//! 1. [`Sender::new`] before the SYN goes out, [`Sender::on_established`] when the handshake has said what both sides can do.
//! 2. Having something to transmit: first everything [`Sender::next_retransmission`] names, each reported by
//!    [`Sender::on_retransmitted`]; then at most [`Sender::may_send_new`] bytes of new data, each segment reported by
//!    [`Sender::on_sent`]. A pure ACK, a window probe below or at `una` and a keep-alive are nobody's business here; a window probe that carries
//!    *new* bytes is reported as sent, whatever `may_send_new` says.
//! 3. Every acceptable ACK goes to [`Sender::on_ack`], whatever else the segment carries. "Acceptable" (RFC 5961 section 5) is
//!    for the connection to judge; an ACK of what was never sent is refused here again.
//! 4. At [`Sender::next_timeout`], or later: [`Sender::on_timeout`], then step 2. When to give up is the connection's decision
//!    (R2 of RFC 9293 section 3.8.3), for which it gets the number of consecutive time-outs.
//! 5. A smaller path MTU: [`Sender::on_mss_changed`], then step 2.
//!
//! Calls with a `now` earlier than a former one are taken as made at the same moment.
//!
//! # Invariants (`Sender::check`)
//! - `una <= nxt`; the scoreboard covers exactly `una..nxt`, in order, without gaps or empty ranges, in a bounded number of
//!   ranges, and holds no memory when everything is acknowledged.
//! - `in_flight + lost + delivered out of order == nxt - una`.
//! - A timer runs exactly while `una < nxt`.
//!
//! # A hostile peer
//! ACKs of unsent data are an error; SACKs of unsent or already acknowledged data are ignored; a window grows by bytes, not by ACKs (RFC 3465),
//! and never by bytes acknowledged twice. One ACK costs at most work proportional to what it newly delivers, plus the number of holes.

mod congestion;

use core::time::Duration;

use crate::{Instant, Seq};
pub use congestion::Algorithm;

/// Sequence numbers from `start` up to, not including, `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The first number.
    pub start: Seq,
    /// The number after the last.
    pub end: Seq,
}

impl Range {
    /// The `bytes` numbers from `start` on.
    pub fn new(start: Seq, bytes: u32) -> Self {
        Self { start, end: start + bytes }
    }

    /// How many numbers; zero if `end` is not after `start`.
    pub fn len(self) -> u32 {
        u32::try_from(self.end.distance(self.start)).unwrap_or(0)
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// What a sender is told when it is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which congestion control.
    pub algorithm: Algorithm,
    /// Retransmission time-outs are at least this long. RFC 6298 asks for 1 s; the default is 5 ms, for data centres.
    pub min_rto: Duration,
    /// And at most this long, backed off; at least 60 s by RFC 6298 section 2.5, which is the default.
    pub max_rto: Duration,
    /// The first one, before a round trip was measured: 1 s (RFC 6298 section 2.1).
    pub initial_rto: Duration,
    /// How long a peer may sit on the acknowledgement of a lone segment (`TLP.max_ack_delay` of RFC 8985 section 7.2): 25 ms.
    pub max_ack_delay: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Cubic,
            min_rto: Duration::from_millis(5),
            max_rto: Duration::from_mins(1),
            initial_rto: Duration::from_secs(1),
            max_ack_delay: Duration::from_millis(25),
        }
    }
}

/// What the handshake settled.
#[derive(Clone, Copy, Debug)]
pub struct Negotiated {
    /// Most bytes of data a segment may carry, options already taken off; at least 1.
    pub mss: u32,
    /// Both sides said SACK-permitted (RFC 2018): loss is then found by RACK-TLP, else by counting duplicates (RFC 6582).
    pub sack: bool,
    /// If timestamps are on (RFC 7323): how long our timestamp clock stays at one value.
    pub timestamp_tick: Option<Duration>,
}

/// What one acknowledgement says.
#[derive(Clone, Copy, Debug)]
pub struct AckInfo<'a> {
    /// Its acknowledgement number.
    pub ack: Seq,
    /// Its SACK blocks as received, in their order, believed or not; a first block that is a D-SACK (RFC 2883) is recognised here.
    pub sack: &'a [Range],
    /// If it echoes a timestamp of ours: when that value was put on, or the beginning of the tick it stands for.
    pub echoed: Option<Instant>,
    /// It carries ECE, and ECN is in use.
    pub ecn_echo: bool,
    /// It could be a duplicate in the sense of RFC 5681 section 2 as far as the connection sees it: no data, no SYN or FIN, and the window is the one
    /// advertised before. Matters only without SACK.
    pub may_be_duplicate: bool,
}

/// What an acknowledgement did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Acked {
    /// Numbers that left the window for good: `una` moved by so much. SYN and FIN are counted.
    pub acked: u32,
    /// Bytes newly delivered out of order.
    pub sacked: u32,
    /// Bytes newly taken for lost.
    pub lost: u32,
    /// A former retransmission turned out to have been unnecessary; the window is what it was before.
    pub spurious: bool,
    /// The window was reduced because of ECN: the next segment of new data carries CWR (RFC 3168 section 6.1.2).
    pub send_cwr: bool,
    /// Recovery goes on after this acknowledgement.
    pub in_recovery: bool,
    /// Everything sent is acknowledged.
    pub all_acked: bool,
}

/// Why an acknowledgement was refused. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AckError {
    /// It acknowledges what was never sent (RFC 9293 section 3.10.7.4: answer with an ACK, drop).
    #[error("the peer acknowledges {ack:?}, but only what is before {nxt:?} was sent")]
    Unsent {
        /// What it says.
        ack: Seq,
        /// What will be sent next.
        nxt: Seq,
    },
}

/// What a timer that expired means. In each case: look for something to transmit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timeout {
    /// None had expired.
    None,
    /// Segments were waited for in case they were only reordered; so many bytes of them are lost now.
    Reordering {
        /// Bytes newly taken for lost.
        lost: u32,
    },
    /// Nothing was heard for two round trips: one segment goes out beyond the window, new if there is one (RFC 8985 section 7).
    Probe,
    /// The retransmission timer: the first unacknowledged segment goes out again.
    Retransmission {
        /// How often in a row, this one included, without an acknowledgement of anything new in between.
        consecutive: u8,
    },
}

/// The sending side's loss recovery and congestion control. See the module's documentation.
#[derive(Debug)]
pub struct Sender {
    una: Seq,
    nxt: Seq,
}

#[expect(unused_variables, clippy::needless_pass_by_value, reason = "the contract, before the code")]
impl Sender {
    /// A sender whose first number, that of its SYN, is `iss`, and that knows nothing of its peer yet: `mss` bounds what goes out until
    /// [`on_established`](Self::on_established).
    pub fn new(config: &Config, iss: Seq, mss: u32, now: Instant) -> Self {
        Self { una: iss, nxt: iss }
    }

    /// The handshake is complete: the initial window is RFC 6928's, or one segment if the SYN was lost more than once.
    /// Call it after `on_ack` of the handshake's ACK.
    pub fn on_established(&mut self, negotiated: &Negotiated, now: Instant) {
        todo!()
    }

    /// The path MTU shrank (RFC 1191, RFC 8201): segments carry at most `mss` bytes from now on, and those in flight that are
    /// larger are lost, for which the window is not reduced. Larger than before: only the bound changes.
    pub fn on_mss_changed(&mut self, mss: u32, now: Instant) {
        todo!()
    }

    /// New data went out: `range` starts at [`nxt`](Self::nxt).
    ///
    /// # Panics
    /// If it starts elsewhere or is empty: that is a bug in the connection.
    pub fn on_sent(&mut self, range: Range, now: Instant) {
        todo!()
    }

    /// What [`next_retransmission`](Self::next_retransmission) named went out, or a beginning of it.
    ///
    /// # Panics
    /// If `range` is empty or not within what is unacknowledged.
    pub fn on_retransmitted(&mut self, range: Range, now: Instant) {
        todo!()
    }

    /// An acceptable ACK arrived.
    ///
    /// # Errors
    /// If it acknowledges what was never sent. Nothing has changed then.
    pub fn on_ack(&mut self, ack: &AckInfo<'_>, now: Instant) -> Result<Acked, AckError> {
        todo!()
    }

    /// What is to be retransmitted now, if the window admits it: at most one segment's worth, already sent and not acknowledged.
    /// `has_new` says whether there is data never sent that the peer's window admits: a probe would rather send that.
    /// Stays the same until something happens.
    pub fn next_retransmission(&self, has_new: bool) -> Option<Range> {
        todo!()
    }

    /// How many bytes of new data may go out now, as far as congestion goes. Less than a segment is possible; whether to wait for more is
    /// for the connection to say (silly window avoidance, Nagle). Zero while something waits to be retransmitted.
    pub fn may_send_new(&self, now: Instant) -> u32 {
        todo!()
    }

    /// When to call [`on_timeout`](Self::on_timeout); `None` while nothing is unacknowledged.
    pub fn next_timeout(&self) -> Option<Instant> {
        todo!()
    }

    /// Lets a timer expire, if its time has come.
    pub fn on_timeout(&mut self, now: Instant) -> Timeout {
        todo!()
    }

    /// The first unacknowledged number (SND.UNA).
    pub fn una(&self) -> Seq {
        self.una
    }

    /// The number sent next (SND.NXT).
    pub fn nxt(&self) -> Seq {
        self.nxt
    }

    /// Most bytes a segment may carry.
    pub fn mss(&self) -> u32 {
        todo!()
    }

    /// The congestion window in bytes.
    pub fn cwnd(&self) -> u32 {
        todo!()
    }

    /// The slow start threshold in bytes; `u32::MAX` before the first loss.
    pub fn ssthresh(&self) -> u32 {
        todo!()
    }

    /// Bytes believed to be in the network: sent, neither delivered nor lost.
    pub fn in_flight(&self) -> u32 {
        todo!()
    }

    /// The smoothed round-trip time, once one was measured.
    pub fn srtt(&self) -> Option<Duration> {
        todo!()
    }

    /// Its variation (RFC 6298).
    pub fn rttvar(&self) -> Option<Duration> {
        todo!()
    }

    /// The least round-trip time of late.
    pub fn min_rtt(&self) -> Option<Duration> {
        todo!()
    }

    /// The retransmission time-out as it stands, backed off if it is.
    pub fn rto(&self) -> Duration {
        todo!()
    }

    /// Retransmission time-outs in a row without an acknowledgement of anything new.
    pub fn consecutive_timeouts(&self) -> u8 {
        todo!()
    }

    /// How far apart full segments should leave for a window to be spread over a round trip; zero before one was measured.
    pub fn pacing_interval(&self) -> Duration {
        todo!()
    }
}
