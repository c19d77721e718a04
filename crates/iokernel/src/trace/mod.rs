//! The record of what cores and single requests do: which frames are followed, and the events of
//! both, without making the polling thread wait.
//!
//! Owns the writing end of the ring in which events are always recorded, the choice of frames and
//! their numbers, and the reading of the steps that runtimes have written. The steps of a request
//! in the IOKernel are events of the switch, those of cores events of the allocator; both call this
//! module. An event is five or ten stores. One frame of [`BACKGROUND`] is followed at any time; a
//! tracer, which reads the same ring, sets another choice while it is connected. A chosen frame
//! costs a few hundred nanoseconds, and up to [`STEPS`] steps in the buffers of [`KTHREADS`]
//! kthreads are read: every interval with a tracer, and only of the traced program, if one is
//! named; now and then while a request that was chosen without one may be under way, of the
//! programs that have [`Claims`] left.
//!
//! | who | does | what happens |
//! |---|---|---|
//! | a tracer | is slow | the events that it has not read are overwritten, and it counts them |
//! | a tracer | dies or hangs up | the control thread ends its choice |
//! | a runtime | writes steps, or marks frames as replies, without end | without a tracer, [`CLAIMS`] of them are read and recorded for each chosen frame that it received: the rest of the ring keeps what the IOKernel saw, and other programs have accounts of their own |
//!
//! Steps that a runtime writes are recorded with its true name, unchecked: see
//! `tailwater_shm::trace`.

use rustix::fd::OwnedFd;
use std::sync::Arc;
use tailwater_sched::{CoreId, KthreadId, RuntimeId};
use tailwater_shm::control::TraceRequest;
use tailwater_shm::memory::MemoryError;
use tailwater_shm::trace::buffer::Read;
use tailwater_shm::trace::{CoreStep, FlowKeys, Handoff, Recorder, TraceEvent, TraceReader, Who};
use tailwater_shm::{Clock, Cycles, clock};
use tailwater_stats::HandoffKind;

use crate::runtime::{Runtime, Runtimes};
use crate::stats::TraceStats;

/// Without a tracer, one frame of so many is followed, of those that ports bring.
const BACKGROUND: u32 = 1_000;
/// Without a tracer, looks between two readings of steps: 0.3 ms. A kthread's buffer holds those of
/// a dozen requests.
const LOOKS: u32 = 64;
/// Readings of steps after a frame was chosen without a tracer: a tenth of a second of looks.
const READINGS: u32 = 300;
/// Events that a runtime may cause for each frame to it that is chosen without a tracer: those of a
/// request that is preempted a few times.
const CLAIMS: u32 = 64;
/// Maximum of those that a runtime has not used.
const MOST_CLAIMS: u32 = 4_096;
/// Kthreads read per look, in turn.
const KTHREADS: usize = 64;
/// Maximum number of steps read per look: a few microseconds if their writers keep changing those
/// lines.
const STEPS: usize = 64;
/// Maximum of one kthread, so that one that writes without end takes half of a look.
const STEPS_OF_ONE: usize = 32;
/// Slots of the ring for each managed core: 2 s of 40,000 hand-offs a second, in 8 MiB.
const SLOTS: usize = 1 << 18;
/// Maximum number of slots: 64 MiB.
const MOST_SLOTS: usize = 1 << 21;

/// Returns the number of slots for so many managed cores.
pub(crate) fn slots(cores: usize) -> usize {
    SLOTS.saturating_mul(cores).min(MOST_SLOTS)
}

/// How a frame came to a port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) port: u16,
    /// Time at which it was due, if the port reports that.
    pub(crate) due: Option<Cycles>,
    /// Time of the port's previous poll.
    pub(crate) polled: Cycles,
}

/// Events that one runtime may still cause without a tracer.
#[derive(Debug, Default)]
pub(crate) struct Claims(u32);

impl Claims {
    /// Grants those of one chosen frame.
    fn grant(&mut self) {
        self.0 = (self.0 + CLAIMS).min(MOST_CLAIMS);
    }

    /// Uses one; returns whether there was one.
    fn take(&mut self) -> bool {
        let left = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        left
    }
}

