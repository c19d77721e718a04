//! The order that a station carries out over a client's connections.
//!
//! Owns the progress of each connection with its request. Sans-IO like the client: frames and time
//! come in through [`Task::on_events`]; [`Task::poll`] returns the next steps.

use std::collections::VecDeque;
use std::time::Duration;

use hdrhistogram::Histogram;
use tailwater_tcp::{Events, Instant, SendError, State};

use super::client::{Client, ConnectionId, PORTS};
use super::order::{Order, Outcome};
use super::stages::{Stages, Stamps};

/// Connections that are opened or closed at a time: a listener's queue holds them.
const WINDOW: u32 = 128;
/// Maximum time for which an order waits for its last answers after its end.
const GRACE: Duration = Duration::from_millis(500);
/// Bytes read or written at once.
const CHUNK: usize = 64 << 10;

#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    began_ns: u64,
    /// Bytes of the answer still to come; zero while nothing is asked.
    left: usize,
    /// Bytes of the request for which the send buffer had no room yet.
    unsent: usize,
    /// Requests of [`Order::Calls`] after this one.
    calls: u32,
    part: Part,
}

/// What a connection has done of the order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Part {
    /// Nothing yet.
    #[default]
    Waits,
    /// It is being opened, asked or closed: one of [`Task::under_way`].
    UnderWay,
    /// It was opened, asked or closed; an echo may ask it again.
    Done,
    /// It failed, which is counted, and is not begun again.
    Failed,
}

/// An order being carried out.
#[derive(Debug)]
pub(super) struct Task {
    order: Order,
    /// Connections that are open, or being opened.
    open: u32,
    /// When counting begins and ends.
    from: Instant,
    until: Instant,
    progress: Vec<Progress>,
    /// Connections that may send their next request.
    due: VecDeque<ConnectionId>,
    /// Connections under way.
    under_way: u32,
    /// The next connection that has not begun.
    next: u32,
    completed: u64,
    /// Also those that do not count.
    finished: u64,
    failed: u64,
    bytes: u64,
    latency: Histogram<u64>,
    stages: Option<Box<Stages>>,
    scratch: Vec<u8>,
}

impl Task {
    /// `connections` is how many the station has, or will have.
    pub(super) fn new(order: Order, connections: u32, now: Instant) -> Self {
        let (warm_up, lasts) = match &order {
            Order::Echo { warm_up, lasts, .. }
            | Order::Fetch { warm_up, lasts, .. }
            | Order::Calls { warm_up, lasts, .. } => (*warm_up, *lasts),
            Order::Stages { lasts, .. }
            | Order::Upload { lasts }
            | Order::Download { lasts }
            | Order::Churn { lasts, .. } => (Duration::ZERO, *lasts),
            Order::Open { wait, .. }
            | Order::EchoOnce { wait, .. }
            | Order::Preload { wait, .. }
            | Order::Close { wait } => (Duration::ZERO, *wait),
        };
        let count = match order {
            // All ports of the server's first one.
            Order::Churn { .. } | Order::Calls { .. } => PORTS.max(connections),
            Order::Stages { .. } => 1,
            _ => connections,
        };
        let from = now + warm_up;
        let stages = matches!(order, Order::Stages { .. }).then(Box::default);
        Self {
            order,
            open: connections,
            from,
            until: from + lasts,
            progress: vec![Progress::default(); count as usize],
            due: VecDeque::new(),
            under_way: 0,
            next: 0,
            completed: 0,
            finished: 0,
            failed: 0,
            bytes: 0,
            latency: Histogram::new_with_bounds(1, 1 << 36, 3).expect("constant bounds are in range"),
            stages,
            scratch: vec![0x5a; CHUNK],
        }
    }

    /// Returns true if stages are wanted.
    #[inline]
    pub(super) fn is_staged(&self) -> bool {
        self.stages.is_some()
    }

    /// Returns the stages, if they are wanted.
    #[inline]
    pub(super) fn stages(&mut self) -> Option<&mut Stages> {
        self.stages.as_deref_mut()
    }

    /// Returns the number of requests answered, counted or not.
    #[inline]
    pub(super) fn finished(&self) -> u64 {
        self.finished
    }

    /// Returns when the first connection's last request was written.
    pub(super) fn begun_at(&self) -> Instant {
        Instant(self.progress.first().map_or(0, |progress| progress.began_ns))
    }

    /// Returns the stamps in the echo that was read last.
    pub(super) fn stamps(&self) -> Option<Stamps> {
        Stamps::decode(&self.scratch)
    }

    fn count(&self) -> u32 {
        self.progress.len() as u32
    }

