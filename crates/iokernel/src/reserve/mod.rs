//! Requested cores, and ordinary threads that are kept off them.
//!
//! Owns [`Keeper`], the control thread's side: the polling thread says which cores are reserved
//! ([`crate::allocator`] has the rule), and this takes them out of the cpusets of the control
//! groups that `reserve.keep-off` names, and puts them back. [`groups`] has the files,
//! [`crate::undo`] keeps what they contained before.
//!
//! # Which cores are whose
//!
//! | core | ordinary threads |
//! |---|---|
//! | the polling thread's | run as `neighbour-share` says |
//! | reserved: a program requested it, was granted it and has had it | none of the named groups |
//! | any other | run whenever no kthread does; kthreads without work park after 50 us |
//!
//! A group always keeps a core that is neither reserved nor the polling thread's. If it had none
//! left, the highest of the reserved ones stays open to it. Threads outside of the named groups,
//! such as the kernel's own, are not kept off.
//!
//! A core that is no longer reserved is given back at once, within 10 ms of the end of the request.
//! Cores are taken at most once per [`PAUSE`], so that a program whose request changes all the time
//! causes a bounded number of writes, each of which Linux carries out for every thread of a group.
//!
//! # Crash and lie
//!
//! | | |
//! |---|---|
//! | the IOKernel is killed | the groups stay limited until the next one starts, or `tailwater doctor --repair` |
//! | a program is in a named group | Linux would refuse its kthreads the cores: nothing is kept off while it is registered |
//! | it is moved into one later | Linux moves its kthreads; they are bound to other cores, or lent none |
//! | the IOKernel is in a named group | nothing is kept off |
//! | a group is removed | nothing to do |
//! | a group is made while cores are reserved | it is limited at the next change |
//! | an administrator changes a cpuset meanwhile | it stays as it is, from then on |
//! | another IOKernel keeps threads off | this one begins when that one ends |

mod groups;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use groups::{Hierarchy, limit};
use rustix::thread::CpuSet;
use tailwater_sched::CoreId;

use crate::config::{Config, PolicyName};
use crate::machine::Cores;
use crate::undo::{Kind, Undo};

/// Where Linux mounts control groups.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// The settings that are changed.
pub(crate) const KIND: Kind = Kind { what: "cpusets", key: "reserve.state-file", files: &[groups::CPUS] };
/// Shortest time after cores were taken from the groups before more are.
const PAUSE: Duration = Duration::from_millis(100);

/// A registered program.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// The text of its `/proc/PID/cgroup`.
    pub(crate) groups: String,
}

/// Keeps ordinary threads off reserved cores. See the module header.
#[derive(Debug)]
pub(crate) struct Keeper {
    root: PathBuf,
    state_file: PathBuf,
    /// `None` where nothing can be kept off, or nothing is configured.
    hierarchy: Option<Hierarchy>,
    groups: Vec<String>,
    polling: CoreId,
    /// The reserved cores, ascending.
    reserved: Vec<CoreId>,
    /// Those that were taken from the groups, ascending.
    taken: Vec<CoreId>,
    undo: Option<Undo>,
    /// Cores of each group before it was limited.
    full: HashMap<PathBuf, Vec<CoreId>>,
    not_before: Option<Instant>,
    /// Programs have come or gone since `barrier` was found out.
    stale: bool,
    /// A program that is in a named group, in words.
    barrier: Option<String>,
    /// Another IOKernel keeps threads off, which was logged.
    waits: bool,
}

/// Returns in words through what ordinary threads can be kept off requested cores on this machine.
///
/// # Errors
/// Why they cannot, in words.
///
/// # Examples
/// ```
/// match tailwater_iokernel::cpusets() {
///     Ok(how) => println!("reserve.keep-off works through {how}"),
///     Err(why) => println!("reserve.keep-off has no effect: {why}"),
/// }
/// ```
pub fn cpusets() -> Result<String, String> {
    Ok(Hierarchy::detect(Path::new(ROOT))?.describe())
}

