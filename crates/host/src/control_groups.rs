//! Folders of the control groups that may limit the processor time of a process, and their quotas.
//!
//! Owns the parsing of `/proc/PID/mountinfo` and `/proc/PID/cgroup` (proc_pid_mountinfo(5),
//! cgroups(7)) and of the files of a quota, for both versions. A limit of every ancestor holds as
//! well. What is not mounted, or lies outside of the namespace of this process, is left out.
//!
//! A polling core uses up a quota of less than the process's cores; then all threads of the group
//! stand still for the rest of the period, 100 ms by default.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Which files limit a control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `cpu.cfs_quota_us` (Documentation/scheduler/sched-bwc.rst).
    One,
    /// `cpu.max` (Documentation/admin-guide/cgroup-v2.rst).
    Two,
}

/// A mounted hierarchy with the CPU controller.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// The group that the mount point shows.
    root: PathBuf,
    point: PathBuf,
}

/// Returns the folders of the groups of a process, as this process sees them, and of those around
/// them; none if the process has ended.
#[must_use]
pub fn of_process(pid: &str) -> Vec<(Version, PathBuf)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    folders_of(&read("/proc/self/mountinfo"), &read(&format!("/proc/{pid}/cgroup")))
}

/// As [`of_process`], from the text of the two files.
#[must_use]
pub fn folders_of(mountinfo: &str, cgroup: &str) -> Vec<(Version, PathBuf)> {
    let mounts = mountinfo.lines().filter_map(parse_mount);
    let folders = mounts.filter_map(|Mount { version, root, point }| {
        let group = Path::new(cgroup.lines().find_map(|line| group_of(line, version))?);
        // Nothing is visible outside of what the mount shows, nor outside of the namespace.
        let relative = group.strip_prefix(root).ok()?;
        let is_inside = relative.components().all(|part| part != Component::ParentDir);
        is_inside.then(|| folders(&point, relative).map(move |folder| (version, folder)))
    });
    folders.flatten().collect()
}

/// Reads a line of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)); `None` unless it mounts the CPU
/// controller.
fn parse_mount(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (root, point) = (fields.next()?.into(), fields.next()?.into());
    let mut kind = after.split(' ');
    let version = match kind.next()? {
        "cgroup2" => Version::Two,
        "cgroup" if kind.next_back()?.split(',').any(|option| option == "cpu") => Version::One,
        _ => return None,
    };
    Some(Mount { version, root, point })
}

/// Returns the group in a line of `/proc/PID/cgroup` (cgroups(7)), if it is of this version and has
/// the CPU controller.
fn group_of(line: &str, version: Version) -> Option<&str> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    let is_meant = match version {
        Version::Two => controllers.is_empty(),
        Version::One => controllers.split(',').any(|controller| controller == "cpu"),
    };
    is_meant.then_some(group)
}

/// Returns the folder of a group below `point`, and those of its ancestors.
fn folders(point: &Path, group: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let point = point.to_owned();
    let lowest = point.join(group);
    let inside: Vec<PathBuf> =
        lowest.ancestors().take_while(|folder| folder.starts_with(&point)).map(Path::to_owned).collect();
    inside.into_iter()
}

/// A limit: a number of cores' worth of time, and the file that holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct Quota {
    /// The cores' worth.
    pub cores: f64,
    /// The file.
    pub file: PathBuf,
}

/// Returns the lowest quota over all groups of a process and those around them.
#[must_use]
pub fn lowest_quota(folders: Vec<(Version, PathBuf)>) -> Option<Quota> {
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

    #[test]
    fn the_groups_are_those_of_the_controller_and_around_them() {
        let mounts = "1 0 0:1 / /r/cpu rw - cgroup cgroup rw,cpu,cpuacct\n2 0 0:2 / /r/mem rw - cgroup cgroup rw,memory\n\
                      3 0 0:3 / /two rw - cgroup2 cgroup2 rw\n";
        let folders = |text: &str| -> Vec<PathBuf> {
            folders_of(mounts, text).into_iter().map(|(_, folder)| folder).collect()
        };
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(
            folders("3:memory:/x\n1:cpu,cpuacct:/a/b\n"),
            paths(&["/r/cpu/a/b", "/r/cpu/a", "/r/cpu"])
        );
        assert_eq!(folders("0::/web.service\n"), paths(&["/two/web.service", "/two"]));
        assert_eq!(folders("0::/../other\n"), paths(&[]), "outside of the namespace");
        assert_eq!(folders("1:cpu\ngarbage"), paths(&[]));
        assert!(of_process("-1").is_empty());
    }

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
    fn the_quota_of_a_mount_is_not_that_of_a_group_outside_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let point = folder.path().display();
        group(folder.path(), "", &[("cpu.max", "50000 100000\n")]);
        let lowest_quota = |root: &str, cgroup: &str| {
            let mountinfo = format!("1 0 0:1 {root} {point} rw - cgroup2 cgroup2 rw\n");
            lowest_quota(folders_of(&mountinfo, cgroup)).map(|quota| quota.cores)
        };
        assert_eq!(lowest_quota("/docker/7", "0::/docker/7/web\n"), Some(0.5));
        assert_eq!(lowest_quota("/../7", "0::/../7/web\n"), Some(0.5));
        for outside in ["/docker/77", "/docker", "/user.slice", "/docker/7/../8"] {
            assert_eq!(lowest_quota("/docker/7", &format!("0::{outside}\n")), None, "{outside}");
        }
        assert_eq!(lowest_quota("/", "0::/../8\n"), None);
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
}