    /// Handles the events of a frame or a timeout at `now`.
    pub(super) fn on_events(&mut self, client: &mut Client, id: ConnectionId, events: Events, now: Instant) {
        let Some(part) = self.progress.get(id as usize).map(|progress| progress.part) else { return };
        if events.contains(Events::ERROR) && matches!(part, Part::Waits | Part::UnderWay) {
            self.fail(id);
            self.begin_again(id);
            return;
        }
        match &self.order {
            Order::Open { .. } => {
                if events.contains(Events::ESTABLISHED) && part == Part::UnderWay {
                    self.finish_one(id, now);
                }
            }
            Order::Echo { .. } | Order::Fetch { .. } | Order::Stages { .. } | Order::EchoOnce { .. } => {
                if events.contains(Events::WRITABLE) && !self.push(client, id) {
                    return self.fail(id);
                }
                if events.contains(Events::READABLE) && self.take(client, id) {
                    self.finish_one(id, now);
                    self.due.push_back(id);
                }
            }
            // `preload`'s.
            Order::Preload { .. } => {}
            Order::Upload { .. } => {
                if events.contains(Events::WRITABLE) {
                    self.due.push_back(id);
                }
            }
            Order::Download { .. } => {
                if events.contains(Events::READABLE) {
                    self.take(client, id);
                }
            }
            Order::Churn { bytes, .. } => {
                if events.contains(Events::ESTABLISHED) {
                    let bytes = *bytes;
                    // Fails on a connection that has failed since, which its events report.
                    let _ = self.ask(client, id, bytes, bytes);
                }
                if events.contains(Events::READABLE) && self.take(client, id) {
                    let _ = client.close(id);
                }
                self.churn_ended(client, id, now);
            }
            Order::Calls { messages, .. } => {
                if events.contains(Events::ESTABLISHED) {
                    self.progress[id as usize].calls = *messages;
                    self.call(client, id, now);
                }
                if events.contains(Events::WRITABLE) {
                    let _ = self.push(client, id);
                }
                if events.contains(Events::READABLE) && self.take(client, id) {
                    self.count_one(id, now);
                    self.call(client, id, now);
                }
            }
            Order::Close { .. } => {
                if events.contains(Events::READABLE) {
                    self.take(client, id);
                }
                if self.has_ended(client, id) {
                    self.finish_one(id, now);
                }
            }
        }
    }

    /// Returns true if a connection under way is over.
    fn has_ended(&self, client: &Client, id: ConnectionId) -> bool {
        self.progress[id as usize].part == Part::UnderWay && is_over(client, id)
    }

    /// Counts a connection that failed before it was done.
    fn fail(&mut self, id: ConnectionId) {
        let progress = &mut self.progress[id as usize];
        self.under_way -= u32::from(progress.part == Part::UnderWay);
        (progress.part, progress.left) = (Part::Failed, 0);
        self.failed += 1;
    }

    fn churn_ended(&mut self, client: &Client, id: ConnectionId, now: Instant) {
        if self.has_ended(client, id) {
            self.finish_one(id, now);
            self.begin_again(id);
        }
    }

    /// Sends the next request of a connection; resets it after the last one or at the end, and has
    /// another one opened in its place.
    fn call(&mut self, client: &mut Client, id: ConnectionId, now: Instant) {
        let Order::Calls { messages, bytes, .. } = self.order else { return };
        let progress = &mut self.progress[id as usize];
        if progress.calls > 0 && now <= self.until {
            if progress.calls < messages {
                progress.began_ns = now.0;
            }
            progress.calls -= 1;
            // Fails on a connection that has failed since, which its events report.
            let _ = self.ask(client, id, bytes, bytes);
            return;
        }
        let _ = client.abort(id);
        self.progress[id as usize].part = Part::Done;
        self.under_way -= 1;
        self.begin_again(id);
    }

    /// Opens the next connection of the same lane, if the order opens any: as many ports later as
    /// there are lanes, so that all are used before one is used again.
    fn begin_again(&mut self, id: ConnectionId) {
        let (Order::Churn { concurrent, .. } | Order::Calls { concurrent, .. }) = self.order else { return };
        // Connections that were open before the order are in no lane, and may fail meanwhile.
        if id < self.open {
            return;
        }
        let next = id + concurrent;
        let first = self.open + (id - self.open) % concurrent;
        let next = if next < self.count() { next } else { first };
        // A port is used again even if its last connection failed.
        self.progress[next as usize].part = Part::Waits;
        self.due.push_back(next);
    }

