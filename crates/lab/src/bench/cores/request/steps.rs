//! The steps of a core request, from the trace of a round.
//!
//! Owns the connection to the IOKernel's trace of cores and the search for the steps of each
//! request. Times of the IOKernel and of the program are of the same clock. An impossible event is
//! an error.

use anyhow::Context;
use rustix::fd::OwnedFd;
use tailwater_shm::control::{ClientMessage, ServerMessage, TraceRequest, send};
use tailwater_shm::trace::{CoreStep, Played, Recording, TraceEvent, Who};
use tailwater_shm::{Clock, Cycles};
use tailwater_testbed::query;

use super::Sample;

/// Time after the user thread's first instruction within which the IOKernel's look at the kthread
/// still belongs to its request.
const LATE: Cycles = 1_000_000;
/// Time that a look of the IOKernel takes at most in a quiet round: one that sees a request began
/// at most so long before it.
const LOOK_NS: u64 = 1_500;

/// The trace of an IOKernel.
pub struct Trace {
    recording: Recording,
    /// The moment at which it began.
    began: Cycles,
    /// Open for as long as the trace is wanted.
    _socket: OwnedFd,
}

/// A step of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreEvent {
    at: Cycles,
    step: CoreStep,
    who: Who,
    /// The previous holder.
    from: Option<Who>,
}

impl Trace {
    /// Requests the trace of the IOKernel at this address.
    ///
    /// # Errors
    /// If it does not answer or refuses.
    pub fn begin(address: &str) -> anyhow::Result<Self> {
        let request = TraceRequest { every: 1, runtime: None };
        let socket = query::connect(address, query::PATIENCE)?;
        send(&socket, &ClientMessage::Trace(request), &[])?;
        let (answer, files) = query::answer(&socket)?;
        let ServerMessage::Tracing(anchor) = answer else { return Err(query::of_another_kind(&answer)) };
        let recording = Recording::attach(files.first().context("the IOKernel sent no memory")?)?;
        Ok(Self { recording, began: anchor.cycles, _socket: socket })
    }

    /// Returns the events of cores so far.
    ///
    /// # Errors
    /// If an event is impossible.
    pub fn read(&mut self) -> anyhow::Result<Vec<CoreEvent>> {
        let mut events = Vec::new();
        loop {
            match self.recording.next_event() {
                Played::Event(at, TraceEvent::Core { step, who, from, .. }) if at >= self.began => {
                    events.push(CoreEvent { at, step, who, from });
                }
                Played::Event(..) | Played::Lost(_) => {}
                Played::Impossible => anyhow::bail!("the IOKernel recorded an impossible event"),
                Played::Nothing => return Ok(events),
            }
        }
    }
}

/// The steps of one request, in microseconds since it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Steps {
    /// The user thread had been made runnable.
    pub runnable: f64,
    /// The IOKernel decided; a holder was asked to give way. `None` if its program had kept the
    /// core.
    pub decided: Option<f64>,
    /// The IOKernel saw that the holder had given the core up; `None` of a free core.
    pub ceded: Option<f64>,
    /// The IOKernel saw the kthread run; `None` if it did not look in time.
    pub running: Option<f64>,
    /// The user thread ran.
    pub ran: f64,
}

impl Steps {
    /// Returns the steps of a request. Its decision is the last one before its thread runs, whose
    /// time is that of the look in which it was made: it may have begun before the request.
    pub fn of(sample: Sample, events: &[CoreEvent], clock: &Clock) -> Self {
        let us = |at: Cycles| clock.to_ns(at.saturating_sub(sample.requested)) as f64 / 1e3;
        let after = |from: Cycles, to: Cycles| events.iter().filter(move |e| (from..=to).contains(&e.at));
        let look = sample.requested.saturating_sub(clock.from_ns(LOOK_NS));
        let decided = after(look, sample.ran).rfind(|event| event.step == CoreStep::Decided);
        let later = |step, who: Option<Who>| {
            let mut all = after(decided?.at, sample.ran.saturating_add(LATE));
            all.find(|event| event.step == step && Some(event.who) == who).map(|event| us(event.at))
        };
        Self {
            runnable: us(sample.runnable),
            decided: decided.map(|event| us(event.at)),
            ceded: later(CoreStep::Ceded, decided.and_then(|event| event.from)),
            running: later(CoreStep::Running, decided.map(|event| event.who)),
            ran: us(sample.ran),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_of_a_request_are_those_after_it() {
        let [own, batch] = [1, 2].map(|runtime| Who { runtime, kthread: 0 });
        let event = |at, step, who, from| CoreEvent { at, step, who, from };
        let events = [
            event(500, CoreStep::Decided, batch, None),
            event(3_000, CoreStep::Decided, own, Some(batch)),
            event(4_000, CoreStep::Ceded, batch, None),
            event(9_000, CoreStep::Running, own, None),
            event(11_000, CoreStep::Ceded, own, None),
        ];
        let clock = Clock::from_hz(1_000_000_000);
        let sample = Sample { requested: 1_000, runnable: 2_000, ran: 7_000 };
        let (ceded, running) = (Some(3.0), Some(8.0));
        let steps = Steps { runnable: 1.0, decided: Some(2.0), ceded, running, ran: 6.0 };
        assert_eq!(Steps::of(sample, &events, &clock), steps);
        let seen = Sample { requested: 4_000, ran: 6_000, ..sample };
        assert_eq!(Steps::of(seen, &events, &clock).decided, Some(0.0), "by a look that had begun");
        let kept = Sample { requested: 5_000, runnable: 6_000, ran: 7_000 };
        let kept = Steps::of(kept, &events, &clock);
        let steps = Steps { runnable: 1.0, decided: None, ceded: None, running: None, ran: 2.0 };
        assert_eq!(kept, steps, "a program that had kept the core");
    }
}
