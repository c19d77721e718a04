//! Traces of single requests: which frames are chosen, and which events a tracer gets, without
//! making the polling thread wait.
//!
//! Owns the ring to the tracer, the choice of frames and their numbers, and the reading of the
//! steps that runtimes have written. The steps of a request in the IOKernel are events of the
//! switch, those of cores events of the allocator; both call this module. Without a tracer each
//! place pays one predicted branch. With one, a chosen frame costs a few hundred nanoseconds, and
//! up to [`STEPS`] steps in the buffers of [`KTHREADS`] kthreads are read every interval: only of
//! the traced program, if one is named.
//!
//! | the tracer | what happens |
//! |---|---|
//! | is slow | its ring fills, events are dropped and counted |
//! | dies or hangs up | the control thread has it taken out |
//! | writes an impossible position | it is taken out and its connection closed |
//!
//! Steps that a runtime writes are passed on with its true name, unchecked: see
//! `tailwater_shm::trace`.

use rustix::fd::OwnedFd;
use std::sync::Arc;
use tailwater_sched::{CoreId, KthreadId, RuntimeId};
use tailwater_shm::control::TraceRequest;
use tailwater_shm::layout::{Region, RegionSpec};
use tailwater_shm::ring::{Producer, ReserveError};
use tailwater_shm::trace::buffer::Read;
use tailwater_shm::trace::{CoreStep, Event, FlowKeys, Handoff, TraceReader, Who};
use tailwater_shm::{Clock, Cycles, clock};

use crate::runtime::Runtimes;
use crate::stats::{HandoffKind, TraceStats};

/// Kthreads read per look, in turn.
const KTHREADS: usize = 64;
/// Maximum number of steps read per look: a few microseconds if their writers keep changing those
/// lines.
const STEPS: usize = 64;
/// Maximum of one kthread, so that one that writes without end takes half of a look.
const STEPS_OF_ONE: usize = 32;

/// How a frame came to a port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) port: u16,
    /// Time at which it was due, if the port reports that.
    pub(crate) due: Option<Cycles>,
    /// Time of the port's previous poll.
    pub(crate) polled: Cycles,
}

/// The tracer and its choice of requests.
#[derive(Debug)]
pub(crate) struct Tracer {
    /// Number of its connection.
    pub(crate) id: u64,
    every: u32,
    /// A name, and the runtime that has it now.
    runtime: Option<(String, Option<RuntimeId>)>,
    /// Frames with data since the last chosen one.
    passed: u32,
    ring: Producer,
    broken: bool,
    pub(crate) stats: Arc<TraceStats>,
}

impl Tracer {
    /// Returns a ring as `request` asks for, and its memory file for the tracer.
    ///
    /// # Errors
    /// A message, if the numbers are out of range or there is no memory.
    pub(crate) fn new(
        id: u64,
        request: &TraceRequest,
        clock: &Clock,
    ) -> Result<(Box<Self>, OwnedFd), String> {
        if request.every == 0 {
            return Err("one request of 0 is not a rate; one of 1 traces every request".to_owned());
        }
        let text = |error: &dyn core::fmt::Display| error.to_string();
        let spec = RegionSpec::new(1, request.ring_bytes).map_err(|e| text(&e))?;
        let (_, ends, file) = Region::create("tailwater-trace", spec, clock.hz()).map_err(|e| text(&e))?;
        let tracer = Self {
            id,
            every: request.every,
            runtime: request.runtime.clone().map(|name| (name, None)),
            passed: 0,
            ring: ends.into_iter().next().expect("a region of one kthread").ingress,
            broken: false,
            stats: Arc::new(TraceStats::new(id, request.clone())),
        };
        Ok((Box::new(tracer), file))
    }

    fn push(&mut self, at: Cycles, event: &Event) {
        if self.broken {
            return;
        }
        let bytes = event.encode();
        match self.ring.reserve(bytes.len()) {
            Ok(mut slot) => {
                slot.write(0, &bytes);
                slot.commit(0, 0, at);
                self.stats.events.add(1);
            }
            Err(ReserveError::Full) => self.stats.dropped.add(1),
            Err(ReserveError::Lie(_)) => self.broken = true,
        }
    }

    fn rename(&mut self, name: &str, to: Option<RuntimeId>) {
        if let Some((wanted, now)) = &mut self.runtime
            && wanted == name
        {
            *now = to;
        }
    }
}

/// The tracer, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    tracer: Option<Box<Tracer>>,
    /// Number of the last chosen frame. Continues from one tracer to the next, so that a request in
    /// flight is not taken for a new one. Zero is not used.
    last: u32,
    /// Where the next look at kthreads' steps begins: runtime, kthread.
    cursor: (usize, usize),
}

