//! What commands ask of a running IOKernel beside its statistics, and the rings that it fills for a
//! watcher. The conversation is `testbed::query`'s.

use anyhow::Context;
use rustix::fd::OwnedFd;
use serde_json::Value;
use tailwater_shm::Clock;
use tailwater_shm::control::{Capturing, ClientMessage, CoreRequest, ServerMessage, receive, send};
use tailwater_shm::layout::Region;
use tailwater_shm::memory::Mapping;
use tailwater_shm::ring::Consumer;
pub use tailwater_testbed::query::{PATIENCE, statistics, statistics_and_jobs};
use tailwater_testbed::query::{answer, connect, of_another_kind};

/// Returns in words what the user of this process may do at the IOKernel at `socket`.
///
/// # Errors
/// If nothing listens at the socket, or the answer has another form.
pub fn rights(socket: &str) -> anyhow::Result<String> {
    let connection = connect(socket, PATIENCE)?;
    send(&connection, &ClientMessage::Rights, &[])?;
    match answer(&connection)?.0 {
        ServerMessage::Rights { may } => Ok(may),
        other => Err(of_another_kind(&other)),
    }
}

/// Requests cores for a program at the IOKernel at `socket`; returns how many that may own by
/// requests.
///
/// # Errors
/// As [`rights`], and why the IOKernel refuses.
pub fn request_cores(socket: &str, request: CoreRequest) -> anyhow::Result<u16> {
    let connection = connect(socket, PATIENCE)?;
    send(&connection, &ClientMessage::RequestCores(request), &[])?;
    match answer(&connection)?.0 {
        ServerMessage::CoresRequested { limit } => Ok(limit),
        other => Err(of_another_kind(&other)),
    }
}

/// Parses the size of a watch's ring in megabytes.
///
/// # Errors
/// If there is no ring of that size.
pub fn parse_buffer(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|mb| [1, 2, 4, 8, 16].contains(mb)).ok_or_else(|| "1, 2, 4, 8 or 16".to_owned())
}

/// A connection whose other end fills a ring.
pub struct Watch {
    /// Closed when the IOKernel ends; for questions besides.
    pub socket: OwnedFd,
    /// The ring.
    pub ring: Consumer,
    /// The clock of the ring's stamps.
    pub clock: Clock,
    /// The watch's number, and the moment at which it began.
    pub anchor: Capturing,
}

impl Watch {
    /// Asks the IOKernel at `address` for a capture or a trace.
    ///
    /// # Errors
    /// If nothing listens or answers, or the request was refused.
    pub fn begin(address: &str, request: &ClientMessage) -> anyhow::Result<Self> {
        let socket = connect(address, PATIENCE)?;
        send(&socket, request, &[])?;
        let (answer, files) = answer(&socket)?;
        let (anchor, name) = match (answer, request) {
            (ServerMessage::Capturing(anchor), ClientMessage::Capture(_)) => (anchor, "capture"),
            (ServerMessage::Tracing(anchor), ClientMessage::Trace(_)) => (anchor, "trace"),
            (ServerMessage::Refused { why }, _) => anyhow::bail!("refused: {why}"),
            (other, _) => return Err(of_another_kind(&other)),
        };
        let file = files.first().context("the IOKernel sent no memory")?;
        let (region, ends) = Region::attach(Mapping::new(file, name)?)?;
        let ring = ends.into_iter().next().context("the IOKernel sent no ring")?.ingress;
        Ok(Self { socket, ring, clock: Clock::from_hz(region.tsc_hz()), anchor })
    }

    /// Returns the IOKernel's statistics; `None` if it is gone.
    pub fn statistics(&self) -> Option<Value> {
        send(&self.socket, &ClientMessage::Stats, &[]).ok()?;
        match receive(&self.socket).ok()? {
            (ServerMessage::Stats(statistics), _) => Some(statistics),
            _ => None,
        }
    }
}
