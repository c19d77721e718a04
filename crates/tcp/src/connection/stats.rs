//! A connection's counters and estimates, and the check of its invariants.

use super::{Connection, Set};
use crate::assembler::MAX_RANGES;
use crate::time::Instant;
use alloc::boxed::Box;
use core::time::Duration;

/// The counters as stored: small, because there are many connections.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub segments_sent: u32,
    pub segments_received: u32,
    /// Segments with data, retransmissions not counted.
    pub data_segments_sent: u32,
    pub data_segments_received: u32,
    troubles: Option<Box<Troubles>>,
}

/// Counters that stay zero on a good path with an honest peer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Troubles {
    pub resequenced_bytes: u64,
    pub retransmitted_bytes: u64,
    pub retransmissions: u32,
    /// Retransmitted segments with data.
    pub data_retransmissions: u32,
    pub out_of_order: u32,
    pub duplicates: u32,
    pub duplicate_acks: u32,
    pub beyond_window: u32,
    pub stale_timestamps: u32,
    pub challenge_acks: u32,
    pub timeouts: u32,
    pub probes: u32,
    pub spurious: u32,
}

impl Counters {
    #[cold]
    pub fn troubles(&mut self) -> &mut Troubles {
        self.troubles.get_or_insert_default()
    }

    /// Counts a retransmission with `bytes` of data.
    pub fn note_retransmission(&mut self, bytes: u32) {
        let troubles = self.troubles();
        troubles.retransmissions += 1;
        troubles.data_retransmissions += u32::from(bytes > 0);
        troubles.retransmitted_bytes += u64::from(bytes);
    }

    /// Returns the counters of troubles at this moment.
    pub fn all_troubles(&self) -> Troubles {
        self.troubles.as_deref().copied().unwrap_or_default()
    }

    fn heap_bytes(&self) -> usize {
        self.troubles.as_ref().map_or(0, |_| size_of::<Troubles>())
    }
}

/// A connection's counters and estimates at one moment. Counters of 32 bits wrap: wider ones would
/// make every connection larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes of data sent, not counting retransmissions.
    pub bytes_sent: u64,
    /// Bytes of data received in order.
    pub bytes_received: u64,
    /// Bytes among them that had to wait for earlier ones.
    pub resequenced_bytes: u64,
    /// Segments sent.
    pub segments_sent: u32,
    /// Segments received.
    pub segments_received: u32,
    /// Segments retransmitted.
    pub retransmissions: u32,
    /// Segments that arrived ahead of others.
    pub out_of_order: u32,
    /// Segments that held what was received before.
    pub duplicates: u32,
    /// ACKs that acknowledged nothing new while something was unacknowledged.
    pub duplicate_acks: u32,
    /// Segments with data outside the window, or with one range too many.
    pub beyond_window: u32,
    /// Segments refused for an old timestamp (PAWS).
    pub stale_timestamps: u32,
    /// Challenge ACKs (RFC 5961).
    pub challenge_acks: u32,
    /// Times the retransmission timer expired (RFC 6298).
    pub timeouts: u32,
    /// Tail loss probes (RFC 8985 section 7).
    pub tail_probes: u32,
    /// Repairs that turned out to have been unnecessary: nothing was lost (RFC 3522, RFC 3708, RFC
    /// 5682).
    pub spurious_repairs: u32,
    /// The smoothed round-trip time, once measured.
    pub srtt: Option<Duration>,
    /// The variation of the round-trip time.
    pub rttvar: Option<Duration>,
    /// The least recent round-trip time.
    pub min_rtt: Option<Duration>,
    /// The retransmission timeout.
    pub rto: Duration,
    /// The congestion window in bytes.
    pub cwnd: u32,
    /// The slow start threshold in bytes.
    pub ssthresh: u32,
    /// Bytes believed to be in the network.
    pub in_flight: u32,
    /// Bytes of data in a full segment.
    pub mss: u32,
    /// The peer's window in bytes.
    pub peer_window: u32,
    /// Bytes of heap memory, without the sender's scoreboard. Shared bytes count while they are
    /// queued, even if there are other references to them; the memory behind them may be larger.
    pub heap_bytes: usize,
}

impl Connection {
    /// Returns the counters and estimates.
    pub fn stats(&self) -> Stats {
        let (c, t) = (&self.counters, self.counters.all_troubles());
        Stats {
            bytes_sent: c.bytes_sent,
            bytes_received: c.bytes_received,
            resequenced_bytes: t.resequenced_bytes,
            segments_sent: c.segments_sent,
            segments_received: c.segments_received,
            retransmissions: t.retransmissions,
            out_of_order: t.out_of_order,
            duplicates: t.duplicates,
            duplicate_acks: t.duplicate_acks,
            beyond_window: t.beyond_window,
            stale_timestamps: t.stale_timestamps,
            challenge_acks: t.challenge_acks,
            timeouts: t.timeouts,
            tail_probes: t.probes,
            spurious_repairs: t.spurious,
            srtt: self.sender.srtt(),
            rttvar: self.sender.rttvar(),
            min_rtt: self.sender.min_rtt(),
            rto: self.sender.rto(),
            cwnd: self.sender.cwnd(),
            ssthresh: self.sender.ssthresh(),
            in_flight: self.sender.in_flight(),
            mss: self.sender.mss(),
            peer_window: self.window,
            heap_bytes: self.heap_bytes(),
        }
    }

    /// Returns the next number expected and the next number to send, which a forger would have to
    /// guess.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn numbers(&self) -> (crate::seq::Seq, crate::seq::Seq) {
        (self.receive.next, self.sender.nxt())
    }

    fn heap_bytes(&self) -> usize {
        let small = self.rare_bytes() + self.counters.heap_bytes();
        self.unacked.capacity() + self.receive.heap_bytes() + small
    }

    /// Checks the connection's invariants, for tests, simulations and fuzzing.
    ///
    /// # Panics
    /// If one does not hold, which is a defect of this crate.
    pub fn check(&self) {
        let (una, nxt) = (self.sender.una(), self.sender.nxt());
        assert!(una <= nxt);
        if self.is_closed() {
            return;
        }
        assert!(nxt.distance(self.data_end()) <= 1, "more was sent than is there");
        self.unacked.check();
        let bound = (self.receive.limit().max(1 << 16) as usize).next_power_of_two() * 2;
        assert!(self.receive.capacity() <= bound, "{} bytes of receive buffer", self.receive.capacity());
        assert!(self.receive.heap_bytes() <= bound + 64 * MAX_RANGES + 64);
        let acks = self.set.contains(Set::ACK_NOW) || self.receive.ack_at != Instant::NEVER;
        assert!(acks || !self.receive.owes_ack(), "an ACK is owed for ever");
        if self.state.is_synchronized() && self.state != crate::State::TimeWait {
            let waits = una != nxt || self.data_end() > nxt;
            assert!(
                !waits || self.next_timeout().is_some() || self.next_timeout_is_due(),
                "something waits for ever: {self:?}"
            );
        }
    }

    /// Returns true if a segment would leave whatever the time is.
    fn next_timeout_is_due(&self) -> bool {
        self.wants_transmit(crate::Instant(0))
    }
}
