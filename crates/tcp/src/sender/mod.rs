//! Loss recovery and congestion control of one direction of one connection: which data is in
//! flight, which is lost, and how much may be sent.
//!
//! Owns the scoreboard of sent ranges, the round-trip times, the congestion window, and the three
//! timers of the sending side: retransmission (RFC 6298), tail loss probe and reordering (RFC
//! 8985). It never sees options, buffers, the peer's window or flags; a SYN and a FIN are sequence
//! numbers inside a range like any byte.
//!
//! # How a connection uses it
//! 1. Call [`Sender::new`] before the SYN is sent, and [`Sender::on_established`] when the
//!    handshake has settled what both sides support.
//! 2. To transmit, first send every range that [`Sender::next_retransmission`] names, and report
//!    each to [`Sender::on_retransmitted`]. Then send at most [`Sender::may_send_new`] bytes of new
//!    data, and report each segment to [`Sender::on_sent`]. A pure ACK, a window probe below or at
//!    `una` and a keepalive are not reported; a window probe that carries *new* bytes is reported
//!    as sent, whatever `may_send_new` returned.
//! 3. Pass every acceptable ACK to [`Sender::on_ack`], whatever else the segment carries. The
//!    connection decides what is acceptable (RFC 5961 section 5); an ACK of unsent data is refused
//!    here again.
//! 4. At [`Sender::next_timeout`] or later, call [`Sender::on_timeout`], then do step 2. The
//!    connection decides when to give up (R2 of RFC 9293 section 3.8.3), by the number of
//!    consecutive time-outs.
//! 5. After a change of the path MTU call [`Sender::on_mss_changed`], then do step 2.
//!
//! A call with a `now` earlier than a former one counts as made at the former time.
//!
//! # Invariants (`Sender::check`)
//! - `una <= nxt`; the scoreboard covers exactly `una..nxt`, in order, without gaps or empty
//!   ranges, in a bounded number of ranges, and holds no memory when everything is acknowledged.
//! - `in_flight + lost + delivered out of order == nxt - una`.
//! - A timer runs exactly while `una < nxt`.
//!
//! # A hostile peer
//! An ACK of unsent data is an error. A SACK of unsent or already acknowledged data is ignored. The
//! window grows by bytes, not by ACKs (RFC 3465), and never by bytes acknowledged twice. One ACK
//! costs at most work proportional to the data it newly delivers, plus the number of holes.

mod ack;
mod congestion;
mod flight;
mod rack;
mod recovery;
mod rtt;
mod scoreboard;
#[cfg(test)]
mod tests;
mod timer;
mod transmit;

use alloc::boxed::Box;
use core::time::Duration;

use crate::seq::{Range, Seq};
use crate::time::Instant;
pub use congestion::Algorithm;
use congestion::{Congestion, initial_window};
pub use flight::Flight;
use rack::{Circumstances, Rack};
use recovery::{Episode, Phase};
pub(crate) use rtt::MAX_RTO;
use rtt::Rtt;
use scoreboard::Scoreboard;
use timer::Timers;

/// The parameters of a sender.
#[derive(Clone, Debug)]
pub struct Config {
    /// The congestion control algorithm.
    pub algorithm: Algorithm,
    /// Shortest retransmission time-out, 5 ms. RFC 6298 asks for 1 s. It matters only where
    /// [`max_ack_delay`](Self::max_ack_delay) is shorter.
    pub min_rto: Duration,
    /// Longest retransmission time-out after back-off; at least 60 s by RFC 6298 section 2.5, which
    /// is the default.
    pub max_rto: Duration,
    /// The retransmission time-out before a round trip was measured: 1 s (RFC 6298 section 2.1).
    pub initial_rto: Duration,
    /// Longest time for which a peer delays an acknowledgement: 50 ms, which is Linux's 40 ms and a
    /// tick of its timers. The retransmission time-out exceeds the smoothed round trip by this time
    /// at least, however steady the path is, and the probe of a lone segment waits for it too
    /// (`TLP.max_ack_delay` of RFC 8985 section 7.2).
    pub max_ack_delay: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Cubic,
            min_rto: Duration::from_millis(5),
            max_rto: Duration::from_mins(1),
            initial_rto: Duration::from_secs(1),
            max_ack_delay: Duration::from_millis(50),
        }
    }
}

/// The result of the handshake.
#[derive(Clone, Copy, Debug)]
pub struct Negotiated {
    /// Most bytes of data in a segment, options already deducted; at least 1.
    pub mss: u32,
    /// True if both sides permitted SACK (RFC 2018). Loss is then detected by RACK-TLP, else by
    /// counting duplicates (RFC 6582).
    pub sack: bool,
    /// The tick of this side's timestamp clock, if timestamps are on (RFC 7323).
    pub timestamp_tick: Option<Duration>,
}

