//! One neighbour as a state machine. Time is an argument.
//!
//! The states are those of RFC 4861 section 7.3.2 without DELAY; the timing is RFC 1122 section
//! 2.3.2.1's for ARP.
//!
//! | state | packet to send | evidence of MAC | packets seem lost | timer expires |
//! |---|---|---|---|---|
//! | Incomplete | waits | Reachable, packets go | - | asks; third time: Failed |
//! | Reachable | goes | Reachable anew ¹ | Probe, asks ² | Stale |
//! | Stale | goes; Probe, asks | Reachable | - | removed |
//! | Probe | goes | Reachable | - | asks; third time: removed |
//! | Failed | fails | Reachable | - | removed |
//!
//! ¹ Another MAC address is accepted at most once a second, and in no state from a
//! [weak answer](Evidence::WeakAnswer). ² Unless there was evidence within a
//! second. In Probe the known station alone is asked, in Incomplete all stations.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::time::Duration;
use tailwater_wire::MacAddr;

/// Time between two questions for one neighbour: at most one a second (RFC 1122 section 2.3.2.1).
pub const RETRY: Duration = Duration::from_secs(1);
/// Questions after which a neighbour is unreachable.
pub const TRIES: u8 = 3;
/// Time for which evidence is valid: "on the order of a minute" (RFC 1122 section 2.3.2.1).
pub const REACHABLE: Duration = Duration::from_secs(60);
/// Time after which a stale, unused neighbour is removed.
pub const FORGET: Duration = Duration::from_secs(600);
/// Time for which packets to a neighbour that did not answer fail without another question.
pub const HOLD_DOWN: Duration = Duration::from_secs(3);
/// Minimum time between two changes of a neighbour's MAC address, so that two stations with one
/// address do not redirect every packet.
pub const SETTLE: Duration = Duration::from_secs(1);
/// Bytes of packets that wait for one neighbour; older ones are dropped for newer ones (RFC 1122
/// section 2.3.2.2 requires room for one packet). This is room for the handshakes of two hundred
/// connections that begin at once, so that none waits for a retransmission a second later.
pub const PENDING_BYTES: usize = 16 << 10;

/// A frame that waits for its destination MAC address.
pub type PendingFrame = Box<[u8]>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Incomplete { tries: u8, retry_at: Duration },
    Reachable { mac: MacAddr, until: Duration, changed_at: Duration },
    Stale { mac: MacAddr, forget_at: Duration },
    Probe { mac: MacAddr, tries: u8, retry_at: Duration },
    Failed { until: Duration },
}

/// The stations asked for a neighbour's MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// All stations.
    All,
    /// The last known station.
    Station(MacAddr),
}

/// The fate of a packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Use {
    /// It goes to this station; a question may be due whether the neighbour is still there.
    Go(MacAddr, Option<Ask>),
    /// It waits.
    Wait,
    /// It cannot be delivered.
    Fail,
}

/// The effect of an expired timer.
#[derive(Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Nothing is due.
    Nothing,
    /// The neighbour is stale: the next packet goes through [`Entry::use_now`].
    Aged,
    /// Send another question.
    Ask(Ask),
    /// The neighbour did not answer; these packets cannot be delivered.
    Failed(VecDeque<PendingFrame>),
    /// Remove the entry.
    Forget,
}

/// The kind of evidence of a MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// A request for this host: its sender is about to be answered, so it is added if unknown.
    Request,
    /// An answer, or an announcement.
    Answer,
    /// An answer that does not replace another station (RFC 4861 section 7.2.5).
    WeakAnswer,
}

/// The effect of evidence of a MAC address.
#[derive(Debug, PartialEq, Eq)]
pub enum Learned {
    /// It is accepted; these packets can be sent.
    Accepted(VecDeque<PendingFrame>),
    /// It is ignored: it came too soon after other evidence, or may not replace the known station.
    Ignored,
}

/// A neighbour.
#[derive(Debug)]
pub struct Entry {
    state: State,
    pending: VecDeque<PendingFrame>,
}

impl Entry {
    /// Makes a neighbour that is solicited now.
    pub fn wanted(now: Duration) -> Self {
        Self { state: State::Incomplete { tries: 1, retry_at: now + RETRY }, pending: VecDeque::new() }
    }

    /// Makes a neighbour from evidence.
    pub fn known(mac: MacAddr, now: Duration) -> Self {
        let state = State::Reachable { mac, until: now + REACHABLE, changed_at: now };
        Self { state, pending: VecDeque::new() }
    }

    /// Handles a packet to this neighbour.
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

    /// Handles signs that packets to this neighbour are lost. Evidence within the last second makes
    /// a question unnecessary.
    pub fn doubt(&mut self, now: Duration) -> Option<Ask> {
        match self.state {
            State::Reachable { mac, until, .. } if until + RETRY <= now + REACHABLE => {
                self.state = State::Probe { mac, tries: 1, retry_at: now + RETRY };
                Some(Ask::Station(mac))
            }
            _ => None,
        }
    }

    /// Keeps `frame` until the neighbour is known; returns how many older frames were dropped for
    /// it.
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

    /// Handles evidence that the neighbour has `mac`.
    pub fn handle_evidence(&mut self, mac: MacAddr, evidence: Evidence, now: Duration) -> Learned {
        if evidence == Evidence::WeakAnswer && self.station().is_some_and(|known| known != mac) {
            return Learned::Ignored;
        }
        let mut changed_at = now;
        if let State::Reachable { mac: old, changed_at: last, .. } = self.state {
            if old == mac {
                changed_at = last;
            } else if now < last + SETTLE {
                return Learned::Ignored;
            }
        }
        self.state = State::Reachable { mac, until: now + REACHABLE, changed_at };
        Learned::Accepted(core::mem::take(&mut self.pending))
    }

    /// Returns when [`poll`](Self::poll) is due.
    pub fn deadline(&self) -> Duration {
        match self.state {
            State::Incomplete { retry_at, .. } | State::Probe { retry_at, .. } => retry_at,
            State::Reachable { until, .. } | State::Failed { until } => until,
            State::Stale { forget_at, .. } => forget_at,
        }
    }

    /// Runs the timer if it has expired.
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

    /// Returns the known MAC address, fresh or not.
    fn station(&self) -> Option<MacAddr> {
        match self.state {
            State::Reachable { mac, .. } | State::Stale { mac, .. } | State::Probe { mac, .. } => Some(mac),
            State::Incomplete { .. } | State::Failed { .. } => None,
        }
    }

    /// Returns the MAC address while it may be used without [`use_now`](Self::use_now).
    pub fn fresh(&self) -> Option<MacAddr> {
        match self.state {
            State::Reachable { mac, .. } => Some(mac),
            _ => None,
        }
    }

    /// Returns whether packets wait for it.
    pub fn is_awaited(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns the entry's rank for eviction, lowest first; `None` if packets wait for it.
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
