//! A control group that is a batch job for as long as a process wants it.
//!
//! Owns [`BatchGroup`]: Linux runs the group's threads only where no other group has any
//! (`cpu.idle`), and on some cores only (`cpuset.cpus`). The group's weight is put back, too: Linux
//! sets it to the default when `cpu.idle` goes back to 0 (`sched_group_set_idle`). It is no part of
//! an IOKernel, but changes and puts back settings as one does, by the same record
//! ([`crate::undo`]): one file for each group, below `/run`. After `kill -9` the next one of the
//! group, or `tailwater doctor --repair`, puts them back. A group that is removed, and made again
//! by its name, is another one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::reserve::{self, Hierarchy};
use crate::undo::{Kind, Undo};

/// Folder of the records, and the beginning and end of their names. A record's lock and its next
/// version have other ends, whatever the group is called.
const STATE_FOLDER: &str = "/run";
const STATE_NAME: &str = "tailwater-batch-";
const STATE_END: &str = ".json";
/// Weights of a group and their defaults, in version 2 and in version 1 (Linux,
/// Documentation/admin-guide/cgroup-v2.rst; `NICE_0_LOAD` in kernel/sched/sched.h).
const WEIGHTS: [(&str, &str); 2] = [("cpu.weight", "100"), ("cpu.shares", "1024")];
/// The settings that are changed.
pub(crate) const KIND: Kind = Kind {
    what: "groups of batch jobs",
    key: "the group of `tailwater run --batch --cgroup`",
    files: &["cpu.idle", "cpuset.cpus", WEIGHTS[0].0, WEIGHTS[1].0],
    shown,
    ..reserve::KIND
};

/// A control group that is a batch job until this is dropped.
#[derive(Debug)]
pub struct BatchGroup {
    _undo: Undo,
    folder: PathBuf,
    /// Number of the folder, which Linux gives no other group.
    number: Option<u64>,
}

impl BatchGroup {
    /// Makes the control group `group`, such as `/system.slice/encoder.service`, a batch job on
    /// these cores.
    ///
    /// # Errors
    /// Why not, in words. The group is as before then.
    pub fn hold(group: &str, cores: &[usize]) -> Result<Self, String> {
        let state = Path::new(STATE_FOLDER).join(state_name(group));
        Self::at(Path::new(reserve::ROOT), &state, group, cores)
    }

    fn at(root: &Path, state: &Path, group: &str, cores: &[usize]) -> Result<Self, String> {
        let parts = group.trim_matches('/').split('/');
        if parts.clone().any(|part| part.is_empty() || part == "." || part == "..") {
            return Err(format!(
                "{group} is no control group below the root: give it as /proc/PID/cgroup names it, such as \
                 /system.slice/encoder.service"
            ));
        }
        let hierarchy = Hierarchy::detect(root)?;
        let folder = hierarchy.folder(group);
        // In version 1 each controller has a hierarchy of its own.
        let idle = match hierarchy.version {
            2 => folder.join("cpu.idle"),
            _ => root.join("cpu").join(group.trim_matches('/')).join("cpu.idle"),
        };
        let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let words = [(idle.clone(), "1".to_owned()), (folder.join("cpuset.cpus"), list)];
        if let Some((file, _)) = words.iter().find(|(file, _)| !file.exists()) {
            return Err(format!(
                "{} is missing: there is no such group, or its controllers cpu and cpuset are not enabled in \
                 cgroup.subtree_control of the group above",
                file.display()
            ));
        }
        // Version 1 refuses such a list where it is written. Version 2 takes no list away from a
        // group with processes, so that this one would keep it.
        let above = folder.parent().map(|above| hierarchy.usable(above)).unwrap_or_default();
        if hierarchy.version == 2 && !above.iter().any(|core| cores.contains(&usize::from(core.0))) {
            return Err(format!(
                "{group} cannot be confined to cores {cores:?}: the group above has none of them (cpuset.cpus.effective)"
            ));
        }
        let number = number_of(&folder);
        let cannot = |error: std::io::Error| {
            format!("cannot use the record {}: {error}; --cgroup needs root", state.display())
        };
        let mut undo = Undo::lock(KIND, state, root)
            .map_err(cannot)?
            .ok_or_else(|| format!("{group} is a batch job of another `tailwater run` already"))?;
        let words: Vec<_> = default_weight(&idle).into_iter().chain(words).collect();
        let failed = undo.set(&words).map_err(cannot)?;
        if let [(file, error), ..] = &*failed {
            return Err(format!(
                "cannot write {}: {error}; a group keeps the cores that its parent has and that groups within it need",
                file.display()
            ));
        }
        if number_of(&folder) != number {
            return Err(format!("{group} was made again in the meantime: run this again"));
        }
        Ok(Self { _undo: undo, folder, number })
    }

    /// Returns the folder that lists its processes.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns whether the group exists: a later one with its name, as of a service that was
    /// started again, has none of the settings.
    #[must_use]
    pub fn exists(&self) -> bool {
        number_of(&self.folder).is_some_and(|number| Some(number) == self.number)
    }
}

fn number_of(folder: &Path) -> Option<u64> {
    Some(folder.metadata().ok()?.ino())
}

/// Returns the name of the record of a group; that of each group is another one.
fn state_name(group: &str) -> String {
    let name = group.trim_matches('/').replace('%', "%25").replace('+', "%2B").replace('/', "+");
    format!("{STATE_NAME}{name}{STATE_END}")
}

