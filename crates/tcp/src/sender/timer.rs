//! The three timers: retransmission (RFC 6298 section 5), tail loss probe (RFC 8985 section 7), reordering (section 6.2).
//!
//! The retransmission timer runs while anything is unacknowledged. In front of it runs at most one of the others: the reordering timer while
//! something is suspected, the probe's while nothing is amiss at all.

use core::time::Duration;

use super::{Config, Forced, Probe, Sender, Timeout};
use crate::Instant;

/// Without a round-trip time (RFC 8985 section 7.2).
const FIRST_PROBE: Duration = Duration::from_secs(1);
/// A probe waits at least so long: over shorter round trips it is a peer without a core that does not answer, more often than a loss.
const MIN_PROBE: Duration = Duration::from_millis(1);
const NEVER: Instant = Instant(u64::MAX);

#[derive(Debug)]
pub(super) struct Timers {
    /// When the retransmission timer expires, or [`NEVER`]; and the one in front of it.
    rto: Instant,
    early_at: Instant,
    early: Early,
    max_ack_delay_us: u32,
    /// Times a SYN timed out.
    pub(super) syns_lost: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Early {
    None,
    Reordering,
    Probe,
}

impl Timers {
    pub(super) fn new(config: &Config) -> Self {
        let max_ack_delay_us = u32::try_from(config.max_ack_delay.as_micros()).unwrap_or(u32::MAX);
        Self { rto: NEVER, early_at: NEVER, early: Early::None, max_ack_delay_us, syns_lost: 0 }
    }

    fn set_early(&mut self, early: Early, at: Instant) {
        (self.early, self.early_at) = (early, at);
    }

    fn stop_early(&mut self) {
        self.set_early(Early::None, NEVER);
    }
}

impl Sender {
    /// When to call [`on_timeout`](Self::on_timeout); `None` exactly while nothing is unacknowledged.
    pub fn next_timeout(&self) -> Option<Instant> {
        (self.timers.rto != NEVER).then(|| self.timers.rto.min(self.timers.early_at))
    }

    /// Lets the timer expire that is due, if one is.
    pub fn on_timeout(&mut self, now: Instant) -> Timeout {
        if self.timers.rto <= now {
            return self.on_retransmission_timeout(now);
        }
        if self.timers.early_at > now {
            return Timeout::None;
        }
        let early = self.timers.early;
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
        self.timers.rto = now + self.rtt.rto();
        Timeout::Retransmission { consecutive: self.consecutive }
    }

    /// Finds what is lost by time, and sets the reordering timer for what only might be. Returns the bytes lost.
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

    /// Starts the retransmission timer if it does not run, stops all if nothing is unacknowledged (RFC 6298 sections 5.1 and 5.2).
    pub(super) fn arm(&mut self, now: Instant) {
        if self.board.outstanding() == 0 {
            self.timers.rto = NEVER;
            self.timers.stop_early();
        } else if self.timers.rto == NEVER {
            self.timers.rto = now + self.rtt.rto();
        }
    }

    /// Something new was acknowledged, or a probe or the first segment went out: the retransmission timer starts anew (RFC 6298 section 5.3).
    pub(super) fn rearm(&mut self, now: Instant) {
        self.timers.rto = NEVER;
        self.arm(now);
    }

    /// New data went out, or something new was acknowledged: the probe's timer starts anew, where it may (RFC 8985 section 7.2).
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
            (2 * srtt).max(MIN_PROBE)
                + if lone {
                    Duration::from_micros(u64::from(self.timers.max_ack_delay_us))
                } else {
                    Duration::ZERO
                }
        });
        if now + wait < self.timers.rto {
            self.timers.set_early(Early::Probe, now + wait);
        }
    }
}
