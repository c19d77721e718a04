//! Why a registration is refused, in words for the user of the program.

use rustix::io::Errno;
use std::net::Ipv4Addr;
use tailwater_sched::RuntimeId;
use tailwater_shm::Version;
use tailwater_shm::control::{ControlError, MAX_NAME};
use tailwater_shm::layout::SpecError;
use tailwater_shm::memory::MemoryError;
use tailwater_wire::MacAddr;

use super::MACHINE_KTHREADS;
use super::instances::NotBeside;
use crate::authority::Denial;

/// Why a registration was refused. The runtime shows the text to its user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The user may not register this program.
    #[error(transparent)]
    Denied(#[from] Denial),
    /// The user's clients have taken too much of the control thread's time.
    #[error(
        "clients of user {uid} have taken too much of the IOKernel's time with too many connections, registrations or \
         questions within a short time; another one is permitted in {ms} ms"
    )]
    TooOften {
        /// The user.
        uid: u32,
        /// How long that takes.
        ms: u64,
    },
    /// Users whom a grant does not name have taken too much of it.
    #[error(
        "users whom [[grant]] number {grant} covers by a group, or as all users, have taken too much of the IOKernel's \
         time with too many connections, registrations or questions within a short time; another one of user {uid} is \
         permitted in {ms} ms; those of users that a grant names do not count here"
    )]
    GrantTooOften {
        /// The number of the grant in the configuration, from 1.
        grant: usize,
        /// The user who asks.
        uid: u32,
        /// How long that takes.
        ms: u64,
    },
    /// Different protocol versions.
    #[error(
        "the runtime speaks version {} of the protocol, this IOKernel version {}: {}",
        Version(*theirs), Version::OWN, remedy(Version(*theirs))
    )]
    Version {
        /// The runtime's version.
        theirs: u32,
    },
    /// The name has other characters than printable ASCII, or is too short or too long.
    #[error(
        "the name \"{}\" is not 1 to {MAX_NAME} printable ASCII characters, the first and the last of them no blanks",
        .0.escape_default()
    )]
    NameInvalid(String),
    /// The name is taken.
    #[error("a runtime named {0:?} is registered already; stop it or choose another name")]
    NameTaken(String),
    /// The program of this name runs, and may not be replaced by this one.
    #[error("a runtime named {name:?} is registered already, and this one cannot take its place: {why}")]
    NotBeside {
        /// The name.
        name: String,
        /// Why.
        why: NotBeside,
    },
    /// The name is kept for a program of another user.
    #[error(
        "the name {0:?} is kept for a program of the IOKernel that ran before, for half a minute at most; \
         choose another name, or wait"
    )]
    NameKept(String),
    /// The name belongs to a program that has not come back.
    #[error(
        "the name {name:?} belongs to a program of user {uid} that was registered at the IOKernel before, lives, and has \
         not come back yet; choose another name, or end that program"
    )]
    NameOwed {
        /// The name.
        name: String,
        /// The program's user.
        uid: u32,
    },
    /// Too few or too many kthreads for this IOKernel.
    #[error("{asked} kthreads requested; this IOKernel accepts 1 to {most} (max-kthreads)")]
    Kthreads {
        /// What was requested.
        asked: u16,
        /// The limit.
        most: u16,
    },
    /// More guaranteed cores than kthreads to run on them.
    #[error(
        "{guaranteed} guaranteed cores requested with {kthreads} kthreads; at most one core per kthread can be used"
    )]
    GuaranteeOverKthreads {
        /// Guaranteed cores requested.
        guaranteed: u16,
        /// Kthreads.
        kthreads: u16,
    },
    /// The guarantees would exceed the managed cores.
    #[error(
        "{asked} guaranteed cores requested; {taken} of {managed} managed cores are guaranteed to others already. \
         Request fewer, or manage more cores"
    )]
    GuaranteeOversubscribed {
        /// What was requested.
        asked: u16,
        /// Guaranteed to others.
        taken: u32,
        /// Managed in all.
        managed: u32,
    },
    /// A ring size that is impossible or over this IOKernel's limit.
    #[error("rings of {asked} bytes requested; this IOKernel accepts up to {most} (max-ring-bytes)")]
    RingBytes {
        /// What was requested.
        asked: u32,
        /// The limit.
        most: u32,
    },
    /// The shared memory of all programs, or of one user's, would exceed its limit.
    #[error(
        "{asked} bytes of shared memory requested; {whose} have {held} of at most {most}{holders} (max-region-bytes). \
         Use fewer kthreads or smaller rings, stop a program, or raise the limit"
    )]
    RegionBytes {
        /// What was requested.
        asked: u64,
        /// Whose limit it is.
        whose: Holders,
        /// What these have.
        held: u64,
        /// What they may have.
        most: u64,
        /// The programs with the most of it, in words.
        holders: String,
    },
    /// The region's sizes are invalid.
    #[error(transparent)]
    Shape(#[from] SpecError),
    /// The address is not a host address of the network.
    #[error("address {ip} is not a host address of {network}/{prefix_len}; choose one inside, or none")]
    AddressOutside {
        /// What was requested.
        ip: Ipv4Addr,
        /// The network.
        network: Ipv4Addr,
        /// Its prefix.
        prefix_len: u8,
    },
    /// The address is taken.
    #[error("address {ip} belongs to {owner}; choose another, or none")]
    AddressTaken {
        /// The address.
        ip: Ipv4Addr,
        /// Its owner.
        owner: String,
    },
    /// The MAC address that the address has is taken.
    #[error(
        "{ip} has MAC address {mac}, which belongs to {owner}; change `macs` in the IOKernel's configuration"
    )]
    MacTaken {
        /// The IPv4 address.
        ip: Ipv4Addr,
        /// The address.
        mac: MacAddr,
        /// Its owner.
        owner: String,
    },
    /// The pool has no free address.
    #[error(
        "all addresses of the pool are taken; choose an address (--ip), use a larger network (prefix-len) or a larger \
         pool (pool-start), or stop a runtime"
    )]
    PoolExhausted,
    /// A port that it cannot have.
    #[error("{0}")]
    Ports(String),
    /// The limit of runtimes is reached.
    #[error("{0} runtimes are registered, the most this IOKernel accepts (max-runtimes)")]
    TooManyRuntimes(u32),
    /// The kthreads of all runtimes would be too many.
    #[error(
        "{asked} kthreads are needed and {left} of the machine's {MACHINE_KTHREADS} are left; \
         stop a runtime or use fewer kthreads"
    )]
    NoKthreads {
        /// Needed.
        asked: u16,
        /// Left.
        left: usize,
    },
    /// The number of threads differs from the number of kthreads.
    #[error("{found} thread ids sent for {expected} kthreads")]
    ThreadCount {
        /// What was sent.
        found: usize,
        /// What was registered.
        expected: u16,
    },
    /// The thread does not belong to the process.
    #[error(
        "thread {tid} is not a thread of process {pid}, by the numbers of that process's PID namespace; send those that \
         gettid(2) returns"
    )]
    ForeignThread {
        /// The thread.
        tid: i32,
        /// The process at the other end of the socket.
        pid: i32,
    },
    /// Two threads had the number while those of the process were read.
    #[error(
        "two threads of process {pid} had the number {tid} in its PID namespace: one ended and another began while the \
         IOKernel looked; register again"
    )]
    AmbiguousThread {
        /// The number.
        tid: i32,
        /// The process.
        pid: i32,
    },
    /// The process has more threads than are looked at.
    #[error(
        "process {pid}, which is in a PID namespace of its own, has more than {most} threads, so that its kthreads are not \
         looked for; register before the others are started"
    )]
    TooManyThreads {
        /// The process.
        pid: i32,
        /// The limit.
        most: usize,
    },
    /// The process that connected is gone; another one may have its number.
    #[error("process {pid} ended before it had sent its threads")]
    ProcessGone {
        /// The process.
        pid: i32,
    },
    /// The process has changed its user, by a system call or by a program that sets it.
    #[error(
        "process {pid} connected as user {connected} and does not run as that user; connect as the final user"
    )]
    UserChanged {
        /// The process.
        pid: i32,
        /// Its user when it connected.
        connected: u32,
    },
    /// The thread is a kthread already.
    #[error("thread {0} is a kthread already; every kthread needs a thread of its own")]
    ThreadTaken(i32),
    /// The IOKernel may not control threads of another user.
    #[error(
        "the runtime runs as user {theirs}, this IOKernel as user {ours}, which may not bind its threads; \
         run both as the same user, or the IOKernel as root with CAP_SYS_NICE and CAP_KILL"
    )]
    OtherUser {
        /// User of the runtime.
        theirs: u32,
        /// User of the IOKernel.
        ours: u32,
    },
    /// The process has capabilities that the IOKernel lacks.
    #[error(
        "Linux does not let this IOKernel bind threads of process {pid}, which has capabilities that the IOKernel lacks, \
         so it would never run; give the IOKernel CAP_SYS_NICE, or take the capabilities from the process"
    )]
    MayNotBind {
        /// The process.
        pid: i32,
    },
    /// Too many open connections, of the client's user or of all.
    #[error("too many connections wait at the control socket; close some, or wait 10 s for their end")]
    TooManyConnections,
    /// The IOKernel may open no more descriptors.
    #[error(
        "the IOKernel has no descriptors left; stop a program, or start it with a higher limit (ulimit -n)"
    )]
    NoDescriptors,
    /// The kernel does not name the connected process.
    #[error("the process at the other end of the connection is unknown: {0}")]
    Peer(Errno),
    /// The connected process has no number here.
    #[error(
        "the program is in a PID namespace that the IOKernel does not see, so it cannot move its threads; start both in \
         one PID namespace (docker --pid=container:NAME, Kubernetes shareProcessNamespace: true, or the IOKernel in the \
         same container)"
    )]
    Unseen,
    /// There is no memory for the runtime.
    #[error("the IOKernel could not make the memory: {0}")]
    Memory(#[from] MemoryError),
    /// There is no thread to make the memory of the runtime.
    #[error("the IOKernel could not start a thread: {0}; raise its limit of processes (ulimit -u)")]
    Thread(String),
    /// There is no event descriptor for the runtime.
    #[error("the IOKernel could not make the doorbell: {0}; check its limit of open files (ulimit -n)")]
    Doorbell(Errno),
    /// The welcome was not sent.
    #[error("the IOKernel could not send the welcome: {0}")]
    Welcome(#[from] ControlError),
    /// The runtime has no place any more.
    #[error("{0} is not registered")]
    NotRegistered(RuntimeId),
}

/// Those whose shared memory is limited together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holders {
    /// All programs.
    All,
    /// Programs of users other than root and the IOKernel's own.
    Others,
    /// Programs of this user, and of its subordinate ids.
    User(u32),
}

impl core::fmt::Display for Holders {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::All => f.write_str("all programs"),
            Self::Others => f.write_str("programs of users without rights"),
            Self::User(uid) => write!(f, "programs of user {uid}, and of its subordinate ids,"),
        }
    }
}

/// Returns what to do about a version that this IOKernel does not serve.
fn remedy(theirs: Version) -> &'static str {
    if theirs.major() == Version::OWN.major() {
        "start the newer IOKernel, with --takeover in the place of this one"
    } else {
        "rebuild one of them"
    }
}
