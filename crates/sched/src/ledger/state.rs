//! What a core, a kthread and a runtime are to the ledger: the states, and what a runtime registers with.

use crate::ids::{CoreId, KthreadId, Nanos};
use core::fmt;

/// Who has a core. At most one kthread may be runnable on it, whatever the state.
///
/// | state  | grant | begin_move | complete_move | cancel_move | release | evict |
/// |--------|-------|------------|---------------|-------------|---------|-------|
/// | Free   | Owned | –          | –             | –           | –       | –     |
/// | Owned  | –     | Moving     | –             | –           | Free    | Free  |
/// | Moving | –     | –          | Owned by `to` | Owned by `from` | –   | Owned by `to` |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreState {
    /// Nobody: it may halt.
    Free,
    /// Lent to one kthread.
    Owned {
        /// The one.
        kthread: KthreadId,
        /// When it was granted, or when the kthread before it had given it up.
        since: Nanos,
    },
    /// `from` was asked to cede and still runs; `to` runs next.
    Moving {
        /// Runs until it cedes.
        from: KthreadId,
        /// Runs next.
        to: KthreadId,
        /// When `from` was asked to cede.
        since: Nanos,
        /// When `from` got the core.
        owned_since: Nanos,
    },
}

/// What a kthread has. A kthread that is being asked to cede stays `Granted`; its core's state tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KthreadState {
    /// No core; it can be lent one.
    Parked {
        /// Since when; the time of registration at first.
        since: Nanos,
    },
    /// It is promised a core that another kthread has yet to give up.
    Incoming {
        /// That core.
        core: CoreId,
    },
    /// It runs on a core.
    Granted {
        /// That core.
        core: CoreId,
    },
    /// It would not give its core up, so the core was taken from under it: it runs on unmanaged cores and can be lent
    /// none until it is readmitted.
    Evicted {
        /// Since when.
        since: Nanos,
    },
}

/// How a runtime ranks among those that want more cores than they are guaranteed.
///
/// Ordered by rank: `LatencyCritical` is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Its requests wait for cores: it takes burstable cores from `BestEffort` runtimes at once.
    LatencyCritical,
    /// Gets what the others leave: never takes a core that a `LatencyCritical` runtime is using.
    BestEffort,
}

/// What a runtime registers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeSpec {
    /// Cores it is entitled to whenever it has work for them; 0 is legal.
    pub guaranteed: u16,
    /// The most cores it may hold at a time, guaranteed ones included: 1 up to `kthreads`.
    pub max: u16,
    /// How many kthreads it brings.
    pub kthreads: u16,
    /// Its rank for cores beyond the guaranteed ones.
    pub class: Class,
}

/// One kthread's line in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kthread {
    pub(super) state: KthreadState,
    pub(super) last_core: Option<CoreId>,
}

/// One runtime's page in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub(super) spec: RuntimeSpec,
    pub(super) kthreads: Vec<Kthread>,
    pub(super) granted: u16,
    pub(super) leaving: u16,
    pub(super) arriving: u16,
    pub(super) evicted: u16,
    pub(super) recent_core: Option<CoreId>,
}

impl Account {
    pub(super) fn new(spec: RuntimeSpec, now: Nanos) -> Self {
        let parked = Kthread { state: KthreadState::Parked { since: now }, last_core: None };
        Self {
            spec,
            kthreads: vec![parked; usize::from(spec.kthreads)],
            granted: 0,
            leaving: 0,
            arriving: 0,
            evicted: 0,
            recent_core: None,
        }
    }

    /// What it registered with.
    #[must_use]
    pub fn spec(&self) -> &RuntimeSpec {
        &self.spec
    }

    /// Cores it will have once every hand-off under way is done: what guarantees and fair shares are about.
    #[must_use]
    pub fn cores(&self) -> u16 {
        self.granted - self.leaving + self.arriving
    }

    /// Cores its kthreads run on or are promised, those being given up included: what its limit is about.
    #[must_use]
    pub fn held(&self) -> u16 {
        self.granted + self.arriving
    }

    /// Cores it was asked to cede and still runs on.
    #[must_use]
    pub fn leaving(&self) -> u16 {
        self.leaving
    }

    /// Cores it is promised and not yet running on.
    #[must_use]
    pub fn arriving(&self) -> u16 {
        self.arriving
    }

    /// How many more cores it could be lent now: what its limit and its parked kthreads allow.
    #[must_use]
    pub fn room(&self) -> u16 {
        let parked = self.spec.kthreads - self.held() - self.evicted;
        parked.min(self.spec.max - self.held())
    }

    /// The core it gave up last (Shenango section 4.1.2: its caches may still hold this runtime's state).
    #[must_use]
    pub fn recent_core(&self) -> Option<CoreId> {
        self.recent_core
    }

    /// The states of its kthreads, by index.
    pub fn kthreads(&self) -> impl ExactSizeIterator<Item = KthreadState> + '_ {
        self.kthreads.iter().map(|kthread| kthread.state)
    }

    /// The indices of its parked kthreads, ascending.
    pub fn parked(&self) -> impl Iterator<Item = u16> + '_ {
        let parked = |state: &KthreadState| matches!(state, KthreadState::Parked { .. });
        (0u16..).zip(self.kthreads()).filter(move |(_, state)| parked(state)).map(|(index, _)| index)
    }

    /// The kthread to run on `core`: a parked one that ran there last, else the one parked longest, lowest index
    /// first (Shenango section 4.1.2). `None` when no kthread is parked.
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
