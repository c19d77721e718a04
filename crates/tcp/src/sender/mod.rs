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

mod ack;
mod congestion;
mod rack;
mod recovery;
mod rtt;
mod scoreboard;
#[cfg(test)]
mod tests;
mod timer;
mod transmit;

use core::time::Duration;

use crate::{Instant, Seq};
pub use congestion::Algorithm;
use congestion::{Congestion, initial_window};
use rack::{Circumstances, Rack};
use recovery::{Episode, Phase};
use rtt::Rtt;
use scoreboard::Scoreboard;
use timer::Timers;

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

/// The sending side's loss recovery and congestion control. See the [module's documentation](self).
#[derive(Debug)]
pub struct Sender {
    board: Scoreboard,
    rtt: Rtt,
    rack: Rack,
    congestion: Congestion,
    timers: Timers,
    /// What is being repaired, or was until lately.
    episode: Option<Box<Episode>>,
    last_sent: Instant,
    mss: u32,
    /// The timestamp clock's tick in microseconds; [`NO_TIMESTAMPS`] without.
    tick_us: u32,
    /// What was sent when the former round trip's first acknowledgement came: the round ends when it is acknowledged.
    round_end: Seq,
    /// Most bytes in flight in this round, and in the one before.
    peak: [u32; 2],
    /// The window was cut for what was sent before this, and is not cut for it again (RFC 3168 section 6.1.2).
    cut_until: Seq,
    /// Duplicates count only when what was sent before this is acknowledged (RFC 6582 section 3.2 step 1).
    recover: Seq,
    /// Without SACK: bytes that duplicates stand for.
    duplicated: u32,
    duplicates: u8,
    /// Time-outs in a row.
    consecutive: u8,
    sack: bool,
    established: bool,
    /// One segment goes out whatever the window says.
    forced: Forced,
    probe: Probe,
}

const NO_TIMESTAMPS: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Forced {
    No,
    Retransmission,
    Probe,
}

/// The tail loss probe of which no answer has come (RFC 8985 section 7.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probe {
    None,
    /// It was new data.
    New,
    /// It was sent again; this is its end.
    Again(Seq),
}

impl Sender {
    /// A sender whose first number, that of its SYN, is `iss`, and that knows nothing of its peer yet: `mss` (at least 1) bounds what
    /// goes out until [`on_established`](Self::on_established).
    pub fn new(config: &Config, iss: Seq, mss: u32, now: Instant) -> Self {
        let mss = mss.max(1);
        Self {
            board: Scoreboard::new(iss),
            rtt: Rtt::new(config),
            rack: Rack::new(iss),
            congestion: Congestion::new(config.algorithm, mss),
            timers: Timers::new(config),
            episode: None,
            last_sent: now,
            mss,
            tick_us: NO_TIMESTAMPS,
            round_end: iss,
            peak: [0; 2],
            cut_until: iss,
            recover: iss,
            duplicated: 0,
            duplicates: 0,
            consecutive: 0,
            sack: false,
            established: false,
            forced: Forced::No,
            probe: Probe::None,
        }
    }

    /// The handshake is complete: the initial window is RFC 6928's, or one segment if the SYN was lost more than once.
    /// Call it after [`on_ack`](Self::on_ack) of the handshake's ACK.
    pub fn on_established(&mut self, negotiated: &Negotiated, now: Instant) {
        self.last_sent = self.last_sent.max(now);
        self.mss = negotiated.mss.max(1);
        self.sack = negotiated.sack;
        self.tick_us = negotiated
            .timestamp_tick
            .map_or(NO_TIMESTAMPS, |tick| u32::try_from(tick.as_micros()).unwrap_or(NO_TIMESTAMPS));
        self.congestion.ssthresh = u32::MAX;
        self.congestion.cwnd = if self.timers.syns_lost > 1 { self.mss } else { initial_window(self.mss) };
        if self.timers.syns_lost > 0 && self.rtt.srtt().is_none() {
            self.rtt.after_lost_syn();
        }
        self.episode = None;
        self.consecutive = 0;
        self.established = true;
        self.recover = self.board.una();
    }