/// A tracer's choice of requests.
#[derive(Debug)]
pub(crate) struct Tracer {
    /// Number of its connection.
    pub(crate) id: u64,
    every: u32,
    /// A name, and the runtime that has it now.
    runtime: Option<(String, Option<RuntimeId>)>,
    pub(crate) stats: Arc<TraceStats>,
}

impl Tracer {
    /// Returns the choice that `request` asks for.
    ///
    /// # Errors
    /// A message, if the numbers are out of range.
    pub(crate) fn new(id: u64, request: &TraceRequest) -> Result<Box<Self>, String> {
        if request.every == 0 {
            return Err("one request of 0 is not a rate; one of 1 traces every request".to_owned());
        }
        Ok(Box::new(Self {
            id,
            every: request.every,
            runtime: request.runtime.clone().map(|name| (name, None)),
            stats: Arc::new(TraceStats::new(id, request.clone())),
        }))
    }

    fn rename(&mut self, name: &str, to: Option<RuntimeId>) {
        if let Some((wanted, now)) = &mut self.runtime
            && wanted == name
        {
            *now = to;
        }
    }
}

/// The record, and the tracer, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// None in tests that have no use for it.
    recorder: Option<Recorder>,
    tracer: Option<Box<Tracer>>,
    /// Frames since the last chosen one: of a tracer, with data and for its program.
    passed: u32,
    /// Number of the last chosen frame. Continues from one tracer to the next, so that a request in
    /// flight is not taken for a new one. Zero is not used.
    last: u32,
    /// Where the next look at kthreads' steps begins: runtime, kthread.
    cursor: (usize, usize),
    /// Looks since the last reading of steps, and readings that are left, without a tracer.
    looks: u32,
    readings: u32,
}

