//! The timers of a connection: delayed ACK, window probe, keepalive, user timeout, FIN-WAIT-2,
//! TIME-WAIT and the freeing of memory. The sender has its own.
//!
//! Some deadlines are not stored but computed: keepalive from when the peer was last heard, the
//! user timeout from when data was last acknowledged. So the common path, a segment, updates two
//! times and no timer.

use super::{Connection, Events, Set};
use crate::error::Error;
use crate::sender::Timeout;
use crate::state::State;
use crate::state::StateEvent;
use crate::time::Instant;
use core::time::Duration;

/// Empty buffers are freed after one to two of these periods: soon enough for idle connections to
/// be small, seldom enough to cost busy ones nothing.
const TRIM: Duration = Duration::from_secs(1);
/// Longest time between window probes (RFC 9293 section 3.8.6.1 asks for back-off; the bound is RFC
/// 6298's for retransmissions).
const MAX_PERSIST: Duration = Duration::from_secs(60);
/// Longest time for which data is held back while nothing is in flight, because the application
/// asked for full segments only: Linux's 200 ms (tcp(7), TCP_CORK).
const CORK_LIMIT: Duration = Duration::from_millis(200);
/// Retransmissions after which the path is suspected: R1 of RFC 9293 section 3.8.3, at least three.
const SUSPECT_AFTER: u8 = 3;
/// Shortest delay of an ACK on short paths: see
/// [`Config::delayed_ack`](crate::Config::delayed_ack).
const MIN_ACK_DELAY: Duration = Duration::from_millis(2);

