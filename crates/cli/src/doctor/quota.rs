//! The CPU quota of the control groups that this process is in.
//!
//! Owns the reading of both versions' files, and the judgement; [`control_groups`] has the folders.
//! The quota of every ancestor holds as well. A polling core uses up a quota of less than the
//! machine's cores; then all threads of the group stand still for the rest of the period, 100 ms by
//! default.

use std::fs;
use std::path::{Path, PathBuf};

use super::part::{Part, Status};
use crate::control_groups::{self, Version};

/// A limit: a number of cores' worth of time, and the file that holds it.
#[derive(Debug, Clone, PartialEq)]
struct Quota {
    cores: f64,
    file: PathBuf,
}

/// Judges the quota of this process, which may use `cores`.
pub fn examine(cores: usize) -> Part {
    let (status, found) = match lowest_quota(control_groups::of_process("self")) {
        None => (Status::Ok, "none".to_owned()),
        Some(quota) => judge(&quota, cores),
    };
    Part { name: "CPU quota", status, found }
}

fn judge(quota: &Quota, cores: usize) -> (Status, String) {
    let Quota { cores: allowed, file } = quota;
    if *allowed >= cores as f64 {
        return (Status::Ok, format!("{allowed:.1} cores' time for {cores} cores ({})", file.display()));
    }
    let found = format!(
        "{allowed:.1} cores' time for {cores} cores ({}); the IOKernel polls all the time, and when the quota is used up \
         every thread stands still for the rest of the period: remove it (systemd CPUQuota=, docker --cpus, Kubernetes \
         limits.cpu) and limit cores instead (cpuset, docker --cpuset-cpus, the static CPU manager)",
        file.display()
    );
    (Status::Caution, found)
}

/// Returns the lowest quota over all groups of a process and those around them.
fn lowest_quota(folders: Vec<(Version, PathBuf)>) -> Option<Quota> {
    let quotas = folders.into_iter().filter_map(|(version, folder)| quota(version, &folder));
    quotas.min_by(|a, b| a.cores.total_cmp(&b.cores))
}

fn quota(version: Version, folder: &Path) -> Option<Quota> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|&number| number > 0.0);
    let (file, cores) = match version {
        Version::Two => {
            let text = read("cpu.max")?;
            // `max` when there is no limit.
            let (quota, period) = text.trim().split_once(' ')?;
            ("cpu.max", number(quota)? / number(period)?)
        }
        Version::One => {
            // -1 when there is no limit.
            ("cpu.cfs_quota_us", number(&read("cpu.cfs_quota_us")?)? / number(&read("cpu.cfs_period_us")?)?)
        }
    };
    Some(Quota { cores, file: folder.join(file) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_groups::folders_of;

    fn group(folder: &Path, name: &str, files: &[(&str, &str)]) {
        let group = folder.join(name);
        fs::create_dir_all(&group).unwrap();
        for (file, text) in files {
            fs::write(group.join(file), text).unwrap();
        }
    }

    #[test]
    fn the_lowest_quota_of_a_group_and_its_ancestors_counts() {
        let folder = tempfile::tempdir().unwrap();
        let point = folder.path().display();
        group(folder.path(), "", &[]);
        group(folder.path(), "pod", &[("cpu.max", "150000 100000\n")]);
        group(folder.path(), "pod/service", &[("cpu.max", "max 100000\n")]);
        group(folder.path(), "other", &[("cpu.max", "1000 100000\n")]);
        let mountinfo = format!("1 0 0:1 / {point} rw - cgroup2 cgroup2 rw\n");
        let lowest_quota = |cgroup: &str| lowest_quota(folders_of(&mountinfo, cgroup));
        let quota = lowest_quota("0::/pod/service\n").unwrap();
        assert_eq!((quota.cores, quota.file), (1.5, folder.path().join("pod/cpu.max")));
        assert_eq!(lowest_quota("0::/\n"), None);
        assert_eq!(lowest_quota("0::/../outside\n"), None);
        assert_eq!(super::lowest_quota(folders_of("", "0::/pod\n")), None);
    }

    #[test]
    fn version_1_is_read_where_a_container_mounts_its_own_group() {
        let folder = tempfile::tempdir().unwrap();
        let point = folder.path().display();
        group(folder.path(), "", &[("cpu.cfs_quota_us", "50000\n"), ("cpu.cfs_period_us", "100000\n")]);
        let mountinfo = format!(
            "1 0 0:1 /docker/7 {point} rw - cgroup cgroup rw,cpu,cpuacct\n2 0 0:2 / /nowhere rw - cgroup cgroup rw,memory\n"
        );
        let cgroup = "5:memory:/docker/7\n4:cpu,cpuacct:/docker/7\n0::/\n";
        assert_eq!(lowest_quota(folders_of(&mountinfo, cgroup)).unwrap().cores, 0.5);
        group(folder.path(), "", &[("cpu.cfs_quota_us", "-1\n")]);
        assert_eq!(lowest_quota(folders_of(&mountinfo, cgroup)), None);
    }

    #[test]
    fn a_quota_below_the_cores_is_a_caution_and_one_above_is_not() {
        let quota = |cores| Quota { cores, file: "/sys/fs/cgroup/cpu.max".into() };
        let (status, found) = judge(&quota(1.5), 2);
        assert_eq!(status, Status::Caution);
        for part in ["1.5 cores", "2 cores", "/sys/fs/cgroup/cpu.max"] {
            assert!(found.contains(part), "{part}: {found}");
        }
        assert_eq!(judge(&quota(2.0), 2).0, Status::Ok);
    }
}
