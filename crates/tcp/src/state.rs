//! The states of a connection and the table of their transitions (RFC 9293 section 3.3.2, figure
//! 5).
//!
//! LISTEN is not among them: a [listener](crate::listen) is not a connection. The connection
//! decides that an event happened (that a FIN is in order, that an ACK covers the FIN of this
//! side); the table says what follows.

/// A state of RFC 9293 section 3.3.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// A SYN is sent, or about to be.
    SynSent,
    /// A SYN was received and one sent; neither side knows yet that the other has received both.
    SynReceived,
    /// Data flows both ways.
    Established,
    /// This side closed; its FIN is queued, or sent and not acknowledged.
    FinWait1,
    /// The FIN is acknowledged; the peer may go on sending.
    FinWait2,
    /// The peer closed; this side may go on sending.
    CloseWait,
    /// Both closed at the same time; this side's FIN is not acknowledged.
    Closing,
    /// The peer closed, then this side; this side's FIN is not acknowledged.
    LastAck,
    /// Both directions are closed; old duplicates may still arrive.
    TimeWait,
    /// No connection.
    Closed,
}

/// An event that may change a connection's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StateEvent {
    /// A SYN that does not acknowledge this side's: both sides open at the same time.
    Syn,
    /// A SYN that acknowledges this side's.
    SynAck,
    /// An ACK of this side's SYN.
    SynAcked,
    /// The application closed its direction.
    Close,
    /// A FIN with everything before it received.
    Fin,
    /// An ACK of this side's FIN.
    FinAcked,
    /// A reset by either side, or a time-out of the connection.
    Reset,
    /// The time limit of FIN-WAIT-2 or TIME-WAIT has passed.
    Expired,
}

impl State {
    /// All states.
    pub const ALL: [Self; 10] = [
        Self::SynSent,
        Self::SynReceived,
        Self::Established,
        Self::FinWait1,
        Self::FinWait2,
        Self::CloseWait,
        Self::Closing,
        Self::LastAck,
        Self::TimeWait,
        Self::Closed,
    ];

    /// Returns the state after `event`; `None` if it cannot happen or changes nothing.
    #[inline]
    pub const fn after(self, event: StateEvent) -> Option<Self> {
        use State as S;
        use StateEvent as E;
        Some(match (self, event) {
            (S::SynSent, E::Syn) => S::SynReceived,
            (S::SynSent, E::SynAck) | (S::SynReceived, E::SynAcked) => S::Established,
            // Nothing was promised to the peer yet (RFC 9293 section 3.10.4).
            (S::SynSent, E::Close) => S::Closed,
            // In SYN-RECEIVED the FIN waits for ESTABLISHED, by the same section.
            (S::Established, E::Close) => S::FinWait1,
            (S::CloseWait, E::Close) => S::LastAck,
            (S::Established, E::Fin) => S::CloseWait,
            (S::FinWait1, E::Fin) => S::Closing,
            (S::FinWait2, E::Fin) => S::TimeWait,
            (S::FinWait1, E::FinAcked) => S::FinWait2,
            (S::Closing, E::FinAcked) => S::TimeWait,
            (S::LastAck, E::FinAcked) => S::Closed,
            (S::FinWait2 | S::TimeWait, E::Expired) => S::Closed,
            (S::Closed, E::Reset) => return None,
            (_, E::Reset) => S::Closed,
            _ => return None,
        })
    }

    /// Returns true if both sides know that there is a connection (RFC 9293 section 3.5.2, group
    /// 3).
    #[inline]
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, Self::SynSent | Self::SynReceived | Self::Closed)
    }

    /// Returns true if data from the peer is expected.
    #[inline]
    pub const fn receives(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }

    /// Returns true if the application may hand over data.
    #[inline]
    pub const fn sends(self) -> bool {
        matches!(self, Self::SynSent | Self::SynReceived | Self::Established | Self::CloseWait)
    }

    /// Returns true if the peer's FIN was received.
    #[inline]
    pub const fn peer_closed(self) -> bool {
        matches!(self, Self::CloseWait | Self::Closing | Self::LastAck | Self::TimeWait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;

    const EVENTS: [StateEvent; 8] = [
        StateEvent::Syn,
        StateEvent::SynAck,
        StateEvent::SynAcked,
        StateEvent::Close,
        StateEvent::Fin,
        StateEvent::FinAcked,
        StateEvent::Reset,
        StateEvent::Expired,
    ];

    /// Figure 5 of RFC 9293, line by line, with resets and timeouts.
    const TABLE: &str = "\
SynSent Syn SynReceived
SynSent SynAck Established
SynSent Close Closed
SynSent Reset Closed
SynReceived SynAcked Established
SynReceived Reset Closed
Established Close FinWait1
Established Fin CloseWait
Established Reset Closed
FinWait1 Fin Closing
FinWait1 FinAcked FinWait2
FinWait1 Reset Closed
FinWait2 Fin TimeWait
FinWait2 Reset Closed
FinWait2 Expired Closed
CloseWait Close LastAck
CloseWait Reset Closed
Closing FinAcked TimeWait
Closing Reset Closed
LastAck FinAcked Closed
LastAck Reset Closed
TimeWait Reset Closed
TimeWait Expired Closed
";

    #[test]
    fn the_whole_table() {
        let mut table = String::new();
        for state in State::ALL {
            for event in EVENTS {
                if let Some(next) = state.after(event) {
                    table += &format!("{state:?} {event:?} {next:?}\n");
                }
            }
        }
        assert_eq!(table, TABLE);
    }

    #[test]
    fn every_state_can_end_and_closed_is_the_end() {
        for state in State::ALL {
            assert_eq!(state.after(StateEvent::Reset), (state != State::Closed).then_some(State::Closed));
            for event in EVENTS {
                assert_ne!(state.after(event), Some(state), "a transition changes the state");
            }
        }
        assert!(EVENTS.iter().all(|&event| State::Closed.after(event).is_none()));
    }

    #[test]
    fn no_state_after_the_peer_closed_goes_back() {
        for state in State::ALL.into_iter().filter(|state| state.peer_closed()) {
            for next in EVENTS.into_iter().filter_map(|event| state.after(event)) {
                assert!(next.peer_closed() || next == State::Closed, "{state:?} to {next:?}");
            }
        }
    }
}
