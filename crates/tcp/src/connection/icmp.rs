//! ICMP errors about a connection, which are hints only, because any host can forge them (RFC
//! 5927), and the size of segments that its path carries.

use super::{Connection, Events, MIN_MSS};
use crate::error::Error;
use crate::seq::Seq;
use crate::state::State;
use crate::time::Instant;

/// An ICMP error that quotes a segment of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IcmpError {
    /// Destination unreachable: network (RFC 792), no route (RFC 4443).
    NetworkUnreachable,
    /// Destination unreachable: host or address.
    HostUnreachable,
    /// Destination unreachable: protocol, or an unknown next header.
    ProtocolUnreachable,
    /// Destination unreachable: port.
    PortUnreachable,
    /// Destination unreachable: administratively prohibited.
    Prohibited,
    /// Time exceeded, parameter problem and the like.
    Other,
}

impl Connection {
    /// Handles an ICMP error that quotes a segment of this side with number `seq`; ignores it if
    /// that number is not in flight (RFC 5927 section 4.1).
    ///
    /// An attempt to connect fails at once, as in Linux (RFC 5461 section 4.1): the caller may have
    /// another address to try. An established connection continues (RFC 5927 section 5.2): the
    /// error is remembered until a segment of the peer arrives, and becomes the reason if the
    /// connection times out.
    pub fn handle_icmp(&mut self, error: IcmpError, seq: Seq) -> Events {
        if !self.is_in_flight(seq) {
            return Events::empty();
        }
        let error = match error {
            IcmpError::NetworkUnreachable => Error::NetworkUnreachable,
            IcmpError::HostUnreachable | IcmpError::Prohibited | IcmpError::Other => Error::HostUnreachable,
            IcmpError::ProtocolUnreachable | IcmpError::PortUnreachable => Error::Refused,
        };
        if self.is_connecting() {
            return self.fail(error);
        }
        self.soft_error = Some(error);
        Events::empty()
    }

    /// Handles the end of the peer's program, of which the caller is certain, as a reset of the
    /// peer. A connection that the peer has closed goes on: what it has sent is complete, and a
    /// segment to it is answered with a reset.
    pub fn handle_departure(&mut self) -> Events {
        match self.state {
            State::SynSent | State::SynReceived => self.fail(Error::Refused),
            State::Established | State::FinWait1 | State::FinWait2 => self.fail(Error::Reset),
            State::CloseWait | State::Closing | State::LastAck | State::TimeWait | State::Closed => {
                Events::empty()
            }
        }
    }

    /// Sets the most bytes a segment may carry behind the fixed header on this path: the MTU less
    /// the IP header and 20 bytes (RFC 1191, RFC 8201).
    ///
    /// A router's report comes with the number it `quoted`, which must be in flight (RFC 5927
    /// section 7.2), and can only lower the size. Without `quoted` the caller vouches for the
    /// value, for example for the MTU of a new route, and it may rise.
    pub fn set_path_mtu(&mut self, path_mss: u16, quoted: Option<Seq>, now: Instant) -> Events {
        let path_mss = path_mss.max(MIN_MSS);
        let believed = quoted.is_none_or(|seq| self.is_in_flight(seq) && path_mss < self.path_mss);
        if believed && path_mss != self.path_mss && !self.is_closed() {
            self.path_mss = path_mss;
            self.sender.on_mss_changed(self.segment_mss(), now);
        }
        self.finish(Events::empty(), now)
    }

    /// Returns the most bytes that a segment may carry on this path, whatever the peer announced:
    /// see [`set_path_mtu`](Self::set_path_mtu).
    #[inline]
    pub fn path_mss(&self) -> u16 {
        self.path_mss
    }

    /// Raises the size of [`path_mss`](Self::path_mss) for a peer that turns out to be nearer than
    /// its link. If it announced at least `link_mss`, what the link carries, its segments get
    /// `path_mss` bytes; if less, what it announced. No effect if the path is as wide already,
    /// before the handshake is over, or unless an acceptable segment came at `now`.
    pub fn widen_path(&mut self, path_mss: u16, link_mss: u16, now: Instant) {
        let knows = self.heard_at == now && self.state.is_synchronized();
        if path_mss <= self.path_mss || !knows {
            return;
        }
        if self.peer_mss >= link_mss {
            self.peer_mss = self.peer_mss.max(path_mss);
        }
        self.path_mss = path_mss;
        self.sender.on_mss_changed(self.segment_mss(), now);
    }

    /// Returns the bytes of data in a full segment without SACK blocks, as
    /// [`Negotiated::mss`](crate::sender::Negotiated::mss) counts them.
    pub(super) fn segment_mss(&self) -> u32 {
        let timestamps = if self.set.contains(super::Set::TIMESTAMPS) { 12 } else { 0 };
        u32::from(self.path_mss.min(self.peer_mss).min(self.own_mss)).saturating_sub(timestamps).max(1)
    }

    /// Returns true if `seq` was sent and is not acknowledged. An ICMP error must quote such a
    /// number to be believed (RFC 5927 section 4.1).
    pub fn is_in_flight(&self, seq: Seq) -> bool {
        self.sender.una() <= seq && seq < self.sender.nxt()
    }
}
