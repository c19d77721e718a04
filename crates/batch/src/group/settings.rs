//! What a new group is given: rank, cores, and the limits of the group that its members leave.
//!
//! Owns the files that are written before a process is moved. In version 2 one group has all
//! controllers, so that a process leaves all limits of its group; in version 1 it stays in the
//! groups of those that a scope does not need, and leaves a quota of processor time only. Limits of
//! groups above hold as before, since a scope is beside its home.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity};

use super::{GroupError, Home, write_existing};
use crate::conditions::set_of;

/// Limits of version 2, then of version 1 (Linux, Documentation/admin-guide/cgroup-v2.rst and
/// Documentation/scheduler/sched-bwc.rst), each in the order in which Linux takes them.
const LIMITS: [&str; 8] = [
    "cpu.max",
    "memory.high",
    "memory.max",
    "memory.swap.max",
    "pids.max",
    "io.max",
    "cpu.cfs_period_us",
    "cpu.cfs_quota_us",
];

/// Sets a new group up, for processes of a home.
pub(super) fn set_up(folder: &Path, home: &Home, cores: &[usize]) -> Result<(), GroupError> {
    for name in LIMITS {
        take_over(folder, &home.folder, name)?;
    }
    if home.ranks {
        set(folder, "cpu.idle", "1")?;
    }
    if home.confines {
        // A new group of version 1 has no memory, and takes no member without.
        if let Ok(memory) = fs::read_to_string(home.folder.join("cpuset.mems"))
            && !memory.trim().is_empty()
        {
            set(folder, "cpuset.mems", memory.trim())?;
        }
        let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        set(folder, "cpuset.cpus", &list)?;
    }
    Ok(())
}

/// Gives a new group a limit of the home, unless it is the same already.
fn take_over(folder: &Path, home: &Path, name: &str) -> Result<(), GroupError> {
    let of = |folder: &Path| fs::read_to_string(folder.join(name));
    // Missing: the root has no limits, and a controller may not be enabled.
    let (Ok(wanted), Ok(present)) = (of(home), of(folder)) else { return Ok(()) };
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

/// Checks that a process of a group may use no core but these: version 2 gives a group the cores of
/// the one above if that has none of those asked for.
pub(super) fn check_cores(folder: &Path, pid: i32, cores: &[usize]) -> Result<(), GroupError> {
    // It has ended.
    let Ok(usable) = sched_getaffinity(Pid::from_raw(pid)) else { return Ok(()) };
    let wanted = set_of(cores);
    if (0..CpuSet::MAX_CPU).all(|core| wanted.is_set(core) || !usable.is_set(core)) {
        return Ok(());
    }
    let why = format!("the group above has none of the cores {cores:?}");
    Err(GroupError::new("confine the process by", folder, io::Error::new(ErrorKind::InvalidInput, why)))
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
        assert!(read("pids.max").is_err(), "no file is made");
        assert_eq!((read("cpu.idle").unwrap(), read("cpuset.cpus").unwrap()), ("1".into(), "1,3".into()));
    }

    #[test]
    fn a_process_with_other_cores_is_found() {
        let own = std::process::id().cast_signed();
        let set = sched_getaffinity(None).unwrap();
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect();
        assert!(check_cores(Path::new("/g"), own, &cores).is_ok());
        let why = check_cores(Path::new("/g"), own, &[CpuSet::MAX_CPU - 1]).unwrap_err().to_string();
        assert!(why.contains("/g") && why.contains(&format!("[{}]", CpuSet::MAX_CPU - 1)), "{why}");
    }
}
