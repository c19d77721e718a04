//! The connection to the IOKernel: its ring of events, and the names behind the numbers.
//!
//! The IOKernel is trusted to be the IOKernel, but a ring or an event that cannot be is an error and no panic.

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
    /// By id.
    pub runtimes: BTreeMap<u32, String>,
    /// By place.
    pub ports: Vec<String>,
}

impl Names {
    /// A runtime's name, or what is known of it.
    pub fn runtime(&self, id: u32) -> String {
        self.runtimes.get(&id).cloned().unwrap_or_else(|| format!("runtime {id}"))
    }
}

/// What did not arrive.
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
    /// Of the events' times.
    pub clock: Clock,
    anchor: Capturing,
    /// As far as they are known.
    pub names: Names,
    /// Keeps the ring's memory.
    _region: Region,
}

impl Watch {
    /// Asks the IOKernel at `address` for a trace.
    ///
    /// # Errors
    /// Nobody listens, or the request was refused.
    pub fn begin(address: &str, request: TraceRequest) -> anyhow::Result<Self> {
        let socket = dial(address)?;
        send(&socket, &ClientMessage::Trace(request), &[])?;
        let (answer, files) = receive::<ServerMessage>(&socket).context("the IOKernel did not answer")?;
        let anchor = match answer {
            ServerMessage::Tracing(anchor) => anchor,
            ServerMessage::Refused { why } => anyhow::bail!("refused: {why}"),
            other => anyhow::bail!("the IOKernel answered something else: {other:?}"),
        };
        let file = files.first().context("the IOKernel sent no memory")?;
        let region = Region::attach(Mapping::new(file, "trace")?)?;
        let mut watch = Self {
            socket,
            ring: Consumer::new(region.ingress(0)),
            buffer: FrameBuffer::new(),
            clock: Clock::from_hz(region.tsc_hz()),
            anchor,
            names: Names::default(),
            _region: region,
        };
        watch.learn_names(true);
        Ok(watch)
    }

    /// What hangs up when the IOKernel ends.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The next event and its time, if one waits.
    ///
    /// # Errors
    /// The ring is impossible.
    pub fn next(&mut self) -> anyhow::Result<Option<(Cycles, Event)>> {
        let Some(record) = self.ring.peek().context("the IOKernel wrote an impossible ring")? else {
            return Ok(None);
        };
        let at = self.ring.stamp(&record);
        let event = Event::decode(self.ring.copy_frame(&record, &mut self.buffer));
        self.ring.advance(&record);
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

    /// How much did not arrive, as far as the IOKernel says.
    pub fn losses(&self) -> Option<Losses> {
        let stats = self.stats()?;
        let trace = &stats["trace"];
        let mine = trace["id"] == self.anchor.id;
        mine.then(|| Some(Losses { events: trace["dropped"].as_u64()?, steps: trace["lost"].as_u64()? }))?
    }
}
