//! A request divided into stages, from the time at which it was due to the time at which its reply
//! had left.
//!
//! Pure: a function of the collected events. Stages follow one another without gap or overlap, so
//! their durations sum to the total; a time before the one that must precede it is moved to that
//! one.

use tailwater_shm::Cycles;
use tailwater_shm::trace::{Step, Who};

use super::collect::{Request, Switched};
use super::cores::{Cores, Tenancy};

/// What a request does or waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Waits for its port to be polled.
    Port,
    /// In the switch, until it is in a ring.
    Switch,
    /// Waits for the decision that its kthread gets a core.
    Detection,
    /// Waits for the kthread that has the core to give it up.
    Cede,
    /// Waits for its kthread to start on the core.
    Start,
    /// In the ingress ring of a kthread that has a core.
    Ring,
    /// In the network stack.
    Stack,
    /// In its socket, on which no thread waits.
    Socket,
    /// Waits for its thread, which is runnable or has been started.
    RunQueue,
    /// In the queue of a dispatcher.
    Dispatch,
    /// Its thread runs.
    Run,
    /// Its thread had to leave the core.
    Preempted,
    /// Its thread waits, or has yielded.
    Blocked,
    /// The reply is in the egress ring.
    Egress,
    /// The reply is in the switch.
    Out,
}

impl Stage {
    /// All stages in the order of a request's path.
    pub const ALL: [Self; 15] = [
        Self::Port,
        Self::Switch,
        Self::Detection,
        Self::Cede,
        Self::Start,
        Self::Ring,
        Self::Stack,
        Self::Socket,
        Self::RunQueue,
        Self::Dispatch,
        Self::Run,
        Self::Preempted,
        Self::Blocked,
        Self::Egress,
        Self::Out,
    ];

    /// Returns the name in tables and drawings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Port => "port",
            Self::Switch => "switch",
            Self::Detection => "core: detect",
            Self::Cede => "core: cede",
            Self::Start => "core: start",
            Self::Ring => "ring",
            Self::Stack => "stack",
            Self::Socket => "socket",
            Self::RunQueue => "run queue",
            Self::Dispatch => "dispatch queue",
            Self::Run => "run",
            Self::Preempted => "preempted",
            Self::Blocked => "blocked",
            Self::Egress => "egress ring",
            Self::Out => "out",
        }
    }
}

/// One stage of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The stage.
    pub stage: Stage,
    /// Its beginning.
    pub from: Cycles,
    /// Its end, not before `from`.
    pub to: Cycles,
    /// The kthread that it concerns, where that is known.
    pub who: Option<Who>,
    /// The hand-off that was waited for.
    pub tenancy: Option<Tenancy>,
}

/// A request that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breakdown {
    /// Its number.
    pub id: u32,
    /// The time at which it was due.
    pub from: Cycles,
    /// The time at which its reply had left.
    pub to: Cycles,
    /// Its stages in order; those without duration are left out.
    pub spans: Vec<Span>,
    /// Datagrams before it in the socket.
    pub ahead: u32,
    /// Threads in the run queue after its thread was put there.
    pub queue: u32,
    /// Its class in a dispatcher, if it waited in one.
    pub class: Option<u16>,
}