/// The content of one acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct AckInfo<'a> {
    /// Its acknowledgement number.
    pub ack: Seq,
    /// Its SACK blocks as received, in their order, unchecked. A first block that is a D-SACK
    /// (RFC 2883) is recognised here.
    pub sack: &'a [Range],
    /// Time at which the timestamp that it echoes was sent, or the beginning of that tick.
    pub echoed: Option<Instant>,
    /// True if it carries ECE and ECN is in use.
    pub ecn_echo: bool,
    /// True if it may be a duplicate in the sense of RFC 5681 section 2, as far as the connection
    /// sees it: no data, no SYN or FIN, and an unchanged window. Matters only without SACK.
    pub may_be_duplicate: bool,
}

/// The effect of an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Acked {
    /// Sequence numbers newly acknowledged: `una` moved by this many. SYN and FIN count.
    pub acked: u32,
    /// Bytes newly delivered out of order.
    pub sacked: u32,
    /// Bytes newly marked as lost.
    pub lost: u32,
    /// True if a former retransmission turned out to be unnecessary; the window was restored.
    pub spurious: bool,
    /// True if the window was reduced because of ECN: the next segment of new data carries CWR (RFC
    /// 3168 section 6.1.2).
    pub send_cwr: bool,
    /// True if recovery continues after this acknowledgement.
    pub in_recovery: bool,
    /// True if everything sent is acknowledged.
    pub all_acked: bool,
}

/// Why an acknowledgement was refused. The sender is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AckError {
    /// It acknowledges data that was never sent (RFC 9293 section 3.10.7.4: answer with an ACK,
    /// drop).
    #[error("the peer acknowledges {ack:?}, but only what is before {nxt:?} was sent")]
    Unsent {
        /// The number it acknowledges.
        ack: Seq,
        /// The number that is sent next.
        nxt: Seq,
    },
}

/// The effect of an expired timer. In each case check for something to transmit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timeout {
    /// No timer had expired.
    None,
    /// Suspected segments did not arrive within the reordering window and are lost now.
    Reordering {
        /// Bytes newly marked as lost.
        lost: u32,
    },
    /// No acknowledgement arrived for two round trips: one segment is sent beyond the window, new
    /// if there is one (RFC 8985 section 7).
    Probe,
    /// The retransmission timer expired: the first unacknowledged segment is sent again.
    Retransmission {
        /// Consecutive expirations, this one included, without an acknowledgement of new data in
        /// between.
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
    /// The current repair, or the last one while it can still be undone.
    episode: Option<Box<Episode>>,
    last_sent: Instant,
    mss: u32,
    /// Tick of the timestamp clock in microseconds; [`NO_TIMESTAMPS`] without timestamps.
    tick_us: u32,
    /// End of the data sent when the previous round's first acknowledgement arrived: the round ends
    /// when it is acknowledged.
    round_end: Seq,
    /// Maximum number of bytes in flight in this round, and in the previous one.
    peak: [u32; 2],
    /// The window was reduced for data sent before this number and is not reduced for it again (RFC
    /// 3168 section 6.1.2).
    cut_until: Seq,
    /// Duplicates count only once the data before this number is acknowledged (RFC 6582 section 3.2
    /// step 1).
    recover: Seq,
    /// Bytes that duplicates stand for, without SACK.
    duplicated: u32,
    duplicates: u8,
    /// Consecutive time-outs.
    consecutive: u8,
    sack: bool,
    established: bool,
    /// Whether one segment is sent regardless of the window.
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

/// The tail loss probe that is not answered yet (RFC 8985 section 7.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probe {
    None,
    /// It was new data.
    New,
    /// It was a retransmission that ends here.
    Again(Seq),
}

