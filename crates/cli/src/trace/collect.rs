//! Events put together: what is known of each request, and of each core.
//!
//! What runtimes allege is kept only where it can be true: the number was given to a frame for that runtime, the step exists, and its
//! time lies between the frame's arrival and the moment at which the IOKernel read it. The rest is counted, and so is what is beyond
//! [`MAX_REQUESTS`] and [`MAX_CORE_EVENTS`]; [`MAX_STEPS`] bounds what is believed of one request.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use tailwater_shm::Cycles;
use tailwater_shm::ring::LINE;
use tailwater_shm::trace::event::Undelivered;
use tailwater_shm::trace::{Event, Step, Who};

use super::cores::Cores;
use super::watch::Names;

/// Requests kept; later ones are counted only.
const MAX_REQUESTS: usize = 1 << 20;
/// Steps kept of one request.
const MAX_STEPS: usize = 1024;
/// Events of cores kept.
const MAX_CORE_EVENTS: usize = 1 << 23;

/// What became of a frame in the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switched {
    /// It lies in a ring since this time.
    InRing {
        /// When.
        at: Cycles,
        /// Whose ring.
        who: Who,
        /// The runtime had no core when it came.
        unserved: bool,
        /// Lines before it.
        lines: u32,
    },
    /// It was dropped.
    Dropped(Undelivered),
}

/// What is known of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub id: u32,
    /// The port it came through.
    pub port: u16,
    /// Bytes of the frame.
    pub len: u16,
    /// When it was due: its time begins here.
    pub due: Cycles,
    /// When it came out of the port.
    pub arrived: Cycles,
    /// When the port had been polled before; `None` if that was before the trace.
    pub polled: Option<Cycles>,
    /// What the switch did with it.
    pub switched: Option<Switched>,
    /// What the runtime alleges, in order of time.
    pub steps: Vec<(Cycles, Who, Step)>,
    /// When the reply was found in an egress ring.
    pub seen: Option<Cycles>,
    /// When the reply had been passed on, and whether somebody took it.
    pub left: Option<(Cycles, bool)>,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Collector {
    /// By number, which is in order of arrival.
    pub requests: BTreeMap<u32, Request>,
    /// Who had which core when.
    pub cores: Cores,
    /// Requests beyond what is kept.
    pub not_kept: u64,
    /// Events of cores beyond what is kept.
    pub cores_not_kept: u64,
    /// Allegations that cannot be true.
    pub untrue: u64,
    /// Time of the first event.
    began: Option<Cycles>,
    /// Events of cores kept.
    most_core_events: usize,
}

impl Default for Collector {
    fn default() -> Self {
        Self::keeping(MAX_CORE_EVENTS)
    }
}

impl Collector {
    /// One that keeps so many events of cores.
    pub fn keeping(most_core_events: usize) -> Self {
        Self {
            requests: BTreeMap::new(),
            cores: Cores::default(),
            not_kept: 0,
            cores_not_kept: 0,
            untrue: 0,
            began: None,
            most_core_events,
        }
    }

    /// Takes in the event of time `at`.
    pub fn push(&mut self, at: Cycles, event: Event) {
        self.began.get_or_insert(at);
        match event {
            Event::Arrived { id, port, len, due, polled } => self.arrived(at, id, (port, len), (due, polled)),
            Event::InRing { id, who, unserved, lines } => {
                self.switched(id, Switched::InRing { at, who, unserved, lines });
            }
            Event::Undelivered { id, why, .. } => self.switched(id, Switched::Dropped(why)),
            Event::Alleged { who, written } => {
                let step = Step::from_bits(written.kind, written.argument);
                if !step.is_some_and(|step| self.alleged(at, who, written.id, written.at, step)) {
                    self.untrue += 1;
                }
            }
            Event::Seen { id, who } => match self.of(id, who) {
                Some(request) if request.seen.is_none() => request.seen = Some(at),
                _ => self.untrue += 1,
            },
            Event::Left { id, who, taken } => match self.of(id, who) {
                Some(request) if request.left.is_none() => request.left = Some((at, taken)),
                _ => self.untrue += 1,
            },
            Event::Core { core, step, handoff, who, from } => {
                if self.cores.len() < self.most_core_events {
                    self.cores.push(at, core, step, handoff, (who, from));
                } else {
                    self.cores_not_kept += 1;
                }
            }
            // Counted by the IOKernel.
            Event::Lost { .. } => {}
        }
    }

    /// Whether a runtime has been seen whose name is not known.
    pub fn unknown(&self, names: &Names) -> bool {
        // The newest request tells: runtimes register seldom.
        let newest = self.requests.values().next_back().and_then(Request::who);
        newest.is_some_and(|who| !names.runtimes.contains_key(&who.runtime))
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
            // What was before the trace is not known.
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

    /// The request of this number, if it went to the runtime that speaks of it.
    fn of(&mut self, id: u32, who: Who) -> Option<&mut Request> {
        self.requests.get_mut(&id).filter(|request| request.who().is_some_and(|it| it.runtime == who.runtime))
    }

    /// False if it cannot be true.
    fn alleged(&mut self, read: Cycles, who: Who, id: u32, at: Cycles, step: Step) -> bool {
        let Some(request) = self.of(id, who) else { return false };
        if at < request.arrived || at > read || request.steps.len() >= MAX_STEPS {
            return false;
        }
        // Kthreads are read one after the other, so that steps may come out of order.
        let place = request.steps.partition_point(|&(earlier, ..)| earlier <= at);
        request.steps.insert(place, (at, who, step));
        true
    }
}

impl Request {
    /// How long after the poll before it was found.
    pub fn poll_gap(&self) -> Option<Cycles> {
        Some(self.arrived.saturating_sub(self.polled?))
    }

    /// Bytes that lay in the ring before it.
    pub fn bytes_before(&self) -> Option<u64> {
        match self.switched? {
            Switched::InRing { lines, .. } => Some(u64::from(lines) * LINE as u64),
            Switched::Dropped(_) => None,
        }
    }

    /// Whose ring it was put into.
    pub fn who(&self) -> Option<Who> {
        match self.switched? {
            Switched::InRing { who, .. } => Some(who),
            Switched::Dropped(_) => None,
        }
    }

    /// The first step that `is` accepts.
    pub fn step<T>(&self, is: impl Fn(Step) -> Option<T>) -> Option<(Cycles, Who, T)> {
        self.steps.iter().find_map(|&(at, who, step)| Some((at, who, is(step)?)))
    }
}
