//! The states of a connection and the one table of how they change (RFC 9293 section 3.3.2, figure 5).
//!
//! LISTEN is not among them: a [listener](crate::listen) is no connection. Deciding that an event happened (that a FIN is
//! in order, that an ACK covers ours) is the connection's; what follows from it is here.

/// A state of RFC 9293 section 3.3.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// A SYN is sent, or about to be.
    SynSent,
    /// A SYN was received and one sent; neither side knows yet that the other has both.
    SynReceived,
    /// Data flows both ways.
    Established,
    /// This side closed; its FIN is queued, or sent and not acknowledged.
    FinWait1,
    /// The FIN is acknowledged; the peer may go on sending.
    FinWait2,
    /// The peer closed; this side may go on sending.
    CloseWait,
    /// Both closed at the same time; our FIN is not acknowledged.
    Closing,
    /// The peer closed, then this side; our FIN is not acknowledged.
    LastAck,
    /// All is said; old duplicates may still arrive.
    TimeWait,
    /// No connection.
    Closed,
}

/// What can happen to a connection, as far as its state is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// A SYN without an ACK of ours: both sides open at the same time.
    Syn,
    /// A SYN with an ACK of ours.
    SynAck,
    /// An ACK of our SYN.
    SynAcked,
    /// The application closed its direction.
    Close,
    /// A FIN, everything before it received.
    Fin,
    /// An ACK of our FIN.
    FinAcked,
    /// A reset by either side, or giving up.
    Reset,
    /// The time of a state that does not last is over.
    Expired,
}

impl State {
    /// All of them.
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

    /// The state after `event`; `None` if it cannot happen or changes nothing.
    #[inline]
    pub const fn after(self, event: Event) -> Option<Self> {
        use Event as E;
        use State as S;
        Some(match (self, event) {
            (S::SynSent, E::Syn) => S::SynReceived,
            (S::SynSent, E::SynAck) | (S::SynReceived, E::SynAcked) => S::Established,
            // Nothing was promised to anybody yet (RFC 9293 section 3.10.4).
            (S::SynSent, E::Close) => S::Closed,
            // In SYN-RECEIVED the FIN waits for ESTABLISHED, as the same section has it.
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

    /// Whether both sides know that there is a connection (RFC 9293 section 3.5.2, group 3).
    #[inline]
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, Self::SynSent | Self::SynReceived | Self::Closed)
    }

    /// Whether data of the peer is expected.
    #[inline]
    pub const fn receives(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }

    /// Whether the application may hand over data.
    #[inline]
    pub const fn sends(self) -> bool {
        matches!(self, Self::SynSent | Self::SynReceived | Self::Established | Self::CloseWait)
    }

    /// Whether the peer's FIN was received.
    #[inline]
    pub const fn peer_closed(self) -> bool {
        matches!(self, Self::CloseWait | Self::Closing | Self::LastAck | Self::TimeWait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [Event; 8] = [
        Event::Syn,
        Event::SynAck,
        Event::SynAcked,
        Event::Close,
        Event::Fin,
        Event::FinAcked,
        Event::Reset,
        Event::Expired,
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
            assert_eq!(state.after(Event::Reset), (state != State::Closed).then_some(State::Closed));
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