impl Breakdown {
    /// Returns the stages of a request, if it was answered.
    pub fn of(request: &Request, cores: &Cores) -> Option<Self> {
        let (left, _) = request.left?;
        let seen = request.seen?;
        let Some(Switched::InRing { at: in_ring, who: target, .. }) = request.switched else { return None };
        let mut cut = Cutter { at: request.due, end: left.max(request.due), spans: Vec::new(), cores };
        cut.to(Stage::Port, request.arrived, None);
        cut.to(Stage::Switch, in_ring, Some(target));
        let (mut ahead, mut queue, mut class) = (0, 0, None);
        // The kthread that has the request, and the stage that the next step ends.
        let (mut who, mut stage) = (target, Stage::Ring);
        for &(at, by, step) in &request.steps {
            match step {
                Step::Taken { .. } => cut.waiting(Stage::Ring, at, by),
                Step::Delivered { ahead: before, queue: length, .. } => {
                    cut.to(Stage::Stack, at, Some(by));
                    (ahead, queue) = (before, length);
                }
                Step::Queued { class: number } => {
                    cut.to(stage, at, Some(who));
                    class = Some(number);
                }
                Step::Received if by == who => cut.waiting(stage, at, by),
                _ => cut.to(stage, at, Some(who)),
            }
            who = by;
            stage = match step {
                Step::Taken { .. } | Step::Refused | Step::Untracked => Stage::Stack,
                Step::Delivered { woke: true, .. } | Step::Passed => Stage::RunQueue,
                Step::Delivered { woke: false, .. } => Stage::Socket,
                Step::Queued { .. } => Stage::Dispatch,
                Step::Received | Step::On | Step::Ended => Stage::Run,
                Step::Off { asked: true } => Stage::Preempted,
                Step::Off { asked: false } => Stage::Blocked,
                Step::Sent => Stage::Egress,
            };
        }
        cut.to(stage, seen, Some(who));
        cut.to(Stage::Out, left, None);
        Some(Self {
            id: request.id,
            from: request.due,
            to: left.max(request.due),
            spans: cut.spans,
            ahead,
            queue,
            class,
        })
    }

    /// Cycles from due to gone.
    pub fn total(&self) -> Cycles {
        self.to - self.from
    }

    /// Cycles spent in `stage`.
    pub fn in_stage(&self, stage: Stage) -> Cycles {
        self.spans.iter().filter(|span| span.stage == stage).map(|span| span.to - span.from).sum()
    }

    /// Returns the stage with the most cycles, and the longest span in it.
    pub fn longest(&self) -> Option<(Stage, &Span)> {
        let stage = Stage::ALL.into_iter().rev().max_by_key(|&stage| self.in_stage(stage))?;
        let spans = self.spans.iter().filter(|span| span.stage == stage);
        Some((stage, spans.max_by_key(|span| span.to - span.from)?))
    }
}

/// Cuts time into spans.
struct Cutter<'a> {
    at: Cycles,
    end: Cycles,
    spans: Vec<Span>,
    cores: &'a Cores,
}

impl Cutter<'_> {
    /// Adds a span of `stage` that ends at `to`.
    fn to(&mut self, stage: Stage, to: Cycles, who: Option<Who>) {
        self.span(stage, to, who, None);
    }

    fn span(&mut self, stage: Stage, to: Cycles, who: Option<Who>, tenancy: Option<Tenancy>) {
        let to = to.clamp(self.at, self.end);
        if to > self.at {
            self.spans.push(Span { stage, from: self.at, to, who, tenancy });
            self.at = to;
        }
    }

    /// Adds spans up to `to` in which kthread `who` had the request: of `stage` while it had a
    /// core, else of waiting for one.
    fn waiting(&mut self, stage: Stage, to: Cycles, who: Who) {
        let mut known = false;
        for &tenancy in self.cores.of(who, self.at, to) {
            known = true;
            let lost = tenancy.lost.unwrap_or(to).min(to);
            let running = tenancy.running.unwrap_or(lost).min(lost);
            let who = Some(who);
            self.span(Stage::Detection, tenancy.decided.min(to), who, Some(tenancy));
            if tenancy.from.is_some() {
                self.span(Stage::Cede, tenancy.ceded.unwrap_or(running).min(running), who, Some(tenancy));
            }
            self.span(Stage::Start, running, who, Some(tenancy));
            self.span(stage, lost, who, None);
        }
        // Without events of its cores only the waiting is known; after the last event the kthread
        // had lost its core.
        let rest = if known { Stage::Detection } else { stage };
        self.to(rest, to, Some(who));
    }
}