    /// Reads all that has arrived; returns true if it completes an answer.
    fn take(&mut self, client: &mut Client, id: ConnectionId) -> bool {
        let progress = &mut self.progress[id as usize];
        let asked = progress.left > 0;
        // Bounded by the receive buffer.
        while let Ok(len @ 1..) = client.recv(id, &mut self.scratch) {
            self.bytes += len as u64;
            progress.left = progress.left.saturating_sub(len);
        }
        asked && progress.left == 0
    }

    fn finish_one(&mut self, id: ConnectionId, now: Instant) {
        let progress = &mut self.progress[id as usize];
        debug_assert_eq!(progress.part, Part::UnderWay);
        progress.part = Part::Done;
        self.under_way -= 1;
        self.count_one(id, now);
    }

    /// Counts what the connection has done since it began.
    fn count_one(&mut self, id: ConnectionId, now: Instant) {
        let progress = self.progress[id as usize];
        self.finished += 1;
        if now >= self.from && now <= self.until && progress.began_ns >= self.from.0 {
            self.completed += 1;
            self.latency.saturating_record(now.0.saturating_sub(progress.began_ns));
        }
    }

    /// Sends as much of a request as there is room for; its answer has `answer` bytes. Returns
    /// false if the connection has failed.
    fn ask(&mut self, client: &mut Client, id: ConnectionId, bytes: usize, answer: usize) -> bool {
        let progress = &mut self.progress[id as usize];
        (progress.left, progress.unsent) = (answer, bytes);
        self.push(client, id)
    }

    /// Sends what is left of a request, as far as there is room; returns false if the connection
    /// has failed.
    fn push(&mut self, client: &mut Client, id: ConnectionId) -> bool {
        let progress = &mut self.progress[id as usize];
        while progress.unsent > 0 {
            match client.send(id, &self.scratch[..progress.unsent.min(CHUNK)]) {
                Ok(0) | Err(SendError::WouldBlock) => return true,
                Ok(sent) => progress.unsent -= sent,
                Err(_) => return false,
            }
        }
        true
    }

    /// Sends a request; a connection that takes none has failed, and gives its turn to the next.
    fn ask_or_fail(&mut self, client: &mut Client, id: ConnectionId, bytes: usize, answer: usize) {
        if !self.ask(client, id, bytes, answer) {
            self.fail(id);
        }
    }

    /// Returns the maximum number of connections in flight.
    fn max_in_flight(&self) -> u32 {
        match self.order {
            Order::Echo { outstanding, .. }
            | Order::Fetch { outstanding, .. }
            | Order::EchoOnce { outstanding, .. } => outstanding.max(1),
            Order::Open { .. } | Order::Close { .. } => WINDOW,
            _ => u32::MAX,
        }
    }

    /// Begins due requests, at most `budget`; reads `clock` once for each. Returns true when the
    /// order is done.
    pub(super) fn poll(
        &mut self,
        client: &mut Client,
        now: Instant,
        budget: usize,
        clock: &mut dyn FnMut() -> Instant,
    ) -> bool {
        let ending = now > self.until;
        match self.order {
            Order::Open { .. } => {
                self.begin_next(budget, |_, id| client.connect(id, now), clock);
                ending || self.all_done()
            }
            Order::EchoOnce { bytes, .. } => {
                self.due.clear();
                self.begin_next(budget, |task, id| task.ask_or_fail(client, id, bytes, bytes), clock);
                ending || self.all_done()
            }
            Order::Echo { bytes, .. } | Order::Stages { bytes, .. } | Order::Fetch { bytes, .. } => {
                let answer = if let Order::Fetch { answer, .. } = self.order { answer } else { bytes };
                if self.next < self.count() {
                    self.due.extend(0..self.count());
                    self.next = self.count();
                }
                if !ending {
                    self.begin_due(budget, |task, id| task.ask_or_fail(client, id, bytes, answer), clock);
                }
                ending && (self.under_way == 0 || now > self.until + GRACE)
            }
            Order::Upload { .. } => {
                if self.next < self.count() {
                    self.due.extend(0..self.count());
                    self.next = self.count();
                }
                for _ in 0..self.due.len().min(budget) {
                    let Some(id) = self.due.pop_front() else { break };
                    while let Ok(len @ 1..) = client.send(id, &self.scratch) {
                        self.bytes += len as u64;
                    }
                }
                ending
            }
            Order::Download { .. } => {
                // Data that arrived before causes no event, and no more arrives while it fills the
                // window.
                if self.next < self.count() {
                    self.due.extend(0..self.count());
                    self.next = self.count();
                }
                for _ in 0..self.due.len().min(budget) {
                    let Some(id) = self.due.pop_front() else { break };
                    self.take(client, id);
                }
                ending
            }
            Order::Preload { .. } => ending,
            Order::Churn { concurrent, .. } | Order::Calls { concurrent, .. } => {
                if self.next == 0 {
                    // Beside those that are open.
                    self.due.extend(self.open..self.open + concurrent);
                    self.next = self.count();
                }
                if !ending {
                    self.begin_due(budget, |_, id| client.connect(id, now), clock);
                }
                ending && (self.under_way == 0 || now > self.until + GRACE)
            }
            Order::Close { .. } => {
                self.close_next(client, budget, clock);
                ending || self.all_done()
            }
        }
    }

