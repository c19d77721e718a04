//! The states of a core, a kthread and a runtime in the ledger, and the parameters of a
//! registration.

use crate::ids::{CoreId, KthreadId, Nanos};
use core::fmt;
use heap::vec;
use heap::vec::Vec;

/// Number of kthreads evicted from one core from which on their runtime is not lent that core, and
/// the least number on all cores of a machine together.
const EVICTED_PER_CORE: u16 = 2;
const LEAST_EVICTED: u16 = 4;

/// The state of a core. At most one kthread may be runnable on it, whatever the state.
///
/// | state  | grant | begin_move | complete_move | cancel_move | release | evict | withdraw | restore |
/// |--------|-------|------------|---------------|-------------|---------|-------|----------|---------|
/// | Free   | Owned | –          | –             | –           | –       | –     | Absent   | –       |
/// | Owned  | –     | Moving     | –             | –           | Free    | Free  | –        | –       |
/// | Moving | –     | –          | Owned by `to` | Owned by `from` | –   | Owned by `to` | – | –       |
/// | Absent | –     | –          | –             | –           | –       | –     | –        | Free    |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreState {
    /// It has no owner and may halt.
    Free,
    /// It cannot be lent at present, because the machine does not let this process use it.
    Absent,
    /// Lent to one kthread.
    Owned {
        /// The kthread that holds it.
        kthread: KthreadId,
        /// Time at which it was granted, or at which the kthread before it had given it up.
        since: Nanos,
    },
    /// `from` was asked to cede and still runs; `to` runs next.
    Moving {
        /// The kthread that runs until it cedes.
        from: KthreadId,
        /// The kthread that runs next.
        to: KthreadId,
        /// Time at which `from` was asked to cede.
        since: Nanos,
        /// Time at which `from` got the core.
        owned_since: Nanos,
    },
}

/// The state of a kthread. A kthread that is asked to cede stays `Granted`; its core's state shows
/// the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KthreadState {
    /// It has no core and can be lent one.
    Parked {
        /// Start of this state; at first the time of registration.
        since: Nanos,
    },
    /// It is promised a core that another kthread has yet to give up.
    Incoming {
        /// The core.
        core: CoreId,
    },
    /// It runs on a core.
    Granted {
        /// The core.
        core: CoreId,
    },
    /// It did not give its core up in time, so the core was taken from it. It may run on, and can
    /// be lent no core until it is readmitted.
    Evicted {
        /// Start of this state.
        since: Nanos,
    },
}

/// The rank of a runtime among those that need more cores than they are guaranteed.
///
/// Ordered by rank: `LatencyCritical` is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuntimeClass {
    /// It takes burstable cores from `BestEffort` runtimes at once, because its requests wait for
    /// cores.
    LatencyCritical,
    /// It gets the cores that the others leave, and never takes a core that a `LatencyCritical`
    /// runtime is using.
    BestEffort,
}

/// The parameters with which a runtime registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeSpec {
    /// Cores it is entitled to whenever it has work for them; 0 is legal.
    pub guaranteed: u16,
    /// The most cores it may hold at a time, guaranteed ones included: 1 to `kthreads`.
    pub max: u16,
    /// Number of its kthreads.
    pub kthreads: u16,
    /// Its rank for cores beyond the guaranteed ones.
    pub class: RuntimeClass,
}

/// One kthread's entry in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kthread {
    pub(super) state: KthreadState,
    pub(super) last_core: Option<CoreId>,
}

/// One runtime's account in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub(super) spec: RuntimeSpec,
    /// What its guarantee amounts to at present.
    pub(super) guaranteed: u16,
    pub(super) kthreads: Vec<Kthread>,
    pub(super) granted: u16,
    pub(super) leaving: u16,
    pub(super) arriving: u16,
    pub(super) evicted: u16,
    /// Of these, the number on each core, by its position in the topology.
    pub(super) evicted_from: Vec<u16>,
    /// The number on one core from which on it is not lent that core.
    pub(super) most_evicted: u16,
    /// Cores that it is not lent for that.
    pub(super) withheld: u16,
    pub(super) given_up: u32,
    pub(super) recent_core: Option<CoreId>,
}

impl Account {
    pub(super) fn new(spec: RuntimeSpec, cores: usize, now: Nanos) -> Self {
        let parked = Kthread { state: KthreadState::Parked { since: now }, last_core: None };
        Self {
            spec,
            guaranteed: spec.guaranteed,
            kthreads: vec![parked; usize::from(spec.kthreads)],
            granted: 0,
            leaving: 0,
            arriving: 0,
            evicted: 0,
            evicted_from: vec![0; cores],
            most_evicted: EVICTED_PER_CORE
                .max(LEAST_EVICTED / u16::try_from(cores.max(1)).unwrap_or(u16::MAX)),
            withheld: 0,
            given_up: 0,
            recent_core: None,
        }
    }

