//! The machine that the IOKernel runs on: cores it may use, their topology, and the priority it can
//! have.
//!
//! Owns the queries and changes at start (affinity, sysfs, nice, autogroup) and their undoing at
//! the end; and the processor time of a thread. Nothing else here runs while frames are switched.

use rustix::process::{Resource, Rlimit, getpriority_process, getrlimit, setpriority_process, setrlimit};
use rustix::thread::{
    CapabilitySet, CpuSet, capabilities, sched_getaffinity, sched_setaffinity, set_current_timer_slack,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;
use tailwater_host::{SessionWeight, cpu_set, groups_sessions, parse_list};
use tailwater_sched::CoreId;
use tailwater_sched::topology::{Core, Topology, TopologyError};
use tailwater_shm::priority::{self, HIGHEST, Rank};

use crate::config::{Config, PolicyName, Priority};

/// Returns how many bytes of memory the machine has; [`u64::MAX`] if that is unknown.
pub(crate) fn memory_bytes() -> u64 {
    // proc_meminfo(5): "MemTotal:       16316412 kB".
    let kib = |text: &str| text.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok();
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    text.lines().find_map(kib).map_or(u64::MAX, |kib| kib * 1024)
}

/// Returns the processor time of the calling thread. Other threads may run for as long as they like
/// when they are told of something, on a core that they share.
pub(crate) fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// The machine or its cores cannot be used as configured.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// The process may use fewer than two cores.
    #[error(
        "this process may use {0} core; the IOKernel needs one for itself and at least one to lend. \
         Use a machine with 2 or more, or widen the affinity (taskset, cpuset)"
    )]
    TooFew(usize),
    /// A configured core is not among the cores that the process may use.
    #[error("{key} = {core}: not among the cores this process may use: {allowed}")]
    NotAllowed {
        /// The core.
        core: u16,
        /// The configuration key that names it.
        key: &'static str,
        /// The cores it may use.
        allowed: String,
    },
    /// The IOKernel's own core cannot be lent.
    #[error("core {0} is the IOKernel's own and cannot be managed; take it out of managed-cores or set core")]
    OwnCore(u16),
    /// The list of managed cores is empty.
    #[error("managed-cores is empty; name at least one core to lend")]
    NoneManaged,
    /// The machine has no such NUMA node.
    #[error(
        "this machine has no NUMA node {node}; its nodes: {nodes}: choose one of them, or leave node out"
    )]
    NoNode {
        /// The node asked for.
        node: u16,
        /// Those that there are, as Linux lists them.
        nodes: String,
    },
    /// The kernel's error on reading the affinity.
    #[error("cannot read the affinity of this process: {0}")]
    Affinity(rustix::io::Errno),
    /// `/proc` is not mounted.
    #[error(
        "/proc is not mounted, in which the threads of programs are identified: mount -t proc proc /proc"
    )]
    NoProc,
    /// sysfs describes an impossible machine, or a core is listed twice.
    #[error("cores of this machine: {0}")]
    Topology(#[from] TopologyError),
}

/// The use of each core.
#[derive(Debug, Clone)]
pub struct Cores {
    /// The polling thread's core.
    pub iokernel: CoreId,
    /// The cores lent to runtimes.
    pub managed: Topology,
    /// All cores that this process might use when it started; restored to threads that leave
    /// Tailwater.
    pub allowed: Vec<CoreId>,
}

impl Cores {
    /// Finds and checks the cores `config` asks for.
    ///
    /// # Errors
    /// [`CoreError`] with the core and what to do.
    pub fn detect(config: &Config) -> Result<Self, CoreError> {
        if !fs::exists("/proc/self/task").unwrap_or(false) {
            return Err(CoreError::NoProc);
        }
        let set = sched_getaffinity(None).map_err(CoreError::Affinity)?;
        let mut allowed: Vec<CoreId> =
            (0..CpuSet::MAX_CPU as u16).filter(|&c| set.is_set(c.into())).map(CoreId).collect();
        if let Some(node) = config.node {
            let own = cores_of_node(Path::new("/sys/devices/system/node"), node)?;
            allowed.retain(|core| own.contains(core));
        }
        Self::choose(config, allowed, sysfs_core)
    }

