//! The ledger's errors: one enum per kind of operation, each naming the ids involved and their
//! states.

use super::{CoreState, KthreadState};
use crate::ids::{CoreId, KthreadId, RuntimeId};
use thiserror::Error;

/// Why a runtime was not registered. The message is for the user that started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RegisterError {
    /// The slot is beyond [`super::MAX_RUNTIMES`].
    #[error("{0} is out of range; at most {max} runtimes can be registered", max = super::MAX_RUNTIMES)]
    SlotOutOfRange(RuntimeId),
    /// The slot belongs to another runtime.
    #[error("slot of {0} is taken; unregister its runtime first or choose a vacant slot")]
    SlotTaken(RuntimeId),
    /// A runtime that may never have a core cannot run.
    #[error("{0} asks for a limit of 0 cores; ask for at least 1")]
    NoCores(RuntimeId),
    /// It requests more guaranteed cores than it may have at all.
    #[error("{runtime} asks for {guaranteed} guaranteed cores but for a limit of {max}; raise the limit")]
    GuaranteeOverLimit {
        /// The runtime that asks.
        runtime: RuntimeId,
        /// Guaranteed cores it requests.
        guaranteed: u16,
        /// The most cores it may have, as it states.
        max: u16,
    },
    /// It may have more cores than it has threads to run on them.
    #[error("{runtime} asks for up to {max} cores but has only {kthreads} kthreads; one is needed per core")]
    TooFewKthreads {
        /// The runtime that asks.
        runtime: RuntimeId,
        /// The most cores it may have, as it states.
        max: u16,
        /// Kthreads it brings.
        kthreads: u16,
    },
    /// The guarantees of all runtimes together would exceed the managed cores (Shenango section
    /// 4.1.1: no oversubscription).
    #[error(
        "{runtime} asks for {guaranteed} guaranteed cores; {already} of {managed} managed cores are guaranteed already"
    )]
    Oversubscribed {
        /// The runtime that asks.
        runtime: RuntimeId,
        /// Guaranteed cores it requests.
        guaranteed: u16,
        /// Cores guaranteed to the runtimes registered already.
        already: usize,
        /// Managed cores in all.
        managed: usize,
    },
}

/// Why a change of ownership is impossible. The ledger is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TransitionError {
    /// No such core is managed.
    #[error("{0} is not managed")]
    UnknownCore(CoreId),
    /// No runtime is registered in this slot.
    #[error("{0} is not registered")]
    UnknownRuntime(RuntimeId),
    /// The runtime exists but has no kthread of this index.
    #[error("{kthread} does not exist; its runtime has {kthreads}")]
    UnknownKthread {
        /// The kthread named.
        kthread: KthreadId,
        /// Number of kthreads its runtime has.
        kthreads: u16,
    },
    /// Only a free core can be granted.
    #[error("{core} cannot be granted: it is {state}; move it from its owner instead")]
    CoreNotFree {
        /// The core.
        core: CoreId,
        /// Its actual state.
        state: CoreState,
    },
    /// Only an absent core comes back.
    #[error("{core} cannot come back: it is {state}")]
    CoreNotAbsent {
        /// The core.
        core: CoreId,
        /// Its actual state.
        state: CoreState,
    },
    /// The core is not owned by the kthread that was to give it up, or is already moving.
    #[error("{core} cannot be taken from {owner}: it is {state}")]
    CoreNotOwned {
        /// The core.
        core: CoreId,
        /// The kthread that the caller assumed to own it.
        owner: KthreadId,
        /// Its actual state.
        state: CoreState,
    },
    /// The core is not on its way from one kthread to another.
    #[error("{core} is not moving: it is {state}")]
    CoreNotMoving {
        /// The core.
        core: CoreId,
        /// Its actual state.
        state: CoreState,
    },
    /// Only a parked kthread can be lent a core.
    #[error("{kthread} cannot be lent a core: it is {state}")]
    KthreadNotParked {
        /// The kthread.
        kthread: KthreadId,
        /// Its actual state.
        state: KthreadState,
    },
    /// The kthread has no core to give up.
    #[error("{kthread} has no core to give up: it is {state}")]
    KthreadHasNoCore {
        /// The kthread.
        kthread: KthreadId,
        /// Its actual state.
        state: KthreadState,
    },
    /// The kthread was not evicted, so it cannot be readmitted.
    #[error("{kthread} was not evicted: it is {state}")]
    KthreadNotEvicted {
        /// The kthread.
        kthread: KthreadId,
        /// Its actual state.
        state: KthreadState,
    },
    /// The core is promised to another kthread: the move must be completed instead.
    #[error("{core} of {kthread} is promised to {to}; complete the move instead of releasing the core")]
    PromisedAway {
        /// The core.
        core: CoreId,
        /// The kthread that gives it up.
        kthread: KthreadId,
        /// The kthread that gets it.
        to: KthreadId,
    },
    /// The runtime holds as many cores as it may have, those it is giving up included.
    #[error("{runtime} holds {held} cores, its limit is {max}")]
    AtLimit {
        /// The runtime.
        runtime: RuntimeId,
        /// Cores its kthreads run on or are promised.
        held: u16,
        /// The most it may have.
        max: u16,
    },
    /// A core does not move between kthreads of one runtime; the runtime does that itself.
    #[error("{core} would move from {from} to {to} of the same runtime")]
    SameRuntime {
        /// The core.
        core: CoreId,
        /// Its owner.
        from: KthreadId,
        /// The kthread it was to go to.
        to: KthreadId,
    },
}

/// A defect of the ledger itself, found by [`super::Ledger::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Inconsistency {
    /// A core names a kthread that does not have it.
    #[error("{core} is recorded as {state}, but {kthread} is {held:?}")]
    CoreWithoutKthread {
        /// The core.
        core: CoreId,
        /// The core's state.
        state: CoreState,
        /// The kthread it names.
        kthread: KthreadId,
        /// The state of that kthread, if it exists.
        held: Option<KthreadState>,
    },
    /// A kthread has a core that does not name it.
    #[error("{kthread} is recorded as {state}, but that core is {core_state:?}")]
    KthreadWithoutCore {
        /// The kthread.
        kthread: KthreadId,
        /// The kthread's state.
        state: KthreadState,
        /// The state of its core, if it exists.
        core_state: Option<CoreState>,
    },
    /// A counter kept for speed disagrees with a recount.
    #[error("counter `{counter}` is {kept}, a recount gives {counted}")]
    Counter {
        /// Name of the counter.
        counter: &'static str,
        /// What the ledger keeps.
        kept: usize,
        /// What a recount gives.
        counted: usize,
    },
    /// A runtime holds more cores than it may.
    #[error("{runtime} holds {held} cores over its limit of {max}")]
    OverLimit {
        /// The runtime.
        runtime: RuntimeId,
        /// Cores it holds.
        held: u16,
        /// The most it may have.
        max: u16,
    },
    /// The list of registered runtimes disagrees with the slots.
    #[error("{0} is in the list of registered runtimes or in a slot, but not in both")]
    LiveList(RuntimeId),
}
