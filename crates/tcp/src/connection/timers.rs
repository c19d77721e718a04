//! The timers of a connection: delayed ACK, window probe, keepalive, user timeout, FIN-WAIT-2, TIME-WAIT and giving memory
//! back, beside those of the sender.
//!
//! A timer that is not kept as a moment is computed: keepalive from when the peer was last heard, the user timeout from when
//! something was last acknowledged. So the common path, a segment, moves two numbers and no timer.

use super::{Connection, Events, NEVER, Set};
use crate::sender::Timeout;
use crate::state::Event;
use crate::{Error, Instant, State};
use core::time::Duration;

/// Buffers that lie empty are given back after one to two of these: soon enough for idle connections to be small, seldom
/// enough for busy ones not to pay.
const TRIM: Duration = Duration::from_secs(1);
/// Window probes are at most so far apart (RFC 9293 section 3.8.6.1 wants back-off; the bound is RFC 6298's for
/// retransmissions).
const MAX_PERSIST: Duration = Duration::from_secs(60);
/// R1 of RFC 9293 section 3.8.3: at least three.
const SUSPECT_AFTER: u8 = 3;
/// The least delay of an ACK on short paths: see [`Config::delayed_ack`](crate::Config::delayed_ack).
const MIN_ACK_DELAY: Duration = Duration::from_millis(2);

/// Ten at once, then ten a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// When the bucket was, or will be, empty, in units of 100 ms.
    empty_at: u32,
}

impl Bucket {
    const SIZE: u32 = 10;
    const UNIT_NS: u64 = 100_000_000;

    /// A full one.
    pub fn new(now: Instant) -> Self {
        Self { empty_at: Self::units(now) }
    }

    /// Whether there is one left, which is taken.
    pub fn take(&mut self, now: Instant) -> bool {
        let filled_since = Self::units(now);
        // At most full; each one taken moves the moment on by what it takes to fill one.
        if self.empty_at.wrapping_sub(filled_since) as i32 <= 0 {
            self.empty_at = filled_since;
        }
        let used = self.empty_at.wrapping_sub(filled_since);
        if used >= Self::SIZE {
            return false;
        }
        self.empty_at = self.empty_at.wrapping_add(1);
        true
    }

    fn units(now: Instant) -> u32 {
        (now.0 / Self::UNIT_NS) as u32
    }
}

