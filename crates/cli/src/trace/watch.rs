//! The connection to the IOKernel: its ring of events, and the names behind the numbers.
//!
//! An impossible ring or event is an error, never a panic.

use std::collections::BTreeMap;

use anyhow::Context;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use tailwater_shm::control::{Capturing, ClientMessage, ServerMessage, TraceRequest, dial, receive, send};
use tailwater_shm::layout::Region;
use tailwater_shm::memory::Mapping;
use tailwater_shm::ring::{Consumer, FrameBuffer};
use tailwater_shm::trace::Event;
use tailwater_shm::{Clock, Cycles};

/// Names of runtimes and ports by their numbers.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Names of runtimes by id.
    pub runtimes: BTreeMap<u32, String>,
    /// Names of ports by index.
    pub ports: Vec<String>,
}

impl Names {
    /// Returns the name of a runtime; its id if the name is unknown.
    pub fn runtime(&self, id: u32) -> String {
        self.runtimes.get(&id).cloned().unwrap_or_else(|| format!("runtime {id}"))
    }
}

/// Events that did not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Losses {
    /// Events that found this program's ring full.
    pub events: u64,
    /// Steps that programs overwrote before the IOKernel read them.
    pub steps: u64,
}

/// The connection and its ring.
pub struct Watch {
    socket: OwnedFd,
    ring: Consumer,
    buffer: FrameBuffer,
    /// The clock of the events' times.
    pub clock: Clock,
    anchor: Capturing,
    /// The names learnt so far.
    pub names: Names,
}

impl Watch {
    /// Asks the IOKernel at `address` for a trace.
    ///
    /// # Errors
    /// If nothing listens, or the request was refused.
    pub fn begin(address: &str, request: TraceRequest) -> anyhow::Result<Self> {
        let socket = dial(address)?;
        send(&socket, &ClientMessage::Trace(request), &[])?;
        let (answer, files) = receive::<ServerMessage>(&socket).context("the IOKernel did not answer")?;
        let anchor = match answer {
            ServerMessage::Tracing(anchor) => anchor,
            ServerMessage::Refused { why } => anyhow::bail!("refused: {why}"),
            other => anyhow::bail!("the IOKernel gave an answer of another kind: {other:?}"),
        };
        let file = files.first().context("the IOKernel sent no memory")?;
        let (region, ends) = Region::attach(Mapping::new(file, "trace")?)?;
        let mut watch = Self {
            socket,
            ring: ends.into_iter().next().context("the IOKernel sent no ring")?.ingress,
            buffer: FrameBuffer::new(),
            clock: Clock::from_hz(region.tsc_hz()),
            anchor,
            names: Names::default(),
        };
        watch.learn_names(true);
        Ok(watch)
    }

    /// Returns the socket, which is closed when the IOKernel ends.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the next event and its time; `None` if the ring is empty.
    ///
    /// # Errors
    /// If the ring or the event is impossible.
    pub fn next(&mut self) -> anyhow::Result<Option<(Cycles, Event)>> {
        let Some(record) = self.ring.peek().context("the IOKernel wrote an impossible ring")? else {
            return Ok(None);
        };
        let at = record.stamp();
        let event = Event::decode(record.copy_frame(&mut self.buffer));
        record.advance();
        self.ring.publish();
        Ok(Some((at, event.context("the IOKernel wrote an impossible event")?)))
    }

    fn stats(&self) -> Option<serde_json::Value> {
        send(&self.socket, &ClientMessage::Stats, &[]).ok()?;
        match receive(&self.socket).ok()? {
            (ServerMessage::Stats(stats), _) => Some(stats),
            _ => None,
        }
    }

    /// Asks for names if `wanted`.
    pub fn learn_names(&mut self, wanted: bool) {
        let Some(stats) = wanted.then(|| self.stats()).flatten() else { return };
        for runtime in stats["runtimes"].as_array().into_iter().flatten() {
            if let (Some(id), Some(name)) = (runtime["id"].as_u64(), runtime["name"].as_str()) {
                self.names.runtimes.insert(id as u32, name.to_owned());
            }
        }
        let ports = stats["ports"].as_array().into_iter().flatten();
        self.names.ports = ports.map(|port| port["name"].as_str().unwrap_or("?").to_owned()).collect();
    }

    /// Returns the events that did not arrive, as the IOKernel counts them; `None` if it is gone.
    pub fn losses(&self) -> Option<Losses> {
        let stats = self.stats()?;
        let trace = &stats["trace"];
        let mine = trace["id"] == self.anchor.id;
        mine.then(|| Some(Losses { events: trace["dropped"].as_u64()?, steps: trace["lost"].as_u64()? }))?
    }
}
