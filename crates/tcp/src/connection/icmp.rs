//! What routers say about a connection: hints, for anybody can forge them (RFC 5927).

use super::{Connection, Events, MIN_MSS};
use crate::{Error, Instant, Seq, State};

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
    /// Takes an ICMP error that quoted `seq` of a segment of ours; those whose number is not in flight are ignored (RFC
    /// 5927 section 4.1).
    ///
    /// Hard errors end a connection that is not yet established. Otherwise all are soft (RFC 5927 section 5.2, RFC 5461):
    /// remembered, and the reason given should the connection time out.
    pub fn handle_icmp(&mut self, error: IcmpError, seq: Seq) -> Events {
        if !self.is_in_flight(seq) {
            return Events::empty();
        }
        let connecting = matches!(self.state, State::SynSent | State::SynReceived);
        match error {
            IcmpError::NetworkUnreachable => self.soft_error = Some(Error::NetworkUnreachable),
            IcmpError::HostUnreachable => self.soft_error = Some(Error::HostUnreachable),
            IcmpError::ProtocolUnreachable | IcmpError::PortUnreachable | IcmpError::Prohibited
                if connecting =>
            {
                return self.fail(Error::Refused);
            }
            _ => {}
        }
        Events::empty()
    }

    /// The path takes segments of at most `path_mss` bytes behind the fixed header (the MTU less the IP header and 20
    /// bytes; RFC 1191, RFC 8201). A router's word comes with the number it `quoted`, which must be in flight (RFC 5927
    /// section 7.2), and only ever lowers the size; without one the caller vouches for it, a route's new MTU say, and it
    /// may rise.
    pub fn set_path_mtu(&mut self, path_mss: u16, quoted: Option<Seq>, now: Instant) -> Events {
        let path_mss = path_mss.max(MIN_MSS);
        let believed = quoted.is_none_or(|seq| self.is_in_flight(seq) && path_mss < self.path_mss);
        if believed && path_mss != self.path_mss && !self.is_closed() {
            self.path_mss = path_mss;
            self.sender.on_mss_changed(self.segment_mss(), now);
        }
        self.finish(Events::empty(), now)
    }

    /// Data in a full segment without SACK blocks, as [`Negotiated::mss`](crate::sender::Negotiated::mss) counts it.
    pub(super) fn segment_mss(&self) -> u32 {
        let timestamps = if self.set.contains(super::Set::TIMESTAMPS) { 12 } else { 0 };
        u32::from(self.path_mss.min(self.peer_mss)).saturating_sub(timestamps).max(1)
    }

    /// Whether `seq` was sent and is not acknowledged: what an ICMP error must quote to be believed (RFC 5927 section 4.1).
    pub fn is_in_flight(&self, seq: Seq) -> bool {
        self.sender.una() <= seq && seq < self.sender.nxt()
    }
}
