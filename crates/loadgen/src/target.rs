//! The target of a run over sockets, and the errors of making one.
//!
//! Owns data only. The transports over UDP and TCP share it with their first
//! [contact](crate::contact).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::lanes::MAX_CONNECTIONS;
use crate::plan::PlanError;
use crate::protocol::Protocol;

/// The server answered the first request, but wrongly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the server at {server} answers the first {protocol} request, but wrongly: {}",
    what_to_check(protocol)
)]
pub struct WrongAnswer {
    /// The protocol of the request.
    pub protocol: &'static str,
    /// The server's address.
    pub server: SocketAddr,
}

fn what_to_check(protocol: &str) -> &'static str {
    match protocol {
        "http" => "is its first page there, with status 200 and no redirection?",
        "dns" => "is what the list says of its first name still true?",
        _ => "does it speak this protocol?",
    }
}

/// What to send.
#[derive(Debug, Clone)]
pub struct Load {
    /// The protocol.
    pub protocol: Arc<dyn Protocol>,
    /// Seed of every request.
    pub seed: u64,
    /// True if the data that the protocol reads is stored first.
    pub preload: bool,
}

/// The server, and the core of the generator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The server.
    pub server: SocketAddr,
    /// Core to run the generator on; the calling thread's affinity is restored afterwards.
    pub core: Option<usize>,
    /// Longest time until the server answers the first contact.
    pub wait: Duration,
}

/// Why a run over UDP could not be made.
#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    /// The plan is invalid.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No server answered.
    #[error("no {protocol} server answered at {server} within {} ms; does one listen there, on UDP?", waited.as_millis())]
    NoServer {
        /// The protocol of the request.
        protocol: &'static str,
        /// The server's address.
        server: SocketAddr,
        /// Time waited.
        waited: Duration,
    },
    /// The answer was wrong.
    #[error(transparent)]
    WrongAnswer(#[from] WrongAnswer),
    /// The data that the protocol reads could not be stored.
    #[error(
        "cannot store what is to be read: the server did not take {missing} of {all} requests; has it room for all keys? \
         Ask for fewer, or preload nothing (--no-preload) to measure with what is there"
    )]
    Preload {
        /// Requests without a right answer at the end.
        missing: u64,
        /// Number of all requests.
        all: u64,
    },
    /// The kernel refused something.
    #[error("cannot {attempt}: {reason}")]
    System {
        /// The attempted operation.
        attempt: &'static str,
        /// The kernel's error.
        reason: io::Error,
    },
}

/// Why a run over TCP could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TcpLoadError {
    /// The plan is invalid.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The number of connections is out of range.
    #[error("a generator has 1 to {MAX_CONNECTIONS} connections, not {count}")]
    Count {
        /// The given number.
        count: u32,
    },
    /// No server answered.
    #[error(
        "no {protocol} server answered at {server} within {} ms: {reason}; does one listen there, on TCP?",
        waited.as_millis()
    )]
    NoServer {
        /// The protocol of the request.
        protocol: &'static str,
        /// The server's address.
        server: SocketAddr,
        /// Time waited.
        waited: Duration,
        /// The last error.
        reason: io::Error,
    },
    /// The answer was wrong.
    #[error(transparent)]
    WrongAnswer(#[from] WrongAnswer),
    /// The data that the protocol reads could not be stored.
    #[error(
        "cannot store what is to be read: request {index} of {all}: {reason}; has the server room for all keys? \
         Ask for fewer, or preload nothing (--no-preload) to measure with what is there"
    )]
    Preload {
        /// Index of the failed request.
        index: u64,
        /// Number of all requests.
        all: u64,
        /// The error.
        reason: io::Error,
    },
    /// The kernel refused something.
    #[error("cannot {attempt}: {reason}")]
    System {
        /// The attempted operation.
        attempt: &'static str,
        /// The kernel's error.
        reason: io::Error,
    },
}