    /// Chooses the cores, with the machine's description as an argument.
    fn choose(
        config: &Config,
        allowed: Vec<CoreId>,
        describe: impl Fn(CoreId) -> Core,
    ) -> Result<Self, CoreError> {
        if allowed.len() < 2 {
            return Err(CoreError::TooFew(allowed.len()));
        }
        let check = |core: u16, key| {
            allowed.contains(&CoreId(core)).then_some(CoreId(core)).ok_or_else(|| CoreError::NotAllowed {
                core,
                key,
                allowed: list(&allowed),
            })
        };
        let iokernel = match config.iokernel_core {
            Some(core) => check(core, "core")?,
            None => {
                let managed =
                    |core: &&CoreId| config.managed_cores.as_ref().is_some_and(|m| m.contains(&core.0));
                *allowed.iter().find(|core| !managed(core)).ok_or(CoreError::OwnCore(allowed[0].0))?
            }
        };
        let managed: Vec<CoreId> = match &config.managed_cores {
            Some(cores) => {
                cores.iter().map(|&core| check(core, "managed-cores")).collect::<Result<_, _>>()?
            }
            None => default_managed(config, &allowed, &describe(iokernel)),
        };
        if managed.is_empty() {
            return Err(CoreError::NoneManaged);
        }
        if managed.contains(&iokernel) {
            return Err(CoreError::OwnCore(iokernel.0));
        }
        let mut described: Vec<Core> = managed.iter().map(|&core| describe(core)).collect();
        for core in &mut described {
            core.siblings.retain(|sibling| managed.contains(sibling));
        }
        Ok(Self { iokernel, managed: Topology::new(described)?, allowed })
    }

    /// Returns the cores left to all other threads: evicted threads and the control thread run on
    /// them.
    pub(crate) fn unmanaged(&self) -> CpuSet {
        cpu_set(self.allowed.iter().filter(|&&core| self.managed.position(core).is_none()))
    }

    /// Returns all cores this process might use when it started.
    pub(crate) fn all(&self) -> CpuSet {
        cpu_set(&self.allowed)
    }

    /// Returns the numbers of the cores that the IOKernel uses: those that it lends, and its own.
    pub fn numbers(&self) -> impl Iterator<Item = u16> {
        self.managed_numbers().into_iter().chain([self.iokernel.0])
    }

    /// Returns the numbers of the managed cores.
    pub(crate) fn managed_numbers(&self) -> Vec<u16> {
        self.managed.cores().iter().map(|core| core.id.0).collect()
    }
}

/// Returns the cores that are lent if none are configured: all but the polling thread's. Under the
/// arbiter a program owns whole cores for long, so the other hyperthreads of the polling thread's
/// core, which run at half speed beside it, are lent only if there are no others.
fn default_managed(config: &Config, allowed: &[CoreId], polling: &Core) -> Vec<CoreId> {
    let others = || allowed.iter().copied().filter(|&core| core != polling.id);
    let apart: Vec<CoreId> = others().filter(|core| !polling.siblings.contains(core)).collect();
    if config.policy == PolicyName::Arbiter && !apart.is_empty() { apart } else { others().collect() }
}

/// Raises this process's limit of descriptors as far as the system permits. Each program takes
/// four, and each connection to the control socket one.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Cannot be refused: the new limit is no higher than the hard one.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Returns in words what programs beside Tailwater get of these cores if `share` percent of the
/// polled core are theirs.
#[must_use]
pub fn neighbours(polled: u16, managed: &[u16], share: u8) -> String {
    let managed: Vec<CoreId> = managed.iter().copied().map(CoreId).collect();
    let lent = list(&managed);
    match share {
        0 => format!(
            "what is left: of core {polled} while nothing needs polling, of managed cores {lent} while no Tailwater program has \
             work"
        ),
        _ if !may_rank() => format!(
            "core {polled} while nothing needs polling, else {share} % of it; managed cores {lent} before best-effort programs of \
             this user, in turns with all others (with CAP_SYS_NICE: before all best-effort programs, after services)"
        ),
        _ => format!(
            "core {polled} while nothing needs polling, else {share} % of it; managed cores {lent}, while they compete for them, \
             before best-effort programs and after services"
        ),
    }
}

