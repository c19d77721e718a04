//! The control groups whose threads are kept off cores.
//!
//! Owns where their files are, in version 2 (Linux, Documentation/admin-guide/cgroup-v2.rst) and
//! version 1 (cpuset(7)), and what is written there; writes nothing itself. In version 1 a group
//! cannot be limited to fewer cores than a group within it has.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use tailwater_sched::CoreId;

use crate::machine::parse_list;

/// The file of a group that lists the cores its threads may use.
pub(super) const CPUS: &str = "cpuset.cpus";
/// The same as far as the groups above have them, in version 2; there `cpuset.cpus` is empty in a
/// group that has all of them.
const EFFECTIVE: &str = "cpuset.cpus.effective";

/// The hierarchy of groups that the controller of cpusets is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    version: u8,
    point: PathBuf,
}

impl Hierarchy {
    /// Finds the hierarchy below `root`, `/sys/fs/cgroup` outside of tests.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(super) fn detect(root: &Path) -> Result<Self, String> {
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
    pub(super) fn folder(&self, group: &str) -> PathBuf {
        self.point.join(group.trim_start_matches('/'))
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
    pub(super) fn cores_of(&self, folder: &Path) -> Vec<CoreId> {
        let list = |name| parse_list(&fs::read_to_string(folder.join(name)).unwrap_or_default());
        let own = list(CPUS);
        if own.is_empty() { list(EFFECTIVE) } else { own }
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

/// Returns the list of cores of a group without those taken from it; `None` if it loses none. One
/// beside the polling thread's is always left.
pub(super) fn limit(full: &[CoreId], taken: &[CoreId], polling: CoreId) -> Option<String> {
    let (lost, mut left): (Vec<CoreId>, Vec<CoreId>) = full.iter().partition(|core| taken.contains(core));
    let mut lost = lost.into_iter();
    if left.iter().all(|&core| core == polling) {
        left.extend(lost.next_back());
    }
    lost.next()?;
    left.sort_unstable();
    Some(left.iter().map(|core| core.0.to_string()).collect::<Vec<_>>().join(","))
}