    fn close_next(&mut self, client: &mut Client, budget: usize, clock: &mut dyn FnMut() -> Instant) {
        let first = self.next;
        let close = |_: &mut Self, id| {
            let _ = client.close(id);
        };
        self.begin_next(budget, close, clock);
        for id in first..self.next {
            // Connections that had failed before report nothing any more.
            if self.has_ended(client, id) {
                let now = clock();
                self.finish_one(id, now);
            }
        }
    }

    fn all_done(&self) -> bool {
        self.next == self.count() && self.under_way == 0
    }

    /// Begins connections that have not begun.
    fn begin_next(
        &mut self,
        budget: usize,
        mut begin: impl FnMut(&mut Self, ConnectionId),
        clock: &mut dyn FnMut() -> Instant,
    ) {
        let most = self.max_in_flight();
        for _ in 0..budget {
            if self.next >= self.count() || self.under_way >= most {
                return;
            }
            let id = self.next;
            self.next += 1;
            if self.begin_one(id, clock) {
                begin(self, id);
            }
        }
    }

    fn begin_due(
        &mut self,
        budget: usize,
        mut begin: impl FnMut(&mut Self, ConnectionId),
        clock: &mut dyn FnMut() -> Instant,
    ) {
        let most = self.max_in_flight();
        for _ in 0..budget {
            if self.under_way >= most {
                return;
            }
            let Some(id) = self.due.pop_front() else { return };
            if self.begin_one(id, clock) {
                begin(self, id);
            }
        }
    }

    /// Begins a connection's part; returns false if the connection has failed.
    fn begin_one(&mut self, id: ConnectionId, clock: &mut dyn FnMut() -> Instant) -> bool {
        let progress = &mut self.progress[id as usize];
        if progress.part == Part::Failed {
            return false;
        }
        self.under_way += 1;
        *progress = Progress { began_ns: clock().0, part: Part::UnderWay, ..Progress::default() };
        true
    }

    /// Returns when [`poll`](Self::poll) has work to do.
    pub(super) fn next_event(&self) -> Instant {
        let more = self.next < self.count() || !self.due.is_empty();
        if more && self.under_way < self.max_in_flight() {
            Instant(0)
        } else {
            self.until + Duration::from_nanos(1)
        }
    }

    /// Returns the outcome at its end.
    pub(super) fn outcome(mut self, client: &mut Client, now: Instant) -> Outcome {
        let mut retransmissions = 0;
        for id in 0..self.count() {
            let Some(connection) = client.connection(id) else { continue };
            let part = self.progress[id as usize].part;
            retransmissions += u64::from(connection.stats().retransmissions);
            match self.order {
                Order::Upload { .. } => {
                    self.bytes = self.bytes.saturating_sub(connection.unacknowledged_bytes() as u64);
                    self.failed += u64::from(part != Part::Failed && connection.error().is_some());
                }
                Order::Open { .. } | Order::EchoOnce { .. } => {
                    self.failed += u64::from(matches!(part, Part::Waits | Part::UnderWay));
                }
                Order::Close { .. } if matches!(part, Part::Waits | Part::UnderWay) => {
                    self.failed += 1;
                    let _ = client.abort(id);
                }
                _ => {}
            }
        }
        let end = match self.order {
            Order::Echo { .. } | Order::Fetch { .. } | Order::Churn { .. } | Order::Calls { .. } => {
                self.until.min(now)
            }
            _ => now,
        };
        Outcome {
            completed: self.completed,
            failed: self.failed,
            bytes: self.bytes,
            elapsed: end - self.from,
            latency: self.latency,
            retransmissions,
            stages: self.stages,
        }
    }
}

/// Returns true if both sides have closed.
fn is_over(client: &Client, id: ConnectionId) -> bool {
    client
        .connection(id)
        .is_none_or(|connection| matches!(connection.state(), State::TimeWait | State::Closed))
}
