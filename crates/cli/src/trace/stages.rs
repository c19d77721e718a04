//! A request divided into stages: what it waited for, from the moment it was due to the moment its reply had left.
//!
//! Pure: what was collected in, stages out. Stages follow one another without gap or overlap, so that their durations sum to the
//! total; a time that lies before the one that must precede it is moved to it.

use tailwater_shm::Cycles;
use tailwater_shm::trace::{Step, Who};

use super::collect::{Request, Switched};
use super::cores::{Cores, Tenancy};

/// What a request does or waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// For its port to be polled.
    Port,
    /// In the switch, until it lies in a ring.
    Switch,
    /// For the decision that its kthread gets a core.
    Detection,
    /// For whoever has that core to give it up.
    Cede,
    /// For its kthread to start on it.
    Start,
    /// In the ingress ring of a kthread that has a core.
    Ring,
    /// In the network stack.
    Stack,
    /// In its socket, where nobody waited for it.
    Socket,
    /// For the thread that was made runnable for it, or that was started for it.
    RunQueue,
    /// Its thread runs.
    Run,
    /// Its thread had to leave the core.
    Preempted,
    /// Its thread waits for something, or yielded.
    Blocked,
    /// The reply lies in the egress ring.
    Egress,
    /// The reply is on its way to whom it is for.
    Out,
}

impl Stage {
    /// In the order of a request's way.
    pub const ALL: [Self; 14] = [
        Self::Port,
        Self::Switch,
        Self::Detection,
        Self::Cede,
        Self::Start,
        Self::Ring,
        Self::Stack,
        Self::Socket,
        Self::RunQueue,
        Self::Run,
        Self::Preempted,
        Self::Blocked,
        Self::Egress,
        Self::Out,
    ];

    /// Name in tables and drawings.
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
    /// Which.
    pub stage: Stage,
    /// From when.
    pub from: Cycles,
    /// To when; not before `from`.
    pub to: Cycles,
    /// On or for which kthread, where that is known.
    pub who: Option<Who>,
    /// The hand-off it waited for.
    pub tenancy: Option<Tenancy>,
}

/// A request that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breakdown {
    /// Its number.
    pub id: u32,
    /// When it was due.
    pub from: Cycles,
    /// When its reply had left.
    pub to: Cycles,
    /// Its stages in order; those without duration are left out.
    pub spans: Vec<Span>,
    /// Datagrams before it in the socket.
    pub ahead: u32,
    /// Threads in the run queue when its own was put there, that one included.
    pub queue: u32,
}

impl Breakdown {
    /// The stages of a request, if it was answered.
    pub fn of(request: &Request, cores: &Cores) -> Option<Self> {
        let (left, _) = request.left?;
        let seen = request.seen?;
        let Some(Switched::InRing { at: in_ring, who: target, .. }) = request.switched else { return None };
        let mut cut = Cutter { at: request.due, end: left.max(request.due), spans: Vec::new(), cores };
        cut.to(Stage::Port, request.arrived, None);
        cut.to(Stage::Switch, in_ring, Some(target));
        let (mut ahead, mut queue) = (0, 0);
        // Who has it, and in which stage it will have been when the next step comes.
        let (mut who, mut stage) = (target, Stage::Ring);
        for &(at, by, step) in &request.steps {
            match step {
                Step::Taken { .. } => cut.waiting(Stage::Ring, at, by),
                Step::Delivered { ahead: before, queue: length, .. } => {
                    cut.to(Stage::Stack, at, Some(by));
                    (ahead, queue) = (before, length);
                }
                Step::Received if by == who => cut.waiting(stage, at, by),
                _ => cut.to(stage, at, Some(who)),
            }
            who = by;
            stage = match step {
                Step::Taken { .. } | Step::Refused | Step::Untracked => Stage::Stack,
                Step::Delivered { woke: true, .. } | Step::Passed => Stage::RunQueue,
                Step::Delivered { woke: false, .. } => Stage::Socket,
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
        })
    }

    /// Cycles it took.
    pub fn total(&self) -> Cycles {
        self.to - self.from
    }

    /// Cycles it spent in `stage`.
    pub fn in_stage(&self, stage: Stage) -> Cycles {
        self.spans.iter().filter(|span| span.stage == stage).map(|span| span.to - span.from).sum()
    }

    /// The stage in which it spent most, and the longest of its spans.
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
    /// Everything up to `to` was `stage`.
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

    /// Up to `to` it was in the hands of kthread `who`: in `stage` while that one had a core, and else waiting for one.
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
        // Without a word about its cores nothing is known but that it waited; after the last, it had lost its core.
        let rest = if known { Stage::Detection } else { stage };
        self.to(rest, to, Some(who));
    }
}
