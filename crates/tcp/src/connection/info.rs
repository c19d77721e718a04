//! The state of a connection as Linux reports it (tcp(7), TCP_INFO).

use super::{Connection, Set};
use crate::state::State;
use crate::time::Instant;
use core::time::Duration;

/// The state of a connection at one moment, with Linux's names and meanings (`TCP_INFO`).
///
/// The sender counts bytes, not segments. So what Linux counts in segments in flight is here the
/// number of full segments, rounded up, that the bytes fill. Counters of 32 bits wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The state.
    pub state: State,
    /// Timestamps are used (`TCPI_OPT_TIMESTAMPS`).
    pub timestamps: bool,
    /// Selective acknowledgments are used (`TCPI_OPT_SACK`).
    pub sack: bool,
    /// Windows are scaled (`TCPI_OPT_WSCALE`): by how many bits the peer's are, and this side's.
    pub wscale: Option<(u8, u8)>,
    /// Data on the SYN was accepted, by the peer or by this side (`TCPI_OPT_SYN_DATA`).
    pub syn_data: bool,
    /// Congestion marks are used (`TCPI_OPT_ECN`).
    pub ecn: bool,
    /// A loss is being repaired (`TCP_CA_Recovery`, `TCP_CA_Loss`).
    pub in_recovery: bool,
    /// Consecutive time-outs without an answer (`tcpi_retransmits`).
    pub retransmits: u8,
    /// Unanswered probes of a closed window or an idle peer.
    pub probes: u8,
    /// The retransmission time-out, back-off included.
    pub rto: Duration,
    /// The time for which an acknowledgment may wait for data.
    pub ato: Duration,
    /// Bytes of data in a full segment.
    pub snd_mss: u32,
    /// Bytes of data in the peer's segments, by the largest received.
    pub rcv_mss: u32,
    /// The largest segment announced to the peer, less the timestamps.
    pub advmss: u32,
    /// The path's MTU.
    pub pmtu: u32,
    /// Segments sent and not acknowledged; SYN and FIN count as bytes.
    pub unacked: u32,
    /// Segments of these that the peer holds out of order.
    pub sacked: u32,
    /// Segments of these taken for lost, those sent again included.
    pub lost: u32,
    /// Segments of these sent again and not yet delivered.
    pub retrans: u32,
    /// Segments sent again, ever.
    pub total_retrans: u32,
    /// Bytes sent again, ever.
    pub bytes_retrans: u64,
    /// Time since anything but a pure acknowledgment was sent.
    pub last_data_sent: Duration,
    /// Time since the peer was last heard.
    pub last_ack_recv: Duration,
    /// The smoothed round-trip time, once measured.
    pub rtt: Option<Duration>,
    /// Its variation.
    pub rttvar: Option<Duration>,
    /// The least recent round-trip time.
    pub min_rtt: Option<Duration>,
    /// The slow start threshold in segments; `None` before the first loss.
    pub snd_ssthresh: Option<u32>,
    /// The congestion window in segments.
    pub snd_cwnd: u32,
    /// The peer's window in bytes.
    pub snd_wnd: u32,
    /// The window offered to the peer, in bytes.
    pub rcv_wnd: u32,
    /// Bytes of window that an empty receive buffer offers: it grows with what the application
    /// reads.
    pub rcv_space: u32,
    /// Bytes handed over and never sent.
    pub notsent_bytes: u32,
    /// Bytes of data sent, retransmissions included.
    pub bytes_sent: u64,
    /// Bytes of data acknowledged. Linux counts the SYN of an active open and the FIN as bytes,
    /// too.
    pub bytes_acked: u64,
    /// Bytes of data received in order.
    pub bytes_received: u64,
    /// Segments sent.
    pub segs_out: u32,
    /// Segments received.
    pub segs_in: u32,
    /// Segments with data sent, retransmissions included.
    pub data_segs_out: u32,
    /// Segments with data received, duplicates included.
    pub data_segs_in: u32,
    /// Segments delivered to the peer, in order or not; the handshake counts as one.
    pub delivered: u32,
    /// Segments received out of order.
    pub rcv_ooopack: u32,
    /// Times the retransmission timer expired.
    pub total_rto: u32,
}

