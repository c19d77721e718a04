//! The CPU quota of the control groups that this process is in.
//!
//! Owns the judgement; [`control_groups`] reads them.

use tailwater_host::control_groups::{self, Quota, lowest_quota};

use super::part::{Part, Status};

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

#[cfg(test)]
mod tests {
    use super::*;

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