impl Trace {
    /// Returns whether a tracer is connected.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.tracer.is_some()
    }

    /// Emits an event to the tracer.
    #[cold]
    pub(crate) fn emit(&mut self, at: Cycles, event: &Event) {
        if let Some(tracer) = &mut self.tracer {
            tracer.push(at, event);
        }
    }

    /// Emits a step of a core to the tracer, if there is one. `from` is the previous holder, if the
    /// step is the decision that `who` gets the core.
    #[inline(always)]
    pub(crate) fn core(
        &mut self,
        at: Cycles,
        core: CoreId,
        step: CoreStep,
        kind: HandoffKind,
        whom: (KthreadId, Option<KthreadId>),
    ) {
        if self.is_on() {
            let event = Event::Core {
                core: core.0,
                step,
                handoff: handoff(kind),
                who: who(whom.0),
                from: whom.1.map(who),
            };
            self.emit(at, &event);
        }
    }

    /// Returns the number of a frame that a port brings to `id`, if it is to be traced.
    #[cold]
    pub(crate) fn sample(
        &mut self,
        id: RuntimeId,
        frame: &[u8],
        len: usize,
        arrival: Arrival,
    ) -> Option<u32> {
        let tracer = self.tracer.as_mut()?;
        if tracer.runtime.as_ref().is_some_and(|(_, now)| *now != Some(id)) {
            return None;
        }
        // A frame without data is not a request.
        FlowKeys::of(frame)?;
        tracer.passed = tracer.passed.saturating_add(1);
        if tracer.passed < tracer.every {
            return None;
        }
        tracer.passed = 0;
        self.last = self.last.wrapping_add(1).max(1);
        tracer.stats.sampled.add(1);
        let (now, id) = (clock::now(), self.last);
        let Arrival { port, due, polled } = arrival;
        let (due, polled) = (due.unwrap_or(now).min(now), polled.min(now));
        tracer.push(now, &Event::Arrived { id, port, len: len as u16, due, polled });
        Some(id)
    }

    /// Reads the steps that kthreads have written since the last look: bounded, in turn.
    pub(crate) fn collect(&mut self, runtimes: &mut Runtimes) {
        let Some(tracer) = &mut self.tracer else { return };
        let only = tracer.runtime.as_ref().map(|(_, now)| *now);
        let (mut slot, mut index) = self.cursor;
        let slots = runtimes.slots();
        let (mut kthreads, mut steps, now) = (KTHREADS, STEPS, clock::now());
        for _ in 0..=slots {
            let place = RuntimeId(slot as u32);
            if let Some(runtime) = runtimes.get_mut(place)
                && only.is_none_or(|only| only == Some(place))
            {
                while let Some(kthread) = runtime.kthreads.get_mut(index) {
                    if kthreads == 0 || steps == 0 {
                        self.cursor = (slot, index);
                        return;
                    }
                    let who = Who { runtime: slot as u32, kthread: index as u16 };
                    steps -= read_steps(tracer, who, &mut kthread.steps, steps.min(STEPS_OF_ONE), now);
                    kthreads -= 1;
                    index += 1;
                }
            }
            index = 0;
            slot = if slot + 1 < slots { slot + 1 } else { 0 };
        }
        self.cursor = (slot, index);
    }

    /// Starts a trace. Steps left in buffers from an earlier one are skipped.
    pub(crate) fn begin(&mut self, mut tracer: Box<Tracer>, runtimes: &mut Runtimes) {
        for runtime in runtimes.iter() {
            tracer.rename(&runtime.stats.name, Some(runtime.id));
        }
        for slot in 0..runtimes.slots() {
            if let Some(runtime) = runtimes.get_mut(RuntimeId(slot as u32)) {
                runtime.kthreads.iter_mut().for_each(|kthread| kthread.steps.skip());
            }
        }
        self.tracer = Some(tracer);
    }

    /// Ends the trace of this number.
    pub(crate) fn end(&mut self, id: u64) -> Option<Box<Tracer>> {
        self.tracer.take_if(|tracer| tracer.id == id)
    }

    /// Takes out a tracer that wrote an impossible position.
    pub(crate) fn take_broken(&mut self) -> Option<Box<Tracer>> {
        self.tracer.take_if(|tracer| tracer.broken)
    }

    pub(crate) fn handle_attached(&mut self, name: &str, id: RuntimeId) {
        if let Some(tracer) = &mut self.tracer {
            tracer.rename(name, Some(id));
        }
    }

    pub(crate) fn handle_detached(&mut self, id: RuntimeId) {
        if let Some((_, now)) = self.tracer.as_mut().and_then(|tracer| tracer.runtime.as_mut())
            && *now == Some(id)
        {
            *now = None;
        }
    }
}

/// Passes on up to `most` steps of one kthread, all stamped as read at `now`. Returns how many.
fn read_steps(tracer: &mut Tracer, who: Who, steps: &mut TraceReader, most: usize, now: Cycles) -> usize {
    for read in 0..most {
        match steps.read() {
            Read::Nothing => return read,
            Read::Step(written) => tracer.push(now, &Event::Claimed { who, written }),
            Read::Lost(steps) => {
                tracer.stats.lost.add(steps);
                tracer.push(now, &Event::Lost { who, steps });
            }
        }
    }
    most
}

/// Returns the identity of a kthread as a tracer knows it.
pub(crate) fn who(id: KthreadId) -> Who {
    Who { runtime: id.runtime.0, kthread: id.index }
}

fn handoff(kind: HandoffKind) -> Handoff {
    match kind {
        HandoffKind::Polling => Handoff::Polling,
        HandoffKind::Idle => Handoff::Idle,
        HandoffKind::Wake => Handoff::Wake,
        HandoffKind::Signal => Handoff::Signal,
        HandoffKind::Bypass => Handoff::Bypass,
        HandoffKind::Evict => Handoff::Evict,
    }
}

#[cfg(test)]
mod tests;
