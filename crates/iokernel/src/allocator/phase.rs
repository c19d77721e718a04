//! The states that the allocator keeps about cores and kthreads, and its deadlines.

use tailwater_sched::{CoreId, KthreadId};
use tailwater_shm::Cycles;
use tailwater_shm::account::Account;
use tailwater_stats::HandoffKind;

use super::quantum::TurnWatch;
use crate::bounds::bounds;

/// Maximum number of doublings of [`Bounds::no_start_pause`]: 1.28 s.
pub(super) const NO_START_DOUBLINGS: u32 = 7;
/// Maximum number of decisions about an idle core at once; see [`Bounds::idle_pace`].
pub(super) const IDLE_BURST: Cycles = 8;

bounds! {
    /// The allocator's bounds on time that are not configured.
    pub(super) struct Bounds {
        /// Time after a kthread was seen to have given its core up in which it may still be
        /// runnable: it sleeps within 2 us or so, seldom after 16
        /// ([`tailwater_shm::priority::yields`]).
        parking = 10 us,
        /// Time after the core was seen ceded at which the IOKernel itself wakes a successor that
        /// has not started; each further pause is as long as all before it and this. The usual time
        /// is 1 to 3 us (a context switch, with or without a futex wake, on a 2-vCPU VM); waking a
        /// kthread that is awake costs 0.2 us. `tailwater_shm::park` infers from the number of
        /// wakes how long ago the first was.
        rewake = 20 us,
        /// How long a kthread may take to start before another runtime with a better claim gets its
        /// core instead. A hand-off takes 1 to 3 us; with `neighbour_share` above 0 a best-effort
        /// kthread does not start while an ordinary program runs on the core.
        overdue_start = 10 us,
        /// How long after its preempt signal a kthread may take to cede before it is bypassed. The
        /// signal takes 13 to 18 us to a thread that runs (2-vCPU VM); one that Linux has
        /// descheduled sees neither signal nor request. The time does not run from the decision: a
        /// polling thread that looks late sends the signal late, too.
        bypass = 20 us,
        /// How long a kthread that was bypassed may take to park before it is moved to unmanaged
        /// cores: a thread that Linux has descheduled has its turn after a tick (4 ms at 250 Hz).
        /// nginx and wrk on one lent core have 250 bypasses/s; moved at once, p99 is 16 to 31 ms
        /// instead of 1.4 to 2.8, after 1 ms 10 are moved in 4 s, after 4 ms one (2-vCPU VM).
        beside = 5 ms,
        /// How long the polling thread stays awake for a best-effort kthread that does not start:
        /// then an ordinary program has its core.
        settling = 1 ms,
        /// Pause before a kthread that did not start is lent a core again; doubled each time in a
        /// row for a latency-critical one.
        no_start_pause = 10 ms,
        /// Time beside services after which a withdrawn kthread pays for what its thread has run.
        payment_interval = 1 ms,
        /// Time after which Linux has brought the processor time of a thread that runs up to date:
        /// a tick of its clock, of 1 to 10 ms.
        tick = 10 ms,
        /// Longest wait that is charged: a longer one is not the program's fault alone.
        longest_wait = 100 us,
        /// Time after which no further runtime without a core is looked at. Frames wake such a
        /// runtime directly, so only doorbells and timers wait for their turn.
        cold_look = 1 us,
        /// Longest time that reading the words of one kthread takes: two cache misses, of up to 100
        /// ns each.
        kthread_look = 200 ns,
        /// Mean time between two decisions about a core whose kthread goes idle, runs and goes idle
        /// again: a program can do so in each iteration of the loop.
        idle_pace = 5 us,
        /// Time for which a core that Linux refused to a program is remembered.
        refusal = 10_000 ms,
        /// Time between two warnings about refused cores: programs come and go at will.
        warning = 1_000 ms,
        /// Time of rest that services owe at most: after 10 ms in real time they rest.
        rest = 1 ms,
    }
}

/// Times that are configured, or the policy's, in cycles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    /// Between two ticks of the policy.
    pub(super) policy: Cycles,
    pub(super) grace: Cycles,
    pub(super) start_deadline: Cycles,
    /// For which an acknowledgment that no thread waits for is no reason to lend a core.
    pub(super) ack_hold: Cycles,
}

