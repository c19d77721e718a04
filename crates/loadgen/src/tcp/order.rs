//! The orders of a TCP station, and their outcomes.

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use tailwater_tcp::Config;

use super::Stages;
use crate::plan::PlanError;
use crate::protocol::Protocol;

/// One order. A station carries out one after the other; connections stay from order to order.
#[derive(Debug, Clone)]
pub enum Order {
    /// Connects to a server, forgetting what there was before. The n-th 50,000 connections go to
    /// the n-th port from the server's on. Ends when all are established or failed, or after
    /// `wait`, which also bounds how long the server may take to appear.
    Open {
        /// The server.
        server: SocketAddrV4,
        /// Number of connections.
        connections: u32,
        /// How they behave.
        config: Box<Config>,
        /// So many of a million frames are lost on purpose in either direction, until the next such
        /// order.
        loss_per_million: u32,
        /// For how long at most.
        wait: Duration,
    },
    /// Connections take turns: each sends a request, waits until as many bytes have come back, and
    /// gets in line again.
    Echo {
        /// Of each request.
        bytes: usize,
        /// Requests without an answer at any time, over all connections and one on each; at
        /// least 1.
        outstanding: u32,
        /// Not counted.
        warm_up: Duration,
        /// Counted.
        lasts: Duration,
    },
    /// As [`Order::Echo`], of a service whose answers have another length than the requests.
    Fetch {
        /// Of each request.
        bytes: usize,
        /// Of each answer; at least 1.
        answer: usize,
        /// As of [`Order::Echo`].
        outstanding: u32,
        /// Not counted.
        warm_up: Duration,
        /// Counted.
        lasts: Duration,
    },
    /// As [`Order::Echo`], with stages: the service answers with [`Stamps`](super::Stamps). The
    /// first connection only.
    Stages {
        /// Of each request.
        bytes: usize,
        /// For so long.
        lasts: Duration,
    },
    /// Each connection sends one request and takes its echo.
    EchoOnce {
        /// Of each request.
        bytes: usize,
        /// Requests without an answer at any time; at least 1.
        outstanding: u32,
        /// For how long at most.
        wait: Duration,
    },
    /// Has everything stored that a protocol reads, over the first connection: what is completed is
    /// stored, what fails is not. Ends at the first answer that is not the right one.
    Preload {
        /// What is stored.
        protocol: Arc<dyn Protocol>,
        /// For how long at most.
        wait: Duration,
    },
    /// All connections send as much as they can.
    Upload {
        /// For so long.
        lasts: Duration,
    },
    /// All connections read what the server sends.
    Download {
        /// For so long.
        lasts: Duration,
    },
    /// So many connections at a time open, send a request, take its echo, close, and begin again
    /// with another port.
    Churn {
        /// At a time, beside those that are open.
        concurrent: u32,
        /// Of each request.
        bytes: usize,
        /// For so long; those under way are then finished.
        lasts: Duration,
    },
    /// So many connections at a time open, send `messages` requests, each after the echo of the one
    /// before, and are reset; another one with another port takes the place of each. Counts
    /// requests; the latency of a connection's first one begins with its SYN.
    Calls {
        /// At a time, beside those that are open.
        concurrent: u32,
        /// Requests of each connection; at least 1.
        messages: u32,
        /// Of each request.
        bytes: usize,
        /// Not counted.
        warm_up: Duration,
        /// Counted.
        lasts: Duration,
    },
    /// Closes all connections and waits until the server has closed them too, or until `wait` is
    /// over; those are reset.
    Close {
        /// For how long at most.
        wait: Duration,
    },
}

/// The outcome of an order.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Connections opened, requests answered, connections closed: whatever the order counts.
    pub completed: u64,
    /// Connections that failed meanwhile.
    pub failed: u64,
    /// Payload that was acknowledged (upload) or received (all others), in the counted time.
    pub bytes: u64,
    /// The counted time.
    pub elapsed: Duration,
    /// From handing over the first byte of a request (of a SYN, for [`Order::Churn`]) to taking the
    /// last of its echo (the server's FIN), in nanoseconds. A request longer than the send buffer
    /// is handed over in parts.
    pub latency: Histogram<u64>,
    /// Segments that the station sent again, over all its connections since they were opened.
    pub retransmissions: u64,
    /// Of [`Order::Stages`].
    pub stages: Option<Box<Stages>>,
}

impl Outcome {
    /// Returns the completions per second.
    pub fn rate(&self) -> f64 {
        self.completed as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Returns the payload in bits per nanosecond, which is Gbit/s.
    pub fn gbps(&self) -> f64 {
        self.bytes as f64 * 8.0 / (self.elapsed.as_nanos() as f64).max(1.0)
    }

    /// Returns a quantile of the latency, in microseconds; 0 if nothing was measured.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        if self.latency.is_empty() { 0.0 } else { self.latency.value_at_quantile(quantile) as f64 / 1e3 }
    }
}

/// Why an order was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TcpError {
    /// No runtime has the server's address.
    #[error("no runtime has the address of {server}; is the service attached to this IOKernel?")]
    NoServer {
        /// Where it was looked for.
        server: SocketAddrV4,
    },
    /// An order before the first [`Order::Open`].
    #[error("the station has no server yet")]
    NotOpen,
    /// No connection at a time, or more than there are local ports beside the open ones.
    #[error("{concurrent} connections at a time beside {open} open ones need 1 to 50000 ports together")]
    Lanes {
        /// Asked for.
        concurrent: u32,
        /// Open.
        open: u32,
    },
    /// More connections than ports above the server's.
    #[error("{connections} connections need more ports than there are above {server}")]
    Ports {
        /// The server.
        server: SocketAddrV4,
        /// Asked for.
        connections: u32,
    },
    /// A load that cannot be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The handle's owner stopped it.
    #[error("the order was stopped before it was carried out")]
    Stopped,
    /// The IOKernel is gone, or did not carry out the order in time.
    #[error("the IOKernel ended or is stuck")]
    Ended,
}