impl Keeper {
    /// Finds out whether threads can be kept off under this configuration, and logs it if it says
    /// that any are to be.
    pub(crate) fn new(config: &Config, cores: &Cores) -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::at(Path::new(ROOT), config, cores.iokernel, &own)
    }

    fn at(root: &Path, config: &Config, polling: CoreId, own_groups: &str) -> Self {
        let mut keeper = Self {
            root: root.to_owned(),
            state_file: config.reserve.state_file.clone(),
            hierarchy: None,
            groups: config.reserve.keep_off.clone(),
            polling,
            reserved: Vec::new(),
            taken: Vec::new(),
            undo: None,
            full: HashMap::new(),
            not_before: None,
            stale: false,
            barrier: None,
            waits: false,
        };
        if keeper.groups.is_empty() {
            return keeper;
        }
        match keeper.probe(config.policy, own_groups) {
            Ok(hierarchy) => {
                let (groups, how) = (keeper.groups.join(", "), hierarchy.describe());
                tracing::info!(groups, how, "keeps ordinary threads off requested cores");
                keeper.hierarchy = Some(hierarchy);
            }
            Err(why) => tracing::warn!("ordinary threads are not kept off requested cores: {why}"),
        }
        keeper
    }

    fn probe(&self, policy: PolicyName, own_groups: &str) -> Result<Hierarchy, String> {
        if policy != PolicyName::Arbiter {
            return Err(format!("policy = \"{policy}\" grants no requests; set policy = \"arbiter\""));
        }
        let hierarchy = Hierarchy::detect(&self.root)?;
        if let Some(group) = hierarchy.named_group(own_groups, &self.groups) {
            return Err(format!(
                "the IOKernel itself is in {group}; start it in another group (systemd: Slice=tailwater.slice)"
            ));
        }
        let folders = self.groups.iter().map(|group| hierarchy.folder(group));
        folders.filter(|folder| folder.exists()).try_for_each(|folder| hierarchy.check(&folder))?;
        Ok(hierarchy)
    }

    /// Puts back what a crashed IOKernel has left, whatever the configuration of this one.
    pub(crate) fn recover(&mut self) {
        if self.state_file.exists()
            && let Err(error) = Undo::lock(KIND, &self.state_file, &self.root)
            && error.kind() != io::ErrorKind::PermissionDenied
        {
            self.log_state_file(&error);
        }
    }

    /// Takes in which cores are reserved.
    pub(crate) fn reserve(&mut self, cores: &CpuSet) {
        let is_reserved = |core: &u16| cores.is_set(usize::from(*core));
        self.reserved = (0..CpuSet::MAX_CPU as u16).filter(is_reserved).map(CoreId).collect();
    }

    /// Takes in that a program has come or gone.
    pub(crate) fn programs_changed(&mut self) {
        self.stale = true;
    }

    /// Returns the number of cores that were taken from the groups.
    pub(crate) fn taken(&self) -> usize {
        self.taken.len()
    }

    /// Takes reserved cores from the groups as far as that is due, and gives others back.
    /// `members` returns the registered programs.
    pub(crate) fn keep(&mut self, members: impl FnOnce() -> Vec<Member>, now: Instant) {
        if self.hierarchy.is_none() || (self.reserved.is_empty() && self.taken.is_empty()) {
            return;
        }
        if core::mem::take(&mut self.stale) {
            self.find_barrier(&members());
        }
        let mut target = if self.barrier.is_some() { Vec::new() } else { self.reserved.clone() };
        let may_take = self.not_before.is_none_or(|time| now >= time);
        if !may_take {
            target.retain(|core| self.taken.contains(core));
        }
        if target == self.taken {
            return;
        }
        if target.iter().any(|core| !self.taken.contains(core)) {
            self.not_before = Some(now + PAUSE);
        }
        match self.limit_groups(&target) {
            Ok(true) => self.taken = target,
            Ok(false) => {}
            Err((file, error)) => {
                tracing::warn!(
                    file = %file.display(), %error,
                    "cannot change a cpuset: all are put back, and ordinary threads run on requested cores, too"
                );
                self.hierarchy = None;
                self.give_back();
            }
        }
    }

    fn find_barrier(&mut self, members: &[Member]) {
        let Some(hierarchy) = &self.hierarchy else { return };
        let barrier = members.iter().find_map(|Member { name, groups }| {
            Some(format!("{name} is in {}", hierarchy.named_group(groups, &self.groups)?))
        });
        if barrier != self.barrier {
            match &barrier {
                Some(why) => tracing::warn!(
                    "ordinary threads are not kept off requested cores: {why}; start that program in another group"
                ),
                None => tracing::info!("ordinary threads are kept off requested cores again"),
            }
            self.barrier = barrier;
        }
    }

    /// Takes these cores from all groups, and gives all others back. Returns false if another
    /// IOKernel does so.
    ///
    /// # Errors
    /// The file that could not be changed, and why.
    fn limit_groups(&mut self, target: &[CoreId]) -> Result<bool, (PathBuf, io::Error)> {
        if target.is_empty() {
            self.give_back();
            return Ok(true);
        }
        let Some(hierarchy) = self.hierarchy.clone() else { return Ok(false) };
        if self.undo.is_none() {
            let locked = Undo::lock(KIND, &self.state_file, &self.root);
            self.undo = locked.map_err(|error| (self.state_file.clone(), error))?;
        }
        let Some(undo) = &mut self.undo else {
            if !core::mem::replace(&mut self.waits, true) {
                tracing::warn!(
                    "another IOKernel keeps ordinary threads off its cores: this one begins when that one ends"
                );
            }
            return Ok(false);
        };
        for group in &self.groups {
            let folder = hierarchy.folder(group);
            let file = folder.join(groups::CPUS);
            if !file.exists() || undo.is_changed_by_others(&file) {
                continue;
            }
            let full = self.full.entry(file.clone()).or_insert_with(|| hierarchy.cores_of(&folder));
            let word = match (limit(full, target, self.polling), undo.before(&file)) {
                (Some(left), _) => left,
                (None, Some(before)) => before.to_owned(),
                (None, None) => continue,
            };
            match undo.set(&file, &word) {
                Err(error) if file.exists() => return Err((file, error)),
                _ => {}
            }
        }
        Ok(true)
    }

    /// Gives all cores back to the groups.
    fn give_back(&mut self) {
        self.undo = None;
        self.taken.clear();
        self.full.clear();
    }

    fn log_state_file(&self, error: &io::Error) {
        let file = self.state_file.display();
        tracing::warn!(%file, %error, "cannot use the file that keeps cpusets (reserve.state-file)");
    }
}