/// Which other programs of the machine are on its cores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Beside {
    #[default]
    Nothing,
    /// Only batch jobs that Linux runs.
    BatchJobs,
    /// Programs that compete for them.
    Competitors,
}

/// Which ranks Linux lets the IOKernel give.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ranks {
    /// Kthreads may be put behind ordinary threads and back.
    pub(crate) may_lower: bool,
    /// They may not be put back: best-effort kthreads stay behind.
    pub(crate) for_good: bool,
    /// Services may have real-time rank.
    pub(crate) real_time: bool,
}

/// Where a core is in the life of a grant. See the module documentation.
#[derive(Debug, Clone, Copy)]
pub(super) enum Phase {
    Free,
    /// `promised`: the kthread that has ceded the core wakes this one. `late`: the one that this
    /// one has waited for, because it was signalled or had not started, and since when.
    Starting {
        kthread: KthreadId,
        kind: HandoffKind,
        decided: Cycles,
        woken: Cycles,
        promised: bool,
        late: Option<(KthreadId, Cycles)>,
    },
    Running {
        kthread: KthreadId,
        idle: bool,
    },
    /// `signalled`: when the preempt signal was sent. `asked`: it was asked to wake the next owner.
    Ceding {
        from: KthreadId,
        to: Option<KthreadId>,
        kind: HandoffKind,
        decided: Cycles,
        signalled: Option<Cycles>,
        asked: bool,
    },
}

impl Phase {
    /// Returns the kthread that holds the core.
    pub(super) fn holder(self) -> Option<KthreadId> {
        match self {
            Self::Free => None,
            Self::Starting { kthread, .. } | Self::Running { kthread, .. } => Some(kthread),
            Self::Ceding { from, .. } => Some(from),
        }
    }

    /// Returns the phase of a core that `from` was asked to give up for no other kthread.
    pub(super) fn leaving(from: KthreadId, now: Cycles) -> Self {
        let kind = HandoffKind::Polling;
        Self::Ceding { from, to: None, kind, decided: now, signalled: None, asked: false }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct CoreSlot {
    pub(super) id: CoreId,
    pub(super) phase: Phase,
    /// Linux does not let the IOKernel use it at present.
    pub(super) absent: bool,
    /// When its present owner got it, or the last one gave it up. The decision is older by the time
    /// that the previous owner took to cede.
    pub(super) since: Cycles,
    /// Time up to which the account has an entry.
    pub(super) entered: Cycles,
    /// Rest that is owed for real time.
    pub(super) rest: Account,
    /// The kthread that rests.
    pub(super) resting: Option<KthreadId>,
    /// The kthread that has ceded it to the present owner.
    pub(super) last: Option<KthreadId>,
    /// The turn in progress, while its owner runs.
    pub(super) watch: TurnWatch,
    /// Decisions about its idle holders; see [`Bounds::idle_pace`].
    pub(super) idles: Account,
}

/// A kthread that is lent nothing for now; see [`super::withdraw`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Withdrawn {
    pub(super) kthread: KthreadId,
    pub(super) not_before: Cycles,
    /// Since when it has been seen running in the tenancy that was taken back.
    pub(super) runs_since: Option<Cycles>,
    /// Set while it has not parked, and until it has paid; not once it was moved.
    pub(super) stay: Option<Stay>,
    pub(super) step: Escalation,
}

/// The account of a withdrawn kthread on the core that it lost, since the last look at which no
/// service had that core.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stay {
    /// Time of the last look at it.
    pub(super) looked: Cycles,
    /// Time for which services had the core.
    pub(super) beside: Cycles,
    /// Part of that time in which the service had not started.
    pub(super) waited: Cycles,
    /// Linux was asked for the processor time of the kthread's thread, when a service had started.
    pub(super) asked: bool,
    /// What Linux said, in nanoseconds.
    pub(super) ran_ns: Option<u64>,
    /// Since when its word says that it has parked.
    pub(super) parked: Option<Cycles>,
    /// What its tenant has been charged for.
    pub(super) charged: Cycles,
    /// It pays when `beside` has grown to this.
    pub(super) next_payment: Cycles,
}

impl Stay {
    pub(super) fn at(now: Cycles) -> Self {
        Self { looked: now, ..Self::default() }
    }
}

/// What was done about a withdrawn kthread that runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escalation {
    None,
    Signalled,
    /// It was moved to unmanaged cores.
    Moved,
}
