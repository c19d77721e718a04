//! Collects events into requests and tenancies of cores.
//!
//! A step that a runtime reports is kept only if it is possible: the IOKernel gave the number to a
//! frame for that runtime, and the time lies between the frame's arrival and the IOKernel's reading
//! of the step. Other steps are counted. So are requests beyond [`MAX_REQUESTS`] and events beyond
//! [`MAX_CORE_EVENTS`]; a request has at most [`MAX_STEPS`] steps.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use tailwater_shm::Cycles;
use tailwater_shm::ring::LINE;
use tailwater_shm::trace::event::Undelivered;
use tailwater_shm::trace::{Step, TraceEvent, Who};

use super::cores::Cores;
use super::watch::Names;

/// Requests kept; later ones are counted only.
const MAX_REQUESTS: usize = 1 << 20;
/// Steps kept of one request.
const MAX_STEPS: usize = 1024;
/// Events of cores kept.
const MAX_CORE_EVENTS: usize = 1 << 23;

/// What the switch did with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switched {
    /// Put the frame into a ring.
    InRing {
        /// Time of the copy.
        at: Cycles,
        /// The kthread of the ring.
        who: Who,
        /// True if the runtime had no core at that time.
        unserved: bool,
        /// Cache lines in the ring before the frame.
        lines: u32,
    },
    /// Dropped the frame.
    Dropped(Undelivered),
}

/// The events of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub id: u32,
    /// The port that the frame came through.
    pub port: u16,
    /// Bytes of the frame.
    pub len: u16,
    /// The time at which the request was due, from which its latency counts.
    pub due: Cycles,
    /// The time at which the frame came out of the port.
    pub arrived: Cycles,
    /// The time of the port's previous poll; `None` if that was before the trace.
    pub polled: Option<Cycles>,
    /// What the switch did with it.
    pub switched: Option<Switched>,
    /// The steps that the runtime reported, in order of time.
    pub steps: Vec<(Cycles, Who, Step)>,
    /// The time at which the IOKernel found the reply in an egress ring.
    pub seen: Option<Cycles>,
    /// The time after which the reply had been passed on, and whether it was delivered.
    pub left: Option<(Cycles, bool)>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Collector {
    /// Requests by number, in order of arrival.
    pub requests: BTreeMap<u32, Request>,
    /// Which kthread had which core when.
    pub cores: Cores,
    /// Number of requests beyond [`MAX_REQUESTS`].
    pub not_kept: u64,
    /// Number of events of cores beyond those kept.
    pub cores_not_kept: u64,
    /// Number of impossible steps.
    pub untrue: u64,
    /// Number of steps that programs say they have overwritten before the IOKernel read them.
    pub lost_steps: u64,
    /// Time of the first event.
    began: Option<Cycles>,
    /// Maximum number of events of cores that are kept.
    max_core_events: usize,
}

impl Default for Collector {
    fn default() -> Self {
        Self::keeping(MAX_CORE_EVENTS)
    }
}

impl Collector {
    /// Returns a collector that keeps this many events of cores.
    pub fn keeping(max_core_events: usize) -> Self {
        Self {
            requests: BTreeMap::new(),
            cores: Cores::default(),
            not_kept: 0,
            cores_not_kept: 0,
            untrue: 0,
            lost_steps: 0,
            began: None,
            max_core_events,
        }
    }

