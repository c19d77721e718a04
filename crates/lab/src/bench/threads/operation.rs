//! The operations that are measured, the number of cores of each, and the papers' figures.
//!
//! The names are the words of the line protocol, the rows of the table and the keys of the JSON
//! document.

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

/// Makes the operations of a row each: its name in the protocol, the table and the document, the
/// cores that it runs on, and its fewest repetitions, which are whole batches, or enough samples
/// for a median.
macro_rules! operations {
    (
        $($(#[$doc:meta])+ $op:ident = $name:literal, $cores:ident, $least:expr;)+
        Others:
        $($(#[$other_doc:meta])+ $other:ident $(($crowd:ident: $of:ty))? = $other_name:expr, $other_cores:ident, $other_least:expr;)+
    ) => {
        /// A timed operation of a system of threads.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Operation {
            $($(#[$doc])+ $op,)+
            $($(#[$other_doc])+ $other $(($of))?,)+
        }

        impl Operation {
            /// All operations that are measured in rounds, in the order of the table.
            pub const ROUNDS: [Self; 22] = [$(Self::$op),+];

            fn row(self) -> (&'static str, Cores, u64) {
                match self {
                    $(Self::$op => ($name, Cores::$cores, $least),)+
                    $(Self::$other $(($crowd))? => ($other_name, Cores::$other_cores, $other_least),)+
                }
            }
        }
    };
}

operations! {
    /// A cache line from one core to another, one way.
    Line = "line_one_way", Two, 64;
    /// Two compare-and-swaps: the cost of a lock and its release.
    CasPair = "cas_pair", One, 64;
    /// Reading the time-stamp counter.
    Rdtsc = "rdtsc", One, 64;
    /// Lock and unlock an uncontended mutex.
    Mutex = "mutex", One, 64;
    /// Two threads yield to each other: one switch.
    Yield = "yield", One, 64;
    /// Two threads pass a turn with a condition variable: one hop.
    Condvar = "condvar", One, 64;
    /// Send a message and receive it, on one thread.
    Channel = "channel", One, 64;
    /// Two threads pass a message with two channels: one hop.
    ChannelHop = "channel_hop", One, 64;
    /// As `Channel`, with a channel that may have many receivers.
    ChannelMany = "channel_many", One, 64;
    /// As `Channel`, receiving from the one of two channels that has a message.
    Select = "select", One, 64;
    /// Read-lock and unlock a reader-writer lock without writers.
    RwlockRead = "rwlock_read", One, 64;
    /// Write-lock and unlock such a lock without other threads.
    RwlockWrite = "rwlock_write", One, 64;
    /// Read a value that is replaced by read-copy-update.
    RcuRead = "rcu_read", One, 64;
    /// Replace such a value without readers.
    RcuReplace = "rcu_replace", One, 64;
    /// Start a thread and join it.
    SpawnJoin = "spawn_join", One, 64;
    /// Start 1000 threads, then join them: per thread.
    FanOut = "fan_out", One, FAN;
    /// Yield when no other thread is runnable.
    NullYield = "null_yield", One, 64;
    /// From the last instruction of one thread to the first of the next on the same core.
    ExitTurnaround = "exit_turnaround", One, 2 * BATCH as u64;
    /// From before the call that starts a thread to its first instruction on another core.
    CreateRemote = "create_remote", Two, 64;
    /// From before the notification of a waiting thread to its first instruction on another core.
    NotifyRemote = "notify_remote", Two, 64;
    /// From before the unparking of a parked thread to its first instruction on another core.
    UnparkRemote = "unpark_remote", Two, 64;
    /// Three threads for each core, each of which starts its successor and ends: per thread.
    Throughput = "throughput", Scale, 1024;

    Others:
    /// As `UnparkRemote`, while as many other threads are parked as the crowd of this index in
    /// [`CROWDS`] has.
    UnparkAmong(crowd: u8) = CROWDS[usize::from(crowd)].1, Two, 64;
    /// One thread starts all others, each of which computes for [`CHILD_NS`]: per thread.
    Dispatch = "dispatch", Scale, 1024;
    /// As `Dispatch`, each with the less loaded of two kthreads.
    DispatchPlaced = "dispatch_placed", Scale, 1024;
    /// Start threads that all wait; then they end, and their stacks stay.
    Idle = "idle", One, 64;
}

impl Operation {
    /// Returns its name in the protocol, the table and the document.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// Returns the cores that it runs on.
    pub fn cores(self) -> Cores {
        self.row().1
    }

    /// Returns its fewest repetitions.
    pub fn least(self) -> u64 {
        self.row().2
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

/// Makes a paper's figures: an operation, and the nanoseconds of each system.
macro_rules! published {
    ($($op:ident: $($system:tt $ns:literal),+;)+) => {
        &[$($(Published { op: Operation::$op, system: $system, ns: $ns }),+),+]
    };
}

/// Shenango (NSDI 2019), table 2: one core.
pub const SHENANGO: &[Published] = published! {
    Mutex: "shenango" 37.0, "arachne" 55.0, "std" 30.0, "go" 24.0;
    Yield: "shenango" 52.0, "arachne" 79.0, "std" 593.0, "go" 109.0;
    Condvar: "shenango" 100.0, "arachne" 203.0, "std" 1900.0, "go" 281.0;
    SpawnJoin: "shenango" 148.0, "arachne" 595.0, "std" 12996.0, "go" 462.0;
};

/// Arachne with a ready queue for each core in place of its scan of contexts.
pub const READY_QUEUE: &str = "arachne-rq";

/// Arachne (OSDI 2018), table 2, without hyperthreads: across cores but for the yields and the
/// turnaround.
pub const ARACHNE: &[Published] = published! {
    Yield: "arachne" 83.0, "uthreads" 79.0, READY_QUEUE 137.0;
    NullYield: "arachne" 14.0, "uthreads" 6.0, READY_QUEUE 13.0;
    ExitTurnaround: "arachne" 328.0, READY_QUEUE 408.0;
    CreateRemote: "arachne" 275.0, "std" 13329.0, "go" 444.0, "uthreads" 6132.0, READY_QUEUE 524.0;
    NotifyRemote: "arachne" 251.0, "std" 4962.0, "go" 483.0, "uthreads" 4976.0, READY_QUEUE 459.0;
    UnparkRemote: "arachne" 233.0;
};

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
        for paper in [SHENANGO, ARACHNE] {
            for (i, a) in paper.iter().enumerate() {
                let twice = paper[..i].iter().any(|b| (a.op, a.system) == (b.op, b.system));
                assert!(!twice, "{a:?} is there twice");
            }
        }
    }
}