    /// The path's MTU changed (RFC 1191, RFC 8201): segments carry at most `mss` bytes (at least 1) from now on. If that is less than before,
    /// what is in flight and larger is lost, for which the window is not reduced.
    pub fn on_mss_changed(&mut self, mss: u32, now: Instant) {
        let (mss, before) = (mss.max(1), self.mss);
        self.mss = mss;
        self.congestion.cwnd = self.congestion.cwnd.max(mss);
        if mss >= before {
            return;
        }
        let lost = self.board.mark_lost(|sent| Some(sent.end - sent.start > mss));
        if lost > 0 {
            self.duplicated = 0;
            self.forced = Forced::Retransmission;
            self.arm(now);
        }
    }

    /// The first unacknowledged number (SND.UNA).
    pub fn una(&self) -> Seq {
        self.board.una()
    }

    /// The number sent next (SND.NXT).
    pub fn nxt(&self) -> Seq {
        self.board.nxt()
    }

    /// Most bytes a segment may carry.
    pub fn mss(&self) -> u32 {
        self.mss
    }

    /// The congestion window in bytes.
    pub fn cwnd(&self) -> u32 {
        self.congestion.cwnd
    }

    /// The slow start threshold in bytes; `u32::MAX` before the first loss.
    pub fn ssthresh(&self) -> u32 {
        self.congestion.ssthresh
    }

    /// Bytes believed to be in the network: sent, neither delivered nor lost.
    pub fn in_flight(&self) -> u32 {
        self.board.in_flight().saturating_sub(self.duplicated)
    }

    /// The smoothed round-trip time, once one was measured.
    pub fn srtt(&self) -> Option<Duration> {
        self.rtt.srtt()
    }

    /// Its variation (RFC 6298).
    pub fn rttvar(&self) -> Option<Duration> {
        self.rtt.rttvar()
    }

    /// The least round-trip time of the last ten seconds or so.
    pub fn min_rtt(&self) -> Option<Duration> {
        self.rtt.min()
    }

    /// The retransmission time-out as it stands, backed off if it is.
    pub fn rto(&self) -> Duration {
        self.rtt.rto()
    }

    /// Retransmission time-outs in a row without an acknowledgement of anything new.
    pub fn consecutive_timeouts(&self) -> u8 {
        self.consecutive
    }

    /// Whether something lost is being repaired.
    pub fn in_recovery(&self) -> bool {
        self.phase().is_some()
    }

    /// How far apart full segments should leave for a window to be spread over a round trip, twice as densely in slow start, a quarter
    /// more densely otherwise, so that pacing does not keep the window from growing; zero before a round trip was measured.
    pub fn pacing_interval(&self) -> Duration {
        let Some(srtt) = self.rtt.srtt() else { return Duration::ZERO };
        let window = u64::from(self.congestion.cwnd.max(self.mss));
        let quarters = if self.congestion.in_slow_start() { 8 } else { 5 };
        let ns = u128::from(self.mss) * srtt.as_nanos() * 4 / u128::from(window * quarters);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// What is being repaired now, and how.
    fn phase(&self) -> Option<Phase> {
        self.episode.as_ref().map(|episode| episode.phase).filter(|phase| *phase != Phase::Over)
    }

    fn circumstances(&self) -> Circumstances {
        let srtt = self.rtt.srtt().unwrap_or_default();
        Circumstances {
            srtt,
            min_rtt: self.rtt.min().unwrap_or(srtt),
            in_recovery: self.in_recovery(),
            mss: self.mss,
        }
    }

    /// # Panics
    /// If an invariant of this module does not hold.
    #[cfg(test)]
    fn check(&self) {
        self.board.check();
        assert!(
            self.duplicated <= self.board.in_flight() && (!self.sack || self.duplicated == 0),
            "{self:?}"
        );
        assert_eq!(self.next_timeout().is_some(), self.board.outstanding() > 0, "a timer: {self:?}");
        assert!(self.congestion.cwnd >= self.mss, "a window below a segment: {self:?}");
    }
}
