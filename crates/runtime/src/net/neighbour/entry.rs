//! One neighbour as a state machine: pure, time is an argument.
//!
//! The states are those of RFC 4861 section 7.3.2 without DELAY; the timing is RFC 1122 section 2.3.2.1's for ARP.
//!
//! | state | a packet wants it | evidence of its MAC address | packets seem lost | the timer runs out |
//! |---|---|---|---|---|
//! | Incomplete | waits | Reachable, packets go | stays | asks again; the third time: Failed, packets fail |
//! | Reachable | goes | stays, from now (another MAC: at most once a second) | Probe, asks that MAC (unless heard within a second) | Stale |
//! | Stale | goes; Probe, asks that MAC | Reachable | stays: the next packet asks | forgotten |
//! | Probe | goes | Reachable | stays | asks again; the third time: forgotten |
//! | Failed | fails | Reachable | stays | forgotten |

use crate::net::wire::MacAddr;
use core::time::Duration;
use std::collections::VecDeque;

/// Between two questions for one neighbour: at most one a second (RFC 1122 section 2.3.2.1).
pub const RETRY: Duration = Duration::from_secs(1);
/// Questions before a neighbour counts as unreachable.
pub const TRIES: u8 = 3;
/// How long evidence is believed: "on the order of a minute" (RFC 1122 section 2.3.2.1).
pub const REACHABLE: Duration = Duration::from_secs(60);
/// How long a neighbour nobody needs is remembered after that.
pub const FORGET: Duration = Duration::from_secs(600);
/// How long a neighbour that did not answer is taken for unreachable without asking again.
pub const HOLD_DOWN: Duration = Duration::from_secs(3);
/// A neighbour's MAC address changes at most once in this time, so that of two stations that fight for an address neither makes
/// every packet change its way.
pub const SETTLE: Duration = Duration::from_secs(1);
/// Bytes of packets that wait for one neighbour; the oldest go when others come (RFC 1122 section 2.3.2.2 asks for at least one
/// packet). Room for the handshakes of two hundred connections that begin at once, so that none has to wait for its
/// repetition a second later.
pub const PENDING_BYTES: usize = 16 << 10;

/// A frame without its destination MAC address, which waits for it.
pub type PendingFrame = Box<[u8]>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Incomplete { tries: u8, retry_at: Duration },
    Reachable { mac: MacAddr, until: Duration, changed_at: Duration },
    Stale { mac: MacAddr, forget_at: Duration },
    Probe { mac: MacAddr, tries: u8, retry_at: Duration },
    Failed { until: Duration },
}

/// Whom to ask for a neighbour's MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Everybody.
    All,
    /// The station that had it.
    Station(MacAddr),
}

/// What becomes of a packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Use {
    /// It goes to this station; the neighbour may have to be asked whether it is still there.
    Go(MacAddr, Option<Ask>),
    /// It waits.
    Wait,
    /// It cannot be delivered.
    Fail,
}

/// What the timer brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Nothing is due.
    Nothing,
    /// The neighbour's address is no longer fresh: uses must go through [`Entry::use_now`] again.
    Aged,
    /// Ask again.
    Ask(Ask),
    /// It did not answer; these packets cannot be delivered.
    Failed(VecDeque<PendingFrame>),
    /// Nothing worth keeping is left.
    Forget,
}

/// Evidence of a MAC address and what it did.
#[derive(Debug, PartialEq, Eq)]
pub enum Learned {
    /// It is believed; these packets may go.
    Accepted(VecDeque<PendingFrame>),
    /// It came too soon after another.
    TooSoon,
}

/// A neighbour.
#[derive(Debug)]
pub struct Entry {
    state: State,
    pending: VecDeque<PendingFrame>,
}

impl Entry {
    /// A neighbour that must be asked for now.
    pub fn wanted(now: Duration) -> Self {
        Self { state: State::Incomplete { tries: 1, retry_at: now + RETRY }, pending: VecDeque::new() }
    }

    /// A neighbour that made itself known.
    pub fn known(mac: MacAddr, now: Duration) -> Self {
        let state = State::Reachable { mac, until: now + REACHABLE, changed_at: now };
        Self { state, pending: VecDeque::new() }
    }

