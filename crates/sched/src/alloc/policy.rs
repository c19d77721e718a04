//! What every core-allocation policy is asked, and by what it decides.
//!
//! Owns the [`Policy`] trait, its input [`View`] and [`Setting`]; they stand below the policies.
//! The [parent module](super) has the contract with the caller.

use super::ix::steps::Clock;
use super::observe::{Hold, Observation, RuntimeLook};
use crate::action::Action;
use crate::ids::{CoreId, Nanos, RuntimeId};
use crate::ledger::{CoreState, Ledger, RuntimeClass};
use heap::vec::Vec;

/// The input of a decision: the time, the observation and the ledger.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Now, on the clock of the ledger's time stamps.
    pub now: Nanos,
    /// What the runtimes report about themselves, as of the latest look.
    pub obs: &'a Observation,
    /// Which kthread owns which core.
    pub ledger: &'a Ledger,
}

impl View<'_> {
    /// Returns the class as which a runtime competes for cores.
    pub(super) fn class(&self, runtime: RuntimeId) -> RuntimeClass {
        match self.ledger.account(runtime) {
            Some(account) if !self.is_demoted(runtime) => account.spec().class,
            _ => RuntimeClass::BestEffort,
        }
    }

    pub(super) fn is_demoted(&self, runtime: RuntimeId) -> bool {
        self.obs.runtime(runtime).is_some_and(RuntimeLook::is_demoted)
    }

    /// Returns true if no [`Hold`] keeps the core at this position from the claimant now. A service
    /// does not wait for the start of a program that keeps services waiting for too long.
    #[must_use]
    pub fn yields(&self, at: usize, claimant: RuntimeId) -> bool {
        match self.obs.hold(at) {
            Hold::None => true,
            Hold::Leaving => false,
            Hold::Starting { overdue } => {
                let from_demoted = matches!(self.ledger.cores()[at],
                    CoreState::Owned { kthread, .. } if self.is_demoted(kthread.runtime));
                self.now > overdue || from_demoted && self.class(claimant) == RuntimeClass::LatencyCritical
            }
        }
    }
}

/// What a policy uses of the machine at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Position in the policy's sequence of steps.
    pub step: u16,
    /// Number of cores in use.
    pub cores: u16,
    /// Clock rate to set; `None` leaves it alone.
    pub clock: Option<Clock>,
}

/// Decides which runtime gets which core. The [parent module](super) states the caller's
/// obligations.
pub trait Policy {
    /// Returns a short name for tables and configuration files.
    fn name(&self) -> &'static str;

    /// Returns the interval at which [`Policy::tick`] is to be called.
    fn interval(&self) -> Nanos;

    /// Adds a registered runtime, whose kthreads are all parked. May allocate memory.
    fn attach(&mut self, runtime: RuntimeId, ledger: &Ledger);

    /// Forgets an unregistered runtime; ignores an unknown one. Its former cores are reported by
    /// [`Policy::idle`].
    fn detach(&mut self, runtime: RuntimeId);

    /// Looks at every runtime; appends to `actions`.
    fn tick(&mut self, view: View<'_>, actions: &mut Vec<Action>);

    /// Handles a packet, a doorbell or a due timer for `runtime`, which has no core; appends to
    /// `actions`. Does nothing for a runtime that has cores or is not attached.
    fn wakeup(&mut self, view: View<'_>, runtime: RuntimeId, actions: &mut Vec<Action>);

    /// Handles a core that became available: its owner declared itself idle, whatever the
    /// observation says, or the core has no owner. Appends to `actions`. Does nothing for a core
    /// that is moving or not managed.
    fn idle(&mut self, view: View<'_>, core: CoreId, actions: &mut Vec<Action>);

    /// Returns the time of the next tick that may lend a core although nothing happens until then,
    /// [`Nanos::ZERO`] for the very next one. A caller that stops ticking while nothing happens
    /// must tick then.
    fn next_pending(&self, view: View<'_>) -> Option<Nanos> {
        let _ = view;
        None
    }

    /// Returns whether the policy ever lends `core` to `runtime` at present, whatever the
    /// observation says. Asked while the runtime waits: there is no use in watching cores that it
    /// cannot get.
    fn may_serve(&self, runtime: RuntimeId, core: CoreId, ledger: &Ledger) -> bool {
        let _ = (runtime, core, ledger);
        true
    }

    /// Returns a core whose holder is to give it up although no runtime is lent it. The caller asks
    /// after each tick and each time finds another one, if there is one.
    fn surplus(&self, view: View<'_>) -> Option<CoreId> {
        let _ = view;
        None
    }

    /// Returns what the policy uses of the machine; `None` for policies that use all of it.
    fn setting(&self) -> Option<Setting> {
        None
    }

    /// Sets whether the clock rates of [`Setting`] can be set, as they can at first.
    fn allow_clocks(&mut self, allowed: bool, ledger: &Ledger) {
        let _ = (allowed, ledger);
    }

    /// Returns true if cores that runtimes request become their own.
    fn takes_requests(&self) -> bool {
        false
    }

    /// Returns how many of the cores that `runtime` requests are its own, as of the latest look;
    /// 0 under policies that accept no requests.
    fn granted(&self, runtime: RuntimeId) -> u16 {
        let _ = runtime;
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::KthreadId;
    use crate::ledger::RuntimeSpec;
    use crate::topology::Topology;
    use RuntimeClass::{BestEffort, LatencyCritical};

    /// Returns whether the core of a holder yields to a claimant of this class; either is demoted
    /// or not. `moves`: the core is promised to the claimant already.
    fn yields(hold: Hold, claimant: (RuntimeClass, bool), holder_demoted: bool, moves: bool) -> bool {
        let now = Nanos::from_millis(1);
        let mut ledger = Ledger::new(Topology::uniform(1, 1, 1).unwrap());
        let mut obs = Observation::new();
        let runtimes = [(BestEffort, holder_demoted), claimant];
        for (runtime, (class, demoted)) in (0..).map(RuntimeId).zip(runtimes) {
            let spec = RuntimeSpec { guaranteed: 0, max: 1, kthreads: 1, class };
            ledger.register(runtime, spec, now).unwrap();
            obs.attach(runtime, 1);
            obs.set_demoted(runtime, demoted);
        }
        let [holder, to] = [0, 1].map(|runtime| KthreadId::new(RuntimeId(runtime), 0));
        ledger.grant(CoreId(0), holder, now).unwrap();
        if moves {
            ledger.begin_move(CoreId(0), holder, to, now).unwrap();
        }
        obs.set_hold(0, hold);
        View { now, obs: &obs, ledger: &ledger }.yields(0, RuntimeId(1))
    }

    #[test]
    fn only_a_service_takes_a_core_from_a_start_in_time_and_only_from_a_demoted_program() {
        let starting = |overdue_ns| Hold::Starting { overdue: Nanos(overdue_ns) };
        let (overdue, in_time) = (starting(999_999), starting(1_000_000));
        for class in [BestEffort, LatencyCritical] {
            for flags in 0..8 {
                let [demoted, holder_demoted, moves] = [1, 2, 4].map(|flag| flags & flag != 0);
                let yields = |hold| yields(hold, (class, demoted), holder_demoted, moves);
                let is_service = class == LatencyCritical && !demoted;
                let expected = is_service && holder_demoted && !moves;
                let got = [Hold::None, Hold::Leaving, overdue, in_time].map(yields);
                let case = (class, demoted, holder_demoted, moves);
                assert_eq!(got, [true, false, true, expected], "{case:?}");
            }
        }
    }
}