impl Connection {
    /// Returns the time at which to call [`handle_timeout`](Self::handle_timeout); `None` if no
    /// timer runs. The time may be earlier than necessary, and lies in the past if a timer has yet
    /// to be started.
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.state == State::Closed {
            return None;
        }
        let mut next = self.receive.ack_at.min(self.persist_at).min(self.expires_at).min(self.trim_at);
        if let Some(at) = self.sender.next_timeout() {
            next = next.min(at).min(self.gives_up_at());
        }
        if let Some(at) = self.keepalive_at() {
            next = next.min(at);
        }
        if self.is_shut_out() {
            next = Instant(0);
        }
        (next != Instant::NEVER).then_some(next)
    }

    /// Runs all expired timers. A call before the deadline does nothing.
    pub fn handle_timeout(&mut self, now: Instant) -> Events {
        if self.state == State::Closed {
            return Events::empty();
        }
        if self.expires_at <= now {
            return self.apply(StateEvent::Expired);
        }
        let mut events = Events::empty();
        if self.sender.next_timeout().is_some() {
            if self.gives_up_at() <= now {
                return self.give_up();
            }
            match self.sender.on_timeout(now) {
                Timeout::Retransmission { consecutive } => {
                    self.counters.troubles().timeouts += 1;
                    if !self.state.is_synchronized() && consecutive > self.syn_retries {
                        return self.give_up();
                    }
                    events.set(Events::SUSPECT_PATH, consecutive >= SUSPECT_AFTER);
                }
                Timeout::Probe => self.counters.troubles().probes += 1,
                Timeout::None | Timeout::Reordering { .. } => {}
            }
        }
        if self.receive.ack_at <= now {
            self.receive.ack_at = Instant::NEVER;
            self.set.insert(Set::ACK_NOW);
        }
        if self.persist_at <= now && self.on_persist(now)
            || self.keepalive_at().is_some_and(|at| at <= now) && self.on_keepalive(now)
        {
            return self.give_up();
        }
        if self.trim_at <= now {
            self.on_trim(now);
        }
        self.arm_persist(now);
        self.finish(events, now)
    }

    /// Handles the expired persist timer: a window probe is due, or a small segment has waited long
    /// enough. Returns true if the connection gives up.
    fn on_persist(&mut self, now: Instant) -> bool {
        self.persist_at = Instant::NEVER;
        // A peer that answers keeps a connection for ever (RFC 9293 section 3.8.6.1), unless the
        // application has dropped it.
        let since = if self.set.contains(Set::RELEASED) { self.progress_at } else { self.heard_at };
        let open = self.is_window_open();
        if open && self.is_corked() {
            self.set.insert(Set::OVERRIDE);
            return false;
        }
        if self.probes > 0 && since + self.user_timeout() <= now {
            return true;
        }
        self.probes = self.probes.saturating_add(1);
        self.set.insert(if open { Set::OVERRIDE } else { Set::PROBE });
        false
    }

    /// Returns true if the peer's window admits new data.
    fn is_window_open(&self) -> bool {
        (self.sender.una() + self.window).distance(self.sender.nxt()) > 0
    }

    /// Handles the expired keepalive timer; returns true if the connection gives up. A user timeout
    /// that was set takes the place of the number of probes, as in Linux.
    fn on_keepalive(&mut self, now: Instant) -> bool {
        let Some(keepalive) = self.probing() else { return false };
        let too_long = match self.own_user_timeout() {
            Some(limit) => self.probes > 0 && self.heard_at + limit <= now,
            None => self.probes >= keepalive.probes,
        };
        if too_long {
            return true;
        }
        self.probes = self.probes.saturating_add(1);
        self.set.insert(Set::PROBE);
        false
    }

    /// Frees buffers that stayed empty since the timer was started. Other buffers are freed when
    /// they become empty, because no timer runs then: see [`give_back`](Self::give_back).
    fn on_trim(&mut self, now: Instant) {
        self.trim_at = Instant::NEVER;
        if self.set.contains(Set::TOUCHED) {
            self.set.remove(Set::TOUCHED);
            self.trim_at = now + TRIM;
        } else {
            self.give_back();
        }
    }

    /// Frees empty buffers, unless they are in use, in which case a timer runs.
    #[inline]
    pub(super) fn give_back(&mut self) {
        if self.trim_at == Instant::NEVER {
            self.receive.trim();
            if self.unacked.len() == 0 {
                self.unacked.release();
                self.sender.trim();
            }
        }
    }

    #[inline]
    pub(super) fn arm_trim(&mut self, now: Instant) {
        if self.trim_at == Instant::NEVER && self.set.contains(Set::TOUCHED) && !self.is_closed() {
            self.set.remove(Set::TOUCHED);
            self.trim_at = now + TRIM;
        }
    }

    /// Returns true if data was handed over while the window was closed and the persist timer was
    /// not started, since `send` does not know the time.
    #[inline]
    fn is_shut_out(&self) -> bool {
        let (una, nxt) = (self.sender.una(), self.sender.nxt());
        self.persist_at == Instant::NEVER
            && una == nxt
            && self.window == 0
            && self.state.is_synchronized()
            && self.has_unsent()
            && !self.set.contains(Set::PROBE)
    }

    /// Returns true if the queued data would wait for ever without the persist timer: nothing is in
    /// flight, and the unsent data may not leave.
    #[inline]
    pub(super) fn is_stuck(&self, now: Instant) -> bool {
        self.state.is_synchronized()
            && self.state != State::TimeWait
            && self.sender.una() == self.sender.nxt()
            && self.has_unsent()
            && !self.set.contains(Set::PROBE)
            && !self.may_send(now)
    }

    /// Starts the persist timer if it is needed, and stops it if it is not.
    #[inline]
    pub(super) fn arm_persist(&mut self, now: Instant) {
        if !self.is_stuck(now) {
            self.persist_at = Instant::NEVER;
        } else if self.persist_at == Instant::NEVER {
            let backed_off = self.sender.rto().saturating_mul(1 << self.probes.min(20)).min(MAX_PERSIST);
            let corked = self.is_corked() && self.is_window_open();
            self.persist_at = now + if corked { CORK_LIMIT } else { backed_off };
        }
    }

    /// Returns true if data or a FIN has not been sent yet.
    pub(super) fn has_unsent(&self) -> bool {
        let unsent = self.data_end().distance(self.sender.nxt());
        unsent > 0 || (unsent == 0 && self.set.contains(Set::FIN_QUEUED))
    }

    /// Returns the deadline of the user timeout. While the peer keeps its window closed and
    /// answers, there is none.
    fn gives_up_at(&self) -> Instant {
        let closed = self.window == 0 && self.state.is_synchronized() && !self.set.contains(Set::RELEASED);
        let since = if closed { self.heard_at.max(self.progress_at) } else { self.progress_at };
        since + self.user_timeout()
    }

    /// Returns the time of the next keepalive probe, if nothing else would detect that the peer is
    /// gone.
    fn keepalive_at(&self) -> Option<Instant> {
        let keepalive = self.probing()?;
        let idle = self.state.is_synchronized()
            && self.state != State::TimeWait
            && self.sender.una() == self.sender.nxt()
            && self.persist_at == Instant::NEVER
            && !self.set.contains(Set::PROBE);
        idle.then(|| self.heard_at + keepalive.after(self.probes))
    }

    /// Returns the longest time an ACK may wait.
    pub(super) fn ack_delay(&self) -> Duration {
        let configured = self.longest_ack_delay();
        self.sender.srtt().map_or(configured, |srtt| (srtt / 4).max(MIN_ACK_DELAY).min(configured))
    }

    /// Fails the connection because the peer has not answered for too long.
    fn give_up(&mut self) -> Events {
        if self.state.is_synchronized() {
            // The peer may still exist, and then it should learn of this (RFC 9293 section 3.8.3
            // and RFC 1122 section 4.2.3.5 leave it open).
            self.set.insert(Set::RESET);
            self.reset_seq = self.sender.nxt();
        }
        let error = self.soft_error.unwrap_or(Error::TimedOut);
        let events = self.fail(error);
        events | if self.set.contains(Set::RESET) { Events::TRANSMIT } else { Events::empty() }
    }

    pub(super) fn stop_timers(&mut self) {
        self.receive.ack_at = Instant::NEVER;
        self.persist_at = Instant::NEVER;
        self.expires_at = Instant::NEVER;
        self.trim_at = Instant::NEVER;
        self.set.remove(Set::PROBE | Set::OVERRIDE);
    }
}
