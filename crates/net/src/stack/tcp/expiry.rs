//! Runs expired timers, and postpones timers that are no longer needed.
//!
//! A timer is not changed while its deadline moves away (see [`Timers`](crate::tcp)): a connection
//! whose last answer was acknowledged still has one set, for a retransmission that is no longer
//! wanted. While a kthread is busy it costs little when it fires. But one that fires on a sleeping
//! runtime fetches a core to find nothing due, for every request of a service that is mostly idle:
//! so it is put off before a core is given up.

use crate::outlet::Outlet;
use crate::platform::Platform;
use crate::stack::Stack;
use crate::tcp::Due;
use crate::tcp::clock::{duration, instant};
use alloc::vec::Vec;
use core::time::Duration;
use tailwater_tcp::{Events, Instant};

/// Timers handled before the table is read again.
const TIMER_BATCH: usize = 64;
/// Times the table is read in one call, which bounds it to some 100 us of work; further timers are
/// due at once.
const TIMER_ROUNDS: usize = 4;
/// Maximum number of timers postponed in one call, a microsecond or two of work. Those of
/// connections that are served in turn become unnecessary one by one.
const MAX_PUT_OFF: usize = 16;

impl<P: Platform> Stack<P> {
    /// Returns when `poll_tcp` has something to do.
    pub fn tcp_deadline(&self) -> Option<Duration> {
        self.tcp.timers.next().into_iter().chain(self.tcp.time_waits.next()).min().map(duration)
    }

    /// Runs the expired timers of connections, handshakes and TIME-WAIT.
    pub(crate) fn poll_tcp(&self, outlet: &mut impl Outlet<P>) {
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
                        inner.armed = Instant::NEVER;
                        if inner.next > now {
                            self.arm(outlet, &socket, inner);
                            continue;
                        }
                        let mut events = inner.connection.handle_timeout(now);
                        if events.contains(Events::SUSPECT_PATH) {
                            self.doubt_neighbour(outlet, socket.flow.remote);
                            // A peer that was on this machine may have moved behind a port, which
                            // drops packets above the network's MTU.
                            let mss = self.path_mss(socket.flow.remote).min(inner.connection.path_mss());
                            events |= inner.connection.set_path_mtu(mss, None, now);
                        }
                        self.settle(outlet, &socket, inner, events, now);
                    }
                    Due::Listening(listening) => self.poll_listening(outlet, &listening, now),
                }
            }
        }
        self.tcp.time_waits.poll(instant(outlet.now()));
    }

    /// Postpones the earliest timers that are not needed so early.
    pub fn put_off_timers(&self, outlet: &mut impl Outlet<P>) {
        for _ in 0..MAX_PUT_OFF {
            let Some((at, socket)) = self.tcp.timers.first_socket() else { return };
            let inner = &mut *socket.lock();
            // Otherwise another thread has set or removed it since it was looked up.
            if inner.armed != at || inner.next <= at {
                return;
            }
            self.tcp.timers.remove(socket.id, at);
            inner.armed = Instant::NEVER;
            self.arm(outlet, &socket, inner);
        }
    }
}
