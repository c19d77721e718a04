//! Segments to listening sockets: handshakes under way, and connections that wait to be accepted.
//!
//! A segment to a listening port is handled under the listener's lock. Two threads may process two
//! segments of one handshake: the second looks into the table again once it has the lock, and finds
//! the connection there.

use crate::arrived::{Arrived, Origin};
use crate::error::SendError;
use crate::outlet::{NoBatch, Outlet, RETRY};
use crate::platform::{Lock, Platform, Waiters};
use crate::stack::Stack;
use crate::tcp::clock::duration;
use crate::tcp::{Due, Key, ListenInner, Listening, add};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use tailwater_tcp::listen::Arrival;
use tailwater_tcp::{Answer, EcnCodepoint, Events, Flags, Flow, Full, Instant, Segment, Seq};
use tailwater_wire::{Addresses, DEFAULT_TTL, IpProtocol, PacketInfo};

impl<P: Platform> Stack<P> {
    /// Handles a segment to a listening port; false if the listener is closed, or the segment is of
    /// no handshake here and may be for the other instance of this host.
    #[expect(clippy::too_many_arguments, reason = "one call, from the step before it")]
    pub(super) fn handle_listening(
        &self,
        outlet: &mut impl Outlet<P>,
        listening: &Arc<Listening<P>>,
        arrived: &Arrived<'_>,
        flow: &Flow,
        segment: &Segment<'_>,
        iss: Option<Seq>,
        now: Instant,
    ) -> bool {
        let key = Key::from(flow);
        let ecn = EcnCodepoint::from_bits(arrived.traffic_class);
        let mut inner = listening.lock();
        if inner.closed {
            return false;
        }
        // Another thread may have completed the handshake since the caller looked. That is seldom:
        // an acknowledgment does not wait for the end of the batch then.
        if let Some(socket) = self.tcp.table.get(&key) {
            drop(inner);
            return self.handle_own(&mut NoBatch, outlet, &socket, segment, (ecn, arrived.checksums), now);
        }
        let room = inner.queue.len() < listening.backlog && self.tcp.has_room();
        let path_mss = self.path_mss(flow.remote);
        let arrival = Arrival { flow: *flow, segment: *segment, ecn, path_mss, room, iss };
        let answer = inner.listener.handle_segment(now, &arrival);
        inner.note_awaited(now);
        // A segment from this host is never of the other one: it would be refused, not passed on.
        let may_be_of_other = matches!(arrived.origin, Origin::Link(_)) && self.has_other();
        if may_be_of_other && is_of_other(&answer, segment) {
            return false;
        }
        match answer {
            Answer::Ignore => {}
            Answer::Reply(header) => {
                self.arm_listening(outlet, listening, &mut inner, now);
                drop(inner);
                self.send_header(outlet, arrived.addresses.reversed(), &header);
            }
            Answer::Accept(connection, events) => {
                let socket = self.adopt(*flow, *connection);
                if !self.tcp.table.insert(key, &socket) {
                    // This host has just opened a connection on the same flow: the client gets no
                    // answer and tries again. A place of Fast Open is free again.
                    inner.listener.complete_fast_open(flow);
                    self.tcp.connections.fetch_sub(1, Ordering::Relaxed);
                    return true;
                }
                socket.settings.ttl.store(listening.settings.ttl.load(Ordering::Relaxed), Ordering::Relaxed);
                inner.queue.push_back(Arc::clone(&socket));
                inner.acceptors.wake_one();
                drop(inner);
                let inner = &mut *socket.lock();
                if self.note_distance(&socket, inner, segment, arrived.checksums, now) {
                    self.widen_path(&socket, inner, now);
                }
                self.settle(outlet, &socket, inner, events | Events::TRANSMIT, now);
            }
        }
        true
    }

    fn arm_listening(
        &self,
        outlet: &mut impl Outlet<P>,
        listening: &Arc<Listening<P>>,
        inner: &mut ListenInner<P>,
        least: Instant,
    ) {
        let Some(next) = inner.listener.next_timeout().map(|at| at.max(least)) else { return };
        if next >= inner.armed {
            return;
        }
        if self.tcp.timers.insert(listening.id, inner.armed, next, Due::Listening(Arc::clone(listening))) {
            outlet.poll_by(duration(next));
        }
        inner.armed = next;
    }

    /// Retransmits answers to SYNs.
    pub(super) fn poll_listening(
        &self,
        outlet: &mut impl Outlet<P>,
        listening: &Arc<Listening<P>>,
        now: Instant,
    ) {
        let inner = &mut *listening.lock();
        inner.armed = Instant::NEVER;
        if inner.closed {
            return;
        }
        inner.listener.poll_transmit(now, |flow, header| {
            let Some(addresses) = Addresses::new(flow.local, flow.remote) else { return Ok(()) };
            let packet =
                PacketInfo { addresses, protocol: IpProtocol::TCP, hop_limit: DEFAULT_TTL, traffic_class: 0 };
            match self.transmit_header(outlet, &packet, header) {
                Err(SendError::Full) => Err(Full),
                _ => Ok(()),
            }
        });
        inner.note_awaited(now);
        // Not the outlet's time, which is long because many connections would otherwise retry
        // without success: there are few listeners, and the first answer that finds no room ends
        // the try.
        let least = now + RETRY;
        self.arm_listening(outlet, listening, inner, least);
    }

    /// Ends listening: SYNs to the address are refused, handshakes under way are forgotten, and
    /// threads that wait to accept are woken. Established connections may still be accepted.
    pub fn stop_listening(&self, listening: &Arc<Listening<P>>) {
        self.tcp.listeners.remove(listening);
        let mut inner = listening.lock();
        if inner.closed {
            return;
        }
        inner.closed = true;
        inner.note_awaited(Instant::NEVER);
        if inner.armed != Instant::NEVER {
            self.tcp.timers.remove(listening.id, inner.armed);
            inner.armed = Instant::NEVER;
        }
        while inner.acceptors.wake_one() {}
        let stats = inner.listener.stats();
        drop(inner);
        let mut gone = self.tcp.listeners.gone.lock();
        *gone = add(*gone, stats);
    }

    /// Closes a listener: connections that were not accepted are reset.
    pub fn close_listening(&self, outlet: &mut impl Outlet<P>, listening: &Arc<Listening<P>>) {
        self.stop_listening(listening);
        let waiting = core::mem::take(&mut listening.lock().queue);
        waiting.iter().for_each(|socket| self.abort_tcp(outlet, socket));
    }
}

/// Returns whether a segment may be one of a connection, or of a handshake, of the other instance
/// of this host: it opens nothing, and the listener ignores it, or answers it with a reset or a
/// challenge. A handshake of the same flow is no reason against it: anyone may have begun that, by
/// a SYN with the client's address.
fn is_of_other(answer: &Answer, segment: &Segment<'_>) -> bool {
    let opens = segment.header.flags & (Flags::SYN | Flags::ACK | Flags::RST) == Flags::SYN;
    match answer {
        Answer::Ignore => !opens,
        Answer::Reply(header) => !opens && !header.flags.contains(Flags::SYN),
        Answer::Accept(..) => false,
    }
}
