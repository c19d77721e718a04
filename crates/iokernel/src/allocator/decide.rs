//! The one loop in which the policy decides.
//!
//! Owns the events that wait for a decision. The code that follows cores announces each core that
//! becomes available and goes on; [`Allocator::drain`] hands one event after the other to the
//! policy, and carries out ([`super::apply`]) what it decides before it hands over the next.
//!
//! # Invariants
//!
//! 1. The policy is asked for decisions here only, and they are carried out from here only.
//!    Carrying one out may announce a core; it never asks for a decision itself. So this loop is on
//!    the stack once at most, and the policy sees each decision in the ledger at the next event.
//! 2. Every function that the polling loop calls and that announces a core drains the events before
//!    it returns: between two calls none waits.
//! 3. An event whose core has been lent since, or has an owner that is busy, is void.
//! 4. The loop ends: an event about a core grants that core at most once, a core that Linux refuses
//!    to a runtime is announced once for that runtime, which may not have it from then on, and a
//!    look and an arrival are announced by the polling loop only.
//! 5. What may keep a decision from being carried out is in the observation before the policy is
//!    asked. Only a program or Linux can still prevent one: the idle holder of the core has found
//!    work, or Linux does not bind the thread. The demand is found again at the next look.

use tailwater_sched::RuntimeId;
use tailwater_sched::alloc::View;
use tailwater_shm::Cycles;

use super::Allocator;
use super::phase::Phase;
use crate::tenant::Work;
use crate::world::World;

/// What the policy has to decide about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// The policy's interval has passed.
    Look,
    /// Work arrived for a runtime without a core.
    Arrival(RuntimeId),
    /// The core at this position idles, or has no owner.
    Available {
        at: usize,
        /// The runtime that pays for the decision, and since when it has caused work.
        payer: Option<(RuntimeId, Cycles)>,
    },
}

impl Allocator {
    /// Announces that the core at this position idles or has no owner.
    pub(super) fn announce(&mut self, at: usize) {
        self.events.push_back(Event::Available { at, payer: None });
    }

    /// Has the policy decide about one event, and about all that it leads to.
    #[inline]
    pub(super) fn decide(&mut self, world: &mut World, event: Event, now: Cycles) {
        self.events.push_back(event);
        self.drain(world, now);
    }

    /// Has the policy decide about all events that wait.
    #[inline(always)]
    pub(super) fn drain(&mut self, world: &mut World, now: Cycles) {
        while let Some(event) = self.events.pop_front() {
            self.handle(world, event, now);
        }
    }

    fn handle(&mut self, world: &mut World, event: Event, now: Cycles) {
        for &(id, _) in world.ended() {
            self.observation.set_on_hold(id, true);
        }
        let mut actions = core::mem::take(&mut self.actions);
        let view = View { now: self.nanos(now), obs: &self.observation, ledger: &self.ledger };
        match event {
            Event::Look => self.policy.tick(view, &mut actions),
            Event::Arrival(id) => self.policy.wakeup(view, id, &mut actions),
            Event::Available { at, .. } if self.is_available(at) => {
                self.policy.idle(view, self.cores[at].id, &mut actions);
            }
            Event::Available { .. } => {}
        }
        for action in actions.drain(..) {
            self.apply(world, &action, now);
        }
        self.actions = actions;
        if let Event::Available { payer: Some((id, began)), .. } = event {
            world.charge(id, Work::Refused, (self.stopwatch)().saturating_sub(began), now);
        }
    }

    fn is_available(&self, at: usize) -> bool {
        matches!(self.cores[at].phase, Phase::Free | Phase::Running { idle: true, .. })
    }
}