impl Trace {
    /// Begins to record, in a ring of so many slots; returns the file that tracers read, too.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(crate) fn start(slots: usize, clock: Clock) -> Result<(Self, OwnedFd), MemoryError> {
        let (recorder, file) = Recorder::create(slots, clock.hz())?;
        Ok((Self { recorder: Some(recorder), ..Self::default() }, file))
    }

    /// Returns whether a tracer is connected.
    pub(crate) fn is_traced(&self) -> bool {
        self.tracer.is_some()
    }

    /// Records an event.
    #[inline(always)]
    pub(crate) fn emit(&mut self, at: Cycles, event: &TraceEvent) {
        if let Some(recorder) = &mut self.recorder {
            recorder.record(at, event);
        }
    }

    /// Returns whether an event that runtime `id` claims is recorded.
    #[cold]
    pub(crate) fn takes_claim(&self, runtimes: &mut Runtimes, id: RuntimeId) -> bool {
        runtimes.get_mut(id).is_some_and(|runtime| runtime.claims.take()) || self.is_traced()
    }

    /// Returns whether the choice of the next frame from a port is to be made: without a tracer,
    /// one predicted branch and a count.
    #[inline(always)]
    pub(crate) fn is_due(&mut self) -> bool {
        self.tracer.is_some() || {
            self.passed = self.passed.saturating_add(1);
            self.passed >= BACKGROUND && self.recorder.is_some()
        }
    }

    /// Records a step of a core. `from` is the previous holder, if the step is the decision that
    /// `who` gets the core.
    #[inline(always)]
    pub(crate) fn core(
        &mut self,
        at: Cycles,
        core: CoreId,
        step: CoreStep,
        kind: HandoffKind,
        whom: (KthreadId, Option<KthreadId>),
    ) {
        let (who, from) = (who(whom.0), whom.1.map(who));
        self.emit(at, &TraceEvent::Core { core: core.0, step, handoff: handoff(kind), who, from });
    }

    /// Returns the number of a frame that a port brings to `id`, if it is chosen.
    #[cold]
    pub(crate) fn sample(
        &mut self,
        runtimes: &mut Runtimes,
        id: RuntimeId,
        frame: &[u8],
        len: usize,
        arrival: Arrival,
    ) -> Option<u32> {
        if let Some(Tracer { runtime: Some((_, now)), .. }) = self.tracer.as_deref()
            && *now != Some(id)
        {
            return None;
        }
        // A frame without data is not a request.
        FlowKeys::of(frame)?;
        if let Some(tracer) = &self.tracer {
            self.passed = self.passed.saturating_add(1);
            if self.passed < tracer.every {
                return None;
            }
            tracer.stats.sampled.add(1);
        }
        self.passed = 0;
        self.readings = READINGS;
        if let Some(runtime) = runtimes.get_mut(id) {
            runtime.claims.grant();
        }
        self.last = self.last.wrapping_add(1).max(1);
        let (now, id) = (clock::now(), self.last);
        let Arrival { port, due, polled } = arrival;
        let (due, polled) = (due.unwrap_or(now).min(now), polled.min(now));
        self.emit(now, &TraceEvent::Arrived { id, port, len: len as u16, due, polled });
        Some(id)
    }

    /// Returns whether a look has to read steps.
    #[inline(always)]
    pub(crate) fn collects(&mut self) -> bool {
        if self.tracer.is_some() {
            return true;
        }
        if self.readings == 0 {
            return false;
        }
        self.looks += 1;
        if self.looks < LOOKS {
            return false;
        }
        (self.looks, self.readings) = (0, self.readings - 1);
        true
    }

    /// Reads the steps that kthreads have written since the last look: bounded, in turn.
    pub(crate) fn collect(&mut self, runtimes: &mut Runtimes) {
        let is_traced = self.is_traced();
        let only = self.tracer.as_ref().and_then(|tracer| tracer.runtime.as_ref()).map(|(_, now)| *now);
        let (mut slot, mut index) = self.cursor;
        let slots = runtimes.slots();
        let (mut kthreads, mut steps, now) = (KTHREADS, STEPS, clock::now());
        for _ in 0..=slots {
            let place = RuntimeId(slot as u32);
            if let Some(Runtime { kthreads: theirs, claims, .. }) = runtimes.get_mut(place)
                && only.is_none_or(|only| only == Some(place))
                && (is_traced || claims.0 > 0)
            {
                while let Some(kthread) = theirs.get_mut(index) {
                    if kthreads == 0 || steps == 0 {
                        self.cursor = (slot, index);
                        return;
                    }
                    let who = Who { runtime: slot as u32, kthread: index as u16 };
                    let most = steps.min(STEPS_OF_ONE);
                    steps -= self.read_steps((who, claims), &mut kthread.steps, most, now);
                    kthreads -= 1;
                    index += 1;
                }
            }
            index = 0;
            slot = if slot + 1 < slots { slot + 1 } else { 0 };
        }
        self.cursor = (slot, index);
    }

    /// Records up to `most` steps of one kthread, whose runtime has these claims, all stamped as
    /// read at `now`. Returns how many it has read.
    fn read_steps(
        &mut self,
        (who, claims): (Who, &mut Claims),
        steps: &mut TraceReader,
        most: usize,
        now: Cycles,
    ) -> usize {
        let most = if self.is_traced() { most } else { most.min(claims.0 as usize) };
        for read in 0..most {
            let event = match steps.read() {
                Read::Nothing => return read,
                Read::Step(written) => TraceEvent::Claimed { who, written },
                Read::Lost(steps) => {
                    if let Some(tracer) = &self.tracer {
                        tracer.stats.lost.add(steps);
                    }
                    TraceEvent::Lost { who, steps }
                }
            };
            claims.take();
            self.emit(now, &event);
        }
        most
    }

    /// Starts a trace. Steps left in buffers are skipped.
    pub(crate) fn begin(&mut self, mut tracer: Box<Tracer>, runtimes: &mut Runtimes) {
        for runtime in runtimes.iter() {
            tracer.rename(&runtime.stats.name, Some(runtime.id));
        }
        for slot in 0..runtimes.slots() {
            if let Some(runtime) = runtimes.get_mut(RuntimeId(slot as u32)) {
                runtime.kthreads.iter_mut().for_each(|kthread| kthread.steps.skip());
            }
        }
        (self.tracer, self.passed) = (Some(tracer), 0);
    }

    /// Ends the trace of this number.
    pub(crate) fn end(&mut self, id: u64) -> Option<Box<Tracer>> {
        self.tracer.take_if(|tracer| tracer.id == id)
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
