//! The three timers: retransmission (RFC 6298 section 5), tail loss probe (RFC 8985 section 7),
//! reordering (RFC 8985 section 6.2).
//!
//! The retransmission timer runs while anything is unacknowledged. At most one of the others runs
//! before it: the reordering timer while a loss is suspected, the probe's timer while none is.

use core::time::Duration;

use super::{Forced, Probe, Sender, Timeout};
use crate::time::Instant;

/// Probe time-out before a round-trip time is known (RFC 8985 section 7.2).
const FIRST_PROBE: Duration = Duration::from_secs(1);
/// Shortest probe time-out. Over shorter round trips a missing answer more often means that the
/// peer has no core than that a segment was lost.
const MIN_PROBE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Timers {
    /// Deadline of the retransmission timer, or [`Instant::NEVER`], and of the timer that runs
    /// before it.
    rto: Instant,
    early_at: Instant,
    early: Early,
    /// Number of times a SYN timed out.
    pub(super) syns_lost: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Early {
    None,
    Reordering,
    Probe,
}

impl Timers {
    pub(super) fn new() -> Self {
        Self { rto: Instant::NEVER, early_at: Instant::NEVER, early: Early::None, syns_lost: 0 }
    }

    fn set_early(&mut self, early: Early, at: Instant) {
        (self.early, self.early_at) = (early, at);
    }

    fn stop_early(&mut self) {
        self.set_early(Early::None, Instant::NEVER);
    }
}

impl Sender {
    /// Returns the time at which to call [`on_timeout`](Self::on_timeout); `None` exactly while
    /// nothing is unacknowledged.
    pub fn next_timeout(&self) -> Option<Instant> {
        (self.timers.rto != Instant::NEVER).then(|| self.timers.rto.min(self.timers.early_at))
    }

    /// Runs the expired timer, if there is one; returns its effect.
    pub fn on_timeout(&mut self, now: Instant) -> Timeout {
        // A probe takes the place of the time-out that it coincides with.
        let early = self.timers.early;
        if self.timers.rto <= now && (early != Early::Probe || self.timers.early_at > self.timers.rto) {
            return self.on_retransmission_timeout(now);
        }
        if self.timers.early_at > now {
            return Timeout::None;
        }
        self.timers.stop_early();
        match early {
            Early::None => Timeout::None,
            Early::Reordering => {
                let lost = self.detect(now);
                if lost > 0 && !self.in_recovery() {
                    self.enter_recovery();
                    self.reduce_rate(0, false);
                }
                Timeout::Reordering { lost }
            }
            Early::Probe => {
                self.forced = Forced::Probe;
                self.rearm(now);
                Timeout::Probe
            }
        }
    }

    fn on_retransmission_timeout(&mut self, now: Instant) -> Timeout {
        self.consecutive = self.consecutive.saturating_add(1);
        if !self.established {
            self.timers.syns_lost = self.timers.syns_lost.saturating_add(1);
        }
        self.rtt.back_off();
        self.probe = Probe::None;
        self.enter_timeout(now);
        self.timers.stop_early();
        self.timers.rto = now + self.retransmission_timeout();
        Timeout::Retransmission { consecutive: self.consecutive }
    }

    /// Returns the time-out of the outstanding data. A peer that holds data beyond a gap
    /// acknowledges every segment at once, those that fill the gap too (RFC 5681 section 4.2): its
    /// delay then does not count, and a lost retransmission is noticed sooner.
    fn retransmission_timeout(&self) -> Duration {
        let gap = self.board.delivered() > 0 || self.duplicated > 0;
        if gap { self.rtt.prompt_rto() } else { self.rtt.rto() }
    }

    /// Marks data that is lost by time and sets the reordering timer for suspected data; returns
    /// the bytes lost.
    pub(super) fn detect(&mut self, now: Instant) -> u32 {
        let around = self.circumstances();
        let found = self.rack.detect(&mut self.board, &around, now);
        if let Some(at) = found.check_at {
            self.timers.set_early(Early::Reordering, at);
        } else if self.timers.early == Early::Reordering {
            self.timers.stop_early();
        }
        found.lost
    }

    /// Starts the retransmission timer if it does not run; stops all timers if nothing is
    /// unacknowledged (RFC 6298 sections 5.1 and 5.2).
    pub(super) fn arm(&mut self, now: Instant) {
        if self.board.outstanding() == 0 {
            self.timers.rto = Instant::NEVER;
            self.timers.stop_early();
        } else if self.timers.rto == Instant::NEVER {
            self.timers.rto = now + self.retransmission_timeout();
        }
    }

    /// Restarts the retransmission timer after new data was acknowledged or a probe or the first
    /// segment was sent (RFC 6298 section 5.3).
    pub(super) fn rearm(&mut self, now: Instant) {
        self.timers.rto = Instant::NEVER;
        self.arm(now);
    }

    /// Restarts the probe's timer, if it may run, after new data was sent or acknowledged (RFC 8985
    /// section 7.2).
    pub(super) fn arm_probe(&mut self, now: Instant) {
        if self.timers.early == Early::Probe {
            self.timers.stop_early();
        }
        let quiet = self.sack
            && self.timers.early == Early::None
            && self.forced != Forced::Probe
            && self.probe == Probe::None
            && !self.in_recovery()
            && self.board.outstanding() > 0
            && self.board.outstanding() == self.board.in_flight();
        if !quiet {
            return;
        }
        let wait = self.rtt.srtt().map_or(FIRST_PROBE, |srtt| {
            let lone = self.board.outstanding() <= self.mss;
            let delay = if lone { self.rtt.max_ack_delay() } else { Duration::ZERO };
            (2 * srtt).max(MIN_PROBE) + delay
        });
        // Not later than the time-out, which the probe then replaces (section 7.2).
        self.timers.set_early(Early::Probe, self.timers.rto.min(now + wait));
    }
}