impl Connection {
    /// Returns the number of bytes that the peer has acknowledged, ever.
    pub fn acknowledged_bytes(&self) -> u64 {
        self.counters.bytes_sent.saturating_sub(self.sent_and_unacknowledged() as u64)
    }

    /// Returns the number of bytes sent once and not acknowledged: all in flight but SYN and FIN.
    fn sent_and_unacknowledged(&self) -> usize {
        self.unacked.len() - self.unsent_bytes()
    }

    /// Returns the connection's state as Linux's TCP_INFO has it. `ip_header` is the length of its
    /// packets' IP header, which the path's MTU includes.
    pub fn info(&self, ip_header: u16, now: Instant) -> Info {
        let (c, t) = (&self.counters, self.counters.all_troubles());
        let (flight, mss) = (self.sender.flight(), self.segment_mss());
        let segments = |bytes: u32| bytes.div_ceil(mss);
        let timestamps = self.set.contains(Set::TIMESTAMPS);
        let fixed = crate::segment::FIXED_HEADER as u32;
        let unacked_bytes = self.sent_and_unacknowledged();
        let undelivered = segments((unacked_bytes as u32).saturating_sub(flight.delivered));
        let handshake = u32::from(self.state.is_synchronized());
        Info {
            state: self.state,
            timestamps,
            sack: self.set.contains(Set::SACK),
            wscale: self.set.contains(Set::SCALING).then_some((self.window_shift, self.receive.shift)),
            syn_data: self.set.contains(Set::SYN_DATA),
            ecn: self.set.contains(Set::ECN),
            in_recovery: self.sender.in_recovery(),
            retransmits: self.sender.consecutive_timeouts(),
            probes: self.probes,
            rto: self.sender.rto(),
            ato: self.ack_delay(),
            snd_mss: mss,
            rcv_mss: self.receive.largest().into(),
            advmss: u32::from(self.path_mss.min(self.own_mss)).saturating_sub(if timestamps {
                12
            } else {
                0
            }),
            pmtu: u32::from(self.path_mss) + fixed + u32::from(ip_header),
            unacked: segments(flight.outstanding),
            sacked: segments(flight.delivered),
            lost: segments(flight.lost + flight.again),
            retrans: segments(flight.again),
            total_retrans: t.retransmissions,
            bytes_retrans: t.retransmitted_bytes,
            last_data_sent: now - self.sender.last_sent(),
            last_ack_recv: now - self.heard_at,
            rtt: self.sender.srtt(),
            rttvar: self.sender.rttvar(),
            min_rtt: self.sender.min_rtt(),
            snd_ssthresh: Some(self.sender.ssthresh()).filter(|&it| it != u32::MAX).map(segments),
            snd_cwnd: self.sender.cwnd() / mss,
            snd_wnd: self.window,
            rcv_wnd: self.receive.edge.max(self.receive.next) - self.receive.next,
            rcv_space: self.receive.space(),
            notsent_bytes: self.unsent_bytes() as u32,
            bytes_sent: c.bytes_sent + t.retransmitted_bytes,
            bytes_acked: self.acknowledged_bytes(),
            bytes_received: c.bytes_received,
            segs_out: c.segments_sent,
            segs_in: c.segments_received,
            data_segs_out: c.data_segments_sent.wrapping_add(t.data_retransmissions),
            data_segs_in: c.data_segments_received,
            delivered: c.data_segments_sent.saturating_sub(undelivered) + handshake,
            rcv_ooopack: t.out_of_order,
            total_rto: t.timeouts,
        }
    }
}
