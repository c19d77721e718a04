//! What a new group is given: rank, cores, and the limits of the group that its members leave.
//!
//! Owns the files that are written before a process is moved. In version 2 one group has all
//! controllers, so that a process leaves all limits of its group; in version 1 it stays in the
//! groups of those that a scope does not need, and leaves a quota of processor time only. Limits of
//! groups above hold as before, since a scope is beside its home.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use tailwater_host::parse_list;

use super::{GroupError, Home, write_existing};

/// What the names of limits end with: in version 2 those of all controllers, in version 1 those of
/// a quota of processor time (Linux, Documentation/admin-guide/cgroup-v2.rst and
/// Documentation/scheduler/sched-bwc.rst).
const LIMITS: [&str; 4] = [".max", ".high", "cpu.cfs_period_us", "cpu.cfs_quota_us"];
/// The cores on which Linux runs the threads of a group of version 2.
const EFFECTIVE: &str = "cpuset.cpus.effective";

/// Sets a new group up, for processes of a home.
pub(super) fn set_up(folder: &Path, home: &Home, cores: &[usize]) -> Result<(), GroupError> {
    limit(folder, &home.folder)?;
    if home.ranks {
        set(folder, "cpu.idle", "1")?;
    }
    if home.confines {
        let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        set(folder, "cpuset.cpus", &list)?;
        check_cores(folder, cores)?;
    }
    Ok(())
}

/// Gives a new group the limits of another one, and its memory nodes: a new group of version 1 has
/// none, and takes no member without.
pub(super) fn limit(folder: &Path, other: &Path) -> Result<(), GroupError> {
    let entries = fs::read_dir(other).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_limit = |name: &String| LIMITS.iter().any(|end| name.ends_with(end));
    let mut names: Vec<String> = names.filter(is_limit).collect();
    // Linux takes a period before a quota of it.
    names.sort_unstable();
    names.iter().try_for_each(|name| take_over(folder, other, name))?;
    match fs::read_to_string(other.join("cpuset.mems")) {
        Ok(nodes) if !nodes.trim().is_empty() => set(folder, "cpuset.mems", nodes.trim()),
        _ => Ok(()),
    }
}

/// Gives a new group a limit of another one, unless it is the same already.
fn take_over(folder: &Path, other: &Path, name: &str) -> Result<(), GroupError> {
    let of = |folder: &Path| fs::read_to_string(folder.join(name));
    // Missing: the root has no limits, and a controller may not be enabled.
    let (Ok(wanted), Ok(present)) = (of(other), of(folder)) else { return Ok(()) };
    if wanted != present {
        // Linux takes one line at a time, as for one device each.
        wanted.lines().try_for_each(|line| set(folder, name, line))?;
    }
    Ok(())
}

fn set(folder: &Path, name: &str, value: &str) -> Result<(), GroupError> {
    let file = folder.join(name);
    write_existing(&file, value).map_err(|error| GroupError::new("write", &file, error))
}

/// Checks that Linux runs the threads of a new group on these cores: version 2 gives a group the
/// cores of the one above if that has none of its list, version 1 refuses such a list.
fn check_cores(folder: &Path, cores: &[usize]) -> Result<(), GroupError> {
    let Ok(list) = fs::read_to_string(folder.join(EFFECTIVE)) else { return Ok(()) };
    if parse_list(&list).iter().all(|core| cores.contains(&usize::from(core.0))) {
        return Ok(());
    }
    let why = format!("the group above has none of the cores {cores:?}");
    Err(GroupError::new("confine processes by", folder, io::Error::new(ErrorKind::InvalidInput, why)))
}

/// Checks that a process is not in a container of version 2: it would leave the container's filter
/// of devices with its group.
pub(super) fn check_place(root: &Path, home: &Path, pid: i32) -> Result<(), GroupError> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/cgroup"));
    let is_outside = match (namespace(&pid.to_string()), namespace("self")) {
        (Ok(its), Ok(own)) => its == own,
        // It has ended.
        _ => true,
    };
    if is_outside || !root.join("cgroup.controllers").exists() {
        return Ok(());
    }
    let group = home.strip_prefix(root).unwrap_or(home);
    let why = format!(
        "it is in a container, whose limits hold for its group; make that the batch job: --cgroup /{}",
        group.display()
    );
    Err(GroupError::new("move the process out of", home, io::Error::new(ErrorKind::InvalidInput, why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_has_the_limits_of_its_home_as_far_as_there_are_controllers() {
        let folder = tempfile::tempdir().unwrap();
        let (home, scope) = (folder.path().join("a"), folder.path().join("b"));
        for (group, name, value) in [
            (&home, "cpu.max", "50000 100000\n"),
            (&scope, "cpu.max", "max 100000\n"),
            (&home, "memory.max", "max\n"),
            (&scope, "memory.max", "max\n"),
            (&home, "pids.max", "7\n"),
            (&home, "hugetlb.2MB.max", "0\n"),
            (&scope, "hugetlb.2MB.max", "max\n"),
            (&home, "cpuset.cpus", "0\n"),
            (&scope, "cpuset.cpus", ""),
            (&scope, "cpu.idle", ""),
        ] {
            fs::create_dir_all(group).unwrap();
            fs::write(group.join(name), value).unwrap();
        }
        set_up(&scope, &Home { folder: home, ranks: true, confines: true }, &[1, 3]).unwrap();
        let read = |name: &str| fs::read_to_string(scope.join(name)).map(|text| text.trim().to_owned());
        assert!(read("cpu.max").unwrap().starts_with("50000 100000"));
        assert_eq!(read("memory.max").unwrap(), "max");
        assert!(read("hugetlb.2MB.max").unwrap().starts_with('0'));
        assert!(read("pids.max").is_err(), "no file is made");
        assert_eq!((read("cpu.idle").unwrap(), read("cpuset.cpus").unwrap()), ("1".into(), "1,3".into()));
    }

    #[test]
    fn a_group_that_linux_runs_on_other_cores_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let check = |cores: &[usize]| check_cores(folder.path(), cores);
        assert!(check(&[1]).is_ok(), "version 1 has no such file");
        fs::write(folder.path().join(EFFECTIVE), "1-2\n").unwrap();
        assert!(check(&[1, 2, 3]).is_ok());
        let why = check(&[2, 9]).unwrap_err().to_string();
        assert!(why.contains(&folder.path().display().to_string()) && why.contains("[2, 9]"), "{why}");
    }
}