impl Connection {
    /// When [`handle_timeout`](Self::handle_timeout) is to be called at the latest; `None` if never. It may be earlier
    /// than needed, and lies in the past when a timer is still to be started.
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
        (next != NEVER).then_some(next)
    }

    /// Lets the timers expire whose time has come. Earlier calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant) -> Events {
        if self.state == State::Closed {
            return Events::empty();
        }
        if self.expires_at <= now {
            return self.apply(Event::Expired);
        }
        let mut events = Events::empty();
        if self.sender.next_timeout().is_some() {
            if self.gives_up_at() <= now {
                return self.give_up();
            }
            match self.sender.on_timeout(now) {
                Timeout::Retransmission { consecutive } => {
                    self.counters.timeouts += 1;
                    if !self.state.is_synchronized() && consecutive > self.syn_retries {
                        return self.give_up();
                    }
                    events.set(Events::SUSPECT_PATH, consecutive >= SUSPECT_AFTER);
                }
                Timeout::Probe => self.counters.probes += 1,
                Timeout::None | Timeout::Reordering { .. } => {}
            }
        }
        if self.receive.ack_at <= now {
            self.receive.ack_at = NEVER;
            self.set.insert(Set::ACK_NOW);
        }
        if self.persist_at <= now && self.on_persist(now)
            || self.keepalive_at().is_some_and(|at| at <= now) && self.on_keepalive()
        {
            return self.give_up();
        }
        if self.trim_at <= now {
            self.on_trim(now);
        }
        self.arm_persist(now);
        self.finish(events, now)
    }

    /// A window probe is due, or a small segment has waited long enough for company. True if the peer is given up.
    fn on_persist(&mut self, now: Instant) -> bool {
        self.persist_at = NEVER;
        // A peer that answers keeps a connection for ever (RFC 9293 section 3.8.6.1), unless nobody here wants it any more.
        let since = if self.set.contains(Set::RELEASED) { self.progress_at } else { self.heard_at };
        if self.probes > 0 && since + self.user_timeout() <= now {
            return true;
        }
        self.probes = self.probes.saturating_add(1);
        let open = (self.sender.una() + self.window).distance(self.sender.nxt()) > 0;
        self.set.insert(if open { Set::OVERRIDE } else { Set::PROBE });
        false
    }

    /// True if the peer is given up.
    fn on_keepalive(&mut self) -> bool {
        let probes = self.keepalive.as_ref().map_or(0, |keepalive| keepalive.probes);
        if self.probes >= probes {
            return true;
        }
        self.probes += 1;
        self.set.insert(Set::PROBE);
        false
    }

    /// Gives back what lay empty since the timer was started. What is not empty yet goes when it becomes so, for then no timer
    /// runs: see [`give_back`](Self::give_back).
    fn on_trim(&mut self, now: Instant) {
        self.trim_at = NEVER;
        if self.set.contains(Set::TOUCHED) {
            self.set.remove(Set::TOUCHED);
            self.trim_at = now + TRIM;
        } else {
            self.give_back();
        }
    }

    /// Gives the memory of empty buffers back, unless they are in use: then a timer runs.
    #[inline]
    pub(super) fn give_back(&mut self) {
        if self.trim_at == NEVER {
            self.receive.trim();
            if self.unacked.len() == 0 {
                self.unacked.release();
            }
        }
    }

    #[inline]
    pub(super) fn arm_trim(&mut self, now: Instant) {
        if self.trim_at == NEVER && self.set.contains(Set::TOUCHED) && !self.is_closed() {
            self.set.remove(Set::TOUCHED);
            self.trim_at = now + TRIM;
        }
    }

    /// Whether data was handed over for a closed window, and its timer not started: `send` does not know the time.
    #[inline]
    fn is_shut_out(&self) -> bool {
        let (una, nxt) = (self.sender.una(), self.sender.nxt());
        self.persist_at == NEVER
            && una == nxt
            && self.window == 0
            && self.state.is_synchronized()
            && self.has_unsent()
            && !self.set.contains(Set::PROBE)
    }

    /// Whether nothing else would ever let what is queued go: nothing is in flight, and what is unsent may not leave.
    #[inline]
    pub(super) fn is_stuck(&self, now: Instant) -> bool {
        self.state.is_synchronized()
            && self.state != State::TimeWait
            && self.sender.una() == self.sender.nxt()
            && self.has_unsent()
            && !self.set.contains(Set::PROBE)
            && !self.may_send(now)
    }

    /// Starts the window probe's timer if it is needed, and stops it if it is not.
    #[inline]
    pub(super) fn arm_persist(&mut self, now: Instant) {
        if !self.is_stuck(now) {
            self.persist_at = NEVER;
        } else if self.persist_at == NEVER {
            let backed_off = self.sender.rto().saturating_mul(1 << self.probes.min(20));
            self.persist_at = now + backed_off.min(MAX_PERSIST);
        }
    }

    /// Whether data or a FIN has never left.
    pub(super) fn has_unsent(&self) -> bool {
        let unsent = self.data_end().distance(self.sender.nxt());
        unsent > 0 || (unsent == 0 && self.set.contains(Set::FIN_QUEUED))
    }

    fn user_timeout(&self) -> Duration {
        Duration::from_millis(self.user_timeout_ms.into())
    }

    /// When what is unacknowledged has been so for too long. While the peer keeps its window closed and answers, it does
    /// not count.
    fn gives_up_at(&self) -> Instant {
        let closed = self.window == 0 && self.state.is_synchronized() && !self.set.contains(Set::RELEASED);
        let since = if closed { self.heard_at.max(self.progress_at) } else { self.progress_at };
        since + self.user_timeout()
    }

    /// When the next keepalive probe is due: only if nothing else would find out that the peer is gone.
    fn keepalive_at(&self) -> Option<Instant> {
        let keepalive = self.keepalive.as_ref()?;
        let idle = self.state.is_synchronized()
            && self.state != State::TimeWait
            && self.sender.una() == self.sender.nxt()
            && self.persist_at == NEVER
            && !self.set.contains(Set::PROBE);
        idle.then(|| self.heard_at + keepalive.idle + keepalive.interval.saturating_mul(self.probes.into()))
    }

    /// How long an ACK may wait.
    pub(super) fn ack_delay(&self) -> Duration {
        let configured = Duration::from_micros(self.delayed_ack_us.into());
        self.sender.srtt().map_or(configured, |srtt| (srtt / 4).max(MIN_ACK_DELAY).min(configured))
    }

    /// The peer has not answered for too long.
    fn give_up(&mut self) -> Events {
        if self.state.is_synchronized() {
            // It may still be there, and then it should know (RFC 9293 section 3.8.3 leaves it open; RFC 1122 section
            // 4.2.3.5 too).
            self.set.insert(Set::RESET);
            self.reset_seq = self.sender.nxt();
        }
        let error = self.soft_error.unwrap_or(Error::TimedOut);
        let events = self.fail(error);
        events | if self.set.contains(Set::RESET) { Events::TRANSMIT } else { Events::empty() }
    }

    pub(super) fn stop_timers(&mut self) {
        self.receive.ack_at = NEVER;
        self.persist_at = NEVER;
        self.expires_at = NEVER;
        self.trim_at = NEVER;
        self.set.remove(Set::PROBE | Set::OVERRIDE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_ten_and_then_ten_a_second() {
        let start = Instant(7_000_000_000);
        let mut bucket = Bucket::new(start);
        let take = |bucket: &mut Bucket, now| (0..100).filter(|_| bucket.take(now)).count();
        assert_eq!(take(&mut bucket, start), 10);
        assert_eq!(take(&mut bucket, start + Duration::from_millis(100)), 1);
        assert_eq!(take(&mut bucket, start + Duration::from_secs(1)), 9);
        assert_eq!(take(&mut bucket, start + Duration::from_hours(1)), 10);
    }
}