/// Returns whether Linux lets this thread lower the rank of others and raise it again
/// (capabilities(7)). Linux refuses the way back from the lowest one in a user namespace, whatever
/// the capabilities there, so a thread tries it.
pub(crate) fn may_rank() -> bool {
    let there_and_back = || priority::set_rank(0, Rank::Behind) && priority::set_rank(0, Rank::Ordinary);
    let may_others = capabilities(None).is_ok_and(|held| held.effective.contains(CapabilitySet::SYS_NICE));
    may_others
        && thread::Builder::new().spawn(there_and_back).is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// Returns the machine's cores that are on-line; none where Linux does not say which.
pub fn online_cores() -> Vec<CoreId> {
    parse_list(&fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default())
}

/// Returns how many of the machine's cores are not among so many of the IOKernel.
pub(crate) fn cores_elsewhere(ours: usize) -> usize {
    online_cores().len().saturating_sub(ours)
}

fn list(cores: &[CoreId]) -> String {
    cores.iter().map(|core| core.0.to_string()).collect::<Vec<_>>().join(", ")
}

/// Returns the cores of a NUMA node. What this process and its kthreads use first is in memory of
/// the node on which they run (numa(7), the default policy), so cores are all that is chosen.
fn cores_of_node(nodes: &Path, node: u16) -> Result<Vec<CoreId>, CoreError> {
    let read = |file: &str| fs::read_to_string(nodes.join(file));
    read(&format!("node{node}/cpulist")).map(|list| parse_list(&list)).map_err(|_| CoreError::NoNode {
        node,
        nodes: read("online").map_or_else(|_| "none".to_owned(), |online| online.trim().to_owned()),
    })
}

/// Reads a core's description from sysfs; a core without one has no siblings.
fn sysfs_core(id: CoreId) -> Core {
    let read = |file: &str| {
        fs::read_to_string(format!("/sys/devices/system/cpu/cpu{}/topology/{file}", id.0)).unwrap_or_default()
    };
    let siblings = parse_list(&read("thread_siblings_list")).into_iter().filter(|&core| core != id).collect();
    // -1 if the hypervisor does not report it.
    let socket = read("physical_package_id").trim().parse::<u16>().unwrap_or(0);
    Core { id, socket, siblings }
}

/// Binding and priority of the polling thread, undone on drop.
#[derive(Debug)]
pub(crate) struct Pinned {
    before: CpuSet,
    nice_before: Option<i32>,
    /// Restored on drop.
    session: Option<SessionWeight>,
    /// What succeeded, for the statistics.
    pub(crate) report: Value,
}

impl Pinned {
    /// Binds the calling thread to the IOKernel's core and raises its priority as far as allowed.
    ///
    /// # Errors
    /// If the kernel refuses the core; a refused priority is only reported.
    pub(crate) fn this_thread(cores: &Cores, priority: Priority) -> Result<Self, CoreError> {
        let before = sched_getaffinity(None).map_err(CoreError::Affinity)?;
        sched_setaffinity(None, &cpu_set([&cores.iokernel])).map_err(CoreError::Affinity)?;
        // Timers of a sleeping IOKernel end on time instead of up to 50 us late (prctl(2),
        // PR_SET_TIMERSLACK).
        let _ = set_current_timer_slack(core::num::NonZeroU64::new(1));
        let mut pinned = Self { before, nice_before: None, session: None, report: Value::Null };
        let nice = if priority == Priority::None { "not requested".to_owned() } else { pinned.raise_nice() };
        let session =
            if priority == Priority::Session { pinned.raise_session() } else { "not requested".to_owned() };
        pinned.report = json!({ "thread": nice, "session": session, "autogroup": groups_sessions() });
        Ok(pinned)
    }

    /// On Linux "the process" of setpriority(2) is one thread; `None` is the calling one.
    fn raise_nice(&mut self) -> String {
        let before = getpriority_process(None).unwrap_or(0);
        match setpriority_process(None, HIGHEST) {
            Ok(()) => {
                self.nice_before = Some(before);
                format!("nice {HIGHEST}")
            }
            Err(e) => format!("nice stays {before} ({e}); allow it with CAP_SYS_NICE or `ulimit -e 40`"),
        }
    }

    fn raise_session(&mut self) -> String {
        match SessionWeight::open_and_set("/proc/self/autogroup", HIGHEST) {
            Ok(session) => {
                self.session = Some(session);
                format!("autogroup nice {HIGHEST}")
            }
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                format!("autogroup unchanged ({e}); needs CAP_SYS_NICE")
            }
            Err(e) => format!("autogroup unchanged ({e})"),
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // On the pinned thread itself; a change that cannot be undone was refused when it was made.
        if let Some(nice) = self.nice_before {
            let _ = setpriority_process(None, nice);
        }
        let _ = set_current_timer_slack(None);
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(id: CoreId) -> Core {
        Core { id, socket: 0, siblings: Vec::new() }
    }

    fn choose(config: &Config, allowed: &[u16]) -> Result<Cores, CoreError> {
        Cores::choose(config, allowed.iter().copied().map(CoreId).collect(), alone)
    }

    #[test]
    fn by_default_the_first_core_polls_and_the_rest_are_lent() {
        let cores = choose(&Config::default(), &[2, 3, 5]).unwrap();
        assert_eq!(cores.iokernel, CoreId(2));
        assert_eq!(cores.managed_numbers(), [3, 5]);
    }

    #[test]
    fn under_the_arbiter_the_polling_cores_hyperthread_is_lent_only_if_it_is_named_or_the_last() {
        let pair = |id: CoreId| Core { id, socket: 0, siblings: vec![CoreId(id.0 ^ 1)] };
        let choose = |config: &Config, cores: u16| {
            Cores::choose(config, (0..cores).map(CoreId).collect(), pair).unwrap().managed_numbers()
        };
        let arbiter = Config { policy: PolicyName::Arbiter, ..Config::default() };
        assert_eq!(choose(&arbiter, 4), [2, 3]);
        assert_eq!(choose(&arbiter, 2), [1]);
        assert_eq!(choose(&Config { managed_cores: Some(vec![1, 2]), ..arbiter }, 4), [1, 2]);
        assert_eq!(choose(&Config::default(), 4), [1, 2, 3]);
    }

    #[test]
    fn the_iokernel_keeps_out_of_the_cores_it_is_to_manage() {
        let config = Config { managed_cores: Some(vec![0]), ..Config::default() };
        assert_eq!(choose(&config, &[0, 1]).unwrap().iokernel, CoreId(1));
        let config = Config { managed_cores: Some(vec![0, 1]), ..Config::default() };
        assert!(matches!(choose(&config, &[0, 1]), Err(CoreError::OwnCore(0))));
        let config = Config { managed_cores: Some(vec![1]), iokernel_core: Some(1), ..Config::default() };
        assert!(matches!(choose(&config, &[0, 1]), Err(CoreError::OwnCore(1))));
    }

    #[test]
    fn one_core_or_foreign_cores_are_refused_with_the_remedy() {
        let error = choose(&Config::default(), &[0]).unwrap_err();
        assert!(error.to_string().contains("2 or more"), "{error}");
        let config = Config { managed_cores: Some(vec![7]), ..Config::default() };
        assert!(matches!(choose(&config, &[0, 1]), Err(CoreError::NotAllowed { core: 7, .. })));
        let config = Config { managed_cores: Some(Vec::new()), ..Config::default() };
        assert!(matches!(choose(&config, &[0, 1]), Err(CoreError::NoneManaged)));
    }

    #[test]
    fn the_cores_of_a_node_are_those_of_linux_and_another_node_is_refused_with_the_ones_there_are() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("node1")).unwrap();
        fs::write(folder.path().join("node1/cpulist"), "2-3,6\n").unwrap();
        fs::write(folder.path().join("online"), "0-1\n").unwrap();
        assert_eq!(cores_of_node(folder.path(), 1).unwrap(), [2, 3, 6].map(CoreId));
        let error = cores_of_node(folder.path(), 7).unwrap_err().to_string();
        assert!(error.contains('7') && error.contains("0-1"), "{error}");
    }

    #[test]
    fn what_others_get_names_their_cores_and_their_share() {
        let words = neighbours(0, &[1, 2], 10);
        assert!(
            words.contains("core 0") && words.contains("10 %") && words.contains("cores 1, 2"),
            "{words}"
        );
        assert!(!neighbours(0, &[1], 0).contains('%'));
    }
}
