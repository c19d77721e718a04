//! Messages between coordinator and agents: a length in four bytes, big endian, then as much JSON.
//!
//! Owns the messages, their framing and their bounds. Memory grows with the bytes that arrived,
//! never with the announced length.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::Duration;

use rustix::net::sockopt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tailwater_workload::Interval;

use crate::plan::Plan;
use crate::report::Measurement;

/// The messages' version; both sides must speak the same.
pub const VERSION: u32 = 2;

/// Time after which a silent peer counts as gone: one that does not answer TCP's probes, or reads
/// nothing of what it is sent. A host that is switched off, or a network that is cut, reports
/// nothing.
pub const SILENCE: Duration = Duration::from_secs(15);

/// Time of silence after which TCP probes the peer, and the number of probes within [`SILENCE`].
const ASK_AFTER: Duration = Duration::from_secs(5);
const ASK_EVERY: Duration = Duration::from_secs(2);
const ASK_TIMES: u32 = 5;

/// Longest order in bytes: a plan of as many segments as there may be, and files of some MiB.
pub const MAX_ORDER: u32 = 64 << 20;

/// Longest answer in bytes: a measurement of as many intervals as there may be.
pub const MAX_ANSWER: u32 = 1 << 30;

/// A job of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job<T> {
    /// The server, and how to reach it.
    pub target: T,
    /// The agent's own share of the load.
    pub plan: Plan,
    /// The agent's own seed.
    pub seed: u64,
    /// True if intervals are sent as they close.
    pub live: bool,
}

/// A message from the coordinator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order<T> {
    /// The first message.
    Hello {
        /// See [`VERSION`].
        version: u32,
    },
    /// Requests the clock reading; answered at once, also during a run.
    Time,
    /// Get ready for a job.
    Prepare(Box<Job<T>>),
    /// Start the job.
    Start {
        /// Reading of the agent's clock at which its schedule starts.
        at_ns: u64,
    },
    /// End the job, or do not start it.
    Stop,
}

/// A message from an agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Answers the coordinator's first message.
    Hello {
        /// See [`VERSION`].
        version: u32,
        /// The agent's process.
        pid: u32,
    },
    /// Answers [`Order::Time`].
    Time {
        /// Reading of the agent's clock.
        now_ns: u64,
    },
    /// The job can start.
    Ready,
    /// An interval closed.
    Interval {
        /// Its length.
        length_ns: u64,
        /// Its content.
        interval: Interval,
    },
    /// The job is over.
    Done(Box<Measurement>),
    /// The job could not be prepared.
    Failed {
        /// Why.
        message: String,
    },
}

/// Writes one message of at most `most` bytes.
///
/// # Errors
/// If it is longer, or the connection fails.
pub fn write<M: Serialize>(mut out: impl Write, message: &M, most: u32) -> io::Result<()> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = u32::try_from(bytes.len() - 4).ok().filter(|&length| length <= most);
    let length = length.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("a message is longer than {most} bytes"))
    })?;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    out.write_all(&bytes)
}

/// Reads one message of at most `most` bytes.
///
/// # Errors
/// `UnexpectedEof` at the end of the connection; `InvalidData` for anything that is not a message.
pub fn read<M: DeserializeOwned>(mut input: impl Read, most: u32) -> io::Result<M> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > most {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message of {length} bytes was announced; at most {most} are allowed"),
        ));
    }
    let mut bytes = Vec::new();
    if input.take(u64::from(length)).read_to_end(&mut bytes)? < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&bytes)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("not a message: {error}")))
}

/// Configures a connection to detect a peer that vanished silently: keepalive and the user timeout
/// (RFC 9293 sections 3.8.4 and 3.8.3), and a bound for writes that a peer does not read.
///
/// # Errors
/// If the kernel refuses an option.
pub(crate) fn watch(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(SILENCE))?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, ASK_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, ASK_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, ASK_TIMES)?;
    sockopt::set_tcp_user_timeout(stream, SILENCE.as_millis() as u32)?;
    Ok(())
}

/// The writing half of a connection, for several threads.
#[derive(Debug)]
pub(crate) struct Writer {
    stream: Mutex<TcpStream>,
    most: u32,
}

impl Writer {
    pub(crate) fn new(stream: TcpStream, most: u32) -> Self {
        Self { stream: Mutex::new(stream), most }
    }

    pub(crate) fn send<M: Serialize>(&self, message: &M) -> io::Result<()> {
        let mut stream = self.stream.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        write(&mut *stream, message, self.most).inspect_err(|_| {
            // The bytes written may end within a message, so nothing can follow.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        })
    }

    /// Ends the connection in both directions: its reader sees the end.
    pub(crate) fn close(&self) {
        let stream = self.stream.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // The other side may have closed it already.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}
