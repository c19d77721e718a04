//! The connection to the IOKernel: its record of events, and the names behind the numbers.
//!
//! Owns which events count: those since a trace began, or since a moment in the past. An impossible
//! event is an error, never a panic.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rustix::fd::{AsFd, BorrowedFd};
use serde_json::Value;
use tailwater_shm::control::{ClientMessage, TraceRequest};
use tailwater_shm::trace::{Played, Recording, TraceEvent};
use tailwater_shm::{Clock, Cycles};
use tailwater_testbed::note;

use super::LAST_EVENTS;
use super::collect::Collector;
use crate::query;

/// Names of runtimes by their numbers.
///
/// The number of a runtime is a place, which another program gets after it: each registration there
/// has the moment at which it began.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// By place, the registrations by their beginning.
    runtimes: BTreeMap<u32, BTreeMap<Cycles, String>>,
}

impl Names {
    /// Returns the name of the runtime at a place at a moment; the number of the place if the name
    /// is unknown.
    pub fn runtime(&self, place: u32, at: Cycles) -> String {
        self.registration(place, at).map_or_else(|| format!("program {place}"), |(_, name)| name.to_owned())
    }

    /// Returns when the registration began that was at a place at a moment, and its name.
    pub fn registration(&self, place: u32, at: Cycles) -> Option<(Cycles, &str)> {
        let (began, name) = self.runtimes.get(&place)?.range(..=at).next_back()?;
        Some((*began, name))
    }

    /// Notes a registration.
    pub fn register(&mut self, place: u32, began: Cycles, name: &str) {
        self.runtimes.entry(place).or_default().insert(began, name.to_owned());
    }

    /// Notes what statistics say. They have the last registrations with their moments; a program
    /// that registered earlier has its place since before anything of interest.
    fn learn(&mut self, stats: &Value) {
        let each = |key: &str| stats[key].as_array().cloned().unwrap_or_default();
        let place = |one: &Value| u32::try_from(one["id"].as_u64()?).ok();
        for one in each("registrations") {
            if let (Some(place), Some(at), Some(name)) =
                (place(&one), one["cycles"].as_u64(), one["name"].as_str())
            {
                self.register(place, at, name);
            }
        }
        for one in each("runtimes") {
            if let (Some(place), Some(name)) = (place(&one), one["name"].as_str())
                && !self.runtimes.contains_key(&place)
            {
                self.register(place, 0, name);
            }
        }
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
    /// Events before this moment do not count; in a look back, hand-offs of cores before it count
    /// as if they had happened then.
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
        watch.learn_names();
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

    /// Prints how far the record reaches back, if that is less than what was asked for.
    pub fn note_reach(&self, asked_ns: u64) {
        let reach = self.reach_ns();
        if reach < asked_ns {
            note!("the record of events begins {:.3} s ago", Duration::from_nanos(reach).as_secs_f64());
        }
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
    pub fn next(&mut self) -> anyhow::Result<Option<(Cycles, TraceEvent)>> {
        loop {
            match self.watch.memory.next_event() {
                Played::Nothing => return Ok(None),
                Played::Impossible => anyhow::bail!("the IOKernel recorded an impossible event"),
                Played::Lost(events) => self.overwritten += events,
                Played::Event(at, event) => {
                    self.oldest.get_or_insert(at);
                    if at >= self.from || self.looks_back && matches!(event, TraceEvent::Core { .. }) {
                        return Ok(Some((at.max(self.from), event)));
                    }
                }
            }
        }
    }

    /// Reads everything that was recorded up to the [anchor](Self::anchor).
    ///
    /// # Errors
    /// If an event is impossible.
    pub fn read_into(mut self, collector: &mut Collector) -> anyhow::Result<Self> {
        let end = self.anchor();
        for _ in 0..LAST_EVENTS {
            match self.next()? {
                Some((at, event)) if at <= end => collector.push(at, event),
                _ => break,
            }
        }
        Ok(self)
    }

    /// Returns how many nanoseconds the last `most` events of the record take, and at most the time
    /// that it looks back. Reads them.
    ///
    /// # Errors
    /// If an event is impossible.
    pub fn time_of_last(mut self, most: usize) -> anyhow::Result<u64> {
        let mut times = VecDeque::with_capacity(most);
        for _ in 0..LAST_EVENTS {
            let Some((at, _)) = self.next()? else { break };
            if times.len() == most {
                times.pop_front();
            }
            times.push_back(at);
        }
        let from = times.front().map_or(self.from, |first| self.from.max(*first));
        Ok(self.clock().to_ns(self.anchor().saturating_sub(from)))
    }

    /// Asks for names, also of programs that have ended.
    pub fn learn_names(&mut self) {
        if let Some(stats) = self.watch.statistics() {
            self.names.learn(&stats);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_an_ended_program_did_has_its_name_and_not_that_of_its_successor() {
        let mut names = Names::default();
        names.learn(&json!({
            "registrations": [{ "id": 1, "name": "next", "cycles": 900 }, { "id": 1, "name": "ended", "cycles": 500 }],
            "runtimes": [{ "id": 1, "name": "next" }, { "id": 0, "name": "old" }],
        }));
        let named = |at| names.runtime(1, at);
        assert_eq!([named(499), named(500), named(899), named(900)], ["program 1", "ended", "ended", "next"]);
        assert_eq!((names.runtime(0, 0), names.runtime(7, 0)), ("old".to_owned(), "program 7".to_owned()));
        assert_eq!(names.registration(1, 600), Some((500, "ended")));
        let mut unknown = Names::default();
        unknown.learn(&Value::Null);
        assert_eq!(unknown.runtime(1, 9), "program 1");
    }
}
