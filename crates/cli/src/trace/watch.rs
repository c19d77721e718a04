//! The connection to the IOKernel: its ring of events, and the names behind the numbers.
//!
//! An impossible ring or event is an error, never a panic.

use std::collections::BTreeMap;

use anyhow::Context;
use rustix::fd::{AsFd, BorrowedFd};
use tailwater_shm::control::{ClientMessage, TraceRequest};
use tailwater_shm::ring::FrameBuffer;
use tailwater_shm::trace::Event;
use tailwater_shm::{Clock, Cycles};

use crate::query;

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
    watch: query::Watch,
    buffer: FrameBuffer,
    /// The names learnt so far.
    pub names: Names,
}

impl Watch {
    /// Asks the IOKernel at `address` for a trace.
    ///
    /// # Errors
    /// If nothing listens or answers, or the request was refused.
    pub fn begin(address: &str, request: TraceRequest) -> anyhow::Result<Self> {
        let watch = query::Watch::begin(address, &ClientMessage::Trace(request))?;
        let mut watch = Self { watch, buffer: FrameBuffer::new(), names: Names::default() };
        watch.learn_names(true);
        Ok(watch)
    }

    /// Returns the clock of the events' times.
    pub fn clock(&self) -> &Clock {
        &self.watch.clock
    }

    /// Returns the socket, which is closed when the IOKernel ends.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.watch.socket.as_fd()
    }

    /// Returns the next event and its time; `None` if the ring is empty.
    ///
    /// # Errors
    /// If the ring or the event is impossible.
    pub fn next(&mut self) -> anyhow::Result<Option<(Cycles, Event)>> {
        let Some(record) = self.watch.ring.peek().context("the IOKernel wrote an impossible ring")? else {
            return Ok(None);
        };
        let at = record.stamp();
        let event = Event::decode(record.copy_frame(&mut self.buffer));
        record.advance();
        self.watch.ring.publish();
        Ok(Some((at, event.context("the IOKernel wrote an impossible event")?)))
    }

    /// Asks for names if `wanted`.
    pub fn learn_names(&mut self, wanted: bool) {
        let Some(stats) = wanted.then(|| self.watch.statistics()).flatten() else { return };
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
        let stats = self.watch.statistics()?;
        let trace = &stats["trace"];
        let mine = trace["id"] == self.watch.anchor.id;
        mine.then(|| Some(Losses { events: trace["dropped"].as_u64()?, steps: trace["lost"].as_u64()? }))?
    }
}
