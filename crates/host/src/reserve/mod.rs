//! Requested cores, and ordinary threads that are kept off them.
//!
//! Owns [`Keeper`], the control thread's side: the polling thread says which cores are reserved
//! (the IOKernel's `allocator::reserved` has the rule), and this takes them out of the cpusets of
//! the control groups that `reserve.keep-off` names, and puts them back. [`groups`] has the files,
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
//! A group always keeps a core that it can use and that is neither reserved nor the polling
//! thread's. If it had none left, the highest of the reserved ones stays open to it. Threads
//! outside of the named groups, such as the kernel's own, are not kept off.
//!
//! A core that is no longer reserved is given back at once, within 10 ms of the end of the request.
//! Cores are taken at most once per [`PAUSE`], so that a program whose request changes all the time
//! causes a bounded number of writes, each of which Linux carries out for every thread of a group.
//! At the same cadence, and only while cores are reserved, the named groups are looked for, at the
//! cost of one stat(2) each: one that was made, or removed and made again, is limited then.
//!
//! # Crash and lie
//!
//! | | |
//! |---|---|
//! | the IOKernel is killed | the groups stay limited until the next one starts, or `tailwater doctor --repair` |
//! | a program is in a named group when it registers | Linux would refuse its kthreads the cores: it is lent no reserved core, and none is reserved for it |
//! | it is moved into one later | Linux moves its kthreads; they are bound to other cores, or lent none |
//! | the IOKernel is in a named group | nothing is kept off |
//! | a group is made while cores are reserved, or removed and made again | it is limited at the next look; the cores that it has then are put back |
//! | a group is made before it has cores, as in version 1 | it is limited at the next look after it has some |
//! | a group is removed while it is changed | nothing to put back; the others are changed |
//! | a group had no cpuset of its own (version 2) | it gets one of all cores, because Linux refuses to empty that of a group with processes |
//! | an administrator changes a cpuset meanwhile | it stays as it is until no core is reserved; the next reservation takes it for its value before |
//! | a cpuset cannot be put back | nothing is kept off any more; the state file still has what it was |
//! | another IOKernel keeps threads off | this one begins when that one ends. With another state file it takes limited cpusets for what they were before |
//! | Linux is older than 6.2 | nothing is kept off: each change would make threads forget their affinities |

mod groups;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) use groups::Hierarchy;
use groups::{Full, limit};
use rustix::thread::CpuSet;
use tailwater_sched::CoreId;

use crate::undo::{Inode, Kind, Undo, is_gone};

/// Where Linux mounts control groups.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// The settings that are changed.
pub(crate) const KIND: Kind = Kind {
    what: "cpusets",
    key: "reserve.state-file",
    files: &[groups::CPUS],
    shown: groups::shown,
    made_anew: true,
    instead_of_empty: groups::all,
};

/// Shortest time after cores were taken from the groups before more are, and between two looks for
/// groups that were made.
const PAUSE: Duration = Duration::from_millis(100);

/// Keeps ordinary threads off reserved cores. See the module header.
#[derive(Debug)]
pub struct Keeper {
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
    /// Cores of each group before it was limited, by its file.
    full: HashMap<PathBuf, Known>,
    /// Those of `taken` that a group has lost.
    lost: BTreeSet<CoreId>,
    /// Files that other programs have changed, which was logged.
    skipped: HashSet<PathBuf>,
    /// No group loses a core, which was logged.
    vain: bool,
    not_before: Option<Instant>,
    next_look: Option<Instant>,
    /// Another IOKernel keeps threads off, which was logged.
    waits: bool,
}

/// A group of whose cores some may be taken.
#[derive(Debug)]
struct Known {
    full: Full,
    /// Number of its file: of a group that is made again it is another one.
    inode: Inode,
}

/// Returns in words through what ordinary threads can be kept off requested cores on this machine.
///
/// # Errors
/// Why they cannot, in words.
///
/// # Examples
/// ```
/// match tailwater_host::cpusets() {
///     Ok(how) => println!("reserve.keep-off works through {how}"),
///     Err(why) => println!("reserve.keep-off has no effect: {why}"),
/// }
/// ```
pub fn cpusets() -> Result<String, String> {
    groups::check_release(&release())?;
    Ok(Hierarchy::detect(Path::new(ROOT))?.describe())
}

