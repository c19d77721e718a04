//! The operations that are measured, the number of cores of each, and the papers' figures.
//!
//! The names are the words of the line protocol, the rows of the table and the keys of the JSON
//! document.

/// A timed operation of a system of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Lock and unlock an uncontended mutex.
    Mutex,
    /// Two threads yield to each other: one switch.
    Yield,
    /// Two threads pass a turn with a condition variable: one hop.
    Condvar,
    /// Send a message and receive it, on one thread.
    Channel,
    /// Two threads pass a message with two channels: one hop.
    ChannelHop,
    /// As `Channel`, with a channel that may have many receivers.
    ChannelMany,
    /// As `Channel`, receiving from the one of two channels that has a message.
    Select,
    /// Read-lock and unlock a reader-writer lock without writers.
    RwlockRead,
    /// Write-lock and unlock such a lock without other threads.
    RwlockWrite,
    /// Read a value that is replaced by read-copy-update.
    RcuRead,
    /// Replace such a value without readers.
    RcuReplace,
    /// Start a thread and join it.
    SpawnJoin,
    /// Start 1000 threads, then join them: per thread.
    FanOut,
    /// Yield when no other thread is runnable.
    NullYield,
    /// From the last instruction of one thread to the first of the next on the same core.
    ExitTurnaround,
    /// From before the call that starts a thread to its first instruction on another core.
    CreateRemote,
    /// From before the notification of a waiting thread to its first instruction on another core.
    NotifyRemote,
    /// From before the unparking of a parked thread to its first instruction on another core.
    UnparkRemote,
    /// As `UnparkRemote`, while as many other threads are parked as the crowd of this index in
    /// [`CROWDS`] has.
    UnparkAmong(u8),
    /// Three threads for each core, each of which starts its successor and ends: per thread.
    Throughput,
    /// One thread starts all others, each of which computes for [`CHILD_NS`]: per thread.
    Dispatch,
    /// As `Dispatch`, each with the less loaded of two kthreads.
    DispatchPlaced,
    /// Start threads that all wait; then they end, and their stacks stay.
    Idle,
    /// A cache line from one core to another, one way.
    Line,
    /// Two compare-and-swaps: the cost of a lock and its release.
    CasPair,
    /// Reading the time-stamp counter.
    Rdtsc,
}

/// Where an operation runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cores {
    /// On one core.
    One,
    /// On two cores.
    Two,
    /// On one core, two, four and so on, up to those of the machine.
    Scale,
}

impl Operation {
    /// All operations that are measured in rounds, in the order of the table.
    pub const ROUNDS: [Self; 22] = [
        Self::Line,
        Self::CasPair,
        Self::Rdtsc,
        Self::Mutex,
        Self::Yield,
        Self::Condvar,
        Self::Channel,
        Self::ChannelHop,
        Self::ChannelMany,
        Self::Select,
        Self::RwlockRead,
        Self::RwlockWrite,
        Self::RcuRead,
        Self::RcuReplace,
        Self::SpawnJoin,
        Self::FanOut,
        Self::NullYield,
        Self::ExitTurnaround,
        Self::CreateRemote,
        Self::NotifyRemote,
        Self::UnparkRemote,
        Self::Throughput,
    ];

    /// Returns its name in the protocol, the table and the document.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Yield => "yield",
            Self::Condvar => "condvar",
            Self::Channel => "channel",
            Self::ChannelHop => "channel_hop",
            Self::ChannelMany => "channel_many",
            Self::Select => "select",
            Self::RwlockRead => "rwlock_read",
            Self::RwlockWrite => "rwlock_write",
            Self::RcuRead => "rcu_read",
            Self::RcuReplace => "rcu_replace",
            Self::SpawnJoin => "spawn_join",
            Self::FanOut => "fan_out",
            Self::NullYield => "null_yield",
            Self::ExitTurnaround => "exit_turnaround",
            Self::CreateRemote => "create_remote",
            Self::NotifyRemote => "notify_remote",
            Self::UnparkRemote => "unpark_remote",
            Self::UnparkAmong(crowd) => CROWDS[usize::from(crowd)].1,
            Self::Throughput => "throughput",
            Self::Dispatch => "dispatch",
            Self::DispatchPlaced => "dispatch_placed",
            Self::Idle => "idle",
            Self::Line => "line_one_way",
            Self::CasPair => "cas_pair",
            Self::Rdtsc => "rdtsc",
        }
    }

    /// Returns the cores that it runs on.
    pub fn cores(self) -> Cores {
        match self {
            Self::CreateRemote
            | Self::NotifyRemote
            | Self::UnparkRemote
            | Self::UnparkAmong(_)
            | Self::Line => Cores::Two,
            Self::Throughput | Self::Dispatch | Self::DispatchPlaced => Cores::Scale,
            _ => Cores::One,
        }
    }

    /// Returns whether its figure is the median of many samples rather than the mean over all
    /// repetitions.
    pub fn is_sampled(self) -> bool {
        matches!(self.cores(), Cores::Two) || self == Self::ExitTurnaround
    }

    /// Returns the operations of Arachne's figure 9: a signal among ever more parked threads.
    pub fn crowded() -> impl Iterator<Item = Self> {
        (0..CROWDS.len() as u8).map(Self::UnparkAmong)
    }

    /// Fewest repetitions: whole batches, or enough samples for a median.
    pub fn least(self) -> u64 {
        match self {
            Self::FanOut => FAN,
            Self::Throughput | Self::Dispatch | Self::DispatchPlaced => 1024,
            Self::ExitTurnaround => 2 * BATCH as u64,
            _ => 64,
        }
    }
}

