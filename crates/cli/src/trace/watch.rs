//! The connection to the IOKernel: its record of events, and the names behind the numbers.
//!
//! Owns which events count: those since a trace began, or since a moment in the past. An impossible
//! event is an error, never a panic.

use std::collections::BTreeMap;

use rustix::fd::{AsFd, BorrowedFd};
use tailwater_shm::control::{ClientMessage, TraceRequest};
use tailwater_shm::trace::{Event, Played, Recording};
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
    /// Events that were overwritten before this program read them.
    pub events: u64,
    /// Steps that programs overwrote before the IOKernel read them.
    pub steps: u64,
}

/// The connection and the record.
pub struct Watch {
    watch: query::Watch<Recording>,
    /// Events before are not asked for, but for those that tell who had which core then.
    from: Cycles,
    looks_back: bool,
    /// Time of the oldest event.
    oldest: Option<Cycles>,
    /// Number of events that were overwritten before they were read.
    pub overwritten: u64,
    /// The names learnt so far.
    pub names: Names,
}

impl Watch {
    /// Asks the IOKernel at `address` for a trace.
    ///
    /// # Errors
    /// If nothing listens or answers, or the request was refused.
    pub fn begin(address: &str, request: TraceRequest) -> anyhow::Result<Self> {
        let watch = query::Watch::recording(address, &ClientMessage::Trace(request))?;
        let from = watch.anchor.cycles;
        Ok(Self::new(watch, from, false))
    }

    /// Asks the IOKernel at `address` for the last `ns` nanoseconds of what it has recorded.
    ///
    /// # Errors
    /// As [`Watch::begin`].
    pub fn look_back(address: &str, ns: u64) -> anyhow::Result<Self> {
        let watch = query::Watch::recording(address, &ClientMessage::Recorded)?;
        let from = watch.anchor.cycles.saturating_sub(watch.clock.from_ns(ns));
        Ok(Self::new(watch, from, true))
    }

    fn new(watch: query::Watch<Recording>, from: Cycles, looks_back: bool) -> Self {
        let mut watch =
            Self { watch, from, looks_back, oldest: None, overwritten: 0, names: Names::default() };
        watch.learn_names(true);
        watch
    }

    /// Returns the moment at which the trace began, or the record was sent.
    pub fn anchor(&self) -> Cycles {
        self.watch.anchor.cycles
    }

    /// Returns how far the record reaches back from the [anchor](Self::anchor), as far as it has
    /// been read, in nanoseconds.
    pub fn reach_ns(&self) -> u64 {
        self.clock().to_ns(self.oldest.map_or(0, |oldest| self.anchor().saturating_sub(oldest)))
    }

    /// Returns the clock of the events' times.
    pub fn clock(&self) -> &Clock {
        &self.watch.clock
    }

    /// Returns the socket, which is closed when the IOKernel ends.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.watch.socket.as_fd()
    }

    /// Returns the next event that counts, and its time; `None` if there is none at present. In a
    /// look back, the hand-offs of cores before are as if they had happened at its beginning, so
    /// that it is known who had which core then; a trace begins with that.
    ///
    /// # Errors
    /// If an event is impossible.
    pub fn next(&mut self) -> anyhow::Result<Option<(Cycles, Event)>> {
        loop {
            match self.watch.memory.next_event() {
                Played::Nothing => return Ok(None),
                Played::Impossible => anyhow::bail!("the IOKernel recorded an impossible event"),
                Played::Lost(events) => self.overwritten += events,
                Played::Event(at, event) => {
                    self.oldest.get_or_insert(at);
                    if at >= self.from || self.looks_back && matches!(event, Event::Core { .. }) {
                        return Ok(Some((at.max(self.from), event)));
                    }
                }
            }
        }
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
}