/// Returns the folder of a control group that `reserve.keep-off` names, and the version of its
/// hierarchy. There may be no such group.
///
/// # Errors
/// Why there are no cpusets, in words.
pub fn group_folder(group: &str) -> Result<(PathBuf, u8), String> {
    let hierarchy = Hierarchy::detect(Path::new(ROOT))?;
    Ok((hierarchy.folder(group), hierarchy.version))
}

/// Returns the release of Linux; empty if it is not known.
fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()
}

impl Keeper {
    /// Finds out whether the threads of these groups can be kept off, and logs it if there are any.
    /// `refused`: why the configuration does not allow it, in words. `state_file` is the record.
    #[must_use]
    pub fn new(groups: &[String], state_file: &Path, polling: CoreId, refused: Option<String>) -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::at(Path::new(ROOT), (groups, state_file), polling, refused, (&own, &release()))
    }

    fn at(
        root: &Path,
        (groups, state_file): (&[String], &Path),
        polling: CoreId,
        refused: Option<String>,
        (own_groups, release): (&str, &str),
    ) -> Self {
        let mut keeper = Self {
            root: root.to_owned(),
            state_file: state_file.to_owned(),
            hierarchy: None,
            groups: groups.to_vec(),
            polling,
            reserved: Vec::new(),
            taken: Vec::new(),
            undo: None,
            full: HashMap::new(),
            lost: BTreeSet::new(),
            skipped: HashSet::new(),
            vain: false,
            not_before: None,
            next_look: None,
            waits: false,
        };
        if keeper.groups.is_empty() {
            return keeper;
        }
        let probed = groups::check_release(release)
            .and_then(|()| refused.map_or(Ok(()), Err))
            .and_then(|()| keeper.probe(own_groups));
        match probed {
            Ok(hierarchy) => {
                let (groups, how) = (keeper.groups.join(", "), hierarchy.describe());
                tracing::info!(groups, how, "keeps ordinary threads off requested cores");
                let absent = keeper.absent(&hierarchy).join(", ");
                if !absent.is_empty() {
                    tracing::warn!(
                        absent,
                        "reserve.keep-off names control groups that do not exist: no thread is kept off by them until \
                         they do; /proc/PID/cgroup has the names"
                    );
                }
                keeper.hierarchy = Some(hierarchy);
            }
            Err(why) => tracing::warn!("ordinary threads are not kept off requested cores: {why}"),
        }
        keeper
    }

    fn probe(&self, own_groups: &str) -> Result<Hierarchy, String> {
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

    /// Returns the named groups that do not exist.
    fn absent(&self, hierarchy: &Hierarchy) -> Vec<&str> {
        let groups = self.groups.iter().map(String::as_str);
        groups.filter(|group| !hierarchy.folder(group).exists()).collect()
    }

    /// Puts back what a crashed IOKernel has left, whatever the configuration of this one.
    pub fn recover(&mut self) {
        // Also if it cannot be told whether it exists.
        if !matches!(self.state_file.try_exists(), Ok(false))
            && let Err(error) = Undo::lock(KIND, &self.state_file, &self.root)
        {
            self.log_state_file(&error);
        }
    }

    /// Sets the cores that are reserved.
    pub fn reserve(&mut self, cores: &CpuSet) {
        let is_reserved = |core: &u16| cores.is_set(usize::from(*core));
        self.reserved = (0..CpuSet::MAX_CPU as u16).filter(is_reserved).map(CoreId).collect();
    }

    /// Returns the group that is kept off reserved cores and in which a process is, by the text of
    /// its `/proc/PID/cgroup`; `None` if there is none.
    #[must_use]
    pub fn group_of(&self, text: &str) -> Option<&str> {
        self.hierarchy.as_ref()?.named_group(text, &self.groups)
    }

    /// Returns the number of cores that at least one group has lost.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.lost.len()
    }

    /// Takes reserved cores from the groups as far as that is due, and gives others back.
    pub fn keep(&mut self, now: Instant) {
        if self.hierarchy.is_none() || (self.reserved.is_empty() && self.taken.is_empty()) {
            return;
        }
        let mut target = self.reserved.clone();
        let may_take = self.not_before.is_none_or(|time| now >= time);
        if !may_take {
            target.retain(|core| self.taken.contains(core));
        }
        let is_same = target == self.taken;
        if is_same && !self.finds_other_groups(now) {
            return;
        }
        if is_same || target.iter().any(|core| !self.taken.contains(core)) {
            self.not_before = Some(now + PAUSE);
        }
        self.next_look = Some(now + PAUSE);
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

    /// Looks for groups if that is due. Returns whether one was made, or removed.
    fn finds_other_groups(&mut self, now: Instant) -> bool {
        if self.next_look.is_some_and(|time| now < time) {
            return false;
        }
        self.next_look = Some(now + PAUSE);
        self.hierarchy.clone().is_some_and(|hierarchy| self.learn(&hierarchy))
    }

    /// Reads the cores of groups that are not known yet, before they are limited, and forgets those
    /// that are gone. Returns whether there were any of either.
    ///
    /// A group within a limited one is limited with that, and its own cores can be read only when
    /// that has all of its own. A group without cores has none to lose, and may be given some.
    fn learn(&mut self, hierarchy: &Hierarchy) -> bool {
        let before = self.full.len();
        let (full, skipped) = (&mut self.full, &mut self.skipped);
        full.retain(|file, known| {
            let is_same = KIND.inode(file) == known.inode;
            if !is_same {
                skipped.remove(file);
            }
            is_same
        });
        let (mut other, limited) = (full.len() < before, !self.taken.is_empty());
        for folder in self.groups.iter().map(|group| hierarchy.folder(group)) {
            let file = folder.join(groups::CPUS);
            let outer_is_limited = || {
                limited
                    && full.keys().any(|outer| outer.parent().is_some_and(|outer| folder.starts_with(outer)))
            };
            let inode = KIND.inode(&file);
            if inode.is_some() && !full.contains_key(&file) && !outer_is_limited() {
                let cores = hierarchy.cores_of(&folder);
                if !cores.listed.is_empty() {
                    full.insert(file, Known { full: cores, inode });
                    other = true;
                }
            }
        }
        other
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
        if self.undo.is_none() {
            if !core::mem::replace(&mut self.waits, true) {
                tracing::warn!(
                    "another IOKernel keeps ordinary threads off its cores: this one begins when that one ends"
                );
            }
            return Ok(false);
        }
        self.learn(&hierarchy);
        let Some(undo) = &mut self.undo else { return Ok(false) };
        let (mut words, mut lost) = (Vec::new(), BTreeSet::new());
        for file in self.groups.iter().map(|group| hierarchy.folder(group).join(groups::CPUS)) {
            let Some(Known { full, .. }) = self.full.get(&file) else { continue };
            if undo.is_changed_by_others(&file) {
                if self.skipped.insert(file.clone()) {
                    tracing::warn!(file = %file.display(), "another program has changed a cpuset, which stays until no core is reserved");
                }
                continue;
            }
            match (limit(full, target, self.polling), undo.before(&file)) {
                (Some(limit), _) => {
                    lost.extend(limit.lost);
                    words.push((file, limit.word));
                }
                (None, Some(before)) => words.push((file.clone(), before.to_owned())),
                (None, None) => {}
            }
        }
        let words: Vec<_> =
            words.into_iter().map(|(file, word)| (file, groups::shown(&self.root, &word))).collect();
        let failed = undo.set(&words).map_err(|error| (self.state_file.clone(), error))?;
        if let Some(failed) = failed.into_iter().find(|(_, error)| !is_gone(error)) {
            return Err(failed);
        }
        if lost.is_empty() && !core::mem::replace(&mut self.vain, true) {
            tracing::info!(
                "no control group loses a requested core: each is absent, was changed by another program, or keeps its only \
                 core beside the polling thread's"
            );
        }
        self.lost = lost;
        Ok(true)
    }

    /// Gives all cores back to the groups.
    fn give_back(&mut self) {
        let failed = self.undo.take().is_some_and(|mut undo| !undo.put_back().failed.is_empty());
        if failed {
            // Each of them was logged.
            tracing::warn!("ordinary threads are no longer kept off requested cores");
            self.hierarchy = None;
        }
        self.taken.clear();
        self.full.clear();
        self.lost.clear();
        self.skipped.clear();
    }

    fn log_state_file(&self, error: &io::Error) {
        let file = self.state_file.display();
        tracing::warn!(%file, %error, "cannot use the file that keeps cpusets (reserve.state-file); what a crashed IOKernel may have left stays until `tailwater doctor --repair` runs as root");
    }
}