/// Returns the file of the weight of the group with this `cpu.idle`, and the default; `None` if it
/// has none of its own. A group is given the default before it becomes idle: that is what Linux
/// leaves, so that putting back, last change first, finds the value written here.
fn default_weight(idle: &Path) -> Option<(PathBuf, String)> {
    let is_idle = fs::read_to_string(idle).is_ok_and(|word| word.trim() == "1");
    let weights = WEIGHTS.map(|(name, default)| (idle.with_file_name(name), default.to_owned()));
    weights.into_iter().find(|(file, _)| !is_idle && file.exists())
}

/// Returns a value as the kernel shows it.
fn shown(root: &Path, value: &str) -> String {
    // Weights are no lists of cores.
    value.parse().map_or_else(|_| (reserve::KIND.shown)(root, value), |number: u64| number.to_string())
}

/// Returns the records that there are.
pub(crate) fn records() -> Vec<PathBuf> {
    let entries = fs::read_dir(STATE_FOLDER).into_iter().flatten().flatten();
    let is_record = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(STATE_NAME) && name.ends_with(STATE_END)
    };
    let mut records: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_record).collect();
    records.sort();
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a tree of control groups of version 2, as files, with one group.
    fn tree() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("cgroup.controllers"), "cpu cpuset\n").unwrap();
        fs::write(root.join("a/cpuset.cpus.effective"), "0-3\n").unwrap();
        for (file, value) in [("cpu.idle", "0\n"), ("cpuset.cpus", "0-3\n")] {
            fs::write(root.join("a/b").join(file), value).unwrap();
        }
        (folder, root)
    }

    #[test]
    fn a_group_is_a_batch_job_until_the_end_or_the_repair_after_a_crash() {
        let (_folder, root) = tree();
        let state = root.join("state");
        let read = |file: &str| fs::read_to_string(root.join("a/b").join(file)).unwrap().trim().to_owned();
        let held = BatchGroup::at(&root, &state, "/a/b", &[1, 2]).unwrap();
        assert_eq!((read("cpu.idle"), read("cpuset.cpus")), ("1".into(), "1,2".into()));
        let why = BatchGroup::at(&root, &state, "/a/b", &[1]).unwrap_err();
        assert!(why.contains("already"), "{why}");
        drop(held);
        assert_eq!((read("cpu.idle"), read("cpuset.cpus")), ("0".into(), "0-3".into()));
        // As after kill -9: the record is there, the lock is free.
        let held = BatchGroup::at(&root, &state, "a/b/", &[1]).unwrap();
        let record = fs::read(&state).unwrap();
        drop(held);
        fs::write(root.join("a/b/cpu.idle"), "1\n").unwrap();
        fs::write(root.join("a/b/cpuset.cpus"), "1\n").unwrap();
        fs::write(&state, record).unwrap();
        let repaired = Undo::lock(KIND, &state, &root).unwrap().unwrap();
        assert_eq!(repaired.recovered.put_back, 2);
        assert_eq!((read("cpu.idle"), read("cpuset.cpus")), ("0".into(), "0-3".into()));
    }

    #[test]
    fn a_weight_comes_back_as_it_was() {
        for (name, default) in WEIGHTS {
            let (_folder, root) = tree();
            let state = root.join("state");
            let (weight, idle) = (root.join("a/b").join(name), root.join("a/b/cpu.idle"));
            fs::write(&weight, "2048\n").unwrap();
            let read = || fs::read_to_string(&weight).unwrap().trim().to_owned();
            let held = BatchGroup::at(&root, &state, "/a/b", &[1, 2]).unwrap();
            assert_eq!(read(), default, "what Linux makes of it at the end");
            drop(held);
            assert_eq!(read(), "2048");
            // An administrator changes it meanwhile.
            let held = BatchGroup::at(&root, &state, "/a/b", &[1, 2]).unwrap();
            fs::write(&weight, "300\n").unwrap();
            drop(held);
            assert_eq!(read(), "300");
            // That of an idle group cannot be changed.
            fs::write(&idle, "1\n").unwrap();
            let _held = BatchGroup::at(&root, &state, "/a/b", &[1, 2]).unwrap();
            assert_eq!(read(), "300");
        }
    }

    #[test]
    fn each_group_has_a_record_of_its_own() {
        let names = ["a/b", "a+b", "a%2Bb", "a%252Bb", "a", "a.lock", "a.json.lock", "a.new"].map(state_name);
        for (at, name) in names.iter().enumerate() {
            for end in ["", ".lock", ".new"] {
                let file = format!("{name}{end}");
                assert!(!names[..at].contains(&file) && !names[at + 1..].contains(&file), "{file}");
            }
        }
        assert_eq!(state_name("/a/b/"), state_name("a/b"));
    }

    #[test]
    fn a_group_that_cannot_be_one_is_left_as_it_is() {
        let (_folder, root) = tree();
        let state = root.join("state");
        let refused = |group: &str| BatchGroup::at(&root, &state, group, &[1]).unwrap_err();
        for group in ["/", "", "/a/../b", "/a//b"] {
            assert!(refused(group).contains("no control group"), "{group}");
        }
        assert!(refused("/a").contains("cpu.idle is missing"));
        let why = BatchGroup::at(&root, &state, "/a/b", &[7]).unwrap_err();
        assert!(why.contains("/a/b") && why.contains("[7]") && why.contains("group above"), "{why}");
        assert_eq!(fs::read_to_string(root.join("a/b/cpuset.cpus")).unwrap(), "0-3\n");
        fs::remove_file(root.join("a/b/cpuset.cpus")).unwrap();
        assert!(refused("/a/b").contains("cpuset.cpus is missing"));
        assert_eq!(fs::read_to_string(root.join("a/b/cpu.idle")).unwrap(), "0\n");
    }
}
