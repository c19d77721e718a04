//! Timers that are due are let expire, and those that are set for nothing are put off.
//!
//! A timer is left alone while its deadline moves away (see [`super::timers`]): a connection whose last answer was acknowledged still
//! has one set, for a retransmission that is no longer wanted. While a kthread is busy it costs little when it fires. But one
//! that fires on a sleeping runtime fetches a core to find nothing due, for every request of a service that is mostly idle: so
//! it is put off before a core is given up.

use super::timers::{Due, NEVER};
use super::{duration, instant};
use crate::net::stack::{Outlet, Stack};
use core::time::Duration;
use tailwater_tcp::Events;

/// Timers that are looked at before the table of those due is read again.
const TIMER_BATCH: usize = 64;
/// So often it is read in one call, some 100 us of work at most; what is left then is due at once.
const TIMER_ROUNDS: usize = 4;
/// Most timers that are put off in one call, a microsecond or two of work. Those of connections that are served in turn become
/// pointless one by one.
const MAX_PUT_OFF: usize = 16;

impl Stack {
    /// When [`poll_tcp`](Self::poll_tcp) has something to do.
    pub fn tcp_deadline(&self) -> Option<Duration> {
        self.tcp.timers.next().into_iter().chain(self.tcp.time_waits.next()).min().map(duration)
    }

    /// Lets the timers of connections, of handshakes and of TIME-WAIT expire.
    pub(in crate::net::stack) fn poll_tcp(&self, outlet: &mut impl Outlet) {
        let mut due = Vec::new();
        for _ in 0..TIMER_ROUNDS {
            self.tcp.timers.take(instant(outlet.now()), TIMER_BATCH, &mut due);
            if due.is_empty() {
                break;
            }
            for due in due.drain(..) {
                let now = instant(outlet.now());
                match due {
                    Due::Socket(socket) => {
                        let inner = &mut *socket.lock();
                        inner.armed = NEVER;
                        if inner.next > now {
                            self.arm(outlet, &socket, inner);
                            continue;
                        }
                        let events = inner.connection.handle_timeout(now);
                        if events.contains(Events::SUSPECT_PATH) {
                            self.doubt_neighbour(outlet, socket.flow.remote);
                        }
                        self.settle(outlet, &socket, inner, events, now);
                    }
                    Due::Listening(listening) => self.poll_listening(outlet, &listening, now),
                }
            }
        }
        self.tcp.time_waits.poll(instant(outlet.now()));
    }

    /// Puts off the earliest timers that nobody needs so early.
    pub fn put_off_timers(&self, outlet: &mut impl Outlet) {
        for _ in 0..MAX_PUT_OFF {
            let Some((at, socket)) = self.tcp.timers.first_socket() else { return };
            let inner = &mut *socket.lock();
            // Or somebody has set or stopped it since it was looked up.
            if inner.armed != at || inner.next <= at {
                return;
            }
            self.tcp.timers.remove(socket.id, at);
            inner.armed = NEVER;
            self.arm(outlet, &socket, inner);
        }
    }
}
