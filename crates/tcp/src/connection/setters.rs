//! Socket options that can change during a connection's life.

use super::{Connection, Events, MIN_MSS, Set};
use crate::config::{BUFFER_BOUNDS, Keepalive};
use crate::state::State;
use crate::time::Instant;
use core::time::Duration;

impl Connection {
    /// Returns true if small segments are sent at once (TCP_NODELAY).
    pub fn nodelay(&self) -> bool {
        self.set.contains(Set::NODELAY)
    }

    /// Sets whether small segments are sent at once. Data that waits may be ready to leave now: see
    /// [`wants_transmit`](Self::wants_transmit).
    ///
    /// If the connection is corked, this releases what is held now, as in Linux (tcp(7)); later
    /// data is held until the cork is removed.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.set.set(Set::NODELAY, nodelay);
        if nodelay && self.is_corked() && self.has_unsent() {
            self.set.insert(Set::OVERRIDE);
        }
    }

    /// Returns true if only full segments are sent (TCP_CORK).
    pub fn cork(&self) -> bool {
        self.set.contains(Set::CORK)
    }

    /// Sets whether only full segments are sent (TCP_CORK). A smaller rest waits until the cork is
    /// removed, this direction is closed, or it has waited for 200 ms with nothing in flight.
    pub fn set_cork(&mut self, cork: bool) {
        self.set.set(Set::CORK, cork);
    }

    /// Returns the bytes of data in a full segment now, options deducted, as Linux's TCP_MAXSEG.
    pub fn max_segment(&self) -> u32 {
        self.segment_mss()
    }

    /// Limits the segments that leave from now on to `bytes`, options included; the handshake has
    /// announced the limit of [`Config::max_segment`](crate::Config::max_segment) to the peer, or
    /// will announce this one. `None` removes the limit.
    pub fn set_max_segment(&mut self, bytes: Option<u16>) {
        self.own_mss = bytes.unwrap_or(u16::MAX).max(MIN_MSS);
        self.sender.set_mss(self.segment_mss());
    }

    /// Returns how an idle connection is probed, if it is.
    pub fn keepalive(&self) -> Option<Keepalive> {
        self.probing().map(Into::into)
    }

    /// Sets whether and how an idle connection is probed. Idle time counts from when the peer was
    /// last heard, so a probe may be due at once. Times are kept in whole milliseconds.
    pub fn set_keepalive(&mut self, keepalive: Option<Keepalive>) {
        self.set_probing(keepalive);
        self.probes = 0;
    }

    /// Returns the time without progress after which the connection fails.
    pub fn user_timeout_limit(&self) -> Duration {
        self.user_timeout()
    }

    /// Sets the user timeout (TCP_USER_TIMEOUT; RFC 5482, without announcing it to the peer), in
    /// whole milliseconds up to 49 days; `None` is the default, five minutes. One that is set also
    /// decides when keepalive gives up, whatever number of probes was sent.
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.set_own_user_timeout(timeout);
    }

    /// Returns the size of the receive buffer in bytes.
    pub fn receive_buffer(&self) -> u32 {
        self.receive.limit()
    }

    /// Sets the size of the receive buffer, clamped to 1 KiB to 1 GiB. The window offered before
    /// stays offered. A size beyond what the window scale can express, which the handshake fixed,
    /// has no further effect.
    pub fn set_receive_buffer(&mut self, bytes: u32) {
        self.receive.set_limit(bytes.clamp(BUFFER_BOUNDS.0, BUFFER_BOUNDS.1));
    }

    /// Limits the window offered from now on to `bytes`, or two units of its scale if that is more,
    /// whatever room the buffer has; `u32::MAX`
    /// is no limit, the initial setting. For a receiver behind a queue that holds less than its
    /// buffer, where the overflow would be lost. The window offered before stays offered.
    #[inline]
    pub fn set_window_ceiling(&mut self, bytes: u32) {
        self.receive.set_ceiling(bytes);
    }

    /// Returns true if bytes are missing before some that have arrived.
    #[inline]
    pub fn has_gap(&self) -> bool {
        self.receive.has_gap()
    }

    /// Sets the longest time for which the peer delays acknowledgements: see
    /// [`sender::Config::max_ack_delay`](crate::sender::Config::max_ack_delay).
    pub fn set_peer_ack_delay(&mut self, delay: Duration) {
        self.sender.set_max_ack_delay(delay);
    }

    /// Returns the size of the send buffer in bytes.
    pub fn send_buffer(&self) -> u32 {
        self.send_limit
    }

    /// Sets the size of the send buffer, clamped to 1 KiB to 1 GiB. Queued data stays queued.
    /// [`Config::send_buffer`](crate::Config::send_buffer) says how much of it is used.
    pub fn set_send_buffer(&mut self, bytes: u32) {
        self.send_limit = bytes.clamp(BUFFER_BOUNDS.0, BUFFER_BOUNDS.1);
        self.note_room();
    }

    /// Sends a keepalive probe now.
    pub fn probe(&mut self, now: Instant) -> Events {
        if self.state.is_synchronized() && self.state != State::TimeWait {
            self.set.insert(Set::PROBE);
        }
        self.finish(Events::empty(), now)
    }
}
