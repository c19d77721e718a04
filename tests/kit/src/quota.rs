//! A control group with a CPU quota, in either version.

use std::fs;
use std::path::{Path, PathBuf};

use crate::until;

/// A control group that has a fifth of a core; removed when dropped.
#[derive(Debug)]
pub struct CpuQuota(PathBuf);

impl CpuQuota {
    /// Makes one whose name begins with `name`; `None` where that is refused, and then prints that
    /// the test is skipped.
    pub fn new(name: &str) -> Option<Self> {
        let v1 = Path::new("/sys/fs/cgroup/cpu");
        let root = if v1.exists() { v1 } else { Path::new("/sys/fs/cgroup") };
        let folder = root.join(format!("tailwater-{name}-{}", std::process::id()));
        // That of a killed process with the same number; it is empty.
        let _ = fs::remove_dir(&folder);
        let made = fs::create_dir(&folder).and_then(|()| {
            let quota = Self(folder.clone());
            fs::write(folder.join("cpu.cfs_period_us"), "20000")
                .and_then(|()| fs::write(folder.join("cpu.cfs_quota_us"), "4000"))
                .or_else(|_| fs::write(folder.join("cpu.max"), "4000 20000"))
                .map(|()| quota)
        });
        made.map_err(|error| eprintln!("skipped: no control group with a quota is made here ({error})")).ok()
    }

    /// Returns the file into which a process writes its number to be in the group.
    pub fn procs(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for CpuQuota {
    fn drop(&mut self) {
        // Its processes have ended, or go to the group around it.
        let around = self.0.parent().expect("below the mount").join("cgroup.procs");
        for pid in fs::read_to_string(self.procs()).unwrap_or_default().lines() {
            let _ = fs::write(&around, pid);
        }
        until("the control group is removed", || fs::remove_dir(&self.0).is_ok() || !self.0.exists());
    }
}
