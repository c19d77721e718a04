//! The control groups whose threads are kept off cores.
//!
//! Owns where their files are, in version 2 (Linux, Documentation/admin-guide/cgroup-v2.rst) and
//! version 1 (cpuset(7)), and what is written there; writes nothing itself. In version 1 a group
//! cannot be limited to fewer cores than a group within it has, and Linux takes cores that go
//! offline out of the lists.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use tailwater_sched::CoreId;

use crate::parse_list;

/// The file of a group that lists the cores its threads may use.
pub(super) const CPUS: &str = "cpuset.cpus";
/// The same as far as the groups above have them, in version 2; there `cpuset.cpus` is empty in a
/// group that has all of them.
const EFFECTIVE: &str = "cpuset.cpus.effective";
/// The same in version 1.
const EFFECTIVE1: &str = "cpuset.effective_cpus";
/// First version of Linux in which a thread whose cpuset has changed keeps the affinity that it
/// asked for (sched_setaffinity(2)).
const KEEPS_AFFINITIES: (u32, u32) = (6, 2);

/// The cores of a group that is not limited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) listed: Vec<CoreId>,
    /// Those of them on which Linux runs its threads: of cores that are there, and that the groups
    /// above have.
    pub(super) usable: Vec<CoreId>,
}

/// What a group is limited to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limit {
    /// As Linux writes it.
    pub(super) word: String,
    pub(super) lost: Vec<CoreId>,
}

/// The hierarchy of groups that the controller of cpusets is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    pub(crate) version: u8,
    point: PathBuf,
}

impl Hierarchy {
    /// Finds the hierarchy below `root`, `/sys/fs/cgroup` outside of tests.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(crate) fn detect(root: &Path) -> Result<Self, String> {
        let has_controller = |point: &PathBuf| {
            let controllers = fs::read_to_string(point.join("cgroup.controllers")).unwrap_or_default();
            controllers.split_whitespace().any(|controller| controller == "cpuset")
        };
        if let Some(point) = [root.to_owned(), root.join("unified")].into_iter().find(has_controller) {
            return Ok(Self { version: 2, point });
        }
        let point = root.join("cpuset");
        if point.join(CPUS).exists() {
            return Ok(Self { version: 1, point });
        }
        Err(format!("no control groups with cpusets at {}", root.display()))
    }

    pub(super) fn describe(&self) -> String {
        format!("cpusets of control groups, version {}, at {}", self.version, self.point.display())
    }

    /// Returns the folder of a group.
    pub(crate) fn folder(&self, group: &str) -> PathBuf {
        self.point.join(group.trim_start_matches('/'))
    }

    /// Returns the cores on which Linux runs the threads of a group. In version 2 they are those of
    /// the group above if that has none of the group's own.
    pub(crate) fn usable(&self, folder: &Path) -> Vec<CoreId> {
        self.cores_of(folder).usable
    }

    /// Checks that the cpuset of a group can be changed.
    ///
    /// # Errors
    /// Why not, in words.
    pub(super) fn check(&self, folder: &Path) -> Result<(), String> {
        let file = folder.join(CPUS);
        match OpenOptions::new().write(true).open(&file) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(format!(
                "{} is missing: enable cpusets (echo +cpuset > {}/cgroup.subtree_control; systemd: AllowedCPUs= in a \
                 unit beside that group)",
                file.display(),
                folder.parent().unwrap_or(folder).display()
            )),
            Err(error) => Err(format!("cannot write {}: {error}", file.display())),
        }
    }

    /// Returns the cores of a group that is not limited.
    pub(super) fn cores_of(&self, folder: &Path) -> Full {
        let list = |name| parse_list(&fs::read_to_string(folder.join(name)).unwrap_or_default());
        let (own, effective) = (list(CPUS), list(if self.version == 2 { EFFECTIVE } else { EFFECTIVE1 }));
        let listed = if own.is_empty() { effective.clone() } else { own };
        let usable = if effective.is_empty() { listed.clone() } else { effective };
        Full { listed, usable }
    }

    /// Returns that of `groups` in which a process is, by the text of its `/proc/PID/cgroup`
    /// (cgroups(7)).
    pub(super) fn named_group<'a>(&self, text: &str, groups: &'a [String]) -> Option<&'a str> {
        let path = text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let is_meant = match self.version {
                2 => controllers.is_empty(),
                _ => controllers.split(',').any(|controller| controller == "cpuset"),
            };
            is_meant.then_some(path)
        })?;
        let holds = |group: &&String| {
            path.strip_prefix(group.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        groups.iter().find(holds).map(String::as_str)
    }
}

/// Returns what a group has without the cores taken from it; `None` if it loses none. It keeps one
/// that it can use beside the polling thread's.
pub(super) fn limit(full: &Full, taken: &[CoreId], polling: CoreId) -> Option<Limit> {
    let (mut lost, mut left): (Vec<CoreId>, Vec<CoreId>) =
        full.listed.iter().partition(|core| taken.contains(core));
    let is_usable = |core: &CoreId| full.usable.contains(core);
    if !left.iter().any(|core| *core != polling && is_usable(core)) {
        left.extend(lost.iter().rposition(is_usable).map(|at| lost.remove(at)));
    }
    (!lost.is_empty()).then(|| Limit { word: to_list(left), lost })
}

/// Returns the list of cores as Linux writes it: `0-2,5`.
fn to_list(mut cores: Vec<CoreId>) -> String {
    cores.sort_unstable();
    cores.dedup();
    let runs = cores.chunk_by(|one, next| one.0 + 1 == next.0).map(|run| match run {
        [.., last] if run.len() > 1 => format!("{}-{}", run[0].0, last.0),
        _ => run[0].0.to_string(),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// Returns a list of cores as the hierarchy below `root` shows it at present: as ranges, and in
/// version 1 without cores that are offline, unless all are.
pub(super) fn shown(root: &Path, list: &str) -> String {
    let mut cores = parse_list(list);
    if let Ok(Hierarchy { version: 1, point }) = Hierarchy::detect(root) {
        // That of the outermost group has all that are online.
        let online = parse_list(&fs::read_to_string(point.join(CPUS)).unwrap_or_default());
        if cores.iter().any(|core| online.contains(core)) {
            cores.retain(|core| online.contains(core));
        }
    }
    to_list(cores)
}

/// Returns the list of all cores that the machine may ever have; `None` if it is not known. In
/// version 2 a group with this list has all cores of the groups above it, like one with an empty
/// list, which Linux refuses for a group with processes (ENOSPC).
pub(super) fn all() -> Option<String> {
    let list = fs::read_to_string("/sys/devices/system/cpu/possible").ok()?;
    Some(list.trim().to_owned()).filter(|list| !list.is_empty())
}

/// Checks that this release of Linux keeps the affinities of threads whose cpuset changes.
///
/// # Errors
/// What happens otherwise, in words.
pub(super) fn check_release(release: &str) -> Result<(), String> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().ok());
    match numbers.next().flatten().zip(numbers.next().flatten()) {
        Some(version) if version < KEEPS_AFFINITIES => Err(format!(
            "Linux {} makes all threads of a control group forget what taskset(1) has given them when its cpuset \
             changes; Linux 6.2 or later is needed",
            release.trim()
        )),
        _ => Ok(()),
    }
}
