//! Tenancies (which kthread had which core, and when), made from the IOKernel's events.
//!
//! Events are missing where the ring to this program was full. Two facts bound the damage. A
//! kthread has one core at a time, so it has lost the last one at the latest when it is granted
//! another. A core runs one kthread at a time, so its tenant has lost it at the latest when another
//! kthread is seen running there. Invariant: all but the last of a kthread's tenancies have ended.

use std::collections::BTreeMap;

use tailwater_shm::Cycles;
use tailwater_shm::trace::{CoreStep, Handoff, Who};

/// One kthread's time on a core, from the decision to the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenancy {
    /// The kthread.
    pub who: Who,
    /// The core.
    pub core: u16,
    /// The time of the decision; the beginning of the trace for earlier decisions.
    pub decided: Cycles,
    /// The kthread that had the core at the decision.
    pub from: Option<Who>,
    /// The time at which that kthread was sent the preempt signal.
    pub signalled: Option<Cycles>,
    /// The time at which that kthread gave the core up or was moved off it.
    pub ceded: Option<Cycles>,
    /// The time at which the new kthread was seen running.
    pub running: Option<Cycles>,
    /// The kind of hand-off.
    pub handoff: Handoff,
    /// The time at which the new kthread gave the core up or was moved off it.
    pub lost: Option<Cycles>,
}

impl Tenancy {
    /// Ends the tenancy at `at` unless it ended before.
    fn end(&mut self, at: Cycles) {
        self.lost.get_or_insert(at.max(self.decided));
    }
}

/// All tenancies.
#[derive(Debug, Default)]
pub struct Cores {
    tenancies: Vec<Tenancy>,
    /// Indices into `tenancies` by kthread, in order of time.
    by_who: BTreeMap<Who, Vec<usize>>,
    /// By core, the index of the tenancy that was last seen running there.
    by_core: BTreeMap<u16, usize>,
    events: usize,
}

impl Cores {
    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.events
    }

    /// Returns all tenancies, in order of their decisions.
    pub fn tenancies(&self) -> &[Tenancy] {
        &self.tenancies
    }

    /// Adds an event of time `at` that concerns `who`; a decision comes with the kthread that had
    /// the core.
    pub fn push(
        &mut self,
        at: Cycles,
        core: u16,
        step: CoreStep,
        handoff: Handoff,
        (who, from): (Who, Option<Who>),
    ) {
        self.events += 1;
        match step {
            CoreStep::Decided => {
                self.begin(Tenancy {
                    who,
                    core,
                    decided: at,
                    from,
                    signalled: None,
                    ceded: None,
                    running: None,
                    handoff,
                    lost: None,
                });
            }
            CoreStep::Running => {
                match self.latest(who) {
                    Some(tenancy) if tenancy.lost.is_none() && tenancy.core == core => {
                        tenancy.running = Some(at);
                        tenancy.handoff = handoff;
                    }
                    // A tenancy from before the trace.
                    _ => self.begin(Tenancy {
                        who,
                        core,
                        decided: at,
                        from: None,
                        signalled: None,
                        ceded: None,
                        running: Some(at),
                        handoff,
                        lost: None,
                    }),
                }
                self.runs(at, core, who);
            }
            CoreStep::Signalled => {
                if let Some(next) = self.successor(core, who) {
                    next.signalled = Some(at);
                }
            }
            CoreStep::Ceded => {
                if let Some(tenancy) = self.latest(who)
                    && tenancy.core == core
                {
                    // The end of the tenancy before may be recorded after this one's decision.
                    let lost = at.max(tenancy.decided);
                    tenancy.lost.get_or_insert(lost);
                }
                if let Some(next) = self.successor(core, who) {
                    next.ceded = Some(at);
                    next.handoff = handoff;
                }
            }
        }
    }

    /// Ends the tenancy of the kthread that was seen on `core` before `who`.
    fn runs(&mut self, at: Cycles, core: u16, who: Who) {
        let Some(&place) = self.by_who.get(&who).and_then(|places| places.last()) else { return };
        if let Some(before) = self.by_core.insert(core, place)
            && before != place
        {
            self.tenancies[before].end(at);
        }
    }

    fn begin(&mut self, tenancy: Tenancy) {
        if let Some(before) = self.latest(tenancy.who) {
            before.end(tenancy.decided);
        }
        self.by_who.entry(tenancy.who).or_default().push(self.tenancies.len());
        self.tenancies.push(tenancy);
    }

    fn latest(&mut self, who: Who) -> Option<&mut Tenancy> {
        let place = *self.by_who.get(&who)?.last()?;
        self.tenancies.get_mut(place)
    }

    /// Returns the tenancy that waits for `who` to give `core` up. Hand-offs of one core do not
    /// overlap, so it is among the last.
    fn successor(&mut self, core: u16, who: Who) -> Option<&mut Tenancy> {
        let mut recent = self.tenancies.iter_mut().rev().take(256);
        recent.find(|t| t.core == core && t.from == Some(who) && t.running.is_none() && t.lost.is_none())
    }

    /// Returns the tenancies of `who` that end after `from` and were decided before `to`, in order
    /// of time.
    pub fn of(&self, who: Who, from: Cycles, to: Cycles) -> impl Iterator<Item = &Tenancy> {
        let places = self.by_who.get(&who).map_or(&[][..], Vec::as_slice);
        let first =
            places.partition_point(|&place| self.tenancies[place].lost.is_some_and(|lost| lost <= from));
        let all = places[first..].iter().map(|&place| &self.tenancies[place]);
        all.take_while(move |tenancy| tenancy.decided < to)
    }
}
