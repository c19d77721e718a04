//! Options of a socket that can change while the connection lives.

use super::{Connection, Events, Set, millis};
use crate::config::{BUFFER_BOUNDS, DEFAULT_USER_TIMEOUT, Keepalive};
use crate::{Instant, State};
use core::time::Duration;

impl Connection {
    /// Whether small segments leave at once (TCP_NODELAY).
    pub fn nodelay(&self) -> bool {
        self.set.contains(Set::NODELAY)
    }

    /// Lets small segments leave at once, or not. What waits may leave now: see [`wants_transmit`](Self::wants_transmit).
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.set.set(Set::NODELAY, nodelay);
    }

    /// How an idle connection is probed, if it is.
    pub fn keepalive(&self) -> Option<Keepalive> {
        self.keepalive.as_deref().copied()
    }

    /// Probes an idle connection, or not. Idle time counts from when the peer was last heard, so a probe may be due at once.
    pub fn set_keepalive(&mut self, keepalive: Option<Keepalive>) {
        self.keepalive = keepalive.map(Box::new);
        self.probes = 0;
    }

    /// How long nothing may be acknowledged before the connection fails.
    pub fn user_timeout_limit(&self) -> Duration {
        Duration::from_millis(self.user_timeout_ms.into())
    }

    /// Sets it (TCP_USER_TIMEOUT; RFC 5482, without telling the peer), in whole milliseconds up to 49 days; `None` is the
    /// default, five minutes.
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.user_timeout_ms = millis(timeout.unwrap_or(DEFAULT_USER_TIMEOUT)).max(1);
    }

    /// The most that is kept unread, in bytes.
    pub fn receive_buffer(&self) -> u32 {
        self.receive.limit()
    }

    /// Sets it, 1 KiB to 1 GiB (the nearer end is taken). What was offered to the peer before stays offered, and beyond
    /// what the window's scale can express, which the handshake fixed, more does not help.
    pub fn set_receive_buffer(&mut self, bytes: u32) {
        self.receive.set_limit(bytes.clamp(BUFFER_BOUNDS.0, BUFFER_BOUNDS.1));
    }

    /// Offers the peer at most `bytes` from now on, whatever the buffer has room for; `u32::MAX` is no limit, as at the start.
    /// For a receiver that knows of a queue in front of it which holds less than its buffer: what overflows there is lost. What
    /// was offered before stays offered.
    #[inline]
    pub fn set_window_ceiling(&mut self, bytes: u32) {
        self.receive.set_ceiling(bytes);
    }

    /// The most that is kept unacknowledged, in bytes.
    pub fn send_buffer(&self) -> u32 {
        self.send_limit
    }

    /// Sets it, 1 KiB to 1 GiB (the nearer end is taken). What is queued stays queued. How much of it is taken: see
    /// [`Config::send_buffer`](crate::Config::send_buffer).
    pub fn set_send_buffer(&mut self, bytes: u32) {
        self.send_limit = bytes.clamp(BUFFER_BOUNDS.0, BUFFER_BOUNDS.1);
        self.note_room();
    }

    /// Asks the peer for a sign of life now, as a keepalive would.
    pub fn probe(&mut self, now: Instant) -> Events {
        if self.state.is_synchronized() && self.state != State::TimeWait {
            self.set.insert(Set::PROBE);
        }
        self.finish(Events::empty(), now)
    }
}