    /// Adds the event of time `at`.
    pub fn push(&mut self, at: Cycles, event: TraceEvent) {
        self.began.get_or_insert(at);
        match event {
            TraceEvent::Arrived { id, port, len, due, polled } => {
                self.arrived(at, id, (port, len), (due, polled));
            }
            TraceEvent::InRing { id, who, unserved, lines } => {
                self.switched(id, Switched::InRing { at, who, unserved, lines });
            }
            TraceEvent::Undelivered { id, why, .. } => self.switched(id, Switched::Dropped(why)),
            TraceEvent::Claimed { who, written } => {
                let step = Step::from_bits(written.kind, written.argument);
                if !step.is_some_and(|step| self.add_step(at, who, written.id, written.at, step)) {
                    self.untrue += 1;
                }
            }
            TraceEvent::Seen { id, who } => match self.of(id, who) {
                Some(request) if request.seen.is_none() => request.seen = Some(at),
                _ => self.untrue += 1,
            },
            TraceEvent::Left { id, who, taken } => match self.of(id, who) {
                Some(request) if request.left.is_none() => request.left = Some((at, taken)),
                _ => self.untrue += 1,
            },
            TraceEvent::Core { core, step, handoff, who, from } => {
                if self.cores.len() < self.max_core_events {
                    self.cores.push(at, core, step, handoff, (who, from));
                } else {
                    self.cores_not_kept += 1;
                }
            }
            TraceEvent::Lost { steps, .. } => self.lost_steps = self.lost_steps.saturating_add(steps),
        }
    }

    /// Forgets the requests to other programs than those of this name.
    pub fn keep_requests_to(&mut self, name: &str, names: &Names) {
        self.requests.retain(|_, request| {
            request.who().is_some_and(|who| names.runtime(who.runtime, request.arrived) == name)
        });
    }

    fn arrived(&mut self, at: Cycles, id: u32, (port, len): (u16, u16), (due, polled): (Cycles, Cycles)) {
        if self.requests.len() >= MAX_REQUESTS {
            self.not_kept += 1;
            return;
        }
        let request = Request {
            id,
            port,
            len,
            due: due.min(at),
            arrived: at,
            // Polls before the trace are unknown.
            polled: Some(polled).filter(|&polled| self.began.is_some_and(|began| began <= polled)),
            switched: None,
            steps: Vec::new(),
            seen: None,
            left: None,
        };
        if let Entry::Vacant(place) = self.requests.entry(id) {
            place.insert(request);
        }
    }

    fn switched(&mut self, id: u32, switched: Switched) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.switched.get_or_insert(switched);
        }
    }

    /// Returns the request of this number, if it went to the runtime of `who`.
    fn of(&mut self, id: u32, who: Who) -> Option<&mut Request> {
        self.requests.get_mut(&id).filter(|request| request.who().is_some_and(|it| it.runtime == who.runtime))
    }

    /// Adds a step that a runtime reported; false if it is impossible.
    fn add_step(&mut self, read: Cycles, who: Who, id: u32, at: Cycles, step: Step) -> bool {
        let Some(request) = self.of(id, who) else { return false };
        if at < request.arrived || at > read || request.steps.len() >= MAX_STEPS {
            return false;
        }
        // The IOKernel reads kthreads one after another, so steps may arrive out of order.
        let place = request.steps.partition_point(|&(earlier, ..)| earlier <= at);
        request.steps.insert(place, (at, who, step));
        true
    }
}

impl Request {
    /// Returns the time from the port's previous poll to the poll that found the frame.
    pub fn poll_gap(&self) -> Option<Cycles> {
        Some(self.arrived.saturating_sub(self.polled?))
    }

    /// Returns the bytes in the ring before the frame.
    pub fn bytes_before(&self) -> Option<u64> {
        match self.switched? {
            Switched::InRing { lines, .. } => Some(u64::from(lines) * LINE as u64),
            Switched::Dropped(_) => None,
        }
    }

    /// Returns the kthread whose ring the frame was put into.
    pub fn who(&self) -> Option<Who> {
        match self.switched? {
            Switched::InRing { who, .. } => Some(who),
            Switched::Dropped(_) => None,
        }
    }

    /// Returns the first step for which `is` returns a value.
    pub fn step<T>(&self, is: impl Fn(Step) -> Option<T>) -> Option<(Cycles, Who, T)> {
        self.steps.iter().find_map(|&(at, who, step)| Some((at, who, is(step)?)))
    }
}