impl Sender {
    /// Creates a sender whose first number, that of its SYN, is `iss`. `mss` (at least 1) bounds
    /// its segments until [`on_established`](Self::on_established).
    pub fn new(config: &Config, iss: Seq, mss: u32, now: Instant) -> Self {
        let mss = mss.max(1);
        Self {
            board: Scoreboard::new(iss),
            rtt: Rtt::new(config),
            rack: Rack::new(iss),
            congestion: Congestion::new(config.algorithm, mss),
            timers: Timers::new(),
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

    /// Completes the handshake. The initial window is RFC 6928's, or one segment if the SYN was
    /// lost more than once. Call it after [`on_ack`](Self::on_ack) of the handshake's ACK.
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
        // Duplicates count from the first segment of data on (RFC 6582 section 3.2 step 1:
        // `recover` begins at the number of the SYN).
        self.recover = self.board.una() + u32::MAX;
    }

    /// Changes the segment size to `mss` bytes (at least 1) after a change of the path's MTU (RFC
    /// 1191, RFC 8201). If it shrinks, larger segments in flight are lost; the congestion
    /// window is not reduced for them. If it grows before anything was lost, the congestion window
    /// is at least the initial one for the new size.
    pub fn on_mss_changed(&mut self, mss: u32, now: Instant) {
        let before = self.mss;
        self.set_mss(mss);
        if self.mss >= before {
            if self.established && self.congestion.ssthresh == u32::MAX && self.timers.syns_lost <= 1 {
                self.congestion.cwnd = self.congestion.cwnd.max(initial_window(self.mss));
            }
            return;
        }
        let mss = self.mss;
        let lost = self.board.mark_lost(|sent| Some(sent.end - sent.start > mss));
        if lost > 0 {
            self.duplicated = 0;
            self.forced = Forced::Retransmission;
            self.arm(now);
        }
    }

    /// Changes the size of the segments that leave from now on to `mss` bytes, at least 1.
    pub fn set_mss(&mut self, mss: u32) {
        self.mss = mss.max(1);
        self.congestion.cwnd = self.congestion.cwnd.max(self.mss);
    }

    /// Sets the longest time for which the peer delays acknowledgements: see
    /// [`Config::max_ack_delay`].
    pub fn set_max_ack_delay(&mut self, delay: Duration) {
        self.rtt.set_max_ack_delay(delay);
    }

    /// Frees memory that only late evidence about an earlier repair would use, if everything is
    /// acknowledged.
    pub fn trim(&mut self) {
        if self.board.outstanding() == 0 {
            self.episode = None;
        }
    }

    /// Returns the first unacknowledged number (SND.UNA).
    pub fn una(&self) -> Seq {
        self.board.una()
    }

    /// Returns the number sent next (SND.NXT).
    pub fn nxt(&self) -> Seq {
        self.board.nxt()
    }

    /// Returns the most bytes of data in a segment.
    pub fn mss(&self) -> u32 {
        self.mss
    }

    /// Returns the congestion window in bytes.
    pub fn cwnd(&self) -> u32 {
        self.congestion.cwnd
    }

    /// Returns the slow start threshold in bytes; `u32::MAX` before the first loss.
    pub fn ssthresh(&self) -> u32 {
        self.congestion.ssthresh
    }

    /// Returns the bytes believed to be in the network: sent, and neither delivered nor lost.
    pub fn in_flight(&self) -> u32 {
        self.board.in_flight().saturating_sub(self.duplicated)
    }

    /// Returns true if more than one segment is unacknowledged, so that acknowledgments may show
    /// the loss of one.
    #[inline]
    pub fn has_several(&self) -> bool {
        self.board.has_several()
    }

    /// Returns the time at which anything was last sent.
    pub fn last_sent(&self) -> Instant {
        self.last_sent
    }

    /// Returns the smoothed round-trip time, once one was measured.
    pub fn srtt(&self) -> Option<Duration> {
        self.rtt.srtt()
    }

    /// Returns the variation of the round-trip time (RFC 6298).
    pub fn rttvar(&self) -> Option<Duration> {
        self.rtt.rttvar()
    }

    /// Returns the least round-trip time of the last ten seconds or so.
    pub fn min_rtt(&self) -> Option<Duration> {
        self.rtt.min()
    }

    /// Returns the present retransmission time-out, including back-off and the delay of the peer's
    /// ACKs.
    pub fn rto(&self) -> Duration {
        self.rtt.rto()
    }

    /// Returns the number of consecutive retransmission time-outs without an acknowledgement of new
    /// data.
    pub fn consecutive_timeouts(&self) -> u8 {
        self.consecutive
    }

    /// Returns true if a loss is being repaired.
    pub fn in_recovery(&self) -> bool {
        self.phase().is_some()
    }

    /// Returns the time between full segments that spreads a window over a round trip: twice as
    /// dense in slow start and a quarter denser otherwise, so that pacing does not keep the window
    /// from growing. Zero before a round trip was measured.
    pub fn pacing_interval(&self) -> Duration {
        let Some(srtt) = self.rtt.srtt() else { return Duration::ZERO };
        let window = u64::from(self.congestion.cwnd.max(self.mss));
        let quarters = if self.congestion.in_slow_start() { 8 } else { 5 };
        let ns = u128::from(self.mss) * srtt.as_nanos() * 4 / u128::from(window * quarters);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Returns the phase of the current repair.
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

    /// Checks the invariants of the module header.
    ///
    /// # Panics
    /// If one does not hold.
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