impl std::str::FromStr for Operation {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let others = [Self::Idle, Self::Dispatch, Self::DispatchPlaced];
        let mut all = Self::ROUNDS.into_iter().chain(others).chain(Self::crowded());
        all.find(|op| op.name() == text).ok_or(())
    }
}

/// Numbers of other threads that are parked during `UnparkAmong`, ascending, with its name. A core
/// of Arachne has at most 56.
pub const CROWDS: [(u64, &str); 7] = [
    (0, "unpark_among_0"),
    (8, "unpark_among_8"),
    (16, "unpark_among_16"),
    (32, "unpark_among_32"),
    (48, "unpark_among_48"),
    (56, "unpark_among_56"),
    (1000, "unpark_among_1000"),
];
/// Threads of one fan-out.
pub const FAN: u64 = 1000;
/// Work of a thread of `Dispatch`.
pub const CHILD_NS: u64 = 1000;
/// Threads of a batch of `Dispatch`, for each core: as many as Arachne has room for.
pub const LIVE: u64 = 56;
/// Consecutive threads whose turnarounds are timed together.
pub const BATCH: usize = 64;

/// A figure of a paper.
#[derive(Debug, Clone, Copy)]
pub struct Published {
    pub op: Operation,
    /// The system as in the table's rows; a system that only the paper measured has another name.
    pub system: &'static str,
    /// Median nanoseconds on the paper's machine.
    pub ns: f64,
}

const fn published(op: Operation, system: &'static str, ns: f64) -> Published {
    Published { op, system, ns }
}

/// Shenango (NSDI 2019), table 2: one core.
pub const SHENANGO: [Published; 16] = [
    published(Operation::Mutex, "shenango", 37.0),
    published(Operation::Mutex, "arachne", 55.0),
    published(Operation::Mutex, "std", 30.0),
    published(Operation::Mutex, "go", 24.0),
    published(Operation::Yield, "shenango", 52.0),
    published(Operation::Yield, "arachne", 79.0),
    published(Operation::Yield, "std", 593.0),
    published(Operation::Yield, "go", 109.0),
    published(Operation::Condvar, "shenango", 100.0),
    published(Operation::Condvar, "arachne", 203.0),
    published(Operation::Condvar, "std", 1900.0),
    published(Operation::Condvar, "go", 281.0),
    published(Operation::SpawnJoin, "shenango", 148.0),
    published(Operation::SpawnJoin, "arachne", 595.0),
    published(Operation::SpawnJoin, "std", 12996.0),
    published(Operation::SpawnJoin, "go", 462.0),
];

/// Arachne with a ready queue for each core in place of its scan of contexts.
pub const READY_QUEUE: &str = "arachne-rq";

/// Arachne (OSDI 2018), table 2, without hyperthreads: across cores but for the yields and the
/// turnaround.
pub const ARACHNE: [Published; 19] = [
    published(Operation::Yield, "arachne", 83.0),
    published(Operation::Yield, "uthreads", 79.0),
    published(Operation::NullYield, "arachne", 14.0),
    published(Operation::NullYield, "uthreads", 6.0),
    published(Operation::ExitTurnaround, "arachne", 328.0),
    published(Operation::CreateRemote, "arachne", 275.0),
    published(Operation::CreateRemote, "std", 13329.0),
    published(Operation::CreateRemote, "go", 444.0),
    published(Operation::CreateRemote, "uthreads", 6132.0),
    published(Operation::NotifyRemote, "arachne", 251.0),
    published(Operation::NotifyRemote, "std", 4962.0),
    published(Operation::NotifyRemote, "go", 483.0),
    published(Operation::NotifyRemote, "uthreads", 4976.0),
    published(Operation::UnparkRemote, "arachne", 233.0),
    published(Operation::Yield, READY_QUEUE, 137.0),
    published(Operation::NullYield, READY_QUEUE, 13.0),
    published(Operation::ExitTurnaround, READY_QUEUE, 408.0),
    published(Operation::CreateRemote, READY_QUEUE, 524.0),
    published(Operation::NotifyRemote, READY_QUEUE, 459.0),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_found_by_its_name() {
        for op in Operation::ROUNDS.into_iter().chain([Operation::Idle]) {
            assert_eq!(op.name().parse(), Ok(op));
        }
        assert_eq!("mutexes".parse::<Operation>(), Err(()));
    }

    #[test]
    fn no_paper_gives_two_figures_for_one_row() {
        for paper in [&SHENANGO[..], &ARACHNE[..]] {
            for (i, a) in paper.iter().enumerate() {
                let twice = paper[..i].iter().any(|b| (a.op, a.system) == (b.op, b.system));
                assert!(!twice, "{a:?} is there twice");
            }
        }
    }
}
