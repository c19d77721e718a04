//! Who had which core when: tenancies, made from the IOKernel's events.
//!
//! Events may be missing, where the ring to this program was full. Two facts bound what that spoils: a kthread has one core at a time,
//! so the last one was lost at the latest when it is granted another; and a core runs one kthread at a time, so whoever
//! had it lost it at the latest when another is seen running there. Invariant: of a kthread's tenancies all but the last are over.

use std::collections::BTreeMap;

use tailwater_shm::Cycles;
use tailwater_shm::trace::{CoreStep, Handoff, Who};

/// One kthread's time on a core, from the decision to the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenancy {
    /// Who.
    pub who: Who,
    /// Where.
    pub core: u16,
    /// When it was decided; when the trace began, for those that were there already.
    pub decided: Cycles,
    /// Who had the core then.
    pub from: Option<Who>,
    /// When that one was sent the preempt signal.
    pub signalled: Option<Cycles>,
    /// When that one gave it up, or was moved off it.
    pub ceded: Option<Cycles>,
    /// When it was seen running.
    pub running: Option<Cycles>,
    /// How the core came to it.
    pub handoff: Handoff,
    /// When it gave the core up, or was moved off it.
    pub lost: Option<Cycles>,
}

impl Tenancy {
    /// It is over by `at` at the latest.
    fn end(&mut self, at: Cycles) {
        self.lost.get_or_insert(at.max(self.decided));
    }
}

/// All tenancies.
#[derive(Debug, Default)]
pub struct Cores {
    tenancies: Vec<Tenancy>,
    /// By kthread, in order of time: places in `tenancies`.
    by_who: BTreeMap<Who, Vec<usize>>,
    /// By core: the place of the tenancy that was seen running there last.
    by_core: BTreeMap<u16, usize>,
    events: usize,
}

impl Cores {
    /// Events taken in.
    pub fn len(&self) -> usize {
        self.events
    }

    /// All of them, in order of their decisions.
    pub fn tenancies(&self) -> &[Tenancy] {
        &self.tenancies
    }

    /// Takes in an event of time `at` that concerns `who`; of a decision, with who had the core.
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
                    // It was there when the trace began.
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
                    tenancy.lost.get_or_insert(at);
                }
                if let Some(next) = self.successor(core, who) {
                    next.ceded = Some(at);
                    next.handoff = handoff;
                }
            }
        }
    }

    /// `who` was seen running on `core`: whoever was before is no longer.
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

    /// The tenancy that waits for `who` to give `core` up. Hand-offs of one core follow one another, so it is among the last few.
    fn successor(&mut self, core: u16, who: Who) -> Option<&mut Tenancy> {
        let mut recent = self.tenancies.iter_mut().rev().take(256);
        recent.find(|t| t.core == core && t.from == Some(who) && t.running.is_none() && t.lost.is_none())
    }

    /// The tenancies of `who` that are not over before `from` and were decided before `to`, in order of time.
    pub fn of(&self, who: Who, from: Cycles, to: Cycles) -> impl Iterator<Item = &Tenancy> {
        let places = self.by_who.get(&who).map_or(&[][..], Vec::as_slice);
        let first =
            places.partition_point(|&place| self.tenancies[place].lost.is_some_and(|lost| lost <= from));
        let all = places[first..].iter().map(|&place| &self.tenancies[place]);
        all.take_while(move |tenancy| tenancy.decided < to)
    }
}