    /// A packet wants to go to this neighbour.
    pub fn use_now(&mut self, now: Duration) -> Use {
        match self.state {
            State::Incomplete { .. } => Use::Wait,
            State::Reachable { mac, .. } | State::Probe { mac, .. } => Use::Go(mac, None),
            State::Stale { mac, .. } => {
                self.state = State::Probe { mac, tries: 1, retry_at: now + RETRY };
                Use::Go(mac, Some(Ask::Station(mac)))
            }
            State::Failed { .. } => Use::Fail,
        }
    }

    /// Packets to this neighbour seem to be lost. Whoever was heard within a second need not be asked.
    pub fn doubt(&mut self, now: Duration) -> Option<Ask> {
        match self.state {
            State::Reachable { mac, until, .. } if until + RETRY <= now + REACHABLE => {
                self.state = State::Probe { mac, tries: 1, retry_at: now + RETRY };
                Some(Ask::Station(mac))
            }
            _ => None,
        }
    }

    /// Keeps `frame` until the neighbour is known. How many older ones that pushed out.
    pub fn enqueue(&mut self, frame: PendingFrame) -> usize {
        debug_assert!(
            matches!(self.state, State::Incomplete { .. }),
            "packets wait for unknown neighbours only"
        );
        let mut bytes = frame.len() + self.pending.iter().map(|frame| frame.len()).sum::<usize>();
        let mut dropped = 0;
        while bytes > PENDING_BYTES
            && let Some(oldest) = self.pending.pop_front()
        {
            bytes -= oldest.len();
            dropped += 1;
        }
        self.pending.push_back(frame);
        dropped
    }

    /// The neighbour was heard to have `mac`.
    pub fn handle_evidence(&mut self, mac: MacAddr, now: Duration) -> Learned {
        let mut changed_at = now;
        if let State::Reachable { mac: old, changed_at: last, .. } = self.state {
            if old == mac {
                changed_at = last;
            } else if now < last + SETTLE {
                return Learned::TooSoon;
            }
        }
        self.state = State::Reachable { mac, until: now + REACHABLE, changed_at };
        Learned::Accepted(core::mem::take(&mut self.pending))
    }

    /// When [`poll`](Self::poll) is due.
    pub fn deadline(&self) -> Duration {
        match self.state {
            State::Incomplete { retry_at, .. } | State::Probe { retry_at, .. } => retry_at,
            State::Reachable { until, .. } | State::Failed { until } => until,
            State::Stale { forget_at, .. } => forget_at,
        }
    }

    /// Lets time pass.
    pub fn poll(&mut self, now: Duration) -> Expiry {
        if now < self.deadline() {
            return Expiry::Nothing;
        }
        match self.state {
            State::Incomplete { tries, .. } if tries < TRIES => {
                self.state = State::Incomplete { tries: tries + 1, retry_at: now + RETRY };
                Expiry::Ask(Ask::All)
            }
            State::Incomplete { .. } => {
                self.state = State::Failed { until: now + HOLD_DOWN };
                Expiry::Failed(core::mem::take(&mut self.pending))
            }
            State::Reachable { mac, .. } => {
                self.state = State::Stale { mac, forget_at: now + FORGET };
                Expiry::Aged
            }
            State::Probe { mac, tries, .. } if tries < TRIES => {
                self.state = State::Probe { mac, tries: tries + 1, retry_at: now + RETRY };
                Expiry::Ask(Ask::Station(mac))
            }
            State::Probe { .. } | State::Stale { .. } | State::Failed { .. } => Expiry::Forget,
        }
    }

    /// The MAC address, while it may be used without [`use_now`](Self::use_now).
    pub fn fresh(&self) -> Option<MacAddr> {
        match self.state {
            State::Reachable { mac, .. } => Some(mac),
            _ => None,
        }
    }

    /// How little is lost by forgetting this neighbour to make room; `None` if packets wait for it.
    pub fn worth(&self) -> Option<(u8, Duration)> {
        match self.state {
            State::Incomplete { .. } => None,
            State::Failed { until } => Some((0, until)),
            State::Stale { forget_at, .. } => Some((1, forget_at)),
            State::Reachable { until, .. } => Some((2, until)),
            State::Probe { retry_at, .. } => Some((3, retry_at)),
        }
    }
}
