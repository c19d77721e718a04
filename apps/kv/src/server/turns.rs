//! Requests in the order of a dispatcher's policy, so that short ones do not wait behind large
//! retrievals.
//!
//! A *turn* is what a connection executes in one go: the commands that have arrived, up to a bound
//! of its output. The thread of a connection passes the connection itself to the dispatcher for
//! each turn, waits until it is back, and writes the answers; so the commands of one connection
//! stay in their order, and at most one turn of each waits. A turn has large retrievals alone or
//! none, and is of one class.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tailwater::dispatch::{ClassStats, Dispatcher, Refused, Request, RequestClass, Settings};
use tailwater::sync::mpsc;

use crate::protocol::{Connection, Step};
use crate::service::Sizes;
use crate::store::Now;

/// Target of turns without large retrievals.
pub const SHORT_SLO: Duration = Duration::from_micros(50);
/// Target of those with large ones.
pub const LARGE_SLO: Duration = Duration::from_millis(5);

/// The dispatcher of a server.
#[derive(Debug)]
pub struct Turns {
    dispatcher: Dispatcher<Turn>,
    large: usize,
    /// Connections so far.
    connections: AtomicU32,
}

#[derive(Debug)]
struct Turn {
    connection: Box<Connection>,
    now: Now,
    /// Travels with the turn, so that its loss in a panic is noticed.
    done: mpsc::Sender<Done>,
}

#[derive(Debug)]
struct Done {
    connection: Box<Connection>,
    step: Step,
    done: mpsc::Sender<Done>,
}

/// What the thread of a connection has of the dispatcher.
#[derive(Debug)]
pub struct Ends {
    done: mpsc::Sender<Done>,
    returned: mpsc::Receiver<Done>,
    /// Which of several dispatchers has the connection's turns.
    flow: u32,
}

/// 2^32 divided by the golden ratio, odd: multiples of it are spread evenly (Knuth, TAOCP 6.4).
const SPREAD: u32 = 0x9e37_79b9;

impl Turns {
    /// Starts a dispatcher for at most `connections`.
    ///
    /// # Errors
    /// If a setting is out of range, or there is no memory for its threads.
    pub fn start(sizes: Sizes, connections: u32) -> io::Result<Self> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let policy = sizes.policy.for_unknown_work().map_err(invalid)?;
        // Each connection has one turn at most, so none is refused.
        let settings = Settings::new(policy)
            .dispatchers(sizes.dispatchers)
            .class(RequestClass::new("short").slo(SHORT_SLO))
            .class(RequestClass::new("large").slo(LARGE_SLO))
            .queue(connections.max(1) as usize);
        let dispatcher = Dispatcher::start(settings, |_| (), Turn::run)?;
        Ok(Self { dispatcher, large: sizes.large, connections: AtomicU32::new(0) })
    }

    /// Returns what became of the turns of each class.
    #[must_use]
    pub fn stats(&self) -> Vec<ClassStats> {
        self.dispatcher.stats()
    }

    /// Has a new connection divide its commands into turns.
    pub fn prepare(&self, connection: &mut Connection) -> Ends {
        connection.divide_turns(self.large);
        let (done, returned) = mpsc::channel();
        let flow = self.connections.fetch_add(1, Relaxed).wrapping_mul(SPREAD);
        Ends { done, returned, flow }
    }

    /// Executes a turn of the connection; `None` if it panicked.
    pub fn process(
        &self,
        mut connection: Box<Connection>,
        now: Now,
        Ends { done, returned, flow }: Ends,
    ) -> Option<(Box<Connection>, Step, Ends)> {
        let request = Request::new(usize::from(connection.begin_turn())).flow(flow);
        let turn = Turn { connection, now, done };
        if let Err(Refused(turn)) = self.dispatcher.submit(request, turn) {
            turn.run();
        }
        let Done { connection, step, done } = returned.recv().ok()?;
        Some((connection, step, Ends { done, returned, flow }))
    }
}

impl Turn {
    fn run(self) {
        let Self { mut connection, now, done } = self;
        let step = connection.process(now);
        let sender = done.clone();
        // The connection's thread waits for it.
        let _ = sender.send(Done { connection, step, done });
    }
}
