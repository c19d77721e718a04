//! What commands ask of a running IOKernel beside its statistics, and the memory that it fills for
//! a watcher. The conversation is `testbed::query`'s.

use anyhow::Context;
use rustix::fd::OwnedFd;
use serde_json::Value;
use tailwater_shm::Clock;
use tailwater_shm::control::{
    CaptureRequest, Capturing, ClientMessage, CoreRequest, ServerMessage, receive, send,
};
use tailwater_shm::layout::Region;
use tailwater_shm::memory::Mapping;
use tailwater_shm::ring::Consumer;
use tailwater_shm::trace::Recording;
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

/// A connection whose other end fills memory.
pub struct Watch<M> {
    /// Closed when the IOKernel ends; for questions besides.
    pub socket: OwnedFd,
    /// The memory.
    pub memory: M,
    /// The clock of the stamps in it.
    pub clock: Clock,
    /// The watch's number, and the moment at which it began.
    pub anchor: Capturing,
}

impl Watch<Consumer> {
    /// Asks the IOKernel at `address` for a capture, which comes through a ring.
    ///
    /// # Errors
    /// If nothing listens or answers, or the request was refused.
    pub fn capture(address: &str, request: CaptureRequest) -> anyhow::Result<Self> {
        let (socket, anchor, file) = begin(address, &ClientMessage::Capture(request))?;
        let (region, ends) = Region::attach(Mapping::new(file, "capture")?)?;
        let ring = ends.into_iter().next().context("the IOKernel sent no ring")?.ingress;
        Ok(Self { socket, memory: ring, clock: Clock::from_hz(region.tsc_hz()), anchor })
    }
}

impl Watch<Recording> {
    /// Asks the IOKernel at `address` for its record of events: as `request` says, for a trace, or
    /// for what it has recorded.
    ///
    /// # Errors
    /// As [`Watch::capture`].
    pub fn recording(address: &str, request: &ClientMessage) -> anyhow::Result<Self> {
        let (socket, anchor, file) = begin(address, request)?;
        let memory = Recording::attach(file)?;
        let clock = Clock::from_hz(memory.hz());
        Ok(Self { socket, memory, clock, anchor })
    }
}

fn begin(address: &str, request: &ClientMessage) -> anyhow::Result<(OwnedFd, Capturing, OwnedFd)> {
    let socket = connect(address, PATIENCE)?;
    send(&socket, request, &[])?;
    match answer(&socket)? {
        (ServerMessage::Capturing(anchor) | ServerMessage::Tracing(anchor), files) => {
            let file = files.into_iter().next().context("the IOKernel sent no memory")?;
            Ok((socket, anchor, file))
        }
        (ServerMessage::Refused { why }, _) => anyhow::bail!("refused: {why}"),
        (other, _) => Err(of_another_kind(&other)),
    }
}

impl<M> Watch<M> {
    /// Returns the IOKernel's statistics; `None` if it is gone.
    pub fn statistics(&self) -> Option<Value> {
        send(&self.socket, &ClientMessage::Stats, &[]).ok()?;
        match receive(&self.socket).ok()? {
            (ServerMessage::Stats(statistics), _) => Some(statistics),
            _ => None,
        }
    }
}