    /// Returns the parameters it registered with.
    #[must_use]
    pub fn spec(&self) -> &RuntimeSpec {
        &self.spec
    }

    /// Returns the number of cores it is guaranteed at present: as many as it registered with, or
    /// fewer while absent cores leave too few for all guarantees.
    #[must_use]
    pub fn guaranteed(&self) -> u16 {
        self.guaranteed
    }

    /// Returns the number of cores it will have once every hand-off under way is done. Guarantees
    /// and fair shares count these.
    #[must_use]
    pub fn cores(&self) -> u16 {
        self.granted - self.leaving + self.arriving
    }

    /// Returns the number of cores its kthreads run on or are promised, including those being given
    /// up. Its limit counts these.
    #[must_use]
    pub fn held(&self) -> u16 {
        self.granted + self.arriving
    }

    /// Returns the number of cores it was asked to cede and still runs on.
    #[must_use]
    pub fn leaving(&self) -> u16 {
        self.leaving
    }

    /// Returns the number of cores it is promised and does not run on yet.
    #[must_use]
    pub fn arriving(&self) -> u16 {
        self.arriving
    }

    /// Returns whether it is not lent the core at this position, because of the kthreads that were
    /// evicted from it. Each evicted one is watched, so a program must not have all of its kthreads
    /// evicted one after the other. Another program may be the reason, on that core only.
    #[must_use]
    pub fn is_withheld(&self, at: usize) -> bool {
        self.evicted_from.get(at).is_some_and(|&evicted| evicted >= self.most_evicted)
    }

    /// Returns the number of its kthreads evicted from one core from which on that core is
    /// [withheld](Self::is_withheld).
    #[must_use]
    pub fn most_evicted(&self) -> u16 {
        self.most_evicted
    }

    /// Returns whether there is such a core.
    #[must_use]
    pub fn has_withheld(&self) -> bool {
        self.withheld > 0
    }

    /// Returns how many more cores it could be lent now, by its limit and its parked kthreads; none
    /// while all cores are [withheld](Self::is_withheld).
    #[must_use]
    pub fn room(&self) -> u16 {
        if usize::from(self.withheld) == self.evicted_from.len() {
            return 0;
        }
        let parked = self.spec.kthreads - self.held() - self.evicted;
        parked.min(self.spec.max - self.held())
    }

    /// Returns whether it has no core and can be lent none: its kthreads are evicted, or all cores
    /// are [withheld](Self::is_withheld). What it reports makes no difference until one is
    /// readmitted.
    #[must_use]
    pub fn is_barred(&self) -> bool {
        self.held() == 0 && self.room() == 0
    }

    /// Returns how often a kthread of it has given its core up without being asked, modulo 2^32.
    #[must_use]
    pub fn given_up(&self) -> u32 {
        self.given_up
    }

    /// Returns the core it gave up last (Shenango section 4.1.2: its caches may still hold this
    /// runtime's state).
    #[must_use]
    pub fn recent_core(&self) -> Option<CoreId> {
        self.recent_core
    }

    /// Returns the states of its kthreads, by index.
    pub fn kthreads(&self) -> impl ExactSizeIterator<Item = KthreadState> + '_ {
        self.kthreads.iter().map(|kthread| kthread.state)
    }

    /// Returns the indices of its parked kthreads, ascending.
    pub fn parked(&self) -> impl Iterator<Item = u16> + '_ {
        let parked = |state: &KthreadState| matches!(state, KthreadState::Parked { .. });
        (0u16..).zip(self.kthreads()).filter(move |(_, state)| parked(state)).map(|(index, _)| index)
    }

    /// Returns the kthread to run on `core`: a parked one that ran there last, else the one parked
    /// longest, lowest index first (Shenango section 4.1.2). `None` if no kthread is parked.
    #[must_use]
    pub fn kthread_for(&self, core: CoreId) -> Option<u16> {
        let mut best: Option<((bool, Nanos), u16)> = None;
        for (index, kthread) in self.kthreads.iter().enumerate() {
            let KthreadState::Parked { since } = kthread.state else { continue };
            let rank = (kthread.last_core != Some(core), since);
            if best.is_none_or(|(least, _)| rank < least) {
                best = Some((rank, index as u16));
            }
        }
        best.map(|(_, index)| index)
    }
}

impl fmt::Display for CoreState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free => write!(f, "free"),
            Self::Absent => write!(f, "absent"),
            Self::Owned { kthread, .. } => write!(f, "owned by {kthread}"),
            Self::Moving { from, to, .. } => write!(f, "moving from {from} to {to}"),
        }
    }
}

impl fmt::Display for KthreadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parked { .. } => write!(f, "parked"),
            Self::Incoming { core } => write!(f, "promised {core}"),
            Self::Granted { core } => write!(f, "running on {core}"),
            Self::Evicted { .. } => write!(f, "evicted"),
        }
    }
}
