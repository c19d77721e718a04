//! The open-loop generator over a client's connections, for
//! [`TcpHandle::load`](super::TcpHandle::load).
//!
//! Owns the run: which connections are up, how much of each request the client has accepted, and
//! the measurement. The polling loop may sleep after a time without frames, so gaps between its
//! turns count as disturbances of the machine only after frames. Sans-IO like the client.
//! [`Lanes`](crate::lanes) assigns requests to connections, as over kernel sockets, and decides
//! what ends a connection, which is then reset and opened again after [`RETRY_NS`].

use std::sync::Arc;

use tailwater_tcp::{Events, Instant, State};
use tailwater_workload::Interval;

use super::client::{Client, ConnectionId};
use crate::control::LEAD_NS;
use crate::generator::Generator;
use crate::lanes::{LaneId, Lanes};
use crate::plan::{Plan, PlanError};
use crate::protocol::{Medium, Protocol};
use crate::report::Measurement;
use crate::station::MAY_SLEEP_NS;

/// Time after its end at which a connection is opened again.
const RETRY_NS: u64 = 20_000_000;
/// Bytes taken at once.
const CHUNK: usize = 64 << 10;

/// A run to make over the connections that were opened.
#[derive(Debug, Clone)]
pub struct TcpLoad {
    /// When to send; its flows are not used.
    pub plan: Plan,
    /// What to send. What it reads is stored before, by [`Order::Preload`](super::Order::Preload).
    pub protocol: Arc<dyn Protocol>,
    /// Fixes every request.
    pub seed: u64,
    /// Maximum number of requests unanswered on one connection, 1 to
    /// [`MAX_PIPELINE`](crate::lanes::MAX_PIPELINE).
    pub pipeline: usize,
}

/// A run. See the [module](self).
#[derive(Debug)]
pub(super) struct OpenLoop {
    generator: Generator,
    lanes: Lanes,
    /// When each connection that is down is opened again; `None` while it is up or being opened.
    retry_at_ns: Vec<Option<u64>>,
    /// Number of connections that are down.
    down: u32,
    touched: Vec<LaneId>,
    scratch: Vec<u8>,
    /// The connection that is looked after next.
    next: LaneId,
    /// Time of the last frame or request.
    last_frame_ns: u64,
}

impl OpenLoop {
    /// Creates a run over the connections 0 to `connections` - 1, of which those that are
    /// established are used.
    ///
    /// # Errors
    /// As [`Plan::check`](crate::Plan::check).
    pub(super) fn new(
        load: TcpLoad,
        client: &Client,
        connections: u32,
        now: Instant,
    ) -> Result<Self, PlanError> {
        let ids = load.protocol.ids(Medium::Stream);
        let start_ns = now.0 + LEAD_NS;
        let generator =
            Generator::with_protocol(load.plan, load.protocol, Medium::Stream, load.seed, start_ns)?;
        let mut lanes = Lanes::new(connections, load.pipeline, ids);
        let (mut retry_at_ns, mut down) = (vec![None; lanes.count() as usize], 0);
        for id in 0..lanes.count() {
            if client.connection(id).is_some_and(|connection| connection.state() == State::Established) {
                lanes.handle_up(id);
            } else {
                retry_at_ns[id as usize] = Some(now.0);
                down += 1;
            }
        }
        let scratch = vec![0; CHUNK];
        Ok(Self {
            generator,
            lanes,
            retry_at_ns,
            down,
            touched: Vec::new(),
            scratch,
            next: 0,
            last_frame_ns: now.0,
        })
    }

    /// Handles the events of a frame or a timeout at `now`.
    pub(super) fn on_events(&mut self, client: &mut Client, id: ConnectionId, events: Events, now: Instant) {
        self.last_frame_ns = now.0;
        if id >= self.lanes.count() || self.retry_at_ns[id as usize].is_some() {
            return;
        }
        if events.intersects(Events::ERROR | Events::CLOSED) {
            return self.end(client, id, now);
        }
        if events.contains(Events::ESTABLISHED) {
            self.lanes.handle_up(id);
        }
        if events.contains(Events::READABLE) {
            // Bounded by the receive buffer.
            while let Ok(len @ 1..) = client.recv(id, &mut self.scratch) {
                let taken = self.lanes.handle_bytes(id, now.0, &self.scratch[..len], &mut self.generator);
                if taken.is_err() {
                    return self.end(client, id, now);
                }
            }
        }
        if events.contains(Events::PEER_CLOSED) {
            let at_once = self.lanes.handle_end(id, now.0, &mut self.generator);
            self.end(client, id, now);
            if at_once {
                self.retry_at_ns[id as usize] = Some(now.0);
            }
            return;
        }
        if events.intersects(Events::WRITABLE | Events::ESTABLISHED) {
            self.flush(client, id);
        }
    }

    /// Passes the bytes of connection `id` that wait to the client, as far as it has room.
    fn flush(&mut self, client: &mut Client, id: LaneId) {
        while !self.lanes.to_send(id).is_empty() {
            match client.send(id, self.lanes.to_send(id)) {
                Ok(sent @ 1..) => self.lanes.handle_sent(id, sent),
                // Repeated when there is room; a failed connection reports itself by its events.
                Ok(0) | Err(_) => return,
            }
        }
    }

    #[cold]
    fn end(&mut self, client: &mut Client, id: LaneId, now: Instant) {
        self.generator.count_reconnect();
        self.lanes.handle_down(id, now.0, &mut self.generator);
        let _ = client.abort(id);
        self.retry_at_ns[id as usize] = Some(now.0 + RETRY_NS);
        self.down += 1;
    }

    /// Sends due requests, at most `budget`; returns true when the run is over.
    pub(super) fn poll(&mut self, client: &mut Client, now: Instant, budget: usize) -> bool {
        if now.0.saturating_sub(self.last_frame_ns) < MAY_SLEEP_NS {
            self.generator.observe_spin(now.0);
        } else {
            self.generator.skip_sleep(now.0);
        }
        let mut touched = std::mem::take(&mut self.touched);
        self.lanes.poll_due(&mut self.generator, now.0, budget, |id| touched.push(id));
        for id in touched.drain(..) {
            self.last_frame_ns = now.0;
            self.flush(client, id);
        }
        self.touched = touched;
        self.look_after_one(client, now);
        self.generator.is_done()
    }

    /// Returns the next interval that is over and was not returned yet.
    #[inline]
    pub(super) fn poll_interval(&mut self, now: Instant) -> Option<&Interval> {
        self.generator.poll_interval(now.0)
    }

    /// Opens one connection again if it is time, or ends it if it is stuck; takes connections in
    /// turn.
    fn look_after_one(&mut self, client: &mut Client, now: Instant) {
        let id = self.next;
        self.next = if id + 1 == self.lanes.count() { 0 } else { id + 1 };
        match self.retry_at_ns[id as usize] {
            Some(at_ns) if at_ns <= now.0 => {
                self.retry_at_ns[id as usize] = None;
                self.down -= 1;
                client.connect(id, now);
            }
            None if self.lanes.is_stuck(id, now.0, &self.generator) => self.end(client, id, now),
            _ => {}
        }
    }

    /// Returns when [`poll`](Self::poll) has work to do.
    pub(super) fn next_event(&self) -> Instant {
        // Connections that are down are looked at one by one, every time.
        let now = self.down > 0 || self.generator.is_done();
        Instant(self.generator.next_event_ns().filter(|_| !now).unwrap_or(0))
    }

    /// Ends the run at `now`.
    pub(super) fn finish(self, now: Instant) -> Measurement {
        self.generator.finish(now.0)
    }
}
